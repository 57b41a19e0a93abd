"""The command `python -m electra_tf.predict`; `PredictConfig` explains it."""

import sys

from electra_tf import cli
from electra_tf.config.commands import PredictConfig

main = cli.command(PredictConfig, "electra_tf.serving.predictor:main", texts=True)

if __name__ == "__main__":
    sys.exit(main())
