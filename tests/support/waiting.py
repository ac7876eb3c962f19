"""Waiting for another process or thread: the only module of the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], *, seconds: float = 300, report: Callable[[], str] = str) -> None:
    """Wait until a condition holds.

    Args:
        condition: Called repeatedly until it returns true.
        seconds: The time limit, which is generous because it is reached only if something is broken.
        report: Returns details for the message of a failure.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s without success; {report()}"
        time.sleep(0.02)
