import numpy as np
import pytest
from scipy import special

from electra_tf.analysis import Inspector, errors, predictions
from electra_tf.analysis.subject import Subject, Text, read_text
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.data.records import write_shard
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.pretraining import UnigramGenerator
from electra_tf.runs.scores import row_scores
from tests import tiny_run
from tests.data.common import save_manifest
from tests.tasks.common import TOKENS

LINES = ["a good movie was not awful , the book", "the song is fine", "bad"]


@pytest.fixture(scope="module")
def text(inspector, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(LINES))
    return read_text(inspector, [str(path)], 100)


def test_corruption_touches_what_is_masked(inspector, text):
    config = AnalyzeConfig(model=str(inspector.home.path), output="x", seed=3)
    subject = Subject(config, print)
    (_, found), (_, again) = (predictions.predict(subject, text.rows) for _ in "12")
    np.testing.assert_array_equal(found.shown, again.shown)
    assert found.is_replaced.any()
    assert (found.is_masked | ~found.is_replaced).all()
    assert (found.best == found.original)[~found.is_masked].all()
    # round(0.5 * 11), round(0.5 * 6) and round(0.5 * 3), half to even.
    counts = [int(found.is_masked[found.row == row].sum()) for row in range(3)]
    assert counts == [6, 3, 1] or counts == [5, 3, 1]
    assert found.row.tolist() == [0] * 9 + [1] * 4 + [2]
    tokens = np.concatenate([row[1:-1] for row in text.rows])
    assert found.original.tolist() == tokens.tolist()
    rows = [[2, *found.shown[found.row == row], 3] for row in range(3)]
    scores = row_scores("detection", inspector.detector, inspector.vocabulary, rows)
    expected = np.log(special.expit(-found.logits))
    np.testing.assert_allclose(np.concatenate(scores), expected, atol=1e-4)


def test_without_a_generator_tokens_have_their_frequencies(tmp_path):
    folder = str(tiny_run.save(tmp_path, mask_rate=0.5))
    subject = Subject(AnalyzeConfig(model=folder, output="x"), print)
    (tmp_path / "generator.keras").unlink()
    rows = [np.array([2, *[5] * 20, 3], np.int32)] * 60
    counts = np.isin(np.arange(len(TOKENS)), [5, 6]) * 10**9
    subject.text = Text(rows, counts, "text")
    kind, found = predictions.predict(subject, rows)
    assert (kind, {*found.shown}) == ("unigram", {5, 6})
    share = found.is_replaced.sum() / found.is_masked.sum()
    assert share == pytest.approx(0.5, abs=0.08)
    # That of a run with --generator=unigram.
    generator = UnigramGenerator(len(TOKENS))
    generator.set_counts(counts)
    generator.save(tmp_path / "generator.keras")
    kind, again = predictions.predict(subject, rows)
    assert (kind, {*again.shown}) == ("own generator", {5, 6})
    subject.inspector.flags["generator"] = "unigram"
    assert [*errors.word_scores(subject, [["movie"]])] == ["discriminator", "frequency"]


def test_long_lines_become_several_rows(inspector, tmp_path):
    (tmp_path / "long.txt").write_text("book " * 70)
    found = read_text(inspector, [str(tmp_path)], 100)
    assert [len(row) for row in found.rows] == [32, 32, 12]
    assert found.counts.sum() == 70
    assert "3 rows" in found.about
    assert len(read_text(inspector, [str(tmp_path)], 2).rows) == 2


def test_a_run_has_its_own_text(tmp_path):
    folder = tmp_path / "run"

    def own_text(**places):
        places = {name: [str(tmp_path / place)] for name, place in places.items()}
        saved = tiny_run.save(folder, **places)
        found = read_text(Inspector(saved, pytest.fail), (), 10)
        return found, [row.tolist() for row in found.rows]

    assert "10 rows of a small sample" in own_text()[0].about
    for name, row in (("train", [2, 5, 5, 6, 3]), ("eval", [2, 7, 3])):
        write_shard(folder / "data" / f"{name}-00000-of-00001.tfrecord", [row, row])
    found, rows = own_text()
    assert rows == [[2, 7, 3]] * 2
    assert found.counts[[2, 3, 5, 6, 7]].tolist() == [0, 0, 4, 2, 0]
    # Held-out records elsewhere, under any name.
    write_shard(tmp_path / "other.tfrecord", [[2, 8, 3]])
    other, rows = own_text(records="run/data", eval_records="o*.tfrecord")
    assert rows == [[2, 8, 3]]
    assert other.counts.tolist() == found.counts.tolist()
    # Patterns and names are those of pretraining.
    write_shard(tmp_path / "a[1]" / "one.tfrecord", [[2, 9, 3]])
    for records in ("a[1]/one.tfrecord", "**/one.tfrecord"):
        found, _ = own_text(records=records, eval_records="o*.tfrecord")
        assert found.counts.nonzero()[0].tolist() == [9]
    # Held-out records without training records beside them.
    write_shard(tmp_path / "b" / "held" / "eval-0.tfrecord", [[2, 7, 3]])
    write_shard(tmp_path / "b" / "train" / "train-0.tfrecord", [[2, 9, 3]])
    assert own_text(records="b/*/*.tfrecord")[1] == [[2, 7, 3]]
    # Records of another vocabulary, such as at a relative path, are not read.
    shard = write_shard(tmp_path / "c" / "train-0.tfrecord", [[2, 7, 3]])
    vocabulary = Vocabulary(tuple(TOKENS[:-1]))
    save_manifest(tmp_path / "c", vocabulary, [shard], max_seq_length=8)
    assert "a small sample" in own_text(records="c")[0].about
    # Remote records are not read.
    saved = tiny_run.save(folder, records=["ftp://localhost:9/records"])
    assert "a small sample" in read_text(Inspector(saved, pytest.fail), (), 10).about


def test_text_that_is_none(inspector, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(ValueError, match="empty"):
        read_text(inspector, [str(empty)], 10)
    empty.write_text("\u200b\n\n")
    with pytest.raises(ValueError, match=r"--text=.*no words"):
        read_text(inspector, [str(empty)], 10)
