"""Predictions of generator and discriminator for single texts.

Letters: S tokens of a text with [CLS] and [SEP], P masked positions, V vocabulary.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf.cli import Log
from electra_tf.data.masking import Masking, row_keys
from electra_tf.errors import UserError
from electra_tf.features import derive_inputs
from electra_tf.folders.models import Model
from electra_tf.folders.pretraining import CHECKPOINTS, PretrainingFolder, named
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import (
    CategoricalSampler,
    Electra,
    MaskedLM,
    ReplacedTokenDetector,
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
    and warnings about inputs. Raises ValueError if the folder is damaged or a text or
    setting is invalid, OSError if the folder or a required model does not exist.
    """

    def __init__(self, folder: str | Path, log: Log):
        self.folder = named(folder)
        self._log = log
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"No model at {folder}: --model must be the folder of a finished "
                "pretraining run or of an imported checkpoint."
            )
        self.home = PretrainingFolder(self.folder)
        self.home.reject_fine_tuned(
            "give the pretraining run it started from, or use python -m electra_tf "
            "predict."
        )
        self.flags = self.home.flags
        self.tokenizer = self.home.tokenizer(log)
        self.vocabulary = self.tokenizer.vocabulary
        self._tokens = np.array(self.vocabulary.tokens, dtype=object)

    def verdicts(self, text: str) -> Verdicts:
        """Predicts replaced tokens in a text."""
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
        generator, detector = self.generator, self.detector
        parts = {"objective": detector.objective, "sampler": self.sampler}
        pair = Electra(generator, detector.encoder, **parts)
        ids = self.encode(text, detector.encoder, generator.encoder)
        inputs = self.inputs(ids)
        fingerprint = zlib.crc32(text.encode())
        row = tf.constant([fingerprint], tf.int64)
        keys = row_keys(row, tf.zeros_like(row), seed=seed)
        masking = self.masking(len(ids), mask_rate)
        inputs |= masking(ids[None], inputs["input_mask"], keys)
        key = tf.constant([seed, fingerprint % 2**31])
        answers = pair.examine(inputs, seed=key)
        return Verdicts(
            text,
            self.names(answers["corrupted_ids"].numpy()[0]),
            tuple(np.ravel(answers["replaced_probability"]).tolist()),
            self.names(ids),
            tuple(np.ravel(answers["is_masked"]).tolist()),
        )

    def fill(self, text: str, *, top: int = 5) -> Fills:
        """Returns the generator's ``top`` tokens for every [MASK] in a text."""
        size, mask = len(self.vocabulary), self.vocabulary.mask
        if not 1 <= top <= size:
            raise UserError(f"--top must be from 1 to {size}, got {top}.")
        if mask not in text:
            raise UserError(
                f"{_quoted(text)} has no {mask}: write {mask} for a token to predict."
            )
        ids = self.encode(text, self.generator.encoder, masks=True)
        positions = np.flatnonzero(ids == self.vocabulary.mask_id).astype(np.int32)
        inputs = self.inputs(ids)
        inputs["masked_input_ids"] = inputs["input_ids"]
        inputs["masked_lm_positions"] = tf.constant(positions[None])
        logits = self.generator(inputs)
        values, best = tf.math.top_k(tf.nn.softmax(logits[0]), k=top)
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
    def detect(self) -> Callable[[Mapping[str, tf.Tensor]], tf.Tensor]:
        """The compiled detector: encoder inputs -> logits."""
        detector = self.detector
        return tf.function(lambda inputs: detector(inputs), reduce_retracing=True)

    @functools.cached_property
    def generator(self) -> MaskedLM:
        """The model of generator.keras."""
        return self._load("generator", MaskedLM)

    @property
    def sampler(self) -> CategoricalSampler:
        """The sampler at the end of pretraining."""
        flags = self.flags
        temperature = flags.get("final_temperature") or flags.get("temperature", 1.0)
        return CategoricalSampler(temperature, flags.get("disallow_correct", False))

    def masking(self, length: int, mask_rate: float | None = None) -> Masking:
        """Returns the masking at the end of pretraining for rows of this length.

        ``rare_tokens``, for which the folder has no token counts, and ``spans`` of
        older runs mask like ``tokens``.
        """
        vocabulary, flags = self.vocabulary, self.flags
        if mask_rate is None:
            mask_rate = flags.get("final_mask_rate") or flags.get("mask_rate", 0.15)
        select = flags.get("mask_select", "tokens")
        return Masking(
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

    def _load(self, name: str, kind: type[Model]) -> Model:
        path = self.home.model_path(name)
        if not path.is_file():
            raise FileNotFoundError(f"{self.folder} has no {path.name}: {self._hint()}")
        model = self.home.load(name, kind, f"A {kind.__name__} is required.")
        self.home.check_vocabulary(name, model.encoder)
        return model

    def _hint(self) -> str:
        """Returns the advice for a folder without the required model."""
        is_finished = any(self.folder.glob("*.keras"))
        if is_finished and self.flags.get("objective") == "mlm":
            return (
                "--objective=mlm trains only a generator. Use inspect --fill or "
                "analyze --only=representations."
            )
        if not is_finished and (self.folder / CHECKPOINTS).is_dir():
            return "the run has not finished. The same command resumes it."
        return (
            "predictions need discriminator.keras, --fill needs generator.keras, "
            "--corrupt needs both. Convert other checkpoints first "
            f"(python -m electra_tf convert --from={self.folder} --to=imported)."
        )

    def encode(
        self, text: str, *encoders: TextEncoder, masks: bool = False
    ) -> np.ndarray:
        """Returns the ids of [CLS] text [SEP], int32 [S], for all encoders.

        With ``masks``, [MASK] in the text is the mask token.
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
        return tuple(self._tokens[np.asarray(ids)].tolist())


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
