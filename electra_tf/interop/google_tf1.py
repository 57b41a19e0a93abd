"""TensorFlow 1 checkpoints in the layout of Google's ELECTRA release.

The shared embeddings and the discriminator are under ``electra/``, the generator under
``generator/``, the heads under ``discriminator_predictions/`` and
``generator_predictions/``. Masked LM, and one encoder for both, lack ``generator/``.
"""

import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.config.fields import CASING
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError, explained
from electra_tf.folders.models import HUGGING_FACE_FILES
from electra_tf.interop.names import GOOGLE_TF1, HEAD_SCOPES, Tensors, scatter
from electra_tf.interop.networks import Imported, Sizes, Source, Tower

NAME = "google_tf1"
_PREFIX = "electra"
_CONFIGS = {role: f"{role}_config.json" for role in HEAD_SCOPES}
OUTPUTS = (
    f"{_PREFIX}.index",
    f"{_PREFIX}.data-00000-of-00001",
    "checkpoint",
    "vocab.txt",
    *_CONFIGS.values(),
)

MAIN, GENERATOR = "electra/", "generator/"
_TABLES = ("word", "position", "token_type")
# Training state, BERT's pooler, and heads of fine-tuned models.
_NOT_WEIGHTS = re.compile(
    r"(.*/)?(global_step|temperature|adam_[mv]|(current_)?loss_scale|good_steps|"
    r"bad_steps)|(electra|generator)/pooler/.*|task_specific/.*"
)


def detect(source: Source) -> bool:
    """Returns True for a checkpoint of TensorFlow, or a folder with one."""
    folder = Path(source.path)
    # Other programs, such as faiss, also write *.index files.
    if any((folder / name).is_file() for name in HUGGING_FACE_FILES):
        return False
    return newest(folder) is not None


def newest(path: Path) -> str | None:
    """Returns the prefix of a checkpoint, or of a folder's only or newest one, or None.

    The file ``checkpoint`` names the newest of several; ValueError without it.
    """
    if not path.is_dir():
        prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", str(path))
        return prefix if Path(f"{prefix}.index").is_file() else None
    prefixes = [str(file).removesuffix(".index") for file in path.glob("*.index")]
    if len(prefixes) < 2:
        return prefixes[0] if prefixes else None
    state = path / "checkpoint"
    text = state.read_text("utf-8", "replace") if state.is_file() else ""
    # The name alone: the folder may have been copied from elsewhere.
    named = re.match(r'model_checkpoint_path: "(?:.*/)?(.+)"', text)
    if named is None or str(path / named[1]) not in prefixes:
        raise UserError(
            f"{path} holds several checkpoints: name one, such as {min(prefixes)}."
        )
    return str(path / named[1])


