"""Builds the task of a fine-tuning run from its flags, and loads its data."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from electra_tf.cli import Log
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.paths import identity
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError, did_you_mean
from electra_tf.tasks import glue
from electra_tf.tasks.base import Rows, Scores, Task
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.question_answering import QuestionAnswering
from electra_tf.tasks.sentences import SentenceSource
from electra_tf.tasks.squad import Question, SquadSource
from electra_tf.tasks.tables import SPLITS, HeldOut, TableSource, find_files
from electra_tf.tasks.tagging import Tagging
from electra_tf.tasks.text import Classification, MultiLabel, Regression, TextTask


@dataclasses.dataclass(frozen=True)
class TaskRow:
    """A value of ``--task``; a custom task is another row of ``TASKS``.

    ``reads`` are fields of ``FinetuneDataConfig`` that other tasks reject. ``kind`` is
    the kind of the task, "" for a kind of ``TextTask``.
    """

    make: Callable[[FinetuneConfig, Log], Task]
    reads: tuple[str, ...]
    kind: str = ""


def task(config: FinetuneConfig, log: Log) -> Task:
    """Builds the task named by ``--task``, without reading examples."""
    data, name = config.data, config.run.task
    if name not in TASKS:
        hint = did_you_mean(name, TASKS)
        raise UserError(f"Unknown --task={name}.{hint} Tasks: {', '.join(TASKS)}.")
    row, defaults = TASKS[name], FinetuneConfig().data
    given_files = {flag: getattr(data, flag) for flag in FILES if getattr(data, flag)}
    for flag, path in given_files.items():
        if not os.path.exists(path):
            raise FileNotFoundError(f"No file {path}: correct --{flag}.")
    for flag in dict.fromkeys(flag for each in TASKS.values() for flag in each.reads):
        default = getattr(defaults, flag)
        if flag not in row.reads and (getattr(data, flag) or default) != default:
            raise _not_read(name, flag)
    if data.data_dir and given_files:
        raise UserError(
            f"--data_dir and {', '.join(f'--{flag}' for flag in given_files)} exclude "
            "each other: name the folder, or all files."
        )
    if data.train and data.eval and identity(data.eval) == identity(data.train):
        log("warning: --eval is --train: its scores are not those of held-out data")
    made = row.make(config, log)
    is_text = isinstance(made, TextTask)
    if config.recipe.pooling != "cls" and not is_text:
        raise _not_read(name, "pooling")
    # Tagging and question answering always read whole texts.
    if data.long_texts != "cut" and not (is_text and not made.pair):
        raise _not_read(name, "long_texts")
    main = made.eval_splits[0]
    if main not in getattr(made.source, "files", [main]):
        log("no --eval: a tenth of --train is held out")
        made = dataclasses.replace(made, source=HeldOut(made.source, main))
    return made


def _not_read(name: str, flag: str) -> UserError:
    readers = [other for other, row in TASKS.items() if flag in row.reads]
    more = f" It is for {', '.join(readers)}." if readers else ""
    return UserError(f"--task={name} does not read --{flag}: leave it out.{more}")


def _options(kind: type[TextTask], config: FinetuneConfig) -> dict[str, Any]:
    data = config.data
    options = {
        "dropout": config.recipe.head_dropout,
        "pooling": config.recipe.pooling,
        "long_texts": data.long_texts,
    }
    if kind is MultiLabel:
        options["labels"] = data.label if len(data.label) > 1 else None
        options["threshold"] = data.threshold or 0.5
        options["tune_threshold"] = data.threshold is None
    return options


def _glue(config: FinetuneConfig, log: Log) -> Task:
    name, data = config.run.task, config.data
    if not data.data_dir:
        raise UserError(
            f"--task={name} needs --data_dir, the folder of its files "
            f"({glue.ROWS[name].folder} of GLUE)."
        )
    made = glue.glue_task(name, data.data_dir, log=log)
    doubles = made.double_pairs and data.pair_doubling
    options = _options(type(made), config)
    return dataclasses.replace(made, double_pairs=doubles, **options)


def _table(kind: type[TextTask], config: FinetuneConfig, log: Log) -> Task:
    name, data = config.run.task, config.data
    if not data.train:
        raise UserError(
            f"--task={name} needs --train, a .csv, .tsv or .jsonl table with the "
            "columns --text and --label."
        )
    return kind(
        name=name,
        source=TableSource(
            files=_given_files(config, "eval"),
            text=data.text,
            label=data.label,
            kind=name,
            separator=data.label_separator,
        ),
        pair=len(data.text) == 2,
        eval_splits=("eval",),
        test_splits=("test",) if data.test else (),
        **_options(kind, config),
    )


def _given_files(config: FinetuneConfig, eval_split: str) -> dict[str, str]:
    data = config.data
    paths = {"train": data.train, eval_split: data.eval, "test": data.test}
    return {split: path for split, path in paths.items() if path}


def _split_files(
    config: FinetuneConfig, find: Callable[[str], Mapping[str, str]], needs: str
) -> Mapping[str, str]:
    data = config.data
    if data.train:
        return _given_files(config, "dev")
    if data.data_dir:
        return find(data.data_dir)
    raise UserError(f"--task={config.run.task} needs --data_dir, {needs}, or --train.")


def _tagging(
    word: str, tag: str, metric: str, config: FinetuneConfig, log: Log
) -> Task:
    """Builds a tagging task; flags override these columns."""
    needs = "a folder with one file each for train, dev and test"
    paths = _split_files(config, find_files, needs)
    # The user's test file is unlabeled: it is only predicted.
    unlabeled = ("test",) if config.data.train else ()
    return Tagging(
        name=config.run.task,
        source=SentenceSource(
            files=paths,
            word_column=config.tagging.word_column or word,
            tag_column=config.tagging.tag_column or tag,
            unlabeled=unlabeled,
        ),
        main_metric=metric,
        dropout=config.recipe.head_dropout,
        eval_splits=tuple(sorted(paths.keys() - {"train", *unlabeled})) or ("dev",),
        test_splits=unlabeled if config.data.test else (),
    )


def _squad(version: str, config: FinetuneConfig, log: Log) -> Task:
    patterns = {split: f"^{split}-v{version}.json$" for split in SPLITS}
    find = partial(find_files, patterns=patterns)
    needs = f"the folder of train-v{version}.json and dev-v{version}.json"
    paths = _split_files(config, find, needs)
    unanswerable = version == "2.0"
    return QuestionAnswering(
        name=config.run.task,
        source=SquadSource(files=paths, unanswerable=unanswerable, log=log),
        unanswerable=unanswerable,
        answerability=unanswerable,
        test_splits=("test",) if "test" in paths else (),
        **dataclasses.asdict(config.question_answering),
    )


FILES = ("train", "eval", "test")
_TABLE = (*FILES, "text", "label")
_FOLDER = (*FILES, "data_dir")

TASKS: dict[str, TaskRow] = {
    **dict.fromkeys(glue.ROWS, TaskRow(_glue, ("data_dir",))),
    "classification": TaskRow(partial(_table, Classification), _TABLE),
    "multilabel": TaskRow(
        partial(_table, MultiLabel), (*_TABLE, "label_separator", "threshold")
    ),
    "regression": TaskRow(partial(_table, Regression), _TABLE),
    # Arguments: word column, tag column, main metric.
    "tagging": TaskRow(partial(_tagging, "0", "-1", "f1"), _FOLDER, "tagging"),
    "chunking": TaskRow(partial(_tagging, "0", "-1", "f1"), _FOLDER, "tagging"),
    "ner": TaskRow(partial(_tagging, "0", "-1", "f1"), _FOLDER, "tagging"),
    "pos": TaskRow(partial(_tagging, "FORM", "UPOS", "accuracy"), _FOLDER, "tagging"),
    "squad1": TaskRow(partial(_squad, "1.1"), _FOLDER, "question_answering"),
    "squad2": TaskRow(partial(_squad, "2.0"), _FOLDER, "question_answering"),
}


_MANY_UNKNOWN = 0.01
# Minimum number of training examples to tune a threshold on a tenth of them.
_FEWEST_TO_TUNE = 100


def _digest(examples: Sequence[Any], rows: Rows) -> str:
    digest = hashlib.sha256()
    for example in examples:
        # The ``repr`` of examples, which are dataclasses, has all fields.
        digest.update(repr(example).encode("utf-8", "surrogatepass") + b"\0")
    ids = rows.inputs["input_ids"]
    digest.update(ids.values.tobytes() + ids.splits.tobytes())
    return digest.hexdigest()[:32]


def _is_empty(example: Any) -> bool:
    if isinstance(example, Question):
        texts = [example.question, example.context]
    else:
        texts = getattr(example, "texts", [])
    return not all(map(str.strip, texts))


class TaskData:
    """Examples and tokenized rows of all splits, and the prepared task.

    Attributes:
        train: training examples for scoring; ``train_rows`` adds the augmentations.
        keys: hashes of examples and rows by split, "train" included.
        eval_splits: available evaluation splits, the main one first.
        tuning: training examples held out for ``tune``, often none.
        examples: examples by evaluation and test split, as are ``rows``.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: WordPiece,
        max_seq_length: int,
        *,
        train_fraction: float,
        seed: int,
        log: Log,
    ):
        self.train = task.examples("train")
        # Uses the whole table: the training part may lack a rare label.
        source = getattr(task, "source", None)
        whole = source.whole if isinstance(source, HeldOut) else self.train
        self.task = task.prepare(whole)
        if train_fraction != 1:
            count = max(1, round(len(self.train) * train_fraction))
            order = np.random.default_rng(seed).permutation(len(self.train))
            self.train = [self.train[index] for index in sorted(order[:count])]
        self.tuning: list[Any] = []
        if self.task.tunes and len(self.train) < _FEWEST_TO_TUNE:
            log(f"{len(self.train)} training examples are too few to tune a threshold")
        elif self.task.tunes:
            held_out = HeldOut(lambda _, whole=self.train: whole, "tuning")
            self.train, self.tuning = held_out("train"), held_out("tuning")
            log(f"{len(self.tuning)} training examples are held out for the threshold")
        main, *others = *self.task.eval_splits, *self.task.test_splits
        # The only required split beside the training data.
        self.examples = {main: self.task.examples(main)}
        for split in others:
            try:
                self.examples[split] = self.task.examples(split)
            except FileNotFoundError:
                # Benchmark folders may lack splits.
                log(f"{self.task.name} has no {split} data here: left out")
        self.eval_splits = tuple(
            split for split in self.task.eval_splits if split in self.examples
        )
        augmented = self.task.augment(self.train)
        arguments = tokenizer, max_seq_length
        rows = self.task.featurize(augmented, *arguments, training=True)
        # A probe holds out a pair together with its swapped copy.
        example = rows.example % len(self.train)
        self.train_rows = dataclasses.replace(rows, example=example)
        self.rows = {
            split: self.task.featurize(each, *arguments)
            for split, each in self.examples.items()
        }
        if self.tuning:
            self._tuning_rows = self.task.featurize(self.tuning, *arguments)
        self.keys = {"train": _digest([*augmented, *self.tuning], self.train_rows)}
        for split, rows in self.rows.items():
            self.keys[split] = _digest(self.examples[split], rows)
        if not len(self.train_rows):
            raise UserError(
                f"No answer to the {len(self.train)} training questions of {task.name} "
                "has a token: check the data and the vocabulary."
            )
        for split, each in {"training": self.train, **self.examples}.items():
            if empty := sum(map(_is_empty, each)):
                log(f"warning: {empty} of {len(each)} {split} examples have no text")
        if isinstance(task, MultiLabel) and all(len(e.label) < 2 for e in self.train):
            log("warning: no example has two labels: check --label_separator")
        if isinstance(task, QuestionAnswering):
            targets = self.train_rows.targets
            lengths = targets["end_logits"] - targets["start_logits"] + 1
            if (long := lengths > task.max_answer_length).any():
                count = len(np.unique(self.train_rows.example[long]))
                log(
                    f"warning: {count} training answers have more tokens than any "
                    f"prediction, --max_answer_length={task.max_answer_length}"
                )
        vocabulary, lengths = tokenizer.vocabulary, self.train_rows.lengths
        ids = self.train_rows.inputs["input_ids"].values
        unknown = np.mean(ids == vocabulary.unk_id)
        if unknown > _MANY_UNKNOWN:
            log(
                f"warning: {unknown:.1%} of the training tokens are {vocabulary.unk}: "
                "check language and casing of the text against the encoder's vocabulary"
            )
        sizes = ", ".join(f"{len(rows)} {name}" for name, rows in self.rows.items())
        log(
            f"{self.task.name}: {len(lengths)} training rows, {sizes}; mean "
            f"{np.mean(lengths):.0f} tokens, {np.mean(lengths == max_seq_length):.1%} "
            f"fill --max_seq_length={max_seq_length}"
        )

    def tune(self, outputs: Outputs) -> None:
        if self.tuning:
            rows = self._tuning_rows
            answers = self.task.decode(outputs(rows), rows, self.tuning)
            self.task = self.task.tune(answers, self.tuning)

    def answers(self, split: str, outputs: Outputs) -> Any:
        rows = self.rows[split]
        return self.task.decode(outputs(rows), rows, self.examples[split])

    def score(self, split: str, outputs: Outputs) -> tuple[Any, Scores]:
        answers = self.answers(split, outputs)
        return answers, self.task.score(answers, self.examples[split])
