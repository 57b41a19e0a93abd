"""Runs every check, shows what they found, and says what to do."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence

from electra_tf import cli
from electra_tf.config.commands import DoctorConfig
from electra_tf.doctor import model_traps, readers, run_traps
from electra_tf.doctor.subject import OK, PROBLEM, WARNING, Finding, Subject

# A check looks at a subject and tells what it found; nothing where it does not apply.
TRAPS: dict[str, Callable[[Subject], Iterable[Finding]]] = {
    "files": run_traps.files,
    "sizes": model_traps.sizes,
    "heads": model_traps.heads,
    "pooler": model_traps.pooler,
    "GELU": model_traps.gelu,
    "LayerNorm epsilon": model_traps.layer_norm_epsilon,
    "shared tables": model_traps.shared_tables,
    "generator size": model_traps.generator_size,
    "vocabulary": run_traps.vocabulary,
    "finite weights": model_traps.finite,
    "zero weights": model_traps.zeros,
    "untrained weights": model_traps.untrained,
    "untrained positions": model_traps.positions,
    "learning rate": run_traps.learning_rate,
    "recipe": run_traps.recipe,
    "finished": run_traps.finished,
    "generator strength": run_traps.generator_strength,
    "collapse": run_traps.collapse,
    "optimizer slots": run_traps.optimizer_slots,
}

_COLORS = {OK: "32", WARNING: "33", PROBLEM: "1;31"}
_INDENT = 30


def main(config: DoctorConfig) -> int:
    """Runs as a command; returns 1 if there is a problem, else 0."""
    if config.flagfile:
        subject = readers.read_flagfile(config.flagfile)
    else:
        subject = readers.read(config.model)
        if config.generator:
            subject = readers.with_generator(subject, readers.read(config.generator))
    findings = examine(subject)
    if config.json:
        for finding in findings:
            cli.say(json.dumps({"trap": finding.trap, **vars(finding)}))
    else:
        use_color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width = shutil.get_terminal_size((100, 24)).columns
        cli.say(shown(findings, width=width, use_color=use_color))
    return int(any(finding.level == PROBLEM for finding in findings))


def examine(subject: Subject) -> list[Finding]:
    """Runs every check; what one finds bears its name."""
    return [
        dataclasses.replace(finding, trap=name)
        for name, trap in TRAPS.items()
        for finding in trap(subject)
    ]


def shown(
    findings: Sequence[Finding], *, width: int = 100, use_color: bool = False
) -> str:
    """The findings as text, with a summary; one line for each check that is OK."""
    lines = []
    for trap, group in itertools.groupby(findings, lambda finding: finding.trap):
        of_trap = list(group)
        if all(finding.level == OK for finding in of_trap):
            found = "; ".join(finding.found for finding in of_trap)
            of_trap = [Finding(OK, found, trap=trap)]
        for finding in of_trap:
            level = f"{finding.level:<8}"
            if use_color:
                level = f"\x1b[{_COLORS[finding.level]}m{level}\x1b[0m"
            name = f"{trap:<{_INDENT - 8}}"
            lines.append(level + _wrapped(name, finding.found, width))
            if finding.advice:
                lines.append(_wrapped(" " * _INDENT + "-> ", finding.advice, width))
    levels = [finding.level for finding in findings]
    good, fair, bad = map(levels.count, (OK, WARNING, PROBLEM))
    return "\n".join([*lines, f"\n{good} OK, {fair} warnings, {bad} problems"])


def _wrapped(start: str, text: str, width: int) -> str:
    return textwrap.fill(
        start + text,
        max(width, 2 * _INDENT),
        subsequent_indent=" " * (_INDENT + 3 * start.endswith("-> ")),
        break_long_words=False,
        break_on_hyphens=False,
    )
