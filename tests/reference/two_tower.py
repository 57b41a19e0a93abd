"""The two-tower generator and Electric's loss in plain NumPy, from the definition."""

import numpy as np

from tests.reference import encoder


def reach(input_mask, direction):
    """Attention mask [B, S, S]: 1 if position t (second axis) attends to u (third)."""
    size = input_mask.shape[1]
    found = np.zeros((*input_mask.shape, size))
    for row in range(len(input_mask)):
        for t in range(size):
            for u in range(size):
                ahead = u > t if direction == "left_to_right" else u < t
                found[row, t, u] = input_mask[row, u] and not ahead
            if not found[row, t].any():
                found[row, t, t] = 1  # padding; its state is unused
    return found


def tower(weights_by_depth, batch, direction, num_heads):
    """Hidden states [B, S, D]; `weights` has the embeddings first, then each block."""
    bottom, *blocks = weights_by_depth
    hidden = encoder.embed(bottom, batch["input_ids"], batch["segment_ids"])
    hidden = hidden @ bottom["embeddings_projection_kernel"]
    hidden = hidden + bottom["embeddings_projection_bias"]
    for weights in blocks:
        mask = reach(batch["input_mask"], direction)
        hidden = encoder.block(weights, hidden, mask, num_heads)
    return hidden


def logits(left, right, head, words, batch, num_heads):
    """Logits [B, S, V] from left[t - 1] and right[t + 1]."""
    before = tower(left, batch, "left_to_right", num_heads)
    after = tower(right, batch, "right_to_left", num_heads)
    rows, size, width = before.shape
    contexts = np.zeros((rows, size, 2 * width))
    for row in range(rows):
        real = batch["input_mask"][row].sum()
        for t in range(size):
            if t > 0:
                contexts[row, t, :width] = before[row, t - 1]
            if t + 1 < real:
                contexts[row, t, width:] = after[row, t + 1]
    hidden = encoder.gelu(contexts @ head["dense_kernel"] + head["dense_bias"])
    hidden = encoder.layer_norm(
        hidden, head["layer_norm_gamma"], head["layer_norm_beta"]
    )
    return hidden @ words.T + head["output_bias"]


def log_softmax(scores):
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def cloze_loss(scores, batch, special_ids):
    """Mean of -log q over all tokens but padding and special tokens."""
    total = count = 0
    for row, t in np.argwhere(batch["input_mask"]):
        token = batch["input_ids"][row, t]
        if token not in special_ids:
            total -= log_softmax(scores[row, t])[token]
            count += 1
    return total / count


def noise_probability(energy, noise_probability_of_token, num_noise, num_data):
    """Posterior noise probability of one token in noise-contrastive estimation."""
    noise = num_noise * noise_probability_of_token
    return noise / (noise + num_data * np.exp(-energy))


def electric_loss(energies, scores, noised_ids, batch):
    """Mean negative log-posterior of the label (data or noise) over all real tokens.

    Args:
        energies: [B, S], of the noised text.
        scores: generator logits [B, S, V], of the original text.
        noised_ids: [B, S].
        batch: a batch of the input pipeline.
    """
    total = count = 0
    for row in range(len(energies)):
        slots = batch["masked_lm_weights"][row] > 0
        drawn = set(batch["masked_lm_positions"][row][slots].tolist())
        real = int(batch["input_mask"][row].sum())
        for t in range(real):
            q = np.exp(log_softmax(scores[row, t])[noised_ids[row, t]])
            noise = noise_probability(
                energies[row, t], q, len(drawn), real - len(drawn)
            )
            total -= np.log(noise if t in drawn else 1 - noise)
            count += 1
    return total / count
