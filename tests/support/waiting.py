"""Waiting for another process or thread, and what they leave: the only module of the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


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


def no_more(now: Sequence[int], before: Sequence[int]) -> bool:
    """Return true if no count of this process has grown. What earlier tests have left may close meanwhile."""
    return all(each <= old for each, old in zip(now, before, strict=True))
