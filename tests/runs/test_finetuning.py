import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
from matplotlib.figure import Figure

from electra_tf import cli
from electra_tf.api import TextClassifier, load
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.folders.cards import facts_of
from electra_tf.folders.finetuning import OUTPUTS, FinetuningFolder
from electra_tf.folders.pretraining import recommended
from electra_tf.runs import finetuning
from electra_tf.runs.finetuning_report import summary
from electra_tf.runs.finetuning_tasks import TASKS
from electra_tf.runs.trainer import Trainer
from electra_tf.tasks import Classification, glue, glue_task
from tests import ROOT
from tests.runs.common import config, moods, run, table
from tests.runs.reachable import assert_no_config
from tests.tasks import common
from tests.tasks.common import sentiment

CFGS = sorted((ROOT / "configs/tasks").glob("*.cfg"))


# -- A whole run -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_values(tmp_path_factory, pretrained):
    folder = tmp_path_factory.mktemp("run")
    data = {"train": 64, "dev": 20, "test": table(folder / "test.csv", sentiment(4))}
    sizes = {"seeds": 2, "epochs": 8.0, "train_batch_size": 16, "log_steps": 16}
    recipe = {"learning_rate": 1e-2, "layerwise_decay": 1.0, "pooling": "layers"}
    recipe |= dict.fromkeys(("dropout", "attention_dropout", "head_dropout"), 0.0)
    values = {"output_dir": str(folder / "out"), "adam_bias_correction": True}
    encoder = folder / "encoder"
    shutil.copytree(Path(pretrained).parent, encoder)
    (encoder / "recipe.json").write_text('{"pooling": "mean"}')
    return moods(folder, encoder / "encoder.keras", **data, **sizes, **recipe, **values)


@pytest.fixture(scope="module")
def finished(run_values):
    folder = Path(run_values["output_dir"])
    return run_values, folder, run(folder, **run_values)[1]


def test_a_run_learns_and_reports_every_epoch(finished):
    _, folder, said = finished
    results = json.loads((folder / "results.json").read_text())
    accuracy = results["summary"]["eval"]["accuracy"]
    assert accuracy["baseline"] == 50
    assert accuracy["median"] > 90
    assert results["failed_seeds"] == []
    assert any(line.startswith("eval, main score accuracy") for line in said)
    # A row with the held-out scores and a line per epoch.
    logged = [*map(json.loads, (folder / "metrics.jsonl").open())]
    rows = [row for row in logged if "epoch" in row]
    expected = [(seed, n, 4 * n) for seed in (0, 1) for n in range(1, 9)]
    assert [(row["seed"], row["epoch"], row["step"]) for row in rows] == expected
    for seed, row in zip(results["seeds"], (rows[7], rows[15]), strict=True):
        assert seed["scores"]["eval"].items() <= row.items()
    pattern = r"epoch \d+/8  loss \d\.\d{4}  he"
    lines = [line for line in said if re.search(pattern, line)]
    assert len(lines) == 16
    assert f"held-out accuracy {rows[0]['accuracy']:.2f}" in lines[0]


def test_a_run_leaves_everything(finished):
    _, folder, _ = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *(".lock", "config.json", "curves.png", "labels.txt", "metrics.jsonl"),
        *("model.keras", "model_card.md", "predictions.tsv", "predictions_test.tsv"),
        *("recipe.json", "results.json", "task.json", "vocab.txt"),
    }
    assert names - set(OUTPUTS) == {".lock"}
    assert (folder / "labels.txt").read_text() == "neg\npos\n"
    assert len((folder / "predictions.tsv").read_text().splitlines()) == 21
    logged = [*map(json.loads, (folder / "metrics.jsonl").open())]
    assert any({"seed", "step", "loss", "learning_rate"} <= set(row) for row in logged)
    written = json.loads((folder / "config.json").read_text())
    assert written["config"]["learning_rate"] == 1e-2
    assert written["settings"]["reduction"] == "mean"


