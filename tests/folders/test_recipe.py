import json

import pytest

from electra_tf.folders.pretraining import RECIPE, completion, recommended


def test_a_shipped_encoder_has_a_recipe():
    flags = recommended("mini")
    expected = {"dropout": 0, "head_init": "probe", "pooling": "mean"}
    assert expected.items() <= flags.items()
    assert flags["learning_rate"] == 3e-4
    # Tagging heads have no pooling; question answering heads are not linear probes.
    assert flags.keys() - recommended("mini", "tagging").keys() == {"pooling"}
    linear = {"pooling", "head_dropout", "head_init"}
    assert flags.keys() - recommended("mini", "question_answering").keys() == linear
    lines = []
    rest = completion("mini", "", {"dropout": 0.1}, lines.append)
    assert flags.keys() - rest.keys() == {"dropout"}
    assert "pooling=mean" in lines[0]


@pytest.mark.parametrize("encoder", ["mini", "elsewhere"])
def test_a_pooling_without_an_export_is_named_before_training(encoder):
    for pooling in ("cls", "mean", "layers"):
        lines = []
        completion(encoder, "", {"pooling": pooling}, lines.append)
        assert any("Hugging Face" in line for line in lines) == (pooling != "cls")


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
