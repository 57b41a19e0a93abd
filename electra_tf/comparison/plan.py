"""Resolves a comparison: systems, training steps, probes and the missing jobs."""

import dataclasses
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.comparison.store import ENCODER, Store
from electra_tf.config import fields
from electra_tf.config.commands import CompareConfig, ScoreConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data import paths
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import named, settings_of
from electra_tf.runs import warm_start
from electra_tf.systems import build, costs

UNTRAINED = "untrained"
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


@dataclasses.dataclass(frozen=True)
class Entry:
    """A system or probe: its name, and the config shared by its runs."""

    name: str
    config: PretrainConfig | FinetuneConfig | ScoreConfig

    def settings(self) -> dict[str, Any]:
        """Returns the flags, with values, that must be equal in all runs."""
        return {
            name: value
            for name, value in fields.to_flat(self.config).items()
            if name not in _MAY_DIFFER[type(self.config)]
        }


# An entry with a PretrainConfig.
System = Entry


def systems(config: CompareConfig) -> tuple[System, ...]:
    """Parses the systems from the flags; the budget is not applied yet."""
    if not config.system:
        raise UserError("No --system: name at least one, such as 'electra:'.")
    shared = [word for text in config.pretrain for word in _words(text, config)]
    described = tuple(
        _entries("system", config.system, PretrainConfig, config, {UNTRAINED}, shared)
    )
    names = [system.name for system in described]
    for flag in ("reference", "untrained"):
        name = getattr(config, flag)
        if name and name not in names:
            known = ", ".join(names)
            raise UserError(f"--{flag}={name} is not one of the systems {known}.")
    first, *others = described
    for other in others:
        mine, theirs = vars(first.config.data), vars(other.config.data)
        changed = [f"--{name}" for name in mine if mine[name] != theirs[name]]
        if changed:
            raise UserError(
                f"{first.name} and {other.name} differ in {', '.join(changed)}: all "
                "systems of a comparison read the same records. Put these flags into "
                "--pretrain."
            )
    return described


def probes(config: CompareConfig) -> tuple[Entry, ...]:
    """Parses the probes from the flags."""
    taken = {AVERAGE}
    # A placeholder; the worker fills in the model folder.
    model = ["--model=."]
    tuned = [*_entries("probe", config.probe, FinetuneConfig, config, taken)]
    scored = [*_entries("pairs", config.pairs, ScoreConfig, config, taken, model)]
    for probe in tuned:
        run, default = probe.config.run, FinetuneConfig().run
        if (run.seed, run.seeds) != (default.seed, default.seeds):
            raise UserError(
                f"--probe={probe.name}: the comparison sets --seed and --seeds: leave "
                "them out, and use --probe_seeds."
            )
    for probe in scored:
        if not probe.config.data:
            raise UserError(f"--pairs={probe.name} needs --data, the minimal pairs.")
    return (*tuned, *scored)


def _entries(
    flag: str,
    texts: Sequence[str],
    config_class: type,
    config: CompareConfig,
    taken: set[str],
    shared: Sequence[str] = (),
) -> Iterator[Entry]:
    """Parses the texts of a flag; adds their names to ``taken``."""
    for text in texts:
        name, _, rest = text.partition(":")
        name = name.strip()
        if not _NAME.fullmatch(name):
            raise UserError(
                f"--{flag}={text}: it must be 'NAME: FLAGS', with letters, digits and "
                "_.+- in the name."
            )
        if name in taken:
            raise UserError(
                f"--{flag}={name}: this name is taken or reserved; choose another."
            )
        taken.add(name)
        words = _words(rest, config)
        try:
            parsed = cli.parse(config_class, [*shared, *words])
        except (flags.Error, OSError, ValueError) as error:
            raise UserError(f"--{flag}={name}: {error}") from error
        yield Entry(name, parsed)


def _words(text: str, config: CompareConfig) -> list[str]:
    root = config.data_root
    root = root if paths.is_remote(root) else str(Path(root))
    try:
        # Split first: the folder may have spaces or quotes.
        return [word.replace("{data}", root) for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"{text.strip()}: {error}.") from error


def completed(system: System, log: Log) -> System:
    """Sets vocabulary, casing, sizes and recipe of ``--init_from``, as a run does."""
    flat, run = fields.to_flat(system.config), system.config.run
    if run.init_from and not named(run.init_from).exists():
        raise FileNotFoundError(f"--init_from={run.init_from}: no such folder.")
    given = {name: flat[name] for name in system.config.given}
    # A comparison has no folder to resume from.
    anew = fields.from_flat(given | {"overwrite": True}, PretrainConfig)
    flat = fields.to_flat(warm_start.completed(anew, log))
    config = fields.from_flat(flat | {"overwrite": run.overwrite}, PretrainConfig)
    return System(system.name, config)


def budgeted(
    described: Sequence[System], config: CompareConfig, vocab_size: int
) -> tuple[System, ...]:
    """Sets each system's training steps by the budget and scales its schedules."""

    def step_cost(system: System) -> float:
        if config.equal == "steps":
            return 1
        total = costs.run_flops(system.config, vocab_size, rule=config.flops_rule)
        return total / system.config.run.num_train_steps

    name, _, steps = config.budget.rpartition(":")
    by_name = {system.name: system for system in described}
    if name not in by_name or not re.fullmatch("[1-9][0-9]{0,14}", steps):
        raise UserError(
            f"--budget={config.budget} must be SYSTEM:STEPS, the system one of "
            f"{', '.join(by_name)}."
        )
    budget = int(steps) * step_cost(by_name[name])
    return tuple(_scaled(each, round(budget / step_cost(each))) for each in described)


