"""Hyperparameter search: sequential trials, stored in ``search.json``.

Optuna proposes the values (tree-structured Parzen estimator, Bergstra et al., 2011). A
proposal depends on seed, number and earlier trials, so a resumed search repeats it.
"""

import dataclasses
import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config.search import Axis
from electra_tf.errors import UserError
from electra_tf.folders.finetuning import SEARCHED
from electra_tf.tasks.metrics import rank

# Number of random trials before the estimator proposes values.
_AT_RANDOM = 6


def require() -> None:
    """Raises ValueError if Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError("--search needs the package optuna: pip install optuna.")


@dataclasses.dataclass(frozen=True)
class Trial:
    """Hyperparameters of a trial, and its main score on held-out data."""

    values: Mapping[str, float]
    score: float
    failure: str = ""  # "" if the trial did not fail.
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Search:
    """A hyperparameter search and its output folder."""

    axes: Sequence[Axis]
    first: Mapping[str, float]  # Values of the first trial.
    trials: int  # Their total number.
    seed: int
    metric: str
    greater_is_better: bool
    about: Mapping[str, Any]  # Further entries of search.json.
    folder: Path  # Receives search.json after every trial.
    log: Log

    def __call__(
        self, attempt: Callable[[int, Mapping[str, float]], Trial | None]
    ) -> list[Trial] | None:
        """Runs the remaining trials; returns all trials, or None after a signal.

        ``attempt(number, values)`` returns a scored trial, or None if interrupted.
        """
        done = self.read()
        if done:
            self.log(f"{len(done)} of {self.trials} trials are done")
        progress = cli.Progress(self.trials, unit="trial", log=self.log)
        progress.update(len(done))
        while len(done) < self.trials:
            began, number = time.monotonic(), len(done)
            if (values := self.proposal(done)) is None:
                self.log("search: there are no other values to try")
                break
            trial = attempt(number, values)
            if trial is None:
                return None
            took = round(time.monotonic() - began, 1)
            done.append(dataclasses.replace(trial, seconds=took))
            self._write(done)
            progress.update(len(done))
            text = "  ".join(f"{name} {x:.3g}" for name, x in trial.values.items())
            self.log(
                f"trial {number}  {text}  {self.metric} {trial.score:.2f}  best "
                f"{done[self.best(done)].score:.2f}"
                f"{'  failed' if trial.failure else ''}  {progress.line()}"
            )
        return done

    def best(self, done: Sequence[Trial]) -> int:
        """Returns the number of the first best trial; scores not finite rank last."""
        better = self.greater_is_better
        ranks = [rank(trial.score, greater_is_better=better) for trial in done]
        return ranks.index(max(ranks))

    def proposal(self, done: Sequence[Trial]) -> dict[str, float] | None:
        """Returns the values of the next trial, or None if all were tried."""
        outside = [x.name for x in self.axes if not x.has(self.first[x.name])]
        if not done and not outside:
            return {axis.name: self.first[axis.name] for axis in self.axes}
        if not done:
            names = ", ".join(outside)
            self.log(f"search: the value of {names} is outside of its range: not tried")
        # Optional, and slow to import.
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            direction="maximize" if self.greater_is_better else "minimize",
            sampler=optuna.samplers.TPESampler(
                seed=(self.seed + len(done)) % 2**31, n_startup_trials=_AT_RANDOM
            ),
        )
        ways = {axis.name: _distribution(axis) for axis in self.axes}
        tried = [dict(trial.values) for trial in done]
        for trial, values in zip(done, tried, strict=True):
            # The trial may lie outside of the current ranges. Optuna rejects scores
            # that are not finite.
            fits = all(axis.has(values[axis.name]) for axis in self.axes)
            if fits and math.isfinite(trial.score):
                study.add_trial(
                    optuna.trial.create_trial(
                        params=values, distributions=ways, value=trial.score
                    )
                )
        # Repeated values give the same score.
        for _ in range(100):
            if (values := dict(study.ask(ways).params)) not in tried:
                return values
        return None

    def read(self) -> list[Trial]:
        path = self.folder / SEARCHED
        if not path.exists():
            return []
        axes = {axis.name: float for axis in self.axes}
        row = {"values": axes, "score": float | None, "failure": str, "seconds": float}
        stored = files.read_json(path, shape={"metric": str, "trials": [row]})
        if stored["metric"] != self.metric:
            raise UserError(
                f"{path} is of another search, for the best {stored['metric']}: set "
                "--output_dir to another folder, or pass --overwrite to replace it."
            )
        return [
            Trial(
                row["values"],
                # A score that is not finite is null.
                math.nan if row.get("score") is None else row["score"],
                row["failure"],
                row["seconds"],
            )
            for row in stored["trials"]
        ]

    def _write(self, done: Sequence[Trial]) -> None:
        best = self.best(done)
        files.write_json(
            self.folder / SEARCHED,
            {
                "metric": self.metric,
                "greater_is_better": self.greater_is_better,
                **self.about,
                "searched": [dataclasses.asdict(axis) for axis in self.axes],
                "best_trial": best,
                "best": dict(done[best].values),
                "trials": [
                    {"trial": number, **dataclasses.asdict(trial)}
                    for number, trial in enumerate(done)
                ],
            },
        )


def _distribution(axis: Axis) -> Any:
    import optuna

    if axis.values:
        return optuna.distributions.CategoricalDistribution(axis.values)
    if axis.is_whole:
        low, high = int(axis.low), int(axis.high)
        return optuna.distributions.IntDistribution(low, high, log=axis.is_log)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.is_log)
