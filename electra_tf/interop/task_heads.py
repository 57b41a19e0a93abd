"""Converts task heads between fine-tuning folders and ``transformers``.

Letters: D hidden size, C outputs.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import files
from electra_tf.config.fields import CASING
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError, explained
from electra_tf.folders import models
from electra_tf.folders.cards import task_facts
from electra_tf.folders.finetuning import CARD, MODEL, FinetuningFolder
from electra_tf.interop import networks
from electra_tf.interop.names import HUGGING_FACE, Row, Tensors, scatter
from electra_tf.interop.networks import Arrays, Imported, Source, TaskHead
from electra_tf.serving import export
from electra_tf.tasks import saved
from electra_tf.tasks.base import Task
from electra_tf.tasks.heads import (
    ClassificationHead,
    HiddenClassificationHead,
    TaskModel,
)
from electra_tf.tasks.span_head import IndependentSpanHead, SpanHead

OUTPUTS = (
    *("task.json", "labels.txt", MODEL, "saved_model/saved_model.pb"),
    *("saved_model/fingerprint.pb", "saved_model/variables/variables.index"),
    "saved_model/variables/variables.data-00000-of-00001",
)
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
# Kind of task -> problem_type of transformers.
PROBLEMS = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}
# One dense layer in ``TaskHead``, two in ``IndependentSpanHead``.
_STARTS_AND_ENDS = [
    Row("output_kernel", ("start_kernel", "end_kernel")),
    Row("output_bias", ("start_bias", "end_bias")),
]


def read(source: Source) -> Imported:
    """Reads a fine-tuned model, or with ``--only=discriminator`` its encoder alone."""
    folder = FinetuningFolder(Path(source.path))
    about, model = folder.about(), folder.load()
    tower = networks.encoder_tower(model.encoder, str(folder.path / MODEL))
    task = None
    if source.only is None:
        task = TaskHead(
            kind=about["kind"],
            labels=tuple(about.get("labels") or ()),
            arrays=_arrays(model.head, folder.path / MODEL),
            dropout=getattr(model.head, "dropout", 0.0),
            options=about,
        )
    return Imported(
        format="electra_tf",
        source=source.path,
        **source.selected({"discriminator": tower}),
        vocabulary=folder.vocabulary(),
        **{name: about[name] for name in CASING},
        trained_length=folder.trained_length,
        task=task,
        facts=task_facts(folder, folder.path / CARD) if task else "",
    )


def _arrays(head: Any, path: Path) -> Arrays:
    has_no_place = f"{path} cannot be converted: transformers does not support"
    if isinstance(head, ClassificationHead) and head.pooling != "cls":
        raise UserError(
            f"{has_no_place} --pooling={head.pooling}: fine-tune with --pooling=cls."
        )
    arrays = networks.values(networks.head_variables(head))
    if isinstance(head, SpanHead):
        if not isinstance(head, IndependentSpanHead) or head.answerability:
            raise UserError(
                f"{has_no_place} joint span heads and no-answer logits: fine-tune with "
                "--task=squad1 --span_head=independent."
            )
        rows = _STARTS_AND_ENDS
        return {row.ours: row.join(arrays[n] for n in row.theirs) for row in rows}
    if not isinstance(head, ClassificationHead):
        raise UserError(f"{has_no_place} a head of the class {type(head).__name__}.")
    return arrays


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes a fine-tuning folder with the Keras model and the SavedModel."""
    length = model.task.options.get("max_seq_length") or model.trained_length
    positions = model.main.sizes.max_positions
    if not 0 < length <= positions:
        raise UserError(
            f"{model.source}: max_seq_length is {length}, and the model has "
            f"{positions} positions."
        )
    with explained(model.source):
        task = _task(model.task, length)
    casing = {"lower_case": model.lower_case, "strip_accents": model.strip_accents}
    tokenizer = WordPiece(model.vocabulary, **casing)
    task_model = _task_model(model, task)
    home = FinetuningFolder(folder)
    settings = {"imported": {"format": model.format, "source": model.source}}
    home.begin(task, tokenizer, length, settings, model.trained_length)
    models.save(task_model, folder / MODEL)
    export.export_saved_model(
        task_model, task, tokenizer, str(folder / "saved_model"), length
    )
    return ()


