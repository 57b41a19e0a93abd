import ast
import functools
import re

import pytest

from tests.examples.common import ROOT

PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMED = re.compile(r"tests/[\w/]+(?:\.py|(?![\w.]))(?:::\w+)?")


@functools.cache
def collected(path):
    """Returns the names of the tests in a file."""
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in names if name.startswith("test_")}


def problem(named):
    """Returns an error message for a named test, test file or test folder."""
    name, _, test = named.partition("::")
    path = ROOT / name
    if not path.exists():
        return f"{name} does not exist"
    if test and test not in collected(path):
        return f"{name} has no {test}"
    if path.name.startswith("test_") and not collected(path):
        return f"{name} has no test"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_docs_name_exist(page):
    text = page.read_text("utf-8")
    assert not [error for name in NAMED.findall(text) if (error := problem(name))]


def test_every_promise_and_every_fault_has_a_test():
    text = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    tables = {
        title: [line for line in text.split("\n") if line.startswith("| ")]
        for title, text in re.findall(r"\n## (.+)\n((?:(?!\n## )[\s\S])*)", text)
    }
    promises, faults = tables["Promises"][1:], tables["Faults injected"][1:]
    assert len(promises) > 10
    assert len(faults) > 5
    for line in promises:
        assert NAMED.search(line.split(" | ")[-1]), line
    for line in faults:
        command = line.split(" | ")[-1]
        assert NAMED.search(command) or command.startswith("the same"), line
        # The command needs -m slow if all tests of a file are slow.
        for name in re.findall(r"python -m pytest (tests/\S+\.py)", command):
            assert "pytestmark = pytest.mark.slow" not in (ROOT / name).read_text()
