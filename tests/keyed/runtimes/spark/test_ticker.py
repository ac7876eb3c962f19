"""The thread beside a query's batches: transient failures are counted, others end the query and are logged."""

from types import SimpleNamespace
from typing import Any

import pytest

import keyed
from keyed.base.background import Status
from keyed.errors import ChangelogDiverged, ChangelogError, UserFunctionError
from keyed.runtimes.spark.query.exports import Exports
from keyed.runtimes.spark.query.stream_job import Ticker
from tests.keyed.runtimes.spark.functions import POISON, count, files_source, parquet_rows, write_file
from tests.support.waiting import until


def counted_property(read, name, calls):
    def counted(query):
        calls.append(name)
        return read.fget(query)

    return property(counted)


def newest_batch(log):
    last = log.reader(0).last() if log.header() else None
    return -1 if last is None else last.batch


def test_failures_that_pass_are_counted_and_one_that_does_not_ends_the_query(spark, tmp_path, monkeypatch, caplog):
    after_batch, calls = Exports.after_batch, []
    failure: Exception | None = ChangelogError("the disk is full")

    def failing(self, report):
        calls.append(report["batchId"])
        if failure is not None:
            raise failure
        after_batch(self, report)

    monkeypatch.setattr(Exports, "after_batch", failing)
    log = keyed.DirectoryChangelog(tmp_path / "log")
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    counted = count(files_source(spark, tmp_path / "in"), parallelism=2, changelog=log)
    query = counted.start(tmp_path / "out", checkpoint=tmp_path / "checkpoint", trigger="200 milliseconds")
    until(lambda: query.status is Status.FOLLOWING)
    for number in range(1, 4):
        until(lambda: query.progress is not None and query.progress.batch_id >= number - 1)  # noqa: B023 - asked at once
        write_file(tmp_path / "in", number, [("a", number + 1, 1)])
    until(lambda: len(calls) > 3)
    assert caplog.text.count("the disk is full") == 1
    assert "ChangelogError: the disk is full" in repr(query)
    assert query.status is Status.FOLLOWING
    counters = query.metrics()["count"]
    assert (counters["query_status"], counters["export_status"], counters["export_failures"] > 3) == (1, 1, True)

    failure = None
    write_file(tmp_path / "in", 4, [("a", 5, 1)])
    until(lambda: "recovered after" in caplog.text)
    assert "the disk is full" not in repr(query)

    failure = ChangelogDiverged("it was copied")
    write_file(tmp_path / "in", 5, [("a", 6, 1)])
    until(lambda: not query.is_active)
    assert query.query.exception() is None
    assert "it was copied" in caplog.text
    with pytest.raises(ChangelogDiverged, match="it was copied"):
        query.await_termination(300)
    assert (query.status, query.is_active) == (Status.FAILED, False)
    assert query.metrics()["count"]["export_status"] == 2
    assert parquet_rows(tmp_path / "out")[0] == ("a", 1, 1)


def ticker_of(export):
    """A ticker whose query has one batch, and its query and writer."""
    report = {"batchId": 0, "durationMs": {"addBatch": 1}, "sources": [{"endOffset": 1}]}
    exports: Any = SimpleNamespace(committed_report={0: report}.get, next_work=lambda _: None, after_batch=export)
    writer: Any = SimpleNamespace(written=0)
    ticks: Any = SimpleNamespace(note_offset=lambda *_: None, write=lambda: None)
    tables: Any = SimpleNamespace(write_changed=lambda: None)
    query: Any = SimpleNamespace(isActive=True)
    return Ticker(query, ticks, exports, writer, tables, lambda: None), query, writer


def failing_export(failures, exported):
    """An export that fails so many times."""

    def export(report):
        if failures:
            failures.pop()
            raise ChangelogError("the disk is full")
        exported.append(report["batchId"])

    return export


def test_a_failed_export_is_tried_again_while_the_next_batch_is_not_committed():
    exported: list[int] = []
    ticker, _, writer = ticker_of(failing_export([1, 2], exported))

    def fails():
        try:
            ticker._step()
        except ChangelogError:
            return True
        return False

    until(fails)
    writer.written = 1
    until(fails)
    until(lambda: not fails() and exported)
    assert exported == [0]


def test_a_failed_export_has_not_recovered_before_it_is_tried_again(monkeypatch, caplog):
    # Reading a report takes long, so that the next poll would come long after the next attempt.
    monkeypatch.setattr("keyed.runtimes.spark.query.stream_job._PAUSE", 1e9)
    ticker, query, _ = ticker_of(failing_export([1, 2, 3, 4], []))
    ticker.work.start()
    until(lambda: "recovered after" in caplog.text)
    query.isActive = False
    ticker.end()
    assert ticker.work.failures == 4
    assert "recovered after 4 failures" in caplog.text


def test_spark_reports_are_read_once_a_batch_and_not_while_the_query_is_idle(spark, tmp_path, monkeypatch):
    from pyspark.sql.streaming.query import StreamingQuery

    reads: list[str] = []
    polls: list[str] = []
    for name, calls in (("lastProgress", reads), ("recentProgress", reads), ("isActive", polls)):
        monkeypatch.setattr(StreamingQuery, name, counted_property(vars(StreamingQuery)[name], name, calls))
    log = keyed.DirectoryChangelog(tmp_path / "log")
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    counted = count(files_source(spark, tmp_path / "in"), parallelism=2, changelog=log)
    query = counted.start(tmp_path / "out", checkpoint=tmp_path / "checkpoint", trigger="200 milliseconds")
    until(lambda: newest_batch(log) >= 0)
    write_file(tmp_path / "in", 1, [("a", 2, 1)])
    until(lambda: len(parquet_rows(tmp_path / "out")) == 2)
    ticker = query._ticker
    until(lambda: ticker._due is None and newest_batch(log) == ticker._batch == ticker._writer.written)
    reads.clear()
    polls.clear()
    until(lambda: len(polls) > 5)
    assert reads == []
    query.stop()


@pytest.mark.long
@pytest.mark.parametrize("trigger", ["200 milliseconds", {"availableNow": True}])
def test_the_error_of_a_query_that_nobody_waits_for_is_logged_and_its_tables_are_released(
    spark, tmp_path, caplog, trigger
):
    options = {"checkpoint": tmp_path / "checkpoint", "tables": tmp_path / "tables"}
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    count(files_source(spark, tmp_path / "in"), parallelism=2).run(**options)
    write_file(tmp_path / "in", 1, [("a", 2, POISON)])
    query = count(files_source(spark, tmp_path / "in"), parallelism=2).start(trigger=trigger, **options)
    until(lambda: not query._ticker.work.is_running)
    assert query.status is Status.FAILED
    assert caplog.text.count("the query 'count' failed") == 1
    assert "ValueError: poison" in caplog.text
    with query.tables as tables:
        assert tables["seen"].get("a") == (1, 1)
        again = count(files_source(spark, tmp_path / "in"), parallelism=2).start(trigger=trigger, **options)
        with pytest.raises(UserFunctionError, match="poison"):
            again.await_termination(300)
        assert caplog.text.count("the query 'count' failed") == 1
        assert again.tables["seen"].get("a") == (1, 1)
        again.tables.close()
