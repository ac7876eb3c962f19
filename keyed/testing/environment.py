"""Options of the test kit from the command line of pytest, set by `keyed.pytest_plugin`."""

from __future__ import annotations

import os


def number(name: str) -> int | None:
    """Return ``KEYED_SEED`` or ``KEYED_SIMULATIONS``, ``None`` if it is not set."""
    value = os.environ.get(name)
    return int(value) if value else None
