"""Is P(replaced) what it says? Reliability, Brier score, temperature scaling.

Letters: N tokens, K bins of the probability.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from scipy import optimize, special

from electra_tf.analysis import judged
from electra_tf.analysis.measures import (
    Rate,
    bars,
    frequency_bins,
    position_bins,
    rates,
    roc_auc,
)
from electra_tf.analysis.report import Picture, Section, Table
from electra_tf.analysis.subject import Subject
from electra_tf.errors import UserError

BINS = 15
_LARGEST_LOG_TEMPERATURE = 5.0
_RESAMPLES = 300


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How probabilities and outcomes agree.

    Attributes:
        tokens: how many there are.
        replaced: share of them that is true.
        mean: of the probabilities.
        probability: [K] mean probability in each bin that is not empty.
        observed: of the same bins, the share of true outcomes, with intervals.
        ece: expected calibration error: mean distance of the two, by tokens.
        brier: mean squared distance of probability and outcome. It is reliability -
            resolution + uncertainty + spread (Murphy, 1973; Stephenson et al., 2008,
            whose two terms within the bins are the last one).
        reliability: mean squared distance of the bins from the diagonal; 0 is best.
        resolution: variance of the outcome between bins; more is better.
        uncertainty: variance of the outcome, whatever is predicted.
        spread: what the bins lose, because probabilities differ within them.
        nats: mean negative log-likelihood.
        auc: area under the ROC curve, which no scaling changes.
    """

    tokens: int
    replaced: float
    mean: float
    probability: tuple[float, ...]
    observed: tuple[Rate, ...]
    ece: float
    brier: float
    reliability: float
    resolution: float
    uncertainty: float
    spread: float
    nats: float
    auc: float


def calibration(
    logits: np.ndarray, labels: np.ndarray, rows: np.ndarray, bins: int = BINS
) -> Calibration:
    """Compares probabilities, as logits [N], with bool labels [N].

    ``rows`` [N] are the numbers of the texts, for the intervals. The bins are equally
    wide. ValueError: there are no tokens.
    """
    if not len(logits):
        raise UserError("there are no tokens to calibrate on.")
    p, y = special.expit(logits), np.asarray(labels, np.float64)
    bin_of = np.minimum((p * bins).astype(int), bins - 1)
    names = [f"{low / bins:.2f}-{(low + 1) / bins:.2f}" for low in range(bins)]
    observed = rates(y, bin_of, rows, names)
    counts = np.bincount(bin_of, minlength=bins)
    kept = counts > 0
    weights = counts[kept] / len(p)
    means = np.bincount(bin_of, p, bins)[kept] / counts[kept]
    shares = np.bincount(bin_of, y, bins)[kept] / counts[kept]
    base = y.mean()
    brier = np.square(p - y).mean()
    reliability = weights @ np.square(means - shares)
    resolution = weights @ np.square(shares - base)
    uncertainty = base * (1 - base)
    return Calibration(
        tokens=len(p),
        replaced=float(base),
        mean=float(p.mean()),
        probability=tuple(means.tolist()),
        observed=tuple(observed),
        ece=float(weights @ np.abs(means - shares)),
        brier=float(brier),
        reliability=float(reliability),
        resolution=float(resolution),
        uncertainty=float(uncertainty),
        spread=float(brier - reliability + resolution - uncertainty),
        nats=float(_nats(logits, y)),
        auc=roc_auc(labels, logits),
    )


def _nats(logits: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, logits) - y * logits))


@dataclasses.dataclass(frozen=True)
class Doubt:
    """How sure the numbers of a ``Calibration`` are: (low, high) of 95 %.

    ``brier`` and ``auc`` are of a bootstrap over texts. The expected calibration error
    cannot be below 0, so that chance alone makes some: ``ece_by_chance`` is what 95 %
    of draws stay below in which every probability is right (Broecker and Smith, 2007).
    """

    brier: tuple[float, float]
    auc: tuple[float, float]
    ece_by_chance: float


