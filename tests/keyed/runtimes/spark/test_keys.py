"""Keys on Spark are compared by what is stored, over batches, timers, changelogs and restore."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed import windows as w
from keyed.changelog import DirectoryChangelog
from keyed.errors import CheckpointError, KeysChanged
from keyed.recovery import verify
from tests.keyed.runtimes.spark.functions import CountKeys

SCHEMA = "k double, t bigint"
OUTPUT = "k string, n bigint"
NAN = float("nan")


def write(folder, number, rows):
    folder.mkdir(exist_ok=True)
    keys, times = zip(*rows, strict=True)
    path = folder / f"{number:03}.parquet"
    pq.write_table(pa.table({"k": pa.array(keys, pa.float64()), "t": times}), path)
    # Spark reads files in the order of their times, which may be one millisecond.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def source(spark, folder):
    return keyed.stream(
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder)), timestamp="t"
    )


@pytest.mark.long
def test_nan_and_zero_are_one_key_each(spark, tmp_path):
    batches = [[(NAN, 1), (-0.0, 2), (NAN, 3)], [(NAN, 4), (0.0, 5), (1.0, 100)], [(NAN, 101), (-0.0, 102)]]
    for number, rows in enumerate(batches[:2]):
        write(tmp_path / "in", number, rows)
    log = DirectoryChangelog(tmp_path / "log")
    keys = source(spark, tmp_path / "in").key_by("k")

    def counted(**options):
        return keys.process(CountKeys(), OUTPUT, name="count", parallelism=2, **options)

    first = counted(changelog=log).run(checkpoint=tmp_path / "checkpoint")
    # The second batch reads the timers that the first one has set, and the rows move them.
    assert sorted(map(tuple, first.values)) == [
        ("0.0", 1), ("0.0", 2), ("1.0", 1), ("nan", 1), ("nan", 2), ("nan", 3),
        ("timer 0.0", 2), ("timer nan", 3),
    ]  # fmt: skip
    assert {group.problem for group in verify(log)} == {""}

    write(tmp_path / "in", 2, batches[2])
    restored = counted(restore_from=log).run(checkpoint=tmp_path / "restored", drain=True)
    assert sorted(map(tuple, restored.values)) == [
        ("0.0", 3), ("nan", 4), ("timer 0.0", 3), ("timer 1.0", 1), ("timer nan", 4)
    ]  # fmt: skip


@pytest.mark.long
def test_a_session_of_a_nan_key_has_all_its_rows(spark, tmp_path):
    write(tmp_path / "in", 0, [(NAN, 1), (NAN, 2)])
    write(tmp_path / "in", 1, [(NAN, 3), (1.0, 30)])
    sessions = source(spark, tmp_path / "in").key_by("k").window(w.EventTimeSessionWindows.with_gap(10))
    counted = sessions.aggregate({"n": w.Count()}, parallelism=2)
    found = counted.run(checkpoint=tmp_path / "checkpoint", drain=True).values
    assert sorted((str(row.k), row.n) for row in found) == [("1.0", 1), ("nan", 3)]


@pytest.mark.long
def test_other_keys_on_a_checkpoint_and_one_of_the_local_runtime_are_refused(spark, tmp_path):
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    write(folder, 0, [(1.0, 1)])

    def counted(*keys, schema="k, t"):
        frame = spark.readStream.schema(SCHEMA).parquet(str(folder)).selectExpr(*schema.split(", "))
        return keyed.stream(frame).key_by(*keys).process(CountKeys(timers=False), OUTPUT, name="count", parallelism=2)

    local = keyed.stream([{"k": 1.0}]).key_by("k").process(CountKeys(timers=False), OUTPUT, name="count")
    local.run(checkpoint=tmp_path / "local")
    with pytest.raises(CheckpointError, match=r"written by the local runtime.*restore_from="):
        counted("k").run(checkpoint=tmp_path / "local")

    counted("k").run(checkpoint=checkpoint)
    write(folder, 1, [(1.0, 2)])
    with pytest.raises(KeysChanged, match=r"keyed by k, the query by t"):
        counted("t").run(checkpoint=checkpoint)
    with pytest.raises(KeysChanged, match=r"of type float, those of the rows of type int"):
        counted("k", schema="CAST(k AS INT) AS k, t").run(checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match=r"written by Spark"):
        local.run(checkpoint=checkpoint)
    assert list(map(tuple, counted("k").run(checkpoint=checkpoint).values)) == [("1.0", 2)]
