"""What a run costs, from its config: FLOPs and memory, before anything is built."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from electra_tf import flops, networks
from electra_tf.config import EncoderConfig, PretrainConfig


def shape(encoder: EncoderConfig, vocab_size: int) -> flops.EncoderShape:
    """Sizes of an encoder as ``flops`` counts them."""
    return flops.EncoderShape(
        hidden_size=encoder.hidden_size,
        num_layers=encoder.num_layers,
        embedding_size=encoder.embedding_size,
        feed_forward_size=encoder.intermediate_size,
        num_heads=encoder.num_heads,
        vocab_size=vocab_size,
        max_positions=encoder.max_positions,
    )


def _with_generator(head, config, vocab_size):
    sizes = _GENERATORS.get(config.generator.sharing, _tied_generator)(config)
    return {
        "discriminator": shape(config.encoder, vocab_size),
        "generator": shape(sizes, vocab_size),
        "discriminator_head": head,
    }


def _alone(config, vocab_size):
    return {"generator": shape(config.encoder, vocab_size)}


def _tied_generator(config):
    return config.generator_encoder


# Sharings whose generator has other sizes, and the networks of each objective. The
# sentence-level unit, 2 D operations per row, is not counted.
_GENERATORS = {"untied": networks.untied_generator}
NETWORKS: dict[str, Callable[[PretrainConfig, int], dict[str, Any]]] = {
    "electra": functools.partial(_with_generator, "replaced_token"),
    "electra_15": functools.partial(_with_generator, "replaced_token"),
    "replace_mlm": functools.partial(_with_generator, "masked_lm"),
    "all_tokens_mlm": functools.partial(_with_generator, "copying"),
    "mlm": _alone,
}


def training_flops(
    config: PretrainConfig, vocab_size: int, slots: int, *, rule: str
) -> float:
    """FLOPs of one update.

    Args:
        config: of the run.
        vocab_size: V.
        slots: predicted positions per row.
        rule: one of ``flops.RULES``.
    """
    return flops.training_flops(
        **NETWORKS[config.objective.objective](config, vocab_size),
        sequence_length=config.data.max_seq_length,
        batch_size=config.run.train_batch_size,
        predicted_fraction=slots / config.data.max_seq_length,
        rule=rule,
    )


def memory(config: PretrainConfig, vocab_size: int, slots: int) -> dict[str, int]:
    """Estimated bytes of one step on one device; arguments as ``training_flops``."""
    found = NETWORKS[config.objective.objective](config, vocab_size)
    generator = found["generator"]
    return flops.memory_estimate(
        found.get("discriminator", generator),
        generator if "discriminator" in found else None,
        head=found.get("discriminator_head", "masked_lm"),
        sharing=config.generator.sharing,
        batch_size=config.run.train_batch_size
        // config.run.gradient_accumulation_steps,
        sequence_length=config.data.max_seq_length,
        predictions=slots,
        activation_bytes=4 if config.run.mixed_precision == "none" else 2,
    )
