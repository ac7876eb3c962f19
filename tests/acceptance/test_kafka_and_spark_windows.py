"""Windows of Kafka Streams and of Spark on the package `windows`: updates per record, grace, session_window.

Kafka Streams gives out an update at each record: here `CountTrigger.of(1)`. Its grace is allowed lateness; stream time
is the highest timestamp so far, so the watermark is one less. What is late for a session is decided by Flink's rule,
which is a millisecond stricter than Kafka's, whose sessions include their end.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import keyed
from keyed import windows as w
from keyed.testing import KeyedTestHarness
from tests.support.window_operators import window_rows

GAP = 300_000
to_string = w.aggregate_of(
    lambda: "0", lambda element, text: f"{text}+{element[1]}", lambda text, other: text + other[1:], lambda text: text
)


def updates(assigner, elements, *, aggregate=to_string, lateness=0, trigger=None):
    """The outputs at each of (key, value, timestamp) elements, as (key, start, end, result); and the harness.

    Windows of one element are in the order of their starts, as in Kafka; Flink's and ours fire the latest first.
    """
    operator = window_rows(
        assigner=assigner,
        trigger=trigger or w.CountTrigger.of(1),
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


def test_hopping_aggregates():
    """KStreamWindowAggregateTest.testAggBasic: windows of 10 every 5, records out of order within the grace."""
    elements = [("A", "1", 0), ("B", "2", 1), ("C", "3", 2), ("D", "4", 3), ("A", "1", 4), ("A", "1", 5), ("B", "2", 6)]
    elements += [("D", "4", 7), ("B", "2", 8), ("C", "3", 9), ("A", "1", 10), ("B", "2", 11), ("D", "4", 12)]
    elements += [("B", "2", 13), ("C", "3", 14), ("B", "1", 3), ("B", "2", 2), ("B", "3", 9)]
    found, _ = updates(w.HoppingEventTimeWindows.of(10, 5), elements, lateness=86_400_000)
    in_time = [row for row in found if row[1] >= 0]  # Kafka has no windows before 0
    assert in_time[:6] == [
        ("A", 0, 10, "0+1"),
        ("B", 0, 10, "0+2"),
        ("C", 0, 10, "0+3"),
        ("D", 0, 10, "0+4"),
        ("A", 0, 10, "0+1+1"),
        ("A", 0, 10, "0+1+1+1"),
    ]
    assert in_time[6] == ("A", 5, 15, "0+1")
    assert in_time[-4:] == [
        ("B", 0, 10, "0+2+2+2+1"),
        ("B", 0, 10, "0+2+2+2+1+2"),
        ("B", 0, 10, "0+2+2+2+1+2+3"),
        ("B", 5, 15, "0+2+2+2+2+3"),
    ]
    assert len(in_time) == 29


def test_records_of_windows_that_the_grace_has_closed_are_dropped():
    """KStreamWindowAggregateTest.shouldLogAndMeterWhenSkippingExpiredWindowByGrace: [100, 110) closes at 200."""
    elements = [("k", "100", 200), *[("k", str(n), 100 + n) for n in range(6)], ("k", "6", 6)]
    found, harness = updates(w.TumblingEventTimeWindows.of(10), elements, lateness=90)
    assert found == [("k", 200, 210, "0+100")]
    assert harness.metrics()["rows_dropped"] == 7


def test_a_record_of_two_windows_goes_to_the_one_that_is_open():
    """KStreamWindowAggregateTest.shouldLogAndMeterWhenSkippingExpiredWindow: [0, 10) has closed, [5, 15) has not."""
    elements = [("k", "100", 100), *[("k", str(n), n) for n in range(7)]]
    found, harness = updates(w.HoppingEventTimeWindows.of(10, 5), elements, lateness=90)
    assert found == [("k", 95, 105, "0+100"), ("k", 100, 110, "0+100"), ("k", 5, 15, "0+5"), ("k", 5, 15, "0+5+6")]
    assert harness.metrics()["rows_dropped"] == 5


def test_sessions_of_records_within_and_beyond_the_gap():
    """KStreamSessionWindowAggregateProcessorTest.shouldCreateSingleSession..., shouldHaveMultipleSessionsForSameId."""
    times = [0, 500, 500 + GAP, 501 + 2 * GAP, 501 + 2 * GAP]  # at exactly the gap a session goes on
    found, _ = updates(
        w.EventTimeSessionWindows.with_gap(GAP), [("mel", "", time) for time in times], aggregate=w.Count()
    )
    assert [(start, end - GAP, count) for _, start, end, count in found] == [
        (0, 0, 1),
        (0, 500, 2),
        (0, 500 + GAP, 3),
        (501 + 2 * GAP, 501 + 2 * GAP, 1),
        (501 + 2 * GAP, 501 + 2 * GAP, 2),
    ]


def test_a_record_that_joins_two_sessions():
    """KStreamSessionWindowAggregateProcessorTest.shouldMergeSessions and shouldRemoveMergedSessionsFromStateStore."""
    elements = [("mel", "", 0), ("mel", "", GAP + 1), ("mel", "", GAP // 2)]
    found, harness = updates(w.EventTimeSessionWindows.with_gap(GAP), elements, aggregate=w.Count(), lateness=GAP)
    assert found == [("mel", 0, GAP, 1), ("mel", GAP + 1, 2 * GAP + 1, 1), ("mel", 0, 2 * GAP + 1, 3)]
    harness.advance_watermark(10 * GAP)
    assert (harness.state_entries(), harness.pending_timers()) == (0, [])


def test_several_sessions_of_several_keys():
    """KStreamSessionWindowAggregateProcessorTest.shouldHandleMultipleSessionsAndMerging."""
    half, second = GAP // 2, GAP + 1
    elements = [(key, "", 0) for key in "abcd"] + [("d", "", half), ("a", "", second), ("b", "", second)]
    elements += [("a", "", second + half), ("c", "", second + half)]
    sessions = w.EventTimeSessionWindows.with_gap(GAP)
    taken, harness = updates(sessions, elements, aggregate=w.Count(), lateness=GAP, trigger=w.EventTimeTrigger())
    harness.end_of_input()
    found = sorted(
        (*row[:2], row[2] - GAP, row[3]) for row in [*taken, *(tuple(r.value) for r in harness.take_output())]
    )
    assert found == [
        ("a", 0, 0, 1),
        ("a", second, second + half, 2),
        ("b", 0, 0, 1),
        ("b", second, second, 1),
        ("c", 0, 0, 1),
        ("c", second + half, second + half, 1),
        ("d", 0, half, 2),
    ]


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
