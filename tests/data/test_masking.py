"""Masking: pitfalls 7 to 12 of docs/fidelity.md, each with its own test."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from electra_tf.data.masking import Masking, max_predictions, row_keys, row_noise
from electra_tf.features import scatter_positions

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB = 1000
CONTINUATION = np.arange(VOCAB) >= 700


def make(**options):
    options = {"never_masked": (CLS, SEP), "max_seq_length": 128, **options}
    return Masking(VOCAB, MASK, **options)


def rows(lengths, size=128, seed=0):
    """Returns rows of [CLS] words [SEP] padding with the given lengths."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((len(lengths), size), np.int32)
    for row, length in enumerate(lengths):
        ids[row, :length] = rng.integers(5, VOCAB, length)
        ids[row, 0], ids[row, length - 1] = CLS, SEP
    mask = (np.arange(size)[None] < np.array(lengths)[:, None]).astype(np.int32)
    return ids, mask


def apply(masking, ids, mask, seed=0, variant=0):
    fingerprints = tf.range(len(ids), dtype=tf.int64)
    keys = row_keys(fingerprints, tf.fill([len(ids)], np.int64(variant)), seed=seed)
    out = masking(tf.constant(ids), tf.constant(mask), keys)
    return {name: value.numpy() for name, value in out.items()}


def test_noise_is_splitmix64():
    """Compares with Python integers, and with the first published output."""
    limit, state, expected = 2**64, 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % limit
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % limit
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % limit
        expected.append((z ^ (z >> 31)) >> 1)
    assert expected[0] == 6457827717110365317 >> 1
    noise = row_noise(tf.constant([1234567], tf.uint64), 0, 3).numpy()[0]
    assert noise.tolist() == expected


def test_number_of_positions():
    """Half-to-even, at least 1, none without words (pitfall 9 of docs/fidelity.md)."""
    out = apply(make(), *rows([128, 100, 30, 10, 3, 2]))
    assert out["masked_lm_weights"].sum(1).tolist() == [19, 15, 4, 2, 1, 0]
    out = apply(make(max_seq_length=512), *rows([512], size=512))
    assert out["masked_lm_weights"].sum() == 77
    slots = ((128, 0.15), (512, 0.15), (512, 0.25), (512, 1.0), (8, 0.01))
    assert [max_predictions(*each) for each in slots] == [19, 79, 130, 512, 1]
    out = apply(make(mask_rate=1.0), *rows([128, 40, 3, 2]))
    assert out["masked_lm_weights"].sum(1).tolist() == [126, 38, 1, 0]


def test_exact_mode_draws_distinct_positions_with_originals():
    """The labels are the original ids (pitfall 10 of docs/fidelity.md)."""
    ids, mask = rows([128] * 200)
    out = apply(make(), ids, mask)
    positions = out["masked_lm_positions"]
    assert all(len(set(row)) == 19 for row in positions)
    originals = np.take_along_axis(ids, positions, 1)
    np.testing.assert_array_equal(out["masked_lm_ids"], originals)


def test_with_replacement_repeats_as_often_as_the_original():
    """On average 17.69 distinct ones of 19 (pitfall 10 of docs/fidelity.md)."""
    # 125 candidates: 128 tokens, [CLS] and two [SEP].
    ids, mask = rows([128] * 6000)
    ids[:, 60] = SEP
    out = apply(make(select="with_replacement"), ids, mask)
    distinct, hidden = [], []
    for row, positions in enumerate(out["masked_lm_positions"]):
        chosen, draws = np.unique(positions, return_counts=True)
        distinct.append(len(chosen))
        hidden += list(out["masked_input_ids"][row, chosen[draws == 2]] == MASK)
    assert abs(np.mean(distinct) - 125 * (1 - (124 / 125) ** 19)) < 0.1
    # One that is drawn twice stays visible only if both draws keep it: 0.15 ** 2.
    assert len(hidden) > 5000
    error = (0.9775 * 0.0225 / len(hidden)) ** 0.5
    assert abs(np.mean(hidden) - 0.9775) < 4 * error


def test_specials_and_padding_are_never_chosen_but_unk_is():
    """Candidates: no special token but [UNK] (pitfall 8 of docs/fidelity.md)."""
    ids, mask = rows([40] * 500)
    ids[:, 5:10] = UNK
    ids[:, 10:15] = MASK
    ids[:, 20] = SEP
    for select in ("tokens", "with_replacement"):
        out = apply(make(select=select), ids, mask)
        used = out["masked_lm_weights"] > 0
        chosen = out["masked_lm_ids"][used]
        assert not set(chosen) & {PAD, CLS, SEP, MASK}
        assert UNK in set(chosen)
        assert out["masked_lm_positions"][used].max() < 39


@pytest.mark.parametrize(
    ("rule", "hidden", "kept"), [("electra", 0.85, 0.15), ("bert", 0.8, 0.1)]
)
def test_only_mask_tokens_and_their_share(rule, hidden, kept):
    """[MASK] is ELECTRA's only replacement (pitfall 7 of docs/fidelity.md)."""
    ids, mask = rows([128] * 6000)
    out = apply(make(rule=rule), ids, mask)
    shown = np.take_along_axis(out["masked_input_ids"], out["masked_lm_positions"], 1)
    is_kept = shown == out["masked_lm_ids"]
    assert abs((shown == MASK).mean() - hidden) < 0.005
    assert abs(is_kept.mean() - kept) < 0.005
    assert (out["masked_input_ids"] != ids).sum() == (~is_kept).sum()
    random_ids = shown[(shown != MASK) & ~is_kept]
    if rule == "electra":
        assert not random_ids.size
    else:
        assert abs(random_ids.mean() - VOCAB / 2) < 10