def _scaled(system: System, steps: int) -> System:
    """Sets the training steps, and scales settings in steps by the same factor."""
    given = fields.to_flat(system.config)
    share = steps / given["num_train_steps"]
    scaled = {
        name: max(least, round(given[name] * share))
        for name, least in _IN_STEPS.items()
        if given[name] is not None
    }
    flat = given | scaled | {"num_train_steps": steps}
    try:
        return System(system.name, fields.from_flat(flat, PretrainConfig))
    except ValueError as error:
        raise UserError(
            f"--system={system.name} does not fit into the {steps} steps of its "
            f"budget: {error}"
        ) from error


@dataclasses.dataclass(frozen=True)
class Plan:
    """A comparison with resolved flags; its systems have the steps of the budget."""

    config: CompareConfig
    systems: tuple[System, ...]
    probes: tuple[Entry, ...]
    data: build.PretrainingData

    @property
    def seeds(self) -> range:
        """The pretraining seeds."""
        return range(self.config.seed, self.config.seed + self.config.seeds)

    @property
    def rows(self) -> tuple[System, ...]:
        """The systems, and last the untrained encoder if `--untrained` is set."""
        if not self.config.untrained:
            return self.systems
        configs = {system.name: system.config for system in self.systems}
        return (*self.systems, System(UNTRAINED, configs[self.config.untrained]))

    def flops(self, system: System) -> dict[str, float]:
        """Returns the training FLOPs of a run, by counting rule."""
        if system.name == UNTRAINED:
            return dict.fromkeys(costs.RULES, 0.0)
        size = len(self.data.vocabulary)
        return {r: costs.run_flops(system.config, size, rule=r) for r in costs.RULES}

    def settings(self) -> dict[str, dict[str, Any]]:
        """Returns the settings that all runs of a table share, for ``Store.check``."""
        about = settings_of({}, self.data)
        held_out = [[Path(p).name, paths.size(p)] for p in self.data.eval_files]
        data = about["data"] | {"held_out": held_out}
        return {
            "systems": {row.name: row.settings() | data for row in self.rows},
            "probes": {
                probe.name: probe.settings() | {"probe_seeds": self.config.probe_seeds}
                for probe in self.probes
            },
            "about": {name: about[name] for name in ("versions", "commit")},
        }


def make(config: CompareConfig, log: Log) -> Plan:
    """Parses the flags and builds vocabulary and records."""
    # Report invalid flags before any text is read. The vocabulary does not exist yet,
    # so check the budget with its configured size.
    files.check_checkpoint_path(config.output_dir)
    described, tasks = systems(config), probes(config)
    described = tuple(completed(system, log) for system in described)
    if (config.seed + config.seeds) * config.probe_seeds - 1 > fields.MAX_SEED:
        raise UserError(
            f"--seed={config.seed} is too large for --seeds={config.seeds} and "
            f"--probe_seeds={config.probe_seeds}: fine-tuning seeds exceed "
            f"{fields.MAX_SEED:,}."
        )
    first = described[0].config
    budgeted(described, config, first.data.vocab_size)
    run = dataclasses.replace(first.run, model_dir=config.output_dir)
    data = build.pretraining_data(dataclasses.replace(first, run=run), log)
    return Plan(config, budgeted(described, config, len(data.vocabulary)), tasks, data)


def jobs(plan: Plan, store: Store) -> list[Job]:
    """Returns the missing runs; all systems of a seed precede the next seed.

    Keys of a job: ``system``, ``seed``, ``folder``, ``flops``, and ``parts``, the
    missing rows of the results in order. A part has the key of its row and a flat
    ``config``; the part of a probe also has ``command``.
    """
    every = (_job(plan, store, row, seed) for seed in plan.seeds for row in plan.rows)
    return [job for job in every if job["parts"]]


def _job(plan: Plan, store: Store, system: System, seed: int) -> Job:
    about = {"system": system.name, "seed": seed}
    folder = store.run_folder(system.name, seed)
    # Distinct fine-tuning seeds per pretraining seed, equal for all systems.
    count = plan.config.probe_seeds
    seeds = {"seeds": count, "seed": seed * count}
    parts = []
    for probe in plan.probes:
        if store.find(system.name, seed, probe.name) is None:
            part = {"kind": "probe", **about, "probe": probe.name}
            config = fields.to_flat(probe.config)
            if isinstance(probe.config, FinetuneConfig):
                part |= {"command": "finetune", "config": config | seeds}
            else:
                part |= {"command": "score", "config": config}
            parts.append(part)
    is_needed = bool(parts) and not (folder / ENCODER).exists()
    if is_needed or store.find(system.name, seed) is None:
        data, vocab_file = system.config.data, system.config.data.vocab_file
        # Existing records have their vocabulary beside them.
        if not (vocab_file or data.records):
            data_dir = data.data_dir or f"{plan.config.output_dir}/data"
            vocab_file = f"{data_dir}/vocab.txt"
        config = fields.to_flat(system.config) | {
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
