"""FLOPs of the systems, against sums worked out by hand from the definitions."""

import dataclasses

import pytest

from electra_tf import flops, system_flops
from electra_tf.config import (
    DataConfig,
    EncoderConfig,
    GeneratorConfig,
    MaskingConfig,
    ObjectiveConfig,
    PretrainConfig,
    RunConfig,
)
from electra_tf.flops import EncoderShape, training_flops

D, E, L, F, S, V, G = 8, 4, 2, 16, 32, 50, 4
SHAPE = {"embedding_size": E, "num_heads": 1, "vocab_size": V, "max_positions": S}
ENCODER = EncoderShape(D, L, feed_forward_size=F, **SHAPE)
GENERATOR = EncoderShape(G, 1, feed_forward_size=8, **SHAPE)
P = 0.25

# Matrix products of a forward pass, per token: projection, then per layer query, key,
# value, output, scores, context and the two feed-forward products.
MAIN = 2 * E * D + L * (4 * 2 * D * D + 2 * 2 * D * S + 2 * 2 * D * F)
# The generator's projection would map 4 to 4: there is none.
SMALL = 1 * (4 * 2 * G * G + 2 * 2 * G * S + 2 * 2 * G * 8)
RTD = 2 * D * D + 2 * D
MAIN_LM, SMALL_LM = 2 * D * E + 2 * E * V, 2 * G * E + 2 * E * V
GATE = 2 * D
GENERATING = SMALL + P * SMALL_LM
TWO_TOWERS = 2 * SMALL + 2 * (2 * G) * E + 2 * E * V

# Forward FLOPs per token, each with a backward pass of twice that.
EXPECTED = {
    "mlm": MAIN + P * MAIN_LM,
    "electra": MAIN + RTD + GENERATING,
    "electra_15": MAIN + RTD + GENERATING,
    "replace_mlm": MAIN + P * MAIN_LM + GENERATING,
    "all_tokens_mlm": MAIN + MAIN_LM + GATE + GENERATING,
    "electric": MAIN + RTD + TWO_TOWERS,
}


def per_token(rule="matmul", **choices):
    """Mean over the steps of FLOPs per token."""
    found = system_flops.phases(ENCODER, GENERATOR, predicted_fraction=P, **choices)
    assert sum(phase.share for phase in found) == 1
    return sum(
        phase.share
        * system_flops.step_flops(phase, sequence_length=S, batch_size=3, rule=rule)
        for phase in found
    ) / (3 * S)


@pytest.mark.parametrize("objective", EXPECTED)
def test_objectives(objective):
    assert per_token(objective=objective) == pytest.approx(3 * EXPECTED[objective])


@pytest.mark.parametrize(
    ("kind", "generator"),
    [("two_tower", TWO_TOWERS), ("unigram", 0), ("uniform", 0)],
)
def test_generators(kind, generator):
    got = per_token(generator_kind=kind)
    assert got == pytest.approx(3 * (MAIN + RTD + generator))


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        # Half the steps for the generator alone, half with it forward only.
        ("two_stage", 1.5 * GENERATING + 0.5 * (3 * (MAIN + RTD) + GENERATING)),
        ("frozen", 3 * (MAIN + RTD) + GENERATING),
        ("reinforce", 3 * (MAIN + RTD + GENERATING + P * 2 * G)),
        ("gumbel", 3 * (MAIN + RTD + GENERATING + P * 2 * V * E)),
    ],
)
def test_ways_of_training(training, expected):
    assert per_token(training=training) == pytest.approx(expected)


def test_a_shorter_first_stage():
    expected = 0.25 * 3 * GENERATING + 0.75 * (3 * (MAIN + RTD) + GENERATING)
    got = per_token(training="two_stage", first_stage=0.25)
    assert got == pytest.approx(expected)


@pytest.mark.parametrize(("training", "extra"), [("joint", 1), ("frozen", 0)])
def test_sampling_without_dropout_runs_a_trained_generator_once_more(training, extra):
    got = per_token(training=training, samples_apart=True)
    assert got - per_token(training=training) == pytest.approx(extra * GENERATING)


@pytest.mark.parametrize("rule", flops.RULES)
def test_agrees_with_the_count_that_reproduces_the_published_numbers(rule):
    """`tests/test_flops.py` holds `training_flops` against the paper's table."""
    numbers = {"sequence_length": S, "predicted_fraction": P, "rule": rule}
    both = training_flops(discriminator=ENCODER, generator=GENERATOR, **numbers) / S
    assert per_token(rule) == pytest.approx(both)
    alone = training_flops(generator=ENCODER, **numbers) / S
    assert per_token(rule, objective="mlm") == pytest.approx(alone)


def config(**objective):
    return PretrainConfig(
        run=RunConfig(num_train_steps=100, train_batch_size=3),
        data=DataConfig(max_seq_length=S),
        masking=MaskingConfig(mask_rate=0.245),
        encoder=EncoderConfig(
            num_layers=L,
            hidden_size=D,
            num_heads=1,
            intermediate_size=F,
            embedding_size=E,
            max_positions=S,
        ),
        generator=GeneratorConfig(generator_hidden_size=0.5, generator_layers=0.5),
        objective=ObjectiveConfig(**objective),
    )


def test_of_a_config():
    """int((0.245 + 0.005) * 32) = 8 slots are the 0.25 of the hand-worked sums."""
    got = system_flops.of_config(config(), V)
    assert got == pytest.approx(3 * EXPECTED["electra"] * S * 3 * 100)
    assert system_flops.of_config(config(), V, done=0.25) == pytest.approx(got / 4)
    masked = system_flops.of_config(config(objective="mlm"), V)
    assert masked == pytest.approx(3 * EXPECTED["mlm"] * S * 3 * 100)


def test_given_slots_count():
    masking = MaskingConfig(max_predictions_per_seq=16)
    changed = dataclasses.replace(config(objective="mlm"), masking=masking)
    got = system_flops.of_config(changed, V) / (3 * S * 3 * 100)
    assert got == pytest.approx(MAIN + 0.5 * MAIN_LM)


def test_the_published_small_model_from_its_config():
    """1.29e18 at a million steps (the paper's Table 1, by its script's rules)."""
    small = dataclasses.replace(PretrainConfig(), run=RunConfig())
    got = system_flops.of_config(small, 30522, rule="original")
    assert got == pytest.approx(1.29e18, rel=0.015)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"objective": "gpt"}, "objective is 'gpt'; allowed are mlm, electra"),
        ({"generator_kind": "big"}, "generator is 'big'"),
        ({"training": "luck"}, "training is 'luck'"),
        ({"rule": "guess"}, "rule is 'guess'; allowed are original, matmul"),
    ],
)
def test_unknown_names(choices, message):
    with pytest.raises(ValueError, match=message):
        per_token(**choices)
