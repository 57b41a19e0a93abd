"""Fused functions against their plain versions, in every execution context."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import TransformerEncoder, fused, plain, randomness
from tests.layers.helpers import randomize
from tests.strategy import two_cpus

SEED = tf.constant([4, 2])
ROWS, LENGTH, HEADS, SIZE = 3, 6, 2, 8
MASK = tf.constant([[1] * 6, [1] * 4 + [0] * 2, [0] * 6])


def normal(*shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape)
    return tf.constant(values, tf.float32)


def vectors(*offsets):
    return [offset + 0.3 * normal(SIZE, seed=9 + i) for i, offset in enumerate(offsets)]


FLAT = ROWS * LENGTH
RATES = {"seed": SEED, "rate": 0.25}
NORM = {"epsilon": 1e-12, **RATES}
CASES = {
    "drop": ([normal(FLAT, SIZE)], RATES),
    "norm_drop": (
        [normal(FLAT, SIZE), *vectors(1, 0)],
        {"dtype": "float32", **NORM},
    ),
    "bias_activation": (
        [normal(FLAT, SIZE), *vectors(0)],
        {"activation": plain.gelu},
    ),
    "bias_drop_add_norm": (
        [normal(FLAT, SIZE), *vectors(0), normal(FLAT, SIZE, seed=1), *vectors(1, 0)],
        NORM,
    ),
    "attention": (
        [normal(FLAT, 3 * SIZE), 0.3 * normal(3 * SIZE)],
        {"mask": MASK, "num_heads": HEADS, **RATES},
    ),
    "attention left to right": (
        [normal(FLAT, 3 * SIZE), 0.3 * normal(3 * SIZE)],
        {
            "mask": MASK,
            "num_heads": HEADS,
            "score_penalty": plain.left_to_right,
            **RATES,
        },
    ),
}
PLAIN = {**vars(plain), "drop": randomness.drop}


@functools.cache
def functions(name):
    name = name.split()[0]
    return PLAIN[name], getattr(fused, name)


def value_and_gradients(function, tensors, options):
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = function(*tensors, **options)
        values = tf.cast(result, tf.float32)
        loss = tf.reduce_sum(values * normal(*result.shape, seed=7))
    return [result, *tape.gradient(loss, tensors)]


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize("name", CASES)
def test_equals_plain(name, rate):
    tensors, options = CASES[name]
    if "rate" in options:
        options = {**options, "rate": rate, "seed": SEED if rate else None}
    ours, theirs = (
        value_and_gradients(function, tensors, options)
        for function in reversed(functions(name))
    )
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.dtype == expected.dtype
        np.testing.assert_allclose(mine, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_finite_differences(name):
    """Random directions; independent of our derivatives and TensorFlow's."""
    tensors, options = CASES[name]
    if "mask" in options:
        # Scores of a masked row are near -10000, too coarse for finite differences.
        options = {**options, "mask": tf.maximum(MASK, MASK[1])}
    function = functions(name)[1]
    gradients = value_and_gradients(function, tensors, options)[1:]
    step = 3e-3
    for index, gradient in enumerate(gradients):
        direction = normal(*gradient.shape, seed=20 + index)
        values = []
        for sign in (1, -1):
            moved = list(tensors)
            moved[index] += sign * step * direction
            result = tf.cast(function(*moved, **options), tf.float64)
            cotangent = tf.cast(normal(*result.shape, seed=7), tf.float64)
            values.append(tf.reduce_sum(result * cotangent))
        slope = (values[0] - values[1]) / (2 * step)
        np.testing.assert_allclose(
            tf.reduce_sum(gradient * direction), slope, rtol=0.01, atol=0.02
        )


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@pytest.mark.parametrize("name", CASES)
def test_low_precision(name, dtype):
    """Dtypes equal the plain version's; errors are a few units in the last place."""
    tensors, options = CASES[name]
    vectors_stay = [t if t.shape.rank == 1 else tf.cast(t, dtype) for t in tensors]
    exact = [tf.cast(t, tf.float32) for t in vectors_stay]
    if "dtype" in options:
        options = {**options, "dtype": dtype}
    ours = value_and_gradients(functions(name)[1], vectors_stay, options)
    theirs = value_and_gradients(functions(name)[0], vectors_stay, options)
    reference = value_and_gradients(functions(name)[0], exact, options)
    for mine, other, true in zip(ours, theirs, reference, strict=True):
        assert mine.dtype == other.dtype
        true = tf.cast(true, tf.float32).numpy()
        error = np.abs(tf.cast(mine, tf.float32) - true).max() / np.abs(true).max()
        assert error < 6 * (2**-8 if dtype == tf.bfloat16 else 2**-11)


