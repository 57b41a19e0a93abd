import dataclasses
import functools
import json

import keras
import numpy as np
import pytest

from electra_tf.__main__ import main as command
from electra_tf.analysis import score
from electra_tf.analysis.score import NBest
from electra_tf.runs.scores import token_scores
from electra_tf.tasks import metrics
from tests.tasks.common import tokenizer

SCORED = [
    {"text": "a good movie", "score": -1},
    {"text": "a good book", "score": -2.5},
]
LINES = [
    {"id": "a", "hypotheses": SCORED, "reference": "a good book"},
    {"hypotheses": ["the song is fine", "the song was"], "reference": "the song"},
    {"hypotheses": [{"text": "bad"}]},
]


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    return str(path)


def test_lists_are_read(tmp_path):
    first, second, third = score.read(write(tmp_path / "x", LINES))
    assert (first.id, second.id, third.id) == ("a", 3, 5)
    assert first.first.tolist() == [-1.0, -2.5]
    assert second.first.tolist() == [0.0, 0.0]
    assert first.edits.tolist() == [1, 0]
    assert (second.edits.tolist(), second.words) == ([2, 1], 2)
    assert third.edits is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n \n", r"no lists|is empty"),
        ("{", "line 1: Expecting"),
        ('{"text": "a"}', "hypotheses is missing"),
        ('{"hypotheses": [" "]}', "a list of texts"),
        ('{"hypotheses": [{"text": "a", "score": "x"}]}', "line 1: hypotheses: 0 is"),
        ('{"hypotheses": [{"text": "a", "score": NaN}]}', "finite scores"),
        ('{"hypotheses": ["a"], "reference": 3}', "reference is 3"),
        ('{"hypotheses": ["a", {"text": "b", "score": -1}]}', "have no score"),
    ],
)
def test_broken_lists_are_one_line(tmp_path, text, message):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        score.read(str(path))
    assert "\n" not in str(raised.value)


def test_distances_are_those_of_a_recursion():
    @functools.cache
    def least(one, other):
        if not one or not other:
            return len(one) + len(other)
        return min(
            least(one[1:], other) + 1,
            least(one, other[1:]) + 1,
            least(one[1:], other[1:]) + (one[0] != other[0]),
        )

    rng = np.random.default_rng(0)
    for sizes in rng.integers(0, 9, [200, 2]):
        one, other = (tuple(rng.choice(list("abc"), size)) for size in sizes)
        assert score.distance(one, other) == least(one, other)


def lists_of(words):
    """Returns lists with random first-pass scores and informative model scores."""
    rng = np.random.default_rng(0)
    first, noise = rng.normal(size=[2, len(words), 5])
    edits = rng.integers(0, 6, first.shape)
    rows = zip(range(len(words)), first, edits, words, noise - edits, strict=True)
    return [NBest(n, tuple("abcde"), *row) for n, *row in rows]


def errors_of(each, weight):
    return each.edits[np.argmax(each.first + weight * each.own)]


def test_no_weight_that_is_tried_has_fewer_errors():
    lists = lists_of([10] * 60)

    def errors(weight):
        return sum(errors_of(each, weight) for each in lists)

    found = score.tune(lists)
    assert errors(found) < errors(0.0)
    scale = np.mean([np.std(each.first) for each in lists])
    scale /= np.mean([np.std(each.own) for each in lists])
    assert errors(found) == min(map(errors, scale * np.geomspace(1e-2, 1e2, 81)))
    # The weight compensates for the scale of the scores.
    scaled = [dataclasses.replace(each, own=1000 * each.own) for each in lists]
    assert score.tune(scaled) == pytest.approx(found / 1000)
    # Scores that rank hypotheses backwards get a lower weight.
    backwards = [dataclasses.replace(each, own=1.0 * each.edits) for each in lists]
    assert score.tune(backwards) < found


def test_errors_are_counted_with_the_weight_of_the_other_half():
    lists = lists_of([10] * 60)
    found = score.evaluate(lists, seed=1)
    order = np.random.default_rng(1).permutation(len(lists))
    errors = 0
    for fitted, rest in ((order[:30], order[30:]), (order[30:], order[:30])):
        weight = score.tune([lists[i] for i in fitted])
        errors += sum(errors_of(lists[i], weight) for i in rest)
    assert found["after"] == pytest.approx(errors / 600)
    first = sum(errors_of(each, 0.0) for each in lists)
    assert found["before"] == pytest.approx(first / 600)
    best = sum(each.edits.min() for each in lists)
    assert found["oracle"] == pytest.approx(best / 600)
    assert found["high"] < 0


