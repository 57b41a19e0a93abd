"""From flags to the parts of a system: classes, schedules, phases, optimizers."""

import os
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from electra_tf import build, build_models, build_training
from electra_tf import flags as flags_lib
from electra_tf.config import PretrainConfig
from electra_tf.pretraining import (
    Electra,
    GumbelElectra,
    MaskedLM,
    ReinforceElectra,
    UnigramGenerator,
)

ROOT = Path(__file__).parent.parent
OBJECTIVES = ROOT / "configs" / "objectives"
VOCAB = 61
SMALL = [
    "--num_train_steps=10",
    "--max_seq_length=16",
    "--max_positions=16",
    "--num_layers=2",
    "--hidden_size=16",
    "--num_heads=2",
    "--intermediate_size=32",
    "--embedding_size=8",
    "--warmup_steps=2",
    "--mixed_precision=none",
]


def parse(*arguments):
    values = flags.FlagValues()
    flags_lib.define(PretrainConfig, values)
    values(["program", *arguments])
    return flags_lib.read(PretrainConfig, values)


def config_of(name, *arguments, monkeypatch):
    monkeypatch.chdir(ROOT)
    return parse(f"--flagfile=configs/objectives/{name}.cfg", *arguments)


# Flagfile -> (class of the model, class of the generator, names of the phases).
SYSTEMS = {
    "disallow_correct": (Electra, MaskedLM, ["electra"]),
    "fast_electra": (Electra, MaskedLM, ["electra"]),
    "generator_shallow": (Electra, MaskedLM, ["electra"]),
    "generator_uniform": (Electra, UnigramGenerator, ["electra"]),
    "generator_unigram": (Electra, UnigramGenerator, ["electra"]),
    "gumbel": (GumbelElectra, MaskedLM, ["electra"]),
    "reinforce": (ReinforceElectra, MaskedLM, ["electra"]),
    "reinforce_annealed": (ReinforceElectra, MaskedLM, ["electra"]),
    "sampling_without_dropout": (Electra, MaskedLM, ["electra"]),
    "separate_optimizers": (Electra, MaskedLM, ["electra"]),
    "temperature": (Electra, MaskedLM, ["electra"]),
    "two_stage": (Electra, MaskedLM, ["generator", "discriminator"]),
    "two_stage_no_copy": (Electra, MaskedLM, ["generator", "discriminator"]),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_flagfiles_build_what_they_say(name, monkeypatch):
    text = (OBJECTIVES / f"{name}.cfg").read_text()
    assert f"--flagfile=configs/objectives/{name}.cfg" in text
    extra = ["--generator_steps=4"] if name.startswith("two_stage") else []
    config = config_of(name, *SMALL, *extra, monkeypatch=monkeypatch)
    phases = build.compiled_phases(config, VOCAB)
    model_class, generator_class, names = SYSTEMS[name]
    model = phases[-1].model
    assert type(model) is model_class
    assert type(model.generator) is generator_class
    assert [phase.name for phase in phases] == names
    assert sum(phase.steps for phase in phases) == 10
    for phase in phases:
        assert phase.model.optimizer.learning_rate == 0  # the schedule of a first step


def test_settings_of_the_flagfiles_arrive(monkeypatch):
    annealed = config_of("reinforce_annealed", monkeypatch=monkeypatch)
    mixture = build_models.TRAININGS["reinforce"](annealed).keywords[
        "adversarial_weight"
    ]
    shares = [float(mixture(step)) for step in (0, 1000, 2000, 3000, 4000)]
    assert shares == [0, 0, 0.5, 1, 1]
    fast = config_of("fast_electra", monkeypatch=monkeypatch)
    temperature = build_models.sampler(fast).temperature
    expected = [1 + np.exp(-step / 400) for step in (0, 400, 4000)]
    found = [float(temperature(step)) for step in (0, 400, 4000)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    # Frozen and sampled from without dropout: one pass is enough, without dropout.
    assert fast.generator_encoder.dropout == 0
    clean = config_of("sampling_without_dropout", monkeypatch=monkeypatch)
    assert clean.samples_apart
    assert not fast.samples_apart


def test_an_adversarial_part_that_begins_at_once():
    config = parse("--training=reinforce", "--adversarial_start=3")
    mixture = build_models.TRAININGS["reinforce"](config).keywords["adversarial_weight"]
    assert [float(mixture(step)) for step in (0, 2, 3, 4)] == [0, 0, 1, 1]


def test_two_stages_have_a_schedule_each_and_the_last_freezes():
    same = ["--generator_hidden_size=1", "--generator_layers=1", "--sharing=nes"]
    config = parse(*SMALL, "--training=two_stage", "--generator_steps=4", *same)
    first, second = build.compiled_phases(config, VOCAB)
    assert first.model is second.model.generator
    assert first.model.optimizer._learning_rate.total_steps == 4
    assert second.model.optimizer._learning_rate.total_steps == 6
    own = {v.path for v in first.model.weights}
    assert not own & {v.path for v in second.model.trainable_variables}
    first.set_trainable()
    assert {v.path for v in first.model.trainable_variables} <= own
    assert len(first.model.trainable_variables) == 2 * 12 + 2 + 5 + 5


def test_generator_group_holds_what_only_the_generator_trains():
    config = parse(
        *SMALL,
        "--training=reinforce",
        "--learning_rate=1e-3",
        "--generator_learning_rate=2e-4",
        "--generator_clip_norm=0.5",
    )
    model = build.compiled_model(config, VOCAB)
    optimizer = model.optimizer
    members, norm = optimizer.clip_groups["generator"]
    shared = {v.path for v in model.discriminator.embeddings.weights}
    assert norm == 0.5
    assert not shared & set(members)
    assert model.baseline.reward_kernel.path in members
    assert model.generator.head.output_bias.path in members
    own = {v.path for v in model.generator.trainable_variables} - shared
    assert own < set(members)
    assert len(members) == len(own) + 1
    assert set(optimizer.learning_rate_multipliers) == set(members)
    assert set(optimizer.learning_rate_multipliers.values()) == {0.2}


def test_missing_generator_is_named(tmp_path):
    frozen = ["--freeze_generator", "--sharing=nes"]
    config = parse(*SMALL, *frozen, f"--generator_init_from={tmp_path}")
    model = build.compiled_model(config, VOCAB)

    class Data:
        vocabulary = None

    with pytest.raises(ValueError, match=r"there is no .*generator\.keras"):
        build_training.initialize_generator(config, model, Data, print)
    other = build_models.model(parse(*SMALL, "--generator_hidden_size=0.5"), VOCAB)
    other.generator.save(tmp_path / "generator.keras")
    with pytest.raises(ValueError, match=r"does not fit.*--generator_hidden_size"):
        build_training.initialize_generator(config, model, Data, print)
    assert os.listdir(tmp_path) == ["generator.keras"]
