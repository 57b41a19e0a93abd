import io
import json
import math

import pytest
import tensorflow as tf

from electra_tf.training import sinks
from electra_tf.training.sinks import metric_cards

NAMES = ("loss", "generator_loss", "generator_accuracy", "replaced_fraction")
WINDOW = dict.fromkeys((*NAMES, "discriminator_loss", "learning_rate"), 0.5)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """The time, a list of one number."""
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return clock


def test_plain_lines_are_rare_but_first_and_last_are_written(clock, capsys):
    progress = sinks.Progress(100, cards=metric_cards())
    for step in range(10, 60, 10):
        progress(step, WINDOW)
        clock[0] += 3.0
    progress.finish()
    steps = [line.split("/")[0] for line in capsys.readouterr().err.splitlines()]
    assert steps == ["10", "50"]
    progress.finish()


def test_time_left_leaves_out_the_first_execution(clock, capsys):
    progress = sinks.Progress(1000, cards=metric_cards(), first_step=500)
    clock[0] += 600.0  # Compiling.
    progress.tick(501)
    progress(501, {"loss": 1.0})
    clock[0] += 20.0
    progress(511, {"loss": 1.0})
    first, second = capsys.readouterr().err.splitlines()
    assert "eta ?" in first
    assert "eta 16:18" in second  # 489 steps of 2 s.


def test_terminal_gets_one_line_that_is_rewritten(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    progress = sinks.Progress(100, cards=metric_cards())
    for step in range(1, 51):
        progress.tick(step)
        clock[0] += 0.0625
    progress(50, WINDOW)
    progress.finish()
    text = stream.getvalue()
    assert text.count("\n") == 1
    shown = text.split("\r\x1b[K")
    assert len(shown) == 1 + 25 + 1
    assert all(len(line.rstrip("\n")) < 60 for line in shown)
    assert shown[-1].startswith(f"{'█' * 10:20} 50/100 50.0%")


def test_held_out_results_stay_on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    progress = sinks.Progress(100, cards=metric_cards())
    progress(50, {"eval_loss": 9.5, "eval_discriminator_auc": 0.9})
    assert stream.getvalue() == "\r\x1b[Kstep 50: held out  loss 9.500  auc 0.900\n"


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_log_appends_and_drops_what_a_resumed_run_repeats(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = sinks.MetricsLog(path)
    for step in (10, 20, 30):
        log(step, {"loss": float(step)})
        assert read(path)[-1]["step"] == step
    with path.open("a") as file:
        file.write('{"step": 40, "lo')
    resumed = sinks.MetricsLog(path, first_step=20)
    assert [row["step"] for row in read(path)] == [10, 20]
    resumed(30, {"loss": math.nan})
    assert [row["loss"] for row in read(path)] == [10.0, 20.0, None]
    assert read(path)[0]["time"] <= read(path)[-1]["time"]
    assert [p.name for p in path.parent.iterdir()] == ["metrics.jsonl"]


def test_tensorboard(tmp_path):
    sink = sinks.TensorBoardScalars(tmp_path)
    sink(5, {"loss": 1.5, "learning_rate": 0.1})
    sink(5, {"eval_loss": 2.5})
    found = {}
    for path in tmp_path.glob("*/events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                content = tf.make_ndarray(value.tensor).tolist()
                found[path.parent.name, value.tag] = (event.step, content)
    assert found == {
        ("train", "loss"): (5, 1.5),
        ("train", "learning_rate"): (5, pytest.approx(0.1)),
        ("eval", "loss"): (5, 2.5),
    }
