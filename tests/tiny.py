"""Tiny models and batches for several tests."""

import functools
import math

import keras
import numpy as np
import tensorflow as tf

import electra_tf as et
import electra_tf.pretraining
from electra_tf.data.masking import Masking, row_keys
from electra_tf.features import derive_inputs
from electra_tf.layers import TextEmbedding

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB, LENGTH = 97, 24


def token_rows(lengths, *, size=LENGTH, vocab=VOCAB, seed=0):
    """Returns rows [CLS] A [SEP] B [SEP] of the given lengths, and their mask."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((len(lengths), size), np.int32)
    for row, length in enumerate(lengths):
        # Skewed frequencies, which a model can learn.
        ids[row, :length] = 5 + (rng.random(length) ** 3 * (vocab - 5)).astype(int)
        ids[row, 0] = CLS
        ids[row, length // 2] = ids[row, length - 1] = SEP
    return ids, (np.arange(size)[None] < np.array(lengths)[:, None]).astype(np.int32)


def batch(lengths=(24, 9, 17, 5), *, seed=0, vocab=VOCAB, **masking):
    """Returns one masked batch of the input pipeline."""
    ids, mask = token_rows(lengths, seed=seed, vocab=vocab)
    limits = {"never_masked": (CLS, SEP), "max_seq_length": LENGTH}
    masker = Masking(vocab, MASK, **limits, **masking)
    rows = tf.range(len(lengths), dtype=tf.int64)
    keys = row_keys(rows, tf.zeros_like(rows))
    inputs = derive_inputs(tf.constant(ids), tf.constant(mask), SEP)
    return {**inputs, **masker(inputs["input_ids"], inputs["input_mask"], keys)}


def numpy(tensors):
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def decayed(optimizer, variables, left=0.5):
    """Whether a step without gradient shrinks each variable, from 1 to ``left``."""
    for variable in variables:
        variable.assign(tf.ones_like(variable))
    optimizer.apply([tf.zeros_like(v) for v in variables], variables)
    shrunk = [bool(np.any(np.array(v) != 1)) for v in variables]
    for variable, shrinks in zip(variables, shrunk, strict=True):
        np.testing.assert_allclose(variable, left if shrinks else 1.0)
    return shrunk


def count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


def dataset(steps, lengths=(24, 9, 17, 5), **masking):
    """Returns a dataset of different batches."""
    batches = [batch(lengths, seed=step, **masking) for step in range(steps)]
    stacked = {k: tf.stack([b[k] for b in batches]) for k in batches[0]}
    return tf.data.Dataset.from_tensor_slices(stacked)


def gradients(model, batch, *, training=False):
    """Returns the loss of a batch and its gradients, dense arrays."""
    totals = model.loss_totals(batch)
    with tf.GradientTape() as tape:
        seed = tf.constant([1, 2])
        terms = model.compute_losses(batch, totals, seed=seed, training=training)
        loss = tf.add_n(terms)
    sources = [variable.value for variable in model.trainable_variables]
    found = tape.gradient(loss, sources, unconnected_gradients="zero")
    return float(loss), [tf.convert_to_tensor(gradient).numpy() for gradient in found]


def scores(model, batches):
    """Returns the metrics of an evaluation, without a graph."""
    model.reset_metrics()
    for each in batches:
        logs = model.test_step(each)
    return {name: float(value) for name, value in logs.items()}


def encoder(
    embeddings, *, hidden_size=32, num_heads=2, num_layers=2, dropout=0.0, **kwargs
):
    return et.TextEncoder(
        embeddings,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        dropout=dropout,
        attention_dropout=dropout,
        **kwargs,
    )


def parts(*, tied=True, dropout=0.0, vocab=VOCAB, seed=3, num_layers=2, **others):
    """Seeds Keras; returns both networks' tables, an encoder's maker, and ``others``.

    XLA compiles one layer in half the time.
    """
    keras.utils.set_random_seed(seed)
    names = ["embeddings"] if tied else ["embeddings", "generator_embeddings"]
    tables = [
        TextEmbedding(vocab, 12, max_positions=32, dropout=dropout, name=name)
        for name in names
    ]
    make = functools.partial(encoder, num_layers=num_layers, dropout=dropout)
    return tables[0], tables[-1], make, others


def reloaded(model, folder, name="model"):
    """Returns a model after a round trip through a file."""
    model.save(folder / f"{name}.keras")
    return keras.saving.load_model(folder / f"{name}.keras")


def check_artifacts(model, batch, folder):
    """Checks the outputs of the saved parts of a run; returns the loaded parts."""
    expected = {
        "encoder": model.discriminator(batch),
        "generator": model.generator(batch),
        "discriminator": model(batch),
    }
    assert expected.keys() == model.artifacts().keys()
    parts = {}
    for name, part in model.artifacts().items():
        parts[name] = reloaded(part, folder, name)
        np.testing.assert_allclose(parts[name](batch), expected[name], atol=1e-5)
    return parts


def electra(*, question=lambda _: None, **kwargs):
    """Returns an Electra; the weights are a function of ``seed``.

    ``question`` builds the objective from the discriminator's embeddings.
    """
    shared, other, make, kwargs = parts(**kwargs)
    small = make(other, hidden_size=16, num_heads=1, name="generator")
    generator = et.MaskedLM(small, name="masked_lm")
    discriminator = make(shared, name="discriminator")
    return et.Electra(generator, discriminator, objective=question(shared), **kwargs)


def two_tower(model_class, **kwargs):
    shared, other, make, kwargs = parts(**kwargs)
    sides = ("left_to_right", "right_to_left")
    towers = [make(other, hidden_size=16, direction=d, name=d) for d in sides]
    generator = et.pretraining.TwoTowerGenerator(
        *towers, special_ids=(CLS, SEP, MASK), name="two_tower"
    )
    return model_class(generator, make(shared, name="discriminator"), **kwargs)
