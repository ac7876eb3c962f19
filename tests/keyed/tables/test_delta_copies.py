"""Copies of state tables in Delta tables, with the real library: they are the table, and each batch is one commit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import keyed
from keyed.base.background import Status
from keyed.errors import DefinitionError, SinkError
from keyed.formats.json_writer import as_json
from tests.keyed.tables.copies import FEW, Job, caught_up, expected, key_of
from tests.keyed.tables.test_replication import last_batch
from tests.support.waiting import until

deltalake: Any = pytest.importorskip("deltalake")


def rows_of(path: Any) -> list[bytes]:
    rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist(maps_as_pydicts="strict")
    return sorted(map(as_json, rows))


def check(path: Any, tables: Any, name: str) -> None:
    """Check that a Delta table has the rows of a table."""
    assert rows_of(path) == sorted(expected(tables, name, key_of(tables, name)).values())


def batches_of(path: Any) -> list[int]:
    """The batches in the order of their commits."""
    found = deltalake.DeltaTable(path).history()
    return [int(each["keyed-batch"]) for each in reversed(found) if "keyed-batch" in each]


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_a_delta_table_holds_the_table_for_every_kind_of_state(tmp_path, name):
    job = Job(name, tmp_path)
    job.run(3)
    with job.tables() as tables:
        places = {table: str(tmp_path / "delta" / table) for table in tables}
        for rows in (6, 8):
            copies = {
                table: tables[table].replicate(keyed.delta_sink(place, mode="upsert", key=key_of(tables, table)))
                for table, place in places.items()
            }
            job.run(rows)
            for table, copy in copies.items():
                caught_up(copy, tables, last_batch(job))
                check(places[table], tables, table)
                copy.close()
                assert copy.resyncs == copy.failures == 0
                assert max(Counter(batches_of(places[table])).values()) == 1


def test_a_delta_copy_of_another_table_or_key_is_refused_and_the_last_writer_goes_on(tmp_path):
    job = Job("states", tmp_path)
    job.run(3)
    place = str(tmp_path / "delta")
    with job.tables() as tables:
        sink = keyed.delta_sink(place, mode="upsert", key="k")
        with pytest.raises(DefinitionError, match='must have mode="upsert"'):
            tables["number"].replicate(keyed.delta_sink(place))
        with tables["number"].replicate(sink) as first:
            first.wait_for(0, 300)
            with pytest.raises(SinkError, match=r"is not a copy of 'EveryKind.sale'"):
                tables["sale"].replicate(sink)
            with tables["number"].replicate(sink) as second:
                job.run(6)
                batch = last_batch(job)
                tables.wait_for(batch, 300)
                # One of both sees that the other one has written, and ends.
                done = [copy for copy in (first, second) if ended_or_at(copy, batch)]
                assert done
                check(place, tables, "number")
                assert max(Counter(batches_of(place)).values()) == 1
        other = keyed.delta_sink(tmp_path / "c", mode="upsert", key="k")
        with (
            tables["counts"].replicate(other) as copy,
            pytest.raises(DefinitionError, match=r"give key=\['k', 'entry'\]"),
        ):
            copy.wait_for(0, 300)


def ended_or_at(copy: Any, batch: int) -> bool:
    """Return whether a copy has a batch; otherwise another replication has ended it."""
    until(lambda: copy.batch >= batch or copy.status is Status.FAILED)
    if copy.status is Status.FAILED:
        assert "another replication of this table has written" in copy.trouble
    return copy.batch >= batch


def test_a_delta_copy_of_another_job_is_replaced(tmp_path):
    sink = keyed.delta_sink(tmp_path / "delta", mode="upsert", key=["k", "entry"])
    for number, rows in enumerate((7, 2)):
        job = Job("states", tmp_path / str(number))
        job.run(rows)
        with job.tables() as tables, tables["counts"].replicate(sink) as copy:
            caught_up(copy, tables, last_batch(job))
            check(str(tmp_path / "delta"), tables, "counts")
            assert copy.resyncs == number
