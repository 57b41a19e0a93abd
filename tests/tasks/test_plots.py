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
