"""Waiting for what another process or thread does in its own time: the one place where tests sleep."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], *, seconds: float = 300, told: Callable[[], str] = str) -> None:
    """Wait until a condition holds.

    Args:
        condition: What is asked again and again.
        seconds: How long at most; generous, as it only matters where something is broken.
        told: Returns the known facts for the message of a failure.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain {told()}"
        time.sleep(0.02)
