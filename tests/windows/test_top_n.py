"""Top-n as a vectorized function: ranks, ties, waiting for the watermark."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed.errors import DefinitionError
from keyed.testing import KeyedTestHarness, strategies
from keyed.vectorized import TableState
from keyed.windows import Count, TopN, TumblingEventTimeWindows, TumblingProcessingTimeWindows

COLUMNS = "window_start bigint, window_end bigint, item string, count bigint"


def rows(*counts, start=0):
    """Counts of one window of length 10: (item, count)."""
    items, numbers = zip(*counts, strict=True)
    bounds = {"window_start": [start] * len(items), "window_end": [start + 10] * len(items)}
    table = pa.table(bounds | {"item": list(items), "count": pa.array(numbers, pa.int64())})
    return table.append_column("at", pa.array([start + 9] * len(items)))


def harness(n, **options):
    function = TopN(n, by="count", item="item", columns=COLUMNS)
    return KeyedTestHarness(function, key=["window_start", "window_end"], **options)


def taken(h):
    return [(r.value.window_start, r.value.rank, r.value.item, r.value.count, r.timestamp) for r in h.take_output()]


def test_rows_are_ranked_when_their_window_has_ended():
    with harness(2, store="rocksdb") as h:
        h.process_batch(rows(("b", 3), ("a", 3), ("c", 1)), "at")
        h.process_batch(rows(("d", 2), start=10), "at")
        h.process_batch(rows(("e", 7)), "at")
        h.advance_watermark(8)
        assert taken(h) == []
        h.crash_and_recover()
        h.advance_watermark(9)
        assert taken(h) == [(0, 1, "e", 7, 9), (0, 2, "a", 3, 9)]
        h.advance_watermark(100)
        assert taken(h) == [(10, 1, "d", 2, 19)]
        assert h.metrics()["live_entries"] == 0


def test_rows_that_come_after_the_watermark_are_ranked_among_themselves():
    with harness(5) as h:
        h.advance_watermark(50)
        h.process_batch(rows(("b", None), ("a", 3)), "at")
        assert taken(h) == [(0, 1, "a", 3, 9), (0, 2, "b", None, 9)]


def test_a_row_replaces_one_of_the_same_item_that_waits():
    with harness(5) as h:
        h.process_batch(rows(("a", 9), ("b", 2)), "at")
        h.process_batch(rows(("a", 1)), "at")
        h.advance_watermark(9)
        assert [row[1:4] for row in taken(h)] == [(1, "b", 2), (2, "a", 1)]


ITEMS = strategies.rows("item string", item=strategies.skewed(*"abcde"))


@given(strategies.streams(ITEMS, gap=1, late=40, max_size=40), st.integers(1, 4), st.integers(1, 9))
def test_after_a_window_it_gives_the_ranking_of_each_window(stream_of_items, n, size):
    events = [(row.value["item"], row.timestamp) for row in stream_of_items]
    items, times = pa.array([item for item, _ in events], pa.string()), pa.array([at for _, at in events], pa.int64())
    table = pa.table({"item": items, "at": times})
    stream = keyed.stream(table, timestamp="at", watermark=keyed.bounded_out_of_orderness(milliseconds=40))
    counts = stream.key_by("item").window(TumblingEventTimeWindows.of(10)).aggregate({"count": Count()}, output=COLUMNS)
    ranked = counts.key_by("window_start", "window_end").process(
        TopN(n, by="count", item="item", columns=COLUMNS), output="window_start bigint, rank bigint, item string"
    )
    found = sorted(map(tuple, ranked.run(rows_per_batch=size).values))
    wanted = []
    for start in range(0, 1 + max((at for _, at in events), default=0), 10):
        inside = [item for item, at in events if start <= at < start + 10]
        order = sorted(set(inside), key=lambda item: (-inside.count(item), item))
        wanted += [(start, rank, item) for rank, item in enumerate(order[:n], 1)]
    assert found == wanted


def test_bad_definitions_are_refused():
    with pytest.raises(DefinitionError, match="n=0 must be an int"):
        harness(0)
    with pytest.raises(DefinitionError, match="by='x' is not one of the columns"):
        TopN(1, by="x", item="item", columns=COLUMNS)
    with pytest.raises(DefinitionError, match="must name one or more of its columns"):
        TopN(1, by="count", item="x", columns=COLUMNS)
    with pytest.raises(DefinitionError, match="give a DDL string"):
        TopN(1, by="count", item="item", columns=rows(("a", 1)).schema)
    assert isinstance(TopN(1, by="count", item="item", columns=COLUMNS).waiting, TableState)


def test_rows_without_timestamps_are_ranked_at_once():
    with harness(1) as h:
        h.process_batch(rows(("a", 1), ("b", 2)))
        assert taken(h) == [(0, 1, "b", 2, None)]
        assert h.metrics()["live_entries"] == 0


def test_results_of_processing_time_windows_are_ranked():
    clock = iter(range(0, 10_000, 10))
    events = [{"item": item} for item in "aabcabbb"]
    counts = (
        keyed.stream(events)
        .key_by("item")
        .window(TumblingProcessingTimeWindows.of(20))
        .aggregate({"count": Count()}, output=COLUMNS)
    )
    ranked = counts.key_by("window_start", "window_end").process(
        TopN(1, by="count", item="item", columns=COLUMNS), output=f"{COLUMNS}, rank bigint"
    )
    found = ranked.run(rows_per_batch=2, processing_time=lambda: next(clock)).values
    assert [(row.window_start, row.item, row.count, row.rank) for row in found] == [(0, "a", 2, 1), (20, "b", 3, 1)]
