"""The command `inspect`: predictions of generator and discriminator for a text.

Letters: S tokens of a text with [CLS] and [SEP], P masked positions, V vocabulary.
"""

import dataclasses
import functools
import json
import operator
import shutil
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config.commands import InspectConfig
from electra_tf.data.masking import Masking, row_keys
from electra_tf.errors import UserError
from electra_tf.features import derive_inputs
from electra_tf.folders.models import Model
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import (
    CategoricalSampler,
    Electra,
    MaskedLM,
    ReplacedTokenDetector,
)
from electra_tf.runs import samples

LEGEND = "* called replaced: the probability is over 50 %"
# Width of the row names.
_INDENT = 15

_HINT = (
    "Predictions need discriminator.keras of a finished run, --fill generator.keras "
    "(--objective=mlm saves no other), --corrupt both. Import other checkpoints first "
    "(python -m electra_tf convert)."
)


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """Replaced-token probabilities of a text; all tuples have S entries.

    ``original`` and ``is_masked`` are None without corruption.
    """

    text: str
    tokens: tuple[str, ...]  # Word pieces of the discriminator's input.
    probabilities: tuple[float, ...]  # P(replaced).
    original: tuple[str, ...] | None = None  # Word pieces before corruption.
    is_masked: tuple[bool, ...] | None = None  # Positions sampled by the generator.


@dataclasses.dataclass(frozen=True)
class Fills:
    """Generator predictions for every mask of a text, independent of each other."""

    text: str  # With P masks.
    tokens: tuple[str, ...]  # S word pieces of the generator's input.
    mask: str  # The mask token.
    fills: tuple[tuple[tuple[str, float], ...], ...]  # P times (token, probability).


