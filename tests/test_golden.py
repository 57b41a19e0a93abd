import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.runs import pretraining
from electra_tf.tasks import TaskModel
from electra_tf.tasks.batching import TrainingOrder
from tests import ROOT
from tests.end_to_end.test_pretraining import final_weights
from tests.golden import archive, commands, recipes

HERE = archive.HERE


def read(path):
    return json.loads(path.read_text("utf-8"))


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


def assert_close(found, expected, tolerance, where=""):
    """Compares nested values: numbers approximately, all else exactly."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance), where
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name, value in expected.items():
            assert_close(found[name], value, tolerance, f"{where}/{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, value in enumerate(expected):
            assert_close(found[number], value, tolerance, f"{where}/{number}")
    else:
        assert found == expected, where


def assert_arrays(found, expected, tolerance):
    assert sorted(found) == sorted(expected)
    for name in expected:
        one, other = found[name], expected[name]
        assert one.dtype == other.dtype, name
        if tolerance and one.dtype.kind == "f":
            limits = {"rtol": tolerance, "atol": tolerance}
            np.testing.assert_allclose(one, other, **limits, err_msg=name)
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return archive.unpack("runs", tmp_path_factory.mktemp("stored"))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A copy of the stored runs as current folder."""
    monkeypatch.chdir(archive.unpack("runs", tmp_path))
    return tmp_path


# Now estimated from 2,048 thresholds, formerly from 200.
AUC = ("discriminator_auc", "copy_auc")


def losses(model_dir, after):
    """Logged metrics after a step, without times and AUC."""
    logged = rows((model_dir / "metrics.jsonl").read_text())
    left_out = re.compile(f"per_second|time|{'|'.join(AUC)}")
    later = [row for row in logged if row["step"] > after]
    return [{k: v for k, v in row.items() if not left_out.search(k)} for row in later]


# Removed flags whose stored values are ignored.
IGNORED = {
    "tfds_data_dir": None,
    "num_processes": 1,
    "profile": False,
    "steps_per_execution": 1,
    "tpu": "",
}


def assert_config(found, expected, kind=PretrainConfig):
    """Checks that flags are unchanged; new and removed flags have their defaults."""
    # JSON turns tuples into lists.
    defaults = json.loads(json.dumps(fields.to_flat(kind())))
    new = {flag: defaults[flag] for flag in found.keys() - expected.keys()}
    removed = {**getattr(kind, "REMOVED", {}), **IGNORED}
    gone = {flag: removed[flag] for flag in removed if flag in expected}
    assert {**found, **gone} == {**new, **expected}


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes.STOPPED)
def test_a_stopped_run_goes_on(runs, stored, name, monkeypatch):
    step, whole, flags = recipes.STOPPED[name]
    flags, tolerance = recipes.pretraining(name, *flags), 1e-4
    if name == "electra" and archive.is_the_same_machine():
        tolerance = 0
        # The flags of tests compile to code with other last bits.
        for variable in ("XLA_FLAGS", "TF_XLA_FLAGS"):
            monkeypatch.delenv(variable, raising=False)
        done = commands.python(ROOT / "run_pretraining.py", *flags, folder=runs)
        said = (done.stdout, done.stderr)
    else:
        said = commands.run("run_pretraining", *flags)
    assert f"resuming after step {step}" in "".join(said)
    found, expected = (final_weights(x, 12) for x in (runs / name, stored / whole))
    assert_arrays(found, expected, tolerance)
    expected = losses(stored / whole, step)
    assert expected
    # All earlier metrics are still logged; there are new ones.
    pairs = zip(losses(runs / name, step), expected, strict=True)
    found = [{k: row[k] for k in row if k in was} for row, was in pairs]
    assert_close(found, expected, 1e-4)
    # The settings are accepted as equal and written unchanged.
    before, after = (read(x / name / "config.json") for x in (stored, runs))
    assert_config(after["config"], before["config"])
    assert after["data"] == before["data"]
    if name == "electra":
        names = tf.train.list_variables(f"{name}/checkpoints/ckpt-12")
        expected = (HERE / "checkpoint.txt").read_text().splitlines()
        assert [name for name, _ in names] == expected


@pytest.fixture(scope="module")
def systems(tmp_path_factory):
    folder = archive.unpack("systems", tmp_path_factory.mktemp("systems"))
    return read(folder / "systems.json")


def flags_of(config):
    """Yields stored settings as flags, without removed flags."""
    for name, value in config.items():
        if name in PretrainConfig.REMOVED or name in IGNORED:
            continue
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no{name}"
        elif isinstance(value, list):
            yield f"--{name}={','.join(value)}"
        elif value is not None:
            yield f"--{name}={value}"


