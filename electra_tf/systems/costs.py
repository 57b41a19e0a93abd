"""What a run costs, from its config alone: FLOPs of every phase, and memory.

``arithmetic.py`` counts encoders and heads; the rows of the objective, the generator,
the sharing and the training say which of them a step runs. A head counts at the
positions it is computed at; logits that are computed again in the backward pass count
once. Not counted, because they are a few operations per row, token or table: sampling,
the look-up of a unigram or uniform generator, the sum of table and delta under
``gdes``, the sentence-level unit, the update of the weights.
"""

from __future__ import annotations

import dataclasses
import os

from electra_tf.config.pretraining import EncoderConfig, PretrainConfig
from electra_tf.errors import UserError
from electra_tf.systems import arithmetic
from electra_tf.systems.arithmetic import EncoderShape
from electra_tf.systems.rows import GENERATORS, OBJECTIVES, SHARINGS, TRAININGS, HeadUse

# Logits that a head at every position holds at once (``layers/chunked.py``).
CHUNK_LOGITS = 1 << 24
# Of its Python objects, whatever its size.
_BYTES_OF_A_LAYER = 100_000


@dataclasses.dataclass(frozen=True)
class NetworkCost:
    """What a step runs of a "generator" or "discriminator", as a BERT's one network is.

    ``is_trained`` says whether there is a backward pass.
    """

    role: str
    encoder: EncoderShape
    heads: tuple[HeadUse, ...]
    is_trained: bool = True


@dataclasses.dataclass(frozen=True)
class PhaseCost:
    """Updates that all run the same networks."""

    name: str
    steps: int
    networks: tuple[NetworkCost, ...]


def shape(encoder: EncoderConfig, vocab_size: int) -> EncoderShape:
    """Sizes of an encoder as ``arithmetic`` counts them."""
    return EncoderShape(
        hidden_size=encoder.hidden_size,
        num_layers=encoder.num_layers,
        embedding_size=encoder.embedding_size,
        feed_forward_size=encoder.intermediate_size,
        num_heads=encoder.num_heads,
        vocab_size=vocab_size,
        max_positions=encoder.max_positions,
    )


def _generator_shape(config: PretrainConfig, vocab_size: int) -> EncoderShape | None:
    """The generator's shape; None where it is no network, or there is none."""
    if not config.has_generator_network:
        return None
    one = shape(config.generator_encoder, vocab_size)
    towers = GENERATORS[config.generator_kind].towers
    return dataclasses.replace(one, num_towers=towers)


def phases(config: PretrainConfig, vocab_size: int) -> tuple[PhaseCost, ...]:
    """The phases of a run and the networks of each.

    The vocabulary may have fewer entries than ``--vocab_size`` asks for.
    """
    objective = OBJECTIVES[config.objective.objective]
    training = TRAININGS[config.training.training]
    encoder = shape(config.encoder, vocab_size)
    main = NetworkCost("discriminator", encoder, objective.heads)
    generator_shape = _generator_shape(config, vocab_size)
    found = []
    for plan in training.plan(config):
        generator = ()
        if generator_shape is not None:
            heads = GENERATORS[config.generator_kind].heads
            heads = heads if plan.generator_alone else (*heads, *training.heads)
            one = NetworkCost("generator", generator_shape, heads, not plan.is_frozen)
            # A second pass, for the samples.
            again = dataclasses.replace(one, is_trained=False)
            apart = config.samples_apart and not plan.generator_alone
            generator = (one, again) if apart else (one,)
        networks = generator if plan.generator_alone else (*generator, main)
        found.append(PhaseCost(plan.name, plan.steps, networks))
    return tuple(found)


def step_flops(config: PretrainConfig, phase: PhaseCost, *, rule: str) -> float:
    """FLOPs of one update in a phase; ValueError for an unknown rule."""
    length = config.data.max_seq_length
    # Forward and backward passes, in units of a forward pass.
    both = arithmetic.get_rule(rule).passes
    per_token = 0.0
    for network in phase.networks:
        encoder, total = network.encoder, 0.0
        for head in network.heads:
            passes = both if network.is_trained and head.is_trained else 1
            one = arithmetic.head_flops(head.name, encoder, rule=rule)
            total += passes * _share(config, head) * one
        alone = arithmetic.forward_flops(encoder, {}, sequence_length=length, rule=rule)
        per_token += total + (both if network.is_trained else 1) * alone
    return per_token * length * config.run.train_batch_size


