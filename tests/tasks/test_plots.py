import pytest
from matplotlib.figure import Figure

from electra_tf.tasks import plots


@pytest.fixture
def drawn(monkeypatch):
    """The figures; their files stay empty."""
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


@pytest.mark.parametrize(
    ("classes", "numbers", "names"),
    [
        (3, 9, 3),
        pytest.param(30, 900, 30, marks=pytest.mark.slow),
        (31, 0, 31),
        (500, 0, 56),
    ],
)
def test_many_classes_are_drawn_with_less_in_them(
    drawn, tmp_path, classes, numbers, names
):
    labels = [f"class {number}" for number in range(classes)]
    plots.confusion_matrix(labels, labels, labels, str(tmp_path))
    (figure,) = drawn
    (axes,) = figure.axes
    assert max(figure.get_size_inches()) <= 20
    assert len(axes.texts) == numbers
    assert {text.get_text() for text in axes.texts} <= {"0", "1"}
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert len(shown) == names
    assert shown[-1] == labels[int(axes.get_yticks()[-1])]
