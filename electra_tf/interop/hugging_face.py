"""Folders and hub repositories of Hugging Face ``transformers``.

Discriminator and generator are two folders, each with its own config.json. The
generator's folder is ``generator/`` below the discriminator's.
"""

import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from electra_tf import cli, files
from electra_tf.errors import UserError, explained
from electra_tf.folders import cards
from electra_tf.folders.models import HUGGING_FACE_FILES, to_half
from electra_tf.interop import networks, task_heads, tokenizer_files
from electra_tf.interop.names import HEAD_SCOPES, HUGGING_FACE, Tensors, scatter
from electra_tf.interop.networks import Imported, Sizes, Source, Tower

NAME = "hugging_face"
GENERATOR = "generator"
_OF_A_HALF = ("config.json", "model.safetensors", *tokenizer_files.OUTPUTS)
OUTPUTS = ("README.md", *_OF_A_HALF, *(f"{GENERATOR}/{name}" for name in _OF_A_HALF))

# Entries of config.json with one supported value; may be absent.
_FIXED = {
    "model_type": "electra",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
# Entry of config.json -> field of `Sizes`.
SIZES = {
    "vocab_size": "vocab_size",
    "embedding_size": "embedding_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_segments",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
}
_HINTS = typing.get_type_hints(Sizes)
_SHAPE = {
    **{theirs: _HINTS[ours] for theirs, ours in SIZES.items()},
    "architectures": list[str] | None,
    "hidden_act": str | None,
    "layer_norm_eps": float | None,
    "model_type": str | None,
    "tie_word_embeddings": bool | None,
}
# Prefixes of task heads and buffers, which may stay unread.
_UNREAD = (
    *("classifier.", "qa_outputs.", "sequence_summary.", "summary.", "pooler."),
    *("embeddings.position_ids", "embeddings.token_type_ids"),
)
# Older pickles hold the generator's output matrix, a copy of the word table.
OUTPUT_MATRIX = "generator_lm_head.weight"

# Downloaded besides the weights.
_SMALL = ("*.json", "vocab.txt")
# A hub repository, owner/name.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")

_FRONT_MATTER = "---\nlibrary_name: transformers\ntags:\n- {tags}\n---\n\n"
_CODE = """python
from transformers import AutoTokenizer, {loaded}

tokenizer = AutoTokenizer.from_pretrained("this/folder")
model = {loaded}.from_pretrained("this/folder")"""


def detect(source: Source) -> bool:
    """Returns True for a hub name or a folder with the config of ``transformers``."""
    folder = Path(source.path)
    if not folder.is_dir():
        return bool(_HUB_NAME.fullmatch(source.path)) and not folder.exists()
    return "model_type" in files.read_json(folder / "config.json", {})


def read(source: Source) -> Imported:
    """Reads one folder, and the generator's folder if it is known."""
    source.reject("num_heads")
    folder = _local_folder(source.path)
    other = source.generator
    if other is None and (folder / GENERATOR / "config.json").is_file():
        other = str(folder / GENERATOR)
    model = _read_half(source.path, folder, with_task=source.only is None)
    towers, not_taken = model.towers, model.not_taken
    if other is not None and source.only != "discriminator":
        second = _read_half(other, _local_folder(other))
        if [*towers, *second.towers] != ["discriminator", "generator"]:
            raise UserError(
                f"{source.path} and {other} must hold a discriminator and a generator, "
                "in this order."
            )
        ours, theirs = model.vocabulary, second.vocabulary
        if ours and theirs and ours != theirs:
            raise UserError(f"{source.path} and {other} have different vocabularies.")
        towers, not_taken = towers | second.towers, not_taken + second.not_taken
    towers = source.selected(towers)
    task, notes = model.task, model.notes
    may_be_pair = task is not None and task.kind in task_heads.PROBLEMS
    if source.pair is not None:
        if not may_be_pair:
            raise UserError(f"{source.path} has no head for texts: leave --pair out.")
        text_names = ["text", "text_pair"] if source.pair else ["text"]
        options = {**task.options, "text_names": text_names}
        task = dataclasses.replace(task, options=options)
    elif may_be_pair and "text_names" not in task.options:
        notes += ("assumed: an example has one text (--pair: two texts)",)
    if task and task.kind == "regression" and "label_range" not in task.options:
        where = "electra_tf.label_range in config.json"
        notes += (f"assumed: labels are from 0 to 1 ({where})",)
    return dataclasses.replace(
        model,
        **{role: towers.get(role) for role in HEAD_SCOPES},
        not_taken=not_taken,
        task=task,
        notes=notes,
    )


def _read_half(source: str, folder: Path, *, with_task: bool = False) -> Imported:
    config = read_config(folder)
    sizes = Sizes(**{ours: config[theirs] for theirs, ours in SIZES.items()})
    sizes.check(str(folder / "config.json"))
    tensors = Tensors(read_tensors(folder), str(folder))
    is_generator = tensors.starting_with("generator_")
    role = "generator" if is_generator else "discriminator"
    # Bare encoders lack this prefix.
    prefix = "electra." if tensors.starting_with("electra.") else ""
    encoder = tensors.read(HUGGING_FACE.encoder(sizes, prefix, prefix))
    head = {}
    if is_generator or tensors.starting_with(f"{HEAD_SCOPES['discriminator']}."):
        head = tensors.read(HUGGING_FACE.head(role, sizes))
    is_tied = config.get("tie_word_embeddings") is not False
    if is_generator and not is_tied and OUTPUT_MATRIX not in tensors:
        raise UserError(
            f"{folder}: tie_word_embeddings is false, and {OUTPUT_MATRIX} is missing."
        )
    words = f"{prefix}embeddings.word_embeddings.weight"
    if OUTPUT_MATRIX in tensors and not np.array_equal(
        tensors.take(OUTPUT_MATRIX), tensors.take(words), equal_nan=True
    ):
        raise UserError(f"{folder}: {OUTPUT_MATRIX} is not the word table, {words}.")
    tokenizer = tokenizer_files.read_tokenizer(folder)
    task, width = None, sizes.hidden_size
    if with_task and not head:
        task = task_heads.of_hugging_face(tensors, config, width, str(folder))
    # Of a fine-tuned model, the tokenizer's length is that of the task.
    own = config.get("electra_tf")
    if isinstance(own, dict) and isinstance(own.get("trained_length"), int):
        tokenizer["trained_length"] = own["trained_length"]
    left = sorted(tensors.left)
    unknown = [n for n in left if not n.removeprefix(prefix).startswith(_UNREAD)]
    if unknown:
        names = ", ".join(unknown[:5])
        raise UserError(f"{folder} has tensors that are not part of ELECTRA: {names}.")
    return Imported(
        format=NAME,
        source=source,
        **{role: Tower(sizes, encoder, head)},
        **tokenizer,
        not_taken=tuple(left),
        task=task,
    )


def _local_folder(path: str) -> Path:
    """Returns the folder itself, or a downloaded copy of a hub repository."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        # Downloads pickles only if there are no safetensors.
        for kind in HUGGING_FACE_FILES:
            # Also of the generator's folder in it.
            patterns = [*_SMALL, f"*{kind}"]
            folder = Path(snapshot_download(path, allow_patterns=patterns))
            if (folder / kind).is_file():
                break
    except Exception as error:  # The client raises many types.
        raise OSError(
            f"{path} is not a local folder and cannot be downloaded from the Hugging "
            f"Face hub: {cli.reason(error)} Pass the folder of a copy."
        ) from error
    return folder


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a folder, by name."""
    paths = [folder / name for name in HUGGING_FACE_FILES]
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has none of {', '.join(HUGGING_FACE_FILES)}: save other weights "
            "as one safetensors file first."
        )
    if path.suffix == ".safetensors":
        # NumPy lacks some types.
        kinds = (SafetensorError, AttributeError)
        with explained(f"{path} is damaged, or quantized", kinds):
            tensors = load_file(path)
    else:
        tensors = _pickled(path)
    # LayerNorms had other names before 2020.
    return {
        name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias"): x
        for name, x in tensors.items()
    }


