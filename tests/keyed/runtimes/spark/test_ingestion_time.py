"""Ingestion time on Spark: the batch time that Spark logs, also for timers that no row wakes and for combined rows."""

import pytest

import keyed
from keyed import INGESTION_TIME
from keyed.windows import Count, TumblingEventTimeWindows
from tests.keyed.runtimes.spark.functions import Stamp, files_source, parquet_rows, write_file
from tests.support.waiting import until

STAMPED = "k string, v bigint, t bigint"


def test_each_row_has_the_time_of_its_batch_and_timers_fire_without_rows(spark, tmp_path):
    for number in range(2):
        write_file(tmp_path / "in", number, [(key, 0, number) for key in "abcde"])
    seen: dict[int, int] = {}
    source = files_source(spark, tmp_path / "in", timestamp=INGESTION_TIME)
    query = (
        source.key_by("k")
        .process(Stamp(), STAMPED, parallelism=2)
        .start(
            tmp_path / "out",
            checkpoint=tmp_path / "ck",
            trigger="100 milliseconds",
            on_progress=lambda progress: seen.setdefault(progress.batch_id, progress.processing_time),
        )
    )
    until(lambda: query.metrics().get("Stamp", {}).get("rows_out") == 20 or not query.is_active)
    assert query.is_active
    query.stop()
    rows = parquet_rows(tmp_path / "out")
    times = {v: t for _, v, t in rows if v >= 0}
    assert times[0] < times[1]
    assert set(times.values()) <= set(seen.values())
    expected = [(k, v, times[v]) for k in "abcde" for v in (0, 1)]
    assert sorted(row for row in rows if row[1] >= 0) == expected
    assert sorted((k, t) for k, v, t in rows if v < 0) == [(k, t) for k, _, t in expected]
    # The batch that fired the last timers had no rows.
    assert query.metrics()["Stamp"]["rows_late"] == 0


@pytest.mark.parametrize("path", ["auto", pytest.param("row", marks=pytest.mark.long)])
def test_windows_over_a_batch_dataframe_are_those_of_its_one_batch(spark, path):
    frame = spark.createDataFrame([(key, i) for key in "ab" for i in range(6)], "k string, v bigint")
    stream = keyed.stream(frame, timestamp=INGESTION_TIME).key_by("k")
    counted = stream.window(TumblingEventTimeWindows.of(1000)).path(path).aggregate({"n": Count()}, parallelism=2)
    seen: list[keyed.Progress] = []
    result = counted.run(on_progress=seen.append)
    start = seen[0].processing_time // 1000 * 1000
    assert sorted((row.k, row.n) for row in result.values) == [("a", 6), ("b", 6)]
    assert {row.window_start for row in result.values} == {start}
