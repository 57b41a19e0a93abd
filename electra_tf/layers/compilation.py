"""Functions traced once: XLA-compiled ones, and one trace for a stack of layers.

XLA-compiled functions are named after a hash of their content. TensorFlow finds
compiled code by the function's name, and its own names contain a counter, so the models
of further seeds or trials would be compiled again.
"""

import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def compiled(function: Callable) -> Callable:
    """Compiles a function of tensors and hashable Python values with XLA.

    In a graph the result lacks a gradient: wrap the function in a custom gradient.
    """
    # Two functions: a call under a tape adds outputs to the function that it calls.
    eager, traced = (
        tf.function(function, jit_compile=True, autograph=False) for _ in range(2)
    )
    calls: dict[Any, Callable] = {}
    name = re.sub(r"\W", "_", function.__name__)

    def call(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return eager(*args, **kwargs)
        tensors = [x for x in tf.nest.flatten((args, kwargs)) if tf.is_tensor(x)]
        args, kwargs = tf.nest.map_structure(
            lambda x: tf.TensorSpec(x.shape, x.dtype) if tf.is_tensor(x) else x,
            (args, kwargs),
        )
        # Returns the same object for the same arguments.
        concrete = traced.get_concrete_function(*args, **kwargs)
        if concrete not in calls:
            calls[concrete] = _call_by_content(concrete, name)
        return calls[concrete](tensors)

    return call


def _call_by_content(concrete: Any, name: str) -> Callable[[list[tf.Tensor]], Any]:
    results = concrete.structured_outputs
    types = [output.dtype for output in concrete.outputs]
    definition = concrete.function_def
    definition.signature.name = ""
    content = definition.SerializeToString(deterministic=True)
    # TensorFlow's name format; profiles show the part before the number.
    number = int.from_bytes(hashlib.sha256(content).digest()[:8])
    definition.signature.name = f"__inference_{name}_{number}"
    library = tf.compat.v1.GraphDef()
    library.library.function.append(definition)
    # Registers the function in the runtime; ``call`` adds it to saved graphs.
    with tf.init_scope():
        tf.graph_util.import_graph_def(library)

    def call(tensors: list[tf.Tensor]) -> Any:
        tf.graph_util.import_graph_def(library)
        outputs = tf.raw_ops.PartitionedCall(
            args=tensors, Tout=types, f=definition.signature.name
        )
        # Marks the call as TensorFlow does; no public API accepts a function name.
        outputs[0].op._set_attr("_XlaMustCompile", tf.compat.v1.AttrValue(b=True))
        for tensor, spec in zip(outputs, tf.nest.flatten(results), strict=True):
            tensor.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(results, outputs)

    return call


def traced_for_all(pattern: keras.layers.Layer) -> Callable:
    """Returns ``call(layer, ...)``, which is ``layer(...)`` through one trace.

    In a graph, the trace of ``pattern`` takes the weights of each layer of a stack as
    arguments; results are bit-identical. Quantized layers, and layers of another dtype
    policy or dropout, are called directly.
    """

    @functools.partial(tf.function, autograph=False)
    def traced(values: list[tf.Tensor], of: tuple, *args: Any, **kwargs: Any) -> Any:
        own = zip(pattern.weights, values, strict=True)
        with keras.StatelessScope(state_mapping=own):
            return pattern(*args, **kwargs)

    def settings(layer: keras.layers.Layer) -> tuple:
        rates = [getattr(layer, x, 0) for x in ("dropout", "attention_dropout")]
        return layer.quantization_mode, layer.compute_dtype, *rates

    def call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        own, of = settings(layer), settings(pattern)
        if tf.executing_eagerly() or own != of or layer.quantization_mode:
            return layer(*args, **kwargs)
        # Gradients of a replica do not reach mirrored variables passed as arguments.
        values = [tf.convert_to_tensor(weight.value) for weight in layer.weights]
        # Changed settings are traced again.
        return traced(values, of, *args, **kwargs)

    return call
