"""Parameter counts and one training step of the full-size configurations."""

import dataclasses
import gc
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from electra_tf import cli
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.systems import build
from tests import tiny

CONFIGS = Path(__file__).parents[2] / "configs"
VOCAB = 30522

# Parameters of the discriminator with its head, and of both networks with shared
# embeddings. From the shapes of the original code; published as 14M, 110M and 335M.
PARAMETERS = {
    "small": (13_549_057, 14_196_219),
    "small_plus_plus": (13_549_057, 23_122_875),
    "base": (109_483_009, 119_386_427),
    "large": (335_142_913, 354_655_291),
}


def config_of(name):
    return cli.parse(PretrainConfig, [f"--flagfile={CONFIGS / name}.cfg"])


def test_no_configuration_is_missing():
    names = {path.stem for path in CONFIGS.glob("*.cfg")} - {"tiny", "mini"}
    assert names == PARAMETERS.keys()


def assert_sizes(name, config, model):
    assert config.data.vocab_size == VOCAB
    discriminator, joint = PARAMETERS[name]
    assert tiny.count(model.detector().trainable_variables) == discriminator
    assert tiny.count(model.trainable_variables) == joint


@pytest.mark.parametrize("name", ["small", "small_plus_plus"])
def test_parameter_counts(name):
    """Only the embeddings are tied (pitfall 19 of docs/fidelity.md)."""
    config = config_of(name)
    assert_sizes(name, config, build.build_model(config, VOCAB))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["base", "large"])
def test_sizes_and_one_training_step_at_full_width(name):
    """The first update has learning rate 0; the second changes the weights."""
    # Frees the other large model.
    gc.collect()
    config = config_of(name)
    config = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, warmup_steps=1)
    )
    model = build.compiled_phases(config, VOCAB)[-1].model
    assert_sizes(name, config, model)
    batch = tiny.batch((24, 24), vocab=VOCAB, mask_rate=config.masking.mask_rate)
    data = tf.data.Dataset.from_tensors(batch).repeat(2)
    kernel = model.discriminator.transformer.blocks[-1].output_kernel
    before = kernel.numpy()
    logs = model.fit(data, verbose=0, shuffle=False).history
    # Both losses use the initial weights. The discriminator's logits are nearly equal
    # and within about 0.5 of 0, since its last unit is Glorot uniform.
    assert logs["generator_loss"][0] == pytest.approx(np.log(VOCAB), rel=0.1)
    assert logs["discriminator_loss"][0] == pytest.approx(np.log(2), abs=0.4)
    assert model.optimizer.nonfinite_variable() is None
    moved = np.abs(kernel.numpy() - before).max()
    assert 0 < moved < 100 * config.optimizer.learning_rate
