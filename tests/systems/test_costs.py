import pytest

from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.config.validation import GENERATORS, OBJECTIVES, SHARINGS, TRAININGS
from electra_tf.data.masking import Masking
from electra_tf.systems import build, costs
from tests.flag_parsing import parse
from tests.tiny import count

# Vocabulary size, tokens, slots, widths, batch size; one layer, two heads.
V, S, P, E, D, G, B = 97, 24, 3, 12, 32, 16, 3
STEPS = 100


def config_of(**choices):
    sizes = {
        "num_train_steps": STEPS,
        "train_batch_size": B,
        "max_seq_length": S,
        "num_layers": 1,
        "hidden_size": D,
        "num_heads": 2,
        "intermediate_size": 4 * D,
        "embedding_size": E,
        "max_positions": 40,
        "generator_hidden_size": G / D,
    }
    return fields.from_flat({**sizes, **choices}, PretrainConfig)


def encoder(width, embedding_size=E):
    """FLOPs per token: projections and feed-forward, attention, embeddings."""
    projection = 2 * embedding_size * width * (embedding_size != width)
    return 24 * width * width + 4 * width * S + projection


def masked_lm(width, embedding_size=E):
    return 2 * embedding_size * (width + V)


# Forward FLOPs per token of both networks of ELECTRA.
MAIN = encoder(D) + 2 * D * (D + 1)
GENERATOR = encoder(G) + P / S * masked_lm(G)
# Forward and backward: two encoders, one head at all positions, sampling logits.
TOWERS = 3 * (2 * encoder(G) + 2 * E * (2 * G + V)) + P / S * 2 * E * V
# A second pass, whose output layer is at the sampled positions only.
TOWERS_APART = TOWERS + 2 * encoder(G) + 2 * E * 2 * G
NES = {"sharing": "nes"}
FROZEN = {**NES, "freeze_generator": True, "generator_init_from": "runs/x"}
TWO_STAGE = {"training": "two_stage", "two_stage_copy": False}
APART = {"sampling_dropout": False}

