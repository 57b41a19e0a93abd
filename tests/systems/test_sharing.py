import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.config.validation import SHARINGS
from electra_tf.layers import TextEmbedding
from electra_tf.runs import warm_start
from electra_tf.systems import build
from electra_tf.training.checkpoints import CheckpointStore, named_variables
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


@pytest.mark.parametrize("sharing", SHARINGS)
def test_initial_values_follow_the_config(sharing):
    model = make(sharing, initializer_range=0.1, position_init="sinusoidal")
    for network in (model.generator.encoder, model.discriminator):
        block = network.transformer.blocks[0]
        assert 0.18 < np.abs(block.intermediate_kernel).max() <= 0.2
        table = network.embeddings.standalone()
        np.testing.assert_allclose(table.position_embeddings[0, 0], 0, atol=1e-7)
        sine = 0.1 * np.sqrt(2) * np.sin(1)
        np.testing.assert_allclose(table.position_embeddings[1, 0], sine, rtol=1e-6)
        assert 0.15 < np.abs(table.word_embeddings).max() <= 0.2


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


def test_counts_by_hand():
    """V = 97, E = 12, D = 32 and 16, 40 positions, 2 segments."""
    models = {sharing: make(sharing) for sharing in SHARINGS}
    counts = {name: tiny.count(x.trainable_variables) for name, x in models.items()}
    tables, tied = (97 + 40 + 2 + 2) * 12, counts["tied"]
    assert counts["token"] - tied == (40 + 2 + 2) * 12
    assert counts["nes"] - tied == counts["gdes"] - tied == tables
    # Tables of width 16, a 16-to-16 head instead of 16-to-12, no 12-to-16 projection.
    untied = (97 + 40 + 2 + 2) * 16 + (16 + 3) * (16 - 12) - (12 + 1) * 16
    assert counts["untied"] - tied == untied
    head = (32 + 3) * 12 + 97
    detector = tiny.count(models["all"].detector().trainable_variables)
    assert counts["all"] == detector + head


def test_deltas_decay():
    variables = make("gdes").trainable_variables
    is_decayed = tiny.decayed(et.training.AdamW(1.0, weight_decay=0.5), variables)
    decayed = {
        v.path for v, decays in zip(variables, is_decayed, strict=True) if decays
    }
    assert "discriminator_embeddings/word_embeddings_delta" in decayed
    assert not any("layer_norm" in path or "bias" in path for path in decayed)


@pytest.mark.parametrize(
    ("sharing", "objective"),
    [*((sharing, "electra") for sharing in SHARINGS), ("gdes", "all_tokens_mlm")],
)
def test_each_loss_reaches_its_tables_only(sharing, objective):
    """Deltas of "gdes" are trained (pitfall 19 of docs/fidelity.md)."""
    model, batch = make(sharing, objective), tiny.batch()
    variables = model.trainable_variables
    totals, seed = model.loss_totals(batch), tf.constant([1, 2])
    with tf.GradientTape(persistent=True) as tape:
        terms = model.compute_losses(batch, totals, seed=seed, training=False)
    names = ["embeddings/{}_embeddings"] * 2
    if sharing in ("token", "nes", "untied"):
        names[0] = f"generator_{names[0]}"
    if sharing == "gdes":
        names[1] = f"discriminator_{names[1]}_delta"
    tables = {v.path for v in variables if "_embeddings" in v.path.split("/")[-1]}
    for term, name in zip(terms, names, strict=True):
        pairs = zip(variables, tape.gradient(term, variables), strict=True)
        reached = {
            v.path
            for v, gradient in pairs
            if gradient is not None and np.any(tf.convert_to_tensor(gradient))
        }
        expected = {name.format(x) for x in ("word", "position", "segment")}
        if sharing == "token":
            expected.discard("generator_embeddings/word_embeddings")
            expected.add("embeddings/word_embeddings")
        assert reached & tables == expected


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["token", "gdes", "all"])
def test_files_and_standalone_parts(sharing, tmp_path):
    """Loaded models stay tied; saved parts have plain embeddings."""
    model = make(sharing, "all_tokens_mlm" if sharing == "gdes" else "electra")
    model.compile(optimizer=et.training.AdamW(1e-2))
    model.fit(tiny.dataset(3), verbose=0, shuffle=False)
    batch = tiny.batch()
    loaded = tiny.reloaded(model, tmp_path)
    assert int(loaded.optimizer.iterations) == int(loaded.step) == 3
    np.testing.assert_array_equal(loaded(batch), model(batch))
    np.testing.assert_array_equal(loaded.generator(batch), model.generator(batch))

    for name, part in tiny.check_artifacts(model, batch, tmp_path).items():
        encoder = part if name == "encoder" else part.encoder
        assert type(encoder.embeddings) is TextEmbedding

    for each in (model, loaded):
        each.fit(tiny.dataset(2), verbose=0, shuffle=False)
    for a, b in zip(model.trainable_variables, loaded.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, err_msg=a.path)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_starting_from_a_tied_run(sharing, tmp_path):
    tied = make("tied")
    words = tied.discriminator.embeddings.word_embeddings
    words.assign_add(tf.ones_like(words))
    CheckpointStore(tmp_path, named_variables(tied)).save(1)
    model = make(sharing)
    warm_start.load(str(tmp_path), model, print)
    np.testing.assert_array_equal(model.discriminator.embeddings.word_table(), words)
