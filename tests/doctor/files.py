"""Hugging Face folders, written by hand from what is known of the format."""

import json
import struct

import numpy as np

from tests.tasks.common import TOKENS

VOCAB, EMBEDDING, POSITIONS, HIDDEN, WIDE, LAYERS = len(TOKENS), 64, 32, 16, 24, 2


def values(shapes, seed=0):
    """Arrays that no initializer makes."""
    rng = np.random.default_rng(seed)
    return {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in shapes.items()}


def _dense(name, inputs, outputs):
    """torch keeps kernels as [out, in]."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name, size):
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def hugging_face_shapes(kind):
    shapes = {
        "electra.embeddings.word_embeddings.weight": (VOCAB, EMBEDDING),
        "electra.embeddings.position_embeddings.weight": (POSITIONS, EMBEDDING),
        "electra.embeddings.token_type_embeddings.weight": (2, EMBEDDING),
        **_norm("electra.embeddings.LayerNorm", EMBEDDING),
        **_dense("electra.embeddings_project", EMBEDDING, HIDDEN),
    }
    for layer in range(LAYERS):
        start = f"electra.encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes |= _dense(f"{start}.attention.self.{name}", HIDDEN, HIDDEN)
        shapes |= _dense(f"{start}.attention.output.dense", HIDDEN, HIDDEN)
        shapes |= _norm(f"{start}.attention.output.LayerNorm", HIDDEN)
        shapes |= _dense(f"{start}.intermediate.dense", HIDDEN, WIDE)
        shapes |= _dense(f"{start}.output.dense", WIDE, HIDDEN)
        shapes |= _norm(f"{start}.output.LayerNorm", HIDDEN)
    if kind == "discriminator":
        shapes |= _dense("discriminator_predictions.dense", HIDDEN, HIDDEN)
        shapes |= _dense("discriminator_predictions.dense_prediction", HIDDEN, 1)
    if kind == "generator":
        shapes |= _dense("generator_predictions.dense", HIDDEN, EMBEDDING)
        shapes |= _norm("generator_predictions.LayerNorm", EMBEDDING)
        shapes |= {"generator_lm_head.bias": (VOCAB,)}
    return shapes


HF_CONFIG = {
    "model_type": "electra",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "vocab_size": VOCAB,
    "embedding_size": EMBEDDING,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "max_position_embeddings": POSITIONS,
    "num_hidden_layers": LAYERS,
}
ARCHITECTURES = {
    "discriminator": ["ElectraForPreTraining"],
    "generator": ["ElectraForMaskedLM"],
    "encoder": ["ElectraModel"],
}


def save_safetensors(path, tensors, dtype="F32"):
    header, blob = {"__metadata__": {"format": "pt"}}, b""
    for name, value in tensors.items():
        raw = value.astype("<f4")
        if dtype == "BF16":
            raw = (raw.view("<u4") >> 16).astype("<u2")
        data = raw.tobytes()
        offsets = [len(blob), len(blob) + len(data)]
        shape = list(value.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        blob += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def save_vocabulary(folder, tokens=TOKENS):
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))


def hugging_face(folder, kind="discriminator", *, change=None, dtype="F32", **config):
    """A folder as `save_pretrained` leaves it; `change` edits the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = values(hugging_face_shapes(kind))
    (change or (lambda tensors: None))(tensors)
    save_safetensors(folder / "model.safetensors", tensors, dtype)
    config = HF_CONFIG | {"architectures": ARCHITECTURES[kind]} | config
    (folder / "config.json").write_text(json.dumps(config))
    save_vocabulary(folder)
    return folder
