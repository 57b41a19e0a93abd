"""Choose positions and hide them: whole batches at a time, without hidden state.

A row's mask is a pure function of the row's key and of the training step, so it does
not depend on the order of records, the number of workers, or a resume. `selectors` has
the rules by which positions are chosen, `noise` the randomness.

Letters: B batch, S sequence, P predicted positions per sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from electra_tf.data.noise import mix, row_keys, row_noise, uniform
from electra_tf.data.selectors import SELECTORS, VocabularyFacts
from electra_tf.features import scatter_positions

__all__ = [
    "MASK_RULES",
    "LinearMaskRate",
    "Masking",
    "max_predictions",
    "mix",
    "row_keys",
    "row_noise",
    "uniform",
]

# Streams: each use of randomness reads its own part of a row's sequence.
_POSITIONS, _RULE, _RANDOM_TOKEN = range(3)

# How a chosen position is shown: (share hidden as [MASK], share given a random
# token); the rest stays as it is. ELECTRA's own rule has no random branch.
MASK_RULES = {"electra": (0.85, 0.0), "bert": (0.8, 0.1)}


def max_predictions(max_seq_length: int, mask_rate: float) -> int:
    """The original's number of slots per row: 19 at (128, 0.15), 130 at (512, 0.25)."""
    return int((mask_rate + 0.005) * max_seq_length)


@dataclasses.dataclass(frozen=True)
class LinearMaskRate:
    """A mask rate that goes linearly from ``start`` to ``end``, and stays there.

    Attributes:
        start: rate of step 0, in (0, 1].
        end: rate from ``steps`` on, in (0, 1].
        steps: length of the change, at least 1.

    Raises:
        ValueError: if a number is out of its range.
    """

    start: float
    end: float
    steps: int = 1

    def __post_init__(self):
        for rate in (self.start, self.end):
            if not 0 < rate <= 1:
                raise ValueError(f"mask_rate must be in (0, 1], got {rate}.")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")

    @property
    def highest(self) -> float:
        """The rate that slots are needed for."""
        return max(self.start, self.end)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """The rate at a step, float32 scalar; float64 inside, for long runs."""
        done = tf.cast(tf.minimum(tf.cast(step, tf.int64), self.steps), tf.float64)
        rate = self.start + (self.end - self.start) * (done / self.steps)
        return tf.cast(rate, tf.float32)


