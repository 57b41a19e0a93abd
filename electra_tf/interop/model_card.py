"""README.md of an exported model: description, training and scores."""

from __future__ import annotations

from collections.abc import Sequence

from electra_tf.folders.pretraining_card import data_lines, recipe_lines
from electra_tf.interop.imported import Imported

CLASSES = {"discriminator": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"}

_CARD = """---
library_name: transformers
tags:
- electra
---

# ELECTRA

A text encoder pretrained as ELECTRA (Clark et al., 2020), exported by \
`electra_tf`{origin}.

{about}

```python
from transformers import AutoTokenizer, {loaded}

tokenizer = AutoTokenizer.from_pretrained("this/folder")
model = {loaded}.from_pretrained("this/folder")
```

{data}{training}{scores}## Not in this folder

The state of the optimizer and the training data.
"""


_TASK_CARD = """---
library_name: transformers
tags:
- electra
- {kind}
---

# {task}, by ELECTRA

A text encoder pretrained as ELECTRA (Clark et al., 2020) and fine-tuned, exported by \
`electra_tf`.

```python
from transformers import AutoTokenizer, {loaded}

tokenizer = AutoTokenizer.from_pretrained("this/folder")
model = {loaded}.from_pretrained("this/folder")
```

{notes}{facts}"""
# How to decode the logits, by kind of task.
_TASK_NOTES = {
    "classification": "",
    "regression": "The logit is the number, on the scale of the training data.",
    "multilabel": "A text has the labels with a sigmoid of at least {threshold:g}.",
    "tagging": "The first piece of a word predicts its tag; other pieces have no tag.",
    "question_answering": "",
}


def task_card(model: Imported, loaded: str) -> str:
    """Returns the card of a fine-tuned model; ``loaded`` is its transformers class."""
    task = model.task
    note = _TASK_NOTES[task.kind].format(threshold=task.options.get("threshold", 0.5))
    return _TASK_CARD.format(
        kind=task.kind.replace("_", "-"),
        task=task.options.get("task", task.kind),
        loaded=loaded,
        notes=f"{note}\n\n" if note else "",
        facts=task.facts,
    )


def model_card(model: Imported) -> str:
    """Returns the card of the main tower's folder; a generator is a subfolder."""
    main, *others = model.towers
    casing = "lower-cased" if model.lower_case else "cased"
    if model.lower_case and not model.strip_accents:
        casing += ", accents kept"
    about = [
        f"* {main}: {model.main.sizes}",
        *(f"* {x}, in `{x}/`: {model.towers[x].sizes}" for x in others),
        f"* text is {casing}; {len(model.vocabulary)} WordPiece tokens",
        f"* position embeddings are trained up to {model.trained_length} tokens",
    ]
    data = data_lines(model.run) or ["Unknown."]
    origin, training = "", []
    if "num_train_steps" in model.run.get("config", {}):
        training = recipe_lines(model.run)
    else:
        # Imported weights: the config is not a training recipe.
        read_from = model.run.get("imported", {}).get("format", model.format)
        origin = f"; the weights were read from the format `{read_from}`"
    scores = [f"| {name} | {x:.4g} |" for name, x in sorted(model.scores.items())]
    if scores:
        scores = ["| score | value |", "|---|---|", *scores]
    return _CARD.format(
        origin=origin,
        about="\n".join(about),
        loaded=CLASSES[main] if model.main.head else "ElectraModel",
        data=_section("Data", data),
        training=_section("Training", training),
        scores=_section("Scores on held-out text", scores),
    )


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}\n", *lines, "\n"]) if lines else ""
