"""Copies of state tables in sinks with a key, with the real libraries: each batch is there once."""

from __future__ import annotations

import uuid
from typing import Any

import attrs
import pytest

import keyed
from keyed.base.background import Status
from keyed.errors import DefinitionError, SinkError
from keyed.formats.json_writer import as_json
from keyed.postgres import postgres_sink
from tests.keyed.runtimes.local import test_iceberg_table as iceberg
from tests.keyed.tables.copies import FEW, Job, caught_up, expected, key_of
from tests.keyed.tables.test_replication import last_batch
from tests.support.tables import rows_with_dicts
from tests.support.waiting import until

deltalake: Any = pytest.importorskip("deltalake")


@attrs.frozen
class Target:
    """Where a copy goes: its sink for a key, its rows as dicts, and the properties of its commits."""

    sink: Any
    rows: Any
    commits: Any = list


def delta_table(path):
    rows = lambda: rows_with_dicts(deltalake.DeltaTable(path).to_pyarrow_table())  # noqa: E731
    sink = lambda key: keyed.delta_sink(path, mode="upsert", key=key)  # noqa: E731
    return Target(sink, rows, lambda: deltalake.DeltaTable(path).history())


def iceberg_table(path):
    rows = lambda: rows_with_dicts(iceberg.table_of(path).scan().to_arrow())  # noqa: E731
    return Target(lambda key: iceberg.sink_of(path, mode="upsert", key=key), rows)


def postgres_table(server, name):
    def rows():
        import psycopg.rows

        with psycopg.connect(server, row_factory=psycopg.rows.dict_row) as connection:
            return connection.execute(f'SELECT * FROM "{name}"').fetchall()

    return Target(lambda key: postgres_sink(name, key=key, conninfo=server), rows)


@pytest.fixture(params=["delta", "iceberg", pytest.param("postgres", marks=pytest.mark.slow)])
def make(request, tmp_path):
    """A function that returns the target of a copy."""
    if request.param == "postgres":
        return lambda name: postgres_table(request.getfixturevalue("postgres"), f"{name}-{uuid.uuid4().hex}")
    return lambda name: (delta_table if request.param == "delta" else iceberg_table)(tmp_path / name)


def check(target: Any, tables: Any, name: str) -> None:
    """Check that a target has the rows of a table, and each batch once."""
    batches = [each["keyed-state-batch"] for each in target.commits() if "keyed-state-batch" in each]
    assert len(batches) == len({*batches})
    assert sorted(map(as_json, target.rows())) == sorted(expected(tables, name, key_of(tables, name)).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_a_sink_holds_the_table_for_every_kind_of_state(make, tmp_path, name, request):
    job = Job(name, tmp_path, 3)
    with job.tables() as tables:
        # Those that PostgreSQL takes have no lists, maps and structs.
        names = {*tables} & {"number", "counts", "fading", "sums"} if "postgres" in request.node.name else {*tables}
        targets = {table: make(table) for table in names}
        for rows in (6, 8):
            copies = {
                table: tables[table].replicate(target.sink(key_of(tables, table))) for table, target in targets.items()
            }
            job.run(rows)
            for table, copy in copies.items():
                caught_up(copy, tables, last_batch(job))
                check(targets[table], tables, table)
                copy.close()
                assert copy.resyncs == copy.failures == 0


def test_a_copy_of_another_table_or_key_is_refused_and_the_last_writer_goes_on(make, tmp_path):
    job = Job("states", tmp_path, 3)
    target = make("t")
    with job.tables() as tables:
        with pytest.raises(DefinitionError, match='must have mode="upsert"'):
            tables["number"].replicate(keyed.delta_sink(str(tmp_path / "d")))
        with pytest.raises(DefinitionError, match=r"replicate: ParquetSink.* must be .* a sink with a key"):
            tables["number"].replicate(keyed.parquet_sink(tmp_path / "p"))
        with tables["number"].replicate(target.sink("k")) as first:
            first.wait_for(0, 300)
            with pytest.raises(SinkError, match=r"is not a copy of 'EveryKind.fading'"):
                tables["fading"].replicate(target.sink("k"))
            with tables["number"].replicate(target.sink("k")) as second:
                job.run(6)
                batch = last_batch(job)
                tables.wait_for(batch, 300)
                # One of both sees that the other one has written, and ends.
                until(lambda: all(each.batch >= batch or each.status is Status.FAILED for each in (first, second)))
                failed = [each for each in (first, second) if each.status is Status.FAILED]
                assert all("another replication of this table has written" in each.trouble for each in failed)
                check(target, tables, "number")
        wrong_key = pytest.raises(DefinitionError, match=r"give key=\['k', 'entry'\]")
        with wrong_key, tables["counts"].replicate(make("o").sink("k")) as copy:
            copy.wait_for(0, 300)


def test_a_copy_of_another_job_is_replaced(make, tmp_path):
    target = make("t")
    for number, rows in enumerate((7, 2)):
        job = Job("states", tmp_path / str(number), rows)
        with job.tables() as tables, tables["counts"].replicate(target.sink(["k", "entry"])) as copy:
            caught_up(copy, tables, last_batch(job))
            check(target, tables, "counts")
            assert copy.resyncs == number
