"""A process that holds the lock of a folder; imports no TensorFlow."""

import multiprocessing

import pytest

from electra_tf import files


def _hold(folder, held, release):
    with files.owned(folder):
        held.set()
        release.wait(600)


@pytest.fixture
def lock_holder(tmp_path):
    """A process that holds the lock of the folder until the event or a kill."""
    spawn = multiprocessing.get_context("spawn")
    held, release = spawn.Event(), spawn.Event()
    process = spawn.Process(target=_hold, args=(tmp_path, held, release))
    process.start()
    assert held.wait(60)
    yield process, release
    # Setting an event with a killed waiter would block.
    if process.is_alive():
        release.set()
    process.join()
