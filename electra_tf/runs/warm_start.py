"""Initial weights from a run, an imported model, a generator or token counts."""

import collections
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.config import fields
from electra_tf.config.fields import CASING
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.prepared import PretrainingData
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.folders import pretraining as layout
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.base import learned_weights
from electra_tf.training.checkpoints import (
    checkpoints_in,
    named_variables,
    read_weights,
)

_SIZES = (
    *("num_layers", "hidden_size", "num_heads", "intermediate_size"),
    *("embedding_size", "max_positions"),
)
_GENERATOR_SIZES = ("generator_hidden_size", "generator_layers")
_RECIPE = (
    *("num_train_steps", "warmup_steps", "train_batch_size", "learning_rate"),
    *("weight_decay", "adam_bias_correction", "dropout", "attention_dropout"),
    "mask_rate",
)
_ALIASES = {
    # Names of the main network with a generator, and without one.
    "model/discriminator/": "model/encoder/",
    "model/encoder/": "model/discriminator/",
    # Separate tables and LayerNorm, from shared ones.
    "model/generator_embeddings/": "model/embeddings/",
    "model/discriminator_embeddings/layer_norm_": "model/embeddings/layer_norm_",
}


def completed(config: PretrainConfig, log: Log) -> PretrainConfig:
    """Sets vocabulary, sizes and recipe from the run of ``--init_from``.

    Explicit flags and the casing of ``--records`` take precedence. A resumed run reads
    its own config.json and does not need the other run.
    """
    if not config.run.init_from:
        return config
    home = _home(config.run.init_from)
    home.reject_fine_tuned(
        "convert its encoder first (python -m electra_tf convert --only=discriminator)."
    )
    run = PretrainingFolder(Path(config.run.model_dir))
    is_resumed = bool(run.flags) and not config.run.overwrite
    home = run if is_resumed else home
    there, here = home.flags | home.casing, fields.to_flat(config)
    if "num_train_steps" in config.given and "num_train_steps" in there:
        # Keeps the share of warm-up steps.
        share = here["num_train_steps"] / there["num_train_steps"]
        there["warmup_steps"] = int(there.get("warmup_steps", 0) * share)
    names = [*_SIZES, *_RECIPE]
    if is_resumed or _same_generator(config, home):
        names += _GENERATOR_SIZES
        # Other generator sizes may not be compatible with its sharing.
        if is_resumed or not config.given & {*_GENERATOR_SIZES}:
            names.append("sharing")
    if not config.data.records:
        names += CASING
    defaults = fields.to_flat(PretrainConfig())
    taken = {
        name: there[name]
        for name in names
        if name not in config.given
        and here[name] == defaults[name]
        and there.get(name, here[name]) != here[name]
    }
    if taken:
        flags = " ".join(_remedy(name, value) for name, value in taken.items())
        log(f"--init_from={config.run.init_from} sets {flags}")
    vocabulary = home.path / layout.VOCABULARY
    has_own = config.data.vocab_file or config.data.records
    if not has_own and vocabulary.is_file():
        taken["vocab_file"] = str(vocabulary)
    return fields.from_flat(here | taken, PretrainConfig)


def _same_generator(config: PretrainConfig, home: PretrainingFolder) -> bool:
    """Returns True if the run starts from a generator of the same kind."""
    flags = home.flags
    kind = flags.get("generator", "masked_lm")
    if flags.get("objective") == "electric":
        kind = "two_tower"
    return (
        config.has_generator_network
        and not config.training.generator_init_from
        and flags.get("objective") != "mlm"
        and kind == config.generator_kind
        and (home.has_checkpoint() or home.has_model("generator"))
    )


def _home(init_from: str) -> PretrainingFolder:
    """Returns the folder of a run, given the folder or one of its checkpoints."""
    path = named(init_from)
    inside = [each for each in (path, path.parent) if each.name == layout.CHECKPOINTS]
    return PretrainingFolder(inside[0].parent if inside else path)


