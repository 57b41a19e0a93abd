"""Runs ``run_pretraining.py``'s code in the process of the test."""

from electra_tf import files
from electra_tf.runs import pretraining as pretrain
from tests.end_to_end.test_pretraining import flags_of
from tests.flag_parsing import parse


def config_of(text, model_dir, *arguments):
    """Returns the config of a six-step run with the sizes of the end-to-end tests."""
    return parse(
        *flags_of(text, model_dir),
        "--num_train_steps=6",
        "--save_checkpoint_steps=2",
        "--log_steps=1",
        "--mixed_precision=none",
        *arguments,
    )


def run(text, model_dir, *arguments):
    said = []
    return pretrain.run(config_of(text, model_dir, *arguments), said.append), said


def rows(model_dir):
    return files.read_json_lines(model_dir / "metrics.jsonl")
