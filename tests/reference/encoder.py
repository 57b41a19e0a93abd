"""Forward pass of the encoder in plain NumPy, written from the definition.

Computes one sentence and head at a time, in float64. `weights` maps the last part of a
variable path to an array.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf)


def gelu(x):
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def layer_norm(x, gamma, beta, epsilon=1e-12):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def normalized(x, weights, part=""):
    """LayerNorm with the weights whose names begin with ``part``."""
    gamma, beta = (weights[f"{part}layer_norm_{name}"] for name in ("gamma", "beta"))
    return layer_norm(x, gamma, beta)


def embed(weights, input_ids, segment_ids):
    total = weights["word_embeddings"][input_ids]
    total = total + weights["position_embeddings"][: input_ids.shape[1]]
    total = total + weights["segment_embeddings"][segment_ids]
    return normalized(total, weights)


def attend(query, key, value, mask):
    """One head of one sentence: query, key and value [S, H], mask [S]."""
    scores = query @ key.T / math.sqrt(query.shape[-1])
    exponentials = np.exp(scores - scores.max()) * mask
    return exponentials / exponentials.sum(-1, keepdims=True) @ value


def attention(query, key, value, masks, num_heads):
    """All heads of all sentences: query, key and value [B, S, D]."""
    context = np.zeros_like(query)
    for row, mask in enumerate(masks):
        for columns in np.split(np.arange(query.shape[-1]), num_heads):
            one_head = (part[row][:, columns] for part in (query, key, value))
            context[row][:, columns] = attend(*one_head, mask)
    return context


def block(weights, hidden, input_mask, num_heads):
    """One post-LayerNorm block: hidden [B, S, D], input_mask [B, S]."""
    qkv = np.split(hidden @ weights["qkv_kernel"] + weights["qkv_bias"], 3, axis=-1)
    context = attention(*qkv, input_mask, num_heads)
    attended = context @ weights["attention_output_kernel"]
    attended = attended + weights["attention_output_bias"]
    hidden = normalized(hidden + attended, weights, "attention_")
    wide = gelu(hidden @ weights["intermediate_kernel"] + weights["intermediate_bias"])
    hidden = hidden + wide @ weights["output_kernel"] + weights["output_bias"]
    return normalized(hidden, weights, "output_")


def states(weights_by_depth, inputs, mask, num_heads):
    """Hidden states: the projected embeddings, then the output of each block."""
    bottom, *blocks = weights_by_depth
    hidden = embed(bottom, inputs["input_ids"], inputs["segment_ids"])
    hidden = hidden @ bottom["embeddings_projection_kernel"]
    found = [hidden + bottom["embeddings_projection_bias"]]
    for weights in blocks:
        found.append(block(weights, found[-1], mask, num_heads))
    return found


def named_weights(variables):
    """Maps the last part of each variable path to its value as float64."""
    return {v.path.split("/")[-1]: np.asarray(v, np.float64) for v in variables}
