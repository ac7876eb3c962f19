"""Flink's WindowOperatorTest, EvictingWindowOperatorTest and ContinuousProcessingTimeTriggerTest, step by step.

Sessions at each lateness with and without purging, dynamic and point sessions, offsets, early results, and the
evictors' sums; other cases are in `tests/windows/test_operator.py`. With the default trigger each case runs on every
way in which windows are kept (``packed``, ``general``) and computed (``vectorized``), and crashes after every element.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keyed import MAX_TIMESTAMP
from keyed.testing import KeyedTestHarness
from keyed.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    HoppingEventTimeWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    Sum,
    TimeEvictor,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from keyed.windows.vectorized.batch_operator import WindowBatchOperator
from keyed.windows.window_operator import WindowOperator

WAYS = ["packed", "general", "vectorized"]
every_way = pytest.mark.parametrize("way", WAYS)


class Harness:
    """An operator that sums values, driven by (key, value) elements and clocks."""

    def __init__(self, assigner, way="general", *, lateness=0, **options):
        self.vectorized = way == "vectorized"
        shared: dict[str, Any] = {"assigner": assigner, "allowed_lateness_ms": lateness, "late_tag": "late"}
        if self.vectorized:
            columns = {"key": "string", "value": "bigint", "at": "bigint"}
            function: Any = WindowBatchOperator(aggregate={"total": Sum("value")}, columns=columns, **shared)
            self.harness = KeyedTestHarness(function, key="key", parallelism=2)
        else:
            aggregate = Sum(lambda element: element[1])
            if way == "general":
                aggregate.accumulator_type = int
            function = WindowOperator(aggregate={"total": aggregate}, **shared, **options)
            assert (function.definition.layout == "general") is (way == "general")
            self.harness = KeyedTestHarness(function, key=lambda element: element[0], parallelism=2)

    def add(self, key, value, time):
        if self.vectorized:
            self.harness.process_batch(pa.table({"key": [key], "value": [value], "at": [time]}), "at")
        else:
            self.harness.process((key, value), time)
        self.harness.crash_and_recover()

    def watermark(self, time):
        self.harness.advance_watermark(time)
        return self.taken()

    def clock(self, time):
        self.harness.advance_processing_time(time)
        return self.taken()

    def taken(self):
        """Outputs as (key, start, end, total), sorted; their timestamp is the window's last."""
        records = self.harness.take_output()
        assert all(record.timestamp == record.value[2] - 1 for record in records)
        return sorted(tuple(record.value) for record in records)

    def late(self):
        return [tuple(record.value)[:2] for record in self.harness.take_side_output("late")]

    def nothing_left(self):
        assert (self.harness.state_entries(), self.harness.pending_timers()) == (0, [])


SESSION_LATENESS = [
    # way, purging, lateness, what 10000 gives, what 20000 gives, late
    *[(way, False, 0, [], [("key2", 14500, 17500, 1)], [("key2", 1)]) for way in WAYS],
    ("general", True, 0, [], [("key2", 14500, 17500, 1)], [("key2", 1)]),
    *[(way, False, 10, [("key2", 10000, 14600, 2)], [("key2", 10000, 17500, 3)], []) for way in WAYS],
    ("general", True, 10, [("key2", 10000, 14600, 1)], [("key2", 10000, 17500, 1)], []),
    *[(way, False, 10000, [("key2", 1000, 14600, 7)], [("key2", 1000, 17500, 8)], []) for way in WAYS],
    ("general", True, 10000, [("key2", 1000, 14600, 1)], [("key2", 1000, 17500, 1)], []),
]


