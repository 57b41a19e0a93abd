import csv
import importlib.util
import re
from pathlib import Path

import keras
import pytest

from electra_tf.runs import pretraining
from electra_tf.systems import build
from electra_tf.training.sinks import Progress, metric_cards
from tests import tiny
from tests.end_to_end.conftest import text  # noqa: F401
from tests.end_to_end.in_process import config_of, rows
from tests.flag_parsing import SMALL, parse
from tests.runs.test_curves import drawn_figure

DOC = Path(__file__).parents[2] / "docs" / "extending.md"
CODE, RUN, *_ = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def drawn(tmp_path_factory):
    # In a file, because TensorFlow reads the source of traced functions.
    path = tmp_path_factory.mktemp("mine") / "my_objective.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("my_objective", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.DrawnDetection
    keras.saving.get_custom_objects().pop("mine>DrawnDetection")


def test_it_is_short():
    code = CODE[CODE.index("@keras") :]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 30


@pytest.mark.parametrize("wrong", [lambda: None, "an instance"])
def test_only_a_factory_makes_an_objective(wrong, drawn):
    """A function without a return statement trained replaced token detection."""
    wrong = drawn() if wrong == "an instance" else wrong
    with pytest.raises(ValueError, match="must be a subclass of"):
        build.build_model(parse(*SMALL), tiny.VOCAB, (2, 3, 4), wrong)


def test_a_run_without_a_discriminator_refuses_it(drawn, tmp_path):
    config = parse("--objective=mlm", f"--model_dir={tmp_path}")
    with pytest.raises(ValueError, match="trains a discriminator"):
        pretraining.run(config, print, objective=drawn)


def to_csv():
    return keras.callbacks.CSVLogger("epochs.csv")


@pytest.mark.slow
def test_a_run_trains_and_reports_it(text, drawn, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    messages = []
    flags = ("--eval_steps=3", "--max_eval_batches=2", f"--callback={__name__}:to_csv")
    config = config_of(text, tmp_path, *flags)
    assert pretraining.run(config, messages.append, objective=drawn) == 0
    with open(tmp_path / "epochs.csv") as file:
        epochs = [*csv.DictReader(file)]
    assert [row["epoch"] for row in epochs] == ["0", "1"]
    assert all(float(row["val_drawn_loss"]) > 0 for row in epochs)
    logged = rows(tmp_path)
    assert [row["step"] for row in logged if "drawn_loss" in row] == [1, 2, 3, 4, 5, 6]
    assert any("eval_drawn_right" in row for row in logged)
    assert re.search(r"\ndrawn_right +\d\.\d{4}\n", "\n".join(messages))
    assert "P(replaced) %" in (tmp_path / "samples.txt").read_text()
    model = keras.saving.load_model(tmp_path / "discriminator.keras")
    assert type(model.objective) is drawn
    path = tmp_path / "metrics.jsonl"
    figure = drawn_figure(monkeypatch, path, tmp_path / "again.png", {})
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert {"drawn loss", "drawn right", "generator loss"} <= {*titles}
    again = []
    assert pretraining.run(config, again.append, objective=drawn) == 0
    assert "trained to its last step" in "\n".join(again)
    assert "objective=DrawnDetection" in RUN
    with pytest.raises(ValueError, match=r"objective_class: was .*DrawnDetection"):
        pretraining.run(config, print)


def test_the_console_shows_metrics_without_a_card(capsys):
    progress = Progress(6, cards=metric_cards(["drawn_loss", "loss"]))
    progress(3, {"drawn_loss": 0.25, "loss": 0.5})
    assert "loss 0.500  drawn_loss 0.2500" in capsys.readouterr().err
