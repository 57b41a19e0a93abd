"""`python -m electra_tf` lists the commands."""

import sys

from electra_tf import cli
from electra_tf.config.listing import COMMANDS

if __name__ == "__main__":
    if given := [x for x in sys.argv[1:] if x not in ("-h", "--help")]:
        sys.exit(f"error: {given[0]!r} is no flag here; commands are electra_tf.NAME.")
    cli.say(cli.listing(COMMANDS))
