"""What a run computes, from its config alone: FLOPs of every phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from electra_tf import flops
from electra_tf.config import EncoderConfig, PretrainConfig


class PhaseWork(NamedTuple):
    """FLOPs of one phase.

    Attributes:
        name: of the phase.
        steps: its updates.
        flops_per_step: of one update, forward and backward.
    """

    name: str
    steps: int
    flops_per_step: float


def run_work(
    config: PretrainConfig, vocab_size: int, *, predictions: int, rule: str
) -> list[PhaseWork]:
    """FLOPs of the phases of a pretraining run.

    A frozen generator has no backward pass; samples without dropout cost a generator
    that is trained one more forward pass; fixed distributions cost nothing. What the
    adversarial trainings add is not counted: a product with one vector per slot
    (reinforce), or the products of one more masked-LM head (gumbel).

    Args:
        config: of the run.
        vocab_size: V.
        predictions: slots per row.
        rule: "original" or "matmul", as ``flops.training_flops``.

    Raises:
        ValueError: unknown rule.
    """
    return [
        PhaseWork(
            name,
            steps,
            flops.training_flops(
                **networks,
                sequence_length=config.data.max_seq_length,
                batch_size=config.run.train_batch_size,
                predicted_fraction=predictions / config.data.max_seq_length,
                rule=rule,
            ),
        )
        for name, steps, networks in _phases(config, vocab_size)
    ]


def networks(config: PretrainConfig, vocab_size: int) -> dict[str, flops.EncoderShape]:
    """The networks of a run by role; BERT is a generator alone."""
    encoder = encoder_shape(config.encoder, vocab_size)
    if config.objective.objective == "mlm":
        return {"generator": encoder}
    if config.generator.generator != "masked_lm":
        return {"discriminator": encoder}
    generator = encoder_shape(config.generator_encoder, vocab_size)
    return {"discriminator": encoder, "generator": generator}


def encoder_shape(encoder: EncoderConfig, vocab_size: int) -> flops.EncoderShape:
    """The sizes that FLOPs, parameters and memory depend on."""
    return flops.EncoderShape(
        hidden_size=encoder.hidden_size,
        num_layers=encoder.num_layers,
        embedding_size=encoder.embedding_size,
        feed_forward_size=encoder.intermediate_size,
        num_heads=encoder.num_heads,
        vocab_size=vocab_size,
        max_positions=encoder.max_positions,
    )


def _phases(
    config: PretrainConfig, vocab_size: int
) -> list[tuple[str, int, Mapping[str, Any]]]:
    found = networks(config, vocab_size)
    first = config.generator_steps
    last = {
        **found,
        "generator_is_trained": not config.generator_is_frozen,
        "generator_resamples": _resamples(config),
    }
    if not first:
        return [(config.objective.objective, config.run.num_train_steps, last)]
    return [
        ("generator", first, {"generator": found["generator"]}),
        ("discriminator", config.run.num_train_steps - first, last),
    ]


def _resamples(config: PretrainConfig) -> bool:
    """Whether samples take a forward pass of their own; see ``build_training``."""
    encoder = config.encoder
    return (
        not config.generator.sampling_dropout
        and not config.training.freeze_generator
        and bool(encoder.dropout or encoder.attention_dropout)
    )
