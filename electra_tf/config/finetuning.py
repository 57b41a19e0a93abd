"""Flags of fine-tuning; None stands for the default of the task or the recipe."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from electra_tf.config import fields
from electra_tf.config.fields import Group, field, list_field, require, resumable_field
from electra_tf.errors import UserError, did_you_mean, explained

_tagging_field = functools.partial(field, only_with="task=chunking|ner|pos|tagging")
_qa_field = functools.partial(field, only_with="task=squad1|squad2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneRunConfig(Group):
    """Task, encoder and output."""

    task: str = field(
        "A GLUE task (cola, sst, mrpc, qqp, sts, mnli, qnli, rte, wnli); "
        "squad1, squad2; chunking, ner, pos, tagging; or classification, multilabel "
        "or regression of your own table.",
        "classification",
    )
    encoder: str = resumable_field(
        "Encoder to start from: an encoder.keras or its folder, the folder of a "
        "fine-tuning run, or mini, the small encoder in the package.",
        "runs/tiny/encoder.keras",
    )
    output_dir: str | None = resumable_field("Output folder; default: runs/TASK.")
    overwrite: bool = resumable_field(
        "Delete the run in output_dir, finished or interrupted, and start again.", False
    )
    seeds: int = field("Number of runs, with seeds seed, seed + 1, ...", 1, min=1)
    seed: int = field("First seed: head, data, dropout.", 0, min=0, max=fields.MAX_SEED)
    init: Literal["pretrained", "random"] = field(
        "random: random weights, to measure the effect of pretraining.", "pretrained"
    )
    frozen: bool = field(
        "Train a linear layer on a learned mixture of the frozen encoder's layers; "
        "writes results.json and no model.",
        False,
    )
    mixed_precision: Literal["none", "bfloat16"] = field(
        "Compute dtype of training; scores are always float32.", "none"
    )
    distribution: Literal["none", "mirrored"] = field(
        "mirrored: train on all devices of this machine, which share the rows.", "none"
    )
    eval_batch_size: int = resumable_field("Rows per batch when predicting.", 64, min=1)
    log_steps: int = resumable_field("Steps between progress lines.", 50, min=1)
    callback: tuple[str, ...] = fields.callbacks()
    export_saved_model: bool = resumable_field("Write saved_model/, for serving.", True)
    export_precision: Literal["float32", "bfloat16", "int8"] = resumable_field(
        "Precision of exports. bfloat16: the encoder of saved_model/, in half the "
        "memory, faster on processors that support it. int8: model.tflite and "
        "model.onnx, in a quarter of the size and faster.",
        "float32",
    )
    max_score_loss: float = resumable_field(
        "Maximum loss of an int8 file against float32, in points of the main score on "
        "the evaluation data; a larger loss is an error.",
        0.4,
        min=0,
        only_with="export_precision=int8",
    )
    export_litert: bool = resumable_field(
        "Also write model.tflite (token ids in).", False, only_with="!frozen"
    )
    export_onnx: bool = resumable_field(
        "Also write model.onnx (token ids in).", False, only_with="!frozen"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.export_precision != "int8" or self.export_litert or self.export_onnx,
            "--export_precision=int8 needs --export_litert or --export_onnx.",
        )
        require(
            self.export_precision != "bfloat16" or self.export_saved_model,
            "--export_precision=bfloat16 is for saved_model/: leave out "
            "--noexport_saved_model.",
        )
        require(
            self.seed + self.seeds - 1 <= fields.MAX_SEED,
            f"--seed={self.seed} with --seeds={self.seeds}: all seeds must be at most "
            f"{fields.MAX_SEED}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneDataConfig(Group):
    """Training, evaluation and test data."""

    data_dir: str | None = resumable_field(
        "Folder of a GLUE task in the benchmark's layout, or tfds:FOLDER for data "
        "prepared by TensorFlow Datasets; for squad1 and squad2 the folder of the JSON "
        "files, for tagging of files named after train, dev and test."
    )
    train: str | None = resumable_field(
        "Your training table: .csv, .tsv or .jsonl. For tagging .jsonl, .conllu or "
        "CoNLL columns, for squad1 and squad2 .json."
    )
    eval: str | None = resumable_field(
        "Your evaluation table; default: a held-out tenth of --train."
    )
    test: str | None = resumable_field(
        "Your table to predict; needs no labels.", only_with="!frozen"
    )
    text: tuple[str, ...] = field(
        "Column with the text, or two columns of a pair: title,body.", ("text",)
    )
    label: tuple[str, ...] = field(
        "Column with the label; multilabel: also columns of 0 and 1.", ("label",)
    )
    label_separator: str = field("Separator of labels in one cell.", "|")
    threshold: float | None = field(
        "Minimum probability of a predicted label, stored with the model; default: "
        "the best for the main score on a tenth of the training data.",
        above=0,
        max=1,
        only_with="task=multilabel",
    )
    train_fraction: float = field("Share of the training data.", 1.0, above=0, max=1)
    max_seq_length: int | None = field(
        "Maximum tokens; longer ones are cut. Default: by the task.", min=8
    )
    long_texts: Literal["cut", "windows"] = field(
        "Single texts beyond max_seq_length, in training and predictions. cut: keep "
        "the beginning. windows: split into rows and average their logits.",
        "cut",
    )
    pair_doubling: bool = field(
        "Train MRPC and STS-B in both orders.", True, only_with="task=mrpc|sts"
    )
    vocab_file: str | None = resumable_field(
        "Vocabulary; default: vocab.txt by the model."
    )
    lower_case: bool | None = field("Lower-case; default: config.json of the model.")
    strip_accents: bool | None = field(
        "Strip accents; default: config.json of the model."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.text) in (1, 2),
            f"--text names {len(self.text)} columns ({', '.join(self.text)}): give "
            "one, or two for pairs.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingConfig(Group):
    """Tagging: one tag per word."""

    word_column: str | None = _tagging_field(
        "Column of the words: its number from 0 (negative: from the end), or its name "
        "in CoNLL-U and JSON Lines; default: by the task."
    )
    tag_column: str | None = _tagging_field("Column of the tags, as for word_column.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnsweringConfig(Group):
    """Question answering."""

    max_query_length: int = _qa_field("Maximum word pieces of a question.", 64, min=1)
    doc_stride: int = _qa_field("Word pieces between starts of windows.", 128, min=1)
    max_answer_length: int = _qa_field("Maximum word pieces of an answer.", 30, min=1)
    span_head: Literal["joint", "independent"] = _qa_field(
        "joint: the end of an answer is predicted given its start, as in the "
        "original. independent: one linear layer each, as in BERT (electra-tf "
        "convert).",
        "joint",
    )
    null_threshold: float = field(
        'Logit of "no answer" above which a question counts as unanswerable.',
        -2.75,
        only_with="task=squad2",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig(Group):
    """Training hyperparameters."""

    preset: Literal["paper", "code"] = field(
        "paper: Table 7 (rate 3e-4 small, 1e-4 base, 5e-5 large; no weight decay; "
        "mean loss; exact layer-wise decay). code: the original code's defaults (rate "
        "1e-4, 5e-5 large; weight decay 0.01; summed loss; one power more).",
        "paper",
    )
    learning_rate: float | None = field("Peak rate; default: by preset, size.", above=0)
    weight_decay: float | None = field("Decoupled decay; default: by preset.", min=0)
    layerwise_decay: float | None = field(
        "Factor of the rate per layer; default: 0.8, large 0.9; 1: off.", above=0, max=1
    )
    epochs: float | None = field(
        "Passes over the data; default: 3; RTE and STS-B 10, SQuAD 2.", above=0
    )
    train_batch_size: int = field("Rows per update.", 32, min=1)
    warmup_proportion: float = field(
        "Share of the steps that warm up.", 0.1, min=0, below=1
    )
    clip_norm: float = field(
        "Maximum global gradient norm.", 1.0, above=0, max=math.inf
    )
    adam_bias_correction: bool = field(
        "Bias correction (Kingma and Ba's epsilon hat), unlike the original; without "
        "it the first updates are larger.",
        False,
    )
    dropout: float = field(
        "Dropout of the encoder, not that of pretraining.", 0.1, min=0, below=1
    )
    attention_dropout: float = field(
        "Dropout of attention, not that of pretraining.", 0.1, min=0, below=1
    )
    head_dropout: float = field("Dropout before the linear layer.", 0.1, min=0, below=1)
    pooling: Literal["cls", "mean", "layers"] = field(
        "Input of the linear layer of a text task. cls: [CLS] of the last layer, as "
        "the original; mean: mean of all tokens; layers: mean of a learned mixture of"
        " all layers. Only cls converts to transformers.",
        "cls",
    )
    head_init: Literal["random", "probe"] = field(
        "random: as the original; probe: trained first on the frozen encoder.", "random"
    )
    lora_rank: int | None = field(
        "Train low-rank factors of this rank at the kernels of the blocks (LoRA), and "
        "the head; adapter.lora.h5 holds them. Default: train all weights.",
        min=1,
        only_with="init=pretrained",
    )


# Flags that ``--search`` takes.
_NAMES = (
    *("learning_rate", "epochs", "dropout", "attention_dropout", "layerwise_decay"),
    *("weight_decay", "warmup_proportion"),
)


def parse_axis(text: str) -> tuple[str, tuple[float, ...], bool]:
    """Parses NAME, NAME=LOW:HIGH or NAME=VALUE/VALUE/...

    Returns name, numbers (empty: the default range), and whether they are a range.
    """
    name, equals, given = text.partition("=")
    require(
        name in _NAMES,
        f"--search={text}: {name} cannot be searched.{did_you_mean(name, _NAMES)} "
        f"Allowed are {', '.join(_NAMES)}.",
    )
    if not equals:
        return name, (), True
    is_range = ":" in given
    try:
        numbers = tuple(map(float, given.split(":" if is_range else "/")))
    except ValueError:
        numbers = ()
    is_ascending = len(numbers) == 2 and numbers[0] < numbers[1]
    is_list = len({*numbers}) == len(numbers) > 1
    require(
        is_ascending if is_range else is_list,
        f"--search={text}: {name}= needs a range with the smaller end first, such as "
        "1e-4:1e-3, or several values, such as 2/4/8.",
    )
    return name, numbers, is_range


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(Group):
    """Hyperparameter search."""

    search: tuple[str, ...] = list_field(
        "Hyperparameters to search, such as learning_rate,epochs, each optionally with "
        "a range (learning_rate=1e-4:1e-3) or values (epochs=2/4/8); also dropout, "
        "attention_dropout, layerwise_decay, weight_decay and warmup_proportion. A "
        "held-out fifth of the training data selects the best values, which then train "
        "on all of it. Needs Optuna."
    )
    search_trials: int = resumable_field(
        "Number of trials, the first with the given flags if they are in range. The "
        "same command resumes a killed search.",
        20,
        min=2,
        only_with="search",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [name for name, _, _ in map(parse_axis, self.search)]
        for name in names:
            require(names.count(name) == 1, f"--search names {name} twice.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    r"""Fine-tunes an encoder for a task, scores it, and exports it for serving.

    Examples:
      # The shipped sample, after pretraining with configs/tiny.cfg.
      python -m electra_tf finetune --flagfile=configs/tasks/tiny.cfg

      # A GLUE task with five seeds.
      python -m electra_tf finetune --flagfile=configs/tasks/cola.cfg \
          --data_dir=glue/CoLA --encoder=runs/small/encoder.keras --seeds=5

      # Your own table: one text column, or two for pairs.
      python -m electra_tf finetune --task=classification --train=my.csv \
          --eval=my_dev.csv --text=title,body --label=topic --encoder=mini

    Writes model.keras, saved_model/, labels.txt, predictions.tsv, submission files,
    curves.png, metrics.jsonl, results.json and config.json to --output_dir.
    Predict with: python -m electra_tf predict --model=OUTPUT_DIR "a text".
    The same command resumes an interrupted run at its last finished epoch. Exit codes:
    0 done, 1 error, 75 stopped by SIGTERM or SIGINT.
    """

    # Names of the fields that the user has set, of a config from the command line.
    given: ClassVar[frozenset[str]] = frozenset()
    # Removed flags of earlier versions with their defaults.
    REMOVED: ClassVar[dict[str, Any]] = {
        "answerability": "task",
        "answerable_weight": 0.5,
        "beam_size": 20,
        "early_stopping_patience": 0,
        "keep": "last",
        "class_weights": "none",
        "label_range": [],
        "layerwise_exponent": "preset",
        "length_bucketing": True,
        "long_sentences": "split",
        "loss_reduction": "preset",
        "lr_schedule": "product",
        "n_best_size": 20,
        "tag_encoding": "given",
        "tag_metric": "task",
        "unknown_tags": "error",
    }

    run: FinetuneRunConfig = dataclasses.field(default_factory=FinetuneRunConfig)
    data: FinetuneDataConfig = dataclasses.field(default_factory=FinetuneDataConfig)
    tagging: TaggingConfig = dataclasses.field(default_factory=TaggingConfig)
    question_answering: QuestionAnsweringConfig = dataclasses.field(
        default_factory=QuestionAnsweringConfig
    )
    recipe: RecipeConfig = dataclasses.field(default_factory=RecipeConfig)
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        require(
            not (self.search.search and self.run.frozen),
            "--search trains the encoder, and --frozen does not: leave one out.",
        )
        for name, numbers, _ in map(parse_axis, self.search.search):
            for number in numbers:
                with explained("--search", UserError):
                    self.trying({name: number})

    def trying(self, values: Mapping[str, Any]) -> FinetuneConfig:
        """Returns the config with these values and no search."""
        return fields.from_flat(
            fields.to_flat(self) | {"search": (), **values}, FinetuneConfig
        )
