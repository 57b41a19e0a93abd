"""Folder of a pretraining run or of an imported model, and its fine-tuning recipe.

Imports no pretraining models, so that fine-tuning does not import them either.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.config import fields
from electra_tf.config.fields import CASING
from electra_tf.config.finetuning import RecipeConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data import paths
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError, explained
from electra_tf.folders import models
from electra_tf.folders.models import Model
from electra_tf.folders.settings import CONFIG, TASK, check_same
from electra_tf.training.sinks import EVAL_PREFIX

if TYPE_CHECKING:
    from electra_tf.data.prepared import PretrainingData
    from electra_tf.layers.encoder import TextEncoder

CARD = "model_card.md"
CHECKPOINTS = "checkpoints"
CURVES = "curves.png"
DATA = "data"
METRICS = "metrics.jsonl"
# Recommended fine-tuning flags.
RECIPE = "recipe.json"
SAMPLES = "samples.txt"
TENSORBOARD = "tensorboard"
VOCABULARY = "vocab.txt"
# Saved models; fine-tuning starts from the encoder.
MODELS = ("encoder", "generator", "discriminator")
# All outputs of a run; other files are never deleted.
OUTPUTS = (
    *(CHECKPOINTS, CONFIG, CURVES, DATA, METRICS, "profile", SAMPLES),
    *(CARD, RECIPE, TENSORBOARD, VOCABULARY),
    *(f"{name}{suffix}" for name in MODELS for suffix in (models.KERAS, models.HALVES)),
)
# Models shipped with the package.
SHIPPED = Path(__file__).parent.parent / "pretrained"

# Files of a folder of records, one at each stage of the build.
_RECORDS = ("manifest.json", "vocab.txt.json", ".build")
_SECTIONS = ("config", "data", "imported")
_NO_EXPORT = " (not exportable to Hugging Face, which has pooling=cls alone)"
# Recommended flags that kinds of tasks do not have.
_OMITTED = {
    "question_answering": ("head_dropout", "head_init", "pooling"),
    "tagging": ("pooling",),
}


def named(name: files.AnyPath) -> Path:
    """Returns the path, or the shipped model's folder for a name such as "mini"."""
    path = Path(name)
    is_shipped = not path.exists() and path.parent == Path() and path.name
    return SHIPPED / path if is_shipped and (SHIPPED / path).is_dir() else path