def copy_recipe(config: PretrainConfig, folder: PretrainingFolder) -> None:
    """Copies the fine-tuning recipe of ``--init_from`` into the folder of the run."""
    if config.run.init_from:
        source = _home(config.run.init_from).path / layout.RECIPE
        if source.is_file() and not (folder.path / layout.RECIPE).exists():
            files.write_text(folder.path / layout.RECIPE, source.read_text("utf-8"))


def check(config: PretrainConfig, data: PretrainingData | None = None) -> None:
    """Checks that initial weights exist and fit the settings of a fresh run.

    Without ``data``, settings that depend on records are not compared.
    """
    init_from, source = config.run.init_from, config.training.generator_init_from
    run = PretrainingFolder(Path(config.run.model_dir))
    if run.has_checkpoint() and not config.run.overwrite:
        # A resumed run does not need the other run.
        return
    if source:
        _generator_file(source)
    if not init_from:
        return
    if source and config.generator.sharing not in ("nes", "untied"):
        raise UserError(
            f"--generator_init_from={source} would replace tables of --init_from, "
            f"which both networks share (--sharing={config.generator.sharing}): leave "
            "out one of them, or add --sharing=nes or untied."
        )
    path = named(init_from)
    saved = filter(PretrainingFolder(path).has_model, layout.MODELS)
    if not [*_checkpoints(path), *saved]:
        raise FileNotFoundError(
            f"--init_from={init_from} has no weights: name the folder of a pretraining "
            "run, one of its checkpoints, or the output of python -m electra_tf "
            "convert (also for weights of Hugging Face)."
        )
    folder, here = _home(init_from), fields.to_flat(config)
    there, ours = folder.flags | folder.casing, None
    # Accents are stripped only if text is lower-cased.
    casing = CASING if there.get("lower_case") else CASING[:1]
    if data is not None:
        here |= {name: getattr(data, name) for name in CASING}
        ours = data.vocabulary
    elif config.data.records:
        # Casing comes from the manifest of the records, not from the flags.
        casing = ()
    elif config.data.vocab_file:
        ours = Vocabulary.load(config.data.vocab_file)
    names = [*_SIZES, *casing]
    if there.get("sharing") == "gdes" and _checkpoints(path):
        # A checkpoint has tables and deltas, but not their sums.
        names.append("sharing")
    flags = [n for n in names if n in there and there[n] != here[n]]
    differences = [f"{n} is {there[n]} there and {here[n]} here" for n in flags]
    remedies = [_remedy(name, there[name]) for name in flags]
    if "sharing" in flags:
        remedies.append("(or start from a folder with its encoder.keras alone)")
    if theirs := folder.vocabulary():
        folder.check_hash(theirs)
        if ours and theirs.sha256 != ours.sha256:
            differences.append("the vocabularies differ")
            path = folder.path / layout.VOCABULARY
            remedies.append(f"--vocab_file={path} (and records built with it)")
    if differences:
        raise UserError(
            f"--init_from={init_from} does not fit this run: {'; '.join(differences)}. "
            f"Pass {' '.join(remedies)}."
        )


def _checkpoints(path: Path) -> list[str]:
    """Returns checkpoint prefixes; takes a checkpoint, a folder of them, or a run."""
    prefix = str(path).removesuffix(".index")
    if Path(f"{prefix}.index").is_file():
        return [prefix]
    inside = checkpoints_in(path / layout.CHECKPOINTS) or checkpoints_in(path)
    return [*inside.values()]


