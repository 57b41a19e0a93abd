import os
import time
from importlib import metadata
from pathlib import Path

import pytest

from electra_tf.config import startup
from tests.golden.commands import python

OPTION = "--tf_xla_persistent_cache_directory"
DAY = 24 * 3600


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    unset = ("TF_XLA_FLAGS", "XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL")
    for name in (*unset, startup.CACHE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv(startup.CACHE_VARIABLE, str(tmp_path / "xla"))
    return tmp_path / "xla"


def again(monkeypatch):
    """Repeats the setup as a new process."""
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    return startup.keep_compiled_code()


def put(folder, name, content=bytes(20_000), *, used=0):
    """Writes an entry last used ``used`` seconds ago."""
    path = folder / f"{name}.pb"
    path.write_bytes(content)
    os.utime(path, (time.time() - used,) * 2)
    return path


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_it_is_in_the_users_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    folder = startup.keep_compiled_code()
    assert folder.parent == tmp_path / "a" / "electra_tf" / "xla"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.environ["TF_XLA_FLAGS"] == f"{OPTION}='{folder}'"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "b"))
    assert again(monkeypatch).is_relative_to(tmp_path / "b" / ".cache")


def test_what_the_user_has_set_stays(root, monkeypatch):
    for flags in (f"--a=1 {OPTION}=/mine", "/a/file/of/flags"):
        monkeypatch.setenv("TF_XLA_FLAGS", flags)
        assert startup.keep_compiled_code() is None
        assert os.environ["TF_XLA_FLAGS"] == flags
    monkeypatch.delenv("TF_XLA_FLAGS")
    monkeypatch.setenv(startup.CACHE_VARIABLE, "off")
    assert startup.keep_compiled_code() is None
    assert "TF_XLA_FLAGS" not in os.environ


def test_other_machines_versions_and_flags_have_other_folders(root, monkeypatch):
    folders = [again(monkeypatch)]
    assert again(monkeypatch) == folders[0]
    cpu = "flags\t\t: fpu avx2\n\nflags\t\t: fpu\n"
    for change in (
        lambda: monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"),
        lambda: monkeypatch.setattr(metadata, "version", lambda name: "0.1"),
        lambda: monkeypatch.setattr(os, "sched_getaffinity", lambda of: {*range(5)}),
        lambda: monkeypatch.setattr(Path, "read_text", lambda *_: cpu),
    ):
        change()
        folders.append(again(monkeypatch))
    assert len(set(folders)) == 5


def test_a_folder_that_cannot_be_used_is_not_used(root, monkeypatch):
    root.write_text("a file, where a folder has to be")
    assert startup.keep_compiled_code() is None
    root.unlink()
    # Read-only even for root, the user in containers.
    monkeypatch.setenv(startup.CACHE_VARIABLE, "/proc/self/xla")
    assert startup.keep_compiled_code() is None
    monkeypatch.setenv(startup.CACHE_VARIABLE, str(root))
    monkeypatch.setattr(startup, "MIN_FREE_BYTES", 1 << 70)
    assert startup.keep_compiled_code() is None
    assert "TF_XLA_FLAGS" not in os.environ


def test_empty_entries_are_deleted(root, monkeypatch):
    folder = startup.keep_compiled_code()
    kept = put(folder, "whole")
    put(folder, "empty", b"")
    again(monkeypatch)
    assert names(folder) == {kept.name}


def test_only_so_much_and_for_so_long(root, monkeypatch):
    monkeypatch.setattr(startup, "MAX_BYTES", 50_000)
    folder = startup.keep_compiled_code()
    for number in range(4):
        put(folder, f"used_{number}", used=number * DAY)
    put(folder, "old", b"x", used=31 * DAY)
    (folder / "x.pb-1-2.tmp").write_text("of a process that was killed")
    os.utime(folder / "x.pb-1-2.tmp", (time.time() - 32 * DAY,) * 2)
    (folder / "y.pb-1-2.tmp").write_text("of a process that may still run")
    other = root / "of another version"
    other.mkdir()
    put(other, "old", used=40 * DAY)
    put(other, "used", b"x")
    again(monkeypatch)
    assert names(folder) == {"used_0.pb", "used_1.pb", "y.pb-1-2.tmp"}
    assert names(other) == {"used.pb"}


PROGRAM = """
import hashlib, sys
from electra_tf.config import startup
startup.keep_compiled_code()
import keras, tensorflow as tf
# TensorFlow numbers functions with a counter that tensors move.
numbers = [tf.constant(n) for n in range(int(sys.argv[1]))]
from tests import tiny
keras.utils.set_random_seed(0)
model = tiny.electra(num_layers=1)
model.compile(optimizer="adam")
batch = tiny.batch()
model.fit(tf.data.Dataset.from_tensors(batch).repeat(2), verbose=0, shuffle=False)
weights = b"".join(v.numpy().tobytes() for v in model.weights)
print(hashlib.sha256(weights).hexdigest())
"""


@pytest.mark.slow
def test_compiled_code_is_found_again_and_trains_to_the_same_bits(
    tmp_path, monkeypatch
):
    def run(cache, tensors="0"):
        monkeypatch.setenv(startup.CACHE_VARIABLE, str(cache))
        done = python("-c", PROGRAM, tensors)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def entries():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pb")}

    expected = run(tmp_path / "a b")
    written = entries()
    assert len(written) > 10
    first, *others = written
    first.write_bytes(b"")
    assert run(tmp_path / "a b", tensors="99") == expected
    found = entries()
    assert found.keys() == written.keys()
    assert all(found[path] == written[path] for path in others)


LIGHT = """
import gc, sys
from electra_tf.config import startup
with startup.lightly():
    import keras
    sys.stderr.write("a line of somebody else\\n")
assert not {"sklearn", "pandas", "matplotlib"} & set(sys.modules)
assert keras.Model and gc.isenabled() and gc.get_freeze_count() > 100_000
import matplotlib.pyplot, sklearn.base
"""


@pytest.mark.slow
def test_keras_is_imported_without_what_no_command_uses():
    # Without the filter, TensorFlow logs the CPU's features and the missing GPU.
    done = python("-c", LIGHT)
    assert (done.returncode, done.stderr) == (0, "a line of somebody else\n")
