import dataclasses
import io
import pkgutil
import re
import signal
import sys
from typing import Literal

import pytest
import tensorflow as tf

from electra_tf import cli
from electra_tf.__main__ import COMMANDS
from electra_tf.__main__ import main as command
from electra_tf.config.fields import Group, field, fields, flag_name, from_flat
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import UserError
from tests.golden.commands import python
from tests.training.test_sinks import Terminal

NAMES = {"one": "the first", "two": "the second"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Small(Group):
    """Does something small."""

    count: int = field("How many.", 3, min=1)
    share: float | None = field("How much.")
    words: tuple[str, ...] = field("Which words.", ("a", "b"))
    many: tuple[str, ...] = field("Several times.", (), repeated=True)
    mode: Literal["fast", "slow"] = field("How.", "fast")
    name: str = field("Which.", "one", choices=NAMES)
    source: str | None = field("Whence.", flag="from", required=True)
    quiet: bool = field("Whether.", False)
    case: bool | None = field("Default: as there.")
    speed: int = field("At which rate.", 1, only_with="mode=slow")
    not_one: bool = field("Whether the second.", True, only_with="name!=one")
    depth: int = field("How deep.", 0, only_with="from")


SMALL = cli.Command(f"{__name__}:Small", "electra_tf.files:nothing")


def test_every_kind_of_flag_is_read():
    given = "--count=5 --share 0.5 --words=x,y --many=p --many=q --mode=slow --name=two"
    config = cli.parse(Small, [*given.split(), "--from=here", "--quiet", "--nocase"])
    assert (config.count, config.share, config.quiet) == (5, 0.5, True)
    assert (config.words, config.many, config.case) == (("x", "y"), ("p", "q"), False)
    assert (config.mode, config.name, config.source) == ("slow", "two", "here")
    assert cli.parse(Small, []) == Small()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--count=0", "--count must be at least 1, got 0"),
        ("--count=many", "count"),
        ("--coun=3", "Unknown command line flag 'coun'. Did you mean: count ?"),
        # Absl compares names recursively, letter by letter.
        ("--" + "9" * 5000, "Unknown flag --99999"),
        ("--source=\udcff.txt", "--source=\\udcff.txt is not UTF-8"),
        ("--words=a\0b", "--words=a\\u0000b is not UTF-8 without NUL"),
        ("--name=twoo", "--name=twoo is unknown. Did you mean two? Allowed are one, "),
        ("--mode=medium", "fast"),
        ("--speed=2", "--speed needs --mode=slow, and --mode is fast"),
        ("--nonot_one", "--nonot_one cannot be used with --name=one"),
        ("--nocase=false", "does not take an argument: write --NAME=VALUE"),
        ("stray", "unexpected arguments"),
        ("--flagfile=configs/smal.cfg", "Did you mean configs/small.cfg"),
    ],
)
def test_wrong_flags_are_one_line(argument, message, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.run(SMALL, [argument, "--from=here"])
    assert str(caught.value).startswith("error: ")
    assert message in str(caught.value)


def test_flags_that_need_another_one():
    """Only parsing checks this; stored configs of earlier versions still load."""
    given = ["--mode=slow", "--speed=2", "--name=two", "--nonot_one"]
    assert cli.parse(Small, [*given, "--from=x", "--depth=2"]).speed == 2
    assert cli.parse(Small, ["--speed=1", "--not_one"]).speed == 1
    with pytest.raises(UserError, match="--depth needs --from"):
        cli.parse(Small, ["--depth=2"])
    assert from_flat({"speed": 2}, Small).speed == 2


def test_repeated_and_empty_lists_are_questioned(tmp_path, capsys):
    assert cli.parse(Small, ["--from=x", "--words="]).words == ()
    assert "--words is empty" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="error: --from is required"):
        cli.run(SMALL, ["--from="])
    assert "--from is empty" in capsys.readouterr().err
    (tmp_path / "a.cfg").write_text("--words=x\n")
    given = [f"--flagfile={tmp_path / 'a.cfg'}", "--words=y", "--many=p", "--many=q"]
    for more, count in ([], 0), (["--words=z"], 1):
        with pytest.raises(SystemExit, match="error: --from is required"):
            cli.run(SMALL, given + more)
        assert capsys.readouterr().err.count("only the last --words counts") == count


