"""Layers, probes and heads against Gram matrices, scikit-learn and NumPy."""

import keras
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from electra_tf.analysis import marked, render, representations
from electra_tf.analysis.marked import Tagged
from electra_tf.analysis.statistics import halves
from electra_tf.analysis.subject import Subject
from electra_tf.cli import note
from electra_tf.config import fields
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.tasks.sentences import spans
from tests import tiny_run
from tests.reference.encoder import named_weights
from tests.tasks.common import tokenizer

SENTENCES = [("Good", "books", "\u200b", "!"), ("the",) * 40, ("\u200b",), ("bad", "a")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_run.save(tmp_path_factory.mktemp("run") / "electra")


@pytest.fixture(scope="module")
def encoder(folder):
    return keras.saving.load_model(folder / "encoder.keras")


def test_words_have_the_states_of_their_first_pieces(encoder):
    states, numbers, ids = representations.read_words(
        encoder, tokenizer(), SENTENCES, longest=32, batch_size=2
    )
    # The two words of nothing but a space of no width are left out.
    assert numbers.tolist() == [0, 1, 3, *range(4, 44), 45, 46]
    assert states.shape == (3, 45, 32)
    vocabulary = tokenizer().vocabulary.tokens
    at = 0
    for row in range(len(ids.splits) - 1):
        every = encoder.states({"input_ids": ids[row][None]})
        first = [
            place
            for place, index in enumerate(ids[row])
            if not vocabulary[index].startswith(("##", "[CLS", "[SEP"))
        ]
        for layer, state in enumerate(every):
            np.testing.assert_allclose(
                states[layer, at : at + len(first)], state[0].numpy()[first], atol=1e-5
            )
        at += len(first)
    assert at == 45


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


def test_attention_is_numpys(encoder):
    rows = [np.array([2, 5, 6, 7, 3]), np.array([2, 9, 3]), np.array([2, 5, 6, 3])]
    found = representations.attention(encoder, rows, sep_id=3, cls_id=2)
    blocks = encoder.transformer.blocks
    expected = np.zeros([3, len(blocks), 2])
    for number, block in enumerate(blocks):
        named = named_weights(block.trainable_variables)
        for row in rows:
            hidden = encoder.states({"input_ids": row[None]})[number][0].numpy()
            qkv = hidden @ named["qkv_kernel"] + named["qkv_bias"]
            for head in range(2):
                query, key = (
                    qkv[:, part * 32 + head * 16 : part * 32 + head * 16 + 16]
                    for part in (0, 1)
                )
                shares = np.exp(query @ key.T / 4)
                shares /= shares.sum(-1, keepdims=True)
                for at in range(1, len(row) - 1):
                    expected[:, number, head] += (
                        -(shares[at] * np.log(shares[at])).sum(),
                        sum(p * abs(at - to) for to, p in enumerate(shares[at])),
                        shares[at][[0, -1]].sum(),
                    )
    expected /= 6
    np.testing.assert_allclose(found.entropy, expected[0], atol=1e-4)
    np.testing.assert_allclose(found.distance, expected[1], atol=1e-4)
    np.testing.assert_allclose(found.special, expected[2], atol=1e-4)


def words(count=600, seed=0):
    """States whose second layer tells classes apart, the first hardly; sentences."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 3, count)
    centers = rng.normal(size=(3, 6))
    noise = rng.normal(size=(2, count, 6))
    states = noise + np.array([0.2, 1.5])[:, None, None] * centers[targets]
    return states.astype(np.float32), targets, np.arange(count) // 10


def test_span_probe_is_scored_by_whole_spans():
    """A layer that knows the tags, one that knows nothing; words that are ambiguous."""
    rng = np.random.default_rng(0)
    shapes = (["O", "B-X", "I-X"], ["B-Y", "O", "O"], ["B-X", "B-Y", "I-Y"])
    tags = [tuple(shapes[at]) for at in rng.integers(0, 3, 80)]
    tagged = [Tagged(("a", "b", "c"), own) for own in tags]
    flat = np.array([tag for own in tags for tag in own])
    classes = sorted(set(flat))
    known = np.eye(len(classes))[[classes.index(tag) for tag in flat]]
    states = np.stack([rng.normal(size=known.shape), known]).astype(np.float32)
    # The second word of the last sentence was not read.
    at = np.delete(np.arange(240), 238)
    scores, baseline = representations.span_probe(states[:, at], tagged, at)
    assert scores[0] < 0.5
    training = halves(np.arange(80))
    expected = 0.999 if training[79] else 0.96
    assert scores[1] > expected
    # By hand: the usual tag of each of the three words in the first half.
    usual = [
        max(classes, key=[own[word] for own in np.array(tags)[training]].count)
        for word in range(3)
    ]
    asked = [tag for tag, own in zip(tags, training, strict=True) if not own]
    answers = [spans(usual)] * len(asked)
    right = sum(len({*spans(a)} & {*b}) for a, b in zip(asked, answers, strict=True))
    every = sum(len(spans(a)) + len(b) for a, b in zip(asked, answers, strict=True))
    np.testing.assert_allclose(baseline, 2 * right / every)


def test_span_files_that_do_not_fit(tmp_path):
    path = tmp_path / "x.conll"
    path.write_text("a NN B-NP\nb VB O\n")
    (found,) = marked.read_spans([f"chunks={path}"], 5)["chunks"]
    assert found == Tagged(("a", "b"), ("B-NP", "O"))
    with pytest.raises(ValueError, match="name x is taken"):
        marked.read_spans([f"x={path}"] * 2, 5)
    given = subject("mini", tagged=(str(path),), spans=(f"word={path}",))
    with pytest.raises(ValueError, match="name word is taken"):
        representations.section(given)
    path.write_text("a NN\n")
    with pytest.raises(ValueError, match="the tag 'NN' is none of a span"):
        marked.read_spans([f"chunks={path}"], 5)
    with pytest.raises(ValueError, match="NAME=FILE"):
        subject("x", spans=(str(path),))


def subject(model, *encoders, **values):
    values |= {"model": str(model), "output": "x", "encoders": encoders}
    return Subject(fields.from_flat(values, AnalyzeConfig), note)


def test_encoders_are_found(folder, tmp_path):
    # A comparison keeps points along a run below the run's end.
    for name in ("a/run", "b/run", "b/run/points/0.5"):
        (tmp_path / name).mkdir(parents=True)
        for path in folder.iterdir():
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
    found = representations.find_encoders(subject(folder, str(tmp_path), str(folder)))
    assert [*found] == ["electra", "a/run", "b/run"]
    point = tmp_path / "b/run/points/0.5"
    found = representations.find_encoders(subject(folder, str(point)))
    assert [*found] == ["electra", "0.5"]
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"none has no encoder\.keras"):
        representations.find_encoders(subject(folder, str(tmp_path / "none")))


def test_mean_cosine_of_pairs():
    states = representation(size=12)
    units = states / np.linalg.norm(states, axis=1, keepdims=True)
    mean = ((units @ units.T).sum() - 60) / (60 * 59)
    assert representations.anisotropy(states) == pytest.approx(mean, abs=0.02)
    with pytest.raises(ValueError, match="1 words"):
        representations.anisotropy(states[:1])


def test_probes_are_logistic_regressions():
    states, targets, sentences = words()
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
    binary, baseline = representations.probe(
        states, targets == 2, sentences, is_detection=True
    )
    assert baseline == 0.5
    assert 1 > binary[1] > binary[0] > 0.4
    with pytest.raises(ValueError, match="nothing to probe"):
        representations.probe(states, np.ones(600), sentences)


@pytest.mark.slow
def test_two_encoders_side_by_side(folder, tmp_path):
    """An encoder and a masked LM with another width, vocabulary the same."""
    other = tiny_run.save(
        tmp_path / "bert", tiny_run.electra(seed=9).generator, objective="mlm"
    )
    lines = "The/DET movie/NOUN was/AUX good/ADJ\n\nbad/ADJ books/NOUN song/NOUN\n\n"
    text = lines.replace("/", "\t").replace(" ", "\n")
    (tmp_path / "tagged.txt").write_text(text * 12)
    (tmp_path / "spans.txt").write_text("the B-X\nbook I-X\nwas O\n\nbad O\n\n" * 6)
    values = {"tagged": (str(tmp_path / "tagged.txt"),)}
    values |= {"spans": (f"chunk={tmp_path / 'spans.txt'}",)}
    found = representations.section(subject(other, str(folder), **values))
    layers, cka, heads = found.tables.values()
    assert set(layers["encoder"]) == set(heads["encoder"]) == {"bert", "electra"}
    assert set(layers["measure"]) == {
        *(f"probe {name}" for name in (*representations.PROBES, "chunk")),
        "mean cosine",
    }
    own = cka[cka["encoders"] == "bert and bert"]
    diagonal = own[own["layer"] == own["other layer"]]
    assert diagonal["CKA"].tolist() == pytest.approx([1] * 3)
    assert set(cka["encoders"]) == {
        "bert and bert",
        "bert and electra",
        "electra and electra",
    }
    for chart in found.charts:
        render.figure(found.tables[chart.table], chart)
