"""Answers as files, in the layouts of the official scripts: JSON by question id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra_tf.tasks.qa_decoding import Answer


def write_predictions(
    names: Sequence[str], answers: Sequence[Answer], path: str, *, null_odds: bool
) -> None:
    """Writes predictions, nbest_predictions and null_odds.

    The text in predictions is the best one, also where null_odds says that there is
    none: the official script for SQuAD 2.0 is given both files, and a threshold.

    Args:
        names: Ids of the questions.
        answers: Answers to them.
        path: Where predictions go, as .json whatever its end is; "predictions" in its
            name becomes the names of the other files.
        null_odds: Whether to write them.
    """
    target = Path(path).with_suffix(".json")
    named = list(zip(names, answers, strict=True))
    contents: dict[str, dict[str, Any]] = {
        "predictions": {name: answer.text for name, answer in named},
        "nbest_predictions": {name: _n_best(answer) for name, answer in named},
    }
    if null_odds:
        contents["null_odds"] = {name: answer.null_odds for name, answer in named}
    for kind, content in contents.items():
        _write(target.with_name(target.name.replace("predictions", kind)), content)


def write_decisions(
    names: Sequence[str], answers: Sequence[Answer], path: str, threshold: float
) -> None:
    """Writes the best texts, and "" where the null odds are above a threshold."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pairs = zip(names, answers, strict=True)
    _write(
        target,
        {
            name: "" if answer.null_odds > threshold else answer.text
            for name, answer in pairs
        },
    )


def _n_best(answer: Answer) -> list[dict[str, Any]]:
    pairs = zip(answer.candidates, answer.probabilities(), strict=True)
    return [
        {
            "text": candidate.text,
            "probability": float(probability),
            "start_logit": candidate.start_log_prob,
            "end_logit": candidate.end_log_prob,
            "start": candidate.start,
            "end": candidate.end,
        }
        for candidate, probability in pairs
    ]


def _write(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", "utf-8")
