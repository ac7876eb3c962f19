"""Windows of Kafka Streams and of Spark on the package `windows`: updates per record, grace, session_window.

`kafka_streams_windows.json` has the cases of Kafka Streams, which gives out an update at each record: here
`CountTrigger.of(1)`. Its grace is allowed lateness; stream time is the highest timestamp so far, so the watermark is
one less. What is late for a session is decided by Flink's rule, which is a millisecond stricter than Kafka's,
whose sessions include their end.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import keyed
from keyed import windows as w
from keyed.testing import KeyedTestHarness
from tests.support.data_files import read_data
from tests.support.window_operators import trigger_of, window_rows, windows_of

AGGREGATES = {
    "text": w.aggregate_of(
        lambda: "0", lambda element, text: f"{text}+{element[1]}", lambda one, other: one + other[1:], lambda text: text
    ),
    "count": w.Count(),
}


@pytest.mark.parametrize("case", read_data("acceptance/kafka_streams_windows.json"), ids=lambda case: case["name"])
def test_a_case_of_kafka_streams_holds(case):
    """Outputs after each element and, where the input has an end, after it.

    Windows of one element are in the order of their starts, as in Kafka; Flink's and ours fire the latest first.
    """
    operator = window_rows(
        assigner=windows_of(case["windows"]),
        trigger=trigger_of(case["trigger"]),
        aggregate={"result": AGGREGATES[case["aggregate"]]},
        allowed_lateness_ms=case["lateness"],
    )
    rows = []
    with KeyedTestHarness(operator, key=lambda element: element[0]) as harness:
        for key, value, time in case["elements"]:
            harness.process((key, value), time)
            harness.crash_and_recover()
            harness.advance_watermark(time - 1)
            rows += sorted(list(record.value) for record in harness.take_output())
        assert harness.metrics()["rows_dropped"] == case["dropped"]
        if "end" in case:
            harness.end_of_input()
            rows += sorted(list(record.value) for record in harness.take_output())
            assert (harness.state_entries(), harness.pending_timers()) == (0, [])
    assert rows == case["rows"]


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
        sessions = w.EventTimeSessionWindows.with_dynamic_gap(lambda row: 1000 if row.word == "hello" else 10_000)
    else:
        sessions = w.EventTimeSessionWindows.with_gap(10_000)
    source = pa.Table.from_pylist(WORDS) if path == "vectorized" else WORDS
    windows = (
        keyed.stream(source, timestamp="at", watermark=keyed.bounded_out_of_orderness(seconds=30))
        .key_by("word")
        .window(sessions)
        .path("row" if path != "vectorized" else "vectorized")
    )
    result = windows.aggregate(events=w.Count()).run(rows_per_batch=rows_per_batch, drain=False)
    found = sorted((word, start // 1000, end // 1000, events) for word, start, end, events in result.values)
    hello = ("hello", 40, 42, 2) if path == "dynamic" else ("hello", 40, 51, 2)
    assert found == [hello, *SESSIONS]
    (metrics,) = result.metrics.values()
    assert metrics["rows_dropped"] == 2


@pytest.mark.parametrize("vectorized", [False, True])
def test_session_window_over_a_table(vectorized):
    """DataFrameSessionWindowingSuite: "groupBy with multiple keys statement", "... one distinct"."""
    rows = [("a", 34, 1), ("a", 39, 1), ("a", 56, 2), ("a", 64, 2), ("b", 27, 4), ("b", 37, 4)]
    elements = [{"id": key, "at": time * 1000, "value": value} for key, time, value in rows]
    delay = keyed.bounded_out_of_orderness(minutes=5)
    found = (
        keyed.stream(pa.Table.from_pylist(elements) if vectorized else elements, timestamp="at", watermark=delay)
        .key_by("id")
        .window(w.EventTimeSessionWindows.with_gap(10_000))
        .aggregate(count=w.Count(), total=w.Sum("value"), distinct=w.CountDistinct("value"))
        .run()
        .values
    )
    assert sorted((row.id, row.window_start // 1000, row.window_end // 1000, *row[3:]) for row in found) == [
        ("a", 34, 49, 2, 2, 1),
        ("a", 56, 74, 2, 4, 1),
        ("b", 27, 47, 2, 8, 1),
    ]
