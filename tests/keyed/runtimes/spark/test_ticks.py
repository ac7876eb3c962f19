"""Ticks: a query runs a batch when something is due, and nothing otherwise."""

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import keyed
from keyed import KeyedProcessFunction
from keyed.changelog import DirectoryChangelog
from keyed.errors import CheckpointError, DefinitionError
from keyed.runtimes.spark.checkpoint import ticks as ticks_module
from keyed.runtimes.spark.checkpoint.folder import open_checkpoint
from keyed.runtimes.spark.checkpoint.ticks import Ticks, ticks_of
from keyed.runtimes.spark.query.exports import is_quiet, next_work
from keyed.runtimes.spark.query.spark_sinks import Writer
from keyed.runtimes.spark.session.spark_session import settings
from tests.keyed.runtimes.conftest import CASES
from tests.keyed.runtimes.spark.functions import COUNTED, Count, count, files_source, parquet_rows, write_file


def folder_of(path):
    folder = open_checkpoint(str(path))
    assert folder is not None
    return folder


def ticks_of_folder(folder):
    """Where this program reaches the checkpoint, writing and clearing away needs no Spark."""
    session: Any = None
    return Ticks(session, folder)


class Metronome(KeyedProcessFunction):
    """Emits a row every few milliseconds of processing time."""

    def process_element(self, value, ctx):
        self.again(ctx)

    def on_timer(self, timestamp, ctx):
        self.again(ctx)
        yield "tick", timestamp, 0

    def again(self, ctx):
        service = ctx.timer_service()
        service.register_processing_time_timer(service.current_processing_time() + 50)


