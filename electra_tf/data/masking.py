"""Masking for masked language modeling, with a counter-based random generator.

A row's mask is a pure function of its key and the training step. Shapes: B batch, S
sequence, P predicted positions per sequence, V vocabulary.
"""

from collections.abc import Sequence

import tensorflow as tf

from electra_tf.config.pretraining import max_predictions
from electra_tf.errors import UserError
from electra_tf.features import scatter_positions

# Shares of the masked positions that become [MASK] and a random token.
MASK_RULES = {"electra": (0.85, 0.0), "bert": (0.8, 0.1)}

_POSITIONS, _RULE, _RANDOM_TOKEN = range(3)

# SplitMix64. Unlike ``tf.random.stateless_*`` it takes one key per row in a single
# call, and its bits are the same in eager and graph mode.
_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: tf.Tensor) -> tf.Tensor:
    """SplitMix64's finalizer, a bijection on uint64 (Steele et al., 2014)."""
    shift, xor = tf.bitwise.right_shift, tf.bitwise.bitwise_xor
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = xor(x, shift(x, tf.constant(bits, tf.uint64)))
        x = mixed * tf.constant(factor, tf.uint64)
    return xor(x, shift(x, tf.constant(31, tf.uint64)))


def row_keys(
    fingerprints: tf.Tensor, variants: tf.Tensor, *, seed: int = 0
) -> tf.Tensor:
    """Returns [B] uint64 keys from record hashes and mask variants, [B] int64."""
    seed_key = mix(tf.constant((seed + 1) * _GOLDEN % 2**64, tf.uint64))
    variant_keys = mix(tf.cast(variants, tf.uint64) + seed_key)
    return mix(tf.bitwise.bitwise_xor(tf.cast(fingerprints, tf.uint64), variant_keys))


def row_noise(keys: tf.Tensor, stream: int, size: int) -> tf.Tensor:
    """Returns random integers of a stream, [B, size] int64, uniform in [0, 2**63)."""
    counters = tf.range(1, size + 1, dtype=tf.int64) + (stream << 32)
    offsets = tf.cast(counters, tf.uint64) * tf.constant(_GOLDEN, tf.uint64)
    bits = mix(keys[:, None] + offsets[None, :])
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)


def uniform(noise: tf.Tensor) -> tf.Tensor:
    """Converts 63-bit noise to float32 in [0, 1) with 24 random bits."""
    high_bits = tf.bitwise.right_shift(noise, tf.constant(39, tf.int64))
    return tf.cast(high_bits, tf.float32) * 2.0**-24


def gumbel(noise: tf.Tensor) -> tf.Tensor:
    """Converts noise to Gumbel variables, float64."""
    # 52 bits, in (0, 1) without the ends: the top keys of 24 random bits would tie.
    high_bits = tf.bitwise.right_shift(noise, tf.constant(11, tf.int64))
    share = (tf.cast(high_bits, tf.float64) + 0.5) * 2.0**-52
    return -tf.math.log(-tf.math.log(share))


