"""Learning curves of several runs against their logged metrics."""

import json

import numpy as np
import pytest

from electra_tf.__main__ import main as command
from electra_tf.analysis import curves
from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.systems import costs

TWO_STAGE = {
    "training": "two_stage",
    "two_stage_copy": False,
    "sharing": "untied",
    "num_train_steps": 300,
    "generator_steps": 100,
}


def run(folder, scale=1.0, **flags):
    """Writes the metrics and config of an unfinished run."""
    folder.mkdir(parents=True)
    rows = [
        {"step": step, "time": 1.0, "discriminator_auc": scale * step / 1000}
        | {"loss": 50.0 - step / 10, "learning_rate": 1e-4, "own_number": 1.0}
        for step in (100, 200, 300)
    ]
    rows.append({"step": 300, "eval_discriminator_auc": 0.8 * scale})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)
    config = {"config": fields.to_flat(PretrainConfig()) | flags}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def runs(tmp_path):
    return [
        run(tmp_path / "one" / "model", train_batch_size=4, max_seq_length=32),
        run(tmp_path / "two" / "model", 0.5, train_batch_size=8, max_seq_length=32),
        run(tmp_path / "<img> $x_y$", **TWO_STAGE),
    ]


def lines_of(figure, title):
    axes = {axis.get_title(loc="left"): axis for axis in figure.axes}
    return [line.get_xydata() for line in axes[title].lines]


def test_every_run_has_its_held_out_and_training_curves(runs):
    read = curves.read(runs, "tokens")
    assert [each.name for each in read[:2]] == [str(runs[0]), str(runs[1])]
    figure = curves.figure(read, curves.choose(read, ()), "tokens")
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "Total loss: total",
        "Discriminator quality: AUC",
    ]
    auc = lines_of(figure, "Discriminator quality: AUC")
    assert len(auc) == 6
    # Positions: 4 and 8 rows of 32.
    np.testing.assert_allclose(auc[0], [[300 * 4 * 32, 80]])
    np.testing.assert_allclose(auc[1], [[s * 128, s / 10] for s in (100, 200, 300)])
    np.testing.assert_allclose(auc[2], [[300 * 8 * 32, 40]])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [r.name for r in read]


def test_flops_are_counted_phase_by_phase(runs):
    (one,) = curves.read(runs[2:], "flops")
    config = fields.from_flat(TWO_STAGE, PretrainConfig)
    size = config.data.vocab_size
    first, second = (
        costs.step_flops(config, phase, rule="matmul")
        for phase in costs.phases(config, size)
    )
    assert first < second
    np.testing.assert_allclose(one.progress(100), 100 * first)
    np.testing.assert_allclose(one.progress(300), 100 * first + 200 * second)


def test_files_are_written(runs, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    folders = [str(path) for path in (*runs, tmp_path / "empty")]
    png = tmp_path / "curves.png"
    chosen = "--metrics=own_number,learning_rate"
    assert command(["inspect", *folders, f"--curves={png}"]) == 0
    assert "left out" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--overwrite"):
        command(["inspect", *folders, f"--curves={png}"])
    metrics, page = f"{runs[0]}/metrics.jsonl", tmp_path / "curves.svg"
    assert command(["inspect", metrics, f"--curves={page}", chosen, "--by=flops"]) == 0
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<svg" in page.read_text()


def test_what_cannot_be_drawn_is_said_in_a_line(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    output = f"--curves={tmp_path / 'x.png'}"
    for arguments, message in (
        ([str(runs[0]), "--curves=x.txt"], r"\.png, \.pdf"),
        ([output], "no run"),
        ([f"{tmp_path}/nowhere", output], "nowhere"),
        ([f"{tmp_path}/empty", output], "none of .*empty has a metrics.jsonl"),
        (
            [str(runs[0]), output, "--metrics=nothing"],
            "nothing: .* discriminator_auc, l",
        ),
    ):
        with pytest.raises(SystemExit, match=message) as stopped:
            command(["inspect", *arguments])
        assert "\n" not in stopped.value.code
    (runs[1] / "config.json").unlink()
    with pytest.raises(SystemExit, match="--by=steps"):
        command(["inspect", str(runs[1]), output, "--by=tokens"])
