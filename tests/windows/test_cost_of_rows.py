"""A batch writes the windows of its rows, and not all open windows of their keys."""

from __future__ import annotations

import pytest

import keyed
from keyed import bounded_out_of_orderness
from keyed.windows import (
    ContinuousEventTimeTrigger,
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    HoppingEventTimeWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    TimeEvictor,
    TumblingEventTimeWindows,
)

ROWS = 60
#: The watermark stands still: each window stays open.
HELD = bounded_out_of_orderness(10**9)
MOVING = bounded_out_of_orderness(0)


class Elements(ProcessWindowFunction):
    def process(self, key, context, elements):
        return [len(elements)]


def with_gap(gap=2):
    return EventTimeSessionWindows.with_gap(gap)


def counted(windowed, **options):
    return windowed.path("row").aggregate({"n": Count()}, **options)


def elements(windowed, **options):
    return windowed.process(Elements(), output="n bigint", **options)


#: By name: assigner, options, function, and watermark.
WINDOWS = {
    "sessions": (with_gap(), None, counted, HELD),
    "sessions that pass": (with_gap(), None, counted, MOVING),
    "sessions with a dynamic gap": (EventTimeSessionWindows.with_dynamic_gap(lambda _: 2), None, counted, HELD),
    "sessions with lateness": (with_gap(), lambda w: w.allowed_lateness(10**6), counted, MOVING),
    "sessions that fire again and again": (
        with_gap(),
        lambda w: w.trigger(ContinuousEventTimeTrigger.of(10**6)),
        counted,
        HELD,
    ),
    "sessions that fire again and pass": (
        with_gap(),
        lambda w: w.trigger(ContinuousEventTimeTrigger.of(1)),
        counted,
        MOVING,
    ),
    "sessions that purge": (with_gap(), lambda w: w.trigger(PurgingTrigger.of(EventTimeTrigger())), counted, HELD),
    "sessions that fire by count": (with_gap(), lambda w: w.trigger(CountTrigger.of(2)), counted, HELD),
    "sessions with an evictor": (with_gap(), lambda w: w.evictor(TimeEvictor.of(5)), counted, HELD),
    "elements of sessions": (with_gap(), None, elements, HELD),
    "idle sessions": (with_gap(), lambda w: w.close_when_idle(10**9), counted, HELD),
    "one session": (with_gap(100), lambda w: w.trigger(ContinuousEventTimeTrigger.of(10**6)), counted, HELD),
    "elements of one session": (with_gap(100), None, elements, HELD),
    "tumbling": (TumblingEventTimeWindows.of(5), None, counted, HELD),
    "tumbling with lateness": (TumblingEventTimeWindows.of(5), lambda w: w.allowed_lateness(10**6), counted, MOVING),
    "hopping": (HoppingEventTimeWindows.of(10, 5), None, counted, HELD),
    "elements of tumbling": (TumblingEventTimeWindows.of(5), None, elements, HELD),
}


def bytes_written(assigner, change, function, watermark, log, rows, step):
    given = [{"k": "a", "n": n, "t": step * n} for n in range(rows)]
    windowed = keyed.stream(given, timestamp="t", watermark=watermark).key_by("k").window(assigner)
    if change is not None:
        windowed = change(windowed)
    function(windowed, changelog=keyed.DirectoryChangelog(log)).run(rows_per_batch=5, drain=False)
    return sum(file.stat().st_size for file in log.rglob("*") if file.is_file())


@pytest.mark.parametrize("step", [10, -10], ids=["ascending", "descending"])
@pytest.mark.parametrize("name", WINDOWS)
def test_the_bytes_of_a_batch_do_not_grow_with_the_open_windows_of_its_keys(name, step, tmp_path):
    few, many = (bytes_written(*WINDOWS[name], tmp_path / f"{rows}", rows, step) for rows in (ROWS, 3 * ROWS))
    assert many < 3.5 * few, f"{few:,} and {many:,} bytes"
