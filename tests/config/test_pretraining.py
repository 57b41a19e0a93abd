import json
import pkgutil
import typing
from pathlib import Path

import numpy as np
import pytest

from electra_tf import cli
from electra_tf.__main__ import COMMANDS
from electra_tf.config import commands, fields
from electra_tf.config.commands import CompareConfig
from electra_tf.config.finetuning import FinetuneConfig, FinetuneRunConfig
from electra_tf.config.pretraining import EncoderConfig, GeneratorConfig, PretrainConfig
from electra_tf.config.records import RecordsConfig
from electra_tf.config.validation import warnings
from tests import ROOT
from tests.flag_parsing import parse

CONFIGS = ROOT / "configs"


def test_flag_names_are_unique_and_explained():
    leaves = [leaf for _, leaf in fields.fields(PretrainConfig)]
    assert len({leaf.name for leaf in leaves}) == len(leaves)
    assert min(len(leaf.metadata["help"]) for leaf in leaves) > 15


def test_flat_round_trip():
    config = parse(f"--flagfile={CONFIGS / 'large.cfg'}")
    flat = fields.to_flat(config)
    assert fields.from_flat(flat, PretrainConfig) == config
    # A flag of version 0.2.
    older = {**flat, "damaged_records": "stop"}
    assert fields.from_flat(older, PretrainConfig) == config
    with pytest.raises(ValueError, match="damaged_records=skip is not supported"):
        fields.from_flat({**older, "damaged_records": "skip"}, PretrainConfig)
    with pytest.raises(ValueError, match=r"num_trian_steps is not .* num_train_steps"):
        fields.from_flat({"num_trian_steps": 9}, PretrainConfig)
    with pytest.raises(ValueError, match="--lower_case must be of type bool, got 'fa"):
        fields.from_flat({"lower_case": "false"}, PretrainConfig)


# Table 6 of the paper: these flags, and hidden size and heads of the generator.
COLUMNS = (
    "num_train_steps train_batch_size max_seq_length learning_rate mask_rate "
    "num_layers hidden_size num_heads intermediate_size embedding_size"
)
TABLE_6 = {
    "small": (1_000_000, 128, 128, 5e-4, 0.15, 12, 256, 4, 1024, 128, 64, 1),
    "base": (766_000, 256, 512, 2e-4, 0.15, 12, 768, 12, 3072, 768, 256, 4),
    "large": (400_000, 2048, 512, 2e-4, 0.25, 24, 1024, 16, 4096, 1024, 256, 4),
    "small_plus_plus": (4_000_000, 128, 512, 5e-4, 0.15, 12, 256, 4, 1024, 128, 256, 4),
}


@pytest.mark.parametrize("name", TABLE_6)
def test_presets_spell_out_table_6(name):
    """Also rates and the generator (pitfalls 24 and 33 of docs/fidelity.md)."""
    path = CONFIGS / f"{name}.cfg"
    config = parse(f"--flagfile={path}")
    generator = config.generator_encoder
    flat = fields.to_flat(config)
    sizes = [flat[flag] for flag in COLUMNS.split()]
    assert (*sizes, generator.hidden_size, generator.num_heads) == TABLE_6[name]
    assert generator.intermediate_size == 4 * generator.hidden_size
    assert generator.num_layers == config.encoder.num_layers
    # Every number is in the file or in small.cfg, which the others include.
    text = path.read_text() + (CONFIGS / "small.cfg").read_text()
    for flag in ("learning_rate", "warmup_steps", "weight_decay", "clip_norm"):
        assert f"--{flag}=" in text


def test_generator_formula():
    """Heads: hidden size // 64, at least one (pitfall 24 of docs/fidelity.md)."""
    config = PretrainConfig(
        encoder=EncoderConfig(hidden_size=768, num_heads=12, intermediate_size=3072),
        generator=GeneratorConfig(generator_hidden_size=0.25),
    )
    assert config.generator_encoder.hidden_size == 192
    assert config.generator_encoder.num_heads == 3
    assert PretrainConfig().generator_encoder.num_heads == 1


def test_every_flagfile_parses_and_says_how_to_run_it(tmp_path, monkeypatch):
    """Also from another folder, by the name that the file and others use."""
    monkeypatch.chdir(tmp_path)
    files = sorted([*CONFIGS.glob("*.cfg"), *CONFIGS.glob("objectives/*.cfg")])
    assert len(files) >= 37
    for path in files:
        flag = f"--flagfile=configs/{path.relative_to(CONFIGS)}"
        assert parse(flag) == parse(f"--flagfile={path}")
        assert flag in path.read_text(), path


