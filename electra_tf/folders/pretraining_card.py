"""Model card of a pretrained model: networks, data, recipe, scores, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from electra_tf.folders.pretraining import PretrainingFolder

# Flag -> label in the card.
_RECIPE = {
    "objective": "objective",
    "generator": "generator",
    "init_from": "started from the weights of",
    "num_train_steps": "steps",
    "train_batch_size": "rows per step",
    "max_seq_length": "tokens per row",
    "learning_rate": "learning rate",
    "mask_rate": "mask rate",
    "discriminator_weight": "weight of the discriminator's loss",
    "mixed_precision": "mixed precision",
    "seed": "seed",
}
_HASHES = ("vocabulary_sha256", "records_sha256")

_CARD = """# Encoder, by ELECTRA

A text encoder pretrained as ELECTRA (Clark et al., 2020) with `electra_tf`. Fine-tune \
it for a task:

```
python -m electra_tf finetune --encoder=this/folder --task=classification --train=my.csv
```

## Model

{model}

## Data

{data}

## Recipe

{recipe}

{scores}## Limits

{limits}
"""
_SCORES = """## Scores on held-out text

{about}

| score | value | 95 % interval | trivial |
|---|---|---|---|
{rows}

"""
_LIMITS = """* The model reflects the language, time and views of its text, which was \
filtered only as the flags state. Performance on other kinds of text was not measured.
* One run with one seed: other seeds give other scores."""


def data_lines(settings: Mapping[str, Any]) -> list[str]:
    """Returns Markdown lines about the text in a config.json, or []."""
    config, hashes = settings.get("config", {}), settings.get("data", {})
    sources = config.get("records") or config.get("corpus")
    if not sources:
        return []
    return [
        f"* text: {', '.join(f'`{source}`' for source in sources)}",
        *(f"* {x.replace('_', ' ')}: `{hashes[x]}`" for x in _HASHES if x in hashes),
    ]


def recipe_lines(settings: Mapping[str, Any]) -> list[str]:
    """Returns Markdown lines about the training flags in a config.json."""
    config = settings.get("config", {})
    return [
        f"* {label}: {config[flag]}"
        for flag, label in _RECIPE.items()
        if config.get(flag) not in (None, "none")
    ]


def pretraining_card(
    folder: PretrainingFolder,
    parameters: Mapping[str, int],
    scores: Sequence[tuple[str, str, str, str]],
) -> str:
    """Returns the model card of a finished run.

    Args:
        folder: folder of the run, with config.json and vocab.txt.
        parameters: number of parameters by name of the saved model.
        scores: label, value, interval and trivial baseline of each held-out metric, as
            text; empty without held-out text.
    """
    settings, flags = folder.settings, folder.flags
    casing = "lower-cased" if folder.casing.get("lower_case") else "cased"
    positions = flags["max_seq_length"]
    model = [
        f"* encoder: {flags['num_layers']} layers x {flags['hidden_size']}, "
        f"{flags['num_heads']} heads",
        *(
            f"* `{name}.keras`: {count:,} parameters"
            for name, count in parameters.items()
        ),
        f"* text is {casing}; {len(folder.vocabulary())} tokens in `vocab.txt`",
        f"* position embeddings are trained up to {positions} tokens",
    ]
    about = (
        "95 % bootstrap intervals over batches; none for fewer than 8 batches or on "
        "several devices. The trivial predictor uses token frequencies only."
    )
    rows = "\n".join(f"| {' | '.join(row)} |" for row in scores)
    return _CARD.format(
        model="\n".join(model),
        data="\n".join(data_lines(settings)),
        recipe="\n".join(recipe_lines(settings)),
        scores=_SCORES.format(about=about, rows=rows) if scores else "",
        limits=_LIMITS,
    )
