"""Pretrains ELECTRA, or BERT's masked LM, from raw text; `--help` explains it."""

import sys

from electra_tf.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]]))
