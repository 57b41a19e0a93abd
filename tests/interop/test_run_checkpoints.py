"""`python -m electra_tf convert --checkpoint`: exports a step of a pretraining run."""

import json

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.systems import build
from electra_tf.training import AdamW
from electra_tf.training.checkpoints import CheckpointStore, named_variables
from tests import tiny_run
from tests.interop.test_convert import refused, run
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS

KINDS = {
    "electra": {},
    "mlm": {"objective": "mlm", "mask_rule": "bert"},
}


@pytest.fixture(scope="module", params=KINDS)
def trained(request, tmp_path_factory):
    """A killed run with two checkpoints, and the models of each."""
    home = tmp_path_factory.mktemp(request.param)
    return unfinished(home, **KINDS[request.param])


def unfinished(home, **choices):
    flags = {**tiny_run.SIZES, "dropout": 0.0, **choices}
    config = fields.from_flat(fields.to_flat(PretrainConfig()) | flags, PretrainConfig)
    special_ids = build.special_ids(Vocabulary(TOKENS))
    model = build.build_model(config, len(TOKENS), special_ids)
    # Adds optimizer slots, which are not weights of a network.
    model.compile(optimizer=AdamW(1e-3))
    model.optimizer.build(model.trainable_variables)
    tiny_run.save(home / "run", model, **flags)
    for path in (home / "run").glob("*.keras"):
        path.unlink()
    store = CheckpointStore(
        home / "run" / "checkpoints", named_variables(model, model.optimizer)
    )
    for seed, step in enumerate((100, 500)):
        randomize(model.trainable_variables, seed=seed)
        store.save(step)
        tiny_run.save(home / str(step), model, **flags)
    return home


@pytest.mark.parametrize("step", [100, 500])
def test_it_is_what_the_run_would_have_saved(trained, tmp_path, step):
    said = run(trained / "run", tmp_path / "at", f"--checkpoint={step}")
    assert f"weights after step {step}" in said
    found, expected = tmp_path / "at", trained / str(step)
    names = {path.name for path in expected.glob("*.keras")}
    assert {path.name for path in found.glob("*.keras")} == names
    for name in names:
        one, other = (
            {v.path.split("/", 1)[1]: v.numpy() for v in weights(folder / name)}
            for folder in (found, expected)
        )
        assert one.keys() == other.keys()
        for path in one:
            np.testing.assert_array_equal(one[path], other[path], err_msg=path)


def weights(path):
    return keras.saving.load_model(path, compile=False).weights


def test_out_to_another_library_as_from_a_finished_run(tmp_path):
    home = unfinished(tmp_path)
    flags = ("--format=hugging_face",)
    run(home / "run", tmp_path / "a", "--checkpoint=100", *flags)
    run(home / "100", tmp_path / "b", *flags)
    for name in ("model.safetensors", "generator/model.safetensors"):
        one, other = (load_file(tmp_path / folder / name) for folder in "ab")
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)
    # The card has no scores of other steps: the run was evaluated only at step 500.
    cards = [(tmp_path / name / "README.md").read_text() for name in "ab"]
    assert ["0.92" in card for card in cards] == [False, True]


def test_what_cannot_be_taken_is_one_line(tmp_path):
    home = unfinished(tmp_path)
    target, source = tmp_path / "to", home / "run"
    said = refused(source, target, "--checkpoint=7")
    assert "are 100, 500." in said
    said = refused(source, target)
    assert "did not finish" in said
    assert "--checkpoint (100, 500)" in said
    said = refused(home / "100", target, "--checkpoint=100")
    assert "does not exist" in said
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
    home = unfinished(tmp_path, **choices)
    at = "--checkpoint=100"
    said = refused(home / "run", tmp_path / "to", at)
    assert f"{home / 'run'}" in said
    if "objective" in choices:
        assert "--only=discriminator" in said
    run(home / "run", tmp_path / "to", at, "--only=discriminator")
    found, expected = (
        [v.numpy() for v in weights(folder / "encoder.keras")]
        for folder in (tmp_path / "to", home / "100")
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
