"""Other libraries' files, written by hand from what is known of their formats."""

import json
import struct

import keras_hub
import numpy as np
import tensorflow as tf

from tests.layers.helpers import randomize
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


def _scope(scope, hidden):
    shapes = {
        f"{scope}/embeddings_project/kernel": (EMBEDDING, hidden),
        f"{scope}/embeddings_project/bias": (hidden,),
    }
    for layer in range(LAYERS):
        start = f"{scope}/encoder/layer_{layer}"
        sizes = {
            "attention/self/query": (hidden, hidden),
            "attention/self/key": (hidden, hidden),
            "attention/self/value": (hidden, hidden),
            "attention/output/dense": (hidden, hidden),
            "intermediate/dense": (hidden, 2 * hidden),
            "output/dense": (2 * hidden, hidden),
        }
        for name, shape in sizes.items():
            shapes |= {f"{start}/{name}/kernel": shape}
            shapes |= {f"{start}/{name}/bias": shape[1:]}
        for name in ("attention/output", "output"):
            shapes |= {f"{start}/{name}/LayerNorm/{x}": (hidden,) for x in _NORM}
    return shapes


_NORM = ("gamma", "beta")


def google_shapes():
    embeddings = {
        "word_embeddings": (VOCAB, EMBEDDING),
        "position_embeddings": (POSITIONS, EMBEDDING),
        "token_type_embeddings": (2, EMBEDDING),
        "LayerNorm/gamma": (EMBEDDING,),
        "LayerNorm/beta": (EMBEDDING,),
    }
    return {
        **{f"electra/embeddings/{name}": s for name, s in embeddings.items()},
        **_scope("electra", HIDDEN),
        **_scope("generator", HIDDEN // 2),
        "discriminator_predictions/dense/kernel": (HIDDEN, HIDDEN),
        "discriminator_predictions/dense/bias": (HIDDEN,),
        "discriminator_predictions/dense_1/kernel": (HIDDEN, 1),
        "discriminator_predictions/dense_1/bias": (1,),
        "generator_predictions/dense/kernel": (HIDDEN // 2, EMBEDDING),
        "generator_predictions/dense/bias": (EMBEDDING,),
        "generator_predictions/LayerNorm/gamma": (EMBEDDING,),
        "generator_predictions/LayerNorm/beta": (EMBEDDING,),
        "generator_predictions/output_bias": (VOCAB,),
    }


def google_tf1(folder, *, change=None, slots=True):
    """A checkpoint whose variables are keyed by name, as TensorFlow 1 wrote them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = values(google_shapes())
    (change or (lambda tensors: None))(tensors)
    if slots:
        tensors |= {
            f"{name}/adam_{slot}": np.abs(value)
            for name, value in list(tensors.items())
            for slot in "mv"
        }
    tensors["global_step"] = np.int64(1000)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "model.ckpt-1000"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    save_vocabulary(folder)
    return folder


def keras_hub_preset(folder, *, change=None):
    """What `save_to_preset` writes, after training."""
    backbone = keras_hub.models.ElectraBackbone(
        VOCAB, LAYERS, 2, HIDDEN, EMBEDDING, WIDE, max_sequence_length=POSITIONS
    )
    randomize(backbone.weights)
    backbone.pooled_dense.bias.assign(np.zeros(HIDDEN))
    (change or (lambda backbone: None))(backbone)
    backbone.save_to_preset(str(folder))
    tokenizer = keras_hub.models.ElectraTokenizer(list(TOKENS), lowercase=True)
    tokenizer.save_to_preset(str(folder))
    return folder
