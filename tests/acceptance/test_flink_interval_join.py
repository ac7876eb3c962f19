"""Flink's IntervalJoinOperatorTest, through the harness of two inputs.

An element is its time; the pairs that come out are told as (left, right). Flink looks at its buffers, which are the
times under which elements are kept here. The pairs of streams of its IntervalJoinITCase are those of brute force, in
`tests/keyed/joins/test_oracles.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import keyed
from keyed import OutputTag
from keyed.errors import DefinitionError, TimestampError
from keyed.joins import IntervalJoin, ProcessJoinFunction
from keyed.joins.interval import JoinContext
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


def elements_and_watermarks(harness, left_first):
    """Flink's processElementsAndWatermarks: one side whole, then the other, or by turns."""
    sides = [
        (harness.process_element1, harness.advance_watermark1),
        (harness.process_element2, harness.advance_watermark2),
    ]
    for process, advance in sides if left_first else sides[::-1]:
        for time in range(1, 5):
            process(time, time)
            advance(time)


EXCLUSIVE = {"lower_exclusive": True, "upper_exclusive": True}
BOUNDS = [
    # testNegativeInclusiveAndNegativeInclusive and so on, by the names of the bounds.
    (-2, -1, False, False, [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3)]),
    (-1, 1, False, False, [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3), (3, 4), (4, 3), (4, 4)]),
    (1, 2, False, False, [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]),
    (-3, -1, True, True, [(3, 1), (4, 2)]),
    (-1, 1, True, True, [(1, 1), (2, 2), (3, 3), (4, 4)]),
    (1, 3, True, True, [(1, 3), (2, 4)]),
    # testImplementationMirrorsCorrectly.
    (1, 3, False, True, [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]),
    (-3, -1, True, False, [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3)]),
]


@pytest.mark.parametrize("left_first", [True, False])
@pytest.mark.parametrize(("lower", "upper", "lower_exclusive", "upper_exclusive", "expected"), BOUNDS)
def test_bounds(left_first, lower, upper, lower_exclusive, upper_exclusive, expected):
    """The tests of bounds, lhsFasterThanRhs and the other way round."""
    with harness_of(lower, upper, lower_exclusive=lower_exclusive, upper_exclusive=upper_exclusive) as harness:
        elements_and_watermarks(harness, left_first)
        assert sorted(pairs(harness)) == expected
        assert harness.metrics()["rows_dropped"] == 0


@pytest.mark.parametrize(
    ("bounds", "at_1", "at_4"),
    [
        ({"lower": -1, "upper": 0}, ([2, 3, 4, 5], [1, 2, 3, 4, 5]), ([5], [4, 5])),
        ({"lower": -2, "upper": 1} | EXCLUSIVE, ([2, 3, 4, 5], [1, 2, 3, 4, 5]), ([5], [4, 5])),
        ({"lower": 0, "upper": 1}, ([1, 2, 3, 4, 5], [2, 3, 4, 5]), ([4, 5], [5])),
        ({"lower": -1, "upper": 2} | EXCLUSIVE, ([1, 2, 3, 4, 5], [2, 3, 4, 5]), ([4, 5], [5])),
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


def test_restore_from_snapshot():
    """TestRestoreFromSnapshot."""
    function = IntervalJoin(lambda left, right: (left, right), lower=-1, upper=1)
    with KeyedTestHarness(function, key=lambda value: "key") as harness:
        for time in (1, 2, 3):
            harness.process_element1(time, time)
            harness.advance_watermark1(time)
            harness.process_element2(time, time)
            harness.advance_watermark2(time)
        assert sorted(pairs(harness)) == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)]
        snapshot = harness.snapshot()
    with KeyedTestHarness.restore(function, snapshot, key=lambda value: "key") as harness:
        harness.process_element1(4, 4)
        harness.advance_watermark1(4)
        harness.process_element2(4, 4)
        harness.advance_watermark2(4)
        assert sorted(pairs(harness)) == [(3, 4), (4, 3), (4, 4)]


class Times(ProcessJoinFunction):
    """Tells what it is told of the times of a pair, and sends it aside too."""

    def process_element(self, left: int, right: int, ctx: JoinContext) -> Iterator[Any]:
        ctx.output("aside", (left, right))
        yield left, right, ctx.left_timestamp(), ctx.right_timestamp(), ctx.timestamp()


@pytest.mark.parametrize("left_first", [True, False])
def test_context_knows_the_timestamps(left_first):
    """testContextCorrectLeftTimestamp, …RightTimestamp and testReturnsCorrectTimestamp."""
    with KeyedTestHarness(IntervalJoin(Times(), lower=-1, upper=1), key=lambda value: "key") as harness:
        elements_and_watermarks(harness, left_first)
        found = harness.take_output()
        assert len(found) == 10
        for record in found:
            left, right, *times = record.value
            assert times == [left, right, max(left, right)]
            assert record.timestamp == max(left, right)
        assert sorted(record.value for record in harness.take_side_output("aside")) == BOUNDS[1][-1]


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
