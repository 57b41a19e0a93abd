"""Reranking of n-best lists by model scores.

Letters: L lists, H hypotheses of a list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from electra_tf import cli, files
from electra_tf.analysis.alignment import distance
from electra_tf.cli import Log
from electra_tf.config.commands import ScoreConfig
from electra_tf.data.tables import json_rows
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.runs import scores
from electra_tf.tasks.tables import read_text

AGGREGATES = {"mean": np.mean, "sum": np.sum, "worst": np.min}
# Weights of the grid search, relative to the ratio of the scores' standard deviations.
_STEPS = np.concatenate([[0.0], np.geomspace(1e-2, 1e2, 81)])
_RESAMPLES = 2_000
_SHAPE = {
    "hypotheses": [(str, {"text": str, "score": (None, float)})],
    "reference": (None, str),
}


@dataclasses.dataclass(frozen=True)
class NBest:
    """Hypotheses of an input with their first-pass log-probabilities.

    Attributes:
        id: as given, or the line number.
        texts: H hypotheses.
        first: first-pass scores, float64 [H].
        edits: word errors against the reference, int [H], or None.
        words: number of words of the reference.
    """

    id: str | int
    texts: tuple[str, ...]
    first: np.ndarray
    edits: np.ndarray | None
    words: int


def read(path: str) -> list[NBest]:
    """Reads n-best lists from JSON lines; words are separated by spaces.

    Raises UserError if a line is malformed or the file is empty, OSError if it does not
    exist.
    """
    found = []
    for number, row in json_rows(read_text(path).split("\n"), path):
        where = f"{path}, line {number}"
        files.check_shape(row, _SHAPE, where)
        hypotheses = [
            (each, 0.0) if isinstance(each, str) else (each["text"], each.get("score"))
            for each in row["hypotheses"]
        ]
        texts = tuple(text for text, _ in hypotheses)
        first = np.array([score or 0.0 for _, score in hypotheses], float)
        if not texts or not all(map(str.strip, texts)) or not np.isfinite(first).all():
            raise UserError(
                f"{where}: hypotheses must be a list of texts that are not empty, with "
                "finite scores."
            )
        reference, edits, words = row.get("reference"), None, 0
        if reference is not None:
            right = reference.split()
            words = len(right)
            edits = np.array([distance(text.split(), right) for text in texts])
        found.append(NBest(row.get("id", number), texts, first, edits, words))
    if not found:
        raise UserError(f"{path} has no lists.")
    return found


def choose(
    lists: Sequence[NBest], model: Sequence[np.ndarray], weight: float
) -> list[int]:
    """Returns the index of the best hypothesis of each list; the first of ties.

    ``model`` has the model scores [H] of each list. An infinite ``weight`` ignores the
    first-pass scores.
    """
    if np.isinf(weight):
        return [int(np.argmax(own)) for own in model]
    return [
        int(np.argmax(each.first + weight * own))
        for each, own in zip(lists, model, strict=True)
    ]


def tune(lists: Sequence[NBest], model: Sequence[np.ndarray]) -> float:
    """Returns the weight with the fewest word errors in a grid search.

    Among ties, takes the middle of the first run of best weights, for robustness.
    """
    spreads = [
        float(np.mean([np.std(values) for values in own]))
        for own in ([each.first for each in lists], model)
    ]
    scale = spreads[0] / spreads[1] if min(spreads) > 0 else 1.0
    weights = _STEPS * scale
    errors = np.array(
        [errors_of(lists, choose(lists, model, w)).sum() for w in weights]
    )
    (best,) = np.nonzero(errors == errors.min())
    run = best[: np.argmax(np.append(np.diff(best) > 1, True)) + 1]
    return float(weights[run[len(run) // 2]])


def errors_of(lists: Sequence[NBest], chosen: Sequence[int]) -> np.ndarray:
    """Returns the word errors of the chosen hypotheses, int [L]."""
    return np.array(
        [each.edits[at] for each, at in zip(lists, chosen, strict=True)], np.int64
    )


@dataclasses.dataclass(frozen=True)
class Change:
    """Word error rates before and after, as fractions.

    Attributes:
        difference: after minus before; ``low`` and ``high`` bound its 95 % interval, by
            a paired bootstrap over lists.
        no_better: fraction of resamples with a difference of at least 0.
    """

    before: float
    after: float
    difference: float
    low: float
    high: float
    no_better: float


def compare(
    before: np.ndarray, after: np.ndarray, words: np.ndarray, seed: int = 0
) -> Change:
    """Compares word errors [L] by a paired bootstrap (Bisani and Ney, 2004).

    ``words`` [L] are the reference lengths. Raises UserError if all are 0.
    """
    if not words.sum():
        raise UserError("the references have no words.")
    first, second = (float(each.sum() / words.sum()) for each in (before, after))

    def rate(difference: np.ndarray, count: np.ndarray, axis: int) -> np.ndarray:
        return difference.sum(axis) / np.maximum(count.sum(axis), 1)

    drawn = np.array([second - first])
    if len(words) > 1:
        drawn = stats.bootstrap(
            (after - before, words),
            rate,
            paired=True,
            n_resamples=_RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).bootstrap_distribution
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    no_better = float((drawn >= 0).mean())
    return Change(first, second, second - first, low, high, no_better)


@dataclasses.dataclass(frozen=True)
class Reranked:
    """Word error rates of a scoring method.

    ``weight`` is tuned on all lists, but ``change`` is cross-fitted on halves.
    ``alone`` is the word error rate without the first pass.
    """

    weight: float
    change: Change
    alone: float


def evaluate(
    lists: Sequence[NBest],
    model: Sequence[np.ndarray],
    weight: float | None = None,
    seed: int = 0,
) -> Reranked:
    """Tunes the weight, unless given, and computes cross-fitted word errors.

    Raises UserError if there are fewer than two lists to tune on.
    """
    words = np.array([each.words for each in lists])
    after = np.empty(len(lists), np.int64)
    final = weight
    if weight is None:
        if len(lists) < 2:
            raise UserError(
                "tuning needs at least two lists with references: give --weight."
            )
        order = np.random.default_rng(seed).permutation(len(lists))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        for fitted, rest in (halves, halves[::-1]):
            own = tune([lists[at] for at in fitted], [model[at] for at in fitted])
            left = [lists[at] for at in rest]
            chosen = choose(left, [model[at] for at in rest], own)
            after[rest] = errors_of(left, chosen)
        final = tune(lists, model)
    else:
        after = errors_of(lists, choose(lists, model, weight))
    first = errors_of(lists, [int(np.argmax(each.first)) for each in lists])
    alone = errors_of(lists, choose(lists, model, np.inf))
    change = compare(first, after, words, seed)
    return Reranked(final, change, float(alone.sum() / words.sum()))


def main(config: ScoreConfig, log: Log = cli.note) -> None:
    """Writes the best hypotheses; prints word error rates if there are references.

    Raises UserError if the lists, the model or the weight are invalid, OSError if a
    file is missing.
    """
    for path in filter(None, (config.output, config.report)):
        if Path(path).exists() and not config.overwrite:
            raise UserError(f"{path} exists: pass --overwrite to replace it.")
    lists = read(config.input)
    known = [at for at, each in enumerate(lists) if each.edits is not None]
    if config.weight is None and len(known) < 2:
        raise UserError(
            f"{config.input} has {len(known)} references; tuning the weight needs two: "
            "give --weight."
        )
    folder = PretrainingFolder(named(config.model))
    tokenizer = folder.tokenizer(log, **config.tokenization)
    method, model = scores.load(folder, config.method)
    texts = sorted({text for each in lists for text in each.texts})
    log(f"{len(lists):,} lists, {len(texts):,} different hypotheses")
    by_token = scores.token_scores(
        method, model, tokenizer, texts, batch_size=config.batch_size, log=log
    )
    by_text = dict(zip(texts, map(AGGREGATES[config.by], by_token), strict=True))
    own = [np.array([by_text[text] for text in each.texts]) for each in lists]
    weight, report = config.weight, {"method": method, "by": config.by}
    if known:
        scored = [lists[at] for at in known]
        result = evaluate(scored, [own[at] for at in known], weight, config.seed)
        best = errors_of(scored, [int(np.argmin(each.edits)) for each in scored])
        oracle = float(best.sum() / sum(each.words for each in scored))
        weight, change = result.weight, result.change
        cli.say(
            f"word error rate, %: first pass {100 * change.before:.2f}, re-ranked "
            f"{100 * change.after:.2f} ({100 * change.low:+.2f} to "
            f"{100 * change.high:+.2f}), {method} alone {100 * result.alone:.2f}, best "
            f"of each list {100 * oracle:.2f}"
        )
        report |= {"lists": len(scored), "oracle": oracle, "alone": result.alone}
        report |= dataclasses.asdict(change)
    chosen = choose(lists, own, weight)
    files.write_json_lines(
        config.output,
        (
            {"id": each.id, "text": each.texts[at], "hypothesis": at}
            for each, at in zip(lists, chosen, strict=True)
        ),
    )
    log(f"wrote {config.output}, {method} by {config.by} with weight {weight:.4g}")
    if config.report:
        files.write_json(config.report, report | {"weight": weight})
