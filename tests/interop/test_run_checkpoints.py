"""`python -m electra_tf convert --checkpoint`: exports a step of a pretraining run."""

import json
import shutil

import keras
import numpy as np
import pytest

from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.interop import hugging_face, networks, run_folder
from electra_tf.interop.imported import Source
from electra_tf.systems import build
from electra_tf.training import AdamW
from electra_tf.training.checkpoints import CheckpointStore, named_variables
from tests import tiny_run
from tests.interop.models import same
from tests.interop.test_convert import refused, run
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return unfinished(tmp_path_factory.mktemp("electra"))


def unfinished(home, **choices):
    """Writes a killed run with checkpoints of two steps.

    Returns its folder, and by step and file the weights that a finished run would save.
    """
    flags = {**tiny_run.SIZES, "dropout": 0.0, **choices}
    config = fields.from_flat(fields.to_flat(PretrainConfig()) | flags, PretrainConfig)
    special_ids = build.special_ids(Vocabulary(TOKENS))
    model = build.build_model(config, len(TOKENS), special_ids)
    # Adds optimizer slots, which are not weights of a network.
    model.compile(optimizer=AdamW(1e-3))
    model.optimizer.build(model.trainable_variables)
    folder = tiny_run.save(home / "run", **flags)
    for path in folder.glob("*.keras"):
        path.unlink()
    store = CheckpointStore(
        folder / "checkpoints", named_variables(model, model.optimizer)
    )
    expected = {}
    for seed, step in enumerate((100, 500)):
        randomize(model.trainable_variables, seed=seed)
        store.save(step)
        parts = model.artifacts().items()
        expected[step] = {f"{name}.keras": arrays(part) for name, part in parts}
    return folder, expected


def arrays(model):
    return {v.path.split("/", 1)[1]: v.numpy() for v in model.weights}


def assert_saved(path, expected):
    found = arrays(keras.saving.load_model(path, compile=False))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_as_from_a_finished_run(trained, tmp_path):
    """Converts to the library's own format and to another one."""
    folder, expected = trained
    said = run(folder, tmp_path / "at", "--checkpoint=100")
    assert "weights after step 100" in said
    assert {path.name for path in (tmp_path / "at").glob("*.keras")} == {*expected[100]}
    for name, weights in expected[100].items():
        assert_saved(tmp_path / "at" / name, weights)
    flags = ("--format=hugging_face",)
    early, late = tmp_path / "early", tmp_path / "late"
    run(folder, early, "--checkpoint=100", *flags)
    run(folder, late, "--checkpoint=500", *flags)
    found = hugging_face.read(Source(str(early)))
    assert same(found, run_folder.read(Source(str(tmp_path / "at"))))
    found = networks.models(hugging_face.read(Source(str(late))))["encoder"]
    for name, array in arrays(found).items():
        np.testing.assert_array_equal(array, expected[500]["encoder.keras"][name])
    # The card has no scores of other steps: the run was evaluated only at step 500.
    cards = [(path / "README.md").read_text() for path in (early, late)]
    assert ["0.92" in card for card in cards] == [False, True]


def test_a_masked_lm(tmp_path):
    folder, expected = unfinished(tmp_path, objective="mlm", mask_rule="bert")
    run(folder, tmp_path / "at", "--checkpoint=500")
    assert {path.name for path in (tmp_path / "at").glob("*.keras")} == {*expected[500]}
    for name, weights in expected[500].items():
        assert_saved(tmp_path / "at" / name, weights)


def test_what_cannot_be_taken_is_one_line(trained, tmp_path):
    target, source = tmp_path / "to", shutil.copytree(trained[0], tmp_path / "run")
    said = refused(source, target, "--checkpoint=7")
    assert "are 100, 500." in said
    said = refused(source, target)
    assert "did not finish" in said
    assert "--checkpoint (100, 500)" in said
    finished = tiny_run.save(tmp_path / "finished")
    assert "does not exist" in refused(finished, target, "--checkpoint=100")
    assert "does not need --num_heads" in refused(
        source, target, "--checkpoint=100", "--num_heads=2"
    )
    damaged = source / "checkpoints" / "ckpt-500.data-00000-of-00001"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert "no intact checkpoint" in refused(source, target, "--checkpoint=500")
    path = source / "config.json"
    settings = json.loads(path.read_text())
    settings["config"]["num_layers"] = 3
    path.write_text(json.dumps(settings))
    assert "lacks model/" in refused(source, target, "--checkpoint=100")
    settings["config"]["num_heads"] = 5
    path.write_text(json.dumps(settings))
    assert str(path) in refused(source, target, "--checkpoint=100")
    (source / "vocab.txt").unlink()
    assert "does not have both" in refused(source, target, "--checkpoint=100")
    assert not target.exists()


@pytest.mark.parametrize(
    "choices",
    # Heads without an equivalent in other formats, and networks with shared embeddings.
    [
        {"objective": "replace_mlm"},
        pytest.param(
            {"objective": "electric", "generator": "two_tower"}, marks=pytest.mark.slow
        ),
        pytest.param({"sharing": "gdes"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_encoder_of_any_run(tmp_path, choices):
    folder, expected = unfinished(tmp_path, **choices)
    at = "--checkpoint=100"
    said = refused(folder, tmp_path / "to", at)
    assert f"{folder}" in said
    if "objective" in choices:
        assert "--only=discriminator" in said
    run(folder, tmp_path / "to", at, "--only=discriminator")
    assert_saved(tmp_path / "to" / "encoder.keras", expected[100]["encoder.keras"])
