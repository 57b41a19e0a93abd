"""Hyperparameter search: sequential trials, stored in ``search.json``.

Optuna proposes the values (tree-structured Parzen estimator, Bergstra et al., 2011). A
proposal depends on seed, number and earlier trials, so a resumed search repeats it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config.finetuning import parse_axis
from electra_tf.errors import UserError, explained
from electra_tf.folders.finetuning import SEARCHED
from electra_tf.tasks.metrics import first_best

_AT_RANDOM = 6
# A row of search.json. A score that is not finite is null.
_TRIAL = {"values": dict[str, float], "score": float | None, "failure": str}


def space(
    texts: Sequence[str], own: Mapping[str, float]
) -> dict[str, BaseDistribution]:
    """Returns the distributions of ``--search``; ``own`` has the run's values."""
    found: dict[str, BaseDistribution] = {}
    for name, numbers, is_range in map(parse_axis, texts):
        if not is_range:
            found[name] = CategoricalDistribution(numbers)
            continue
        low, high = numbers or _around(name, own[name])
        is_log = name in ("learning_rate", "epochs")
        if name == "epochs" and low % 1 == high % 1 == 0:
            found[name] = IntDistribution(int(low), int(high), log=is_log)
        else:
            found[name] = FloatDistribution(low, high, log=is_log)
    return found


def _around(name: str, value: float) -> tuple[float, float]:
    if name == "learning_rate":
        return value / 5, value * 5
    if name == "epochs":
        return max(1, round(value / 3)), max(2, round(value * 3))
    if name == "layerwise_decay":
        return min(0.6, value), max(1.0, value)
    return 0.0, max(0.1 if name == "weight_decay" else 0.3, value)


@dataclasses.dataclass(frozen=True)
class Search:
    """A hyperparameter search and its output folder.

    Trials are dicts: "values" by hyperparameter, the main "score" on held-out data, and
    "failure", "" for none.
    """

    space: Mapping[str, BaseDistribution]
    first: Mapping[str, float]  # Values of the first trial.
    trials: int  # Their total number.
    seed: int
    metric: str
    greater_is_better: bool
    folder: Path  # Receives search.json after every trial.
    log: Log

    def __call__(
        self, attempt: Callable[[int, Mapping[str, float]], tuple[float, str]]
    ) -> dict[str, float]:
        """Runs the remaining trials; returns the best values of all.

        ``attempt(number, values)`` returns score and failure of a trial.
        """
        done = self.read()
        if done:
            self.log(f"{len(done)} of {self.trials} trials are done")
        progress = cli.Progress(self.trials, unit="trial", log=self.log)
        progress.update(len(done))
        while len(done) < self.trials:
            number = len(done)
            if (values := self.proposal(done)) is None:
                self.log("search: there are no other values to try")
                break
            score, failure = attempt(number, values)
            done.append({"values": values, "score": score, "failure": failure})
            best = self.best(done)
            files.write_json(
                self.folder / SEARCHED,
                {
                    "metric": self.metric,
                    "greater_is_better": self.greater_is_better,
                    "best_trial": best,
                    "best": done[best]["values"],
                    "trials": done,
                },
            )
            progress.update(len(done))
            text = "  ".join(f"{name} {x:.3g}" for name, x in values.items())
            self.log(
                f"trial {number}  {text}  {self.metric} {score:.2f}  best "
                f"{done[best]['score']:.2f}{'  failed' if failure else ''}  "
                f"{progress.line()}"
            )
        best = done[self.best(done)]
        text = ", ".join(f"--{name}={x:.3g}" for name, x in best["values"].items())
        self.log(
            f"search: {text} has the best {self.metric}, {best['score']:.2f}; the "
            f"first trial has {done[0]['score']:.2f}. Now all training examples:"
        )
        return best["values"]

    def best(self, done: Sequence[Mapping[str, Any]]) -> int:
        """Returns the number of the first best trial; scores not finite rank last."""
        scores = [trial["score"] for trial in done]
        return first_best(scores, greater_is_better=self.greater_is_better)

    def proposal(self, done: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
        """Returns the values of the next trial, or None if all were tried."""
        if not done:
            try:
                return self._trial(self.first, 0.0).params
            except ValueError as error:
                self.log(f"search: the given values are not tried: {error}")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            direction="maximize" if self.greater_is_better else "minimize",
            sampler=optuna.samplers.TPESampler(
                seed=(self.seed + len(done)) % 2**31, n_startup_trials=_AT_RANDOM
            ),
        )
        # Optuna rejects scores that are not finite.
        scored = [trial for trial in done if math.isfinite(trial["score"])]
        study.add_trials(self._trial(each["values"], each["score"]) for each in scored)
        tried = [trial["values"] for trial in done]
        # Repeated values give the same score.
        proposals = (study.ask(self.space).params for _ in range(100))
        return next((values for values in proposals if values not in tried), None)

    def _trial(
        self, values: Mapping[str, float], score: float
    ) -> optuna.trial.FrozenTrial:
        """Raises ValueError if a value is outside of its range."""
        return optuna.trial.create_trial(
            params=dict(values), distributions=self.space, value=score
        )

    def read(self) -> list[dict[str, Any]]:
        path = self.folder / SEARCHED
        if not path.exists():
            return []
        stored = files.read_json(path, shape={"metric": str, "trials": [_TRIAL]})
        if stored["metric"] != self.metric:
            raise UserError(
                f"{path} is of another search, for the best {stored['metric']}: set "
                "--output_dir to another folder, or pass --overwrite to replace it."
            )
        for trial in stored["trials"]:
            trial["score"] = math.nan if trial.get("score") is None else trial["score"]
            with explained(f"{path} is damaged"):
                self._trial(trial["values"], 0.0)
        return stored["trials"]
