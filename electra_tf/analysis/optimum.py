"""How far runs on the synthetic language are from the best possible predictor."""

from __future__ import annotations

import collections
import itertools
from pathlib import Path

import keras
import numpy as np
import scipy.stats
import tensorflow as tf

from electra_tf import cli, files
from electra_tf.analysis.subject import kept_runs
from electra_tf.config.commands import OptimumConfig
from electra_tf.data.grammar import agreement_grammar
from electra_tf.errors import UserError
from electra_tf.features import derive_inputs
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.pretraining import Discriminator, MaskedLM, ReplacedTokenDetector

_ROWS = 64


def score(folder: Path, config: OptimumConfig) -> dict[str, dict[str, float]]:
    """Numbers of the model, of the optimum and of word frequencies, by name.

    ``masked_nats``: mean cross-entropy at masked words. ``detection_nats`` and
    ``detection_auc``: of "was this word replaced", over all words. Frequencies stand
    for a predictor that looks at no context. Only what the folder has is there: of
    generators a masked LM is asked, of discriminators one that detects.

    ValueError: the folder's vocabulary is not the language's; OSError: no such folder.
    """
    home = PretrainingFolder(folder)
    vocabulary = home.vocabulary()
    grammar = agreement_grammar(config.language_seed)
    if vocabulary is None or not set(grammar.words) <= set(vocabulary.tokens):
        raise UserError(
            f"{folder} lacks the vocabulary of the language: pretrain with the "
            "vocab.txt that python -m electra_tf.data.grammar writes, and give its "
            "--seed as --language_seed."
        )
    rng = np.random.default_rng([config.language_seed, config.seed, 2])
    sentences = [grammar.sample(rng)[0] for _ in range(config.sentences)]
    place = {token: index for index, token in enumerate(vocabulary.tokens)}
    ids_of = np.array([place[word] for word in grammar.words])
    frequency = np.bincount(np.concatenate(sentences), minlength=len(grammar.words))
    frequency = (frequency + 1) / (frequency + 1).sum()

    mask_symbol = len(grammar.words)

    def rows(symbols: list[np.ndarray]) -> dict[str, tf.Tensor]:
        """Sentences as inputs of a network: [CLS], words, [SEP], padding."""
        length = max(map(len, sentences)) + 2
        ids = np.full((len(symbols), length), vocabulary.pad_id, np.int32)
        for row, sentence in zip(ids, symbols, strict=True):
            words = np.append(ids_of, vocabulary.mask_id)[sentence]
            row[: len(words) + 2] = [vocabulary.cls_id, *words, vocabulary.sep_id]
        mask = tf.constant((ids != vocabulary.pad_id).astype(np.int32))
        return derive_inputs(tf.constant(ids), mask, vocabulary.sep_id)

    parts: dict[str, dict[str, float]] = {}
    batches = [sentences[at : at + _ROWS] for at in range(0, len(sentences), _ROWS)]
    model = None
    if home.has_model("generator"):
        model = home.load("generator", keras.Model)
    if isinstance(model, MaskedLM):
        nats = {"model": [], "optimum": [], "frequencies": []}
        for batch in batches:
            hidden = [
                rng.random(len(sentence)) < config.mask_rate for sentence in batch
            ]
            inputs = rows(
                [
                    np.where(chosen, mask_symbol, sentence)
                    for chosen, sentence in zip(hidden, batch, strict=True)
                ]
            )
            positions = [1 + np.flatnonzero(chosen) for chosen in hidden]
            width = max(1, *map(len, positions))
            padded = [np.pad(some, (0, width - len(some))) for some in positions]
            inputs["masked_input_ids"] = inputs["input_ids"]
            inputs["masked_lm_positions"] = tf.constant(np.array(padded, np.int32))
            logs = tf.nn.log_softmax(model(inputs)).numpy()
            for sentence, chosen, row in zip(batch, hidden, logs, strict=True):
                words = sentence[chosen]
                at = np.arange(len(words))
                best = grammar.masked_words(sentence, chosen)
                nats["model"].extend(-row[at, ids_of[words]])
                nats["optimum"].extend(-np.log(best[at, words]))
                nats["frequencies"].extend(-np.log(frequency[words]))
        parts["masked_nats"] = {k: float(np.mean(v)) for k, v in nats.items()}
    model = None
    if home.has_model("discriminator"):
        model = home.load("discriminator", Discriminator)
    if isinstance(model, ReplacedTokenDetector):
        # What is drawn does not depend on what other networks there are.
        rng = np.random.default_rng([config.language_seed, config.seed, 3])
        labels, guesses = [], {"model": [], "optimum": [], "frequencies": []}
        for batch in batches:
            corrupted = []
            for sentence in batch:
                drawn = rng.choice(len(frequency), len(sentence), p=frequency)
                anew = rng.random(len(sentence)) < config.mask_rate
                corrupted.append(np.where(anew, drawn, sentence))
                labels.extend(corrupted[-1] != sentence)
            probabilities = tf.sigmoid(model(rows(corrupted))).numpy()
            for symbols, row in zip(corrupted, probabilities, strict=True):
                guesses["model"].extend(row[1 : len(symbols) + 1])
                best = grammar.replaced(symbols, frequency, config.mask_rate)
                guesses["optimum"].extend(best)
                # Of a word alone: it is drawn as often as it stands in the text.
                alone = config.mask_rate * (1 - frequency[symbols])
                guesses["frequencies"].extend(alone)
        truth = np.array(labels)
        parts["detection_nats"], parts["detection_auc"] = {}, {}
        for name, values in guesses.items():
            guess = np.clip(values, 1e-7, 1 - 1e-7)
            nats = -np.where(truth, np.log(guess), np.log1p(-guess))
            parts["detection_nats"][name] = float(nats.mean())
            # The area under the curve is the Mann-Whitney statistic.
            test = scipy.stats.mannwhitneyu(guess[truth], guess[~truth])
            pairs = truth.sum() * (~truth).sum()
            parts["detection_auc"][name] = float(test.statistic / pairs)
    return parts