def _task(head: TaskHead, length: int) -> Task:
    options = {name: x for name, x in head.options.items() if x is not None}
    about = {
        "task": head.kind,
        "label_range": [0.0, 1.0],
        "max_query_length": min(64, length // 2 - 4),
        "dropout": head.dropout,
        **options,
        "kind": head.kind,
        "labels": list(head.labels),
        "span_head": "independent",
    }
    if head.kind == "tagging" and "O" not in head.labels:
        # Tags without spans, such as parts of speech.
        about.setdefault("main_metric", "accuracy")
    return saved.from_json(about)


def _task_model(model: Imported, task: Task) -> TaskModel:
    encoder = networks.models(model)["encoder"]
    arrays = model.task.arrays
    if "hidden_kernel" in arrays:
        head = HiddenClassificationHead(
            encoder.hidden_size,
            task.num_outputs,
            dropout=task.dropout,
            dtype="float32",
            name="classification_head",
        )
    else:
        head = task.head(encoder)
    built = TaskModel(encoder, head, name=re.sub(r"\W", "_", task.name))
    if model.task.kind == "question_answering":
        arrays = scatter(_STARTS_AND_ENDS, arrays)
    networks.assign(networks.head_variables(head), arrays)
    return built


_CONFIG = {
    "id2label": dict[str, str] | None,
    "problem_type": str | None,
    "classifier_dropout": float | None,
    "electra_tf": (
        None,
        {"label_range": tuple[float, float] | None, "max_seq_length": int | None},
    ),
}


def _rows(kind: str, width: int, outputs: int) -> list[Row]:
    """Returns the rows of a head [D, C] in transformers."""
    linear = {"tagging": "classifier", "question_answering": "qa_outputs"}
    if kind in linear:
        return HUGGING_FACE.dense("output", (width, outputs), linear[kind])
    return [
        *HUGGING_FACE.dense("hidden", (width, width), "classifier/dense"),
        *HUGGING_FACE.dense("output", (width, outputs), "classifier/out_proj"),
    ]


def of_hugging_face(
    tensors: Tensors, config: Mapping[str, Any], hidden_size: int, source: str
) -> TaskHead | None:
    """Reads the head of a transformers folder; returns None for an unknown head."""
    files.check_shape(config, _CONFIG, f"{source}/config.json is damaged")
    options, problem = config.get("electra_tf") or {}, config.get("problem_type")
    low, high = options.get("label_range") or (0.0, 1.0)
    if low >= high:
        raise UserError(f"{source}/config.json: label_range is {low} to {high}.")
    if "qa_outputs.weight" in tensors:
        kind, width = "question_answering", 2
    elif "classifier.out_proj.weight" in tensors:
        width = len(tensors.take("classifier.out_proj.weight"))
        kinds = {name: kind for kind, name in PROBLEMS.items()}
        default = "regression" if width == 1 else "classification"
        kind = kinds.get(problem or PROBLEMS[default])
        # Multi-label tasks may have one output; classification needs two.
        if kind not in (default, "multilabel"):
            raise UserError(
                f"{source}: problem_type {problem!r} does not fit {width} outputs; "
                f"known are {', '.join(kinds)}."
            )
    # Other classes use this name, too, for a linear layer over the whole text.
    elif "classifier.weight" in tensors and not (
        tensors.starting_with("sequence_")
        or re.search("Sequence|MultipleChoice", str(config.get("architectures")))
    ):
        kind, width = "tagging", len(tensors.take("classifier.weight"))
    else:
        return None
    arrays = tensors.read(_rows(kind, hidden_size, width))
    labels: tuple[str, ...] = ()
    if kind in ("classification", "multilabel", "tagging"):
        named = config.get("id2label") or {}
        labels = tuple(named.get(str(n), f"LABEL_{n}") for n in range(width))
        if len(set(labels)) < width or len(named) not in (0, width):
            raise UserError(
                f"{source}/config.json: id2label must name each of the {width} outputs "
                "once."
            )
    if kind == "regression":
        arrays["output_kernel"] = arrays["output_kernel"] / (high - low)
        arrays["output_bias"] = (arrays["output_bias"] - low) / (high - low)
    dropout = config.get("classifier_dropout")
    if dropout is None:
        dropout = config.get("hidden_dropout_prob", 0.1)
    if not 0 <= dropout < 1:
        raise UserError(
            f"{source}/config.json: classifier_dropout is {dropout}, not in [0, 1)."
        )
    return TaskHead(kind, labels, arrays, dropout, options)


def to_hugging_face(head: TaskHead, source: str) -> tuple[Arrays, dict[str, Any]]:
    """Returns the head's arrays and config.json entries for transformers."""
    arrays = dict(head.arrays)
    if head.kind == "regression":
        low, high = head.options["label_range"]
        arrays["output_kernel"] = arrays["output_kernel"] * (high - low)
        arrays["output_bias"] = arrays["output_bias"] * (high - low) + low
    if head.kind in PROBLEMS and "hidden_kernel" not in arrays:
        arrays = _through_gelu(arrays, source)
    labels = head.labels
    if head.kind in ("regression", "question_answering"):
        labels = tuple(f"LABEL_{n}" for n in range(len(arrays["output_bias"])))
    of_encoder = ("labels", "kind", "lower_case", "strip_accents", "vocabulary_sha256")
    options = {key: x for key, x in head.options.items() if key not in of_encoder}
    config = {
        "architectures": [CLASSES[head.kind]],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "classifier_dropout": head.dropout,
        # Settings without a counterpart in transformers, such as a threshold.
        "electra_tf": options,
    }
    if head.kind in PROBLEMS:
        config["problem_type"] = PROBLEMS[head.kind]
    return scatter(_rows(head.kind, *arrays["output_kernel"].shape), arrays), config


def _through_gelu(arrays: Arrays, source: str) -> Arrays:
    """Rewrites a linear layer [D, C] with a hidden GELU layer [D, D] before it.

    ``transformers`` requires the hidden layer. GELU(x) - GELU(-x) is x, so two units
    represent one logit. The other units have random weights and zero output weights.
    """
    kernel, bias = arrays["output_kernel"], arrays["output_bias"]
    width, outputs = kernel.shape
    if 2 * outputs > width:
        raise UserError(
            f"{source} has {outputs} classes, and ElectraForSequenceClassification "
            f"fits {width // 2}: convert the encoder alone (--only=discriminator)."
        )
    rest = np.random.default_rng(0).normal(0, 0.02, [width, width - 2 * outputs])
    reads = np.concatenate([np.eye(outputs), -np.eye(outputs)])
    reads = np.pad(reads, [[0, width - 2 * outputs], [0, 0]])
    return {
        "hidden_kernel": np.concatenate([kernel, -kernel, rest], 1).astype(np.float32),
        "hidden_bias": np.zeros([width], np.float32),
        "output_kernel": reads.astype(np.float32),
        "output_bias": bias,
    }
