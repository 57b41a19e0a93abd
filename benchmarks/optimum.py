"""Distance between models of the synthetic language and the optimal predictor.

    python benchmarks/optimum.py --model=runs/grammar_model
    python benchmarks/optimum.py --model=runs/compare/grammar --output=optimum.json

A generator or masked LM is compared with Bayes' rule at masked words. A discriminator
is compared with Bayes' rule on sentences with words sampled by frequency, which does
not depend on a run's generator. Both use new sentences. The
folder of a comparison gives a row per system.
"""

import collections
import itertools
from pathlib import Path

import harness
import keras
import numpy as np
import tensorflow as tf
from grammar import agreement_grammar
from sklearn import metrics

from electra_tf import files
from electra_tf.analysis.subject import encoders_in
from electra_tf.errors import UserError
from electra_tf.features import derive_inputs
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.pretraining import Discriminator, MaskedLM, ReplacedTokenDetector

ROWS = 64


class Language:
    """Returns the language, new sentences, and their ids in a vocabulary."""

    def __init__(self, vocabulary, seed, language_seed, sentences):
        self.grammar = agreement_grammar(language_seed)
        if vocabulary is None or not {*self.grammar.words} <= {*vocabulary.tokens}:
            raise UserError(
                "the model lacks the vocabulary of the language: pretrain with the "
                "vocab.txt that benchmarks/grammar.py writes, and give its --seed as "
                "--language_seed."
            )
        self.rng = np.random.default_rng([language_seed, seed, 2])
        self.sentences = [self.grammar.sample(self.rng)[0] for _ in range(sentences)]
        self.vocabulary = vocabulary
        place = {token: index for index, token in enumerate(vocabulary.tokens)}
        self.ids_of = np.array([place[word] for word in self.grammar.words])
        self.mask = len(self.grammar.words)
        counts = 1 + np.bincount(np.concatenate(self.sentences), minlength=self.mask)
        self.frequency = counts / counts.sum()

    def batches(self):
        starts = range(0, len(self.sentences), ROWS)
        return (self.sentences[at : at + ROWS] for at in starts)

    def inputs(self, symbols):
        """Returns encoder inputs of sentences: [CLS], words, [SEP], padding."""
        vocabulary = self.vocabulary
        length = max(map(len, self.sentences)) + 2
        ids = np.full((len(symbols), length), vocabulary.pad_id, np.int32)
        for row, sentence in zip(ids, symbols, strict=True):
            words = np.append(self.ids_of, vocabulary.mask_id)[sentence]
            row[: len(words) + 2] = [vocabulary.cls_id, *words, vocabulary.sep_id]
        mask = tf.constant((ids != vocabulary.pad_id).astype(np.int32))
        return derive_inputs(tf.constant(ids), mask, vocabulary.sep_id)


def masked_nats(language, model, mask_rate):
    """Returns the mean cross-entropy of masked words, by predictor."""
    nats = collections.defaultdict(list)
    for batch in language.batches():
        hidden = [language.rng.random(len(sentence)) < mask_rate for sentence in batch]
        pairs = list(zip(batch, hidden, strict=True))
        inputs = language.inputs([np.where(h, language.mask, s) for s, h in pairs])
        positions = [1 + np.flatnonzero(chosen) for chosen in hidden]
        width = max(1, *map(len, positions))
        padded = [np.pad(some, (0, width - len(some))) for some in positions]
        inputs["masked_input_ids"] = inputs["input_ids"]
        inputs["masked_lm_positions"] = tf.constant(np.array(padded, np.int32))
        logs = tf.nn.log_softmax(model(inputs)).numpy()
        for (sentence, chosen), row in zip(pairs, logs, strict=True):
            words = sentence[chosen]
            at = np.arange(len(words))
            best = language.grammar.masked_words(sentence, chosen)
            nats["model"].extend(-row[at, language.ids_of[words]])
            nats["optimum"].extend(-np.log(best[at, words]))
            nats["frequencies"].extend(-np.log(language.frequency[words]))
    return {name: float(np.mean(values)) for name, values in nats.items()}


