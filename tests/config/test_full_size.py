import dataclasses

import numpy as np
import pytest

from electra_tf.systems import build
from tests import tiny
from tests.config.test_pretraining import CONFIGS
from tests.flag_parsing import parse
from tests.systems.test_costs import COUNTS, SIZES

VOCAB = 30522


def config_of(name):
    return parse(f"--flagfile={CONFIGS / name}.cfg")


def test_no_configuration_is_missing():
    assert {path.stem for path in CONFIGS.glob("*.cfg")} - {"tiny", "mini"} == {*SIZES}


def assert_sizes(name, config, model):
    """Compares the discriminator with its head, and both networks with one table."""
    assert config.data.vocab_size == VOCAB
    found = tiny.count(model.detector().trainable_variables)
    assert found == COUNTS["unigram"][SIZES.index(name)]
    assert (
        tiny.count(model.trainable_variables) == COUNTS["masked_lm"][SIZES.index(name)]
    )


@pytest.mark.parametrize(
    "name",
    ["small", "small_plus_plus", pytest.param("base", marks=pytest.mark.slow)],
)
def test_parameter_counts(name):
    """Only the embeddings are tied (pitfall 19 of docs/fidelity.md)."""
    config = config_of(name)
    assert_sizes(name, config, build.build_model(config, VOCAB))


@pytest.mark.slow
def test_sizes_and_one_training_step_of_large():
    """Without a warm-up, whose first update has learning rate 0."""
    config = config_of("large")
    optimizer = dataclasses.replace(config.optimizer, warmup_steps=0)
    config = dataclasses.replace(config, optimizer=optimizer)
    model = build.compiled_phases(config, VOCAB)[-1].model
    assert_sizes("large", config, model)
    kernel = model.discriminator.transformer.blocks[-1].output_kernel
    before = kernel.numpy()
    batch = tiny.batch((24, 24), vocab=VOCAB, mask_rate=config.masking.mask_rate)
    # One step is not worth tracing.
    logs = tiny.numpy(model.train_step(batch))
    # The discriminator's logits are nearly equal and within about 0.5 of 0, since its
    # last unit is Glorot uniform.
    assert logs["generator_loss"] == pytest.approx(np.log(VOCAB), rel=0.1)
    assert logs["discriminator_loss"] == pytest.approx(np.log(2), abs=0.4)
    assert model.optimizer.nonfinite_variable() is None
    moved = np.abs(kernel.numpy() - before).max()
    assert 0 < moved < 100 * config.optimizer.learning_rate
