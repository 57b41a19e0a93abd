"""Which positions of a row are masked: one function per rule, whole batches at a time.

Every rule is a pure function of the row's noise, gives static shapes, and the same in
eager and graph mode. Letters: B batch, S sequence, P predicted positions per sequence,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from electra_tf.data.noise import remixed, uniform, uniform64

# SpanBERT's distribution of the words in a span.
_SPAN_P, _MAX_SPAN = 0.2, 10


class VocabularyFacts(NamedTuple):
    """What the rules may want to know of the vocabulary.

    Attributes:
        continuation: [V] booleans, True for pieces that continue a word ("##ing").
        token_counts: [V] numbers, how often each entry occurs in the training text.
        rarity_power: weight of a token is (count + 1) to the minus this.
    """

    continuation: Sequence[bool] | None = None
    token_counts: Sequence[int] | None = None
    rarity_power: float = 0.5


class WordNumbers:
    """Numbers the words of a row from 0: a piece that continues shares its number."""

    def __init__(self, facts: VocabularyFacts):
        if facts.continuation is None:
            raise ValueError(
                "Masking whole words or spans needs `continuation`, which pieces of "
                "the vocabulary continue a word."
            )
        self._continuation = tf.constant(list(facts.continuation), tf.bool)

    def __call__(self, input_ids: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """Ids and mask, int32 [B, S], to word numbers, int32 [B, S]."""
        continues = tf.gather(self._continuation, input_ids) & (input_mask > 0)
        starts = tf.cast(~continues, tf.int32)
        return tf.maximum(tf.cumsum(starts, axis=1) - 1, 0)


class Rarities:
    """Logarithm of each token's weight: (count + 1) ** -power, float64 [B, S]."""

    def __init__(self, facts: VocabularyFacts):
        if facts.token_counts is None:
            raise ValueError(
                "Masking rare tokens more often needs `token_counts`, how often each "
                "entry of the vocabulary occurs in the training text."
            )
        counts = tf.constant(list(facts.token_counts), tf.float64)
        self._log_weights = -facts.rarity_power * tf.math.log(counts + 1.0)

    def __call__(self, input_ids: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """Ids, int32 [B, S], to logarithms of weights, float64 [B, S]."""
        del input_mask
        return tf.gather(self._log_weights, input_ids)


class NoTraits:
    """For rules that look at no token."""

    def __init__(self, facts: VocabularyFacts):
        del facts

    def __call__(self, input_ids: tf.Tensor, input_mask: tf.Tensor) -> None:
        """Returns None."""
        del input_ids, input_mask


def select_tokens(
    noise: tf.Tensor, candidates: tf.Tensor, traits: None, counts: tf.Tensor, size
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws exactly ``counts`` distinct candidate positions per row, uniformly.

    Deviation: the original draws with replacement, so its true mask rate is 13.8 %
    where 15 % is asked for, and colliding draws average token ids; its rule is
    ``select_with_replacement``.

    Args:
        noise: [B, S] int64.
        candidates: [B, S] bool.
        traits: unused here.
        counts: [B] int32, at most the number of candidates and at most ``size``.
        size: P, the number of slots.

    Returns:
        positions [B, P] int32 and whether each slot is used [B, P] bool.
    """
    del traits
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
    ``words`` from ``WordNumbers``.
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
    noise: tf.Tensor, candidates: tf.Tensor, traits: None, counts: tf.Tensor, size
) -> tuple[tf.Tensor, tf.Tensor]:
    """The original's rule: independent draws, so a position can come twice.

    Arguments and results as ``select_tokens``.
    """
    del traits
    listed = tf.argsort(tf.cast(~candidates, tf.int32), axis=1, stable=True)
    available = tf.reduce_sum(tf.cast(candidates, tf.int32), axis=1, keepdims=True)
    share = uniform(noise[:, :size])
    drawn = tf.cast(share * tf.cast(available, tf.float32), tf.int32)
    drawn = tf.clip_by_value(drawn, 0, tf.maximum(available - 1, 0))
    positions = tf.gather(listed, drawn, batch_dims=1)
    return positions, tf.range(size)[None, :] < counts[:, None]


def select_spans(
    noise: tf.Tensor, candidates: tf.Tensor, words: tf.Tensor, counts: tf.Tensor, size
) -> tuple[tf.Tensor, tf.Tensor]:
    """Takes spans of whole words until the row has exactly its count.

    Joshi et al., 2020 (SpanBERT), section 3.1: the number of words is geometric with
    p = 0.2, at most 10 (3.8 on average), the first word is uniform over the words that
    are not taken yet. The paper's distribution is renormalized, not cut, at 10. A span
    ends early at [SEP] and other tokens that are never masked; the last one of a row
    ends where the count is reached, if need be within a word.

    Arguments and results as ``select_tokens``, with ``words`` from ``WordNumbers``.
    """
    before = [[0, 0], [1, 0]]
    is_same_word = (words[:, 1:] == words[:, :-1]) & candidates[:, :-1]
    starts = candidates & ~tf.pad(is_same_word, before)
    numbers = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
    blocks = tf.cumsum(tf.cast(~candidates, tf.int32), axis=1)
    lengths = _span_lengths(noise)

    def take_one(taken):
        order = tf.where(starts & ~taken, noise, tf.constant(-1, tf.int64))
        first = tf.argmax(order, axis=1)[:, None]
        block, number, length = (
            tf.gather(values, first, batch_dims=1)
            for values in (blocks, numbers, lengths)
        )
        is_inside = (numbers >= number) & (numbers < number + length)
        new = candidates & ~taken & is_inside & (blocks == block)
        left = counts - tf.reduce_sum(tf.cast(taken, tf.int32), axis=1)
        fits = tf.cumsum(tf.cast(new, tf.int32), axis=1) <= left[:, None]
        return [taken | (new & fits)]

    def is_short(taken):
        return tf.reduce_any(tf.reduce_sum(tf.cast(taken, tf.int32), 1) < counts)

    # Each round takes at least one token of every row that is short.
    (taken,) = tf.while_loop(
        is_short, take_one, [tf.zeros_like(candidates)], maximum_iterations=size
    )
    positions = tf.argsort(tf.cast(~taken, tf.int32), axis=1, stable=True)[:, :size]
    return positions, tf.range(size)[None, :] < counts[:, None]


def _span_lengths(noise: tf.Tensor) -> tf.Tensor:
    """Geometric numbers of words up to `_MAX_SPAN`, int32, from further noise."""
    shares = [(1 - _SPAN_P) ** length for length in range(_MAX_SPAN + 1)]
    bounds = [(1 - share) / (1 - shares[-1]) for share in shares[1:-1]]
    share = uniform(remixed(noise))
    above = share[:, :, None] >= tf.constant(bounds, tf.float32)
    return 1 + tf.reduce_sum(tf.cast(above, tf.int32), axis=2)


def select_by_weight(
    noise: tf.Tensor,
    candidates: tf.Tensor,
    log_weights: tf.Tensor,
    counts: tf.Tensor,
    size,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws distinct candidates one after the other, each in proportion to its weight.

    Rare tokens are then masked more often: the "strategic masking" that the ELECTRA
    paper reports as a minor speed-up of BERT (appendix on negative results), without a
    formula. Weighted draws without replacement are the largest of log(weight) plus
    Gumbel noise (Efraimidis and Spirakis, 2006).

    Arguments and results as ``select_tokens``, with ``log_weights`` from ``Rarities``.
    """
    gumbel = -tf.math.log(-tf.math.log(uniform64(noise)))
    lowest = tf.constant(tf.float64.min, tf.float64)
    keyed = tf.where(candidates, log_weights + gumbel, lowest)
    positions = tf.math.top_k(keyed, k=size).indices
    return positions, tf.range(size)[None, :] < counts[:, None]


# Rule -> how positions are chosen, and what it reads of each token.
SELECTORS: dict[str, tuple[Callable, type]] = {
    "tokens": (select_tokens, NoTraits),
    "whole_words": (select_whole_words, WordNumbers),
    "spans": (select_spans, WordNumbers),
    "rare_tokens": (select_by_weight, Rarities),
    "with_replacement": (select_with_replacement, NoTraits),
}
