import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import WarmupPolynomialDecay
from tests.reference import optimizer as reference
from tests.strategy import two_cpus

NAMES = ("kernel", "bias", "embeddings", "gamma", "output_bias", "beta")
SHAPES = ((4, 3), (3,), (5, 2), (3,), (5,), (3,))
DECAYED = (True, False, True, False, False, False)


def make_variables(seed=0):
    rng = np.random.default_rng(seed)
    return [
        keras.Variable(rng.normal(size=s).astype("float32"), name=n)
        for n, s in zip(NAMES, SHAPES, strict=True)
    ]


def make_gradients(steps, scale=1.0, seed=1):
    rng = np.random.default_rng(seed)
    return [
        [(scale * rng.normal(size=s)).astype("float32") for s in SHAPES]
        for _ in range(steps)
    ]


def values(variables):
    return [np.array(v) for v in variables]


def assert_close(left, right, atol=1e-6):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 1.0, 100.0])
def test_trajectory_equals_reference(bias_correction, clip_norm):
    """Adam of the original: bias, epsilon, decay, joint clip, in three steps.

    (pitfalls 29 and 32 of docs/fidelity.md)
    """
    options = {"bias_correction": bias_correction, "clip_norm": clip_norm}
    variables = make_variables()
    weights = [w.astype(np.float64) for w in values(variables)]
    optimizer = AdamW(
        WarmupPolynomialDecay(0.03, 10, warmup_steps=2), weight_decay=0.3, **options
    )
    optimizer.build(variables)
    oracle = reference.AdamW(DECAYED, weight_decay=0.3, **options)
    for step, gradients in enumerate(make_gradients(3)):
        optimizer.apply([tf.constant(g) for g in gradients], variables)
        rate = reference.learning_rate(step, 0.03, 10, 2)
        weights = oracle.apply(gradients, weights, rate)
        assert_close(values(variables), weights)
        np.testing.assert_allclose(
            optimizer.gradient_norm.numpy(), oracle.norm, rtol=1e-6
        )
    assert int(optimizer.first_nonfinite) == -1
    assert optimizer.nonfinite_variable() is None


def test_an_update_needs_no_variable_that_a_gpu_cannot_hold():
    # TensorFlow keeps other dtypes on the host, where XLA cannot use them.
    weight = keras.Variable([1.0], name="kernel")
    optimizer = AdamW(0.1)
    optimizer.build([weight])
    update = tf.function(lambda: optimizer.apply([tf.constant([0.5])], [weight]))
    kernels = get_registered_kernels_for_op("AssignVariableOp").kernel
    on_gpu = {
        tf.dtypes.as_dtype(constraint.allowed_values.list.type[0])
        for kernel in kernels
        if kernel.device_type == "GPU"
        for constraint in kernel.constraint
    }
    assert tf.int32 not in on_gpu
    used = update.get_concrete_function().graph.variables
    assert optimizer.first_nonfinite.ref() in {variable.ref() for variable in used}
    assert {variable.dtype for variable in used} <= on_gpu


@pytest.mark.parametrize(
    ("gradient", "share"), [(1.0, 1.0), (1e-4, 0.760), (1e-6, 0.0307)]
)
def test_bias_correction_leaves_epsilon_as_it_is(gradient, share):
    """First update in learning rates: g / (g + epsilon / sqrt(1 - beta_2))."""
    weight = keras.Variable([0.0], name="kernel")
    AdamW(0.1, epsilon=1e-6, bias_correction=True, clip_norm=None).apply(
        [tf.constant([gradient])], [weight]
    )
    assert -float(weight[0]) / 0.1 == pytest.approx(share, abs=5e-4)


def test_first_step_of_a_warm_up_leaves_weights_but_fills_slots():
    """Step 0 has learning rate 0 (pitfall 30 of docs/fidelity.md)."""
    variables = make_variables()
    before = values(variables)
    optimizer = AdamW(WarmupPolynomialDecay(0.1, 10, warmup_steps=2))
    optimizer.apply([tf.constant(g) for g in make_gradients(1)[0]], variables)
    assert_close(before, values(variables), atol=0)
    assert all(np.any(np.array(m)) for m in optimizer._momentums)


