"""Folder of a fine-tuning run and its files."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.config import fields
from electra_tf.config.fields import CASING
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError, explained
from electra_tf.folders import models, settings
from electra_tf.folders.pretraining import MODELS, RECIPE, PretrainingFolder
from electra_tf.folders.settings import CONFIG, RESULTS, TASK
from electra_tf.tasks import saved
from electra_tf.tasks.base import Task
from electra_tf.tasks.glue import ROWS
from electra_tf.tasks.heads import TaskModel

CARD = "model_card.md"
CHECKPOINTS = "checkpoints"
CURVES = "curves.png"
METRICS = "metrics.jsonl"
MODEL = "model.keras"
ADAPTER = "adapter.lora.h5"
# Result of a search, and the folder to resume it from.
SEARCHED = "search.json"
SEARCHING = "search"
SUBMISSION = "submission"
_LABELS, _VOCABULARY = "labels.txt", "vocab.txt"
_SPLITS = {"dev", "eval", "test"}.union(*(row.splits for row in ROWS.values()))
_PREDICTIONS = (
    *("predictions{}.tsv", "predictions{}.conll", "predictions{}.json"),
    *("nbest_predictions{}.json", "null_odds{}.json"),
)
# All outputs of a run; other files are never deleted.
OUTPUTS = (
    *(RESULTS, CHECKPOINTS, CONFIG, CARD, TASK, METRICS, _LABELS, _VOCABULARY),
    *(MODEL, ADAPTER, "model.tflite", "model.onnx", "saved_model", SUBMISSION),
    *(RECIPE, CURVES, SEARCHED, SEARCHING),
    # Outputs of earlier versions, as are the n-best lists below.
    *("confusion_matrix.png", "scatter.png", "search.png", "seeds.png"),
    *("tensorboard", "thresholds.png"),
    *(
        name.format(suffix)
        for name in _PREDICTIONS
        for suffix in ("", *(f"_{split}" for split in sorted(_SPLITS)))
    ),
)
# Schema of a finished seed; a score that is not finite is null.
_RESULT = {"seed": int, "scores": dict[str, dict[str, float | None]], "failure": str}
# Fields of every task.json; ``Task.to_json`` adds the task's fields.
_TASK = {
    **{"task": str, "kind": str, "text_names": list[str], "max_seq_length": int},
    **dict.fromkeys(CASING, bool),
    **{"vocabulary_sha256": str, "trained_length": int | None},
}


@dataclasses.dataclass(frozen=True)
class FinetuningFolder:
    """The folder of a fine-tuning run, which need not exist yet."""

    path: Path

    def check(self, task: str, *, overwrite: bool, searches: bool = False) -> None:
        """Deletes leftover checkpoints of a finished run.

        Raises UserError for a pretraining run and, without ``overwrite``, for a
        finished run, another task, unknown outputs, or a search that the run does not.
        """
        folder, known = self.path, self.path / TASK
        remedy = "set --output_dir to another folder"
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--output_dir={folder} is a file: name a folder.")
        pretraining = PretrainingFolder(folder)
        if pretraining.has_checkpoint() or any(map(pretraining.has_model, MODELS)):
            raise UserError(f"{folder} holds a pretraining run: {remedy}.")
        problem = ""
        if not known.exists():
            if foreign := sorted(name for name in OUTPUTS if (folder / name).exists()):
                problem = f"is not a fine-tuning run but has {', '.join(foreign[:5])}"
        elif (other := files.read_json(known).get("task")) != task:
            problem = f"holds a run of another task, {other!r}, not {task!r}"
        elif (folder / RESULTS).exists():
            problem = "holds a finished run"
            self._drop_state()
        elif not searches and any((folder / x).exists() for x in (SEARCHED, SEARCHING)):
            problem = "holds an interrupted search, which its command resumes"
        if problem and not overwrite:
            raise UserError(
                f"{folder} {problem}: pass --overwrite to replace it, or {remedy}."
            )

    def resumes(self, described: Mapping[str, Any]) -> bool:
        """Returns True if the folder holds an interrupted run; see ``check_same``."""
        if described["config"]["overwrite"] or not self.checkpoints.is_dir():
            return False
        return settings.check_same(
            self.path,
            described,
            FinetuneConfig,
            has_checkpoint=True,
            # An older version's run lacks newer flags.
            absent={"config": fields.to_flat(FinetuneConfig())},
        )

    def begin(
        self,
        task: Task,
        tokenizer: WordPiece,
        max_seq_length: int,
        described: Mapping[str, Any],
        trained_length: int | None = None,
        *,
        keep: Collection[str] = (),
    ) -> None:
        """Creates the folder, deletes outputs except ``keep``, describes the run."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in OUTPUTS:
            # Keeps task.json, which is replaced below: if the process is killed here,
            # ``check`` needs it to recognize the folder.
            if name not in (*keep, TASK):
                files.remove(self.path / name)
        about = task.to_json() | {
            "max_seq_length": max_seq_length,
            "lower_case": tokenizer.lower_case,
            "strip_accents": tokenizer.strip_accents,
            "vocabulary_sha256": tokenizer.vocabulary.sha256,
        }
        if trained_length is not None:
            about["trained_length"] = max(trained_length, max_seq_length)
        files.write_json(self.path / TASK, about)
        self.describe(described)
        tokenizer.vocabulary.save(self.path / _VOCABULARY)
        if labels := about.get("labels"):
            # A label may have line breaks.
            lines = "".join(f"{' '.join(str(x).splitlines())}\n" for x in labels)
            files.write_text(self.path / _LABELS, lines)

    def describe_tuned(self, task: Task) -> None:
        """Updates task.json by a tuned task, except the fields of the run."""
        about = files.read_json(self.path / TASK)
        kept = {name: value for name, value in about.items() if name in _TASK}
        files.write_json(self.path / TASK, task.to_json() | kept)

    @property
    def has_model(self) -> bool:
        return (self.path / TASK).is_file() and (self.path / MODEL).is_file()

    def about(self) -> dict[str, Any]:
        about = files.read_json(self.path / TASK, shape=_TASK)
        with explained(f"{self.path / TASK} is damaged"):
            saved.from_json(about)
        return about

    def load(self) -> TaskModel:
        task = saved.from_json(self.about())
        model = models.load(self.path / MODEL, TaskModel)
        with explained(f"{self.path / TASK} is damaged"):
            saved.check_head(task, model)
        return model

    def vocabulary(self) -> Vocabulary:
        """Loads vocab.txt; raises ValueError if its hash differs from task.json's."""
        path = self.path / _VOCABULARY
        vocabulary = Vocabulary.load(path)
        if vocabulary.sha256 != self.vocabulary_sha256:
            raise UserError(f"{path} does not have the SHA-256 in {TASK}: restore it.")
        return vocabulary

    @property
    def vocabulary_sha256(self) -> str:
        return self.about()["vocabulary_sha256"]

    @property
    def trained_length(self) -> int | None:
        return self.about().get("trained_length")

    def tokenizer(
        self, log: Log, *, vocab_file: str | None = None, **casing: bool | None
    ) -> WordPiece:
        """Returns the tokenizer, with the arguments of a pretraining folder's."""
        about = self.about()
        known = {name: about[name] for name in CASING}
        known |= {name: x for name, x in casing.items() if x is not None}
        vocabulary = Vocabulary.load(vocab_file) if vocab_file else self.vocabulary()
        return WordPiece(vocabulary, **known)

    def describe(self, described: Mapping[str, Any]) -> None:
        versions = models.versions("tensorflow-text")
        files.write_json(self.path / CONFIG, {**described, "versions": versions})

    @property
    def checkpoints(self) -> Path:
        """Folder of all files to resume from; exists while a run is unfinished."""
        return self.path / CHECKPOINTS

    def state(self, seed: int) -> Path:
        return self.checkpoints / f"seed-{seed}"

    def weights(self, seed: int) -> Path:
        """Folder of a seed's trained weights; only the best seed's are kept."""
        return self.checkpoints / f"weights-{seed}"

    def done(self) -> list[dict[str, Any]]:
        paths = self.checkpoints.glob("done-*.json")
        results = [files.read_json(path, shape=_RESULT) for path in paths]
        for result in results:
            for scores in result["scores"].values():
                scores.update({n: math.nan for n, x in scores.items() if x is None})
        return sorted(results, key=lambda result: result["seed"])

    def finish_seed(self, result: Mapping[str, Any], best: int) -> None:
        """Saves a seed's result; keeps no checkpoint and only the ``best`` weights."""
        files.write_json(self.checkpoints / f"done-{result['seed']}.json", result)
        files.remove(self.state(result["seed"]))
        for path in self.checkpoints.glob("weights-*"):
            if path != self.weights(best):
                files.remove(path)

    def forget(self, seed: int, step: int) -> None:
        """Deletes the metrics of a seed after this step."""
        path, kept = self.path / METRICS, []
        for row in files.read_json_lines(path):
            is_early = files.fits(row.get("step"), float) and row["step"] <= step
            if is_early or row.get("seed") != seed:
                kept.append(row)
        if path.exists():
            files.write_json_lines(path, kept)

    def record(self, values: Mapping[str, Any]) -> None:
        files.append_json_line(self.path / METRICS, values)

    def finish(self, report: Mapping[str, Any], card: str = "") -> None:
        """Writes model card and results.json, then deletes the files to resume from."""
        if card:
            files.write_text(self.path / CARD, card)
        files.write_json(self.path / RESULTS, report)
        self._drop_state()

    def _drop_state(self) -> None:
        files.remove(self.path / CHECKPOINTS)
        files.remove(self.path / SEARCHING)
