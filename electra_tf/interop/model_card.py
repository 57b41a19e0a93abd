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
    "regression": "The logit is the number, on the scale of the training data.\n\n",
    "multilabel": "A text has the labels with a sigmoid of at least {threshold:g}.\n\n",
    "tagging": "The first piece of a word predicts its tag.\n\n",
}


def model_card(model: Imported) -> str:
    """Returns the card of a fine-tuned model, or of the main tower's folder."""
    if task := model.task:
        threshold = task.options.get("threshold", 0.5)
        note = _TASK_NOTES.get(task.kind, "").format(threshold=threshold)
        return _CARD.format(
            tag=f"\n- {task.kind.replace('_', '-')}",
            title=f"{task.options.get('task', task.kind)}, by ELECTRA",
            training=" and fine-tuned",
            origin="",
            loaded=CLASSES[task.kind],
            body=note + task.facts,
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
        "Data": data_lines(model.run),
        "Training": training,
        "Scores on held-out text": table(("score", "value"), scores),
    }
    return _CARD.format(
        tag="",
        title="ELECTRA",
        training="",
        origin=origin,
        loaded=CLASSES[main] if model.main.head else "ElectraModel",
        body=sections(parts),
    )
