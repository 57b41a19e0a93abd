"""The command `python -m electra_tf.minimal_pairs`; see `MinimalPairsConfig`."""

import sys

from electra_tf import cli
from electra_tf.config.commands import MinimalPairsConfig

main = cli.command(MinimalPairsConfig, "electra_tf.runs.minimal_pairs:main")

if __name__ == "__main__":
    sys.exit(main())
