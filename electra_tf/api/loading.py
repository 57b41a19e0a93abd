"""``load``: pretrained, imported, fine-tuned and exported models."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from electra_tf import cli, files
from electra_tf.api import presets
from electra_tf.api.base import COLUMNS, TextModel
from electra_tf.api.inputs import checked_batch_size, columns_of, sliced
from electra_tf.api.texts import SentenceEncoder, Traced
from electra_tf.config import fields
from electra_tf.config.commands import EvaluateConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError, explained
from electra_tf.folders import models
from electra_tf.folders.finetuning import MODEL, FinetuningFolder
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.folders.settings import CONFIG, TASK
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import ReplacedTokenDetector
from electra_tf.serving.predictor import Answers, Predictor
from electra_tf.tasks import glue
from electra_tf.tasks.batching import Outputs

# Advice about `.keras` files that cannot be loaded.
_HINT = (
    "For the model of a run, give the run's folder, which has the vocabulary. "
    "Register own losses and metrics (keras.saving), or leave them out with "
    "keras.saving.load_model(path, compile=False)."
)


def load(source: str | os.PathLike) -> TextModel | PretrainedModel | ExportedModel:
    """Loads a model of any kind.

    ``source`` is the folder of a fine-tuning run, pretraining run or import, or of
    ``save_to_preset``; a ``.keras`` file of a ``TextClassifier``, ``TokenClassifier``
    or ``QuestionAnswering``; a SavedModel; a folder or hub name that ``electra-tf
    convert`` reads; or "mini", which is shipped.

    Raises ValueError for a damaged model or unknown format, OSError if it is missing.

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
    if (path / "saved_model.pb").is_file():
        return ExportedModel(path)
    has_class = (path / MODEL).is_file() and _class_of(
        files.read_json(path / TASK, {}).get("kind")
    )
    if (path / "saved_model").is_dir() and not has_class:
        return ExportedModel(path)
    if presets.task_class(source):
        return presets.load(path)
    with presets.folder_of(source) as place:
        if place.suffix == models.KERAS and place.name != "encoder.keras":
            return models.load(place, TextModel, _HINT, compile=True)
        if (place / TASK).is_file():
            return fine_tuned(place)
        return _pretrained(place)


def evaluate(config: EvaluateConfig) -> None:
    """Prints the scores of a fine-tuned model on labeled data."""
    model = load(config.model)
    if not isinstance(model, TextModel):
        raise UserError(
            f"{config.model} holds no fine-tuned Keras model: give the folder of a run."
        )
    columns = {name: getattr(config, name) for name in COLUMNS}
    scores = model.evaluate(config.input, batch_size=config.batch_size, **columns)
    for name, value in scores.items():
        cli.say(f"{name} {value:.2f}")


def _class_of(kind: Any) -> type[TextModel] | None:
    classes = TextModel.__subclasses__()
    return next((each for each in classes if kind in each.kinds), None)


def fine_tuned(folder: Path) -> TextModel:
    """Loads and compiles the model of a fine-tuning run."""
    if not (folder / MODEL).is_file():
        raise UserError(
            f"{folder} has no {MODEL}: its run did not finish or was --frozen."
        )
    home = FinetuningFolder(folder)
    about, network = home.about(), home.load()
    model_class = _class_of(about["kind"])
    if model_class is None:
        raise UserError(
            f"{folder} holds a task of the kind {about['kind']!r}, which has no Keras "
            f"class: load {folder / 'saved_model'}."
        )
    hints = fields.hints(FinetuneConfig)
    shape = {"config": (None, {name: (None, hints[name]) for name in COLUMNS})}
    flags = files.read_json(folder / CONFIG, {}, shape=shape).get("config") or {}
    # Flags of a GLUE task do not name its columns.
    names = () if about["task"] in glue.ROWS else COLUMNS
    columns = {name: flags[name] for name in names if flags.get(name)}
    tokenizer, task = home.tokenizer(cli.note), {**about, "columns": columns}
    parts = network.encoder, network.head, task, tokenizer, about["max_seq_length"]
    with explained(str(folder / TASK), UserError):
        return model_class.of(*parts)


def _pretrained(folder: Path) -> PretrainedModel:
    encoder, tokenizer, length = presets.encoder_and_tokenizer(
        folder, dropout=0.0, attention_dropout=0.0
    )
    home = PretrainingFolder(folder if folder.is_dir() else folder.parent)
    detector = None
    if home.has_model("discriminator"):
        try:
            detector = home.load("discriminator", ReplacedTokenDetector)
        except UserError as error:
            # Electric's discriminator is of another class.
            cli.note(f"the model can only encode texts: {error}")
    return PretrainedModel(encoder, tokenizer, length, detector)


@dataclasses.dataclass(eq=False, repr=False)
class PretrainedModel(SentenceEncoder):
    """An encoder, with its discriminator if the source has one; see ``load``.

    Attributes:
        encoder: a ``TextEncoder`` without dropout.
        tokenizer: its ``WordPiece``.
        max_seq_length: maximum number of tokens of a text.

    Examples:
        >>> mini = et.load("mini")
        >>> mini.encode([("one text", "its pair")], layer=2).shape
        (1, 256)
    """

    encoder: TextEncoder
    tokenizer: WordPiece
    max_seq_length: int
    _detector: ReplacedTokenDetector | None = None
    _traces: dict[tuple, Any] = dataclasses.field(default_factory=dict, init=False)

    def predict(self, texts: Any, batch_size: int | None = None) -> Answers:
        """Returns the probability that each token was replaced, for each text.

        ``tokens`` include [CLS] and [SEP]; ``replaced`` has one probability per token.
        Raises ValueError without a replaced-token discriminator.
        """
        if self._detector is None:
            raise UserError(
                "The model has no replaced-token discriminator: it can only encode "
                "texts until it is fine-tuned (TextClassifier.from_preset)."
            )
        columns = self._columns(texts)
        if not columns["text"]:
            return []
        rows = self._packed(columns)
        detect = self._traced(
            lambda: Traced(lambda inputs: tf.sigmoid(self._detector(inputs)))
        )
        probabilities = Outputs(detect, checked_batch_size(batch_size))(rows)
        answers, names = [], self.tokenizer.vocabulary.tokens
        for ids, values in zip(rows.inputs["input_ids"], probabilities, strict=True):
            tokens = [names[token] for token in ids]
            answers.append({"tokens": tokens, "replaced": values[: len(ids)].tolist()})
        return answers


class ExportedModel(Predictor):
    """A SavedModel with ``predict`` only; see ``load``.

    Examples:
        >>> et.TextClassifier.from_preset("mini", ["bad", "good"]).export("served")
        >>> sorted(et.load("served").predict(["Lovely."])[0])
        ['label', 'probabilities', 'probability']
    """

    def predict(self, texts: Any, batch_size: int | None = None) -> Answers:
        """Returns the predictions of ``TextModel.predict``."""
        # Output of taggers, whose texts may be lists of words.
        words = "num_words" in self._serve.structured_outputs
        batches = sliced(columns_of(texts, self.text_names, words=words), batch_size)
        return [answer for batch in batches for answer in self.answers(batch)]
