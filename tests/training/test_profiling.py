import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import fused, plain
from electra_tf.training import profiling
from electra_tf.training.profiling import Event, ProfileSteps


@pytest.mark.parametrize(
    ("kind", "name", "function", "expected"),
    [
        ("_MklMatMul", "gradient_tape/masked_lm/head/MatMul", "", "matrix products"),
        ("MatMul", "layer_3/MatMul_2", "", "matrix products"),
        ("XLA", "", "_softmax_gradient", "attention, without products"),
        ("XLA", "", "_cross_entropy_gradient", "heads, losses, metrics"),
        ("XLA", "", "bias_activation_gradient", "activations"),
        ("XLA", "", "bias_drop_add_norm", "LayerNorm, dropout, residual"),
        ("StatelessMultinomial", "stateless_categorical/x", "", "sampling"),
        ("ResourceApplyAdam", "adamw/ResourceApplyAdam_4", "", "optimizer"),
        ("UnsortedSegmentSum", "adamw/UnsortedSegmentSum", "", "optimizer"),
        ("GatherV2", "discriminator/embeddings/GatherV2", "", "embeddings"),
        ("IteratorGetNext", "IteratorGetNext", "", "input"),
        ("Greater", "Greater", "", "other"),
    ],
)
def test_category(kind, name, function, expected):
    assert profiling.category(Event(kind, name, function, 1.0)) == expected


def test_shares_and_table():
    events = [
        Event("MatMul", "a", "", 3.0),
        Event("XLA", "", "bias_activation", 0.5),
        Event("MatMul", "b", "", 0.5),
    ]
    shares = profiling.shares(events)
    assert list(shares.items()) == [("matrix products", 0.875), ("activations", 0.125)]
    lines = profiling.table(shares, 0.2).splitlines()
    assert lines[1].split() == ["matrix", "products", "87.5%", "175.0"]
    assert lines[-1].split() == ["a", "step", "200.0"]
    assert profiling.shares([]) == {}


class Model(keras.Model):
    """A product, a fused activation, and an optimizer."""

    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(name="kernel", shape=(256, 256))
        self.built = True

    def train_step(self, data):
        with tf.GradientTape() as tape:
            rows = tf.matmul(data, tf.convert_to_tensor(self.kernel))
            bias = tf.zeros([256])
            rows = fused.bias_activation(rows, bias, activation=plain.gelu)
            loss = tf.reduce_mean(rows)
        kernel = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, kernel), kernel)
        return {"loss": loss}


def fit(folder, steps, lines):
    model = Model()
    model.compile(optimizer="sgd")
    data = tf.data.Dataset.from_tensors(np.ones([512, 256], np.float32)).repeat()
    callback = ProfileSteps(folder, lines.append, steps=2)
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[callback])


def test_a_fit_is_traced(tmp_path):
    lines = []
    fit(tmp_path, 6, lines)
    assert "tensorboard" in lines[1]
    events = list(profiling.read_events(tmp_path))
    products = [e for e in events if profiling.category(e) == "matrix products"]
    # Forward and the gradient of the kernel, in each of two steps.
    assert len(products) == 4
    assert {e.function for e in events if e.kind == "XLA"} >= {
        "bias_activation",
        "bias_activation_gradient",
    }
    assert "matrix products" in lines[0]
    assert "activations" in lines[0]


def test_too_short_a_fit_says_so(tmp_path):
    lines = []
    fit(tmp_path, 2, lines)
    assert "too few steps" in lines[0]
    with pytest.raises(FileNotFoundError, match="xplane"):
        next(profiling.read_events(tmp_path))
