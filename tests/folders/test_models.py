"""Saved models, and what is said of those that cannot be loaded."""

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
    whole = path.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        message = r"generator\.keras cannot be loaded .*not a zip file.*\. Give x"
        with pytest.raises(ValueError, match=message):
            models.load(path, TextEncoder, "Give x")
    # Every byte of a zip file is under a checksum.
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(
        ValueError, match=r"generator\.keras cannot be loaded"
    ) as caught:
        models.load(path, MaskedLM)
    assert "\n" not in str(caught.value)


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
