"""Scores of all runs, and the tables that are written of them."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics as descriptive
from collections.abc import Sequence

from electra_tf.comparison import statistics
from electra_tf.comparison.ladder import UNTRAINED
from electra_tf.comparison.plan import Plan
from electra_tf.comparison.runner import describe, duration
from electra_tf.comparison.store import Row, Store

AVERAGE = "average"


@dataclasses.dataclass(frozen=True)
class Scores:
    """What has been measured, of the systems, seeds and probes of a plan."""

    plan: Plan
    store: Store

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the probes, then their average."""
        names = tuple(probe.name for probe in self.plan.probes)
        return (*names, AVERAGE) if len(names) > 1 else names

    @property
    def main(self) -> str:
        """The column that decides."""
        return self.columns[-1]

    def one(self, system: str, seed: int, column: str, point: float = 1.0):
        """A score, or None while it is missing; the average needs all probes."""
        if column == AVERAGE:
            names = [probe.name for probe in self.plan.probes]
            found = [self.one(system, seed, name, point) for name in names]
            return None if None in found else descriptive.fmean(found)
        row = self.store.find("probe", system, seed, point, column)
        return None if row is None else row["score"]

    def all(self, system: str, column: str, point: float = 1.0) -> list[float]:
        """The scores of all seeds that have one."""
        found = (self.one(system, seed, column, point) for seed in self.plan.seeds)
        return [score for score in found if score is not None]

    def runs(self, system: str) -> list[Row]:
        """The finished pretraining runs."""
        found = (
            self.store.find("pretrain", system, seed, None, None)
            for seed in self.plan.seeds
        )
        return [row for row in found if row]

    def baseline(self, column: str) -> float | None:
        """The score of an answer that does not look at the text."""
        if column == AVERAGE:
            found = [self.baseline(probe.name) for probe in self.plan.probes]
            return None if None in found else descriptive.fmean(found)
        for row in self.store.rows("probe"):
            if row["probe"] == column:
                return row["baseline"]
        return None

    def differences(self, column: str) -> dict[str, statistics.Difference]:
        """Every other system against the reference, over the seeds that both have."""
        reference = self.plan.config.reference
        found = {}
        for row in self.plan.rows:
            if row.name != reference:
                pairs = [
                    (mine, theirs)
                    for seed in self.plan.seeds
                    if (mine := self.one(row.name, seed, column)) is not None
                    and (theirs := self.one(reference, seed, column)) is not None
                ]
                found[row.name] = statistics.paired_difference(
                    [mine for mine, _ in pairs], [theirs for _, theirs in pairs]
                )
        return found


