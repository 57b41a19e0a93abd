"""Training phases of a run.

Joint training has one phase. Two-stage training (Clark et al., 2020, section 3.2,
"Training Algorithms") trains the generator alone, then the discriminator against the
frozen generator, starting from the generator's weights if the sizes agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import keras

from electra_tf.pretraining.base import PretrainingModel


@dataclasses.dataclass(frozen=True)
class Phase:
    """``steps`` updates of a model, whose part ``frozen`` is not trained.

    ``name`` is part of the names of the optimizer's variables. ``hand_over`` is called
    before the first step, that is, at ``model.step`` 0.
    """

    name: str
    model: PretrainingModel
    steps: int
    frozen: keras.Model | None = None
    hand_over: Callable[[], None] | None = None

    def set_trainable(self) -> None:
        """Sets the trainable variables of this phase; call before compile and fit."""
        self.model.trainable = True
        if self.frozen is not None:
            self.frozen.trainable = False

    def release(self) -> None:
        """Unfreezes the frozen part, so that saved models are trainable."""
        if self.frozen is not None:
            self.frozen.trainable = True


def remaining(phases: Sequence[Phase], done: int) -> Iterator[tuple[Phase, int, int]]:
    """Yields (phase, start, end) in updates of the run, after ``done`` updates."""
    end = 0
    for phase in phases:
        begin, end = end, end + phase.steps
        if done < end:
            if phase.hand_over is not None and not phase.model.step.numpy():
                phase.hand_over()
            yield phase, max(begin, done), end


def copy_weights(source: keras.Model, target: keras.Model) -> None:
    """Copies the weights of an equal model; raises ValueError if the sizes differ."""
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
    """Returns all learned variables, frozen or not, without counters and seeds."""
    return [v for v in model.weights if "float" in str(v.dtype)]
