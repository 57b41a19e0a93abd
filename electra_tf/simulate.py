"""The command `python -m electra_tf.simulate`; `SimulateConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.commands import SimulateConfig

main = cli.command(SimulateConfig, "electra_tf.analysis.simulated:main")

if __name__ == "__main__":
    sys.exit(main())
