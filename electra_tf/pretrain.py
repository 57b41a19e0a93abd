"""The command `python -m electra_tf.pretrain`; `PretrainConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.pretraining import PretrainConfig

main = cli.command(PretrainConfig, "electra_tf.runs.pretraining:run")

if __name__ == "__main__":
    sys.exit(main())