# FLOPs per token of a step of each phase, with backward passes.
EXPECTED = {
    "electra": [3 * (MAIN + GENERATOR)],
    "electra_15": [3 * (MAIN + GENERATOR)],
    "replace_mlm": [3 * (encoder(D) + P / S * masked_lm(D) + GENERATOR)],
    "all_tokens_mlm": [3 * (encoder(D) + masked_lm(D) + 2 * D + GENERATOR)],
    "mlm": [3 * (encoder(D) + P / S * masked_lm(D))],
    "electric": [3 * MAIN + TOWERS],
    "two_tower": [3 * MAIN + TOWERS],
    "two_tower_apart": [3 * MAIN + TOWERS_APART],
    "unigram": [3 * MAIN],
    "uniform": [3 * MAIN],
    "reinforce": [3 * (MAIN + GENERATOR + P / S * 2 * G)],
    "gumbel": [3 * (MAIN + GENERATOR + P / S * 2 * V * E)],
    "sentence": [3 * (MAIN + GENERATOR)],
    "untied": [3 * (MAIN + encoder(G, G) + P / S * masked_lm(G, G))],
    "all": [3 * (MAIN + encoder(D) + P / S * masked_lm(D))],
    "two_stage": [3 * GENERATOR, 3 * MAIN + GENERATOR],
    "two_stage_apart": [3 * GENERATOR, 3 * MAIN + 2 * GENERATOR],
    "frozen": [3 * MAIN + GENERATOR],
    "frozen_apart": [3 * MAIN + GENERATOR],
    "apart": [3 * MAIN + 4 * GENERATOR],
    "no_dropout": [3 * (MAIN + GENERATOR)],
}
FLAGS = {
    **{name: {"objective": name} for name in OBJECTIVES},
    **{name: {"generator": name} for name in ("two_tower", "unigram", "uniform")},
    **{name: {"training": name} for name in ("reinforce", "gumbel")},
    "sentence": {"sentence_weight": 1.0},
    "untied": {"sharing": "untied"},
    "all": {"sharing": "all", "generator_hidden_size": 1.0},
    "two_stage": {**TWO_STAGE, **NES, "generator_steps": 25},
    "two_stage_apart": {**TWO_STAGE, **APART, "sharing": "gdes"},
    "frozen": FROZEN,
    "frozen_apart": {**FROZEN, **APART},
    "apart": APART,
    "two_tower_apart": {**APART, "generator": "two_tower"},
    "no_dropout": {**APART, "dropout": 0.0, "attention_dropout": 0.0},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_matrix_products_by_hand(name):
    config = config_of(**FLAGS[name])
    phases = costs.phases(config, V)
    assert sum(steps for steps, _ in phases) == STEPS
    found = [flops for _, flops in phases]
    assert found == pytest.approx([value * S * B for value in EXPECTED[name]])
    assert min(flops for _, flops in costs.phases(config, V, rule="original")) > 0
    whole = sum(steps * flops for steps, flops in phases)
    assert costs.run_flops(config, V) == pytest.approx(whole)


def test_every_choice_has_costs():
    assert {*OBJECTIVES} <= {*EXPECTED}
    assert {*GENERATORS, *TRAININGS} - {*EXPECTED} == {"masked_lm", "joint"}


SIZES = ("small", "small_plus_plus", "base", "large")


def published(size, **choices):
    """A shipped config; the paper counts FLOPs at a mask rate of 15 %."""
    config = fields.to_flat(parse(f"--flagfile=configs/{size}.cfg"))
    return fields.from_flat({**config, "mask_rate": 0.15, **choices}, PretrainConfig)


# Exact parameter counts of the original with a vocabulary of 30,522, from the shapes of
# its code; published as 14M, 110M and 335M.
COUNTS = {
    "unigram": (13_549_057, 13_549_057, 109_483_009, 335_142_913),
    "masked_lm": (14_196_219, 23_122_875, 119_386_427, 354_655_291),
}


@pytest.mark.parametrize("generator", COUNTS)
@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts_equal_the_table(size, generator):
    config = published(size, generator=generator)
    wanted = COUNTS[generator][SIZES.index(size)]
    assert costs.parameters(config, 30522) == wanted


MLM = {"objective": "mlm"}
BERT_LARGE = {"train_batch_size": 256, "num_train_steps": 1_000_000}
PUBLISHED = {
    "ELECTRA-Small": (1.29e18, published("small")),
    "ELECTRA-Base": (6.42e19, published("base")),
    "ELECTRA-400K": (7.12e20, published("large")),
    "ELECTRA-1.75M": (3.11e21, published("large", num_train_steps=1_750_000)),
    "BERT-Small": (1.42e18, published("small", num_train_steps=1_450_000, **MLM)),
    "BERT-Base": (6.43e19, published("base", num_train_steps=1_000_000, **MLM)),
    "BERT-Large": (1.92e20, published("large", **MLM, **BERT_LARGE)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_original_rule_reproduces_published_counts(name):
    expected, config = PUBLISHED[name]
    flops = costs.run_flops(config, 30522, rule="original")
    assert flops == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("length", "rate"), [(8, 0.01), (24, 0.4), (512, 1)])
def test_slots_are_those_of_the_masking(length, rate):
    flags = {"max_seq_length": length, "mask_rate": rate}
    config = fields.from_flat(flags, PretrainConfig)
    masking = Masking(V, 4, never_masked=(2, 3), max_seq_length=length, mask_rate=rate)
    assert config.predictions_per_seq == masking.max_predictions_per_seq
    assert config_of().predictions_per_seq == P
    flags = {"mask_rate": 0.1, "final_mask_rate": 0.3}
    assert fields.from_flat(flags, PretrainConfig).predictions_per_seq == 39


@pytest.mark.parametrize(
    ("sharing", "objective"),
    [
        *((sharing, "electra") for sharing in SHARINGS),
        ("tied", "replace_mlm"),
        ("tied", "mlm"),
        ("gdes", "all_tokens_mlm"),
        ("gdes", "electric"),
    ],
)
def test_parameters_are_those_of_the_model(sharing, objective):
    fraction = {"generator_hidden_size": 1.0} if sharing == "all" else {}
    config = config_of(sharing=sharing, objective=objective, **fraction)
    model = build.build_model(config, V, special_ids=(2, 3))
    assert costs.parameters(config, V) == count(model.trainable_variables)


def test_networks_that_no_machine_holds_are_refused():
    """The check precedes building, which would exhaust memory."""
    huge = ("hidden_size", "num_layers", "intermediate_size", "max_positions")
    cases = [
        (config_of(**{name: 10**12 if name != "num_layers" else 10**8}), V)
        for name in huge
    ]
    for config, vocab_size in (*cases, (config_of(), 10**12)):
        with pytest.raises(ValueError, match=r"need [\d,]+ GB, and this machine has"):
            costs.check_fits(config, vocab_size)
    costs.check_fits(config_of(), V)


@pytest.mark.parametrize("without", [{"objective": "mlm"}, {"generator": "unigram"}])
def test_sizes_of_a_generator_that_is_not_built_are_not_checked(without):
    """A width of 21 is not a multiple of the head size 10."""
    sizes = {"hidden_size": 60, "num_heads": 6, "generator_hidden_size": 0.35}
    with pytest.raises(ValueError, match="generator of width 21 with 2 heads"):
        costs.check_fits(config_of(**sizes), V)
    config = config_of(**sizes, **without)
    costs.check_fits(config, V)
    assert costs.run_flops(config, V) > 0
    assert build.build_model(config, V, (2, 3, 4)).count_params() > 0
