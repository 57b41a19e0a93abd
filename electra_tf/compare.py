"""The command `python -m electra_tf.compare`; `CompareConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.comparison import CompareConfig

main = cli.command(CompareConfig, "electra_tf.comparison.compare:run")

if __name__ == "__main__":
    sys.exit(main())
