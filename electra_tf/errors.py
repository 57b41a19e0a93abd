"""The error that commands report in one line."""


class UserError(ValueError):
    """An error in a setting, a file or an argument, whose message is for the user.

    Commands print it in one line and exit with code 1. Every other exception is a bug
    and keeps its traceback. It is a ``ValueError``, so Python code may catch either.

    Examples:
        >>> et.data.Vocabulary(["[PAD]", "[PAD]"])
        Traceback (most recent call last):
            ...
        electra_tf.errors.UserError: ...
    """
