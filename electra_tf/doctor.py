"""The command `doctor`: checks of a checkpoint for known problems.

A check takes a `Subject` and yields findings, none if it does not apply.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import cli
from electra_tf.config import fields
from electra_tf.config.commands import DoctorConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import UserError, some_of
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.interop.convert import find_format
from electra_tf.interop.networks import Imported, Source, Tower
from electra_tf.runs.report import HealthWarnings
from electra_tf.training.sinks import EVAL_PREFIX

OK, WARNING, PROBLEM = "OK", "WARNING", "PROBLEM"
_VOCABULARY = "Put the vocab.txt it was trained with into the folder."


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check; it has advice unless the level is OK."""

    level: str
    found: str
    advice: str = ""
    trap: str = ""


_ok = functools.partial(Finding, OK)
_warning = functools.partial(Finding, WARNING)
_problem = functools.partial(Finding, PROBLEM)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A checkpoint."""

    model: Imported | None
    # Networks by role, also of a pair that `interop` refuses to join.
    towers: Mapping[str, Tower]
    flags: Mapping[str, Any]  # Of a run or an import of this library.
    metrics: tuple[Mapping[str, Any], ...]
    error: str  # Why reading failed.
    vocabulary_sha256: str | None  # Of training.


def read(path: str | Path, generator: str | None = None) -> Subject:
    """Reads a checkpoint of any format in `interop`, tower by tower if damaged.

    Raises UserError if the format is unknown or the model is fine-tuned.
    """
    source = Source(str(path), generator=generator)
    folder = PretrainingFolder(named(path))
    folder.reject_fine_tuned("give the pretraining run it started from.")
    settings = folder.settings
    # Hugging Face and keras-hub also have a config.json.
    is_run = "config" in settings and not {"model_type", "class_name"} & {*settings}
    reader, error = None, ""
    try:
        reader = find_format(source)
    except UserError as failure:
        if not is_run:
            raise
        error = str(failure)
    if reader and reader.NAME != "hugging_face":
        source.reject("generator")
    model, towers = None, {}
    for role in (None, "discriminator", "generator") if reader else ():
        try:
            part = reader.read(dataclasses.replace(source, only=role))
        except UserError as failure:
            error = error or str(failure)
            continue
        model = model or part
        towers |= {role or name: tower for name, tower in part.towers.items()}
        if role is None:
            break
    if is_run and reader and not folder.has_model("encoder"):
        error = error or "encoder.keras is missing: nothing can be fine-tuned"
    return Subject(
        model=model,
        towers=towers,
        flags=folder.flags if is_run else {},
        metrics=tuple(folder.metrics()) if is_run else (),
        error=error,
        vocabulary_sha256=folder.vocabulary_sha256 if is_run else None,
    )


def files(subject: Subject) -> Iterator[Finding]:
    """Checks for missing, damaged or unsupported files, heads and the generator."""
    flags, towers = subject.flags, subject.towers
    is_other = flags.get("objective", "electra") != "electra"
    is_other |= flags.get("generator", "masked_lm") != "masked_lm"
    if subject.error:
        # Other formats cannot hold untied pairs, other generators or objectives.
        is_variant = is_other or flags.get("sharing", "tied") not in ("tied", "all")
        level, advice = PROBLEM, "Write or copy the files again."
        if flags:
            advice = f"Finish the run (the same command resumes it). {advice}"
        if towers and is_variant:
            level = WARNING
            advice = "Undamaged, it is complete: convert takes its parts (--only)."
        yield Finding(level, subject.error, advice)
    if not towers or is_other:
        return
    if "discriminator" in towers and not towers["discriminator"].head:
        yield _warning(
            "an encoder without a head can only be fine-tuned",
            "Take weights with heads to detect replaced tokens or continue pretraining "
            "(ElectraForPreTraining, a pretraining checkpoint, discriminator.keras).",
        )
    elif "generator" not in towers:
        yield _warning(
            "there is no generator for fills, corruption and further pretraining",
            "Name its folder with --generator, or take the pretraining checkpoint.",
        )
    yield _ok(f"networks: {', '.join(towers)}")


def vocabulary(subject: Subject) -> Iterator[Finding]:
    """Checks embedding rows, hash and casing against the vocabulary."""
    if subject.model is None:
        return
    vocabulary = subject.model.vocabulary
    if vocabulary is None:
        yield _warning("there is no vocabulary beside the model", _VOCABULARY)
        return
    size = len(vocabulary)
    for name, tower in subject.towers.items():
        rows = tower.sizes.vocab_size
        if rows != size:
            # Other libraries pad the table.
            may_be_padded = rows > size and not subject.flags
            yield Finding(
                WARNING if may_be_padded else PROBLEM,
                f"{name}: {rows:,} rows in the word table, {size:,} tokens",
                _VOCABULARY,
            )
    ours, theirs = vocabulary.sha256, subject.vocabulary_sha256
    if theirs and theirs != ours:
        yield _problem(
            f"vocab.txt is not the one of training: its sha256 is {ours[:12]}, "
            f"config.json has {theirs[:12]}",
            "Restore the run's vocabulary: in this file, ids belong to other tokens.",
        )
    special = {*vocabulary.special_tokens}
    words = [t for t in vocabulary.tokens if t not in special and t[0] + t[-1] != "[]"]
    capitals = sum(word != word.lower() for word in words)
    if subject.model.lower_case and capitals > 0.01 * len(words):
        yield _warning(
            f"text is lower-cased, but {capitals:,} tokens have capitals",
            "Set lower_case to false (Hugging Face: do_lower_case).",
        )
    # Many scripts have no capitals.
    small = any(word != word.upper() for word in words)
    if subject.model.lower_case is False and small and not capitals:
        yield _problem(
            "text is not lower-cased, but no token has a capital",
            "Set lower_case to true (Hugging Face: do_lower_case).",
        )
    yield _ok(f"{size:,} tokens")


def weights(subject: Subject) -> Iterator[Finding]:
    """Checks for NaN, kernels of zeros, and parts with initial values."""
    for name, tower in subject.towers.items():
        head = {f"head/{key}": array for key, array in tower.head.items()}
        fresh: dict[str, bool] = collections.defaultdict(lambda: True)
        bad, empty = [], []
        for key, array in {**tower.encoder, **head}.items():
            part = key.rpartition("/")[0] or key.partition("_")[0]
            if not np.isfinite(array).all():
                bad.append(key)
            elif key.endswith(("bias", "beta")):
                fresh[part] &= not array.any()
            elif key.endswith("gamma"):
                fresh[part] &= bool((array == 1).all())
            elif not array.any():
                empty.append(key)
        initial = [part for part, is_fresh in fresh.items() if is_fresh]
        if bad:
            yield _problem(
                f"{name}: values that are not finite in {some_of(bad)}",
                "Go back to an earlier checkpoint and lower the learning rate, or copy "
                "the file again.",
            )
        if empty:
            yield _problem(
                f"{name}: all zeros in {some_of(empty)}", "Import or save them again."
            )
        if initial:
            what = "no part was trained" if len(initial) == len(fresh) else "untrained"
            yield _problem(
                f"{name}: {what}: {some_of(initial)} (biases 0, LayerNorm 1)",
                "The weights were not loaded, or the part was added later. Use the "
                "checkpoint with trained values.",
            )
        yield _ok(f"{name}: {len(fresh)} parts")


def training(subject: Subject) -> Iterator[Finding]:
    """Checks the metrics at the end: steps, NaN, and the rules of `HealthWarnings`."""
    rows, steps = subject.metrics, subject.flags.get("num_train_steps")
    if not rows:
        return
    done = max(row["step"] for row in rows)
    if steps and done < steps:
        yield _warning(
            f"{done:,} of {steps:,} steps: the learning rate is still decaying",
            "Run the same command again to resume it.",
        )
    # Metrics that are not finite are null in the file.
    lost = {name for row in rows[-5:] for name, x in row.items() if x is None}
    if lost:
        yield _problem(
            f"metrics were not finite at the end: {', '.join(sorted(lost))}",
            "Go back to an earlier checkpoint and lower the learning rate.",
        )
    # The last held-out metrics; runs without evaluation have training windows.
    scores = [row for row in rows if any(n.startswith(EVAL_PREFIX) for n in row)]
    scores = scores or [row for row in rows if "replaced_fraction" in row] or [{}]
    known = {n.removeprefix(EVAL_PREFIX): x for n, x in scores[-1].items()}
    known = {name: x for name, x in known.items() if x is not None}
    messages: list[str] = []
    names = {"mask_rate", "final_mask_rate", "sentence_weight"} & subject.flags.keys()
    flags = {name: subject.flags[name] for name in names}
    # This version may refuse flags of the run, and metrics of a rule may be missing.
    with contextlib.suppress(UserError, KeyError):
        rate = fields.from_flat(flags, PretrainConfig).sampled_rate
        HealthWarnings(rate, messages.append, min_steps=0, windows=1)(done, known)
    auc = known.get("replaceable_auc", known.get("discriminator_auc", 1.0))
    for message in messages:
        yield Finding(PROBLEM if auc < 0.55 else WARNING, *message.split(". ", 1))
    yield _ok(f"{done:,} steps")


CHECKS = (files, vocabulary, weights, training)


def examine(subject: Subject) -> list[Finding]:
    """Runs every check; drops the OK of a check that finds more."""
    findings = []
    for check in CHECKS:
        name = check.__name__
        own = [dataclasses.replace(each, trap=name) for each in check(subject)]
        findings += [finding for finding in own if finding.level != OK] or own
    return findings


def main(config: DoctorConfig) -> int:
    """Prints the findings; returns 1 if there is a problem, else 0."""
    findings = examine(read(config.model, config.generator))
    if config.json:
        for finding in findings:
            cli.say(json.dumps({"trap": finding.trap, **vars(finding)}))
    else:
        cli.say(shown(findings))
    return int(any(finding.level == PROBLEM for finding in findings))


def shown(findings: Sequence[Finding]) -> str:
    """Formats findings as text with a summary."""
    lines = []
    for finding in findings:
        text = f"{finding.level:<8}{finding.trap:<12}{finding.found}"
        advice = [f"{'':20}-> {finding.advice}"] if finding.advice else []
        for paragraph in (text, *advice):
            lines += textwrap.wrap(paragraph, 100, subsequent_indent=" " * 20)
    levels = [finding.level for finding in findings]
    good, fair, bad = map(levels.count, (OK, WARNING, PROBLEM))
    return "\n".join([*lines, f"\n{good} OK, {fair} warnings, {bad} problems"])
