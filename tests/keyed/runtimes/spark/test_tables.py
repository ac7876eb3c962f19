"""Queries on Spark that keep tables of their state: asked while they run, gone on in, and followed after a restore."""

from __future__ import annotations

import pytest

import keyed
from keyed.tables import open_tables
from tests.keyed.runtimes.spark.functions import ODD, SCHEMA, Both, Running, Split, count, files_source, write_file
from tests.support.explained import explained
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
    with open_tables(new, tmp_path / "tables") as tables:
        tables.poll()
        assert tables.rebuilds == 0
        subscription = tables["seen"].subscribe(after=token)
        changes = [change for _ in range(20) for change in subscription.take(0)]
        assert [(change.old[0], change.new[0]) for change in changes if change.key == "a"] == [(6, 8)]
        assert subscription.resets == 0


@pytest.mark.slow
@pytest.mark.long
def test_a_run_leaves_tables(spark, tmp_path):
    write_file(tmp_path / "in", 0, ROWS)
    for number in (2, 4):
        result = count(files_source(spark, tmp_path / "in"), parallelism=2).run(
            tables=tmp_path / "tables", checkpoint=tmp_path / "checkpoint"
        )
        with result.tables as tables:
            assert tables["seen"].get("a") == (number, number)
        write_file(tmp_path / "in", 1, ROWS)


def test_a_batch_dataframe_keeps_no_tables(spark, tmp_path):
    frame = spark.createDataFrame(ROWS, "k string, t bigint, v bigint")
    with pytest.raises(keyed.errors.DefinitionError, match=r"tables='.*': a batch DataFrame has no checkpoint"):
        count(keyed.stream(frame, timestamp="t")).run(tables=tmp_path / "tables")


@pytest.mark.long
def test_a_graph_of_chained_operators_over_two_sources_keeps_tables(spark, tmp_path):
    rows, more = [("a", 1, 1), ("b", 2, 2), ("a", 3, 4), ("c", 4, 3), ("b", 5, 6)], [("a", 5, 7), ("d", 6, 8)]
    write_file(tmp_path / "in", 0, rows)
    write_file(tmp_path / "more", 0, more)
    first = files_source(spark, tmp_path / "in").key_by("k").process(Split(), SCHEMA, name="split", parallelism=2)
    sums = first.key_by("k").process(Running(), SCHEMA, name="sums", parallelism=2)
    met = first.side_output(ODD).connect(files_source(spark, tmp_path / "more"))
    both = met.key_by("k").process(Both(), "k string, first int, second int", name="both", parallelism=2)
    assert "sums: chained to split" in explained(sums, both)
    bound = (output.to(keyed.collect_sink()) for output in (sums, both))
    with keyed.run(*bound, tables=tmp_path / "tables", checkpoint=tmp_path / "ck", drain=True).tables as tables:
        assert {entry.key: entry.value for entry in tables["total"].scan()} == {"a": 4, "b": 8}
        assert {entry.key: entry.value for entry in tables["seen"].scan()} == {"a": (1, 1), "c": (1, 0), "d": (0, 1)}
