"""Suspicion by trait against counting one by one and SciPy."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import special, stats

from electra_tf.analysis import Inspector, judged, suspicion
from electra_tf.analysis.judged import Judged
from electra_tf.analysis.marked import Tagged
from electra_tf.analysis.measures import Rate
from electra_tf.tasks.tagging import word_rows
from tests import tiny_run
from tests.tasks.common import TOKENS

SENTENCES = [("Good", "books", "\u200b", "!"), ("the",) * 40, ("a1", "wass", "x!y")]


@pytest.fixture(scope="module")
def inspector(tmp_path_factory):
    folder = tiny_run.save(tmp_path_factory.mktemp("run"))
    return Inspector(folder, lambda line: None)


@pytest.fixture(scope="module")
def read(inspector):
    """Tokens, the number of the word of each, and all words."""
    pieces = word_rows(SENTENCES, inspector.tokenizer, 32, split=True)
    rows = [pieces.input_ids[row] for row in range(len(pieces.sentence))]
    tokens = judged.judge(inspector, rows)
    words = [word for sentence in SENTENCES for word in sentence]
    starts = np.cumsum([0, *map(len, SENTENCES)])
    return tokens, suspicion.word_of(tokens, pieces, starts), words


def test_every_piece_has_its_word(read):
    tokens, word, words = read
    for number, text in enumerate(words):
        pieces = [TOKENS[index] for index in tokens.original[word == number]]
        joined = "".join(piece.removeprefix("##") for piece in pieces)
        assert joined == text.lower().replace("\u200b", "")
    assert (np.diff(word) >= 0).all()


def test_traits(read):
    tokens, word, words = read
    tags = ["ADJ", "NOUN", "X", "PUNCT", *["DET"] * 40, "NUM", "VERB", "X"]
    counts = np.zeros(len(TOKENS), int)
    counts[TOKENS.index("the")] = 12
    continues = np.array([token.startswith("##") for token in TOKENS])
    found = suspicion.traits(tokens, word, words, tags, counts, continues)

    def of(trait, number):
        groups, names = found[trait]
        return [names[group] for group in groups[word == number]]

    assert of("part of speech", 0) == ["ADJ"]
    assert set(of("part of speech", 1)) == {"NOUN"}
    assert of("times in the counted text", 5) == ["10-99"]
    assert of("times in the counted text", 0) == ["0"]
    assert of("letters of the word", 0) == ["4-5"]
    assert of("letters of the word", 3) == ["1"]
    assert of("piece", 0) == ["whole word"]
    assert of("piece", 1) == ["first piece", "continuing piece"]
    assert of("position", 0) == ["1"]
    assert of("position", 3) == ["4-7"]
    # A long sentence goes on in another row.
    assert of("position", 4 + 30) == ["1"]
    looks = [of("characters", number)[0] for number in (0, 1, 3, 44, 46)]
    assert looks == [
        *("capital first", "letters", "no letter or digit", "with a digit"),
        "mixed",
    ]


def test_kinds_of_spans():
    tagged = [Tagged(("a", "b", "c"), ("O", "B-PER", "I-PER")), Tagged("d", ("B-LOC",))]
    numbers, names = suspicion.span_kinds(tagged)
    assert names == ["LOC", "PER", "outside"]
    assert numbers.tolist() == [2, 1, 1, 0]


def tokens_of(rng, size=60):
    original = rng.integers(5, 9, size)
    masked = rng.random(size) < 0.5
    drawn = rng.integers(5, 9, size)
    return Judged(
        original=original,
        shown=np.where(masked, drawn, original),
        logits=rng.normal(size=size),
        is_masked=masked,
        best=np.where(masked, rng.integers(5, 9, size), -1),
        row=np.arange(size) // 10,
        position=np.arange(size) % 10 + 1,
    )


def test_a_profile_is_a_count_of_each_group():
    rng = np.random.default_rng(0)
    clean, *corrupted = (tokens_of(rng) for _ in range(4))
    groups = rng.integers(-1, 2, 60)
    found = suspicion.profile(clean, corrupted, groups, ["a", "b", "none"])
    assert [*found] == ["a", "b"]
    for number, name in enumerate("ab"):
        at = np.flatnonzero(groups == number)
        p = [1 / (1 + np.exp(-clean.logits[i])) for i in at]
        assert found[name]["suspicion"].rate == pytest.approx(np.mean(p))
        assert found[name]["alarms"].rate == pytest.approx(np.mean(np.array(p) > 0.5))
        calls, hits = [], []
        for each in corrupted:
            for i in at:
                if each.shown[i] != each.original[i]:
                    calls.append(each.logits[i] > 0)
                if each.is_masked[i]:
                    hits.append(each.best[i] == each.original[i])
        for measure, values in (("detected", calls), ("generator", hits)):
            rate = found[name][measure]
            assert rate.rate == pytest.approx(np.mean(values))
            assert rate.count == len(values)
    alone = suspicion.profile(clean, corrupted, groups, "ab", has_generator=False)
    assert [*alone["a"]] == ["suspicion", "alarms", "detected"]


def test_over_suspected_words(read):
    tokens, word, words = read
    found = suspicion.over_suspected(tokens, word, words, least=2)
    assert [rate.name for rate in found] == ["the"]
    p = special.expit(tokens.logits)
    own = p[np.array(words)[word] == "the"]
    assert (found[0].count, found[0].rate) == (40, pytest.approx(own.mean()))
    found = suspicion.over_suspected(tokens, word, words, least=1, most=3)
    highest = {
        text.lower(): p[word == number].max()
        for number, text in enumerate(words)
        if text not in ("the", "\u200b")
    }
    highest["the"] = own.mean()
    expected = sorted(highest, key=highest.get)[::-1][:3]
    assert [rate.name for rate in found] == expected


def profile_of(pairs):
    return {
        str(number): {
            "suspicion": Rate("", 1, first, 0, 1),
            "generator": Rate("", 1, second, 0, 1),
        }
        for number, (first, second) in enumerate(pairs)
    }


def test_follows_the_generator():
    pairs = np.random.default_rng(0).random((9, 2)).round(1)
    expected = stats.spearmanr(pairs[:, 0], -pairs[:, 1]).statistic
    found = suspicion.follows_generator(profile_of(pairs))
    assert found == pytest.approx(expected)
    assert suspicion.follows_generator(profile_of([(0, 1), (1, 0), (2, -1)])) == 1
    assert np.isnan(suspicion.follows_generator(profile_of(pairs[:2])))


def test_the_heat_map_shows_numbers():
    axis = Figure().subplots()
    found = profile_of([(0.25, 0.5), (0.75, 0.5)])
    del found["1"]["generator"]
    suspicion.draw_heat(axis, found)
    shown = [text.get_text().split("\n")[0] for text in axis.texts]
    assert shown == ["25.0%", "50.0%", "75.0%"]
