"""``python -m keyed.cli``."""

import sys

from keyed.cli.main import main

sys.exit(main(sys.argv[1:]))
