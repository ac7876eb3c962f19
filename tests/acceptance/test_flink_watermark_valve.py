"""Flink's StatusWatermarkValveTest, over the channels of an operator.

A channel's watermark is that of its highest timestamp. It is idle by its own silence, and active with its next row,
so cases in which Flink toggles the status without rows have a row of the time that the channel has reached.
"""

from __future__ import annotations

import pytest

from keyed.base.arguments import MIN_TIMESTAMP
from keyed.changelog.model import Channel
from keyed.engine.batch import advance
from keyed.job.watermarks import WatermarkStrategy
from tests.support.data_files import read_data

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


@pytest.mark.parametrize("case", read_data("acceptance/flink_watermark_valve.json"), ids=lambda case: case["name"])
def test_a_case_holds(case):
    """Channels have their first watermarks; a step is a watermark or "idle", the channel, and the valve's watermark."""
    valve = Valve(len(case["channels"]))
    for channel, watermark in enumerate(case["channels"]):
        if watermark is not None:
            valve.input(watermark, channel)
    for watermark, channel, expected in case["steps"]:
        result = valve.idle(channel) if watermark == "idle" else valve.input(watermark, channel)
        assert result == (MIN_TIMESTAMP if expected is None else expected), (watermark, channel)