@pytest.mark.parametrize(("way", "purging", "lateness", "at_once", "in_the_end", "late"), SESSION_LATENESS)
def test_late_elements_of_sessions(way, purging, lateness, at_once, in_the_end, late):
    """WindowOperatorTest.test[Drop, SideOutput, NotSideOutput]DueToLatenessSession*: six cases, the same elements.

    A session that has ended and is still kept is joined by a late element, and fires at once with what it has: after a
    purge with the late element alone.
    """
    options = {"trigger": PurgingTrigger.of(EventTimeTrigger())} if purging else {}
    h = Harness(EventTimeSessionWindows.with_gap(3000), way, lateness=lateness, **options)
    h.add("key2", 1, 1000)
    assert h.watermark(1999) == []
    h.add("key2", 1, 2000)
    assert h.watermark(4998) == []
    h.add("key2", 1, 4500)
    h.add("key2", 1, 8500)
    assert h.watermark(7400) == []
    h.add("key2", 1, 7000)
    assert h.watermark(11501) == [("key2", 1000, 11500, 5)]
    h.add("key2", 1, 11600)
    assert h.watermark(14600) == [("key2", 11600, 14600, 1)]
    h.add("key2", 1, 10000)
    assert h.taken() == at_once
    h.add("key2", 1, 14500)
    assert h.taken() == []
    assert h.watermark(20000) == in_the_end
    assert h.watermark(100_000) == []
    assert h.late() == late
    h.nothing_left()


@every_way
def test_late_elements_of_sliding_windows(way):
    """WindowOperatorTest.testDropDueToLatenessSliding and testSideOutputDueToLatenessSliding."""
    h = Harness(HoppingEventTimeWindows.of(3000, 1000), way)
    h.add("key2", 1, 1000)
    assert h.watermark(1999) == [("key2", -1000, 2000, 1)]
    h.add("key2", 1, 2000)
    assert h.watermark(3000) == [("key2", 0, 3000, 2)]
    for key, time in (("key1", 3001), ("key2", 2400), ("key2", 2400), ("key1", 3001), ("key2", 3900)):
        h.add(key, 1, time)
    assert h.watermark(6000) == [
        ("key1", 1000, 4000, 2),
        ("key1", 2000, 5000, 2),
        ("key1", 3000, 6000, 2),
        ("key2", 1000, 4000, 5),
        ("key2", 2000, 5000, 4),
        ("key2", 3000, 6000, 1),
    ]
    h.add("key1", 1, 3001)
    assert h.watermark(25_000) == []
    assert h.late() == [("key1", 1)]
    h.nothing_left()


@pytest.mark.parametrize("way", ["packed", "general"])
def test_the_cleanup_time_does_not_overflow(way):
    """WindowOperatorTest.testCleanupTimeOverflow: end and lateness together lie beyond int64."""
    h = Harness(TumblingEventTimeWindows.of(1000), way, lateness=2000)
    h.add("key2", 1, MAX_TIMESTAMP - 1750)
    start = (MAX_TIMESTAMP - 1750) // 1000 * 1000
    assert start + 999 + 2000 > MAX_TIMESTAMP
    assert h.watermark(MAX_TIMESTAMP - 1500) == []
    assert h.watermark(start + 999) == [("key2", start, start + 1000, 1)]


@every_way
@pytest.mark.parametrize("offset", [100, -100])
def test_tumbling_windows_with_an_offset(way, offset):
    """WindowOperatorTest.testEventTimeTumblingWindowsWithOffset."""
    h = Harness(TumblingEventTimeWindows.of(2000, offset), way)
    h.add("key2", 1, 1000)
    h.watermark(1885)
    for value, time in ((2, 1880), (3, 1898), (4, 1899)):
        h.add("key2", value, time)
    start = 100 if offset > 0 else -100
    fired = h.watermark(1998 + offset)
    assert fired == []
    assert h.watermark(1999 + offset) == [("key2", start, start + 2000, 10)]
    h.nothing_left()


@every_way
@pytest.mark.parametrize("offset", [10, -10])
def test_sliding_windows_with_an_offset(way, offset):
    """WindowOperatorTest.testEventTimeSlidingWindowsWithOffset, with the negative one too."""
    h = Harness(HoppingEventTimeWindows.of(2000, 500, offset), way)
    h.add("key2", 1, 333)
    assert h.watermark(6666) == [
        ("key2", last - 1999 + offset, last + 1 + offset, 1) for last in (499, 999, 1499, 1999)
    ]
    h.nothing_left()


