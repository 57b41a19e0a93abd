import re

import pytest

from tests.examples.common import ROOT

PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMED = re.compile(r"tests/[\w/]+(?:\.py|(?![\w.]))(?:::\w+)?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_docs_name_exist(page):
    for named in NAMED.findall(page.read_text("utf-8")):
        name, _, test = named.partition("::")
        assert (ROOT / name).exists(), name
        assert not test or f"\ndef {test}(" in (ROOT / name).read_text("utf-8"), named


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
