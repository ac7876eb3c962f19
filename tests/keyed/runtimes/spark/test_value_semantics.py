"""On Spark as everywhere: values that are read, changed, stored and emitted again and again are never shared."""

import pyarrow as pa
import pytest

import keyed
from tests.keyed.runtimes.spark.functions import Changes, Gathered, files, write_table
from tests.support.jobs import collect


def table_of(rows):
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=["k", "n", "tags"])


@pytest.mark.long
def test_values_that_change_do_not_depend_on_where_batches_are_cut(spark, tmp_path):
    rows = [("ab"[n % 2], n, [n]) for n in range(12)]
    found = []
    for size in (12, 5):
        for start in range(0, len(rows), size):
            write_table(tmp_path / f"in-{size}", start, table_of(rows[start : start + size]))
        source = files(spark, tmp_path / f"in-{size}", "k string, n bigint, tags array<bigint>")
        found.append(outcome(source, parallelism=2, checkpoint=str(tmp_path / f"ck-{size}")))
    local = table_of(rows)
    expected = outcome(local, rows_per_batch=1)
    assert found == [expected, expected]
    assert expected[0]["a"][:3] == [[0], [0, -1], [0]]


def outcome(source, parallelism=1, **options):
    stream = keyed.stream(source).key_by("k")
    first = stream.process(Changes(), "k string, x array<bigint>", name="first", parallelism=parallelism)
    nested = "k string, x array<array<bigint>>"
    second = first.key_by("k").process(Gathered(), nested, name="second", parallelism=parallelism)
    values, _ = collect(first, second, **options)
    return [{key: [plain(row.x) for row in rows if row.k == key] for key in "ab"} for rows in values]


def plain(x):
    return [plain(item) if isinstance(item, list) else item for item in x]
