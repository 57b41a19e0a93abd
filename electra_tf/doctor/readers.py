"""Reads checkpoints and configs of any origin into a ``Subject``.

What is damaged becomes a finding, so that the rest is still examined. The files of
Hugging Face and of Google's code are read by name and shape, by the tables of
``electra_tf.interop``; no model is built of them. keras-hub numbers its variables, so
there the backbone is loaded.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import flags as absl_flags

from electra_tf import cli, files
from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.doctor.subject import Finding, Subject, Tensor, Tower, problem, warning
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import MODELS, VOCABULARY, PretrainingFolder, named
from electra_tf.interop import google_tf1, hugging_face, keras_hub, names, networks
from electra_tf.interop.imported import EMBEDDINGS
from electra_tf.interop.model_card import CLASSES
from electra_tf.interop.tensor_files import read_tensors
from electra_tf.interop.tokenizer_files import read_tokenizer
from electra_tf.layers.encoder import TextEncoder
from electra_tf.training.checkpoints import named_variables

_COPY = "Copy or download it again."
# Discriminators and generators come in several classes; each has an ``encoder``.
_MODEL = keras.Model
_KINDS = {"discriminator": _MODEL, "generator": _MODEL, "encoder": TextEncoder}
_DECLARED = (
    *("num_layers", "hidden_size", "intermediate_size"),
    *("embedding_size", "max_positions"),
)


def read(path: str | Path) -> Subject:
    """Reads a checkpoint; ValueError: of no known kind, or too damaged to be read."""
    path = named(path)
    for recognizes, reader in FORMATS.values():
        if recognizes(path):
            return reader(path)
    if not path.exists():
        raise FileNotFoundError(f"There is nothing at {path}.")
    raise UserError(
        f"{path} is none of: {', '.join(FORMATS)}. Give the folder that holds the "
        "files, or the prefix of a checkpoint."
    )


def with_generator(subject: Subject, other: Subject) -> Subject:
    """Adds the generator of a second folder; ValueError: none there, or a second."""
    if "generator" not in other.towers:
        raise UserError(f"--generator={other.path} holds no generator.")
    if "generator" in subject.towers:
        own = f"{subject.path} has a generator of its own"
        raise UserError(f"{own}: drop --generator.")
    towers = {**subject.towers, "generator": other.towers["generator"]}
    findings = (*subject.findings, *other.findings)
    return dataclasses.replace(subject, towers=towers, findings=findings)


def read_flagfile(path: str) -> Subject:
    """Parses a flagfile such as configs/small.cfg; ValueError: a flag is wrong."""
    try:
        config = cli.parse(PretrainConfig, [f"--flagfile={path}"])
    except (ValueError, absl_flags.Error) as error:
        raise UserError(f"{path}: {error}") from error
    return Subject(kind="config", path=Path(path), flags=fields.to_flat(config))


def _vocabulary(path: Path) -> Vocabulary | ValueError | None:
    """What ``Subject.vocabulary`` is for this file."""
    try:
        return Vocabulary.load(path) if path.is_file() else None
    except ValueError as error:
        return error


def is_run(path: Path) -> bool:
    """Whether it is the folder of a pretraining run, finished or not, or an import."""
    if any(map(PretrainingFolder(path).has_model, MODELS)):
        return True
    settings = PretrainingFolder(path).settings
    # Hugging Face and keras-hub call theirs config.json, too.
    return "config" in settings and not {"model_type", "class_name"} & settings.keys()


def read_run(path: Path) -> Subject:
    """Loads what the folder has; what cannot be loaded becomes a finding."""
    if (path / "task.json").is_file():
        raise UserError(
            f"{path} is a fine-tuning run: give the pretraining run it started from."
        )
    folder = PretrainingFolder(path)
    flags = folder.flags
    is_import = "imported" in folder.settings or not flags
    # The flags of an import were made from its weights, so they declare nothing.
    findings: list[Finding] = []
    try:
        declared = {} if is_import else _declared(flags)
    except ValueError as error:
        declared, said = {}, f"config.json says what no run can be: {error}"
        findings.append(problem(said, "Put the config.json of the run back."))
    towers: dict[str, Tower] = {}
    for name, kind in _KINDS.items():
        if not folder.has_model(name):
            findings += _missing(name, flags, is_import)
            continue
        try:
            model = folder.load(name, kind, "Save it again.")
        except ValueError as error:
            again = "Run the same training command again: it writes the models anew."
            findings.append(problem(str(error), again))
            continue
        is_encoder = isinstance(model, TextEncoder)
        encoder = model if is_encoder else getattr(model, "encoder", None)
        if encoder is None:
            other = type(model).__name__
            text = f"{name}.keras holds a {other}, which is not looked at"
            findings.append(warning(text, "Its encoder cannot be checked."))
            continue
        table = encoder.embeddings
        towers[name] = _tower_of_variables(
            name,
            {n: v for n, v in named_variables(model).items() if v.trainable},
            networks.table_variables(table),
            has_head=not is_encoder,
            activation=encoder.transformer.activation,
            layer_norm_epsilon=max(e.layer_norm_epsilon for e in (encoder, table)),
            sizes=vars(networks.sizes(encoder)),
            declared=declared.get(name, {}),
        )
    return Subject(
        kind="run",
        path=path,
        towers=towers,
        vocabulary=_vocabulary(path / VOCABULARY),
        flags=flags,
        casing=folder.casing,
        vocabulary_sha256=folder.vocabulary_sha256,
        metrics=tuple(folder.metrics()),
        findings=tuple(findings),
    )


def _missing(name: str, flags: Mapping[str, Any], is_import: bool) -> Iterator[Finding]:
    """What it means that a file is not there."""
    if name == "discriminator" and flags.get("objective") == "mlm":
        return
    file = f"{name}.keras is missing"
    again = "Finish the run (the same command resumes it), or copy the file here."
    if name == "encoder":
        yield problem(f"{file}: nothing can be fine-tuned", again)
    elif not is_import:
        yield problem(f"{file}: the run has not finished, or it was deleted", again)
    else:
        needs = {"discriminator": "verdicts", "generator": "fills and corruption"}
        yield warning(
            f"{file}: the import's source had none; no {needs[name]}, and pretraining "
            "cannot continue from here",
            f"Import the checkpoint of the {name}, too, if you need that.",
        )


def _declared(flags: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Sizes of each tower by the flags."""
    if "hidden_size" not in flags:
        return {}
    config = fields.from_flat(dict(flags), PretrainConfig)
    encoder, generator = (
        {name: getattr(part, name) for name in _DECLARED}
        for part in (config.encoder, config.generator_encoder)
    )
    if config.objective.objective == "mlm":
        generator = encoder
    return {"encoder": encoder, "discriminator": encoder, "generator": generator}