class Inspector:
    """Generator, discriminator and tokenizer of a folder, loaded on first use.

    ``folder`` is a finished pretraining run or an import. ``log`` receives assumptions
    and warnings about inputs. Raises ValueError if the folder is damaged, a model is
    missing, or a text or setting is invalid, OSError if the folder does not exist.
    """

    def __init__(self, folder: str | Path, log: Log):
        self.home = PretrainingFolder(named(folder))
        self._log = log
        if not self.home.path.is_dir():
            raise FileNotFoundError(
                f"No model at {folder}: --model must be the folder of a finished "
                "pretraining run or of an imported checkpoint."
            )
        self.home.reject_fine_tuned(
            "give the pretraining run it started from, or use electra-tf predict."
        )
        self.flags = self.home.flags
        self.tokenizer = self.home.tokenizer(log)
        self.vocabulary = self.tokenizer.vocabulary

    def verdicts(self, text: str) -> Verdicts:
        """Predicts P(replaced) of each token of a text."""
        ids = self.encode(text, self.detector.encoder)
        probabilities = tf.sigmoid(self.detector(self.inputs(ids)))
        return Verdicts(text, self.names(ids), tuple(np.ravel(probabilities).tolist()))

    def corrupt(
        self, text: str, *, mask_rate: float | None = None, seed: int = 0
    ) -> Verdicts:
        """Replaces tokens by generator samples, then predicts which are replaced.

        Masks and samples depend only on text and seed, not on the text's index.
        ``mask_rate`` defaults to the value at the end of pretraining.
        """
        pair = self.pair(self.generator)
        ids = self.encode(text, pair.discriminator, pair.generator.encoder)
        fingerprint = zlib.crc32(text.encode("utf-8", "replace"))
        row = tf.constant([fingerprint], tf.int64)
        batch = self.mask(self.inputs(ids), row, seed=seed, mask_rate=mask_rate)
        answers = pair.examine(batch, seed=tf.constant([seed, fingerprint % 2**31]))
        return Verdicts(
            text,
            self.names(answers["corrupted_ids"].numpy()[0]),
            tuple(np.ravel(answers["replaced_probability"]).tolist()),
            self.names(ids),
            tuple(np.ravel(answers["is_masked"]).tolist()),
        )

    def fill(self, text: str, *, top: int = 5) -> Fills:
        """Returns the generator's ``top`` tokens for every [MASK] in a text."""
        mask, top = self.vocabulary.mask, min(top, len(self.vocabulary))
        if mask not in text:
            raise UserError(
                f"{_quoted(text)} has no {mask}: write {mask} for a token to predict."
            )
        ids = self.encode(text, self.generator.encoder, masks=True)
        positions = np.flatnonzero(ids == self.vocabulary.mask_id).astype(np.int32)
        inputs = self.inputs(ids)
        inputs["masked_input_ids"] = inputs["input_ids"]
        inputs["masked_lm_positions"] = tf.constant(positions[None])
        values, best = tf.math.top_k(tf.nn.softmax(self.generator(inputs)[0]), k=top)
        fills = tuple(
            tuple(zip(self.names(row), p.tolist(), strict=True))
            for row, p in zip(best.numpy(), values.numpy(), strict=True)
        )
        return Fills(text, self.names(ids), mask, fills)

    @functools.cached_property
    def detector(self) -> ReplacedTokenDetector:
        """The model of discriminator.keras."""
        return self._load("discriminator", ReplacedTokenDetector)

    @functools.cached_property
    def generator(self) -> MaskedLM:
        """The model of generator.keras."""
        return self._load("generator", MaskedLM)

    def pair(self, generator: keras.Model) -> Electra:
        """Joins a generator and the detector, with pretraining's final temperature."""
        flags, detector = self.flags, self.detector
        temperature = flags.get("final_temperature") or flags.get("temperature", 1.0)
        sampler = CategoricalSampler(temperature, flags.get("disallow_correct", False))
        return Electra(
            generator, detector.encoder, objective=detector.objective, sampler=sampler
        )

    def mask(
        self,
        inputs: dict[str, tf.Tensor],
        rows: tf.Tensor,
        *,
        seed: int,
        mask_rate: float | None = None,
    ) -> dict[str, tf.Tensor]:
        """Masks encoder inputs [B, S] as at the end of pretraining.

        The masks of a row are a function of ``seed`` and its number in ``rows``, int64
        [B]. ``rare_tokens`` (no counts) and ``spans`` (old runs) mask as ``tokens``.
        """
        vocabulary, flags = self.vocabulary, self.flags
        length = inputs["input_ids"].shape[1]
        if mask_rate is None:
            mask_rate = flags.get("final_mask_rate") or flags.get("mask_rate", 0.15)
        select = flags.get("mask_select", "tokens")
        masking = Masking(
            len(vocabulary),
            vocabulary.mask_id,
            pad_id=vocabulary.pad_id,
            never_masked=(vocabulary.cls_id, vocabulary.sep_id),
            max_seq_length=length,
            mask_rate=mask_rate,
            max_predictions_per_seq=max(1, round(length * mask_rate)),
            rule=flags.get("mask_rule", "electra"),
            select="tokens" if select in ("rare_tokens", "spans") else select,
            continuation=[token.startswith("##") for token in vocabulary.tokens],
        )
        keys = row_keys(rows, tf.zeros_like(rows), seed=seed)
        return inputs | masking(inputs["input_ids"], inputs["input_mask"], keys)

    def _load(self, name: str, kind: type[Model]) -> Model:
        model = self.home.load(name, kind, _HINT)
        self.home.check_vocabulary(name, model.encoder)
        return model

    def encode(
        self, text: str, *encoders: TextEncoder, masks: bool = False
    ) -> np.ndarray:
        """Returns the ids of [CLS] text [SEP], int32 [S].

        With ``masks``, [MASK] in the text is the mask token. Raises ValueError if the
        text is empty or too long for one of the ``encoders``.
        """
        parts = text.split(self.vocabulary.mask) if masks else [text]
        ids = [self.vocabulary.cls_id]
        for pieces in self.tokenizer.encode(parts):
            ids += [*pieces, self.vocabulary.mask_id]
        ids[-1] = self.vocabulary.sep_id
        length = len(ids)
        if length == 2:
            raise UserError(f"{_quoted(text)} has no tokens: give a text with words.")
        longest = min(encoder.embeddings.max_positions for encoder in encoders)
        if length > longest:
            raise UserError(
                f"{_quoted(text)} has {length} tokens with [CLS] and [SEP], the model "
                f"takes at most {longest}: split it."
            )
        trained = self.flags.get("max_seq_length")
        if trained and length > trained:
            self._log(
                f"warning: {_quoted(text)} has {length} tokens, pretraining had at "
                f"most {trained}: the positions after that are untrained."
            )
        return np.array(ids, np.int32)

    def inputs(self, ids: np.ndarray) -> dict[str, tf.Tensor]:
        """Returns encoder inputs for ids [S], as a batch of one row."""
        row = tf.constant(ids[None])
        return derive_inputs(row, tf.ones_like(row), self.vocabulary.sep_id)

    def names(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.vocabulary.tokens[index] for index in ids)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def main(config: InspectConfig, texts: Sequence[str], log: Log = cli.note) -> None:
    """Prints the predictions and writes the page; raises the errors of `Inspector`."""
    files.check_new(config.html, overwrite=config.overwrite)
    if config.html:
        # Fails before the predictions if the extra `analysis` is missing.
        from electra_tf.analysis import render
    inspector = Inspector(config.model, log)
    if not texts and sys.stdin.isatty():
        log("reading texts from standard input, one per line")
    answers: list[Verdicts | Fills] = []
    for text in texts or filter(str.strip, cli.lines_of(sys.stdin)):
        if config.fill:
            answer = inspector.fill(text, top=config.top)
        elif config.corrupt:
            options = {"mask_rate": config.mask_rate, "seed": config.seed}
            answer = inspector.corrupt(text, **options)
        else:
            answer = inspector.verdicts(text)
        answers.append(answer)
        if config.json:
            cli.say(json.dumps(record(answer), ensure_ascii=False))
        else:
            cli.say("\n" * (len(answers) > 1) + shown(answer))
    if not answers:
        raise UserError("no text: give it as an argument or on standard input.")
    if not (config.json or config.fill or config.corrupt):
        cli.say(f"\n{LEGEND}")
    if config.html:
        about = config.model + (f", seed {config.seed}" if config.corrupt else "")
        files.write_text(config.html, render.page((), about, answers))
        log(f"wrote {config.html}")


