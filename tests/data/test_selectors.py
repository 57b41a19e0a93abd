"""Spans and frequencies against simulations; the mask rate against its formula."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data import selectors
from electra_tf.data.masking import LinearMaskRate
from electra_tf.data.noise import row_keys, row_noise
from tests.data.test_masking import CLS, MASK, SEP, VOCAB, apply, make, rows

CONTINUATION = np.arange(VOCAB) >= 700


def runs(flags):
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags, [0]])))
    return (edges[1::2] - edges[::2]).tolist()


def simulated_spans(size, count, rng):
    """SpanBERT's loop over single-token words: anchors are not masked yet."""
    lengths = np.arange(1, 11)
    shares = 0.2 * 0.8 ** (lengths - 1)
    masked = np.zeros(size, bool)
    while masked.sum() < count:
        length = rng.choice(lengths, p=shares / shares.sum())
        anchor = rng.integers(size)
        if masked[anchor]:
            continue
        for position in range(anchor, min(anchor + length, size)):
            if masked.sum() < count:
                masked[position] = True
    return masked


def masked_positions(out, length):
    found = np.zeros((len(out["masked_lm_ids"]), length), bool)
    for row, slot in np.argwhere(out["masked_lm_weights"] > 0):
        found[row, out["masked_lm_positions"][row, slot]] = True
    return found


def test_span_lengths_are_those_of_spanbert():
    """Mean 3.8, geometric shares up to 10: section 3.1 of the SpanBERT paper."""
    keys = row_keys(tf.range(2000, dtype=tf.int64), tf.zeros([2000], tf.int64))
    lengths = selectors._span_lengths(row_noise(keys, 0, 50)).numpy().ravel()
    expected = 0.8 ** np.arange(10)
    expected = expected / expected.sum() * lengths.size
    counts = np.bincount(lengths, minlength=11)[1:]
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # 0.1 %, 9 degrees
    assert abs(lengths.mean() - 3.8) < 0.03


def test_spans_match_a_simulation():
    """Runs of masked positions: as many of each length as SpanBERT's loop gives."""
    ids, mask = rows([128] * 3000)
    select = {"select": "spans", "continuation": [False] * VOCAB}
    out = apply(make(**select), ids, mask)
    ours = masked_positions(out, 128)
    assert (ours.sum(1) == 19).all()
    assert not ours[:, [0, 127]].any()
    rng = np.random.default_rng(0)
    theirs = np.stack([simulated_spans(126, 19, rng) for _ in range(3000)])
    found, expected = (
        collections.Counter(length for row in masks for length in runs(row))
        for masks in (ours, theirs)
    )
    chi_square = sum(
        (found[n] - expected[n]) ** 2 / (found[n] + expected[n]) for n in range(1, 15)
    )
    assert chi_square < 36.1  # 0.1 % point with 14 degrees
    totals = [sum(counter.values()) for counter in (found, expected)]
    assert totals[0] == pytest.approx(totals[1], rel=0.02)
    # Where: less at the left end, where few spans reach, as in the simulation.
    np.testing.assert_allclose(
        ours[:, 1:127].mean(0), theirs.mean(0), atol=5 * np.sqrt(0.15 * 0.85 / 1500)
    )


def test_spans_are_whole_words_but_for_the_last_and_stay_between_specials():
    ids, mask = rows([128] * 400)
    ids[:, 50] = SEP
    ids[:100, 80] = MASK
    out = apply(make(select="spans", continuation=CONTINUATION), ids, mask)
    masks = masked_positions(out, 128)
    assert (masks.sum(1) == 19).all(), "exactly the count"
    special = np.isin(ids, (CLS, SEP, MASK))
    assert not (masks & special).any()
    broken = 0
    for row in range(400):
        starts = ~CONTINUATION[ids[row]] | special[row]
        starts[1:] |= special[row, :-1]
        words = np.cumsum(starts)
        for word in np.unique(words):
            inside = masks[row, (words == word) & ~special[row]]
            broken += 0 < inside.sum() < len(inside)
    assert broken <= 400, "at most one word a row"
    assert broken < 0.5 * 400


