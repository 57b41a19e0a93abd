import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.quantizers import Int8QuantizationConfig

import electra_tf as et
from electra_tf.interop.networks import encoder_tower
from electra_tf.layers.quantization import modes
from electra_tf.layers.weights import matmul
from tests import tiny
from tests.layers.helpers import check_config, randomize
from tests.tasks import common

IDS = tf.constant([[2, 7, 9, 3, 0], [2, 8, 3, 5, 3]])
MASK = tf.cast(IDS > 0, tf.int32)
INPUTS = {"input_ids": IDS, "input_mask": MASK, "segment_ids": tf.zeros_like(IDS)}
NAMES = [f"{n}_kernel" for n in ("qkv", "attention_output", "intermediate", "output")]
FLOAT_ROWS = Int8QuantizationConfig(activation_quantizer=None)
TEXTS = ["A lovely film.", "Long, dull and badly acted."]


def encoder(**options):
    keras.utils.set_random_seed(1)
    table = et.layers.TextEmbedding(tiny.VOCAB, 12, max_positions=8, name="embeddings")
    made = tiny.encoder(table, name="encoder", **options)
    randomize(made.weights, stddev=0.1)
    return made


def around(made):
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in INPUTS}
    return keras.Model(inputs, keras.layers.Dense(2)(made(inputs)))


def check_close(ours, theirs, least=0.99):
    ours, theirs = np.float32(ours), np.float32(theirs)
    lengths = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    assert np.min(np.sum(ours * theirs, axis=-1) / lengths) > least


def int8_names(model):
    return [v.name for v in model.weights if v.dtype == "int8"]


@pytest.mark.parametrize("config", [None, FLOAT_ROWS])
def test_weights_and_products_are_those_of_keras(config):
    made = encoder()
    before, block, table = made(INPUTS), made.transformer.blocks[1], made.embeddings
    floats = {name: getattr(block, name).numpy() for name in NAMES}
    words = table.word_embeddings.numpy()
    made.quantize("int8", config=config)
    check_close(made(INPUTS), before)
    assert sorted(int8_names(made)) == sorted(["word_embeddings", *NAMES * 2])
    for name, kernel in floats.items():
        dense = keras.layers.Dense(kernel.shape[1], use_bias=False)
        dense.build((None, kernel.shape[0]))
        dense.set_weights([kernel])
        dense.quantize("int8", config=config)
        ours, results = getattr(block, name), []
        np.testing.assert_array_equal(ours, dense.kernel)
        np.testing.assert_array_equal(ours.scale, dense.kernel_scale)
        rows = tf.random.stateless_normal([7, kernel.shape[0]], [1, 2])
        for multiply in (lambda rows, ours=ours: matmul(rows, ours), dense):
            with tf.GradientTape() as tape:
                tape.watch(rows)
                product = multiply(rows)
            results.append([product, tape.gradient(product, rows)])
        for our_result, expected in zip(*results, strict=True):
            np.testing.assert_allclose(our_result, expected, atol=1e-6, rtol=1e-6)
    embedding = keras.layers.Embedding(*words.shape)
    embedding.build()
    embedding.set_weights([words])
    embedding.quantize("int8")
    np.testing.assert_array_equal(table.word_embeddings, embedding.embeddings)
    np.testing.assert_allclose(table.words(IDS), embedding(IDS), rtol=1e-6)
    all_words = embedding(tf.range(tiny.VOCAB))
    np.testing.assert_allclose(table.word_table(), all_words, rtol=1e-6)


def test_saved_models_stay_quantized(tmp_path):
    part, functional = encoder(), around(encoder(num_layers=1))
    # Each layer keeps its own configuration.
    part.quantize("int8", filters="layer_1")
    part.quantize(config=FLOAT_ROWS, filters="embeddings")
    functional.quantize("int8")
    for model in (part, functional):
        assert len(set(modes(model))) == 2
        path = tmp_path / f"{model.name}.keras"
        model.save(path)
        again = keras.saving.load_model(path)
        np.testing.assert_array_equal(again(INPUTS), model(INPUTS))
        assert modes(again) == modes(model)
    check_config(part)
    stack = et.layers.TransformerEncoder(1, 32, 2, 64)
    stack.build()
    stack.blocks[0].quantize(config=FLOAT_ROWS)
    again = check_config(stack)
    again.set_weights(stack.get_weights())
    call = tf.random.stateless_normal([2, 5, 32], [1, 2]), MASK
    np.testing.assert_array_equal(again(*call), stack(*call))
    model = encoder(num_layers=1, dtype="mixed_bfloat16")
    model.quantize("int8")
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "saved")
    check_close(loaded.serve(INPUTS), model(INPUTS), 0.999)


