"""The command `python -m electra_tf.analyze`; `AnalyzeConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.commands import AnalyzeConfig

main = cli.command(AnalyzeConfig, "electra_tf.analysis.analyze:main")

if __name__ == "__main__":
    sys.exit(main())
