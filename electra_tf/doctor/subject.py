"""What is examined: towers of named tensors, whatever file they come from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.data.vocabulary import Vocabulary

OK, WARNING, PROBLEM = "OK", "WARNING", "PROBLEM"

# The tables that generator and discriminator share, by the names of ``TextEmbedding``.
SHARED = (
    *("word_embeddings", "position_embeddings", "segment_embeddings"),
    *("layer_norm_gamma", "layer_norm_beta"),
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at: OK, or with advice; ``examine`` adds the trap."""

    level: str
    found: str
    advice: str = ""
    trap: str = ""


def ok(found: str) -> Finding:
    """All is well."""
    return Finding(OK, found)


def warning(found: str, advice: str) -> Finding:
    """Allowed, and often not what was meant."""
    return Finding(WARNING, found, advice)


def problem(found: str, advice: str) -> Finding:
    """Wrong: results will be bad."""
    return Finding(PROBLEM, found, advice)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a file; ``read`` returns its values as float32, lazily."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What one pass over a tensor tells."""

    is_finite: bool
    is_zero: bool
    is_one: bool
    std: float


@dataclasses.dataclass(frozen=True)
class Tower:
    """One network: an encoder, and its head if it has one.

    Attributes:
        name: "discriminator", "generator" or "encoder".
        tensors: by the names that the file has.
        tables: name of each of ``SHARED``, as far as it is there; "output" is the
            matrix of a generator's softmax if the file holds one of its own.
        layer_norm_epsilon: the largest of its LayerNorms; None if unknown.
        sizes: what the shapes say, by the names of ``interop.Sizes``, as far as known.
        declared: sizes by the config beside the weights, as far as it tells.
    """

    name: str
    tensors: Mapping[str, Tensor]
    tables: Mapping[str, str]
    has_head: bool
    activation: str | None
    layer_norm_epsilon: float | None
    sizes: Mapping[str, Any]
    declared: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def table(self, role: str) -> np.ndarray | None:
        """Values of one of the shared tables; None if the file does not hold it."""
        name = self.tables.get(role)
        return None if name is None else self.tensors[name].read()

    @functools.cached_property
    def statistics(self) -> dict[str, Statistics]:
        """Statistics of every tensor, from one pass over all of them."""
        measured = {}
        for name, tensor in self.tensors.items():
            values = tensor.read()
            finite = bool(np.isfinite(values).all())
            measured[name] = Statistics(
                is_finite=finite,
                is_zero=not values.any(),
                is_one=bool((values == 1).all()),
                std=float(values.std()) if finite else float("nan"),
            )
        return measured


@dataclasses.dataclass(frozen=True)
class Subject:
    """A checkpoint or config, as far as it could be read.

    Attributes:
        kind: "run", "hugging_face", "google_tf1", "keras_hub" or "config".
        vocabulary: the one beside the weights, or the error that reading it raised.
        flags: of the pretraining run, if known.
        casing: ``lower_case`` and ``strip_accents``, as far as known.
        vocabulary_sha256: hash of the vocabulary that it was trained with, if known.
        findings: what reading it brought up.
        optimizer_slots: number of them in a Google checkpoint.
    """

    kind: str
    path: Path
    towers: Mapping[str, Tower] = dataclasses.field(default_factory=dict)
    vocabulary: Vocabulary | ValueError | None = None
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    casing: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    vocabulary_sha256: str | None = None
    metrics: tuple[Mapping[str, Any], ...] = ()
    findings: tuple[Finding, ...] = ()
    optimizer_slots: int | None = None