@pytest.mark.slow
def test_text_classifier(tmp_path):
    preset = common.save_pretrained(tmp_path / "preset", layers=1)
    model = et.TextClassifier.from_preset(preset, ["bad", "good"])
    before, vectors = model.predict_proba(TEXTS), model.encode(TEXTS)
    kernels = [getattr(b, n) for b in model.encoder.transformer.blocks for n in NAMES]
    size = sum(kernel.numpy().nbytes for kernel in kernels)
    model.quantize("int8")
    kernels = [v for v in model.encoder.weights if v.name in NAMES]
    assert sum(kernel.numpy().nbytes for kernel in kernels) == size / 4
    after, head = model.predict_proba(TEXTS), model.head.kernel
    assert 0 < np.abs(after - before).max() < 0.05
    assert head.dtype == "float32"
    check_close(model.encode(TEXTS), vectors)
    model.save(tmp_path / "mine.keras")
    again = et.load(tmp_path / "mine.keras")
    model.export(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict_proba(TEXTS), after)
    model.encoder.save(preset)
    with pytest.raises(ValueError, match=r"is quantized.*give the float encoder"):
        et.TextClassifier.from_preset(preset, ["bad", "good"])
    served = et.load(tmp_path / "saved").predict(TEXTS)
    for ours, expected in zip(served, model.predict(TEXTS), strict=True):
        assert ours["probability"] == pytest.approx(expected["probability"], abs=1e-5)
    for call in (
        lambda: model.export(tmp_path / "mine.tflite", format="litert"),
        lambda: model.export(tmp_path / "mine.onnx", format="onnx"),
        lambda: model.save_to_preset(tmp_path / "other"),
    ):
        with pytest.raises(ValueError, match="model before quantize"):
            call()


@pytest.mark.slow
def test_training_changes_float_weights_only():
    """The first layer stays float; the others have one trace with other weights."""
    made = encoder(num_layers=3)
    model = et.tasks.TaskModel(made, et.tasks.ClassificationHead(32, 2))
    before = model.inference(INPUTS)
    model.quantize("int8", filters="layer_[12]|embeddings")
    assert 0 < np.abs(model.inference(INPUTS) - before).max() < 0.1
    # Keras sets the attribute of all trainable variables.
    made.trainable = False
    made.trainable = True
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    first, *quantized = made.transformer.blocks
    fixed = [v for x in quantized for v in x.weights if "kernel" in v.name]
    trained = [v for x in quantized for v in x.weights if "kernel" not in v.name]
    trained += [*first.weights, model.head.kernel]
    values = [v.numpy() for v in [*fixed, *trained]]
    model.fit(INPUTS, np.array([0, 1]), verbose=0)
    is_same = [np.array_equal(*x) for x in zip([*fixed, *trained], values, strict=True)]
    assert is_same == [True] * len(fixed) + [False] * len(trained)


def test_refusals():
    made, lora = encoder(), encoder()
    with pytest.raises(ValueError, match=r"mode is 'int4': .* only 'int8'"):
        made.quantize("int4")
    lora.enable_lora(2)
    for model in (lora, around(lora)):
        with pytest.raises(ValueError, match=r"is enabled: call merge_lora\(\)"):
            model.quantize("int8")
    made.quantize("int8")
    np.testing.assert_array_equal(made.merge_lora()(INPUTS), made(INPUTS))
    for call, message in {
        lambda: made.quantize("int8"): "already quantized",
        lambda: made.enable_lora(2): "is int8: train LoRA, merge it",
        lambda: encoder_tower(made, "mine"): "mine is quantized: convert the model",
        lambda: made.take_over(encoder()): "embeddings is int8",
        lambda: encoder().take_over(made): "expecting",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_shared_tables_stay_float():
    lender = encoder()
    own = et.layers.SharedWordEmbedding(lender.embeddings, name="own")
    for model in (lender, tiny.encoder(own, name="borrower")):
        with pytest.warns(UserWarning, match="stays float: it shares tables"):
            model.quantize("int8")
        assert int8_names(model) == NAMES * 2
    model = tiny.electra(num_layers=1)
    model.quantize("int8")
    assert sorted(int8_names(model)) == sorted(["word_embeddings", *NAMES * 2])
    loss, slopes = tiny.gradients(model, tiny.batch(), training=True)
    assert np.isfinite([loss, *map(np.sum, slopes)]).all()
    model = et.Electra(et.pretraining.UnigramGenerator(tiny.VOCAB), encoder())
    with pytest.warns(UserWarning, match="no kernels to quantize"):
        model.quantize("int8")
    assert sorted(int8_names(model)) == sorted(["word_embeddings", *NAMES * 2])
