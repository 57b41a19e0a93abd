"""What of a pretraining run is not the system: where, how long, on what text.

Each dataclass is one group of ``PretrainConfig`` (``config.py``), each field one flag.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from electra_tf.config_fields import (
    NOT_NEGATIVE,
    SEED,
    Allowed,
    at_least,
    check_numbers,
    field,
    require,
)

_HELD_OUT = Allowed("be in (0, 0.5)", lambda value: 0 < value < 0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where, how long, on what."""

    model_dir: str = field(
        "runs/electra", "Folder for everything the run leaves.", resumable=True
    )
    num_train_steps: int = field(
        1_000_000, "Optimizer updates in total.", allowed=at_least(1)
    )
    train_batch_size: int = field(
        128,
        "Rows per update, over all replicas and micro-batches.",
        allowed=at_least(1),
    )
    gradient_accumulation_steps: int = field(
        1,
        "Micro-batches per update: the memory of one, the result of all.",
        allowed=at_least(1),
    )
    eval_batch_size: int = field(
        128, "Rows per evaluation batch.", resumable=True, allowed=at_least(1)
    )
    eval_steps: int = field(
        10_000,
        "Evaluate on the held-out text every so many steps; 0: only at the end.",
        resumable=True,
        allowed=NOT_NEGATIVE,
    )
    max_eval_batches: int = field(
        100,
        "Batches of held-out text per evaluation; 0: all.",
        resumable=True,
        allowed=NOT_NEGATIVE,
    )
    save_checkpoint_steps: int = field(
        1000, "Steps between checkpoints.", resumable=True, allowed=at_least(1)
    )
    keep_checkpoints: int = field(
        5,
        "Checkpoints to keep; older ones are deleted.",
        resumable=True,
        allowed=at_least(1),
    )
    log_steps: int = field(
        100,
        "Steps between log lines and logged points.",
        resumable=True,
        allowed=at_least(1),
    )
    seed: int = field(
        0, "Of weights, data order, masks, samples and dropout.", allowed=SEED
    )
    init_from: str | None = field(
        None,
        "Start from the weights (not the optimizer) of this folder, and with its "
        "vocabulary: a model_dir, one of its checkpoints, or what electra_tf.convert "
        "has written.",
        resumable=True,
    )
    distribution: Literal["none", "mirrored", "multi_worker", "tpu"] = field(
        "none",
        "tf.distribute strategy: none (one device), mirrored (all GPUs of this "
        "machine), multi_worker (TF_CONFIG), tpu.",
        resumable=True,
    )
    tpu: str = field("", "TPU name or address; empty: the local one.", resumable=True)
    mixed_precision: Literal["none", "bfloat16", "float16"] = field(
        "none", "Compute dtype; weights stay float32."
    )
    jit_compile: bool = field(False, "Compile the whole training step with XLA.")
    steps_per_execution: int = field(
        1,
        "Steps per call into the runtime; logs and checkpoints come at multiples, and "
        "at the end.",
        resumable=True,
        allowed=at_least(1),
    )
    overwrite: bool = field(
        False,
        "Start anew although model_dir holds a run: deletes that run.",
        resumable=True,
    )
    dry_run: bool = field(
        False,
        "Build everything, print sizes, FLOPs, memory and data statistics, stop.",
        resumable=True,
    )

    def __post_init__(self):
        check_numbers(self)
        require(
            self.train_batch_size % self.gradient_accumulation_steps == 0,
            f"--train_batch_size={self.train_batch_size} is not divisible by "
            f"--gradient_accumulation_steps={self.gradient_accumulation_steps}.",
        )
        require(
            not (
                self.jit_compile and self.distribution in ("mirrored", "multi_worker")
            ),
            "--jit_compile cannot be combined with "
            f"--distribution={self.distribution}: TensorFlow cannot compile a step "
            "that spans devices. Drop one of the two.",
        )
        require(
            self.steps_per_execution == 1
            or self.distribution not in ("mirrored", "multi_worker"),
            f"--steps_per_execution={self.steps_per_execution} cannot be combined with "
            f"--distribution={self.distribution}: Keras 3.15 cannot loop over steps "
            "that span devices. Use 1.",
        )
        require(
            not (self.mixed_precision == "float16" and self.distribution != "none"),
            "--mixed_precision=float16 works on one device only (Keras's loss "
            "scaling looks at one replica's gradients): use bfloat16.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Text, vocabulary, records."""

    corpus: tuple[str, ...] = field(
        ("installed",),
        "Text: files, folders, globs (.txt, .gz), tfds:NAME, or 'installed', the "
        "documentation of the Python packages on this machine.",
        resumable=True,
    )
    tfds_data_dir: str | None = field(
        None, "Where TensorFlow Datasets looks for prepared data.", resumable=True
    )
    vocab_file: str | None = field(
        None,
        "WordPiece vocabulary, one token per line; default: trained on the corpus.",
        resumable=True,
    )
    vocab_size: int = field(
        30522, "Entries of a vocabulary that is trained.", allowed=at_least(1)
    )
    records: tuple[str, ...] = field(
        (),
        "TFRecord files, globs or folders made earlier; the corpus is then not read.",
        resumable=True,
    )
    eval_records: tuple[str, ...] = field(
        (),
        "Held-out TFRecord files; default: eval-* beside the training records.",
        resumable=True,
    )
    data_dir: str | None = field(
        None,
        "Where vocabulary and records are kept; default: model_dir/data.",
        resumable=True,
    )
    lower_case: bool = field(True, "Lower-case the text.")
    strip_accents: bool = field(True, "Strip accents (only with lower_case).")
    blank_lines_separate: bool = field(True, "A blank line ends a document.")
    segmenting: Literal["carry", "original"] = field(
        "carry",
        "How documents become examples: carry overflow on to the next one, or discard "
        "it as the original code.",
    )
    max_seq_length: int = field(128, "Tokens per example.", allowed=at_least(8))
    eval_fraction: float = field(
        0.01, "Share of documents held out.", allowed=_HELD_OUT
    )
    num_processes: int = field(
        0,
        "Processes that build records; 0: one per core.",
        resumable=True,
        allowed=NOT_NEGATIVE,
    )
    shuffle_buffer: int = field(
        100_000, "Records shuffled together.", allowed=at_least(1)
    )

    def __post_init__(self):
        check_numbers(self)
