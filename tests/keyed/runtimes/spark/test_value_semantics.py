"""On Spark as everywhere: values that are read, changed, stored and emitted again and again are never shared."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from tests.keyed.runtimes.spark.functions import Changes, Gathered

NAMES = ["k", "n", "tags"]


@pytest.mark.long
def test_values_that_change_do_not_depend_on_where_batches_are_cut(spark, tmp_path):
    rows = [("ab"[n % 2], n, [n]) for n in range(12)]
    found = []
    for size in (12, 5):
        folder = tmp_path / f"in-{size}"
        folder.mkdir()
        for start in range(0, len(rows), size):
            table = pa.table(
                [pa.array(column) for column in zip(*rows[start : start + size], strict=True)], names=NAMES
            )
            file = folder / f"{start:03d}.parquet"
            pq.write_table(table, file)
            os.utime(file, (1_600_000_000 + start,) * 2)
        source = spark.readStream.schema("k string, n bigint, tags array<bigint>").option("maxFilesPerTrigger", 1)
        found.append(outcome(source.parquet(str(folder)), parallelism=2, checkpoint=str(tmp_path / f"ck-{size}")))
    local = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=NAMES)
    expected = outcome(local, rows_per_batch=1)
    assert found == [expected, expected]
    assert expected[0]["a"][:3] == [[0], [0, -1], [0]]


def outcome(source, parallelism=1, **options):
    first = (
        keyed.stream(source)
        .key_by("k")
        .process(Changes(), "k string, x array<bigint>", name="first", parallelism=parallelism)
    )
    second = first.key_by("k").process(
        Gathered(), "k string, x array<array<bigint>>", name="second", parallelism=parallelism
    )
    sinks = [keyed.collect_sink(), keyed.collect_sink()]
    keyed.run(first.to(sinks[0]), second.to(sinks[1]), **options)
    return [{key: [plain(value.x) for value in sink.values if value.k == key] for key in "ab"} for sink in sinks]


def plain(x):
    return [plain(item) if isinstance(item, list) else item for item in x]
