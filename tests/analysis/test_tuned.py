"""Fine-tuning on errors: what is learned, on what, and how the gain is measured."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from electra_tf.analysis import Inspector
from electra_tf.analysis.errors import scores_of, word_scores
from electra_tf.analysis.marked import RIGHT, Marked
from electra_tf.analysis.tuned import fine_tune, gain
from tests import tiny, tiny_run
from tests.tasks.common import TOKENS

WORDS = ("a", "good", "movie", "was", "not", "awful", "the", "book")


def sentences(count, seed):
    """Wherever "awful" stands it is wrong."""
    rng = np.random.default_rng(seed)
    drawn = (tuple(rng.choice(WORDS, 6).tolist()) for _ in range(count))
    kinds = ((each, ["x" if w == "awful" else RIGHT for w in each]) for each in drawn)
    return [Marked(words, tuple(own)) for words, own in kinds]


@pytest.fixture(scope="module")
def inspector(tmp_path_factory):
    model = tiny.electra(vocab=len(TOKENS))
    return Inspector(tiny_run.save(tmp_path_factory.mktemp("run"), model), pytest.fail)


@pytest.mark.slow
def test_it_learns_what_is_marked_and_leaves_the_model(inspector):
    given, asked = sentences(64, 1), sentences(40, 2)
    before = [v.numpy().copy() for v in inspector.detector.weights]
    options = {"epochs": 8, "learning_rate": 3e-3}
    tuned = fine_tune(inspector, given, **options)
    for variable, value in zip(inspector.detector.weights, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    words = [each.words for each in asked]
    wrong = np.array([kind != RIGHT for each in asked for kind in each.kinds])
    counts = np.ones(len(TOKENS))
    old = word_scores(inspector, words, counts)["discriminator"]
    new = scores_of(inspector, tuned, words)
    assert average_precision_score(wrong, old) < 0.6
    assert average_precision_score(wrong, new) > 0.95
    more, low, high = gain(asked, old, new)
    expected = average_precision_score(wrong, new) - average_precision_score(wrong, old)
    np.testing.assert_allclose(more, expected, rtol=1e-6)
    assert 0 < low < more < high
    again = fine_tune(inspector, given, **options)
    np.testing.assert_array_equal(new, scores_of(inspector, again, words))


def test_the_interval_is_of_sentences_and_covers_nothing_gained():
    marked = sentences(60, 3)
    rng = np.random.default_rng(0)
    scores = rng.random(6 * 60)
    assert gain(marked, scores, scores) == (0.0, 0.0, 0.0)
    # Other random scores are no gain.
    more, low, high = gain(marked, scores, rng.random(6 * 60))
    assert low <= more <= high
    # As wide as where sentences are drawn with replacement in another way.
    wrong = np.array([kind != RIGHT for each in marked for kind in each.kinds])
    wrong, other = wrong.reshape(60, 6), rng.random((60, 6))
    drawn = []
    for _ in range(500):
        at = rng.choice(60, 60)
        label = wrong[at].ravel()
        drawn.append(
            average_precision_score(label, other[at].ravel())
            - average_precision_score(label, scores.reshape(60, 6)[at].ravel())
        )
    found = gain(marked, scores, other.ravel(), seed=1)
    np.testing.assert_allclose(found[1:], np.quantile(drawn, [0.025, 0.975]), atol=0.03)


def test_nothing_to_learn_from(inspector):
    with pytest.raises(ValueError, match="no sentence to fine-tune on"):
        fine_tune(inspector, [])


def test_nothing_that_is_wrong_is_an_error():
    """Before anything is drawn: no draw would ever have a wrong word."""
    right = Marked(("a", "book"), (RIGHT, RIGHT))
    scores = np.zeros(4)
    with pytest.raises(ValueError, match="not one word is marked as wrong"):
        gain([right] * 2, scores, scores)