def gap_of(element):
    """Gaps by key and value, as the mocked extractor of Flink's test gives them."""
    return 3000 if element[0] == "key1" else 1000 if element[1] == 10 else 2000


DYNAMIC = [
    (("key1", 3, 10), ("key2", 4, 5000), ("key2", 5, 6000)),
    (("key2", 1, 9000), ("key2", 2, 10000), ("key2", 10, 10500)),
    (("key2", 10, 13000), ("key2", 10, 13500), ("key2", 1, 14000)),
]
DYNAMIC_SESSIONS = [
    [("key1", 10, 3010, 3), ("key2", 5000, 8000, 9)],
    [("key2", 9000, 12000, 13)],
    [("key2", 13000, 16000, 21)],
]


@pytest.mark.parametrize("way", ["packed", "general"])
def test_dynamic_event_time_sessions(way):
    """WindowOperatorTest.testDynamicEventTimeSessionWindows: of two ends the later one counts."""
    h = Harness(EventTimeSessionWindows.with_dynamic_gap(gap_of), way)
    for elements, watermark, sessions in zip(DYNAMIC, (8999, 12999, 16999), DYNAMIC_SESSIONS, strict=True):
        for element in elements:
            h.add(*element)
        assert h.watermark(watermark) == sessions
    h.nothing_left()


@pytest.mark.parametrize("way", ["packed", "general"])
def test_dynamic_processing_time_sessions(way):
    """WindowOperatorTest.testDynamicProcessingTimeSessionWindows."""
    h = Harness(ProcessingTimeSessionWindows.with_dynamic_gap(gap_of), way)
    fired = []
    for elements in DYNAMIC:
        for key, value, time in elements:
            fired += h.clock(time)
            h.add(key, value, time)
    fired += h.clock(16_999)
    assert fired == [session for sessions in DYNAMIC_SESSIONS for session in sessions]
    h.nothing_left()


class PointSessions(EventTimeSessionWindows):
    """Elements of 33 are in a session without length."""

    def assign_windows(self, element, timestamp, processing_time):
        if element[1] == 33:
            return (TimeWindow(timestamp, timestamp),)
        return super().assign_windows(element, timestamp, processing_time)


def test_point_sessions():
    """WindowOperatorTest.testPointSessions: they join the sessions that they touch, and do not make them longer."""
    h = Harness(PointSessions.with_gap(3000))
    for key, value, time in (("key2", 1, 0), ("key2", 33, 1000), ("key2", 33, 2500)):
        h.add(key, value, time)
    for value, time in ((1, 10), (2, 1000), (33, 2500)):
        h.add("key1", value, time)
    assert h.watermark(12_000) == [("key1", 10, 4000, 36), ("key2", 0, 3000, 67)]
    h.nothing_left()


@pytest.mark.parametrize("purging", [False, True])
def test_early_results_of_sessions(purging):
    """WindowOperatorTest.testSessionWindowsWithContinuousEventTimeTrigger: the next time is merged as well."""
    trigger: Trigger = ContinuousEventTimeTrigger.of(2000)
    h = Harness(EventTimeSessionWindows.with_gap(3000), trigger=PurgingTrigger.of(trigger) if purging else trigger)
    for key, value, time in (("key1", 1, 1500), ("key2", 1, 0), ("key2", 3, 2500), ("key2", 2, 1000)):
        h.add(key, value, time)
    assert h.watermark(2500) == [("key1", 1500, 4500, 1), ("key2", 0, 5500, 6)]
    h.add("key2", 5, 4000)
    assert h.watermark(3000) == []
    h.add("key1", 2, 4000)
    h.add("key2", 4, 3500)
    first, second = (2, 9) if purging else (3, 15)
    assert h.watermark(4000) == [("key1", 1500, 7000, first), ("key2", 0, 7000, second)]
    # At 6000 and at their ends: without purging all again, otherwise nothing is left to tell.
    last = [] if purging else [("key1", 1500, 7000, 3)] * 2 + [("key2", 0, 7000, 15)] * 2
    assert h.watermark(7000) == last
    h.nothing_left()


