"""Choose positions and hide them: whole batches at a time, without hidden state.

A row's mask is a pure function of the row's key, so it does not depend on the order
of records, the number of workers, or a resume. Randomness comes from a counter-based
generator (SplitMix64) written with plain integer ops: unlike ``tf.random.stateless_*``
it takes one key *per row* in a single vectorized call, and eager and graph mode give
the same bits.

Letters: B batch, S sequence, P predicted positions per sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from electra_tf.features import scatter_positions

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

# Streams: each use of randomness reads its own part of a row's sequence.
_POSITIONS, _RULE, _RANDOM_TOKEN = range(3)

# How a chosen position is shown: (share hidden as [MASK], share given a random
# token); the rest stays as it is. ELECTRA's own rule has no random branch.
MASK_RULES = {"electra": (0.85, 0.0), "bert": (0.8, 0.1)}


def max_predictions(max_seq_length: int, mask_rate: float) -> int:
    """The original's number of slots per row: 19 at (128, 0.15), 130 at (512, 0.25)."""
    return int((mask_rate + 0.005) * max_seq_length)


def mix(x: tf.Tensor) -> tf.Tensor:
    """SplitMix64's finalizer, a bijection on uint64 (Steele et al., 2014)."""
    shift, xor = tf.bitwise.right_shift, tf.bitwise.bitwise_xor
    x = xor(x, shift(x, tf.constant(30, tf.uint64))) * tf.constant(_MIX_1, tf.uint64)
    x = xor(x, shift(x, tf.constant(27, tf.uint64))) * tf.constant(_MIX_2, tf.uint64)
    return xor(x, shift(x, tf.constant(31, tf.uint64)))


def row_keys(
    fingerprints: tf.Tensor, variants: tf.Tensor, *, seed: int = 0
) -> tf.Tensor:
    """Combines record, mask variant and run seed into one key per row.

    Args:
        fingerprints: [B] int64, a hash of each record.
        variants: [B] int64, which of the record's masks to draw.
        seed: the run's seed.

    Returns:
        [B] uint64.
    """
    seed_key = mix(tf.constant((seed + 1) * _GOLDEN % 2**64, tf.uint64))
    variant_keys = mix(tf.cast(variants, tf.uint64) + seed_key)
    return mix(tf.bitwise.bitwise_xor(tf.cast(fingerprints, tf.uint64), variant_keys))


def row_noise(keys: tf.Tensor, stream: int, size: int) -> tf.Tensor:
    """Independent 63-bit noise, ``size`` values per key.

    Args:
        keys: [B] uint64.
        stream: which of a row's streams; different streams never overlap.
        size: values per row.

    Returns:
        [B, size] int64, uniform over [0, 2**63).
    """
    counters = tf.range(1, size + 1, dtype=tf.int64) + (stream << 32)
    offsets = tf.cast(counters, tf.uint64) * tf.constant(_GOLDEN, tf.uint64)
    bits = mix(keys[:, None] + offsets[None, :])
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)


def uniform(noise: tf.Tensor) -> tf.Tensor:
    """Turns 63-bit noise into float32 in [0, 1) with 24 random bits."""
    high_bits = tf.bitwise.right_shift(noise, tf.constant(39, tf.int64))
    return tf.cast(high_bits, tf.float32) * 2.0**-24


