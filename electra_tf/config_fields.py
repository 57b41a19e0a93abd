"""What the dataclasses of flags are made of; standard library only."""

from __future__ import annotations

import dataclasses
from typing import Any


def field(default: Any, help_text: str, **metadata: Any) -> Any:
    """A dataclass field that is a command-line flag.

    Args:
        default: of the flag.
        help_text: what ``--help`` says.
        **metadata: ``resumable=True`` for what may differ between a run and its
            resumption, ``repeated=True`` for a flag that is given several times.
    """
    return dataclasses.field(default=default, metadata={"help": help_text, **metadata})


def require(condition: bool, message: str) -> None:
    """Raises ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)
