"""Fine-tuned models for production: SavedModel with the tokenizer inside, LiteRT, ONNX.

Letters: B batch, S sequence.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.features import ENCODER_INPUTS, tensor_specs


class ServingModule(tf.Module):
    """A task model, its tokenizer and its answers as one graph.

    Three signatures, all for any batch size and length:

    * `serving_default`: `text` (and `text_pair` for pair tasks), string [B].
    * `ids`: input_ids, input_mask, segment_ids, int32 [B, S].
    * `tf_example`: `examples`, string [B], serialized `tf.train.Example` with the
      features of `serving_default`; a missing feature is an empty text.

    Args:
        model: The fine-tuned `keras.Model`.
        task: Its `Task`: `serving_inputs` and `serving_outputs` are what is exported.
        tokenizer: The `WordPiece` it was trained with.
        max_seq_length: Most tokens of a row, as in training.
    """

    def __init__(self, model: Any, task: Any, tokenizer: Any, max_seq_length: int):
        super().__init__(name="serving")
        self._model = model
        # Keras variables are no tf.Variables; these make the SavedModel hold them.
        self._variables = [variable.value for variable in model.variables]
        self._task = task
        self._tokenizer = tokenizer
        self._max_seq_length = max_seq_length

    def serve(self, **texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers to texts: string [B] each, called as the task's `text_names`."""
        inputs = self._task.serving_inputs(
            self._tokenizer, self._max_seq_length, **texts
        )
        outputs = self._model(inputs, training=False)
        return self._task.serving_outputs(outputs, inputs)

    def serve_ids(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers to token ids: int32 [B, S] each."""
        outputs = self._model(inputs, training=False)
        return self._task.serving_id_outputs(outputs, inputs)

    def serve_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers to serialized `tf.train.Example`s, string [B]."""
        features = {
            name: tf.io.FixedLenFeature([], tf.string, "")
            for name in self._task.text_names
        }
        return self.serve(**tf.io.parse_example(examples, features))

    def signatures(self) -> dict[str, Any]:
        """The signatures, traced, under their names in the SavedModel."""
        strings = {
            name: tf.TensorSpec([None], tf.string, name)
            for name in self._task.text_names
        }
        ids = tensor_specs(ENCODER_INPUTS, {})
        examples = tf.TensorSpec([None], tf.string, "examples")
        return {
            "serving_default": tf.function(self.serve).get_concrete_function(**strings),
            "ids": tf.function(self.serve_ids).get_concrete_function(**ids),
            "tf_example": tf.function(self.serve_examples).get_concrete_function(
                examples
            ),
        }


def export_saved_model(
    model: Any, task: Any, tokenizer: Any, path: str, max_seq_length: int | None = None
) -> None:
    """Writes a SavedModel that takes raw strings.

    Loading it needs tensorflow and `import tensorflow_text`, nothing of this library.

    Args:
        model: The fine-tuned `keras.Model`; its dtype policy is exported too, so
            float32 is the portable choice.
        task: Its `Task`.
        tokenizer: The `WordPiece` it was trained with.
        path: Folder to write; replaced if it is there.
        max_seq_length: Most tokens of a row; default: of the task.
    """
    module = ServingModule(
        model, task, tokenizer, max_seq_length or task.max_seq_length
    )
    tf.saved_model.save(module, path, signatures=module.signatures())


class NumbersModule(tf.Module):
    """What LiteRT and ONNX files hold: the ids signature without its strings.

    Beside the numbers of the signature it returns what the model does, under its name
    or as `logits`.

    Args:
        model: The fine-tuned `keras.Model`.
        task: Its `Task`.
    """

    def __init__(self, model: Any, task: Any):
        super().__init__(name="numbers")
        # From a function alone the converter would leave the variables uninitialized.
        self._variables = [variable.value for variable in model.variables]
        self._model = model
        self._task = task

    def answer(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Numbers from token ids: int32 [B, S] each."""
        outputs = self._model(inputs, training=False)
        named = outputs if isinstance(outputs, dict) else {"logits": outputs}
        answers = self._task.serving_id_outputs(outputs, inputs)
        return named | {
            name: tensor
            for name, tensor in answers.items()
            if tensor.dtype != tf.string
        }

    def function(self) -> Any:
        """`answer`, for any batch size and length."""
        specs = tensor_specs(ENCODER_INPUTS, {})
        return tf.function(self.answer, input_signature=[specs])

    def difference(self, run: Callable[[dict], dict]) -> float:
        """Largest difference to the model, on a batch of ids drawn at random.

        Args:
            run: What is compared: from inputs to outputs by name.
        """
        inputs = self._test_batch()
        expected = {name: t.numpy() for name, t in self.answer(inputs).items()}
        found = run(inputs)
        if set(found) != set(expected):
            raise ValueError(f"outputs {sorted(found)} instead of {sorted(expected)}.")
        length = inputs["input_ids"].shape[1]
        expected = self._task.comparable(expected, length)
        found = self._task.comparable(found, length)
        return max(
            float(np.max(np.abs(values - found[name])))
            for name, values in expected.items()
        )

    def _test_batch(self):
        """A whole row, a padded one, and one with hardly anything in it."""
        random = np.random.default_rng(0)
        ids = random.integers(0, self._model.encoder.embeddings.vocab_size, [3, 11])
        mask = np.arange(11) < np.array([[11], [7], [2]])
        segments = (np.arange(11) >= 4) & mask
        columns = (ids * mask, mask, segments)
        return {
            name: column.astype(np.int32)
            for name, column in zip(tensor_specs(ENCODER_INPUTS, {}), columns, strict=1)
        }


def export_litert(model: Any, task: Any, path: str) -> float:
    """Writes a LiteRT (TFLite) model of the ids signature, and checks it first.

    Args:
        model: The fine-tuned `keras.Model`.
        task: Its `Task`; see `NumbersModule` for the outputs.
        path: File to write, `.tflite`.

    Returns:
        Largest difference to the model on a test batch.

    Raises:
        ValueError: It cannot be converted, or the difference is above 1e-3.
    """
    module = NumbersModule(model, task)
    with tempfile.TemporaryDirectory() as folder:
        signature = module.function().get_concrete_function()
        tf.saved_model.save(module, folder, signatures=signature)
        try:
            content = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
        except Exception as error:  # Of a private class.
            raise _cannot("LiteRT", "--export_litert", error) from error
    interpreter = tf.lite.Interpreter(model_content=content)
    runner = interpreter.get_signature_runner()
    difference = module.difference(lambda inputs: runner(**inputs))
    return _write_checked(path, content, difference, "LiteRT")


def require_onnx() -> None:
    """Checks that an ONNX export can be made.

    Raises:
        ValueError: A package is missing.
    """
    for name in ("tf2onnx", "onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"ONNX export needs the package {name}: pip install tf2onnx onnx "
                "onnxruntime, or leave out --export_onnx."
            )


def export_onnx(model: Any, task: Any, path: str) -> float:
    """Writes an ONNX model of the ids signature, and checks it first.

    Args:
        model: The fine-tuned `keras.Model`.
        task: Its `Task`; see `NumbersModule` for the outputs.
        path: File to write, `.onnx`.

    Returns:
        Largest difference to the model on a test batch.

    Raises:
        ValueError: A package is missing, it cannot be converted, or the difference is
            above 1e-3.
    """
    require_onnx()
    import onnxruntime
    import tf2onnx

    module = NumbersModule(model, task)
    specs = tensor_specs(ENCODER_INPUTS, {})
    try:
        converted, _ = tf2onnx.convert.from_function(
            module.function(), input_signature=[specs], opset=_ONNX_OPSET
        )
    except Exception as error:  # Of any class.
        raise _cannot("ONNX", "--export_onnx", error) from error
    content = converted.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    difference = module.difference(
        lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))
    )
    return _write_checked(path, content, difference, "ONNX")


# The newest that tf2onnx 1.17 knows; onnxruntime reads it since 1.14.
_ONNX_OPSET = 18


def _cannot(kind, flag, error):
    return ValueError(
        f"{kind} cannot hold this model: {str(error)[:300]}. Leave out {flag}; the "
        "SavedModel is complete."
    )


def _write_checked(path, content, difference, kind):
    if not difference < 1e-3:
        raise ValueError(
            f"The {kind} model differs from the Keras model by {difference:.2g}; it "
            "was not written. Export the SavedModel instead."
        )
    temporary = Path(f"{path}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
    return difference
