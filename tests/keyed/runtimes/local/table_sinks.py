"""What Delta and Iceberg tables have in common as sinks of the local runtime: their test modules extend the suites."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed.destinations.sink import Owner
from keyed.errors import ExtraNotInstalled, SinkError
from keyed.testing.sink_conformance import CopyConformance, SinkConformance
from tests.keyed.runtimes.conftest import CASES
from tests.support.jobs import PassTuple

ROOT = Path(keyed.__file__).parents[1]
#: The columns of a table.
COLUMNS: pa.Schema = pa.table({"k": ["a"], "n": [1]}).schema
TYPES = (
    "k string, y tinyint, i int, d double, f float, m decimal(10,2), b binary, day date, t timestamp, "
    "l timestamp_ntz, a array<int>, o map<string,double>, s struct<x:bigint,y:string>"
)


def changes(rows: Any, output: str = "k string, n bigint, gone boolean", **options: Any):
    return keyed.stream(rows).key_by("k").process(PassTuple(), output, **options)


def row(k, n, gone=None):
    return {"k": k, "n": n, "gone": gone}


ROWS = [row("a", 1), row("b", 2), row("a", 3), row("b", 4, gone=True), row("c", 5), row("b", 6), row("c", 7, gone=True)]

KILLED = """
import os, pathlib, sys
from keyed.runtimes.local import local_query
import {module} as kind

out, place, batch, mode, size = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
write, outbox = kind.Writer.write, local_query.encode_outbox

def dies(self, records, batch_id):
    if batch_id == batch and place == "before":
        os.kill(os.getpid(), 9)
    write(self, records, batch_id)
    if batch_id == batch and place == "after":
        os.kill(os.getpid(), 9)

def dies_before_commit(box):
    if box.batch == batch and place == "commit":
        os.kill(os.getpid(), 9)
    return outbox(box)

