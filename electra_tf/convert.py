"""The command `python -m electra_tf.convert`; `ConvertConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.commands import ConvertConfig

main = cli.command(ConvertConfig, "electra_tf.interop.convert:main")

if __name__ == "__main__":
    sys.exit(main())
