"""Edge cases of joins: late rows, outputs, kept state, time-outs, errors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed import OutputTag, TimeDomain
from keyed.errors import DefinitionError, OutputDefinitionError, TimestampError
from keyed.joins import (
    AsOfJoin,
    EnrichmentJoin,
    IntervalJoin,
    ProcessJoinFunction,
    TableJoin,
    WindowCoGroup,
    WindowJoin,
)
from keyed.recovery import read_changelog
from keyed.testing import KeyedTestHarness, MemoryChangelog, Record
from tests.support.explained import computed

LATE, ASIDE = OutputTag("late"), OutputTag("aside")


def pair(left, right):
    return left and left[1], right and right[1]


def harness_of(function):
    return KeyedTestHarness(function, key=lambda value: value[0])


@pytest.mark.parametrize("function", [IntervalJoin(pair, lower=0, upper=0), AsOfJoin(pair)])
def test_elements_of_one_time_are_entries_of_their_own(function):
    """A list of them would be written again with each that comes."""
    changelog = MemoryChangelog()
    with KeyedTestHarness(function, key=lambda value: value[0], changelog=changelog) as harness:
        for number in range(9):
            harness.process_element1(("a", number), 5)
        harness.process_element2(("a", "r"), 5)
        harness.advance_watermark(5)
        assert [record.value for record in harness.take_output()] == [(number, "r") for number in range(9)]
    changes = [change for change in read_changelog(changelog) if change.state == "lefts"]
    assert len({(change.namespace, change.entry) for change in changes}) == 9
    assert len(changes) == 2 * 9


class Told(ProcessJoinFunction):
    """Yields nothing for a pair of equal numbers, and as many outputs as they are apart."""

    opened = 0

    def open(self, context):
        assert self.opened == 0
        self.opened = 1

    def process_element(self, left, right, ctx):
        times = ctx.left_timestamp(), ctx.right_timestamp(), ctx.timestamp()
        if left is None or right is None:
            yield times
        else:
            assert self.opened == 1
            yield from [times] * abs(left[1] - right[1])

    def close(self):
        assert self.opened == 1


def test_a_process_join_function_knows_times_and_gives_any_number_of_outputs():
    function = IntervalJoin(Told(), lower=-5, upper=5, how="full")
    with KeyedTestHarness(function, key=lambda value: value[0], parallelism=2) as harness:
        harness.process_element1(("a", 1), 10)
        harness.process_element2(("a", 1), 11)
        harness.process_element2(("a", 3), 12)
        harness.process_element1(("b", 1), 20)
        harness.process_element2(("c", 1), 30)
        harness.end_of_input()
        assert harness.take_output() == [
            *[Record((10, 12, 12), 12)] * 2,
            Record((20, None, 25), 25),
            Record((None, 30, 35), 35),
        ]


def test_a_join_with_a_process_join_function_runs_by_row_and_says_so():
    table = pa.table({"k": ["a"], "t": [1]})
    first, second = keyed.stream(table, timestamp="t"), keyed.stream(table, timestamp="t")
    connected = first.connect(second).key_by("k")
    out = connected.process(IntervalJoin(Told(), lower=0, upper=1), "l bigint, r bigint, t bigint")
    assert computed(out) == "row by row, because Told is a ProcessJoinFunction"
    with pytest.raises(DefinitionError, match="because Told is a ProcessJoinFunction"):
        connected.process(IntervalJoin(Told(), lower=0, upper=1, path="vectorized"), "l bigint, r bigint, t bigint")
    with pytest.raises(DefinitionError, match=r"Told is a class; give an object of it: Told\(\)"):
        IntervalJoin(Told, lower=0, upper=1)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="a ProcessJoinFunction is for an IntervalJoin"):
        WindowJoin(Told(), size=1)  # type: ignore[arg-type]


class Returns(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        return left


def test_an_output_that_a_process_join_function_returns_is_not_taken_apart():
    with harness_of(IntervalJoin(Returns(), lower=0, upper=1)) as harness:
        harness.process_element1(("a", 1), 10)
        with pytest.raises(OutputDefinitionError, match="was returned by process_element of Returns"):
            harness.process_element2(("a", 1), 10)


def test_an_as_of_join_keeps_the_last_row_that_the_watermark_has_passed_as_long_as_its_tolerance():
    with harness_of(AsOfJoin(pair)) as harness:
        for time in (10, 15, 22):
            harness.process_element2(("a", time), time)
        harness.advance_watermark(30)
        assert harness.state_entries() == 1
    with harness_of(AsOfJoin(pair, tolerance=timedelta(milliseconds=5))) as harness:
        harness.process_element2(("a", "r10"), 10)
        harness.advance_watermark(14)
        assert harness.state_entries() == 1
        harness.advance_watermark(15)
        assert harness.state_entries() == 0


def test_a_full_interval_join_tells_the_lonely_when_nothing_can_come():
    with harness_of(IntervalJoin(pair, lower=-2, upper=3, how="full", late_right=LATE)) as harness:
        harness.process_element1(("a", "l10"), 10)
        harness.process_element2(("a", "r20"), 20)
        harness.advance_watermark(12)
        assert harness.take_output() == []
        harness.advance_watermark(13)
        assert harness.take_output() == [Record(("l10", None), 13)]
        harness.process_element1(("a", "l22"), 22)
        assert harness.take_output() == [Record(("l22", "r20"), 22)]
        harness.end_of_input()
        assert harness.take_output() == []
        assert harness.state_entries() == 0


def test_an_enrichment_waits_in_processing_time_and_sends_aside_what_waits_in_vain():
    function = EnrichmentJoin(pair, timeout=timedelta(seconds=1), domain=TimeDomain.PROCESSING_TIME, timed_out=ASIDE)
    with harness_of(function) as harness:
        harness.process_element1(("a", "l1"))
        harness.process_element1(("b", "l2"))
        harness.process_element2(("b", "r2"))
        assert harness.take_output() == [Record(("l2", "r2"), None)]
        harness.advance_processing_time(999)
        harness.process_element1(("a", "l3"))
        harness.advance_processing_time(1000)
        assert [record.value for record in harness.take_side_output(ASIDE)] == [("a", "l1")]
        harness.process_element2(("a", "r1"))
        assert [record.value for record in harness.take_output()] == [("l3", "r1")]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (IntervalJoin, {"lower": 0, "upper": 1, "how": "outer"}, "how='outer' must be one of 'inner'"),
        (IntervalJoin, {"join": None, "lower": 0, "upper": 1}, r"join=None: give a function join\(left, right\)"),
        (IntervalJoin, {"lower": 0.5, "upper": 1}, "lower=0.5 is a float"),
        (IntervalJoin, {"lower": 0, "upper": 1, "late_left": "late"}, "'late' is not an OutputTag"),
        (AsOfJoin, {"tolerance": -1}, "tolerance=-1 must be"),
        (AsOfJoin, {"how": "right"}, "how='right' must be one of 'inner', 'left'"),
        (EnrichmentJoin, {"timeout": 1, "domain": "event"}, "must be a TimeDomain"),
        (EnrichmentJoin, {"timeout": 1, "timed_out": "aside"}, "must be an OutputTag"),
        (TableJoin, {"deletes": 3}, "deletes=3 must be a function of the right element"),
        (TableJoin, {"deletes": "gone"}, "deletes='gone' must be a function of the right element"),
        (TableJoin, {"deletes": 3, "left_table": True}, "right or left one, or the name of a boolean column"),
        (TableJoin, {"ttl": keyed.StateTtl(1), "left_table": True}, "ttl= is for the join of a stream"),
        (TableJoin, {"how": "full"}, "how='full' must be one of 'inner', 'left'"),
        (WindowJoin, {"size": 0}, "size=0 must be"),
    ],
)
def test_parameters_that_break_a_rule_are_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        kind(**{"join": pair, **options})
    nothing: Any = None
    with pytest.raises(DefinitionError, match="cogroup=None"):
        WindowCoGroup(nothing, size=1)


def test_a_join_by_event_time_needs_timestamps():
    with harness_of(AsOfJoin(pair)) as harness, pytest.raises(TimestampError, match="the element has no timestamp"):
        harness.process_element1(("a", "l"))


def test_a_side_without_the_key_column_is_told_with_the_operator():
    first, second = keyed.stream([{"k": "a", "t": 1}], timestamp="t"), keyed.stream([{"x": "a", "t": 1}], timestamp="t")
    out = first.connect(second).key_by("k").process(IntervalJoin(pair, lower=0, upper=1), "l bigint, r bigint")
    with pytest.raises(DefinitionError, match="operator 'IntervalJoin': key column 'k' is not in element Row\\(x='a'"):
        out.run()
