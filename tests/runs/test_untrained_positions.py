"""Position tables longer than the trained length."""

import dataclasses

import pytest

from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.layers import TextEmbedding
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import finetuning
from electra_tf.tasks import Classification


def start(trained_length):
    """An encoder of 32 positions with a shorter trained length."""
    encoder = TextEncoder(
        TextEmbedding(11, 8, max_positions=32),
        num_layers=1,
        hidden_size=8,
        num_heads=1,
    )
    return finetuning.Pretrained(encoder, tokenizer=None, trained_length=trained_length)


def settings(length, encoder):
    config = FinetuneConfig()
    data = dataclasses.replace(config.data, max_seq_length=length)
    task = Classification(name="mood", source=None, labels=("neg", "pos"))
    config = dataclasses.replace(config, data=data)
    return finetuning.settings(config, task, encoder.encoder)


@pytest.mark.parametrize(
    ("length", "trained", "warns"),
    [(16, 16, False), (17, 16, True), (32, 16, True), (32, None, False)],
)
def test_longer_examples_than_in_pretraining_are_questioned(length, trained, warns):
    """Untrained position rows cause a warning (pitfall 25 of docs/fidelity.md)."""
    encoder = start(trained)
    message = finetuning.untrained_positions(settings(length, encoder), encoder)
    assert bool(message) == warns
    if warns:
        assert f"{length} exceeds the 16 tokens of pretraining" in message


def test_longer_examples_than_the_table_are_refused():
    """The table lacks rows for these positions (pitfall 25 of docs/fidelity.md)."""
    with pytest.raises(ValueError, match="exceeds the 32 positions"):
        settings(33, start(16))
