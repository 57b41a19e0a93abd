"""Rewrites layer normalization and GELU of ONNX graphs for onnxruntime."""

import collections
import math
from typing import Any


def fused(model: Any) -> Any:
    """Fuses operations of an ``onnx.ModelProto``, and removes nodes without use.

    TensorFlow's optimizer reorders the products of layer normalization, and
    onnxruntime fuses neither the result nor a GELU without a division.
    """
    import numpy as np
    from onnx import helper, numpy_helper
    from onnx.utils import Extractor

    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    users = collections.defaultdict(list)
    for node in graph.node:
        for name in node.input:
            users[name].append(node)
    scalars = {
        tensor.name: numpy_helper.to_array(tensor).item()
        for tensor in graph.initializer
        if math.prod(tensor.dims) == 1
    }
    for node in graph.node:
        if node.op_type == "Reciprocal":
            _fuse_layer_norm(node, producers, users, scalars)
    root = "square_root_of_2"
    for node in graph.node:
        values = [scalars.get(name, 0) for name in node.input]
        if node.op_type == "Mul" and np.isclose(values, 0.5**0.5).any():
            (inputs,) = (n for n in node.input if n not in scalars)
            node.CopyFrom(
                helper.make_node("Div", [inputs, root], node.output, node.name)
            )
    graph.initializer.append(numpy_helper.from_array(np.float32(2**0.5), root))
    inputs, outputs = ([x.name for x in ends] for ends in (graph.input, graph.output))
    return Extractor(model).extract_model(inputs, outputs)


def _fuse_layer_norm(reciprocal: Any, producers: Any, users: Any, scalars: Any) -> None:
    """Replaces beta + centered * (gamma * reciprocal), whatever the order."""
    from onnx import helper

    centered, epsilon = reciprocal, None
    for operation in ("Sqrt", "Add", "ReduceMean", "Mul", "Sub"):
        if centered.op_type == "Add":
            epsilon = next((scalars[n] for n in centered.input if n in scalars), None)
        parents = [producers.get(name) for name in centered.input]
        parents = [each for each in parents if each and each.op_type == operation]
        if not parents:
            return
        centered = parents[0]
    last, factors = reciprocal, []
    for operation in ("Mul", "Mul", "Add"):
        (name,) = last.output
        if [user.op_type for user in users[name]] != [operation]:
            return
        (last,) = users[name]
        factors += [other for other in last.input if other != name]
    *products, beta = factors
    if epsilon is None or centered.output[0] not in products:
        return
    products.remove(centered.output[0])
    inputs = [centered.input[0], *products, beta]
    options = {"axis": -1, "epsilon": epsilon}
    last.CopyFrom(
        helper.make_node(
            "LayerNormalization", inputs, last.output, last.name, **options
        )
    )
