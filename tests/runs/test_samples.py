import numpy as np
import tensorflow as tf

from electra_tf.runs import samples
from electra_tf.runs.samples import verdict_table

TOKENS = ["[PAD]", "the", "cat", "sat", "hat", "mat"]
# "the cat sat" with "cat" replaced by "hat" and "sat" sampled right; then padding.
BATCH = {"input_ids": [[1, 2, 3, 0]], "input_mask": [[1, 1, 1, 0]]}
FOUND = {
    "corrupted_ids": [[1, 4, 3, 0]],
    "is_masked": [[False, True, True, False]],
    "is_replaced": [[False, True, False, False]],
}


class Examined:
    """A model with fixed predictions."""

    def __init__(self, **answer):
        self.answer = answer

    def examine(self, batch, *, seed):
        del batch, seed
        return {k: tf.constant(v) for k, v in {**FOUND, **self.answer}.items()}


def sample(**answer):
    dataset = tf.data.Dataset.from_tensors({k: np.array(v) for k, v in BATCH.items()})
    return samples.text_sample(Examined(**answer), TOKENS, dataset)


def test_models_that_detect_no_tokens_have_none():
    assert sample() == ""


def test_verdicts_in_columns():
    text = sample(replaced_probability=[[0.1, 0.9, 0.2, 0.0]])
    assert "P(replaced) %" in text
    assert "1  +  found" in text


SAMPLE = {
    "original": ["the", "chef", "cooked", "a", "meal"],
    "corrupted": ["the", "queen", "ate", "a", "meal"],
    "probabilities": [0.02, 0.31, 0.93, 0.7, 0.1],
    "is_masked": [False, True, True, False, True],
}


def test_verdict_table():
    assert verdict_table(**SAMPLE) == (
        "     original  the chef  cooked a   meal\n"
        "       masked      ^     ^          ^\n"
        "      sampled      queen ate        =\n"
        "P(replaced) %   2  -31   +93    !70  10\n"
        "\n"
        "   1  +  found: replaced, and called replaced\n"
        "   1  -  missed: replaced, but called real\n"
        "   1  !  false alarm: real, but called replaced\n"
        "   2     real, and called real"
    )


def test_verdict_table_wraps_and_loses_no_token():
    text = verdict_table(**SAMPLE, width=12)
    rows = [x.split()[1:] for x in text.splitlines() if x.startswith("     original")]
    assert [token for row in rows for token in row] == SAMPLE["original"]
    assert len(rows) == 3
    assert all(len(line) <= 15 + 12 for line in text.split("\n\n   1")[0].splitlines())
