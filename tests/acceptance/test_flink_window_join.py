"""Sessions of a join meet as Flink's windows do; its other cases are held by the oracles of `tests/keyed/joins`."""

from __future__ import annotations

from keyed import OutputTag
from keyed.joins import WindowCoGroup
from keyed.testing import KeyedTestHarness, Record


def test_sessions_meet_as_in_flink():
    """TimeWindow.intersects: sessions that touch are one; an element that is late by itself counts in an open one."""
    function = WindowCoGroup(lambda start, end, *rows: [(start, end, *rows)], gap=3, late_left=OutputTag("late"))
    with KeyedTestHarness(function, key=lambda value: "k") as harness:
        for time in (0, 10, 6, 3):
            harness.process_element1(time, time)
        harness.advance_watermark(8)
        assert harness.take_output() == [Record((0, 9, [0, 6, 3], []), 8)]
        harness.process_element2(8, 8)
        harness.process_element1(4, 4)
        harness.process_element1(6, 6)
        assert [record.value for record in harness.take_side_output("late")] == [4]
        harness.end_of_input()
        assert harness.take_output() == [Record((6, 13, [10, 6], [8]), 12)]
        assert harness.state_entries() == 0
