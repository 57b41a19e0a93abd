import functools
import json
import time

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.interop import keras_hub as interop
from electra_tf.interop import networks
from electra_tf.interop.networks import Imported, Source
from tests.layers.helpers import randomize
from tests.tasks import common

TEXTS = ["the movie is good", "a bad book .", "it was awful", "the song is great !"]
TOKENS = (*SPECIAL_TOKENS, "the", "chef", "cook", "##ed", "meal", "cafe", ".", "A", "B")
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
SIZES |= {"vocab_size": len(TOKENS), "embedding_dim": 8, "max_sequence_length": 12}
INPUTS = {
    "token_ids": np.array([[2, 5, 6, 7, 3, 0], [2, 9, 3, 10, 11, 3]], "int32"),
    "segment_ids": np.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]], "int32"),
    "padding_mask": np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]], "int32"),
}
REAL = INPUTS["padding_mask"] > 0


def backbone(**sizes):
    made = keras_hub.models.ElectraBackbone(**SIZES | sizes)
    randomize(made.weights)
    return made


def encoder(**changes):
    table = et.layers.TextEmbedding(len(TOKENS), 8, max_positions=12)
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, **changes}
    made = et.TextEncoder(table, intermediate_size=24, **sizes)
    randomize(made.weights)
    return made


def imported(encoder, **changes):
    known = {"lower_case": True, "strip_accents": True, "source": "test"}
    known |= {"vocabulary": Vocabulary(TOKENS), **changes}
    tower = networks.encoder_tower(encoder, "test")
    return Imported(format="test", discriminator=tower, **known)


def write(folder, encoder, **changes):
    folder.mkdir()
    return " ".join(interop.write(folder, imported(encoder, **changes)))


def read(path):
    return interop.read(Source(str(path)))


def detect(path):
    return interop.detect(Source(str(path)))


def encoder_of(model):
    return networks.models(model)["encoder"]


def with_exact_gelu(model):
    """Replaces the backbone's approximate GELU with the exact one."""
    exact = functools.partial(keras.activations.gelu, approximate=False)
    for layer in model.transformer_layers:
        layer._feedforward_intermediate_dense.activation = exact
    return model


def ours(model):
    """Hidden states; our encoder takes the names of keras-hub, too."""
    return model(INPUTS).numpy()[REAL]


def theirs(model):
    return model(INPUTS)["sequence_output"].numpy()[REAL]


