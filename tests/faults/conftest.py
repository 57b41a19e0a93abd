import subprocess

import pytest

from tests.runs.conftest import pretrained, text


def _mounted(folder, *options):
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    return folder


@pytest.fixture
def small(tmp_path):
    folder = _mounted(tmp_path / "small", "-o", "size=16k")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def read_only(tmp_path):
    """A disk and a function that remounts it read-only, also for root."""
    folder = _mounted(tmp_path / "disk")

    def lock():
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        return folder

    yield folder, lock
    subprocess.run(["umount", "-l", str(folder)], check=True)


__all__ = ["pretrained", "text"]