def test_the_home_folder_is_that_of_shells(tmp_path, monkeypatch):
    """Shells expand ~ only at the start of an argument."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.cfg").write_text("--from=~/x\n--words=~/y,a~/z\n")
    config = cli.parse(Small, ["--flagfile=~/a.cfg"])
    assert config.source == f"{tmp_path}/x"
    assert config.words == (f"{tmp_path}/y", "a~/z")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_standard_streams_are_utf_8_in_every_locale(encoding, monkeypatch):
    def stream(content=b""):
        # Errors as in the C locale.
        return io.TextIOWrapper(io.BytesIO(content), encoding, "surrogateescape")

    assert [*cli.lines_of(stream("é 日\r\n".encode()))] == ["é 日"]
    with pytest.raises(UserError, match="standard input is not UTF-8"):
        list(cli.lines_of(stream(b"caf\xe9")))
    monkeypatch.setattr(sys, "stdout", stream())
    monkeypatch.setattr(Small, "__doc__", "日")
    assert cli.run(SMALL, ["--help"]) == 0
    assert sys.stdout.buffer.getvalue().startswith("日".encode())


def test_closed_standard_streams_are_empty(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert cli.run(SMALL, ["--help"]) == 0
    assert list(cli.lines_of(sys.stdin)) == []


def test_flagfiles_nest_and_later_flags_win(tmp_path):
    inner, outer = tmp_path / "inner.cfg", tmp_path / "outer.cfg"
    inner.write_text("# a comment\n--count=7\n--words=x\n")
    # Windows begins text files with a byte-order mark.
    text = f"\ufeff--flagfile={inner}\r\n\r\n// another\r\n--count=8\r\n"
    outer.write_bytes(text.encode())
    assert cli.parse(Small, [f"--flagfile={outer}"]).count == 8
    assert cli.parse(Small, ["--flagfile", str(outer), "--count=9"]).count == 9
    assert cli.parse(Small, [f"--flagfile={outer}"]).words == ("x",)
    inner.write_text(f"--flagfile={outer}\n")
    for number in range(26):
        twice = f"--flagfile={tmp_path}/{number + 1}.cfg\n" * 2
        (tmp_path / f"{number}.cfg").write_text(twice)
    (tmp_path / "26.cfg").write_text("--count=1\n")
    with pytest.raises(UserError, match="over 8 deep"):
        cli.parse(Small, [f"--flagfile={tmp_path}/0.cfg"])
    with pytest.raises(ValueError, match="includes itself"):
        cli.parse(Small, [f"--flagfile={outer}"])
    for line in ("--from=x  # a comment", "--from='x'", '--from="x"'):
        inner.write_text(line)
        with pytest.raises(UserError, match=r"inner\.cfg: --from.*: write values with"):
            cli.parse(Small, [f"--flagfile={inner}"])
    # Quotes inside a value are a part of it.
    inner.write_text("--from=x\n--many=--corpus='a b'\n")
    assert cli.parse(Small, [f"--flagfile={inner}"]).many == ("--corpus='a b'",)
    inner.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"inner\.cfg is not UTF-8: convert it"):
        cli.parse(Small, [f"--flagfile={inner}"])


def test_shipped_flagfiles_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = cli.parse(PretrainConfig, ["--flagfile=configs/small.cfg"])
    assert found.encoder.num_layers == 12
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.cfg").write_text("--num_layers=3\n")
    found = cli.parse(PretrainConfig, ["--flagfile=configs/small.cfg"])
    assert found.encoder.num_layers == 3


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_every_flag(name, capsys):
    assert command([name, "--help"]) == 0
    shown = capsys.readouterr().out
    config = pkgutil.resolve_name(COMMANDS[name].config)
    for _, leaf in fields(config):
        assert f"--{flag_name(leaf)}" in shown.replace("[no]", "")
    assert max(map(len, shown.splitlines())) <= 100
    assert len(re.findall("^  --flagfile=", shown, re.MULTILINE)) == 1
    assert "--callback=A,B" not in shown
    assert COMMANDS[name].arguments in shown


@pytest.mark.parametrize("script", ["run_pretraining.py", "run_finetuning.py"])
def test_help_imports_no_tensorflow(script):
    done = python("-X", "importtime", script, "--help")
    assert done.returncode == 0, done.stderr
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert not {"tensorflow", "keras", "numpy"} & imported


def test_the_list_of_commands():
    done = python("-X", "importtime", "-m", "electra_tf", "--help")
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    heavy = {"tensorflow", "keras", "numpy", "tqdm"}
    assert not heavy & imported
    for name, row in COMMANDS.items():
        about = re.escape(cli.summary(pkgutil.resolve_name(row.config)))
        assert re.search(f"^  {name} +{about}$", done.stdout, re.M)
    with pytest.raises(SystemExit, match=r"error: .*'pretain'\. Did you mean pretrain"):
        command(["pretain"])


def test_pretraining_without_flags_starts_nothing(capsys):
    assert command(["pretrain"]) == cli.ERROR
    assert "--flagfile=configs/tiny.cfg" in capsys.readouterr().err


def test_errors_are_one_line_and_exit_codes_are_told(capsys, monkeypatch):
    for error, told in (
        (UserError("wrong"), "error: wrong"),
        (OSError(28, "No space left", "file"), "error: [Errno 28] No space left: 'fi"),
        (FloatingPointError("nan"), "error: nan"),
    ):
        with pytest.raises(SystemExit) as caught, cli.clear_errors():
            raise error
        assert str(caught.value).startswith(told)
    with pytest.raises(SystemExit) as caught, cli.clear_errors():
        raise KeyboardInterrupt
    assert caught.value.code == cli.INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert cli.STOPPED == 75
    # Bugs keep their traceback; ELECTRA_TF_DEBUG shows the traceback of any error.
    for bug in (KeyError, ValueError):
        with pytest.raises(bug), cli.clear_errors():
            raise bug("bug")
    monkeypatch.setenv("ELECTRA_TF_DEBUG", "1")
    with pytest.raises(UserError), cli.clear_errors():
        raise UserError("wrong")


def test_sigterm_outside_of_training_has_its_exit_code(capsys):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, cli.clear_errors():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == cli.STOPPED
    assert "SIGTERM" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_errors_of_tensorflow_come_without_their_graph():
    table = tf.Variable(tf.zeros([3, 2]))

    @tf.function
    def look_up(ids):
        return tf.gather(table, ids)

    with pytest.raises(SystemExit) as caught, cli.clear_errors():
        look_up(tf.constant([7]))
    assert "7 is not in [0, 3)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_live_progress_writes_over_its_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    progress = cli.Progress(1000, done=500, unit="B", scale=True)
    progress.update(500)
    progress.say("a line that stays")
    progress.update(1000)
    progress.close()
    assert stream.getvalue().count("\n") == 2
    assert "\x1b[Ka line that stays\n" in stream.getvalue()
    assert "1.00k/1.00k 100.0%" in stream.getvalue()
