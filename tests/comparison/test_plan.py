import dataclasses
import json

import pytest

from electra_tf.comparison import plan
from electra_tf.comparison.store import Store, identity
from electra_tf.config import fields
from electra_tf.config.commands import CompareConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import UserError
from electra_tf.systems import costs
from tests.comparison.helpers import VOCAB, plan_of

SIZES = (
    "--num_train_steps=100 --warmup_steps=10 --num_layers=2 --hidden_size=32 "
    "--num_heads=2 --intermediate_size=64 --embedding_size=16 --max_seq_length=32"
)
SYSTEMS = ("electra:", "mlm: --objective=mlm --mask_rule=bert")
TWO_STAGES = (
    "--training=two_stage --sharing=nes --generator_hidden_size=1 --generator_steps=10"
)


def config(**values):
    return CompareConfig(**{"pretrain": (SIZES,), "system": SYSTEMS, **values})


def test_initial_weights_bring_their_sizes_and_recipe():
    told = []
    flags = "electra: --init_from=mini --dropout=0.2"
    (system,) = plan.systems(config(system=(flags,), pretrain=())).values()
    run = plan.warm_start.completed(system, told.append)
    assert (run.encoder.num_layers, run.encoder.dropout) == (4, 0.2)
    assert run.optimizer.learning_rate == 4e-4
    assert "--init_from=mini sets" in told[0]


def test_unfit_initial_weights_are_refused_before_any_text_is_read(tmp_path):
    flags = "electra: --init_from=mini --hidden_size=32 --intermediate_size=64"
    given = config(system=(flags,), pretrain=(), output_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"hidden_size is .* there and 32 here"):
        plan.make(given, lambda line: None)


def steps(**values):
    chosen = config(**values)
    return plan.budgeted(plan.systems(chosen), chosen, VOCAB)


def test_equal_flops_by_the_rule_of_the_original():
    rule = "original"
    runs = steps(budget="electra:3000", flops_rule=rule)
    assert runs["electra"].run.num_train_steps == 3000
    assert runs["mlm"].run.num_train_steps != 3000
    # Equal up to the rounding of one step.
    work = [costs.run_flops(run, VOCAB, rule=rule) for run in runs.values()]
    assert work[0] == pytest.approx(work[1], 1e-3)
    for run in runs.values():
        share = run.optimizer.warmup_steps / run.run.num_train_steps
        assert share == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (TWO_STAGES, "generator_steps"),
        ("--final_temperature=2 --temperature_steps=10", "temperature_steps"),
    ],
)
def test_times_do_not_shrink_to_nothing(flags, name):
    system = (f"electra: {flags}",)
    for budget, expected in ((50, 5), (4, 1)):
        run = steps(system=system, budget=f"electra:{budget}", equal="steps")["electra"]
        assert run.run.num_train_steps == budget
        assert fields.to_flat(run)[name] == expected
    assert run.generator_steps in (0, 1)
    assert run.optimizer.warmup_steps == 0


def test_data_root_quotes_and_flagfiles(tmp_path):
    root = tmp_path / "it's my data"
    root.mkdir()
    (root / "sizes.cfg").write_text("# comment\n--hidden_size=64\n")
    given = config(
        data_root=str(root),
        pretrain=("--corpus={data}/a.txt", "--data_dir='my data'"),
        system=("electra: --flagfile={data}/sizes.cfg",),
    )
    run = plan.systems(given)["electra"]
    assert run.data.corpus == (f"{root}/a.txt",)
    assert run.data.data_dir == "my data"
    assert run.encoder.hidden_size == 64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"system": ()}, "No --system"),
        ({"system": ("../up:",)}, "must be 'NAME: FLAGS'"),
        ({"system": ("electra:", "electra:")}, "--system=electra: this name is taken"),
        ({"reference": "gpt"}, "--reference=gpt is not one of the systems electra"),
        ({"system": ("electra: --hiden_size=3",)}, "--system=electra: .*hidden_size"),
        ({"system": ("electra: word",)}, r"--system=electra: unexpected .*\['word'\]"),
        ({"system": ("electra: --mask_rate=7",)}, "--system=electra: --mask_rate must"),
        ({"system": ("electra: --corpus=it's",)}, "--corpus=it's: No closing quot"),
        (
            {"system": ("electra:", "b: --vocab_size=9 --corpus=x")},
            "electra and b differ in --corpus, --vocab_size",
        ),
        ({"system": ("electra: --seed=3",)}, "to the comparison itself"),
        ({"pretrain": (SIZES, "--dry_run")}, "pass --seed and --dry_run to"),
        ({"budget": "gpt:20"}, "must be SYSTEM:STEPS, the system one of electra, mlm"),
        ({"budget": "electra:\u00b2"}, "must be SYSTEM:STEPS"),
        (
            {"system": (f"electra: {TWO_STAGES}",), "budget": "electra:1"},
            "electra does not fit into the 1 steps of its budget: --generator_steps=1 ",
        ),
    ],
)
def test_mistakes(values, message):
    with pytest.raises(UserError, match=message):
        steps(**values)


