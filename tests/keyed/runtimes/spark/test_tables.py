"""Queries on Spark that keep tables of their state: asked while they run, gone on in, and followed after a restore."""

from __future__ import annotations

import pytest

import keyed
from tests.keyed.runtimes.spark.functions import count, files_source, write_file
from tests.support.tables import poll_tables
from tests.support.waiting import until

ROWS = [("a", 1, 1), ("b", 2, 1), ("a", 3, 1)]


def test_the_tables_of_a_query_follow_it_and_the_job_that_is_restored_from_it(spark, tmp_path):
    def has(query: keyed.Query, number: int) -> None:
        def is_there() -> bool:
            return query.tables.batch >= 0 and query.tables["seen"].get("a") == (number, number)

        until(is_there)

    def started(number: str, **options):
        source = files_source(spark, tmp_path / "in")
        return count(source, **options).start(
            tables=tmp_path / f"tables{number}", checkpoint=tmp_path / f"checkpoint{number}", trigger="200 milliseconds"
        )

    write_file(tmp_path / "in", 0, ROWS)
    query = started("", parallelism=2)
    # While it runs: a tick exports what was committed.
    has(query, 2)
    subscription = query.tables["seen"].subscribe()
    assert {change.key: change.new for change in subscription.take(300)} == {"a": (2, 2), "b": (1, 1)}
    write_file(tmp_path / "in", 1, ROWS)
    has(query, 4)
    query.stop()
    query.tables.close()

    # It goes on from its checkpoint.
    write_file(tmp_path / "in", 2, ROWS)
    query = started("", parallelism=2)
    has(query, 6)
    query.stop()
    token = query.tables["seen"].subscribe(after="now")
    with query.tables:
        subscription = query.tables["seen"].subscribe(after=subscription.token)
        changes = [change for _ in range(20) for change in subscription.take(0)]
        assert [(change.old[0], change.new[0]) for change in changes if change.key == "a"] == [(2, 4), (4, 6)]
        assert token.take(0) == []
        token = subscription.token

    # And a job that is restored at another parallelism, out of the tables alone, goes on in them.
    log = keyed.DirectoryChangelog(tmp_path / "tables" / "count" / "changelog")
    write_file(tmp_path / "in", 3, ROWS)
    point = keyed.RestorePoint(log, standby=tmp_path / "tables")
    query = started("-2", parallelism=3, restore_from=point)
    has(query, 8)
    query.stop()
    query.tables.close()
    assert query.metrics()["count"]["records_restored"] == 0
    new = keyed.DirectoryChangelog(tmp_path / "tables-2" / "count" / "changelog")
    with poll_tables(new, tmp_path / "tables") as tables:
        assert tables.rebuilds == 0
        subscription = tables["seen"].subscribe(after=token)
        changes = [change for _ in range(20) for change in subscription.take(0)]
        assert [(change.old[0], change.new[0]) for change in changes if change.key == "a"] == [(6, 8)]
        assert subscription.resets == 0


def test_a_batch_dataframe_keeps_no_tables(spark, tmp_path):
    frame = spark.createDataFrame(ROWS, "k string, t bigint, v bigint")
    with pytest.raises(keyed.errors.DefinitionError, match=r"tables='.*': a batch DataFrame has no checkpoint"):
        count(keyed.stream(frame, timestamp="t")).run(tables=tmp_path / "tables")
