"""Checkpoints that survive a crash: whole or not there, under names of our own.

Resumable state is a flat dict of name to variable, `named_variables(model, optimizer)`,
saved through `tf.train.CheckpointManager`. The names do not depend on how many layers
Keras has counted in the process, so any process that builds the same model can resume.
"""

import dataclasses
import logging
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping

import tensorflow as tf

from electra_tf.training.naming import named_variables
from electra_tf.training.run_config import check_config, write_config

__all__ = [
    "CheckpointStore",
    "LoadReport",
    "check_config",
    "load_weights",
    "named_variables",
    "write_config",
]

_PREFIX = "ckpt"
_ABSENT = "(absent)"


class CheckpointStore:
    """Saves and restores a fixed set of variables in one folder.

    `save` is atomic: a process that dies while saving leaves the previous checkpoints
    usable. `restore_latest` reads every tensor of the newest checkpoint against its
    checksum first, and falls back to the one before if anything is wrong.

    Under a strategy of several workers every worker must call `save` at the same steps;
    all but the chief then write to a temporary folder.

    Args:
        directory: folder of the checkpoints, created if missing.
        variables: dict of name to variable, as of `named_variables`.
        keep: number of checkpoints to keep; None keeps all.
        log: callable that is told of damaged checkpoints, one string per call.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        variables: Mapping[str, tf.Variable],
        *,
        keep: int | None = 5,
        log: Callable[[str], None] | None = None,
    ):
        self.directory = pathlib.Path(directory)
        self._variables = {name: _raw(v) for name, v in variables.items()}
        self._log = log or logging.getLogger(__name__).warning
        self._checkpoint = tf.train.Checkpoint(variables=self._variables)
        self._writes_here = _should_checkpoint(self._variables.values())
        if self._writes_here:
            self.directory.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(self.directory)
            _repair_state(self.directory)
            folder = self.directory
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="electra_tf_worker_")
            folder = pathlib.Path(self._temporary.name)
        self._folder = folder
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(folder), max_to_keep=keep, checkpoint_name=_PREFIX
        )

    def steps(self) -> list[int]:
        """Steps of the checkpoints in the folder, whole or not, oldest first."""
        return _steps(self.directory)

    def save(self, step: int) -> None:
        """Writes the checkpoint of `step` and deletes those beyond `keep`.

        Raises:
            OSError: the checkpoint could not be written (a full disk, most often); the
                previous checkpoints are untouched and nothing of this one remains.
        """
        try:
            self._manager.save(checkpoint_number=step)
        except (OSError, tf.errors.OpError) as error:
            for path in self._folder.glob(f"{_PREFIX}-{step}[._]*"):
                _remove(path)
            kept = ", ".join(map(str, _steps(self._folder))) or "none"
            raise OSError(
                f"cannot save the checkpoint of step {step} to {self._folder}: "
                f"{_first_line(error)}. Checkpoints still there: {kept}. Free space "
                "there or lower the number of checkpoints to keep, then start the same "
                "command again to resume."
            ) from error
        if not self._writes_here:
            for path in self._folder.glob(f"{_PREFIX}-*"):
                _remove(path)

    def restore_latest(self) -> int | None:
        """Restores the newest whole checkpoint.

        Returns:
            Its step, or None if the folder has no checkpoint.

        Raises:
            OSError: there are checkpoints, but every one is damaged.
            ValueError: the newest whole one holds other variables than these.
        """
        damaged = []
        for step in reversed(self.steps()):
            prefix = str(self.directory / f"{_PREFIX}-{step}")
            reason = _damage(prefix)
            if reason is None:
                self._check_names(prefix)
                self._checkpoint.restore(prefix).assert_existing_objects_matched()
                return step
            self._log(f"checkpoint {prefix} is damaged and not used: {reason}")
            damaged.append(f"{prefix}: {reason}")
        if damaged:
            raise OSError(
                f"all {len(damaged)} checkpoints in {self.directory} are damaged: "
                f"{'; '.join(damaged)}. Restore the folder from a copy, or train into "
                "a new one."
            )
        return None

    def _check_names(self, prefix):
        shapes = _shapes(prefix)
        own = {name: v.shape.as_list() for name, v in self._variables.items()}
        wrong = [
            f"{name}: is {shapes.get(name, _ABSENT)}, model has "
            f"{own.get(name, _ABSENT)}"
            for name in sorted(shapes.keys() | own.keys())
            if shapes.get(name) != own.get(name)
        ]
        if wrong:
            raise ValueError(
                f"checkpoint {prefix} belongs to another model; {len(wrong)} variables "
                f"differ, the first: {'; '.join(wrong[:5])}. Build the model it was "
                "saved from, or start from its weights only."
            )


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What `load_weights` did: names restored, kept as they were, and left unread."""

    restored: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self):
        return (
            f"restored {len(self.restored)} variables; not in the checkpoint and kept "
            f"as initialized: {', '.join(self.missing) or 'none'}; in the checkpoint "
            f"and not used: {', '.join(self.unused) or 'none'}"
        )


