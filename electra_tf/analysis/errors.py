"""Does a discriminator find real errors, though it was never shown one?

Letters: N words of all sentences.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from electra_tf.analysis import marked as marking
from electra_tf.analysis.calibration import (
    Calibration,
    calibration,
    draw_reliability,
    fit_temperature,
    halves,
)
from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.marked import RIGHT, Marked
from electra_tf.analysis.measures import (
    Detection,
    Rate,
    bars,
    detection,
    rates,
    roc_auc,
)
from electra_tf.analysis.report import Picture, Section, Table
from electra_tf.analysis.subject import Subject, longest_row
from electra_tf.analysis.tuned import fine_tune, gain
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.pretraining import MaskedLM, ReplacedTokenDetector
from electra_tf.runs.scores import row_scores
from electra_tf.tasks.tagging import WordRows, word_rows

BETA = 0.5
# What is asked first; its scores are logits of "replaced".
DISCRIMINATOR = "discriminator"
TUNED = "fine-tuned"


def word_scores(
    inspector: Inspector,
    sentences: Sequence[Sequence[str]],
    counts: np.ndarray,
    *,
    seed: int = 0,
    batch_size: int = 32,
    log: Log = lambda line: None,
) -> dict[str, np.ndarray]:
    """How suspicious every word of all sentences is, float64 [N], by who says so.

    A word has the score of its most suspicious piece; one without pieces has nan.
    Long sentences are read in parts.

    * ``discriminator``: the logit of "replaced";
    * ``generator``, if there is one: minus log p with the piece alone masked;
    * ``frequency``: minus the log of how often the piece occurs, by ``counts`` [V];
    * ``random``: a number that knows nothing.
    """
    longest = longest_row(inspector, inspector.detector.encoder)
    pieces = word_rows(sentences, inspector.tokenizer, longest, split=True)
    rows = [pieces.input_ids[row] for row in range(len(pieces.sentence))]
    shared = {"batch_size": batch_size, "log": log}
    vocabulary = inspector.vocabulary
    by_row = {
        DISCRIMINATOR: row_scores(
            "replaced", inspector.detector, vocabulary, rows, **shared
        ),
        "frequency": [-np.log(counts[row[1:-1]] + 1.0) for row in rows],
    }
    if inspector.home.has_model("generator"):
        fits = row_scores("masked_lm", inspector.generator, vocabulary, rows, **shared)
        by_row["generator"] = [-values for values in fits]
    found = _of_words(pieces, sentences, by_row)
    found["random"] = np.random.default_rng(seed).random(len(found["frequency"]))
    found["random"][np.isnan(found["frequency"])] = np.nan
    order = (DISCRIMINATOR, "generator", "frequency", "random")
    return {name: found[name] for name in order if name in found}


def _of_words(
    pieces: WordRows,
    sentences: Sequence[Sequence[str]],
    by_row: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, np.ndarray]:
    """The highest score of each word's pieces, [N] by name, of those of all rows."""
    starts = np.cumsum([0, *map(len, sentences)])
    found = {name: np.full(starts[-1], np.nan) for name in by_row}
    for row, sentence in enumerate(pieces.sentence):
        first = pieces.word[row][1:-1]
        # Pieces that continue a word belong to the last one that began.
        word = np.maximum.accumulate(first) + starts[sentence]
        for name, values in by_row.items():
            np.fmax.at(found[name], word, values[row])
    return found


def scores_of(
    inspector: Inspector,
    model: ReplacedTokenDetector | MaskedLM,
    sentences: Sequence[Sequence[str]],
    *,
    batch_size: int = 32,
    log: Log = lambda line: None,
) -> np.ndarray:
    """As ``word_scores``, float64 [N], of one model with the tokens of ``inspector``.

    A detector is asked as ``discriminator`` is there, a masked LM as ``generator`` is.
    """
    longest = longest_row(inspector, model.encoder)
    pieces = word_rows(sentences, inspector.tokenizer, longest, split=True)
    rows = [pieces.input_ids[row] for row in range(len(pieces.sentence))]
    shared = {"batch_size": batch_size, "log": log}
    # What fits well is not suspicious.
    method, sign = ("masked_lm", -1) if isinstance(model, MaskedLM) else ("replaced", 1)
    scores = row_scores(method, model, inspector.vocabulary, rows, **shared)
    by_row = {method: [sign * values for values in scores]}
    return _of_words(pieces, sentences, by_row)[method]


