"""Fine-tuned models for production: SavedModel with the tokenizer inside, LiteRT, ONNX.

Letters: B batch, S sequence.
"""

from __future__ import annotations

import tempfile
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


def export_litert(model: Any, path: str) -> float:
    """Writes a LiteRT (TFLite) model of the ids signature, and checks it.

    Args:
        model: The fine-tuned `keras.Model`.
        path: File to write, `.tflite`.

    Returns:
        Largest difference to the model on a test batch.

    Raises:
        ValueError: It cannot be converted, or the difference is above 1e-3.
    """
    module = tf.Module()
    # From a function alone the converter would leave the variables uninitialized.
    module.variables_of_the_model = [variable.value for variable in model.variables]
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=_ids_function(model))
        try:
            content = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
        except Exception as error:  # Of a private class.
            raise ValueError(
                f"LiteRT cannot hold this model: {str(error)[:300]}. Leave out "
                "--export_litert; the SavedModel is complete."
            ) from error
    interpreter = tf.lite.Interpreter(model_content=content)
    inputs = _test_batch(model)
    runner = interpreter.get_signature_runner()
    difference = _difference(model, inputs, runner(**inputs))
    _check(difference, "LiteRT")
    with open(path, "wb") as file:
        file.write(content)
    return difference


def export_onnx(model: Any, path: str) -> float:
    """Writes an ONNX model of the ids signature, and checks it.

    Args:
        model: The fine-tuned `keras.Model`.
        path: File to write, `.onnx`.

    Returns:
        Largest difference to the model on a test batch.

    Raises:
        ValueError: A package is missing, or the difference is above 1e-3.
    """
    try:
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ValueError(
            f"ONNX export needs the package {error.name}: pip install tf2onnx onnx "
            "onnxruntime, or leave out --export_onnx."
        ) from error
    specs = tensor_specs(ENCODER_INPUTS, {})
    tf2onnx.convert.from_function(
        tf.function(lambda **inputs: _named(model(inputs, training=False))),
        input_signature=[specs],
        output_path=path,
    )
    session = onnxruntime.InferenceSession(path)
    inputs = _test_batch(model)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(names, inputs), strict=True))
    difference = _difference(model, inputs, found)
    _check(difference, "ONNX")
    return difference


def _ids_function(model):
    specs = tensor_specs(ENCODER_INPUTS, {})
    serve = tf.function(lambda **inputs: _named(model(inputs, training=False)))
    return serve.get_concrete_function(**specs)


def _named(outputs):
    return outputs if isinstance(outputs, dict) else {"logits": outputs}


def _test_batch(model):
    random = np.random.default_rng(0)
    ids = random.integers(0, model.encoder.embeddings.vocab_size, [3, 11])
    mask = np.arange(11) < np.array([[11], [7], [2]])
    return {
        "input_ids": (ids * mask).astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": np.zeros([3, 11], np.int32),
    }


def _difference(model, inputs, found):
    expected = _named(model(inputs, training=False))
    return max(
        float(np.max(np.abs(expected[name].numpy() - value)))
        for name, value in found.items()
    )


def _check(difference, kind):
    if not difference < 1e-3:
        raise ValueError(
            f"The {kind} model differs from the Keras model by {difference:.2g}; it "
            "was not written. Export the SavedModel instead."
        )
