import ast
import collections
import re

import pytest

from tests import ROOT

PAGE = (ROOT / "docs" / "fidelity.md").read_text("utf-8")
DEVIATION = re.compile(r"^\| `(electra_tf/[\w/]+\.py)` \| (.+) \| (.+) \|$", re.M)
PITFALL = re.compile(r"^\| (\d+) \| .+ \| (.+) \|$", re.M)
PITFALLS = {int(number): tests for number, tests in PITFALL.findall(PAGE)}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
MENTION = re.compile(r"pitfalls? ((?:\d+(?:, | and | to )?)+)", re.I)


def test_every_deviation_is_listed():
    counts = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8").count("Deviation:")
        for path in (ROOT / "electra_tf").rglob("*.py")
    }
    listed = DEVIATION.findall(PAGE)
    names = collections.Counter(name for name, _, _ in listed)
    assert names == {name: count for name, count in counts.items() if count}
    assert len(set(listed)) == len(listed)


def test_every_pitfall_is_listed():
    assert {*range(1, 44)} <= PITFALLS.keys()


@pytest.mark.parametrize("number", PITFALLS)
def test_named_tests_exist_and_name_the_pitfall(number):
    named = TEST.findall(PITFALLS[number])
    assert named
    for path, name in named:
        source = (ROOT / path).read_text("utf-8")
        (test,) = (x for x in ast.parse(source).body if getattr(x, "name", "") == name)
        text = " ".join(MENTION.findall(ast.get_source_segment(source, test)))
        assert str(number) in re.findall(r"\d+", text), name
