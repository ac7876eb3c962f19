"""Rows that wait for the watermark on Spark: the results of the local runtime, over restarts and restores."""

from __future__ import annotations

import keyed
from keyed import bounded_out_of_orderness
from keyed.changelog import DirectoryChangelog
from keyed.recovery import verify
from tests.keyed.runtimes.local.test_watermark_order import DELAY, Everything, job, some_rows
from tests.keyed.runtimes.spark.functions import SCHEMA, write_file
from tests.keyed.runtimes.spark.test_two_inputs import files

OUTPUT = "kind string, k string, t bigint, w bigint, seen string, brief bigint, late boolean"


def spark_job(source, **options):
    stream = keyed.stream(source, timestamp="t", watermark=bounded_out_of_orderness(DELAY))
    return stream.key_by("k").process(Everything(), OUTPUT, order="watermark", name="held", **options)


def in_order(values):
    """Outputs of a key keep their order; those of different key groups have none between them."""
    return sorted(map(tuple, values), key=lambda value: value[1])


def test_rows_wait_across_restarts_and_a_restore_at_another_parallelism(spark, tmp_path):
    ordered, arrived = some_rows(7)
    expected = in_order(job(ordered).run().values)
    rows = [tuple(row.values()) for row in arrived]
    log = DirectoryChangelog(tmp_path / "log")
    values, held = [], []
    for number, (start, end) in enumerate([(0, 15), (15, 16), (16, 40)]):
        write_file(tmp_path / "in", number, rows[start:end])
        query = spark_job(files(spark, tmp_path / "in"), parallelism=2, changelog=log)
        result = query.run(checkpoint=tmp_path / "ck")
        values += result.values
        held.append(result.metrics["held"]["rows_held"])
    assert all(held)
    assert not any(each.problem for each in verify(log))
    write_file(tmp_path / "in", 3, rows[40:])
    again = spark_job(files(spark, tmp_path / "in"), parallelism=1, restore_from=log)
    result = again.run(checkpoint=tmp_path / "ck2", drain=True)
    assert in_order([*values, *result.values]) == expected
    assert result.metrics["held"]["rows_held"] == 0


def test_a_batch_dataframe_runs_by_event_time(spark):
    ordered, arrived = some_rows(8)
    frame = spark.createDataFrame([tuple(row.values()) for row in arrived], SCHEMA)
    assert in_order(spark_job(frame, parallelism=2).run().values) == in_order(job(ordered).run().values)
