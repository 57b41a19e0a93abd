"""Resolves a comparison: systems, training steps, probes and the missing jobs."""

import dataclasses
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.comparison.store import ENCODER, SETTINGS, Store
from electra_tf.config import fields
from electra_tf.config.commands import CompareConfig, ScoreConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data import paths
from electra_tf.errors import UserError, explained
from electra_tf.folders.pretraining import settings_of
from electra_tf.runs import warm_start
from electra_tf.systems import build, costs

# Column of the mean over all probes.
AVERAGE = "average"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
# Settings in steps, which scale with the length of the run, and their minimums.
_IN_STEPS = {
    "warmup_steps": 0,
    "generator_steps": 1,
    "adversarial_start": 0,
    "adversarial_steps": 0,
    "temperature_steps": 1,
}
# Flags that may differ between runs of the same system or probe.
_MAY_DIFFER = {
    PretrainConfig: (
        *("model_dir", "seed", "overwrite", "dry_run"),
        # Locations of the data; `Plan.settings` compares its hash.
        *("corpus", "text_column", "vocab_file", "records", "eval_records"),
        "data_dir",
        *("eval_steps", "log_steps", "save_checkpoint_steps", "keep_checkpoints"),
        *("distribution", "remat"),
    ),
    FinetuneConfig: (
        *("encoder", "output_dir", "overwrite", "seed", "seeds"),
        *("log_steps", "export_saved_model"),
    ),
    ScoreConfig: ("model", "report", "overwrite", "input", "output", "weight"),
}

# Sent to the worker as a line of JSON; ``jobs`` documents the keys.
Job = dict[str, Any]

# Configs by name of a system or probe, shared by its runs.
Systems = dict[str, PretrainConfig]
Probes = dict[str, FinetuneConfig | ScoreConfig]


def systems(config: CompareConfig) -> Systems:
    """Parses the systems from the flags; the budget is not applied yet."""
    if not config.system:
        raise UserError("No --system: name at least one, such as 'electra:'.")
    # A comparison has no folder to resume from.
    shared = ["--overwrite"]
    shared += [word for text in config.pretrain for word in _words(text, config)]
    found = _parsed("system", PretrainConfig, config, shared=shared)
    if config.reference not in found:
        raise UserError(
            f"--reference={config.reference} is not one of the systems "
            f"{', '.join(found)}."
        )
    run = PretrainConfig().run
    for name, system in found.items():
        if (system.run.seed, system.run.dry_run) != (run.seed, run.dry_run):
            raise UserError(
                f"--system={name}: pass --seed and --dry_run to the comparison itself."
            )
    first, *others = found
    for other in others:
        mine, theirs = vars(found[first].data), vars(found[other].data)
        changed = [f"--{name}" for name in mine if mine[name] != theirs[name]]
        if changed:
            raise UserError(
                f"{first} and {other} differ in {', '.join(changed)}: all systems of a "
                "comparison read the same records. Put these flags into --pretrain."
            )
    return found


def probes(config: CompareConfig) -> Probes:
    """Parses the probes from the flags."""
    tuned = _parsed("probe", FinetuneConfig, config, [AVERAGE])
    # The model is a placeholder; the worker fills in the folder.
    scored = _parsed("pairs", ScoreConfig, config, [AVERAGE, *tuned], ["--model=."])
    default = FinetuneConfig().run
    for name, probe in tuned.items():
        if (probe.run.seed, probe.run.seeds) != (default.seed, default.seeds):
            raise UserError(
                f"--probe={name}: the comparison sets --seed and --seeds: leave them "
                "out, and use --probe_seeds."
            )
    for name, probe in scored.items():
        if not probe.data:
            raise UserError(f"--pairs={name} needs --data, the minimal pairs.")
    return tuned | scored


