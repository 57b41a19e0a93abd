"""``load``: whatever was pretrained, imported, fine-tuned or exported, as an object.

All objects have ``predict``, ``evaluate`` and ``encode``; a method that a model cannot
answer says which model can.

Letters: N texts, D hidden size.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.api.presets import encoder_and_tokenizer, folder_of
from electra_tf.api.text_models import TextModel, load_text_model
from electra_tf.api.texts import SentenceVectors, columns_of
from electra_tf.errors import UserError
from electra_tf.folders.finetuning import MODEL, TASK
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import ReplacedTokenDetector
from electra_tf.serving.predictor import Predictor
from electra_tf.tasks.encoding import encode_tensors


def load(source: str | os.PathLike) -> TextModel | PretrainedModel | ExportedModel:
    """Loads a model of any kind.

    Args:
        source: the folder of a fine-tuning run, of a pretraining run or of an import;
            a ``.keras`` file of a ``TextClassifier``, ``TokenClassifier`` or
            ``QuestionAnswering``; a SavedModel; a folder of another library or a name
            on its hub, which ``electra_tf.convert`` reads; or "mini", which is shipped.

    Returns:
        One of the three Keras models, a ``PretrainedModel`` or an ``ExportedModel``.

    Raises:
        ValueError: it is damaged, or none of these.
        OSError: it is not there.

    Examples:
        >>> mini = et.load("mini")
        >>> mini.encode(["one text", "another one"]).shape
        (2, 256)
        >>> answer = mini.predict(["the king of france was in the ."])[0]
        >>> answer["tokens"][:4]
        ['[CLS]', 'the', 'king', 'of']
        >>> len(answer["replaced"]) == len(answer["tokens"])
        True
    """
    path = Path(source)
    has_graph = (path / "saved_model.pb").is_file()
    is_run = (path / TASK).is_file() and not (path / MODEL).is_file()
    if has_graph or (is_run and (path / "saved_model").is_dir()):
        return ExportedModel(path)
    with folder_of(source) as folder:
        return load_text_model(folder) or PretrainedModel(folder)


class PretrainedModel:
    """An encoder, with the discriminator if there is one; see ``load``.

    Attributes:
        encoder: a ``TextEncoder`` without dropout.
        tokenizer: its ``WordPiece``.
        max_seq_length: most tokens that are read of a text.

    Examples:
        >>> mini = et.load("mini")  # or the folder of a run or of an import
        >>> mini.encoder.num_layers, mini.max_seq_length
        (4, 128)
        >>> mini.encode([("one text", "its pair")], layer=2).shape
        (1, 256)
    """

    encoder: TextEncoder

    def __init__(self, folder: Path):
        self.encoder, self.tokenizer, trained = encoder_and_tokenizer(
            folder, dropout=0.0, attention_dropout=0.0
        )
        most = self.encoder.embeddings.max_positions
        self.max_seq_length = min(most, trained or most)
        self._vectors = SentenceVectors(
            self.encoder, self.tokenizer, self.max_seq_length
        )
        home = PretrainingFolder(folder if folder.is_dir() else folder.parent)
        self._detector, self._reason = None, f"{folder} holds no discriminator"
        if home.has_model("discriminator"):
            try:
                self._detector = home.load("discriminator", ReplacedTokenDetector)
            except ValueError as error:
                self._reason = str(error)

    def encode(
        self, texts: Any, pooling: str = "mean", layer: int = -1, batch_size: int = 64
    ) -> np.ndarray:
        """Vectors of texts, float32 [N, D]; see ``SentenceVectors``."""
        return self._vectors(texts, pooling, layer, batch_size)

    def predict(self, texts: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """How likely each token was replaced by a generator, a dictionary per text.

        ``tokens`` are the word pieces, [CLS] and [SEP] included, ``replaced`` as many
        probabilities. ValueError: there is no discriminator that says it.
        """
        if self._detector is None:
            raise UserError(
                f"{self._reason}: it can encode, and nothing more before it is "
                "fine-tuned (TextClassifier.from_preset)."
            )
        (column,) = columns_of(texts, ("text",)).values()
        found = []
        for start in range(0, len(column), batch_size):
            batch = column[start : start + batch_size]
            # JSON can hold halves of surrogate pairs, UTF-8 cannot.
            texts = [text.encode("utf-8", "ignore") for text in batch]
            found += self._verdicts(tf.constant(texts))
        return found

    def _verdicts(self, texts: tf.Tensor) -> list[dict[str, Any]]:
        inputs = encode_tensors(self.tokenizer, [texts], self.max_seq_length)
        probabilities = self._probabilities(inputs).numpy()
        names = self.tokenizer.vocabulary.tokens
        rows = zip(
            inputs["input_ids"].numpy(),
            inputs["input_mask"].numpy().sum(axis=1),
            probabilities,
            strict=True,
        )
        return [
            {
                "tokens": [names[token] for token in ids[:size]],
                "replaced": values[:size].tolist(),
            }
            for ids, size, values in rows
        ]

    @functools.cached_property
    def _probabilities(self) -> tf.types.experimental.PolymorphicFunction:
        def ask(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
            return tf.sigmoid(self._detector(inputs))

        return tf.function(ask, reduce_retracing=True, autograph=False)

    def evaluate(self, table: str | os.PathLike, **kwargs: Any) -> dict[str, float]:
        """Raises a ValueError: before it is fine-tuned, the model has no answers."""
        del kwargs
        raise UserError(
            f"A pretrained model has no answers to compare with {table}: fine-tune it "
            "first (TextClassifier.from_preset, or run_finetuning.py; --frozen there "
            "scores it as it is)."
        )


class ExportedModel:
    """A SavedModel, which answers and has nothing else inside; see ``load``.

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> model.export("served")
        >>> exported = et.load("served")
        >>> sorted(exported.predict(["Lovely."])[0])
        ['label', 'probabilities', 'probability']
    """

    def __init__(self, folder: str | os.PathLike):
        self._folder = folder
        self._predictor = Predictor(folder)
        self.text_names = self._predictor.text_names

    def predict(self, texts: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """Answers as ``TextModel.predict`` gives them."""
        columns = columns_of(texts, self.text_names)
        rows = [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
        found: list[dict[str, Any]] = []
        for start in range(0, len(rows), batch_size):
            found += self._predictor(rows[start : start + batch_size])
        return found

    def evaluate(self, table: str | os.PathLike, **kwargs: Any) -> dict[str, float]:
        """Raises a ValueError: a SavedModel does not know its task."""
        raise UserError(self._refusal("evaluate"))

    def encode(self, texts: Any, **kwargs: Any) -> np.ndarray:
        """Raises a ValueError: a SavedModel gives answers, and no vectors."""
        raise UserError(self._refusal("encode"))

    def _refusal(self, method: str) -> str:
        return (
            f"{self._folder} is a SavedModel, which can only predict: to {method}, "
            "load the folder of the run that wrote it, with its model.keras."
        )
