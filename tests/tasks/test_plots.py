import numpy as np
import pytest
from matplotlib.figure import Figure

from electra_tf.tasks import plots


@pytest.fixture
def drawn(monkeypatch):
    """Collects the figures instead of writing them; files stay empty."""
    figures = []

    def savefig(self, path, **_):
        figures.append(self)
        path.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def test_labels_are_not_read_as_formulas(tmp_path):
    labels = ("$5^ to $6", "$x$", r"$\frac{$")
    path = plots.confusion_matrix(labels, labels, labels, str(tmp_path))
    assert path == str(tmp_path / "confusion_matrix.png")
    assert (tmp_path / "confusion_matrix.png").exists()


@pytest.mark.parametrize(("classes", "numbers"), [(3, 9), (31, 0)])
def test_shares_are_numbers_for_few_classes(drawn, tmp_path, classes, numbers):
    labels = [f"class {number}" for number in range(classes)]
    plots.confusion_matrix(labels, labels, labels, str(tmp_path))
    (figure,) = drawn
    (axes,) = figure.axes
    assert max(figure.get_size_inches()) <= 20
    assert len(axes.texts) == numbers
    assert {text.get_text() for text in axes.texts} <= {"0.00", "1.00"}
    assert [label.get_text() for label in axes.get_yticklabels()] == labels


def test_the_curves_of_seeds_are_loss_and_held_out_score(drawn, tmp_path):
    rows = [
        {"seed": seed, "step": step, "loss": seed + 1 / step, "learning_rate": 1.0}
        for seed in (0, 1)
        for step in (2, 4)
    ]
    rows += [{"seed": 1, "epoch": n, "step": 2 * n, "f1": 10.0 * n} for n in (1, 2)]
    rows += [{"seed": 0, "epoch": 1, "step": 2, "f1": None}]
    rows += [{"seed": 1, "split": "dev", "f1": 20.0}, {"summary": {}}]
    plots.curves(rows, "f1", 5.0, str(tmp_path))
    loss, score = drawn[0].axes
    assert [len(axes.lines) for axes in (loss, score)] == [2, 2]
    np.testing.assert_allclose(loss.lines[1].get_xydata(), [[2, 1.5], [4, 1.25]])
    np.testing.assert_allclose(score.lines[0].get_xydata(), [[2, 10], [4, 20]])
    assert score.get_ylabel() == "held-out f1"
    names = [text.get_text() for text in score.get_legend().get_texts()]
    assert names == ["seed 1", "majority baseline 5.00"]