@dataclasses.dataclass(frozen=True)
class Found:
    """How well one score finds the wrong words.

    Attributes:
        average_precision: of all words; ``wrong``, their share, is what chance has.
        auc: share of pairs of a wrong and a right word in the right order.
        threshold: the one with the best F0.5 on half of the sentences.
        precision, recall, f_score: with it on the other half; F0.5.
        curve: precision and recall of all words at every threshold.
        kinds: by kind of error, with the threshold, the share that is found in the
            other half; ``RIGHT`` words are called wrong.
        kind_precision: by kind, average precision among these and all right words.
    """

    words: int
    wrong: float
    average_precision: float
    auc: float
    threshold: float
    precision: float
    recall: float
    f_score: float
    curve: Detection
    kinds: tuple[Rate, ...]
    kind_precision: Mapping[str, float]


def evaluate(marked: Sequence[Marked], scores: np.ndarray, seed: int = 0) -> Found:
    """Compares scores [N], the higher the more suspicious, with what is marked.

    Words whose score is nan are left out. ValueError: no word is wrong, in one of the
    halves or at all.
    """
    kinds = np.array([kind for each in marked for kind in each.kinds], object)
    rows = np.repeat(np.arange(len(marked)), [len(each.words) for each in marked])
    known = ~np.isnan(scores)
    kinds, rows, scores = kinds[known], rows[known], scores[known]
    wrong = kinds != RIGHT
    curve = detection(wrong, scores)
    fitting = halves(rows, seed)
    fitted = detection(wrong[fitting], scores[fitting])
    threshold = fitted.thresholds[fitted.f_score(BETA).argmax()]
    rest = ~fitting
    called = scores[rest] >= threshold
    hits = float((called & wrong[rest]).sum())
    precision = hits / max(int(called.sum()), 1)
    actual = int(wrong[rest].sum())
    recall = hits / max(actual, 1)
    weight = BETA**2
    names = [RIGHT, *sorted(set(kinds[wrong]))]
    group = np.array([names.index(kind) for kind in kinds])
    return Found(
        words=len(scores),
        wrong=float(wrong.mean()),
        average_precision=curve.average_precision,
        auc=roc_auc(wrong, scores),
        threshold=float(threshold),
        precision=precision,
        recall=recall,
        f_score=(1 + weight) * hits / max(int(called.sum()) + weight * actual, 1),
        curve=curve,
        kinds=tuple(rates(called, group[rest], rows[rest], names)),
        kind_precision={
            kind: detection(kinds[own] == kind, scores[own]).average_precision
            for kind in names[1:]
            if (own := (kinds == kind) | ~wrong).any()
        },
    )


def draw_curves(axis: Axes, found: Mapping[str, Found]) -> None:
    """Draws precision over recall of each score, and the share of wrong words."""
    for name, each in found.items():
        label = f"{name}, AP {each.average_precision:.3f}"
        axis.step(each.curve.recall, each.curve.precision, label=label, where="post")
    axis.axhline(next(iter(found.values())).wrong, color="0.6", linewidth=1)
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="recall", ylabel="precision")
    axis.legend(fontsize=8, frameon=False)


def draw_kinds(axis: Axes, kinds: Sequence[Rate]) -> None:
    """Draws the share of words that is called wrong, by kind, with intervals."""
    names = [rate.name or "right words" for rate in kinds]
    shares = [rate.rate for rate in kinds]
    places = np.arange(len(kinds))[::-1]
    axis.errorbar(shares, places, xerr=bars(kinds), marker="o", linestyle="none")
    axis.set_yticks(places, names, parse_math=False)
    axis.set(xlabel="share called wrong")
    axis.set_xlim(left=0)


_Sets = dict[str, list[Marked]]
# To fine-tune on, and to be asked after that.
_Split = dict[str, tuple[list[Marked], list[Marked]]]


