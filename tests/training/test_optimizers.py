import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import WarmupPolynomialDecay
from tests import tiny
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


def make_gradients(steps):
    draw = np.random.default_rng(1).normal
    return [[draw(size=s).astype("float32") for s in SHAPES] for _ in range(steps)]


def values(variables):
    return [np.array(v) for v in variables]


def assert_close(left, right, atol=1e-6):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("bias_correction", "clip_norm", "jit_compile"),
    [(False, 1.0, None), (True, 100.0, False), (False, None, True), (True, 1.0, True)],
)
def test_trajectory_equals_reference(bias_correction, clip_norm, jit_compile):
    """Equals AdamW in float64, and its rate of step 0 is 0.

    Pitfalls 29, 30 and 32 of docs/fidelity.md.
    """
    options = {"bias_correction": bias_correction, "clip_norm": clip_norm}
    variables = make_variables()
    weights = [w.astype(np.float64) for w in values(variables)]
    schedule = WarmupPolynomialDecay(0.03, 10, warmup_steps=2)
    optimizer = AdamW(schedule, weight_decay=0.3, **options)
    optimizer.build(variables)

    def apply(gradients):
        optimizer.apply(gradients, variables)

    if jit_compile is not None:
        apply = tf.function(apply, jit_compile=jit_compile)
    oracle = reference.AdamW(DECAYED, weight_decay=0.3, **options)
    for step, gradients in enumerate(make_gradients(3)):
        apply([tf.constant(g) for g in gradients])
        rate = reference.learning_rate(step, 0.03, 10, 2)
        weights = oracle.apply(gradients, weights, rate)
        assert_close(values(variables), weights, atol=1e-6 if step else 0)
        norm = optimizer.gradient_norm.numpy()
        np.testing.assert_allclose(norm, oracle.norm, rtol=1e-6)
    assert int(optimizer.first_nonfinite) == -1
    assert optimizer.nonfinite_variable() is None


@pytest.mark.parametrize(("gradient", "share"), [(1.0, 1.0), (1e-4, 0.760)])
def test_bias_correction_leaves_epsilon_as_it_is(gradient, share):
    """First update in learning rates: g / (g + epsilon / sqrt(1 - beta_2))."""
    weight = keras.Variable([0.0], name="kernel")
    optimizer = AdamW(0.1, epsilon=1e-6, bias_correction=True, clip_norm=None)
    optimizer.apply([tf.constant([gradient])], [weight])
    assert -float(weight[0]) / 0.1 == pytest.approx(share, abs=5e-4)


def test_zero_gradients_shrink_exactly_the_decayed_variables():
    inputs = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(7, 3, name="word_embeddings")(inputs)
    x = keras.layers.LayerNormalization(name="norm")(x)
    model = keras.Model(inputs, keras.layers.Dense(2, name="bias_free_head")(x))
    variables, optimizer = model.trainable_variables, AdamW(0.5, weight_decay=0.1)
    shrunk = tiny.decayed(optimizer, variables, left=0.95)
    names = {v.path for v, shrinks in zip(variables, shrunk, strict=True) if shrinks}
    assert names == {"word_embeddings/embeddings", "bias_free_head/kernel"}


@pytest.mark.parametrize("patterns", [("k*",), "k*"])
def test_patterns_and_the_inherited_exclusion_both_count(patterns):
    variables = make_variables()
    optimizer = AdamW(0.5, weight_decay=0.1, exclude_from_weight_decay=patterns)
    optimizer.exclude_from_weight_decay(var_list=[variables[1]])
    before = values(variables)
    optimizer.apply([tf.zeros(s) for s in SHAPES], variables)
    same = list(map(np.array_equal, before, variables))
    assert same == [True, True, False, False, False, False]
    with pytest.raises(ValueError, match="configured before"):
        optimizer.exclude_from_weight_decay(var_names=["kernel"])


