"""The command `doctor`: runs every check and prints the findings with advice."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from electra_tf import cli
from electra_tf.config.commands import DoctorConfig
from electra_tf.doctor import checks
from electra_tf.doctor.checks import OK, PROBLEM, WARNING, Finding

_COLORS = {OK: "32", WARNING: "33", PROBLEM: "1;31"}
_INDENT = 30


def main(config: DoctorConfig) -> int:
    """Prints the findings; returns 1 if there is a problem, else 0."""
    if config.flagfile:
        subject = checks.read_flagfile(config.flagfile)
    else:
        subject = checks.read(config.model, config.generator)
    findings = checks.examine(subject)
    if config.json:
        for finding in findings:
            cli.say(json.dumps({"trap": finding.trap, **vars(finding)}))
    else:
        use_color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width = shutil.get_terminal_size((100, 24)).columns
        cli.say(shown(findings, width=width, use_color=use_color))
    return int(any(finding.level == PROBLEM for finding in findings))


def shown(
    findings: Sequence[Finding], *, width: int = 100, use_color: bool = False
) -> str:
    """Formats findings as text with a summary; one line per passed check."""
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