def detection(language, model, mask_rate, rng):
    """Returns cross-entropy and AUC of replaced word detection, by predictor."""
    frequency = language.frequency
    labels, guesses = [], collections.defaultdict(list)
    for batch in language.batches():
        corrupted = []
        for sentence in batch:
            drawn = rng.choice(len(frequency), len(sentence), p=frequency)
            is_drawn = rng.random(len(sentence)) < mask_rate
            corrupted.append(np.where(is_drawn, drawn, sentence))
            labels.extend(corrupted[-1] != sentence)
        probabilities = tf.sigmoid(model(language.inputs(corrupted))).numpy()
        for symbols, row in zip(corrupted, probabilities, strict=True):
            guesses["model"].extend(row[1 : len(symbols) + 1])
            best = language.grammar.replaced(symbols, frequency, mask_rate)
            guesses["optimum"].extend(best)
            guesses["frequencies"].extend(mask_rate * (1 - frequency[symbols]))
    clipped = {name: np.clip(row, 1e-7, 1 - 1e-7) for name, row in guesses.items()}
    return {
        "detection_nats": {
            name: float(metrics.log_loss(labels, row)) for name, row in clipped.items()
        },
        "detection_auc": {
            name: float(metrics.roc_auc_score(labels, row))
            for name, row in clipped.items()
        },
    }


def score(folder, *, sentences=1_000, mask_rate=0.15, language_seed=0, seed=1):
    """Returns scores of model, optimum and word frequencies, by measure and name.

    The keys are ``masked_nats`` if the folder has a masked LM, ``detection_nats`` and
    ``detection_auc`` if it has a detector of replaced tokens. Raises UserError if the
    folder's vocabulary is not the language's.
    """
    home = PretrainingFolder(folder)
    language = Language(home.vocabulary(), seed, language_seed, sentences)
    parts = {}
    if home.has_model("generator"):
        model = home.load("generator", keras.Model)
        if isinstance(model, MaskedLM):
            parts["masked_nats"] = masked_nats(language, model, mask_rate)
    if home.has_model("discriminator"):
        model = home.load("discriminator", Discriminator)
        if isinstance(model, ReplacedTokenDetector):
            rng = np.random.default_rng([language_seed, seed, 3])
            parts |= detection(language, model, mask_rate, rng)
    return parts


def learned(part):
    """Returns the share of the gap between word frequencies and optimum."""
    return (part["frequencies"] - part["model"]) / (
        part["frequencies"] - part["optimum"]
    )


def show(systems):
    """Prints a row per system: the mean over its runs and the share learned."""
    first = {}  # The optimum and frequencies depend on the language, not on a run.
    for run in itertools.chain(*systems.values()):
        first = run | first
    rows = {"": list(first)}
    for known in ("optimum", "frequencies"):
        rows[known] = [f"{part[known]:.4f}" for part in first.values()]
    for system, runs in systems.items():
        cells = [[run[name] for run in runs if name in run] for name in first]
        rows[f"{system} ({len(runs)})"] = map(_cell, cells)
    for label, cells in rows.items():
        print(f"{label:20}" + "".join(f"{cell:>26}" for cell in cells))
    print("After a mean: the share of the way from frequencies to the optimum, ± sd.")


def _cell(parts):
    if not parts:
        return ""
    shares = [100 * learned(part) for part in parts]
    spread = f" ± {np.std(shares, ddof=1):.1f}" if len(parts) > 1 else ""
    mean = np.mean([part["model"] for part in parts])
    return f"{mean:.4f}  {np.mean(shares):.1f}{spread} %"


def run(model, output=None, **options):
    """Scores one run, or every run of a comparison; prints and writes the scores."""
    folder = named(model)
    systems = collections.defaultdict(list)
    if (folder / "results.jsonl").is_file():
        for each in encoders_in(folder):  # runs/SYSTEM/seed-N of a comparison.
            systems[each.parent.name].append(score(each, **options))
    else:
        systems[folder.name].append(score(folder, **options))
    if not any(part for scores in systems.values() for part in scores):
        raise UserError(
            f"{folder} has neither a masked LM in generator.keras nor replaced token "
            "detection in discriminator.keras."
        )
    show(systems)
    if output:
        files.write_json(Path(output), dict(systems))


def main(arguments=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--model", required=True, help="a run, or a comparison")
    parser.add_argument("--sentences", type=int, default=1_000, help="new sentences")
    parser.add_argument("--mask_rate", type=float, default=0.15)
    parser.add_argument("--language_seed", type=int, default=0, help="of grammar.py")
    parser.add_argument("--seed", type=int, default=1, help="of the new sentences")
    parser.add_argument("--output", help="JSON file to write")
    harness.run(run, parser, arguments)


if __name__ == "__main__":
    main()