kind.Writer.write, local_query.encode_outbox = dies, dies_before_commit
sink = kind.sink_of(out / "t", mode=mode, **({{"key": "k"}} if mode == "upsert" else {{}}))
# Other batches than in the run before.
rows = [kind.row(str(n), n) for n in range(9)]
kind.changes(rows).run(sink, checkpoint=out / "ck", rows_per_batch=size, drain=False)
"""


def run_killed(module, folder, kills, mode="upsert", **environment):
    """Run a program over and over with the sink of a module, killed at a step of a batch; the last run may end.

    Args:
        module: Its name; it has `sink_of`, `changes`, `row` and `Writer`.
        folder: Where the job is.
        kills: When it is killed, ``"before"`` or ``"after"`` a batch is written or before its ``"commit"``; the number
            of the batch; and how many rows a batch has.
        mode: The mode of the sink.
        environment: Variables of the program.
    """
    for place, batch, size in (*kills, ("none", -1, 3)):
        command = [sys.executable, "-c", KILLED.format(module=module), str(folder), place, str(batch), mode, str(size)]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == (0 if place == "none" else -9), done.stderr


class TableSuite:
    """The rows of a sink; `kind` is the module, with its `sink_of(path)`, `content(path, *names)` and `Writer`."""

    kind: Any

    def writer(self, path, query, mode="append", earlier=()):
        key = "k" if mode == "upsert" else ()
        made = self.kind.Writer(self.kind.sink_of(path, mode=mode, key=key), Owner([*earlier, query], 2))
        made.claim()
        made.prepare(COLUMNS)
        return made

    @pytest.mark.parametrize("rows_per_batch", [1, 2, 3, 100])
    def test_an_upsert_keeps_the_last_row_of_a_key_and_honours_deletions(self, tmp_path, rows_per_batch):
        sink = self.kind.sink_of(tmp_path / "t", mode="upsert", key="k", deleted="gone")
        changes(ROWS).run(sink, rows_per_batch=rows_per_batch)
        assert self.kind.content(tmp_path / "t") == [("a", 3), ("b", 6)]

    def test_types_survive(self, tmp_path):
        nothing: dict[str, Any] = dict.fromkeys([each.split()[0] for each in TYPES.split(", ")])
        for _ in range(2):
            # The second run finds the columns that the first has created.
            changes([{**nothing, "k": "x", "y": 1, "a": [1]}], TYPES).run(self.kind.sink_of(tmp_path / "t"))
        assert self.kind.content(tmp_path / "t", "k", "y") == [("x", 1)] * 2

    def test_two_queries_write_to_one_table(self, tmp_path):
        for k in "ab":
            sink = self.kind.sink_of(tmp_path / "t")
            changes([row(k, 1), row(k, 2)]).run(sink, checkpoint=tmp_path / k, drain=False)
        assert self.kind.content(tmp_path / "t", "k", "n") == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]

    def test_a_restored_query_that_repeats_batches_of_the_earlier_one_is_reported(self, tmp_path, caplog):
        first = self.writer(tmp_path / "t", "one")
        for batch in range(3):
            first.write(first.records(pa.table({"k": ["a"], "n": [1]})), batch)
        self.writer(tmp_path / "t", "two", earlier=["one"]).close()
        first.close()
        assert "has written batches up to 2 to the table, and this one goes on with batch 2" in caplog.text

    @pytest.mark.parametrize("mode", ["append", "upsert"])
    def test_a_commit_that_another_query_overtakes_is_tried_again(self, tmp_path, mode, monkeypatch):
        rows = pa.table({"k": ["a"], "n": [1]})
        one, two = (self.writer(tmp_path / "t", query, mode) for query in ("one", "two"))
        commit = self.kind.Writer._commit

        def overtaken(writer, rows_, batch, note):
            if writer is one and (two._last_batch("two") or -1) < batch:
                two.write(two.records(rows), batch)
            commit(writer, rows_, batch, note)

        monkeypatch.setattr(self.kind.Writer, "_commit", overtaken)
        for batch in range(1, 3):
            one.write(one.records(rows), batch)
        assert self.kind.content(tmp_path / "t", "k", "n") == [("a", 1)] * (4 if mode == "append" else 1)
        for each in (one, two):
            each.close()

    def test_a_missing_extra_is_named_before_anything_is_written(self, tmp_path, monkeypatch):
        sink = self.kind.sink_of(tmp_path / "t")
        monkeypatch.setitem(sys.modules, self.kind.PACKAGE, None)
        with pytest.raises(ExtraNotInstalled, match=rf"keyed-streams\[{self.kind.EXTRA}\]"):
            changes(iter(lambda: pytest.fail("a row was read"), None)).run(sink)

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", [pytest.param("append", marks=pytest.mark.long), "upsert"])
    def test_a_query_that_is_killed_writes_each_row_once(self, tmp_path, mode):
        """Kills at each step of a batch; the next run cuts its input into other batches."""
        kills = [("commit", 0, 2), ("before", 0, 3), ("after", 1, 1), ("commit", 2, 4), ("before", 3, 2)]
        run_killed(self.kind.__name__, tmp_path, kills, mode)
        assert self.kind.content(tmp_path / "t", "n") == [(n,) for n in range(9)]

    def test_columns_may_be_added(self, tmp_path):
        out, checkpoint = self.kind.sink_of(tmp_path / "t"), tmp_path / "ck"
        changes([{"k": "a", "n": 1}], "k string, n bigint").run(out, checkpoint=checkpoint, drain=False)
        more = [{"k": "a", "n": 1}, {"k": "b", "n": 2, "x": 0.5}]
        changes(more, "k string, n bigint, x double").run(out, checkpoint=checkpoint, drain=False)
        assert self.kind.content(tmp_path / "t") == [("a", 1, None), ("b", 2, 0.5)]

    @pytest.mark.parametrize(("output", "message"), CASES["columns that a table does not have"])
    def test_other_columns_are_refused_with_both_schemas(self, tmp_path, output, message):
        changes([{"k": "a", "n": 1}], "k string, n bigint").run(self.kind.sink_of(tmp_path / "t"))
        before = self.kind.version(tmp_path / "t")
        with pytest.raises(SinkError, match=message):
            changes([{"k": "a"}], output).run(self.kind.sink_of(tmp_path / "t"))
        assert self.kind.version(tmp_path / "t") == before


class AppendSuite(SinkConformance):
    """The conformance of a sink that appends."""

    kind: Any
    options: dict[str, Any] = {}  # noqa: RUF012

    def make_sink(self, path):
        return self.kind.sink_of(path, **self.options)

    def read(self, path):
        return self.kind.content(path, "name", "n")


class UpsertSuite(AppendSuite, CopyConformance):
    """The conformance of a sink that replaces, and holds copies."""

    options = {"mode": "upsert", "key": "name"}  # noqa: RUF012
