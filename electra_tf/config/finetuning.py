"""Flags of fine-tuning; standard library only.

Fields with the value None take the default of the task or the recipe.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from electra_tf.config import fields
from electra_tf.config.fields import (
    CASING,
    MAX_SEED,
    Group,
    callbacks,
    field,
    require,
)
from electra_tf.config.search import parse_axis
from electra_tf.errors import UserError

_TAGGING = "task=chunking|ner|pos|tagging"
_QUESTIONS = "task=squad1|squad2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneRunConfig(Group):
    """Task, encoder and output."""

    task: str = field(
        "classification",
        "A GLUE task (cola, sst, mrpc, qqp, sts, mnli, qnli, rte, wnli); "
        "squad1, squad2; chunking, ner, pos, tagging; classification, multilabel or "
        "regression of your own table; or documentation, the embedded task.",
    )
    encoder: str = field(
        "runs/tiny/encoder.keras",
        "Encoder to start from: an encoder.keras or its folder, the folder of a "
        "fine-tuning run, or mini, the small encoder in the package.",
        resumable=True,
    )
    output_dir: str | None = field(
        None, "Output folder; default: runs/TASK.", resumable=True
    )
    overwrite: bool = field(
        False,
        "Delete the run in output_dir, finished or interrupted, and start again.",
        resumable=True,
    )
    seeds: int = field(1, "Number of runs, with seeds seed, seed + 1, ...", min=1)
    seed: int = field(
        0, "First seed; it sets head, data order and dropout.", min=0, max=MAX_SEED
    )
    init: Literal["pretrained", "random"] = field(
        "pretrained", "random: random weights, to measure the effect of pretraining."
    )
    frozen: bool = field(
        False,
        "Train a linear layer on a learned mixture of the states of all layers of the "
        "frozen encoder. Writes results.json and no model.",
    )
    mixed_precision: Literal["none", "bfloat16"] = field(
        "none", "Compute dtype of training; scores are always float32."
    )
    distribution: Literal["none", "mirrored"] = field(
        "none", "mirrored: train on all devices of this machine, which share the rows."
    )
    eval_batch_size: int = field(
        64, "Rows per batch when predicting.", min=1, resumable=True
    )
    log_steps: int = field(50, "Steps between progress lines.", min=1, resumable=True)
    callback: tuple[str, ...] = callbacks()
    export_saved_model: bool = field(
        True, "Write saved_model/, for serving.", resumable=True
    )
    export_precision: Literal["float32", "bfloat16", "int8"] = field(
        "float32",
        "Precision of exports. bfloat16: the encoder of saved_model/, in half the "
        "memory, faster on processors that support it. int8: model.tflite and "
        "model.onnx, in a quarter of the size and faster.",
        resumable=True,
    )
    max_score_loss: float = field(
        0.4,
        "Maximum loss of an int8 file against float32, in points of the main score on "
        "the evaluation data; a larger loss is an error.",
        min=0,
        resumable=True,
        only_with="export_precision=int8",
    )
    export_litert: bool = field(
        False, "Also write model.tflite (token ids in).", resumable=True
    )
    export_onnx: bool = field(
        False, "Also write model.onnx (token ids in).", resumable=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.export_precision != "int8" or self.export_litert or self.export_onnx,
            "--export_precision=int8 is for --export_litert and --export_onnx: add one "
            "of them.",
        )
        require(
            self.export_precision != "bfloat16" or self.export_saved_model,
            "--export_precision=bfloat16 is for saved_model/: leave out "
            "--noexport_saved_model.",
        )
        # Checked here: a seed out of range would fail after all others have run.
        require(
            0 <= self.seed <= 2**31 - self.seeds,
            f"--seed={self.seed} with --seeds={self.seeds}: all seeds must be in "
            "[0, 2147483647]; begin with another one.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneDataConfig(Group):
    """Training, evaluation and test data."""

    data_dir: str | None = field(
        None,
        "Folder of a GLUE task in the benchmark's layout, or tfds:FOLDER for data "
        "prepared by TensorFlow Datasets; for squad1 and squad2 the folder of the JSON "
        "files, for tagging of files named after train, dev and test.",
        resumable=True,
    )
    train: str | None = field(
        None,
        "Your training table: .csv, .tsv or .jsonl. For tagging also CoNLL columns and "
        ".conllu, for squad1 and squad2 .json; separate several files with commas.",
        resumable=True,
    )
    eval: str | None = field(
        None,
        "Your table to evaluate on; default: a tenth of --train is held out.",
        resumable=True,
    )
    test: str | None = field(
        None, "Your table to predict; needs no labels.", resumable=True
    )
    text: tuple[str, ...] = field(
        ("text",), "Column with the text, or two columns of a pair: title,body."
    )
    label: tuple[str, ...] = field(
        ("label",),
        "Column with the label; for multilabel also several columns of 0 and 1.",
    )
    label_separator: str = field("|", "Separator of labels in one cell.")
    threshold: float | None = field(
        None,
        "Minimum probability of a predicted label; default: the one with the best main "
        "score on a held-out tenth of the training data. Stored with the model.",
        above=0,
        max=1,
        only_with="task=multilabel",
    )
    class_weights: Literal["none", "balanced"] = field(
        "none", "balanced: rare classes count as much as frequent ones."
    )
    train_fraction: float = field(
        1.0, "Share of the training examples to use.", above=0, max=1
    )
    max_seq_length: int | None = field(
        None,
        "Maximum tokens of an example; longer ones are cut. Default: by the task.",
        min=8,
    )
    long_texts: Literal["cut", "windows"] = field(
        "cut",
        "Single texts beyond max_seq_length, in training and predictions. cut: keep "
        "the beginning. windows: split into rows and average their logits.",
    )
    pair_doubling: bool = field(
        True,
        "Train MRPC and STS-B in both orders, as the original code.",
        only_with="task=mrpc|sts",
    )
    vocab_file: str | None = field(
        None, "Vocabulary; default: vocab.txt beside the model.", resumable=True
    )
    lower_case: bool | None = field(
        None, "Lower-case the text; default: by config.json beside the model."
    )
    strip_accents: bool | None = field(
        None, "Strip accents; default: by config.json beside the model."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.text) in (1, 2),
            f"--text must name one column, or two for pairs; got "
            f"{', '.join(self.text) or 'none'}.",
        )

    @property
    def tokenization(self) -> dict[str, Any]:
        """Keyword arguments of a model folder's ``tokenizer``."""
        return {name: getattr(self, name) for name in ("vocab_file", *CASING)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingConfig(Group):
    """Tagging: one tag per word."""

    word_column: str | None = field(
        None,
        "Column of the words: its number from 0 (negative: from the end), or its name "
        "in CoNLL-U and tables; default: by the task.",
        only_with=_TAGGING,
    )
    tag_column: str | None = field(
        None, "Column of the tags, as for word_column.", only_with=_TAGGING
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnsweringConfig(Group):
    """Question answering."""

    max_query_length: int = field(
        64, "Maximum word pieces of a question.", min=1, only_with=_QUESTIONS
    )
    doc_stride: int = field(
        128,
        "Word pieces between the starts of neighboring windows of a paragraph.",
        min=1,
        only_with=_QUESTIONS,
    )
    max_answer_length: int = field(
        30, "Maximum word pieces of an answer.", min=1, only_with=_QUESTIONS
    )
    span_head: Literal["joint", "independent"] = field(
        "joint",
        "joint: the end of an answer is predicted given its start, as in the original "
        "(XLNet's head). independent: one linear layer each, as in BERT and "
        "transformers (electra-tf convert).",
        only_with=_QUESTIONS,
    )
    answerability: Literal["task", "on", "off"] = field(
        "task",
        "Whether the model predicts if a question has an answer. task: only for "
        "squad2; the original code does so for squad1, too.",
        only_with=_QUESTIONS,
    )
    null_threshold: float = field(
        -2.75,
        'Logit of "no answer" above which a question counts as unanswerable.',
        only_with=_QUESTIONS,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig(Group):
    """Training hyperparameters."""

    preset: Literal["paper", "code"] = field(
        "paper",
        "paper: Table 7 (rate 3e-4 small, 1e-4 base, 5e-5 large; no weight decay; "
        "mean loss; exact layer-wise decay). code: the original code's defaults (rate "
        "1e-4, 5e-5 large; weight decay 0.01; summed loss; one power more).",
    )
    learning_rate: float | None = field(
        None, "Peak learning rate; default: by preset and size.", above=0
    )
    weight_decay: float | None = field(
        None, "Decoupled weight decay; default: by preset.", min=0
    )
    layerwise_decay: float | None = field(
        None,
        "Factor of the rate per layer; default: 0.8, for large 0.9; 1: off.",
        above=0,
        max=1,
    )
    epochs: float | None = field(
        None,
        "Passes over the data; default: 3, for RTE and STS-B 10, for SQuAD 2.",
        above=0,
    )
    train_batch_size: int = field(32, "Rows per update.", min=1)
    warmup_proportion: float = field(
        0.1, "Share of the steps that warm up.", min=0, below=1
    )
    lr_schedule: Literal["product", "sequential"] = field(
        "product",
        "product: warm-up times decay; sequential: decay begins after the warm-up.",
    )
    clip_norm: float = field(
        1.0, "Maximum global norm of the gradients.", above=0, max=math.inf
    )
    adam_bias_correction: bool = field(
        False,
        "Bias-corrected moments; the original has none, and its first updates are "
        "larger. The correction leaves epsilon as it is (Kingma and Ba's epsilon hat).",
    )
    dropout: float = field(
        0.1, "Dropout of the encoder, independent of pretraining.", min=0, below=1
    )
    attention_dropout: float = field(
        0.1, "Dropout of attention probabilities in fine-tuning.", min=0, below=1
    )
    head_dropout: float = field(0.1, "Dropout before the linear layer.", min=0, below=1)
    pooling: Literal["cls", "mean", "layers"] = field(
        "cls",
        "Input of the linear layer of a text task. cls: [CLS] of the last layer, as "
        "the original and transformers (electra-tf convert); mean: mean of all tokens; "
        "layers: mean of a learned mixture of all layers.",
    )
    head_init: Literal["random", "probe"] = field(
        "random",
        "Initial linear layer. random: as the original; probe: trained to convergence "
        "on the states of the frozen encoder.",
    )
    lora_rank: int | None = field(
        None,
        "Train low-rank factors of this rank at the kernels of the blocks (LoRA), and "
        "the head; adapter.lora.h5 holds them. Default: train all weights.",
        min=1,
        only_with="init=pretrained",
    )
    early_stopping_patience: int = field(
        0, "Epochs without a better main score before an early stop; 0: never.", min=0
    )
    keep: Literal["last", "best"] = field(
        "last",
        "Weights to keep: of the last epoch, or of the one with the best main score "
        "on the evaluation data (that score is then optimistic).",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(Group):
    """Hyperparameter search."""

    search: tuple[str, ...] = field(
        (),
        "Hyperparameters to search, such as learning_rate,epochs, each optionally with "
        "a range (learning_rate=1e-4:1e-3) or values (epochs=2/4/8); also dropout, "
        "attention_dropout, head_dropout, layerwise_decay, weight_decay, "
        "warmup_proportion and seed. A held-out fifth of the training data selects the "
        "best values, which then train on all of it. Needs Optuna.",
    )
    search_trials: int = field(
        20,
        "Trials of --search, the first with the given flags if they are within the "
        "searched ranges. The same command resumes "
        "a killed search.",
        min=2,
        resumable=True,
        only_with="search",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [name for name, _, _ in self.parsed()]
        for name in names:
            require(names.count(name) == 1, f"--search names {name} twice.")

    def parsed(self) -> list[tuple[str, tuple[float, ...], bool]]:
        """Returns the flags of ``search`` as parsed by ``parse_axis``."""
        return [parse_axis(text) for text in self.search]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    r"""Fine-tunes an encoder for a task, scores it, and exports it for serving.

    Examples:
      # An embedded task, after pretraining with configs/tiny.cfg.
      python -m electra_tf finetune --flagfile=configs/tasks/tiny.cfg

      # A GLUE task with five seeds.
      python -m electra_tf finetune --flagfile=configs/tasks/cola.cfg \
          --data_dir=glue/CoLA --encoder=runs/small/encoder.keras --seeds=5

      # Your own table: one text column, or two for pairs.
      python -m electra_tf finetune --task=classification --train=my.csv \
          --eval=my_dev.csv --text=title,body --label=topic --encoder=mini

      # The same task without pretraining.
      python -m electra_tf finetune --flagfile=configs/tasks/tiny.cfg --init=random \
          --output_dir=runs/tiny_random

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
        "answerable_weight": 0.5,
        "beam_size": 20,
        "label_range": [],
        "layerwise_exponent": "preset",
        "length_bucketing": True,
        "long_sentences": "split",
        "loss_reduction": "preset",
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
            "--search trains the encoder and --frozen does not: leave one of them out.",
        )
        for name, numbers, _ in self.search.parsed():
            require(
                name != "seed"
                or (self.run.seeds == 1 and self.data.train_fraction == 1),
                "--search=seed selects one seed, which --train_fraction uses, too: "
                "leave --seeds and --train_fraction out.",
            )
            for number in numbers:
                try:
                    self.trying({name: number})
                except UserError as error:
                    raise UserError(f"--search: {error}") from error

    def trying(self, values: Mapping[str, float]) -> FinetuneConfig:
        """Returns the config of one trial: these values and no search."""
        flat = fields.to_flat(self) | {"search": ()} | dict(values)
        return fields.from_flat({**flat, "seed": int(flat["seed"])}, FinetuneConfig)
