"""Flink's WatermarksWithIdlenessTest, over a channel of an operator: it is idle by its own silence.

A channel that is checked without a row is a batch without one. The other channel, at 0, holds the watermark back unless
it is idle, and the first one is active throughout.
"""

from typing import Any

import pytest

from keyed import bounded_out_of_orderness
from keyed.base.arguments import MIN_TIMESTAMP
from keyed.changelog.model import Channel
from keyed.engine.batch import advance
from keyed.errors import DefinitionError


class Timer:
    """The second of two channels, and whether it is idle."""

    def __init__(self, timeout: int) -> None:
        self._strategies = [bounded_out_of_orderness(0), bounded_out_of_orderness(0).with_idleness(timeout)]
        self._channels: list[Channel] = []
        self._time = 0

    def activity(self) -> None:
        self._run(0, {(1, ""): 1})

    def is_idle(self, after: int = 0) -> bool:
        """Flink's checkIfIdle, when so much time has passed."""
        return self._run(after, {})

    def _run(self, elapsed: int, highest: dict[tuple[int, str], int]) -> bool:
        self._time += 10
        after = advance(self._strategies, self._channels, {(0, ""): self._time, **highest}, MIN_TIMESTAMP, elapsed)
        self._channels = after.channels
        return after.watermark == self._time - 1


@pytest.mark.parametrize("timeout", [0, -1])
def test_zero_and_negative_timeout(timeout):
    with pytest.raises(DefinitionError, match="with_idleness"):
        bounded_out_of_orderness(0).with_idleness(timeout)


#: The timeout, and the checks: milliseconds passed, and whether the channel is idle then; "active" is a row before.
CHECKS: dict[str, tuple[int, list[tuple[Any, bool]]]] = {
    "InitiallyActive": (10, [(0, False)]),
    "IdleWithoutEvents": (10, [(0, False), (11, True)]),
    "RepeatedIdleChecks": (122, [(0, False), (123, True), (0, True), (100, True)]),
    "ActiveAfterIdleness": (10, [(0, False), (11, True), ("active", False)]),
    "IdleActiveIdle": (122, [(0, False), (123, True), ("active", False), (123, True)]),
}


@pytest.mark.parametrize("case", CHECKS)
def test_a_case_holds(case):
    timeout, checks = CHECKS[case]
    timer = Timer(timeout)
    for passed, is_idle in checks:
        if passed == "active":
            timer.activity()
        assert timer.is_idle(0 if passed == "active" else passed) is is_idle
