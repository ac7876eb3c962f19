"""Sinks that have each row once, through the public conformance suite; and one that has not, which it finds."""

from __future__ import annotations

import json

import attrs
import pyarrow.parquet as pq
import pytest

import keyed
from examples.json_copies import JsonCopies, JsonCopy
from keyed.extending import Sink, SinkWriter
from keyed.testing.sink_conformance import CopyConformance, SinkConformance
from tests.support.jobs import Pass


class TestParquetSink(SinkConformance):
    def make_sink(self, path):
        return keyed.parquet_sink(path)

    def read(self, path):
        files = sorted(path.glob("*.parquet"))
        return [(row["name"], row["n"]) for file in files for row in pq.read_table(file).to_pylist()]


class TestFileOfEachBatch(SinkConformance):
    """A function that writes to a place named by the batch, as its page says."""

    def make_sink(self, path):
        path.mkdir(exist_ok=True)
        return lambda rows, batch: (path / f"{batch}.json").write_text(json.dumps(rows)) and None

    def read(self, path):
        return [tuple(row) for file in path.iterdir() for row in json.loads(file.read_text())]


class Appends(TestFileOfEachBatch):
    def make_sink(self, path):
        path.mkdir(exist_ok=True)
        return lambda rows, batch: (path / f"{len(list(path.iterdir()))}.json").write_text(json.dumps(rows)) and None


class Keeps(TestFileOfEachBatch):
    def make_sink(self, path):
        write = super().make_sink(path)
        return lambda rows, batch: write(rows, batch) if rows else None


def test_a_sink_that_keeps_the_rows_of_a_batch_that_comes_again_without_rows_is_found(tmp_path):
    with pytest.raises(AssertionError, match="number 0"):
        Keeps().test_a_batch_that_comes_again_without_rows_replaces_that_with_rows(tmp_path)


class Unclaimed(TestParquetSink):
    def make_sink(self, path):
        return Overwrites(path)

    def read(self, path):
        return [tuple(row) for file in path.iterdir() for row in json.loads(file.read_text())]


class Overwrites(Sink):
    """Files of batches in a folder of whoever comes."""

    def __init__(self, path):
        self.path = path

    def open(self, owner, schema):
        return OverwritesWriter(self.path)


class OverwritesWriter(SinkWriter):
    def __init__(self, path):
        self.path = path

    def write(self, rows, batch_id):
        self.path.mkdir(exist_ok=True)
        (self.path / f"{batch_id}.json").write_text(json.dumps(rows.rows))


def test_sinks_are_closed_also_after_one_that_cannot_be(monkeypatch, tmp_path):
    closed = []

    def close(writer):
        closed.append(writer.path.name)
        raise OSError(writer.path.name)

    monkeypatch.setattr(OverwritesWriter, "close", close)
    output = keyed.stream([1]).key_by(str).process(Pass())
    with pytest.raises(OSError, match="a"):
        keyed.run(*(output.to(Overwrites(tmp_path / name)) for name in "ab"))
    assert sorted(closed) == ["a", "b"]


def test_a_sink_that_replaces_the_rows_of_another_query_is_found(tmp_path):
    with pytest.raises(AssertionError, match="number 10"):
        Unclaimed().test_another_query_is_refused_or_adds_its_rows(tmp_path)


def test_a_sink_that_only_appends_is_found(tmp_path):
    with pytest.raises(AssertionError, match="number 0"):
        Appends().test_a_batch_that_is_run_again_is_there_once(tmp_path)


class OpenedBy(JsonCopies):
    def __init__(self, writer, path):
        super().__init__(path)
        self.writer = writer

    def open_copy(self, owner):
        return self.writer(self.path, owner.query)


class TestJsonCopies(CopyConformance):
    """The example of a sink of one's own."""

    writer = JsonCopy

    def make_sink(self, path):
        return OpenedBy(self.writer, path)

    def read(self, path):
        rows = JsonCopy(path, "").content()["rows"]
        return [(row["name"], row["n"]) for row in rows.values()]


class KeepsRemoved(JsonCopy):
    def write_changes(self, changes, number, note):
        return super().write_changes(attrs.evolve(changes, removed=()), number, note)


class Repeats(JsonCopy):
    def write_changes(self, changes, number, note):
        last = self.last_copy()
        return super().write_changes(changes, last[0] + 1 if last else 1, note)


@pytest.mark.parametrize(
    ("writer", "test"),
    [
        (KeepsRemoved, CopyConformance.test_changes_replace_and_remove_rows),
        (Repeats, CopyConformance.test_a_transaction_that_comes_again_or_out_of_order_is_not_written),
        (Repeats, CopyConformance.test_one_of_two_writers_continues),
    ],
)
def test_a_sink_of_copies_that_ignores_deletions_or_repeats_a_batch_is_found(tmp_path, writer, test):
    suite = TestJsonCopies()
    suite.writer = writer
    with pytest.raises(AssertionError):
        test(suite, tmp_path)
