"""Loads pretrained encoders by folder or name, also of other libraries."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from electra_tf.api import hub_presets
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
from electra_tf.tasks.heads import fresh_copy


def warn(line: str) -> None:
    """Issues warnings with ``warnings.warn``; commands print them instead."""
    if line.startswith("warning: "):
        warnings.warn(line.removeprefix("warning: "), stacklevel=2)


@contextlib.contextmanager
def folder_of(source: str | os.PathLike) -> Iterator[Path]:
    """Yields a folder in this library's format with the content of ``source``.

    Converts folders and names that only ``electra-tf convert`` reads into a temporary
    folder. Raises the errors of the conversion.
    """
    path = named(source)
    if path.suffix == KERAS and not path.is_file():
        raise FileNotFoundError(f"No model at {path}.")
    is_run = (path / TASK).is_file() and not hub_presets.task_class(path)
    is_ours = path.is_file() or is_run
    if is_ours or PretrainingFolder(path).has_model("encoder"):
        yield path
        return
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "converted"
        options = ConvertConfig(source=str(source), to=str(target))
        convert.main(options, log=lambda line: None)
        yield target


def encoder_and_tokenizer(
    source: str | os.PathLike, **options: Any
) -> tuple[TextEncoder, WordPiece, int | None]:
    """Returns the encoder, its tokenizer and the trained sequence length, if known.

    ``options`` are ``dropout``, ``attention_dropout`` and ``mixed_precision``, as in
    fine-tuning. ``mixed_precision`` defaults to Keras's global dtype policy if the
    policy is mixed. Raises ValueError for other options and for a damaged encoder.
    """
    known = ("dropout", "attention_dropout", "mixed_precision")
    if wrong := sorted(options.keys() - set(known)):
        raise UserError(f"Unknown option {wrong[0]!r}; known are {', '.join(known)}.")
    with folder_of(source) as folder:
        flags = {"encoder": str(folder), **options}
        start = finetuning.pretrained(fields.from_flat(flags, FinetuneConfig), warn)
    encoder, policy = start.encoder, keras.config.dtype_policy().name
    if "mixed_precision" not in options and policy.startswith("mixed_"):
        encoder = fresh_copy(encoder, policy)
        encoder.set_weights(start.encoder.get_weights())
    return encoder, start.tokenizer, start.trained_length
