import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import electra_tf as et
from electra_tf.cli import note
from electra_tf.config import fields
from electra_tf.config.commands import ScoreConfig
from electra_tf.runs import scores
from electra_tf.runs.scores import Pair, count, pairs_table, read_pairs, token_scores
from tests import tiny_run
from tests.tasks import common

PAIRS = [
    ("the movie is good", "the movie was good", "agreement", "syntax"),
    ("a book", "a very bad book", "size", "semantics"),
    ("the song is fine", "the song fine is", "order", "syntax"),
    ("a great movie", "great a movie", "order", "syntax"),
]
TEXTS = [text for good, bad, *_ in PAIRS for text in (good, bad)]


def write(folder, pairs=PAIRS):
    for good, bad, paradigm, field in pairs:
        row = {"sentence_good": good, "sentence_bad": bad}
        row |= {"UID": paradigm, "field": field}
        with open(folder / f"{paradigm}.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def electra(tmp_path_factory):
    folder = tmp_path_factory.mktemp("electra")
    return tiny_run.save(folder / "run"), write(folder)


def run(model, data, **values):
    values = {"model": str(model), "data": (data,)} | values
    return scores.score_pairs(fields.from_flat(values, ScoreConfig), note)


def rows():
    for ids in common.tokenizer().encode(TEXTS):
        yield np.array([[2, *ids, 3]], np.int32)


def check_accuracies(report, scores):
    """Compares accuracies by sum and by mean with scores of the sentences."""
    pairs = [*zip(scores[::2], scores[1::2], strict=True)]
    for by, function in (("sum", np.sum), ("mean", np.mean)):
        right = sum(int(function(good) > function(bad)) for good, bad in pairs)
        peer = stats.binomtest(right, len(pairs)).proportion_ci(method="wilson")
        shares = np.array([right / len(pairs), peer.low, peer.high])
        assert report["all"]["all"][by] == pytest.approx(100 * shares)


def test_detection_is_log_p_of_original(electra):
    folder, data = electra
    report = run(folder, data)
    assert report["method"] == "detection"
    model = keras.saving.load_model(folder / "discriminator.keras")
    found = []
    for ids in rows():
        replaced = tf.sigmoid(model({"input_ids": ids})).numpy()[0, 1:-1]
        found.append(np.log(1 - replaced))
    check_accuracies(report, found)
    lines = map(str.split, pairs_table(report).splitlines()[1:])
    counts = [(line[0], int(line[1])) for line in lines if line]
    paradigms = [("agreement", 1), ("order", 2), ("size", 1)]
    assert counts == [*paradigms, ("semantics", 1), ("syntax", 3), ("all", 4)]
    scores = token_scores("detection", model, common.tokenizer(), TEXTS, batch_size=3)
    for one, other in zip(scores, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_masked_lm_masks_one_token_at_a_time(electra):
    folder, _ = electra
    model = keras.saving.load_model(folder / "generator.keras")
    tokenizer = common.tokenizer()
    scores = token_scores("masked_lm", model, tokenizer, TEXTS[:4], batch_size=5)
    for found, ids in zip(scores, rows(), strict=False):
        for place in range(1, ids.shape[1] - 1):
            masked = ids.copy()
            masked[0, place] = 4
            batch = {
                "masked_input_ids": masked,
                "input_mask": np.ones_like(ids),
                "segment_ids": np.zeros_like(ids),
                "masked_lm_positions": np.array([[place]], np.int32),
            }
            expected = tf.nn.log_softmax(model(batch))[0, 0].numpy()[ids[0, place]]
            assert found[place - 1] == pytest.approx(expected, abs=1e-4)


def test_energies_are_electrics(tmp_path):
    model = tiny_run.electric()
    folder = tiny_run.save(tmp_path / "run", model, objective="electric")
    report = run(folder, write(tmp_path))
    assert report["method"] == "energy"
    energies = [model({"input_ids": ids}).numpy()[0, 1:-1] for ids in rows()]
    check_accuracies(report, [-own for own in energies])
    with pytest.raises(ValueError, match=r"TwoTowerGenerator.*another --method"):
        run(folder, str(tmp_path), method="masked_lm")


def test_a_masked_lm_run_is_asked_for_its_own(tmp_path, electra):
    folder = tiny_run.save(tmp_path / "run", objective="mlm")
    (folder / "discriminator.keras").unlink()
    assert run(folder, electra[1])["method"] == "masked_lm"
    with pytest.raises(ValueError, match=r"No such file .* --method=detection needs"):
        run(folder, electra[1], method="detection")


def test_models_without_scores_are_refused(tmp_path, electra):
    question = et.pretraining.TokenPrediction
    model = tiny_run.electra(question=lambda table: question(table, name="objective"))
    folder = tiny_run.save(tmp_path / "run", model)
    with pytest.raises(ValueError, match="such as masked_lm"):
        run(folder, electra[1])
    (folder / "task.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{folder} holds a fine-tuned model: give"):
        run(folder, electra[1])
    folder = tiny_run.save(tmp_path / "other", tokens=common.TOKENS[:-1])
    with pytest.raises(ValueError, match="tokens but the vocabulary"):
        run(folder, electra[1])


def test_a_folder_without_pairs_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty: correct --data"):
        read_pairs([write(tmp_path), str(tmp_path / "empty")])


def test_paradigm_and_field_may_be_numbers(tmp_path):
    (pair,) = read_pairs([write(tmp_path, [("a", "b", 7, 3)])])
    assert (pair.paradigm, pair.field) == ("7", "3")


def test_ties_count_as_half_and_means_are_not_sums():
    pairs = [Pair("", "", "p", "f"), *[Pair("", "", "p", "")] * 2]
    scores = [[-1.0, -1.0, -1.0], [-2.0], [-1.0], [-1.0], [-1.0], [-2.0, -3.0]]
    scores = [np.array(each, np.float32) for each in scores]
    found = count(pairs, scores)
    row = found["all"]["all"]
    shares = [row["pairs"], row["sum"][0], row["mean"][0]]
    assert shares == pytest.approx([3, 50, 250 / 3], rel=1e-12)
    assert {name: row["pairs"] for name, row in found["fields"].items()} == {"f": 1}


def test_equal_tokens_tie_whatever_their_batches(electra, tmp_path, monkeypatch):
    noise = np.random.default_rng(0)

    def rounded(method, model, vocabulary, rows, **options):
        return [noise.normal(-1, 1e-6, len(row) - 2) for row in rows]

    monkeypatch.setattr(scores, "row_scores", rounded)
    data = tmp_path / "ties.jsonl"
    pair = {"sentence_good": "the movie", "sentence_bad": "THE movie"}
    data.write_text(f"{json.dumps(pair)}\n" * 5)
    assert run(electra[0], str(data))["all"]["all"]["sum"][0] == 50


def test_limits_and_mistakes(tmp_path, electra):
    folder, data = electra
    assert run(folder, data, limit=1)["all"]["all"]["pairs"] == 3
    with pytest.raises(FileNotFoundError, match="correct --data"):
        run(folder, str(tmp_path / "none.jsonl"))
    with pytest.raises(FileNotFoundError, match="correct --data"):
        run(folder, str(tmp_path))
    (tmp_path / "blank.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="the file is empty"):
        run(folder, str(tmp_path))
    (tmp_path / "blank.jsonl").unlink()
    good = '{"sentence_good": "a", "sentence_bad": "b"}'
    long = json.dumps({"sentence_good": "good " * 40, "sentence_bad": "bad"})
    for text, message in (
        ('{"sentence_good": "a"}\n', "line 1 has no sentence_good"),
        (f'{good}\n\n{good}\n{{"sentence_good": "a"\n', r"x\.jsonl, line 4: .*delimit"),
        (long, "takes from 1 to 30"),
    ):
        (tmp_path / "x.jsonl").write_text(text)
        with pytest.raises(ValueError, match=message):
            run(folder, str(tmp_path))
    row = {"sentence_good": "a\u2028b", "sentence_bad": "a\x85b"}
    (tmp_path / "x.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n" + good)
    pairs = read_pairs([str(tmp_path)])
    assert [pair.good for pair in pairs] == ["a\u2028b", "a"]
