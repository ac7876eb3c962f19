"""Flink's WindowOperatorTest, EvictingWindowOperatorTest and ContinuousProcessingTimeTriggerTest, step by step.

`flink_window_operator.json` has cases step by step; dynamic and point sessions and the evictors' sums are here, and
others in `tests/windows/test_operator.py`. Each case runs on ways in which windows are kept (``packed``, ``general``)
and computed (``vectorized``), and crashes after every element.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keyed import windows as w
from keyed.testing import KeyedTestHarness
from tests.support.data_files import read_data
from tests.support.window_operators import trigger_of, window_columns, window_rows, windows_of

CASES = read_data("acceptance/flink_window_operator.json")


class Harness:
    """An operator that sums values, driven by (key, value) elements and clocks."""

    def __init__(self, assigner, way="general", *, lateness=0, **options):
        self.vectorized = way == "vectorized"
        shared: dict[str, Any] = {"assigner": assigner, "allowed_lateness_ms": lateness, "late_tag": "late"}
        if self.vectorized:
            columns = {"key": "string", "value": "bigint", "at": "bigint"}
            function: Any = window_columns(aggregate={"total": w.Sum("value")}, columns=columns, **shared)
            self.harness = KeyedTestHarness(function, key="key", parallelism=2)
        else:
            aggregate = w.Sum(lambda element: element[1])
            if way == "general":
                aggregate.accumulator_type = int
            function = window_rows(aggregate={"total": aggregate}, **shared, **options)
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

    def end(self):
        self.harness.end_of_input()
        return self.taken()

    def taken(self):
        """Outputs as (key, start, end, total), sorted; their timestamp is the window's last."""
        records = self.harness.take_output()
        assert all(record.timestamp == record.value[2] - 1 for record in records)
        return sorted(tuple(record.value) for record in records)

    def late(self):
        return [tuple(record.value)[:2] for record in self.harness.take_side_output("late")]

    def do(self, step):
        """Do a step of a case, and check what it gives: ``watermark 2500 -> key1:0..3000=6``."""
        call, _, expected = step.partition(" -> ")
        name, *arguments = call.split()
        if name == "add":
            key, value, time = arguments
            self.add(key, int(value), None if time == "-" else int(time))
        elif name == "empty":
            self.nothing_left()
        elif name == "late":
            assert [f"{key}:{value}" for key, value in self.late()] == (
                [] if expected == "nothing" else expected.split()
            )
        else:
            call_of: dict[str, Any] = {"watermark": self.watermark, "clock": self.clock, "take": self.taken}
            rows = (call_of | {"end_of_input": self.end})[name](*map(int, arguments))
            shown = [f"{key}:{start}..{end}={total}" for key, start, end, total in rows]
            assert shown == ([] if expected == "nothing" else expected.split())

    def nothing_left(self):
        assert (self.harness.state_entries(), self.harness.pending_timers()) == (0, [])


@pytest.mark.parametrize(
    ("case", "way"),
    [pytest.param(case, way, id=f"{case['name']}-{n}-{way}") for n, case in enumerate(CASES) for way in case["ways"]],
)
def test_a_case_holds(case, way):
    options: dict[str, Any] = {"trigger": trigger_of(case["trigger"])} if "trigger" in case else {}
    if "idle" in case:
        options["idle_timeout_ms"] = case["idle"]
    h = Harness(windows_of(case["windows"]), way, lateness=case.get("lateness", 0), **options)
    for step in case["steps"]:
        h.do(step)


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
    h = Harness(w.EventTimeSessionWindows.with_dynamic_gap(gap_of), way)
    for elements, watermark, sessions in zip(DYNAMIC, (8999, 12999, 16999), DYNAMIC_SESSIONS, strict=True):
        for element in elements:
            h.add(*element)
        assert h.watermark(watermark) == sessions
    h.nothing_left()


