"""Asks generator and discriminator about texts.

Letters: S tokens of a text with [CLS] and [SEP], P masked positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf import model_folder
from electra_tf.data.masking import Masking, row_keys
from electra_tf.features import derive_inputs
from electra_tf.pretraining import (
    CategoricalSampler,
    Electra,
    GreedySampler,
    MaskedLM,
    ReplacedTokenDetector,
)

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """The discriminator's verdict on every token of a text, [CLS] and [SEP] included.

    Attributes:
        text: As given.
        tokens: S word pieces that the discriminator read.
        probabilities: S floats: how likely each token was replaced.
        original: S word pieces of the text, if the generator corrupted it; else None.
        is_masked: S booleans, positions that the generator filled; or None.
    """

    text: str
    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    original: tuple[str, ...] | None = None
    is_masked: tuple[bool, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Fills:
    """What the generator puts in place of every mask of a text.

    Attributes:
        text: As given, with P masks.
        tokens: S word pieces, masks among them.
        mask: The name of the mask token.
        fills: For each mask the most probable (token, probability), best first. Each
            mask is judged alone: the generator does not know its other choices.
    """

    text: str
    tokens: tuple[str, ...]
    mask: str
    fills: tuple[tuple[tuple[str, float], ...], ...]


class Inspector:
    """Generator, discriminator and tokenizer of one folder, loaded when needed.

    Args:
        folder: Of a finished pretraining run, or of an import.
        log: Is told what had to be assumed, and of doubtful inputs.
        **tokenization: Arguments of `model_folder.tokenizer` that win over the folder.

    Raises:
        ValueError: The folder is none of these, or damaged.
        OSError: It is not there.
    """

    def __init__(self, folder: str | Path, log: Log, **tokenization):
        self.folder = Path(folder)
        self._log = log
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"No model at {folder}: --model must be the folder of a finished "
                "pretraining run or of an imported checkpoint."
            )
        if (self.folder / "task.json").is_file():
            raise ValueError(
                f"{folder} holds a fine-tuning run: give the pretraining run it "
                "started from, or ask it with python -m electra_tf.predict."
            )
        described = model_folder.read_config(self.folder)
        self._flags = model_folder.flags(described)
        self._tokenizer = model_folder.tokenizer(
            self.folder, described, log, **tokenization
        )
        self.vocabulary = self._tokenizer.vocabulary
        self._tokens = np.array(self.vocabulary.tokens, dtype=object)

    def verdicts(self, text: str) -> Verdicts:
        """Asks the discriminator about a text as it is.

        Raises:
            ValueError: The text is empty or too long, or there is no discriminator.
            OSError: There is no discriminator.
        """
        ids = self._encode(text, self._detector.encoder)
        logits = self._detector(self._inputs(ids))
        return Verdicts(text, self._names(ids), _plain(tf.sigmoid(logits)))

    def corrupt(
        self,
        text: str,
        *,
        mask_rate: float | None = None,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Verdicts:
        """Lets the generator replace tokens, then asks the discriminator.

        Which tokens are masked and what is sampled is a function of text and seed.

        Args:
            text: To corrupt.
            mask_rate: Share of its tokens; default as in pretraining.
            temperature: Of the sampling; default as in pretraining, 0 takes the most
                probable token.
            seed: Of masks and samples.

        Raises:
            ValueError: The text is empty or too long, or a setting is not allowed.
            OSError: Generator or discriminator are missing.
        """
        rate = self._setting("mask_rate", mask_rate, 0.15)
        heat = self._setting("temperature", temperature, 1.0)
        sampler = CategoricalSampler(heat) if heat else GreedySampler()
        pair = Electra(
            self._generator,
            self._detector.encoder,
            objective=self._detector.objective,
            sampler=sampler,
        )
        ids = self._encode(text, self._detector.encoder, self._generator.encoder)
        inputs = self._inputs(ids)
        fingerprint = zlib.crc32(text.encode())
        keys = row_keys(
            tf.constant([fingerprint], tf.int64), tf.constant([0], tf.int64), seed=seed
        )
        masked = self._masking(len(ids), rate)(ids[None], inputs["input_mask"], keys)
        found = pair.examine(
            {**inputs, **masked}, seed=tf.constant([seed, fingerprint % 2**31])
        )
        return Verdicts(
            text,
            self._names(found["corrupted_ids"].numpy()[0]),
            _plain(found["replaced_probability"]),
            self._names(ids),
            tuple(found["is_masked"].numpy()[0].tolist()),
        )

    def fill(self, text: str, *, top: int = 5) -> Fills:
        """The generator's most probable tokens for every mask in a text.

        Args:
            text: With one mask or more, written as the vocabulary has it: [MASK].
            top: How many tokens.

        Raises:
            ValueError: The text has no mask, is too long, or `top` is not allowed.
            OSError: There is no generator.
        """
        size = len(self.vocabulary)
        if not 1 <= top <= size:
            raise ValueError(f"--top must be from 1 to {size}, got {top}.")
        mask = self.vocabulary.mask
        if mask not in text:
            raise ValueError(
                f"{_quoted(text)} has no {mask}: write {mask} where the generator "
                "shall fill something in."
            )
        ids = self._encode(text, self._generator.encoder, masks=True)
        positions = np.flatnonzero(ids == self.vocabulary.mask_id).astype(np.int32)
        inputs = self._inputs(ids)
        logits = self._generator(
            {
                **inputs,
                "masked_input_ids": inputs["input_ids"],
                "masked_lm_positions": tf.constant(positions[None]),
            }
        )
        found = tf.math.top_k(tf.nn.softmax(logits[0]), k=top)
        fills = tuple(
            tuple(zip(self._names(best), _plain(values[None]), strict=True))
            for values, best in zip(found.values, found.indices.numpy(), strict=True)
        )
        return Fills(text, self._names(ids), mask, fills)

    @functools.cached_property
    def _detector(self) -> ReplacedTokenDetector:
        return self._load("discriminator", ReplacedTokenDetector)

    @functools.cached_property
    def _generator(self) -> MaskedLM:
        return self._load("generator", MaskedLM)

    def _load(self, name, kind):
        path = self.folder / f"{name}.keras"
        if not path.is_file():
            raise FileNotFoundError(f"{self.folder} has no {path.name}{self._why()}")
        model = model_folder.load(path, kind, f"Give the {name}.keras of the run.")
        rows = model.encoder.embeddings.vocab_size
        if rows != len(self.vocabulary):
            raise ValueError(
                f"{path} has embeddings for {rows} tokens but the vocabulary beside it "
                f"has {len(self.vocabulary)}: they are of different runs "
                f"(python -m electra_tf.doctor --model={self.folder} tells more)."
            )
        return model

    def _why(self):
        has_models = any(self.folder.glob("*.keras"))
        if has_models and self._flags.get("objective") == "mlm":
            return ": it was pretrained with --objective=mlm. --fill works there."
        if has_models:
            return (
                ". Verdicts need discriminator.keras, --fill needs generator.keras, "
                "--corrupt needs both; an import has what its source had."
            )
        if (self.folder / "checkpoints").is_dir():
            return ": the run has not finished. Run the same command again to go on."
        return (
            ": it is no run of this library. Weights of another kind have to be "
            f"converted first (python -m electra_tf.convert --from={self.folder} "
            "--to=imported)."
        )

    def _setting(self, name, given, default):
        return self._flags.get(name, default) if given is None else given

    def _masking(self, length, rate):
        vocabulary = self.vocabulary
        return Masking(
            len(vocabulary),
            vocabulary.mask_id,
            pad_id=vocabulary.pad_id,
            never_masked=(vocabulary.cls_id, vocabulary.sep_id),
            max_seq_length=length,
            mask_rate=rate,
            max_predictions_per_seq=max(1, round(length * rate)),
            rule=self._flags.get("mask_rule", "electra"),
        )

    def _encode(self, text: str, *encoders, masks: bool = False) -> np.ndarray:
        """Ids of a text between [CLS] and [SEP], int32 [S], no longer than a table."""
        parts = text.split(self.vocabulary.mask) if masks else [text]
        pieces = self._tokenizer.encode(parts)
        ids = [self.vocabulary.cls_id, *pieces[0]]
        for piece in pieces[1:]:
            ids += [self.vocabulary.mask_id, *piece]
        ids.append(self.vocabulary.sep_id)
        if len(ids) == 2:
            raise ValueError(f"{_quoted(text)} has no tokens: give a text with words.")
        self._check_length(text, len(ids), encoders)
        return np.array(ids, np.int32)

    def _check_length(self, text, length, encoders):
        longest = min(encoder.embeddings.max_positions for encoder in encoders)
        if length > longest:
            raise ValueError(
                f"{_quoted(text)} has {length} tokens with [CLS] and [SEP], the model "
                f"takes at most {longest}: give it in parts."
            )
        trained = self._flags.get("max_seq_length")
        if trained and length > trained:
            self._log(
                f"warning: {_quoted(text)} has {length} tokens, pretraining had at "
                f"most {trained}: the positions after that are untrained."
            )

    def _inputs(self, ids):
        row = tf.constant(ids[None])
        return derive_inputs(row, tf.ones_like(row), self.vocabulary.sep_id)

    def _names(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._tokens[np.asarray(ids)].tolist())


def _plain(row) -> tuple[float, ...]:
    return tuple(float(value) for value in np.ravel(row))


def _quoted(text):
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
