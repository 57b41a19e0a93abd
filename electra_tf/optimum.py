"""The command `python -m electra_tf.optimum`; see `OptimumConfig`."""

import sys

from electra_tf import cli
from electra_tf.config.commands import OptimumConfig

main = cli.command(OptimumConfig, "electra_tf.analysis.optimum:main")

if __name__ == "__main__":
    sys.exit(main())