def shown(answer: Verdicts | Fills) -> str:
    """Formats an answer for a terminal."""
    if isinstance(answer, Fills):
        lines = [answer.text]
        for choices in answer.fills:
            widest = max(len(token) for token, _ in choices)
            for rank, (token, probability) in enumerate(choices):
                start = "" if rank else answer.mask
                lines.append(f"{start:>13}  {token:<{widest}}  {probability:7.2%}")
        return "\n".join(lines)
    width = shutil.get_terminal_size((100, 24)).columns - _INDENT
    if answer.original is None:
        numbers = [f"{'*' * (p > 0.5)}{100 * p:.0f}" for p in answer.probabilities]
        columns = zip(answer.tokens, numbers, strict=True)
        return samples.wrapped(("token", "P(replaced) %"), columns, width)
    return samples.verdict_table(
        answer.original,
        answer.tokens,
        probabilities=answer.probabilities,
        is_masked=answer.is_masked,
        width=width,
    )


def record(answer: Verdicts | Fills) -> dict[str, Any]:
    """Converts an answer to plain values for --json."""
    row: dict[str, Any] = {"text": answer.text, "tokens": answer.tokens}
    if isinstance(answer, Fills):
        row["fills"] = [
            [{"token": token, "probability": round(value, 6)} for token, value in each]
            for each in answer.fills
        ]
        return row
    row["replaced_probability"] = [round(x, 6) for x in answer.probabilities]
    if answer.original is not None:
        row["original_tokens"], row["is_masked"] = answer.original, answer.is_masked
        row["is_replaced"] = list(map(operator.ne, answer.original, answer.tokens))
    return row
