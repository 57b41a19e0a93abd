"""Which jobs are left, given what is done and what is on disk."""

import dataclasses
import json
import types

import pytest

from electra_tf import config as config_lib
from electra_tf.comparison import ladder, plan
from electra_tf.comparison.config import LadderConfig
from electra_tf.comparison.store import Store
from electra_tf.comparison.worker import encoder_folder, training_seconds
from electra_tf.config import PretrainConfig
from electra_tf.finetune_config import FinetuneConfig


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def make(store, **values):
    config = LadderConfig(
        **{
            "system": ("electra:", "mlm: --objective=mlm"),
            "probe": ("cola: --task=cola", "sst: --task=sst"),
            "seeds": 2,
            "probe_seeds": 3,
            "budget": "electra:100",
            "checkpoints": ("0.5", "1"),
            "untrained": "mlm",
            "output_dir": str(store.folder),
            **values,
        }
    )
    data = types.SimpleNamespace(
        vocabulary=range(300), train_files=("a-0", "a-1"), eval_files=("b",)
    )
    systems = ladder.budgeted(ladder.systems(config), config, 300)
    return plan.Plan(config, systems, ladder.probes(config), data)


def finish(store, job, parts=None):
    """As if the worker had done the first parts of a job."""
    about = {"system": job["system"], "seed": job["seed"]}
    if job["pretrain"]:
        store.add({"kind": "pretrain", **about})
        for point in job["points"]:
            folder = encoder_folder(job["folder"], point)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "encoder.keras").write_text("weights")
    for probe in job["probes"][:parts]:
        what = {"point": probe["point"], "probe": probe["name"]}
        store.add({"kind": "probe", **about, **what})


def left(ready, store):
    return [
        (
            job["system"],
            job["seed"],
            job["pretrain"] is not None,
            [(probe["name"], probe["point"]) for probe in job["probes"]],
        )
        for job in plan.jobs(ready, store)
    ]


BOTH = [("cola", 0.5), ("sst", 0.5), ("cola", 1.0), ("sst", 1.0)]


def test_everything_seed_by_seed(store):
    end = BOTH[2:]
    expected = [
        (system, seed, True, end if system == "untrained" else BOTH)
        for seed in (0, 1)
        for system in ("electra", "mlm", "untrained")
    ]
    assert left(make(store), store) == expected


def test_what_is_done_is_skipped(store):
    ready = make(store)
    jobs = plan.jobs(ready, store)
    finish(store, jobs[0])
    finish(store, jobs[1], parts=3)
    found = left(ready, Store(store.folder))
    assert found[0] == ("mlm", 0, False, BOTH[3:])
    assert found[1][:2] == ("untrained", 0)
    for job in jobs:
        finish(store, job)
    assert left(ready, store) == []
    more = make(store, seeds=3, untrained="")
    assert [job[:2] for job in left(more, store)] == [("electra", 2), ("mlm", 2)]


def test_a_new_probe_needs_no_pretraining_as_long_as_the_encoder_is_there(store):
    for job in plan.jobs(make(store), store):
        finish(store, job)
    more = make(store, probe=("cola: --task=cola", "sst: --task=sst", "new: "))
    assert left(more, store)[0] == (
        "electra",
        0,
        False,
        [("new", 0.5), ("new", 1.0)],
    )
    (store.run_folder("electra", 0) / "encoder.keras").unlink()
    assert left(more, store)[0][2]


def test_a_new_point_is_trained_again(store):
    for job in plan.jobs(make(store), store):
        finish(store, job)
    more = make(store, checkpoints=("0.25", "0.5", "1"))
    assert left(more, store)[0] == ("electra", 0, True, [("cola", 0.25), ("sst", 0.25)])


def test_a_failed_run_is_tried_again(store):
    ready = make(store)
    store.add({"kind": "pretrain", "system": "electra", "seed": 0, "failure": "x"})
    assert left(ready, store)[0] == ("electra", 0, True, BOTH)


def test_configs_of_a_run(store):
    ready = make(store)
    job = plan.jobs(ready, store)[3]
    assert json.loads(json.dumps(job))["system"] == "electra"
    run = config_lib.from_flat(job["pretrain"], PretrainConfig)
    assert run.run.seed == 1
    assert run.run.model_dir == str(store.run_folder("electra", 1))
    assert run.data.records == ("a-0", "a-1")
    assert run.data.eval_records == ("b",)
    assert run.data.vocab_file == f"{store.folder}/data/vocab.txt"
    assert not run.run.overwrite
    # Other fine-tuning seeds for every pretraining seed, the same for all systems.
    first = config_lib.from_flat(job["probes"][0]["config"], FinetuneConfig)
    assert (first.run.seed, first.run.seeds) == (3, 3)
    other = plan.jobs(ready, store)[4]
    assert other["system"] == "mlm"
    assert other["probes"][0]["config"] == job["probes"][0]["config"]


def test_costs_of_the_untrained_encoder_are_nothing(store):
    ready = make(store)
    assert set(ready.flops(ready.rows[-1]).values()) == {0.0}
    half = ready.flops(ready.rows[0], 0.5)
    for rule, value in ready.flops(ready.rows[0]).items():
        assert half[rule] == pytest.approx(value / 2)


def test_settings_of_the_untrained_encoder_are_those_of_its_system(store, monkeypatch):
    about = {"data": {"records_sha256": "1"}, "versions": {}, "commit": "c"}
    monkeypatch.setattr(plan.results, "settings", lambda config, data: about)
    found = make(store).settings()
    assert found["systems"]["untrained"] == found["systems"]["mlm"]
    assert found["systems"]["mlm"]["records_sha256"] == "1"
    assert found["probes"]["cola"]["probe_seeds"] == 3
    seeds = dataclasses.replace(make(store).config, seeds=9, seed=4)
    assert dataclasses.replace(make(store), config=seeds).settings() == found


def test_training_time_over_several_processes():
    """10 steps at 200 tokens/s, 20 at 400; the first step of each was not timed."""
    rows = [
        {"step": 1, "loss": 9.0},
        {"step": 11, "tokens_per_second": 200.0},
        {"step": 31, "tokens_per_second": 400.0},
        {"step": 31, "eval_loss": 1.0},
    ]
    assert training_seconds(rows, tokens_per_step=100) == pytest.approx(5 + 5)
