"""Checks a checkpoint or config for the traps that ELECTRA's users have met."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from electra_tf.doctor import (
    model_traps,
    read_foreign,
    read_hugging_face,
    read_run,
    run_traps,
    weight_traps,
)
from electra_tf.doctor.subject import OK, PROBLEM, WARNING, Finding, Subject
from electra_tf.interop import keras_hub

__all__ = [
    "FORMATS",
    "OK",
    "PROBLEM",
    "TRAPS",
    "WARNING",
    "Finding",
    "Subject",
    "examine",
    "read",
]

# What it may be: how it is recognized, and how it is read. The first that fits.
FORMATS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], Subject]]] = {
    "pretraining run or import": (read_run.is_run, read_run.read_run),
    "Hugging Face folder": (
        read_hugging_face.is_hugging_face,
        read_hugging_face.read_hugging_face,
    ),
    "keras-hub preset": (keras_hub.detect, read_foreign.read_keras_hub),
    "Google TensorFlow 1 checkpoint": (
        lambda path: read_foreign.checkpoint_prefix(path) is not None,
        read_foreign.read_google_tf1,
    ),
}

# A check looks at a subject and tells what it found; nothing where it does not apply.
TRAPS: dict[str, Callable[[Subject], Iterable[Finding]]] = {
    "files": run_traps.files,
    "sizes": model_traps.sizes,
    "heads": model_traps.heads,
    "pooler": model_traps.pooler,
    "GELU": model_traps.gelu,
    "LayerNorm epsilon": model_traps.layer_norm_epsilon,
    "shared tables": model_traps.shared_tables,
    "generator size": model_traps.generator_size,
    "vocabulary": run_traps.vocabulary,
    "finite weights": weight_traps.finite,
    "zero weights": weight_traps.zeros,
    "untrained weights": weight_traps.untrained,
    "untrained positions": weight_traps.positions,
    "learning rate": run_traps.learning_rate,
    "recipe": run_traps.recipe,
    "finished": run_traps.finished,
    "generator strength": run_traps.generator_strength,
    "collapse": run_traps.collapse,
    "optimizer slots": run_traps.optimizer_slots,
}


def read(path: str | Path) -> Subject:
    """Recognizes and reads a checkpoint.

    Raises:
        ValueError: It is nothing that is known, or too damaged to be read.
        OSError: It is not there.
    """
    path = Path(path)
    for recognizes, reader in FORMATS.values():
        if (path.is_dir() or recognizes is not keras_hub.detect) and recognizes(path):
            return reader(path)
    if not path.exists():
        raise FileNotFoundError(f"There is nothing at {path}.")
    raise ValueError(
        f"{path} is none of: {', '.join(FORMATS)}. Give the folder that holds the "
        "files, or the prefix of a checkpoint."
    )


def with_generator(subject: Subject, other: Subject) -> Subject:
    """Adds the generator of a second folder, so that the two are compared.

    Raises:
        ValueError: The second has no generator, or the first has one already.
    """
    if "generator" not in other.towers:
        raise ValueError(f"--generator={other.path} holds no generator.")
    if "generator" in subject.towers:
        raise ValueError(
            f"{subject.path} has a generator of its own: drop --generator."
        )
    towers = {**subject.towers, "generator": other.towers["generator"]}
    findings = (*subject.findings, *other.findings)
    return dataclasses.replace(subject, towers=towers, findings=findings)


def examine(subject: Subject) -> list[Finding]:
    """Runs every check; what one finds bears its name."""
    return [
        dataclasses.replace(finding, trap=name)
        for name, trap in TRAPS.items()
        for finding in trap(subject)
    ]
