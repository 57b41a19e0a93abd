"""Encoders by folder or name, also of other libraries, and presets of keras-hub."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from electra_tf import files
from electra_tf.config import fields
from electra_tf.config.commands import ConvertConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.folders.settings import TASK
from electra_tf.interop import convert, keras_hub, networks
from electra_tf.interop.networks import Imported
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import finetuning
from electra_tf.tasks.heads import fresh_copy


def save(encoder: TextEncoder, tokenizer: WordPiece, folder: Path) -> None:
    """Writes keras-hub's backbone and tokenizer to a new folder, atomically."""
    if folder.exists():
        raise UserError(f"{folder} exists already: give a new folder.")
    backbone = Imported(
        format="electra_tf",
        source="the model",
        discriminator=networks.encoder_tower(encoder, "the model"),
        vocabulary=tokenizer.vocabulary,
        lower_case=tokenizer.lower_case,
        strip_accents=tokenizer.strip_accents,
    )
    with files.replacing(folder) as part:
        part.mkdir()
        keras_hub.write(part, backbone)


def _warn(line: str) -> None:
    if line.startswith("warning: "):
        warnings.warn(line.removeprefix("warning: "), stacklevel=2)


@contextlib.contextmanager
def folder_of(source: str | os.PathLike) -> Iterator[Path]:
    """Yields ``source``, or a temporary conversion to this library's format."""
    path = named(source)
    if path.suffix == models.KERAS and not path.is_file():
        raise FileNotFoundError(f"No model at {path}.")
    is_run = (path / TASK).is_file()
    if path.is_file() or is_run or PretrainingFolder(path).has_model("encoder"):
        yield path
        return
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "converted"
        options = ConvertConfig(source=str(source), to=str(target))
        convert.main(options, log=lambda line: _warn(line.strip()))
        yield target


def encoder_and_tokenizer(
    source: str | os.PathLike, **options: Any
) -> tuple[TextEncoder, WordPiece, int]:
    """Returns the encoder, its tokenizer and the number of trained positions.

    ``options`` are flags of fine-tuning. ``mixed_precision`` defaults to Keras's global
    dtype policy if the policy is mixed.
    """
    known = ("dropout", "attention_dropout", "mixed_precision")
    if wrong := sorted(options.keys() - set(known)):
        raise UserError(f"Unknown option {wrong[0]!r}; known are {', '.join(known)}.")
    with folder_of(source) as folder:
        flags = {"encoder": str(folder), **options}
        start = finetuning.pretrained(fields.from_flat(flags, FinetuneConfig), _warn)
    encoder, policy = start.encoder, keras.config.dtype_policy().name
    if "mixed_precision" not in options and policy.startswith("mixed_"):
        encoder = fresh_copy(encoder, policy)
        encoder.set_weights(start.encoder.get_weights())
    most = encoder.embeddings.max_positions
    return encoder, start.tokenizer, min(start.trained_length or most, most)