@pytest.mark.parametrize("activation", plain.ACTIVATIONS)
def test_every_activation(activation):
    tensors, _ = CASES["bias_activation"]
    options = {"activation": plain.choose("activation", activation)}
    ours, theirs = (
        value_and_gradients(function, tensors, options)
        for function in functions("bias_activation")
    )
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)


def test_attention_remembers_one_square_tensor():
    """The backward pass reads one [B, N, S, S] tensor of the forward pass."""
    tensors, options = CASES["attention"]
    square = [ROWS, HEADS, LENGTH, LENGTH]
    made = []

    @tf.function
    def step():
        graph = tf.compat.v1.get_default_graph()
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = fused.attention(*tensors, **options)
        made.extend(graph.get_operations())
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


def make_stack(policy="float32"):
    encoder = TransformerEncoder(2, SIZE, HEADS, 4 * SIZE, dtype=policy)
    encoder.build()
    randomize(encoder.variables)
    return encoder


def stack_gradients(encoder, hidden, seed):
    variables = [v.value for v in encoder.trainable_variables]
    with tf.GradientTape() as tape:
        output = encoder(hidden, MASK[: len(hidden)], training=True, seed=seed)
        loss = tf.reduce_sum(tf.square(tf.cast(output, tf.float32)) * 0.1)
    return tape.gradient(loss, variables)


def assert_close(ours, theirs, tolerance=1e-4):
    for mine, expected in zip(ours, theirs, strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(mine, expected, atol=tolerance * scale + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_inside_an_outer_jit(policy):
    encoder = make_stack(policy)
    hidden = normal(ROWS, LENGTH, SIZE)
    step = functools.partial(stack_gradients, encoder)
    tolerance = 1e-4 if policy == "float32" else 0.05
    compiled = tf.function(step, jit_compile=True)
    assert_close(compiled(hidden, SEED), step(hidden, SEED), tolerance)


@pytest.mark.slow
def test_inside_a_while_loop():
    """Gradient accumulation: one loop iteration per micro-batch."""
    encoder = make_stack()
    batches = normal(3, ROWS, LENGTH, SIZE)

    @tf.function
    def accumulate():
        zeros = [tf.zeros(v.shape) for v in encoder.trainable_variables]

        def body(index, sums):
            found = stack_gradients(encoder, batches[index], SEED + index)
            return index + 1, [a + b for a, b in zip(sums, found, strict=True)]

        return tf.while_loop(lambda index, _: index < 3, body, (0, zeros))[1]

    expected = [stack_gradients(encoder, batches[i], SEED + i) for i in range(3)]
    assert_close(accumulate(), [sum(parts) for parts in zip(*expected, strict=True)])


@pytest.mark.slow
def test_under_a_strategy():
    strategy = two_cpus()
    with strategy.scope():
        encoder = make_stack()
    hidden = normal(2, ROWS, LENGTH, SIZE)

    def replica_fn():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        return stack_gradients(encoder, tf.gather(hidden, index), SEED + index)

    results = tf.function(lambda: strategy.run(replica_fn))()
    plain_encoder = make_stack()
    for index in range(2):
        ours = [strategy.experimental_local_results(r)[index] for r in results]
        assert_close(ours, stack_gradients(plain_encoder, hidden[index], SEED + index))


@keras.saving.register_keras_serializable(package="electra_tf_tests")
class Regressor(keras.Model):
    """A model that contains the stack and is trained by plain `fit`."""

    def __init__(self):
        super().__init__()
        self.encoder = make_stack("mixed_bfloat16")
        self.built = True

    def call(self, hidden, training=False):
        mask = tf.ones(tf.shape(hidden)[:2])
        return self.encoder(hidden, mask, training=training, seed=SEED)


@pytest.mark.slow
def test_steps_per_execution():
    hidden = normal(16, LENGTH, SIZE).numpy()
    target = normal(16, LENGTH, SIZE, seed=3).numpy()
    losses = []
    for steps in (1, 4):
        model = Regressor()
        model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=steps)
        history = model.fit(
            hidden, target, batch_size=4, epochs=3, shuffle=False, verbose=0
        )
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)
    assert losses[0][-1] < losses[0][0]


def test_dynamic_shapes():
    encoder = make_stack()
    spec = tf.TensorSpec([None, None, SIZE], tf.float32)

    @tf.function(input_signature=[spec])
    def run(hidden):
        mask = tf.ones(tf.shape(hidden)[:2])
        return encoder(hidden, mask, training=True, seed=SEED)

    for shape in ((3, 6, SIZE), (2, 5, SIZE)):
        hidden = normal(*shape)
        expected = encoder(hidden, tf.ones(shape[:2]), training=True, seed=SEED)
        np.testing.assert_allclose(run(hidden), expected, atol=1e-5)
