r"""Answers from a fine-tuned model, without a server.

  python -m electra_tf.predict --model=runs/cola "The book was written by John."
  python -m electra_tf.predict --model=runs/rte "It rained." --text_pair="It was wet."
  python -m electra_tf.predict --model=runs/cola < lines.txt
  python -m electra_tf.predict --model=runs/rte --jsonl < pairs.jsonl
  python -m electra_tf.predict --model=runs/squad2 --context="It rained." "Why?"

One JSON object per text on standard output. A line of --jsonl input is an object with
"text" (and "text_pair" for pair tasks; "question" and "context" for question
answering); what else it holds is copied to the output, except for fields that are
called like an answer, such as "label": there the answer takes their place.
--model is the folder of a fine-tuning run, or a SavedModel.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class Predictor:
    """Runs the string signature of an exported model.

    Args:
        path: Folder of a fine-tuning run, or a SavedModel.

    Attributes:
        text_names: What the model wants: "text", and "text_pair" for pair tasks;
            "question" and "context" for question answering.

    Raises:
        ValueError: It is not a model with a string signature.
        OSError: There is none.
    """

    def __init__(self, path: str):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers the tokenizer's operations

        folder = _saved_model(Path(path))
        try:
            # Kept, because the signature does not keep its variables alive.
            self._loaded = tf.saved_model.load(str(folder))
            self._serve = self._loaded.signatures["serving_default"]
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(f"{folder} cannot be loaded: {error}") from error
        specs = self._serve.structured_input_signature[1]
        wrong = [n for n, spec in specs.items() if spec.dtype != tf.string]
        if wrong:
            raise ValueError(
                f"{folder} takes {', '.join(wrong)} and not texts: give a model that "
                "run_finetuning.py exported."
            )
        self.text_names = tuple(sorted(specs))
        self._constant = tf.constant
        self._failure = tf.errors.OpError

    def __call__(self, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        """Answers of a batch, as plain values.

        Raises:
            ValueError: A row lacks a text, or the model cannot answer.
        """
        texts = {
            name: self._constant([self._text(row, name) for row in rows])
            for name in self.text_names
        }
        try:
            found = self._serve(**texts)
        except self._failure as error:
            said = error.message.partition("\n")[0]
            raise ValueError(
                f"The model failed on a batch of {len(rows)} texts: {said}"
            ) from error
        found = {name: tensor.numpy().tolist() for name, tensor in found.items()}
        return [
            _readable({name: values[index] for name, values in sorted(found.items())})
            for index in range(len(rows))
        ]

    def _text(self, row, name):
        if not isinstance(row.get(name), str):
            raise ValueError(
                f"The model wants {' and '.join(self.text_names)}, but {name} is "
                f"missing in {json.dumps(row)[:200]}."
            )
        return row[name].encode("utf-8", "ignore")


def _saved_model(path: Path) -> Path:
    for folder in (path, path / "saved_model"):
        if (folder / "saved_model.pb").is_file():
            return folder
    if (path / "task.json").is_file():
        raise ValueError(
            f"{path} holds a fine-tuning run without a saved_model: it did not finish, "
            "or ran with --noexport_saved_model."
        )
    if (path / "encoder.keras").is_file():
        raise ValueError(
            f"{path} holds a pretraining run: fine-tune it first "
            f"(python run_finetuning.py --encoder={path})."
        )
    raise FileNotFoundError(
        f"No model at {path}: --model must be the --output_dir of run_finetuning.py, "
        "or a SavedModel."
    )


def _readable(row: dict[str, Any]) -> dict[str, Any]:
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
        chosen = plain.pop("predicted")
        given = [label for label, yes in zip(labels, chosen, strict=True) if yes]
        plain = {"labels": given, **plain}
    return plain


def _plain(value):
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _rows(options, stdin: Iterable[str]) -> Iterator[dict[str, Any]]:
    if options.texts:
        for text in options.texts:
            yield _row(text, options)
        return
    for number, line in enumerate(stdin, 1):
        line = line.removeprefix("\ufeff") if number == 1 else line
        if not line.strip():
            continue
        if not options.jsonl:
            yield _row(line.rstrip("\r\n"), options)
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"standard input, line {number}: {error}.") from error
        if not isinstance(row, dict):
            raise ValueError(
                f"standard input, line {number}: not a JSON object such as "
                '{"text": "..."}.'
            )
        yield row


def _row(text, options):
    if options.context is not None:
        return {"question": text, "context": options.context}
    if options.text_pair is not None:
        return {"text": text, "text_pair": options.text_pair}
    return {"text": text}


def run(options: argparse.Namespace) -> None:
    """Predicts everything the options name, in batches.

    Raises:
        ValueError: The input or the model is not what it should be.
        OSError: There is no model.
    """
    if options.batch_size < 1:
        raise ValueError(f"--batch_size must be at least 1, got {options.batch_size}.")
    predictor = Predictor(options.model)
    rows = _rows(options, sys.stdin)
    while batch := list(itertools.islice(rows, options.batch_size)):
        for row, answer in zip(batch, predictor(batch), strict=True):
            # "label" may be both; the answer wins.
            line = json.dumps({**row, **answer}, ensure_ascii=False)
            # JSON can hold halves of surrogate pairs, UTF-8 cannot.
            sys.stdout.write(re.sub("[\ud800-\udfff]", "\ufffd", line) + "\n")
        sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m electra_tf.predict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("texts", nargs="*", help="texts; default: standard input")
    parser.add_argument("--model", required=True, help="fine-tuning run or SavedModel")
    parser.add_argument("--text_pair", help="second text of every pair")
    parser.add_argument("--context", help="paragraph that the texts are questions on")
    parser.add_argument(
        "--jsonl", action="store_true", help="standard input is JSON Lines"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="texts at a time")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except UnicodeDecodeError as error:
        sys.stderr.write(
            f"error: standard input is not UTF-8 at byte {error.start}. Convert it, "
            "for example with: iconv -f latin1 -t utf-8\n"
        )
        return 1
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
