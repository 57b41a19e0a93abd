"""README.md of an exported model: what it is, its training, its scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from electra_tf.interop.imported import Imported

CLASSES = {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}

# Flag of the run -> what the card calls it.
_TRAINING = {
    "objective": "objective",
    "init_from": "started from the weights of",
    "num_train_steps": "steps",
    "train_batch_size": "rows per step",
    "max_seq_length": "tokens per row",
    "learning_rate": "learning rate",
    "mask_rate": "mask rate",
    "discriminator_weight": "weight of the discriminator's loss",
    "seed": "seed",
}


def model_card(model: Imported, main: str, *, has_generator: bool) -> str:
    """The card of `model`, whose tower `main` is in the folder of the card."""
    parts = [
        _FRONT,
        "# ELECTRA\n",
        _what(model, main, has_generator),
        _usage(model, main),
        _data(model.run),
        _training(model.run.get("config", {})),
        _scores(model.scores),
        "## Not in this folder\n\nThe state of the optimizer and the training data.\n",
    ]
    return "\n".join(part for part in parts if part)


_FRONT = """---
library_name: transformers
tags:
- electra
---
"""


def _what(model, main, has_generator):
    casing = "lower-cased" if model.lower_case else "cased"
    if model.lower_case and not model.strip_accents:
        casing += ", accents kept"
    lines = [
        "A text encoder pretrained as ELECTRA (Clark et al., 2020), exported by "
        f"`electra_tf`{_origin(model)}.",
        "",
        f"* {main}: {model.towers[main].sizes}",
    ]
    if has_generator:
        lines.append(f"* generator, in `generator/`: {model.generator.sizes}")
    lines += [
        f"* text is {casing}; {len(model.vocabulary)} WordPiece tokens",
        f"* position embeddings are trained up to {model.trained_length} tokens",
        "",
    ]
    return "\n".join(lines)


def _origin(model):
    """Where the weights came from, if they were not trained here."""
    imported = model.run.get("imported", {"format": model.format})
    if "num_train_steps" in model.run.get("config", {}):
        return ""
    return f"; the weights were read from the format `{imported['format']}`"


def _usage(model, main):
    loaded = CLASSES[main] if model.towers[main].head else "ElectraModel"
    return (
        "```python\nfrom transformers import AutoTokenizer, "
        f"{loaded}\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("this/folder")\n'
        f'model = {loaded}.from_pretrained("this/folder")\n```\n'
    )


def _data(run: Mapping[str, Any]) -> str:
    config = run.get("config", {})
    sources = config.get("records") or config.get("corpus")
    if not sources:
        return "## Data\n\nNot known: the source does not say.\n"
    lines = ["## Data\n", f"* text: {', '.join(f'`{source}`' for source in sources)}"]
    hashes = run.get("data", {})
    lines += [
        f"* {name.replace('_', ' ')}: `{hashes[name]}`"
        for name in ("vocabulary_sha256", "records_sha256")
        if name in hashes
    ]
    return "\n".join(lines) + "\n"


def _training(config: Mapping[str, Any]) -> str:
    if "num_train_steps" not in config:
        return ""  # Not trained here: what else the config says is of the import.
    lines = [
        f"* {label}: {config[flag]}"
        for flag, label in _TRAINING.items()
        if config.get(flag) is not None
    ]
    return "\n".join(["## Training\n", *lines]) + "\n"


def _scores(scores: Mapping[str, float]) -> str:
    if not scores:
        return ""
    rows = [f"| {name} | {value:.4g} |" for name, value in sorted(scores.items())]
    head = ["## Scores on held-out text\n", "| score | value |", "|---|---|"]
    return "\n".join([*head, *rows]) + "\n"
