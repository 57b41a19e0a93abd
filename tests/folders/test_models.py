"""Saved models, and what is said of those that cannot be loaded."""

import keras
import numpy as np
import pytest

from electra_tf.folders import models
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import MaskedLM
from tests import tiny, tiny_run


def test_models_of_another_class_are_refused(tmp_path):
    folder = tiny_run.save(tmp_path)
    path = folder / "generator.keras"
    assert isinstance(models.load(path, MaskedLM, "x"), MaskedLM)
    with pytest.raises(ValueError, match=r"holds a MaskedLM, not a TextEncoder\. G"):
        models.load(path, TextEncoder, "Give x")
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be loaded"):
        models.load(path, TextEncoder, "Give x")


def test_a_model_that_cannot_be_saved_leaves_the_old_one(tmp_path, monkeypatch):
    path, encoder = tmp_path / "encoder.keras", tiny.electra().discriminator
    models.save(encoder, path)
    before = path.read_bytes()

    def half(part):
        part.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(encoder, "save", half)
    with pytest.raises(OSError, match=r"No space|encoder\.keras"):
        models.save(encoder, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_halves_are_rounded_and_built_anew(tmp_path):
    path, model = tmp_path / "generator.safetensors", tiny.electra(seed=1).generator
    models.save(model, path)
    loaded = models.load(path, MaskedLM)
    described = keras.saving.serialize_keras_object
    assert described(loaded) == described(model)
    for mine, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs.astype(np.float16))
    encoder = models.load(path, TextEncoder)
    assert encoder.count_params() == model.encoder.count_params()


def test_what_halves_cannot_hold_or_are_is_one_error(tmp_path):
    path, encoder = tmp_path / "encoder.safetensors", tiny.electra().discriminator
    encoder.weights[0].assign(1e5 * np.ones(encoder.weights[0].shape))
    with pytest.raises(ValueError, match="that float16 cannot hold"):
        models.save(encoder, path)
    assert not path.exists()
    path.write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match=r"encoder\.safetensors cannot be loaded"):
        models.load(path, TextEncoder)