def doubt(
    logits: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    bins: int = BINS,
    seed: int = 0,
) -> Doubt:
    """Intervals of what ``calibration`` says of the same tokens."""
    rng = np.random.default_rng(seed)
    p, y = special.expit(logits), np.asarray(labels, bool)
    _, owner = np.unique(rows, return_inverse=True)
    texts = owner.max() + 1
    _, score = np.unique(logits, return_inverse=True)
    losses = np.square(p - y)
    briers, aucs = [], []
    for _ in range(_RESAMPLES):
        weights = np.bincount(rng.integers(0, texts, texts), minlength=texts)[owner]
        briers.append(weights @ losses / weights.sum())
        true, false = (np.bincount(score, weights * own) for own in (y, ~y))
        below = np.cumsum(false) - false / 2
        pairs = true.sum() * false.sum()
        aucs.append(true @ below / pairs if pairs else np.nan)
    bin_of = np.minimum((p * bins).astype(int), bins - 1)
    means = np.bincount(bin_of, p, bins)
    drawn = [
        np.abs(np.bincount(bin_of, rng.random(len(p)) < p, bins) - means).sum() / len(p)
        for _ in range(_RESAMPLES)
    ]
    ends = (np.nanquantile(each, [0.025, 0.975]).tolist() for each in (briers, aucs))
    return Doubt(*map(tuple, ends), float(np.quantile(drawn, 0.95)))


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The number that logits are divided by for the least negative log-likelihood.

    Guo et al., 2017. Above 1: the model was too sure. ValueError: all labels are the
    same, for which no temperature is best.
    """
    y = np.asarray(labels, np.float64)
    if y.min() == y.max():
        raise UserError(
            "a temperature is fitted to replaced and to real tokens, and there are "
            "only ones of one kind: give more text."
        )
    # The loss is convex in the inverse, and so has one minimum here too.
    found = optimize.minimize_scalar(
        lambda log_temperature: _nats(logits * np.exp(-log_temperature), y),
        bounds=(-_LARGEST_LOG_TEMPERATURE, _LARGEST_LOG_TEMPERATURE),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(found.x))


def halves(rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """Whether a token is in the half to fit on, bool [N]; texts are not cut in two."""
    names = np.unique(rows)
    chosen = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    return np.isin(rows, chosen)


@dataclasses.dataclass(frozen=True)
class Group:
    """Tokens of a kind: what was predicted and what happened, on average."""

    observed: Rate
    mean: float
    ece: float


def by_group(
    logits: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    groups: np.ndarray,
    names: Sequence[str],
) -> list[Group]:
    """Calibration of the tokens of each group (numbers [N]; below 0: none)."""
    found = []
    for number, name in enumerate(names):
        own = groups == number
        if own.any():
            part = calibration(logits[own], labels[own], rows[own])
            (observed,) = rates(labels[own], np.zeros(own.sum(), int), rows[own], [""])
            observed = dataclasses.replace(observed, name=name)
            found.append(Group(observed, part.mean, part.ece))
    return found


def draw_reliability(
    axis: Axes, by_name: Mapping[str, Calibration], outcome: str = "that was replaced"
) -> None:
    """Draws observed shares over probabilities, with intervals; and the diagonal."""
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    for name, found in by_name.items():
        shares = np.array([rate.rate for rate in found.observed])
        label = f"{name}, ECE {found.ece:.3f}"
        style = {"marker": "o", "markersize": 3.5, "linewidth": 1.1, "elinewidth": 0.7}
        axis.errorbar(
            found.probability, shares, bars(found.observed), label=label, **style
        )
    axis.set(xlim=(0, 1), ylim=(0, 1))
    axis.set(xlabel="P(replaced)", ylabel=f"share {outcome}")
    axis.legend(fontsize=8, frameon=False, loc="upper left")


def draw_groups(axis: Axes, groups: Sequence[Group], label: str) -> None:
    """Draws what was predicted beside what happened, by group."""
    places = np.arange(len(groups))
    rows = [group.observed for group in groups]
    shares = [row.rate for row in rows]
    style = {"linestyle": "none", "markersize": 4.5}
    style["marker"] = "o"
    axis.errorbar(places - 0.1, shares, bars(rows), label="replaced", **style)
    style["marker"] = "s"
    means = [group.mean for group in groups]
    axis.plot(places + 0.1, means, label="mean P(replaced)", **style)
    names = [row.name for row in rows]
    axis.set_xticks(places, names, rotation=30, ha="right", parse_math=False)
    axis.set_xlabel(label)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, frameon=False)


def section(subject: Subject) -> Section:
    """Calibration on text that was corrupted in several ways."""
    config, inspector, text = subject.config, subject.inspector, subject.text
    kinds = judged.corruptions(inspector, text.counts, config.generators)
    before: dict[str, Calibration] = {}
    doubts: dict[str, Doubt] = {}
    own: dict[str, Calibration] = {}
    after: dict[str, Calibration] = {}
    temperatures: dict[str, float] = {}
    groups = {}
    for kind, generator in kinds.items():
        found = judged.judge(
            inspector,
            text.rows,
            generator,
            seed=config.seed,
            batch_size=config.batch_size,
            log=subject.log,
            name=kind,
        )
        fitting = halves(found.row, config.seed)
        logits, labels, rows = (
            column[~fitting] for column in (found.logits, found.is_replaced, found.row)
        )
        temperatures[kind] = fit_temperature(
            found.logits[fitting], found.is_replaced[fitting]
        )
        before[kind] = calibration(logits, labels, rows)
        doubts[kind] = doubt(logits, labels, rows, seed=config.seed)
        scaled = logits / temperatures[kind]
        own[kind] = calibration(scaled, labels, rows)
        # What a user has is one temperature, that of the first kind.
        first = temperatures[next(iter(kinds))]
        after[kind] = calibration(logits / first, labels, rows)
        if not groups:
            counts = text.counts[found.shown[~fitting]]
            bins = {
                "frequency": frequency_bins(counts),
                "position": position_bins(found.position[~fitting]),
            }
            for name, (number, names) in bins.items():
                groups[name] = by_group(logits, labels, rows, number, names)
    main_kind = next(iter(kinds))
    notes = [
        f"{text.about}, corrupted as in pretraining; half of the rows fit the "
        "temperature, all other numbers are of the other half.",
        f"{main_kind}: ECE {before[main_kind].ece:.4f}, with temperature "
        f"{temperatures[main_kind]:.3f} {after[main_kind].ece:.4f}; Brier score "
        f"{before[main_kind].brier:.4f} of {before[main_kind].uncertainty:.4f} "
        "without looking at the text.",
        "95 % of probabilities that are right would have an ECE below "
        f"{doubts[main_kind].ece_by_chance:.4f} on as many tokens.",
    ]
    header = ("corruption", "temperature", "tokens", "replaced", "mean P", "ECE")
    header += ("Brier", "reliability", "resolution", "uncertainty", "nats", "AUC")
    rows = []
    stages = (("as it is", before), ("first temperature", after), ("its own", own))
    for kind in kinds:
        for stage, by_kind in stages:
            f = by_kind[kind]
            cells = (f.tokens, f.replaced, f.mean, f.ece, f.brier, f.reliability)
            cells += (f.resolution, f.uncertainty, f.nats, f.auc)
            rows.append((kind, stage, *cells))
    ends = ("low", "high")
    header_of_doubt = ("corruption", "ECE", "by chance up to", "Brier", *ends)
    tables = [
        Table("Calibration, by what corrupted the text", header, rows),
        Table(
            "As it is, with 95 % intervals over texts",
            (*header_of_doubt, "AUC", *ends),
            [
                (
                    *(kind, before[kind].ece, own.ece_by_chance),
                    *(before[kind].brier, *own.brier, before[kind].auc, *own.auc),
                )
                for kind, own in doubts.items()
            ],
        ),
    ]
    for name, found in groups.items():
        cells = [
            (
                *(g.observed.name, g.observed.count, g.observed.rate),
                *(g.observed.low, g.observed.high, g.mean, g.ece),
            )
            for g in found
        ]
        header = (name, "tokens", "replaced", "low", "high", "mean P", "ECE")
        tables.append(Table(f"{main_kind}, by {name}, as it is", header, cells))
    pictures = [
        Picture(
            "Reliability: on the diagonal, P(replaced) is the share of tokens that "
            "were replaced. Bars are 95 % intervals over rows.",
            {
                "as it is": lambda axis: draw_reliability(axis, before),
                f"temperature {temperatures[main_kind]:.2f}": (
                    lambda axis: draw_reliability(axis, after)
                ),
            },
        ),
        Picture(
            f"{main_kind}: what is predicted and what happens, by kind of token.",
            {
                f"by {name}": functools.partial(draw_groups, groups=found, label=label)
                for (name, found), label in zip(
                    groups.items(),
                    ("times in the counted text", "position"),
                    strict=True,
                )
            },
        ),
    ]
    numbers = {
        "text": text.about,
        "temperatures": temperatures,
        "as_it_is": before,
        "intervals": doubts,
        "first_temperature": after,
        "own_temperature": own,
        "groups": groups,
    }
    return Section("Is it calibrated?", notes, tables, pictures, numbers)
