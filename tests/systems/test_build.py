import re
from pathlib import Path

import numpy as np
import pytest

import electra_tf as et
from electra_tf import pretraining
from electra_tf.config import fields
from electra_tf.systems import build
from tests import tiny
from tests.flag_parsing import SMALL, parse

OBJECTIVES = Path(__file__).parents[2] / "configs" / "objectives"
VOCAB = 61
SAME_SIZE = ["--generator_hidden_size=1", "--generator_layers=1"]
FILES = sorted(path.stem for path in OBJECTIVES.glob("*.cfg"))
# (model class, generator class, phase names) of files other than plain Electra.
CLASSES = {
    "electric": (pretraining.Electric, pretraining.TwoTowerGenerator, ["electric"]),
    "generator_unigram": (et.Electra, pretraining.UnigramGenerator, ["electra"]),
    "gumbel": (pretraining.GumbelElectra, et.MaskedLM, ["electra"]),
    "reinforce": (pretraining.ReinforceElectra, et.MaskedLM, ["electra"]),
    "two_stage": (et.Electra, et.MaskedLM, ["generator", "discriminator"]),
    "electra_15": (et.Electra, et.MaskedLM, ["electra_15"]),
}


def config_of(name, *arguments):
    return parse(f"--flagfile=configs/objectives/{name}.cfg", *arguments)


@pytest.mark.parametrize("name", FILES)
def test_differs_from_tiny_only_in_flags_of_the_file(name):
    config = fields.to_flat(config_of(name))
    base = fields.to_flat(parse("--flagfile=configs/tiny.cfg"))
    assert config.pop("model_dir") == f"runs/{name}"
    assert config.pop("data_dir") == "runs/tiny/data"
    differs = {flag for flag, value in config.items() if value != base[flag]}
    text = (OBJECTIVES / f"{name}.cfg").read_text()
    given = re.findall(r"^--(\w+)", text, re.MULTILINE)
    assert differs <= {flag.removeprefix("no") for flag in given}
    assert bool(differs) == (name != "electra")


@pytest.mark.parametrize("name", CLASSES)
def test_builds_what_it_says(name):
    steps = ["--generator_steps=4"] if name.startswith("two_stage") else []
    config = config_of(name, *SMALL, *steps)
    phases = build.compiled_phases(config, VOCAB, special_ids=(2, 3, 4))
    model_class, generator_class, names = CLASSES[name]
    model = phases[-1].model
    assert type(model) is model_class
    assert type(model.generator) is generator_class
    assert [phase.name for phase in phases] == names
    assert sum(phase.steps for phase in phases) == 10
    for phase in phases:
        assert phase.model.optimizer.learning_rate == 0  # the schedule of a first step


def test_settings_of_the_flagfiles_arrive():
    mixture = build.adversarial_weight(config_of("reinforce_annealed"))
    shares = [float(mixture(step)) for step in (0, 650, 1300, 1950, 2600)]
    assert shares == [0, 0, 0.5, 1, 1]
    at_once = parse("--training=reinforce", "--adversarial_start=3")
    mixture = build.adversarial_weight(at_once)
    assert [float(mixture(step)) for step in (0, 2, 3, 4)] == [0, 0, 1, 1]
    fast = config_of("fast_electra")
    temperature = build.sampler(fast).temperature
    expected = [1 + np.exp(-step / 260) for step in (0, 260, 2600)]
    found = [float(temperature(step)) for step in (0, 260, 2600)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    # A frozen generator that samples without dropout needs one pass.
    assert fast.generator_encoder.dropout == 0
    assert config_of("sampling_without_dropout").samples_apart
    assert not fast.samples_apart


def test_generator_group_holds_what_only_the_generator_trains():
    rates = ["--learning_rate=1e-3", "--generator_learning_rate=2e-4"]
    config = parse(*SMALL, "--training=reinforce", *rates)
    model = build.compiled_phases(config, VOCAB)[-1].model
    members = model.optimizer.learning_rate_multipliers
    shared = {v.path for v in model.discriminator.embeddings.weights}
    assert not shared & set(members)
    assert model.baseline.reward_kernel.path in members
    assert model.generator.head.output_bias.path in members
    own = {v.path for v in model.generator.trainable_variables} - shared
    assert own < set(members)
    assert len(members) == len(own) + 1
    assert set(members.values()) == {0.2}


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_the_second_stage_begins_as_a_copy_of_the_generator(sharing):
    """Copies the tables, too; deltas of shared tables stay zero."""
    sizes = [*SMALL, "--max_seq_length=24", "--max_positions=32", *SAME_SIZE]
    config = parse(*sizes, "--training=two_stage", f"--sharing={sharing}")
    first, second = build.compiled_phases(config, VOCAB)
    for variable in first.model.trainable_variables:
        noise = np.random.default_rng(variable.shape[0]).normal(size=variable.shape)
        variable.assign(noise.astype("float32"))
    batch = tiny.batch(vocab=VOCAB)
    generator = second.model.generator.encoder
    discriminator = second.model.discriminator
    assert np.abs(discriminator(batch) - generator(batch)).max() > 0.1
    second.hand_over()
    np.testing.assert_array_equal(discriminator(batch), generator(batch))
    if sharing == "gdes":
        assert not np.any(discriminator.embeddings.word_embeddings_delta)
    # Updates of the discriminator do not change the generator.
    before = generator(batch).numpy()
    second.set_trainable()
    for variable in second.model.trainable_variables:
        variable.assign(variable.numpy() + 1)
    np.testing.assert_array_equal(generator(batch), before)
    assert np.abs(discriminator(batch) - before).max() > 0
