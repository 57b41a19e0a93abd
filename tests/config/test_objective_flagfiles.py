"""Flagfiles of configs/objectives: differences from tiny.cfg, and built models."""

import re
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

FILES = sorted(path.stem for path in FOLDER.glob("*.cfg"))
# (model class, generator class, phase names) of files other than plain Electra.
CLASSES = {
    "electric": (Electric, TwoTowerGenerator, ["electric"]),
    "generator_unigram": (Electra, UnigramGenerator, ["electra"]),
    "gumbel": (GumbelElectra, MaskedLM, ["electra"]),
    "reinforce": (ReinforceElectra, MaskedLM, ["electra"]),
    "two_stage": (Electra, MaskedLM, ["generator", "discriminator"]),
    "electra_15": (Electra, MaskedLM, ["electra_15"]),
}


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch):
    # Flagfiles include each other by path, relative to the repository root.
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", FILES)
def test_differs_from_tiny_only_in_flags_of_the_file(name):
    path = FOLDER / f"{name}.cfg"
    config, tiny = (
        fields.to_flat(parse(f"--flagfile={file}"))
        for file in (path, "configs/tiny.cfg")
    )
    assert config.pop("model_dir") == f"runs/{name}"
    assert config.pop("data_dir") == "runs/tiny/data"
    differs = {flag for flag, value in config.items() if value != tiny[flag]}
    given = re.findall(r"^--(\w+)", path.read_text(), re.MULTILINE)
    given = {flag if flag in config else flag.removeprefix("no") for flag in given}
    assert differs <= given
    assert given - {"flagfile", "model_dir", "data_dir"} <= config.keys()
    assert bool(differs) == (name != "electra")


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