def select_tokens(
    noise: tf.Tensor, candidates: tf.Tensor, words: tf.Tensor, counts: tf.Tensor, size
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws exactly ``counts`` distinct candidate positions per row, uniformly.

    Deviation: the original draws with replacement, so its true mask rate is 13.8 %
    where 15 % is asked for, and colliding draws average token ids; its rule is
    ``select_with_replacement``.

    Args:
        noise: [B, S] int64.
        candidates: [B, S] bool.
        words: [B, S] int32, unused here.
        counts: [B] int32, at most the number of candidates and at most ``size``.
        size: P, the number of slots.

    Returns:
        positions [B, P] int32 and whether each slot is used [B, P] bool.
    """
    del words
    keyed = tf.where(candidates, noise, tf.constant(-1, tf.int64))
    positions = tf.math.top_k(keyed, k=size).indices
    return positions, tf.range(size)[None, :] < counts[:, None]


def select_whole_words(
    noise: tf.Tensor, candidates: tf.Tensor, words: tf.Tensor, counts: tf.Tensor, size
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws words in random order and takes all pieces of each one that still fits.

    A word that would exceed the row's count is skipped; a few passes over the same
    order then fill what is left with shorter words, so rows reach the count unless
    only longer words remain. Arguments and results as ``select_tokens``, with
    ``words`` [B, S] int32 numbering the words of a row from 0.
    """
    batch, length = tf.shape(noise)[0], noise.shape[1]
    word_noise = tf.gather(noise, words, batch_dims=1)
    order = tf.argsort(
        tf.where(candidates, word_noise, noise.dtype.max), axis=1, stable=True
    )
    flat = words + tf.range(batch)[:, None] * length
    pieces = tf.math.unsorted_segment_sum(
        tf.cast(candidates, tf.int32), flat, batch * length
    )
    sizes = tf.gather(tf.gather(pieces, flat), order, batch_dims=1)
    usable = tf.gather(candidates, order, batch_dims=1)
    sorted_words = tf.gather(words, order, batch_dims=1)
    # 1-based place of each piece within its word: words are runs in sorted order.
    starts = tf.concat(
        [
            tf.ones([batch, 1], tf.bool),
            sorted_words[:, 1:] != sorted_words[:, :-1],
        ],
        axis=1,
    )
    start_index = tf.where(starts, tf.range(length)[None, :], 0)
    place = tf.range(length)[None, :] - _running_max(start_index) + 1

    taken = tf.zeros_like(usable)
    for _ in range(4):
        left = counts - tf.reduce_sum(tf.cast(taken, tf.int32), axis=1)
        eligible = usable & ~taken & (sizes <= left[:, None])
        upto = tf.cumsum(tf.cast(eligible, tf.int32), axis=1)
        # Tokens of the word still to come count too: a word fits whole or not at all.
        word_end = upto + sizes - place
        blocked = eligible & (word_end > left[:, None])
        before_block = tf.cumsum(tf.cast(blocked, tf.int32), axis=1) == 0
        taken |= eligible & before_block
    first = tf.argsort(tf.cast(~taken, tf.int32), axis=1, stable=True)[:, :size]
    return (
        tf.gather(order, first, batch_dims=1),
        tf.gather(taken, first, batch_dims=1),
    )


def _running_max(values: tf.Tensor) -> tf.Tensor:
    """Running maximum along axis 1 by doubling (log S steps)."""
    length, shift = values.shape[1], 1
    while shift < length:
        shifted = tf.pad(values[:, :-shift], [[0, 0], [shift, 0]])
        values = tf.maximum(values, shifted)
        shift *= 2
    return values


def select_with_replacement(
    noise: tf.Tensor, candidates: tf.Tensor, words: tf.Tensor, counts: tf.Tensor, size
) -> tuple[tf.Tensor, tf.Tensor]:
    """The original's rule: independent draws, so a position can come twice.

    Arguments and results as ``select_tokens``.
    """
    del words
    listed = tf.argsort(tf.cast(~candidates, tf.int32), axis=1, stable=True)
    available = tf.reduce_sum(tf.cast(candidates, tf.int32), axis=1, keepdims=True)
    share = uniform(noise[:, :size])
    drawn = tf.cast(share * tf.cast(available, tf.float32), tf.int32)
    drawn = tf.clip_by_value(drawn, 0, tf.maximum(available - 1, 0))
    positions = tf.gather(listed, drawn, batch_dims=1)
    return positions, tf.range(size)[None, :] < counts[:, None]


SELECTORS: dict[str, Callable] = {
    "tokens": select_tokens,
    "whole_words": select_whole_words,
    "with_replacement": select_with_replacement,
}


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
        mask_rate: share of a row's tokens to choose, in (0, 1].
        max_predictions_per_seq: P; default the original's ``max_predictions``.
        rule: ``"electra"`` (85 % [MASK], 15 % unchanged) or ``"bert"`` (80 % [MASK],
            10 % random token, 10 % unchanged).
        select: ``"tokens"``, ``"whole_words"`` or ``"with_replacement"``.
        continuation: [V] booleans, True for pieces that continue a word ("##ing");
            needed for ``"whole_words"``.

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
        mask_rate: float = 0.15,
        max_predictions_per_seq: int | None = None,
        rule: str = "electra",
        select: str = "tokens",
        continuation: Sequence[bool] | None = None,
    ):
        if not 0 < mask_rate <= 1:
            raise ValueError(f"mask_rate must be in (0, 1], got {mask_rate}.")
        for name, value, table in (
            ("rule", rule, MASK_RULES),
            ("select", select, SELECTORS),
        ):
            if value not in table:
                raise ValueError(
                    f"Unknown masking {name} {value!r}; choose one of {sorted(table)}."
                )
        needed = round(max_seq_length * mask_rate)
        slots = (
            max(1, max_predictions(max_seq_length, mask_rate))
            if max_predictions_per_seq is None
            else max_predictions_per_seq
        )
        if not 1 <= slots <= max_seq_length or (
            max_predictions_per_seq is not None and slots < needed
        ):
            raise ValueError(
                f"max_predictions_per_seq is {slots} but mask_rate {mask_rate} of "
                f"{max_seq_length} tokens needs {needed} slots (and at most "
                f"{max_seq_length}): change max_predictions_per_seq or mask_rate."
            )
        if select == "whole_words" and continuation is None:
            raise ValueError(
                "Whole-word masking needs `continuation`, which pieces of the "
                "vocabulary continue a word."
            )
        self.vocab_size = vocab_size
        self.mask_id = mask_id
        self.pad_id = pad_id
        self.never_masked = tuple(sorted({*never_masked, mask_id, pad_id}))
        self.max_seq_length = max_seq_length
        self.mask_rate = mask_rate
        self.max_predictions_per_seq = slots
        self._hidden_share, self._random_share = MASK_RULES[rule]
        self._select = SELECTORS[select]
        self._words = (
            _WordNumbers(continuation) if select == "whole_words" else _no_words
        )

    def __call__(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        keys: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Chooses and hides positions.

        Args:
            input_ids: [B, S] int32, padded with ``pad_id``.
            input_mask: [B, S] int32, 1 for real tokens.
            keys: [B] uint64 from ``row_keys``.

        Returns:
            masked_input_ids [B, S], masked_lm_positions [B, P], masked_lm_ids [B, P]
            (int32) and masked_lm_weights [B, P] (float32).
        """
        size = self.max_predictions_per_seq
        candidates = self._candidates(input_ids, input_mask)
        positions, used = self._select(
            row_noise(keys, _POSITIONS, self.max_seq_length),
            candidates,
            self._words(input_ids, input_mask),
            self._counts(input_mask, candidates),
            size,
        )
        # Unused slots point at position 0 ([CLS]), which is never a candidate: weight
        # 0 keeps them out of the loss and the scatters below skip them.
        positions = tf.where(used, positions, 0)
        original = tf.gather(input_ids, positions, batch_dims=1)
        shown = self._shown(original, keys)
        return {
            "masked_input_ids": scatter_positions(input_ids, positions, shown, used),
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.where(used, original, 0),
            "masked_lm_weights": tf.cast(used, tf.float32),
        }

    def _candidates(self, input_ids, input_mask):
        special = tf.reduce_any(
            input_ids[:, :, None] == tf.constant(self.never_masked)[None, None, :], 2
        )
        return (input_mask > 0) & ~special

    def _counts(self, input_mask, candidates):
        tokens = tf.reduce_sum(tf.cast(input_mask, tf.float32), axis=1)
        wanted = tf.cast(tf.round(tokens * self.mask_rate), tf.int32)
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


class _WordNumbers:
    """Numbers the words of a row from 0: a piece that continues shares its number."""

    def __init__(self, continuation: Sequence[bool]):
        self._continuation = tf.constant(list(continuation), tf.bool)

    def __call__(self, input_ids, input_mask):
        continues = tf.gather(self._continuation, input_ids) & (input_mask > 0)
        starts = tf.cast(~continues, tf.int32)
        return tf.maximum(tf.cumsum(starts, axis=1) - 1, 0)


def _no_words(input_ids, input_mask):
    del input_ids, input_mask
