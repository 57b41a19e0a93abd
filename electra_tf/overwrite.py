"""Starting anew in a folder that holds a run: what ``--overwrite`` deletes, and when.

Nothing is deleted before everything that can be refused has been checked. Records
that the run is to build in the folder need their place first; models, checkpoints and
logs go last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from electra_tf.config import PretrainConfig
from electra_tf.data.corpora import open_corpus
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.results import METRICS

_DATA = "data"
# Everything a run writes into its folder; what is not listed is never deleted.
OUTPUTS = (
    "checkpoints",
    "config.json",
    "curves.png",
    _DATA,
    "discriminator.keras",
    "encoder.keras",
    "generator.keras",
    METRICS,
    "samples.txt",
    "tensorboard",
    "vocab.txt",
)


def check(config: PretrainConfig) -> None:
    """Refuses to delete what the run reads, or to delete before its text is found.

    Args:
        config: of the run.

    Raises:
        ValueError: the run reads something that it would delete, or its text or
            vocabulary is missing or not usable.
        OSError: something cannot be read.
    """
    folder = Path(config.run.model_dir)
    doomed = [(folder / name).resolve() for name in OUTPUTS]
    for flag, path in _inputs(config):
        resolved = Path(path).resolve()
        if resolved == folder.resolve() or any(
            resolved.is_relative_to(output) for output in doomed
        ):
            raise ValueError(
                f"--overwrite would delete {path}, which --{flag} asks for: name a "
                f"copy outside of {folder}, or another --model_dir."
            )
    data = config.data
    if not data.records:
        open_corpus(
            data.corpus,
            blank_lines_separate=data.blank_lines_separate,
            tfds_data_dir=data.tfds_data_dir,
        )
        if data.vocab_file:
            Vocabulary.load(data.vocab_file)


def _inputs(config: PretrainConfig) -> Iterator[tuple[str, str]]:
    """(flag, file or folder) of everything that the run reads."""
    data = config.data
    given = {
        "init_from": (config.run.init_from,),
        "generator_init_from": (config.training.generator_init_from,),
        "vocab_file": (data.vocab_file,),
        "records": data.records,
        "eval_records": data.eval_records,
        "corpus": () if data.records else data.corpus,
    }
    for flag, patterns in given.items():
        for pattern in filter(None, patterns):
            found = glob.glob(pattern, recursive=True) or [pattern]
            yield from ((flag, path) for path in found)


def delete_records(config: PretrainConfig) -> None:
    """Deletes the records in ``model_dir/data``, if the run builds its own there."""
    folder = Path(config.run.model_dir)
    if _builds_in(folder / _DATA, config):
        remove(folder, (_DATA,))


def delete(config: PretrainConfig) -> None:
    """Deletes what a run wrote into ``model_dir``, and nothing else.

    Records that ``delete_records`` has made way for are those of the new run.
    """
    folder = Path(config.run.model_dir)
    kept = {_DATA} if _builds_in(folder / _DATA, config) else set()
    remove(folder, [name for name in OUTPUTS if name not in kept])


def _builds_in(folder: Path, config: PretrainConfig) -> bool:
    data = config.data
    target = Path(data.data_dir) if data.data_dir else folder
    return not data.records and target.resolve().is_relative_to(folder.resolve())


def remove(folder: Path, names: Iterable[str]) -> None:
    """Deletes files and folders of these names, as far as they are there."""
    for name in names:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def dry(config: PretrainConfig, log: Callable[[str], None]) -> Iterator[PretrainConfig]:
    """Says what would be deleted; the run within builds its records elsewhere.

    Args:
        config: of a dry run.
        log: receives a message.

    Yields:
        The config to build everything from.
    """
    folder = Path(config.run.model_dir)
    found = [name for name in OUTPUTS if (folder / name).exists()]
    if found:
        log(f"would delete the run in {folder}: {', '.join(found)}")
    if _DATA not in found or not _builds_in(folder / _DATA, config):
        yield config
        return
    with tempfile.TemporaryDirectory(prefix="electra_tf_dry_run_") as other:
        data = dataclasses.replace(config.data, data_dir=other)
        yield dataclasses.replace(config, data=data)
