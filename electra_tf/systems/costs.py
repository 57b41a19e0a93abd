"""FLOPs and parameters of a pretraining run, computed from its config.

Two rules count FLOPs:

- "original" reproduces the script behind the paper's numbers. Every mathematical
  operation is one, a matrix product 2mn, the embedding lookup a dense one-hot product.
  The backward pass costs as much as the forward pass.
- "matmul" is the usual model-FLOPs convention: matrix products only, the lookup is
  free, and the backward pass costs twice the forward pass.

Heads count at their positions; recomputed logits count once. Sampling, unigram and
uniform generators, the sums of ``gdes`` tables, the sentence-level unit and the weight
update are cheap and not counted.
"""

import os
from typing import NamedTuple

from electra_tf.config.pretraining import EncoderConfig, PretrainConfig
from electra_tf.errors import UserError

# Cost of forward and backward pass in forward passes, by rule.
RULES = {"original": 2, "matmul": 3}
# Operations per element under the "original" rule.
_DROPOUT = 4
_LAYER_NORM = 5
_ACTIVATION = 8
_SOFTMAX = 5

_SEGMENTS = 2
# Bytes of a layer's Python objects.
_BYTES_OF_A_LAYER = 100_000


class Head(NamedTuple):
    """A head that runs ``everywhere``, or only at the predicted positions.

    Names are "masked_lm", its parts "transform" and "logits", "replaced_token",
    "linear_unit" (with a sigmoid) and "relaxed_lookup" (relaxed one-hots times table).
    """

    name: str
    everywhere: bool = True
    is_trained: bool = True


class Network(NamedTuple):
    """An encoder, or two ``towers`` with shared embeddings and concatenated outputs."""

    encoder: EncoderConfig
    vocab_size: int
    heads: tuple[Head, ...]
    towers: int = 1
    is_trained: bool = True


class Phase(NamedTuple):
    """A number of updates with the same networks."""

    name: str
    steps: int
    networks: tuple[Network, ...]


def phases(config: PretrainConfig, vocab_size: int) -> tuple[Phase, ...]:
    """Returns the phases of a run; ``vocab_size`` may be below ``--vocab_size``."""
    name, steps = config.objective.objective, config.run.num_train_steps
    heads = _discriminator_heads(config)
    discriminator = Network(config.encoder, vocab_size, heads)
    if not config.has_generator_network:
        return (Phase(name, steps, (discriminator,)),)
    generator = _generator(config, vocab_size)
    frozen = generator._replace(is_trained=False)
    beside = [frozen if config.generator_is_frozen else generator]
    if config.samples_apart:
        # A second forward pass draws the samples, from logits at masked positions.
        if generator.towers == 2:
            logits = Head("logits", everywhere=False)
            frozen = frozen._replace(heads=(Head("transform"), logits))
        beside.append(frozen)
    networks = (*beside, discriminator)
    if config.training.training != "two_stage":
        return (Phase(name, steps, networks),)
    first = config.generator_steps
    return (
        Phase("generator", first, (generator,)),
        Phase("discriminator", steps - first, networks),
    )


def _discriminator_heads(config: PretrainConfig) -> tuple[Head, ...]:
    name = config.objective.objective
    if name in ("mlm", "replace_mlm"):
        return (Head("masked_lm", everywhere=False),)
    if name == "all_tokens_mlm":
        # The linear unit is the copy gate.
        return (Head("masked_lm"), Head("linear_unit"))
    # The head runs everywhere, even if the loss covers only masked positions.
    return (Head("replaced_token"),)


def _generator(config: PretrainConfig, vocab_size: int) -> Network:
    heads, towers = [Head("masked_lm", everywhere=False)], 1
    if config.generator_kind == "two_tower":
        # The generator predicts every token; sampling needs logits at masked positions.
        heads, towers = [Head("masked_lm")], 2
        if not config.samples_apart:
            heads.append(Head("logits", everywhere=False, is_trained=False))
    if config.training.training == "reinforce":
        # The reward baseline.
        heads.append(Head("linear_unit", everywhere=False))
    elif config.training.training == "gumbel":
        heads.append(Head("relaxed_lookup", everywhere=False))
    return Network(config.generator_encoder, vocab_size, tuple(heads), towers)


def step_flops(config: PretrainConfig, phase: Phase, *, rule: str) -> float:
    """Returns the FLOPs of one update in a phase."""
    length, per_token = config.data.max_seq_length, 0.0
    for network in phase.networks:
        passes = RULES[rule] if network.is_trained else 1
        per_token += passes * encoder_flops(network, length, rule)
        for head in network.heads:
            times = passes if head.is_trained else 1
            times *= 1 if head.everywhere else config.predictions_per_seq / length
            per_token += times * head_flops(network, head, rule)
    return per_token * length * config.run.train_batch_size


def run_flops(
    config: PretrainConfig, vocab_size: int, *, rule: str = "matmul"
) -> float:
    """Returns the FLOPs of a run."""
    return sum(
        phase.steps * step_flops(config, phase, rule=rule)
        for phase in phases(config, vocab_size)
    )


