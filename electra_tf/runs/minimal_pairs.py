"""Minimal pairs: which of two sentences does a pretrained model find better?

Nothing is trained. Each sentence gets a number from its tokens, [CLS] and [SEP] left
out:

* ``detection``: log P(original) of each token, from one pass of a discriminator;
* ``energy``: minus the energy of each token, Electric's pseudo-log-likelihood (Clark et
  al., 2020b, section 3), from one pass;
* ``masked_lm``: log p of each token with it alone masked (Salazar et al., 2020), from
  as many passes as there are tokens.

Files are those of BLiMP (Warstadt et al., 2020): JSON lines with ``sentence_good`` and
``sentence_bad``, and the names of paradigm (``UID``) and ``field``.

Letters: B rows, S tokens, V vocabulary.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config.commands import MinimalPairsConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.features import derive_inputs
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.pretraining import EnergyModel, MaskedLM, ReplacedTokenDetector

ALL = "all"
# Of a fair coin, in percent.
CHANCE = 50.0
_NORMAL_QUANTILE = 1.959964
# Rows of a batch, [B, S] ids and mask, to a number per token, [B, S].
_Scorer = Callable[[dict[str, tf.Tensor]], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sentences of which the first one is right."""

    good: str
    bad: str
    paradigm: str
    field: str


@dataclasses.dataclass(frozen=True)
class Result:
    """How many pairs are in the right order by the sum and by the mean over tokens.

    A tie counts as half.
    """

    pairs: int
    by_sum: float
    by_mean: float

    def accuracy(self, by: str) -> tuple[float, float, float]:
        """The share in percent, and the ends of its 95 % interval (Wilson, 1927).

        ``by`` is "sum" or "mean". The interval is over pairs of these paradigms, not
        over paradigms.
        """
        share, z, n = (
            getattr(self, f"by_{by}") / self.pairs,
            _NORMAL_QUANTILE,
            self.pairs,
        )
        middle = share + z * z / (2 * n)
        half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        low, high = ((middle + side * half) / (1 + z * z / n) for side in (-1, 1))
        return 100 * share, 100 * low, 100 * high


def main(config: MinimalPairsConfig) -> None:
    """Runs as a command."""
    report = run(config, cli.note)
    cli.say(table(report))
    if config.output:
        files.write_json(config.output, report)


def run(config: MinimalPairsConfig, log: Log) -> dict[str, Any]:
    """Scores all pairs; returns counts and accuracies by paradigm and field.

    Raises:
        ValueError: data, model or method are not what they should be.
        OSError: a file is missing.
    """
    pairs = read_pairs(config.data, config.limit)
    folder = PretrainingFolder(named(config.model))
    tokenizer = folder.tokenizer(
        log,
        vocab_file=config.vocab_file,
        lower_case=config.lower_case,
        strip_accents=config.strip_accents,
    )
    method, model = _load(folder, config.method)
    log(f"{len(pairs):,} pairs, {method} of {config.model}")
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    scores = token_scores(
        method, model, tokenizer, texts, batch_size=config.batch_size, log=log
    )
    results = count(pairs, scores)
    return {
        "method": method,
        "by": config.by,
        **{
            kind: {name: _plain(result) for name, result in named.items()}
            for kind, named in results.items()
        },
    }


def _plain(result: Result) -> dict[str, Any]:
    shares = {by: result.accuracy(by) for by in ("sum", "mean")}
    return {"pairs": result.pairs, **shares}


def read_pairs(patterns: Sequence[str], limit: int | None = None) -> list[Pair]:
    """Reads files, or all .jsonl files of folders: at most ``limit`` pairs of each.

    ValueError: a line is no pair, or there is none; OSError: there is no such file.
    """
    paths = []
    for place in map(Path, patterns):
        paths += sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    pairs = []
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"No file {path}: correct --data.")
        rows = files.read_json_lines(path)
        for number, row in enumerate(rows[:limit], 1):
            sides = [row.get(f"sentence_{side}") for side in ("good", "bad")]
            if not all(isinstance(side, str) and side for side in sides):
                raise ValueError(
                    f"{path}, line {number} has no sentence_good and sentence_bad: "
                    "give JSON lines as BLiMP's."
                )
            paradigm = row.get("UID") or path.stem
            # Spelled in two ways in BLiMP itself.
            field = (row.get("field") or "").replace("/", "_")
            pairs.append(Pair(*sides, paradigm, field))
    if not pairs:
        raise ValueError(
            f"--data={','.join(patterns)} has no pairs: name .jsonl files or a folder "
            "of them."
        )
    return pairs


# Method -> the file it asks, and its class.
_MODELS = {
    "detection": ("discriminator", ReplacedTokenDetector),
    "energy": ("discriminator", EnergyModel),
    "masked_lm": ("generator", MaskedLM),
}


def _load(folder: PretrainingFolder, method: str) -> tuple[str, keras.Model]:
    """The method, "auto" resolved to what the run was for, and its model."""
    if method == "auto":
        method = "masked_lm"
        if folder.has_model("discriminator"):
            model = folder.load("discriminator", keras.Model)
            kinds = {"energy": EnergyModel, "detection": ReplacedTokenDetector}
            for name, kind in kinds.items():
                if isinstance(model, kind):
                    return name, model
            raise ValueError(
                f"{folder.model_path('discriminator')} holds a {type(model).__name__}, "
                "which says of no token how likely it is to belong there: only "
                "--method=masked_lm, the generator's, can be asked."
            )
    name, kind = _MODELS[method]
    path = folder.model_path(name)
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder.path} has no {path.name}, which --method={method} asks: name the "
            "folder of a finished run or of an import, or choose another --method."
        )
    return method, folder.load(name, kind, f"Choose another --method than {method}.")