@pytest.mark.parametrize("way", ["packed", "general"])
def test_dynamic_processing_time_sessions(way):
    """WindowOperatorTest.testDynamicProcessingTimeSessionWindows."""
    h = Harness(w.ProcessingTimeSessionWindows.with_dynamic_gap(gap_of), way)
    fired = []
    for elements in DYNAMIC:
        for key, value, time in elements:
            fired += h.clock(time)
            h.add(key, value, time)
    fired += h.clock(16_999)
    assert fired == [session for sessions in DYNAMIC_SESSIONS for session in sessions]
    h.nothing_left()


class PointSessions(w.EventTimeSessionWindows):
    """Elements of 33 are in a session without length."""

    def assign_windows(self, element, timestamp, processing_time):
        if element[1] == 33:
            return (w.TimeWindow(timestamp, timestamp),)
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


def test_early_results_of_a_global_window():
    """WindowOperatorTest.testContinuousWatermarkTrigger: at multiples of 3 s behind each key's first element."""
    operator = window_rows(
        assigner=w.GlobalWindows.create(),
        trigger=w.ContinuousEventTimeTrigger.of(3000),
        aggregate=w.Sum(lambda e: e[1]),
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


class FiresWhenItGoes(w.Trigger):
    """Fires and purges at the window's end and when it is cleaned up (Flink's EventTimeTriggerAccumGC)."""

    def __init__(self, lateness):
        self.lateness = lateness

    def on_element(self, element, timestamp, window, ctx):
        if window.max_timestamp() <= ctx.get_current_watermark():
            return w.TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return w.TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        is_end = time in (window.max_timestamp(), window.max_timestamp() + self.lateness)
        return w.TriggerResult.FIRE_AND_PURGE if is_end else w.TriggerResult.CONTINUE

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window, ctx):
        ctx.delete_event_time_timer(window.max_timestamp())


@pytest.mark.parametrize("assigner", [w.TumblingEventTimeWindows.of(2000), w.EventTimeSessionWindows.with_gap(1000)])
def test_a_window_that_is_empty_when_it_goes_gives_nothing(assigner):
    """WindowOperatorTest.testCleanupTimerWithEmptyListStateForTumblingWindows2 and ...ForSessionWindows."""
    h = Harness(assigner, lateness=100, trigger=FiresWhenItGoes(100))
    h.add("key2", 1, 1000)
    assert h.watermark(1599) == []
    (fired,) = h.watermark(1999)
    assert (fired[2], fired[3]) == (2000, 1)
    assert h.watermark(2100) == []
    h.nothing_left()


def evicted(evictor, elements, assigner=None):
    """The sums in the order of their firing, of (key, value, time) elements."""
    operator = window_rows(
        assigner=assigner or w.GlobalWindows.create(),
        trigger=w.CountTrigger.of(2),
        evictor=evictor,
        aggregate={"total": w.Sum(lambda element: element[1])},
    )
    with KeyedTestHarness(operator, key=lambda element: element[0]) as h:
        for key, value, time in elements:
            h.process((key, value), time)
            h.crash_and_recover()
        return [(record.value[0], record.value[-1]) for record in h.take_output()]


@pytest.mark.parametrize("case", read_data("acceptance/flink_evictors.json"), ids=lambda case: case["name"])
def test_an_evictor_leaves_what_flink_s_does(case):
    """The sums of ones in the order of their firing, of elements (number of the key, time)."""
    evictor = getattr(w, case["evictor"]).of(case["limit"], do_evict_after=case["after"])
    elements = [(f"key{key}", 1, time) for key, time in case["elements"]]
    assigner = windows_of(case["windows"]) if case["windows"] else None
    assert evicted(evictor, elements, assigner=assigner) == [tuple(each) for each in case["sums"]]


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
    evictor = w.DeltaEvictor.of(2, lambda element, last: last[1] - element[1], do_evict_after=after)
    elements = [(*element, 0) for element in [*DELTA, ("key1", of_key1), ("key2", 10)]]
    assert evicted(evictor, elements) == expected
