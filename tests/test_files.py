import contextlib
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import filelock
import pytest

from electra_tf import files


def test_a_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with files.open_new(path) as file:
        file.write("one\n")
        (part,) = path.parent.iterdir()
        # Keras and matplotlib choose the format by the suffix.
        assert part.suffix == ".txt"
        assert not path.exists()
    assert path.read_text() == "one\n"
    assert list(path.parent.iterdir()) == [path]


def test_outputs_that_cannot_be_written_are_named_before_the_work(tmp_path):
    files.check_new(tmp_path / "deep" / "new.txt", None, overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file exists: pass --overwrite"):
        files.check_new(tmp_path / "file", overwrite=False)
    files.check_new(tmp_path / "file", overwrite=True)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "file" / "x" / "new.txt", tmp_path / "pipe"):
        with pytest.raises(ValueError, match="cannot be written"):
            files.check_new(path, overwrite=True)


def test_lone_surrogates_do_not_prevent_writing(tmp_path):
    files.write_text(tmp_path / "file.txt", "half \ud83d, whole \U0001f600\n")
    written = (tmp_path / "file.txt").read_text("utf-8")
    assert written == "half ?, whole \U0001f600\n"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError), files.open_new(path) as file:
        file.writelines(["half", None])
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "folder"
    for name in ("inside", "another"):
        with files.replacing(target) as part:
            part.mkdir()
            (part / name).write_text("x")
        with contextlib.suppress(EOFError), files.replacing(target) as part:
            part.mkdir()
            raise EOFError
        assert list(target.iterdir()) == [target / name]
    assert list(tmp_path.iterdir()) == [target]


def test_errors_name_the_file_and_not_its_temporary_name(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "full").mkdir(parents=True)
    for path, named in (("file/below", "file"), ("folder", "folder")):
        with pytest.raises(OSError, match=f"{named}'$") as caught:
            files.write_text(tmp_path / path, "x")
        assert ".part-" not in str(caught.value)


def test_damaged_json_is_named_and_a_missing_file_has_a_default(tmp_path):
    path = tmp_path / "config.json"
    assert files.read_json(path, {"a": 1}) == {"a": 1}
    with pytest.raises(FileNotFoundError):
        files.read_json(path)
    for content in (b"", b"{", b"[1]", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"config\.json is damaged"):
            files.read_json(path, {})


def test_json_that_is_written_is_strict(tmp_path):
    files.write_json(tmp_path / "x.json", {"a": [float("nan"), 1.5], "b": (1, "c")})
    text = (tmp_path / "x.json").read_text()
    value = json.loads(text, parse_constant=pytest.fail)
    assert value == {"a": [None, 1.5], "b": [1, "c"]}


def test_json_lines_survive_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert files.read_json_lines(path) == []
    files.append_json_line(path, {"a": 1, "b": float("nan")})
    with path.open("a") as file:
        file.write('{"a": 2')
    files.append_json_line(path, {"a": 3})
    assert files.read_json_lines(path) == [{"a": 1, "b": None}, {"a": 3}]
    with path.open("a") as file:
        file.write('{"b": "x\u2028y\x85z"}\n')
    assert files.read_json_lines(path)[-1] == {"b": "x\u2028y\x85z"}
    files.write_json_lines(path, [{"a": float("inf")}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": None}]


def test_remove_takes_files_folders_and_links_and_what_is_not_there(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for name in ("link", "folder", "missing"):
        files.remove(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".file.part-{dead.pid}.txt").write_text("")
    (tmp_path / f".v1.part-{dead.pid}-deadbeef.0").mkdir()
    alive = tmp_path / f".file.part-{os.getpid()}.txt"
    alive.write_text("")
    files.remove_leftovers(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    files.remove_leftovers(tmp_path, is_locked=True)
    assert list(tmp_path.iterdir()) == [alive]


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in(function, folder):
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=function, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return process


def kill_between(parent):
    """Replaces a folder; the process is killed between the two renames."""
    rename = os.replace
    os.replace = lambda one, other: die(rename(one, other))
    with files.replacing(parent / "folder") as part:
        part.mkdir()
        (part / "inside").write_text("new")


def test_killed_while_a_folder_takes_the_place_of_another(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_text("old")
    kill_in(kill_between, tmp_path)
    there = tmp_path / "folder" / "inside"
    assert not there.exists()
    assert len(list(tmp_path.iterdir())) == 2
    files.remove_leftovers(tmp_path)
    assert there.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def leave(folder):
    with files.replacing(folder / "file.txt") as part:
        part.write_text("half")
        die()


def test_whoever_writes_next_removes_what_a_dead_process_left(tmp_path):
    process = kill_in(leave, tmp_path)
    (left,) = tmp_path.iterdir()
    # Processes of another host cannot be checked.
    others = tmp_path / f".other.part-{process.pid}-00000000.txt"
    others.touch()
    files.write_text(tmp_path / "another", "x")
    assert not left.exists()
    assert others.exists()
    assert (tmp_path / "another").read_text() == "x"


@pytest.mark.parametrize("is_folder", [False, True])
def test_leftovers_of_an_earlier_process_with_this_number(tmp_path, is_folder):
    """In containers processes can share process id and host name."""
    target = tmp_path / "out"
    for _ in range(2):
        with files.replacing(target) as part:
            names = [part, part.with_name(f"{part.name}.old")]
            part.mkdir() if is_folder else part.write_text("new")
        for name in names:
            name.mkdir(exist_ok=True)
            (name / "stale").write_text("stale")
    with files.replacing(target) as part:
        assert not part.exists()
        part.mkdir() if is_folder else part.write_text("new")
    assert not is_folder or not list(target.iterdir())
    assert is_folder or target.read_text() == "new"


def test_what_does_not_fit_is_not_begun(tmp_path):
    with pytest.raises(OSError, match=r"No space left .*'.*/file'") as caught:
        files.replacing(tmp_path / "file", size=10**18).__enter__()
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writable", [True, False])
def test_the_lock_of_another_user_is_not_ignored(tmp_path, monkeypatch, writable):
    def acquire(self, *args):
        raise PermissionError(errno.EACCES, "Permission denied", self.lock_file)

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    expected = (
        pytest.raises(PermissionError, match=r"\.lock")
        if writable
        else contextlib.nullcontext()
    )
    with expected, files.owned(tmp_path):
        pass


@pytest.mark.parametrize("killed", [False, True])
def test_a_second_owner_waits_for_the_first_or_is_told_who_it_is(
    tmp_path, lock_holder, killed
):
    process, release = lock_holder
    said = []

    def log(text):
        said.append(text)
        process.kill() if killed else release.set()

    with pytest.raises(ValueError, match=f"process {process.pid} on .* is working in"):
        files.owned(tmp_path).__enter__()
    began = time.monotonic()
    with files.owned(tmp_path, log):
        assert str(os.getpid()) in (tmp_path / ".lock.owner").read_text()
    assert len(said) == 1
    assert f"process {process.pid} on" in said[0]
    assert time.monotonic() - began < 30
