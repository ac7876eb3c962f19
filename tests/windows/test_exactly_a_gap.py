"""Rows exactly a gap apart: two sessions without a delay of the watermark, one with any delay, on every path."""

from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed import bounded_out_of_orderness
from keyed.joins import WindowCoGroup
from keyed.windows import CollectList, Count, EventTimeSessionWindows, EventTimeTrigger, ProcessWindowFunction

ROWS: list[Any] = [{"key": "k", "at": at} for at in (0, 9, 19)]
TABLE = pa.Table.from_pylist(ROWS)
TWO, ONE = [(0, 19, 2), (19, 29, 1)], [(0, 29, 3)]
FIXED = EventTimeSessionWindows.with_gap(10)
DYNAMIC = EventTimeSessionWindows.with_dynamic_gap(lambda row: 10)


class Counts(ProcessWindowFunction):
    def process(self, key, ctx, elements):
        window = ctx.window()
        yield window.start, window.end, len(list(elements))


def windowed(delay, assigner, source=ROWS):
    strategy = bounded_out_of_orderness(delay)
    return keyed.stream(source, timestamp="at", watermark=strategy).key_by("key").window(assigner)


PATHS = {
    "packed": lambda delay: windowed(delay, FIXED).path("row").aggregate(n=Count()),
    "packed, dynamic gap": lambda delay: windowed(delay, DYNAMIC).aggregate(n=Count()),
    "vectorized": lambda delay: windowed(delay, FIXED, TABLE).path("vectorized").aggregate(n=Count()),
    "merging, with a trigger": lambda delay: windowed(delay, FIXED).trigger(EventTimeTrigger()).aggregate(n=Count()),
    "merging, dynamic gap": lambda delay: windowed(delay, DYNAMIC).process(Counts()),
    "merging, elements": lambda delay: windowed(delay, FIXED).process(Counts()),
    "merging, order of elements": lambda delay: windowed(delay, FIXED).aggregate(n=CollectList(lambda row: row["at"])),
}


def sessions(values):
    return [(start, end, n if isinstance(n, int) else len(n)) for start, end, n in (tuple(v)[-3:] for v in values)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("delay", "expected"), [(0, TWO), (1, ONE), (5, ONE)])
@pytest.mark.parametrize("rows_per_batch", [1, 2, 100])
def test_the_delay_decides_and_not_the_batches(path, delay, expected, rows_per_batch):
    assert sessions(PATHS[path](delay).run(rows_per_batch=rows_per_batch).values) == expected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rows_per_batch", [1, 100])
def test_a_session_that_is_kept_for_late_rows_goes_on_and_fires_again(path, rows_per_batch):
    source = TABLE if path == "vectorized" else ROWS
    kept = windowed(0, FIXED, source).allowed_lateness(1)
    if path == "vectorized":
        kept = kept.path("vectorized")
    if "merging" in path:
        kept = kept.trigger(EventTimeTrigger())
    values = kept.aggregate(n=Count()).run(rows_per_batch=rows_per_batch).values
    assert sessions(values) == [TWO[0], ONE[0]]


@pytest.mark.parametrize(
    ("delay", "other", "expected"),
    [
        (0, ROWS, [(0, 19, 4), (19, 29, 2)]),
        (1, ROWS, [(0, 29, 6)]),
        # The watermark is the least of both sides, and this one does not reach the end of the session.
        (0, ROWS[:2], [(0, 29, 5)]),
    ],
)
@pytest.mark.parametrize("rows_per_batch", [1, 100])
def test_in_a_window_join_the_slower_side_decides(delay, other, expected, rows_per_batch):
    def cogroup(start, end, lefts, rights):
        yield start, end, len(lefts) + len(rights)

    strategy = bounded_out_of_orderness(delay)
    left, right = (keyed.stream(rows, timestamp="at", watermark=strategy) for rows in (ROWS, other))
    output = left.connect(right).key_by("key").process(WindowCoGroup(cogroup, gap=10))
    assert sessions(output.run(rows_per_batch=rows_per_batch).values) == expected


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("path", ["row", pytest.param("vectorized", marks=pytest.mark.long)])
def test_on_spark(spark, path):
    for delay, expected in ((0, TWO), (1, ONE)):
        rows = spark.createDataFrame(ROWS, "key string, at bigint")
        values = windowed(delay, FIXED, rows).path(path).aggregate(n=Count()).run().values
        assert sorted(sessions(values)) == expected
