"""Pretrained encoders by folder or name, of this library or of another one."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra_tf.config import fields
from electra_tf.config.commands import ConvertConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.folders.finetuning import TASK
from electra_tf.folders.models import KERAS
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.interop import convert
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import finetuning


def warn(line: str) -> None:
    """Tells what had to be assumed, where a command would print it."""
    if line.startswith("warning: "):
        warnings.warn(line.removeprefix("warning: "), stacklevel=2)


@contextlib.contextmanager
def folder_of(source: str | os.PathLike) -> Iterator[Path]:
    """A folder of this library with what ``source`` holds.

    What another library wrote, or a name that ``electra_tf.convert`` knows, is
    converted into a folder that is gone afterwards. Raises what the conversion does.
    """
    path = named(source)
    if path.suffix == KERAS and not path.is_file():
        raise FileNotFoundError(f"No model at {path}.")
    is_ours = path.is_file() or (path / TASK).is_file()
    if is_ours or PretrainingFolder(path).has_model("encoder"):
        yield path
        return
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "converted"
        options = ConvertConfig(source=str(source), to=str(target))
        try:
            convert.main(options, log=lambda line: None)
        except (ValueError, OSError) as error:
            message = str(error).replace("--from=", "")
            raise type(error)(message) from error
        yield target


def encoder_and_tokenizer(
    source: str | os.PathLike, **options: Any
) -> tuple[TextEncoder, WordPiece, int | None]:
    """The encoder, its tokenizer, and how many tokens an example had in pretraining.

    ``options`` are ``dropout``, ``attention_dropout`` and ``mixed_precision``, as the
    flags of fine-tuning. ValueError: another one, or the encoder is damaged.
    """
    known = ("dropout", "attention_dropout", "mixed_precision")
    if wrong := sorted(options.keys() - set(known)):
        raise UserError(f"Unknown option {wrong[0]!r}; known are {', '.join(known)}.")
    with folder_of(source) as folder:
        flags = {"encoder": str(folder), **options}
        start = finetuning.pretrained(fields.from_flat(flags, FinetuneConfig), warn)
    return start.encoder, start.tokenizer, start.trained_length
