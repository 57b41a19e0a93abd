"""Every file of configs/objectives: what differs from tiny.cfg, and what it builds."""

from pathlib import Path

import pytest

from electra_tf.config import fields
from electra_tf.pretraining import (
    Electra,
    Electric,
    GumbelElectra,
    MaskedLM,
    ReinforceElectra,
    TwoTowerGenerator,
    UnigramGenerator,
)
from electra_tf.systems import build
from tests.flag_parsing import SMALL, parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "objectives"
VOCAB = 61

_SAME_SIZE = {"generator_hidden_size": 1.0, "generator_layers": 1.0}
# File -> fields that differ from tiny.cfg, each of them spelled out in the file.
FILES = {
    "all_tokens_mlm": {"objective": "all_tokens_mlm"},
    "disallow_correct": {"disallow_correct": True},
    "electra": {},
    "electra_15": {"objective": "electra_15"},
    "electric": {"objective": "electric"},
    "fast_electra": {
        "generator_init_from": "runs/tiny",
        "freeze_generator": True,
        "sharing": "nes",
        "temperature": 2.0,
        "final_temperature": 1.0,
        "temperature_steps": 260,
        "temperature_shape": "exponential",
        "sampling_dropout": False,
    },
    "generator_shallow": {"generator_hidden_size": 1.0},
    "generator_two_tower": {"generator": "two_tower"},
    "generator_uniform": {"generator": "uniform"},
    "generator_unigram": {"generator": "unigram"},
    "gumbel": {"training": "gumbel"},
    "mask_rare_tokens": {"mask_select": "rare_tokens"},
    "mask_rate_decay": {
        "mask_rate": 0.3,
        "final_mask_rate": 0.15,
        "mask_rate_steps": 2600,
    },
    "mask_spans": {"mask_select": "spans"},
    "mask_whole_words": {"mask_select": "whole_words"},
    "mask_with_replacement": {"mask_select": "with_replacement"},
    "mlm": {"objective": "mlm", "mask_rule": "bert"},
    "mlm_85_15": {"objective": "mlm"},
    "reinforce": {"training": "reinforce"},
    "reinforce_annealed": {
        "training": "reinforce",
        "adversarial_start": 650,
        "adversarial_steps": 1300,
    },
    "replace_mlm": {"objective": "replace_mlm", "discriminator_weight": 1.0},
    "sampling_without_dropout": {
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "sampling_dropout": False,
    },
    "sentence": {"sentence_weight": 1.0},
    "separate_optimizers": {"generator_learning_rate": 3e-4},
    "sharing_all": {"sharing": "all", **_SAME_SIZE},
    "sharing_gdes": {"sharing": "gdes"},
    "sharing_nes": {"sharing": "nes"},
    "sharing_token": {"sharing": "token"},
    "sharing_untied": {"sharing": "untied"},
    "temperature": {
        "temperature": 2.0,
        "final_temperature": 1.0,
        "temperature_steps": 1300,
    },
    "two_stage": {
        "training": "two_stage",
        "generator_steps": 1300,
        "sharing": "nes",
        **_SAME_SIZE,
    },
    "two_stage_no_copy": {
        "training": "two_stage",
        "two_stage_copy": False,
        "generator_steps": 1300,
        "sharing": "nes",
    },
}
# Those that are no plain Electra with a MaskedLM: classes, and the names of the phases.
CLASSES = {
    "electric": (Electric, TwoTowerGenerator, ["electric"]),
    "generator_two_tower": (Electra, TwoTowerGenerator, ["electra"]),
    "generator_uniform": (Electra, UnigramGenerator, ["electra"]),
    "generator_unigram": (Electra, UnigramGenerator, ["electra"]),
    "gumbel": (GumbelElectra, MaskedLM, ["electra"]),
    "reinforce": (ReinforceElectra, MaskedLM, ["electra"]),
    "two_stage": (Electra, MaskedLM, ["generator", "discriminator"]),
    "two_stage_no_copy": (Electra, MaskedLM, ["generator", "discriminator"]),
    "fast_electra": (Electra, MaskedLM, ["electra"]),
    "electra_15": (Electra, MaskedLM, ["electra_15"]),
}


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch):
    # Flagfiles include each other by their path from the root of the repository.
    monkeypatch.chdir(ROOT)


def test_no_file_is_missing():
    assert sorted(FILES) == sorted(path.stem for path in FOLDER.glob("*.cfg"))


@pytest.mark.parametrize("name", FILES)
def test_differs_from_tiny_in_what_it_is_about(name):
    path = FOLDER / f"{name}.cfg"
    config = fields.to_flat(parse(f"--flagfile={path}"))
    tiny = fields.to_flat(parse("--flagfile=configs/tiny.cfg"))
    places = {"model_dir": f"runs/{name}", "data_dir": "runs/tiny/data"}
    assert config == tiny | places | FILES[name]
    text = path.read_text()
    for flag, value in FILES[name].items():
        spelled = f"--no{flag}" if value is False else f"--{flag}"
        assert f"\n{spelled}" in text, "what differs is spelled out"


@pytest.mark.parametrize("name", FILES)
def test_headers_have_one_style(name):
    text = (FOLDER / f"{name}.cfg").read_text()
    header = [line for line in text.splitlines() if line.startswith("#")]
    command = f"python run_pretraining.py --flagfile=configs/objectives/{name}.cfg"
    assert header[-2] == f"#   {command}"
    assert header[-1] == (
        "# Sizes, data and optimizer are those of configs/tiny.cfg; what differs:"
    )
    assert text.startswith("\n".join(header))


@pytest.mark.parametrize("name", CLASSES)
def test_builds_what_it_says(name):
    steps = ["--generator_steps=4"] if name.startswith("two_stage") else []
    config = parse(f"--flagfile={FOLDER}/{name}.cfg", *SMALL, *steps)
    phases = build.compiled_phases(config, VOCAB, special_ids=(2, 3, 4))
    model_class, generator_class, names = CLASSES[name]
    model = phases[-1].model
    assert type(model) is model_class
    assert type(model.generator) is generator_class
    assert [phase.name for phase in phases] == names
    assert sum(phase.steps for phase in phases) == 10
    for phase in phases:
        assert phase.model.optimizer.learning_rate == 0  # the schedule of a first step
