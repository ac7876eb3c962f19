"""Flink's StatusWatermarkValveTest, over the channels of an operator.

A channel's watermark is that of its highest timestamp. It is idle by its own silence, and active with its next row,
so cases in which Flink toggles the status without rows have a row of the time that the channel has reached.
"""

from __future__ import annotations

from keyed.base.durations import MIN_TIMESTAMP
from keyed.changelog.model import Channel
from keyed.engine.channels import advance
from keyed.job.watermarks import WatermarkStrategy

_TIMEOUT = 100


class Valve:
    """As many channels as are asked for, all with idleness."""

    def __init__(self, number: int) -> None:
        self.strategies = [WatermarkStrategy(0).with_idleness(_TIMEOUT)] * number
        self.channels: list[Channel] = []
        self.watermark = MIN_TIMESTAMP
        self.own: dict[int, int] = {}
        self.active = set(range(number))

    def input(self, watermark: int, channel: int) -> int:
        """Flink's inputWatermark."""
        self.own[channel] = max(watermark, self.own.get(channel, watermark))
        self.active.add(channel)
        return self._run({channel: watermark}, 0)

    def idle(self, channel: int) -> int:
        """Flink's inputWatermarkStatus(IDLE): the others are not silent meanwhile."""
        self.active.discard(channel)
        return self._run({each: self.own[each] for each in self.active if each in self.own}, _TIMEOUT)

    def _run(self, watermarks: dict[int, int], elapsed: int) -> int:
        highest = {(channel, ""): watermark + 1 for channel, watermark in watermarks.items()}
        after = advance(self.strategies, self.channels, highest, self.watermark, elapsed)
        self.channels, self.watermark = after.channels, after.watermark
        return self.watermark


def of(*watermarks):
    valve = Valve(len(watermarks))
    for channel, watermark in enumerate(watermarks):
        valve.input(watermark, channel)
    return valve


def test_multiple_input_yields_watermark_only_when_all_channels_receive_watermarks():
    valve = Valve(3)
    assert [valve.input(0, channel) for channel in range(3)] == [MIN_TIMESTAMP, MIN_TIMESTAMP, 0]


def test_multiple_input_increasing_watermarks():
    valve = of(0, 0, 0)
    steps = [(12, 0), (8, 2), (10, 2), (15, 1), (17, 2), (20, 0)]
    assert [valve.input(*step) for step in steps] == [0, 0, 0, 10, 12, 15]


def test_multiple_input_decreasing_watermarks_yields_no_output():
    valve = of(25, 10, 17)
    assert [valve.input(*step) for step in [(12, 0), (8, 1), (15, 2)]] == [10, 10, 10]


def test_multiple_input_watermark_advancing_with_partially_idle_channels():
    valve = Valve(3)
    valve.input(15, 0)
    assert valve.input(10, 1) == MIN_TIMESTAMP
    assert valve.idle(2) == 10
    assert [valve.input(18, 1), valve.input(20, 0)] == [15, 18]


def test_multiple_input_watermark_advancing_as_channels_individually_become_idle():
    valve = of(25, 10, 17)
    assert [valve.idle(1), valve.idle(2)] == [17, 25]


def test_multiple_input_flush_max_watermark_once_all_inputs_become_idle():
    valve = of(10, 5, 3)
    assert [valve.idle(0), valve.idle(1), valve.idle(2)] == [3, 3, 10]


def test_multiple_input_flush_max_watermark_with_unaligned_last_channel():
    """A channel comes back, catches up in part, and is the last to become idle (FLINK-7728)."""
    valve = of(100, 50, 70)
    assert valve.idle(1) == 70
    assert valve.input(60, 1) == 70
    assert [valve.idle(0), valve.idle(2), valve.idle(1)][-1] == 100


def test_multiple_input_watermark_realignment_after_resume_active():
    """A channel that comes back counts again when it has caught up with what has come out."""
    valve = of(10, 7, 3)
    assert valve.idle(2) == 7
    assert valve.input(5, 2) == 7
    assert valve.input(9, 1) == 9
    assert valve.input(9, 2) == 9
    assert valve.input(12, 1) == 9
    assert valve.input(11, 2) == 10