def test_sparse_gradients_sum_repeated_rows_before_the_norm():
    variable = keras.Variable(np.ones((4, 2), "float32"), name="embeddings")
    rows = np.array([[3.0, 0.0], [1.0, 0.0], [0.0, 2.0]], "float32")
    sparse = tf.IndexedSlices(tf.constant(rows), tf.constant([1, 1, 3]), (4, 2))
    dense = np.zeros((4, 2))
    np.add.at(dense, [1, 1, 3], rows)
    optimizer = AdamW(0.1)
    optimizer.apply([sparse], [variable])
    expected = reference.AdamW([True]).apply([dense], [np.ones((4, 2))], 0.1)
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
    factors = [0.5, 0.5, 0.25, 1, 1, 1]
    oracle = reference.AdamW(DECAYED, weight_decay=0.3, factors=factors)
    for gradients in make_gradients(3):
        optimizer.apply([tf.constant(g) for g in gradients], variables)
        weights = oracle.apply(gradients, weights, 0.03)
    assert_close(values(variables), weights)


def test_errors():
    variables = make_variables()
    with pytest.raises(ValueError, match="None for no clipping"):
        AdamW(clip_norm=0.0)
    with pytest.raises(ValueError, match="names kernal, which is not"):
        AdamW(0.1, learning_rate_multipliers={"kernal": 2.0}).build(variables)
    twice = [(variables[:1], 0.5), (variables[:1], 0.7)]
    with pytest.raises(ValueError, match=r"multipliers 0.5 and 0.7"):
        AdamW(0.1, learning_rate_multipliers=twice)
    optimizer = AdamW(1.0)
    optimizer.weight_decay = 0.5
    assert tiny.decayed(optimizer, variables) == [*DECAYED]
    assert optimizer.get_config()["weight_decay"] == 0.5
    with pytest.raises(ValueError, match="compile the model with another AdamW"):
        optimizer.weight_decay = 0.1


def test_the_end_of_the_data_is_no_step():
    """Keras runs another step to find the end of data of unknown size."""
    found = []
    for is_known in (True, False):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile(AdamW(0.5, weight_decay=0.5), "mse", run_eagerly=False)
        data = make_data() if is_known else make_data().filter(lambda *_: True)
        model.fit(data, verbose=0)
        found.append([*values(model.weights), int(model.optimizer.iterations.numpy())])
    np.testing.assert_equal(found[1], found[0])


