"""Functions that are traced once: by XLA's compiler, or for all layers of a stack.

Those that XLA compiles have names that are the same in every process.
TensorFlow numbers the functions it traces, with a counter that every tensor moves, and
XLA's cache on disk finds a compiled function by its name and content. So each program,
and each run of it that did a little more or less before, would compile all anew. Here a
function is traced once for each signature and renamed after what it holds.
"""

from __future__ import annotations

import functools
import hashlib
import re
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def compiled(function: Callable) -> Callable:
    """Compiles a function of tensors and hashable Python values.

    In a graph no gradient flows through the result: a custom gradient has to be around.
    """
    # Without autograph, whose rewriting of plain code costs time at every trace. Two,
    # because a call under a tape gives more outputs to the function that it calls.
    eager, traced = (
        tf.function(function, jit_compile=True, autograph=False) for _ in range(2)
    )
    calls: dict[tuple, _Call] = {}
    name = re.sub(r"\W", "_", function.__name__)

    def call(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return eager(*args, **kwargs)
        tensors = [x for x in tf.nest.flatten((args, kwargs)) if tf.is_tensor(x)]
        args, kwargs = tf.nest.map_structure(_spec, (args, kwargs))
        leaves = tf.nest.flatten((args, kwargs))
        key = (*leaves, *map(type, leaves), *kwargs)
        if key not in calls:
            calls[key] = _Call(name, traced, args, kwargs)
        return calls[key](tensors)

    return call


def _spec(leaf: Any) -> Any:
    return tf.TensorSpec(leaf.shape, leaf.dtype) if tf.is_tensor(leaf) else leaf


class _Call:
    """One signature of a function, under its own name."""

    def __init__(self, name: str, traced: Callable, args: tuple, kwargs: dict):
        concrete = traced.get_concrete_function(*args, **kwargs)
        self._results = concrete.structured_outputs
        self._types = [result.dtype for result in concrete.outputs]
        definition = concrete.function_def
        definition.signature.name = ""
        content = definition.SerializeToString(deterministic=True)
        # As TensorFlow writes it; a profile shows what stands before the number.
        number = int.from_bytes(hashlib.sha256(content).digest()[:8])
        self._name = f"__inference_{name}_{number}"
        definition.signature.name = self._name
        self._library = tf.compat.v1.GraphDef()
        self._library.library.function.append(definition)
        # Where functions are run from, and below, where graphs are saved from.
        with tf.init_scope():
            tf.graph_util.import_graph_def(self._library)
        self._graphs: weakref.WeakSet = weakref.WeakSet()

    def __call__(self, tensors: list[tf.Tensor]) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._graphs:
            tf.graph_util.import_graph_def(self._library)
            self._graphs.add(graph)
        found = tf.raw_ops.PartitionedCall(args=tensors, Tout=self._types, f=self._name)
        # As TensorFlow marks its own calls; nothing else lets a name be chosen.
        found[0].op._set_attr("_XlaMustCompile", tf.compat.v1.AttrValue(b=True))
        for tensor, spec in zip(found, tf.nest.flatten(self._results), strict=True):
            tensor.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(self._results, found)


class TracedForAll:
    """Calls any layer of a stack through one trace, that of its first layer.

    Layers of a stack differ only in their weights. In a graph the code of the first
    layer runs with the weights of another one as arguments, and its backward pass is
    derived once. TensorFlow inlines the calls, so a step computes the same bits.
    Eagerly, the layer itself is called.

    Args:
        pattern: the layer to trace.
    """

    def __init__(self, pattern: keras.layers.Layer):
        @functools.partial(tf.function, autograph=False)
        def traced(values: list[tf.Tensor], *args: Any, **kwargs: Any) -> Any:
            own = zip(pattern.weights, values, strict=True)
            with keras.StatelessScope(state_mapping=own):
                return pattern(*args, **kwargs)

        self._traced = traced

    def __call__(self, layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        """Returns ``layer(*args, **kwargs)``."""
        if tf.executing_eagerly():
            return layer(*args, **kwargs)
        # As tensors: a replica's gradient does not reach a mirrored variable that is an
        # argument of a function.
        values = [tf.convert_to_tensor(weight.value) for weight in layer.weights]
        return self._traced(values, *args, **kwargs)
