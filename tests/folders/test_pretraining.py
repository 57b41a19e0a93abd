import json
import math

import pytest

from electra_tf import files
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import (
    OUTPUTS,
    RECIPE,
    PretrainingFolder,
    completion,
    recommended,
)
from tests.tasks import common
from tests.tasks.common import TOKENS


@pytest.fixture
def folder(tmp_path):
    return PretrainingFolder(tmp_path)


def write(path, described):
    (path / "config.json").write_text(json.dumps(described))
    (path / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    return PretrainingFolder(path)


@pytest.mark.parametrize(
    ("described", "known"),
    [
        ({}, {}),
        ({"config": {"lower_case": False}}, {"lower_case": False}),
        (
            # The given records have a casing that differs from the flags' defaults.
            {
                "config": {"lower_case": True, "strip_accents": True},
                "data": {"lower_case": False, "strip_accents": False},
            },
            {"lower_case": False, "strip_accents": False},
        ),
        ({"lower_case": True, "config": None}, {"lower_case": True}),
        ({"data": {"lower_case": "yes"}}, {}),
    ],
)
def test_casing(tmp_path, described, known):
    assert write(tmp_path, described).casing == known


def test_flags_win_and_assumptions_are_said(tmp_path):
    folder = write(tmp_path, {"data": {"lower_case": False}})
    said = []
    found = folder.tokenizer(said.append)
    assert (found.lower_case, found.strip_accents) == (False, True)
    assert len(said) == 1
    assert "--strip_accents; assumed" in said[0]
    found = folder.tokenizer(said.append, lower_case=True, strip_accents=False)
    assert (found.lower_case, found.strip_accents) == (True, False)
    assert len(said) == 1


def test_an_empty_folder(folder):
    assert folder.settings == folder.held_out() == {}
    assert folder.vocabulary() is None
    assert folder.metrics() == []
    with pytest.raises(FileNotFoundError, match="No vocabulary at"):
        folder.tokenizer(print)


def test_the_vocabulary_is_that_of_training(tmp_path):
    """Another order of the tokens gives every id another meaning."""
    encoder = common.encoder(layers=1)
    folder = write(tmp_path, {"data": {"vocabulary_sha256": Vocabulary(TOKENS).sha256}})
    folder.check_vocabulary("encoder", encoder)
    Vocabulary((*TOKENS[:5], *TOKENS[:4:-1])).save(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match=r"vocab\.txt does not have the SHA-256"):
        folder.check_vocabulary("encoder", encoder)
    Vocabulary(TOKENS[:-1]).save(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match=f"for {len(TOKENS)} tokens but the vocabula"):
        folder.check_vocabulary("encoder", encoder)


def test_the_last_held_out_numbers(tmp_path, folder):
    rows = [
        {"step": 1, "eval_loss": 3.0},
        {"step": 2, "eval_loss": 2.0, "eval_auc": None},
        {"step": 3, "loss": 1.0},
    ]
    files.write_json_lines(tmp_path / "metrics.jsonl", rows)
    assert folder.held_out() == {"eval_loss": 2.0}


def test_only_outputs_of_these_names_are_deleted(tmp_path, folder):
    for name in ("mine", "data", "checkpoints"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "manifest.json").touch()
    folder.delete({*OUTPUTS} - {"data"})
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "data"}
    folder.delete(["data", "mine"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_data_folder_without_records_is_the_users(tmp_path, folder):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "novel.txt").write_text("mine")
    assert folder.outputs() == []
    folder.delete(OUTPUTS)
    assert (tmp_path / "data" / "novel.txt").read_text() == "mine"


CONFIG = {"encoder": {"layers": 12, "sizes": (1, 2)}, "run": {"log": 1}, "rate": 0.1}


def test_other_settings_are_refused_by_name(tmp_path, folder):
    assert not folder.check_settings(CONFIG)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-5.index").touch()
    with pytest.raises(ValueError, match=r"checkpoints but no config\.json"):
        folder.check_settings(CONFIG)
    folder.describe(CONFIG)
    assert folder.check_settings(CONFIG)
    changed = {"encoder": {"layers": 6, "sizes": [1, 2]}, "run": {"log": 2}, "x": None}
    with pytest.raises(ValueError, match="other settings") as error:
        folder.check_settings(changed, ("run.*",))
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        "encoder.layers: was 12, now 6",
        "rate: was 0.1, now (absent)",
        "x: was (absent), now None",
    ]


def test_an_infinite_norm_survives_json(folder):
    config = {"config": {"clip_norm": math.inf}, "random_keys": "rows"}
    folder.describe(config)
    assert folder.flags == {"clip_norm": math.inf}
    assert folder.check_settings(config)


def test_a_flag_that_is_gone_must_have_had_its_default(folder, monkeypatch):
    monkeypatch.setitem(PretrainConfig.REMOVED, "old_flag", None)
    folder.describe({"config": {"old_flag": None, "rate": 1}})
    assert folder.check_settings({"config": {"rate": 1}})
    folder.describe({"config": {"old_flag": 0.5, "rate": 1}})
    with pytest.raises(UserError, match=r"config.old_flag: was 0.5, now \(absent\)"):
        folder.check_settings({"config": {"rate": 1}})


@pytest.mark.parametrize("name", ["distribution", "gradient_accumulation_steps"])
def test_random_numbers_that_would_change_are_refused(folder, name):
    """Runs of older versions with several devices or micro-batches."""
    cut = {"distribution": "mirrored", "gradient_accumulation_steps": 4}
    flags = {"distribution": "none", "gradient_accumulation_steps": 1}
    new = {"config": flags, "random_keys": "row of the global batch"}
    folder.describe({"config": flags})
    assert folder.check_settings(new)
    flags = {**flags, name: cut[name]}
    folder.describe({"config": flags})
    with pytest.raises(ValueError, match="which drew other random numbers"):
        folder.check_settings({**new, "config": flags})
    folder.describe({**new, "config": flags})
    assert folder.check_settings({**new, "config": flags})
    # As before the records are read.
    assert folder.check_settings({"config": flags})


def test_a_shipped_encoder_has_a_recipe():
    flags = recommended("mini")
    expected = {"dropout": 0, "head_init": "probe", "pooling": "mean"}
    assert {**expected, "learning_rate": 3e-4}.items() <= flags.items()
    # Tagging heads have no pooling; question answering heads are not linear probes.
    assert flags.keys() - recommended("mini", "tagging").keys() == {"pooling"}
    linear = {"pooling", "head_dropout", "head_init"}
    assert flags.keys() - recommended("mini", "question_answering").keys() == linear
    lines = []
    rest = completion("mini", "", {"dropout": 0.1}, lines.append)
    assert flags.keys() - rest.keys() == {"dropout"}
    assert "pooling=mean" in lines[0]


def test_other_encoders_have_none(tmp_path):
    (tmp_path / RECIPE).write_text("{}")
    (tmp_path / "encoder.keras").touch()
    for encoder in (tmp_path, tmp_path / "encoder.keras", tmp_path / "none", "a/b"):
        assert recommended(encoder) == {}


@pytest.mark.parametrize("flags", [{"rate": 1}, {"dropout": 2.0}, []])
def test_a_damaged_recipe_is_an_error_that_names_the_file(tmp_path, flags):
    (tmp_path / RECIPE).write_text(json.dumps(flags))
    with pytest.raises(ValueError, match=RECIPE):
        recommended(tmp_path)
