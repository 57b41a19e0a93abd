"""The command that asks all questions of a pretrained pair and writes the report."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

from electra_tf import __version__, cli, files
from electra_tf.analysis import calibration as calibrating
from electra_tf.analysis import judged, report
from electra_tf.analysis.calibration import Calibration
from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.judged import Text
from electra_tf.analysis.report import Picture, Section, Table
from electra_tf.cli import Log
from electra_tf.config.commands import AnalyzeConfig

HTML, JSON = "report.html", "report.json"


class Subject:
    """The model, the flags and the text of an analysis, each read when needed."""

    def __init__(self, config: AnalyzeConfig, log: Log):
        self.config = config
        self.log = log
        self.inspector = Inspector(
            config.model,
            log,
            vocab_file=config.vocab_file,
            lower_case=config.lower_case,
            strip_accents=config.strip_accents,
        )

    @functools.cached_property
    def text(self) -> Text:
        """Rows of text; ValueError: there is none."""
        return judged.read_text(self.inspector, self.config.text, self.config.limit)


def main(config: AnalyzeConfig, log: Log = cli.note) -> None:
    """Runs all parts that are asked for and writes HTML and JSON.

    ValueError: the model cannot be asked, or data of a part that ``only`` names is not
    what it should be; OSError: something is not there.
    """
    folder = Path(config.output)
    taken = [name for name in (HTML, JSON) if (folder / name).exists()]
    if taken and not config.overwrite:
        raise ValueError(
            f"{folder} has a {taken[0]}: pass --overwrite to replace it, or name "
            "another --output."
        )
    subject = Subject(config, log)
    # Without it nothing can be asked, and that is to be said at once.
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
        raise ValueError("no part has its data: see above, and --help.")
    about = f"{config.model}, electra_tf {__version__}, seed {config.seed}"
    page = report.html(list(sections.values()), title="What it knows", about=about)
    numbers = {name: section.numbers for name, section in sections.items()}
    files.write_text(folder / HTML, page)
    files.write_json(folder / JSON, report.plain({"model": config.model} | numbers))
    for section in sections.values():
        cli.say("\n".join([section.title, *(f"  {note}" for note in section.notes)]))
    log(f"wrote {folder / HTML} and {folder / JSON}")


def calibration(subject: Subject) -> Section:
    """Part 1, on text that was corrupted in several ways."""
    config, inspector, text = subject.config, subject.inspector, subject.text
    kinds = judged.corruptions(inspector, text, config.generators)
    before: dict[str, Calibration] = {}
    own: dict[str, Calibration] = {}
    after: dict[str, Calibration] = {}
    temperatures: dict[str, float] = {}
    groups = {}
    for kind, generator in kinds.items():
        found = judged.judge(
            inspector,
            text.rows,
            generator,
            seed=config.seed,
            batch_size=config.batch_size,
            log=subject.log,
            name=kind,
        )
        fitting = calibrating.halves(found.row, config.seed)
        logits, labels, rows = (
            column[~fitting] for column in (found.logits, found.is_replaced, found.row)
        )
        temperatures[kind] = calibrating.fit_temperature(
            found.logits[fitting], found.is_replaced[fitting]
        )
        before[kind] = calibrating.calibration(logits, labels, rows)
        scaled = logits / temperatures[kind]
        own[kind] = calibrating.calibration(scaled, labels, rows)
        # What a user has is one temperature, that of the first kind.
        first = temperatures[next(iter(kinds))]
        after[kind] = calibrating.calibration(logits / first, labels, rows)
        if not groups:
            counts = text.counts[found.shown[~fitting]]
            bins = {
                "frequency": calibrating.frequency_bins(counts),
                "position": calibrating.position_bins(found.position[~fitting]),
            }
            for name, (number, names) in bins.items():
                groups[name] = calibrating.by_group(logits, labels, rows, number, names)
    main_kind = next(iter(kinds))
    notes = [
        f"{text.about}, corrupted as in pretraining; half of the rows fit the "
        "temperature, all other numbers are of the other half.",
        f"{main_kind}: ECE {before[main_kind].ece:.4f}, with temperature "
        f"{temperatures[main_kind]:.3f} {after[main_kind].ece:.4f}; Brier score "
        f"{before[main_kind].brier:.4f} of {before[main_kind].uncertainty:.4f} "
        "without looking at the text.",
    ]
    header = ("corruption", "temperature", "tokens", "replaced", "mean P", "ECE")
    header += ("Brier", "reliability", "resolution", "uncertainty", "nats", "AUC")
    rows = []
    stages = (("as it is", before), ("first temperature", after), ("its own", own))
    for kind in kinds:
        for stage, by_kind in stages:
            f = by_kind[kind]
            cells = (f.tokens, f.replaced, f.mean, f.ece, f.brier, f.reliability)
            cells += (f.resolution, f.uncertainty, f.nats, f.auc)
            rows.append((kind, stage, *cells))
    tables = [Table("Calibration, by what corrupted the text", header, rows)]
    for name, found in groups.items():
        cells = [
            (
                *(g.observed.name, g.observed.count, g.observed.rate),
                *(g.observed.low, g.observed.high, g.mean, g.ece),
            )
            for g in found
        ]
        header = (name, "tokens", "replaced", "low", "high", "mean P", "ECE")
        tables.append(Table(f"{main_kind}, by {name}, as it is", header, cells))
    pictures = [
        Picture(
            "Reliability: on the diagonal, P(replaced) is the share of tokens that "
            "were replaced. Bars are 95 % intervals over rows.",
            {
                "as it is": lambda axis: calibrating.draw_reliability(axis, before),
                f"temperature {temperatures[main_kind]:.2f}": (
                    lambda axis: calibrating.draw_reliability(axis, after)
                ),
            },
        ),
        Picture(
            f"{main_kind}: what is predicted and what happens, by kind of token.",
            {
                f"by {name}": functools.partial(
                    calibrating.draw_groups, groups=found, label=label
                )
                for (name, found), label in zip(
                    groups.items(),
                    ("times in the counted text", "position"),
                    strict=True,
                )
            },
        ),
    ]
    numbers = {
        "text": text.about,
        "temperatures": temperatures,
        "as_it_is": before,
        "first_temperature": after,
        "own_temperature": own,
        "groups": groups,
    }
    return Section("Is it calibrated?", notes, tables, pictures, numbers)


PARTS: dict[str, Callable[[Subject], Section]] = {"calibration": calibration}
