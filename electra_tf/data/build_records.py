"""The command `python -m electra_tf.data.build_records`; see `RecordsConfig`."""

import sys

from electra_tf import cli
from electra_tf.config.records import RecordsConfig

main = cli.command(RecordsConfig, "electra_tf.data.building:main")

if __name__ == "__main__":
    sys.exit(main())
