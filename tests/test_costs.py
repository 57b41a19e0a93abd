"""FLOPs and memory of a config, by hand."""

import dataclasses

import pytest

from electra_tf import build, costs
from electra_tf.config import (
    DataConfig,
    EncoderConfig,
    GeneratorConfig,
    ObjectiveConfig,
    PretrainConfig,
    RunConfig,
)

V, S, P, E, D, G, B = 97, 24, 4, 12, 32, 16, 3


def config_of(objective="electra", sharing="tied"):
    return PretrainConfig(
        run=RunConfig(train_batch_size=B),
        data=DataConfig(max_seq_length=S),
        encoder=EncoderConfig(
            num_layers=1,
            hidden_size=D,
            num_heads=2,
            intermediate_size=4 * D,
            embedding_size=E,
            max_positions=40,
        ),
        generator=GeneratorConfig(generator_hidden_size=G / D, sharing=sharing),
        objective=ObjectiveConfig(objective=objective),
    )


def encoder(width):
    """Products of one token: projections and feed-forward, attention, embeddings."""
    return 24 * width * width + 4 * width * S + 2 * E * width


def masked_lm(width):
    return 2 * E * (width + V)


PER_TOKEN = {
    "electra": encoder(D) + 2 * D * (D + 1) + encoder(G) + P / S * masked_lm(G),
    "replace_mlm": encoder(D) + encoder(G) + P / S * (masked_lm(D) + masked_lm(G)),
    "all_tokens_mlm": encoder(D)
    + masked_lm(D)
    + 2 * D
    + encoder(G)
    + P / S * masked_lm(G),
    "mlm": encoder(D) + P / S * masked_lm(D),
}
PER_TOKEN["electra_15"] = PER_TOKEN["electra"]


def test_every_objective_has_costs():
    assert build.OBJECTIVES.keys() == costs.NETWORKS.keys() == PER_TOKEN.keys()


@pytest.mark.parametrize("objective", PER_TOKEN)
def test_matrix_products_by_hand(objective):
    found = costs.training_flops(config_of(objective), V, P, rule="matmul")
    assert found == pytest.approx(3 * PER_TOKEN[objective] * S * B)
    assert costs.training_flops(config_of(objective), V, P, rule="original") > 0


def test_untied_generators_have_no_projection_and_a_wider_head():
    tied = costs.training_flops(config_of(), V, P, rule="matmul")
    untied = costs.training_flops(config_of(sharing="untied"), V, P, rule="matmul")
    per_token = P / S * (2 * G * (G + V) - masked_lm(G)) - 2 * E * G
    assert untied - tied == pytest.approx(3 * per_token * S * B)


def test_memory_counts_weights_and_logits():
    """Logits of each masked-LM head at its positions, of a copying head at all."""

    def activations(objective):
        return costs.memory(config_of(objective), V, P)["activations"]

    def logits(objective):
        return (activations(objective) - activations("electra")) / 12 / B / V

    assert logits("electra_15") == 0
    assert logits("replace_mlm") == pytest.approx(P)
    assert logits("all_tokens_mlm") == pytest.approx(S)
    config = config_of("all_tokens_mlm", "gdes")
    model = build.model(config, V)
    parameters = sum(v.shape.num_elements() for v in model.trainable_variables)
    assert costs.memory(config, V, P)["weights"] == 4 * parameters


def test_logits_of_a_copying_head_are_those_of_one_chunk():
    config = config_of("all_tokens_mlm")
    large = dataclasses.replace(config, run=RunConfig(train_batch_size=4096))
    electra = dataclasses.replace(config_of(), run=RunConfig(train_batch_size=4096))
    vocab = 30522
    more = (
        costs.memory(large, vocab, P)["activations"]
        - costs.memory(electra, vocab, P)["activations"]
    )
    assert more == 12 * 2**24