def eventually(query, condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert not query.await_termination(0.2)


def ticks_in(checkpoint):
    return [path for path in (checkpoint / "keyed-ticks").iterdir() if not path.name.startswith((".", "_"))]


def test_while_nothing_is_due_a_query_makes_no_batch_and_no_file(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    query = count(files_source(spark, tmp_path / "in")).start(
        tmp_path / "out", checkpoint=tmp_path / "ck", trigger="100 milliseconds"
    )
    eventually(query, lambda: query.batches and not ticks_in(tmp_path / "ck"))
    files = sorted((tmp_path / "ck").rglob("*"))
    assert not query.await_termination(3)
    assert sorted((tmp_path / "ck").rglob("*")) == files
    write_file(tmp_path / "in", 1, [("a", 2, 1)])
    eventually(query, lambda: len(query.batches) == 2)
    query.stop()
    assert parquet_rows(tmp_path / "out") == [("a", 1, 1), ("a", 2, 2)]


def test_a_batch_that_changed_something_is_in_its_changelog_though_no_row_comes(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    log = DirectoryChangelog(tmp_path / "log")
    counted = files_source(spark, tmp_path / "in").key_by("k").process(Count(), COUNTED, name="count", changelog=log)
    query = counted.start(tmp_path / "out", checkpoint=tmp_path / "ck", trigger="100 milliseconds")
    eventually(query, lambda: list(tmp_path.glob("log/groups/*/*1.segment")))
    # The batch that exported it has changed nothing, and calls for no other one.
    eventually(query, lambda: [*query.batches] == [0, 1] and not ticks_in(tmp_path / "ck"))
    assert not query.await_termination(2)
    assert [*query.batches] == [0, 1]
    query.stop()


@pytest.mark.long
def test_run_and_start_go_on_from_plain_write_stream(spark, tmp_path):
    counted = count(files_source(spark, tmp_path / "in"))
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    plain = counted.df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck"))
    plain.trigger(availableNow=True).start().awaitTermination()
    write_file(tmp_path / "in", 1, [("a", 2, 1)])
    counted.run(tmp_path / "out", checkpoint=tmp_path / "ck")
    assert parquet_rows(tmp_path / "out") == [("a", 2, 2)]
    # From then on there is a tick at each trigger.
    query = counted.start(tmp_path / "out", checkpoint=tmp_path / "ck", trigger="100 milliseconds")
    eventually(query, lambda: len(query.batches) > 2)
    query.stop()
    # Spark refuses the other direction, whatever has run in between.
    first = count(files_source(spark, tmp_path / "in"))
    first.run(tmp_path / "out-2", checkpoint=tmp_path / "ck-2")
    write_file(tmp_path / "in", 2, [("a", 3, 1)])
    plain = first.df.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck-2"))
    with pytest.raises(Exception, match="ffset"):
        plain.trigger(availableNow=True).start().awaitTermination()


def files_of_spark(checkpoint):
    """The content of each file of a checkpoint that Spark has written, with its checksum file.

    Without those of the state, which Spark copies to their place, so that they may be seen half written.
    """
    found = {}
    for path in checkpoint.rglob("*"):
        name = path.relative_to(checkpoint)
        if path.is_file() and not name.parts[0].startswith(("keyed-", ".keyed-", "state")) and ".tmp" not in name.name:
            with suppress(FileNotFoundError):
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_no_file_that_spark_wrote_is_changed(spark, tmp_path, monkeypatch):
    checkpoint = tmp_path / "ck"
    written: dict[Path, str] = {}
    rewritten: list[Path] = []
    commit = Writer.write

    def look():
        for name, content in files_of_spark(checkpoint).items():
            if written.setdefault(name, content) != content:
                rewritten.append(name)

    def called(self, *arguments):
        # Spark has written the offsets of the batch, and not yet its commit.
        look()
        commit(self, *arguments)
        look()

    monkeypatch.setattr(Writer, "write", called)
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    log = DirectoryChangelog(tmp_path / "log")
    beat = files_source(spark, tmp_path / "in").key_by("k").process(Metronome(), COUNTED, name="beat", changelog=log)
    with settings(spark, {"spark.sql.streaming.fileSource.log.compactInterval": "3"}):
        query = beat.start(tmp_path / "out", checkpoint=checkpoint, trigger="50 milliseconds")
        eventually(query, lambda: look() or len(query.batches) > 7)
        query.stop()
        write_file(tmp_path / "in", 1, [("b", 2, 1)])
        beat.run(tmp_path / "out", checkpoint=checkpoint)
    look()
    assert not rewritten
    # The ticks are keyed's own, and do not pile up; Spark's list of them does.
    assert len(ticks_in(checkpoint)) <= 2
    assert len((checkpoint / "sources" / "1" / "5.compact").read_text().splitlines()) == 7
    assert {name.parts[0].strip(".") for name in written} >= {"offsets", "commits", "sources", "metadata"}


def test_a_long_log_of_ticks_is_reported_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ticks_module, "_MANY", 3)
    folder = folder_of(tmp_path)
    ticks = ticks_of_folder(folder)
    for last in (9, 19):
        lines = ["v1", *(entry("x", batch) for batch in range(last + 1))]
        folder.write(f"sources/1/{last}.compact", "\n".join(lines).encode())
        ticks.note_offset(1, f'{{"logOffset":{last}}}')
    (record,) = [record for record in caplog.records if record.name == ticks_module.__name__]
    assert "9.compact lists 10 ticks" in record.getMessage()


def test_unknown_ticks_are_refused():
    with pytest.raises(DefinitionError, match="ticks='often' must be True or False"):
        keyed.stream([], ticks="often")  # type: ignore[arg-type]


def entry(name, batch):
    return json.dumps({"path": f"file:///ck/keyed-ticks/{name}", "timestamp": 1, "batchId": batch})


def test_what_spark_has_taken_is_cleared_away(tmp_path):
    folder = folder_of(tmp_path)
    ticks = ticks_of_folder(folder)
    for _ in range(3):
        ticks.write()
    first, second, third = sorted(path.name for path in (tmp_path / "keyed-ticks").iterdir())
    folder.write("sources/1/8", f"v1\n{entry(first, 8)}".encode())
    all_of_them = "\n".join(["v1", entry(first, 8), entry(second, 9)])
    folder.write("sources/1/9.compact", all_of_them.encode())
    ticks.note_offset(1, '{"logOffset":9}')
    assert sorted(path.name for path in (tmp_path / "keyed-ticks").iterdir()) == [first, third]
    assert folder.read("sources/1/9.compact") == all_of_them.encode()
    ticks.note_offset(1, '{"logOffset":8}')
    ticks.note_offset(1, '{"logOffset":8}')
    assert [path.name for path in (tmp_path / "keyed-ticks").iterdir()] == [third]
    assert folder.read("sources/1/8") == f"v1\n{entry(first, 8)}".encode()
    ticks.note_offset(1, "-")


def test_a_query_begins_with_a_tick_and_keeps_those_of_a_batch_that_is_not_done(tmp_path):
    folder = folder_of(tmp_path)
    ticks = ticks_of_folder(folder)
    ticks.begin()
    (done,) = (path.name for path in (tmp_path / "keyed-ticks").iterdir())
    folder.write("sources/1/0", f"v1\n{entry(done, 0)}".encode())
    folder.write("offsets/0", b'v1\n{}\n{"logOffset":5}\n{"logOffset":0}')
    ticks.begin()
    assert len(list((tmp_path / "keyed-ticks").iterdir())) == 2
    folder.write("commits/0", b"v1\n{}")
    ticks.begin()
    assert len(list((tmp_path / "keyed-ticks").iterdir())) == 2
    assert not (tmp_path / "keyed-ticks" / done).exists()


@pytest.mark.parametrize(("line", "in_files"), CASES["lines of offsets, and whether the ticks are files"])
def test_the_offsets_say_of_which_kind_the_ticks_are(tmp_path, line, in_files):
    folder = folder_of(tmp_path)
    if line is not None:
        folder.write("offsets/9", b'v1\n{}\n-\n{"offset":1,"timestamp":1}')
        folder.write("offsets/10", f"v1\n{{}}\n-\n{line}".encode())
    session: Any = None
    assert (ticks_of(session, folder) is not None) is in_files


def test_a_path_that_spark_takes_for_a_pattern_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"'\[' in its path"):
        ticks_of_folder(folder_of(tmp_path / "[1]"))


def report(**marks):
    rows = {
        f"keyed.{operator}": {
            "marks": json.dumps(
                [{"operator": operator, "clock": 5, "changed": c, "due": d, "export_at": 5} for c, d in each]
            )
        }
        for operator, each in marks.items()
    }
    return {"observedMetrics": rows}


def test_work_is_due_at_the_earliest_timer_and_at_once_for_a_changelog():
    assert next_work(report(a=[(True, None), (False, None)]), ["b"]) is None
    assert next_work(report(a=[(True, 30), (False, 20)], b=[(False, 25)]), ["b"]) == 20
    assert next_work(report(a=[(False, 30)], b=[(True, None)]), ["b"]) == 5


def test_a_batch_that_changed_nothing_and_ended_nothing_is_quiet():
    def marked(**fields):
        mark = {"clock": 5, "changed": False, "due": None, "watermark": 7} | fields
        marks = {name: json.dumps([mark | {"operator": name}]) for name in "ab"}
        return {"observedMetrics": {f"keyed.{name}": {"marks": each} for name, each in marks.items()}}

    assert is_quiet(marked(), ["a"])
    assert not is_quiet(marked(changed=True), ["a"])
    assert not is_quiet(marked(watermark=keyed.MAX_TIMESTAMP), ["a"])
    assert is_quiet(marked(changed=True), ["c"])


@pytest.mark.long
def test_a_run_that_cannot_drain_says_so(spark, tmp_path, monkeypatch):
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    job = count(files_source(spark, tmp_path / "in"))
    write = Ticks.write

    def write_in_two_days(*arguments):
        write(*arguments)
        then = time.time() + 2 * 86_400
        for path in ticks_in(tmp_path / "ck"):
            os.utime(path, (then, then))

    with monkeypatch.context() as patch:
        patch.setattr(Ticks, "write", write_in_two_days)
        job.run(tmp_path / "out", checkpoint=tmp_path / "ck")
    with pytest.raises(keyed.errors.QueryFailed, match=r"has not drained: .* clock was set back"):
        job.run(tmp_path / "out", checkpoint=tmp_path / "ck", drain=True)


def test_without_ticks_there_is_one_source(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    count(files_source(spark, tmp_path / "in", ticks=False)).run(tmp_path / "out", checkpoint=tmp_path / "ck")
    assert not (tmp_path / "ck" / "keyed-ticks").exists()
    assert len((tmp_path / "ck" / "offsets" / "0").read_text().splitlines()) == 3
