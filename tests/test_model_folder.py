"""What lies beside a model is read in one place."""

import json

import pytest

from electra_tf import model_folder
from electra_tf.encoder import TextEncoder
from electra_tf.pretraining import MaskedLM
from tests import tiny_run
from tests.tasks.common import TOKENS


def write(folder, described):
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    return model_folder.read_config(folder)


@pytest.mark.parametrize(
    ("described", "known"),
    [
        ({}, {}),
        ({"config": {"lower_case": False}}, {"lower_case": False}),
        (
            # Given records were made with another casing than the flags' defaults.
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
    assert model_folder.casing(write(tmp_path, described)) == known


def test_flags_win_and_assumptions_are_said(tmp_path):
    described = write(tmp_path, {"data": {"lower_case": False}})
    said = []
    found = model_folder.tokenizer(tmp_path, described, said.append)
    assert (found.lower_case, found.strip_accents) == (False, True)
    assert len(said) == 1
    assert "--strip_accents; assumed" in said[0]
    found = model_folder.tokenizer(
        tmp_path, described, said.append, lower_case=True, strip_accents=False
    )
    assert (found.lower_case, found.strip_accents) == (True, False)
    assert len(said) == 1


def test_no_config_is_no_error_and_a_damaged_one_is(tmp_path):
    assert model_folder.read_config(tmp_path) == {}
    for text in ("{", "[1]", '"x"'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match="is damaged"):
            model_folder.read_config(tmp_path)


def test_no_vocabulary_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="--vocab_file"):
        model_folder.tokenizer(tmp_path, {}, print)


def test_models_of_another_class_are_refused(tmp_path):
    folder = tiny_run.save(tmp_path)
    path = folder / "generator.keras"
    assert isinstance(model_folder.load(path, MaskedLM, "x"), MaskedLM)
    with pytest.raises(ValueError, match=r"holds a MaskedLM, not a TextEncoder\. G"):
        model_folder.load(path, TextEncoder, "Give x")
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be loaded"):
        model_folder.load(path, TextEncoder, "Give x")
