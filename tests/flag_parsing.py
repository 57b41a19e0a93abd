"""Parses command-line arguments into a config, as the run scripts do."""

from electra_tf import cli
from electra_tf.config.pretraining import PretrainConfig

# Flags of a run small enough for a test.
SMALL = [
    "--num_train_steps=10",
    "--max_seq_length=16",
    "--max_positions=16",
    "--num_layers=2",
    "--hidden_size=16",
    "--num_heads=2",
    "--intermediate_size=32",
    "--embedding_size=8",
    "--warmup_steps=2",
    "--mixed_precision=none",
]


def parse(*arguments):
    return cli.parse(PretrainConfig, [*arguments])
