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
