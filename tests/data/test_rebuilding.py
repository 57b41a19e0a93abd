"""A records folder that is there already: finished, interrupted, or being built."""

import shutil
import subprocess
import sys

import pytest

from electra_tf.data import installed
from electra_tf.data.folder_lock import LOCK, locked
from electra_tf.data.records import verify
from tests.data.test_build_records import (
    ROOT,
    VOCABULARY,
    build,
    command,
    contents,
    killed_after,
    text,
)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(400))
    return path


def test_a_second_process_waits_and_uses_what_the_first_built(corpus, tmp_path):
    VOCABULARY.save(tmp_path / "vocab.txt")
    build(corpus, tmp_path / "whole")
    folder = tmp_path / "shared"
    with locked(folder, print):
        second = subprocess.Popen(
            [
                *(sys.executable, "-m", "electra_tf.data.build_records"),
                f"--corpus={corpus}",
                f"--vocab_file={tmp_path / 'vocab.txt'}",
                f"--output_dir={folder}",
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in second.stderr:
            if "another process is building" in line:
                break
        assert str(folder) in line
        assert [path.name for path in folder.iterdir()] == [LOCK]
        shutil.copytree(tmp_path / "whole", folder, dirs_exist_ok=True)
    told = second.communicate(timeout=60)[1]
    assert second.returncode == 0, told
    assert "holds these records already; using them" in told
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_folder_that_cannot_be_written_is_used(corpus, tmp_path, monkeypatch):
    manifest = build(corpus, tmp_path / "records")

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("electra_tf.data.folder_lock.open", refuse, raising=False)
    assert build(corpus, tmp_path / "records") == manifest


def test_finished_records_do_without_their_text(corpus, tmp_path):
    manifest = build(corpus, tmp_path / "records")
    corpus.unlink()
    told = []
    assert build(corpus, tmp_path / "records", log=told.append) == manifest
    assert "the text is not there any more" in told[0]
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        build(corpus, tmp_path / "records", seed=1)
    with pytest.raises(ValueError, match="no such file"):
        build(tmp_path / "typo.txt", tmp_path / "records")
    with pytest.raises(ValueError, match="no such file"):
        build(corpus, tmp_path / "records", overwrite=True)
    assert verify(tmp_path / "records", thorough=True) == manifest


def test_other_installed_packages_are_a_warning(tmp_path, monkeypatch):
    documents = [document.split("\n") for document in text(60).split("\n\n")]
    monkeypatch.setattr(installed, "documents", lambda: iter(documents))
    monkeypatch.setattr(installed, "fingerprint", lambda: "before")
    manifest = build("installed", tmp_path / "records")
    monkeypatch.setattr(installed, "fingerprint", lambda: "after")
    told = []
    assert build("installed", tmp_path / "records", log=told.append) == manifest
    assert "installed packages have changed" in told[0]
    assert "--overwrite" in told[0]
    with pytest.raises(ValueError, match="max_seq_length is 128 there and 64 here"):
        build("installed", tmp_path / "records", max_seq_length=64)


def test_a_byte_in_the_middle_of_a_large_file_is_seen(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(2000))
    build(path, tmp_path / "records")
    content = bytearray(path.read_bytes())
    place = content.index(b"w", len(content) // 3)
    content[place : place + 3] = b"wjj"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="the text has changed"):
        build(path, tmp_path / "records")


def test_an_interrupted_overwriting_build_goes_on(corpus, tmp_path, monkeypatch):
    folder = tmp_path / "records"
    build(corpus, folder)
    with killed_after(monkeypatch, 2):
        build(corpus, folder, seed=1, overwrite=True)
    told = []
    build(corpus, folder, seed=1, overwrite=True, log=told.append)
    assert "2 of 6 units are finished already" in told[1]
    build(corpus, tmp_path / "whole", seed=1)
    assert contents(folder) == contents(tmp_path / "whole")
    # Of finished records, the same command makes new ones.
    told.clear()
    build(corpus, folder, seed=1, overwrite=True, log=told.append)
    assert not any("already" in line for line in told)


def test_a_typo_destroys_nothing(corpus, tmp_path):
    folder = tmp_path / "records"
    build(corpus, folder)
    before = contents(folder)
    done = command(f"--corpus={corpus}x", f"--output_dir={folder}", "--overwrite")
    assert done.returncode == 1
    assert "no such file" in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(folder) == before
