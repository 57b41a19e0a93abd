"""TensorFlow 1 checkpoints of the original code, in the layout of the released ones.

The shared embeddings and the discriminator are under `electra/`, the generator under
`generator/`, the heads under `discriminator_predictions/` and `generator_predictions/`.
A model trained with one encoder for both (or masked LM alone) has no `generator/`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf.data.vocabulary import Vocabulary
from electra_tf.interop import names
from electra_tf.interop.imported import (
    HEADS,
    Imported,
    Source,
    Tower,
    encoder_shapes,
)
from electra_tf.interop.names import GOOGLE_TF1, Tensors, prefixed
from electra_tf.interop.tensor_files import read_json

NAME = "google_tf1"
_PREFIX = "electra"
_CONFIGS = {
    "discriminator": "discriminator_config.json",
    "generator": "generator_config.json",
}
OUTPUTS = (
    f"{_PREFIX}.index",
    f"{_PREFIX}.data-00000-of-00001",
    "checkpoint",
    "vocab.txt",
    *_CONFIGS.values(),
)

_MAIN, _GENERATOR = "electra/", "generator/"
HEAD_ROWS = GOOGLE_TF1.heads("dense_1", "generator_predictions/output_bias")
# The state of training, and heads of fine-tuned models.
_NOT_WEIGHTS = re.compile(r"(.*/)?(global_step|temperature|adam_[mv])|task_specific/.*")


def detect(source: Source) -> bool:
    """Whether it is a checkpoint, or a folder with one, that has ELECTRA's names."""
    prefixes = _prefixes(Path(source.path))
    return bool(prefixes) and any(
        name.startswith(_MAIN) for name in _shapes(prefixes[-1])
    )


def _prefixes(path: Path) -> list[str]:
    """Checkpoints at a path, by step, and the one without a step last."""
    if path.is_dir():
        files = path.glob("*.index")
    else:
        files = [Path(str(path).removesuffix(".index") + ".index")]
    found = [str(file).removesuffix(".index") for file in files if file.is_file()]

    def step(prefix):
        match = re.search(r"-(\d+)$", prefix)
        return (match is None, int(match[1]) if match else 0, prefix)

    return sorted(found, key=step)


def _shapes(prefix):
    with whole(prefix):
        return tf.train.load_checkpoint(prefix).get_variable_to_shape_map()


@contextlib.contextmanager
def whole(prefix: str) -> Iterator[None]:
    """Turns whatever reading a damaged checkpoint raises into a ValueError."""
    try:
        yield
    except Exception as error:  # The reader maps its states to builtins of all kinds.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{prefix} is not a whole checkpoint: {reason}") from error


def read(source: Source) -> Imported:
    """Reads the newest checkpoint at a path, and vocab.txt beside it.

    Raises:
        ValueError: It is damaged, or has variables that are missing, misshapen or
            unknown, or the generator has embeddings of its own.
    """
    source.refuse("generator")
    prefix = _prefixes(Path(source.path))[-1]
    folder = Path(prefix).parent
    stored = _shapes(prefix)
    weights = [name for name in stored if not _NOT_WEIGHTS.fullmatch(name)]
    with whole(prefix):
        reader = tf.train.load_checkpoint(prefix)
        tensors = Tensors({name: reader.get_tensor(name) for name in weights}, prefix)
    notes: list[str] = []
    towers = _towers(tensors, source, folder, notes)
    not_taken = _not_taken(tensors, source, prefix)
    vocabulary = folder / "vocab.txt"
    return Imported(
        format=NAME,
        source=source.path,
        **towers,
        vocabulary=Vocabulary.load(vocabulary) if vocabulary.is_file() else None,
        not_taken=tuple(sorted(stored.keys() - set(weights))) + not_taken,
        notes=tuple(notes),
    )


