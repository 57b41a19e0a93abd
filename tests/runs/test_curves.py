import numpy as np
import pytest
from matplotlib.figure import Figure

from electra_tf import files
from electra_tf.runs import curves
from electra_tf.training.sinks import MetricsLog


def drawn_figure(monkeypatch, *arguments):
    """Returns the figure that ``plot_curves`` saves."""
    figures, savefig = [], Figure.savefig

    def saved(figure, *places, **options):
        figures.append(figure)
        savefig(figure, *places, **options)

    monkeypatch.setattr(Figure, "savefig", saved)
    curves.plot_curves(*arguments)
    return figures[0]


@pytest.fixture
def metrics(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (100, 200, 300):
        log(
            step,
            {
                "loss": 45.0 - step / 100,
                "generator_accuracy": step / 1000,
                "sampled_accuracy": step / 2000,
                "discriminator_auc": float("nan") if step == 200 else 0.6,
                "learning_rate": 1e-4,
            },
        )
    log(300, {"eval_loss": 43.0, "eval_generator_accuracy": 0.25})
    return log.path


def test_panels_show_the_values(metrics, monkeypatch, tmp_path):
    """NaN leaves a gap; baselines are labeled lines."""
    baselines = {"discriminator_auc": 0.5, "loss": 44.98}
    figure = drawn_figure(monkeypatch, metrics, tmp_path / "curves.png", baselines)
    panels = {axis.get_title(loc="left"): axis for axis in figure.axes}
    names = "loss, generator accuracy, sampled accuracy, discriminator auc"
    assert list(panels) == [*names.split(", "), "learning rate"]
    trained, held_out = panels["generator accuracy"].lines
    np.testing.assert_allclose(
        trained.get_xydata(), [[100, 0.1], [200, 0.2], [300, 0.3]]
    )
    np.testing.assert_allclose(held_out.get_xydata(), [[300, 0.25]])
    auc, _, chance = panels["discriminator auc"].lines
    np.testing.assert_allclose(auc.get_xydata(), [[100, 0.6], [300, 0.6]])
    assert chance.get_label() == "baseline 0.5"
    np.testing.assert_allclose(chance.get_ydata(), 0.5)
    assert panels["loss"].lines[-1].get_label() == "baseline 45"


def test_writes_a_png_and_refuses_an_empty_file(metrics, tmp_path):
    path = tmp_path / "curves.png"
    curves.plot_curves(metrics, path, {})
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match="has 0 lines"):
        curves.plot_curves(tmp_path / "empty.jsonl", path, {})


def test_curves_of_seeds_are_loss_and_held_out_score(tmp_path, monkeypatch):
    drawn = []

    def savefig(self, path, **_):
        drawn.append(self)
        path.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)
    rows = [
        {"seed": seed, "step": step, "loss": seed + 1 / step, "learning_rate": 1.0}
        for seed in (0, 1)
        for step in (2, 4)
    ]
    rows += [{"seed": 1, "epoch": n, "step": 2 * n, "f1": 10.0 * n} for n in (1, 2)]
    rows += [{"seed": 0, "epoch": 1, "step": 2, "f1": None}]
    rows += [{"seed": 1, "split": "dev", "f1": 20.0}, {"summary": {}}]
    files.write_json_lines(tmp_path / "metrics.jsonl", rows)
    curves.plot_seeds(tmp_path, "f1", 5.0, pytest.fail)
    loss, score = drawn[0].axes
    assert [len(axes.lines) for axes in (loss, score)] == [2, 2]
    np.testing.assert_allclose(loss.lines[1].get_xydata(), [[2, 1.5], [4, 1.25]])
    np.testing.assert_allclose(score.lines[0].get_xydata(), [[2, 10], [4, 20]])
    assert score.get_ylabel() == "held-out f1"
    names = [text.get_text() for text in score.get_legend().get_texts()]
    assert names == ["seed 1", "majority baseline 5.00"]