def markdown(plan: Plan, store: Store) -> str:
    """Everything that is known of a comparison, as Markdown."""
    scores = Scores(plan, store)
    parts = [_heading(plan), _cost_table(scores)]
    if plan.probes:
        parts += [_score_table(scores), _difference_tables(scores)]
    parts += [_held_out_table(scores), _failures(scores)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(plan: Plan) -> str:
    config = plan.config
    reference = next(row for row in plan.systems if row.name == config.reference)
    cost = plan.flops(reference)[config.flops_rule]
    what = {
        "flops": f"every run gets {cost:.3g} FLOPs (rule: {config.flops_rule})",
        "steps": f"every run gets {reference.config.run.num_train_steps:,} steps, "
        "whatever they cost",
    }[config.equal]
    sizes = reference.config.encoder
    return (
        f"{len(plan.systems)} systems, {config.seeds} seeds; {what}. Encoders of "
        f"{sizes.num_layers} layers x {sizes.hidden_size}, sequences of "
        f"{reference.config.data.max_seq_length} tokens, "
        f"{len(plan.data.vocabulary):,} tokens in the vocabulary."
    )


def _cost_table(scores: Scores) -> str:
    lines = []
    for row in scores.plan.rows:
        runs = scores.runs(row.name)
        flops = scores.plan.flops(row)
        steps = 0 if row.name == UNTRAINED else row.config.run.num_train_steps
        seconds = [run["train_seconds"] for run in runs]
        lines.append(
            [
                row.name,
                f"{steps:,}",
                f"{flops['matmul'] / max(1, steps):.3g}",
                f"{flops['matmul']:.3g}",
                f"{flops['original']:.3g}",
                duration(descriptive.fmean(seconds)) if seconds else "",
                f"{len(runs)}",
            ]
        )
    head = [
        "system",
        "steps",
        "FLOPs/step (matmul)",
        "FLOPs (matmul)",
        "FLOPs (original)",
        "training time",
        "runs",
    ]
    return "## Cost\n\n" + table(head, lines)


def _score_table(scores: Scores) -> str:
    lines = []
    for row in scores.plan.rows:
        found = [scores.all(row.name, column) for column in scores.columns]
        lines.append([row.name, *map(spread, found), str(len(found[-1]))])
    trivial = [scores.baseline(column) for column in scores.columns]
    shown = ["" if value is None else f"{value:.2f}" for value in trivial]
    lines.append(["without looking", *shown, ""])
    probes = {row["probe"]: row["metric"] for row in scores.store.rows("probe")}
    metrics = "; ".join(f"{name}: {metric}" for name, metric in probes.items())
    return (
        "## Scores\n\nMean ± standard deviation over the pretraining seeds.\n\n"
        + table(["system", *scores.columns, "seeds"], lines)
        + (f"\n\n{metrics}." if metrics else "")
    )


def _difference_tables(scores: Scores) -> str:
    reference = scores.plan.config.reference
    parts = [
        f"## Against {reference}\n\nDifferences of scores, paired by seed, with "
        f"{statistics.CONFIDENCE:.0%} bootstrap intervals. p: two-sided, by "
        "permutation of signs and by paired t-test; Holm: corrected for the number of "
        "systems."
    ]
    pairs = 0
    for column in dict.fromkeys((scores.main, *scores.columns)):
        found = scores.differences(column)
        pairs = max([pairs, *(one.pairs for one in found.values())])
        if found:
            parts.append(f"**{column}**\n\n" + _difference_table(found))
    floor = statistics.smallest_p_value(pairs)
    if pairs >= 2 and floor > 1 - statistics.CONFIDENCE:
        parts.append(
            f"With {pairs} pairs the permutation test cannot give less than "
            f"{floor:.3g}, whatever the scores."
        )
    return "\n\n".join(parts)


def _difference_table(found: dict[str, statistics.Difference]) -> str:
    kinds = ("p_permutation", "p_t")
    holm = {
        kind: statistics.holm([getattr(one, kind) for one in found.values()])
        for kind in kinds
    }
    lines = []
    for index, (name, one) in enumerate(found.items()):
        interval = f"[{signed(one.low)}, {signed(one.high)}]"
        cells = [name, signed(one.mean), interval if one.pairs > 1 else ""]
        for kind in kinds:
            cells += [_p(getattr(one, kind)), _p(holm[kind][index])]
        lines.append([*cells, str(one.pairs)])
    head = ["system", "difference", "95 % interval", "p (permutation)", "Holm"]
    return table([*head, "p (t-test)", "Holm", "pairs"], lines)


def _held_out_table(scores: Scores) -> str:
    runs = {row.name: scores.runs(row.name) for row in scores.plan.systems}
    names = dict.fromkeys(
        name for found in runs.values() for run in found for name in run["held_out"]
    )
    # The weighted sum of other losses says nothing across systems.
    names = [name for name in names if name != "loss"]
    if not names:
        return ""
    lines = []
    for system, found in runs.items():
        cells = [
            spread([run["held_out"][name] for run in found if name in run["held_out"]])
            for name in names
        ]
        lines.append([system, *cells])
    return (
        "## Held-out text\n\nA column compares systems only where they solve the same "
        "problem: the loss of a discriminator depends on the generator that it is up "
        "against, that of a masked LM on how the text is masked.\n\n"
        + table(["system", *(name.replace("_", " ") for name in names)], lines)
    )


def _failures(scores: Scores) -> str:
    names = {row.name for row in scores.plan.rows}
    probes = {None, *(probe.name for probe in scores.plan.probes)}

    def is_ours(row: Row) -> bool:
        return row["system"] in names and row.get("probe") in probes

    notes = [f"- {describe(row)}" for row in filter(is_ours, scores.store.failures())]
    failed, total = collections.Counter(), collections.Counter()
    for row in filter(is_ours, scores.store.rows("probe")):
        failed[row["system"], row["probe"]] += len(row["failed_seeds"])
        total[row["system"], row["probe"]] += len(row["scores"])
    notes += [
        f"- {system}: {count} of {total[system, probe]} fine-tuning runs of {probe} "
        "diverged or learned nothing (they count in the scores all the same)"
        for (system, probe), count in failed.items()
        if count
    ]
    return "## Failures\n\n" + "\n".join(notes) if notes else ""


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table in aligned columns, the first to the left."""
    rows = [list(head), *map(list, lines)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in (rows[0], rule, *rows[1:])
    )


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation (of n - 1), as far as there are any."""
    if not values:
        return ""
    mean = descriptive.fmean(values)
    digits = 2 if abs(mean) >= 10 else 3
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {descriptive.stdev(values):.{digits}f}"


def signed(value: float) -> str:
    """With its sign; empty for nan."""
    return "" if math.isnan(value) else f"{value:+.2f}"


def _p(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"