def _tower_of_variables(
    name: str,
    variables: Mapping[str, keras.Variable],
    tables: Mapping[str, keras.Variable],
    **about: Any,
) -> Tower:
    """A tower of a loaded model: variables by name, those of ``SHARED`` by role."""
    by_id = {id(variable): n for n, variable in variables.items()}
    return Tower(
        name=name,
        tensors={n: Tensor(tuple(v.shape), v.numpy) for n, v in variables.items()},
        tables={
            role.removeprefix(EMBEDDINGS): by_id[id(variable)]
            for role, variable in tables.items()
            if id(variable) in by_id
        },
        **about,
    )


def _in_memory(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {
        name: Tensor(array.shape, functools.partial(np.asarray, array, np.float32))
        for name, array in arrays.items()
    }


def _tower_of_tensors(
    name: str,
    tensors: Mapping[str, Tensor],
    style: names.Style,
    embeddings: str = "",
    body: str = "",
    **about: Any,
) -> Tower:
    """A tower of tensors named as in a table, after ``embeddings`` and ``body``."""
    rows = names.prefixed(style.embeddings(), embeddings)
    tables = {row.ours.removeprefix(EMBEDDINGS): row.theirs[0] for row in rows}
    sizes = {"num_layers": names.count_layers(style, body, tensors)}
    for row, axes in names.size_rows(style, embeddings, body):
        if tensor := tensors.get(row.theirs[0]):
            sizes |= zip(axes, row.our_shape(tensor.shape), strict=False)
    # A generator whose softmax has a matrix of its own; only Hugging Face's may.
    tables["output"] = hugging_face.OUTPUT_MATRIX
    return Tower(
        name=name,
        tensors=tensors,
        tables={role: table for role, table in tables.items() if table in tensors},
        sizes=sizes,
        **about,
    )


def read_hugging_face(path: Path) -> Subject:
    """Reads config.json, the safetensors files and the tokenizer's."""
    config = hugging_face.read_config(path)
    if (kind := config.get("model_type")) != "electra":
        raise UserError(f"{path} holds a model of type {kind}, not electra.")
    tensors, findings = _hugging_face_tensors(path)
    has_head = {
        role: any(name.startswith(f"{scope}.") for name in tensors)
        for role, scope in names.HEAD_SCOPES.items()
    }
    named = config.get("architectures") or ()
    roles = [role for role in CLASSES if has_head[role] or CLASSES[role] in named]
    towers = {}
    for role in (roles or ["encoder"]) if tensors else ():
        # Buffers are no weights (0, 1, 2, ...), and the other's head is not its own.
        others = {"discriminator": "generator_", "generator": "discriminator_"}
        foreign = (*hugging_face.BUFFERS, others.get(role, hugging_face.OUTPUT_MATRIX))
        towers[role] = _tower_of_tensors(
            role,
            {n: t for n, t in tensors.items() if not n.startswith(foreign)},
            names.HUGGING_FACE,
            has_head=has_head.get(role, False),
            # Both defaults are those of `transformers`.
            activation=config.get("hidden_act", "gelu"),
            layer_norm_epsilon=config.get("layer_norm_eps", 1e-12),
            declared={
                ours: config[theirs]
                for theirs, ours in hugging_face.SIZES.items()
                if theirs in config
            },
        )
    try:
        tokenizer = read_tokenizer(path)
        vocabulary, lower_case = tokenizer.vocabulary, tokenizer.lower_case
    except ValueError as error:
        vocabulary, lower_case = error, None
    return Subject(
        kind="hugging_face",
        path=path,
        towers=towers,
        vocabulary=vocabulary,
        casing={} if lower_case is None else {"lower_case": bool(lower_case)},
        findings=tuple(findings),
    )


def _hugging_face_tensors(path: Path) -> tuple[dict[str, Tensor], list[Finding]]:
    if any(path.glob("model*.safetensors")):
        try:
            arrays = read_tensors(path)
        except (ValueError, OSError) as error:
            return {}, [problem(str(error), _COPY)]
        # A bare ElectraModel is saved without the prefix.
        arrays = {name.removeprefix("electra."): a for name, a in arrays.items()}
        return _in_memory(arrays), []
    save = "Load it with transformers and call save_pretrained."
    if pickles := sorted(file.name for file in path.glob("pytorch_model*.bin")):
        text = f"{', '.join(pickles)}: pickles, which were not looked at"
        return {}, [warning(text, save)]
    return {}, [problem("there are no weights (model.safetensors)", save)]


def read_google_tf1(path: Path) -> Subject:
    """Reads the names, shapes and values of Google's TensorFlow 1 code."""
    prefix = Path(google_tf1.newest(path))
    vocabularies = (_vocabulary(folder / VOCABULARY) for folder in prefix.parents[:3])
    vocabulary = next((found for found in vocabularies if found is not None), None)
    subject = Subject(kind="google_tf1", path=prefix, vocabulary=vocabulary)
    try:
        shapes = google_tf1.variable_shapes(str(prefix))
        tensors = _in_memory(google_tf1.read_weights(str(prefix)))
    except ValueError as error:
        return dataclasses.replace(subject, findings=(problem(str(error), _COPY),))
    if not any(name.startswith(google_tf1.MAIN) for name in shapes):
        raise UserError(
            f"{prefix} has no variables under electra/, so it is not a checkpoint of "
            "Google's ELECTRA. For a checkpoint of a run of this library, give the "
            "folder of the run."
        )
    places = google_tf1.places(tensors)
    findings = []
    if any(name.startswith(("generator_ltr/", "cloze_")) for name in tensors):
        text = "this is Electric: its generator has two towers, one per direction"
        usable = (
            "Its discriminator can be used as any other; its generator is no masked "
            "language model."
        )
        findings.append(warning(text, usable))
        if "generator" in places:
            places["generator"] = places["generator"]._replace(body="generator_ltr/")
    towers = {}
    for role, (embeddings, body, has_head) in places.items():
        starts = (f"{embeddings}embeddings/", body, f"{names.HEAD_SCOPES[role]}/")
        towers[role] = _tower_of_tensors(
            role,
            {name: t for name, t in tensors.items() if name.startswith(starts)},
            names.GOOGLE_TF1,
            embeddings,
            body,
            has_head=has_head,
            # Fixed in Google's code, not stored.
            activation="gelu",
            layer_norm_epsilon=1e-12,
        )
    return dataclasses.replace(
        subject,
        towers=towers,
        findings=tuple(findings),
        optimizer_slots=sum(name.endswith(("/adam_m", "/adam_v")) for name in shapes),
    )


def read_keras_hub(path: Path) -> Subject:
    """Loads a keras-hub preset's backbone and the tokenizer's files."""
    backbone = keras_hub.load(path)
    tower = _tower_of_variables(
        "encoder",
        {variable.path: variable for variable in backbone.weights},
        keras_hub.table_variables(backbone),
        has_head=False,
        activation="gelu_tanh",
        layer_norm_epsilon=backbone.embeddings_layer_norm.epsilon,
        sizes=vars(keras_hub.sizes(backbone)),
    )
    return Subject(
        kind="keras_hub",
        path=path,
        towers={"encoder": tower},
        vocabulary=_vocabulary(path / keras_hub.VOCABULARY),
        casing=keras_hub.casing(path),
    )


# What it may be: how it is recognized, and how it is read. The first that fits.
FORMATS: dict[str, tuple[Callable[[Path], object], Callable[[Path], Subject]]] = {
    "pretraining run or import": (is_run, read_run),
    "Hugging Face folder": (
        lambda path: "model_type" in files.read_json(path / "config.json", {}),
        read_hugging_face,
    ),
    "keras-hub preset": (
        lambda path: path.is_dir() and keras_hub.is_backbone(path),
        read_keras_hub,
    ),
    "Google TensorFlow 1 checkpoint": (google_tf1.newest, read_google_tf1),
}
