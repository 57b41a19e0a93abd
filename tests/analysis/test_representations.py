import keras
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from electra_tf.analysis import render, representations
from electra_tf.analysis.statistics import halves
from electra_tf.analysis.subject import Subject
from electra_tf.cli import note
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.runs import frozen
from electra_tf.tasks.sentences import Sentence
from electra_tf.tasks.tagging import Tagging
from tests import tiny_run
from tests.tasks.common import TOKENS, tokenizer

SENTENCES = [("Good", "books", "\u200b", "!"), ("the",) * 40, ("\u200b",), ("bad", "a")]


def test_words_have_the_states_of_their_first_pieces(folder):
    encoder = keras.saving.load_model(folder / "encoder.keras")
    examples = [Sentence("", words, ("X",) * len(words)) for words in SENTENCES]
    task = Tagging(name="tag", source=None, labels=("X",))
    rows = task.featurize(examples, tokenizer(), 32, training=True)
    states = frozen.states_of(encoder, rows, frozen.words, 2, slice(None))
    # The two words that consist of a zero-width space are left out.
    assert frozen.targets_of(rows)[2].tolist() == [0, 0, 0, *[1] * 40, 3, 3]
    is_first = [not t.startswith(("##", "[CLS", "[SEP")) for t in TOKENS]
    expected = [
        np.array(encoder.states({"input_ids": ids[None]}))[:, 0, np.take(is_first, ids)]
        for ids in rows.inputs["input_ids"]
    ]
    expected = np.concatenate(expected, axis=1)
    assert expected.shape == (3, 45, 32)
    np.testing.assert_allclose(states, expected, atol=1e-5)


def representation(seed=0, size=7):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(60, 5)) @ rng.normal(size=(5, size)) + rng.normal(size=size)


def test_cka_is_that_of_gram_matrices():
    """Kornblith et al., 2019, equation 4: HSIC of centered linear kernels."""
    one, other = representation(0), representation(1, 9) + 3 * representation(0, 9)
    center = np.eye(60) - 1 / 60

    def hsic(first, second):
        first, second = (center @ each @ each.T @ center for each in (first, second))
        return np.trace(first @ second)

    expected = hsic(one, other) / np.sqrt(hsic(one, one) * hsic(other, other))
    assert representations.linear_cka(one, other) == pytest.approx(expected)
    turned = np.linalg.qr(representation(2)[:7, :7])[0]
    assert representations.linear_cka(one, 3 * one @ turned + 1) == pytest.approx(1)
    assert np.isnan(representations.linear_cka(one, np.ones((60, 3))))


def test_probes_are_logistic_regressions():
    rng = np.random.default_rng(0)
    targets, sentences = rng.integers(0, 3, 600), np.arange(600) // 10
    centers, noise = rng.normal(size=(3, 6)), rng.normal(size=(2, 600, 6))
    # The second layer separates the classes well, the first one poorly.
    states = noise + np.array([0.2, 1.5])[:, None, None] * centers[targets]
    states = states.astype(np.float32)
    names = np.array(["x", "y", "z"])[targets]
    scores, baseline = representations.probe(states, names, sentences)
    training = halves(sentences)
    for layer, score in enumerate(scores):
        peer = LogisticRegression().fit(states[layer][training], targets[training])
        expected = peer.score(states[layer][~training], targets[~training])
        assert score == pytest.approx(expected, abs=0.02)
    assert scores[1] > scores[0] + 0.1
    most = np.bincount(targets[training]).argmax()
    assert baseline == (targets[~training] == most).mean()
    binary, baseline = representations.probe(states, targets == 2, sentences)
    assert baseline == 0.5
    assert 1 > binary[1] > binary[0] > 0.4
    with pytest.raises(ValueError, match="a probe needs two: give more"):
        representations.probe(states, np.ones(600), sentences)


def test_the_encoder_of_a_masked_lm(tmp_path):
    generator = tiny_run.electra(seed=9).generator
    model = tiny_run.save(tmp_path / "bert", generator, objective="mlm")
    lines = "The/DET movie/NOUN was/AUX good/ADJ\n\nbad/ADJ books/NOUN song/NOUN\n\n"
    text = lines.replace("/", "\t").replace(" ", "\n")
    (tmp_path / "tagged.txt").write_text(text * 12)
    tagged = (str(tmp_path / "tagged.txt"),)
    config = AnalyzeConfig(model=str(model), output="x", tagged=tagged)
    found = representations.section(Subject(config, note))
    layers, cka = found.tables.values()
    assert layers["probe"].tolist() == ["replaced"] * 3 + ["tag"] * 3
    diagonal = cka[cka["layer"] == cka["other layer"]]
    assert diagonal["CKA"].tolist() == pytest.approx([1] * 3)
    for chart in found.charts:
        render.figure(found.tables[chart.table], chart)
