"""Reranking of n-best lists by model scores.

Letters: L lists, H hypotheses of a list.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from electra_tf import cli, files
from electra_tf.analysis.alignment import distance
from electra_tf.cli import Log
from electra_tf.config.commands import ScoreConfig
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.runs import scores
from electra_tf.tasks.tables import read_text

AGGREGATES = {"mean": np.mean, "sum": np.sum, "worst": np.min}
# Weights of the grid search, relative to the ratio of the scores' standard deviations.
_STEPS = np.concatenate([[0.0], np.geomspace(1e-2, 1e2, 81)])
_RESAMPLES = 2_000


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
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = files.parse_json(line, f"{where} is no JSON")
        hypotheses = row.get("hypotheses") if isinstance(row, dict) else None
        if not isinstance(hypotheses, list) or not hypotheses:
            raise UserError(
                f'{where}: no hypotheses. Give {{"hypotheses": [{{"text": ..., '
                '"score": ...}]}.'
            )
        texts, first = [], []
        for each in hypotheses:
            each = {"text": each} if isinstance(each, str) else each
            text = each.get("text") if isinstance(each, dict) else None
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"{where}: a hypothesis without a text: {each!r}.")
            score = each.get("score", 0.0)
            if not files.fits(score, float) or not np.isfinite(score):
                raise UserError(f"{where}: the score {score!r} is no finite number.")
            texts.append(text)
            first.append(float(score))
        reference, edits, words = row.get("reference"), None, 0
        if reference is not None:
            if not isinstance(reference, str):
                raise UserError(f"{where}: the reference {reference!r:.60} is no text.")
            right = reference.split()
            words = len(right)
            edits = np.array([distance(text.split(), right) for text in texts])
        name = row.get("id", number)
        found.append(NBest(name, tuple(texts), np.array(first), edits, words))
    if not found:
        raise UserError(f"{path} has no lists: it is empty, or no JSON lines.")
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
        raise UserError("the references have no words: there is no word error rate.")
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
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Change(
        before=first,
        after=second,
        difference=second - first,
        low=float(low),
        high=float(high),
        no_better=float((drawn >= 0).mean()),
    )


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
                "tuning needs two lists with references at least: give --weight."
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
            f"{config.input} has {len(known)} references, and the weight is tuned on "
            "them: give --weight."
        )
    folder = PretrainingFolder(named(config.model))
    tokenizer = folder.tokenizer(log, **config.tokenization)
    method, model = scores.load(folder, config.method)
    models = {method: model}
    if config.compare and method != "masked_lm" and folder.has_model("generator"):
        other, model = scores.load(folder, "masked_lm")
        models[other] = model
    texts = sorted({text for each in lists for text in each.texts})
    log(f"{len(lists):,} lists, {len(texts):,} different hypotheses")
    costs: dict[str, dict[str, float]] = {}
    by_way: dict[tuple[str, str], list[np.ndarray]] = {}
    for name, asked in models.items():
        began = time.monotonic()
        found = scores.token_scores(
            name, asked, tokenizer, texts, batch_size=config.batch_size, log=log
        )
        tokens = sum(map(len, found))
        costs[name] = {
            "rows": tokens if name == "masked_lm" else len(texts),
            "seconds": time.monotonic() - began,
        }
        for aggregate in AGGREGATES if config.compare else (config.by,):
            number = {
                text: float(AGGREGATES[aggregate](values))
                for text, values in zip(texts, found, strict=True)
            }
            by_way[name, aggregate] = [
                np.array([number[text] for text in each.texts]) for each in lists
            ]
    weight, numbers = config.weight, {"costs": costs}
    if known:
        judged = [lists[at] for at in known]
        ways = {
            way: evaluate(judged, [own[at] for at in known], config.weight, config.seed)
            for way, own in by_way.items()
        }
        weight = ways[method, config.by].weight
        best = errors_of(judged, [int(np.argmin(each.edits)) for each in judged])
        oracle = float(best.sum() / sum(each.words for each in judged))
        cli.say(table(ways, oracle, costs))
        numbers |= {
            "lists": len(judged),
            "oracle": oracle,
            "ways": {
                " ".join(way): dataclasses.asdict(each) for way, each in ways.items()
            },
        }
    chosen = choose(lists, by_way[method, config.by], weight)
    files.write_json_lines(
        config.output,
        (
            {"id": each.id, "text": each.texts[at], "hypothesis": at}
            for each, at in zip(lists, chosen, strict=True)
        ),
    )
    log(f"wrote {config.output}, {method} by {config.by} with weight {weight:.4g}")
    if config.report:
        files.write_json(config.report, numbers | {"weight": weight})


def table(
    ways: Mapping[tuple[str, str], Reranked],
    oracle: float,
    costs: Mapping[str, Mapping[str, float]],
) -> str:
    """Formats the word error rates in percent."""
    first = next(iter(ways.values())).change.before
    lines = [
        f"word error rate, %: first pass {100 * first:.2f}, best of each list "
        f"{100 * oracle:.2f}",
        f"{'score':<18}{'weight':>10}{'re-ranked':>11}{'difference':>12}"
        f"{'95 %':>18}{'alone':>8}{'rows':>10}{'seconds':>9}",
    ]
    for (method, by), way in ways.items():
        change, cost = way.change, costs[method]
        interval = f"{100 * change.low:+.2f} to {100 * change.high:+.2f}"
        lines.append(
            f"{f'{method} {by}':<18}{way.weight:>10.4g}{100 * change.after:>11.2f}"
            f"{100 * change.difference:>+12.2f}{interval:>18}{100 * way.alone:>8.2f}"
            f"{cost['rows']:>10,}{cost['seconds']:>9.1f}"
        )
    return "\n".join(lines)
