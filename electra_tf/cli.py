"""Command-line flags, help, error reporting, exit codes and progress bars.

``run`` parses the flags of a ``Command``, imports its function and calls it with the
config. ``--help`` does not import TensorFlow. User errors print as one line.
"""

import collections
import contextlib
import dataclasses
import inspect
import io
import itertools
import os
import pkgutil
import re
import shutil
import signal
import sys
import textwrap
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags, logging

from electra_tf import __version__
from electra_tf.config import fields, startup
from electra_tf.errors import UserError, did_you_mean, reason

# Exit codes. STOPPED is EX_TEMPFAIL for schedulers, INTERRUPTED that of Ctrl-C.
OK, ERROR, STOPPED, INTERRUPTED = 0, 1, 75, 130

Log = Callable[[str], None]
# Parents of configs/: the installed package, or in a checkout the folder above. The
# package comes first, because site-packages may hold another configs/.
_SHIPPED = Path(__file__).parents[:2]
# Levels of nested flagfiles, whose number may double at each level.
_DEEPEST_FLAGFILE = 8
# Control characters except line breaks and tabs, and bidirectional overrides.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Escapes terminal control characters, as JSON does."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def say(text: str) -> None:
    """Writes a line to standard output, escaped and flushed."""
    sys.stdout.write(f"{visible(text)}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Writes a line to standard error, for progress and warnings."""
    sys.stderr.write(f"{visible(text)}\n")
    sys.stderr.flush()


class Command(NamedTuple):
    """A subcommand of ``electra-tf``.

    ``function`` is imported after the flags are validated. It takes the config and
    allowed positional arguments, and returns an exit code or None.
    """

    # "module:Class" of the dataclass of flags; its docstring is the help, and the first
    # line also the summary in the list of commands.
    config: str
    function: str  # "module:function".
    arguments: str = ""  # Help of the positional arguments; empty allows none.


def run(command: Command, arguments: Sequence[str]) -> int:
    """Runs a command and returns the exit code."""
    logging.set_verbosity(logging.WARNING)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # None if the shell closed it, as by <&-.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Other encodings of the locale cannot represent every token.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    with clear_errors():
        config_class = pkgutil.resolve_name(command.config)
        given = {*itertools.takewhile(lambda text: text != "--", arguments)}
        if "--version" in given:
            say(f"electra_tf {__version__}")
            return OK
        if given & {"--help", "-h", "--helpfull"}:
            say(help_text(config_class, command.arguments))
            return OK
        config, rest = _parse(config_class, arguments, bool(command.arguments))
        counts = collections.Counter(text.partition("=")[0] for text in arguments)
        for _, leaf in fields.fields(config_class):
            name, is_list = fields.flag_name(leaf), isinstance(leaf.default, tuple)
            if leaf.metadata["required"] and not getattr(config, leaf.name):
                raise UserError(f"--{name} is required; see --help.")
            if is_list and not leaf.metadata["repeated"] and counts[f"--{name}"] > 1:
                note(f"warning: only the last --{name} counts: join with commas.")
        with startup.lightly():
            function = pkgutil.resolve_name(command.function)
        code = function(config, rest) if command.arguments else function(config)
    return OK if code is None else code


def _stop(number: int, frame: types.FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    sys.exit(STOPPED)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Prints user errors as one line on standard error and exits with a code.

    User errors are ``UserError``, ``OSError``, ``FloatingPointError``, absl flag errors
    and TensorFlow ``OpError``. Other exceptions are bugs and keep their traceback.

    The first SIGTERM exits with ``STOPPED``; the second one kills. During ``fit``,
    ``GracefulStop`` replaces this handler to save a checkpoint first.
    """
    # 1 shows the traceback of user errors too.
    if os.environ.get("ELECTRA_TF_DEBUG", "0") not in ("", "0"):
        yield
        return
    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    except SystemExit as error:
        if error.code == STOPPED:
            note("stopped by SIGTERM; repeat a run without --overwrite to resume it")
        raise
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader closed the pipe (`| head`): the flush at exit must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ERROR)
    except (UserError, OSError, FloatingPointError, flags.Error) as error:
        sys.exit(visible(f"error: {error}"))
    except ModuleNotFoundError as error:
        if error.name not in ("pandas", "jinja2"):
            raise
        sys.exit(f"error: {error.name} is missing: pip install 'electra_tf[analysis]'.")
    except Exception as error:
        # Looked up, not imported: commands without TensorFlow stay fast.
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is None or not isinstance(error, tensorflow.errors.OpError):
            raise
        sys.exit(visible(f"error: {reason(error)}"))
    finally:
        signal.signal(signal.SIGTERM, previous)


def parse(config_class: type, arguments: Sequence[str]) -> Any:
    """Builds a config from arguments; raises UserError, absl.flags.Error or OSError."""
    return _parse(config_class, arguments, False)[0]


def _parse(
    config_class: type, arguments: Sequence[str], takes_texts: bool
) -> tuple[Any, list[str]]:
    """Returns the config and the positional arguments."""
    values = _definitions(config_class)
    # Allows flags after positional arguments.
    values.set_gnu_getopt()
    own = {fields.flag_name(leaf): leaf for _, leaf in fields.fields(config_class)}
    given = list(_expanded(arguments))
    for argument in itertools.takewhile(lambda text: text != "--", given):
        name = argument.partition("=")[0]
        if name.startswith("-") and len(name) > 100:
            # Absl's search for similar names is slow on long ones.
            raise UserError(f"Unknown flag {name[:40]}... --help lists all flags.")
        shown = argument.encode("utf-8", "backslashreplace").decode()
        if shown != argument or "\0" in argument:
            # TensorFlow and JSON cannot represent such a path.
            raise UserError(f"{shown} is not UTF-8 without NUL: rename or correct it.")
    try:
        rest = values(["", *given])[1:]
    except ValueError as error:
        # Absl's error for --noNAME=VALUE.
        raise UserError(f"{error}: write --NAME=VALUE or --noNAME.") from error
    flat = {
        leaf.name: _at_home(values[name].value)
        for name, leaf in own.items()
        if values[name].present
    }
    for name, leaf in own.items():
        # Such as --records="$UNSET".
        if flat.get(leaf.name) in ([], ""):
            note(f"warning: --{name} is empty")
    config = fields.from_flat(flat, config_class)
    fields.check_dependencies(config)
    if rest and not takes_texts:
        raise UserError(f"unexpected arguments {rest}; see --help.")
    return config, rest


def _at_home(value: Any) -> Any:
    """Expands "~/", which shells expand only at the start of an argument."""
    if isinstance(value, list):
        return [_at_home(each) for each in value]
    is_path = isinstance(value, str) and value.startswith("~/")
    return os.path.expanduser(value) if is_path else value


def _expanded(arguments: Sequence[str], level: int = 0) -> Iterator[str]:
    """Yields the arguments, with each ``--flagfile`` replaced by its lines."""
    waiting = iter(arguments)
    for argument in waiting:
        name, equals, path = argument.partition("=")
        if argument == "--":
            yield from (argument, *waiting)
        elif name not in ("--flagfile", "-flagfile"):
            yield argument
        elif level == _DEEPEST_FLAGFILE:
            raise UserError(
                f"flagfile {path} includes itself, or is nested over {level} deep."
            )
        else:
            path = find_flagfile(_at_home(path if equals else next(waiting, "")))
            yield from _expanded(_lines_of(path), level + 1)


def _lines_of(flagfile: str) -> list[str]:
    """Returns the flags of a flagfile, without comments."""
    try:
        text = Path(flagfile).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"flagfile {flagfile} is not UTF-8: convert it.") from error
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if line and not line.startswith(("#", "//"))]
    for line in lines:
        # Would be a part of the value, such as of the name of a new folder.
        if re.search(r"^-(.*\s#|[^=]*=(['\"]).*\2$)", line):
            raise UserError(
                f"flagfile {flagfile}: {line}: write values without quotes, and "
                "comments on lines of their own."
            )
    return lines


def find_flagfile(name: str) -> str:
    """Returns the path of a flagfile, given or shipped, or raises FileNotFoundError."""
    if Path(name).is_file():
        return name
    for home in _SHIPPED:
        if Path(home, name).is_file() and "configs" in Path(name).parts[:1]:
            return str(home / name)
    shipped = [
        path.relative_to(home).as_posix()
        for home in _SHIPPED
        for path in home.glob("configs/**/*.cfg")
    ]
    raise FileNotFoundError(f"no flagfile {name!r}.{did_you_mean(name, shipped)}")


def _definitions(config_class: type) -> flags.FlagValues:
    """Defines the flags of a config; tuples are comma-separated or repeated."""
    values, hints = flags.FlagValues(), fields.kinds(config_class)
    definers = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
    }
    for _, leaf in fields.fields(config_class):
        default, define = leaf.default, definers.get(hints[leaf.name])
        if isinstance(default, tuple):
            is_repeated = leaf.metadata["repeated"]
            define = flags.DEFINE_multi_string if is_repeated else flags.DEFINE_list
            default = list(default)
        define = define or flags.DEFINE_string
        define(fields.flag_name(leaf), default, "", flag_values=values)
    return values


def summary(config_class: type) -> str:
    """Returns the first line of the docstring, without its period."""
    # None under python -OO.
    return (inspect.getdoc(config_class) or "").split("\n")[0].rstrip(".")


def help_text(config_class: type, texts: str) -> str:
    """Returns ``--help``: docstring, positional arguments ``texts``, flags by group."""
    width = min(100, shutil.get_terminal_size((88, 24)).columns)
    parts = [inspect.getdoc(config_class)]
    if texts:
        parts.append(texts)
    for _, group in fields.groups(config_class):
        is_alone = group is config_class
        title = "Flags" if is_alone else summary(group)
        rows = [
            _flag_help(leaf, fields.kinds(group)[leaf.name], width)
            for leaf in dataclasses.fields(group)
        ]
        parts.append("\n".join([title, *rows]))
    parts.append(
        "Any command\n"
        "  --flagfile=FILE  read flags from FILE, one per line; later flags win.\n"
        "      Shipped files are found from any folder, such as configs/small.cfg\n"
        "  --help, --version  this text; the version"
    )
    return "\n\n".join(parts)


def _flag_help(leaf: dataclasses.Field, hint: Any, width: int) -> str:
    name, default = fields.flag_name(leaf), leaf.default
    choices = leaf.metadata["choices"] or {}
    if typing.get_origin(hint) is typing.Literal:
        kind = "|".join(typing.get_args(hint))
    elif choices and hint is str:
        kind = "NAME"
    elif leaf.metadata["repeated"]:
        kind = "TEXT"
    else:
        kind = {int: "N", float: "X", str: "TEXT"}.get(hint, "A,B,...")
    head = f"  --[no]{name}" if hint is bool else f"  --{name}={kind}"
    if isinstance(default, tuple):
        default = ",".join(default)
    if leaf.metadata["required"]:
        head += "  (required)"
    elif default not in (None, "") and default is not False:
        head += f"  (default: {default})"
    wrapper = textwrap.TextWrapper(width, " " * 6, " " * 6)
    about, needed = leaf.metadata["help"], leaf.metadata["only_with"].split(",")
    needed = [f"--{rule}" for rule in needed if rule and "!" not in rule]
    if needed:
        about += f" Only with {', '.join(needed)}.".replace("|", " or ")
    about += " May be repeated." if leaf.metadata["repeated"] else ""
    lines = [head, *wrapper.wrap(about)]
    wrapper = textwrap.TextWrapper(width, " " * 8, " " * 10)
    for choice, meaning in choices.items():
        lines += wrapper.wrap(f"{choice}: {meaning}")
    return "\n".join(lines)


class Progress:
    """Progress bar with rate and remaining time.

    Overwrites one line on a terminal. Elsewhere, writes plain lines at least
    ``seconds`` apart, to ``log`` (default: standard error). The rate is measured from
    the first ``update``. ``done`` units were done before. ``scale`` shortens counts.
    """

    def __init__(
        self,
        total: float,
        *,
        done: float = 0,
        unit: str = "step",
        scale: bool = False,
        log: Log | None = None,
        seconds: float = 10.0,
    ):
        self.total, self.done, self.text = total, done, ""
        self._unit = {"unit": f" {unit}", "unit_scale": scale}
        self._is_live = log is None and sys.stderr.isatty()
        self._log = log or note
        self._seconds = 0.1 if self._is_live else seconds
        self._base: tuple[float, float] | None = None
        self._shown_at = -float("inf")
        self._shown: tuple[float, str] | None = None

    def update(self, done: float, text: str | None = None) -> None:
        """Sets the units done and the text, and shows the line if it is due.

        Without a text, only refreshes the line of a terminal.
        """
        self.done, self.text = done, self.text if text is None else text
        self._base = self._base or (done, time.monotonic())
        is_due = time.monotonic() - self._shown_at >= self._seconds
        if is_due and (self._is_live or text is not None):
            self._show()

    def _show(self) -> None:
        self._shown_at, self._shown = time.monotonic(), (self.done, self.text)
        line = self.line()
        if self._is_live:
            width = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\x1b[K{line[: width - 1]}")
            sys.stderr.flush()
        else:
            self._log(line)

    def say(self, text: str) -> None:
        """Writes a line that stays."""
        if self._is_live:
            sys.stderr.write("\r\x1b[K")
        self._log(text)

    def close(self) -> None:
        """Shows the last state unless it was shown, and ends the line."""
        # Compares the state without the rate, which changes with time.
        if self._base is not None and (self.done, self.text) != self._shown:
            self._show()
        if self._is_live:
            self._log("")

    def line(self) -> str:
        """Formats the line: share done, remaining time, rate, text."""
        # Imported here to keep --help fast.
        from tqdm import tqdm

        # Since the first ``update``.
        first, began = self._base or (self.done, 0.0)
        rate = (self.done - first) / max(time.monotonic() - began, 1e-9)
        pattern = "{n_fmt}/{total_fmt} {percentage:.1f}%  eta {remaining}  {rate_fmt}"
        text = tqdm.format_meter(
            self.done,
            # tqdm drops a total that is exceeded.
            max(self.total, self.done),
            # Without a rate tqdm would show done / elapsed.
            elapsed=0.0,
            rate=rate or None,
            bar_format=f"{{bar:20}} {pattern}" if self._is_live else pattern,
            ncols=shutil.get_terminal_size().columns if self._is_live else None,
            **self._unit,
        )
        # tqdm writes seconds per unit as "5.00s/ step".
        return f"{text.replace('s/ ', 's/')}  {self.text}".rstrip()


def lines_of(stream: Iterable[str]) -> Iterator[str]:
    """Yields the lines of standard input, without line ends."""
    if isinstance(stream, io.TextIOWrapper):
        # The C locale, as in containers, hides bytes that are not UTF-8.
        stream.reconfigure(encoding="utf-8", errors="strict")
    try:
        yield from (line.removeprefix("\ufeff").rstrip("\r\n") for line in stream)
    except UnicodeDecodeError as error:
        raise UserError(
            "standard input is not UTF-8. Convert it: iconv -f cp1252 -t utf-8"
        ) from error
