import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, log_softmax, softmax

from electra_tf.tasks.span_head import AnswerabilityLoss, PositionLoss, SpanHead
from tests.reference.encoder import gelu

D, S = 6, 9


def head(beam=20, **kwargs):
    found = SpanHead(D, dense_size=5, beam_size=beam, **kwargs)
    found.build()
    random = np.random.default_rng(1)
    found.set_weights([random.normal(size=w.shape) for w in found.weights])
    return found


def inputs():
    """Rows [CLS] q q [SEP] c c c c [SEP], and a shorter one with padding."""
    return {
        "input_mask": tf.constant([[1] * 9, [1] * 7 + [0] * 2]),
        "segment_ids": tf.constant([[0] * 4 + [1] * 5, [0] * 3 + [1] * 4 + [0] * 2]),
    }


def hidden():
    return np.random.default_rng(2).normal(size=[2, S, D]).astype(np.float32)


def tiled_end_logits(layer, states):
    """As the original: concatenates all pairs and applies the whole kernel."""
    starts = np.repeat(states[:, :, None], S, 2)
    ends = np.repeat(states[:, None], S, 1)
    pairs = np.concatenate([starts, ends], -1)  # [B, start, end, 2D]
    (kernel, bias), (end_kernel, end_bias) = layer.end_hidden, layer.end
    inner = gelu(pairs @ kernel.numpy() + bias.numpy())
    return (inner @ end_kernel.numpy() + end_bias.numpy())[..., 0]


def forbidden():
    allowed = inputs()["input_mask"].numpy() * inputs()["segment_ids"].numpy()
    allowed[:, 0] = 1
    return -1000.0 * (1 - allowed)


def start_logits(layer, states):
    kernel, bias = layer.start
    return (states @ kernel.numpy() + bias.numpy())[..., 0] + forbidden()


def test_training_predicts_the_end_given_the_right_start():
    """Pitfall 39."""
    layer, states = head(), hidden()
    found = layer(states, {**inputs(), "start_positions": tf.constant([5, 0])})
    expected = tiled_end_logits(layer, states)[[0, 1], [5, 0]] + forbidden()
    np.testing.assert_allclose(found["end_logits"], expected, rtol=1e-4, atol=1e-4)
    starts = start_logits(layer, states)
    np.testing.assert_allclose(found["start_logits"], starts, rtol=1e-4, atol=1e-4)


def test_a_full_beam_is_brute_force_over_all_pairs():
    """Pitfall 39."""
    layer, states = head(beam=S), hidden()
    found = {k: v.numpy() for k, v in layer(states, inputs()).items()}
    joint = log_softmax(tiled_end_logits(layer, states) + forbidden()[:, None], -1)
    joint += log_softmax(start_logits(layer, states), -1)[:, :, None]
    assert found["end_index"].shape == (2, S, S)
    for row in range(2):
        beam = found["start_log_probs"][row][:, None] + found["end_log_probs"][row]
        place = np.unravel_index(np.argmax(beam), beam.shape)
        best = (found["start_index"][row][place[0]], found["end_index"][row][place])
        assert best == np.unravel_index(np.argmax(joint[row]), [S, S])
        for i, start in enumerate(found["start_index"][row]):
            expected = joint[row, start, found["end_index"][row, i]]
            np.testing.assert_allclose(beam[i], expected, rtol=1e-4, atol=1e-3)


def test_a_small_beam_keeps_the_best_and_never_asks_for_more_than_there_is():
    layer, states = head(beam=3), hidden()
    full = head(beam=50)(states, inputs())
    found = layer(states, inputs())
    assert found["end_index"].shape == (2, 3, 3)
    assert full["end_index"].shape == (2, S, S)
    for name in ("start_index", "start_log_probs"):
        np.testing.assert_allclose(found[name], full[name][:, :3], rtol=1e-5)
    # In the paragraph, its [SEP] or [CLS]; not in the question or the padding.
    assert set(found["start_index"][1].numpy()) <= {0, 3, 4, 5, 6}


def test_answerability_is_read_from_cls_and_the_expected_start():
    layer, states = head(), hidden()
    start = np.einsum("bs,bsd->bd", softmax(start_logits(layer, states), -1), states)
    vector = np.concatenate([states[:, 0], start], -1)
    (kernel, bias), (out, out_bias) = layer.null_hidden, layer.null
    inner = gelu(vector @ kernel.numpy() + bias.numpy())
    expected = (inner @ out.numpy() + out_bias.numpy())[:, 0]
    found = layer(states, inputs())["null_logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    off = head(answerability=False)
    assert "null_logits" not in off(states, inputs())
    assert off.count_params() == D + 1 + (2 * D + 1) * 5 + 5 + 1


def test_no_tensor_of_inference_is_as_large_as_a_tiled_one():
    layer = SpanHead(D, dense_size=5, beam_size=7)
    layer.build()
    length = 33
    specs = [tf.TensorSpec([2, length, D])] + [tf.TensorSpec([2, length], tf.int32)] * 2
    graph = (
        tf.function(lambda h, m, s: layer(h, {"input_mask": m, "segment_ids": s}))
        .get_concrete_function(*specs)
        .graph
    )
    bodies = [graph, *(graph._get_function(n).graph for n in graph._functions)]
    sizes = [
        output.shape.num_elements()
        for found in bodies
        for operation in found.get_operations()
        for output in operation.outputs
        if output.shape.is_fully_defined()
    ]
    # Memory holds the logits of all ends and the hidden layer of one start at a time.
    assert 2 * 7 * length in sizes
    assert 2 * length * 5 in sizes
    assert max(sizes) < 2 * 7 * length * min(5, D)


def test_losses_are_weighted_cross_entropies():
    logits = np.random.default_rng(0).normal(size=[3, S]).astype(np.float32)
    expected = -log_softmax(logits, -1)[[0, 1, 2], [4, 0, 8]]
    targets = np.array([4, 0, 8])
    found = PositionLoss(0.5, reduction="sum")(targets, logits)
    assert float(found) == pytest.approx(0.5 * expected.sum(), rel=1e-5)
    found = PositionLoss(0.5, reduction="sum_over_batch_size")(targets, logits)
    assert float(found) == pytest.approx(0.5 * expected.mean(), rel=1e-5)
    null = np.array([0.3, -2.0, 5.0], np.float32)
    expected = -np.log([expit(0.3), 1 - expit(-2.0), expit(5.0)]).sum()
    found = AnswerabilityLoss(0.25, reduction="sum")(np.array([1.0, 0, 1]), null)
    assert float(found) == pytest.approx(0.25 * expected, rel=1e-5)
    for value in (PositionLoss(0.5), AnswerabilityLoss()):
        config = keras.saving.serialize_keras_object(value)
        again = keras.saving.deserialize_keras_object(config)
        assert type(again) is type(value)
        assert again.get_config() == value.get_config()
