"""Key group ids against Spark's own partitioner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.runtimes.spark.worker.wire import group_ids, spark_hash


@given(st.integers(1, 300))
def test_every_shuffle_partition_gets_one_group(parallelism):
    ids = group_ids(parallelism)
    assert [spark_hash(group) % parallelism for group in ids] == list(range(parallelism))


@given(st.integers(1, 300))
def test_group_zero_is_there_for_every_parallelism(parallelism):
    # A query on a checkpoint with another parallelism meets a group of it, whatever the numbers.
    assert 0 in group_ids(parallelism)


@pytest.mark.smoke
@pytest.mark.parametrize("parallelism", [1, 2, 3, 8, 200])
def test_spark_puts_each_group_on_its_partition(spark, parallelism):
    from pyspark.sql import functions as F  # noqa: N812

    ids = group_ids(parallelism)
    frame = spark.createDataFrame([(group,) for group in ids], "g int")
    found = frame.select("g", F.hash("g").alias("h"), F.expr(f"pmod(hash(g), {parallelism})").alias("p")).collect()
    assert [(row.g, spark_hash(row.g), list(ids).index(row.g)) for row in found] == [(r.g, r.h, r.p) for r in found]
