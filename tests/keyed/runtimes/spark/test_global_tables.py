"""Global tables on Spark: DataFrames beside batches, and versions that a stream keeps in its checkpoint."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.errors import DefinitionError
from keyed.runtimes.spark.query import table_files
from keyed.runtimes.spark.session.spark_session import settings
from tests.keyed.runtimes.local.test_global_tables import rates, table_of
from tests.keyed.runtimes.spark.functions import Convert, parquet_rows, write_file
from tests.support.spark_programs import Program
from tests.support.waiting import until

COLUMNS = "user string, rate double, country string"
#: `write_file` writes (k, t, v).
SCHEMA = "k string, t bigint, v bigint"


def converted(frame, source, **options):
    stream = keyed.stream(frame.selectExpr("CAST(v AS STRING) AS user", "k AS currency")).key_by("user")
    options = {"parallelism": 2, **options}
    return stream.connect(table_of(source)).process(Convert(), COLUMNS, name="convert", **options)


def in_order(values):
    return sorted((row.user, row.rate) for row in values)


def test_a_dataframe_beside_a_batch(spark):
    payments = spark.createDataFrame([("EUR", 1, 1), ("USD", 2, 2), ("GBP", 3, 3)], SCHEMA)
    table = spark.createDataFrame(rates(EUR=1, USD=2).to_pandas())
    found = converted(payments, table).run()
    assert sorted(((row.user, row.rate) for row in found.values), key=str) == [("1", 1.0), ("2", 2.0), ("3", None)]


def files(spark, folder):
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.mark.long
def test_a_stream_keeps_versions_in_its_checkpoint(spark, tmp_path):
    table = [rates(EUR=1, USD=2)]
    changelog = DirectoryChangelog(tmp_path / "log")
    payments = files(spark, tmp_path / "in")

    def run(number, checkpoint, **options):
        write_file(tmp_path / "in", number, [("EUR", number, 1), ("USD", number, 2)])
        return converted(payments, lambda: table[0], **options).run(checkpoint=tmp_path / checkpoint)

    assert in_order(run(0, "ck", changelog=changelog).values) == [("1", 1.0), ("2", 2.0)]
    # It has not changed, so there is no new version.
    assert in_order(run(1, "ck", changelog=changelog).values) == [("1", 1.0), ("2", 2.0)]
    assert len(list((tmp_path / "ck" / "keyed-global" / "rates").glob("*.parquet"))) == 1
    table[0] = rates(EUR=5, USD=6)
    assert in_order(run(2, "ck", changelog=changelog).values) == [("1", 5.0), ("2", 6.0)]
    table[0] = rates(EUR=7, USD=8)
    restored = run(3, "ck2", restore_from=changelog, parallelism=3)
    assert restored.restored is not None
    assert restored.restored.with_position
    assert in_order(restored.values) == [("1", 7.0), ("2", 8.0)]
    with pytest.raises(DefinitionError, match="keeps the versions of a table in its checkpoint"):
        _ = converted(payments, table[0]).df


@pytest.mark.long
def test_versions_older_than_the_batches_that_spark_keeps_are_deleted(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_TIDY", 1)
    folder, table = tmp_path / "ck" / "keyed-global" / "rates", [rates(EUR=0)]
    payments = files(spark, tmp_path / "in")

    def versions():
        return sum(name.suffix == ".parquet" for name in folder.iterdir())

    with settings(spark, {"spark.sql.streaming.minBatchesToRetain": "2"}):
        for number in range(4):
            table[0] = rates(EUR=number)
            write_file(tmp_path / "in", number, [("EUR", number, number)])
            run = converted(payments, lambda: table[0]).run(checkpoint=tmp_path / "ck")
            assert in_order(run.values) == [(str(number), float(number))]
        assert versions() <= 3
        sink = keyed.collect_sink()
        query = converted(payments, lambda: table[0]).start(
            sink, checkpoint=tmp_path / "ck", trigger="100 milliseconds"
        )
        for number in range(4, 9):
            table[0] = rates(EUR=number)
            until(lambda: len(list(sink.batches)) > number - 4 or not query.is_active)  # noqa: B023 - asked at once
        assert query.is_active
        assert versions() <= 4
        write_file(tmp_path / "in", 99, [("EUR", 99, 99)])
        until(lambda: len(sink.values) == 1 or not query.is_active)
        # The sink has the batch before Spark has committed it, and a batch that is not committed runs again.
        until(lambda: query.progress.metrics["convert"]["rows_out"] == 5 or not query.is_active)
        query.stop()
        assert in_order(sink.values) == [("99", 8.0)]
    assert all(path.with_name(path.stem[1:]).exists() for path in folder.glob(".*.parquet.crc"))
    table[0] = rates(EUR=8)
    before = versions()
    assert not converted(payments, lambda: table[0]).run(checkpoint=tmp_path / "ck").values
    assert versions() <= before


def test_a_running_query_takes_a_changed_table(spark, tmp_path):
    table = [rates(EUR=1)]
    write_file(tmp_path / "in", 0, [("EUR", 0, 0)])
    sink = keyed.collect_sink()
    query = converted(files(spark, tmp_path / "in"), lambda: table[0]).start(
        sink, checkpoint=tmp_path / "ck", trigger="100 milliseconds"
    )
    until(lambda: len(sink.values) == 1 or not query.is_active)
    table[0] = rates(EUR=2)
    until(lambda: len(list((tmp_path / "ck" / "keyed-global" / "rates").glob("*.parquet"))) == 2)
    batches = query.progress.batch_id
    # The version is a batch of its own where no row comes.
    until(lambda: query.progress.batch_id > batches or not query.is_active)
    write_file(tmp_path / "in", 1, [("EUR", 1, 1)])
    until(lambda: len(sink.values) == 2 or not query.is_active)
    query.stop()
    assert in_order(sink.values) == [("0", 1.0), ("1", 2.0)]


@pytest.mark.long
@pytest.mark.spark
def test_a_killed_query_sees_the_versions_that_it_saw(tmp_path):
    for number in range(4):
        ids = range(number * 50, number * 50 + 50)
        write_file(tmp_path / "in", number, [("EUR", i, i) for i in ids])
    pq.write_table(rates(EUR=1), tmp_path / "rates.parquet")
    life = Program("broadcast_program", tmp_path, "table")
    assert life.wait_for_batches(2), life.said()
    life.kill()
    assert "DONE" not in life.said()
    begun = [path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
    before = set(parquet_rows(tmp_path / "sink"))
    pq.write_table(rates(EUR=2), tmp_path / "rates.parquet")
    write_file(tmp_path / "in", 4, [("EUR", i, i) for i in range(200, 250)])
    status, said = Program("broadcast_program", tmp_path, "table").end()
    assert status == 0, said
    rows = parquet_rows(tmp_path / "sink")
    assert sorted(int(user) for user, *_ in rows) == [*range(250)]
    # All that was written before, and all of the batches that had begun, has the first version; the rest the second.
    assert before <= {row for row in rows if row[1] == 1.0}
    assert {rate for user, rate, _ in rows if int(user) < 50} == {1.0}
    assert {rate for user, rate, _ in rows if int(user) >= 200} == {2.0}
    assert len([row for row in rows if row[1] == 1.0]) >= 50 * (len(begun) - 1)
