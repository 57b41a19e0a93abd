"""The original networks in NumPy, computed from the arrays of a checkpoint.

Query, key and value are separate products. Kernels have the layout of TensorFlow 1,
and variables have the names of the original code.
"""

import numpy as np

from tests.reference.encoder import attention, gelu, layer_norm

QKV = ("query", "key", "value")


def shapes(sizes, generator=None):
    """Names and shapes of a released checkpoint's variables.

    Args:
        sizes: vocab, positions, segments, embedding, hidden, layers, intermediate.
        generator: sizes that differ in the generator; None without a generator.
    """
    embedding = sizes["embedding"]
    found = {
        "electra/embeddings/word_embeddings": (sizes["vocab"], embedding),
        "electra/embeddings/position_embeddings": (sizes["positions"], embedding),
        "electra/embeddings/token_type_embeddings": (sizes["segments"], embedding),
        **_norm("electra/embeddings/LayerNorm", embedding),
        **_body("electra/", sizes),
        **_dense("discriminator_predictions/dense", sizes["hidden"], sizes["hidden"]),
        **_dense("discriminator_predictions/dense_1", sizes["hidden"], 1),
    }
    if generator is not None:
        small = sizes | generator
        found |= {
            **_body("generator/", small),
            **_dense("generator_predictions/dense", small["hidden"], embedding),
            **_norm("generator_predictions/LayerNorm", embedding),
            "generator_predictions/output_bias": (sizes["vocab"],),
        }
    return found


def _body(scope, sizes):
    hidden, wide = sizes["hidden"], sizes["intermediate"]
    found = {}
    if sizes["embedding"] != hidden:
        found |= _dense(f"{scope}embeddings_project", sizes["embedding"], hidden)
    for layer in range(sizes["layers"]):
        path = f"{scope}encoder/layer_{layer}/"
        for part in QKV:
            found |= _dense(f"{path}attention/self/{part}", hidden, hidden)
        found |= {
            **_dense(f"{path}attention/output/dense", hidden, hidden),
            **_norm(f"{path}attention/output/LayerNorm", hidden),
            **_dense(f"{path}intermediate/dense", hidden, wide),
            **_dense(f"{path}output/dense", wide, hidden),
            **_norm(f"{path}output/LayerNorm", hidden),
        }
    return found


def _dense(path, rows, columns):
    return {f"{path}/kernel": (rows, columns), f"{path}/bias": (columns,)}


def _norm(path, size):
    return {f"{path}/gamma": (size,), f"{path}/beta": (size,)}


def random_variables(found, seed=0, stddev=0.3):
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(0, stddev, shape) + name.endswith("gamma")).astype(np.float32)
        for name, shape in found.items()
    }


class Checkpoint:
    """Both networks of a checkpoint, float64.

    Args:
        variables: dict of name to array.
        heads: attention heads of the towers, by scope.
    """

    def __init__(self, variables, heads):
        self.variables = {k: np.asarray(v, np.float64) for k, v in variables.items()}
        self.heads = heads

    def dense(self, path, inputs):
        kernel = self.variables[f"{path}/kernel"]
        return inputs @ kernel + self.variables[f"{path}/bias"]

    def norm(self, path, inputs):
        gamma = self.variables[f"{path}/gamma"]
        return layer_norm(inputs, gamma, self.variables[f"{path}/beta"])

    def hidden(self, scope, ids, segments, mask):
        tables = {
            name: self.variables[f"electra/embeddings/{name}_embeddings"]
            for name in ("word", "position", "token_type")
        }
        hidden = tables["word"][ids] + tables["token_type"][segments]
        hidden = hidden + tables["position"][: ids.shape[1]]
        hidden = self.norm("electra/embeddings/LayerNorm", hidden)
        if f"{scope}/embeddings_project/kernel" in self.variables:
            hidden = self.dense(f"{scope}/embeddings_project", hidden)
        layer = 0
        while f"{scope}/encoder/layer_{layer}/output/dense/bias" in self.variables:
            path = f"{scope}/encoder/layer_{layer}"
            hidden = self.block(path, hidden, mask, self.heads[scope])
            layer += 1
        return hidden

    def block(self, path, hidden, mask, heads):
        parts = [self.dense(f"{path}/attention/self/{part}", hidden) for part in QKV]
        context = attention(*parts, mask, heads)
        attended = self.dense(f"{path}/attention/output/dense", context)
        hidden = self.norm(f"{path}/attention/output/LayerNorm", hidden + attended)
        wide = gelu(self.dense(f"{path}/intermediate/dense", hidden))
        hidden = hidden + self.dense(f"{path}/output/dense", wide)
        return self.norm(f"{path}/output/LayerNorm", hidden)

    def rtd_logits(self, ids, segments, mask):
        """Logits [B, S]."""
        hidden = self.hidden("electra", ids, segments, mask)
        wide = gelu(self.dense("discriminator_predictions/dense", hidden))
        return self.dense("discriminator_predictions/dense_1", wide)[..., 0]

    def mlm_logits(self, ids, segments, mask, positions):
        """Logits [B, P, V]."""
        hidden = self.hidden("generator", ids, segments, mask)
        rows = np.stack([hidden[row][positions[row]] for row in range(len(ids))])
        rows = gelu(self.dense("generator_predictions/dense", rows))
        rows = self.norm("generator_predictions/LayerNorm", rows)
        words = self.variables["electra/embeddings/word_embeddings"]
        return rows @ words.T + self.variables["generator_predictions/output_bias"]
