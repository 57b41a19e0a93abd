import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from electra_tf.tasks import metrics


@pytest.fixture(params=range(3))
def coded(request):
    rng = np.random.default_rng(request.param)
    classes = 2 + request.param % 3
    return rng.integers(0, classes, 60), rng.integers(0, classes, 60), classes


def test_classification_scores_agree_with_scikit_learn(coded):
    """Pitfall 42."""
    labels, found, _ = coded
    matthews = sklearn.metrics.matthews_corrcoef(labels, found)
    assert metrics.matthews_correlation(labels, found) == pytest.approx(matthews)
    macro = sklearn.metrics.f1_score(labels, found, average="macro")
    assert metrics.macro_f1(labels, found) == pytest.approx(macro)
    positive = sklearn.metrics.f1_score(labels == 1, found == 1)
    assert metrics.f1(labels, found) == pytest.approx(positive)


def test_constant_predictions_score_zero_and_not_nan():
    labels = np.array([0, 1, 1, 0])
    assert metrics.matthews_correlation(labels, np.ones(4, int)) == 0
    assert metrics.f1(labels, np.zeros(4, int)) == 0
    for correlation in (metrics.pearson, metrics.spearman):
        assert correlation(labels, np.full(4, 0.1)) == 0
        assert correlation(np.full(4, 0.1), labels) == 0
        assert correlation([1.0], [2.0]) == 0
        # But other answers than numbers are not.
        assert np.isnan(correlation([1.0, 2.0, 3.0], [1.0, np.nan, 2.0]))
        assert np.isnan(correlation([1.0, 2.0], [np.nan, np.nan]))


@pytest.mark.parametrize("seed", range(2))
def test_correlations_agree_with_scipy_also_with_ties(seed):
    """Pitfall 42."""
    rng = np.random.default_rng(seed)
    labels = np.round(rng.random(50) * 5, 1)
    found = np.round(labels + rng.normal(size=50), 1)
    pearson = scipy.stats.pearsonr(labels, found).statistic
    assert metrics.pearson(labels, found) == pytest.approx(pearson)
    spearman = scipy.stats.spearmanr(labels, found).statistic
    assert metrics.spearman(labels, found) == pytest.approx(spearman)


def test_one_example_has_no_interval():
    def scorer(rows):
        return {"f1": 50.0}

    assert metrics.intervals(scorer, scorer, 1) == ({}, {})
    assert metrics.intervals(scorer, scorer, 2)[0] == {"f1": (50.0, 50.0)}


@pytest.mark.parametrize("count", [7, 9, 14, 30])
def test_wilson_intervals_are_within_0_and_1(count):
    for hits in (0, count // 2, count):
        peer = scipy.stats.binomtest(hits, count).proportion_ci(method="wilson")
        low, high = metrics.wilson(hits / count, count)
        assert (low, high) == pytest.approx((peer.low, peer.high), abs=1e-6)
        assert 0 <= low <= high <= 1


def test_multilabel_f1_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    labels, found = rng.random((30, 4)) < 0.3, rng.random((30, 4)) < 0.4
    labels[:, 3] = found[:, 3] = False
    micro = metrics.f1(labels, found)
    macro = np.mean([row["f1"] for row in metrics.per_class(labels, found)])
    for average, own in (("micro", micro), ("macro", macro)):
        options = {"average": average, "zero_division": 0}
        assert own == pytest.approx(sklearn.metrics.f1_score(labels, found, **options))


def test_scores_by_class_agree_with_scikit_learn(coded):
    labels, found, classes = coded
    names = np.arange(classes + 1)  # The last class has no examples.
    rows = metrics.per_class(labels[:, None] == names, found[:, None] == names)
    expected = sklearn.metrics.precision_recall_fscore_support(
        labels, found, labels=names, zero_division=0
    )
    for name, values in zip(rows[0], expected, strict=True):
        assert [row[name] for row in rows] == pytest.approx(list(values))
    many = np.random.default_rng(classes).random([2, 40, 3]) < 0.3
    rows = metrics.per_class(*many)
    expected = sklearn.metrics.precision_recall_fscore_support(*many, zero_division=0)
    for name, values in zip(rows[0], expected, strict=True):
        assert [row[name] for row in rows] == pytest.approx(list(values))


def test_calibration_error_by_hand():
    rng = np.random.default_rng(2)
    probabilities = np.append(rng.random(400), [0.0, 1.0])
    right = rng.random(402) < probabilities**2
    # The last bin includes 1.
    bins, total = np.minimum(probabilities * 15 // 1, 14), 0.0
    for number in range(15):
        inside = bins == number
        gap = abs(right[inside].mean() - probabilities[inside].mean())
        total += inside.mean() * gap
    assert total > 0.05
    assert metrics.calibration_error(right, probabilities) == pytest.approx(total)
    error = metrics.calibration_error([True, False], [0.95, 1.0])
    assert error == pytest.approx(0.475)
    assert np.isnan(metrics.calibration_error([True, False], [0.5, np.nan]))
