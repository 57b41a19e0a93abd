r"""Fine-tunes an encoder for a task, scores it, and exports it for serving.

Examples:
  # Nothing at hand? An embedded task, right after pretraining configs/tiny.cfg.
  python run_finetuning.py --flagfile=configs/tasks/tiny.cfg

  # GLUE, five seeds.
  python run_finetuning.py --flagfile=configs/tasks/cola.cfg --data_dir=glue/CoLA \
      --encoder=runs/small/encoder.keras --seeds=5

  # Your own table: one text column, or two for pairs.
  python run_finetuning.py --task=classification --train=my.csv --eval=my_dev.csv \
      --text=title,body --label=topic --encoder=runs/small/encoder.keras

  # What was pretraining worth?
  python run_finetuning.py --flagfile=configs/tasks/tiny.cfg --init=random \
      --output_dir=runs/tiny_random

The folder --output_dir gets model.keras, saved_model/, labels.txt, predictions.tsv,
the benchmark's submission files, pictures, metrics.jsonl, results.json and config.json.
Predict with: python -m electra_tf.predict --model=OUTPUT_DIR "a text".
Exit codes: 0 done, 1 error.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import sys

from absl import app, flags, logging

from electra_tf import finetune
from electra_tf import flags as flags_lib
from electra_tf.finetune_config import FinetuneConfig


def main(arguments):
    """Flags to config to run."""
    if len(arguments) > 1:
        sys.exit(f"error: unexpected arguments {arguments[1:]}; see --help")
    logging.set_verbosity(logging.WARNING)
    try:
        config = flags_lib.read(FinetuneConfig, flags.FLAGS)
    except ValueError as error:
        sys.exit(f"error: {error}")
    return finetune.main(config)


if __name__ == "__main__":
    flags_lib.define(FinetuneConfig)
    app.run(main)
