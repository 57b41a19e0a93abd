"""The command ``python -m electra_tf.doctor``; ``DoctorConfig`` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.commands import DoctorConfig

main = cli.command(DoctorConfig, "electra_tf.doctor.report:main")

if __name__ == "__main__":
    sys.exit(main())
