"""TensorBoard text samples, hyperparameters and embedding projector.

Written at the end of a run, beside the scalars of ``sinks.TensorBoardScalars``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf import files

# Limit of the projector in the browser.
MOST_WORDS = 2_000
_WORDS, _NAMES = "words.tsv", "words_names.tsv"


def write_text(log_dir: str | os.PathLike, step: int, name: str, text: str) -> None:
    """Writes verbatim text to eval/ of a folder."""
    # Markdown shows lines with an indent of 4 verbatim.
    lines = "\n".join(f"    {line}" for line in text.splitlines())
    with tf.summary.create_file_writer(str(Path(log_dir) / "eval")).as_default():
        tf.summary.text(name, lines, step=step)


def write_settings(log_dir: str | os.PathLike, settings: Mapping[str, Any]) -> None:
    """Writes the hyperparameters of a run, beside its held-out scalars.

    Values other than numbers and booleans become strings.
    """
    from tensorboard.plugins.hparams import api

    plain = {
        name: value if isinstance(value, bool | int | float) else _utf8(str(value))
        for name, value in settings.items()
    }
    with tf.summary.create_file_writer(str(Path(log_dir) / "eval")).as_default():
        api.hparams(plain, trial_id=_utf8(Path(log_dir).resolve().parent.name))


def write_words(
    log_dir: str | os.PathLike, tokens: Sequence[str], vectors: np.ndarray
) -> None:
    """Writes the embeddings [N, E] of ``tokens`` for the projector."""
    from tensorboard.plugins import projector

    folder = Path(log_dir) / "train"
    rows = ("\t".join(f"{value:.4g}" for value in row) for row in vectors)
    files.write_text(folder / _WORDS, "\n".join(rows) + "\n")
    # A tab would start a second column.
    names = (token.replace("\t", "\\t") for token in tokens)
    files.write_text(folder / _NAMES, "\n".join(names) + "\n")
    config = projector.ProjectorConfig()
    config.embeddings.add(
        tensor_name="word_embeddings", tensor_path=_WORDS, metadata_path=_NAMES
    )
    projector.visualize_embeddings(str(folder), config)


def _utf8(text: str) -> str:
    """Escapes characters that UTF-8 cannot encode, such as surrogates in file names."""
    return text.encode("utf-8", "backslashreplace").decode()
