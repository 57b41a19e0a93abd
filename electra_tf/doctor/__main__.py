r"""Checks a checkpoint or a config for known traps, and says what to do.

  python -m electra_tf.doctor --model=runs/tiny
  python -m electra_tf.doctor --flagfile=configs/small.cfg
  python -m electra_tf.doctor --model=hf/discriminator --generator=hf/generator
  python -m electra_tf.doctor --model=electra_small/electra_small

--model is the folder of a pretraining run or of an import, a Hugging Face folder, a
checkpoint of Google's TensorFlow 1 code (folder or prefix), or a keras-hub preset.
Nothing is changed. Exit code: 1 if there is a problem, 0 if not; warnings do not count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from electra_tf import doctor
from electra_tf.doctor.read_run import read_flagfile
from electra_tf.pretrain import clear_errors

_COLORS = {doctor.OK: "32", doctor.WARNING: "33", doctor.PROBLEM: "1;31"}
_INDENT = 30


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m electra_tf.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help="checkpoint to examine")
    what.add_argument("--flagfile", help="pretraining config to examine")
    made.add_argument(
        "--generator", help="folder of the generator, where --model holds only one"
    )
    made.add_argument("--json", action="store_true", help="one JSON object per line")
    return made


def run(options: argparse.Namespace) -> list[doctor.Finding]:
    """Reads and examines what the options name.

    Raises:
        ValueError: It is nothing that is known, or too damaged to be read.
        OSError: It is not there.
    """
    if options.flagfile and options.generator:
        raise ValueError("--generator goes with --model.")
    if options.flagfile:
        return doctor.examine(read_flagfile(options.flagfile))
    subject = doctor.read(options.model)
    if options.generator:
        subject = doctor.with_generator(subject, doctor.read(options.generator))
    return doctor.examine(subject)


def shown(
    findings: Sequence[doctor.Finding], *, width: int = 100, use_color: bool = False
) -> str:
    """The findings as text, with a summary."""
    lines = []
    for finding in _joined(findings):
        level = f"{finding.level:<8}"
        if use_color:
            level = f"\x1b[{_COLORS[finding.level]}m{level}\x1b[0m"
        lines.append(
            level + _wrapped(f"{finding.trap:<{_INDENT - 8}}", finding.found, width)
        )
        if finding.advice:
            lines.append(_wrapped(" " * _INDENT + "-> ", finding.advice, width))
    counts = {
        level: sum(finding.level == level for finding in findings)
        for level in (doctor.OK, doctor.WARNING, doctor.PROBLEM)
    }
    lines.append(
        f"\n{counts[doctor.OK]} OK, {counts[doctor.WARNING]} warnings, "
        f"{counts[doctor.PROBLEM]} problems"
    )
    return "\n".join(lines)


def _joined(findings):
    """One line for each check that found nothing wrong, whatever it looked at."""
    for trap, group in itertools.groupby(findings, lambda finding: finding.trap):
        found = list(group)
        if any(finding.level != doctor.OK for finding in found):
            yield from found
        else:
            text = "; ".join(finding.found for finding in found)
            yield doctor.Finding(doctor.OK, text, trap=trap)


def _wrapped(start, text, width):
    return textwrap.fill(
        start + text,
        max(width, 2 * _INDENT),
        subsequent_indent=" " * (_INDENT + 3 * start.endswith("-> ")),
        break_long_words=False,
        break_on_hyphens=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parser().parse_args(arguments)
    with clear_errors():
        findings = run(options)
    if options.json:
        for finding in findings:
            line = json.dumps({"trap": finding.trap, **vars(finding)})
            sys.stdout.write(line + "\n")
    else:
        use_color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width = shutil.get_terminal_size((100, 24)).columns
        sys.stdout.write(shown(findings, width=width, use_color=use_color) + "\n")
    return int(any(finding.level == doctor.PROBLEM for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