def read(source: Source) -> Imported:
    """Reads the newest checkpoint at a path, and vocab.txt beside it."""
    source.reject("generator", "pair")
    prefix = newest(Path(source.path))
    folder = Path(prefix).parent
    files.check_checkpoint_path(prefix)
    with explained(f"{prefix} is not a whole checkpoint", Exception):
        reader = tf.train.load_checkpoint(prefix)
        names = sorted(reader.get_variable_to_shape_map())
        state = list(filter(_NOT_WEIGHTS.fullmatch, names))
        arrays = {n: reader.get_tensor(n) for n in names if n not in state}
    tensors = Tensors(arrays, prefix)
    has_body = tensors.starting_with(GENERATOR)
    heads = {r: tensors.starting_with(f"{s}/") for r, s in HEAD_SCOPES.items()}
    # Beside two towers the head may be that of Electric, which returns energies.
    heads["discriminator"] &= not tensors.starting_with("cloze_predictions/")
    # A checkpoint with only the generator's head is a masked LM under `electra/`.
    bodies = {}
    if has_body or heads["discriminator"] or not heads["generator"]:
        bodies["discriminator"] = MAIN
    if has_body or heads["generator"]:
        bodies["generator"] = GENERATOR if has_body else MAIN
    notes: list[str] = []
    if [*bodies.values()] == [MAIN, MAIN]:
        notes.append("one encoder serves both towers; here each gets a copy of it")
    towers, selected = {}, source.selected(bodies)
    for role, body in selected.items():
        # Tied tables are stored once, with the discriminator.
        owns_tables = tensors.starting_with(f"{GENERATOR}embeddings/")
        tables = GENERATOR if owns_tables and role == "generator" else MAIN
        # The first role of a shared encoder is the discriminator.
        owner = next(each for each in bodies if bodies[each] == body)
        num_heads = source.num_heads if body == next(iter(selected.values())) else None
        num_heads = num_heads or _num_heads(owner, folder, notes)
        sizes = _sizes(tensors, tables, body, num_heads)
        sizes.check(prefix)
        encoder = tensors.read(GOOGLE_TF1.encoder(sizes, tables, body))
        # The head is optional for the discriminator only.
        has_head = heads[role] or role == "generator"
        head = tensors.read(GOOGLE_TF1.head(role, sizes)) if has_head else {}
        towers[role] = Tower(sizes, encoder, head)
    if tensors.left and source.only is None:
        names = ", ".join(sorted(tensors.left)[:5])
        raise UserError(
            f"{prefix} has variables that are not part of ELECTRA: {names}."
        )
    words = folder / "vocab.txt"
    return Imported(
        format=NAME,
        source=source.path,
        **towers,
        vocabulary=Vocabulary.load(words) if words.is_file() else None,
        not_taken=(*state, *sorted(tensors.left)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _sizes(tensors: Tensors, tables: str, body: str, num_heads: int | None) -> Sizes:
    names = [f"{tables}embeddings/{x}_embeddings" for x in _TABLES]
    names.append(f"{body}encoder/layer_0/intermediate/dense/kernel")
    # A tensor without two axes is refused when it is read.
    shapes = [np.atleast_2d(tensors.take(name)).shape for name in names]
    words, positions, segments, inner = shapes
    block = re.compile(f"{body}encoder/layer_[0-9]+/")
    layers = {match[0] for match in map(block.match, tensors) if match}
    return Sizes(
        vocab_size=words[0],
        embedding_size=words[1],
        max_positions=positions[0],
        num_segments=segments[0],
        num_layers=len(layers),
        hidden_size=inner[0],
        num_heads=num_heads or max(1, inner[0] // 64),
        intermediate_size=inner[1],
    )


def _num_heads(role: str, folder: Path, notes: list[str]) -> int | None:
    """Returns num_attention_heads of a config file, or None for the default rule."""
    for path in sorted(folder.glob(f"*{role}*config*.json"))[:1]:
        config = files.read_json(path, shape={"num_attention_heads": int | None})
        if config.get("hidden_act", "gelu") != "gelu":
            act = config["hidden_act"]
            raise UserError(f"{path}: hidden_act is {act!r}, not 'gelu'.")
        if heads := config.get("num_attention_heads"):
            return heads
    notes.append(f"assumed: the {role} has hidden size // 64 attention heads")
    return None


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes a checkpoint under the original names, vocab.txt and config files."""
    arrays: dict[str, np.ndarray] = {}
    for role, tower in model.towers.items():
        body = MAIN if tower is model.main else GENERATOR
        arrays |= scatter(GOOGLE_TF1.encoder(tower.sizes, MAIN, body), tower.encoder)
        if tower.head:
            arrays |= scatter(GOOGLE_TF1.head(role, tower.sizes), tower.head)
        sizes = tower.sizes
        config = {"hidden_act": "gelu", "hidden_size": sizes.hidden_size}
        config["num_attention_heads"] = sizes.num_heads
        files.write_json(folder / _CONFIGS[role], config)
    tensor_names = sorted(arrays)
    try:
        # Keyed by name: the original code cannot read object graphs of TensorFlow 2.
        tf.raw_ops.SaveV2(
            prefix=str(folder / _PREFIX),
            tensor_names=tensor_names,
            shape_and_slices=[""] * len(tensor_names),
            tensors=[tf.constant(arrays[name]) for name in tensor_names],
        )
    except tf.errors.OpError as error:
        raise OSError(f"{_PREFIX} cannot be written: {error.message}") from error
    # The name only, so that the folder can be moved.
    files.write_text(folder / "checkpoint", f'model_checkpoint_path: "{_PREFIX}"\n')
    model.vocabulary.save(folder / "vocab.txt")
    flags = [f"--no{name}" for name in CASING if getattr(model, name) is False]
    note = f"the format has no casing: read it with {' '.join(flags)}"
    return (note,) * bool(flags)
