"""The command ``electra-tf evaluate``."""

from __future__ import annotations

from electra_tf import cli
from electra_tf.config.commands import EvaluateConfig
from electra_tf.errors import UserError
from electra_tf.serving.predictor import Predictor
from electra_tf.serving.table import answer_table, score_table


def main(config: EvaluateConfig) -> None:
    """Prints the scores of a model on a labeled table."""
    if not (config.model and config.input):
        raise UserError("--model and --input are required; see --help.")
    predictor = Predictor(config.model)
    columns, _, answers = answer_table(config, predictor.text_names, predictor)
    for name, value in score_table(config, columns, answers).items():
        cli.say(f"{name} {value:.2f}")
