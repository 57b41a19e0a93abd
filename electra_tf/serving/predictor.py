"""Runs fine-tuned models without a server; the commands `predict` and `evaluate`."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from electra_tf import cli, files
from electra_tf.config.commands import PredictConfig
from electra_tf.data.tokenizer import string_tensor
from electra_tf.errors import UserError, explained

if TYPE_CHECKING:
    from electra_tf.serving.export import ServingModule


# One dictionary per text.
Answers = list[dict[str, Any]]
# Input order for SavedModels without `text_order`.
_ORDER = ("text", "text_pair", "question", "context")


class Predictor:
    """Runs the string signature of a model.

    Args:
        model: folder of a fine-tuning run, a SavedModel or a ``ServingModule``.

    Attributes:
        text_names: input names in the order of the task: "text", and "text_pair" for
            pair tasks; "question" and "context" for question answering.

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> model.export("mood")
        >>> predictor = et.serving.Predictor("mood")
        >>> predictor.text_names
        ('text',)
        >>> len(predictor([{"text": "Lovely."}, {"text": "A waste of time."}]))
        2
    """

    def __init__(self, model: str | os.PathLike | ServingModule):
        if isinstance(model, str | os.PathLike):
            # The signature does not keep its variables alive.
            self._loaded, self._serve = _loaded(Path(model))
            names = self._serve.structured_input_signature[1]
            self.text_names = _in_order(self._loaded, names)
        else:
            self._serve = model.text_signature()
            self.text_names = model.text_names

    def __call__(self, rows: Sequence[dict[str, str]]) -> Answers:
        """Returns the predictions of a batch as plain Python values."""
        for name in self.text_names:
            for row in rows:
                if not isinstance(row.get(name), str):
                    raise UserError(
                        f"The model needs {' and '.join(self.text_names)}, but {name} "
                        f"is missing or not a string in {json.dumps(row)[:200]}."
                    )
        return self.answers({n: [row[n] for row in rows] for n in self.text_names})

    def answers(self, columns: Mapping[str, Sequence[str]]) -> Answers:
        """Returns the predictions of a batch of columns of texts."""
        texts = {name: string_tensor(columns[name]) for name in self.text_names}
        try:
            outputs = self._serve(**texts)
        except tf.errors.OpError as error:
            message = error.message.partition("\n")[0]
            size = len(columns[self.text_names[0]])
            raise UserError(
                f"The model failed on a batch of {size} texts: {message}"
            ) from error
        names = sorted(outputs)
        rows = zip(*(outputs[name].numpy().tolist() for name in names), strict=True)
        return [_readable(dict(zip(names, row, strict=True))) for row in rows]


def _in_order(loaded: Any, names: Iterable[str]) -> tuple[str, ...]:
    if hasattr(loaded, "text_order"):
        return tuple(name.decode() for name in loaded.text_order().numpy())
    return tuple(sorted(names, key=lambda n: _ORDER.index(n) if n in _ORDER else 9))


def _loaded(path: Path) -> tuple[Any, tf.types.experimental.ConcreteFunction]:
    folders = (path, path / "saved_model")
    folder = next((x for x in folders if (x / "saved_model.pb").is_file()), None)
    if folder is None:
        raise FileNotFoundError(
            f"No SavedModel at {path}: give a SavedModel, or a finished fine-tuning "
            "run without --noexport_saved_model."
        )
    with explained(f"{folder} cannot be loaded", Exception):
        loaded = tf.saved_model.load(str(folder))
        serve = loaded.signatures["serving_default"]
    specs = serve.structured_input_signature[1]
    if any(spec.dtype != tf.string for spec in specs.values()):
        raise UserError(
            f"{folder} takes {', '.join(specs)} and not texts: give the model that a "
            "fine-tuning run exported."
        )
    return loaded, serve


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Converts the parallel lists of one prediction to dictionaries by label."""
    plain = {name: _plain(value) for name, value in row.items()}
    if "num_words" in plain:
        # One value per word, padded to the longest text of the batch.
        count = plain.pop("num_words")
        return {name: values[:count] for name, values in plain.items()}
    labels = plain.pop("labels", None)
    if labels is None:
        return plain
    plain["probabilities"] = dict(zip(labels, plain["probabilities"], strict=True))
    if "predicted" in plain:
        given = itertools.compress(labels, plain.pop("predicted"))
        plain = {"labels": list(given), **plain}
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def main(config: PredictConfig, texts: Sequence[str]) -> None:
    """Predicts all texts of the command line in batches."""
    seconds = {"text_pair": config.text_pair, "context": config.context}
    given = {name: text for name, text in seconds.items() if text is not None}
    if config.input and (texts or given):
        raise UserError(
            "--input has all texts: leave --text_pair, --context and other texts out."
        )
    predictor = Predictor(config.model)
    if unread := [name for name in given if name not in predictor.text_names]:
        names = " and ".join(predictor.text_names)
        raise UserError(f"The model reads {names}: leave --{unread[0]} out.")
    if config.input:
        # Imports tasks, which are not needed otherwise.
        from electra_tf.serving.table import predict_table

        predict_table(config, predictor)
        return
    first = "question" if "context" in given else "text"
    lines = iter(texts or cli.lines_of(sys.stdin))
    while chosen := list(itertools.islice(lines, config.batch_size)):
        rows = [{first: text, **given} for text in chosen]
        for row, answer in zip(rows, predictor(rows), strict=True):
            line = files.to_json({**row, **answer}, ensure_ascii=False)
            # Not every stream can encode lone surrogates.
            line = re.sub("[\ud800-\udfff]", "\ufffd", line)
            sys.stdout.write(f"{cli.visible(line)}\n")
        sys.stdout.flush()
