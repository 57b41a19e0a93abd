import dataclasses
import itertools

import numpy as np
import pytest
import sklearn.metrics
from scipy.special import softmax

from electra_tf.tasks import (
    Classification,
    Example,
    MultiLabel,
    Regression,
    metrics,
    saved,
)


def examples(*labels):
    return [Example(str(i), (f"t{i}",), label) for i, label in enumerate(labels)]


def classification(labels=("a", "b", "c"), **kwargs):
    return Classification(name="topic", source=None, labels=labels, **kwargs)


def test_labels_are_inferred_and_numbers_sorted_as_numbers():
    task = classification(labels=None)
    assert task.prepare(examples("x", "b", "x")).labels == ("b", "x")
    assert task.prepare(examples("10", "9", "9")).labels == ("9", "10")
    for first in range(10, 60, 5):
        names = (*map(str, range(first, first + 5)), "nan")
        assert task.prepare(examples(*names[::-1])).labels == names
    with pytest.raises(ValueError, match="nothing to learn"):
        task.prepare(examples("x", "x"))
    with pytest.raises(ValueError, match="must be strings, got 1"):
        task.prepare(examples("x", 1))
    with pytest.raises(ValueError, match="set `pair`"):
        classification(pair=True).featurize(examples("a"), None, 8)
    with pytest.raises(ValueError, match="has no labels yet"):
        assert task.num_outputs
    with pytest.raises(ValueError, match=r"Example 1 has the label 'bb'.*It has a, b"):
        classification().targets(examples("a", "bb"))


def test_classification_answers_scores_and_baseline():
    task = classification()
    logits = np.array([[2.0, 0, 0], [0, 1, 0], [0, 3, 0], [5, 0, 0]], np.float32)
    data = examples("a", "b", "c", "a")
    answers = task.decode(list(logits), None, data)
    np.testing.assert_allclose(answers, softmax(logits, axis=1), rtol=1e-5)
    scores = task.score(answers, data)
    assert scores["accuracy"] == 75
    assert scores["macro_f1"] == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    expected = sklearn.metrics.matthews_corrcoef([0, 1, 2, 0], [0, 1, 1, 0])
    assert scores["matthews"] == pytest.approx(100 * expected)
    assert task.readable(answers) == ["a", "b", "b", "a"]
    baseline = task.baseline(examples("b", "b", "a"), data)
    assert baseline["accuracy"] == 25
    assert baseline["matthews"] == 0


def test_a_score_that_is_not_above_the_baseline_is_a_failure():
    task, data = classification(), examples("a", "a", "b", "c")
    baseline = task.baseline(data, data)
    wrong = np.eye(3)[[0, 1, 0, 1]]
    failure = task.failure(wrong, task.score(wrong, data), baseline)
    assert "accuracy 25.00 is not better than the baseline 50.00" in failure
    right = np.eye(3)[[0, 0, 1, 2]]
    assert task.failure(right, task.score(right, data), baseline) == ""
    constant = np.tile([0.5, 0.3, 0.2], [4, 1])
    said = task.failure(constant, task.score(constant, data), baseline)
    assert said == "answers a to every example"
    regression = Regression(name="r", source=None, main_metric="mse")
    assert regression.failure(None, {"mse": 0.1}, {"mse": 0.2}) == ""
    assert "not better" in regression.failure(None, {"mse": 0.3}, {"mse": 0.2})


def test_predictions_file(tmp_path):
    task, data = classification(), examples("a", "b")
    answers = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    task.write(answers, data, str(tmp_path / "p.tsv"))
    lines = [line.split("\t") for line in (tmp_path / "p.tsv").read_text().splitlines()]
    assert lines[0] == ["id", "label", "prediction", "p(a)", "p(b)", "p(c)"]
    assert lines[2] == ["1", "b", "c", "0.100000", "0.200000", "0.700000"]
    task.write(answers, examples(None, None), str(tmp_path / "p.tsv"))
    assert (tmp_path / "p.tsv").read_text().startswith("id\tprediction\tp(a)")


