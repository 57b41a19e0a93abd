"""What a run costs, from its config alone: FLOPs of every phase, and memory.

``flops`` and ``footprint`` count encoders and heads; the tables here say, for each
objective, generator and way of training, which of them a step runs. A head counts at
the positions it is computed at; logits that are computed again in the backward pass
count once. Not counted, because they are a few operations per row, token or table:
sampling, the look-up of a unigram or uniform generator, the sum of table and delta
under ``gdes``, the sentence-level unit, the update of the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from electra_tf import flops, footprint
from electra_tf.config import EncoderConfig, PretrainConfig
from electra_tf.flops import EncoderShape

# Logits that a head at every position holds at once (`layers/chunked.py`).
CHUNK_LOGITS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Head:
    """A head and where it runs.

    Attributes:
        name: a key of ``flops.HEADS``.
        share: of the positions that it is computed at.
        is_trained: whether there is a backward pass, if its network has one.
    """

    name: str
    share: float
    is_trained: bool = True


@dataclasses.dataclass(frozen=True)
class Network:
    """What a step runs.

    Attributes:
        role: "generator" or "discriminator"; what a BERT is, is a discriminator.
        encoder: its shape.
        heads: on top of it.
        is_trained: whether there is a backward pass.
    """

    role: str
    encoder: EncoderShape
    heads: tuple[Head, ...]
    is_trained: bool = True


@dataclasses.dataclass(frozen=True)
class Phase:
    """Updates that all run the same networks.

    Attributes:
        name: of the phase.
        steps: its updates.
        networks: of each of them.
    """

    name: str
    steps: int
    networks: tuple[Network, ...]


@dataclasses.dataclass(frozen=True)
class _Question:
    """What an objective puts on the discriminator.

    Attributes:
        heads: from the share of predicted positions.
        parameters: what ``footprint.parameter_count`` calls it.
    """

    heads: Callable[[float], tuple[Head, ...]]
    parameters: str = "replaced_token"


def _detection(predicted):
    # Computed everywhere, also where the loss looks at the masked positions only.
    del predicted
    return (Head("replaced_token", 1.0),)


def _prediction(predicted):
    return (Head("masked_lm", predicted),)


def _copying(predicted):
    del predicted
    return (Head("masked_lm", 1.0), Head("linear_unit", 1.0))


QUESTIONS = {
    "electra": _Question(_detection),
    "electra_15": _Question(_detection),
    "replace_mlm": _Question(_prediction, "masked_lm"),
    "all_tokens_mlm": _Question(_copying, "copying"),
    "electric": _Question(_detection),
    "mlm": _Question(_prediction, "masked_lm"),
}


def _no_network(shape, predicted):
    del shape, predicted
    return ()


def _masked_lm(shape, predicted):
    return (Network("generator", shape, _prediction(predicted)),)


def _two_tower(shape, predicted):
    # It predicts every token, and is sampled from at the predicted ones, without
    # gradient.
    heads = (Head("masked_lm", 1.0), Head("logits", predicted, is_trained=False))
    return (Network("generator", dataclasses.replace(shape, num_towers=2), heads),)


GENERATORS: dict[str, Callable[[EncoderShape, float], tuple[Network, ...]]] = {
    "masked_lm": _masked_lm,
    "two_tower": _two_tower,
    "unigram": _no_network,
    "uniform": _no_network,
}


def _joint(config, generators, main):
    steps = config.run.num_train_steps - config.generator_steps
    if config.generator_is_frozen:
        generators = _only_forward(generators)
    if config.samples_apart:
        generators += _only_forward(generators)
    return (Phase(config.objective.objective, steps, (*generators, main)),)


def _two_stage(config, generators, main):
    first = Phase("generator", config.generator_steps, generators)
    (second,) = _joint(config, generators, main)
    return first, dataclasses.replace(second, name="discriminator")


def _reinforce(config, generators, main):
    return _joint(config, _with_head(generators, "linear_unit", config), main)


def _gumbel(config, generators, main):
    return _joint(config, _with_head(generators, "relaxed_lookup", config), main)


TRAININGS: dict[str, Callable[..., tuple[Phase, ...]]] = {
    "joint": _joint,
    "two_stage": _two_stage,
    "reinforce": _reinforce,
    "gumbel": _gumbel,
}


def _only_forward(networks):
    return tuple(dataclasses.replace(one, is_trained=False) for one in networks)


def _with_head(networks, name, config):
    head = Head(name, _predicted(config))
    return tuple(dataclasses.replace(one, heads=(*one.heads, head)) for one in networks)


def _predicted(config):
    return config.predictions_per_seq / config.data.max_seq_length


def shape(encoder: EncoderConfig, vocab_size: int) -> EncoderShape:
    """Sizes of an encoder as ``flops`` and ``footprint`` count them."""
    return EncoderShape(
        hidden_size=encoder.hidden_size,
        num_layers=encoder.num_layers,
        embedding_size=encoder.embedding_size,
        feed_forward_size=encoder.intermediate_size,
        num_heads=encoder.num_heads,
        vocab_size=vocab_size,
        max_positions=encoder.max_positions,
    )


def phases(config: PretrainConfig, vocab_size: int) -> tuple[Phase, ...]:
    """The phases of a run and the networks of each.

    Args:
        config: of the run.
        vocab_size: entries of the vocabulary, which may be fewer than
            ``--vocab_size`` asks for.
    """
    objective, predicted = config.objective.objective, _predicted(config)
    heads = QUESTIONS[objective].heads(predicted)
    main = Network("discriminator", shape(config.encoder, vocab_size), heads)
    generators = ()
    if objective != "mlm":
        make = GENERATORS[config.generator_kind]
        generators = make(shape(config.generator_encoder, vocab_size), predicted)
    return TRAININGS[config.training.training](config, generators, main)


def step_flops(config: PretrainConfig, phase: Phase, *, rule: str) -> float:
    """FLOPs of one update in a phase.

    Raises:
        ValueError: an unknown rule.
    """
    per_token = sum(
        _network_flops(network, config.data.max_seq_length, rule)
        for network in phase.networks
    )
    return per_token * config.data.max_seq_length * config.run.train_batch_size


def _network_flops(network, sequence_length, rule):
    """Per token, with the backward passes."""
    total = 0.0
    for head in network.heads:
        passes = _passes(network.is_trained and head.is_trained, rule)
        one = flops.head_flops(head.name, network.encoder, rule=rule)
        total += passes * head.share * one
    alone = flops.forward_flops(
        network.encoder, {}, sequence_length=sequence_length, rule=rule
    )
    return total + _passes(network.is_trained, rule) * alone


def _passes(is_trained, rule):
    return flops.get_rule(rule).passes if is_trained else 1


def run_flops(
    config: PretrainConfig, vocab_size: int, *, rule: str = "matmul", done: float = 1.0
) -> float:
    """FLOPs of a run up to a share of its steps.

    Args:
        config: of the run.
        vocab_size: V.
        rule: one of ``flops.RULES``.
        done: share of the steps, in [0, 1].

    Raises:
        ValueError: an unknown rule.
    """
    total, left = 0.0, done * config.run.num_train_steps
    for phase in phases(config, vocab_size):
        steps = min(left, phase.steps)
        total += steps * step_flops(config, phase, rule=rule)
        left -= steps
    return total


def memory(config: PretrainConfig, vocab_size: int) -> dict[str, int]:
    """Estimates the bytes of one training step on one device.

    With P parameters, of which some are trained in a phase, and a bytes per activation:

        weights = 4 P,  gradients = 4 P trained at a time,
        slots = 8 P trained in each phase (two float32 moments)
        activations = a * values kept of each token + 3 * 4 * logits

    The last term: float32 logits at the predictions of each vocabulary head (of one
    chunk, where it runs everywhere), their softmax and gradient. Workspaces of kernels,
    the input pipeline and fragmentation are not included, so leave a margin of about a
    third.

    Returns:
        Dict of weights, gradients, slots, activations, total.
    """
    found = phases(config, vocab_size)
    counts = _parameters(config, found[-1])
    trained = [
        sum(counts[one.role] for one in phase.networks if one.is_trained)
        for phase in found
    ]
    parts = {
        "weights": 4 * sum(counts.values()),
        "gradients": 4 * max(trained),
        "slots": 8 * sum(trained),
        "activations": max(_activations(config, phase) for phase in found),
    }
    return {**parts, "total": sum(parts.values())}


def _parameters(config, phase):
    """Of both roles; what is shared belongs to the discriminator."""
    networks = {network.role: network.encoder for network in phase.networks}
    counts = footprint.parameter_count(
        networks["discriminator"],
        networks.get("generator"),
        head=QUESTIONS[config.objective.objective].parameters,
        sharing=config.generator.sharing,
    )
    own = counts.get("joint", counts["discriminator"]) - counts["discriminator"]
    return {"discriminator": counts["discriminator"], "generator": own}


def _activations(config, phase):
    length = config.data.max_seq_length
    rows = config.run.train_batch_size // config.run.gradient_accumulation_steps
    width = 4 if config.run.mixed_precision == "none" else 2
    kept = sum(
        footprint.kept_per_token(network.encoder, length)
        for network in phase.networks
        if network.is_trained
    )
    logits = sum(
        _logits(head, network.encoder.vocab_size, rows * length)
        for network in phase.networks
        for head in network.heads
    )
    return width * rows * length * kept + 12 * logits


def _logits(head, vocab_size, tokens):
    """Logits of a head that exist at once."""
    if head.name not in ("masked_lm", "logits", "relaxed_lookup"):
        return 0
    everything = round(head.share * tokens) * vocab_size
    return min(everything, CHUNK_LOGITS) if head.share == 1 else everything