def encoder_flops(network: Network, length: int, rule: str) -> float:
    """Returns the FLOPs per token of a forward pass through all towers, no heads."""
    e, s, v = network.encoder, length, network.vocab_size
    d, f, n, width = e.hidden_size, e.intermediate_size, e.num_heads, e.embedding_size
    embeddings = 2 * width * d * (width != d)
    layer = 8 * d * d + 4 * d * s + 4 * d * f
    if rule == "original":
        embeddings += 2 * width * (v + s + _SEGMENTS) + d * (width != d)
        embeddings += (2 + _LAYER_NORM + _DROPOUT) * width
        biases = 5 * d + f
        layer += biases + (_SOFTMAX + _DROPOUT + 1) * s * n + _ACTIVATION * f
        # Dropout, residual sum and layer normalization occur twice.
        layer += 2 * (_DROPOUT + 1 + _LAYER_NORM) * d
    return network.towers * (embeddings + e.num_layers * layer)


def head_flops(network: Network, head: Head, rule: str) -> float:
    """Returns the FLOPs of a head at one position, forward only."""
    e = network.encoder
    d, width = e.hidden_size, e.embedding_size
    output = network.towers * d
    original = rule == "original"  # As a factor, 0 or 1.
    logits = (2 * width + original * (_SOFTMAX + 2)) * network.vocab_size
    transform = (2 * output + original * (1 + _ACTIVATION + _LAYER_NORM)) * width
    match head.name:
        case "logits":
            return logits
        case "transform":
            return transform
        case "masked_lm":
            return transform + logits
        case "replaced_token":
            return 2 * d * (d + 1) + original * (1 + _ACTIVATION) * d
        case "linear_unit":
            return 2 * output + original * (1 + _ACTIVATION)
        case "relaxed_lookup":
            # The "original" rule already counts every lookup as this product.
            return 0 if original else logits
    raise ValueError(f"Unknown head {head.name}.")


def parameters(config: PretrainConfig, vocab_size: int) -> dict[str, int]:
    """Counts the trainable parameters of a run's networks, by part.

    ``discriminator`` is ``backbone`` and heads. ``joint``, only with a generator
    network, counts all variables, shared ones once. The reward baseline (D parameters)
    and the sentence-level unit are not counted.
    """
    heads = _discriminator_heads(config)
    main = Network(config.encoder, vocab_size, heads)
    d, layers = config.encoder, config.encoder.num_layers
    counts = {
        "embeddings": _embedding_count(d, vocab_size),
        "projection": _projection_count(d),
        "layer": _layer_count(d),
        "encoder": layers * _layer_count(d),
        "head": sum(_head_count(main, head) for head in heads),
    }
    counts["backbone"] = sum(counts[n] for n in ("embeddings", "projection", "encoder"))
    counts["discriminator"] = counts["backbone"] + counts["head"]
    if not config.has_generator_network:
        return counts
    generator, sharing = _generator(config, vocab_size), config.generator.sharing
    g = generator.encoder
    # A shared encoder counts as the discriminator's.
    towers = 0 if sharing == "all" else generator.towers
    unshared = {
        "token": _embedding_count(g, vocab_size) - vocab_size * g.embedding_size,
        "untied": _embedding_count(g, vocab_size),
        "nes": _embedding_count(g, vocab_size),
        # Deltas and a LayerNorm on top of the generator's tables.
        "gdes": _embedding_count(d, vocab_size),
    }
    own = {
        "generator_projection": towers * _projection_count(g),
        "generator_encoder": towers * g.num_layers * _layer_count(g),
        "generator_head": _head_count(generator, Head("masked_lm")),
        "unshared_embeddings": unshared.get(sharing, 0),
    }
    return {**counts, **own, "joint": counts["discriminator"] + sum(own.values())}


def _embedding_count(e: EncoderConfig, vocab_size: int) -> int:
    return (vocab_size + e.max_positions + _SEGMENTS + 2) * e.embedding_size


def _projection_count(e: EncoderConfig) -> int:
    has_projection = e.embedding_size != e.hidden_size
    return (e.embedding_size + 1) * e.hidden_size if has_projection else 0


def _layer_count(e: EncoderConfig) -> int:
    d, f = e.hidden_size, e.intermediate_size
    return 4 * (d * d + d) + (2 * d * f + f + d) + 4 * d


def _head_count(network: Network, head: Head) -> int:
    d = network.encoder.hidden_size
    output = network.towers * d
    if head.name == "masked_lm":  # A tied table counts as the encoder's.
        return (output + 3) * network.encoder.embedding_size + network.vocab_size
    if head.name == "replaced_token":
        return d * (d + 1) + d + 1
    return output + 1


def check_fits(config: PretrainConfig, vocab_size: int) -> None:
    """Raises UserError if the weights alone need more memory than the machine has."""
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return  # The system does not report its memory.
    counts = parameters(config, vocab_size)
    needed = 4 * counts.get("joint", counts["discriminator"])
    layers = config.encoder.num_layers
    if config.has_generator_network:
        layers += config.generator_encoder.num_layers
    needed += _BYTES_OF_A_LAYER * layers
    if needed > available:
        names = ("hidden_size", "num_layers", "intermediate_size", "embedding_size")
        flags = [f"--{name}={getattr(config.encoder, name)}" for name in names]
        raise UserError(
            f"the weights of this network need {needed / 1e9:,.0f} GB, and this "
            f"machine has {available / 1e9:,.0f}: lower {', '.join(flags)} or "
            f"--vocab_size={vocab_size}."
        )
