"""The command `python -m electra_tf.inspect`; `InspectConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.commands import InspectConfig

main = cli.command(InspectConfig, "electra_tf.analysis.inspect:main", texts=True)

if __name__ == "__main__":
    sys.exit(main())
