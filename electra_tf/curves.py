"""The command `python -m electra_tf.curves`; `CurvesConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.commands import CurvesConfig

main = cli.command(
    CurvesConfig,
    "electra_tf.analysis.curves:main",
    texts="folders of pretraining runs, finished or not, or their metrics.jsonl",
)

if __name__ == "__main__":
    sys.exit(main())
