"""Sinks that have each row once, through the public conformance suite; and one that has not, which it finds."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

import keyed
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


def test_a_sink_that_only_appends_is_found(tmp_path):
    with pytest.raises(AssertionError, match="number 0"):
        Appends().test_a_batch_that_is_run_again_is_there_once(tmp_path)
