"""``python -m keyed.cli``, the same as ``keyed``."""

from keyed.cli.main import console

console()
