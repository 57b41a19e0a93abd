"""Weight sharing of generator and discriminator."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.config import fields
from electra_tf.config.choices import SHARINGS
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.layers import TextEmbedding
from electra_tf.systems import build
from electra_tf.training.checkpoints import (
    CheckpointStore,
    load_weights,
    named_variables,
)
from tests import tiny
from tests.tiny_run import SIZES

ONE_LAYER = {"num_layers": 1, "max_positions": 40}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def make(sharing, objective="electra", **flags):
    """A model with a half-width generator; "all" shares the whole encoder."""
    flags |= {"sharing": sharing, "objective": objective}
    if sharing == "all":
        flags["generator_hidden_size"] = 1.0
    flags = {**SIZES, **ONE_LAYER, **NO_DROPOUT, **flags}
    return build.build_model(fields.from_flat(flags, PretrainConfig), tiny.VOCAB)


def count(variables):
    return sum(math.prod(v.shape) for v in variables)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_initial_values_follow_the_config(sharing):
    model = make(sharing, initializer_range=0.1, position_init="sinusoidal")
    for network in (model.generator.encoder, model.discriminator):
        block = network.transformer.blocks[0]
        assert 0.18 < np.abs(block.intermediate_kernel).max() <= 0.2
        table = network.embeddings.standalone()
        np.testing.assert_allclose(table.position_embeddings[0, 0], 0, atol=1e-7)
        np.testing.assert_allclose(
            table.position_embeddings[1, 0], 0.1 * np.sqrt(2) * np.sin(1), rtol=1e-6
        )
        assert 0.15 < np.abs(table.word_embeddings).max() <= 0.2


def test_counts_by_hand():
    """V = 97, E = 12, D = 32 and 16, 40 positions, 2 segments."""
    tables = (97 + 40 + 2 + 2) * 12
    tied = count(make("tied").trainable_variables)
    assert count(make("token").trainable_variables) - tied == (40 + 2 + 2) * 12
    assert count(make("nes").trainable_variables) - tied == tables
    assert count(make("gdes").trainable_variables) - tied == tables
    # Tables of width 16, a 16-to-16 head instead of 16-to-12, no 12-to-16 projection.
    untied = (97 + 40 + 2 + 2) * 16 + (16 + 3) * (16 - 12) - (12 + 1) * 16
    assert count(make("untied").trainable_variables) - tied == untied
    one = make("all")
    head = (32 + 3) * 12 + 97
    detector = count(one.detector().trainable_variables)
    assert count(one.trainable_variables) == detector + head


def test_what_is_shared():
    """Only these tables are shared, by identity (pitfall 19 of docs/fidelity.md)."""
    for sharing in SHARINGS:
        model = make(sharing)
        generator, discriminator = model.generator.encoder, model.discriminator
        first = {id(v) for v in generator.trainable_variables}
        second = {id(v): v for v in discriminator.trainable_variables}
        shared = sorted(second[i].path for i in first & second.keys())
        tables = [f"{name}_embeddings" for name in ("position", "segment", "word")]
        expected = {
            "tied": [f"embeddings/{n}" for n in ("layer_norm_beta", "layer_norm_gamma")]
            + [f"embeddings/{name}" for name in tables],
            "token": ["embeddings/word_embeddings"],
            "all": sorted(v.path for v in second.values()),
        }.get(sharing, [])
        assert shared == expected, sharing
        assert (generator is discriminator) == (sharing == "all")
        head = model.generator.head
        assert head.embeddings is generator.embeddings, "the masked-LM head stays tied"
    untied = make("untied").generator.encoder
    assert untied.embeddings.size == 16
    assert untied.projection == ()
    assert make("nes").generator.encoder.embeddings.size == 12


def reached(model, batch):
    """Paths of variables with a nonzero gradient."""
    _, gradients = tiny.gradients(model, batch)
    found = zip(model.trainable_variables, gradients, strict=True)
    return {
        v.path for v, g in found if g is not None and np.any(tf.convert_to_tensor(g))
    }


TABLES = {f"{name}_embeddings" for name in ("word", "position", "segment")}
OWN = {
    "untied": ({"generator_embeddings"}, {"embeddings"}, ""),
    "nes": ({"generator_embeddings"}, {"embeddings"}, ""),
    "gdes": ({"embeddings"}, {"discriminator_embeddings"}, "_delta"),
}


@pytest.mark.parametrize("objective", ["electra", "all_tokens_mlm"])
@pytest.mark.parametrize("sharing", OWN)
def test_each_loss_reaches_its_own_tables_only(sharing, objective):
    """Other tables have zero gradient; "gdes" trains deltas, not shared tables."""
    (generators,), (discriminators,), suffix = OWN[sharing]
    batch = tiny.batch()

    def trained_by(name):
        weights = {"generator_weight": 0.0, "discriminator_weight": 0.0, name: 1.0}
        return reached(make(sharing, objective, **weights), batch)

    paths = trained_by("discriminator_weight")
    assert not any(path.startswith(f"{generators}/") for path in paths)
    assert {f"{discriminators}/{name}{suffix}" for name in TABLES} <= paths
    paths = trained_by("generator_weight")
    assert not any(path.startswith(f"{discriminators}/") for path in paths)
    assert {f"{generators}/{name}" for name in TABLES} <= paths


def test_shared_tables_learn_from_both():
    """Gradients come from both networks (pitfall 19 of docs/fidelity.md)."""
    batch = tiny.batch()
    for sharing in ("tied", "token", "all"):
        for weights in ((1.0, 0.0), (0.0, 1.0)):
            names = ("generator_weight", "discriminator_weight")
            model = make(sharing, **dict(zip(names, weights, strict=True)))
            assert "embeddings/word_embeddings" in reached(model, batch), sharing


def trained(sharing, objective="electra"):
    model = make(sharing, objective)
    model.compile(optimizer=et.training.AdamW(1e-2))
    model.fit(tiny.dataset(3), verbose=0, shuffle=False)
    return model


@pytest.mark.slow
def test_gdes_begins_as_tied_and_drifts_apart():
    """Deltas are initially zero; the discriminator's table is shared + delta."""
    model = make("gdes")
    lender, own = model.generator.encoder.embeddings, model.discriminator.embeddings
    np.testing.assert_array_equal(own.word_table(), lender.word_embeddings)
    model = trained("gdes")
    lender, own = model.generator.encoder.embeddings, model.discriminator.embeddings
    assert np.abs(own.word_embeddings_delta).max() > 1e-3
    expected = lender.word_embeddings.numpy() + own.word_embeddings_delta.numpy()
    np.testing.assert_allclose(own.word_table(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["token", "gdes", "all"])
def test_save_load_and_standalone_parts(sharing, tmp_path):
    """Loaded models stay tied; saved parts have plain embeddings."""
    model = trained(sharing, "replace_mlm" if sharing == "gdes" else "electra")
    batch = tiny.batch()
    model.save(tmp_path / "electra.keras")
    loaded = keras.saving.load_model(tmp_path / "electra.keras")
    np.testing.assert_array_equal(loaded(batch), model(batch))
    np.testing.assert_array_equal(loaded.generator(batch), model.generator(batch))
    for each in (model, loaded):
        each.fit(tiny.dataset(2), verbose=0, shuffle=False)
    for a, b in zip(model.trainable_variables, loaded.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, err_msg=a.path)

    parts = model.artifacts()
    expected = {
        "encoder": model.discriminator(batch),
        "generator": model.generator(batch),
        "discriminator": model(batch),
    }
    for name, part in parts.items():
        part.save(tmp_path / f"{name}.keras")
        again = keras.saving.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_allclose(again(batch), expected[name], atol=1e-5)
        encoder = again if name == "encoder" else again.encoder
        assert type(encoder.embeddings) is TextEmbedding
    # The learning-rate groups of fine-tuning, one per depth, cover all variables.
    groups = [v for group in parts["encoder"].variables_by_depth() for v in group]
    assert count(groups) == count(parts["encoder"].trainable_variables)


def test_weight_decay_of_deltas_and_not_of_norms():
    model = make("gdes")
    optimizer = et.training.AdamW()
    optimizer.build(model.trainable_variables)
    decayed = {
        v.path
        for v, rate in zip(model.trainable_variables, optimizer._decays, strict=True)
        if rate
    }
    assert "discriminator_embeddings/word_embeddings_delta" in decayed
    assert not any("layer_norm" in path or "bias" in path for path in decayed)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARINGS)
def test_checkpoints_and_starting_from_a_tied_run(sharing, tmp_path):
    model = trained(sharing)
    store = CheckpointStore(tmp_path / sharing, named_variables(model, model.optimizer))
    store.save(3)
    before = [v.numpy() for v in model.trainable_variables]
    for variable in model.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    assert store.restore_latest() == 3
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)

    tied = make("tied")
    tied.discriminator.embeddings.word_embeddings.assign_add(
        tf.ones_like(tied.discriminator.embeddings.word_embeddings)
    )
    other = CheckpointStore(tmp_path / "tied_run", named_variables(tied))
    other.save(1)
    model = make(sharing)
    weights = {n: v for n, v in named_variables(model).items() if v.trainable}
    if sharing in ("all", "untied"):  # generator parts of another width
        weights = {
            n: v
            for n, v in weights.items()
            if "/discriminator" in n or "/embeddings/" in n
        }
    load_weights(tmp_path / "tied_run", weights)
    np.testing.assert_array_equal(
        model.discriminator.embeddings.word_table(),
        tied.discriminator.embeddings.word_embeddings,
    )