def test_zero_gradients_shrink_exactly_the_decayed_variables():
    inputs = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(7, 3, name="word_embeddings")(inputs)
    x = keras.layers.LayerNormalization(name="norm")(x)
    model = keras.Model(inputs, keras.layers.Dense(2, name="bias_free_head")(x))
    for variable in model.trainable_variables:
        variable.assign(tf.ones_like(variable))
    optimizer = AdamW(0.5, weight_decay=0.1)
    optimizer.apply(
        [tf.zeros_like(v) for v in model.trainable_variables],
        model.trainable_variables,
    )
    shrunk = {v.path for v in model.trainable_variables if np.any(np.array(v) != 1)}
    assert shrunk == {"word_embeddings/embeddings", "bias_free_head/kernel"}
    np.testing.assert_allclose(np.array(model.trainable_variables[0]), 0.95)


def test_patterns_and_the_inherited_exclusion_both_count():
    variables = make_variables()
    optimizer = AdamW(0.5, weight_decay=0.1, exclude_from_weight_decay=("k*",))
    optimizer.exclude_from_weight_decay(var_list=[variables[1]])
    before = values(variables)
    optimizer.apply([tf.zeros(s) for s in SHAPES], variables)
    same = [
        np.array_equal(a, b) for a, b in zip(before, values(variables), strict=True)
    ]
    assert same == [True, True, False, False, False, False]


def test_sparse_gradients_sum_repeated_rows_before_the_norm():
    variable = keras.Variable(np.ones((4, 2), "float32"), name="embeddings")
    rows = np.array([[3.0, 0.0], [1.0, 0.0], [0.0, 2.0]], "float32")
    sparse = tf.IndexedSlices(tf.constant(rows), tf.constant([1, 1, 3]), (4, 2))
    dense = np.zeros((4, 2))
    np.add.at(dense, [1, 1, 3], rows)
    optimizer = AdamW(0.1)
    optimizer.apply([sparse], [variable])
    oracle = reference.AdamW([True])
    expected = oracle.apply([dense], [np.ones((4, 2))], 0.1)
    assert_close([np.array(variable)], expected)
    np.testing.assert_allclose(optimizer.gradient_norm.numpy(), np.sqrt(16 + 4))


@pytest.mark.parametrize("form", ["list", "dict"])
def test_multipliers_scale_update_and_decay(form):
    variables = make_variables()
    multipliers = [([variables[0], variables[1]], 0.5), ([variables[2]], 0.25)]
    if form == "dict":
        multipliers = {"kernel": 0.5, "bias": 0.5, "embeddings": 0.25}
    weights = values(variables)
    optimizer = AdamW(0.03, weight_decay=0.3, learning_rate_multipliers=multipliers)
    oracle = reference.AdamW(
        DECAYED, weight_decay=0.3, factors=[0.5, 0.5, 0.25, 1, 1, 1]
    )
    for gradients in make_gradients(3):
        optimizer.apply([tf.constant(g) for g in gradients], variables)
        weights = oracle.apply(gradients, weights, 0.03)
    assert_close(values(variables), weights)


def test_multiplier_errors():
    variables = make_variables()
    with pytest.raises(ValueError, match="names kernal, which"):
        AdamW(0.1, learning_rate_multipliers={"kernal": 2.0}).build(variables)
    with pytest.raises(ValueError, match=r"multipliers 0.5 and 0.7"):
        AdamW(
            0.1,
            learning_rate_multipliers=[(variables[:1], 0.5), (variables[:1], 0.7)],
        )