def test_stored_settings_are_accepted(runs, systems):
    name = "mlm"
    config = systems[name]["config"]
    runs.joinpath(name).mkdir()
    described = {"config": config, "data": systems[name]["data"]}
    (runs / name / "config.json").write_text(json.dumps(described))
    flags = (*flags_of(config), "--dry_run")
    out, _ = commands.run("run_pretraining", *flags)
    assert "nothing was trained" in out
    _, said = commands.run("run_pretraining", *flags, "--seed=9", expect=1)
    assert "config.seed: was 0, now 9" in said


# Tests of tests/end_to_end finish runs of the other systems.
FINISHED_HERE = ("electra_15", "one_encoder", "untied")


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes.SYSTEMS)
def test_a_system_is_trained_as_it_was(runs, systems, name, monkeypatch):
    expected = systems[name]
    if name not in FINISHED_HERE:
        monkeypatch.setattr(pretraining, "finish", lambda run: None)
    shutil.rmtree(runs / name, ignore_errors=True)
    commands.run("run_pretraining", *flags_of(expected["config"]))
    found = read(runs / name / "config.json")
    assert_config(found["config"], expected["config"])
    assert found["data"] == expected["data"]
    assert_close(recipes.variables(name), expected["checkpoint"], 1e-4)


# Changed defaults: two commands now share one.
CHANGED = {("records", "--vocab_size"): 30522}
# Removed flags: a stored config may have their default (``fields.REMOVED``).
GONE = {
    "run_finetuning": {f"--{name}" for name in FinetuneConfig.REMOVED},
    "run_pretraining": {f"--{name}" for name in (*PretrainConfig.REMOVED, *IGNORED)},
    "records": {"--tfds_data_dir", "--num_processes"},
    "predict": {"--jsonl"},
    "inspect": {"--temperature", "--vocab_file", "--lower_case", "--strip_accents"},
    "doctor": {"--flagfile"},
    "compare": {
        *("--budget_flops", "--checkpoints", "--keep", "--overwrite", "--untrained"),
    },
    "convert": {"--generator_num_heads"},
}


GONE_CHOICES = {"--mask_select": {"spans"}}


def test_no_flag_is_lost():
    expected = read(HERE / "flags.json")
    assert len(expected) == 8
    for name, stored_options in expected.items():
        found = commands.options(name)
        for option, meaning in stored_options.items():
            if option.replace("--no-", "--") in GONE.get(name, ()):
                assert option not in found
                continue
            if option in ("-h", "--help", "texts"):
                continue
            default = CHANGED.get((name, option), meaning["default"])
            gone = GONE_CHOICES.get(option, set())
            choices = meaning["choices"]
            choices = choices and [each for each in choices if each not in gone]
            assert found[option]["choices"] == choices, (name, option)
            assert found[option]["default"] == default, (name, option)


@pytest.mark.parametrize("name", recipes.BATCHES)
def test_batches_of_stored_records(stored, name):
    options = recipes.BATCHES[name]
    which = "train" if options.get("training", True) else "eval"
    files = f"{stored}/data/{which}-*.tfrecord"
    batches = et.data.pretraining_dataset(files, **options).take(3)
    found = {
        f"{number}/{name}": value
        for number, batch in enumerate(batches.as_numpy_iterator())
        for name, value in batch.items()
    }
    with np.load(stored / f"batches_{name}.npz") as expected:
        assert_arrays(found, dict(expected), 0)


def test_records_are_built_as_they_were(runs):
    flags = ("--corpus=text.txt", "--vocab_file=vocab.txt", "--output_dir=new")
    sizes = ("--max_seq_length=24", "--eval_fraction=0.1")
    commands.run("records", *flags, *sizes)
    for path in runs.glob("data/*.t*"):
        assert (runs / "new" / path.name).read_bytes() == path.read_bytes(), path.name
    assert read(runs / "new" / "manifest.json") == read(runs / "data" / "manifest.json")


