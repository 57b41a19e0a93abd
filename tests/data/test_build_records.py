import shutil
import signal
import subprocess
import sys
import time

import pytest

from electra_tf import files
from electra_tf.__main__ import main
from electra_tf.data.records import read_manifest
from tests import ROOT
from tests.data.common import VOCABULARY, build, contents, text


def start(folder, arguments, **options):
    command = [sys.executable, "-m", "electra_tf", "records", f"--output_dir={folder}"]
    return subprocess.Popen([*command, *arguments], cwd=ROOT, **options)


@pytest.fixture
def arguments(corpus, tmp_path):
    VOCABULARY.save(tmp_path / "vocab.txt")
    return (f"--corpus={corpus}", f"--vocab_file={tmp_path / 'vocab.txt'}")


@pytest.mark.slow
@pytest.mark.distributed
def test_killed_mid_way_and_run_again(corpus, arguments, tmp_path, capsys):
    corpus.write_text(text(6_000))
    killed = tmp_path / "killed"
    process = start(killed, arguments, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(killed.glob(".build/unit-*.json"))) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)  # The workers see that their parent is gone.
    stamps = {p: p.stat().st_mtime_ns for p in killed.glob(".build/unit-*.json")}
    assert 3 <= len(stamps) < 16
    assert main(["records", f"--output_dir={killed}", *arguments]) == 0
    assert f"{len(stamps)} of 16 units are finished already" in capsys.readouterr().err
    assert main(["records", f"--output_dir={tmp_path / 'whole'}", *arguments]) == 0
    assert contents(killed) == contents(tmp_path / "whole")


def test_command_line_blank_lines(corpus, arguments, tmp_path):
    """Short documents count, too (pitfalls 4 and 5 of docs/fidelity.md)."""
    corpus.write_text("waa wab\n\nwac wad")
    for count, flag in (2, "--blank_lines_separate"), (1, "--noblank_lines_separate"):
        folder = f"--output_dir={tmp_path / flag}"
        assert main(["records", folder, flag, *arguments, "--eval_fraction=0"]) == 0
        assert read_manifest(tmp_path / flag).num_records == count


def test_a_second_process_waits_for_the_first(corpus, arguments, tmp_path):
    corpus.write_text(text(40))
    build(corpus, tmp_path / "whole")
    folder = tmp_path / "shared"
    with files.owned(folder):
        second = start(folder, arguments, stderr=subprocess.PIPE, text=True)
        line = next(line for line in second.stderr if "waiting for it" in line)
        assert f"is working in {folder}" in line
        assert {path.name for path in folder.iterdir()} == {".lock", ".lock.owner"}
        shutil.copytree(tmp_path / "whole", folder, dirs_exist_ok=True)
    told = second.communicate(timeout=60)[1]
    assert second.returncode == 0, told
    assert "holds these records already; using them" in told
    assert contents(folder) == contents(tmp_path / "whole")