def test_early_results_of_a_global_window():
    """WindowOperatorTest.testContinuousWatermarkTrigger: at multiples of 3 s behind each key's first element."""
    operator = WindowOperator(
        assigner=GlobalWindows.create(), trigger=ContinuousEventTimeTrigger.of(3000), aggregate=Sum(lambda e: e[1])
    )
    with KeyedTestHarness(operator, key=lambda element: element[0]) as h:
        for key, time in (("key1", 0), ("key2", 3000), ("key2", 3999), ("key1", 20), ("key1", 999)):
            h.process((key, 1), time)
        for time in (1998, 1999, 1000):
            h.process(("key2", 1), time)
        h.crash_and_recover()
        fired = {}
        for watermark in range(1000, 9000, 1000):
            h.advance_watermark(watermark)
            fired[watermark] = sorted(record.value for record in h.take_output())
        assert {time: values for time, values in fired.items() if values} == {3000: [3], 6000: [3, 5]}


class FiresWhenItGoes(Trigger):
    """Fires and purges at the window's end and when it is cleaned up (Flink's EventTimeTriggerAccumGC)."""

    def __init__(self, lateness):
        self.lateness = lateness

    def on_element(self, element, timestamp, window, ctx):
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        is_end = time in (window.max_timestamp(), window.max_timestamp() + self.lateness)
        return TriggerResult.FIRE_AND_PURGE if is_end else TriggerResult.CONTINUE

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window, ctx):
        ctx.delete_event_time_timer(window.max_timestamp())


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows.of(2000), EventTimeSessionWindows.with_gap(1000)])
def test_a_window_that_is_empty_when_it_goes_gives_nothing(assigner):
    """WindowOperatorTest.testCleanupTimerWithEmptyListStateForTumblingWindows2 and ...ForSessionWindows."""
    h = Harness(assigner, lateness=100, trigger=FiresWhenItGoes(100))
    h.add("key2", 1, 1000)
    assert h.watermark(1599) == []
    (fired,) = h.watermark(1999)
    assert (fired[2], fired[3]) == (2000, 1)
    assert h.watermark(2100) == []
    h.nothing_left()


def test_continuous_processing_time_trigger_in_processing_time():
    """ContinuousProcessingTimeTriggerTest.testProcessingTimeWindowFiring."""
    h = Harness(TumblingProcessingTimeWindows.of(10), trigger=ContinuousProcessingTimeTrigger.of(5))
    fired = []
    for now, value in ((0, 1), (2, 2), (5, None), (7, 3), (9, None), (10, 3), (15, None), (18, 3), (20, None)):
        fired += [(now, *row) for row in h.clock(now)]
        if value is not None:
            h.add("k", value, None)
    assert fired == [(5, "k", 0, 10, 3), (9, "k", 0, 10, 6), (15, "k", 10, 20, 3), (20, "k", 10, 20, 6)]
    h.nothing_left()


def test_continuous_processing_time_trigger_in_event_time():
    """ContinuousProcessingTimeTriggerTest.testEventTimeWindowFiring (FLINK-35069): not again after the window's end."""
    h = Harness(TumblingEventTimeWindows.of(10), trigger=ContinuousProcessingTimeTrigger.of(5))
    for value, time in ((1, 1), (2, 3), (3, 7)):
        h.add("k", value, time)
    assert h.clock(5) == [("k", 0, 10, 6)]
    h.add("k", 3, 8)
    assert h.clock(10) == [("k", 0, 10, 9)]
    h.add("k", 3, 12)
    assert h.clock(15) == [("k", 10, 20, 3)]


