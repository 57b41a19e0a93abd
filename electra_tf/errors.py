"""The error that commands report in one line."""

import contextlib
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence

# Prefixes of location lines in TensorFlow errors.
_GRAPH = ("Graph execution error", "Detected at node", 'File "', "Stack trace", "[[")


class UserError(ValueError):
    """An error in a setting, a file or an argument, with a message for the user.

    Commands print it in one line and exit with code 1; others keep their traceback.

    Examples:
        >>> et.data.Vocabulary(["[PAD]", "[PAD]"])
        Traceback (most recent call last):
            ...
        electra_tf.errors.UserError: ...
    """


def reason(error: Exception) -> str:
    """Returns the message of a TensorFlow error without graph locations."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).split("\n")]
    lines = [line for line in lines if line and not line.startswith(_GRAPH)]
    messages = [line for line in lines if not line.startswith(("Node:", "Original"))]
    message = (messages or lines or [type(error).__name__])[0]
    # Removes the function name before the message and the operation after it.
    return re.sub(r"^(\{\{[^}]*\}\} ?)+| ?\[Op:\w+\].*$", "", message) or message


@contextlib.contextmanager
def explained(
    where: str, kinds: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> Iterator[None]:
    """Raises errors of the block as a ``UserError`` that begins with ``where``.

    ``kinds`` are their classes; for ``Exception`` the message is the ``reason``.
    """
    try:
        yield
    except kinds as error:
        message = reason(error) if kinds is Exception else error
        raise UserError(f"{where}: {message}") from error


def some_of(names: Sequence[str], most: int = 8) -> str:
    """Lists the first names, and says how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns " Did you mean ...?" with the most similar names, or ""."""
    close = difflib.get_close_matches(name, known, 3)
    # Errors have one line, and columns of tables may have several.
    shown = (json.dumps(each, ensure_ascii=False)[1:-1] for each in close)
    return f" Did you mean {' or '.join(shown)}?" if close else ""
