"""What the command line of pytest has chosen for the test kit, as `keyed.pytest_plugin` leaves it."""

from __future__ import annotations

import os


def number(name: str) -> int | None:
    """Return ``KEYED_SEED`` or ``KEYED_SIMULATIONS``, ``None`` if nothing was chosen."""
    value = os.environ.get(name)
    return int(value) if value else None