def test_continuous_processing_time_trigger_on_sessions():
    """ContinuousProcessingTimeTriggerTest.testMergingWindows."""
    h = Harness(ProcessingTimeSessionWindows.with_gap(10), trigger=ContinuousProcessingTimeTrigger.of(5))
    fired = []
    for now, value in ((0, 1), (2, 2), (5, None), (9, None), (10, None), (15, None), (100, None)):
        fired += [(now, *row) for row in h.clock(now)]
        if value is not None:
            h.add("k", value, None)
    assert fired == [(5, "k", 0, 12, 3), (10, "k", 0, 12, 3), (15, "k", 0, 12, 3)]
    h.nothing_left()


def evicted(evictor, elements, trigger_count=2, assigner=None):
    """The sums in the order of their firing, of (key, value, time) elements."""
    operator = WindowOperator(
        assigner=assigner or GlobalWindows.create(),
        trigger=CountTrigger.of(trigger_count),
        evictor=evictor,
        aggregate={"total": Sum(lambda element: element[1])},
    )
    with KeyedTestHarness(operator, key=lambda element: element[0]) as h:
        for key, value, time in elements:
            h.process((key, value), time)
            h.crash_and_recover()
        return [(record.value[0], record.value[-1]) for record in h.take_output()]


def ones(*elements):
    return [(f"key{key}", 1, time) for key, time in elements]


def test_count_evictor_after_the_function():
    """EvictingWindowOperatorTest.testCountEvictorEvictAfter."""
    elements = ones((2, 3000), (2, 3999), (1, 20), (1, 0), (1, 999), (2, 1998), (2, 1999), (2, 1000))
    elements += ones((1, 10_999), (2, 1000), (2, 1000), (2, 1000))
    assert evicted(CountEvictor.of(4, do_evict_after=True), elements) == [
        ("key2", 2),
        ("key1", 2),
        ("key2", 4),
        ("key1", 4),
        ("key2", 6),
        ("key2", 6),
    ]


def test_time_evictor_after_the_function():
    """EvictingWindowOperatorTest.testTimeEvictorEvictAfter: the newest element may be any of them."""
    elements = ones((2, 1000), (2, 4000), (1, 20), (1, 0), (1, 999), (2, 3500), (2, 2001), (2, 1001))
    elements += ones((1, 10_999), (2, 1002))
    assert evicted(TimeEvictor.of(2000, do_evict_after=True), elements) == [
        ("key2", 2),
        ("key1", 2),
        ("key2", 3),
        ("key1", 4),
        ("key2", 5),
    ]


def test_time_evictor_before_the_function():
    """EvictingWindowOperatorTest.testTimeEvictorEvictBefore, on tumbling windows."""
    elements = ones((2, 1000), (2, 3999), (1, 20), (1, 0), (1, 999), (1, 5999), (2, 3500), (2, 2001), (2, 1001))
    elements += ones((1, 6500), (2, 1002))
    assert evicted(TimeEvictor.of(2000), elements, assigner=TumblingEventTimeWindows.of(4000)) == [
        ("key2", 1),
        ("key1", 2),
        ("key2", 3),
        ("key1", 2),
        ("key2", 3),
    ]


DELTA = [("key2", 1), ("key2", 4), ("key1", 1), ("key1", 1), ("key1", 5), ("key2", 5), ("key2", 6), ("key2", 1)]


@pytest.mark.parametrize(
    ("after", "of_key1", "expected"),
    [
        (False, 3, [("key2", 4), ("key1", 2), ("key2", 11), ("key1", 8), ("key2", 10)]),
        (True, 9, [("key2", 5), ("key1", 2), ("key2", 15), ("key1", 16), ("key2", 22)]),
    ],
)
def test_delta_evictor(after, of_key1, expected):
    """EvictingWindowOperatorTest.testDeltaEvictorEvictBefore and testDeltaEvictorEvictAfter."""
    evictor = DeltaEvictor.of(2, lambda element, last: last[1] - element[1], do_evict_after=after)
    elements = [(*element, 0) for element in [*DELTA, ("key1", of_key1), ("key2", 10)]]
    assert evicted(evictor, elements) == expected