def test_a_finished_run_is_not_overwritten(finished, capsys):
    values, folder, _ = finished
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    for changes, message in (
        ({}, "holds a finished run: pass --overwrite"),
        ({"task": "regression"}, "another task, 'classification', not 'regression'"),
        ({"overwrite": True, "max_seq_length": 65}, "exceeds the 64 positions"),
    ):
        assert message in error(capsys, **values | changes)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_prepared_run_holds_no_config(run_values, tmp_path):
    chosen = config(**run_values | {"output_dir": str(tmp_path / "new")})
    ready = finetuning.prepare(chosen, lambda line: None)
    held = (ready.trainer.model, ready.start.tokenizer)
    assert_no_config(ready, FinetuneConfig, *held)
    # `prepare` does not write files.
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_lora_leaves_a_merged_model_and_its_adapter(run_values, tmp_path):
    values = {**run_values, "pooling": "mean", "lora_rank": 2}
    report, _ = run(tmp_path, **values | {"learning_rate": 0.02, "epochs": 10.0})
    scores = [seed["scores"]["eval"]["accuracy"] for seed in report["seeds"]]
    assert max(scores) > 60
    tuned = load(tmp_path)
    assert tuned.encoder.lora_rank is None
    assert tuned.evaluate(values["eval"])["accuracy"] == max(scores)
    options = {"pooling": "mean", "max_seq_length": 16}
    plain = TextClassifier.from_preset(values["encoder"], ["neg", "pos"], **options)
    plain.load_lora_weights(tmp_path / "adapter.lora.h5")
    assert plain.evaluate(values["eval"])["accuracy"] == max(scores)
    common.assert_same_weights(tuned.encoder.embeddings, plain.encoder.embeddings)


@pytest.mark.slow
def test_overwrite_replaces_the_run_also_in_bfloat16(finished, tmp_path, monkeypatch):
    """A picture that fails costs nothing else."""
    values, folder, _ = finished
    copy = Path(shutil.copytree(folder, tmp_path / "out"))
    stale = copy / "predictions_dev_mismatched.tsv"
    stale.write_text("")

    broken = mock.Mock(side_effect=RuntimeError("no\nink"))
    monkeypatch.setattr(Figure, "savefig", broken)
    new = {"overwrite": True, "seeds": 1, "epochs": 0.3, "init": "random"}
    _, said = run(copy, **values | new | {"mixed_precision": "bfloat16"})
    assert "warning: a picture is missing: RuntimeError no ink" in said
    left = {path.name for path in copy.iterdir()}
    assert left >= {"predictions.tsv", "metrics.jsonl"}
    assert not left & {stale.name, "curves.png"}
    saved = keras.saving.load_model(copy / "model.keras")
    assert saved.encoder.compute_dtype == "float32"
    assert json.loads((copy / "results.json").read_text())["init"] == "random"


# -- Bad input -------------------------------------------------------------------------


def error(capsys, **values):
    with pytest.raises(SystemExit) as raised, cli.clear_errors():
        finetuning.main(config(**values))
    capsys.readouterr()
    return f"{raised.value.code}\n"


def bad(tmp_path, pretrained, **values):
    options = {"train": 8, "dev": 4, "output_dir": str(tmp_path / "out")}
    return moods(tmp_path, pretrained, **options) | values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "colla"}, "Unknown --task=colla. Did you mean cola"),
        ({"task": "cola"}, "--task=cola does not read --train"),
        ({"task": "cola", "train": None, "eval": None}, "--task=cola needs --data_dir"),
        ({"train": "x.csv"}, "No file x.csv: correct --train"),
        ({"task": "ner", "test": "nope.conll"}, "No file nope.conll: correct --test"),
        ({"label": ["a", "b"]}, r"2 columns \(a, b\), .*use --task=multilabel"),
        ({"task": "regression", "label": ["a", "b"]}, "--task=regression has one"),
        ({"data_dir": "."}, "--task=classification does not read --data_dir"),
        ({"task": "ner", "data_dir": "."}, "--data_dir and --train, --eval exclude"),
        ({"task": "ner", "label": ["tag"]}, "--task=ner does not read --label:"),
        ({"task": "ner", "pooling": "mean"}, "--task=ner does not read --pooling"),
        ({"threshold": 0.4}, "--threshold needs --task=multilabel"),
        ({"train": None}, "needs --train"),
        ({"encoder": "nowhere/encoder.keras"}, "No encoder at nowhere/encoder.keras"),
        ({"max_seq_length": 65}, "--max_seq_length=65 .*exceeds the 64 positions"),
        ({"text": ["body"]}, "no column 'body'"),
        ({"text": ["a", "b", "c"]}, "--text names 3 columns"),
        ({"export_precision": "bfloat16"}, "leave out --noexport_saved_model"),
        ({"train_fraction": 0.0}, "--train_fraction must be above 0"),
        ({"task": "regression"}, "not a number"),
        ({"task": "multilabel", "label_separator": ""}, "must not be empty"),
    ],
)
def test_bad_flags_are_one_clear_error(tmp_path, pretrained, capsys, values, message):
    said = error(capsys, **bad(tmp_path, pretrained, **values))
    assert said.startswith("error: ")
    assert re.search(message, said), said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "tokens", [common.TOKENS[:40], (*common.TOKENS[:-1], "unheard")]
)
def test_wrong_vocabulary(tmp_path, pretrained, capsys, tokens):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in tokens))
    said = error(capsys, **bad(tmp_path, pretrained, vocab_file=str(path)))
    assert f"vocabulary of {len(tokens)} tokens does not fit the encoder" in said
    assert said.count("\n") == 1


