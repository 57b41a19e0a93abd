"""The command `python -m electra_tf.finetune`; `FinetuneConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.finetuning import FinetuneConfig

main = cli.command(FinetuneConfig, "electra_tf.runs.finetuning:main")

if __name__ == "__main__":
    sys.exit(main())
