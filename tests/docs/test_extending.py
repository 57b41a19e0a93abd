import re
import shutil
import sys

import pytest

from tests.examples.common import ROOT, output_of

PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
PROGRAM = """
from electra_tf.__main__ import main
from electra_tf.tasks import glue_task
flags = "--flagfile=configs/medium.cfg --corpus=text.txt --vocab_size=100"
main(["pretrain", "--dry_run", "--max_seq_length=32", *flags.split()])
task = glue_task("similarity", "STS-B")
print(task.main_metric, task.examples("dev")[0].texts)
"""


def applied(folder):
    """Applies each diff below ``folder``; returns the changed files."""
    changed = []
    for diff in re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL):
        after = None
        for line in diff.splitlines():
            if line.startswith(("--- a/", "+++ b/")):
                path, after = folder / line[6:], None
                changed.append(path)
            elif line.startswith(" "):
                after = line[1:] + "\n"
                assert path.read_text("utf-8").count(after) == 1, (path, after)
            elif line.startswith("+"):
                text = path.read_text("utf-8") if path.exists() else ""
                before, mark, rest = text.partition(after) if after else (text, "", "")
                after = (after or "") + line[1:] + "\n"
                path.write_text(before + mark + line[1:] + "\n" + rest, "utf-8")
    return changed


@pytest.mark.slow
def test_diffs_make_a_task_and_a_size(tmp_path):
    for name in ("configs", "electra_tf"):
        shutil.copytree(ROOT / name, tmp_path / name)
    assert len(applied(tmp_path)) == 2
    glue = tmp_path / "STS-B"
    glue.mkdir()
    rows = "index\tsentence1\tsentence2\tscore\n0\tone\tanother\t2.5\n"
    for split in ("train", "dev"):
        (glue / f"{split}.tsv").write_text(rows)
    text = "the quick brown fox {} jumps over a lazy dog near the river bank\n"
    blank = ("\n" if number % 5 == 0 else "" for number in range(400))
    lines = (text.format(number) + end for number, end in enumerate(blank))
    (tmp_path / "text.txt").write_text("".join(lines))
    program = [sys.executable, "-c", PROGRAM]
    output = output_of(program, tmp_path, PYTHONPATH=str(tmp_path))
    assert "12 layers x 512" in output
    assert output.endswith("pearson ('one', 'another')\n")