def test_something_else_than_an_encoder(tmp_path, pretrained, capsys):
    task = Classification(name="mood", source=None, labels=("neg", "pos"))
    task.build_model(common.encoder()).save(tmp_path / "model.keras")
    values = bad(tmp_path, pretrained, encoder=str(tmp_path / "model.keras"))
    said = error(capsys, **values)
    assert "holds a TaskModel, not a TextEncoder; it is fine-tuned already" in said
    (tmp_path / "model.keras").write_bytes(b"no zip")
    assert "cannot be loaded as a TextEncoder" in error(capsys, **values)


def test_folders_of_others_are_left_alone(tmp_path, pretrained, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    values = bad(tmp_path, pretrained, output_dir=str(folder))
    (folder / "predictions.tsv").write_text("precious")
    assert "is not a fine-tuning run but has predictions.tsv" in error(capsys, **values)
    assert (folder / "predictions.tsv").read_text() == "precious"
    (folder / "task.json").write_text("{")
    assert "task.json is damaged" in error(capsys, **values)
    values["output_dir"] = str(folder / "predictions.tsv")
    assert "is a file: name a folder" in error(capsys, **values)


def test_inputs_and_trials_are_not_deleted(tmp_path, pretrained, capsys):
    folder = tmp_path / "mine"
    (folder / "search").mkdir(parents=True)
    (folder / "task.json").write_text('{"task": "classification"}')
    values = bad(tmp_path, pretrained, output_dir=str(folder))
    assert "holds an interrupted search" in error(capsys, **values)
    path = folder / "predictions_test.tsv"
    path.write_text("text\tlabel\na\tb\n")
    values |= {"overwrite": True, "train": str(path)}
    assert "the run would delete" in error(capsys, **values)
    assert path.is_file()
    link, encoder = tmp_path / "link.keras", folder / "small.keras"
    encoder.touch()
    link.symlink_to(encoder)
    assert "(--encoder)" in error(capsys, **values | {"encoder": str(link)})


def test_only_the_files_of_a_run_are_replaced(tmp_path, pretrained):
    """An unfinished run does not need --overwrite."""
    mine = ("photo.png", "my_predictions.txt", "null_odds_notes.md", "scatter.svg")
    theirs = ("task.json", "predictions_ax.tsv", "scatter.png", "null_odds_dev.json")
    for name in (*mine, *theirs):
        (tmp_path / name).write_text('{"task": "cola"}')
    folder = FinetuningFolder(tmp_path)
    folder.check("cola", overwrite=False)
    _, start = settings(pretrained, max_seq_length=32)
    folder.begin(glue_task("cola", "."), start.tokenizer, 32, {})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*mine, "task.json", "config.json", "labels.txt", "vocab.txt"}


def trains_to(monkeypatch, biases):
    """Makes training end with a bias of the head, by seed."""
    train = Trainer.train

    def diverges(self, seed, folder):
        failure = train(self, seed, folder)
        if seed in biases:
            self.model.head.bias.assign(biases[seed])
        return failure

    monkeypatch.setattr(Trainer, "train", diverges)


@pytest.mark.slow
def test_a_diverged_first_seed_is_not_exported(tmp_path, pretrained, monkeypatch):
    """The scores are NaN; results.json is still valid JSON."""
    examples = [dataclasses.replace(e, label=len(e.texts[0])) for e in sentiment(24)]
    data = table(tmp_path / "data.csv", examples)
    trains_to(monkeypatch, {0: [math.nan]})
    values = moods(tmp_path, pretrained, task="regression", epochs=1.0, seeds=2)
    folder = tmp_path / "out"
    report, _ = run(folder, **values | {"train": data, "eval": data})
    assert report["exported_seed"] == 1
    assert 0 in report["failed_seeds"]
    text = (folder / "results.json").read_text()
    results = json.loads(text, parse_constant=pytest.fail)
    assert results["seeds"][0]["scores"]["eval"]["spearman"] is None
    assert results["seeds"][1]["scores"]["eval"]["spearman"] is not None
    assert results["summary"]["eval"]["spearman"]["median"] is None
    assert "median nan" in facts_of(folder / "model_card.md")


