"""Starting a pretraining run from the weights of another: `--init_from`.

A folder of weights brings its vocabulary. Sizes, vocabulary and casing must be those of
the run; what differs is said before any record is built.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import keras
import numpy as np

from electra_tf import config as config_lib
from electra_tf.build import PretrainingData
from electra_tf.config import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.interop.tensor_files import read_json
from electra_tf.pretraining import PretrainingModel
from electra_tf.training.checkpoints import LoadReport, load_weights, named_variables

_SIZES = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "intermediate_size",
    "embedding_size",
    "max_positions",
)
_GENERATOR = ("generator_hidden_size", "generator_layers")
_CASING = ("lower_case", "strip_accents")


def with_vocabulary(config: PretrainConfig) -> PretrainConfig:
    """The config with the vocabulary of `--init_from`, unless it names one itself."""
    if not config.run.init_from or config.data.vocab_file or config.data.records:
        return config
    # A run that goes on does not need the other one anymore.
    for folder in (_home(config.run.init_from), Path(config.run.model_dir)):
        path = folder / "vocab.txt"
        if path.is_file():
            data = dataclasses.replace(config.data, vocab_file=str(path))
            return dataclasses.replace(config, data=data)
    return config


def _home(init_from):
    """The folder of a run, also if one of its checkpoints is given."""
    path = Path(init_from)
    for folder in (path, path.parent):
        if folder.name == "checkpoints":
            return folder.parent
    return path


def check(config: PretrainConfig, data: PretrainingData) -> None:
    """Compares the run with what `--init_from` says of itself in its config.json.

    Raises:
        ValueError: Sizes, vocabulary or casing differ; all are named, with the flags
            to pass.
    """
    if not config.run.init_from:
        return
    folder = _home(config.run.init_from)
    differences, remedies = [], []
    flags = read_json(folder / "config.json").get("config", {})
    for flag, there, here in _differences(config, flags):
        differences.append(f"{flag} is {there} there and {here} here")
        remedies += _remedy(flag, there)
    theirs = folder / "vocab.txt"
    if theirs.is_file() and Vocabulary.load(theirs).sha256 != data.vocabulary.sha256:
        differences.append("the vocabulary is another one")
        remedies.append(f"--vocab_file={theirs} (and records built with it)")
    if differences:
        raise ValueError(
            f"--init_from={folder} does not fit this run: {'; '.join(differences)}. "
            f"Pass {' '.join(remedies)}."
        )


def _differences(config, flags):
    """Yields (flag, value there, value here) of what must be the same and is not."""
    here = config_lib.to_flat(config)
    for flag in (*_SIZES, *_CASING):
        if flag in flags and flags[flag] != here[flag]:
            yield flag, flags[flag], here[flag]
    fractions = {
        "generator_hidden_size": "hidden_size",
        "generator_layers": "num_layers",
    }
    if flags.get("objective") != here["objective"] or not flags.keys() >= {*fractions}:
        return
    # Fractions may differ where the sizes do not: 0.33333 and 1/3 of 768 are 256.
    for flag, size in fractions.items():
        there = max(1, round(flags[flag] * flags[size]))
        if flags[size] == here[size] and there != getattr(
            config.generator_encoder, size
        ):
            yield flag, flags[flag], here[flag]


def _remedy(flag, value):
    if isinstance(value, bool):
        return [f"--{'' if value else 'no'}{flag}"]
    return [f"--{flag}={value:g}" if isinstance(value, float) else f"--{flag}={value}"]


def load(init_from: str, model: PretrainingModel) -> LoadReport:
    """Copies the weights of a run, a checkpoint or an imported folder into `model`.

    A folder's checkpoints come first, then its saved models: `generator.keras` and
    `discriminator.keras` with their heads, `encoder.keras` for what they leave.

    Args:
        init_from: The folder, or a checkpoint.
        model: Built.

    Returns:
        Which variables were restored and which are as they were.

    Raises:
        ValueError: Something does not fit; nothing is changed then.
        OSError: There are no weights.
    """
    path = Path(init_from)
    trained = {n: v for n, v in named_variables(model).items() if v.trainable}
    saved = {
        name: part
        for name, part in model.artifacts().items()
        if (path / f"{name}.keras").is_file()
    }
    if (path / "checkpoints").is_dir():
        return load_weights(path / "checkpoints", trained)
    if not saved:
        return load_weights(path, trained)
    values, wrong = {}, []
    # The encoder last: it is part of the others, and they come with their heads.
    for name in sorted(saved, key="encoder".__eq__):
        _collect(path / f"{name}.keras", saved[name], values, wrong)
    if wrong:
        raise ValueError(
            f"{init_from} does not fit the model of this run: {'; '.join(wrong[:5])}. "
            "Set the sizes of the run to those of the weights."
        )
    names = {id(variable): name for name, variable in trained.items()}
    restored = [
        (names[id(variable)], variable, value) for variable, value in values.values()
    ]
    for _, variable, value in restored:
        variable.assign(value)
    done = {name for name, _, _ in restored}
    return LoadReport(
        restored=tuple(name for name in trained if name in done),
        missing=tuple(name for name in trained if name not in done),
        unused=(),
    )


def _collect(path, part, values, wrong):
    """Notes the value in a file for each variable of `part`, and what does not fit."""
    here = part.trainable_variables
    if path.stem == "encoder" and all(id(variable) in values for variable in here):
        return
    try:
        loaded = keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras raises whatever its parts raise.
        raise ValueError(
            f"{path} cannot be loaded as a Keras model: {error}"
        ) from error
    there = loaded.trainable_variables
    ours, theirs = [_kind(v) for v in here], [_kind(v) for v in there]
    # No shape tells the number of heads.
    heads = [getattr(m, "encoder", m).num_heads for m in (loaded, part)]
    if heads[0] != heads[1]:
        wrong.append(f"{path.name}: num_heads {heads[0]}, this run has {heads[1]}")
    if ours != theirs:
        wrong += [
            f"{path.name}: {_said(other)}, this run has {_said(own)}"
            for own, other in _unequal(dict(ours), dict(theirs))
        ] or [f"{path.name}: the variables come in another order"]
        return
    for variable, other in zip(here, there, strict=True):
        value = other.numpy()
        _, known = values.setdefault(id(variable), (variable, value))
        if not np.array_equal(known, value):
            wrong.append(f"{path.name}: {other.path} differs from the generator's")


def _kind(variable):
    """What identifies a variable whatever its model is called: its place and shape."""
    *parents, leaf = variable.path.split("/")
    place = [parent for parent in parents if re.fullmatch(r"layer_\d+|.*_head", parent)]
    return "/".join([*place, leaf]), tuple(variable.shape)


def _unequal(ours, theirs):
    """Yields name and shape here and there, of what differs."""
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            yield (name, ours.get(name)), (name, theirs.get(name))


def _said(kind):
    name, shape = kind
    return f"no {name}" if shape is None else f"{name} {list(shape)}"
