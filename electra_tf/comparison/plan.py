"""What has to be done: the resolved comparison, and the jobs that are left of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from electra_tf import build, costs, flops, results
from electra_tf import config as config_lib
from electra_tf.comparison import ladder
from electra_tf.comparison.config import LadderConfig
from electra_tf.comparison.ladder import UNTRAINED, Probe, System
from electra_tf.comparison.store import Store
from electra_tf.comparison.worker import ENCODER, encoder_folder

Job = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A comparison with its data.

    Attributes:
        config: its flags.
        systems: with the steps of the budget.
        probes: fine-tuning tasks.
        data: vocabulary and records, the same for all.
    """

    config: LadderConfig
    systems: tuple[System, ...]
    probes: tuple[Probe, ...]
    data: build.PretrainingData

    @property
    def seeds(self) -> range:
        """Of the pretraining runs."""
        return range(self.config.seed, self.config.seed + self.config.seeds)

    @property
    def rows(self) -> tuple[System, ...]:
        """The systems, and last the untrained encoder if it is asked for."""
        found = {system.name: system for system in self.systems}
        if not self.config.untrained:
            return self.systems
        return (*self.systems, System(UNTRAINED, found[self.config.untrained].config))

    def points(self, name: str) -> tuple[float, ...]:
        """Shares of a run that are probed."""
        return (1.0,) if name == UNTRAINED else self.config.points

    def flops(self, system: System, point: float = 1.0) -> dict[str, float]:
        """FLOPs up to a point of a run, by counting rule."""
        size = len(self.data.vocabulary)
        done = 0.0 if system.name == UNTRAINED else point
        return {
            rule: costs.run_flops(system.config, size, rule=rule, done=done)
            for rule in flops.RULES
        }

    def settings(self) -> dict[str, dict[str, Any]]:
        """What runs must agree in to stand in one table; and versions, to know them."""
        about = results.settings(self.systems[0].config, self.data)
        return {
            "systems": {row.name: row.settings() | about["data"] for row in self.rows},
            "probes": {
                probe.name: probe.settings() | {"probe_seeds": self.config.probe_seeds}
                for probe in self.probes
            },
            "about": {name: about[name] for name in ("versions", "commit")},
        }


def make(config: LadderConfig, log: Any) -> Plan:
    """Reads the flags and makes the data.

    Raises:
        ValueError: flags, text or budget do not fit.
        OSError: something cannot be read or written.
    """
    # Wrong points, names and flags are found before any text is read.
    _ = config.points
    found, probes = ladder.systems(config), ladder.probes(config)
    ladder.budgeted(found, config, found[0].config.data.vocab_size)
    first = found[0].config
    shared = dataclasses.replace(
        first, run=dataclasses.replace(first.run, model_dir=config.output_dir)
    )
    data = build.pretraining_data(shared, log)
    systems = ladder.budgeted(found, config, len(data.vocabulary))
    return Plan(config, systems, probes, data)


def jobs(plan: Plan, store: Store) -> list[Job]:
    """What is left, all systems of a seed before the next seed."""
    found = (_job(plan, store, row, seed) for seed in plan.seeds for row in plan.rows)
    return [job for job in found if job["pretrain"] or job["probes"]]


def _job(plan: Plan, store: Store, system: System, seed: int) -> Job:
    name = system.name
    folder = store.run_folder(name, seed)
    probes = [
        {"name": probe.name, "point": point, "config": _probe(plan, store, probe, seed)}
        for point in plan.points(name)
        for probe in plan.probes
        if store.find("probe", name, seed, point, probe.name) is None
    ]
    needed = {probe["point"] for probe in probes}
    is_there = store.find("pretrain", name, seed, None, None) and all(
        (encoder_folder(folder, point) / ENCODER).exists() for point in needed
    )
    return {
        "system": name,
        "seed": seed,
        "folder": str(folder),
        "is_untrained": name == UNTRAINED,
        "keep": plan.config.keep,
        "points": plan.points(name),
        "flops": plan.flops(system),
        "pretrain": None if is_there else _pretraining(plan, system, seed, folder),
        "probes": probes,
    }


def _pretraining(plan, system, seed, folder) -> dict[str, Any]:
    data = plan.data
    vocab_file = system.config.data.vocab_file or _vocabulary_of(plan, system)
    return config_lib.to_flat(system.config) | {
        "model_dir": str(folder),
        "seed": seed,
        "records": data.train_files,
        "eval_records": data.eval_files,
        "vocab_file": vocab_file,
        "keep_checkpoints": 5 if plan.config.keep == "all" else 1,
        "overwrite": False,
        "dry_run": False,
    }


def _vocabulary_of(plan, system) -> str | None:
    """The trained vocabulary; records that were given find theirs beside them."""
    data = system.config.data
    if data.records:
        return None
    return f"{data.data_dir or f'{plan.config.output_dir}/data'}/vocab.txt"


def _probe(plan, store, probe, seed) -> dict[str, Any]:
    seeds = plan.config.probe_seeds
    return config_lib.to_flat(probe.config) | {
        "seeds": seeds,
        # Other seeds for each pretraining seed, the same ones for all systems.
        "seed": seed * seeds,
        "cache_dir": str(store.folder / "cache"),
    }