def test_variables_with_multipliers_may_be_frozen(tmp_path):
    """Freezes after compiling, before the first step; a loaded model still trains."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, name="below")
    model = keras.Model(inputs, keras.layers.Dense(3, name="dense")(hidden(inputs)))
    factors = [(hidden.variables, 0.5), ([model.layers[2].kernel], 0.25)]
    model.compile(AdamW(0.05, learning_rate_multipliers=factors), loss="mse")
    hidden.trainable = False
    frozen, kernel = hidden.get_weights(), values([model.layers[2].kernel])
    model.fit(make_data(), verbose=0)
    assert_close(frozen, hidden.get_weights(), 0)
    assert np.abs(model.layers[2].kernel - kernel[0]).max() > 0
    assert model.optimizer.learning_rate_multipliers == {"dense/kernel": 0.25}
    model.save(tmp_path / "model.keras")
    keras.saving.load_model(tmp_path / "model.keras").fit(make_data(), verbose=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_nonfinite_gradient_is_named_and_leaves_everything_finite(bad, clip_norm):
    variables = make_variables()
    optimizer = AdamW(0.1, clip_norm=clip_norm)
    steps = make_gradients(3)
    steps[1][2][0, 0] = bad
    steps[1][4][0] = bad
    for gradients in steps[:2]:
        optimizer.apply([tf.constant(g) for g in gradients], variables)
    assert not np.isfinite(optimizer.gradient_norm.numpy())
    assert int(optimizer.first_nonfinite) == 2
    assert optimizer.nonfinite_variable() == "embeddings"
    state = values(variables) + values(optimizer._momentums + optimizer._velocities)
    assert all(np.all(np.isfinite(x)) for x in state)
    optimizer.apply([tf.constant(g) for g in steps[2]], variables)
    assert optimizer.nonfinite_variable() is None


def test_index_counts_variables_without_gradient():
    variables = make_variables()
    optimizer = AdamW(0.1)
    optimizer.build(variables)
    gradients = [None, *(tf.zeros(s) for s in SHAPES[1:])]
    gradients[3] = tf.fill(SHAPES[3], np.nan)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply(gradients, variables)
    assert optimizer.nonfinite_variable() == "gamma"


@pytest.mark.parametrize("bias_correction", [False, True])
def test_compiled_equals_eager(bias_correction):
    def run(jit_compile):
        variables = make_variables()
        optimizer = AdamW(0.1, bias_correction=bias_correction)
        optimizer.build(variables)

        @tf.function(jit_compile=jit_compile)
        def step(gradients):
            optimizer.apply(gradients, variables)

        for gradients in make_gradients(3):
            step([tf.constant(g) for g in gradients])
        return values(variables)

    assert_close(run(False), run(True))


def test_errors():
    with pytest.raises(ValueError, match="after_reduction, per_replica"):
        AdamW(clipping="before")
    with pytest.raises(ValueError, match="None for no clipping"):
        AdamW(clip_norm=0.0)


class Regression(keras.Model):
    """Linear model with a global loss denominator, as the library's models."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(3, name="dense")
        self.build((None, 4))

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, x):
        return self.dense(x)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            # The factor keeps clipping active.
            loss = 100.0 * tf.reduce_sum(tf.square(self(x) - y)) / 8.0
            scaled = self.optimizer.scale_loss(loss)
        grads = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}


def make_data(steps=4, batch=8):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps * batch, 4)).astype("float32")
    y = rng.normal(size=(steps * batch, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)


@pytest.fixture(scope="module")
def strategy():
    return two_cpus()


def train(scope=None, clipping="after_reduction", **compile_kwargs):
    keras.utils.set_random_seed(1)
    with scope.scope() if scope else tf.distribute.get_strategy().scope():
        model = Regression()
        optimizer = AdamW(0.05, weight_decay=0.1, clipping=clipping)
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, **compile_kwargs)
    model.fit(make_data(), epochs=2, verbose=0, shuffle=False)
    return model


def test_steps_per_execution_changes_nothing():
    one, four = train(), train(steps_per_execution=4)
    assert_close(values(one.weights), values(four.weights), atol=0)


def run_replicas(strategy, optimizer, variable, per_replica):
    @tf.function
    def step():
        context = tf.distribute.get_replica_context()
        index = context.replica_id_in_sync_group
        optimizer.apply([tf.constant(per_replica)[index]], [variable])

    strategy.run(step)


