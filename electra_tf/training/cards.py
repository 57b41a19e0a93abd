"""Display settings of metrics in the console, the held-out table and plots."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot of training curves.

    Attributes:
        scale: factor of the values: 100 for percent.
        is_log: whether the axis is logarithmic.
    """

    title: str
    unit: str
    scale: float = 1.0
    is_log: bool = False


@dataclasses.dataclass(frozen=True)
class MetricCard:
    """Display settings of one metric.

    Attributes:
        column: format string in the console, such as "gen {:.3f}"; empty hides it.
        label: row label in the held-out table; empty hides it.
        series: legend in a panel of several metrics.
        baseline: name of the predictor of ``trivial_scores``, if any.
    """

    name: str
    column: str = ""
    label: str = ""
    format: str = "{:.3f}"
    panel: Panel | None = None
    series: str = ""
    baseline: str = ""


def _accuracy(name: str, column: str, label: str, **more: object) -> MetricCard:
    return MetricCard(name, column, label, "{:.2%}", **more)


_GENERATOR_LOSS = Panel("Generator loss", "nats per masked token")
_GENERATOR_ACCURACY = Panel("Generator accuracy", "% of masked tokens", scale=100.0)
_LOSS = Panel("Discriminator loss", "nats per token")
_QUALITY = Panel("Discriminator quality", "%", scale=100.0)
_TOKENS = Panel("Predicted tokens", "%", scale=100.0)
_SENTENCES = Panel("Sentence level", "%", scale=100.0)


def _likelihood(prefix: str, label: str, column: str) -> tuple[MetricCard, MetricCard]:
    """Returns the cards of ``pretraining.metrics.Likelihood``."""
    loss = MetricCard(
        f"{prefix}_loss",
        f"{column} {{:.3f}}",
        f"{label} loss (nats)",
        panel=_GENERATOR_LOSS,
        series=label,
        baseline="unigram frequencies",
    )
    accuracy = _accuracy(
        f"{prefix}_accuracy",
        "acc {:.1%}",
        f"{label} accuracy",
        panel=_GENERATOR_ACCURACY,
        series="most likely token",
        baseline="most common token",
    )
    return loss, accuracy


def _quality(name: str, column: str) -> MetricCard:
    return MetricCard(
        f"discriminator_{name}",
        f"{column} {{:.1%}}",
        f"discriminator {name}",
        "{:.1%}",
        _QUALITY,
        series=name,
    )


# In the order of display.
_CARDS = (
    MetricCard(
        "loss",
        column="loss {:.3f}",
        panel=Panel("Total loss", "nats, weighted sum"),
        series="total",
    ),
    *_likelihood("generator", "generator", "gen"),
    MetricCard("sampled_accuracy", panel=_GENERATOR_ACCURACY, series="sampled token"),
    MetricCard(
        "replaced_fraction",
        column="replaced {:.1%}",
        label="tokens replaced",
        format="{:.2%}",
        panel=Panel("Replaced tokens", "% of real tokens", scale=100.0),
    ),
    MetricCard("replaced_masked_fraction"),
    MetricCard("replaced_replaceable_fraction"),
    MetricCard(
        "discriminator_loss",
        column="disc {:.4f}",
        label="discriminator loss (nats)",
        format="{:.4f}",
        panel=_LOSS,
        series="unweighted",
        baseline="base rate",
    ),
    MetricCard(
        "replaceable_loss",
        label="  over replaceable tokens",
        format="{:.4f}",
        panel=_LOSS,
        series="replaceable tokens",
        baseline="base rate",
    ),
    _accuracy(
        "discriminator_accuracy",
        "",
        "discriminator accuracy",
        baseline="majority class",
    ),
    _quality("precision", "prec"),
    _quality("recall", "rec"),
    MetricCard(
        "discriminator_auc",
        column="auc {:.3f}",
        label="discriminator AUC",
        panel=_QUALITY,
        series="AUC",
        baseline="chance",
    ),
    MetricCard(
        "replaceable_auc",
        column="replaceable auc {:.3f}",
        label="  over replaceable tokens",
        panel=_QUALITY,
        series="AUC, replaceable",
        baseline="chance",
    ),
    MetricCard(
        "prediction_loss",
        column="pred {:.4f}",
        label="prediction loss (nats)",
        format="{:.4f}",
        panel=Panel("Prediction loss", "nats per token"),
        series="unweighted",
        baseline="keep or unigram",
    ),
    _accuracy(
        "prediction_accuracy",
        "right {:.1%}",
        "prediction accuracy",
        panel=_TOKENS,
        series="right",
        baseline="keep every token",
    ),
    _accuracy(
        "corrected_accuracy",
        "corrected {:.1%}",
        "replaced tokens corrected",
        panel=_TOKENS,
        series="corrected",
        baseline="keep every token",
    ),
    MetricCard(
        "copy_auc",
        column="auc {:.3f}",
        label="copy gate AUC",
        panel=_TOKENS,
        series="copy gate AUC",
        baseline="chance",
    ),
    *_likelihood("masked_lm", "masked LM", "mlm"),
    MetricCard(
        "sentence_loss",
        column="sent {:.3f}",
        label="sentence loss (nats)",
        format="{:.4f}",
        panel=Panel("Sentence loss", "nats per row"),
        series="unweighted",
        baseline="base rate",
    ),
    _accuracy(
        "sentence_accuracy",
        "sent acc {:.1%}",
        "sentence accuracy",
        panel=_SENTENCES,
        series="accuracy",
        baseline="majority class",
    ),
    MetricCard("corrupted_fraction", panel=_SENTENCES, series="corrupted rows"),
    # Without a label: no held-out scores.
    *(
        MetricCard(name, f"{name} {{:.3f}}", panel=Panel(name, ""), series=name)
        for name in ("adversarial_weight", "reward", "reward_baseline", "temperature")
    ),
    # ``StepLogger`` adds these to every run.
    MetricCard(
        "learning_rate", column="lr {:.2e}", panel=Panel("Learning rate", "per update")
    ),
    MetricCard(
        "gradient_norm",
        column="grad {:.2f}",
        panel=Panel("Gradient norm", "before clipping", is_log=True),
    ),
    MetricCard("tokens_per_second", panel=Panel("Speed", "tokens/s")),
    MetricCard("steps_per_second"),
)


def metric_cards(names: Iterable[str] = ()) -> list[MetricCard]:
    """Returns the cards of all known metrics, then default cards of other ``names``."""
    known = {card.name for card in _CARDS}
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    return [
        *_CARDS,
        *(
            MetricCard(name, f"{name} {{:.4f}}", name, "{:.4f}", Panel(name, ""), name)
            for name in unknown
        ),
    ]
