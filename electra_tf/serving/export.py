"""Exports fine-tuned models to SavedModel (with the tokenizer), LiteRT and ONNX.

Letters: B batch, S sequence.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.errors import UserError
from electra_tf.features import ENCODER_INPUTS
from electra_tf.layers.quantization import modes
from electra_tf.serving import onnx_graph
from electra_tf.tasks.heads import TaskModel, fresh_copy

if TYPE_CHECKING:
    from electra_tf.data.tokenizer import WordPiece
    from electra_tf.tasks.base import Task

# A converted model: a function from ``ENCODER_INPUTS`` to outputs by name.
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
# Files and folders of a SavedModel.
_SAVED_MODEL = {
    *("assets", "assets.extra", "fingerprint.pb", "keras_metadata.pb"),
    *("saved_model.pb", "variables"),
}
# The newest opset of tf2onnx 1.17; onnxruntime supports it since 1.14.
_ONNX_OPSET = 18


class ServingModule(tf.Module):
    """A task model with its tokenizer and decoder as one graph.

    Two signatures, for any batch size and length:

    * ``serving_default``: ``text`` (and ``text_pair`` for pair tasks), string [B].
    * ``ids``: input_ids, input_mask, segment_ids, int32 [B, S].

    ``text_order`` of a SavedModel returns the input names in the task's order.

    ``tokenizer`` and ``max_seq_length`` must be the same as in training.

    Examples:
        >>> mini = et.load("mini")
        >>> labels = ("bad", "good")
        >>> task = et.tasks.Classification(name="mood", source=None, labels=labels)
        >>> model = task.build_model(mini.encoder)
        >>> served = et.serving.ServingModule(model, task, mini.tokenizer, 128)
        >>> answer = served.text_signature()(text=tf.constant(["Lovely."]))
        >>> answer["probabilities"].shape
        TensorShape([1, 2])
    """

    def __init__(
        self, model: keras.Model, task: Task, tokenizer: WordPiece, max_seq_length: int
    ):
        super().__init__(name="serving")
        positions = model.encoder.embeddings.max_positions
        if max_seq_length > positions:
            raise UserError(
                f"max_seq_length is {max_seq_length}, and the model has {positions} "
                f"positions: give {positions} or less."
            )
        # A function, since a model attribute would save all weights twice.
        self._get_model = lambda: model
        # The SavedModel needs tf.Variables, which Keras variables are not.
        self._variables = [variable.value for variable in model.variables]
        self._task = task
        self._tokenizer = tokenizer
        self._max_seq_length = max_seq_length

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the text inputs, in the order of the task."""
        return tuple(self._task.text_names)

    def answer(self, **texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns predictions for texts, string [B] for each of ``text_names``."""
        inputs = self._task.serving_inputs(
            self._tokenizer, self._max_seq_length, **texts
        )
        return self._task.serving_outputs(self._infer(inputs), inputs)

    def serve_ids(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns predictions for token ids, int32 [B, S] per input."""
        return self._task.serving_id_outputs(self._infer(inputs), inputs)

    def _infer(self, inputs: Mapping[str, tf.Tensor]) -> Any:
        # All signatures share one function, which is traced and saved once.
        ids = {name: inputs[name] for name in ENCODER_INPUTS}
        return self._get_model().inference(ids)

    def text_signature(self) -> tf.types.experimental.ConcreteFunction:
        """Returns the traced ``serving_default``."""
        specs = {name: tf.TensorSpec([None], tf.string) for name in self.text_names}
        # Autograph converts no code here, and takes a second of CPU time.
        return tf.function(self.answer, autograph=False).get_concrete_function(**specs)

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Returns the traced signatures; also adds ``text_order``."""
        names = self.text_names
        self.text_order = tf.function(
            lambda: tf.constant(names), input_signature=[], autograph=False
        )
        serve_ids = tf.function(self.serve_ids, autograph=False)
        ids = serve_ids.get_concrete_function(**ENCODER_INPUTS)
        return {"serving_default": self.text_signature(), "ids": ids}


def export_saved_model(
    model: TaskModel,
    task: Task,
    tokenizer: WordPiece,
    path: str,
    max_seq_length: int | None = None,
    precision: str | None = None,
) -> None:
    """Writes a SavedModel that takes raw strings.

    Loading it requires tensorflow and ``import tensorflow_text``, but not this library.

    Args:
        model: the fine-tuned model.
        task: its task.
        tokenizer: the tokenizer of training.
        path: output folder, written atomically; replaces only a SavedModel.
        max_seq_length: maximum number of tokens per row. Default: the task's.
        precision: dtype policy of the exported encoder; "bfloat16" halves the
            memory. Default: the encoder's own.

    Examples:
        >>> encoder, tokenizer = et.load("mini").encoder, et.load("mini").tokenizer
        >>> labels = ("bad", "good")
        >>> task = et.tasks.Classification(name="mood", source=None, labels=labels)
        >>> model = task.build_model(encoder)
        >>> et.serving.export_saved_model(model, task, tokenizer, "from_parts")
        >>> sorted(et.load("from_parts").predict(["Lovely."])[0]["probabilities"])
        ['bad', 'good']
    """
    folder = Path(path)
    others = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if others := sorted(others - _SAVED_MODEL):
        names = ", ".join(others[:3])
        raise UserError(f"{path} has {names}, and the export would replace the folder.")
    if precision not in (None, model.encoder.dtype_policy.name):
        encoder = fresh_copy(model.encoder, precision)
        encoder.set_weights(model.encoder.get_weights())
        model = TaskModel(encoder, model.head)
    length = max_seq_length or task.max_seq_length
    module = ServingModule(model, task, tokenizer, length)
    with files.replacing(path) as part:
        tf.saved_model.save(module, str(part), signatures=module.signatures())


class NumbersModule(tf.Module):
    """The ``ids`` signature without strings, plus the outputs of the model."""

    def __init__(self, model: keras.Model, task: Task):
        super().__init__(name="numbers")
        # A function alone would leave the variables uninitialized in the converter.
        self._variables = [variable.value for variable in model.variables]
        self._get_model = lambda: model
        self._task = task
        # ``answer`` for any batch size and length.
        self.function = tf.function(
            self.answer, input_signature=[ENCODER_INPUTS], autograph=False
        )

    def answer(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns numeric predictions and model outputs (``logits`` if unnamed)."""
        outputs = self._get_model().infer(inputs)
        named = outputs if isinstance(outputs, dict) else {"logits": outputs}
        # Strings are label names, which are also in the run's labels.txt.
        answers = self._task.serving_id_outputs(outputs, inputs).items()
        return named | {name: x for name, x in answers if x.dtype != tf.string}

    def difference(self, run: Run) -> float:
        """Computes the largest difference to the model on a random batch of ids."""
        vocab_size = self._get_model().encoder.embeddings.vocab_size
        ids = np.random.default_rng(0).integers(0, vocab_size, [3, 11])
        # A full row, a padded row and a nearly empty row.
        mask = np.arange(11) < np.array([[11], [7], [2]])
        columns = (ids * mask, mask, (np.arange(11) >= 4) & mask)
        inputs = {
            name: column.astype(np.int32)
            for name, column in zip(ENCODER_INPUTS, columns, strict=True)
        }
        expected = {name: t.numpy() for name, t in self.answer(inputs).items()}
        outputs = run(inputs)
        if set(outputs) != set(expected):
            raise UserError(f"outputs {sorted(outputs)} instead of {sorted(expected)}.")
        expected = self._task.comparable(expected)
        outputs = self._task.comparable(outputs)
        # Unlike Python's max, NumPy's returns NaN if any difference is NaN.
        differences = [np.max(np.abs(x - outputs[n])) for n, x in expected.items()]
        return float(np.max(differences))


def export_litert(
    model: TaskModel,
    task: Task,
    path: str,
    precision: str = "float32",
    accept: Callable[[Run], None] = lambda run: None,
) -> float:
    """Writes a LiteRT (TFLite) model of the ids signature after checking it.

    The file returns the numeric outputs of the ids signature and the outputs of the
    model (``logits`` if unnamed).

    Args:
        model: the fine-tuned model.
        task: its task.
        path: ``.tflite`` file, written atomically; replaced if it exists.
        precision: "float32", or "int8" for dynamic quantization: int8 weights, and
            activations that are quantized for each matrix product.
        accept: gets the converted model, a function from ``ENCODER_INPUTS`` to outputs
            by name, before it is written. Raise an error to refuse it.

    Returns:
        Largest difference to the model on a test batch.

    Raises:
        ValueError: if the conversion fails, or if a float32 file differs by 1e-3 or
            more (for regression, times the largest absolute label above 1).

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> model.export("mood.tflite", format="litert") < 1e-4  # calls this function
        True
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        # TensorFlow's deprecated copy.
        Interpreter = tf.lite.Interpreter
    module = NumbersModule(_in_float32(model, precision), task)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [module.function.get_concrete_function()], module
    )
    if precision == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        content = converter.convert()
    except Exception as error:  # The error class is private.
        raise _cannot("LiteRT", error) from error
    runner = Interpreter(model_content=content).get_signature_runner()
    return write_checked(
        module, lambda inputs: runner(**inputs), content, path, precision, accept
    )


def require_onnx() -> None:
    """Raises ValueError if a package for ONNX export is missing."""
    for name in ("tf2onnx", "onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"ONNX export needs {name}: pip install tf2onnx onnx onnxruntime"
            )


def export_onnx(
    model: TaskModel,
    task: Task,
    path: str,
    precision: str = "float32",
    accept: Callable[[Run], None] = lambda run: None,
) -> float:
    """Writes an ONNX model of the ids signature after checking it.

    See ``export_litert`` for arguments and errors. The int8 weights have 7 bits, since
    products of 8 bits overflow on processors without VNNI.

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> model.export("mood.onnx", format="onnx") < 1e-4  # calls this function
        True
    """
    require_onnx()
    import onnxruntime
    import tf2onnx

    module = NumbersModule(_in_float32(model, precision), task)
    try:
        converted, _ = tf2onnx.convert.from_function(
            module.function, input_signature=[ENCODER_INPUTS], opset=_ONNX_OPSET
        )
        converted = onnx_graph.fused(converted)
        content = converted.SerializeToString()
        if precision == "int8":
            content = _quantized(converted, model.head.name)
    except Exception as error:  # Many error classes are possible.
        raise _cannot("ONNX", error) from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return write_checked(module, run, content, path, precision, accept)


def _quantized(model: Any, head: str) -> bytes:
    """Quantizes an ``onnx.ModelProto`` except for the head's products.

    onnxruntime has one scale per product: an int8 head costs more than a point.
    """
    from onnxruntime.quantization import quantize_dynamic

    names = [node.name for node in model.graph.node]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        # Its warnings do not apply to this graph.
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            quantize_dynamic(
                model,
                path,
                per_channel=True,
                reduce_range=True,
                nodes_to_exclude=[name for name in names if name.startswith(head)],
            )
        finally:
            logging.disable(disabled)
        return path.read_bytes()


def _cannot(kind: str, error: Exception) -> UserError:
    return UserError(
        f"{kind} cannot represent this model: {str(error)[:300]}. Use the SavedModel, "
        "and leave out --export_litert or --export_onnx."
    )


def _in_float32(model: TaskModel, precision: str) -> TaskModel:
    """Returns the model in float32; the formats lack bfloat16 products."""
    if precision not in ("float32", "int8"):
        raise UserError(f"precision is {precision!r}; allowed are float32 and int8.")
    if any(modes(model)):
        raise UserError("Export the model before quantize, with precision='int8'.")
    if model.encoder.compute_dtype == "float32":
        return model
    copy = fresh_copy(model, "float32")
    copy.set_weights(model.get_weights())
    return copy


def write_checked(
    module: NumbersModule,
    run: Run,
    content: bytes,
    path: str,
    precision: str,
    accept: Callable[[Run], None],
) -> float:
    """Writes a converted model; raises UserError if its outputs differ."""
    difference = module.difference(run)
    # Regression scores and their rounding errors have the scale of the labels.
    labels = getattr(module._task, "label_range", None) or ()
    allowed = 1e-3 * max([1.0, *map(abs, labels)])
    # Not `>=`, so that NaN fails too.
    if not difference < (math.inf if precision == "int8" else allowed):
        raise UserError(
            f"{Path(path).name} differs from the Keras model by {difference:.2g} and "
            "was not written: leave out --export_litert or --export_onnx, and use the "
            "SavedModel."
        )
    accept(run)
    with files.open_new(path, "wb") as file:
        file.write(content)
    return difference