def sentences_of(subject: Subject) -> tuple[_Sets, _Split]:
    """Sentences with errors by what they are of, and the two halves of each.

    Those of the files of ``--errors``, and what rules make of ``--tagged``.
    """
    config, log = subject.config, subject.log
    sets: _Sets = {}
    split: _Split = {}
    for spec in config.errors:
        found = marking.read(spec, config.agreement, log)
        name = " and ".join(Path(part).name for part in spec.split(":"))
        rng = np.random.default_rng(config.seed)
        kept = sorted(rng.permutation(len(found))[: config.sentences])
        name = spec if name in sets else name
        sets[name] = [found[at] for at in kept]
        split[name] = _parts(sets[name], config.seed)
    for path in config.tagged:
        tagged = marking.read_tagged(path)
        name = f"rules in {Path(path).name}"
        sets[name] = marking.by_rules(tagged, config.sentences, config.seed)
        if config.sizes:
            # No sentence is on both sides, with other errors.
            parts = _parts(tagged, config.seed)
            limit = max(1, config.sentences // 2)
            split[name] = tuple(
                marking.by_rules(part, limit, config.seed) for part in parts
            )
    return sets, split


def section(subject: Subject) -> Section:
    """Errors of files, and of rules in tagged text."""
    config, log = subject.config, subject.log
    sets, split = sentences_of(subject)
    if not sets:
        raise UserError(
            "errors needs sentences with errors: name files with --errors, or text to "
            "put some into with --tagged."
        )
    notes, tables, pictures, numbers = [], [], [], {}
    shared = {"batch_size": config.batch_size, "log": log}
    for name, marked in sets.items():
        words = [each.words for each in marked]
        scores = word_scores(
            subject.inspector, words, subject.counts, seed=config.seed, **shared
        )
        for who, other in subject.masked_lms.items():
            scores[who] = scores_of(other, other.generator, words, **shared)
        try:
            found = {who: evaluate(marked, s, config.seed) for who, s in scores.items()}
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error
        best = found[DISCRIMINATOR]
        logits, wrong, rows = _known(marked, scores[DISCRIMINATOR])
        try:
            natural, temperature = _scaled(logits, wrong, rows, config.seed)
        except ValueError as error:
            raise UserError(f"{name}: {error}") from error
        as_it_is, scaled = natural.values()
        notes.append(
            f"{name}: {len(marked):,} sentences, {best.words:,} words, "
            f"{best.wrong:.1%} wrong; average precision {best.average_precision:.3f}, "
            f"F0.5 {best.f_score:.3f}, ECE of P(replaced) {as_it_is.ece:.3f}, "
            f"with temperature {temperature:.2f}, fitted on half of the sentences, "
            f"{scaled.ece:.3f}; mean P(replaced) {as_it_is.mean:.3f}."
        )
        ahead = {
            who: gain(marked, own, scores[DISCRIMINATOR], config.seed)
            for who, own in scores.items()
            if who != DISCRIMINATOR
        }
        rows = [(who, *values) for who, values in ahead.items()]
        tables += [
            _who(f"{name}: who finds wrong words", found),
            Table(
                f"{name}: by how much the discriminator's average precision is above",
                ("who", "difference", "low", "high"),
                rows,
            ),
        ]
        header = ("kind", "words", "called wrong", "low", "high", "average precision")
        rows = [
            (
                *(kind.name or "right words", kind.count, kind.rate, kind.low),
                *(kind.high, best.kind_precision.get(kind.name, float("nan"))),
            )
            for kind in best.kinds
        ]
        tables.append(Table(f"{name}: kinds, by the discriminator", header, rows))
        pictures.append(
            Picture(
                f"{name}: left, all thresholds, the line is chance; middle, the "
                "threshold with the best F0.5 on half of the sentences, on the other "
                "half; right, is P(replaced) the share of wrong words?",
                {
                    "who finds them": functools.partial(draw_curves, found=found),
                    "what is found": functools.partial(draw_kinds, kinds=best.kinds),
                    "calibration": functools.partial(
                        draw_reliability,
                        by_name=natural,
                        outcome="that is wrong",
                    ),
                },
            )
        )
        numbers[name] = {"found": _thinned(found), "calibration": natural}
        numbers[name]["temperature"] = temperature
        numbers[name]["ahead"] = {
            who: dict(zip(("value", "low", "high"), values, strict=True))
            for who, values in ahead.items()
        }
        if config.sizes:
            try:
                after = _after_tuning(subject, name, *split[name])
            except ValueError as error:
                raise UserError(f"{name}, --tune: {error}") from error
            notes.append(after.note)
            tables += after.tables
            pictures += after.pictures
            numbers[name]["tuned"] = after.numbers
    return Section("Does it find real errors?", notes, tables, pictures, numbers)


def _parts(sentences: Sequence[Any], seed: int) -> tuple[list[Any], list[Any]]:
    """Sentences in two halves."""
    first = halves(np.arange(len(sentences)), seed)
    return tuple(
        [sentences[at] for at in np.flatnonzero(part)] for part in (first, ~first)
    )


def _who(caption: str, found: Mapping[str, Found]) -> Table:
    header = ("who", "average precision", "AUC", "threshold", "precision", "recall")
    rows = [
        (
            *(who, f.average_precision, f.auc, f.threshold),
            *(f.precision, f.recall, f.f_score),
        )
        for who, f in found.items()
    ]
    return Table(caption, (*header, "F0.5"), rows)


def _thinned(found: Mapping[str, Found]) -> dict[str, Found]:
    return {
        who: dataclasses.replace(f, curve=f.curve.thinned()) for who, f in found.items()
    }


def _scaled(
    logits: np.ndarray, wrong: np.ndarray, rows: np.ndarray, seed: int
) -> tuple[dict[str, Calibration], float]:
    """Calibration on half of the sentences, as it is and with the others' temperature.

    ValueError: no word of a half is wrong.
    """
    fitting = halves(rows, seed)
    temperature = fit_temperature(logits[fitting], wrong[fitting])
    rest = ~fitting
    return {
        name: calibration(logits[rest] / divisor, wrong[rest], rows[rest])
        for name, divisor in (
            ("as it is", 1.0),
            (f"temperature {temperature:.2f}", temperature),
        )
    }, temperature


class _Tuned(NamedTuple):
    note: str
    tables: list[Table]
    pictures: list[Picture]
    numbers: dict[str, Any]


def _after_tuning(
    subject: Subject, name: str, given: Sequence[Marked], asked: Sequence[Marked]
) -> _Tuned:
    """Who finds the wrong words of ``asked``, once some of ``given`` were shown."""
    config, log = subject.config, subject.log
    inspector = subject.inspector
    # Rules come one after the other. More sentences have the fewer among them.
    order = np.random.default_rng(config.seed).permutation(len(given))
    sizes = sorted({min(size, len(given)) for size in config.sizes})
    sentences = [each.words for each in asked]
    shared = {"batch_size": config.batch_size, "log": log}
    scores = word_scores(
        inspector, sentences, subject.counts, seed=config.seed, **shared
    )
    found = {who: evaluate(asked, own, config.seed) for who, own in scores.items()}
    by_size: dict[int, Found] = {}
    gains: dict[int, tuple[float, float, float]] = {}
    for size in sizes:
        shown = [given[at] for at in order[:size]]
        detector = fine_tune(inspector, shown, seed=config.seed, log=log)
        after = scores_of(inspector, detector, sentences, **shared)
        by_size[size] = evaluate(asked, after, config.seed)
        gains[size] = gain(asked, scores[DISCRIMINATOR], after, config.seed)
    largest = sizes[-1]
    found = {TUNED: by_size[largest], **found}
    more, low, high = gains[largest]
    what = (
        f"{name}: after fine-tuning on {largest:,} sentences, asked of "
        f"{len(asked):,} others"
    )
    note = (
        f"{what}: average precision {found[TUNED].average_precision:.3f}, without "
        f"{found[DISCRIMINATOR].average_precision:.3f}; the difference is {more:+.3f} "
        f"(95 %: {low:+.3f} to {high:+.3f}); F0.5 {found[TUNED].f_score:.3f}, without "
        f"{found[DISCRIMINATOR].f_score:.3f}."
    )
    header = ("sentences", "average precision", "gained", "low", "high", "F0.5")
    curve = [
        (size, each.average_precision, *gains[size], each.f_score)
        for size, each in by_size.items()
    ]
    panels = {
        "who finds them": functools.partial(draw_curves, found=found),
        "what is found": functools.partial(draw_kinds, kinds=found[TUNED].kinds),
        "by sentences shown": functools.partial(
            draw_sizes, by_size=by_size, gains=gains, found=found
        ),
    }
    numbers = {
        "sentences": largest,
        "found": _thinned(found),
        "gain": {"average_precision": more, "low": low, "high": high},
        "by_size": {
            size: {
                "average_precision": each.average_precision,
                "gain": dict(zip(("value", "low", "high"), gains[size], strict=True)),
                "f_score": each.f_score,
            }
            for size, each in by_size.items()
        },
    }
    tables = [_who(what, found), Table(f"{name}: by sentences shown", header, curve)]
    return _Tuned(note, tables, [Picture(f"{what}.", panels)], numbers)


def draw_sizes(
    axis: Axes,
    by_size: Mapping[int, Found],
    gains: Mapping[int, tuple[float, float, float]],
    found: Mapping[str, Found],
) -> None:
    """Draws average precision over sentences shown, with that of who was shown none.

    The bars are the intervals of the gain over the discriminator.
    """
    values = np.array([each.average_precision for each in by_size.values()])
    ends = np.array([(more - low, high - more) for more, low, high in gains.values()])
    style = {"marker": "o", "markersize": 4, "label": TUNED}
    axis.errorbar(list(by_size), values, np.maximum(ends.T, 0), **style)
    axis.set_xscale("log")
    axis.set_xticks(list(by_size), [f"{size:,}" for size in by_size])
    axis.set_xticks([], minor=True)
    for number, (who, each) in enumerate(found.items()):
        if who != TUNED:
            axis.axhline(
                each.average_precision, color=f"C{number}", linewidth=1, label=who
            )
    axis.set(xlabel="sentences shown", ylabel="average precision")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, frameon=False)


def _known(
    marked: Sequence[Marked], scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, whether a word is wrong, and sentences, of words that have a score."""
    wrong = np.array([kind != RIGHT for each in marked for kind in each.kinds])
    rows = np.repeat(np.arange(len(marked)), [len(each.words) for each in marked])
    known = ~np.isnan(scores)
    return scores[known], wrong[known], rows[known]