def test_pairs_are_probes_without_training(tmp_path):
    given = config(
        probe=("cola: --task=cola --data_dir=c",),
        pairs=("blimp: --data={data}/blimp --limit=5",),
        data_root="x",
    )
    found = plan.probes(given)
    assert [*found] == ["cola", "blimp"]
    assert found["cola"].data.data_dir == "c"
    assert (found["blimp"].data, found["blimp"].limit) == (("x/blimp",), 5)
    assert not {"model", "batch_size"} & plan.settings(found["blimp"]).keys()
    for pairs, message in (
        ("cola: --data=x", "--pairs=cola: this name is taken"),
        ("average: --data=x", "--pairs=average: this name is taken"),
        ("b: --method=mine", "--pairs=b"),
        ("b: --input=lists.jsonl --output=best.jsonl", "--pairs=b needs --data"),
    ):
        with pytest.raises(ValueError, match=message):
            plan.probes(dataclasses.replace(given, pairs=(pairs,)))
    for probe, message in (
        ("a: --epochs=0", "--probe=a: .*epochs"),
        ("a: --task=cola --data_dir=x --seeds=5", "--probe=a: .* use --probe_seeds"),
    ):
        with pytest.raises(ValueError, match=message):
            plan.probes(config(probe=(probe,)))


def test_settings_of_a_probe_hold_its_data():
    flags = ("--data_dir=a", "--data_dir=b", "--data_dir=a --log_steps=7")
    found = plan.probes(config(probe=[f"p{n}: {own}" for n, own in enumerate(flags)]))
    first, other, log = map(plan.settings, found.values())
    assert first == log != other


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def make(store, **values):
    seeds = {"seeds": 2, "probe_seeds": 3}
    return plan_of(**{"output_dir": str(store.folder)} | seeds | values)


def finish(store, job, count=None):
    for part in job["parts"][:count]:
        store.add(identity(part))
        folder = store.run_folder(job["system"], job["seed"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "encoder.keras").write_text("weights")


def left(ready, store):
    return [
        (job["system"], job["seed"], [part.get("probe") for part in job["parts"]])
        for job in plan.jobs(ready, store)
    ]


ALL = [None, "cola", "sst"]


def test_everything_seed_by_seed(store):
    expected = [(name, seed, ALL) for seed in (0, 1) for name in ("electra", "mlm")]
    ready = make(store)
    assert left(ready, store) == expected
    # A failed run is tried again.
    store.add({"kind": "pretrain", "system": "electra", "seed": 0, "failure": "x"})
    assert left(ready, store) == expected


def test_what_is_done_is_skipped(store):
    ready = make(store)
    jobs = plan.jobs(ready, store)
    finish(store, jobs[0])
    finish(store, jobs[1], count=2)
    found = left(ready, Store(store.folder))
    assert found[0] == ("mlm", 0, ["sst"])
    assert found[1][:2] == ("electra", 1)
    for job in jobs:
        finish(store, job)
    assert left(ready, store) == []
    more = make(store, seeds=3)
    assert left(more, store) == [("electra", 2, ALL), ("mlm", 2, ALL)]


def test_new_probes_need_the_encoder(store):
    for job in plan.jobs(make(store), store):
        finish(store, job)
    more = make(store, probe=("cola: --task=cola", "sst: --task=sst", "new: "))
    assert left(more, store)[0] == ("electra", 0, ["new"])
    (store.run_folder("electra", 0) / "encoder.keras").unlink()
    assert left(more, store)[0] == ("electra", 0, [None, "new"])


def test_configs_of_a_run(store):
    ready = make(store)
    job = plan.jobs(ready, store)[2]
    assert json.loads(json.dumps(job))["system"] == "electra"
    run = fields.from_flat(job["parts"][0]["config"], PretrainConfig)
    assert run.run.seed == 1
    assert run.run.model_dir == str(store.run_folder("electra", 1))
    assert run.data.records == ("a-0", "a-1")
    assert run.data.eval_records == ("b",)
    assert run.data.vocab_file == f"{store.folder}/data/vocab.txt"
    assert not run.run.overwrite
    # Fine-tuning seeds differ between pretraining seeds and are equal across systems.
    first = fields.from_flat(job["parts"][1]["config"], FinetuneConfig)
    assert (first.run.seed, first.run.seeds) == (3, 3)
    other = plan.jobs(ready, store)[3]
    assert other["system"] == "mlm"
    assert other["parts"][1]["config"] == job["parts"][1]["config"]


def test_settings_hold_the_data_and_the_seeds_of_probes(store, monkeypatch):
    about = {"data": {"records_sha256": "1"}, "versions": {}, "commit": "c"}
    monkeypatch.setattr(plan, "settings_of", lambda flags, data: about)
    monkeypatch.setattr(plan.paths, "size", len)
    found = make(store).settings()
    assert found["systems"]["mlm"]["held_out"] == [["b", 1]]
    assert found["systems"]["mlm"]["records_sha256"] == "1"
    assert found["probes"]["cola"]["probe_seeds"] == 3
    seeds = dataclasses.replace(make(store).config, seeds=9, seed=4)
    assert dataclasses.replace(make(store), config=seeds).settings() == found


def test_too_large_seeds_are_refused_before_any_text_is_read(tmp_path):
    given = config(seed=2**31 // 2, probe_seeds=3, output_dir=str(tmp_path))
    with pytest.raises(ValueError, match="is too large for --seeds"):
        plan.make(given, pytest.fail)
