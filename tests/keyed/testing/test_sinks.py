"""Sinks that have each row once, through the public conformance suite; and one that has not, which it finds."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

import keyed
from keyed.extending import Sink, SinkWriter
from keyed.testing.sink_conformance import SinkConformance


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


def test_a_sink_that_replaces_the_rows_of_another_query_is_found(tmp_path):
    with pytest.raises(AssertionError, match="number 10"):
        Unclaimed().test_another_query_is_refused_or_adds_its_rows(tmp_path)


def test_a_sink_that_only_appends_is_found(tmp_path):
    with pytest.raises(AssertionError, match="number 0"):
        Appends().test_a_batch_that_is_run_again_is_there_once(tmp_path)
