"""Which systems are compared, for how many steps, probed how: from flags to configs."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from electra_tf import config as config_lib
from electra_tf import costs
from electra_tf import flags as flags_lib
from electra_tf.comparison.config import LadderConfig
from electra_tf.config import PretrainConfig
from electra_tf.finetune_config import FinetuneConfig

UNTRAINED = "untrained"
# They become folders.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
# Times within a run, which shrink or grow with its number of steps, to these at least.
_IN_STEPS = {
    "warmup_steps": 0,
    "generator_steps": 1,
    "adversarial_start": 0,
    "adversarial_steps": 0,
    "temperature_steps": 1,
    "mask_rate_steps": 1,
}
# Flags in which runs may differ that stand in one table. All others are compared.
_MAY_DIFFER = frozenset(
    (
        # What the comparison sets itself, run by run.
        *("model_dir", "seed", "overwrite", "dry_run", "num_processes"),
        # Where the text is; what is read is compared by its hash (``Plan.settings``).
        *("corpus", "tfds_data_dir", "vocab_file", "records", "eval_records"),
        "data_dir",
        # Logs, checkpoints, devices.
        *("eval_steps", "log_steps", "save_checkpoint_steps", "keep_checkpoints"),
        *("distribution", "tpu", "steps_per_execution"),
    )
)
_PROBES_MAY_DIFFER = frozenset(
    (
        *("encoder", "output_dir", "overwrite", "seed", "seeds", "cache_dir"),
        *("log_steps", "export_saved_model"),
    )
)


@dataclasses.dataclass(frozen=True)
class System:
    """One row: a name and the config that all its seeds share."""

    name: str
    config: PretrainConfig

    def settings(self) -> dict[str, Any]:
        """What must not change between runs that are compared, by flag name."""
        return _plain(self.config, _MAY_DIFFER)


@dataclasses.dataclass(frozen=True)
class Probe:
    """One fine-tuning task: a name and the config that all its runs share."""

    name: str
    config: FinetuneConfig

    def settings(self) -> dict[str, Any]:
        """As of a ``System``."""
        return _plain(self.config, _PROBES_MAY_DIFFER)


def _plain(config: Any, ignored: frozenset[str]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in config_lib.to_flat(config).items()
        if name not in ignored
    }


def systems(config: LadderConfig) -> tuple[System, ...]:
    """The systems as their flags describe them, before the budget.

    Raises:
        ValueError: a flag is wrong, a name is used twice, or the systems read
            different text.
    """
    if not config.system:
        raise ValueError("No --system: name at least one, such as 'electra:'.")
    common = [word for text in config.pretrain for word in _words(text, config)]
    found = tuple(
        System(name, _parse(PretrainConfig, [*common, *words], f"--system={name}"))
        for name, words in _entries("system", config.system, config)
    )
    names = [system.name for system in found]
    if UNTRAINED in names:
        raise ValueError(f"--system={UNTRAINED}: this name is taken by --untrained.")
    for flag in ("reference", "untrained"):
        name = getattr(config, flag)
        if name and name not in names:
            raise ValueError(
                f"--{flag}={name} is none of the systems {', '.join(names)}."
            )
    for system in found[1:]:
        _same_text(found[0], system)
    return found


def probes(config: LadderConfig) -> tuple[Probe, ...]:
    """The probes as their flags describe them.

    Raises:
        ValueError: a flag is wrong, or a name is used twice.
    """
    return tuple(
        Probe(name, _parse(FinetuneConfig, words, f"--probe={name}"))
        for name, words in _entries("probe", config.probe, config)
    )


def _entries(flag: str, texts: Sequence[str], config: LadderConfig):
    seen = set()
    for text in texts:
        name, _, rest = text.partition(":")
        name = name.strip()
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"--{flag}={text}: it must be 'NAME: FLAGS', with letters, digits and "
                "_.+- in the name."
            )
        if name in seen:
            raise ValueError(f"--{flag}={name}: is given twice; choose another name.")
        seen.add(name)
        yield name, _words(rest, config)


def _words(text: str, config: LadderConfig) -> list[str]:
    return shlex.split(text.replace("{data}", str(Path(config.data_root))))


def _parse(config_class: type, words: Sequence[str], where: str):
    values = flags.FlagValues()
    flags_lib.define(config_class, values)
    try:
        rest = values(["flags", *words])[1:]
        if rest:
            raise ValueError(f"{' '.join(rest)} is not a flag (--flag=value)")
        return flags_lib.read(config_class, values)
    except (flags.Error, OSError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _same_text(first: System, other: System) -> None:
    mine, theirs = (dataclasses.asdict(s.config.data) for s in (first, other))
    changed = [name for name in mine if mine[name] != theirs[name]]
    if changed:
        raise ValueError(
            f"{first.name} and {other.name} differ in "
            f"{', '.join(f'--{name}' for name in changed)}: all systems of a "
            "comparison read the same records. Put these flags into --pretrain."
        )


def budgeted(
    found: Sequence[System], config: LadderConfig, vocab_size: int
) -> tuple[System, ...]:
    """The systems with the steps that the budget buys, warm-up and phases to scale.

    Args:
        found: of ``systems``.
        config: says what is equal and how much of it there is.
        vocab_size: entries of the vocabulary.

    Raises:
        ValueError: the budget is not understood, or below one step.
    """
    budget = _budget(found, config, vocab_size)
    return tuple(_scaled(system, budget, config, vocab_size) for system in found)


def _budget(found, config, vocab_size) -> float:
    """FLOPs of a run, or steps under ``--equal=steps``."""
    if config.budget_flops:
        return config.budget_flops
    name, _, steps = config.budget.rpartition(":")
    known = {system.name: system for system in found}
    if name not in known or not steps.isdigit() or int(steps) < 1:
        raise ValueError(
            f"--budget={config.budget} must be SYSTEM:STEPS, the system one of "
            f"{', '.join(known)}."
        )
    if config.equal == "steps":
        return int(steps)
    return int(steps) * _step_flops(known[name], config, vocab_size)


def _step_flops(system, config, vocab_size) -> float:
    total = costs.run_flops(system.config, vocab_size, rule=config.flops_rule)
    return total / system.config.run.num_train_steps


def _scaled(system, budget, config, vocab_size) -> System:
    cost = {"steps": 1, "flops": _step_flops(system, config, vocab_size)}[config.equal]
    steps = round(budget / cost)
    if steps < 1:
        raise ValueError(
            f"The budget of {budget:.3g} is less than a step of {system.name}, "
            f"{cost:.3g}: raise it."
        )
    given = config_lib.to_flat(system.config)
    share = steps / given["num_train_steps"]
    scaled = {
        name: max(least, round(given[name] * share))
        for name, least in _IN_STEPS.items()
        if given[name] is not None
    }
    flat = given | scaled | {"num_train_steps": steps}
    try:
        return System(system.name, config_lib.from_flat(flat))
    except ValueError as error:
        raise ValueError(
            f"--system={system.name} does not fit into the {steps} steps that the "
            f"budget buys: {error}"
        ) from error
