"""Global tables are read before the first row, taken whole when they change, kept over restarts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.errors import DefinitionError, RowError, SourceError, StateDefinitionError
from keyed.job.global_tables import TableReader
from keyed.runtimes.spark.checkpoint import global_table_files
from keyed.runtimes.spark.session.spark_session import settings
from tests.keyed.runtimes.conftest import long_on_spark
from tests.keyed.runtimes.spark.functions import (
    COUNTRIES,
    RATES,
    SCHEMA,
    Convert,
    Limits,
    files,
    parquet_rows,
    write_file,
)
from tests.support.spark_programs import Program
from tests.support.waiting import logged, until

PAYMENTS = [{"user": user, "currency": currency} for user in "abc" for currency in ("EUR", "USD")]


def rates(**of):
    return pa.table({"currency": list(of), "rate": list(map(float, of.values()))})


def converted(payments, *tables, **options):
    stream = keyed.stream(payments).key_by("user")
    for table in tables:
        stream = stream.connect(table)
    return stream.process(Convert(), name="convert", **options)


def table_of(source, **options):
    return keyed.global_table(source, RATES, key="currency", **{"every": 0, **options})


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("kind", ["arrow", "pandas", "function", "folder"])
def test_every_row_sees_the_whole_table(tmp_path, kind, parallelism):
    table = rates(EUR=1, USD=2)
    pq.write_table(table, tmp_path / "rates.parquet")
    source = {"arrow": table, "pandas": table.to_pandas(), "function": lambda: table, "folder": tmp_path}[kind]
    found = converted(PAYMENTS, table_of(source), parallelism=parallelism).run(rows_per_batch=1)
    assert sorted(found.values) == [(user, rate, None) for user in "abc" for rate in (1.0, 2.0)]
    # A version is one element, counted once.
    assert found.metrics["convert"]["rows_in"] == 7


def test_a_changed_table_takes_the_place_of_the_old_one_at_once():
    versions = iter([rates(EUR=1, USD=2), rates(EUR=1, USD=2), rates(USD=3), rates(EUR=4, GBP=5)])
    last = [rates()]

    def load():
        last[0] = next(versions, last[0])
        return last[0]

    payments = [{"user": "a", "currency": currency} for currency in ("EUR", "USD") * 4]
    countries = keyed.global_table(pd.DataFrame({"code": ["a"], "name": ["Aruba"]}), COUNTRIES, key=("code", "name"))
    found = converted(payments, table_of(load), countries).run(rows_per_batch=2)
    aruba = {"code": "a", "name": "Aruba"}
    assert [value[1] for value in found.values] == [1.0, 2.0, 1.0, 2.0, None, 3.0, 4.0, None]
    assert {str(value[2]) for value in found.values} == {str(aruba)}
    # Three versions of the one table, one of the other.
    assert found.metrics["convert"]["rows_in"] == 8 + 4


def test_a_table_that_cannot_be_read_for_long_is_logged_twice(caplog):
    now, fails = [0.0], [False]

    def load():
        if fails[0]:
            raise OSError("the server is gone")
        return rates(EUR=1)

    reader = TableReader(table_of(load, every=10_000), lambda: now[0])
    for seconds in range(0, 86_400, 10):
        now[0], fails[0] = float(seconds), 0 < seconds < 86_000
        reader.changed()
    gone = "global table 'rates' cannot be read: the server is gone"
    assert logged(caplog, "global table 'rates'") == [
        f"{gone}; the last version is kept; further failures are counted",
        "global table 'rates' is read again after 8599 failures",
    ]


def test_it_is_not_looked_at_again_before_its_time():
    now, calls = [0.0], []

    def load():
        calls.append(now[0])
        return rates(EUR=len(calls))

    reader = TableReader(table_of(load, every=2_000), lambda: now[0])
    found = []
    for now[0] in (0.0, 1.9, 2.0, 3.0, 4.5):
        found.append(reader.changed() is not None)
    assert (found, calls) == ([True, False, True, False, True], [0.0, 2.0, 4.5])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (pa.table({"rate": [1.0]}), "has no column 'currency'"),
        (pa.table({"currency": ["EUR", "EUR"], "rate": [1.0, 2.0]}), "is null or occurs twice"),
        (pa.table({"currency": [None], "rate": [1.0]}), "is null or occurs twice"),
        ("/nowhere/at/all", "cannot be read"),
    ],
)
def test_a_table_that_was_never_read_fails_the_query(source, said):
    with pytest.raises(SourceError, match=said):
        converted(PAYMENTS, table_of(source)).run()


def test_what_does_not_fit_is_refused():
    nothing: Any = 3
    with pytest.raises(DefinitionError, match="int is not a table"):
        converted(PAYMENTS, table_of(nothing)).run()
    with pytest.raises(RowError, match=r"global table 'rates', row .*: Expected `float`, got `str`"):
        converted(PAYMENTS, table_of(pa.table({"currency": ["EUR"], "rate": ["x"]}))).run()
    stream = keyed.stream(PAYMENTS).key_by("user").connect(table_of(rates()))
    with pytest.raises(DefinitionError, match="is not a KeyedProcessFunction"):
        stream.process(Limits())
    with pytest.raises(StateDefinitionError, match="two descriptors have the name 'rates'"):
        stream.connect(table_of(rates()))
    with pytest.raises(DefinitionError, match="one of these is connected"):
        stream.connect(keyed.stream([]).broadcast(COUNTRIES))
    with pytest.raises(DefinitionError, match="give one or more column names"):
        keyed.global_table(rates(), RATES, key=())
    assert repr(table_of(rates())) == f"GlobalTable(Table, {RATES!r}, key=currency)"


# On Spark ------------------------------------------------------------------------------------------------------------


COLUMNS = "user string, rate double, country string"
PAYMENT = "user string, currency string"


@long_on_spark
def test_it_is_kept_over_restarts_and_restores(runtime, tmp_path):
    runtime.size = 2
    changelog = DirectoryChangelog(tmp_path / "log")
    table = [rates(EUR=1, USD=2)]

    def run(checkpoint, **options):
        runtime.add(tmp_path / "in", [("a", "EUR"), ("b", "USD")], PAYMENT)
        stream = runtime.source(tmp_path / "in", None, PAYMENT).key_by("user").connect(table_of(lambda: table[0]))
        job = stream.process(Convert(), COLUMNS, name="convert", **options)
        result = job.run(checkpoint=tmp_path / checkpoint, **runtime.batches)
        return [rate for _, rate, _ in sorted(result.values)], result.metrics["convert"]["rows_in"]

    assert run("ck", parallelism=2, changelog=changelog) == ([1.0, 2.0], 2 + 1)
    # What it has is not read into the state again.
    assert run("ck", parallelism=2, changelog=changelog) == ([1.0, 2.0], 2 + 1 + 2)
    # A new checkpoint of Spark has no version of the table yet.
    count = 2 + 1 + 2 + 2 + (runtime.session is not None)
    assert run("ck2", parallelism=3, restore_from=changelog) == ([1.0, 2.0], count)
    table[0] = rates(EUR=7)
    assert run("ck2", parallelism=3) == ([7.0, None], count + 1 + 2)


def test_a_frame_with_a_table_is_no_dataframe(spark, tmp_path):
    with pytest.raises(DefinitionError, match="keeps the versions of a table in its checkpoint"):
        _ = converted_on_spark(files(spark, tmp_path / "in"), rates(EUR=1)).df


def converted_on_spark(frame, source, **options):
    stream = keyed.stream(frame.selectExpr("CAST(v AS STRING) AS user", "k AS currency")).key_by("user")
    options = {"parallelism": 2, **options}
    return stream.connect(table_of(source)).process(Convert(), COLUMNS, name="convert", **options)


def in_order(values):
    return sorted((row.user, row.rate) for row in values)


def test_a_dataframe_beside_a_batch(spark):
    payments = spark.createDataFrame([("EUR", 1, 1), ("USD", 2, 2), ("GBP", 3, 3)], SCHEMA)
    table = spark.createDataFrame(rates(EUR=1, USD=2).to_pandas())
    found = converted_on_spark(payments, table).run()
    assert sorted(((row.user, row.rate) for row in found.values), key=str) == [("1", 1.0), ("2", 2.0), ("3", None)]


@pytest.mark.long
def test_versions_older_than_the_batches_that_spark_keeps_are_deleted(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(global_table_files, "_TIDY", 1)
    folder, table = tmp_path / "ck" / "keyed-global" / "rates", [rates(EUR=0)]
    payments = files(spark, tmp_path / "in")

    def versions():
        return sum(name.suffix == ".parquet" for name in folder.iterdir())

    with settings(spark, {"spark.sql.streaming.minBatchesToRetain": "2"}):
        for number in range(4):
            table[0] = rates(EUR=number)
            write_file(tmp_path / "in", number, [("EUR", number, number)])
            run = converted_on_spark(payments, lambda: table[0]).run(checkpoint=tmp_path / "ck")
            assert in_order(run.values) == [(str(number), float(number))]
        assert versions() <= 3
        sink = keyed.collect_sink()
        query = converted_on_spark(payments, lambda: table[0]).start(
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
    assert not converted_on_spark(payments, lambda: table[0]).run(checkpoint=tmp_path / "ck").values
    assert versions() <= before


def test_a_running_query_takes_a_changed_table(spark, tmp_path):
    table = [rates(EUR=1)]
    write_file(tmp_path / "in", 0, [("EUR", 0, 0)])
    sink = keyed.collect_sink()
    query = converted_on_spark(files(spark, tmp_path / "in"), lambda: table[0]).start(
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
    life = Program("killed_jobs.convert_currencies", tmp_path)
    assert life.wait_for_batches(2), life.said()
    life.kill()
    assert "DONE" not in life.said()
    begun = [path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
    before = set(parquet_rows(tmp_path / "sink"))
    pq.write_table(rates(EUR=2), tmp_path / "rates.parquet")
    write_file(tmp_path / "in", 4, [("EUR", i, i) for i in range(200, 250)])
    status, said = Program("killed_jobs.convert_currencies", tmp_path).end()
    assert status == 0, said
    rows = parquet_rows(tmp_path / "sink")
    assert sorted(int(user) for user, *_ in rows) == [*range(250)]
    # All that was written before, and all of the batches that had begun, has the first version; the rest the second.
    assert before <= {row for row in rows if row[1] == 1.0}
    assert {rate for user, rate, _ in rows if int(user) < 50} == {1.0}
    assert {rate for user, rate, _ in rows if int(user) >= 200} == {2.0}
    assert len([row for row in rows if row[1] == 1.0]) >= 50 * (len(begun) - 1)
