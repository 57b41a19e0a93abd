"""What a fine-tuning run is: frozen dataclasses, standard library only.

The counterpart of `config.py`: every field is one flag of `run_finetuning.py`. Fields
that are None (or "preset") take the value of the task or of the recipe.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal


def _field(default: Any, help_text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_text})


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _is_range(values: tuple[str, ...]) -> bool:
    try:
        low, high = map(float, values)
    except ValueError:
        return False
    return -math.inf < low < high < math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneRunConfig:
    """Which task, from where, to where."""

    task: str = _field(
        "classification",
        "A GLUE task (cola, sst, mrpc, qqp, sts, mnli, qnli, rte, wnli); "
        "squad1, squad2; chunking, ner, pos, tagging; classification, multilabel or "
        "regression of your own table; or documentation, the embedded one.",
    )
    encoder: str = _field(
        "runs/tiny/encoder.keras",
        "Encoder to start from: an encoder.keras, or the folder that holds it.",
    )
    output_dir: str | None = _field(
        None, "Folder for everything the run leaves; default: runs/TASK."
    )
    overwrite: bool = _field(
        False, "Run although output_dir holds a finished run: replaces it."
    )
    seeds: int = _field(1, "How many runs, with seeds seed, seed + 1, ...")
    seed: int = _field(0, "First seed: of head, data order and dropout.")
    init: Literal["pretrained", "random"] = _field(
        "pretrained",
        "random: forget what the encoder has learned, to see what it was worth.",
    )
    mixed_precision: Literal["none", "bfloat16"] = _field(
        "none", "Compute dtype of training; scores and exports are float32."
    )
    distribution: Literal["none", "mirrored"] = _field(
        "none", "mirrored: train on all devices of this machine, a share of rows each."
    )
    eval_batch_size: int = _field(64, "Rows per batch when predicting.")
    log_steps: int = _field(50, "Steps between progress lines.")
    cache_dir: str | None = _field(
        None, "Where tokenized data is kept; default: output_dir/cache, '': nowhere."
    )
    export_saved_model: bool = _field(True, "Write saved_model/, for serving.")
    export_litert: bool = _field(False, "Also write model.tflite (token ids in).")
    export_onnx: bool = _field(False, "Also write model.onnx (token ids in).")

    def __post_init__(self):
        for name in ("seeds", "eval_batch_size", "log_steps"):
            value = getattr(self, name)
            _require(value >= 1, f"--{name} must be at least 1, got {value}.")
        # As in pretraining; a seed too many would fail after all others have run.
        _require(
            0 <= self.seed <= 2**31 - self.seeds,
            f"--seed={self.seed} with --seeds={self.seeds}: all seeds must be in "
            "[0, 2147483647]; begin with another one.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneDataConfig:
    """Which examples."""

    data_dir: str | None = _field(
        None,
        "Folder of a GLUE task in the benchmark's layout, or tfds:FOLDER for data "
        "prepared by TensorFlow Datasets; for squad1 and squad2 the folder of the JSON "
        "files, for tagging of files named after train, dev and test.",
    )
    train: str | None = _field(
        None,
        "Your training table: .csv, .tsv or .jsonl. For tagging also CoNLL columns and "
        ".conllu, for squad1 and squad2 .json, several with commas between them.",
    )
    eval: str | None = _field(
        None, "Your table to evaluate on; default: a tenth of --train is held out."
    )
    test: str | None = _field(None, "Your table to predict; needs no labels.")
    text: tuple[str, ...] = _field(
        ("text",), "Column with the text, or two columns of a pair: title,body."
    )
    label: tuple[str, ...] = _field(
        ("label",),
        "Column with the label; for multilabel also several columns of 0 and 1.",
    )
    label_separator: str = _field("|", "Between several labels in one cell.")
    label_range: tuple[str, ...] = _field(
        (), "Smallest and largest label of a regression; default: of --train."
    )
    class_weights: Literal["none", "balanced"] = _field(
        "none", "balanced: rare classes count as much as frequent ones."
    )
    train_fraction: float = _field(1.0, "Share of the training examples to use.")
    max_seq_length: int | None = _field(
        None, "Most tokens of an example; longer ones are cut. Default: of the task."
    )
    pair_doubling: bool = _field(
        True, "Train MRPC and STS-B in both orders, as the original code."
    )
    length_bucketing: bool = _field(
        True, "Batches of similar length; off: all rows padded to the full length."
    )
    vocab_file: str | None = _field(
        None, "Vocabulary of the encoder; default: vocab.txt beside it."
    )
    lower_case: bool | None = _field(
        None, "Lower-case the text; default: as config.json beside the encoder says."
    )
    strip_accents: bool | None = _field(None, "Strip accents; default likewise.")

    def __post_init__(self):
        _require(
            0 < self.train_fraction <= 1,
            f"--train_fraction must be in (0, 1], got {self.train_fraction}.",
        )
        _require(
            self.max_seq_length is None or self.max_seq_length >= 8,
            f"--max_seq_length must be at least 8, got {self.max_seq_length}.",
        )
        _require(
            len(self.text) in (1, 2),
            f"--text must name one column, or two for pairs; got "
            f"{', '.join(self.text) or 'none'}.",
        )
        _require(
            not self.label_range or _is_range(self.label_range),
            "--label_range must be two numbers, the smaller one first, such as 0,5; "
            f"got {','.join(self.label_range)}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingConfig:
    """Options of tagging: one tag per word."""

    word_column: str | None = _field(
        None,
        "Column of the words: its number from 0 (negative: from the end), or its name "
        "in CoNLL-U and tables; default: of the task.",
    )
    tag_column: str | None = _field(None, "Column of the tags, likewise.")
    tag_metric: Literal["task", "f1", "accuracy"] = _field(
        "task", "f1: of the spans of B- and I- (E-, S-) tags. accuracy: of words."
    )
    tag_encoding: Literal["given", "bioes"] = _field(
        "given", "bioes: learn spans as BIOES, as the original code, answer in IOB2."
    )
    long_sentences: Literal["split", "truncate"] = _field(
        "split", "What becomes of the words that do not fit into max_seq_length."
    )
    unknown_tags: Literal["error", "allow"] = _field(
        "error", "Tags in evaluation data that the training data lacks: stop, or wrong."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnsweringConfig:
    """Options of question answering."""

    max_query_length: int = _field(64, "Most word pieces of a question.")
    doc_stride: int = _field(
        128, "Word pieces between the beginnings of neighboring windows of a paragraph."
    )
    max_answer_length: int = _field(30, "Most word pieces of an answer.")
    n_best_size: int = _field(20, "Candidates per question in nbest_predictions.json.")
    beam_size: int = _field(20, "Starts, and ends per start, that are looked at.")
    answerability: Literal["task", "on", "off"] = _field(
        "task",
        "Whether the model says if there is an answer; default: for squad2. The "
        "original code has it on for squad1 too.",
    )
    answerable_weight: float = _field(0.5, "Weight of the loss of answerability.")
    null_threshold: float = _field(
        -2.75, "Logit of no answer above which none is given."
    )

    def __post_init__(self):
        for name in (
            "max_query_length",
            "doc_stride",
            "max_answer_length",
            "n_best_size",
            "beam_size",
        ):
            value = getattr(self, name)
            _require(value >= 1, f"--{name} must be at least 1, got {value}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """How the weights are trained."""

    preset: Literal["paper", "code"] = _field(
        "paper",
        "paper: Table 7 (rate 3e-4 small, 1e-4 base, 5e-5 large; no weight decay; "
        "mean loss; exact layer-wise decay). code: the original code's defaults (rate "
        "1e-4, 5e-5 large; weight decay 0.01; summed loss; one power more).",
    )
    learning_rate: float | None = _field(None, "Peak; default: preset and size.")
    weight_decay: float | None = _field(None, "Decoupled; default: preset.")
    layerwise_decay: float | None = _field(
        None, "Factor of the rate per layer; default: 0.8, for large 0.9; 1: off."
    )
    layerwise_exponent: Literal["preset", "exact", "original"] = _field(
        "preset", "original: the code's, one power more than the paper's."
    )
    loss_reduction: Literal["preset", "sum", "mean"] = _field(
        "preset",
        "Over the batch, before the clip to norm 1: sum clips nearly every step.",
    )
    epochs: float | None = _field(
        None, "Passes over the data; default: of the task (10 for RTE and STS-B, 3)."
    )
    train_batch_size: int = _field(32, "Rows per update.")
    warmup_proportion: float = _field(0.1, "Share of the steps that warm up.")
    lr_schedule: Literal["product", "sequential"] = _field(
        "product", "As in pretraining: warm-up times decay, or one after the other."
    )
    clip_norm: float = _field(1.0, "Joint norm that gradients are clipped to.")
    head_dropout: float = _field(0.1, "Dropout before the linear layer.")
    early_stopping_patience: int = _field(
        0, "Stop after so many epochs without a better main score; 0: never."
    )
    keep: Literal["last", "best"] = _field(
        "last",
        "Weights to keep: of the last epoch, or of the one with the best main score "
        "on the evaluation data (that score is then optimistic).",
    )

    def __post_init__(self):
        for name in ("learning_rate", "epochs", "clip_norm", "train_batch_size"):
            value = getattr(self, name)
            _require(
                value is None or value > 0, f"--{name} must be positive, got {value}."
            )
        _require(
            0 <= self.warmup_proportion < 1,
            f"--warmup_proportion must be in [0, 1), got {self.warmup_proportion}.",
        )
        _require(
            self.early_stopping_patience >= 0,
            "--early_stopping_patience must not be negative, got "
            f"{self.early_stopping_patience}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """One fine-tuning run, of one or several seeds."""

    run: FinetuneRunConfig = dataclasses.field(default_factory=FinetuneRunConfig)
    data: FinetuneDataConfig = dataclasses.field(default_factory=FinetuneDataConfig)
    tagging: TaggingConfig = dataclasses.field(default_factory=TaggingConfig)
    question_answering: QuestionAnsweringConfig = dataclasses.field(
        default_factory=QuestionAnsweringConfig
    )
    recipe: RecipeConfig = dataclasses.field(default_factory=RecipeConfig)

    @property
    def output_dir(self) -> str:
        """Where the run leaves everything."""
        return self.run.output_dir or f"runs/{self.run.task}"

    @property
    def cache_dir(self) -> str | None:
        """Where tokenized data is kept; None for nowhere."""
        if self.run.cache_dir is None:
            return f"{self.output_dir}/cache"
        return self.run.cache_dir or None
