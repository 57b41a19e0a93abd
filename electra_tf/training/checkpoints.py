"""Checkpoints that survive a crash: whole or not there, under names of our own.

Resumable state is a flat dict of name to variable, ``named_variables(model,
optimizer)``, saved through ``tf.train.CheckpointManager``. The names do not depend on
how many layers Keras has counted in the process, so any process that builds the same
model can resume.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from electra_tf import files
from electra_tf.cli import Log, reason
from electra_tf.errors import UserError

_PREFIX = "ckpt"
_ABSENT = "(absent)"


class CheckpointStore:
    """Saves and restores a fixed set of variables in one folder.

    ``save`` is atomic: a process that dies while saving leaves the previous checkpoints
    usable. ``restore_latest`` reads every tensor of the newest checkpoint against its
    checksum first, and takes the one before if anything is wrong.

    Under a strategy of several workers every worker must call ``save`` at the same
    steps; all but the chief then write to a temporary folder.

    Args:
        directory: folder of the checkpoints, created if missing.
        variables: by name, as ``named_variables`` returns them.
        keep: number of checkpoints to keep; None keeps all.
        log: is told of damaged checkpoints; None uses Python's ``logging``.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        variables: Mapping[str, tf.Variable],
        *,
        keep: int | None = 5,
        log: Log | None = None,
    ):
        self.directory = Path(directory)
        self._variables = {name: _raw(v) for name, v in variables.items()}
        self._log = log or logging.getLogger(__name__).warning
        self._checkpoint = tf.train.Checkpoint(variables=self._variables)
        self._writes_here = _should_checkpoint(self._variables.values())
        if self._writes_here:
            self._folder = self.directory
            self._folder.mkdir(parents=True, exist_ok=True)
            # In this order, and both before the manager reads the folder: what has no
            # index is no checkpoint, and the manager's list must name all that are.
            _remove_leftovers(self._folder)
            _repair_state(self._folder)
        else:
            # Saving is a collective operation, so these workers must take part in it,
            # but two writers of one folder would delete each other's files.
            self._temporary = tempfile.TemporaryDirectory(prefix="electra_tf_worker_")
            self._folder = Path(self._temporary.name)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            str(self._folder),
            max_to_keep=keep,
            checkpoint_name=_PREFIX,
        )

    def steps(self) -> list[int]:
        """Steps of the checkpoints in the folder, whole or not, oldest first."""
        return _steps(self.directory)

    def save(self, step: int) -> None:
        """Writes the checkpoint of ``step`` and deletes those beyond ``keep``.

        Raises OSError: the checkpoint could not be written (a full disk, most often);
        the previous checkpoints are untouched and nothing of this one remains.
        """
        # TensorFlow writes the data, then the index, which makes it a checkpoint, then
        # its list of checkpoints, and only then deletes the oldest: whenever the
        # process dies, the newest whole checkpoint is listed or found by its index.
        try:
            self._manager.save(checkpoint_number=step)
        except (OSError, tf.errors.OpError) as error:
            # On a full disk the part that was written is in the way of everything.
            for path in self._folder.glob(f"{_PREFIX}-{step}[._]*"):
                files.remove(path)
            kept = ", ".join(map(str, _steps(self._folder))) or "none"
            raise OSError(
                f"cannot save the checkpoint of step {step} to {self._folder}: "
                f"{reason(error)}. Checkpoints still there: {kept}. Free space "
                "there or lower the number of checkpoints to keep, then start the same "
                "command again to resume."
            ) from error
        if not self._writes_here:
            for path in self._folder.glob(f"{_PREFIX}-*"):
                files.remove(path)

    def restore_latest(self) -> int | None:
        """Restores the newest whole checkpoint; its step, None if there is none.

        Raises:
            OSError: there are checkpoints, but every one is damaged.
            ValueError: the newest whole one holds other variables than these.
        """
        prefix, damaged = _newest_whole(_prefixes(self.directory))
        for each, damage in damaged.items():
            self._log(f"checkpoint {each} is damaged and not used: {damage}")
        if not prefix and damaged:
            raise OSError(
                f"all {len(damaged)} checkpoints in {self.directory} are damaged: "
                f"{_listed(damaged)}. Restore the folder from a copy, or train into a "
                "new one."
            )
        if not prefix:
            return None
        # Compared both ways: TensorFlow says nothing of variables left as they are.
        shapes = _shapes(prefix)
        own = {name: v.shape.as_list() for name, v in self._variables.items()}
        wrong = [
            f"{name}: is {shapes.get(name, _ABSENT)}, model has "
            f"{own.get(name, _ABSENT)}"
            for name in sorted(shapes.keys() | own.keys())
            if shapes.get(name) != own.get(name)
        ]
        if wrong:
            raise UserError(
                f"checkpoint {prefix} belongs to another model; {len(wrong)} variables "
                f"differ, the first: {'; '.join(wrong[:5])}. Build the model it was "
                "saved from, or start from its weights only."
            )
        self._checkpoint.restore(prefix).assert_existing_objects_matched()
        return int(prefix.rpartition("-")[2])


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What ``load_weights`` did, by name of the variable.

    Attributes:
        missing: what the checkpoint lacks, whose values were kept.
        unused: what only the checkpoint has.
        unfit: parts of other shapes, which were kept, too.
    """

    restored: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    unfit: tuple[str, ...] = ()

    def __str__(self) -> str:
        kept = ""
        if self.unfit:
            kept = f"; of another shape, so it starts anew: {', '.join(self.unfit)}"
        return (
            f"restored {len(self.restored)} variables{kept}; not in the checkpoint and "
            f"kept as initialized: {', '.join(self.missing) or 'none'}; in the "
            f"checkpoint and not used: {', '.join(self.unused) or 'none'}"
        )


def load_weights(
    path: str | os.PathLike,
    variables: Mapping[str, tf.Variable],
    *,
    aliases: Mapping[str, str] | None = None,
    optional: Callable[[str], str | None] = lambda name: None,
) -> LoadReport:
    """Copies the values a checkpoint has for ``variables``, and says what it did.

    ``path`` is a checkpoint prefix (".../ckpt-100") or a folder, whose newest whole
    checkpoint is taken. Only the given variables are changed. A variable that is not
    there is also looked for with another beginning of its name, those of ``aliases``.
    ``optional`` names the part of the model that a variable belongs to, if that part
    may start anew: nothing is taken of one with other variables or shapes there.

    Raises:
        OSError: no whole checkpoint at ``path``.
        ValueError: shapes differ (all are named, nothing is changed), or the checkpoint
            has none of the names.
    """
    path = Path(path)
    prefix, damaged = _newest_whole(
        _prefixes(path) if path.is_dir() else [str(path).removesuffix(".index")]
    )
    if not prefix:
        why = _listed(damaged) or "the folder has none"
        raise OSError(f"no whole checkpoint at {path}: {why}.")
    shapes = _shapes(prefix)
    stored = {name: name for name in variables}
    for ours, theirs in (aliases or {}).items():
        for name in variables:
            if name not in shapes and name.startswith(ours):
                stored[name] = theirs + name.removeprefix(ours)
    found = {name: shapes[stored[name]] for name in variables if stored[name] in shapes}
    differ = [name for name in found if found[name] != list(variables[name].shape)]
    lacking = [name for name in variables if name not in found]
    unused = sorted(shapes.keys() - {*stored.values()})
    unlike = {optional(name) for name in (*differ, *lacking, *unused)}
    unfit = (unlike & {optional(name) for name in found}) - {None}
    shared = [name for name in found if optional(name) not in unfit]
    wrong = [
        f"{name}: checkpoint {found[name]}, model {list(variables[name].shape)}"
        for name in differ
        if not optional(name)
    ]
    if wrong:
        raise UserError(
            f"checkpoint {prefix} does not fit: {'; '.join(wrong)}. Build the model "
            "with the sizes of the checkpoint, or leave these variables out."
        )
    if not shared:
        raise UserError(
            f"checkpoint {prefix} has none of the {len(variables)} variables; it has "
            f"{', '.join(sorted(shapes)[:5])}, ..."
        )
    reader = tf.train.load_checkpoint(prefix)
    for name in shared:
        _raw(variables[name]).assign(reader.get_tensor(_key(stored[name])))
    return LoadReport(
        restored=tuple(shared),
        missing=tuple(name for name in lacking if optional(name) not in unfit),
        unused=tuple(name for name in unused if optional(name) not in unfit),
        unfit=tuple(sorted(unfit)),
    )


def _raw(variable: tf.Variable | keras.Variable) -> tf.Variable:
    return variable if isinstance(variable, tf.Variable) else variable.value


def _should_checkpoint(variables: Iterable[tf.Variable]) -> bool:
    strategies = [getattr(v, "distribute_strategy", None) for v in variables]
    return all(s.extended.should_checkpoint for s in strategies if s is not None)


def _key(name: str) -> str:
    """Key that ``tf.train.Checkpoint(variables={name: ...})`` gives a variable."""
    escaped = name.replace(".", "..").replace("/", ".S")
    return f"variables/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"


def _shapes(prefix: str) -> dict[str, list[int]]:
    """Shapes of the variables of a checkpoint, by our names: undoes ``_key``."""
    named = {}
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    for key, shape in shapes.items():
        if match := re.fullmatch(r"variables/([^/]+)/\.ATTRIBUTES/.*", key):
            name = re.sub(r"\.(S|\.)", lambda m: {"S": "/", ".": "."}[m[1]], match[1])
            named[name] = list(shape)
    return named


def _steps(directory: Path) -> list[int]:
    names = (p.name for p in directory.glob(f"{_PREFIX}-*.index"))
    matches = (re.fullmatch(rf"{_PREFIX}-(\d+)\.index", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def checkpoints_in(directory: str | os.PathLike) -> dict[int, str]:
    """Prefixes of a folder's checkpoints, whole or not, by step, the oldest first."""
    folder = Path(directory)
    return {step: str(folder / f"{_PREFIX}-{step}") for step in _steps(folder)}