def gradients(call, variables):
    """Gradients of a random sum of hidden states of real tokens."""
    weights = np.random.default_rng(4).normal(0, 0.1, (*REAL.shape, 16))
    weights = tf.constant(weights * REAL[..., np.newaxis], tf.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(call() * weights)
    sources = [variable.value for variable in variables]
    found = tape.gradient(loss, sources, unconnected_gradients="zero")
    return [tf.convert_to_tensor(gradient) for gradient in found]


@pytest.mark.parametrize("embedding_dim", [8, 16])
def test_reading_gives_their_hidden_states_and_gradients(embedding_dim, tmp_path):
    """They differ only by keras-hub's approximation of GELU."""
    model = backbone(embedding_dim=embedding_dim, dropout=0.0)
    model.save_to_preset(tmp_path / "backbone")
    found = read(tmp_path / "backbone")
    assert found.vocabulary is None
    own = encoder_of(found)
    approximate = np.abs(ours(own) - theirs(model)).max()
    assert np.abs(ours(own) - theirs(with_exact_gelu(model))).max() < 1e-5
    assert 1e-5 < approximate < 1e-2
    # A backbone with their gradients as weights is read as ours.
    slopes = backbone(embedding_dim=embedding_dim)
    trained = model.trainable_variables
    values = gradients(lambda: model(INPUTS)["sequence_output"], trained)
    for variable, value in zip(slopes.trainable_variables, values, strict=True):
        variable.assign(value)
    slopes.save_to_preset(tmp_path / "slopes")
    wanted = read(tmp_path / "slopes").discriminator.encoder
    variables = networks.encoder_variables(own)
    values = gradients(lambda: own(INPUTS, training=True), variables.values())
    assert variables.keys() == wanted.keys()
    for name, value in zip(variables, values, strict=True):
        limits = {"atol": 2e-5, "rtol": 1e-4}
        np.testing.assert_allclose(value, wanted[name], **limits, err_msg=name)


def test_writing_gives_a_preset_that_computes_the_same(tmp_path):
    model = encoder()
    notes = write(tmp_path / "preset", model)
    loaded = keras_hub.models.ElectraBackbone.from_preset(str(tmp_path / "preset"))
    np.testing.assert_allclose(ours(model), theirs(with_exact_gelu(loaded)), atol=1e-5)
    for word in ("no place for the heads", "pooled_output", "GELU by tanh"):
        assert word in notes
    files = (tmp_path / "preset").rglob("*.*")
    names = {file.relative_to(tmp_path / "preset").as_posix() for file in files}
    assert names <= set(interop.OUTPUTS)
    with pytest.raises(ValueError, match="has no generator"):
        interop.read(Source(str(tmp_path / "preset"), only="generator"))


def test_written_tokenizer_gives_our_ids(tmp_path):
    text, model = "The chef cooked. CAF\u00c9 unknown", encoder()
    for lower_case in (True, False):
        folder = tmp_path / str(lower_case)
        write(folder, model, lower_case=lower_case)
        theirs = keras_hub.models.ElectraTokenizer.from_preset(str(folder))
        mine = WordPiece(Vocabulary(TOKENS), lower_case=lower_case).encode([text])[0]
        assert list(np.asarray(theirs(text))) == list(mine)


def test_round_trip_to_the_bit(tmp_path):
    model = encoder(dropout=0.2, attention_dropout=0.2)
    write(tmp_path / "x", model, strip_accents=False)
    assert detect(tmp_path / "x")
    back = read(tmp_path / "x")
    assert back.vocabulary == Vocabulary(TOKENS)
    assert (back.lower_case, back.strip_accents) == (True, False)
    assert back.discriminator.sizes.dropout == 0.2
    common.assert_same_weights(encoder_of(back), model)
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("bfloat16")
        common.assert_same_weights(encoder_of(read(tmp_path / "x")), model)
    finally:
        keras.config.set_dtype_policy(policy)
    settings = json.loads((tmp_path / "x" / "tokenizer.json").read_text())
    for change, message in (
        ({"suffix_indicator": "@@"}, "suffix_indicator is '@@'"),
        ({"split_on_cjk": False}, "split_on_cjk False"),
        ({"lowercase": False, "strip_accents": True}, "strip_accents without"),
    ):
        changed = {**settings, "config": settings["config"] | change}
        (tmp_path / "x" / "tokenizer.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "x")
    (tmp_path / "x" / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="x cannot be loaded by keras-hub"):
        read(tmp_path / "x")
    (tmp_path / "x" / "tokenizer.json").unlink()
    assert read(tmp_path / "x").vocabulary is None


def test_what_the_format_cannot_hold_is_refused(tmp_path):
    renamed = Vocabulary(tuple(t.replace("[MASK]", "<m>") for t in TOKENS), mask="<m>")
    with pytest.raises(ValueError, match="<m>"):
        write(tmp_path / "a", encoder(), vocabulary=renamed)
    assert not list((tmp_path / "a").iterdir())
    for option in ({"layer_norm_epsilon": 1e-6}, {"direction": "left_to_right"}):
        (value,) = option.values()
        with pytest.raises(ValueError, match=f"{value}.*; only gelu, both and 1e-12"):
            imported(encoder(**option))


def test_sizes_that_are_not_those_of_the_weights_are_refused(tmp_path):
    preset = tmp_path / "preset"
    write(preset, encoder())
    config = json.loads((preset / "config.json").read_text())
    sizes = config["config"]
    for name in ("num_layers", "vocab_size", "hidden_dim"):
        config["config"] = {**sizes, name: sizes[name] + 200_000_000}
        (preset / "config.json").write_text(json.dumps(config))
        started = time.monotonic()
        message = "preset cannot be loaded by keras-hub: it is too small"
        with pytest.raises(ValueError, match=message):
            read(preset)
        assert time.monotonic() - started < 2
    config["config"] = {**sizes, "num_layers": 1}
    (preset / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"weights\.h5 has 2 layers, and .* is 1: "):
        read(preset)


def test_detection(tmp_path):
    assert not detect(tmp_path)
    assert not detect("electra_of_mine")
    assert detect("electra_small_discriminator_uncased_en")
    (tmp_path / "config.json").write_text(json.dumps({"class_name": "BertBackbone"}))
    assert not detect(tmp_path)


@pytest.mark.slow
def test_text_models_are_presets(tmp_path, capsys):
    preset = common.save_pretrained(tmp_path / "preset", layers=1, dropout=0.0)
    model = et.TokenClassifier.from_preset(preset, ["O", "B-X", "I-X"], seed=1)
    model.enable_lora(2)
    randomize(model.trainable_variables, stddev=0.1)
    folder = tmp_path / "mine"
    model.save_to_preset(folder)
    backbone = keras_hub.models.Backbone.from_preset(str(folder))
    ids = model.preprocessor({"text": TEXTS})
    inputs = {"token_ids": ids["input_ids"], "segment_ids": ids["segment_ids"]}
    inputs["padding_mask"] = ids["input_mask"]
    theirs = with_exact_gelu(backbone)(inputs)["sequence_output"]
    np.testing.assert_allclose(theirs, model.encoder(ids), atol=1e-5)
    tokenizer = keras_hub.models.Tokenizer.from_preset(str(folder))
    assert tuple(tokenizer.get_vocabulary()) == model.vocabulary
    assert read(folder).not_taken == (interop.HEAD,)
    restored = et.TokenClassifier.from_preset(folder)
    assert "new head" not in capsys.readouterr().err
    merged = model.merge_lora()
    for same in (restored, et.load(folder)):
        common.assert_same_weights(same, merged)
        assert same.get_config() == merged.get_config()
    # Another task has a new head on the same encoder.
    short = et.TokenClassifier.from_preset(folder, ["O", "X"], max_seq_length=8)
    assert short.max_seq_length == 8
    assert "mine holds a trained TokenClassifier" in capsys.readouterr().err
    other = et.TextClassifier.from_preset(folder, ["neg", "pos"], dropout=0.0)
    other.encoder.trainable = False
    other.save_to_preset(tmp_path / "frozen")
    with (tmp_path / "frozen" / interop.VOCABULARY).open("a") as file:
        file.write("more\n")
    with pytest.raises(ValueError, match=r"frozen.*vocabulary.* tokens"):
        et.load(tmp_path / "frozen")
    common.assert_same_weights(other.encoder, restored.encoder)
    with pytest.raises(ValueError, match="tags are missing"):
        et.TokenClassifier.from_preset(folder, dropout=0.0)
    with pytest.raises(ValueError, match="labels are missing"):
        et.TextClassifier.from_preset(folder)
    with pytest.raises(ValueError, match="exists already"):
        model.save_to_preset(folder)
