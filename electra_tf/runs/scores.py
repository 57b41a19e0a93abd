"""Token scores of a pretrained model, and its accuracy on minimal pairs.

* ``detection``: log P(original), from one pass of a discriminator;
* ``energy``: the negative energy, Electric's pseudo-log-likelihood (Clark et al.,
  2020b, section 3), from one pass;
* ``masked_lm``: log p of the token with only this token masked (Salazar et al., 2020),
  from one pass per token.

Files of pairs are BLiMP's (Warstadt et al., 2020): JSON lines with ``sentence_good``,
``sentence_bad``, paradigm (``UID``) and ``field``.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.cli import Log
from electra_tf.config.commands import ScoreConfig
from electra_tf.data.tables import json_rows
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.features import derive_inputs
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.pretraining import EnergyModel, MaskedLM, ReplacedTokenDetector
from electra_tf.tasks.metrics import wilson
from electra_tf.tasks.tables import read_text

# Name of all pairs in reports of minimal pairs, and accuracy of guessing in percent.
ALL, CHANCE = "all", 50.0

_CLASSES = {
    "detection": ReplacedTokenDetector,
    "energy": EnergyModel,
    "masked_lm": MaskedLM,
}


def load(config: ScoreConfig, log: Log) -> tuple[str, keras.Model, WordPiece]:
    """Returns the method ("auto" follows the run's objective), model and tokenizer."""
    folder, method = PretrainingFolder(named(config.model)), config.method
    folder.reject_fine_tuned("give the pretraining run it started from.")
    tokenizer = folder.tokenizer(log)
    is_masked = method == "masked_lm"
    is_masked |= method == "auto" and not folder.has_model("discriminator")
    name = "generator" if is_masked else "discriminator"
    path = folder.model_path(name)
    hint = f"--method={method} needs it: name a finished run, or choose another."
    model = folder.load(name, keras.Model, hint)
    for kind, cls in _CLASSES.items():
        if isinstance(model, cls) and method in ("auto", kind):
            folder.check_vocabulary(name, model.encoder)
            return kind, model, tokenizer
    raise UserError(
        f"{path} holds a {type(model).__name__}, which does not score tokens by "
        f"--method={method}: choose another --method, such as masked_lm."
    )


def token_scores(
    method: str,
    model: keras.Model,
    tokenizer: WordPiece,
    texts: Sequence[str],
    *,
    batch_size: int = 64,
    log: Log = lambda line: None,
) -> list[np.ndarray]:
    """Computes float32 scores of all tokens of each text; higher is better."""
    vocabulary, rows = tokenizer.vocabulary, []
    most = model.encoder.embeddings.max_positions - 2
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        if not 0 < len(ids) <= most:
            raise UserError(
                f"{text[:60]!r} has {len(ids)} tokens; the model takes from 1 to "
                f"{most}."
            )
        rows.append((vocabulary.cls_id, *ids, vocabulary.sep_id))
    # Each row once: rounding in different batches would break ties.
    unique = list(dict.fromkeys(rows))
    scores = row_scores(
        method, model, vocabulary, unique, batch_size=batch_size, log=log
    )
    by_row = dict(zip(unique, scores, strict=True))
    return [by_row[row] for row in rows]


def row_scores(
    method: str,
    model: keras.Model,
    vocabulary: Vocabulary,
    rows: Sequence[Sequence[int]],
    *,
    batch_size: int = 64,
    log: Log = lambda line: None,
) -> list[np.ndarray]:
    """Computes ``token_scores`` of token ids; [CLS] and [SEP] get no score."""
    # A row and its scored token (masked LM), or None for all.
    queries = [(row, None) for row in range(len(rows))]
    if method == "masked_lm":
        queries = [
            (row, at) for row, ids in enumerate(rows) for at in range(1, len(ids) - 1)
        ]
    # Rows of similar length share a batch.
    queries.sort(key=lambda each: len(rows[each[0]]))
    score = _scorer(method, model, vocabulary.mask_id)
    scores = [np.zeros(len(ids) - 2, np.float32) for ids in rows]
    progress = cli.Progress(len(queries), unit="row", log=log)
    for start in range(0, len(queries), batch_size):
        part = queries[start : start + batch_size]
        ids = keras.utils.pad_sequences(
            [rows[row] for row, _ in part], padding="post", value=vocabulary.pad_id
        )
        lengths = np.array([[len(rows[row])] for row, _ in part])
        mask = (np.arange(ids.shape[1]) < lengths).astype(np.int32)
        inputs = derive_inputs(tf.constant(ids), tf.constant(mask), vocabulary.sep_id)
        if method == "masked_lm":
            at = np.array([[position] for _, position in part], np.int32)
            inputs["masked_lm_positions"] = tf.constant(at)
        for (row, position), own in zip(part, score(inputs).numpy(), strict=True):
            if position is None:
                scores[row][:] = own[1 : len(rows[row]) - 1]
            else:
                scores[row][position - 1] = own[0]
        progress.update(start + len(part), method)
    return scores


def _scorer(method: str, model: keras.Model, mask_id: int) -> Callable:
    """Returns the traced function of a method: inputs to scores [rows, tokens or 1]."""

    @tf.function(reduce_retracing=True)
    def score(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        if method == "detection":
            return tf.math.log_sigmoid(-model(inputs))
        if method == "energy":
            return -model(inputs)
        ids, at = inputs["input_ids"], inputs["masked_lm_positions"]
        is_scored = tf.range(tf.shape(ids)[1])[tf.newaxis] == at
        shown = {**inputs, "masked_input_ids": tf.where(is_scored, mask_id, ids)}
        original = tf.gather(ids, at, batch_dims=1)
        return tf.gather(tf.nn.log_softmax(model(shown)), original, batch_dims=2)

    return score


@dataclasses.dataclass(frozen=True)
class Pair:
    """A correct and an incorrect sentence; ``field`` may be empty."""

    good: str
    bad: str
    paradigm: str
    field: str


def score_pairs(config: ScoreConfig, log: Log) -> dict[str, Any]:
    """Scores minimal pairs; returns counts and accuracies by paradigm and field."""
    pairs = read_pairs(config.data, config.limit)
    method, model, tokenizer = load(config, log)
    log(f"{len(pairs):,} pairs, {method} of {config.model}")
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    values = token_scores(method, model, tokenizer, texts, log=log)
    return {"method": method, "by": config.by, **count(pairs, values)}


def read_pairs(patterns: Sequence[str], limit: int | None = None) -> list[Pair]:
    """Reads .jsonl files, or folders of them: at most ``limit`` pairs per file."""
    paths, pairs = [], []
    for place in map(Path, patterns):
        paths += sorted(place.glob("*.jsonl")) or [place]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"No .jsonl files in {path}: correct --data.")
        rows = json_rows(read_text(str(path)).split("\n"), str(path))
        for number, row in itertools.islice(rows, limit):
            sides = [row.get("sentence_good"), row.get("sentence_bad")]
            if not all(isinstance(side, str) and side for side in sides):
                raise UserError(
                    f"{path}, line {number} has no sentence_good and sentence_bad "
                    "(BLiMP's JSON lines)."
                )
            # BLiMP uses both spellings.
            field = str(row.get("field") or "").replace("/", "_")
            pairs.append(Pair(*sides, str(row.get("UID") or path.stem), field))
    return pairs


def count(
    pairs: Sequence[Pair], values: Sequence[np.ndarray]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the accuracies under "paradigms", "fields" and ``ALL``, by name.

    ``values`` are token scores of the good and bad sentence of each pair in turn.
    Accuracies of their "sum" and "mean" are in percent, each with its 95 % interval
    over pairs (Wilson, 1927). A tie counts as half.
    """
    orders: dict[str, dict[str, list]] = {"paradigms": {}, "fields": {}, ALL: {}}
    for pair, good, bad in zip(pairs, values[::2], values[1::2], strict=True):
        sums = np.array([[x.sum(), x.mean()] for x in (good, bad)])
        order = (np.sign(sums[0] - sums[1]) + 1) / 2
        names = (pair.paradigm, pair.field, ALL)
        for by_name, name in zip(orders.values(), names, strict=True):
            if name:
                by_name.setdefault(name, []).append(order)
    return {
        kind: {name: _accuracies(rows) for name, rows in by_name.items()}
        for kind, by_name in orders.items()
    }


def _accuracies(orders: Sequence[np.ndarray]) -> dict[str, Any]:
    row: dict[str, Any] = {"pairs": len(orders)}
    shares = np.mean(orders, axis=0, dtype=np.float64)
    for by, share in zip(("sum", "mean"), shares, strict=True):
        row[by] = tuple(100 * float(x) for x in (share, *wilson(share, len(orders))))
    return row


def pairs_table(report: dict[str, Any]) -> str:
    """Formats the report: one line per paradigm, per field and for all pairs."""
    lines = [f"{'':<52}{'pairs':>8}  {'sum':>5} {'95 %':>13}  {'mean':>5} {'95 %':>13}"]
    for kind in ("paradigms", "fields", ALL):
        for name, row in sorted(report[kind].items()):
            cells = [f"{name:<52}{row['pairs']:>8,}"]
            for by in ("sum", "mean"):
                share, low, high = row[by]
                cells.append(f"{share:5.1f} {f'{low:.1f} - {high:.1f}':>13}")
            lines.append("  ".join(cells))
        lines += [""] if report[kind] else []
    return "\n".join(lines[:-1])
