"""Model cards of pretrained and fine-tuned models, in Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_tf import files
from electra_tf.cli import visible
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import some_of
from electra_tf.folders.settings import CONFIG

if TYPE_CHECKING:
    from electra_tf.folders.finetuning import FinetuningFolder
    from electra_tf.folders.pretraining import PretrainingFolder

# Flags that the cards omit.
_OUTPUT = ("model_dir", "output_dir", "overwrite", "log_steps")


def card(title: str, use: str, code: str, facts: str) -> str:
    """Returns a model card; ``code`` starts with its language and a line break."""
    return (
        f"# {title}, by ELECTRA\n\nA text encoder pretrained as ELECTRA (Clark et al., "
        f"2020) {use} with `electra_tf`.\n\n```{code}\n```\n\n{facts}\n"
    )


def _sections(parts: Mapping[str, Sequence[str]]) -> str:
    filled = [(title, lines) for title, lines in parts.items() if lines]
    return "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in filled)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    rule = "|".join(["", *["---"] * len(header), ""])
    return lines and [f"| {' | '.join(header)} |", rule, *lines]


def _formatted(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_formatted, value))
    return f"{value:g}" if isinstance(value, float) else f"`{value}`"


def _facts(values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [
        f"* {name.replace('_', ' ')}: {_formatted(values[name])}"
        for name in names
        if values.get(name) not in (None, "none")
    ]


def _flags(values: Mapping[str, Any], config_class: type) -> list[str]:
    """Returns a line for each flag of a config.json that differs from its default."""
    lines = []
    for name, default in fields.to_flat(config_class()).items():
        value = values.get(name, default)
        value = tuple(value) if isinstance(value, list) else value
        if name == "clip_norm" and value is None:
            value = math.inf  # JSON has no infinity.
        if value != default and name not in _OUTPUT:
            lines.append(f"* `--{name}`: {_formatted(value)}")
    return lines


def pretraining_card(
    folder: PretrainingFolder,
    parameters: Mapping[str, int],
    scores: Sequence[tuple[str, str, str, str]],
) -> str:
    """Returns the model card of a finished run.

    ``scores`` has name, value, trivial baseline and its meaning of held-out metrics.
    """
    settings, flags = folder.settings, folder.flags
    casing = [folder.casing.get(name) for name in ("lower_case", "strip_accents")]
    config = settings.get("config", {})
    text = config.get("records") or config.get("corpus")
    hashes = _facts(settings.get("data", {}), ("vocabulary_sha256", "records_sha256"))
    parts = {
        "Model": [
            f"* encoder: {flags['num_layers']} layers x {flags['hidden_size']}, "
            f"{flags['num_heads']} heads",
            *(f"* `{name}.keras`: {n:,} parameters" for name, n in parameters.items()),
            *text_lines(*casing, folder.vocabulary(), flags["max_seq_length"]),
        ],
        "Data": [f"* text: {_formatted(text)}", *hashes] if text else [],
        "Recipe": _flags(config, PretrainConfig),
        "Scores on held-out text": _table(
            ("score", "value", "trivial", "trivial means"), scores
        ),
        "Limits": [
            "* The model reflects the language, time and views of its text. "
            "Performance on other kinds of text was not measured.",
            "* One run with one seed: other seeds give other scores.",
        ],
    }
    command = "finetune --encoder=this/folder --task=classification --train=my.csv"
    code, use = f"\npython -m electra_tf {command}", "and ready to be fine-tuned"
    return card("Encoder", use, code, _sections(parts))


def text_lines(
    lower_case: bool, strip_accents: bool, vocabulary: Sized, trained_length: int
) -> list[str]:
    """Returns Markdown lines about the text that an encoder reads."""
    casing = _casing(lower_case, strip_accents)
    return [
        f"* text is {casing}; {len(vocabulary)} tokens in `vocab.txt`",
        f"* position embeddings are trained up to {trained_length} tokens",
    ]


def _casing(lower_case: bool, strip_accents: bool) -> str:
    if not lower_case:
        return "cased"
    return f"lower-cased, {'without accents' if strip_accents else 'accents kept'}"


def task_card(folder: FinetuningFolder, report: Mapping[str, Any]) -> str:
    """Returns the model card of a fine-tuned model, before results.json is written."""
    about, settings = folder.about(), files.read_json(folder.path / CONFIG, {})
    flags, resolved = settings.get("config", {}), settings.get("settings", {})
    others = {name: value for name, value in flags.items() if name not in resolved}
    counts = report.get("examples", {})
    parts = {
        "Model": _model(about),
        "Data": [f"* {count} examples in {name}" for name, count in counts.items()],
        "Recipe": [*_flags(others, FinetuneConfig), *_facts(resolved, resolved)],
        "Scores": _scores(report) if "main_split" in report else [],
    }
    more = {"text_pair": ' --text_pair="another"', "context": ' --context="its source"'}
    last = more.get(about["text_names"][-1], "")
    code = f'\npython -m electra_tf predict --model=this/folder "a text"{last}'
    return card(about["task"], "and fine-tuned", code, _sections(parts))


def task_facts(folder: FinetuningFolder, path: Path) -> str:
    """Returns the sections of a model card, of an import a section on the model."""
    return facts_of(path) or _sections({"Model": _model(folder.about())})


def facts_of(path: Path) -> str:
    """Returns the sections of a model card, or "" if the file is missing."""
    if not path.is_file():
        return ""
    _, title, sections = path.read_text("utf-8", "replace").partition("\n## ")
    return (title + sections).lstrip()


def with_model(facts: str, lines: Sequence[str]) -> str:
    """Replaces the section on the model: flags of ``convert`` may change it."""
    rest = re.sub(r"^## Model\n.*?(?=^## |\Z)", "", facts, flags=re.M | re.S)
    return "\n".join(["## Model", "", *lines, "", rest]).rstrip()


def _model(about: Mapping[str, Any]) -> list[str]:
    labels = about.get("labels") or ()
    shown = some_of([*map(_code, labels)], most=30)
    casing = _casing(about["lower_case"], about["strip_accents"])
    return [
        f"* task: {about['task']} ({about['kind']}); reads "
        f"{' and '.join(about['text_names'])}",
        *([f"* {len(labels)} labels: {shown}"] if labels else []),
        f"* text is {casing}; at most {about['max_seq_length']} tokens per row",
        *_facts(about, ("threshold", "label_range", "long_texts")),
    ]


def _code(label: str) -> str:
    """Formats a label as inline code, without markup or escape sequences."""
    text = visible(str(label)).replace("\n", " ").replace("`", "'")
    return f"`{text}`".replace("|", "\\|")


def _scores(report: Mapping[str, Any]) -> list[str]:
    split, metric = report["main_split"], report["main_metric"]
    results = {each["seed"]: each for each in report["seeds"]}
    seed = report.get("exported_seed")
    over_seeds, intervals = report["summary"][split], report.get("intervals", {})
    rows = []
    for name, value in results[seed]["scores"][split].items():
        low, high = intervals.get(name) or (None, None)
        interval = "" if None in (low, high) else f"{low:.2f} to {high:.2f}"
        baseline = f"{over_seeds[name]['baseline']:.2f}"
        rows.append((name, f"{value:.2f}", interval, baseline))
    lines = [
        f"Seed {seed}, the exported model, on `{split}`; the main score is {metric}. "
        "95 % bootstrap intervals over examples.",
        "",
        *_table(("score", "value", "95 % interval", "baseline"), rows),
    ]
    lines += [
        f"\n`{name}` is int8: {metric} {row['int8']:.2f}, a loss of {row['loss']:.2f}."
        for name, row in report.get("int8", {}).items()
    ]
    if len(results) > 1:
        main = over_seeds[metric]
        failed = sum(bool(each["failure"]) for each in results.values())
        lines.append(
            f"\nOver {len(results)} seeds, {metric}: median {main['median']:.2f}, mean "
            f"{main['mean']:.2f}, standard deviation {main['std']:.2f}; {failed} "
            "failed. The exported seed is the best on this data: its score is "
            "optimistic."
        )
    return lines