def test_variables_with_multipliers_may_be_frozen(tmp_path):
    """Freezes after compiling, before the first step; a loaded model still trains."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, name="below")
    model = keras.Model(inputs, keras.layers.Dense(3, name="dense")(hidden(inputs)))
    factors = [(hidden.variables, 0.5), ([model.layers[2].kernel], 0.25)]
    optimizer = AdamW(0.05, learning_rate_multipliers=factors)
    model.compile(optimizer, loss="mse", run_eagerly=True)
    hidden.trainable = False
    frozen, kernel = hidden.get_weights(), values([model.layers[2].kernel])
    model.fit(make_data(), verbose=0)
    assert_close(frozen, hidden.get_weights(), 0)
    assert np.abs(model.layers[2].kernel - kernel[0]).max() > 0
    assert model.optimizer.learning_rate_multipliers == {"dense/kernel": 0.25}
    model.save(tmp_path / "model.keras")
    keras.saving.load_model(tmp_path / "model.keras").fit(make_data(), verbose=0)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_nonfinite_gradient_is_named_and_leaves_everything_finite(bad, clip_norm):
    variables, steps = make_variables(), make_gradients(3)
    optimizer = AdamW(0.1, clip_norm=clip_norm)
    steps[1][2][0, 0] = steps[1][4][0] = bad
    for gradients in steps[:2]:
        optimizer.apply([tf.constant(g) for g in gradients], variables)
    assert not np.isfinite(optimizer.gradient_norm.numpy())
    assert int(optimizer.first_nonfinite) == 2
    assert optimizer.nonfinite_variable() == "embeddings"
    slots = [v for v in optimizer.variables if v.shape != ()]
    assert len(slots) == 2 * len(variables)
    state = values(variables + slots)
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


def make_data():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(32, width)).astype("float32") for width in (4, 3))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


def test_the_sum_over_replicas_is_clipped():
    """Infinity on one replica stops both (pitfall 32 of docs/fidelity.md)."""
    strategy = two_cpus()
    with strategy.scope():
        variable = keras.Variable([0.0, 0.0], name="kernel")
        optimizer = AdamW(1.0, weight_decay=0.0)
        optimizer.build([variable])

    @tf.function
    def step(gradients):
        context = tf.distribute.get_replica_context()
        gradient = gradients[context.replica_id_in_sync_group]
        optimizer.apply([gradient], [variable])

    strategy.run(step, [tf.constant([[10.0, 0.0], [0.0, 10.0]])])
    (slot,) = (v for v in optimizer.variables if "momentum" in v.path)
    momentum = np.array(slot)
    # Sum (10, 10): norm 14.14, clipped to (0.707, 0.707).
    np.testing.assert_allclose(momentum, 0.1 * np.array([0.5, 0.5]) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(optimizer.gradient_norm.numpy(), 200**0.5, rtol=1e-6)
    assert optimizer.nonfinite_variable() is None
    strategy.run(step, [tf.constant([[1.0, 0.0], [np.inf, 1.0]])])
    assert optimizer.nonfinite_variable() == "kernel"
    assert np.all(np.isfinite(np.array(variable)))
    np.testing.assert_allclose(slot, 0.9 * momentum, rtol=1e-6)


def test_loss_scaling():
    """Clip after unscaling, not before (pitfall 32 of docs/fidelity.md)."""
    variables, inner = make_variables(), AdamW(0.05, weight_decay=0.3)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10)
    optimizer.build(variables)
    oracle, weights = reference.AdamW(DECAYED, weight_decay=0.3), values(variables)
    for gradients in make_gradients(3):
        optimizer.apply([tf.constant(2.0**10 * g) for g in gradients], variables)
        weights = oracle.apply(gradients, weights, 0.05)
        assert_close(values(variables), weights)
        assert float(inner.gradient_norm) == pytest.approx(oracle.norm, rel=1e-5)


def test_save_and_load_keep_state_and_options(tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3, name="dense")(inputs))
    schedule = WarmupPolynomialDecay(0.05, 100, warmup_steps=2)
    options = {"learning_rate_multipliers": [([model.layers[1].kernel], 0.5)]}
    optimizer = AdamW(schedule, clip_norm=2.0, bias_correction=True, **options)
    model.compile(optimizer, loss="mse", run_eagerly=True)
    model.fit(make_data(), verbose=0, shuffle=False)
    copy = tiny.reloaded(model, tmp_path)
    assert copy.optimizer.get_config() == model.optimizer.get_config()
    assert copy.optimizer.learning_rate_multipliers == {"dense/kernel": 0.5}
    assert_close(values(model.optimizer.variables), values(copy.optimizer.variables), 0)
    for m in (model, copy):
        m.fit(make_data(), verbose=0, shuffle=False)
    assert_close(values(model.weights), values(copy.weights), atol=0)


@pytest.mark.parametrize("count", [None, 1])
def test_state_of_other_variables_is_skipped_with_a_warning(count):
    """As in Keras: the optimizer is not built, or was built for fewer variables."""
    full, other = AdamW(1e-3), AdamW(1e-3)
    full.build(make_variables())
    full.apply(make_gradients(1)[0])
    store = {}
    full.save_own_variables(store)
    if count:
        other.build(make_variables()[-count:])
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        other.load_own_variables(store)
    assert int(other.iterations.numpy()) == 0


def test_files_with_clip_groups_load():
    """Older versions could clip groups of variables separately."""
    groups = {"generator": [["kernel"], 2.0]}
    older = {"clipping": "per_replica", "clip_groups": groups}
    optimizer = AdamW.from_config({**AdamW(0.1).get_config(), **older})
    optimizer.build(make_variables())
    state = {str(i): np.ones(v.shape) for i, v in enumerate(optimizer.variables)}
    optimizer.load_own_variables({**state, str(len(state)): np.ones(())})
    assert all(np.all(np.array(v) == 1) for v in optimizer.variables)
