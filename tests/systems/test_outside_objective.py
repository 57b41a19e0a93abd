"""The objective of docs/extending.md, from outside: from flags to a run's files."""

import importlib.util
import io
import json
import re
import types
from pathlib import Path

import keras
import pytest

from electra_tf import cli, files, systems
from electra_tf.comparison import plan
from electra_tf.comparison import report as comparison_report
from electra_tf.comparison.store import Store
from electra_tf.config import choices, fields
from electra_tf.config.comparison import CompareConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.runs import curves, pretraining, report
from electra_tf.systems import build, costs, rows
from electra_tf.training.sinks import Progress
from tests.end_to_end.conftest import text  # noqa: F401
from tests.end_to_end.in_process import config_of
from tests.flag_parsing import SMALL, parse

pytestmark = pytest.mark.slow

DOC = Path(__file__).parents[2] / "docs" / "extending.md"
# A callback follows it.
CODE, _ = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def drawn(tmp_path_factory):
    """The class of the doc, whose code is imported for the tests of this file."""
    # From a file: TensorFlow reads the source of what it traces.
    path = tmp_path_factory.mktemp("mine") / "my_objective.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("my_objective", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.DrawnDetection
    del systems.OBJECTIVES["drawn"], choices.OBJECTIVES["drawn"]
    keras.saving.get_custom_objects().pop("mine>DrawnDetection")


@pytest.fixture(scope="module")
def run(text, drawn, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("drawn")
    said = []
    config = config_of(
        text, folder, "--objective=drawn", "--eval_steps=3", "--max_eval_batches=2"
    )
    assert pretraining.run(config, said.append) == 0
    return folder, "\n".join(said), config


def test_it_is_short():
    assert sum(bool(line.strip()) for line in CODE.splitlines()) <= 40


def test_help_flags_and_checks_know_it():
    assert "drawn: was this token drawn" in cli.help_text(PretrainConfig)
    assert parse("--objective=drawn").objective.objective == "drawn"
    with pytest.raises(ValueError, match="as the paper does"):
        parse("--objective=drawn", "--training=reinforce")


def test_it_trains_and_reports(run, drawn):
    folder, said, config = run
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    assert [row["step"] for row in logged if "drawn_loss" in row] == [1, 2, 3, 4, 5, 6]
    assert any("eval_drawn_right" in row for row in logged)
    # The held-out table, with the trivial predictor where there is one.
    assert re.search(r"\nright +\d+\.\d\d% +50\.00%  a coin", said)
    assert re.search(r"\ndrawn loss \(nats\) +\d\.\d{3}\n", said)
    assert (folder / "curves.png").stat().st_size > 0
    assert "P(replaced) %" in (folder / "samples.txt").read_text()
    model = keras.saving.load_model(folder / "discriminator.keras")
    assert type(model.objective) is drawn
    again = []
    assert pretraining.run(config, again.append) == 0
    assert "trained to its last step" in "\n".join(again)


def test_console_line_and_curves_show_it(run):
    stream = io.StringIO()
    progress = Progress(6, cards=rows.metric_cards(), stream=stream)
    progress(3, {"drawn_loss": 0.25, "drawn_right": 0.5})
    assert "drawn 0.2500  right 50.0%" in stream.getvalue()
    path = run[0] / "metrics.jsonl"
    figure = curves._figure(files.read_json_lines(path), {"drawn_right": 0.5}, path)
    (panel,) = (a for a in figure.axes if a.get_title(loc="left") == "Drawn tokens")
    assert panel.get_ylabel() == "%"
    assert panel.lines[-1].get_label() == "baseline 50"


def test_it_costs_what_its_heads_cost(run):
    """Those of ELECTRA: the same encoders, the same head."""
    same, config = parse(*SMALL), parse(*SMALL, "--objective=drawn")
    assert costs.run_flops(config, 61) == costs.run_flops(same, 61)
    assert costs.memory(config, 61) == costs.memory(same, 61)
    words = Vocabulary.load(run[0] / "vocab.txt")
    model = build.compiled_model(config, len(words), build.special_ids(words))
    trained = sum(v.shape.num_elements() for v in model.trainable_variables)
    assert trained == costs.parameters(config, len(words))["joint"]
    data = types.SimpleNamespace(vocabulary=words, manifest=None)
    assert report.summary(config, model, data).startswith("drawn: ")


def test_it_is_compared(text, tmp_path):  # noqa: F811
    config = CompareConfig(
        pretrain=(
            " ".join([*SMALL, "--train_batch_size=4"]),
            f"--corpus={text / 'text.txt'} --vocab_file={text / 'vocab.txt'}",
        ),
        system=("electra:", "drawn: --objective=drawn"),
        budget="electra:20",
        seeds=1,
        output_dir=str(tmp_path),
    )
    ready = plan.make(config, lambda _: None)
    first, second = ready.systems
    assert second.config.run.num_train_steps == 20
    assert ready.flops(first) == ready.flops(second)
    assert re.search(r"\| drawn +\| +20 \|", comparison_report.planned(ready))
    _, job = plan.jobs(ready, Store(tmp_path))
    config = fields.from_flat(job["pretrain"], PretrainConfig)
    assert config.objective.objective == "drawn"
    assert job["flops"] == ready.flops(first)


def test_what_register_refuses(drawn):
    row = systems.OBJECTIVES["drawn"]
    with pytest.raises(ValueError, match="--objective=drawn is taken"):
        systems.register("objective", "drawn", row, help="again")
    with pytest.raises(ValueError, match="allowed are objective, generator"):
        systems.register("sampler", "drawn", row, help="no such kind")
    card = type(drawn.METRICS[0])("discriminator_auc", label="mine")
    other = systems.ObjectiveRow(make=row.make, metrics=(card,))
    with pytest.raises(ValueError, match="has another card already"):
        systems.register("objective", "other", other, help="a name with two cards")
    assert "other" not in choices.OBJECTIVES