def _share(config: PretrainConfig, head: HeadUse) -> float:
    """Share of the positions that a head is computed at."""
    some = config.predictions_per_seq / config.data.max_seq_length
    return 1.0 if head.everywhere else some


def run_flops(
    config: PretrainConfig, vocab_size: int, *, rule: str = "matmul", done: float = 1.0
) -> float:
    """FLOPs of a run up to a share of its steps, ``done``; ValueError as above."""
    total, left = 0.0, done * config.run.num_train_steps
    for phase in phases(config, vocab_size):
        steps = min(left, phase.steps)
        total += steps * step_flops(config, phase, rule=rule)
        left -= steps
    return total


def parameters(config: PretrainConfig, vocab_size: int) -> dict[str, int]:
    """Trainable parameters of a run's networks, as ``arithmetic.parameter_count``.

    The baseline of the rewards (D numbers) and the sentence-level unit do not count.
    """
    main = shape(config.encoder, vocab_size)
    generator = _generator_shape(config, vocab_size)
    sharing = SHARINGS[config.generator.sharing]
    return arithmetic.parameter_count(
        main,
        generator,
        heads=[head.name for head in OBJECTIVES[config.objective.objective].heads],
        generator_heads=[head.name for head in GENERATORS[config.generator_kind].heads],
        unshared=sharing.unshared(main, generator) if generator else 0,
        one_encoder=config.generator.sharing == "all",
    )


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

    Returns these four and their total.
    """
    counts = parameters(config, vocab_size)
    # What is shared belongs to the discriminator.
    own = {"discriminator": counts["discriminator"]}
    own["generator"] = counts.get("joint", counts["discriminator"]) - sum(own.values())
    every = phases(config, vocab_size)
    trained = [
        sum(own[network.role] for network in phase.networks if network.is_trained)
        for phase in every
    ]
    parts = {
        "weights": 4 * sum(own.values()),
        "gradients": 4 * max(trained),
        "slots": 8 * sum(trained),
        "activations": max(_activations(config, phase) for phase in every),
    }
    return {**parts, "total": sum(parts.values())}


def check_fits(config: PretrainConfig, vocab_size: int) -> None:
    """Refuses networks whose weights alone need more memory than the machine has.

    Building them would take it all, or hours, before anything failed. ValueError.
    """
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return  # A system that does not tell.
    layers = config.encoder.num_layers
    if config.has_generator_network:
        layers += config.generator_encoder.num_layers
    needed = memory(config, vocab_size)["weights"] + _BYTES_OF_A_LAYER * layers
    if needed > there:
        names = ("hidden_size", "num_layers", "intermediate_size", "embedding_size")
        flags = [f"--{name}={getattr(config.encoder, name)}" for name in names]
        raise UserError(
            f"the weights of this network need {needed / 1e9:,.0f} GB, and this "
            f"machine has {there / 1e9:,.0f}: lower {', '.join(flags)} or --vocab_size="
            f"{vocab_size}."
        )


def _activations(config: PretrainConfig, phase: PhaseCost) -> int:
    length = config.data.max_seq_length
    rows = config.run.train_batch_size // config.run.gradient_accumulation_steps
    width = 4 if config.run.mixed_precision == "none" else 2
    kept = logits = 0
    for network in phase.networks:
        if network.is_trained:
            kept += arithmetic.kept_per_token(
                network.encoder, length, remat=config.encoder.remat
            )
        for head in network.heads:
            if arithmetic.head(head.name).has_logits:
                positions = round(_share(config, head) * rows * length)
                whole = positions * network.encoder.vocab_size
                # A head at every position computes its logits in chunks.
                logits += min(whole, CHUNK_LOGITS) if head.everywhere else whole
    return width * rows * length * kept + 12 * logits
