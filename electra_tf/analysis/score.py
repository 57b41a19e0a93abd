"""The command `score`: minimal pairs, or reranking of L n-best lists."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from electra_tf import cli, files
from electra_tf.config.commands import ScoreConfig
from electra_tf.data.tables import json_rows
from electra_tf.errors import UserError
from electra_tf.runs import scores
from electra_tf.tasks.metrics import bootstrap
from electra_tf.tasks.tables import read_text

# Weights of the grid search, relative to the ratio of the scores' standard deviations.
_STEPS = np.concatenate([[0.0], np.geomspace(1e-2, 1e2, 81)])
_SHAPE = {
    "hypotheses": [(str, {"text": str, "score": (None, float)})],
    "reference": (None, str),
}


@dataclasses.dataclass(frozen=True)
class NBest:
    """H hypotheses of an input."""

    id: str | int  # As given, or the line number.
    texts: tuple[str, ...]
    first: np.ndarray  # First-pass log-probabilities, float64 [H].
    edits: np.ndarray | None  # Word errors against the reference, int [H].
    words: int  # Of the reference.
    own: np.ndarray | None = None  # Model scores [H].

    def best(self, weight: float) -> int:
        """Returns the index of the best hypothesis, the first of ties."""
        return int(np.argmax(self.first + weight * self.own))


def distance(source: Sequence[str], target: Sequence[str]) -> int:
    """Returns the Levenshtein distance in words."""
    row = list(range(len(target) + 1))
    for number, word in enumerate(source, 1):
        above, row = row, [number]
        for column, other in enumerate(target):
            replaced = above[column] + (word != other)
            row.append(min(above[column + 1] + 1, row[-1] + 1, replaced))
    return row[-1]


def read(path: str) -> list[NBest]:
    """Reads n-best lists; raises UserError if one is invalid or the file empty."""
    lists = []
    for number, row in json_rows(read_text(path).split("\n"), path):
        where = f"{path}, line {number}"
        files.check_shape(row, _SHAPE, where)
        hypotheses = [
            {"text": each} if isinstance(each, str) else each
            for each in row["hypotheses"]
        ]
        texts = tuple(each["text"] for each in hypotheses)
        given = [each.get("score") for each in hypotheses]
        first = np.array([score or 0.0 for score in given], float)
        # A missing score would count as 0, a probability of 1.
        is_valid = given.count(None) in (0, len(given)) and np.isfinite(first).all()
        if not (texts and all(map(str.strip, texts)) and is_valid):
            raise UserError(
                f"{where}: hypotheses must be a list of texts that are not empty. All "
                "have finite scores, or all have no score."
            )
        reference, edits, words = row.get("reference"), None, 0
        if reference is not None:
            right = reference.split()
            words = len(right)
            edits = np.array([distance(text.split(), right) for text in texts])
        lists.append(NBest(row.get("id", number), texts, first, edits, words))
    if not lists:
        raise UserError(f"{path} has no lists.")
    return lists


def errors_of(lists: Sequence[NBest], weight: float) -> np.ndarray:
    """Returns the word errors of the best hypotheses, int [L]."""
    return np.array([each.edits[each.best(weight)] for each in lists])


def tune(lists: Sequence[NBest]) -> float:
    """Returns the weight with the fewest word errors in a grid search."""
    first = np.mean([np.std(each.first) for each in lists])
    own = np.mean([np.std(each.own) for each in lists])
    weights = _STEPS * (first / own if min(first, own) > 0 else 1.0)
    errors = [errors_of(lists, weight).sum() for weight in weights]
    return float(weights[np.argmin(errors)])


def evaluate(
    lists: Sequence[NBest], weight: float | None = None, seed: int = 0
) -> dict[str, float]:
    """Computes word error rates; tunes ``weight`` for each half on the other if None.

    Returns the rates of the first pass (``before``), of reranking (``after``) and of
    the best hypotheses (``oracle``). ``difference`` is after - before; ``low`` and
    ``high`` are its 95 % interval by a paired bootstrap over lists (Bisani and Ney,
    2004). Raises UserError if the references have no words.
    """
    words = np.array([each.words for each in lists])
    if not words.sum():
        raise UserError("the references have no words.")
    if weight is None:
        after = np.empty(len(lists), np.int64)
        order = np.random.default_rng(seed).permutation(len(lists))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        for fitted, rest in (halves, halves[::-1]):
            own = tune([lists[at] for at in fitted])
            after[rest] = errors_of([lists[at] for at in rest], own)
    else:
        after = errors_of(lists, weight)
    before = errors_of(lists, 0.0)
    best = np.array([each.edits.min() for each in lists])
    low, high = bootstrap(
        lambda changes, count: changes.sum() / max(1, count.sum()),
        np.arange(len(lists)),
        after - before,
        words,
        seed=seed,
    )
    rates = {"before": before, "after": after, "oracle": best}
    report = {name: float(each.sum() / words.sum()) for name, each in rates.items()}
    change = report["after"] - report["before"]
    return report | {"difference": change, "low": low, "high": high}


def main(config: ScoreConfig) -> None:
    """Scores minimal pairs or n-best lists; raises UserError if an output exists."""
    files.check_new(config.output, config.report, overwrite=config.overwrite)
    if config.data:
        report = scores.score_pairs(config, cli.note)
        cli.say(scores.pairs_table(report))
    elif config.input:
        report = rerank(config)
    else:
        raise UserError("name minimal pairs (--data) or n-best lists (--input).")
    if config.report:
        files.write_json(config.report, report)


def rerank(config: ScoreConfig) -> dict[str, Any]:
    """Writes the best hypotheses; prints and returns error rates, given references."""
    lists = read(config.input)
    known = sum(each.edits is not None for each in lists)
    if config.weight is None and known < 2:
        raise UserError(
            f"{config.input} has {known} references; tuning the weight needs two: give "
            "--weight."
        )
    method, model, tokenizer = scores.load(config, cli.note)
    texts = sorted({text for each in lists for text in each.texts})
    cli.note(f"{len(lists):,} lists, {len(texts):,} different hypotheses")
    by_token = scores.token_scores(method, model, tokenizer, texts, log=cli.note)
    reduce = {"sum": np.sum, "mean": np.mean, "worst": np.min}[config.by]
    by_text = dict(zip(texts, map(reduce, by_token), strict=True))
    lists = [
        dataclasses.replace(each, own=np.array([by_text[text] for text in each.texts]))
        for each in lists
    ]
    weight = config.weight
    report: dict[str, Any] = {"method": method, "by": config.by, "lists": known}
    if known:
        scored = [each for each in lists if each.edits is not None]
        rates = evaluate(scored, weight)
        weight = tune(scored) if weight is None else weight
        report |= rates
        low, high = 100 * rates["low"], 100 * rates["high"]
        # NaN for one list.
        interval = "" if np.isnan(low) else f" ({low:+.2f} to {high:+.2f})"
        cli.say(
            f"word error rate, %: first pass {100 * rates['before']:.2f}, re-ranked "
            f"{100 * rates['after']:.2f}{interval}, best of each list "
            f"{100 * rates['oracle']:.2f}"
        )
    best = [(each, each.best(weight)) for each in lists]
    rows = (
        {"id": each.id, "text": each.texts[at], "hypothesis": at} for each, at in best
    )
    files.write_json_lines(config.output, rows)
    cli.note(f"wrote {config.output}, {method} by {config.by} with weight {weight:.4g}")
    return report | {"weight": weight}
