"""The command `python -m electra_tf.rerank`; `RerankConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.commands import RerankConfig

main = cli.command(RerankConfig, "electra_tf.analysis.rerank:main")

if __name__ == "__main__":
    sys.exit(main())
