"""Every writer on a disk that is too small: one line with the path, nothing left."""

import collections
import errno
import shutil
import subprocess

import pytest

from electra_tf import convert, files
from electra_tf.serving import export
from electra_tf.tasks.text import Classification
from tests.interop.models import GOLDEN
from tests.tasks import common

FORMATS = ("electra_tf", "google_tf1", "hugging_face", "keras_hub")
Usage = collections.namedtuple("Usage", "total used free")


@pytest.fixture
def small(tmp_path):
    """A disk of 16 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def assert_full(error, path):
    assert error.errno == errno.ENOSPC
    assert str(error).endswith(f"{str(path)!r}")
    assert "\n" not in str(error)
    assert list(path.parent.iterdir()) == []


def assert_conversion_fails(folder, name):
    source = f"--from={GOLDEN / 'projected'}"
    with pytest.raises(SystemExit, match=r"error: .*No space left .*small/out'$"):
        convert.main([source, f"--to={folder / 'out'}", f"--format={name}"])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS)
def test_conversion_is_refused_before_it_begins(small, name):
    assert_conversion_fails(small, name)


@pytest.mark.parametrize("name", FORMATS[:3])
def test_conversion_that_runs_into_it(small, name, monkeypatch):
    """Another process may take the room that there was."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 10**12))
    assert_conversion_fails(small, name)


def test_tokenizer_of_hugging_face(small, monkeypatch):
    """Its library raises a bare Exception."""
    path = small / "out"

    def write():
        with files.replacing(path) as part:
            part.mkdir()
            raise Exception("No space left on device (os error 28)")

    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert_full(caught.value, path)


def test_saved_model(small):
    task = Classification(name="c", source=None, labels=("a", "b"))
    model = task.build_model(common.encoder())
    path = small / "saved"
    with pytest.raises(OSError, match="No space left") as caught:
        export.export_saved_model(model, task, common.tokenizer(), str(path), 16)
    assert_full(caught.value, path)
