"""Both paths on Spark, in micro-batches: the same outputs as in the local runtime, late ones included."""

import os
import random
from collections import Counter as Multiset

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed import windows as w
from tests.support.explained import computed

ASSIGNERS = {
    "tumbling": w.TumblingEventTimeWindows.of(10),
    "hopping": w.HoppingEventTimeWindows.of(12, 4, 1),
    "session": w.EventTimeSessionWindows.with_gap(6),
}
AGGREGATES = {
    "n": w.Count(),
    "total": w.Sum("number"),
    "mean": w.Mean("number"),
    "latest": w.Latest("text", by_time=True),
    "top": w.TopK(2, "number"),
    "distinct": w.CountDistinct("text"),
}
BATCHES, ROWS = 4, 60


def batches():
    rng = random.Random(7)
    for batch in range(BATCHES):
        times = [batch * 40 + rng.randint(0, 40) - rng.choice((0, 0, 0, 9, 50)) for _ in range(ROWS)]
        yield pa.table(
            {
                "key": [rng.choice("abc") for _ in times],
                "at": pa.array(times, pa.int64()),
                "number": pa.array([rng.choice((None, 1, 2, 3)) for _ in times], pa.int64()),
                "text": [rng.choice("xyz") for _ in times],
            }
        )


def windows(source, kind, path, lateness, *, diverts):
    delay = keyed.bounded_out_of_orderness(milliseconds=5)
    found = keyed.stream(source, timestamp="at", watermark=delay).key_by("key").window(ASSIGNERS[kind])
    found = found.path(path).allowed_lateness(lateness)
    return (found.side_output_late_data("late") if diverts else found).aggregate(dict(AGGREGATES))


def outputs(output, *, diverts, **options):
    main, late = keyed.collect_sink(), keyed.collect_sink()
    sinks = [output.to(main)] + ([output.side_output("late").to(late)] if diverts else [])
    keyed.run(*sinks, drain=True, **options)
    rows = [(*tuple(row)[:-2], tuple(row.top), row.distinct) for row in main.values]
    return Multiset(rows), Multiset(map(tuple, late.values))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "lateness", "diverts"), [("tumbling", 0, False), ("hopping", 9, True), ("session", 9, True)]
)
def test_both_paths_on_spark_give_what_the_local_runtime_gives(spark, tmp_path, kind, lateness, diverts):
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, table in enumerate(batches()):
        pq.write_table(table, folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (1_600_000_000 + number,) * 2)
    local = windows(pa.concat_tables(batches()), kind, "row", lateness, diverts=diverts)
    wanted = outputs(local, diverts=diverts, rows_per_batch=ROWS)
    assert (len(wanted[1]) > 5) is diverts
    for path in ("row", "vectorized"):
        reader = spark.readStream.schema("key string, at bigint, number bigint, text string")
        source = reader.option("maxFilesPerTrigger", 1).parquet(str(folder))
        output = windows(source, kind, path, lateness, diverts=diverts)
        assert ("whole columns" in computed(output)) is (path == "vectorized")
        assert outputs(output, diverts=diverts, checkpoint=str(tmp_path / path)) == wanted