def _prefixes(directory: Path) -> list[str]:
    """Prefixes of the checkpoints of a folder, the newest first."""
    # By the files and not by TensorFlow's list, which may be older than they are.
    return [*checkpoints_in(directory).values()][::-1]


def _newest_whole(prefixes: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """The first checkpoint that can be read in full, and what is wrong before it.

    All is read before anything is restored: a restore that fails halfway would leave a
    mixture of two checkpoints in the variables.
    """
    damaged = {}
    for prefix in prefixes:
        try:
            reader = tf.train.load_checkpoint(prefix)
            for key in reader.get_variable_to_shape_map():
                reader.get_tensor(key)
        # The reader maps its states to builtins of all kinds.
        except Exception as error:
            damaged[prefix] = reason(error)
        else:
            return prefix, damaged
    return None, damaged


def _listed(damaged: Mapping[str, str]) -> str:
    return "; ".join(f"{prefix}: {damage}" for prefix, damage in damaged.items())


def _remove_leftovers(directory: Path) -> None:
    """Removes the files of saves that were killed.

    TensorFlow collects a save in a folder ``ckpt-N_temp``, moves the data, writes the
    index in place and removes the folder. If the folder is still there, the index may
    be cut short; such a checkpoint never was whole, so it does not count as damaged.
    """
    for path in directory.glob(f"{_PREFIX}-*_temp"):
        prefix = str(path).removesuffix("_temp")
        whole, _ = _newest_whole([prefix])
        if whole is None:
            for part in directory.glob(f"{Path(prefix).name}.*"):
                files.remove(part)
        files.remove(path)
    # The index is written last: data without one is a save that did not end.
    steps = set(_steps(directory))
    for path in directory.glob(f"{_PREFIX}-*.data-*"):
        match = re.match(rf"{_PREFIX}-(\d+)\.", path.name)
        if match and int(match[1]) not in steps:
            files.remove(path)


def _repair_state(directory: Path) -> None:
    """Lets the manager know all checkpoints there are, whatever its own file says.

    The file is missing or old where a process died between index and list, or where
    somebody has copied or deleted checkpoints. The manager would never delete those
    that are not in it.
    """
    prefixes = _prefixes(directory)[::-1]
    if prefixes:
        state = tf.compat.v1.train.generate_checkpoint_state_proto(
            str(directory),
            prefixes[-1],
            all_model_checkpoint_paths=prefixes,
            # Times from 1 on: the manager counts only what is later than the last
            # checkpoint that it preserves, in this order.
            all_model_checkpoint_timestamps=range(1, len(prefixes) + 1),
            last_preserved_timestamp=0,
        )
        files.write_text(directory / "checkpoint", str(state))


def named_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None
) -> dict[str, keras.Variable]:
    """All state of a model and its optimizer under names that any process reproduces.

    Model variables are called ``model/<path>``, with numbers Keras appended to
    automatic layer names replaced by the order among siblings; slots of the optimizer
    ``optimizer/<slot>/<path>``, its scalars ``optimizer/<name>``. Metrics are not
    included.

    The model and the optimizer are built; the dict is in the order of creation. Raises
    ValueError: two variables have the same name.
    """
    automatic = {
        layer.name
        for layer in model._flatten_layers()
        if re.fullmatch(rf"{_snake_case(type(layer).__name__)}(_\d+)?", layer.name)
    }
    number = _SiblingNumbers(automatic)
    unique = {id(v): v for v in model.variables}.values()
    paths = [(v, number(v.path)) for v in unique]
    pairs = [(f"model/{path}", v) for v, path in paths]
    if optimizer is not None:
        by_key = {v.path.replace("/", "_"): path for v, path in paths}
        pairs += _optimizer_pairs(optimizer, by_key, "optimizer")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"several variables are called {', '.join(twice[:5])}; give the layers "
            "that own them different names."
        )
    return dict(pairs)


