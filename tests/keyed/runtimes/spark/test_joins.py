"""Joins on Spark: the results of the local runtime, on either path; a worker that dies; another parallelism."""

from __future__ import annotations

import pytest

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.joins import IntervalJoin
from tests.keyed.runtimes.spark.functions import SCHEMA, PairOnce, pair, write_file
from tests.keyed.runtimes.test_two_inputs import rows_of, tuples
from tests.support.explained import computed

PAIRS = "k string, first bigint, second bigint"
OTHER = "other string, u bigint, w bigint"
LEFT, RIGHT = rows_of(1, 60, disorder=5), rows_of(2, 50, key="other", time="u", disorder=7)
INTERVAL = IntervalJoin(pair, lower=-3, upper=5, how="full")


def joined(left, right, function, **options):
    first = keyed.stream(left, timestamp="t", watermark=keyed.bounded_out_of_orderness(5))
    second = keyed.stream(right, timestamp="u", watermark=keyed.bounded_out_of_orderness(7))
    return first.connect(second).key_by("k", "other").process(function, PAIRS, name="join", **options)


def renamed(rows):
    return [{"other": row["other"], "u": row["u"], "w": row["v"]} for row in rows]


def by_row(left, right, function):
    """The results of the local runtime, where the columns of lists are unknown."""
    return sorted(map(tuple, joined(left, renamed(right), function).run().values), key=str)


def test_batch_dataframes_give_what_the_local_runtime_gives(spark):
    """Those of the other joins are in `tests/test_support.py`."""
    frames = spark.createDataFrame(tuples(LEFT), SCHEMA), spark.createDataFrame(tuples(renamed(RIGHT)), OTHER)
    out = joined(*frames, INTERVAL, parallelism=2)
    assert computed(out) == "whole columns"
    found = sorted(map(tuple, out.run().values), key=str)
    assert found == by_row(LEFT, RIGHT, INTERVAL)
    assert len(found) > 10


@pytest.mark.long
@pytest.mark.parametrize("path", ["vectorized", "row"])
def test_a_job_whose_worker_dies_goes_on_and_is_restored_with_another_parallelism(spark, tmp_path, path):
    sources = [
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / name))
        for name in ("left", "right")
        if (tmp_path / name).mkdir() is None
    ]
    sources[1] = sources[1].withColumnsRenamed({"k": "other", "t": "u", "v": "w"})
    changelog = DirectoryChangelog(tmp_path / "log")
    function = IntervalJoin(PairOnce(str(tmp_path)), lower=-3, upper=5, how="full", path=path)
    left, right = (sorted(rows, key=lambda row: row[time]) for rows, time in ((LEFT, "t"), (RIGHT, "u")))

    def add(number, part):
        write_file(tmp_path / "left", number, tuples(left[part]))
        write_file(tmp_path / "right", number, tuples(right[part]))

    add(0, slice(0, 15))
    add(1, slice(15, 30))
    job = joined(sources[0], sources[1], function, changelog=changelog, parallelism=2)
    values = []
    with pytest.raises(keyed.errors.QueryFailed):
        job.run(keyed.parquet_sink(tmp_path / "out"), checkpoint=tmp_path / "ck")
    assert (tmp_path / "died").exists()
    job.run(keyed.parquet_sink(tmp_path / "out"), checkpoint=tmp_path / "ck")
    values += [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    add(2, slice(30, None))
    again = joined(sources[0], sources[1], function, restore_from=changelog, parallelism=1)
    result = again.run(checkpoint=tmp_path / "ck2", drain=True)
    assert result.restored is not None
    values += map(tuple, result.values)
    assert sorted(values, key=str) == by_row(left, right, INTERVAL)
