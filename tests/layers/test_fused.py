import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import TransformerEncoder, fused, plain, randomness
from tests.layers.helpers import randomized

SEED = tf.constant([4, 2])
ROWS, LENGTH, HEADS, SIZE = 3, 6, 2, 8
MASK = tf.constant([[1] * 6, [1] * 4 + [0] * 2, [0] * 6])


def normal(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def vectors(*offsets):
    return [offset + 0.3 * normal(SIZE, seed=9 + i) for i, offset in enumerate(offsets)]


FLAT = ROWS * LENGTH
RATES = {"seed": SEED, "rate": 0.25}
NORM = {"epsilon": 1e-12, **RATES}
BIASED = [normal(FLAT, SIZE), *vectors(0)]
QKV = [normal(FLAT, 3 * SIZE), 0.3 * normal(3 * SIZE)]
ATTENTION = {"mask": MASK, "num_heads": HEADS, **RATES}
CASES = {
    "drop": ([normal(FLAT, SIZE)], RATES),
    "norm_drop": ([normal(FLAT, SIZE), *vectors(1, 0)], {"dtype": "float32", **NORM}),
    **{
        f"bias_activation {name}": (BIASED, {"activation": activation})
        for name, activation in plain.ACTIVATIONS.items()
    },
    "bias_drop_add_norm": ([*BIASED, normal(FLAT, SIZE, seed=1), *vectors(1, 0)], NORM),
    "attention": (QKV, ATTENTION),
    "attention causal": (QKV, {"direction": "left_to_right", **ATTENTION}),
}
PLAIN = {**vars(plain), "drop": randomness.drop}
FUNCTIONS = {n: (PLAIN[n.split()[0]], getattr(fused, n.split()[0])) for n in CASES}


def value_and_gradients(function, tensors, options):
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = function(*tensors, **options)
        values = tf.cast(result, tf.float32)
        loss = tf.reduce_sum(values * normal(*result.shape, seed=7))
    return [result, *tape.gradient(loss, tensors)]


@pytest.mark.parametrize("name", CASES)
def test_equals_plain(name):
    tensors, options = CASES[name]
    variants = [options]
    if "rate" in options:
        variants.append({**options, "rate": 0.0, "seed": None})
    for options in variants:
        ours, theirs = (
            value_and_gradients(function, tensors, options)
            for function in reversed(FUNCTIONS[name])
        )
        for mine, expected in zip(ours, theirs, strict=True):
            assert mine.dtype == expected.dtype
            np.testing.assert_allclose(mine, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, tf.bfloat16) for name in CASES), ("attention", tf.float16)],
)
def test_low_precision(name, dtype):
    """Dtypes equal the plain version's; errors are a few units in the last place."""
    tensors, options = CASES[name]
    vectors_stay = [t if t.shape.rank == 1 else tf.cast(t, dtype) for t in tensors]
    exact = [tf.cast(t, tf.float32) for t in vectors_stay]
    if "dtype" in options:
        options = {**options, "dtype": dtype}
    theirs, ours = (
        value_and_gradients(function, vectors_stay, options)
        for function in FUNCTIONS[name]
    )
    reference = value_and_gradients(FUNCTIONS[name][0], exact, options)
    for mine, other, true in zip(ours, theirs, reference, strict=True):
        assert mine.dtype == other.dtype
        true = tf.cast(true, tf.float32).numpy()
        error = np.abs(tf.cast(mine, tf.float32) - true).max() / np.abs(true).max()
        assert error < 6 * (2**-8 if dtype == tf.bfloat16 else 2**-11)
    if name.startswith("attention"):
        # The gradient of the bias is a float32 sum of rows, without another rounding.
        rows = tf.cast(ours[1], tf.float32).numpy()
        np.testing.assert_allclose(ours[2], rows.sum(0), atol=1e-5, rtol=1e-5)


def test_attention_remembers_one_square_tensor():
    tensors, options = CASES["attention"]
    square = [ROWS, HEADS, LENGTH, LENGTH]
    made = []

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = fused.attention(*tensors, **options)
        made.extend(tf.compat.v1.get_default_graph().get_operations())
        return tape.gradient(result, tensors)

    operations = step.get_concrete_function().graph.get_operations()
    forward = {operation.name for operation in operations[: len(made)]}
    kept = {
        tensor.name
        for operation in operations[len(made) :]
        for tensor in operation.inputs
        if tensor.op.name in forward and tensor.shape.as_list() == square
    }
    assert len(kept) == 1


def test_dynamic_shapes_and_an_outer_jit():
    encoder = randomized(TransformerEncoder(1, SIZE, HEADS, 4 * SIZE))

    def run(hidden):
        mask = tf.ones(tf.shape(hidden)[:2])
        return encoder(hidden, mask, training=True, seed=SEED)

    spec = tf.TensorSpec([None, None, SIZE], tf.float32)
    dynamic = tf.function(run, input_signature=[spec])
    for shape in ((3, 6, SIZE), (2, 5, SIZE)):
        hidden = normal(*shape)
        np.testing.assert_allclose(dynamic(hidden), run(hidden), atol=1e-5)
    compiled = tf.function(run, jit_compile=True)
    np.testing.assert_allclose(compiled(hidden), run(hidden), atol=1e-5)