def token_scores(
    method: str,
    model: keras.Model,
    tokenizer: WordPiece,
    texts: Sequence[str],
    *,
    batch_size: int = 64,
    log: Log = lambda line: None,
) -> list[np.ndarray]:
    """A number for every token of every text, float32, the higher the better.

    ValueError: a text has no tokens, or more than the model takes.
    """
    vocabulary = tokenizer.vocabulary
    most = model.encoder.embeddings.max_positions
    rows = []
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        if not 0 < len(ids) <= most - 2:
            raise ValueError(
                f"{text[:60]!r} has {len(ids)} tokens, and the model takes from 1 to "
                f"{most - 2}."
            )
        rows.append([vocabulary.cls_id, *ids, vocabulary.sep_id])
    if method == "masked_lm":
        # One row for each token that is asked for.
        asked = [
            (row, at) for row, ids in enumerate(rows) for at in range(1, len(ids) - 1)
        ]
    else:
        asked = [(row, None) for row in range(len(rows))]
    # Rows of similar length share a batch.
    asked.sort(key=lambda each: len(rows[each[0]]))
    score = _SCORERS[method](model, vocabulary.mask_id)
    found = [np.zeros(len(ids) - 2, np.float32) for ids in rows]
    progress = cli.Progress(len(asked), log=log, seconds=10)
    for start in range(0, len(asked), batch_size):
        part = asked[start : start + batch_size]
        length = max(len(rows[row]) for row, _ in part)
        ids = np.full([len(part), length], vocabulary.pad_id, np.int32)
        mask = np.zeros_like(ids)
        for number, (row, _) in enumerate(part):
            ids[number, : len(rows[row])] = rows[row]
            mask[number, : len(rows[row])] = 1
        inputs = derive_inputs(tf.constant(ids), tf.constant(mask), vocabulary.sep_id)
        if method == "masked_lm":
            at = np.array([[position] for _, position in part], np.int32)
            inputs["masked_lm_positions"] = tf.constant(at)
        values = score(inputs).numpy()
        for number, (row, position) in enumerate(part):
            if position is None:
                found[row][:] = values[number, 1 : len(rows[row]) - 1]
            else:
                found[row][position - 1] = values[number, 0]
        progress.update(start + len(part), "rows")
    return found


def _detection(model: ReplacedTokenDetector, mask_id: int) -> _Scorer:
    del mask_id
    return _traced(lambda inputs: tf.math.log_sigmoid(-model(inputs)))


def _energy(model: EnergyModel, mask_id: int) -> _Scorer:
    del mask_id
    return _traced(lambda inputs: -model(inputs))


def _masked_lm(model: MaskedLM, mask_id: int) -> _Scorer:
    def score(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        ids, at = inputs["input_ids"], inputs["masked_lm_positions"]
        is_asked = tf.range(tf.shape(ids)[1])[tf.newaxis] == at
        shown = {**inputs, "masked_input_ids": tf.where(is_asked, mask_id, ids)}
        original = tf.gather(ids, at, batch_dims=1)
        return tf.gather(tf.nn.log_softmax(model(shown)), original, batch_dims=2)

    return _traced(score)


def _traced(score: _Scorer) -> _Scorer:
    return tf.function(score, reduce_retracing=True)


_SCORERS = {"detection": _detection, "energy": _energy, "masked_lm": _masked_lm}


def count(
    pairs: Sequence[Pair], scores: Sequence[np.ndarray]
) -> dict[str, dict[str, Result]]:
    """Counts pairs in the right order: by "paradigms", "fields", and under ``ALL``.

    ``scores`` are those of the good and the bad sentence of each pair in turn.
    """
    right: dict[str, dict[str, list]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for pair, good, bad in zip(pairs, scores[::2], scores[1::2], strict=True):
        order = [_order(good.sum(), bad.sum()), _order(good.mean(), bad.mean())]
        right["paradigms"][pair.paradigm].append(order)
        right["fields"][pair.field or ALL].append(order)
        right[ALL][ALL].append(order)
    return {
        kind: {name: _result(orders) for name, orders in named.items()}
        for kind, named in right.items()
    }


def _order(good: float, bad: float) -> float:
    return 0.5 if good == bad else float(good > bad)


def _result(orders: Iterable[Sequence[float]]) -> Result:
    sums, means = zip(*orders, strict=True)
    return Result(len(sums), sum(sums), sum(means))


def table(report: dict[str, Any]) -> str:
    """The report as text: a line per paradigm, then per field, then for all."""
    lines = [f"{'':<52}{'pairs':>8}  {'sum':>5} {'95 %':>13}  {'mean':>5} {'95 %':>13}"]
    for kind in ("paradigms", "fields", ALL):
        for name, row in sorted(report[kind].items()):
            cells = [f"{name:<52}{row['pairs']:>8,}"]
            for by in ("sum", "mean"):
                share, low, high = row[by]
                cells.append(f"{share:5.1f} {f'{low:.1f} - {high:.1f}':>13}")
            lines.append("  ".join(cells))
        lines.append("")
    return "\n".join(lines[:-1])
