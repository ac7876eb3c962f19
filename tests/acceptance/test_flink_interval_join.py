"""Flink's IntervalJoinOperatorTest, through the harness of two inputs: what is buffered, late and refused.

An element is its time; the pairs that come out are (left, right). Flink looks at its buffers, which are the times under
which elements are kept here. The oracles of `tests/keyed/joins` have the bounds.
"""

from __future__ import annotations

import pytest

import keyed
from keyed import OutputTag
from keyed.errors import DefinitionError, TimestampError
from keyed.joins import IntervalJoin
from keyed.testing import KeyedTestHarness

LEFT, RIGHT = OutputTag("left"), OutputTag("right")


class Kept(IntervalJoin):
    """Tells what is buffered when an element of time 0 comes to the left side."""

    def process_element1(self, value, ctx):
        if value == 0:
            ctx.output("buffers", tuple([time for time, _ in state] for state in (self.lefts, self.rights)))
            return None
        return super().process_element1(value, ctx)


def harness_of(lower, upper, *, lower_exclusive=False, upper_exclusive=False, **options):
    function = Kept(
        lambda left, right: (left, right),
        lower=lower,
        upper=upper,
        lower_exclusive=lower_exclusive,
        upper_exclusive=upper_exclusive,
        **options,
    )
    return KeyedTestHarness(function, key=lambda value: "key")


def pairs(harness):
    return [record.value for record in harness.take_output()]


def buffers(harness):
    harness.process_element1(0, 0)
    return harness.take_side_output("buffers")[0].value


@pytest.mark.parametrize(
    ("bounds", "at_1", "at_4"),
    [
        ({"lower": -1, "upper": 0}, ([2, 3, 4, 5], [1, 2, 3, 4, 5]), ([5], [4, 5])),
        (
            {"lower": -2, "upper": 1, "lower_exclusive": True, "upper_exclusive": True},
            ([2, 3, 4, 5], [1, 2, 3, 4, 5]),
            ([5], [4, 5]),
        ),
        ({"lower": 0, "upper": 1}, ([1, 2, 3, 4, 5], [2, 3, 4, 5]), ([4, 5], [5])),
        (
            {"lower": -1, "upper": 2, "lower_exclusive": True, "upper_exclusive": True},
            ([1, 2, 3, 4, 5], [2, 3, 4, 5]),
            ([4, 5], [5]),
        ),
    ],
)
def test_state_cleanup(bounds, at_1, at_4):
    """testStateCleanup…: what is buffered after the common watermarks 1, 4 and 6."""
    with harness_of(**bounds) as harness:
        for process in (harness.process_element1, harness.process_element2):
            for time in range(1, 6):
                process(time, time)
        for watermark, expected in ((1, at_1), (4, at_4), (6, ([], []))):
            harness.advance_watermark1(watermark)
            harness.advance_watermark2(watermark)
            assert buffers(harness) == expected


@pytest.mark.parametrize("side", [1, 2])
def test_fails_with_no_timestamps(side):
    """TestFailsWithNoTimestampsLeft and …Right."""
    with harness_of(0, 0) as harness:
        process = harness.process_element1 if side == 1 else harness.process_element2
        with pytest.raises(TimestampError, match="no timestamp"):
            process(7)


@pytest.mark.parametrize("aside", [True, False])
def test_late_data(aside):
    """testDiscardsLateData, testLateData…: below the common watermark, to its side output if it has one."""
    options = {"late_left": LEFT, "late_right": RIGHT} if aside else {}
    with harness_of(-1, 1, **options) as harness:
        for time in range(1, 6):
            harness.process_element1(time, time)
            harness.process_element2(time, time)
        harness.advance_watermark1(3)
        harness.advance_watermark2(3)
        harness.take_output()
        harness.process_element1(1, 1)
        harness.process_element1(2, 2)
        harness.process_element2(1, 1)
        assert pairs(harness) == []
        # At the watermark is not late for Flink.
        harness.process_element1(3, 3)
        assert sorted(pairs(harness)) == [(3, 3), (3, 4)]
        dropped = [[record.value for record in harness.take_side_output(tag)] for tag in (LEFT, RIGHT)]
        assert dropped == ([[1, 2], [1]] if aside else [[], []])
        assert harness.metrics()["rows_dropped"] == (0 if aside else 3)


def test_bounds_are_needed_and_event_time():
    """IntervalJoinITCase: testFailsWithoutUpperBound, …LowerBound, testExecutionFailsInProcessingTime."""
    for bounds in ({"lower": 0, "upper": None}, {"lower": None, "upper": 1}):
        with pytest.raises(DefinitionError, match="None"):
            harness_of(**bounds)
    first, second = keyed.stream([("1", 1)]), keyed.stream([("1", 1)])
    with pytest.raises(TimestampError, match="the join uses event time"):
        first.connect(second).key_by(lambda row: row[0]).process(IntervalJoin(min, lower=0, upper=0)).run()