class _SiblingNumbers:
    """Replaces the numbers of automatic names by the order under the same parent."""

    def __init__(self, automatic: set[str]):
        self._automatic = automatic
        self._given: dict[tuple, dict[str, int]] = {}

    def __call__(self, path: str) -> str:
        renamed: list[str] = []
        for part in path.split("/"):
            base = re.sub(r"_\d+$", "", part)
            if part in self._automatic or base == "seed_generator":
                given = self._given.setdefault((*renamed, base), {})
                index = given.setdefault(part, len(given))
                part = f"{base}_{index}" if index else base
            renamed.append(part)
        return "/".join(renamed)


def _optimizer_pairs(
    optimizer: keras.optimizers.Optimizer, by_key: Mapping[str, str], prefix: str
) -> list[tuple[str, keras.Variable]]:
    # Keras's loss scaling wraps an optimizer, and lists its variables as its own.
    inner = getattr(optimizer, "inner_optimizer", None)
    inner_ids = {id(v) for v in inner.variables} if inner else set()
    own = [v for v in optimizer.variables if id(v) not in inner_ids]
    pairs = [(f"{prefix}/{_slot_name(v, by_key)}", v) for v in own]
    return pairs + (_optimizer_pairs(inner, by_key, f"{prefix}/inner") if inner else [])


def _slot_name(variable: keras.Variable, by_key: Mapping[str, str]) -> str:
    """``<slot>/<path>``; Keras joins the two, and the parts of the path, by _."""
    leaf = variable.path.rsplit("/", 1)[-1]
    owners = [key for key in by_key if leaf.startswith(f"{key}_")]
    if not owners:
        return leaf
    # The longest: the path of one variable may be the beginning of another's.
    owner = max(owners, key=len)
    return f"{leaf[len(owner) + 1 :]}/{by_key[owner]}"


def _snake_case(name: str) -> str:
    """What Keras makes of a class name for an automatic layer name."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
