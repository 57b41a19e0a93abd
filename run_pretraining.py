r"""Pretrains ELECTRA, or BERT's masked LM, from raw text.

Examples:
  # About five minutes on two CPU cores, nothing to download.
  python run_pretraining.py --flagfile=configs/tiny.cfg

  # Real work: ELECTRA-Small on one's own text.
  python run_pretraining.py --flagfile=configs/small.cfg --corpus=my_text/ \
      --model_dir=runs/mine --mixed_precision=bfloat16

  # From records made earlier, on all GPUs of the machine.
  python run_pretraining.py --flagfile=configs/base.cfg --distribution=mirrored \
      --records='data/train-*.tfrecord' --vocab_file=data/vocab.txt

  # What would happen: sizes, FLOPs, memory, data.
  python run_pretraining.py --flagfile=configs/large.cfg --dry_run

An interrupted run goes on when the same command is given again. Exit codes: 0 done,
1 error, 75 stopped by SIGTERM or SIGINT after saving.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import sys

from absl import app, flags, logging

from electra_tf import flags as flags_lib
from electra_tf import pretrain
from electra_tf.config import PretrainConfig


def main(arguments):
    """Flags to config to run."""
    if len(arguments) > 1:
        sys.exit(f"error: unexpected arguments {arguments[1:]}; see --help")
    logging.set_verbosity(logging.WARNING)
    with pretrain.clear_errors():
        return pretrain.run(flags_lib.read(PretrainConfig, flags.FLAGS))


if __name__ == "__main__":
    flags_lib.define(PretrainConfig)
    app.run(main)
