"""The command that asks all questions of a pretrained pair and writes the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from electra_tf import __version__, cli, files
from electra_tf.analysis import (
    acceptability,
    calibration,
    errors,
    history,
    report,
    representations,
    suspicion,
    texts,
)
from electra_tf.analysis.report import Section
from electra_tf.analysis.subject import Subject
from electra_tf.cli import Log
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.errors import UserError

HTML, JSON = "report.html", "report.json"
PARTS: dict[str, Callable[[Subject], Section]] = {
    "inspect": texts.section,
    "course": history.section,
    "calibration": calibration.section,
    "errors": errors.section,
    "acceptability": acceptability.section,
    "suspicion": suspicion.section,
    "representations": representations.section,
}


def main(config: AnalyzeConfig, log: Log = cli.note) -> None:
    """Runs all parts that are asked for and writes HTML and JSON.

    ValueError: the model cannot be asked, or data of a part that ``only`` names is not
    what it should be; OSError: something is not there.
    """
    folder = Path(config.output)
    taken = [name for name in (HTML, JSON) if (folder / name).exists()]
    if taken and not config.overwrite:
        raise UserError(
            f"{folder} has a {taken[0]}: pass --overwrite to replace it, or name "
            "another --output."
        )
    subject = Subject(config, log)
    if config.only != ("representations",):
        # Without it nothing else can be asked, and that is to be said at once.
        subject.inspector.detector  # noqa: B018
    sections: dict[str, Section] = {}
    names = [name for name in PARTS if name in (config.only or PARTS)]
    for number, name in enumerate(names, 1):
        began = time.monotonic()
        log(f"part {number} of {len(names)}: {name}")
        try:
            sections[name] = PARTS[name](subject)
        except (ValueError, FileNotFoundError) as error:
            # What was not asked for by name may be impossible.
            if config.only:
                raise
            log(f"left out: {error}")
        else:
            log(f"{name} took {cli.duration(time.monotonic() - began)}")
    if not sections:
        raise UserError("no part has its data: see above, and --help.")
    about = f"{config.model}, electra_tf {__version__}, seed {config.seed}"
    page = report.html(list(sections.values()), title="What it knows", about=about)
    numbers = {name: section.numbers for name, section in sections.items()}
    files.write_text(folder / HTML, page)
    files.write_json(folder / JSON, report.plain({"model": config.model} | numbers))
    for section in sections.values():
        cli.say("\n".join([section.title, *(f"  {note}" for note in section.notes)]))
    log(f"wrote {folder / HTML} and {folder / JSON}")