def _pickled(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise UserError(f"{path} needs PyTorch: pip install torch.") from error
    with explained(f"{path} cannot be read", Exception):
        # Never unpickles code.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise UserError(
            f"{path} holds more than the tensors of a model: call save_pretrained."
        )
    # NumPy has no bfloat16.
    return {
        name: (value.float() if value.is_floating_point() else value).detach().numpy()
        for name, value in tensors.items()
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Reads config.json; raises ValueError if it is damaged or not supported."""
    path = folder / "config.json"
    config = files.read_json(path, shape=_SHAPE)
    wrong = [
        f"{name} is {config[name]!r}, not {value!r}"
        for name, value in _FIXED.items()
        if config.get(name, value) != value
    ]
    if wrong:
        raise UserError(f"{path}: unsupported variant: {'; '.join(wrong)}.")
    return config


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes weights, config, tokenizer and model card for ``transformers``."""
    for role, tower in model.towers.items():
        half = folder if tower is model.main else folder / GENERATOR
        half.mkdir(exist_ok=True)
        _write_half(half, model, role)
    files.write_text(folder / "README.md", model_card(model))
    return ()


def _write_half(folder: Path, model: Imported, role: str) -> None:
    tower, task, more = model.towers[role], model.task, {}
    prefix = "electra." if tower.head or task else ""
    arrays = scatter(HUGGING_FACE.encoder(tower.sizes, prefix, prefix), tower.encoder)
    if tower.head:
        arrays |= scatter(HUGGING_FACE.head(role, tower.sizes), tower.head)
    if task:
        of_head, more = task_heads.to_hugging_face(task, model.source)
        arrays |= of_head
    if model.float16:
        arrays = {n: to_half(x, f"{model.source}: {n}") for n, x in arrays.items()}
    path = folder / "model.safetensors"
    try:
        # `transformers` requires "pt".
        save_file(arrays, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written: {error}") from error
    config = {
        "architectures": [task_heads.CLASSES[role] if tower.head else "ElectraModel"],
        **_FIXED,
        **{theirs: getattr(tower.sizes, ours) for theirs, ours in SIZES.items()},
        "pad_token_id": model.vocabulary.pad_id,
        "tie_word_embeddings": True,
        "dtype": "float16" if model.float16 else "float32",
        **more,
    }
    files.write_json(folder / "config.json", config)
    tokenizer_files.write_tokenizer(folder, model)


def model_card(model: Imported) -> str:
    """Returns the card of a fine-tuned model, or of the main tower's folder."""
    main, *others = model.towers
    if task := model.task:
        loaded = task_heads.CLASSES[task.kind]
        tags = f"electra\n- {task.kind.replace('_', '-')}"
        title, use = task.options.get("task", task.kind), "and fine-tuned"
        facts = model.facts
    else:
        loaded = task_heads.CLASSES[main] if model.main.head else "ElectraModel"
        title, use, tags = "Encoder", "and exported", "electra"
        lines = networks.about(model, folders={x: f", in `{x}/`" for x in others})
        facts = cards.with_model(model.facts, lines)
    front, code = _FRONT_MATTER.format(tags=tags), _CODE.format(loaded=loaded)
    return front + cards.card(title, use, code, facts.rstrip())
