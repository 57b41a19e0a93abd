"""The command `score`."""

from __future__ import annotations

from electra_tf.analysis import rerank
from electra_tf.config.commands import ScoreConfig
from electra_tf.errors import UserError
from electra_tf.runs import minimal_pairs


def main(config: ScoreConfig) -> None:
    """Scores minimal pairs or n-best lists."""
    if config.data:
        minimal_pairs.main(config)
    elif config.input:
        rerank.main(config)
    else:
        raise UserError("name minimal pairs (--data) or n-best lists (--input).")
