"""What is examined: towers of named tensors, whatever file they come from."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.data.vocabulary import Vocabulary

OK, WARNING, PROBLEM = "OK", "WARNING", "PROBLEM"
# What to do about a damaged file of others.
COPY = "Copy or download it again."

# The tables that generator and discriminator share, by the names of `TextEmbedding`.
SHARED = (
    "word_embeddings",
    "position_embeddings",
    "segment_embeddings",
    "layer_norm_gamma",
    "layer_norm_beta",
)

_LAYER = re.compile(r"layer[._](\d+)")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: OK, WARNING or PROBLEM.
        found: What is the case.
        advice: What to do; empty if all is well.
        trap: Name of the check, set by `examine`.
    """

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
    """A tensor of a file, read when asked for.

    Attributes:
        shape: Its shape.
        read: Returns its values as float32.
    """

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
        tensors: By the names that the file has.
        tables: Name of each of `SHARED`, as far as it is there; "output" is the matrix
            of a generator's softmax if the file holds one of its own.
        has_head: Whether the head of its kind is there.
        activation: Of the feed-forward layers; None if unknown.
        layer_norm_epsilon: None if unknown.
        sizes: What the shapes say: vocab_size, embedding_size, max_positions,
            hidden_size, intermediate_size, num_layers.
        declared: The same as the config beside it says, where it does.
    """

    name: str
    tensors: Mapping[str, Tensor]
    tables: Mapping[str, str]
    has_head: bool
    activation: str | None
    layer_norm_epsilon: float | None
    sizes: Mapping[str, int]
    declared: Mapping[str, int]

    def table(self, role: str) -> np.ndarray | None:
        """Values of one of the shared tables; None if the file has it not."""
        name = self.tables.get(role)
        return None if name is None else self.tensors[name].read()

    @functools.cached_property
    def statistics(self) -> dict[str, Statistics]:
        """Statistics of every tensor, from one pass over all of them."""
        return {name: _measure(tensor.read()) for name, tensor in self.tensors.items()}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A checkpoint or config, as far as it could be read.

    Attributes:
        kind: "run", "hugging_face", "google_tf1", "keras_hub" or "config".
        path: Where it lies.
        towers: By name.
        vocabulary: Reads the vocabulary beside it; None if there is none.
        flags: Of the pretraining run, if known.
        casing: `lower_case` and `strip_accents`, as far as known.
        vocabulary_sha256: Hash of the vocabulary that it was trained with, if known.
        metrics: Rows of metrics.jsonl.
        findings: What reading it brought up, by trap.
        optimizer_slots: Number of them in a Google checkpoint; else None.
    """

    kind: str
    path: Path
    towers: Mapping[str, Tower] = dataclasses.field(default_factory=dict)
    vocabulary: Callable[[], Vocabulary] | None = None
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    casing: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    vocabulary_sha256: str | None = None
    metrics: tuple[Mapping[str, Any], ...] = ()
    findings: tuple[Finding, ...] = ()
    optimizer_slots: int | None = None


def layer_of(name: str) -> int | None:
    """Number of the Transformer layer that a tensor belongs to; None if to none."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def part_of(name: str) -> str:
    """What of a network a tensor belongs to."""
    layer = layer_of(name)
    if layer is not None:
        return f"layer {layer}"
    for pattern, part in (
        (r"pool", "pooler"),
        (r"predict|head", "head"),
        (r"project", "embeddings projection"),
    ):
        if re.search(pattern, name):
            return part
    return "embeddings"


def vocabulary_in(*files: Path) -> Callable[[], Vocabulary] | None:
    """Reads the first of the files that is there; None if none is."""
    for file in files:
        if file.is_file():
            return functools.partial(Vocabulary.load, file)
    return None


def is_scale(name: str) -> bool:
    """Whether it is the factor of a LayerNorm, 1 before training."""
    return bool(re.search(r"(gamma|norm\.weight)$", name, re.IGNORECASE))


def is_offset(name: str) -> bool:
    """Whether it is a bias or the offset of a LayerNorm, 0 before training."""
    return name.endswith(("bias", "beta"))


def count_layers(names) -> int:
    """Number of Transformer layers among tensor names."""
    return max((layer_of(name) or 0 for name in names), default=-1) + 1


def in_memory(array: np.ndarray) -> Tensor:
    """A tensor that has been read."""
    return Tensor(array.shape, lambda: array.astype(np.float32, copy=False))


def sizes_of(
    tensors: Mapping[str, Tensor],
    tables: Mapping[str, str],
    wide: tuple[int, ...] | None,
) -> dict[str, int]:
    """Sizes from shapes: the tables', and [hidden, intermediate] of a layer."""
    found = {"num_layers": count_layers(tensors)}
    if "word_embeddings" in tables:
        shape = tensors[tables["word_embeddings"]].shape
        found |= dict(zip(("vocab_size", "embedding_size"), shape, strict=True))
    if "position_embeddings" in tables:
        found["max_positions"] = tensors[tables["position_embeddings"]].shape[0]
    if wide:
        found |= dict(zip(("hidden_size", "intermediate_size"), wide, strict=True))
    return found


def any_starts(names: Iterable[str], start: str) -> bool:
    """Whether a name starts so."""
    return any(name.startswith(start) for name in names)


def json_or_empty(path: Path) -> Mapping[str, Any]:
    """A JSON object; empty if there is none that can be read."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _measure(values):
    finite = bool(np.isfinite(values).all())
    return Statistics(
        is_finite=finite,
        is_zero=not values.any(),
        is_one=bool((values == 1).all()),
        std=float(values.std()) if finite else float("nan"),
    )
