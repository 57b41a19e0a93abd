"""Does a score of sentences prefer what people wrote in the place of errors?

Letters: S sentences.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from electra_tf.analysis import marked
from electra_tf.analysis.marked import Rewritten
from electra_tf.analysis.measures import Rate, bars, roc_auc
from electra_tf.analysis.report import Picture, Section, Table
from electra_tf.analysis.rerank import AGGREGATES
from electra_tf.analysis.subject import Subject, longest_row
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.runs import scores

_RESAMPLES = 1_000


@dataclasses.dataclass(frozen=True)
class Preferred:
    """How well a score tells references from their sources.

    Attributes:
        auc: share of all pairs of a reference and a source, of whatever sentence, in
            the right order; chance is one half.
        pairs: share of the pairs of one sentence in the right order; ties are half.
    """

    auc: Rate
    pairs: Rate


def prefer(
    sources: np.ndarray, references: Sequence[np.ndarray], seed: int = 0
) -> Preferred:
    """Compares the scores of sources [S] with those of the references of each.

    Intervals are of 95 %, by a bootstrap over sentences. ValueError: there are none.
    """
    if not len(sources):
        raise UserError("no sentence differs from its references.")
    sizes = np.array([len(each) for each in references])
    flat, owner = np.concatenate(references), np.repeat(np.arange(len(sizes)), sizes)
    right = (flat > sources[owner]) + 0.5 * (flat == sources[owner])
    by_sentence = np.bincount(owner, right)
    starts = np.cumsum([0, *sizes])

    def measure(chosen: np.ndarray) -> tuple[float, float]:
        at = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in chosen])
        labels = np.repeat([True, False], [len(at), len(chosen)])
        auc = roc_auc(labels, np.concatenate([flat[at], sources[chosen]]))
        return auc, by_sentence[chosen].sum() / sizes[chosen].sum()

    rng = np.random.default_rng(seed)
    size = len(sources)
    drawn = [measure(rng.integers(0, size, size)) for _ in range(_RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    found = measure(np.arange(size))
    auc, pairs = (
        Rate(name, len(flat), float(found[at]), float(low[at]), float(high[at]))
        for at, name in enumerate(("AUC", "pairs"))
    )
    return Preferred(auc, pairs)


def draw(axis: Axes, found: Mapping[str, Preferred]) -> None:
    """Draws AUC and pairs of each score with their intervals; the line is chance."""
    places = np.arange(len(found))[::-1]
    for shift, kind in ((0.12, "auc"), (-0.12, "pairs")):
        rates = [getattr(each, kind) for each in found.values()]
        values = [rate.rate for rate in rates]
        look = {"marker": "o", "linestyle": "none", "label": rates[0].name}
        axis.errorbar(values, places + shift, xerr=bars(rates), **look)
    axis.axvline(0.5, color="0.6", linewidth=1)
    axis.set_yticks(places, list(found))
    axis.set(xlabel="share in the right order")
    axis.legend(fontsize=8, frameon=False)


def section(subject: Subject) -> Section:
    """Sources against references, of the files of ``--errors`` that have some."""
    config, inspector = subject.config, subject.inspector
    models: dict[str, tuple[str, Any, WordPiece]] = {
        "detection": ("detection", inspector.detector, inspector.tokenizer)
    }
    if inspector.home.has_model("generator"):
        models["masked_lm"] = ("masked_lm", inspector.generator, inspector.tokenizer)
    for who, other in subject.masked_lms.items():
        models[who] = ("masked_lm", other.generator, other.tokenizer)
    longest = longest_row(inspector, inspector.detector.encoder) - 2
    tables, pictures, notes, numbers = [], [], [], {}
    for spec in config.errors:
        given = marked.rewritten(spec, subject.log)
        if given is None:
            continue
        name = " and ".join(Path(part).name for part in spec.split(":"))
        rng = np.random.default_rng(config.seed)
        kept = sorted(rng.permutation(len(given))[: config.sentences])
        read = _fitting(subject, [given[at] for at in kept], longest)
        texts = sorted({text for each in read for text in (each.source, *each.others)})
        found: dict[str, Preferred] = {}
        costs: dict[str, float] = {}
        for who, (method, model, tokenizer) in models.items():
            began = time.monotonic()
            values = scores.token_scores(
                method,
                model,
                tokenizer,
                texts,
                batch_size=config.batch_size,
                log=subject.log,
            )
            costs[who] = time.monotonic() - began
            for by, aggregate in AGGREGATES.items():
                known = dict(zip(texts, map(aggregate, values), strict=True))
                try:
                    found[f"{who} {by}"] = prefer(
                        np.array([known[each.source] for each in read]),
                        [np.array([known[t] for t in each.others]) for each in read],
                        config.seed,
                    )
                except ValueError as error:
                    raise UserError(f"{spec}: {error}") from error
        notes.append(
            f"{name}: {len(read):,} sentences that somebody rewrote, "
            f"{found['detection mean'].auc.count:,} references."
        )
        # Not the best of the ways, which would be luck in part.
        for way in (f"{who} mean" for who in models):
            auc, pairs = found[way].auc, found[way].pairs
            notes.append(
                f"{name}: {way} prefers the reference in {pairs.rate:.1%} of the pairs "
                f"(95 %: {pairs.low:.1%} to {pairs.high:.1%}), AUC {auc.rate:.3f} "
                f"({auc.low:.3f} to {auc.high:.3f})."
            )
        rows = [
            (
                *(way, each.auc.rate, each.auc.low, each.auc.high, each.pairs.rate),
                *(each.pairs.low, each.pairs.high, costs[way.rpartition(" ")[0]]),
            )
            for way, each in found.items()
        ]
        header = ("score", "AUC", "low", "high", "pairs", "low", "high", "seconds")
        tables.append(Table(f"{name}: references against sources", header, rows))
        panel = {name: functools.partial(draw, found=found)}
        pictures.append(Picture(f"{name}: with 95 % intervals.", panel))
        numbers[name] = {"found": found, "seconds": costs, "sentences": len(read)}
    if not numbers:
        raise UserError(
            "acceptability needs sentences and what they were corrected to: name an M2 "
            "file, minimal pairs, or SOURCE:REFERENCE with --errors."
        )
    title = "Does it prefer what people wrote instead?"
    return Section(title, notes, tables, pictures, numbers)


def _fitting(
    subject: Subject, given: Sequence[Rewritten], longest: int
) -> list[Rewritten]:
    """Sentences whose texts the model takes, with the references that differ."""
    encode = subject.inspector.tokenizer.encode
    count = functools.cache(lambda text: len(encode([text])[0]))
    found = []
    for each in given:
        others = tuple(
            text
            for text in each.others
            if text != each.source and 0 < count(text) <= longest
        )
        if others and 0 < count(each.source) <= longest:
            found.append(Rewritten(each.source, others))
    changed = sum(any(t != each.source for t in each.others) for each in given)
    if changed > len(found):
        subject.log(
            f"{changed - len(found)} of {changed} rewritten sentences are left out: "
            f"longer than {longest} tokens, or empty."
        )
    return found