def test_every_candidate_can_be_asked_for():
    ids, mask = rows([128, 40, 3, 2])
    out = apply(
        make(select="spans", continuation=CONTINUATION, mask_rate=1.0), ids, mask
    )
    assert out["masked_lm_weights"].sum(1).tolist() == [126, 38, 1, 0]


def simulated_draws(weights, count, rng):
    """One draw after the other, each in proportion to the weights that are left."""
    left = weights.copy()
    for _ in range(count):
        choice = rng.choice(len(left), p=left / left.sum())
        left[choice] = 0
        yield choice


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_rare_tokens_match_a_simulation(power):
    """How often each token of one row is masked, against draws one by one."""
    counts = np.zeros(VOCAB, int)
    counts[5:35] = np.geomspace(1, 5000, 30)
    ids = np.zeros((6000, 32), np.int32)
    ids[:] = [CLS, *range(5, 35), SEP]
    masking = make(
        select="rare_tokens",
        token_counts=counts,
        rarity_power=power,
        max_seq_length=32,
        mask_rate=0.25,
    )
    out = apply(masking, ids, np.ones_like(ids))
    masks = masked_positions(out, 32)
    assert (masks.sum(1) == 8).all()
    rng = np.random.default_rng(0)
    weights = (counts[5:35] + 1.0) ** -power
    theirs = np.zeros(30)
    for _ in range(6000):
        theirs[list(simulated_draws(weights, 8, rng))] += 1 / 6000
    ours = masks[:, 1:31].mean(0)
    np.testing.assert_allclose(ours, theirs, atol=5 * np.sqrt(0.25 / 3000))
    if power:
        assert ours[0] > 2 * ours[-1], "the rarest is masked far more often"


@pytest.mark.parametrize("select", ["spans", "rare_tokens"])
def test_eager_graph_and_batching_agree(select):
    """A row's mask is a function of the row alone."""
    ids, mask = rows([128, 60, 7, 128])
    masking = make(
        select=select, continuation=CONTINUATION, token_counts=np.arange(VOCAB)
    )
    whole = apply(masking, ids, mask)
    graph = apply(tf.function(masking), ids, mask)
    for name in whole:
        np.testing.assert_array_equal(whole[name], graph[name])
    alone = apply(masking, ids[:1], mask[:1])
    for name in whole:
        np.testing.assert_array_equal(whole[name][:1], alone[name])
    other = apply(masking, ids, mask, variant=1)["masked_lm_positions"]
    assert (np.sort(other) != np.sort(whole["masked_lm_positions"])).any()


@pytest.mark.parametrize("select", ["tokens", "spans", "with_replacement"])
def test_the_count_follows_the_rate(select):
    """Slots for the highest rate; round(n * rate) of them used, at every step."""
    ids, mask = rows([128, 77])
    masking = make(
        select=select,
        continuation=CONTINUATION,
        mask_rate=LinearMaskRate(0.3, 0.1, 1000),
    )
    assert masking.max_predictions_per_seq == 39
    keys = tf.constant([1, 2], tf.uint64)
    masked = tf.function(masking)
    for step in (0, 250, 999, 1000, 10**9):
        out = masked(tf.constant(ids), tf.constant(mask), keys, tf.constant(step))
        rate = 0.3 - 0.2 * min(step, 1000) / 1000
        assert out["masked_lm_weights"].shape == (2, 39)
        found = out["masked_lm_weights"].numpy().sum(1)
        assert found.tolist() == [round(128 * rate), round(77 * rate)]


def test_a_falling_rate_keeps_a_part_of_the_same_positions():
    ids, mask = rows([128] * 50)
    many, few = (
        masked_positions(apply(make(mask_rate=rate), ids, mask), 128)
        for rate in (0.3, 0.1)
    )
    assert (few <= many).all()


def test_bad_rates_and_missing_facts_are_named():
    with pytest.raises(ValueError, match="mask_rate must be in"):
        LinearMaskRate(0.1, 1.5)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        LinearMaskRate(0.1, 0.2, 0)
    with pytest.raises(ValueError, match="token_counts"):
        make(select="rare_tokens")
    with pytest.raises(ValueError, match="continuation"):
        make(select="spans")
    with pytest.raises(ValueError, match="needs 38 slots"):
        make(mask_rate=LinearMaskRate(0.1, 0.3, 10), max_predictions_per_seq=20)
