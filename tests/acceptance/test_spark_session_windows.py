"""Spark's session_window on the package `windows`."""

from __future__ import annotations

import pyarrow as pa
import pytest

import keyed
from keyed.testing import KeyedTestHarness
from keyed.windows import Count, CountTrigger, EventTimeSessionWindows, aggregate_of
from keyed.windows.window_operator import WindowOperator

to_string = aggregate_of(
    lambda: "0", lambda element, text: f"{text}+{element[1]}", lambda text, other: text + other[1:], lambda text: text
)


def updates(assigner, elements, *, aggregate=to_string, lateness=0, trigger=None):
    """The outputs at each of (key, value, timestamp) elements, as (key, start, end, result); and the harness.

    Windows of one element are in the order of their starts, as in Kafka; Flink's and ours fire the latest first.
    """
    operator = WindowOperator(
        assigner=assigner,
        trigger=trigger or CountTrigger.of(1),
        aggregate={"result": aggregate},
        allowed_lateness_ms=lateness,
    )
    harness = KeyedTestHarness(operator, key=lambda element: element[0])
    found = []
    for key, value, time in elements:
        harness.process((key, value), time)
        harness.crash_and_recover()
        harness.advance_watermark(time - 1)
        found += sorted(tuple(record.value) for record in harness.take_output())
    return found, harness


LINES = [
    ("hello world spark streaming", 40),
    ("world hello structured streaming", 41),
    ("spark streaming", 25),
    ("spark streaming", 0),
    ("spark streaming", 30),
    ("hello apache spark", 60),
    ("structured streaming", 90),
]
WORDS = [{"word": word, "at": time * 1000} for line, time in LINES for word in line.split()]
SESSIONS = [("spark", 25, 50, 3), ("streaming", 25, 51, 4), ("structured", 41, 51, 1), ("world", 40, 51, 2)]


@pytest.mark.parametrize("rows_per_batch", [1, 2, 8])
@pytest.mark.parametrize("path", ["row", "vectorized", "dynamic"])
def test_streaming_session_window(rows_per_batch, path):
    """StreamingSessionWindowSuite: "append mode - session window" and "SPARK-36465: dynamic gap duration".

    A session before others, one that is too late and dropped, two joined to one, and one after the others.
    """
    if path == "dynamic":
        sessions = EventTimeSessionWindows.with_dynamic_gap(lambda row: 1000 if row.word == "hello" else 10_000)
    else:
        sessions = EventTimeSessionWindows.with_gap(10_000)
    source = pa.Table.from_pylist(WORDS) if path == "vectorized" else WORDS
    windows = (
        keyed.stream(source, timestamp="at", watermark=keyed.bounded_out_of_orderness(seconds=30))
        .key_by("word")
        .window(sessions)
        .path("row" if path != "vectorized" else "vectorized")
    )
    result = windows.aggregate(events=Count()).run(rows_per_batch=rows_per_batch, drain=False)
    found = sorted((word, start // 1000, end // 1000, events) for word, start, end, events in result.values)
    hello = ("hello", 40, 42, 2) if path == "dynamic" else ("hello", 40, 51, 2)
    assert found == [hello, *SESSIONS]
    (metrics,) = result.metrics.values()
    assert metrics["rows_dropped"] == 2