@pytest.mark.slow
def test_a_diverged_seed_is_the_worst_whatever_it_scores(
    tmp_path, pretrained, monkeypatch
):
    """NaN predicts the first class: nine of ten are right here."""
    examples = enumerate(sentiment(40))
    rare = [dataclasses.replace(e, label="ab"[n % 10 == 0]) for n, e in examples]
    data = table(tmp_path / "data.csv", rare)
    # The second seed is worse: it predicts the rare class.
    trains_to(monkeypatch, {0: [math.nan, math.nan], 1: [-99, 99]})
    values = moods(tmp_path, pretrained, epochs=1.0) | {"train": data, "eval": data}
    report, said = run(tmp_path / "out", **values, seeds=2)
    assert any(line.endswith("\n2 of 2 seeds failed") for line in said)
    assert [seed["scores"]["eval"]["accuracy"] for seed in report["seeds"]] == [90, 10]
    assert report["exported_seed"] == 1
    assert report["failed_seeds"] == [0, 1]


# -- Defaults --------------------------------------------------------------------------


def settings(pretrained, name="cola", **values):
    chosen = config(encoder=pretrained, task=name, **values)
    start = finetuning.pretrained(chosen, lambda line: None)
    own = finetuning.settings(chosen, glue_task(name, "."), start, lambda line: None)
    return own, start


def test_presets_and_flags(pretrained):
    values = {"preset": "code", "weight_decay": 0.0, "epochs": 1.5}
    own, start = settings(pretrained, max_seq_length=32, **values)
    assert (own["weight_decay"], own["reduction"], own["epochs"]) == (0.0, "sum", 1.5)
    assert own["learning_rate"] == 1e-4
    assert settings(pretrained, "rte", max_seq_length=32)[0]["epochs"] == 10
    model = glue_task("cola", ".").build_model(start.encoder)
    for given in (False, True):
        recipe = config(adam_bias_correction=given).recipe
        optimizer = finetuning.optimizer(recipe, own, model, 200)
        assert optimizer.bias_correction is given


def test_dropout_is_the_runs_own(pretrained):
    """Pretraining used 0.0; the original always fine-tunes with 0.1."""
    for values, rates in (({}, (0.1, 0.1)), ({"attention_dropout": 0.0}, (0.1, 0.0))):
        _, start = settings(pretrained, max_seq_length=32, **values)
        assert (start.encoder.dropout, start.encoder.attention_dropout) == rates
        assert start.encoder.embeddings.dropout == 0.1
        for block in start.encoder.transformer.blocks:
            assert (block.dropout, block.attention_dropout) == rates


def test_longer_examples_than_in_pretraining_are_questioned(pretrained):
    """Pitfall 25: position embeddings beyond the trained length are untrained."""
    _, start = settings(pretrained, max_seq_length=33)
    chosen, said = config(max_seq_length=33), []
    for trained in (32, 33, None):
        longer = dataclasses.replace(start, trained_length=trained)
        finetuning.settings(chosen, glue_task("cola", "."), longer, said.append)
    (line,) = said
    assert "33 exceeds the 32 tokens of pretraining" in line


def test_casing_comes_from_the_pretraining_run_or_the_flags(tmp_path):
    path = common.save_pretrained(tmp_path)
    said = []
    start = finetuning.pretrained(config(encoder=str(path.parent)), said.append)
    assert start.tokenizer.lower_case
    assert said == []
    cased = config(encoder=str(path), lower_case=False)
    start = finetuning.pretrained(cased, said.append)
    assert not start.tokenizer.lower_case


