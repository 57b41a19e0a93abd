"""Runs ``run_pretraining.py``'s code in the process of the test."""

from electra_tf import files
from electra_tf.runs import pretraining as pretrain
from tests.end_to_end.test_pretraining import SIZES
from tests.flag_parsing import parse


def config_of(text, model_dir, *arguments):
    """Returns the config of a six-step run with the sizes of the end-to-end tests.

    ``arguments`` may begin with a flagfile; flags after ``--`` override the sizes.
    """
    middle = arguments.index("--") if "--" in arguments else 0
    return parse(
        *arguments[:middle],
        *(flag for flag in SIZES.split() if "generator" not in flag or not middle),
        "--num_train_steps=6",
        "--save_checkpoint_steps=2",
        "--log_steps=1",
        "--mixed_precision=none",
        f"--corpus={text / 'text.txt'}",
        f"--vocab_file={text / 'vocab.txt'}",
        f"--data_dir={text / 'data'}",
        f"--model_dir={model_dir}",
        *arguments[middle + 1 if middle else 0 :],
    )


def run(text, model_dir, *arguments):
    said = []
    code = pretrain.run(config_of(text, model_dir, *arguments), said.append)
    return code, said


def rows(model_dir):
    return files.read_json_lines(model_dir / "metrics.jsonl")
