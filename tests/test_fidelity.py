"""docs/fidelity.md and the code list the same deviations from the original."""

import collections
import re

from tests import ROOT

ROW = re.compile(r"^\| `(electra_tf/[\w/]+\.py)` \| (.+) \| (.+) \|$", re.MULTILINE)


def deviations():
    counts = {
        path.relative_to(ROOT).as_posix(): path.read_text().count("Deviation:")
        for path in (ROOT / "electra_tf").rglob("*.py")
    }
    return {name: count for name, count in counts.items() if count}


def rows(text):
    section = text.partition("\n## Deviations\n")[2].partition("\n## ")[0]
    return ROW.findall(section)


def test_every_deviation_is_listed():
    listed = rows((ROOT / "docs" / "fidelity.md").read_text())
    assert collections.Counter(name for name, _, _ in listed) == deviations()
    assert all(len(what) > 30 and len(why) > 20 for _, what, why in listed)
    assert len(set(listed)) == len(listed)
