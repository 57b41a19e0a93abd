"""The command `doctor`: runs every check and prints the findings with advice."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

from electra_tf import cli
from electra_tf.config.commands import DoctorConfig
from electra_tf.doctor import checks
from electra_tf.doctor.checks import OK, PROBLEM, WARNING, Finding

_WIDTH = 100


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
        cli.say(shown(findings))
    return int(any(finding.level == PROBLEM for finding in findings))


def shown(findings: Sequence[Finding]) -> str:
    """Formats findings as text with a summary."""
    lines = []
    for finding in findings:
        start = f"{finding.level:<8}{finding.trap:<16}"
        indent = " " * len(start)
        text = f"{start}{finding.found}"
        lines += textwrap.wrap(text, _WIDTH, subsequent_indent=indent)
        if finding.advice:
            advice = f"{indent}-> {finding.advice}"
            lines += textwrap.wrap(advice, _WIDTH, subsequent_indent=f"{indent}   ")
    levels = [finding.level for finding in findings]
    good, fair, bad = map(levels.count, (OK, WARNING, PROBLEM))
    return "\n".join([*lines, f"\n{good} OK, {fair} warnings, {bad} problems"])
