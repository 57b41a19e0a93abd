"""The command `score`: minimal pairs, or reranking of n-best lists by model scores.

Letters: L lists, H hypotheses of a list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config.commands import ScoreConfig
from electra_tf.data.tables import json_rows
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.runs import minimal_pairs, scores
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
    """Reads n-best lists from JSON lines; words are separated by spaces.

    Raises UserError if a line is malformed or the file is empty, OSError if it does not
    exist.
    """
    lists = []
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
        lists.append(NBest(row.get("id", number), texts, first, edits, words))
    if not lists:
        raise UserError(f"{path} has no lists.")
    return lists


def choose(
    lists: Sequence[NBest], model: Sequence[np.ndarray], weight: float
) -> list[int]:
    """Returns the index of the best hypothesis of each list; the first of ties.

    ``model`` has the model scores [H] of each list.
    """
    return [
        int(np.argmax(each.first + weight * own))
        for each, own in zip(lists, model, strict=True)
    ]


def errors_of(lists: Sequence[NBest], chosen: Sequence[int]) -> np.ndarray:
    """Returns the word errors of the chosen hypotheses, int [L]."""
    return np.array(
        [each.edits[at] for each, at in zip(lists, chosen, strict=True)], np.int64
    )


def tune(lists: Sequence[NBest], model: Sequence[np.ndarray]) -> float:
    """Returns the weight with the fewest word errors in a grid search."""
    spreads = [
        float(np.mean([np.std(values) for values in own]))
        for own in ([each.first for each in lists], model)
    ]
    scale = spreads[0] / spreads[1] if min(spreads) > 0 else 1.0
    weights = _STEPS * scale
    errors = [errors_of(lists, choose(lists, model, w)).sum() for w in weights]
    return float(weights[np.argmin(errors)])


def evaluate(
    lists: Sequence[NBest],
    model: Sequence[np.ndarray],
    weight: float | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Computes word error rates; tunes ``weight`` for each half on the other if None.

    Returns the rates of the first pass (``before``), of reranking (``after``) and of
    the best hypotheses (``oracle``), with the difference after - before and its 95 %
    interval by a paired bootstrap over lists (Bisani and Ney, 2004). Raises UserError
    if the references have no words.
    """
    words = np.array([each.words for each in lists])
    if not words.sum():
        raise UserError("the references have no words.")
    if weight is None:
        after = np.empty(len(lists), np.int64)
        order = np.random.default_rng(seed).permutation(len(lists))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        for fitted, rest in (halves, halves[::-1]):
            own = tune([lists[at] for at in fitted], [model[at] for at in fitted])
            left = [lists[at] for at in rest]
            chosen = choose(left, [model[at] for at in rest], own)
            after[rest] = errors_of(left, chosen)
    else:
        after = errors_of(lists, choose(lists, model, weight))
    before = errors_of(lists, choose(lists, model, 0.0))
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
    if len(lists) == 1:
        low = high = change
    return report | {"difference": change, "low": low, "high": high}


def main(config: ScoreConfig) -> None:
    """Scores minimal pairs or n-best lists; raises UserError if an output exists."""
    for path in filter(None, (config.output, config.report)):
        if Path(path).exists() and not config.overwrite:
            raise UserError(f"{path} exists: pass --overwrite to replace it.")
    if config.data:
        minimal_pairs.main(config)
    elif config.input:
        rerank(config, cli.note)
    else:
        raise UserError("name minimal pairs (--data) or n-best lists (--input).")


def rerank(config: ScoreConfig, log: Log) -> None:
    """Writes the best hypotheses; prints word error rates if there are references.

    Raises UserError if the lists, the model or the weight are invalid, OSError if a
    file is missing.
    """
    lists = read(config.input)
    known = [at for at, each in enumerate(lists) if each.edits is not None]
    if config.weight is None and len(known) < 2:
        raise UserError(
            f"{config.input} has {len(known)} references; tuning the weight needs two: "
            "give --weight."
        )
    folder = PretrainingFolder(named(config.model))
    tokenizer = folder.tokenizer(log)
    method, model = scores.load(folder, config.method)
    texts = sorted({text for each in lists for text in each.texts})
    log(f"{len(lists):,} lists, {len(texts):,} different hypotheses")
    by_token = scores.token_scores(method, model, tokenizer, texts, log=log)
    reduce = {"sum": np.sum, "mean": np.mean, "worst": np.min}[config.by]
    by_text = dict(zip(texts, map(reduce, by_token), strict=True))
    own = [np.array([by_text[text] for text in each.texts]) for each in lists]
    weight = config.weight
    report: dict[str, Any] = {"method": method, "by": config.by, "lists": len(known)}
    if known:
        scored, of_scored = ([part[at] for at in known] for part in (lists, own))
        report |= evaluate(scored, of_scored, weight)
        weight = tune(scored, of_scored) if weight is None else weight
        before, after, oracle, _, low, high = (
            100 * report[name]
            for name in ("before", "after", "oracle", "difference", "low", "high")
        )
        cli.say(
            f"word error rate, %: first pass {before:.2f}, re-ranked {after:.2f} "
            f"({low:+.2f} to {high:+.2f}), best of each list {oracle:.2f}"
        )
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
