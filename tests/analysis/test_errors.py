import lzma

import numpy as np
import pytest
from sklearn import metrics as peers

from electra_tf.analysis import Inspector, errors
from electra_tf.analysis.statistics import halves
from electra_tf.analysis.subject import Subject, Text, read_tagged
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.runs.scores import token_scores
from electra_tf.tasks.sentences import Sentence
from tests import tiny_run
from tests.tasks.common import TOKENS

SENTENCES = [("Good", "books", "\u200b", "!"), ("the", "song", "wass", "fine")]


def word_scores(inspector, sentences, counts):
    folder = str(inspector.home.path)
    subject = Subject(AnalyzeConfig(model=folder, output="x", batch_size=3), print)
    subject.text = Text((), counts, "text")
    return errors.word_scores(subject, sentences)


def test_a_word_is_as_suspicious_as_its_worst_piece(inspector):
    counts = np.arange(len(TOKENS))
    found = word_scores(inspector, SENTENCES, counts)
    # The third word does not have a piece.
    for values in found.values():
        assert np.flatnonzero(np.isnan(values)).tolist() == [2]
    texts = [" ".join(words) for words in SENTENCES]
    scored = token_scores("masked_lm", inspector.generator, inspector.tokenizer, texts)
    at = 0
    for words, fits in zip(SENTENCES, scored, strict=True):
        shown = inspector.verdicts(" ".join(words))
        read = [at + number for number, word in enumerate(words) if word != "\u200b"]
        tokens = shown.tokens[1:-1]
        starts = [at for at, token in enumerate(tokens) if not token.startswith("##")]
        pieces = np.split(np.arange(len(tokens)), starts[1:])
        for word, own in zip(read, pieces, strict=True):
            worst = max(shown.probabilities[1 + piece] for piece in own)
            probability = -np.expm1(-found["discriminator"][word])
            assert probability == pytest.approx(worst, abs=1e-5)
            least = min(fits[piece] for piece in own)
            assert found["generator"][word] == pytest.approx(-least, abs=1e-4)
            rarest = min(TOKENS.index(shown.tokens[1 + piece]) for piece in own)
            assert found["frequency"][word] == pytest.approx(-np.log(rarest + 1))
        at += len(words)


def test_without_a_generator(tmp_path):
    alone = Inspector(tiny_run.save(tmp_path), pytest.fail)
    (tmp_path / "generator.keras").unlink()
    found = word_scores(alone, SENTENCES, np.ones(len(TOKENS)))
    assert [*found] == ["discriminator", "frequency"]


def test_detection_is_scikit_learns():
    rng = np.random.default_rng(0)
    kinds = rng.choice(["", "", "", "a", "b"], (120, 12))
    marked = [Sentence("", ("w",) * 12, tuple(row.tolist())) for row in kinds]
    raised = np.select([kinds == "a", kinds == "b"], [2.0, 0.5])
    scores = (rng.normal(size=kinds.shape) + raised).ravel().round(1)
    kinds = kinds.ravel()
    wrong = kinds != ""
    scores[5] = np.nan
    found, by_kind = errors.evaluate(marked, scores, seed=3)
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
    assert by_kind["group"].tolist() == ["", "a", "b"]
    expected = [called[kinds[rest] == kind].mean() for kind in ("", "a", "b")]
    assert by_kind["rate"].tolist() == pytest.approx(expected)


def test_nothing_is_wrong():
    marked = [Sentence("", ("a", "b"), ("", ""))] * 4
    with pytest.raises(ValueError, match="no word is marked"):
        errors.evaluate(marked, np.arange(8.0))
    marked = [*marked, Sentence("", ("c",), ("X",))]
    lacking = set()
    for seed in range(10):
        with pytest.raises(ValueError, match="in the half of the sentences") as error:
            errors.evaluate(marked, np.arange(9.0), seed=seed)
        lacking.add("selects the threshold" in str(error.value))
    assert lacking == {True, False}


M2 = """S This are a sentence .
A 1 2|||SVA|||is|||REQUIRED|||-NONE-|||0
A 3 3|||ADJ|||good|||REQUIRED|||-NONE-|||0
A 1 2|||VERB|||was|||REQUIRED|||-NONE-|||1
A 5 5|||PUNCT|||!|||REQUIRED|||-NONE-|||1

S Fine .
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0

S Two words too many .
A 2 4|||DEL||||||REQUIRED|||-NONE-|||1
A 1 2|||N|||word|||REQUIRED|||-NONE-|||1
"""


def read(tmp_path, text, name="x.m2", log=pytest.fail):
    (tmp_path / name).write_text(text)
    return errors.read_marked(str(tmp_path / name), log)


def test_m2_marks_spans_and_what_follows_a_gap(tmp_path):
    said = []
    beyond = "\nS a b\nA 2 3|||X|||c|||R|||-|||0\n"
    first, second, third = read(tmp_path, M2 + beyond, log=said.append)
    assert "1 of 4 sentences are left out" in said[0]
    assert first.words == ("This", "are", "a", "sentence", ".")
    # One annotator marks the gap before "sentence", the other the gap at the end.
    assert first.tags == ("", "SVA", "", "ADJ", "PUNCT")
    assert second.tags == ("", "")
    assert third.tags == ("", "N", "DEL", "DEL", "")


def test_broken_and_empty_files_are_one_line(tmp_path):
    for name, text, message in (
        ("x.m2", "S a b c d\nA 0 1|||X|||a", "line 2 must be"),
        ("x.m2", "S a b c d\nB 0 1", "line 2 must be"),
        ("x.m2", "\n", "the file is empty"),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            read(tmp_path, text, name)
        assert "\n" not in str(raised.value)
    with pytest.raises(OSError, match=r"none\.m2"):
        errors.read_marked(str(tmp_path / "none.m2"), pytest.fail)


def test_tagged_files(tmp_path):
    conllu = b"1\tIs\tbe\tAUX\tVBZ\t_\t0\troot\t_\t_\n\n"
    for name, text, tag in (
        ("x.conllu", conllu, "AUX"),
        ("X.CONLLU.XZ", lzma.compress(conllu), "AUX"),
        ("x.txt", b"Is VBZ B-VP\n", "VBZ"),
        ("x.tsv", b"Is\tVBZ\n", "VBZ"),
    ):
        (tmp_path / name).write_bytes(text)
        (sentence,) = read_tagged(str(tmp_path / name))
        assert (sentence.words, sentence.tags) == (("Is",), (tag,))
    for name in ("x.csv", "x.jsonl.gz"):
        with pytest.raises(ValueError, match=rf"{name}: --tagged takes CoNLL-U"):
            read_tagged(name)
