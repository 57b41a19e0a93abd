import json
import re
import zipfile
from unittest import mock

import keras
import numpy as np
import pytest
import safetensors.numpy

from electra_tf.folders import models
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import MaskedLM
from tests import tiny, tiny_run
from tests.tasks.common import assert_same_weights


def test_models_of_another_class_are_refused(tmp_path):
    path = tiny_run.save(tmp_path) / "generator.keras"
    assert isinstance(models.load(path, MaskedLM, "x"), MaskedLM)
    with pytest.raises(ValueError, match=r"holds a MaskedLM, not a TextEncoder\)\. G"):
        models.load(path, TextEncoder, "Give x")
    whole = path.read_bytes()
    for size in (0, len(whole) - 1):
        path.write_bytes(whole[:size])
        message = r"generator\.keras cannot be loaded .*not a zip file.*\. Give x"
        with pytest.raises(ValueError, match=message):
            models.load(path, TextEncoder, "Give x")
    # A zip file has a checksum for every byte.
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"^.*generator\.keras cannot be loaded.*$"):
        models.load(path, MaskedLM)


def rewritten(path, changes, compress=zipfile.ZIP_STORED):
    """Rewrites the archive with other contents by file name."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compress) as archive:
        for name, content in {**contents, **changes}.items():
            archive.writestr(name, content)


def test_files_that_would_take_all_memory_are_refused_first(tmp_path):
    path = tiny_run.save(tmp_path) / "encoder.keras"
    whole = path.read_bytes()
    assert models.load(path, TextEncoder)

    written = zipfile.ZipFile(path).read("config.json").decode()

    def refused(message, compress=zipfile.ZIP_STORED, **changes):
        path.write_bytes(whole)
        rewritten(path, changes, compress)
        with pytest.raises(ValueError, match=rf"encoder\.keras cannot .*{message}"):
            models.load(path, TextEncoder)

    def larger(name, size):
        changed = re.sub(rf'"{name}": \d+', f'"{name}": {size}', written)
        assert changed != written
        return {"config.json": changed}

    small = "too small for the sizes"
    sizes = ("num_layers", "hidden_size", "vocab_size", "max_positions", "num_segments")
    for name in sizes:
        refused(small, **larger(name, 10**8))
    # A table has `size` columns.
    held = zipfile.ZipFile(path).getinfo("model.weights.h5").file_size
    refused(small, **larger("vocab_size", held))
    # Layers take time even if they are narrow; padding does not count as weights.
    refused(small, **larger("num_layers", 20_000))
    refused(small, **larger("num_segments", 10**6), padding=bytes(10**7))

    refused("unpack to 1", zipfile.ZIP_DEFLATED, bomb=bytes(10**8))
    refused("maximum recursion depth", **{"config.json": b"[" * 100_000})


def test_classes_are_checked_before_anything_is_built(tmp_path, monkeypatch):
    path = tiny_run.save(tmp_path) / "encoder.keras"
    whole = path.read_bytes()

    built = mock.Mock(side_effect=AssertionError("it was built"))
    monkeypatch.setattr(keras.saving, "load_model", built)
    inputs = keras.Input([3])
    for model in (
        keras.Sequential([inputs, keras.layers.Dense(2)]),
        keras.Model(inputs, keras.layers.Dense(2)(inputs)),
    ):
        model.save(path)
        with pytest.raises(ValueError, match=r"holds a \w+, not a TextEncoder"):
            models.load(path, TextEncoder)
    monkeypatch.undo()
    dense = keras.saving.serialize_keras_object(keras.layers.Dense(30_000))
    unknown = {"module": "os", "class_name": "System", "registered_name": "System"}
    for part in (dense, {**unknown, "config": {}}):
        path.write_bytes(whole)
        config = json.loads(zipfile.ZipFile(path).read("config.json"))
        config["config"]["embeddings"] = part
        rewritten(path, {"config.json": json.dumps(config)})
        with pytest.raises(ValueError, match=r"encoder\.keras cannot be loaded as a T"):
            models.load(path, TextEncoder)


def test_shared_embeddings_stay_shared(tmp_path):
    models.save(tiny.electra(num_layers=1), tmp_path / "first.keras")
    loaded = keras.saving.load_model(tmp_path / "first.keras")
    assert loaded.generator.encoder.embeddings is loaded.discriminator.embeddings


def test_halves_are_rounded_and_built_anew(tmp_path):
    path = tmp_path / "generator.safetensors"
    model = tiny.electra(num_layers=1).generator
    models.save(model, path)
    loaded = models.load(path, MaskedLM)
    described = keras.saving.serialize_keras_object
    assert described(loaded) == described(model)
    model.set_weights([w.astype(np.float16) for w in model.get_weights()])
    assert_same_weights(loaded, model)
    encoder = models.load(path, TextEncoder)
    assert encoder.count_params() == model.encoder.count_params()
    tensors = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "numpy") as file:
        said = file.metadata()["description"]
    for name, size in (("vocab_size", 10**6), ("num_layers", 10**3)):
        larger = re.sub(rf'"{name}": \d+', f'"{name}": {size}', said)
        metadata = {"description": larger, "padding": "x" * 10**7}
        safetensors.numpy.save_file(tensors, path, metadata)
        with pytest.raises(ValueError, match="too small for the sizes"):
            models.load(path, MaskedLM)
    path.write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match=r"generator\.safetensors cannot be loaded"):
        models.load(path, TextEncoder)
    path.unlink()
    encoder.weights[0].assign(1e5 * np.ones(encoder.weights[0].shape))
    with pytest.raises(ValueError, match="that float16 cannot hold"):
        models.save(encoder, path)
    assert not path.exists()
