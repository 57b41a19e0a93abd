"""Discriminator objectives in plain NumPy float64, one token at a time.

Written from section 3.5 of the ELECTRA paper. Weights of a head are keyed by the last
part of their names.
"""

import numpy as np
from scipy.special import expit, softmax

from tests.reference import encoder


def binary_entropy(is_true, logit):
    return -np.log(expit(logit) if is_true else 1 - expit(logit))


def token_probabilities(hidden, head, table):
    """The masked-LM head on one hidden state [D]: probabilities [V]."""
    wide = encoder.gelu(hidden @ head["dense_kernel"] + head["dense_bias"])
    return softmax(table @ encoder.normalized(wide, head) + head["output_bias"])


def chosen(positions, used):
    """Row and position of every used slot."""
    return [(row, positions[row, slot]) for row, slot in np.argwhere(used)]


def detection_at_masked(logits, original, corrupted, positions, used):
    """ELECTRA 15%: predicts whether the token was replaced, at every used slot."""
    at = chosen(positions, used)
    values = [binary_entropy(original[x] != corrupted[x], logits[x]) for x in at]
    return np.mean(values)


def replace_mlm(hidden, head, table, original, positions, used):
    """Replace MLM: predicts the original token, at every used slot."""
    found = []
    for place in chosen(positions, used):
        probabilities = token_probabilities(hidden[place], head, table)
        found.append(-np.log(probabilities[original[place]]))
    return np.mean(found)


def copying_mixture(hidden, head, table, gate, shown):
    """All-Tokens MLM: probabilities [V] at one position, given the input token."""
    copy = expit(hidden @ gate["copy_kernel"][:, 0] + gate["copy_bias"][0])
    mixture = (1 - copy) * token_probabilities(hidden, head, table)
    mixture[shown] += copy
    return mixture


def all_tokens_mlm(hidden, head, table, gate, original, corrupted, input_mask):
    """All-Tokens MLM: predicts the original token, at every real token."""
    found = []
    for at in map(tuple, np.argwhere(input_mask)):
        mixture = copying_mixture(hidden[at], head, table, gate, corrupted[at])
        found.append(-np.log(mixture[original[at]]))
    return np.mean(found)


def sentence(hidden, unit, original, corrupted, input_mask):
    """Predicts from the first hidden state whether the row has a replaced token."""
    found = []
    for row in np.flatnonzero(input_mask.any(axis=1)):
        logit = hidden[row, 0] @ unit["sentence_kernel"][:, 0]
        logit += unit["sentence_bias"][0]
        replaced = (original[row] != corrupted[row]).any()
        found.append(binary_entropy(replaced, logit))
    return np.mean(found)
