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
    return tape.gradient(loss, variables)


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
    of_factors = gradients(adapted, [kernel.lora for kernel in kernels])
    for kernel, whole, found in zip(kernels, of_whole, of_factors, strict=True):
        a, b = (factor.numpy() for factor in kernel.lora)
        np.testing.assert_allclose(found[0], whole @ b.T, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(found[1], a.T @ whole, atol=1e-4, rtol=1e-4)


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
    # Blocks can be frozen and released one by one, and the file holds them all.
    for layer in (adapted.transformer.blocks[0], adapted.transformer):
        layer.trainable = False
        assert len(adapted.trainable_variables) < len(names) * adapted.num_layers
        adapted.save_lora_weights(path)
        assert encoder().load_lora_weights(path) is None
        layer.trainable = True
        assert {v.name for v in adapted.trainable_variables} == names
    adapted.trainable = False
    adapted.embeddings.trainable = True
    with pytest.raises(ValueError, match="word_embeddings is trained, and the file"):
        adapted.save_lora_weights(path)
    adapted.trainable = True
    damaged, fresh = tmp_path / "bad.lora.h5", encoder(num_layers=1)
    damaged.write_bytes(path.read_bytes()[:100])
    for method, given, message in (
        (copy.load_lora_weights, tmp_path / "labeled.lora.h5", r"\['neg', 'pos'\], an"),
        (adapted.load_lora_weights, damaged, r"bad\.lora\.h5 holds no LoRA weights"),
        (adapted.enable_lora, 4, "enabled already, of rank 3"),
        (fresh.load_lora_weights, path, "another model"),
        (fresh.enable_lora, "4", "got '4': give an integer"),
        (fresh.save_lora_weights, path, "no LoRA weights"),
    ):
        with pytest.raises(ValueError, match=message):
            method(given)
    assert not fresh.lora_rank
