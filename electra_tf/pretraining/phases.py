"""Phases of a run: which model is trained for how many steps.

Joint training is a single phase. Two-stage training (Clark et al., 2020, section 3.2,
"Training Algorithms") is two: the generator alone, then the discriminator against the
frozen generator, started from the generator's weights where both have one size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import keras

from electra_tf.pretraining.base import PretrainingModel


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run that trains one model.

    Attributes:
        name: also part of the names of the optimizer's state.
        model: the model to train.
        steps: number of updates.
        frozen: a part of the model that is used and not trained.
        hand_over: called before the first step, which ``model.step`` tells.

    Examples:
        >>> first = pretraining.Phase("generator", generator, steps=100)
        >>> second = pretraining.Phase(
        ...     "both",
        ...     et.Electra(generator, discriminator),
        ...     steps=100,
        ...     frozen=generator,
        ... )
    """

    name: str
    model: PretrainingModel
    steps: int
    frozen: keras.Model | None = None
    hand_over: Callable[[], None] | None = None

    def set_trainable(self) -> None:
        """Makes exactly what this phase trains trainable; before compile and fit."""
        self.model.trainable = True
        if self.frozen is not None:
            self.frozen.trainable = False

    def release(self) -> None:
        """Undoes the freezing: what is saved can be trained again."""
        if self.frozen is not None:
            self.frozen.trainable = True


def remaining(phases: Sequence[Phase], done: int) -> Iterator[tuple[Phase, int, int]]:
    """Yields (phase, updates of the run done at its start, at its end) still to do.

    The first one begins in its middle if ``done``, updates of the run, lies there.
    """
    end = 0
    for phase in phases:
        begin, end = end, end + phase.steps
        if done < end:
            if phase.hand_over is not None and not phase.model.step.numpy():
                phase.hand_over()
            yield phase, max(begin, done), end


def copy_weights(source: keras.Model, target: keras.Model) -> None:
    """Gives ``target`` the weights of ``source``, a model of the same build.

    Raises:
        ValueError: if the two differ in size, naming the first variables that do.
    """
    theirs, own = learned_weights(source), learned_weights(target)
    wrong = [
        f"{a.path} {list(a.shape)} against {b.path} {list(b.shape)}"
        for a, b in zip(theirs, own, strict=False)
        if a.shape != b.shape
    ]
    if wrong or len(theirs) != len(own):
        raise ValueError(
            f"{source.name} has {len(theirs)} variables, {target.name} {len(own)}; to "
            "take over weights both must have the same layers and sizes. "
            f"{'; '.join(wrong[:3])}"
        )
    for a, b in zip(theirs, own, strict=True):
        b.assign(a.numpy())


def learned_weights(model: keras.Model) -> list[keras.Variable]:
    """What is learned, frozen or not: neither counters nor random seeds."""
    return [v for v in model.weights if "float" in str(v.dtype)]
