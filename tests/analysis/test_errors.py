"""Word scores against single verdicts, and error detection against scikit-learn."""

import numpy as np
import pytest
from scipy import special
from sklearn import metrics as peers

from electra_tf.analysis import Inspector, errors
from electra_tf.analysis.marked import Marked
from electra_tf.analysis.statistics import halves
from electra_tf.runs.scores import token_scores
from tests import tiny_run
from tests.tasks.common import TOKENS

SENTENCES = [("Good", "books", "\u200b", "!"), ("the", "song", "wass", "fine")]


def words_of(tokens):
    """Returns the piece indices of each word; "##" continues a word."""
    starts = [at for at, token in enumerate(tokens) if not token.startswith("##")]
    return np.split(np.arange(len(tokens)), starts[1:])


def test_a_word_is_as_suspicious_as_its_worst_piece(inspector):
    counts = np.arange(len(TOKENS))
    found = errors.word_scores(inspector, SENTENCES, counts, batch_size=3)
    assert [*found] == ["discriminator", "generator", "frequency"]
    # The third word does not have a piece.
    for values in found.values():
        assert np.flatnonzero(np.isnan(values)).tolist() == [2]
    texts = [" ".join(words) for words in SENTENCES]
    scored = token_scores("masked_lm", inspector.generator, inspector.tokenizer, texts)
    at = 0
    for words, fits in zip(SENTENCES, scored, strict=True):
        shown = inspector.verdicts(" ".join(words))
        read = [at + number for number, word in enumerate(words) if word != "\u200b"]
        pieces = words_of(shown.tokens[1:-1])
        for word, own in zip(read, pieces, strict=True):
            worst = max(shown.probabilities[1 + piece] for piece in own)
            assert special.expit(found["discriminator"][word]) == pytest.approx(
                worst, abs=1e-5
            )
            assert found["generator"][word] == pytest.approx(
                max(-fits[piece] for piece in own), abs=1e-4
            )
            rarest = min(TOKENS.index(shown.tokens[1 + piece]) for piece in own)
            assert found["frequency"][word] == pytest.approx(-np.log(rarest + 1))
        at += len(words)


def test_long_sentences_are_read_in_parts(inspector):
    words = ("good", "book", "was") * 25
    found = errors.word_scores(inspector, [words], np.ones(len(TOKENS)))
    assert found["discriminator"].shape == (75,)
    assert np.isfinite(found["discriminator"]).all()
    part = errors.word_scores(inspector, [words[:30]], np.ones(len(TOKENS)))
    np.testing.assert_allclose(
        found["discriminator"][:30], part["discriminator"], atol=1e-5
    )


def test_without_a_generator(tmp_path):
    folder = tiny_run.save(tmp_path)
    (folder / "generator.keras").unlink()
    alone = Inspector(folder, lambda line: None)
    found = errors.word_scores(alone, SENTENCES, np.ones(len(TOKENS)))
    assert [*found] == ["discriminator", "frequency"]


def case(count=120, seed=0):
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["", "", "", "a", "b"], (count, 12))
    marked = [Marked(("w",) * 12, tuple(row.tolist())) for row in kinds]
    raised = np.select([kinds == "a", kinds == "b"], [2.0, 0.5])
    scores = (rng.normal(size=kinds.shape) + raised).ravel().round(1)
    return marked, kinds.ravel(), scores


def test_detection_is_scikit_learns():
    marked, kinds, scores = case()
    wrong = kinds != ""
    scores[5] = np.nan
    found, curve, by_kind = errors.evaluate(marked, scores, seed=3)
    known = ~np.isnan(scores)
    expected = peers.average_precision_score(wrong[known], scores[known])
    assert found["average precision"] == pytest.approx(expected)
    assert found["low"] < expected < found["high"]
    expected = peers.roc_auc_score(wrong[known], scores[known])
    assert found["AUC"] == pytest.approx(expected)
    assert (found["words"], found["wrong"]) == (known.sum(), wrong[known].mean())
    rows = np.repeat(np.arange(len(marked)), 12)
    rest = ~halves(rows, 3) & known
    called = scores[rest] >= found["threshold"]
    precision, recall, f_score, _ = peers.precision_recall_fscore_support(
        wrong[rest], called, beta=0.5, average="binary"
    )
    assert (found["precision"], found["recall"]) == pytest.approx((precision, recall))
    assert found["F0.5"] == pytest.approx(f_score)
    # No other threshold is better on the half used for fitting.
    fitted = halves(rows, 3) & known
    best, own = (
        max(
            peers.fbeta_score(wrong[fitted], scores[fitted] >= threshold, beta=0.5)
            for threshold in thresholds
        )
        for thresholds in (np.unique(scores[fitted]), [found["threshold"]])
    )
    assert own == pytest.approx(best)
    assert curve["recall"].iloc[0] == 1
    assert len(curve) <= 200
    assert by_kind["group"].tolist() == ["", "a", "b"]
    expected = [called[kinds[rest] == kind].mean() for kind in ("", "a", "b")]
    assert by_kind["rate"].tolist() == pytest.approx(expected)


def test_nothing_is_wrong():
    marked = [Marked(("a", "b"), ("", ""))] * 4
    with pytest.raises(ValueError, match="no word is marked"):
        errors.evaluate(marked, np.arange(8.0))
