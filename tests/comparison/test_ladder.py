import pytest

from electra_tf import config as config_lib
from electra_tf import costs
from electra_tf.comparison import ladder
from electra_tf.comparison.config import LadderConfig
from electra_tf.config import PretrainConfig

SIZES = (
    "--num_train_steps=100 --warmup_steps=10 --num_layers=2 --hidden_size=32 "
    "--num_heads=2 --intermediate_size=64 --embedding_size=16 --max_seq_length=32"
)
SYSTEMS = ("electra:", "mlm: --objective=mlm --mask_rule=bert")
VOCAB = 500
TWO_STAGES = (
    "--training=two_stage --sharing=nes --generator_hidden_size=1 --generator_steps=10"
)


def config(**values):
    return LadderConfig(**{"pretrain": (SIZES,), "system": SYSTEMS, **values})


def steps(**values):
    chosen = config(**values)
    found = ladder.budgeted(ladder.systems(chosen), chosen, VOCAB)
    return {system.name: system.config for system in found}


def cost(run, rule="matmul"):
    return costs.run_flops(run, VOCAB, rule=rule)


@pytest.mark.parametrize("rule", ["matmul", "original"])
def test_equal_flops(rule):
    runs = steps(budget="electra:3000", flops_rule=rule)
    assert runs["electra"].run.num_train_steps == 3000
    assert runs["mlm"].run.num_train_steps != 3000
    # To the rounding of one step.
    assert cost(runs["mlm"], rule) == pytest.approx(cost(runs["electra"], rule), 1e-3)


def test_the_two_rules_give_other_steps():
    one, other = (
        steps(budget="electra:3000", flops_rule=rule)["mlm"].run.num_train_steps
        for rule in ("matmul", "original")
    )
    assert one != other


def test_budget_in_flops():
    runs = steps(budget_flops=1e11)
    for run in runs.values():
        assert cost(run) == pytest.approx(1e11, rel=0.01)


def test_warm_up_in_proportion():
    for run in steps(budget="mlm:4000").values():
        share = run.optimizer.warmup_steps / run.run.num_train_steps
        assert share == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (TWO_STAGES, "generator_steps"),
        ("--final_mask_rate=0.3 --mask_rate_steps=10", "mask_rate_steps"),
        ("--final_temperature=2 --temperature_steps=10", "temperature_steps"),
    ],
)
def test_times_do_not_shrink_to_nothing(flags, name):
    system = (f"electra: {flags}",)
    for budget, expected in ((1000, 100), (50, 5), (4, 1)):
        run = steps(system=system, budget=f"electra:{budget}", equal="steps")["electra"]
        assert config_lib.to_flat(run)[name] == expected
    assert run.generator_steps in (0, 1)
    assert run.optimizer.warmup_steps == 0


def test_equal_steps():
    runs = steps(budget="electra:70", equal="steps")
    assert {run.run.num_train_steps for run in runs.values()} == {70}


def test_common_flags_come_first_and_later_ones_win():
    found = ladder.systems(
        config(
            pretrain=(SIZES, "--mask_rate=0.2 --learning_rate=1e-3"),
            system=("a: --mask_rate=0.3", "electra:"),
        )
    )
    assert [system.config.masking.mask_rate for system in found] == [0.3, 0.2]
    assert found[0].config.optimizer.learning_rate == 1e-3


def test_data_root_quotes_and_flagfiles(tmp_path):
    (tmp_path / "sizes.cfg").write_text("# comment\n--hidden_size=64\n")
    found = ladder.systems(
        config(
            data_root=str(tmp_path),
            pretrain=("--corpus={data}/a.txt", "--data_dir='my data'"),
            system=("electra: --flagfile={data}/sizes.cfg",),
        )
    )
    run = found[0].config
    assert run.data.corpus == (f"{tmp_path}/a.txt",)
    assert run.data.data_dir == "my data"
    assert run.encoder.hidden_size == 64


def test_probes():
    (probe,) = ladder.probes(config(probe=("cola: --task=cola --data_dir={data}/c",)))
    assert probe.name == "cola"
    assert probe.config.data.data_dir == "data/c"


