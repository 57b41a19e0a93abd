import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from electra_tf.analysis import bias
from electra_tf.analysis.subject import word_pieces
from tests.tasks.common import TOKENS

# A row has 30 pieces, and ends inside a word.
LONG = ("the",) * 29 + ("books",) + ("the",) * 10
SENTENCES = [("Good", "books", "\u200b", "!"), LONG, ("a1", "wass", "x!y")]


def test_words_and_their_traits(inspector):
    rows, word = word_pieces(inspector, SENTENCES)
    ids = np.concatenate([row[1:-1] for row in rows])
    for number, text in enumerate(itertools.chain(*SENTENCES)):
        pieces = [TOKENS[index] for index in ids[word == number]]
        joined = "".join(piece.removeprefix("##") for piece in pieces)
        assert joined == text.lower().replace("\u200b", "")
    tags = ["ADJ", "NOUN", "X", "PUNCT", *["DET"] * 40, "NUM", "VERB", "X"]
    counts = np.zeros(len(TOKENS), int)
    counts[TOKENS.index("the")] = 12
    continues = np.array([token.startswith("##") for token in TOKENS])
    found = bias.traits(ids, word, tags, counts, continues)

    def of(trait, number):
        return list(found[trait][word == number])

    assert of("part of speech", 0) == ["ADJ"]
    assert set(of("part of speech", 1)) == {"NOUN"}
    assert of("times in the counted text", 5) == ["10-99"]
    assert of("times in the counted text", 0) == ["0"]
    assert of("piece", 0) == ["whole word"]
    assert of("piece", 1) == ["first piece", "continuing piece"]


def tokens_of(rng, size=60):
    original = rng.integers(5, 9, size)
    masked = rng.random(size) < 0.5
    shown = np.where(masked, rng.integers(5, 9, size), original)
    return pd.DataFrame(
        {
            "original": original,
            "shown": shown,
            "is_replaced": shown != original,
            "logits": rng.normal(size=size),
            "is_masked": masked,
            "best": np.where(masked, rng.integers(5, 9, size), original),
            "row": np.arange(size) // 10,
        }
    )


def test_a_profile_is_a_count_of_each_group():
    rng = np.random.default_rng(0)
    corrupted, suspicion = [tokens_of(rng) for _ in range(3)], rng.random(60)
    groups = rng.integers(-1, 2, 60)
    every = pd.concat(corrupted, ignore_index=True)
    names = pd.Categorical.from_codes(groups, ["a", "b", "none"])
    table = bias.profile(suspicion, every, names)
    found = table.set_index(["measure", "group"])
    assert set(table["group"]) == {"a", "b"}
    for number, name in enumerate("ab"):
        at = np.flatnonzero(groups == number)
        p = suspicion[at]
        assert found.loc["mean P(replaced)", name]["rate"] == pytest.approx(np.mean(p))
        alarms = found.loc["false alarms", name]["rate"]
        assert alarms == pytest.approx(np.mean(p > 0.5))
        calls, hits = [], []
        for each in corrupted:
            for i in at:
                if each.shown[i] != each.original[i]:
                    calls.append(each.logits[i] > 0)
                if each.is_masked[i]:
                    hits.append(each.best[i] == each.original[i])
        for measure, values in (("detected", calls), ("generator right", hits)):
            rate = found.loc[measure, name]
            assert rate["rate"] == pytest.approx(np.mean(values))
            assert rate["count"] == len(values)


def test_suspicion_follows_the_generator():
    def table(pairs):
        wide = pd.DataFrame(pairs, columns=["mean P(replaced)", "generator right"])
        wide["group"] = wide.index.astype(str)
        return wide.melt("group", var_name="measure", value_name="rate")

    pairs = np.random.default_rng(0).random((9, 2)).round(1)
    expected = stats.spearmanr(pairs[:, 0], -pairs[:, 1]).statistic
    assert bias.follows_generator(table(pairs)) == pytest.approx(expected)
    assert bias.follows_generator(table([(0, 1), (1, 0), (2, -1)])) == 1
    assert np.isnan(bias.follows_generator(table(pairs[:2])))
