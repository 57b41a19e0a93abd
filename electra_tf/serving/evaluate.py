"""The command ``electra-tf evaluate``."""

from __future__ import annotations

from collections.abc import Sequence

from electra_tf import cli
from electra_tf.config.commands import EvaluateConfig
from electra_tf.errors import UserError
from electra_tf.serving.predictor import Predictor
from electra_tf.serving.table import answer_table, score_table
from electra_tf.tasks import glue


def main(config: EvaluateConfig, runs: Sequence[str]) -> None:
    """Prints the scores of a model, or packs the GLUE predictions of runs."""
    if config.glue:
        if not runs:
            raise UserError("name the output folders of fine-tuning runs; see --help.")
        glue.collect(runs, config.glue)
        cli.say(f"wrote {config.glue}")
        return
    if runs:
        raise UserError(f"unexpected arguments {list(runs)}; see --help.")
    if not (config.model and config.input):
        raise UserError("--model and --input are required; see --help.")
    predictor = Predictor(config.model)
    columns, _, answers = answer_table(config, predictor.text_names, predictor)
    for name, value in score_table(config, columns, answers).items():
        cli.say(f"{name} {value:.2f}")