def test_multilabel_targets_scores_and_baseline(tmp_path):
    task = MultiLabel(name="m", source=None)
    data = examples(("x", "y"), ("x",), (), ("z",))
    task = task.prepare(data)
    assert task.labels == ("x", "y", "z")
    targets = task.targets(data)
    assert targets.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]
    answers = np.array([[0.9, 0.4, 0.1], [0.8, 0.1, 0.1], [0.1] * 3, [0.6, 0.2, 0.7]])
    scores = task.score(answers, data)
    expected = sklearn.metrics.f1_score(targets, answers >= 0.5, average="micro")
    assert scores["micro_f1"] == pytest.approx(100 * expected)
    assert scores["exact_match"] == 50
    assert task.readable(answers) == ["x", "x", "", "x|z"]
    task.write(answers, examples(("y", "x"), (), (), ("z",)), str(tmp_path / "p.tsv"))
    written = (tmp_path / "p.tsv").read_text().splitlines()
    assert written[1].split("\t")[:3] == ["0", "x|y", "x"]
    # The best constant prediction is {x}: F1 = 2 * 2 / (4 + 4).
    assert task.baseline(data, data)["micro_f1"] == pytest.approx(50)
    # The other best constants: all labels, and the most common set.
    for metric in ("macro_f1", "exact_match"):
        own = dataclasses.replace(task, main_metric=metric)
        constants = itertools.product([0.0, 1.0], repeat=3)
        every = (own.compare(np.array([x] * 4), own.gold(data)) for x in constants)
        best = max(scores[metric] for scores in every)
        assert own.baseline(data, data)[metric] == pytest.approx(best)
    # The mean binary cross-entropy per label.
    logits = np.array([[1.0, -2.0, 0.5]])
    loss = float(task.loss("sum")(np.ones([1, 3]), logits))
    assert loss == pytest.approx(np.log1p(np.exp(-logits)).mean(), rel=1e-5)


def test_regression_is_scaled_and_scored_on_its_own_scale():
    data = examples(1.0, 5.0, 2.0)
    task = Regression(name="r", source=None).prepare(data)
    assert task.label_range == (1.0, 5.0)
    assert task.targets(data).tolist() == [[0.0], [1.0], [0.25]]
    outputs = [np.array([x], np.float32) for x in (0.0, 1.0, 0.5)]
    answers = task.decode(outputs, None, data)
    assert answers.tolist() == [1.0, 5.0, 3.0]
    assert task.score(answers, data)["mse"] == pytest.approx(1 / 3)
    assert task.score(answers, data)["spearman"] == pytest.approx(100)
    close = np.array([9.0, 2.5, 2.50001], np.float32)
    assert task.readable(close) == ["5.0", "2.5", "2.50001"]
    with pytest.raises(ValueError, match="nothing to learn"):
        Regression(name="r", source=None).prepare(examples(1.0, 1.0))


def test_the_threshold_is_the_best_one_on_other_examples():
    labels = ("x", "y", "z")
    task = MultiLabel(name="m", source=None, labels=labels, tune_threshold=True)
    rng = np.random.default_rng(0)
    targets = rng.random([80, 3]) < 0.3
    answers = np.clip(0.25 * targets + 0.2 * rng.random([80, 3]), 0, 1)
    data = examples(*(tuple(np.array(labels)[row]) for row in targets))
    tuned = task.tune(answers, data)

    def score(threshold):
        return sklearn.metrics.f1_score(targets, answers >= threshold, average="micro")

    assert score(tuned.threshold) == max(score(x / 20) for x in range(1, 20))
    assert score(tuned.threshold) > score(0.5) + 0.3
    assert tuned.to_json()["threshold"] == tuned.threshold
    # The tuned threshold does not change the featurized rows.
    found = tuned.serving_outputs(np.log(answers / (1 - answers)), {})
    np.testing.assert_array_equal(found["predicted"], answers >= tuned.threshold)


def test_verdicts_know_how_many_examples_there_are():
    """60 % accuracy on two balanced classes is significant for 600, not 20."""
    task = classification(("a", "b"))
    for count, is_more in ((20, False), (600, True)):
        data = examples(*("ab" * (count // 2)))
        right = np.arange(count) % 10 < 6
        given = np.where(right, task.targets(data), 1 - task.targets(data))
        answers = np.eye(2)[given]
        scorer, majority = task.scorer(answers, data), task.majority(data, data)
        baseline = task.scorer(majority, data)
        intervals, above = metrics.intervals(scorer, baseline, count)
        low, high = intervals["accuracy"]
        # The interval of independent examples has a closed form.
        half = 196 * np.sqrt(0.6 * 0.4 / count)
        assert (low, high) == pytest.approx((60 - half, 60 + half), abs=0.3 * half)
        assert (above["accuracy"][0] > 0) == is_more
        found = task.details_of(answers, data)
        assert found["classes"]["a"]["support"] == count // 2
        assert found["calibration_error"] == pytest.approx(0.4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Classification):
    """A task of another package, rebuilt from task.json."""

    kind = "own"
    extra: int = 0

    @classmethod
    def from_json(cls, about):
        return cls(name="rebuilt", source=None, labels=tuple(about["labels"]))


def test_a_task_may_rebuild_itself():
    about = Own(name="mine", source=None, labels=("a", "b"), extra=7).to_json()
    # All fields but those of the training run.
    assert about["extra"] == 7
    assert about.keys().isdisjoint({"num_outputs", "name", "source", "epochs"})
    again = saved.from_json(about)
    assert (type(again), again.name, again.labels) == (Own, "rebuilt", ("a", "b"))
    with pytest.raises(ValueError, match=r"kind is .none.; .*own.* Import the module"):
        saved.from_json({**about, "kind": "none"})
