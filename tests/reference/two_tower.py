"""The two-tower generator and Electric's loss in plain NumPy, from the definition."""

import numpy as np
from scipy.special import log_softmax

from tests.reference import encoder


def reach(input_mask, direction):
    """Attention mask [B, S, S]: 1 if position t (second axis) attends to u (third)."""
    square = np.ones([input_mask.shape[1]] * 2)
    visible = np.tril(square) if direction == "left_to_right" else np.triu(square)
    found = input_mask[:, np.newaxis] * visible
    # Padding may see itself alone; its state is unused.
    return np.where(found.any(-1, keepdims=True), found, np.eye(len(square)))


def tower(weights_by_depth, batch, direction, num_heads):
    """Hidden states [B, S, D]; `weights` has the embeddings first, then each block."""
    mask = reach(batch["input_mask"], direction)
    return encoder.states(weights_by_depth, batch, mask, num_heads)[-1]


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
    return encoder.normalized(hidden, head) @ words.T + head["output_bias"]


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
        counts = (len(drawn), real - len(drawn))
        for t in range(real):
            q = np.exp(log_softmax(scores[row, t])[noised_ids[row, t]])
            noise = noise_probability(energies[row, t], q, *counts)
            total -= np.log(noise if t in drawn else 1 - noise)
            count += 1
    return total / count