@dataclasses.dataclass(frozen=True)
class PretrainingFolder:
    """The folder of a pretraining run, which need not exist. Nothing is cached."""

    path: Path

    @property
    def settings(self) -> dict[str, Any]:
        """Content of config.json, or {}, without sections that are not JSON objects."""
        settings = files.read_json(self.path / CONFIG, default={})
        for name in _SECTIONS:
            if not isinstance(settings.get(name), dict):
                settings.pop(name, None)
        return settings

    @property
    def flags(self) -> dict[str, Any]:
        """Flags of the run; for an import, flags derived from its weights."""
        flags = self.settings.get("config", {})
        if "clip_norm" in flags and flags["clip_norm"] is None:
            # JSON has no infinity.
            flags["clip_norm"] = math.inf
        hints = fields.hints(PretrainConfig).items()
        known = {name: hint for name, hint in hints if name in flags}
        files.check_shape(flags, known, f"{self.path / CONFIG} is damaged: config")
        return flags

    def reject_fine_tuned(self, advice: str) -> None:
        if (self.path / TASK).is_file():
            raise UserError(f"{self.path} holds a fine-tuned model: {advice}")

    @property
    def trained_length(self) -> int | None:
        return self.flags.get("max_seq_length")

    @property
    def casing(self) -> dict[str, bool]:
        """``lower_case`` and ``strip_accents``, if config.json has them.

        Section ``data`` describes the records. It overrides ``config``: if
        records were given, the flags there may be unused defaults.
        """
        settings = self.settings
        sections = (settings, settings.get("config", {}), settings.get("data", {}))
        return {
            name: section[name]
            for section in sections
            for name in CASING
            if isinstance(section.get(name), bool)
        }

    @property
    def vocabulary_sha256(self) -> str | None:
        data, where = self.settings.get("data", {}), f"{self.path / CONFIG}: data"
        files.check_shape(data, {"vocabulary_sha256": str | None}, where)
        return data.get("vocabulary_sha256")

    def check_settings(
        self, settings: Mapping[str, Any], may_differ: Iterable[str] = ()
    ) -> bool:
        """Returns True if the folder has settings; errors as in ``check_same``."""
        flags = self.flags
        # A run with several parts of a batch drew other random numbers.
        has_parts = flags.get("distribution", "none") != "none"
        has_parts |= flags.get("gradient_accumulation_steps", 1) != 1
        if has_parts and "random_keys" not in self.settings:
            raise UserError(
                f"{self.path / CONFIG} is of an older version, which drew other random "
                "numbers on several devices or micro-batches. Resume it with that "
                "version, or start a new run from its weights with --init_from."
            )
        return check_same(
            self.path,
            settings,
            PretrainConfig,
            # Commit and time are those of the latest process.
            (*may_differ, "random_keys", "commit", "written"),
            has_checkpoint=self.has_checkpoint(),
        )

    def describe(
        self, settings: Mapping[str, Any], vocabulary: Vocabulary | None = None
    ) -> None:
        files.write_json(self.path / CONFIG, settings, sort_keys=True)
        if vocabulary is not None:
            vocabulary.save(self.path / VOCABULARY)

    def vocabulary(self) -> Vocabulary | None:
        """Loads vocab.txt, None if missing; raises ValueError if it is damaged."""
        path = self.path / VOCABULARY
        return Vocabulary.load(path) if path.is_file() else None

    def tokenizer(
        self, log: Log, *, vocab_file: str | None = None, **casing: bool | None
    ) -> WordPiece:
        """Returns the models' tokenizer; ``casing`` overrides the folder's settings."""
        path = Path(vocab_file or self.path / VOCABULARY)
        if not path.is_file():
            raise FileNotFoundError(
                f"No vocabulary at {path}: put the vocab.txt of the encoder there."
            )
        known = self.casing | {n: x for n, x in casing.items() if x is not None}
        for name in CASING:
            if name not in known:
                log(f"warning: config.json does not have --{name}; assumed true")
                known[name] = True
        return WordPiece(Vocabulary.load(path), **known)

    def model_path(self, name: str) -> Path:
        """Returns the file of a model; a float16 encoder may be part of another."""
        names = (name, "discriminator", "generator") if name == "encoder" else (name,)
        halves = [f"{other}{models.HALVES}" for other in names]
        paths = [self.path / file for file in (f"{name}{models.KERAS}", *halves)]
        return next(filter(Path.is_file, paths), paths[0])

    def has_model(self, name: str) -> bool:
        return self.model_path(name).is_file()

    def load(self, name: str, kind: type[Model], hint: str = "") -> Model:
        return models.load(self.model_path(name), kind, hint)

    def check_hash(self, vocabulary: Vocabulary, path: str | None = None) -> None:
        """Raises ValueError unless a vocabulary, read from ``path``, is the run's."""
        if self.vocabulary_sha256 not in (None, vocabulary.sha256):
            raise UserError(
                f"{path or self.path / VOCABULARY} does not have the SHA-256 in "
                f"{self.path / CONFIG}: restore the vocabulary of training "
                "(convert: name it by --vocab_file)."
            )

    def check_vocabulary(self, name: str, encoder: TextEncoder) -> None:
        vocabulary = self.vocabulary()
        rows, size = encoder.embeddings.vocab_size, len(vocabulary)
        if rows != size:
            raise UserError(
                f"{self.model_path(name)} has embeddings for {rows} tokens but the "
                f"vocabulary beside it has {size}: they are of different runs (see "
                f"python -m electra_tf doctor --model={self.path})."
            )
        self.check_hash(vocabulary)

    def save(self, by_name: Mapping[str, keras.Model], *, halves: bool = False) -> None:
        """Saves models; float16 files omit an encoder that another network contains."""
        suffix = models.HALVES if halves else models.KERAS
        parts = [getattr(model, "encoder", None) for model in by_name.values()]
        for name, model in by_name.items():
            if not (halves and model in parts):
                models.save(model, self.path / f"{name}{suffix}")

    def has_checkpoint(self) -> bool:
        return any((self.path / CHECKPOINTS).glob("*.index"))

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the numbers and nulls of metrics.jsonl, in rows with a step."""
        return [
            {n: v for n, v in row.items() if files.fits(v, float | None)}
            for row in files.read_json_lines(self.path / METRICS)
            if files.fits(row.get("step"), int)
        ]

    def held_out(self, prefix: str = EVAL_PREFIX) -> dict[str, float]:
        """Returns the last held-out metrics with names that begin with ``prefix``."""
        for row in reversed(self.metrics()):
            if scores := {n: v for n, v in row.items() if n.startswith(prefix)}:
                return {n: v for n, v in scores.items() if v is not None}
        return {}

    def outputs(self) -> list[str]:
        return [
            name
            for name in OUTPUTS
            if (self.path / name).exists()
            # Other files in its folder of data may be the user's.
            and (name != DATA or any((self.path / DATA / x).exists() for x in _RECORDS))
        ]

    def delete(self, names: Iterable[str]) -> None:
        """Deletes the outputs of a run that have these names."""
        for name in {*names}.intersection(self.outputs()):
            if name != DATA:
                files.remove(self.path / name)
                continue
            # Other files here are the user's, perhaps also the vocabulary.
            folder = self.path / DATA
            words, about = folder / VOCABULARY, folder / "vocab.txt.json"
            trained = files.read_json(about, {}).get("vocabulary_sha256")
            own = [*folder.glob("*-of-*.tfrecord"), *map(folder.joinpath, _RECORDS)]
            if words.is_file() and paths.sha256(words) == trained:
                own.append(words)
            for path in own:
                files.remove(path)
            if not any(folder.iterdir()):
                folder.rmdir()


def settings_of(flags: Mapping[str, Any], data: PretrainingData) -> dict[str, Any]:
    """Returns the content of config.json: flags, data, versions, commit, time."""
    # Identifies the records, by name and size if there is no manifest.
    if data.shards:
        shards = [(shard.name, shard.sha256) for shard in data.shards]
    else:
        shards = [(Path(path).name, paths.size(path)) for path in data.train_files]
    return {
        "config": dict(flags),
        "data": {
            "vocabulary_sha256": data.vocabulary.sha256,
            "records_sha256": hashlib.sha256(repr(shards).encode()).hexdigest(),
            "lower_case": data.lower_case,
            "strip_accents": data.strip_accents,
        },
        # Beside seed, step and site. Runs without it used replica and micro-batch.
        "random_keys": "row of the global batch",
        "versions": models.versions("tensorflow-text", "tokenizers"),
        "commit": _commit(),
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    # Not `-C`: an installed package may lie in another project's repository.
    repository = Path(__file__).parents[2] / ".git"
    command = ["git", f"--git-dir={repository}", "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() or None


def recommended(encoder: files.AnyPath, kind: str = "") -> dict[str, Any]:
    """Returns the fine-tuning flags that an encoder's folder recommends, or {}.

    ``encoder`` is a folder, a file in it, or the name of a shipped model. Omits flags
    without effect on the ``kind`` of task.
    """
    path = named(encoder)
    path = (path.parent if path.is_file() else path) / RECIPE
    flags, hints = files.read_json(path, default={}), fields.hints(RecipeConfig)
    known = {name: hints[name] for name in flags.keys() & hints.keys()}
    files.check_shape(flags, known, str(path))
    with explained(str(path), UserError):
        fields.from_flat(flags, RecipeConfig)
    omitted = _OMITTED.get(kind, ())
    return {name: value for name, value in flags.items() if name not in omitted}


def completion(
    encoder: files.AnyPath, kind: str, given: Mapping[str, Any], log: Log
) -> dict[str, Any]:
    """Returns and logs the ``recommended`` flags that are not ``given``."""
    recipe = recommended(encoder, kind)
    flags = {name: value for name, value in recipe.items() if name not in given}
    if flags:
        settings = ", ".join(f"{name}={value}" for name, value in flags.items())
        if flags.get("pooling", "cls") != "cls":
            settings += _NO_EXPORT
        log(f"recipe of {encoder}: {settings}")
    if given.get("pooling", "cls") != "cls":
        log(f"pooling={given['pooling']}{_NO_EXPORT}")
    return flags