def _remedy(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{'' if value else 'no'}{flag}"
    return f"--{flag}={value:g}" if isinstance(value, float) else f"--{flag}={value}"


def initialize(
    config: PretrainConfig, model: PretrainingModel, data: PretrainingData, log: Log
) -> None:
    """Initializes the weights of a fresh run."""
    init_from, source = config.run.init_from, config.training.generator_init_from
    if init_from:
        if not _home(init_from).flags:
            log(f"warning: no config.json at {init_from}: vocabulary not checked")
        _check_generator(config, model, load(init_from, model, log))
    if config.generator_kind in ("unigram", "uniform"):
        is_uniform = config.generator_kind == "uniform"
        counts = np.zeros(len(data.vocabulary)) if is_uniform else data.token_counts
        model.generator.set_counts(counts)
    if source:
        _load_generator(source, model.generator, data.vocabulary)
        log(f"generator from {source}")


def _check_generator(
    config: PretrainConfig, model: PretrainingModel, kept: dict[str, keras.Variable]
) -> None:
    """Raises UserError if a generator that the run relies on was not restored."""
    training = config.training
    copied = training.training == "two_stage" and training.two_stage_copy
    if training.generator_init_from or not (training.freeze_generator or copied):
        return
    own = {id(variable) for variable in learned_weights(model.generator)}
    if lacking := [name for name, v in kept.items() if id(v) in own]:
        is_frozen = training.freeze_generator
        fix = "--generator_init_from" if is_frozen else "--notwo_stage_copy"
        raise UserError(
            f"--init_from={config.run.init_from} has no weights of this run's generator"
            f" ({lacking[0]}): add {fix}."
        )


def _generator_file(source: str) -> Path:
    path = named(source)
    if path.is_dir():
        path = PretrainingFolder(path).model_path("generator")
    if not path.exists():
        raise UserError(
            f"--generator_init_from={source}: there is no {path}. Name the model_dir "
            "of a finished run, or a generator.keras."
        )
    return path


def _load_generator(
    source: str, generator: keras.Model, vocabulary: Vocabulary
) -> None:
    file = _generator_file(source)
    theirs = PretrainingFolder(file.parent).vocabulary()
    if theirs and theirs.sha256 != vocabulary.sha256:
        raise UserError(
            f"--generator_init_from={source} has another vocabulary: rebuild the "
            f"records with --vocab_file={file.parent / layout.VOCABULARY}."
        )
    loaded = models.load(file, keras.Model)
    if misfit := _misfit(generator, loaded):
        raise UserError(
            f"--generator_init_from={source} does not fit: {misfit}. Set "
            "--generator_hidden_size and the other sizes to match."
        )
    pairs = zip(learned_weights(generator), learned_weights(loaded), strict=True)
    for own, other in pairs:
        own.assign(other.numpy())


def load(
    init_from: str, model: PretrainingModel, log: Log
) -> dict[str, keras.Variable]:
    """Copies weights of a run, a checkpoint or an imported folder into ``model``.

    A folder's checkpoints take precedence over its saved models. A masked LM's encoder
    and a discriminator can initialize each other. Returns the variables that keep
    their initial values: what the source lacks, and heads and generators of another
    shape. An error leaves ``model`` unchanged.
    """
    path, stored = named(init_from), {}
    # Not only trainable variables: a frozen generator also gets weights.
    learned = {id(variable) for variable in learned_weights(model)}
    variables = {n: v for n, v in named_variables(model).items() if id(v) in learned}
    if prefixes := _checkpoints(path):
        stored = read_weights(prefixes)
        values = _from_checkpoint(init_from, stored, variables)
    else:
        names = {id(variable): name for name, variable in variables.items()}
        values = _from_models(PretrainingFolder(path), model, names)
    if not values:
        raise UserError(
            f"--init_from={init_from} has no weights of this run's networks. Convert "
            "weights of other libraries first (python -m electra_tf convert)."
        )
    for name, value in values.items():
        variables[name].assign(value)
    kept = {name: v for name, v in variables.items() if name not in values}
    used = {id(value) for value in values.values()}
    unused = sorted(name for name, value in stored.items() if id(value) not in used)
    unused = f"; in the checkpoint and not used: {_parts(unused)}" if stored else ""
    log(
        f"weights from {init_from}: restored {len(values)} variables; absent there or "
        f"of another shape, and kept as initialized: {_parts(kept)}{unused}"
    )
    return kept


def _parts(names: Iterable[str]) -> str:
    """Counts variables by part, such as "model/generator (31)"."""
    counts = collections.Counter("/".join(name.split("/")[:2]) for name in names)
    return ", ".join(f"{part} ({count})" for part, count in counts.items()) or "none"


def _from_checkpoint(
    source: str, stored: dict[str, np.ndarray], variables: dict[str, keras.Variable]
) -> dict[str, np.ndarray]:
    """Returns the values of variables by name, without optional parts that differ."""
    keys = {name: name for name in variables}
    for ours, theirs in _ALIASES.items():
        for name in variables:
            if name not in stored and name.startswith(ours):
                keys[name] = theirs + name.removeprefix(ours)
    values = {name: stored[key] for name, key in keys.items() if key in stored}
    differ = [n for n, value in values.items() if value.shape != variables[n].shape]
    for name in differ:
        if not _optional(name):
            raise UserError(
                f"--init_from={source} does not fit this run: {name} "
                f"{[*values[name].shape]}, this run has {[*variables[name].shape]}. "
                "Use the sizes of the weights."
            )
    others = (variables.keys() - values.keys()) | (stored.keys() - {*keys.values()})
    unfit = {_optional(name) for name in (*differ, *others)} - {None}
    return {n: value for n, value in values.items() if _optional(n) not in unfit}


def _optional(name: str) -> str | None:
    """Returns the optional head or generator that has this variable, or None."""
    if name.startswith("model/generator"):
        return "/".join(name.split("/")[:2])
    is_head = "/transformer/" not in name and "embeddings" not in name
    return name.rpartition("/")[0] if is_head else None


def _from_models(
    folder: PretrainingFolder, model: PretrainingModel, names: dict[int, str]
) -> dict[str, np.ndarray]:
    """Returns the values of variables by name, without a generator that differs.

    ``generator.keras`` and ``discriminator.keras`` are loaded with their heads,
    ``encoder.keras`` for the remaining weights. ``names`` maps variable ids to names.
    """
    saved = {n: part for n, part in model.artifacts().items() if folder.has_model(n)}
    values = {}
    # The encoder comes last: the other models contain it.
    for kind in sorted(saved, key="encoder".__eq__):
        file, part = folder.model_path(kind), saved[kind]
        own = [names.get(id(variable)) for variable in learned_weights(part)]
        if None in own:
            raise UserError(
                f"{file} holds plain tables, but the networks of this run share parts "
                "of them (--sharing=token or gdes): start from the checkpoints of a "
                "run, or with --sharing=tied, nes, untied or all."
            )
        if kind == "encoder" and values.keys() >= {*own}:
            continue
        loaded = models.load(file, TextEncoder if kind == "encoder" else keras.Model)
        misfit = _misfit(part, loaded)
        if misfit and kind == "generator" and len(saved) > 1:
            continue
        if misfit:
            raise UserError(
                f"{file} does not fit this run: {misfit}. Use the sizes of the weights."
            )
        for name, other in zip(own, learned_weights(loaded), strict=True):
            value = other.numpy()
            if not np.array_equal(values.setdefault(name, value), value):
                raise UserError(f"{file}: {other.path} differs from another model's.")
    return values


def _misfit(part: keras.Model, loaded: keras.Model) -> str:
    """Returns the first difference between the variables of two models, or ""."""

    def described(model: keras.Model) -> list[str]:
        # Listed separately, since shapes do not depend on the number of heads.
        heads = getattr(getattr(model, "encoder", model), "num_heads", None)
        weights = learned_weights(model)
        shapes = [f"{v.path.rpartition('/')[2]} {list(v.shape)}" for v in weights]
        return [f"num_heads {heads}", *shapes]

    pairs = itertools.zip_longest(
        described(loaded), described(part), fillvalue="no more variables"
    )
    wrong = (f"{a}, this run has {b}" for a, b in pairs if a != b)
    return next(wrong, "")
