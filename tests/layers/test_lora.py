"""LoRA: outputs and gradients against kernels with the product of the factors added."""

import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from tests import tiny
from tests.layers.helpers import check_config, randomize

IDS = tf.constant([[2, 7, 9, 3, 0], [2, 8, 3, 5, 3]])
INPUTS = {"input_ids": IDS, "input_mask": tf.cast(IDS > 0, tf.int32)}
WEIGHTS = np.random.default_rng(0).normal(size=[2, 5, 32]).astype("float32")
KERNELS = ("qkv", "attention_output", "intermediate", "output")


def encoder(**options):
    table = et.layers.TextEmbedding(tiny.VOCAB, 12, max_positions=8, name="embeddings")
    return tiny.encoder(table, name="encoder", **options)


@pytest.fixture(scope="module")
def adapted():
    made = encoder()
    before = made(INPUTS)
    made.enable_lora(3)
    np.testing.assert_array_equal(made(INPUTS), before)
    randomize(made.trainable_variables, stddev=0.2)
    return made


def gradients(model, variables):
    seed = tf.constant([1, 2])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(INPUTS, training=True, seed=seed) * WEIGHTS)
    return [gradient.numpy() for gradient in tape.gradient(loss, variables)]


def test_factors_are_an_update_of_the_kernel(adapted):
    merged = adapted.merge_lora()
    assert not merged.lora_rank
    assert len(merged.trainable_variables) == len(merged.weights)
    paths = [(v.path, v.shape) for v in encoder().weights]
    assert [(v.path, v.shape) for v in merged.weights] == paths
    for call in ("__call__", "encode_tokens", "encode_first"):
        ours, theirs = (getattr(m, call)(INPUTS) for m in (adapted, merged))
        rows = INPUTS["input_mask"].numpy()[:, : ours.shape[1], np.newaxis]
        np.testing.assert_allclose(ours * rows, theirs * rows, atol=1e-6, rtol=1e-6)
    # If G is the gradient of W + A B, the factors have G B' and A' G.
    kernels, wholes = (
        [getattr(b, f"{n}_kernel") for b in m.transformer.blocks for n in KERNELS]
        for m in (adapted, merged)
    )
    of_whole = gradients(merged, wholes)
    of_a = gradients(adapted, [kernel.lora[0] for kernel in kernels])
    of_b = gradients(adapted, [kernel.lora[1] for kernel in kernels])
    for kernel, g, g_a, g_b in zip(kernels, of_whole, of_a, of_b, strict=True):
        a, b = (factor.numpy() for factor in kernel.lora)
        np.testing.assert_allclose(g_a, g @ b.T, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(g_b, a.T @ g, atol=1e-4, rtol=1e-4)


def test_only_factors_are_trained_and_saved(adapted, tmp_path):
    adapted.trainable = False
    assert not adapted.trainable_variables
    # A model of the encoder and a head asks each variable.
    assert not any(variable.trainable for variable in adapted.weights)
    adapted.trainable = True
    names = {v.name for v in adapted.trainable_variables}
    assert names == {f"{kernel}_lora_{x}" for kernel in KERNELS for x in "ab"}
    path = tmp_path / "mine.lora.h5"
    adapted.save_lora_weights(path)
    copy = check_config(adapted)
    assert copy.lora_rank == 3
    copy.set_weights(adapted.get_weights())
    for variable in copy.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    copy.load_lora_weights(path)
    np.testing.assert_array_equal(copy(INPUTS), adapted(INPUTS))
    copy.labels = ("neg", "pos")
    copy.save_lora_weights(tmp_path / "labeled.lora.h5")
    copy.labels = ("pos", "neg")
    with pytest.raises(ValueError, match=r"labels \['neg', 'pos'\], and the model"):
        copy.load_lora_weights(tmp_path / "labeled.lora.h5")
    for layers in (1, 3):
        other = encoder(num_layers=layers)
        with pytest.raises(ValueError, match="another model"):
            other.load_lora_weights(path)
        assert not other.lora_rank
    (tmp_path / "bad.lora.h5").write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"bad\.lora\.h5 holds no LoRA weights"):
        adapted.load_lora_weights(tmp_path / "bad.lora.h5")
    with pytest.raises(ValueError, match="enabled already, of rank 3"):
        adapted.enable_lora(4)
    adapted.trainable = False
    with pytest.raises(ValueError, match="frozen: set trainable=True"):
        adapted.save_lora_weights(path)
    adapted.trainable = True
    fresh = encoder()
    for rank in ("4", 2.0, 0):
        with pytest.raises(ValueError, match=f"got {rank!r}: give an integer"):
            fresh.enable_lora(rank)
    assert not fresh.lora_rank
    with pytest.raises(ValueError, match="no LoRA weights"):
        encoder().save_lora_weights(path)
    with pytest.raises(ValueError, match="must end with"):
        adapted.save_lora_weights(tmp_path / "mine.h5")
