"""Flink's WatermarksWithIdlenessTest, over a channel of an operator: it is idle by its own silence.

A channel that is checked without a row is a batch without one. The other channel, at 0, holds the watermark back unless
it is idle, and the first one is active throughout.
"""

import pytest

from keyed import bounded_out_of_orderness
from keyed.base.durations import MIN_TIMESTAMP
from keyed.changelog.model import Channel
from keyed.engine.channels import advance
from keyed.errors import DefinitionError


class Timer:
    """The second of two channels, and whether it is idle."""

    def __init__(self, timeout: int) -> None:
        self._strategies = [bounded_out_of_orderness(0), bounded_out_of_orderness(0).with_idleness(timeout)]
        self._channels: list[Channel] = []
        self._time = 0
        self.timeout = timeout

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


def idle_timer(timeout: int) -> Timer:
    timer = Timer(timeout)
    timer.is_idle()
    assert timer.is_idle(timeout + 1)
    return timer


@pytest.mark.parametrize("timeout", [0, -1])
def test_zero_and_negative_timeout(timeout):
    with pytest.raises(DefinitionError, match="with_idleness"):
        bounded_out_of_orderness(0).with_idleness(timeout)


def test_initially_active():
    assert not Timer(10).is_idle()


def test_idle_without_events():
    timer = Timer(10)
    timer.is_idle()
    assert timer.is_idle(after=11)


def test_repeated_idle_checks():
    timer = idle_timer(122)
    assert timer.is_idle()
    assert timer.is_idle(after=100)


def test_active_after_idleness():
    timer = idle_timer(10)
    timer.activity()
    assert not timer.is_idle()


def test_idle_active_idle():
    timer = idle_timer(122)
    timer.activity()
    assert not timer.is_idle()
    assert timer.is_idle(after=123)
