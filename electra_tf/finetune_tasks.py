"""From a fine-tuning config to tagging and question answering tasks."""

from __future__ import annotations

from collections.abc import Callable

from electra_tf.finetune_config import FinetuneConfig
from electra_tf.tasks.base import Task
from electra_tf.tasks.question_answering import QuestionAnswering
from electra_tf.tasks.squad_files import SquadSource, find_squad_files
from electra_tf.tasks.tables import HeldOut
from electra_tf.tasks.tagging import Tagging
from electra_tf.tasks.tagging_files import SentenceSource, find_files

Log = Callable[[str], None]

# Name -> columns of words and tags, main score.
TAGGING = {
    "tagging": ("0", "-1", "f1"),
    "chunking": ("0", "-1", "f1"),
    "ner": ("0", "-1", "f1"),
    "pos": ("FORM", "UPOS", "accuracy"),
}
SQUAD = {"squad1": "1.1", "squad2": "2.0"}


def _tagging(config: FinetuneConfig, log: Log) -> Task:
    name, data, chosen = config.run.task, config.data, config.tagging
    word, tag, metric = TAGGING[name]
    files, unlabeled = _tagging_files(config)
    source = SentenceSource(
        files=files,
        word_column=chosen.word_column or word,
        tag_column=chosen.tag_column or tag,
        unlabeled=unlabeled,
    )
    labeled = [split for split in ("dev", "test") if split in files]
    eval_splits = tuple(split for split in labeled if split not in unlabeled)
    if not eval_splits:
        log("no --eval: a tenth of --train is held out")
        source, eval_splits = HeldOut(source, "dev"), ("dev",)
    return Tagging(
        name=name,
        source=source,
        main_metric=metric if chosen.tag_metric == "task" else chosen.tag_metric,
        encoding=chosen.tag_encoding,
        long_sentences=chosen.long_sentences,
        unknown_tags=chosen.unknown_tags,
        dropout=config.recipe.head_dropout,
        eval_splits=eval_splits,
        test_splits=unlabeled if data.test else (),
    )


def _tagging_files(config):
    """Files by split, and the splits without tags."""
    data = config.data
    if data.train:
        files = {"train": data.train, "dev": data.eval, "test": data.test}
        return {split: path for split, path in files.items() if path}, ("test",)
    if data.data_dir:
        return find_files(data.data_dir), ()
    raise ValueError(
        f"--task={config.run.task} needs --data_dir, a folder with one file each for "
        "train, dev and test, or --train (and --eval, --test)."
    )


def _squad(config: FinetuneConfig, log: Log) -> Task:
    name, chosen = config.run.task, config.question_answering
    version = SQUAD[name]
    files = _squad_files(config, version)
    unanswerable = version == "2.0"
    source = SquadSource(files=files, unanswerable=unanswerable, log=log)
    if "dev" not in files:
        log("no --eval: a tenth of --train is held out")
        source = HeldOut(source, "dev")
    return QuestionAnswering(
        name=name,
        source=source,
        unanswerable=unanswerable,
        answerability={"task": unanswerable, "on": True, "off": False}[
            chosen.answerability
        ],
        answerable_weight=chosen.answerable_weight,
        null_threshold=chosen.null_threshold,
        max_query_length=chosen.max_query_length,
        doc_stride=chosen.doc_stride,
        max_answer_length=chosen.max_answer_length,
        n_best=chosen.n_best_size,
        beam_size=chosen.beam_size,
        test_splits=("test",) if "test" in files else (),
    )


def _squad_files(config, version):
    data = config.data
    if data.train:
        files = {"train": data.train, "dev": data.eval, "test": data.test}
        return {split: paths.split(",") for split, paths in files.items() if paths}
    if data.data_dir:
        return find_squad_files(data.data_dir, version)
    raise ValueError(
        f"--task={config.run.task} needs --data_dir, the folder of "
        f"train-v{version}.json and dev-v{version}.json, or --train and --eval, each "
        "one file or several with commas between them."
    )


STRUCTURED: dict[str, Callable[[FinetuneConfig, Log], Task]] = {
    **dict.fromkeys(TAGGING, _tagging),
    **dict.fromkeys(SQUAD, _squad),
}
