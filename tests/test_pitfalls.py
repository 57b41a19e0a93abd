"""Every pitfall of docs/fidelity.md has a test that mentions its number."""

import ast
import re

import pytest

from tests import ROOT

SECTION = "## What re-implementations get wrong"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
MENTION = re.compile(r"pitfalls? ((?:\d+(?:, | and | to )?)+)", re.IGNORECASE)


def rows(text):
    section = text.partition(SECTION)[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines()]
    return [
        (int(row[0]), row[1], TEST.findall(row[2]))
        for row in cells
        if len(row) == 3 and row[0].isdigit()
    ]


TABLE = rows((ROOT / "docs" / "fidelity.md").read_text())


def mentioned(text):
    numbers = re.findall(r"\d+", " ".join(MENTION.findall(text)))
    return {*map(int, numbers)}


def source_of(path, name):
    """Source of a test function, or None if it does not exist."""
    source = (ROOT / path).read_text() if (ROOT / path).exists() else ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_source_segment(source, node)
    return None


def test_every_number_has_one_row():
    numbers = [number for number, _, _ in TABLE]
    assert numbers == sorted(set(numbers))
    assert {*range(1, 44)} <= {*numbers}


@pytest.mark.parametrize(
    ("number", "pitfall", "tests"), TABLE, ids=[str(row[0]) for row in TABLE]
)
def test_named_tests_exist_and_name_the_pitfall(number, pitfall, tests):
    assert len(pitfall) > 20
    assert tests, "no test is named"
    for path, name in tests:
        source = source_of(path, name)
        assert source is not None, f"{path} has no {name}"
        assert number in mentioned(source), f"{name} does not mention {number}"


def test_numbers_in_tests_are_in_the_table():
    known = {number for number, _, _ in TABLE}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = re.sub(r"\s+", " ", path.read_text())
        for found in re.findall(r"(pitfalls? [\d, andto]+) of docs/fidelity", text):
            assert mentioned(found) <= known, f"{path.name}: {found}"
