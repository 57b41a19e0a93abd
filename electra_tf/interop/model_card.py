"""README.md of an exported model: description, training and scores."""

from __future__ import annotations

from electra_tf.folders.cards import data_lines, recipe_lines, sections, table
from electra_tf.interop.imported import Imported

# Classes of transformers, by tower and kind of task.
CLASSES = {
    "discriminator": "ElectraForPreTraining",
    "generator": "ElectraForMaskedLM",
    "classification": "ElectraForSequenceClassification",
    "multilabel": "ElectraForSequenceClassification",
    "regression": "ElectraForSequenceClassification",
    "tagging": "ElectraForTokenClassification",
    "question_answering": "ElectraForQuestionAnswering",
}

_CARD = """---
library_name: transformers
tags:
- electra{tag}
---

# {title}

A text encoder pretrained as ELECTRA (Clark et al., 2020){training}, exported by \
`electra_tf`{origin}.

```python
from transformers import AutoTokenizer, {loaded}

tokenizer = AutoTokenizer.from_pretrained("this/folder")
model = {loaded}.from_pretrained("this/folder")
```

{body}"""
# How to decode the logits, by kind of task.
_TASK_NOTES = {
    "classification": "",
    "regression": "The logit is the number, on the scale of the training data.",
    "multilabel": "A text has the labels with a sigmoid of at least {threshold:g}.",
    "tagging": "The first piece of a word predicts its tag; other pieces have no tag.",
    "question_answering": "",
}


def model_card(model: Imported) -> str:
    """Returns the card of a fine-tuned model, or of the main tower's folder.

    A generator is in a subfolder.
    """
    if task := model.task:
        note = _TASK_NOTES[task.kind].format(
            threshold=task.options.get("threshold", 0.5)
        )
        return _CARD.format(
            tag=f"\n- {task.kind.replace('_', '-')}",
            title=f"{task.options.get('task', task.kind)}, by ELECTRA",
            training=" and fine-tuned",
            origin="",
            loaded=CLASSES[task.kind],
            body=(f"{note}\n\n" if note else "") + task.facts,
        )
    main, *others = model.towers
    casing = "lower-cased" if model.lower_case else "cased"
    if model.lower_case and not model.strip_accents:
        casing += ", accents kept"
    origin, training = "", []
    if "num_train_steps" in model.run.get("config", {}):
        training = recipe_lines(model.run)
    else:
        # Imported weights: the config is not a training recipe.
        read_from = model.run.get("imported", {}).get("format", model.format)
        origin = f"; the weights were read from the format `{read_from}`"
    scores = [(name, f"{x:.4g}") for name, x in sorted(model.scores.items())]
    parts = {
        "Model": [
            f"* {main}: {model.main.sizes}",
            *(f"* {x}, in `{x}/`: {model.towers[x].sizes}" for x in others),
            f"* text is {casing}; {len(model.vocabulary)} WordPiece tokens",
            f"* position embeddings are trained up to {model.trained_length} tokens",
        ],
        "Data": data_lines(model.run) or ["Unknown."],
        "Training": training,
        "Scores on held-out text": table(("score", "value"), scores),
        "Not in this folder": ["The state of the optimizer and the training data."],
    }
    return _CARD.format(
        tag="",
        title="ELECTRA",
        training="",
        origin=origin,
        loaded=CLASSES[main] if model.main.head else "ElectraModel",
        body=sections(parts),
    )