def test_intervals_are_those_of_a_bootstrap_loop(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 4000)
    words = 3 + np.arange(200) % 20
    lists = lists_of(words)
    found = score.evaluate(lists, weight=1.0)
    before, after = (np.array([errors_of(e, x) for e in lists]) for x in (0.0, 1.0))
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, 200, 200) for _ in range(4000)]
    rates = [(after - before)[at].sum() / words[at].sum() for at in drawn]
    expected = np.percentile(rates, [2.5, 97.5])
    assert (found["low"], found["high"]) == pytest.approx(expected, abs=0.005)
    assert found["difference"] == pytest.approx((after - before).sum() / words.sum())
    same = score.evaluate(lists, weight=0.0)
    assert (same["difference"], same["low"], same["high"]) == (0, 0, 0)
    assert np.isnan(score.evaluate(lists[:1], weight=1.0)["low"])
    with pytest.raises(ValueError, match="no words"):
        score.evaluate(lists_of([0, 0]))


def run(folder, tmp_path, *flags, rows=LINES):
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    where = (f"--model={folder}", f"--input={source}", f"--output={target}")
    assert command(["score", *where, *flags]) == 0
    return [json.loads(line) for line in target.read_text().splitlines()]


def test_the_command_chooses_by_scores_of_tokens(folder, tmp_path):
    model = keras.saving.load_model(folder / "discriminator.keras")
    lists = score.read(write(tmp_path / "lists.jsonl", LINES))
    texts = [text for each in lists for text in each.texts]
    scored = token_scores("detection", model, tokenizer(), texts)
    by_text = dict(zip(texts, scored, strict=True))
    for by, reduce in (("sum", np.sum), ("worst", np.min)):
        found = run(folder, tmp_path, "--weight=3", f"--by={by}", "--overwrite")
        for row, each in zip(found, lists, strict=True):
            scores = [reduce(by_text[text]) for text in each.texts]
            assert row["hypothesis"] == np.argmax(each.first + 3 * np.array(scores))
    assert found[0]["id"] == "a"
    assert found[2] == {"id": 5, "text": "bad", "hypothesis": 0}


def test_tables_and_reports(folder, tmp_path, capsys):
    report = tmp_path / "report.json"
    run(folder, tmp_path, f"--report={report}")
    shown = capsys.readouterr().out
    # 3 edits in 5 words after the first pass; 1 with the best hypotheses.
    assert "first pass 60.00" in shown
    assert "best of each list 20.00" in shown
    numbers = json.loads(report.read_text())
    assert {"method": "detection", "by": "sum", "lists": 2}.items() <= numbers.items()
    assert (numbers["before"], numbers["oracle"]) == (0.6, 0.2)
    assert numbers["difference"] == numbers["after"] - numbers["before"]
    run(folder, tmp_path, "--weight=1", "--overwrite", rows=LINES[:1])
    assert "nan" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--overwrite"):
        run(folder, tmp_path)
    row = {"sentence_good": "a good book", "sentence_bad": "a book good"}
    pairs = ["score", f"--model={folder}", f"--report={report}"]
    pairs.append(f"--data={write(tmp_path / 'pairs.jsonl', [row])}")
    with pytest.raises(SystemExit, match=r"report\.json exists: pass --overwrite"):
        command(pairs)
    assert json.loads(report.read_text()) == numbers
    assert command([*pairs, "--overwrite"]) == 0
    assert json.loads(report.read_text())["all"]["all"]["pairs"] == 1


def test_what_cannot_be_done_is_one_line(folder, tmp_path):
    reports = [f"--report={tmp_path / name}.jsonl" for name in ("in", "out", "./in")]
    for flags, rows, message in (
        ([], LINES[2:], r"0 references.*give --weight"),
        (["--weight=1"], [{"hypotheses": ["book " * 40]}], "takes from 1 to 30"),
        (["--weight=-1"], LINES, "--weight must be at least 0"),
        *((["--overwrite", x], LINES, "must be different files") for x in reports),
    ):
        with pytest.raises(SystemExit, match=message):
            run(folder, tmp_path, *flags, rows=rows)
    assert not (tmp_path / "out.jsonl").exists()
