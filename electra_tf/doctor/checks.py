"""Checks of a checkpoint or config for known problems.

A check takes a `Subject` and yields findings, or none if it does not apply.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import cli
from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.interop import convert
from electra_tf.interop.imported import Imported, Source, Tower
from electra_tf.runs.health import HealthWarnings
from electra_tf.training.sinks import EVAL_PREFIX

OK, WARNING, PROBLEM = "OK", "WARNING", "PROBLEM"
# Hidden sizes of base and large, for which the settings of small fail.
_BASE, _LARGE = 768, 1024
_WINDOWS = 5
_VOCABULARY = "Put the vocab.txt it was trained with into the folder."


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check; `advice` is empty if the level is OK."""

    level: str
    found: str
    advice: str = ""
    trap: str = ""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A checkpoint or config.

    Attributes:
        model: one or both towers, as read by `interop`; None for a config.
        towers: by role, discriminator first.
        flags: of the pretraining run, if known.
        metrics: rows of metrics.jsonl.
        error: why reading failed, or "".
        vocabulary_sha256: hash of the training vocabulary, if known.
    """

    model: Imported | None = None
    towers: Mapping[str, Tower] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metrics: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    vocabulary_sha256: str | None = None

    @property
    def is_config(self) -> bool:
        """Whether there are only flags to check."""
        return self.model is None and not self.error


def read(path: str | Path, generator: str | None = None) -> Subject:
    """Reads a checkpoint of any format in `interop`, tower by tower if damaged.

    Raises:
        UserError: if the format is unknown or the model is fine-tuned.
        OSError: if the checkpoint does not exist.
    """
    source = Source(str(path), generator=generator)
    folder = PretrainingFolder(named(path))
    if (folder.path / "task.json").is_file():
        raise UserError(
            f"{path} is a fine-tuning run: give the pretraining run it started from."
        )
    settings = folder.settings
    # Hugging Face and keras-hub also have a config.json.
    is_run = "config" in settings and not {"model_type", "class_name"} & {*settings}
    found: list[tuple[str, Imported]] = []
    error = ""
    try:
        reader = convert.find_format(source)
    except UserError as failure:
        if not is_run:
            raise
        reader, error = None, str(failure).removeprefix("--from=")
    roles = (None, "discriminator", "generator") if reader else ()
    for role in roles:
        try:
            model = reader.read(dataclasses.replace(source, only=role))
        except UserError as failure:
            error = error or str(failure)
            continue
        found += [(role or name, model) for name in model.towers]
        if role is None:
            break
    is_own = is_run or (reader is not None and reader.NAME == "electra_tf")
    if is_own and reader and not folder.has_model("encoder"):
        error = error or "encoder.keras is missing: nothing can be fine-tuned"
    return Subject(
        model=found[0][1] if found else None,
        towers={role: model.towers[role] for role, model in found},
        flags=folder.flags if is_run else {},
        metrics=tuple(folder.metrics()) if is_own else (),
        error=error,
        vocabulary_sha256=folder.vocabulary_sha256 if is_run else None,
    )


def read_flagfile(path: str) -> Subject:
    """Parses a flagfile such as configs/small.cfg; UserError if a flag is invalid."""
    try:
        config = cli.parse(PretrainConfig, [f"--flagfile={path}"])
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return Subject(flags=fields.to_flat(config))


def files(subject: Subject) -> Iterator[Finding]:
    """Checks for missing, damaged or unsupported files."""
    if subject.is_config:
        return
    if not subject.error:
        yield Finding(OK, "all there")
        return
    # Other formats cannot hold untied pairs or other objectives.
    is_variant = subject.towers and (
        subject.flags.get("sharing", "tied") not in ("tied", "all")
        or subject.flags.get("objective", "electra") != "electra"
    )
    yield Finding(
        WARNING if is_variant else PROBLEM,
        subject.error,
        "Finish the run (the same command resumes it), or write or copy the files "
        "again.",
    )


def heads(subject: Subject) -> Iterator[Finding]:
    """Checks that the heads and the generator exist."""
    if not subject.towers:
        return
    objective = subject.flags.get("objective", "electra")
    discriminator = subject.towers.get("discriminator")
    if discriminator and not discriminator.head and objective == "electra":
        yield Finding(
            WARNING,
            "an encoder without a head: it can be fine-tuned, but neither detects "
            "replaced tokens nor continues pretraining",
            "Take the weights from a source with heads if you need these "
            "(ElectraForPreTraining, a pretraining checkpoint, discriminator.keras).",
        )
    elif "generator" not in subject.towers and objective == "electra":
        yield Finding(
            WARNING,
            "there is no generator: no fills and corruption, and pretraining cannot "
            "continue from here",
            "Name the generator's folder with --generator, or take the pretraining "
            "checkpoint.",
        )
    else:
        yield Finding(OK, f"{' and '.join(subject.towers)} with their heads")


def generator_size(subject: Subject) -> Iterator[Finding]:
    """Checks the ratio of the generator's size to the discriminator's."""
    flags, names = subject.flags, ("generator_hidden_size", "generator_layers")
    if {"generator", "discriminator"} <= subject.towers.keys():
        ours, theirs = (subject.towers[n].sizes for n in ("generator", "discriminator"))
        width = ours.hidden_size / theirs.hidden_size
        depth = ours.num_layers / theirs.num_layers
    elif subject.is_config and flags["objective"] != "mlm":
        width, depth = (flags[name] for name in names)
    else:
        return
    found = f"{width:.3g} of the width and {depth:.3g} of the layers"
    if width > 1 or depth > 1:
        yield Finding(
            PROBLEM,
            f"the generator is larger than the discriminator: {found}",
            "Check that the two files are not swapped; else train a smaller generator.",
        )
    elif width > 0.5 and depth > 0.5 and flags.get("sharing") != "all":
        yield Finding(
            WARNING,
            f"the generator is strong: {found} of the discriminator; in the paper 1/4 "
            "to 1/2 of the width was best, and an equal one lost 3 GLUE points",
            "For a new run lower --generator_hidden_size or --generator_layers. "
            "(Google's electra_small has an equal one: to continue it, keep 1.0.)",
        )
    else:
        yield Finding(OK, found)


def vocabulary(subject: Subject) -> Iterator[Finding]:
    """Checks embedding rows, hash, padding and casing against the vocabulary."""
    if subject.model is None:
        return
    tokens = subject.model.vocabulary
    if tokens is None:
        yield Finding(WARNING, "there is no vocabulary beside the model", _VOCABULARY)
        return
    findings = [*_token_faults(subject, tokens), *_casing_faults(subject, tokens)]
    yield from findings or [Finding(OK, f"{len(tokens):,} tokens")]


def _token_faults(subject: Subject, tokens: Vocabulary) -> Iterator[Finding]:
    for name, tower in subject.towers.items():
        rows, size = tower.sizes.vocab_size, len(tokens)
        text = f"{name}: {rows:,} rows in the word table, {size:,} tokens"
        if rows > size and not subject.flags:
            yield Finding(WARNING, f"{text}; the rest may be padding", _VOCABULARY)
        elif rows != size:
            yield Finding(PROBLEM, text, _VOCABULARY)
    ours, theirs = tokens.sha256, subject.vocabulary_sha256
    if theirs and theirs != ours:
        yield Finding(
            PROBLEM,
            f"vocab.txt is not the one of training: its sha256 is {ours[:12]}, "
            f"config.json has {theirs[:12]}",
            "Put the right file back: with this one token ids have other meanings.",
        )
    if tokens.pad_id:
        yield Finding(
            WARNING,
            f"{tokens.pad} has the id {tokens.pad_id}; Google's code takes 0",
            "Harmless here, but not for an export to Google's code.",
        )


def _casing_faults(subject: Subject, tokens: Vocabulary) -> Iterator[Finding]:
    words = [t for t in tokens.tokens if t not in tokens.special_tokens]
    words = [t for t in words if not (t.startswith("[") and t.endswith("]"))]
    capitals = sum(word != word.lower() for word in words)
    if subject.model.lower_case and capitals > 0.01 * len(words):
        yield Finding(
            WARNING,
            f"text is lower-cased, but {capitals:,} tokens have capitals, which can "
            "then never occur",
            "For a cased vocabulary set lower_case to false (Hugging Face: "
            "do_lower_case).",
        )
    letters = any(word.isalpha() for word in words)
    if subject.model.lower_case is False and letters and not capitals:
        yield Finding(
            PROBLEM,
            "text is not lower-cased, but no token has a capital: every word with one "
            "becomes [UNK] or single letters",
            "Set lower_case to true (Hugging Face: do_lower_case).",
        )


def _arrays(tower: Tower) -> dict[str, np.ndarray]:
    head = {f"head/{name}": array for name, array in tower.head.items()}
    return {**tower.encoder, **head}


def finite_weights(subject: Subject) -> Iterator[Finding]:
    """Checks for NaN and infinity."""
    for name, tower in subject.towers.items():
        bad = [key for key, x in _arrays(tower).items() if not np.isfinite(x).all()]
        if bad:
            yield Finding(
                PROBLEM,
                f"{name}: values that are not finite in {_first(bad)}",
                "The run diverged or the file is damaged. Go back to an earlier "
                "checkpoint and lower the learning rate (base and large: 2e-4).",
            )
        else:
            yield Finding(OK, name)


def untrained_weights(subject: Subject) -> Iterator[Finding]:
    """Checks for kernels of zeros, and parts with initial biases and LayerNorms."""
    for name, tower in subject.towers.items():
        parts: dict[str, bool] = collections.defaultdict(lambda: True)
        empty = []
        for key, array in _arrays(tower).items():
            part = key.rpartition("/")[0] or key.partition("_")[0]
            if key.endswith(("bias", "beta")):
                parts[part] &= not array.any()
            elif key.endswith("gamma"):
                parts[part] &= bool((array == 1).all())
            elif not array.any():
                empty.append(key)
        fresh = [part for part, is_fresh in parts.items() if is_fresh]
        if empty:
            yield Finding(
                PROBLEM,
                f"{name}: all zeros in {_first(empty)}",
                "An import missed them, or the file was written too early. Import or "
                "save again.",
            )
        if fresh:
            what = "no part was trained" if len(fresh) == len(parts) else "untrained"
            yield Finding(
                PROBLEM,
                f"{name}: {what}: {_first(fresh)} (biases 0, LayerNorm 1)",
                "These are initial values: the weights were not loaded, or the part "
                "was added afterwards. Take the checkpoint that has them.",
            )
        if not empty and not fresh:
            yield Finding(OK, f"{name}: {len(parts)} parts")


def untrained_positions(subject: Subject) -> Iterator[Finding]:
    """Checks for position embeddings beyond the longest pretraining example."""
    trained = subject.flags.get("max_seq_length")
    if not trained:
        return
    tables = {name: x.sizes.max_positions for name, x in subject.towers.items()}
    if subject.is_config:
        tables = {"--max_positions": subject.flags["max_positions"]}
    for name, rows in tables.items():
        if trained < rows:
            yield Finding(
                WARNING,
                f"{name}: {rows} rows, pretraining has at most {trained} tokens",
                f"Fine-tune with at most {trained} tokens, end with a phase of longer "
                f"sequences, or set --max_positions={trained}.",
            )
        else:
            yield Finding(OK, f"{name}: all {rows} rows occur in training")


def learning_rate(subject: Subject) -> Iterator[Finding]:
    """Checks the learning rate for the model size, and the warm-up."""
    flags = subject.flags
    needed = {"learning_rate", "warmup_steps", "num_train_steps"}
    if not (needed | {"hidden_size", "adam_bias_correction"}) <= flags.keys():
        return
    rate, warmup = flags["learning_rate"], flags["warmup_steps"]
    if flags["hidden_size"] >= _BASE and rate > 3e-4:
        yield Finding(
            PROBLEM,
            f"{rate:g} at a hidden size of {flags['hidden_size']}: ELECTRA-Small's "
            "learning rate is known to end in NaN in a base or large model",
            "Use --learning_rate=2e-4 (configs/base.cfg, configs/large.cfg).",
        )
    elif warmup >= flags["num_train_steps"]:
        yield Finding(
            WARNING,
            f"{rate:g} is never reached: {warmup} warm-up steps of "
            f"{flags['num_train_steps']}",
            "Lower --warmup_steps; the paper has 1 % to 2.5 % of the steps.",
        )
    elif not warmup and not flags["adam_bias_correction"]:
        yield Finding(
            WARNING,
            f"{rate:g} from the first step on: without warm-up and bias correction the "
            "first updates are three to six times too long",
            "Set --warmup_steps, or --adam_bias_correction.",
        )
    else:
        yield Finding(OK, f"{rate:g} after {warmup} warm-up steps")


def recipe(subject: Subject) -> Iterator[Finding]:
    """Checks base and large models for hyperparameters of small."""
    flags = subject.flags
    width = flags.get("hidden_size", 0)
    if width < _BASE:
        return
    wanted = {"train_batch_size": 256, "max_seq_length": 512}
    if width >= _LARGE:
        wanted |= {"train_batch_size": 2048, "mask_rate": 0.25}
    low = [
        f"{name} {flags[name]:g} (paper: {value:g})"
        for name, value in wanted.items()
        if flags.get(name, value) < value
    ]
    if low:
        yield Finding(
            WARNING,
            f"below the paper's values for this size: {', '.join(low)}",
            "Start from configs/base.cfg or configs/large.cfg; with fewer rows per "
            "update lower the learning rate, too.",
        )
    else:
        yield Finding(OK, "batch, length and mask rate are the paper's for this size")


def finished(subject: Subject) -> Iterator[Finding]:
    """Checks whether the metrics reach the last step."""
    steps = subject.flags.get("num_train_steps")
    done = max((row.get("step", 0) for row in subject.metrics), default=None)
    if steps and done is not None and done < steps:
        yield Finding(
            WARNING,
            f"{done:,} of {steps:,} steps: the learning rate has not come down",
            "Run the same command again to resume it.",
        )
    elif steps and done is not None:
        yield Finding(OK, f"{done:,} steps")


def generator_strength(subject: Subject) -> Iterator[Finding]:
    """Checks the fraction of replaced tokens at the end of training."""
    values = _last(subject)
    if "replaced_fraction" not in values:
        return
    replaced = values["replaced_fraction"]
    found = f"{replaced:.1%} of all tokens were replaced at the end"
    # An AUC of 1 disables the rules on the discriminator.
    healthy = {"discriminator_auc": 1.0, "discriminator_loss": 0.0}
    rate = subject.flags.get("mask_rate", 0.15)
    if _is_warned(rate, healthy | {"replaced_fraction": replaced}):
        yield Finding(
            WARNING,
            f"{found}: the generator leaves little to detect",
            "Use a smaller generator, a higher --mask_rate (25 % in ELECTRA-Large) or "
            "a higher --temperature.",
        )
    else:
        yield Finding(OK, found)


def collapse(subject: Subject) -> Iterator[Finding]:
    """Checks for a discriminator at chance, and for metrics that are not finite."""
    last = subject.metrics[-_WINDOWS:]
    # Metrics that are not finite are null in the file.
    lost = {name for row in last for name, value in row.items() if value is None}
    if lost:
        yield Finding(
            PROBLEM,
            f"metrics were not finite at the end: {', '.join(sorted(lost))}",
            "Go back to an earlier checkpoint and lower the learning rate.",
        )
    values = _last(subject)
    auc = values.get("replaceable_auc", values.get("discriminator_auc"))
    if auc is None:
        return
    recall = values.get("discriminator_recall", 1.0)
    found = f"AUC {auc:.3f}, recall {recall:.1%} at the end"
    # A mask rate of 0 disables the rule on the generator.
    if auc < 0.55 or _is_warned(0.0, values):
        yield Finding(
            PROBLEM,
            f"the discriminator does not detect replaced tokens: {found}",
            "Lower the learning rate or lengthen the warm-up, and check that "
            "--discriminator_weight is 50. After few steps (some thousands) it may "
            "only need more.",
        )
    elif recall == 0:
        yield Finding(
            WARNING,
            f"the discriminator calls no token replaced: {found}",
            "Normal early in training (the AUC rises first); else check that the "
            "generator is weak enough.",
        )
    else:
        yield Finding(OK, found)


def _last(subject: Subject) -> Mapping[str, float]:
    """Returns the last held-out metrics, or means over the last training windows."""
    rows = [
        {n.removeprefix(EVAL_PREFIX): v for n, v in row.items() if v is not None}
        for row in subject.metrics
        if any(name.startswith(EVAL_PREFIX) for name in row)
    ]
    if rows:
        return rows[-1]
    rows = [r for r in subject.metrics if r.get("replaced_fraction") is not None]
    rows = rows[-_WINDOWS:]
    names = set.intersection(*(set(row) for row in rows)) if rows else set()
    return {
        name: sum(row[name] for row in rows) / len(rows)
        for name in names
        if all(isinstance(row[name], int | float) for row in rows)
    }


def _is_warned(mask_rate: float, values: Mapping[str, float]) -> bool:
    """Whether training would warn of a window with these values."""
    if not {"discriminator_loss", "replaced_fraction"} <= values.keys():
        return False
    messages: list[str] = []
    HealthWarnings(mask_rate, min_steps=0, windows=1, log=messages.append)(0, values)
    return bool(messages)


def _first(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


CHECKS: dict[str, Callable[[Subject], Iterable[Finding]]] = {
    "files": files,
    "heads": heads,
    "generator size": generator_size,
    "vocabulary": vocabulary,
    "finite weights": finite_weights,
    "untrained weights": untrained_weights,
    "untrained positions": untrained_positions,
    "learning rate": learning_rate,
    "recipe": recipe,
    "finished": finished,
    "generator strength": generator_strength,
    "collapse": collapse,
}


def examine(subject: Subject) -> list[Finding]:
    """Runs every check; sets the check's name in each finding."""
    return [
        dataclasses.replace(finding, trap=name)
        for name, check in CHECKS.items()
        for finding in check(subject)
    ]
