"""Fine-tunes an encoder for a task and exports it; `--help` explains it."""

import sys

from electra_tf.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["finetune", *sys.argv[1:]]))