def select_whole_words(
    noise: tf.Tensor,
    candidates: tf.Tensor,
    counts: tf.Tensor,
    size: int,
    words: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws words in random order and takes all pieces of each word that fits.

    Skips words that would exceed the row's count. Four passes over the same order fill
    the rest with shorter words. Takes noise, [B, S] int64, the only source of
    randomness; candidates, [B, S] bool, that may be masked; counts to mask, [B] int32,
    at most P and the candidates; and the word of each piece, [B, S] int32, numbered in
    order. Returns positions, [B, P] int32, and the mask of used slots, [B, P] bool.
    """
    # All pieces of a word share one noise value, so they stay adjacent in the order.
    keyed = tf.where(candidates, tf.gather(noise, words, batch_dims=1), noise.dtype.max)
    order = tf.argsort(keyed, axis=1, stable=True)
    ones, length = tf.cast(candidates, tf.int32), noise.shape[1]
    pieces = tf.math.bincount(words, ones, length, length, axis=-1)
    before = tf.cumsum(pieces, axis=1, exclusive=True)
    # 1-based index of each piece within its word.
    place = tf.cumsum(ones, axis=1) - tf.gather(before, words, batch_dims=1)
    of_words = (candidates, tf.gather(pieces, words, batch_dims=1), place)
    usable, sizes, place = (tf.gather(each, order, batch_dims=1) for each in of_words)
    taken = tf.zeros_like(usable)
    # A pass stops at the first word that does not fit; the next one continues after it.
    for _ in range(4):
        left = (counts - tf.reduce_sum(tf.cast(taken, tf.int32), axis=1))[:, None]
        eligible = usable & ~taken & (sizes <= left)
        upto = tf.cumsum(tf.cast(eligible, tf.int32), axis=1)
        # Also counts the remaining pieces of the word: words are never split.
        blocked = eligible & (upto + sizes - place > left)
        taken |= eligible & (tf.cumsum(tf.cast(blocked, tf.int32), axis=1) == 0)
    first = tf.math.top_k(tf.cast(taken, tf.int32), k=size).indices
    return tuple(tf.gather(values, first, batch_dims=1) for values in (order, taken))


def select_with_replacement(
    noise: tf.Tensor, candidates: tf.Tensor, available: tf.Tensor
) -> tf.Tensor:
    """Draws positions independently, as the original does; positions can repeat.

    Takes noise, [B, P], and the numbers of candidates, [B, 1]. Returns [B, P] int32.
    """
    drawn = tf.cast(uniform(noise) * tf.cast(available, tf.float32), tf.int32)
    drawn = tf.clip_by_value(drawn, 0, tf.maximum(available - 1, 0))
    # Equal values keep their order.
    flags = tf.cast(candidates, tf.int32)
    first = tf.math.top_k(flags, k=tf.shape(flags)[1]).indices
    return tf.gather(first, drawn, batch_dims=1)


SELECTORS = ("tokens", "whole_words", "rare_tokens", "with_replacement")


class Masking:
    """Selects and masks positions of padded ids for masked language modeling.

    A row of ``n`` real tokens, [CLS] and [SEP] included, has ``round(n * mask_rate)``
    masked positions. The number is rounded half to even, at least 1 and at most P.
    [CLS], [SEP], [MASK] and padding are never masked; [UNK] can be.

    Args:
        never_masked: ids of [CLS] and [SEP].
        mask_rate: share of a row's tokens to mask, in (0, 1].
        final_mask_rate: the rate after ``steps`` >= 1 steps, if it changes linearly.
        max_predictions_per_seq: P; defaults to ``max_predictions`` of the highest rate.
        rule: ``"electra"`` (85 % [MASK], 15 % unchanged) or ``"bert"`` (80 % [MASK],
            10 % random token, 10 % unchanged).
        select: ``"tokens"``, ``"whole_words"``, ``"rare_tokens"`` or
            ``"with_replacement"``.
        continuation: [V] booleans, True for pieces that continue a word ("##ing");
            required for ``"whole_words"``.
        token_counts: [V] token frequencies; required for ``"rare_tokens"``.

    Raises ``ValueError`` if an argument is unknown, missing or out of range.

    Examples:
        >>> from electra_tf.data.masking import row_keys
        >>> masking = et.data.Masking(10, 4, never_masked=(2, 3), max_seq_length=8)
        >>> ids = tf.constant([[2, 7, 8, 9, 3, 0, 0, 0]])
        >>> keys = row_keys(tf.constant([1], tf.int64), tf.constant([0], tf.int64))
        >>> batch = masking(ids, tf.cast(ids > 0, tf.int32), keys)
        >>> int(batch["masked_lm_positions"][0, 0]) in (1, 2, 3)
        True
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
        final_mask_rate: float | None = None,
        steps: int = 1,
        max_predictions_per_seq: int | None = None,
        rule: str = "electra",
        select: str = "tokens",
        continuation: Sequence[bool] | None = None,
        token_counts: Sequence[int] | None = None,
    ):
        last = mask_rate if final_mask_rate is None else final_mask_rate
        for name, rate in (("mask_rate", mask_rate), ("final_mask_rate", last)):
            if not 0 < rate <= 1:
                raise UserError(f"{name} must be in (0, 1], got {rate}.")
        if steps < 1:
            raise UserError(f"steps must be at least 1, got {steps}.")
        for value, choices in ((rule, MASK_RULES), (select, SELECTORS)):
            if value not in choices:
                known = sorted(choices)
                raise UserError(f"Unknown masking {value!r}; choose one of {known}.")
        rate, slots = max(mask_rate, last), max_predictions_per_seq
        # The original's default rounds down and can be one slot short.
        fewest = 1 if slots is None else max(1, round(max_seq_length * rate))
        if slots is None:
            slots = max_predictions(max_seq_length, rate)
        if not fewest <= slots <= max_seq_length:
            raise UserError(
                f"max_predictions_per_seq is {slots}, but must be {fewest} to "
                f"{max_seq_length} for mask_rate {rate} of {max_seq_length} tokens."
            )
        ids = (mask_id, pad_id, *never_masked)
        if beyond := [number for number in ids if not 0 <= number < vocab_size]:
            raise UserError(
                f"special token {beyond[0]} is not an id from 0 to {vocab_size - 1}"
            )
        self.vocab_size = vocab_size
        self.mask_id = mask_id
        self.pad_id = pad_id
        self.never_masked = tuple(sorted({*never_masked, mask_id, pad_id}))
        self.max_seq_length = max_seq_length
        self.max_predictions_per_seq = slots
        self._first_rate, self._last_rate, self._steps = mask_rate, last, steps
        self._hidden_share, self._random_share = MASK_RULES[rule]
        self._select = select
        if select == "whole_words":
            if continuation is None or len(continuation) != vocab_size:
                raise UserError(f"{select!r} needs `continuation` of all tokens.")
            self._continuation = tf.constant(continuation, tf.bool)
        elif select == "rare_tokens":
            if token_counts is None or len(token_counts) != vocab_size:
                raise UserError(f"{select!r} needs `token_counts` of all tokens.")
            # A token that occurs n times has the weight (n + 1)^-0.5.
            counts = tf.cast(token_counts, tf.float64)
            self._log_weights = -0.5 * tf.math.log(counts + 1.0)

    def __call__(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        keys: tf.Tensor,
        step: tf.Tensor | int = 0,
    ) -> dict[str, tf.Tensor]:
        """Masks ids, [B, S] int32, with keys, [B] uint64 from ``row_keys``.

        The scalar ``step`` determines the rate. Returns int32 masked_input_ids [B, S],
        masked_lm_positions [B, P], masked_lm_ids [B, P] and float32 masked_lm_weights
        [B, P].
        """
        size = self.max_predictions_per_seq
        is_special = tf.reduce_any(input_ids[:, :, None] == self.never_masked, axis=2)
        candidates = (input_mask > 0) & ~is_special
        tokens = tf.reduce_sum(tf.cast(input_mask, tf.float32), axis=1)
        wanted = tf.cast(tf.round(tokens * self._rate(step)), tf.int32)
        # Deviation: at most the candidates; without any, the original divides 0 by 0.
        available = tf.reduce_sum(tf.cast(candidates, tf.int32), axis=1)
        counts = tf.minimum(tf.maximum(wanted, 1), tf.minimum(available, size))
        noise = row_noise(keys, _POSITIONS, self.max_seq_length)
        used = tf.range(size)[None, :] < counts[:, None]
        if self._select == "with_replacement":
            draws = noise[:, :size]
            positions = select_with_replacement(draws, candidates, available[:, None])
        elif self._select == "whole_words":
            # Index of each piece's word within its row.
            continues = tf.gather(self._continuation, input_ids) & (input_mask > 0)
            words = tf.cumsum(tf.cast(~continues, tf.int32), axis=1) - 1
            # A record can start inside a word: word 0, not -1.
            words = tf.maximum(words, 0)
            positions, used = select_whole_words(noise, candidates, counts, size, words)
        else:
            # Draws distinct positions, uniformly. Deviation: the original draws with
            # replacement: its mask rate is 13.8 %, and colliding draws average ids.
            drawn = noise
            if self._select == "rare_tokens":
                # In proportion to the weights, as the top k of log(weight) plus Gumbel
                # noise (Efraimidis and Spirakis, 2006). The ELECTRA paper's "strategic
                # masking" (appendix on negative results, no formula).
                drawn = tf.gather(self._log_weights, input_ids) + gumbel(noise)
            drawn = tf.where(candidates, drawn, drawn.dtype.min)
            positions = tf.math.top_k(drawn, k=size).indices
        # Unused slots point at position 0 ([CLS]) with weight 0 and are not scattered.
        # Nor are unchanged tokens: a position drawn twice is masked if either masks.
        positions = tf.where(used, positions, 0)
        original = tf.gather(input_ids, positions, batch_dims=1)
        shown = self._shown(original, keys)
        hidden = used & (shown != original)
        return {
            "masked_input_ids": scatter_positions(input_ids, positions, shown, hidden),
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.where(used, original, 0),
            "masked_lm_weights": tf.cast(used, tf.float32),
        }

    def _rate(self, step: tf.Tensor | int) -> tf.Tensor:
        # In float64: the number of masked tokens is rounded.
        done = tf.cast(tf.minimum(tf.cast(step, tf.int64), self._steps), tf.float64)
        change = (self._last_rate - self._first_rate) * (done / self._steps)
        return tf.cast(self._first_rate + change, tf.float32)

    def _shown(self, original: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        size = self.max_predictions_per_seq
        share = uniform(row_noise(keys, _RULE, size))
        shown = tf.where(share < self._hidden_share, self.mask_id, original)
        if self._random_share == 0:
            return shown
        noise = row_noise(keys, _RANDOM_TOKEN, size)
        drawn = tf.cast(noise % self.vocab_size, tf.int32)
        limit = self._hidden_share + self._random_share
        is_random = (share >= self._hidden_share) & (share < limit)
        return tf.where(is_random, drawn, shown)
