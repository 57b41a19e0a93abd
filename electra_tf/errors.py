"""The error that commands report in one line."""

import difflib
import json
from collections.abc import Iterable


class UserError(ValueError):
    """An error in a setting, a file or an argument, with a message for the user.

    Commands print it in one line and exit with code 1; other exceptions are bugs and
    keep their traceback.

    Examples:
        >>> et.data.Vocabulary(["[PAD]", "[PAD]"])
        Traceback (most recent call last):
            ...
        electra_tf.errors.UserError: ...
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns " Did you mean ...?" with the most similar names, or ""."""
    close = difflib.get_close_matches(name, known, 3)
    # Errors have one line, and columns of tables may have several.
    shown = (json.dumps(each, ensure_ascii=False)[1:-1] for each in close)
    return f" Did you mean {' or '.join(shown)}?" if close else ""
