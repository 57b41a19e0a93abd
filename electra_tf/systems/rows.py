"""What can be trained: one row per objective, generator, sharing and training.

A row is everything the project knows of a choice but its name, its meaning and what
must not go with it, which ``--help`` reads without TensorFlow (``config/choices.py``).
``build.py`` makes models and phases from the rows, and their metric cards are what
console, tables and curves show. ``register`` takes a row from outside, which is then as
good as these (``docs/extending.md``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from electra_tf.config import choices
from electra_tf.config.pretraining import EncoderConfig, PretrainConfig
from electra_tf.data.prepared import PretrainingData
from electra_tf.errors import UserError
from electra_tf.layers import DeltaEmbedding, SharedWordEmbedding, TextEmbedding
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import (
    CategoricalSampler,
    CopyingTokenPrediction,
    Electra,
    Electric,
    GumbelElectra,
    LinearChange,
    MaskedLM,
    NoiseContrastiveEstimation,
    Objective,
    PretrainingModel,
    ReinforceElectra,
    ReplacedTokenDetection,
    SentenceDetection,
    TokenPrediction,
    TwoTowerElectra,
    TwoTowerGenerator,
    UnigramGenerator,
)
from electra_tf.pretraining.annealing import Schedule
from electra_tf.training.cards import FIT, LOSS, MetricCard


class Words(NamedTuple):
    """V, and the ids that are neither masked nor predicted."""

    size: int
    special_ids: tuple[int, ...] = ()


class Encoders(NamedTuple):
    """The discriminator's encoder, and a way to the generator's.

    ``generator``, called with a name and further arguments of ``TextEncoder``, builds
    an encoder of the generator's sizes and tables; not for one that is no network.
    """

    discriminator: TextEncoder
    generator: Callable[..., TextEncoder]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveRow:
    """What the discriminator is asked; or, of one network alone, what that learns.

    Attributes:
        make: makes the question from the discriminator's embeddings.
        model_class: what trains generator and discriminator on it, where that is not
            the generator's own ``model_class``.
        one_network: makes the whole model from its encoder and the arguments of
            ``PretrainingModel``; in the place of ``make``.
    """

    metrics: tuple[MetricCard, ...]
    make: Callable[[TextEmbedding], Objective] | None = None
    model_class: type[Electra] | None = None
    one_network: Callable[..., PretrainingModel] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorRow:
    """What fills the masks.

    Attributes:
        make: takes also the arguments of ``PretrainingModel``.
        model_class: what trains it by its own loss beside the discriminator.
        start: what a fresh run gives it, beside random weights, from the data.
    """

    make: Callable[[Encoders, Words, dict[str, Any]], keras.Model]
    model_class: type[Electra] = Electra
    start: Callable[[keras.Model, PretrainingData], None] = lambda generator, data: None

    @property
    def metrics(self) -> tuple[MetricCard, ...]:
        """Cards of what it reports."""
        return self.model_class.METRICS


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharingRow:
    """What generator and discriminator share: which objects they are built on.

    Attributes:
        make: makes both encoders for a vocabulary of so many entries. The embeddings
            called "embeddings" are those that runs of another sharing have, too
            (``--init_from``).
    """

    make: Callable[[PretrainConfig, int], Encoders]


class PhasePlan(NamedTuple):
    """A part of a run: for how many updates, and what is trained.

    With ``generator_alone`` the discriminator does not exist for it; one that
    ``copies_generator`` takes over its weights before the first step.
    """

    name: str
    steps: int
    generator_alone: bool = False
    is_frozen: bool = False
    copies_generator: bool = False


def one_phase(config: PretrainConfig) -> tuple[PhasePlan, ...]:
    """Everything at once; the generator may be frozen from the start."""
    name, steps = config.objective.objective, config.run.num_train_steps
    return (PhasePlan(name, steps, is_frozen=config.training.freeze_generator),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """How the two networks learn beside each other.

    Attributes:
        make: what makes the model, from the config and the class that trains the
            generator by its own loss.
        plan: the phases of a run. The last one trains the model of all networks.
    """

    make: Callable[[PretrainConfig, type[Electra]], Callable[..., Electra]] = (
        lambda config, model_class: model_class
    )
    plan: Callable[[PretrainConfig], tuple[PhasePlan, ...]] = one_phase
    metrics: tuple[MetricCard, ...] = ()


# Objectives -------------------------------------------------------------------------

# Detection is computed everywhere, also where the loss looks at masked positions only.
OBJECTIVES: dict[str, ObjectiveRow] = {
    "electra": ObjectiveRow(
        make=lambda table: ReplacedTokenDetection(name="objective"),
        metrics=ReplacedTokenDetection.METRICS,
    ),
    "electra_15": ObjectiveRow(
        make=lambda table: ReplacedTokenDetection("masked", name="objective"),
        metrics=ReplacedTokenDetection.METRICS,
    ),
    "replace_mlm": ObjectiveRow(
        make=lambda table: TokenPrediction(table, name="objective"),
        metrics=TokenPrediction.METRICS,
    ),
    "all_tokens_mlm": ObjectiveRow(
        make=lambda table: CopyingTokenPrediction(table, name="objective"),
        metrics=CopyingTokenPrediction.METRICS,
    ),
    "electric": ObjectiveRow(
        make=lambda table: NoiseContrastiveEstimation(name="objective"),
        model_class=Electric,
        metrics=NoiseContrastiveEstimation.METRICS,
    ),
    "mlm": ObjectiveRow(
        one_network=functools.partial(MaskedLM, name="masked_lm"),
        metrics=MaskedLM.METRICS,
    ),
}

# Generators -------------------------------------------------------------------------


def _two_towers(encoders: Encoders, words: Words, step: dict[str, Any]) -> keras.Model:
    left, right = (
        encoders.generator(f"generator_{direction}", direction=direction)
        for direction in ("left_to_right", "right_to_left")
    )
    return TwoTowerGenerator(
        left, right, special_ids=words.special_ids, name="two_tower", **step
    )


# A distribution is uniform until it is given counts.
_DISTRIBUTION = GeneratorRow(
    make=lambda encoders, words, step: UnigramGenerator(words.size, name="generator"),
)
GENERATORS: dict[str, GeneratorRow] = {
    "masked_lm": GeneratorRow(
        make=lambda encoders, words, step: MaskedLM(
            encoders.generator("generator"), name="masked_lm", **step
        )
    ),
    "two_tower": GeneratorRow(
        make=_two_towers,
        model_class=TwoTowerElectra,
    ),
    "unigram": dataclasses.replace(
        _DISTRIBUTION,
        start=lambda generator, data: generator.set_counts(data.token_counts),
    ),
    "uniform": _DISTRIBUTION,
}

# Sharings ---------------------------------------------------------------------------


def encoder(
    config: EncoderConfig, embeddings: TextEmbedding, name: str, **options: Any
) -> TextEncoder:
    """An encoder of these sizes on these embeddings."""
    return TextEncoder(
        embeddings,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        initializer_range=config.initializer_range,
        remat=config.remat,
        name=name,
        **options,
    )


def embeddings(
    config: EncoderConfig, vocab_size: int, name: str = "embeddings"
) -> TextEmbedding:
    """Embeddings with tables of their own."""
    return TextEmbedding(
        vocab_size,
        config.embedding_size,
        max_positions=config.max_positions,
        dropout=config.dropout,
        initializer_range=config.initializer_range,
        position_init=config.position_init,
        name=name,
    )


def _encoders(
    config: PretrainConfig, generators: TextEmbedding, discriminators: TextEmbedding
) -> Encoders:
    return Encoders(
        discriminator=encoder(config.encoder, discriminators, "discriminator"),
        # When it is built: a generator that is no network has no sizes to check.
        generator=lambda name, **options: encoder(
            config.generator_encoder, generators, name, **options
        ),
    )


def _tied(config: PretrainConfig, vocab_size: int) -> Encoders:
    """All tables and their LayerNorm (section 3.2 of the paper, and its code)."""
    shared = embeddings(config.encoder, vocab_size)
    return _encoders(config, shared, shared)


def _token(config: PretrainConfig, vocab_size: int) -> Encoders:
    """The word table alone, as most re-implementations."""
    own = embeddings(config.encoder, vocab_size)
    rate = config.generator_encoder.dropout
    borrowing = SharedWordEmbedding(own, dropout=rate, name="generator_embeddings")
    return _encoders(config, borrowing, own)


def _separate(config: PretrainConfig, vocab_size: int) -> Encoders:
    """Nothing.

    "nes": tables of the full embedding size on both sides ("no embedding sharing" of
    DeBERTaV3, section 3, and "no weight tying" of the paper's section 3.2, where both
    networks have one size). "untied": the generator's have its hidden size and need no
    projection, as ``untied_generator_embeddings`` of the original code.
    """
    own = embeddings(config.encoder, vocab_size)
    others = embeddings(config.generator_encoder, vocab_size, "generator_embeddings")
    return _encoders(config, others, own)


def _gdes(config: PretrainConfig, vocab_size: int) -> Encoders:
    """The generator's tables without their gradient, plus deltas of its own.

    Gradient-disentangled embedding sharing of DeBERTaV3 (section 3.3).
    """
    lender = embeddings(config.generator_encoder, vocab_size)
    rate = config.encoder.dropout
    delta = DeltaEmbedding(lender, dropout=rate, name="discriminator_embeddings")
    return _encoders(config, lender, delta)


def _one_encoder(config: PretrainConfig, vocab_size: int) -> Encoders:
    """Everything: one encoder is both (section 3.2); their sizes are equal."""
    table = embeddings(config.encoder, vocab_size)
    both = encoder(config.encoder, table, "discriminator")
    return Encoders(discriminator=both, generator=lambda *_, **__: both)


_OWN_TABLES = SharingRow(make=_separate)
SHARINGS: dict[str, SharingRow] = {
    "tied": SharingRow(make=_tied),
    "token": SharingRow(make=_token),
    "untied": _OWN_TABLES,
    "nes": _OWN_TABLES,
    "gdes": SharingRow(make=_gdes),
    "all": SharingRow(make=_one_encoder),
}

# Trainings --------------------------------------------------------------------------


def _mixture(config: PretrainConfig) -> float | Schedule:
    choice = config.training
    weight, start = choice.adversarial_weight, choice.adversarial_start
    if choice.adversarial_steps:
        return LinearChange(0.0, weight, choice.adversarial_steps, start)
    return LinearChange(0.0, weight, 1, start - 1) if start else weight


def _two_stages(config: PretrainConfig) -> tuple[PhasePlan, ...]:
    """Section 3.2 of the paper, "Training Algorithms": two-stage."""
    first, copies = config.generator_steps, config.training.two_stage_copy
    rest = config.run.num_train_steps - first
    return (
        PhasePlan("generator", first, generator_alone=True),
        PhasePlan("discriminator", rest, is_frozen=True, copies_generator=copies),
    )


TRAININGS: dict[str, TrainingRow] = {
    "joint": TrainingRow(),
    "two_stage": TrainingRow(plan=_two_stages, metrics=MaskedLM.METRICS),
    "reinforce": TrainingRow(
        make=lambda config, model_class: functools.partial(
            ReinforceElectra, adversarial_weight=_mixture(config)
        ),
        metrics=ReinforceElectra.METRICS,
    ),
    "gumbel": TrainingRow(
        make=lambda config, model_class: functools.partial(
            GumbelElectra,
            adversarial_weight=_mixture(config),
            gumbel_temperature=config.training.gumbel_temperature,
        ),
        metrics=GumbelElectra.METRICS,
    ),
}

# Rows from outside ------------------------------------------------------------------

Row = ObjectiveRow | GeneratorRow | SharingRow | TrainingRow
# Kind of row to its table, and the names that its flag may have.
TABLES: dict[str, tuple[dict[str, Row], dict[str, str]]] = {
    "objective": (OBJECTIVES, choices.OBJECTIVES),
    "generator": (GENERATORS, choices.GENERATORS),
    "sharing": (SHARINGS, choices.SHARINGS),
    "training": (TRAININGS, choices.TRAININGS),
}


def register(kind: str, name: str, row: Row, *, help: str) -> None:
    """Adds a row, and its name to those that the flag may have.

    Call before flags are parsed, in every process that trains or compares with it.
    ``kind`` is "objective", "generator", "sharing" or "training", and the name of the
    flag, and ``help`` is what ``--help`` says. Raises ValueError: there is no such
    kind, the name is taken, or a metric of the row is shown in another way already.
    """
    if kind not in TABLES:
        raise UserError(f"kind is {kind!r}; allowed are {', '.join(TABLES)}.")
    table, names = TABLES[kind]
    if name in names:
        raise UserError(f"--{kind}={name} is taken; choose another name.")
    known = {card.name: card for card in metric_cards()}
    for card in getattr(row, "metrics", ()):
        if known.get(card.name, card) != card:
            raise UserError(
                f"--{kind}={name} reports {card.name}, which has another card already; "
                "use that card or another name."
            )
    names[name] = help
    table[name] = row


def metric_cards() -> list[MetricCard]:
    """Cards of everything that any system reports, in the order they are shown."""
    groups = [
        (LOSS,),
        *(row.metrics for row in GENERATORS.values()),
        *(row.metrics for row in OBJECTIVES.values()),
        SentenceDetection.METRICS,
        *(row.metrics for row in TRAININGS.values()),
        CategoricalSampler.METRICS,
        FIT,
    ]
    # A metric that several rows report is shown once.
    return list(dict.fromkeys(card for group in groups for card in group))