@pytest.mark.slow
def test_all_saved_models_answer_and_are_trained_on_as_they_were(tmp_path):
    archive.unpack("models", tmp_path)
    done = commands.python(HERE / "answers.py", tmp_path, "now", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found, expected = (read(tmp_path / f"{x}.json") for x in ("now", "answers"))
    numbers, expected_numbers = (
        dict(np.load(tmp_path / f"{x}.npz")) for x in ("now", "answers")
    )
    assert found.keys() == expected.keys()
    assert expected["two_tower/whole"]["class"] == "TwoTowerElectra"
    expected["two_tower/whole"]["class"] = "Electra"
    # Other ways to clip than the norm of all summed gradients are removed.
    for model in expected.values():
        if "optimizer" not in model:
            continue
        del model["optimizer"]["config"]["clipping"]
        if model["optimizer"]["config"].pop("clip_groups"):
            model["optimizer"]["variables"].pop()
            model["optimizer"]["magnitudes"].pop()
    # Metrics over replaceable tokens are new.
    added = numbers.keys() - expected_numbers.keys()
    assert expected_numbers.keys() <= numbers.keys()
    assert all("replaceable" in name for name in added)
    assert {*expected.pop("registered")} <= {*found.pop("registered")}
    for name, value in expected.items():
        assert_close(found[name], value, 1e-5, name)
    # This model clipped a group separately, so its update differs.
    apart = "electra/whole:weights"
    for name, value in expected_numbers.items():
        if not name.endswith(AUC) and name != apart:
            limits = {"rtol": 1e-5 if ":output_" in name else 1e-4, "atol": 1e-5}
            np.testing.assert_allclose(numbers[name], value, **limits, err_msg=name)


@pytest.mark.parametrize("name", recipes.QUESTIONS)
def test_commands_answer_as_they_did(runs, name):
    command, texts = recipes.QUESTIONS[name]
    expected = read(runs / "answers.json")[name]
    out, _ = commands.run(*command.split(), *texts, expect=expected["code"])
    assert_close(rows(out), expected["rows"], 1e-5)


def test_the_stored_saved_model_needs_nothing_of_this_library(stored):
    import tensorflow_text  # noqa: F401  registers the tokenizer's operations

    loaded = tf.saved_model.load(str(stored / "task" / "saved_model"))
    assert {"serving_default", "ids", "tf_example"} <= set(loaded.signatures)
    expected = read(stored / "answers.json")["predict"]["rows"]
    found = loaded.signatures["serving_default"](text=tf.constant(recipes.TEXTS))
    labels = [label.decode() for label in found["label"].numpy()]
    assert labels == [row["label"] for row in expected]
    probabilities = [row["probability"] for row in expected]
    np.testing.assert_allclose(found["probability"], probabilities, atol=1e-5)


@pytest.mark.slow
def test_a_finished_run_is_a_start(runs):
    """Covers --init_from and the encoder of a converted run."""
    flags = recipes.pretraining("new", "--init_from=finished", "--dry_run")
    commands.run("run_pretraining", *flags)
    commands.run("convert", "--from=finished", "--to=imported")
    out, _ = commands.run("inspect", "--model=imported", "--json", *recipes.TEXTS[:2])
    assert_close(rows(out), read(runs / "answers.json")["inspect"]["rows"], 1e-5)


def test_a_finished_task_is_not_replaced(runs):
    before = (runs / "task" / "results.json").read_bytes()
    _, said = commands.run("run_finetuning", *recipes.FINETUNING.split(), expect=1)
    assert "task holds a finished run: pass --overwrite" in said
    assert (runs / "task" / "results.json").read_bytes() == before


@pytest.mark.slow
def test_a_task_is_fine_tuned_as_it_was(runs, stored, monkeypatch):
    # Since 0.3 windows are smaller, and heads are drawn before encoders.
    monkeypatch.setattr(TrainingOrder, "grouped", 50)
    monkeypatch.setattr(
        TaskModel,
        "new_head_weights",
        lambda model, seed: model.fresh(seed).head.get_weights(),
    )
    flags = (*recipes.FINETUNING.split(), "--overwrite")
    code, output, said = commands.call("run_finetuning", *flags)
    # The exit code is new: 1 if every seed failed. Files have new entries.
    assert code == ("every seed failed" in output + said), said
    for name in ("results.json", "task.json"):
        found, expected = (read(x / "task" / name) for x in (runs, stored))
        assert_close({key: found[key] for key in expected}, expected, 1e-4)
    found, expected = (read(x / "task" / "config.json") for x in (runs, stored))
    assert found["settings"] == expected["settings"]
    settings = {**found["config"], "overwrite": False}
    # The cache of rows is removed; its folder did not affect results.
    del expected["config"]["cache_dir"]
    assert_config(settings, expected["config"], FinetuneConfig)
    out, _ = commands.run("predict", "--model=task", *recipes.TEXTS)
    assert_close(rows(out), read(stored / "answers.json")["predict"]["rows"], 1e-3)