def test_a_fine_tuned_model_is_the_start_of_another_task(
    finished, pretrained, tmp_path
):
    values, folder, _ = finished
    home, said = FinetuningFolder(folder), []
    assert recommended(folder) == recommended(values["encoder"]) == {"pooling": "mean"}
    trained = home.load().encoder
    before = finetuning.pretrained(config(encoder=pretrained), said.append)
    assert not np.array_equal(trained.get_weights()[0], before.encoder.get_weights()[0])
    for encoder in (home.path, home.path / "model.keras"):
        start = finetuning.pretrained(config(encoder=str(encoder)), said.append)
        common.assert_same_weights(start.encoder, trained)
        assert start.tokenizer.vocabulary == before.tokenizer.vocabulary
        assert start.tokenizer.lower_case
        # Pretraining trained 32 positions, more than this run.
        assert start.trained_length == 32
        assert any(line.endswith("fine-tuned for classification") for line in said)
        said.clear()
    trained.trainable = False
    trained.save(tmp_path / "encoder.keras")
    shutil.copy(home.path / "vocab.txt", tmp_path)
    frozen = config(encoder=str(tmp_path), lower_case=True, strip_accents=True)
    start = finetuning.pretrained(frozen, said.append)
    assert all(v.trainable for v in start.encoder.transformer.variables)
    unreadable = config(**values | {"output_dir": f"{home.path}[1]"})
    with pytest.raises(ValueError, match="cannot read checkpoints in folders with"):
        finetuning.FinetuningRun(unreadable, said.append)
    for encoder in (home.path, home.path / "model.keras"):
        again = config(**values | {"encoder": str(encoder), "overwrite": True})
        with pytest.raises(ValueError, match=r"would delete .*\(--encoder\)"):
            finetuning.run(again, said.append)
    other = Path(shutil.copytree(home.path, tmp_path / "other"))
    (other / "vocab.txt").write_text("".join(f"{t}\n" for t in common.TOKENS[::-1]))
    with pytest.raises(ValueError, match=r"vocab\.txt"):
        finetuning.pretrained(config(encoder=str(other)), said.append)


def test_flagfiles_parse_and_agree_with_their_task():
    """Every task of a benchmark has one (pitfall 40)."""
    structured = {"squad1", "squad2", "chunking", "ner", "pos"}
    assert {path.stem for path in CFGS} == {*glue.ROWS, *structured, "tiny"}
    for path in CFGS:
        chosen = cli.parse(FinetuneConfig, [f"--flagfile={path}"])
        assert chosen.run.task in TASKS
        if chosen.run.task in glue.ROWS:
            assert chosen.run.task == path.stem
            assert chosen.recipe.epochs == glue.ROWS[path.stem].epochs
            assert chosen.data.max_seq_length == 128


def test_the_summary_is_in_percent_with_the_median_of_all_seeds():
    """Pitfall 42."""
    results = [
        {"seed": seed, "scores": {"dev": {"matthews": score}}, "failure": failure}
        for seed, score, failure in ((0, 60.0, ""), (1, 0.0, "stuck"), (2, 62.0, ""))
    ]
    baseline = {"dev": {"matthews": 0.0}}
    found = summary(results, baseline, ("dev", "matthews"))["summary"]["dev"]
    assert found["matthews"]["median"] == 60
    assert found["matthews"]["mean"] == pytest.approx(122 / 3)
    assert found["matthews"]["std"] == pytest.approx(np.std([60, 0, 62], ddof=1))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--dropout=0.1 --pooling=cls", {"dropout": 0.1, "pooling": "cls"}),
        ("--flagfile=configs/tasks/cola.cfg", {"dropout": 0.0, "head_init": "probe"}),
        ("--task=squad1", {"dropout": 0.0, "head_init": "random"}),
        ("--frozen", {"dropout": 0.1, "learning_rate": None}),
    ],
)
def test_the_recipe_of_an_encoder_yields_to_flags(flags, expected):
    said = []
    chosen = cli.parse(FinetuneConfig, ["--encoder=mini", *flags.split()])
    values = fields.to_flat(finetuning.with_recipe(chosen, said.append))
    assert expected.items() <= values.items()
    assert len(said) == (expected["dropout"] == 0 or "pooling" in expected)
    assert all(line.startswith("recipe of mini: ") for line in said)
    # Before training, because conversion refuses the head.
    assert ("Hugging Face" in "".join(said)) == (values["pooling"] == "mean")


def test_flags_that_need_another_one_also_in_python():
    config = fields.from_flat({"init": "random", "lora_rank": 8}, FinetuneConfig)
    with pytest.raises(ValueError, match="lora_rank"):
        finetuning.run(config, print)


def test_flags_that_a_probe_does_not_use_are_named(monkeypatch, capsys):
    monkeypatch.setattr(finetuning, "run", lambda *_: None)
    flags = ["--frozen", "--task=cola", "--pooling=mean", "--seeds=2"]
    finetuning.main(cli.parse(FinetuneConfig, flags))
    assert "--frozen does not use --pooling, --seeds" in capsys.readouterr().out