@pytest.mark.parametrize(
    ("config_class", "flag"),
    [
        (PretrainConfig, "--model_dir"),
        (FinetuneConfig, "--output_dir"),
        (CompareConfig, "--output_dir"),
        (PretrainConfig, "--data_dir"),
        *((commands.PredictConfig, "--output"), (commands.InspectConfig, "--html")),
        *((commands.ScoreConfig, "--report"), (commands.AnalyzeConfig, "--output")),
        (commands.ConvertConfig, "--to"),
    ],
)
def test_outputs_are_local_and_not_empty(config_class, flag):
    for folder, message in (("", "is empty"), ("gs://bucket/run", "is remote")):
        with pytest.raises(ValueError, match=f"{flag}.*{message}"):
            cli.parse(config_class, [f"{flag}={folder}"])


def test_a_generator_that_cannot_be_names_its_own_flag():
    sizes = ["--hidden_size=2", "--num_heads=1", "--generator_hidden_size=0.1"]
    for given, width in ((["--generator_hidden_size=0.7"], 179), (sizes, 0)):
        message = rf"--generator_hidden_size=0\.\d makes a generator of width {width} "
        with pytest.raises(ValueError, match=message):
            _ = parse(*given).generator_encoder


def test_values_of_python_are_those_of_flags():
    given = {"output_dir": Path("runs/x"), "seed": np.int64(3), "tag_column": 0}
    config = fields.from_flat(given, FinetuneConfig)
    flat = json.loads(json.dumps(fields.to_flat(config)))
    assert [flat[name] for name in given] == ["runs/x", 3, "0"]


def test_edges_are_allowed():
    assert parse("--seed=2147483647").run.seed == 2**31 - 1
    assert parse("--eval_fraction=0").data.eval_fraction == 0
    assert parse("--clip_norm=inf").optimizer.clip_norm == float("inf")
    assert parse("--objective=mlm", "--hidden_size=1", "--num_heads=1")
    stages = ["--training=two_stage", "--generator_hidden_size=1", "--sharing=nes"]
    assert parse(*stages, "--generator_steps=1").generator_steps == 1


def test_all_seeds_of_a_fine_tuning_run_fit():
    assert FinetuneRunConfig(seed=2**31 - 2, seeds=2).seeds == 2
    with pytest.raises(ValueError, match=r"--seed=2147483646 with --seeds=3: all"):
        FinetuneRunConfig(seed=2**31 - 2, seeds=3)
    with pytest.raises(ValueError, match="--seed must be at least 0, got -1"):
        FinetuneRunConfig(seed=-1)


@pytest.mark.parametrize(
    "config_class", [PretrainConfig, FinetuneConfig, CompareConfig, RecordsConfig]
)
def test_every_number_has_a_range(config_class):
    hints = {}
    for _, group in fields.groups(config_class):
        hints |= typing.get_type_hints(group)
    numbers = [
        leaf
        for _, leaf in fields.fields(config_class)
        if hints[leaf.name] in (int, float, int | None, float | None)
    ]
    assert len(numbers) >= 5
    free = {leaf.name for leaf in numbers if {*leaf.metadata["limits"]} == {None}}
    assert free <= {"null_threshold"}


def test_base_with_the_small_learning_rate_is_questioned():
    config = parse(f"--flagfile={CONFIGS / 'base.cfg'}", "--learning_rate=5e-4")
    (text,) = warnings(config)
    assert "5e-4 (ELECTRA-Small's)" in text
    assert not warnings(parse(f"--flagfile={CONFIGS / 'base.cfg'}"))
    assert not warnings(parse(f"--flagfile={CONFIGS / 'small.cfg'}"))


def test_unfit_warm_ups_are_questioned():
    for steps, message in ((2000000, "never peaks"), (0, "three to six times")):
        (text,) = warnings(parse(f"--warmup_steps={steps}"))
        assert message in text


def test_a_late_adversarial_start_is_questioned():
    flags = ["--training=reinforce", "--num_train_steps=50", "--warmup_steps=5"]
    assert not warnings(parse(*flags, "--adversarial_start=49"))
    (text,) = warnings(parse(*flags, "--adversarial_start=50"))
    assert "no adversarial update" in text


def test_large_generators_are_questioned():
    full = ["--generator_hidden_size=1"]
    for flags in ([], ["--objective=electra_15"]):
        (text,) = warnings(parse(*full, *flags))
        assert "more than half the discriminator" in text
    for flags in (
        ["--sharing=all"],
        ["--generator_layers=0.5"],
        ["--training=two_stage", "--sharing=nes"],
    ):
        assert not warnings(parse(*full, *flags))


def test_only_paths_and_logging_may_change_on_resume():
    allowed = fields.resumable_fields(PretrainConfig)
    assert {"model_dir", "log_steps", "records"} <= allowed
    changed = {"learning_rate", "seed", "num_train_steps", "hidden_size", "init_from"}
    assert not changed & allowed


def test_flags_do_not_grow():
    """A new flag requires a deliberate change of these limits."""
    counts = {
        name: len(list(fields.fields(pkgutil.resolve_name(command.config))))
        for name, command in COMMANDS.items()
    }
    assert counts["pretrain"] <= 75
    assert counts["finetune"] <= 63
    assert sum(counts.values()) <= 250
