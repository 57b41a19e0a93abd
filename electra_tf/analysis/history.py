"""How a discriminator came to what it knows: its stages on the same text and errors."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from electra_tf.analysis import course, errors, judged, page, texts
from electra_tf.analysis.calibration import Calibration, calibration
from electra_tf.analysis.course import Stage
from electra_tf.analysis.inspect import record
from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.marked import RIGHT
from electra_tf.analysis.measures import detection, roc_auc
from electra_tf.analysis.report import Picture, Section, Table
from electra_tf.analysis.subject import Subject, short_names
from electra_tf.analysis.tuned import gain
from electra_tf.errors import UserError


def stages(subject: Subject, others: Sequence[Inspector]) -> Iterator[Stage]:
    """Others, or else the checkpoints of the run; the model comes last.

    ValueError: one cannot be asked; OSError: a model is missing.
    """
    if not others:
        yield from course.checkpoints(subject.inspector)
        return
    every = [*others, subject.inspector]
    folders = [each.folder.resolve() for each in every]
    if twice := [each for each in folders if folders.count(each) > 1]:
        raise UserError(
            f"--beside: {twice[0]} is there twice, or is the --model, which is the "
            "last stage in any case."
        )
    names = short_names([each.folder for each in every])
    for name, inspector in zip(names, every, strict=True):
        yield Stage(name, inspector, inspector.detector)


def section(subject: Subject) -> Section:
    """All stages: on corrupted text, on wrong words, and on a few texts in full."""
    config, inspector = subject.config, subject.inspector
    if not (config.beside or config.checkpoints):
        raise UserError(
            "the course needs other stages of the model: name folders with --beside, "
            "or pass --checkpoints where the run keeps some."
        )
    # What is not there is said before anything is read.
    others = [Inspector(folder, subject.log) for folder in config.beside]
    text = subject.text
    sets, _ = errors.sentences_of(subject)
    kind, generator = next(iter(judged.corruptions(inspector, text.counts).items()))
    shared = {"batch_size": config.batch_size, "log": subject.log}
    seen: dict[str, Calibration] = {}
    scores: dict[str, dict[str, np.ndarray]] = {name: {} for name in sets}

    def measured() -> Iterator[Stage]:
        """The stages, each asked before it makes room for the next."""
        for stage in stages(subject, others):
            _check(stage, inspector, max(map(len, text.rows)))
            found = judged.judge(
                inspector,
                text.rows,
                generator,
                detector=stage.detector,
                seed=config.seed,
                name=f"{kind}, {stage.name}",
                **shared,
            )
            seen[stage.name] = calibration(found.logits, found.is_replaced, found.row)
            for name, marked in sets.items():
                words = [each.words for each in marked]
                scores[name][stage.name] = errors.scores_of(
                    inspector, stage.detector, words, **shared
                )
            yield stage

    chosen = texts.choose(subject)
    answers = course.courses(chosen, measured())
    if inspector.home.has_model("generator"):
        corrupt = functools.partial(inspector.corrupt, seed=config.seed)
        answers += course.courses(chosen, stages(subject, others), corrupt)
        answers.sort(key=lambda each: chosen.index(each.text))

    header = ("stage", "AUC", "ECE", "mean P", "Brier", "of", "nats")
    rows = [
        (name, f.auc, f.ece, f.mean, f.brier, f.uncertainty, f.nats)
        for name, f in seen.items()
    ]
    first, last = (next(iter(order)) for order in (seen, reversed(seen)))
    notes = [
        f"{text.about}, corrupted by the {kind} of {last} for all stages alike: AUC "
        f"{seen[first].auc:.3f} at {first}, {seen[last].auc:.3f} at {last}."
    ]
    tables = [Table("Stages, on corrupted text", header, rows)]
    numbers: dict[str, dict] = {"calibration": seen, "errors": {}}
    precisions: dict[str, list[float]] = {}
    for name, marked in sets.items():
        wrong = np.array([k != RIGHT for each in marked for k in each.kinds])
        by_stage = {}
        for stage, own in scores[name].items():
            known = ~np.isnan(own)
            try:
                more, low, high = gain(marked, own, scores[name][last], config.seed)
            except ValueError as error:
                raise UserError(f"{name}: {error}") from error
            by_stage[stage] = {
                "average_precision": detection(
                    wrong[known], own[known]
                ).average_precision,
                "auc": roc_auc(wrong[known], own[known]),
                "to_the_last": {"average_precision": more, "low": low, "high": high},
            }
        header = ("stage", "average precision", "AUC", f"{last} is better by")
        cells = [
            (
                *(stage, each["average_precision"], each["auc"]),
                *each["to_the_last"].values(),
            )
            for stage, each in by_stage.items()
        ]
        tables.append(Table(f"{name}, by stage", (*header, "low", "high"), cells))
        precisions[name] = [each["average_precision"] for each in by_stage.values()]
        gained = by_stage[first]["to_the_last"]
        notes.append(
            f"{name}: average precision {precisions[name][0]:.3f} at {first}, "
            f"{precisions[name][-1]:.3f} at {last}; the difference is "
            f"{gained['average_precision']:+.3f} (95 %: {gained['low']:+.3f} to "
            f"{gained['high']:+.3f})."
        )
        numbers["errors"][name] = by_stage
    aucs = {kind: [each.auc for each in seen.values()]}
    panels = {"corrupted text": _line(list(seen), aucs, "AUC")}
    if precisions:
        panels["wrong words"] = _line(list(seen), precisions, "average precision")
    pictures = [Picture("What every stage finds.", panels)]
    numbers["verdicts"] = [record(each) for each in answers]
    shown = "\n".join([page.legend(answers), *map(page.answer, answers)])
    title = "How did it come to know it?"
    return Section(title, notes, tables, pictures, numbers, shown)


def _check(stage: Stage, inspector: Inspector, longest: int) -> None:
    if stage.inspector.vocabulary.tokens != inspector.vocabulary.tokens:
        raise UserError(
            f"--beside: {stage.name} has another vocabulary than {inspector.folder}: "
            "stages judge the same tokens."
        )
    most = stage.detector.encoder.embeddings.max_positions
    if most < longest:
        raise UserError(
            f"--beside: {stage.name} takes {most} tokens, and a row has {longest}: "
            "leave it out, or make it the --model."
        )


def draw_stages(
    axis: Axes, names: Sequence[str], by_name: Mapping[str, Sequence[float]], label: str
) -> None:
    """Draws one number per stage, a line for each name."""
    for name, values in by_name.items():
        axis.plot(range(len(values)), values, marker="o", markersize=4, label=name)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", parse_math=False)
    axis.set(ylabel=label)
    axis.legend(fontsize=8, frameon=False)


def _line(
    names: Sequence[str], by_name: Mapping[str, Sequence[float]], label: str
) -> functools.partial:
    return functools.partial(draw_stages, names=names, by_name=by_name, label=label)
