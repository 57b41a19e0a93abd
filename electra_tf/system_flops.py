"""FLOPs of every pretraining system: which networks run, with which heads, how long.

``flops`` counts encoders and heads; this module says, for each objective, generator
and way of training, which of them a step runs. A head counts at the positions it is
computed at. Not counted, because they are a few operations per row or token of no
matrix product: sampling, the table look-up of a unigram or uniform generator, the sum
of table and delta under ``gdes``, sentence-level units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from electra_tf import config as config_lib
from electra_tf import flops
from electra_tf.config import EncoderConfig, PretrainConfig
from electra_tf.flops import EncoderShape

Heads = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Network:
    """What a step runs.

    Args:
        encoder: its shape.
        heads: name of each head (a key of ``HEADS``) -> share of the positions it is
            computed at.
        towers: encoders of this shape side by side.
        is_trained: whether there is a backward pass.
    """

    encoder: EncoderShape
    heads: Heads
    towers: int = 1
    is_trained: bool = True


@dataclasses.dataclass(frozen=True)
class Phase:
    """A share of the steps, all of which run the same networks."""

    share: float
    networks: tuple[Network, ...]


# FLOPs of a head per position, from the counting rule and the shape of its encoder.
# The rule "original" counts element-wise operations too, "matmul" does not.
HEADS: dict[str, Callable[[str, EncoderShape], float]] = {
    "masked_lm": lambda rule, e: flops.RULES[rule].masked_lm_head(e),
    "replaced_token": lambda rule, e: flops.RULES[rule].replaced_token_head(e),
    # One linear unit with a sigmoid: copy gate, and baseline of the rewards.
    "gate": lambda rule, e: {"original": 9, "matmul": 0}[rule] + 2 * e.hidden_size,
    # A masked-LM head that reads two towers: twice the inputs.
    "cloze": lambda rule, e: (
        flops.RULES[rule].masked_lm_head(e) + 2 * e.hidden_size * e.embedding_size
    ),
    # Relaxed one-hot samples times the word table. The original's rule counts every
    # look-up as this product already.
    "relaxed_lookup": lambda rule, e: {
        "original": 0,
        "matmul": 2 * e.vocab_size * e.embedding_size,
    }[rule],
}


def _main_heads(objective: str, predicted: float) -> Heads:
    table = {
        "mlm": {"masked_lm": predicted},
        "electra": {"replaced_token": 1.0},
        # Computed everywhere; the loss looks at the masked positions.
        "electra_15": {"replaced_token": 1.0},
        "replace_mlm": {"masked_lm": predicted},
        "all_tokens_mlm": {"masked_lm": 1.0, "gate": 1.0},
        "electric": {"replaced_token": 1.0},
    }
    return table[_known("objective", objective, table)]


def _no_generator(shape, predicted):
    return ()


def _masked_lm(shape, predicted):
    return (Network(shape, {"masked_lm": predicted}),)


def _two_tower(shape, predicted):
    # It reads the unmasked text and predicts every token of it.
    return (Network(shape, {"cloze": 1.0}, towers=2),)


_GENERATORS = {
    "masked_lm": _masked_lm,
    "two_tower": _two_tower,
    "unigram": _no_generator,
    "uniform": _no_generator,
}


def _joint(generator, main, predicted, first_stage):
    return (Phase(1.0, (*generator, main)),)


def _two_stage(generator, main, predicted, first_stage):
    return (
        Phase(first_stage, generator),
        Phase(1.0 - first_stage, (*_only_forward(generator), main)),
    )


def _reinforce(generator, main, predicted, first_stage):
    return _joint(_with_head(generator, "gate", predicted), main, predicted, 0)


def _gumbel(generator, main, predicted, first_stage):
    return _joint(
        _with_head(generator, "relaxed_lookup", predicted), main, predicted, 0
    )


def _frozen(generator, main, predicted, first_stage):
    return (Phase(1.0, (*_only_forward(generator), main)),)


_TRAININGS = {
    "joint": _joint,
    "two_stage": _two_stage,
    "reinforce": _reinforce,
    "gumbel": _gumbel,
    "frozen": _frozen,
}


def _only_forward(networks):
    return tuple(dataclasses.replace(one, is_trained=False) for one in networks)


def _with_head(networks, head, share):
    return tuple(
        dataclasses.replace(one, heads={**one.heads, head: share}) for one in networks
    )


def phases(
    encoder: EncoderShape,
    generator: EncoderShape,
    *,
    predicted_fraction: float,
    objective: str = "electra",
    generator_kind: str = "masked_lm",
    training: str = "joint",
    first_stage: float = 0.5,
    samples_apart: bool = False,
) -> tuple[Phase, ...]:
    """What a system runs.

    Args:
        encoder: the discriminator's, or BERT's, shape.
        generator: the generator's shape; not looked at where there is none.
        predicted_fraction: share of the positions that are predicted.
        objective: as ``--objective``.
        generator_kind: as ``--generator``; "electric" always has two towers.
        training: "joint"; "two_stage"; "reinforce"; "gumbel"; or "frozen", with a
            generator trained elsewhere.
        first_stage: of "two_stage", the share of the steps that trains the generator.
        samples_apart: whether a generator that is trained runs once more to be
            sampled from, without dropout.

    Raises:
        ValueError: an unknown name.
    """
    main = Network(encoder, _main_heads(objective, predicted_fraction))
    if objective == "mlm":
        return (Phase(1.0, (main,)),)
    if objective == "electric":
        generator_kind = "two_tower"
    make = _GENERATORS[_known("generator", generator_kind, _GENERATORS)]
    combine = _TRAININGS[_known("training", training, _TRAININGS)]
    networks = make(generator, predicted_fraction)
    found = combine(networks, main, predicted_fraction, first_stage)
    if not samples_apart:
        return found
    return tuple(
        Phase(one.share, (*one.networks, *_only_forward(_generators(one, main))))
        for one in found
    )


def _generators(phase, main):
    """The networks beside the main one that are trained with it."""
    if main not in phase.networks:
        return ()
    return (one for one in phase.networks if one.is_trained and one is not main)


def step_flops(
    phase: Phase, *, sequence_length: int, batch_size: int, rule: str
) -> float:
    """FLOPs of one update in a phase.

    Raises:
        ValueError: an unknown rule.
    """
    passes = flops.RULES[_known("rule", rule, flops.RULES)].passes
    per_token = sum(
        (passes if one.is_trained else 1) * _forward(one, sequence_length, rule)
        for one in phase.networks
    )
    return per_token * sequence_length * batch_size


def _forward(network: Network, sequence_length: int, rule: str) -> float:
    encoder = flops.RULES[rule].encoder(network.encoder, sequence_length)
    heads = sum(
        share * HEADS[name](rule, network.encoder)
        for name, share in network.heads.items()
    )
    return network.towers * encoder + heads


def of_config(
    config: PretrainConfig,
    vocab_size: int,
    *,
    rule: str = "matmul",
    done: float = 1.0,
) -> float:
    """FLOPs of a run up to a share of its steps.

    Args:
        config: of the run.
        vocab_size: entries of the vocabulary, which may be fewer than
            ``--vocab_size`` asks for.
        rule: one of ``flops.RULES``.
        done: share of the steps, in [0, 1].

    Raises:
        ValueError: an objective, generator or way of training that has no count.
    """
    total = 0.0
    for phase in config_phases(config, vocab_size):
        part = min(phase.share, max(0.0, done))
        done -= part
        total += part * step_flops(
            phase,
            sequence_length=config.data.max_seq_length,
            batch_size=config.run.train_batch_size,
            rule=rule,
        )
    return total * config.run.num_train_steps


def config_phases(config: PretrainConfig, vocab_size: int) -> tuple[Phase, ...]:
    """``phases`` of a config; choices that it does not have are the paper's."""
    flags = config_lib.to_flat(config)
    sharing = flags.get("sharing", "tied")
    sizes = config.encoder if sharing == "all" else config.generator_encoder
    if sharing == "untied":
        # Its tables are as wide as its hidden states.
        sizes = dataclasses.replace(sizes, embedding_size=sizes.hidden_size)
    steps = flags.get("generator_steps")
    return phases(
        shape(config.encoder, vocab_size),
        shape(sizes, vocab_size),
        predicted_fraction=predictions(config) / config.data.max_seq_length,
        objective=config.objective.objective,
        generator_kind=flags.get("generator", "masked_lm"),
        training="frozen"
        if flags.get("freeze_generator")
        else flags.get("training", "joint"),
        first_stage=steps / config.run.num_train_steps if steps else 0.5,
        # Without any dropout the same pass serves both.
        samples_apart=not flags.get("sampling_dropout", True)
        and bool(config.encoder.dropout or config.encoder.attention_dropout),
    )


def predictions(config: PretrainConfig) -> int:
    """Slots per row for masked positions."""
    given = config.masking.max_predictions_per_seq
    length = config.data.max_seq_length
    return given or int((config.masking.mask_rate + 0.005) * length)


def shape(encoder: EncoderConfig, vocab_size: int) -> EncoderShape:
    """Sizes of an encoder as ``flops`` counts them."""
    return EncoderShape(
        hidden_size=encoder.hidden_size,
        num_layers=encoder.num_layers,
        embedding_size=encoder.embedding_size,
        feed_forward_size=encoder.intermediate_size,
        num_heads=encoder.num_heads,
        vocab_size=vocab_size,
        max_positions=encoder.max_positions,
    )


def _known(what: str, name: str, table: Mapping) -> str:
    if name not in table:
        raise ValueError(f"{what} is {name!r}; allowed are {', '.join(table)}.")
    return name