@pytest.mark.parametrize(
    ("clipping", "expected_norm", "expected"),
    [
        # Sum (10, 10): norm 14.14, one joint clip to (0.707, 0.707).
        ("after_reduction", 200**0.5, [0.5**0.5, 0.5**0.5]),
        # Each replica's gradient is clipped to clip_norm / 2, then summed.
        ("per_replica", 0.5**0.5, [0.5, 0.5]),
    ],
)
def test_where_the_clip_happens(strategy, clipping, expected_norm, expected):
    """Joint clip of gradients of known norm (pitfall 32 of docs/fidelity.md)."""
    with strategy.scope():
        variable = keras.Variable([0.0, 0.0], name="kernel")
        optimizer = AdamW(1.0, weight_decay=0.0, clipping=clipping)
        optimizer.build([variable])
    run_replicas(strategy, optimizer, variable, [[10.0, 0.0], [0.0, 10.0]])
    momentum = np.array(optimizer._momentums[0])
    np.testing.assert_allclose(momentum, 0.1 * np.array(expected), rtol=1e-6)
    np.testing.assert_allclose(
        optimizer.gradient_norm.numpy(), expected_norm, rtol=1e-6
    )


@pytest.mark.parametrize("clipping", ["after_reduction", "per_replica"])
def test_nonfinite_on_one_replica_stops_no_weight(strategy, clipping):
    with strategy.scope():
        variable = keras.Variable([1.0, 2.0], name="kernel")
        optimizer = AdamW(1.0, clipping=clipping)
        optimizer.build([variable])
    run_replicas(strategy, optimizer, variable, [[1.0, 0.0], [np.inf, 1.0]])
    assert optimizer.nonfinite_variable() == "kernel"
    assert np.all(np.isfinite(np.array(variable)))
    assert np.all(np.array(optimizer._momentums[0]) == 0)


def test_loss_scaling():
    """Clip after unscaling, not before (pitfall 32 of docs/fidelity.md)."""
    plain = train()
    keras.utils.set_random_seed(1)
    model = Regression()
    inner = AdamW(0.05, weight_decay=0.1)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10)
    scaled.build(model.trainable_variables)
    model.compile(scaled)
    model.fit(make_data(), epochs=2, verbose=0, shuffle=False)
    assert_close(values(plain.weights), values(model.weights))
    np.testing.assert_allclose(
        float(inner.gradient_norm), float(plain.optimizer.gradient_norm), rtol=1e-5
    )


def test_mixed_float16_fit_wraps_the_optimizer():
    inputs = keras.Input((4,))
    dense = keras.layers.Dense(3, dtype="mixed_float16")
    model = keras.Model(inputs, dense(inputs))
    model.compile(
        keras.optimizers.LossScaleOptimizer(AdamW(0.05), initial_scale=8.0), loss="mse"
    )
    before = values(model.weights)
    model.fit(make_data(), verbose=0, shuffle=False)
    assert not np.array_equal(before[0], np.array(model.weights[0]))
    assert all(np.all(np.isfinite(w)) for w in values(model.weights))


def test_save_and_load_keep_state_and_options(tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3, name="dense")(inputs))
    model.compile(
        AdamW(
            WarmupPolynomialDecay(0.05, 100, warmup_steps=2),
            clip_norm=2.0,
            bias_correction=True,
            learning_rate_multipliers=[([model.layers[1].kernel], 0.5)],
        ),
        loss="mse",
    )
    model.fit(make_data(), verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    copy = keras.saving.load_model(tmp_path / "model.keras")
    assert copy.optimizer.get_config() == model.optimizer.get_config()
    assert copy.optimizer.learning_rate_multipliers == {"dense/kernel": 0.5}
    assert_close(values(model.optimizer.variables), values(copy.optimizer.variables), 0)
    for m in (model, copy):
        m.fit(make_data(), verbose=0, shuffle=False)
    assert_close(values(model.weights), values(copy.weights), atol=0)


def test_files_with_clip_groups_load_with_a_warning(tmp_path):
    """Older versions could clip groups of variables separately."""
    config = AdamW(0.1).get_config()
    groups = {"generator": [["kernel"], 2.0]}
    with pytest.warns(UserWarning, match="clipped generator by a norm of its own"):
        optimizer = AdamW.from_config({**config, "clip_groups": groups})
    assert AdamW.from_config({**config, "clip_groups": {}}).clip_norm == 1.0
    optimizer.build(make_variables())
    state = {str(i): np.ones(v.shape) for i, v in enumerate(optimizer.variables)}
    optimizer.load_own_variables({**state, str(len(state)): np.ones(())})
    assert all(np.all(np.array(v) == 1) for v in optimizer.variables)
