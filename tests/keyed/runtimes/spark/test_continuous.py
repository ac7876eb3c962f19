"""Continuous aggregates on Spark: both paths as in the local runtime, a row for each key and batch, and the tables."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed import windows
from keyed.windows import CollectSet, Count, Latest, Mean, Sum
from tests.keyed.runtimes.spark.functions import files_source, write_file

CHOSEN = {"n": Count(), "sum": Sum("v"), "mean": Mean("v"), "last": Latest("v", by_time=True), "seen": CollectSet("v")}


def rows_of(number):
    chance = random.Random(number)
    return [(chance.choice("abcdef"), number * 40 + i, chance.randrange(9)) for i in range(40)]


@pytest.mark.parametrize("path", ["vectorized", pytest.param("row", marks=pytest.mark.long)])
def test_spark_agrees_with_the_local_runtime(spark, tmp_path, path):
    for number in range(3):
        write_file(tmp_path / "in", number, rows_of(number))

    def totals(source, log):
        changelog = keyed.DirectoryChangelog(tmp_path / log)
        options = {"path": path, "parallelism": 2, "changelog": changelog}
        return windows.aggregate(source.key_by("k"), CHOSEN, name="totals", **options)

    keyed.run(totals(files_source(spark, tmp_path / "in"), "spark-log").to(tmp_path / "out"), checkpoint=tmp_path / "s")
    rows = [{"k": k, "t": t, "v": v} for number in range(3) for k, t, v in rows_of(number)]
    keyed.run(
        totals(keyed.stream(pa.Table.from_pylist(rows), timestamp="t"), "local-log").to(tmp_path / "local-out"),
        checkpoint=tmp_path / "l",
        rows_per_batch=40,
    )
    found = [sorted(map(repr, pq.read_table(tmp_path / out).to_pylist())) for out in ("out", "local-out")]
    assert found[0] == found[1]
    assert len(found[0]) == 18
    tables = []
    for log in ("spark-log", "local-log"):
        with keyed.tables.open_tables(keyed.DirectoryChangelog(tmp_path / log), tmp_path / f"{log}-tables") as opened:
            opened.poll()
            tables.append({entry.key: entry.value for entry in opened["totals"]})
    assert tables[0] == tables[1]
    assert tables[0]["a"]["n"] == sum(row["k"] == "a" for row in rows)
