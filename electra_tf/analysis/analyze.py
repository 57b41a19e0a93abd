"""The command `analyze`: reports on a pretrained pair."""

from collections.abc import Callable
from pathlib import Path

from electra_tf import __version__, cli, files
from electra_tf.analysis import bias, calibration, errors, render, representations
from electra_tf.analysis.render import Section
from electra_tf.analysis.subject import Subject
from electra_tf.cli import Log
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.errors import UserError

HTML, JSON = "report.html", "report.json"

PARTS: dict[str, Callable[[Subject], Section]] = {
    "calibration": calibration.section,
    "errors": errors.section,
    "bias": bias.section,
    "representations": representations.section,
}


def main(config: AnalyzeConfig, log: Log = cli.note) -> None:
    """Runs the parts and writes HTML and JSON.

    Without ``only``, logs and skips parts without data; with it, they raise. Raises
    UserError if all parts are skipped or the model is not a discriminator.
    """
    folder = Path(config.output)
    files.check_new(folder / HTML, folder / JSON, overwrite=config.overwrite)
    subject = Subject(config, log)
    if config.only != ("representations",):
        # All other parts need a discriminator: load it first to fail early.
        subject.inspector.detector  # noqa: B018
    sections: dict[str, Section] = {}
    names = [name for name in PARTS if name in (config.only or PARTS)]
    for number, name in enumerate(names, 1):
        log(f"part {number} of {len(names)}: {name}")
        try:
            sections[name] = PARTS[name](subject)
        except (UserError, FileNotFoundError) as error:
            if config.only:
                raise
            log(f"left out: {error}")
    if not sections:
        raise UserError("no part has data: see the messages above and --help.")
    about = f"{config.model}, electra_tf {__version__}, seed {config.seed}"
    numbers = {name: section.numbers() for name, section in sections.items()}
    files.write_text(folder / HTML, render.page([*sections.values()], about))
    files.write_json(folder / JSON, {"model": config.model} | numbers)
    for section in sections.values():
        cli.say(f"{section.title}\n  {section.sentence}")
    log(f"wrote {folder / HTML} and {folder / JSON}")
