"""Model card of a fine-tuned model: data, recipe, scores, limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from electra_tf import files
from electra_tf.cli import visible
from electra_tf.errors import UserError
from electra_tf.folders.finetuning import RESULTS, FinetuningFolder
from electra_tf.folders.settings import CONFIG

# Flags that describe the data.
_DATA = ("data_dir", "train", "eval", "test", "text", "label", "train_fraction")
_RECIPE = {
    "encoder": "started from",
    "init": "weights of the encoder at the start",
    "train_batch_size": "rows per step",
    "seeds": "seeds",
    "pooling": "pooling",
    "dropout": "dropout of the encoder",
}
_SETTINGS = {
    "learning_rate": "learning rate",
    "layerwise_decay": "layer-wise decay",
    "weight_decay": "weight decay",
    "reduction": "loss over a batch",
    "epochs": "epochs",
    "max_seq_length": "tokens per row",
}
_MOST_LABELS = 30
# Baselines by task kind.
_BASELINES = {
    "tagging": "gives each word its most frequent tag",
    "question_answering": "gives an empty answer to every question",
}


def task_card(folder: FinetuningFolder, report: Mapping[str, Any]) -> str:
    """Returns the model card of a fine-tuned model, before results.json is written."""
    name = folder.about()["task"]
    return (
        f"# {name}, by ELECTRA\n\nA text encoder pretrained as ELECTRA (Clark et al., "
        "2020) and fine-tuned with `electra_tf`.\n\n```\npython -m electra_tf predict "
        '--model=this/folder "a text"\n```\n\n' + task_facts(folder, report)
    )


def task_facts(
    folder: FinetuningFolder, report: Mapping[str, Any] | None = None
) -> str:
    """Returns Markdown sections about the model of a finished run.

    Unknown facts are left out. ``report`` is the content of results.json, if it is not
    written yet. Raises ValueError if task.json or results.json is damaged.
    """
    about = folder.about()
    path = folder.path / RESULTS
    if report is None:
        report = _with_nan(files.read_json(path, {}))
    settings = files.read_json(folder.path / CONFIG, {})
    try:
        return _sections(about, settings, report)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} is damaged: {type(error).__name__} {error}."
        ) from error


def _sections(
    about: Mapping[str, Any], settings: Mapping[str, Any], report: Mapping[str, Any]
) -> str:
    flags, numbers = (_section(settings, name) for name in ("config", "settings"))
    labels = about.get("labels") or ()
    shown = ", ".join(map(_code, labels[:_MOST_LABELS]))
    more = f" and {len(labels) - _MOST_LABELS} more" if labels[_MOST_LABELS:] else ""
    casing = "lower-cased" if about["lower_case"] else "cased"
    model = [
        f"* task: {about['task']} ({about['kind']}); reads "
        f"{' and '.join(about['text_names'])}",
        *([f"* {len(labels)} labels: {shown}{more}"] if labels else []),
        *_named(about, {"threshold": "minimum probability of a predicted label"}),
        *_named(about, {"label_range": "range of the training labels"}),
        f"* text is {casing}; at most {about['max_seq_length']} tokens per row",
        *_named(about, {"long_texts": "longer texts"}),
    ]
    # --text and --label apply to user tables only, --pooling to text tasks only.
    whole = about["kind"] not in _BASELINES
    unread = () if whole and flags.get("train") else ("text", "label")
    named = [name for name in _DATA if flags.get(name) and name not in unread]
    data = [f"* `--{name}`: {_formatted(flags[name])}" for name in named]
    if not whole:
        flags.pop("pooling", None)
    if counts := _section(report, "examples"):
        data.append("* examples: " + ", ".join(f"{n} {s}" for s, n in counts.items()))
    recipe = [*_named(flags, _RECIPE), *_named(numbers, _SETTINGS)]
    if searched := flags.get("search"):
        trials = f"{flags.get('search_trials')} trials"
        recipe.append(
            f"* {_formatted(searched)}: the best of {trials} on a fifth of the "
            "training data (`search.json`)"
        )
    return "".join(
        f"## {title}\n\n" + "\n".join(lines) + "\n\n"
        for title, lines in (
            ("Model", model),
            ("Data", data),
            ("Recipe", recipe),
            ("Scores", _scores(report, about["kind"])),
            ("Limits", _limits(about, flags, report)),
        )
        if lines
    )


def _with_nan(value: Any) -> Any:
    """Replaces null, which stands for a score that is not finite, by NaN."""
    if isinstance(value, dict):
        return {name: _with_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_nan(each) for each in value]
    return math.nan if value is None else value


def _scores(report: Mapping[str, Any], kind: str) -> list[str]:
    split = report.get("main_split")
    if split is None:
        return []
    seed = report.get("exported_seed")
    results = {each["seed"]: each for each in report["seeds"]}
    scores = results[seed]["scores"][split]
    intervals = _section(report, "intervals")
    lines = [
        f"Seed {seed}, the exported model, on `{split}`; the main score is "
        f"{report['main_metric']}. 95 % bootstrap intervals over examples; the "
        f"baseline {_BASELINES.get(kind, 'predicts the same for every text')}.",
        "",
        "| score | value | 95 % interval | baseline |",
        "|---|---|---|---|",
    ]
    for name, value in scores.items():
        low, high = intervals.get(name, (None, None))
        interval = "" if low is None else f"{low:.2f} to {high:.2f}"
        baseline = report["summary"][split][name]["baseline"]
        lines.append(f"| {name} | {value:.2f} | {interval} | {baseline:.2f} |")
    lines += _classes(report)
    if len(results) > 1:
        main = report["summary"][split][report["main_metric"]]
        lines += [
            "",
            f"Over {len(results)} seeds, {report['main_metric']}: median "
            f"{main['median']:.2f}, mean {main['mean']:.2f}, standard deviation "
            f"{main['std']:.2f}. The seed here is the best on this data.",
        ]
    return lines


def _classes(report: Mapping[str, Any]) -> list[str]:
    classes = _section(report, "classes")
    if not classes:
        return []
    lines = [
        "",
        "| label | precision | recall | F1 | support |",
        "|---|---|---|---|---|",
    ]
    for label, row in list(classes.items())[:_MOST_LABELS]:
        shares = " | ".join(
            f"{100 * row[n]:.1f}" for n in ("precision", "recall", "f1")
        )
        lines.append(f"| {_code(label)} | {shares} | {row['support']} |")
    error = 100 * report["calibration_error"]
    return [
        *lines,
        "",
        f"Probabilities are off by {error:.1f} % on average (expected calibration "
        "error, 15 bins).",
    ]


def _code(label: str) -> str:
    """Formats a label as inline code, without markup or escape sequences."""
    text = visible(str(label)).replace("\n", " ").replace("`", "'")
    return f"`{text}`".replace("|", "\\|")


def _limits(
    about: Mapping[str, Any], flags: Mapping[str, Any], report: Mapping[str, Any]
) -> list[str]:
    lines = []
    if about.get("labels"):
        lines.append(
            "* It predicts one of its labels for any text, even of another kind or "
            "language than the training data."
        )
    if len(report.get("seeds") or ()) > 1:
        lines.append(
            "* The seed was chosen on the data of the scores above: they are "
            "optimistic."
        )
    if flags.get("keep") == "best" or flags.get("early_stopping_patience"):
        lines.append("* So was the epoch (`--keep`, `--early_stopping_patience`).")
    if failures := [x["failure"] for x in report.get("seeds") or () if x["failure"]]:
        seeds = f"{len(failures)} of {len(report['seeds'])} seeds failed"
        lines.append(f"* {seeds}, the first because: {failures[0]}.")
    lines.append("* Performance on other kinds of data was not measured.")
    return lines


def _named(values: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    return [
        f"* {label}: {_formatted(values[name])}"
        for name, label in names.items()
        if values.get(name) is not None
    ]


def _formatted(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_formatted, value))
    return f"{value:g}" if isinstance(value, float) else f"`{value}`"


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}