def test_points():
    assert config(checkpoints=("0.5", "0.25")).points == (0.25, 0.5, 1.0)
    for wrong in ("0", "1.5", "half"):
        with pytest.raises(ValueError, match=r"shares in \(0, 1\]"):
            _ = config(checkpoints=(wrong,)).points


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"system": ()}, "No --system"),
        ({"system": ("--objective=mlm",)}, "must be 'NAME: FLAGS'"),
        ({"system": ("../up:",)}, "must be 'NAME: FLAGS'"),
        ({"system": ("electra:", "electra:")}, "--system=electra: is given twice"),
        ({"system": ("untrained:",)}, "taken by --untrained"),
        ({"reference": "gpt"}, "--reference=gpt is none of the systems electra, mlm"),
        ({"untrained": "gpt"}, "--untrained=gpt is none of"),
        ({"system": ("electra: --hiden_size=3",)}, "--system=electra: .*hidden_size"),
        ({"system": ("electra: word",)}, "--system=electra: word is not a flag"),
        ({"system": ("electra: --mask_rate=7",)}, "--system=electra: --mask_rate must"),
        (
            {"system": ("electra:", "b: --vocab_size=9 --corpus=x")},
            "electra and b differ in --corpus, --vocab_size",
        ),
        ({"budget": "2000"}, "must be SYSTEM:STEPS"),
        ({"budget": "gpt:20"}, "one of electra, mlm"),
        ({"budget_flops": 10.0}, "less than a step of electra"),
        ({"budget_flops": 1e9, "equal": "steps"}, "--equal=steps needs --budget"),
        ({"seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"seed": 2**31}, r"--seed must be in \[0, 2147483647\]"),
        ({"seed": 2**31 - 5, "seeds": 6}, "needs seeds up to 2147483648"),
        ({"seed": 2**30, "seeds": 1, "probe_seeds": 2}, "seeds up to 2147483649"),
        (
            {"system": (f"electra: {TWO_STAGES}",), "budget": "electra:1"},
            "--system=electra does not fit into the 1 steps that .*--generator_steps",
        ),
    ],
)
def test_mistakes(values, message):
    with pytest.raises(ValueError, match=message):
        steps(**values)


def test_mistakes_in_probes():
    with pytest.raises(ValueError, match=r"--probe=a: .*epochs"):
        ladder.probes(config(probe=("a: --epochs=0",)))


def test_settings_leave_out_paths_and_seeds():
    first, other = (
        ladder.systems(config(system=(f"electra: {flags}",)))[0].settings()
        for flags in ("--model_dir=a --seed=1 --log_steps=7", "")
    )
    assert first == other
    changed = ladder.systems(config(system=("electra: --mask_rate=0.2",)))[0]
    assert changed.settings() != other


@pytest.mark.parametrize(
    "flag",
    [
        "--init_from=b",
        "--generator_init_from=b",
        "--eval_batch_size=7",
        "--max_eval_batches=7",
    ],
)
def test_settings_hold_what_changes_the_numbers(flag):
    """Though a single run may be resumed with another value."""
    first, other = (
        ladder.systems(config(system=(f"electra: {flags}",)))[0].settings()
        for flags in ("", flag)
    )
    assert first != other


def test_every_flag_of_a_resumed_run_is_compared_or_known_not_to_matter():
    """A new one must be put on one side or the other."""
    compared = set(ladder.systems(config(system=("electra:",)))[0].settings())
    assert config_lib.resumable_fields() & compared == {
        "init_from",
        "generator_init_from",
        "eval_batch_size",
        "max_eval_batches",
    }
    assert set(config_lib.to_flat(PretrainConfig())) - compared == {
        *config_lib.resumable_fields() - compared,
        "seed",
    }


def test_settings_of_a_probe_hold_its_data():
    first, other, log = (
        ladder.probes(config(probe=(f"cola: --task=cola {flags}",)))[0].settings()
        for flags in ("--data_dir=a", "--data_dir=b", "--data_dir=a --log_steps=7")
    )
    assert first != other
    assert first == log