def _parsed(
    flag: str,
    config_class: type,
    config: CompareConfig,
    reserved: Sequence[str] = (),
    shared: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns configs by name of a repeated flag; all get the ``shared`` flags."""
    found: dict[str, Any] = {}
    for text in getattr(config, flag):
        name, _, rest = text.partition(":")
        name = name.strip()
        if not _NAME.fullmatch(name):
            raise UserError(
                f"--{flag}={text}: it must be 'NAME: FLAGS', with letters, digits and "
                "_.+- in the name."
            )
        if name in found or name in reserved:
            raise UserError(
                f"--{flag}={name}: this name is taken or reserved; choose another."
            )
        words = _words(rest, config)
        with explained(f"--{flag}={name}", (flags.Error, OSError, ValueError)):
            found[name] = cli.parse(config_class, [*shared, *words])
    return found


def _words(text: str, config: CompareConfig) -> list[str]:
    root = config.data_root
    root = root if paths.is_remote(root) else str(Path(root))
    with explained(text.strip()):
        # Split first: the folder may have spaces or quotes.
        return [word.replace("{data}", root) for word in shlex.split(text)]


def budgeted(described: Systems, config: CompareConfig, vocab_size: int) -> Systems:
    """Sets each system's training steps by the budget and scales its schedules."""

    def step_cost(system: PretrainConfig) -> float:
        if config.equal == "steps":
            return 1
        total = costs.run_flops(system, vocab_size, rule=config.flops_rule)
        return total / system.run.num_train_steps

    name, _, steps = config.budget.rpartition(":")
    if name not in described or not re.fullmatch("[1-9][0-9]{0,14}", steps):
        raise UserError(
            f"--budget={config.budget} must be SYSTEM:STEPS, the system one of "
            f"{', '.join(described)}."
        )
    budget = int(steps) * step_cost(described[name])
    return {
        each: _scaled(each, system, round(budget / step_cost(system)))
        for each, system in described.items()
    }


def _scaled(name: str, config: PretrainConfig, steps: int) -> PretrainConfig:
    """Sets the training steps, and scales settings in steps by the same factor."""
    given = fields.to_flat(config)
    share = steps / given["num_train_steps"]
    scaled = {
        flag: max(least, round(given[flag] * share))
        for flag, least in _IN_STEPS.items()
        if given[flag] is not None
    }
    flat = given | scaled | {"num_train_steps": steps}
    what = f"--system={name} does not fit into the {steps} steps of its budget"
    with explained(what):
        return fields.from_flat(flat, PretrainConfig)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A comparison with resolved flags; its systems have the steps of the budget."""

    config: CompareConfig
    systems: Systems
    probes: Probes
    data: build.PretrainingData

    @property
    def seeds(self) -> range:
        """The pretraining seeds."""
        return range(self.config.seed, self.config.seed + self.config.seeds)

    def flops(self, name: str) -> dict[str, float]:
        """Returns the training FLOPs of a run, by counting rule."""
        system, size = self.systems[name], len(self.data.vocabulary)
        return {rule: costs.run_flops(system, size, rule=rule) for rule in costs.RULES}

    def settings(self) -> dict[str, dict[str, Any]]:
        """Returns the settings that all runs of a table share, for ``Store.check``."""
        about = settings_of({}, self.data)
        held_out = [[Path(p).name, paths.size(p)] for p in self.data.eval_files]
        data = about["data"] | {"held_out": held_out}
        return {
            "systems": {
                name: settings(system) | data for name, system in self.systems.items()
            },
            "probes": {
                name: settings(probe) | {"probe_seeds": self.config.probe_seeds}
                for name, probe in self.probes.items()
            },
            "about": {name: about[name] for name in ("versions", "commit")},
        }


def settings(config: PretrainConfig | FinetuneConfig | ScoreConfig) -> dict[str, Any]:
    """Returns the flags, with values, that must be equal in all runs."""
    omitted = _MAY_DIFFER[type(config)]
    flat = fields.to_flat(config)
    return {name: value for name, value in flat.items() if name not in omitted}


def make(config: CompareConfig, log: Log) -> Plan:
    """Parses the flags and builds vocabulary and records."""
    # Report invalid flags before any text is read. The vocabulary does not exist yet,
    # so check the budget with its configured size.
    files.check_checkpoint_path(config.output_dir)
    described, tasks = systems(config), probes(config)
    if (config.seed + config.seeds) * config.probe_seeds - 1 > fields.MAX_SEED:
        raise UserError(
            f"--seed={config.seed} is too large for --seeds and --probe_seeds: "
            f"fine-tuning seeds exceed {fields.MAX_SEED:,}."
        )
    described = {
        # With the sizes and the recipe of --init_from, as in a run.
        name: warm_start.completed(system, log)
        for name, system in described.items()
    }
    # A comparison that has begun does not need the folders of initial weights any more.
    is_new = not Path(config.output_dir, SETTINGS).exists()
    started = [x for x in described.values() if x.run.init_from and is_new]
    for system in started:
        warm_start.check(system)
    first = next(iter(described.values()))
    budgeted(described, config, first.data.vocab_size)
    run = dataclasses.replace(first.run, model_dir=config.output_dir, overwrite=False)
    data = build.pretraining_data(dataclasses.replace(first, run=run), log)
    for system in started:
        warm_start.check(system, data)
    if not data.eval_files and (config.threshold_auc > 0 or config.threshold_nats > 0):
        log("warning: without held-out text, the thresholds pass every system")
    return Plan(config, budgeted(described, config, len(data.vocabulary)), tasks, data)


def jobs(plan: Plan, store: Store) -> list[Job]:
    """Returns the missing runs; all systems of a seed precede the next seed.

    Keys of a job: ``system``, ``seed``, ``folder``, ``flops``, and ``parts``, the
    missing rows of the results in order. A part has the key of its row and a flat
    ``config``; the part of a probe also has ``command``.
    """
    every = (
        _job(plan, store, name, seed) for seed in plan.seeds for name in plan.systems
    )
    return [job for job in every if job["parts"]]


def _job(plan: Plan, store: Store, system: str, seed: int) -> Job:
    about = {"system": system, "seed": seed}
    folder = store.run_folder(system, seed)
    # Distinct fine-tuning seeds per pretraining seed, equal for all systems.
    count = plan.config.probe_seeds
    seeds = {"seeds": count, "seed": seed * count}
    parts = []
    for name, probe in plan.probes.items():
        if store.find(system, seed, name) is None:
            part = {"kind": "probe", **about, "probe": name}
            part |= {"command": "score", "config": fields.to_flat(probe)}
            if isinstance(probe, FinetuneConfig):
                part |= {"command": "finetune", "config": part["config"] | seeds}
            parts.append(part)
    is_needed = bool(parts) and not (folder / ENCODER).exists()
    if is_needed or store.find(system, seed) is None:
        config = plan.systems[system]
        data, vocab_file = config.data, config.data.vocab_file
        # Existing records have their vocabulary beside them.
        if not (vocab_file or data.records):
            data_dir = data.data_dir or f"{plan.config.output_dir}/data"
            vocab_file = f"{data_dir}/vocab.txt"
        config = fields.to_flat(config) | {
            "model_dir": str(folder),
            "seed": seed,
            "records": plan.data.train_files,
            "eval_records": plan.data.eval_files,
            "vocab_file": vocab_file,
            "data_dir": None,
            "keep_checkpoints": 1,
            "overwrite": False,
            "dry_run": False,
        }
        parts.insert(0, {"kind": "pretrain", **about, "config": config})
    flops = plan.flops(system)
    return about | {"folder": str(folder), "flops": flops, "parts": parts}
