"""What a fine-tuning run reads and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from electra_tf.finetune_config import FinetuneConfig
from electra_tf.tasks.base import Rows, Task
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.cache import cached_rows
from electra_tf.tasks.classification import nearly_equal
from electra_tf.tasks.tables import HeldOut

Log = Callable[[str], None]


class TaskData:
    """Examples and rows of all splits, and the task that knows its labels.

    Args:
        config: Which data.
        task: The task.
        tokenizer: The encoder's tokenizer.
        max_seq_length: Most tokens of a row.
        log: Receives lines of progress.

    Attributes:
        task: The task after `prepare`.
        train: Training examples, as they are scored.
        train_rows: What is trained on.
        eval_splits: Names of the evaluation splits that are there, the main one first.
        test_splits: Names of the splits to predict that are there.
        examples: Examples by split.
        rows: Rows by split.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        task: Task,
        tokenizer: Any,
        max_seq_length: int,
        log: Log,
    ):
        self._log = log
        examples = task.examples(task.train_split)
        # From the whole table: a rare label may be in no example that is trained on.
        source = getattr(task, "source", None)
        whole = source.whole if isinstance(source, HeldOut) else examples
        self.task = task.prepare(whole)
        if pair := nearly_equal(getattr(self.task, "labels", None) or ()):
            log(f"warning: {pair[0]!r} and {pair[1]!r} are two labels: are they one?")
        self.train = self._subset(examples, config)
        self.examples: dict[str, list] = {}
        self._read(self.task.eval_splits[:1], required=True)
        self._read(self.task.eval_splits[1:])
        self.eval_splits = tuple(self.examples)
        self._read(self.task.test_splits)
        self.test_splits = tuple(self.examples)[len(self.eval_splits) :]

        def rows(examples, training=False):
            return cached_rows(
                self.task,
                examples,
                tokenizer,
                max_seq_length,
                training=training,
                folder=config.cache_dir,
                log=log,
            )

        self.train_rows = rows(self.task.augment(self.train), training=True)
        self.rows = {split: rows(found) for split, found in self.examples.items()}
        sizes = ", ".join(f"{len(found)} {name}" for name, found in self.rows.items())
        log(
            f"{self.task.name}: {len(self.train_rows)} training rows, {sizes}; "
            f"mean {np.mean(self.train_rows.lengths):.0f} tokens, "
            f"{self._cut(self.train_rows, max_seq_length)} reach {max_seq_length}"
        )

    def _subset(self, examples, config):
        if config.data.train_fraction == 1:
            return examples
        count = max(1, round(len(examples) * config.data.train_fraction))
        order = np.random.default_rng(config.run.seed).permutation(len(examples))
        return [examples[index] for index in sorted(order[:count])]

    def _read(self, splits, *, required=False):
        for split in splits:
            try:
                self.examples[split] = self.task.examples(split)
            except FileNotFoundError:
                if required:
                    raise
                # Of a benchmark's folder; files that the user names are there.
                self._log(f"{self.task.name} has no {split} data here: left out")

    def _cut(self, rows: Rows, length: int) -> str:
        return f"{np.mean(rows.lengths == length):.1%}"

    def answers(self, scorer: Scorer, split: str) -> Any:
        """What a model answers to a split."""
        outputs = scorer.outputs(self.rows[split])
        return self.task.decode(outputs, self.rows[split], self.examples[split])

    def scored(self, scorer: Scorer, split: str) -> tuple[Any, dict[str, float]]:
        """Answers to a split, and their scores."""
        answers = self.answers(scorer, split)
        return answers, self.task.score(answers, self.examples[split])

    def baseline(self) -> dict[str, dict[str, float]]:
        """Scores, by evaluation split, of an answer that does not look at the text."""
        return {
            split: self.task.baseline(self.train, self.examples[split])
            for split in self.eval_splits
        }


class Scorer:
    """A float32 copy of a model, for scores and exports.

    Scores are of exactly the network that is exported, whatever the dtype of training.

    Args:
        model: The `TaskModel` that is trained.
        batch_size: Rows per batch.

    Attributes:
        model: The copy, not compiled.
        outputs: Runs it over rows.
    """

    def __init__(self, model: Any, batch_size: int):
        self.model = model.fresh(0, dtype="float32")
        self.outputs = Outputs(self.model, batch_size)

    def take(self, weights: Sequence[np.ndarray]) -> None:
        """Copies weights, from `get_weights` of the trained model."""
        self.model.set_weights(weights)
