"""Exact posteriors of the synthetic language against brute-force sums."""

import itertools

import grammar
import numpy as np
import pytest
from grammar import Grammar, agreement_grammar

STATES, WORDS = 3, 4


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(0)
    ends = np.array([0.0, 0.3, 0.5])
    moves = rng.dirichlet(np.ones(STATES), STATES) * (1 - ends)[:, None]
    return Grammar(
        words=("a", "b", "c", "d"),
        start=rng.dirichlet(np.ones(STATES)),
        moves=moves,
        ends=ends,
        emits=rng.dirichlet(np.ones(WORDS), STATES),
        tags=("x", "y", "x"),
    )


def joint(language, states, symbols):
    """P(states, symbols) from the definition."""
    value = language.start[states[0]] * language.ends[states[-1]]
    for before, after in itertools.pairwise(states):
        value *= language.moves[before, after]
    return value * np.prod(language.emits[list(states), list(symbols)])


def total(language, symbols):
    """P(symbols): the sum over all state sequences."""
    paths = itertools.product(range(STATES), repeat=len(symbols))
    return sum(joint(language, path, symbols) for path in paths)


def test_masked_words(small):
    symbols, masked = np.array([1, 3, 0, 2]), np.array([False, True, False, True])
    expected = np.zeros((2, WORDS))
    for first, second in itertools.product(range(WORDS), repeat=2):
        value = total(small, (1, first, 0, second))
        expected[0, first] += value
        expected[1, second] += value
    expected /= expected.sum(axis=1, keepdims=True)
    actual = small.masked_words(symbols, masked)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_replaced(small):
    symbols, rate = np.array([2, 0, 3]), 0.3
    noise = np.array([0.1, 0.2, 0.3, 0.4])
    replaced, everything = np.zeros(3), 0.0
    # Enumerates all originals that can produce this sentence.
    for original in itertools.product(range(WORDS), repeat=3):
        likely = total(small, original)
        for draws in itertools.product([False, True], repeat=3):
            value = likely
            for was, now, drawn in zip(original, symbols, draws, strict=True):
                value *= rate * noise[now] if drawn else (1 - rate) * (was == now)
            everything += value
            replaced += value * (np.array(original) != symbols)
    actual = small.replaced(symbols, noise, rate)
    np.testing.assert_allclose(actual, replaced / everything, rtol=1e-12)


def test_best_tags(small):
    symbols = np.array([3, 1, 1])
    weight = np.zeros((3, 2))
    for path in itertools.product(range(STATES), repeat=3):
        for place, state in enumerate(path):
            weight[place, "xy".index(small.tags[state])] += joint(small, path, symbols)
    assert small.best_tags(symbols) == ["xy"[best] for best in weight.argmax(axis=1)]


def test_samples_follow_the_model(small):
    rng = np.random.default_rng(1)
    sentences = [tuple(small.sample(rng)[0]) for _ in range(4000)]
    for sentence in [(0,), (1,), (0, 1), (2, 3)]:
        expected = total(small, sentence)
        error = 4 * np.sqrt(expected / len(sentences))
        assert abs(sentences.count(sentence) / len(sentences) - expected) < error


def test_the_language():
    language = agreement_grammar()
    assert 450 <= len(language.words) <= 550
    np.testing.assert_allclose(language.start.sum(), 1)
    np.testing.assert_allclose(language.emits.sum(axis=1), 1)
    np.testing.assert_allclose(language.moves.sum(axis=1) + language.ends, 1)
    assert agreement_grammar().words == language.words
    assert agreement_grammar(1).words != language.words


def test_the_verb_agrees_across_nouns_of_the_other_number():
    language = agreement_grammar()
    rng = np.random.default_rng(0)
    seen = 0
    while seen < 20:
        _, states = language.sample(rng)
        tags = [language.tags[state] for state in states]
        if tags[:1] + tags[2:4] != ["Det-sg", "Prep", "Det-pl"]:
            continue
        verb = next(tag for tag in tags if tag.startswith("Verb"))
        assert verb == "Verb-sg"
        seen += 1


def test_files(tmp_path, capsys):
    options = [f"--output_dir={tmp_path}", "--sentences=30", "--tagged=20"]
    grammar.main(options)
    documents = (tmp_path / "text.txt").read_text().split("\n\n")
    assert len([text for text in documents if text.strip()]) == 30
    vocabulary = (tmp_path / "vocab.txt").read_text().split("\n")
    assert set(" ".join(documents).split()) <= set(vocabulary)
    assert len((tmp_path / "train.conll").read_text().strip().split("\n\n")) == 20
    assert "right on" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"already has a text\.txt"):
        grammar.main(options)
