"""Scores of all runs, and the tables of ``table.md``.

Systems below a threshold of pretraining progress are not ranked. They have learned
little more than token frequencies, so a probe would measure memorization of words.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev

import numpy as np
from tqdm import tqdm

from electra_tf.comparison import statistics
from electra_tf.comparison.plan import AVERAGE, Plan
from electra_tf.comparison.store import Row, Store, describe
from electra_tf.pretraining.metrics import COPYING
from electra_tf.runs.finetuning_report import aligned
from electra_tf.systems import costs

_AUC, _NATS = "replaceable_auc", "masked_lm_loss"


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores so far, by system, seed and probe of a plan."""

    plan: Plan
    store: Store

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the probes, then their average."""
        names = tuple(self.plan.probes)
        return (*names, AVERAGE) if len(names) > 1 else names

    def by_seed(self, system: str, column: str) -> np.ndarray:
        """Returns the scores of all seeds, NaN if missing; averages need all probes."""
        if column == AVERAGE:
            each = [self.by_seed(system, name) for name in self.plan.probes]
            return np.mean(each, axis=0)
        rows = (self.store.find(system, seed, column) for seed in self.plan.seeds)
        return np.array([math.nan if row is None else probe_score(row) for row in rows])

    def all(self, system: str, column: str) -> list[float]:
        """Returns the scores of the seeds that have one."""
        scores = self.by_seed(system, column)
        return scores[~np.isnan(scores)].tolist()

    def runs(self, system: str) -> list[Row]:
        """Returns the rows of the finished pretraining runs."""
        rows = (self.store.find(system, seed) for seed in self.plan.seeds)
        return [row for row in rows if row]

    @property
    def below(self) -> dict[str, str]:
        """Systems below the threshold, with their mean AUC or gain in nats.

        Rows of older versions may lack both metrics; they have no threshold. Electric
        has none either: optimal energies cannot tell text from equally likely noise.
        """
        config, values = self.plan.config, {}
        for name, system in self.plan.systems.items():
            if system.objective.objective == "electric":
                continue
            runs = self.runs(name)
            aucs = _known(run["held_out"].get(_AUC) for run in runs)
            gains = _known(map(_gain, runs))
            nats = config.threshold_nats
            if aucs and fmean(aucs) < config.threshold_auc:
                values[name] = f"AUC {fmean(aucs):.3f}"
            # Gains may be negative, and 0 disables the threshold.
            elif nats > 0 and gains and fmean(gains) < nats:
                values[name] = f"{fmean(gains):.2f} nats"
        return values

    def baseline(self, column: str) -> float:
        """Returns the mean score of the majority baseline, or of chance for pairs."""
        if column == AVERAGE:
            return fmean(map(self.baseline, self.plan.probes))
        # With a part of the training data, it depends on the seed.
        rows = [row for row in self.store.rows("probe") if row["probe"] == column]
        values = [row["baseline"] for row in rows if row["seed"] in self.plan.seeds]
        return math.nan if None in values or not values else fmean(values)

    def differences(self, column: str) -> dict[str, statistics.Difference]:
        """Compares systems with the reference, over their common seeds.

        Leaves out systems below the threshold; empty if the reference is below it.
        """
        reference, differences, below = self.plan.config.reference, {}, self.below
        theirs = self.by_seed(reference, column)
        for name in self.plan.systems:
            if name == reference or {name, reference} & {*below}:
                continue
            mine = self.by_seed(name, column)
            both = ~np.isnan(mine - theirs)
            differences[name] = statistics.paired_difference(mine[both], theirs[both])
        return differences


def probe_score(row: Row) -> float:
    """Returns the score of a probe; diverged seeds count as the baseline."""
    # NaN is null in the file.
    mean, *scores = np.array([row["score"], *row.get("scores", ())], float)
    if np.isfinite(mean):
        return row["score"]
    return fmean(x if np.isfinite(x) else row["baseline"] for x in scores)


def _gain(row: Row) -> float | None:
    """Returns the gain of a masked LM over the best trivial predictor, in nats."""
    nats, trivial = row["held_out"].get(_NATS), row.get("trivial") or {}
    known = _known(trivial.get(name) for name in (_NATS, f"{_NATS}{COPYING}"))
    return min(known) - nats if known and nats is not None else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def markdown(plan: Plan, store: Store) -> str:
    """Returns the report of a comparison as Markdown."""
    scores, config = Scores(plan, store), plan.config
    reference = plan.systems[config.reference]
    cost = plan.flops(config.reference)[config.flops_rule]
    share = {
        "flops": f"{cost:.3g} FLOPs (rule: {config.flops_rule})",
        "steps": f"{reference.run.num_train_steps:,} steps, at different FLOPs",
    }[config.equal]
    sizes = reference.encoder
    heading = (
        f"{len(plan.systems)} systems, {config.seeds} seeds; every run gets {share}. "
        f"Encoders of {sizes.num_layers} layers x {sizes.hidden_size}, sequences of "
        f"{reference.data.max_seq_length} tokens, "
        f"{len(plan.data.vocabulary):,} tokens in the vocabulary."
    )
    runs = {name: scores.runs(name) for name in plan.systems}
    parts, below = [heading, cost_table(plan, runs)], scores.below
    if plan.probes:
        parts.append(_score_table(scores))
        parts += [_below_threshold(scores)] if below else []
        parts += [] if config.reference in below else _difference_tables(scores)
    parts += [_held_out_table(scores), _failures(scores)]
    return "\n\n".join(filter(None, parts)) + "\n"


def cost_table(plan: Plan, runs: Mapping[str, Sequence[Row]]) -> str:
    """Returns steps, FLOPs and parameters of every system, and the time of ``runs``."""
    lines = []
    for name, system in plan.systems.items():
        flops, own = plan.flops(name), runs.get(name, ())
        steps = system.run.num_train_steps
        counts = (flops["matmul"] / steps, flops["matmul"], flops["original"])
        parameters = costs.parameters(system, len(plan.data.vocabulary))
        seconds = [run["train_seconds"] for run in own]
        time = tqdm.format_interval(round(fmean(seconds))) if seconds else ""
        cells = [*(f"{count:.3g}" for count in counts), f"{parameters:,}"]
        lines.append([name, f"{steps:,}", *cells, time, f"{len(own)}"])
    head = ["system", "steps", "FLOPs/step (matmul)", "FLOPs (matmul)"]
    head += ["FLOPs (original)", "parameters", "training time", "runs"]
    return "## Cost\n\n" + table(head, lines)


def _score_table(scores: Scores) -> str:
    lines = []
    for name in scores.plan.systems:
        columns = [scores.all(name, column) for column in scores.columns]
        lines.append([name, *map(spread, columns), str(len(columns[-1]))])
    trivial = [scores.baseline(column) for column in scores.columns]
    lines.append(["majority baseline", *(formatted(x, ".2f") for x in trivial), ""])
    # Minimal pairs have another metric for masked LMs.
    metrics: dict[str, dict[str, None]] = {}
    for row in scores.store.rows("probe"):
        if row["probe"] in scores.columns:
            metrics.setdefault(row["probe"], {})[row["metric"]] = None
    legend = "; ".join(f"{name}: {' or '.join(own)}" for name, own in metrics.items())
    return (
        "## Scores\n\nMean ± standard deviation over the pretraining seeds.\n\n"
        + table(["system", *scores.columns, "seeds"], lines)
        + (f"\n\n{legend}." if legend else "")
    )


def _below_threshold(scores: Scores) -> str:
    config = scores.plan.config
    below = ", ".join(f"{system} ({value})" for system, value in scores.below.items())
    return (
        f"**Below threshold: {below}.** A discriminator needs an AUC of "
        f"{config.threshold_auc:g} over the tokens that can be replaced "
        f"(--threshold_auc), a masked LM {config.threshold_nats:g} nats below the best "
        "trivial predictor (--threshold_nats). These systems are not ranked: use a "
        "larger --budget."
    )


def _difference_tables(scores: Scores) -> Iterator[str]:
    yield (
        f"## Against {scores.plan.config.reference}\n\nDifferences of scores, paired "
        f"by seed, with {statistics.CONFIDENCE:.0%} bootstrap intervals. p: two-sided, "
        "by permutation of signs and by paired t-test; Holm: corrected for the number "
        "of systems."
    )
    head = ["system", "difference", "95 % interval", "p (permutation)", "Holm"]
    head += ["p (t-test)", "Holm", "pairs"]
    # First the main score: the average, or the only probe.
    for column in dict.fromkeys((scores.columns[-1], *scores.columns)):
        differences = scores.differences(column)
        every = differences.values()
        exact, t_test = [one.p_permutation for one in every], [one.p_t for one in every]
        p_values = (exact, statistics.holm(exact), t_test, statistics.holm(t_test))
        lines = []
        for (name, one), *values in zip(differences.items(), *p_values, strict=True):
            ends = f"[{one.low:+.2f}, {one.high:+.2f}]" if one.pairs > 1 else ""
            shown = [formatted(value, ".3g") for value in values]
            mean = formatted(one.mean, "+.2f")
            lines.append([name, mean, ends, *shown, str(one.pairs)])
        if lines:
            yield f"**{column}**\n\n" + table(head, lines)


def _held_out_table(scores: Scores) -> str:
    losses = {
        name: [run["held_out"] for run in scores.runs(name)]
        for name in scores.plan.systems
    }
    names = dict.fromkeys(n for runs in losses.values() for run in runs for n in run)
    # Total losses are not comparable across systems.
    names.pop("loss", None)
    if not names:
        return ""
    lines = []
    for system, runs in losses.items():
        cells = (_known(run.get(name) for run in runs) for name in names)
        lines.append([system, *map(spread, cells)])
    return (
        "## Held-out text\n\nA column compares systems only if they solve the same "
        "problem: a discriminator's loss depends on the generator, a masked LM's on "
        "the masking.\n\n"
        + table(["system", *(name.replace("_", " ") for name in names)], lines)
    )


def _failures(scores: Scores) -> str:
    plan = scores.plan

    def is_shown(row: Row) -> bool:
        is_planned = row["system"] in plan.systems and row["seed"] in plan.seeds
        return is_planned and row.get("probe") in (None, *plan.probes)

    notes = [f"- {describe(row)}" for row in scores.store.failures() if is_shown(row)]
    notes += [
        f"- {row['system']} seed {row['seed']}: {len(row['failed_seeds'])} of "
        f"{len(row['scores'])} fine-tuning runs of {row['probe']} diverged or learned "
        "nothing (the scores include them)"
        for row in scores.store.rows("probe")
        if row["failed_seeds"] and is_shown(row)
    ]
    return "## Failures\n\n" + "\n".join(notes) if notes else ""


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table, aligned as text."""
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {line} |" for line in aligned([head, rule, *lines], " | "))


def spread(values: Sequence[float]) -> str:
    """Formats mean ± sample standard deviation, or a single value."""
    if not values:
        return ""
    mean = fmean(values)
    digits = 2 if abs(mean) >= 10 else 3
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{deviation}"


def formatted(value: float, style: str) -> str:
    """Formats a number; "" for NaN."""
    return "" if math.isnan(value) else format(value, style)