def test_positions_are_uniform():
    ids, mask = rows([128] * 8000)
    for select in ("tokens", "with_replacement"):
        out = apply(make(select=select), ids, mask)
        counts = np.bincount(out["masked_lm_positions"].ravel(), minlength=128)[1:127]
        assert stats.chisquare(counts).pvalue > 0.0005


def test_unused_slots_do_not_touch_position_zero():
    """Unused slots do not change any token (pitfall 12 of docs/fidelity.md)."""
    out = apply(make(), *rows([20] * 50))
    assert (out["masked_input_ids"][:, 0] == CLS).all()
    assert (out["masked_lm_weights"].sum(1) == 3).all()


def test_duplicate_slots_take_one_of_the_values():
    """One of the two ids, never their average (pitfall 11 of docs/fidelity.md)."""
    ids = tf.constant([[7, 7, 7, 7]])
    positions = tf.constant([[2, 2, 0]])
    values = tf.constant([[2003, 2010, 9]])
    used = tf.constant([[True, True, False]])
    out = scatter_positions(ids, positions, values, used).numpy()[0]
    assert out[2] in (2003, 2010)
    assert out[[0, 1, 3]].tolist() == [7, 7, 7]


def masked_positions(out, length):
    found = np.zeros((len(out["masked_lm_ids"]), length), bool)
    row, slot = np.nonzero(out["masked_lm_weights"])
    found[row, out["masked_lm_positions"][row, slot]] = True
    return found


def cut_words(ids, masks):
    """Counts the words some of whose pieces, but not all, are masked."""
    special = np.isin(ids, (CLS, SEP, MASK))
    starts = ~CONTINUATION[ids] | special
    # Pieces that follow a special token form a word of their own.
    starts[:, 1:] |= special[:, :-1]
    words = np.cumsum(starts) - 1
    masked = np.bincount(words, masks.ravel())
    return np.sum((masked > 0) & (masked < np.bincount(words)))


def test_whole_words_are_all_or_nothing_and_fill_the_count():
    ids, mask = rows([128] * 300)
    out = apply(make(select="whole_words", continuation=CONTINUATION), ids, mask)
    masks = masked_positions(out, 128)
    assert (masks.sum(1) == out["masked_lm_weights"].sum(1)).all()
    assert masks.sum(1).max() == 19
    assert masks.sum(1).mean() > 18.5
    assert cut_words(ids, masks) == 0


def test_rare_tokens_match_a_simulation():
    counts = np.zeros(VOCAB, int)
    counts[5:35] = np.geomspace(1, 5000, 30)
    ids = np.zeros((6000, 32), np.int32)
    ids[:] = [CLS, *range(5, 35), SEP]
    options = {"select": "rare_tokens", "token_counts": counts, "mask_rate": 0.25}
    out = apply(make(**options, max_seq_length=32), ids, np.ones_like(ids))
    masks = masked_positions(out, 32)
    assert (masks.sum(1) == 8).all()
    rng = np.random.default_rng(0)
    weights = (counts[5:35] + 1.0) ** -0.5
    theirs = np.zeros(30)
    for _ in range(6000):
        # Each draw is in proportion to the remaining weights.
        drawn = rng.choice(30, 8, replace=False, p=weights / weights.sum())
        theirs[drawn] += 1 / 6000
    ours = masks[:, 1:31].mean(0)
    np.testing.assert_allclose(ours, theirs, atol=5 * np.sqrt(0.25 / 3000))
    assert ours[0] > 2 * ours[-1], "the rarest is masked far more often"


@pytest.mark.parametrize("select", ["tokens", "whole_words"])
def test_eager_graph_and_batching_agree(select):
    """The mask depends on the row, the seed and the variant alone."""
    ids, mask = rows([128, 60, 7, 128])
    masking = make(select=select, rule="bert", continuation=CONTINUATION)
    whole = apply(masking, ids, mask)
    np.testing.assert_equal(apply(tf.function(masking), ids, mask), whole)
    alone = apply(masking, ids[:1], mask[:1])
    np.testing.assert_equal(alone, {name: value[:1] for name, value in whole.items()})
    first = np.sort(whole["masked_lm_positions"])
    for change in ({"seed": 1}, {"variant": 1}):
        other = np.sort(apply(masking, ids, mask, **change)["masked_lm_positions"])
        # The third row has one masked position.
        assert (first != other)[[0, 1, 3]].any(axis=1).all()


@pytest.mark.parametrize("select", ["tokens", "with_replacement"])
def test_the_count_follows_the_rate(select):
    """Every step uses round(n * rate) of the slots, which fit the highest rate."""
    ids, mask = rows([128, 77])
    rates = {"mask_rate": 0.3, "final_mask_rate": 0.1, "steps": 1000}
    masking = make(select=select, continuation=CONTINUATION, **rates)
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


def test_bad_arguments_are_named():
    for options, message in (
        ({"mask_rate": 0.0}, "mask_rate must be in"),
        ({"final_mask_rate": 1.5}, "mask_rate must be in"),
        ({"final_mask_rate": 0.1, "steps": 0}, "steps must be at least 1"),
        ({"rule": "roberta"}, r"choose one of \['bert', 'electra'\]"),
        ({"mask_rate": 0.25, "max_predictions_per_seq": 20}, "must be 32 to 128"),
        ({"select": "whole_words"}, "continuation"),
        ({"select": "whole_words", "continuation": [True]}, "continuation"),
        ({"select": "rare_tokens"}, "token_counts"),
        ({"select": "rare_tokens", "token_counts": [7]}, "token_counts"),
        ({"select": "rare_tokens", "token_counts": Counter(range(VOCAB))}, "Counter"),
        ({"pad_id": 10**6}, "special token 1000000 is not an id"),
        ({"never_masked": (-1,)}, "special token -1 is not an id"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**options)
