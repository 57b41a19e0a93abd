"""Starting a pretraining run from the weights of another: `--init_from`.

A folder of weights brings its vocabulary. Sizes, vocabulary and casing must be those of
the run; what differs is said before any record is built.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np

from electra_tf import config as config_lib
from electra_tf import model_folder
from electra_tf.build import PretrainingData
from electra_tf.config import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.interop.networks import load_model
from electra_tf.interop.tensor_files import FILES as HUGGING_FACE_FILES
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.phases import learned_weights
from electra_tf.training.checkpoints import LoadReport, load_weights, named_variables

_SIZES = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "intermediate_size",
    "embedding_size",
    "max_positions",
)
_GENERATOR = {
    "generator_hidden_size": "hidden_size",
    "generator_layers": "num_layers",
}
_CASING = ("lower_case", "strip_accents")


def with_vocabulary(config: PretrainConfig) -> PretrainConfig:
    """The config with the vocabulary of `--init_from`, unless it names one itself."""
    if not config.run.init_from or config.data.vocab_file or config.data.records:
        return config
    # A run that goes on does not need the other one anymore.
    own = () if config.run.overwrite else (Path(config.run.model_dir),)
    for folder in (_home(config.run.init_from), *own):
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


def check(config: PretrainConfig, data: PretrainingData | None = None) -> None:
    """Compares the run with what `--init_from` says of itself in its config.json.

    Args:
        config: Of the run.
        data: Of the run; None before it is made, which leaves out what only records
            tell.

    Raises:
        ValueError: Sizes, vocabulary or casing differ; all are named, with the flags
            to pass. Or the weights are in a format that has to be converted first.
        OSError: There are no weights.
    """
    if not config.run.init_from:
        return
    # A run that goes on does not need the other one anymore.
    if not any(Path(config.run.model_dir).glob("checkpoints/*.index")):
        _check_weights(config.run.init_from)
    folder = _home(config.run.init_from)
    described = model_folder.read_config(folder)
    there = model_folder.flags(described) | model_folder.casing(described)
    differences, remedies = [], []
    for flag, value, other in _differences(there, _here(config, data)):
        differences.append(f"{flag} is {value} there and {other} here")
        remedies.append(_remedy(flag, value))
    theirs, ours = folder / "vocab.txt", _vocabulary(config, data)
    if ours and theirs.is_file() and Vocabulary.load(theirs).sha256 != ours.sha256:
        differences.append("the vocabulary is another one")
        remedies.append(f"--vocab_file={theirs} (and records built with it)")
    if differences:
        raise ValueError(
            f"--init_from={config.run.init_from} does not fit this run: "
            f"{'; '.join(differences)}. Pass {' '.join(remedies)}."
        )


def _check_weights(init_from):
    """Refuses what `load` would find no weights in, before hours of other work."""
    path = Path(init_from)
    if path.with_name(f"{path.name}.index").is_file():
        return
    if any(any(path.glob(kind)) for kind in ("*.keras", "*.index", "checkpoints/*")):
        return
    if any((path / name).is_file() for name in HUGGING_FACE_FILES):
        raise ValueError(
            f"--init_from={init_from} holds weights of Hugging Face: convert them "
            f"first (python -m electra_tf.convert --from={init_from} --to=imported) "
            "and start from the result."
        )
    raise FileNotFoundError(
        f"--init_from={init_from} has no weights: name the folder of a pretraining "
        "run, one of its checkpoints, or what python -m electra_tf.convert has made."
    )


def _here(config, data):
    """The flags of the run; casing is that of the records, if there are any."""
    flags = config_lib.to_flat(config)
    if data is not None:
        return flags | {name: getattr(data, name) for name in _CASING}
    if config.data.records:
        return {name: flags[name] for name in flags.keys() - {*_CASING}}
    return flags


def _vocabulary(config, data):
    if data is not None:
        return data.vocabulary
    if config.data.vocab_file and not config.data.records:
        return Vocabulary.load(config.data.vocab_file)
    return None


def _differences(there, here):
    """Yields (flag, value there, value here) of what must be the same and is not."""
    # Accents are stripped with lower-casing only: one flag says it all.
    casing = _CASING if there.get("lower_case") else _CASING[:1]
    for flag in (*_SIZES, *casing):
        if flag in there and flag in here and there[flag] != here[flag]:
            yield flag, there[flag], here[flag]
    if there.get("objective") != here["objective"]:
        return
    for flag, size in _GENERATOR.items():
        if flag in there and size in there:
            # Fractions may differ where sizes do not: 0.33333 and 1/3 of 768 are 256.
            sizes = {max(1, round(f * there[size])) for f in (there[flag], here[flag])}
            if len(sizes) == 2:
                yield flag, there[flag], here[flag]


def _remedy(flag, value):
    if isinstance(value, bool):
        return f"--{'' if value else 'no'}{flag}"
    return f"--{flag}={value:g}" if isinstance(value, float) else f"--{flag}={value}"


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
    # Not what is trainable: a frozen generator has weights, too.
    own = {id(variable) for variable in learned_weights(model)}
    trained = {n: v for n, v in named_variables(model).items() if id(v) in own}
    saved = {
        name: part
        for name, part in model.artifacts().items()
        if (path / f"{name}.keras").is_file()
    }
    if (path / "checkpoints").is_dir():
        return load_weights(path / "checkpoints", trained)
    if not saved:
        return load_weights(path, trained)
    for name, part in saved.items():
        if not own >= {id(variable) for variable in learned_weights(part)}:
            raise ValueError(
                f"{path / f'{name}.keras'} holds plain tables, and this run's networks "
                "borrow theirs from each other (--sharing=token or gdes): start from "
                "the checkpoints of a run, or with --sharing=tied, nes, untied or all."
            )
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
    here = learned_weights(part)
    if path.stem == "encoder" and all(id(variable) in values for variable in here):
        return
    loaded = load_model(path)
    there = learned_weights(loaded)
    ours, theirs = [_kind(v) for v in here], [_kind(v) for v in there]
    # No shape tells the number of heads.
    heads = [_num_heads(model) for model in (loaded, part)]
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


def _num_heads(model):
    return getattr(getattr(model, "encoder", model), "num_heads", None)


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