def _towers(tensors, source, folder, notes):
    """The towers that the names tell of, as `Imported` takes them."""
    has = tensors.starting_with
    own_body = has(_GENERATOR)
    roles = {
        "discriminator": own_body
        or has("discriminator_predictions/")
        or not has("generator_predictions/"),
        "generator": own_body or has("generator_predictions/"),
    }
    heads = {
        "discriminator": has("discriminator_predictions/"),
        "generator": True,
    }
    if source.only and not roles[source.only]:
        raise ValueError(f"{source.path} holds no {source.only}.")
    own_tables = has(f"{_GENERATOR}embeddings/")
    if own_tables and source.only is None:
        raise ValueError(
            f"{source.path}: the generator has embeddings of its own "
            f"({_GENERATOR}embeddings/...), which a pair here shares. Import one "
            "tower: --only=discriminator or --only=generator."
        )
    if all(roles.values()) and not own_body:
        notes.append("one encoder serves both towers; here each gets a copy of it")
    body = {"discriminator": _MAIN, "generator": _GENERATOR if own_body else _MAIN}
    tables = {"discriminator": _MAIN, "generator": _GENERATOR if own_tables else _MAIN}
    given = {
        "discriminator": source.num_heads,
        "generator": source.generator_num_heads,
    }
    return {
        role: _tower(
            tensors,
            role,
            tables[role],
            body[role],
            heads[role],
            _num_heads(role, given[role], folder, notes),
        )
        for role, there in roles.items()
        if there and source.only in (None, role)
    }


def _num_heads(role, given, folder, notes):
    """Attention heads by flag or config file; None is the original's rule."""
    if given:
        return given
    candidates = sorted(folder.glob(f"*{role}*config*.json"))
    if role == "discriminator":
        candidates.append(folder / "config.json")
    for path in candidates:
        config = read_json(path)
        if config.get("hidden_act", "gelu") != "gelu":
            raise ValueError(
                f"{path} describes a variant that cannot be imported: hidden_act is "
                f"{config['hidden_act']!r}, not 'gelu'."
            )
        heads = config.get("num_attention_heads")
        if heads is not None:
            if type(heads) is not int:
                raise ValueError(
                    f"{path} is damaged: num_attention_heads is {heads!r}, no integer."
                )
            return heads
    notes.append(
        f"a checkpoint does not tell the number of attention heads: the {role}'s is "
        "taken to be its hidden size // 64"
    )
    return None


def _tower(tensors, role, tables, body, has_head, num_heads):
    sizes = tensors.sizes(GOOGLE_TF1, embeddings=tables, body=body, num_heads=num_heads)
    rows = [
        *prefixed(GOOGLE_TF1.embeddings(), tables),
        *prefixed(GOOGLE_TF1.body(sizes), body),
    ]
    encoder = tensors.read(rows, encoder_shapes(sizes))
    head = {}
    if has_head:
        head = tensors.read(HEAD_ROWS[role], HEADS[role](sizes))
    return Tower(sizes, encoder, head)


def _not_taken(tensors, source, prefix):
    left = tensors.left
    if left and source.only is None:
        raise ValueError(
            f"{prefix} has {len(left)} variables that belong to no part of ELECTRA "
            f"known here: {', '.join(left[:5])}."
        )
    return tuple(left)


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes a checkpoint under the original's names, vocab.txt and head counts.

    Masked LM alone goes under `electra/`, as the original code had it.

    Raises:
        ValueError: A variable has no place in the format.
        OSError: A file cannot be written.
    """
    alone = model.discriminator is None
    arrays = {}
    for role, tower in model.towers.items():
        body = _MAIN if alone or role == "discriminator" else _GENERATOR
        rows = [
            *prefixed(GOOGLE_TF1.embeddings(), _MAIN),
            *prefixed(GOOGLE_TF1.body(tower.sizes), body),
        ]
        arrays |= names.scatter(rows, tower.encoder)
        if tower.head:
            arrays |= names.scatter(HEAD_ROWS[role], tower.head)
        config = {
            "hidden_act": "gelu",
            "hidden_size": tower.sizes.hidden_size,
            "num_attention_heads": tower.sizes.num_heads,
        }
        text = json.dumps(config, indent=2) + "\n"
        (folder / _CONFIGS[role]).write_text(text, "utf-8")
    _save(folder / _PREFIX, arrays)
    model.vocabulary.save(folder / "vocab.txt")
    return ()


def _save(prefix: Path, arrays: dict[str, np.ndarray]) -> None:
    tensor_names = sorted(arrays)
    try:
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=tensor_names,
            shape_and_slices=[""] * len(tensor_names),
            tensors=[tf.constant(arrays[name]) for name in tensor_names],
        )
    except tf.errors.OpError as error:
        raise OSError(f"{prefix} cannot be written: {error.message}") from error
    # By name only, so that the folder can be moved.
    state = f'model_checkpoint_path: "{prefix.name}"\n'
    (prefix.parent / "checkpoint").write_text(state, "utf-8")
