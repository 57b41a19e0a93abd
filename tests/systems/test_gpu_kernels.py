import functools

import pytest
import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.features import ENCODER_INPUTS
from electra_tf.systems import build
from tests import tiny
from tests.tiny_run import SIZES


@functools.cache
def kernels(op):
    return list(get_registered_kernels_for_op(op).kernel)


def accepts(kernel, node):
    """Returns whether a kernel supports the dtypes of a node."""
    for constraint in kernel.constraint:
        value = node.attr[constraint.name]
        types = value.list.type or [value.type]
        if not {*types} <= {*constraint.allowed_values.list.type}:
            return False
    return True


def without_gpu_kernel(function):
    """Operations of a concrete function and its callees without a GPU kernel.

    Functions that XLA must compile need XLA's kernels for the GPU.
    """
    graph = function.graph.as_graph_def()
    functions = {f.signature.name: f for f in graph.library.function}
    lacking, seen = set(), set()

    def visit(nodes, is_compiled):
        devices = {"XLA_GPU_JIT"} if is_compiled else {"GPU", "DEFAULT"}
        for node in nodes:
            compiles = is_compiled or node.attr["_XlaMustCompile"].b
            for value in node.attr.values():
                for callee in (value.func, *value.list.func):
                    if callee.name and (callee.name, compiles) not in seen:
                        seen.add((callee.name, compiles))
                        body = functions[callee.name]
                        own = compiles or body.attr["_XlaMustCompile"].b
                        visit(body.node_def, own)
            # Assertion messages stay on the host.
            is_text = node.attr["dtype"].type == tf.string.as_datatype_enum
            if node.op in functions or (node.op == "Const" and is_text):
                continue
            if not any(
                kernel.device_type in devices and accepts(kernel, node)
                for kernel in kernels(node.op)
            ):
                lacking.add(node.op)

    visit(graph.node, False)
    return lacking


@pytest.fixture(scope="module", autouse=True)
def _wheel_with_gpu_kernels():
    # The first graph that runs registers XLA's kernels.
    tf.function(lambda: tf.constant(0))()
    if not any(kernel.device_type == "GPU" for kernel in kernels("MatMul")):
        pytest.skip("this TensorFlow is built without GPU kernels")


def step_of(precision, **flags):
    flags = {**SIZES, "num_layers": 1, "mixed_precision": precision, **flags}
    config = fields.from_flat(flags, PretrainConfig)
    (phase,) = build.compiled_phases(config, tiny.VOCAB, (2, 3, 4))
    return phase.model.train_step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "flags"),
    [
        ("none", {}),
        ("bfloat16", {"objective": "mlm"}),
        ("bfloat16", {"training": "reinforce"}),
    ],
)
def test_the_training_step(precision, flags):
    step = tf.function(step_of(precision, **flags))
    assert without_gpu_kernel(step.get_concrete_function(tiny.batch())) == set()


@pytest.mark.parametrize("name", ["encode_tokens", "encode_first"])
def test_the_served_encoder(name):
    encoder = tiny.electra(num_layers=1).discriminator
    served = tf.function(getattr(encoder, name))
    specs = ENCODER_INPUTS
    assert without_gpu_kernel(served.get_concrete_function(specs)) == set()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_cpu_operation_is_found(compiled):
    @tf.function(jit_compile=compiled)
    def inner(x):
        return tf.strings.to_number(tf.strings.as_string(x))

    @tf.function
    def outer(x):
        return tf.cond(x > 0, lambda: inner(x), lambda: x)

    found = without_gpu_kernel(outer.get_concrete_function(tf.TensorSpec([])))
    assert found == {"AsString", "StringToNumber"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"training": "reinforce", "gradient_accumulation_steps": 2},
        {"training": "gumbel"},
        {"objective": "electric"},
    ],
)
def test_the_step_lowers_to_stablehlo_without_custom_calls(flags):
    step = tf.function(step_of("bfloat16", **flags), jit_compile=True)
    lower = step.experimental_get_compiler_ir(tiny.batch())
    text = lower(stage="stablehlo")
    assert "stablehlo.dot_general" in text
    assert "custom_call" not in text