def learned(part: dict[str, float]) -> float:
    """Which share of the way from word frequencies to the optimum a model has gone."""
    return (part["frequencies"] - part["model"]) / (
        part["frequencies"] - part["optimum"]
    )


def main(config: OptimumConfig) -> None:
    """Prints the table of one run, or that of a comparison; writes it, where asked."""
    folder = named(config.model)
    runs = kept_runs(folder)
    if not runs:
        parts = score(folder, config)
        if not parts:
            raise UserError(
                f"{folder} has neither a masked LM in generator.keras nor replaced "
                "token detection in discriminator.keras: only those of finished runs "
                "are scored."
            )
        _say_run(parts)
        if config.output:
            files.write_json(Path(config.output), parts)
        return
    systems: dict[str, list] = collections.defaultdict(list)
    for run in runs:
        # runs/SYSTEM/seed-N of the folder of a comparison.
        systems[run.parent.name].append(score(run, config))
    _say_systems(systems)
    if config.output:
        files.write_json(Path(config.output), systems)


def _say_run(parts: dict[str, dict[str, float]]) -> None:
    cli.say(
        f"{'':16}{'model':>12}{'optimum':>12}{'frequencies':>14}{'share learned':>16}"
    )
    for name, row in parts.items():
        cli.say(
            f"{name:16}{row['model']:12.4f}{row['optimum']:12.4f}"
            f"{row['frequencies']:14.4f}{learned(row):16.1%}"
        )


def _say_systems(systems: dict[str, list[dict[str, dict[str, float]]]]) -> None:
    """A row per system: the mean over its runs, and which share was learned."""
    first = {}  # Optimum and frequencies are those of the language: of any run.
    for run in itertools.chain(*systems.values()):
        first = run | first
    rows = {"": list(first)}
    for known in ("optimum", "frequencies"):
        rows[known] = [f"{part[known]:.4f}" for part in first.values()]
    for system, runs in systems.items():
        rows[f"{system} ({len(runs)})"] = [
            _cell([run[name] for run in runs if name in run]) for name in first
        ]
    for label, cells in rows.items():
        cli.say(f"{label:20}" + "".join(f"{cell:>26}" for cell in cells))
    cli.say(
        "In brackets the number of runs; beside their mean, the share of the way from "
        "frequencies to the optimum, ± its standard deviation."
    )


def _cell(parts: list[dict[str, float]]) -> str:
    if not parts:
        return ""
    shares = [100 * learned(part) for part in parts]
    spread = f" ± {np.std(shares, ddof=1):.1f}" if len(parts) > 1 else ""
    mean = np.mean([part["model"] for part in parts])
    return f"{mean:.4f}  {np.mean(shares):.1f}{spread} %"
