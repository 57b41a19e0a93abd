"""Crash-safe checkpoints of a model and its optimizer.

A checkpoint is a flat dict of variables, ``named_variables(model, optimizer)``, saved
with ``tf.train.Checkpoint``. The names do not depend on Keras's layer counters, so any
process that builds the same model can resume.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.naming import to_snake_case

from electra_tf import files
from electra_tf.cli import Log, note, reason
from electra_tf.errors import UserError

_PREFIX = "ckpt"
# Prefix of temporary folders of unfinished saves.
_PART = ".saving-"


class CheckpointStore:
    """Saves and restores a fixed set of variables in one folder.

    Saves are atomic. ``restore_latest`` compares checksums and skips damaged
    checkpoints. With several workers, each must call ``save`` at the same steps; only
    the chief's files are kept.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        variables: Mapping[str, tf.Variable],
        *,
        keep: int = 5,
        log: Log = note,
    ):
        self.directory = Path(directory)
        files.check_checkpoint_path(self.directory)
        self._variables = {
            name: variable.value if isinstance(variable, keras.Variable) else variable
            for name, variable in variables.items()
        }
        self._keep, self._log = keep, log
        self._checkpoint = tf.train.Checkpoint(variables=self._variables)
        tensors = self._variables.values()
        owners = (getattr(v, "distribute_strategy", None) for v in tensors)
        strategies = [strategy for strategy in owners if strategy is not None]
        # A remote TPU host would write to its own disk. Untested.
        is_tpu = any(isinstance(x, tf.distribute.TPUStrategy) for x in strategies)
        device = "/job:localhost" if is_tpu else None
        self._options = tf.train.CheckpointOptions(experimental_io_device=device)
        self._writes_here = all(x.extended.should_checkpoint for x in strategies)
        if self._writes_here:
            self.directory.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(self.directory)

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints in ascending order, damaged or not."""
        return [*checkpoints_in(self.directory)]

    def save(self, step: int) -> None:
        """Saves the checkpoint of ``step``; deletes old ones beyond ``keep``."""
        # Every worker takes part in saving, but two writers would replace files.
        place = self.directory if self._writes_here else None
        # ``write`` does not create this counter, but ``restore`` expects it.
        self._checkpoint.save_counter.assign_add(1)
        try:
            with tempfile.TemporaryDirectory(prefix=_PART, dir=place) as part:
                self._checkpoint.write(f"{part}/{_PREFIX}-{step}", self._options)
                # The index comes last: a checkpoint without an index is ignored.
                for path in sorted(Path(part).iterdir()):
                    if self._writes_here:
                        files.sync(path)
                        path.replace(self.directory / path.name)
        except (OSError, tf.errors.OpError) as error:
            kept = ", ".join(map(str, self.steps())) or "none"
            raise OSError(
                f"cannot save the checkpoint of step {step} to {self.directory}: "
                f"{reason(error)}. Checkpoints still there: {kept}. Free space, then "
                "start it again without --overwrite to resume."
            ) from error
        if self._writes_here:
            # For ``tf.train.latest_checkpoint``; before the deletion of its old target.
            state = f'model_checkpoint_path: "{_PREFIX}-{step}"\n'
            files.write_text(self.directory / "checkpoint", state)
            files.sync(self.directory)
            # Later ones are damaged, since training resumed before them.
            until_now = [each for each in self.steps() if each <= step]
            for old in until_now[: -self._keep]:
                for path in sorted(self.directory.glob(f"{_PREFIX}-{old}.*"))[::-1]:
                    files.remove(path)

    def restore_latest(self) -> int | None:
        """Restores the newest intact checkpoint; returns its step, or None."""
        prefix = _newest_intact(checkpoints_in(self.directory).values(), self._log)
        if prefix is None:
            return None
        # Compared both ways: TensorFlow does not report variables without a value.
        stored = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
        shapes = {name: stored[key] for name, key in _by_name(stored).items()}
        own = {name: v.shape.as_list() for name, v in self._variables.items()}
        absent = "(absent)"
        wrong = [
            f"{name}: is {shapes.get(name, absent)}, model has {own.get(name, absent)}"
            for name in sorted(shapes.keys() | own.keys())
            if shapes.get(name) != own.get(name)
        ]
        if wrong:
            raise UserError(
                f"checkpoint {prefix} belongs to another model; {len(wrong)} variables "
                f"differ, the first: {'; '.join(wrong[:5])}. Start from its "
                "weights with --init_from."
            )
        status = self._checkpoint.restore(prefix, self._options)
        status.assert_existing_objects_matched()
        return int(prefix.rpartition("-")[2])


def read_weights(prefixes: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the learned weights of a model by name, from the last intact checkpoint.

    Leaves out optimizer, counters and seeds.
    """
    files.check_checkpoint_path(prefixes[0])
    prefix = _newest_intact(prefixes, note)
    reader = tf.train.load_checkpoint(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    return {
        name: reader.get_tensor(key)
        for name, key in _by_name(dtypes).items()
        if name.startswith("model/") and dtypes[key].is_floating
    }


def _by_name(stored: Iterable[str]) -> dict[str, str]:
    """Returns the keys of ``tf.train.Checkpoint(variables=...)`` by variable name."""
    keys = {}
    for key in stored:
        if match := re.fullmatch(r"variables/([^/]+)/\.ATTRIBUTES/.*", key):
            name = re.sub(r"\.(S|\.)", lambda m: {"S": "/", ".": "."}[m[1]], match[1])
            keys[name] = key
    return keys


def checkpoints_in(directory: str | os.PathLike) -> dict[int, str]:
    """Returns the prefixes of all checkpoints by ascending step, damaged or not."""
    folder = Path(directory)
    names = (p.name for p in folder.glob(f"{_PREFIX}-*.index"))
    matches = (re.fullmatch(rf"{_PREFIX}-(\d+)\.index", name) for name in names)
    steps = sorted(int(match[1]) for match in matches if match)
    return {step: str(folder / f"{_PREFIX}-{step}") for step in steps}


def _newest_intact(prefixes: Iterable[str], log: Log) -> str | None:
    """Returns the last intact checkpoint or None; raises OSError if all are damaged.

    Reads all tensors: a restore that fails halfway would mix two checkpoints.
    """
    damaged = []
    for prefix in reversed([*prefixes]):
        try:
            reader = tf.train.load_checkpoint(prefix)
            for key in reader.get_variable_to_shape_map():
                reader.get_tensor(key)
        # The reader raises built-in exceptions of many types.
        except Exception as error:
            damaged.append(f"{prefix}: {reason(error)}")
        else:
            for each in damaged:
                log(f"damaged checkpoint is not used: {each}")
            return prefix
    if damaged:
        raise OSError(
            f"no intact checkpoint: {'; '.join(damaged)}. Restore the files from a "
            "copy, or train into a new folder."
        )
    return None


def _remove_leftovers(directory: Path) -> None:
    """Removes files of killed saves, so that they do not count as damaged."""
    for part in directory.glob(f"{_PREFIX}-*_temp"):
        # Up to version 0.2, the index was written in place while this folder existed.
        prefix = str(part).removesuffix("_temp")
        try:
            _newest_intact([prefix], note)
        except OSError:
            files.remove(f"{prefix}.index")
        files.remove(part)
    steps = checkpoints_in(directory)
    for path in directory.iterdir():
        data = re.match(rf"{_PREFIX}-(\d+)\.data-", path.name)
        has_no_index = data is not None and int(data[1]) not in steps
        if has_no_index or path.name.startswith(_PART):
            files.remove(path)


def named_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None
) -> dict[str, keras.Variable]:
    """Returns the variables of a built model and optimizer under reproducible names.

    Names are ``model/<path>``, ``optimizer/<slot>/<path>`` and ``optimizer/<name>``.
    Numbers in automatic layer names become the index among siblings. Metrics are
    excluded. The order is the order of creation.
    """
    automatic = {
        layer.name
        for layer in model._flatten_layers()
        if re.fullmatch(rf"{to_snake_case(type(layer).__name__)}(_\d+)?", layer.name)
    }
    siblings: dict[tuple, list[str]] = {}
    unique = {id(v): v for v in model.variables}.values()
    paths = [(v, _numbered(v.path, automatic, siblings)) for v in unique]
    pairs = [(f"model/{path}", v) for v, path in paths]
    if optimizer is not None:
        # Keras joins the parts of a slot's name with _.
        slots = {
            f"{v.path.replace('/', '_')}_{slot}": f"{slot}/{path}"
            for v, path in paths
            for slot in ("momentum", "velocity")
        }
        # Keras's loss-scale optimizer also lists the variables of the inner optimizer.
        inner = getattr(optimizer, "inner_optimizer", None)
        of_inner = {id(v) for v in inner.variables} if inner else set()
        for variable in optimizer.variables:
            place = "optimizer/inner" if id(variable) in of_inner else "optimizer"
            leaf = variable.path.rsplit("/", 1)[-1]
            pairs.append((f"{place}/{slots.get(leaf, leaf)}", variable))
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"several variables are called {', '.join(twice[:5])}: rename their layers."
        )
    return dict(pairs)


def _numbered(path: str, automatic: set[str], known: dict[tuple, list[str]]) -> str:
    """Replaces the numbers in automatic layer names by the index among siblings."""
    renamed: list[str] = []
    for part in path.split("/"):
        base = re.sub(r"_\d+$", "", part)
        if part in automatic or base == "seed_generator":
            siblings = known.setdefault((*renamed, base), [])
            if part not in siblings:
                siblings.append(part)
            index = siblings.index(part)
            part = f"{base}_{index}" if index else base
        renamed.append(part)
    return "/".join(renamed)