def load_weights(
    path: str | os.PathLike, variables: Mapping[str, tf.Variable]
) -> LoadReport:
    """Copies the values a checkpoint has for `variables`, and says what it did.

    Args:
        path: checkpoint prefix (".../ckpt-100") or a folder, whose newest whole
            checkpoint is taken.
        variables: dict of name to variable; only these are changed.

    Returns:
        A `LoadReport`.

    Raises:
        OSError: no whole checkpoint at `path`.
        ValueError: shapes differ (all are named, nothing is changed), or the checkpoint
            has none of the names.
    """
    prefix = _whole_prefix(pathlib.Path(path))
    shapes = _shapes(prefix)
    found = [name for name in variables if name in shapes]
    wrong = [
        f"{name}: checkpoint {shapes[name]}, model {list(variables[name].shape)}"
        for name in found
        if shapes[name] != list(variables[name].shape)
    ]
    if wrong:
        raise ValueError(
            f"checkpoint {prefix} does not fit: {'; '.join(wrong)}. Build the model "
            "with the sizes of the checkpoint, or leave these variables out."
        )
    if not found:
        raise ValueError(
            f"checkpoint {prefix} has none of the {len(variables)} variables; it has "
            f"{', '.join(sorted(shapes)[:5])}, ..."
        )
    reader = tf.train.load_checkpoint(prefix)
    for name in found:
        _raw(variables[name]).assign(reader.get_tensor(_key(name)))
    return LoadReport(
        restored=tuple(found),
        missing=tuple(name for name in variables if name not in shapes),
        unused=tuple(sorted(shapes.keys() - variables.keys())),
    )


def _raw(variable):
    return variable if isinstance(variable, tf.Variable) else variable.value


def _should_checkpoint(variables):
    strategies = [getattr(v, "distribute_strategy", None) for v in variables]
    return all(s.extended.should_checkpoint for s in strategies if s is not None)


def _key(name):
    escaped = name.replace(".", "..").replace("/", ".S")
    return f"variables/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"


def _shapes(prefix):
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    names = (re.fullmatch(r"variables/([^/]+)/\.ATTRIBUTES/.*", key) for key in shapes)
    return {
        re.sub(r"\.(S|\.)", lambda m: {"S": "/", ".": "."}[m[1]], match[1]): list(
            shapes[match[0]]
        )
        for match in names
        if match
    }


def _steps(directory):
    names = (p.name for p in directory.glob(f"{_PREFIX}-*.index"))
    found = (re.fullmatch(rf"{_PREFIX}-(\d+)\.index", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def _damage(prefix):
    """Reason why a checkpoint cannot be read in full, None if it can."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    except Exception as error:  # The reader maps its states to builtins of all kinds.
        return _first_line(error)
    return None


def _whole_prefix(path):
    if not path.is_dir():
        prefixes = [str(path).removesuffix(".index")]
    else:
        prefixes = [str(path / f"{_PREFIX}-{step}") for step in reversed(_steps(path))]
    reasons = []
    for prefix in prefixes:
        reason = _damage(prefix)
        if reason is None:
            return prefix
        reasons.append(f"{prefix}: {reason}")
    raise OSError(
        f"no whole checkpoint at {path}: {'; '.join(reasons) or 'the folder has none'}."
    )


def _remove_leftovers(directory):
    """Removes what a save that was killed left behind."""
    for path in directory.glob(f"{_PREFIX}-*_temp"):
        _remove(path)
    steps = set(_steps(directory))
    for path in directory.glob(f"{_PREFIX}-*.data-*"):
        match = re.match(rf"{_PREFIX}-(\d+)\.", path.name)
        if match and int(match[1]) not in steps:
            _remove(path)


def _repair_state(directory):
    """Lets the manager know all checkpoints there are, whatever its own file says."""
    prefixes = [str(directory / f"{_PREFIX}-{step}") for step in _steps(directory)]
    if prefixes:
        tf.compat.v1.train.update_checkpoint_state(
            str(directory),
            prefixes[-1],
            all_model_checkpoint_paths=prefixes,
            # Only later than the last preserved one are counted, in this order.
            all_model_checkpoint_timestamps=range(1, len(prefixes) + 1),
            last_preserved_timestamp=0,
        )


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
