import keras
import pytest

from electra_tf.systems.arithmetic import (
    EncoderShape,
    head_flops,
    inference_flops,
    parameter_count,
    training_flops,
)

SMALL = EncoderShape(256, 12, embedding_size=128)
BASE = EncoderShape(768, 12)
LARGE = EncoderShape(1024, 24)
GENERATORS = {
    "small": EncoderShape(64, 12, embedding_size=128),
    "small++": EncoderShape(256, 12, embedding_size=128),
    "base": EncoderShape(256, 12, embedding_size=768),
    "large": EncoderShape(256, 24, embedding_size=1024),
}
DISCRIMINATORS = {"small": SMALL, "small++": SMALL, "base": BASE, "large": LARGE}

# The table of the original's exact counts at a vocabulary of 30,522.
COUNTS = {
    "embeddings": (3_972_864, 3_972_864, 23_837_184, 31_782_912),
    "projection": (33_024, 33_024, 0, 0),
    "layer": (789_760, 789_760, 7_087_872, 12_596_224),
    "backbone": (13_483_008, 13_483_008, 108_891_648, 334_092_288),
    "head": (66_049, 66_049, 591_361, 1_050_625),
    "discriminator": (13_549_057, 13_549_057, 109_483_009, 335_142_913),
    "generator_projection": (8_256, 33_024, 196_864, 262_400),
    "generator_encoder": (599_808, 9_477_120, 9_477_120, 18_954_240),
    "generator_head": (39_098, 63_674, 229_434, 295_738),
    "joint": (14_196_219, 23_122_875, 119_386_427, 354_655_291),
}


@pytest.mark.parametrize("size", DISCRIMINATORS)
def test_parameter_counts_equal_the_table(size):
    counts = parameter_count(DISCRIMINATORS[size], GENERATORS[size])
    column = list(DISCRIMINATORS).index(size)
    assert {n: counts[n] for n in COUNTS} == {n: r[column] for n, r in COUNTS.items()}


def test_without_generator():
    counts = parameter_count(BASE)
    assert "joint" not in counts
    assert counts["backbone"] == 108_891_648


def electra(size, s, batch_size, steps):
    return training_flops(
        discriminator=DISCRIMINATORS[size],
        generator=GENERATORS[size],
        sequence_length=s,
        batch_size=batch_size,
        steps=steps,
    )


def bert(shape, s, batch_size, steps):
    return training_flops(
        generator=shape, sequence_length=s, batch_size=batch_size, steps=steps
    )


PUBLISHED = {
    "ELECTRA-Small": (1.29e18, electra("small", 128, 128, 1e6)),
    "ELECTRA-Base": (6.42e19, electra("base", 512, 256, 766e3)),
    "ELECTRA-400K": (7.12e20, electra("large", 512, 2048, 400e3)),
    "ELECTRA-1.75M": (3.11e21, electra("large", 512, 2048, 1.75e6)),
    "BERT-Small": (1.42e18, bert(SMALL, 128, 128, 1.45e6)),
    "BERT-Base": (6.43e19, bert(BASE, 512, 256, 1e6)),
    "BERT-Large": (1.92e20, bert(LARGE, 512, 256, 1e6)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_original_rule_reproduces_published_counts(name):
    published, got = PUBLISHED[name]
    assert got == pytest.approx(published, rel=0.01)


def test_matmul_rule_of_small_hand_worked():
    # Per token: 12 layers of 1,703,936, projection 65,536, head 131,584; three passes.
    assert inference_flops(SMALL, sequence_length=128, rule="matmul") == 128 * (
        12 * 1_703_936 + 65_536 + 131_584
    )
    step = training_flops(
        discriminator=SMALL,
        generator=GENERATORS["small"],
        sequence_length=128,
        predicted_fraction=19 / 128,
        rule="matmul",
    )
    assert step / 128 == pytest.approx(70e6, rel=0.01)


def test_matmul_rule_is_six_flops_per_weight_of_a_wide_model():

    wide = EncoderShape(4096, 4)
    got = training_flops(discriminator=wide, sequence_length=16, rule="matmul") / 16
    weights = parameter_count(wide)["encoder"] + parameter_count(wide)["head"]
    assert got == pytest.approx(6 * weights, rel=0.01)


def test_layer_parameters_equal_keras_layers():
    inputs = keras.Input((8, 64))
    x = keras.layers.MultiHeadAttention(2, 32)(inputs, inputs)
    x = keras.layers.LayerNormalization()(x)
    x = keras.layers.Dense(64)(keras.layers.Dense(96)(x))
    model = keras.Model(inputs, keras.layers.LayerNormalization()(x))
    shape = EncoderShape(64, 1, feed_forward_size=96, num_heads=2)
    assert parameter_count(shape)["layer"] == model.count_params()


def test_errors():
    with pytest.raises(ValueError, match="original, matmul"):
        inference_flops(SMALL, sequence_length=8, rule="hardware")
    with pytest.raises(ValueError, match="a discriminator, a generator"):
        training_flops(sequence_length=8)
    with pytest.raises(ValueError, match="head is 'big'; allowed are masked_lm"):
        head_flops("big", SMALL)
    with pytest.raises(ValueError, match=r"'big'; allowed are .*replaced_token"):
        parameter_count(SMALL, heads=["big"])
