"""How several discriminators see the same text: checkpoints of a run, or other runs.

Letters: S tokens of a text with [CLS] and [SEP], N discriminators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from electra_tf.analysis.inspector import Inspector, Verdicts
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import CHECKPOINTS
from electra_tf.folders.settings import CONFIG
from electra_tf.pretraining import ReplacedTokenDetector
from electra_tf.systems import stored
from electra_tf.training.checkpoints import checkpoints_in


class Stage(NamedTuple):
    """A discriminator, and whose tokenizer it reads with."""

    name: str
    inspector: Inspector
    detector: ReplacedTokenDetector


@dataclasses.dataclass(frozen=True)
class Course:
    """The verdicts of N discriminators on a text, as those of one in ``Verdicts``.

    ``names`` of the N, and ``probabilities`` [N][S].
    """

    text: str
    tokens: tuple[str, ...]
    names: tuple[str, ...]
    probabilities: tuple[tuple[float, ...], ...]
    original: tuple[str, ...] | None = None
    is_masked: tuple[bool, ...] | None = None


def checkpoints(inspector: Inspector) -> Iterator[Stage]:
    """The kept checkpoints of a run, the oldest first, one in memory at a time.

    The run need not have finished; what it has saved at its end comes last.

    ValueError: the run keeps no checkpoints, they are not of the model that config.json
    describes, or the model is no discriminator of replaced tokens.
    """
    home = inspector.home
    found = checkpoints_in(home.path / CHECKPOINTS)
    if not found:
        raise UserError(
            f"{home.path} keeps no checkpoints: --checkpoints needs the folder of a "
            "run as it was trained; --beside compares folders."
        )
    try:
        config, model = stored.described(inspector.flags, inspector.vocabulary)
    except ValueError as error:
        raise UserError(f"{home.path / CONFIG}: {error}") from error
    for step, prefix in found.items():
        stored.restore(model, prefix)
        detector = model.artifacts().get("discriminator")
        if not isinstance(detector, ReplacedTokenDetector):
            raise UserError(
                f"{home.path} was pretrained with --objective="
                f"{config.objective.objective}, which asks of no token whether it was "
                "replaced: there are no verdicts."
            )
        yield Stage(f"step {step:,}", inspector, detector)
    if home.has_model("discriminator"):
        yield Stage("the end", inspector, inspector.detector)


def folders(inspector: Inspector, beside: Sequence[str], log: Log) -> Iterator[Stage]:
    """The discriminator of a folder, and those of others beside it.

    Errors as of ``Inspector``.
    """
    yield Stage(str(inspector.folder), inspector, inspector.detector)
    for folder in beside:
        other = Inspector(folder, log)
        yield Stage(folder, other, other.detector)


def courses(
    texts: Sequence[str],
    stages: Iterator[Stage],
    corrupt: Callable[[str], Verdicts] | None = None,
) -> list[Course]:
    """What all stages say of all texts; ``corrupt`` changes each of them first.

    ValueError: a text is empty or too long, or two stages read it as different tokens.
    """
    names: list[str] = []
    read: list[Verdicts] = []
    found: list[list[tuple[float, ...]]] = [[] for _ in texts]
    for name, inspector, detector in stages:
        names.append(name)
        if not read and corrupt:
            read = [corrupt(text) for text in texts]
        for number, text in enumerate(texts):
            ids = inspector.encode(text, detector.encoder)
            if len(read) == number:
                read.append(Verdicts(text, inspector.names(ids), ()))
            before = read[number].original or read[number].tokens
            if inspector.names(ids) != before:
                raise UserError(
                    f"{name} reads {text[:40]!r} as other tokens than {names[0]}: "
                    "verdicts side by side are of one vocabulary and casing."
                )
            if read[number].original:
                known = inspector.vocabulary.ids
                ids = np.array(
                    [known[token] for token in read[number].tokens], np.int32
                )
            found[number].append(inspector.judge(ids, detector))
    return [
        Course(
            each.text,
            each.tokens,
            tuple(names),
            tuple(by_stage),
            each.original,
            each.is_masked,
        )
        for each, by_stage in zip(read, found, strict=True)
    ]