class Masking:
    """Turns padded ids into what generator and discriminator train on.

    The number of positions is the original's: ``round(n * mask_rate)`` with ``n`` all
    real tokens including [CLS] and [SEP], rounded half to even, at least 1, at most
    the slots. [CLS], [SEP], [MASK] and padding are never chosen; [UNK] can be.

    Example, with ``mask_rate=1.0`` and every choice hidden::

        ids      [CLS]  a       b       [SEP]  [PAD]
        masked   [CLS]  [MASK]  [MASK]  [SEP]  [PAD]

    Args:
        vocab_size: V.
        mask_id: id of [MASK].
        pad_id: id of [PAD]; padding is recognized by it.
        never_masked: ids that are never chosen, [CLS] and [SEP].
        max_seq_length: S.
        mask_rate: share of a row's tokens to choose, in (0, 1], or how it changes over
            the training steps; the slots hold the highest rate.
        max_predictions_per_seq: P; default the original's ``max_predictions``.
        rule: ``"electra"`` (85 % [MASK], 15 % unchanged) or ``"bert"`` (80 % [MASK],
            10 % random token, 10 % unchanged).
        select: a rule of ``selectors.SELECTORS``: ``"tokens"``, ``"whole_words"``,
            ``"spans"``, ``"rare_tokens"`` or ``"with_replacement"``.
        continuation: [V] booleans, True for pieces that continue a word ("##ing");
            needed for ``"whole_words"`` and ``"spans"``.
        token_counts: [V] numbers, how often each entry of the vocabulary occurs;
            needed for ``"rare_tokens"``.
        rarity_power: ``"rare_tokens"`` weighs a token (count + 1) to the minus this.

    Raises:
        ValueError: if a choice is unknown, the rate is out of range, or the slots
            cannot hold the positions that the rate asks for.
    """

    def __init__(
        self,
        vocab_size: int,
        mask_id: int,
        *,
        pad_id: int = 0,
        never_masked: Sequence[int],
        max_seq_length: int,
        mask_rate: float | LinearMaskRate = 0.15,
        max_predictions_per_seq: int | None = None,
        rule: str = "electra",
        select: str = "tokens",
        continuation: Sequence[bool] | None = None,
        token_counts: Sequence[int] | None = None,
        rarity_power: float = 0.5,
    ):
        if not isinstance(mask_rate, LinearMaskRate):
            mask_rate = LinearMaskRate(mask_rate, mask_rate)
        for name, value, table in (
            ("rule", rule, MASK_RULES),
            ("select", select, SELECTORS),
        ):
            if value not in table:
                raise ValueError(
                    f"Unknown masking {name} {value!r}; choose one of {sorted(table)}."
                )
        needed = round(max_seq_length * mask_rate.highest)
        slots = (
            max(1, max_predictions(max_seq_length, mask_rate.highest))
            if max_predictions_per_seq is None
            else max_predictions_per_seq
        )
        if not 1 <= slots <= max_seq_length or (
            max_predictions_per_seq is not None and slots < needed
        ):
            raise ValueError(
                f"max_predictions_per_seq is {slots} but mask_rate "
                f"{mask_rate.highest} of "
                f"{max_seq_length} tokens needs {needed} slots (and at most "
                f"{max_seq_length}): change max_predictions_per_seq or mask_rate."
            )
        self.vocab_size = vocab_size
        self.mask_id = mask_id
        self.pad_id = pad_id
        self.never_masked = tuple(sorted({*never_masked, mask_id, pad_id}))
        self.max_seq_length = max_seq_length
        self.mask_rate = mask_rate
        self.max_predictions_per_seq = slots
        self._hidden_share, self._random_share = MASK_RULES[rule]
        self._select, read = SELECTORS[select]
        self._traits = read(VocabularyFacts(continuation, token_counts, rarity_power))

    def __call__(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        keys: tf.Tensor,
        step: tf.Tensor | int = 0,
    ) -> dict[str, tf.Tensor]:
        """Chooses and hides positions.

        Args:
            input_ids: [B, S] int32, padded with ``pad_id``.
            input_mask: [B, S] int32, 1 for real tokens.
            keys: [B] uint64 from ``row_keys``.
            step: training step that the batch is for, scalar; decides the rate.

        Returns:
            masked_input_ids [B, S], masked_lm_positions [B, P], masked_lm_ids [B, P]
            (int32) and masked_lm_weights [B, P] (float32).
        """
        size = self.max_predictions_per_seq
        candidates = self._candidates(input_ids, input_mask)
        positions, used = self._select(
            row_noise(keys, _POSITIONS, self.max_seq_length),
            candidates,
            self._traits(input_ids, input_mask),
            self._counts(input_mask, candidates, step),
            size,
        )
        # Unused slots point at position 0 ([CLS]), which is never a candidate: weight
        # 0 keeps them out of the loss and the scatter below skips them. It also skips
        # what stays as it is: drawn twice, a position is hidden if any draw says so.
        positions = tf.where(used, positions, 0)
        original = tf.gather(input_ids, positions, batch_dims=1)
        shown = self._shown(original, keys)
        return {
            "masked_input_ids": scatter_positions(
                input_ids, positions, shown, used & (shown != original)
            ),
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.where(used, original, 0),
            "masked_lm_weights": tf.cast(used, tf.float32),
        }

    def _candidates(self, input_ids, input_mask):
        special = tf.reduce_any(
            input_ids[:, :, None] == tf.constant(self.never_masked)[None, None, :], 2
        )
        return (input_mask > 0) & ~special

    def _counts(self, input_mask, candidates, step):
        tokens = tf.reduce_sum(tf.cast(input_mask, tf.float32), axis=1)
        wanted = tf.cast(tf.round(tokens * self.mask_rate(step)), tf.int32)
        # Deviation: never more than there are candidates, and none in a row without
        # any, where the original divides 0 by 0.
        available = tf.reduce_sum(tf.cast(candidates, tf.int32), axis=1)
        limit = tf.minimum(available, self.max_predictions_per_seq)
        return tf.minimum(tf.maximum(wanted, 1), limit)

    def _shown(self, original, keys):
        share = uniform(row_noise(keys, _RULE, self.max_predictions_per_seq))
        shown = tf.where(share < self._hidden_share, self.mask_id, original)
        if self._random_share == 0:
            return shown
        noise = row_noise(keys, _RANDOM_TOKEN, self.max_predictions_per_seq)
        drawn = tf.cast(noise % self.vocab_size, tf.int32)
        is_random = (share >= self._hidden_share) & (
            share < self._hidden_share + self._random_share
        )
        return tf.where(is_random, drawn, shown)
