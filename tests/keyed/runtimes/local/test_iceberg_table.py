"""Iceberg tables as sinks of the local runtime, on real tables in a catalog that is a file."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed.destinations.iceberg_table import IcebergWriter
from keyed.destinations.ownership import Owner
from keyed.errors import DefinitionError, ExtraNotInstalled, SinkError
from keyed.testing.sink_conformance import SinkConformance

if os.environ.get("CI") != "true":
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: make setup")

from pyiceberg.catalog import load_catalog

#: The columns of a table.
COLUMNS: pa.Schema = pa.table({"k": ["a"], "n": [1]}).schema


class Changes(keyed.KeyedProcessFunction):
    """Emits its rows."""

    def process_element(self, value, ctx):
        yield tuple(value)


def changes(rows: Any, output: str = "k string, n bigint, gone boolean"):
    return keyed.stream(rows).key_by("k").process(Changes(), output)


def row(k, n, gone=None):
    return {"k": k, "n": n, "gone": gone}


def options(path):
    path.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": path.as_uri()}


def sink_of(path, **parameters):
    return keyed.iceberg_sink("lake.t", catalog="test", options=options(path), **parameters)


def table_of(path):
    catalog = load_catalog("test", **options(path))
    try:
        return catalog.load_table("lake.t")
    finally:
        catalog.close()


def content(path, *names):
    rows = table_of(path).scan(selected_fields=names or ("*",)).to_arrow().to_pylist()
    return sorted(tuple(each[name] for name in names or each) for each in rows)


class TestAppends(SinkConformance):
    def make_sink(self, path):
        return sink_of(path)

    def read(self, path):
        return content(path, "name", "n")


class TestUpserts(SinkConformance):
    def make_sink(self, path):
        return sink_of(path, mode="upsert", key="name")

    def read(self, path):
        return content(path, "name", "n")


ROWS = [row("a", 1), row("b", 2), row("a", 3), row("b", 4, gone=True), row("c", 5), row("b", 6), row("c", 7, gone=True)]


@pytest.mark.parametrize("rows_per_batch", [1, 3, 100])
def test_an_upsert_keeps_the_last_row_of_a_key_and_honours_deletions(tmp_path, rows_per_batch):
    changes(ROWS).run(sink_of(tmp_path, mode="upsert", key="k", deleted="gone"), rows_per_batch=rows_per_batch)
    assert content(tmp_path) == [("a", 3), ("b", 6)]


def test_a_key_of_several_columns_leaves_rows_with_parts_of_it(tmp_path):
    rows = [{"k": k, "i": i, "v": v} for v, (k, i) in enumerate([("a", 1), ("b", 2), ("a", 2), ("b", 1)])]
    out = "k string, i smallint, v int"
    sink = sink_of(tmp_path, mode="upsert", key=["k", "i"])
    changes(rows, out).run(sink)
    # The filter of both columns finds all four rows.
    changes([{"k": "a", "i": 1, "v": 10}, {"k": "b", "i": 2, "v": 11}], out).run(sink)
    assert content(tmp_path) == [("a", 1, 10), ("a", 2, 2), ("b", 1, 3), ("b", 2, 11)]


def test_keys_of_each_type_are_found_again(tmp_path):
    values = {
        "boolean": True,
        "int": 5,
        "date": dt.date(2026, 1, 2),
        "timestamp": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "timestamp_ntz": dt.datetime(2026, 1, 2),
        "decimal(10,2)": Decimal("1.50"),
        "binary": b"x",
    }
    for type_, value in values.items():
        folder = tmp_path / type_.partition("(")[0]
        for _ in range(2):
            rows = keyed.stream([{"k": value, "n": 1}]).key_by("n").process(Changes(), f"k {type_}, n bigint")
            rows.run(sink_of(folder, mode="upsert", key="k"))
        assert content(folder) == [(value, 1)]


def test_types_survive(tmp_path):
    output = (
        "k string, y tinyint, i int, d double, f float, m decimal(10,2), b binary, day date, t timestamp, "
        "l timestamp_ntz, a array<int>, o map<string,double>, s struct<x:bigint,y:string>"
    )
    nothing: dict[str, Any] = dict.fromkeys([each.split()[0] for each in output.split(", ")])
    for _ in range(2):
        # The second run finds the columns that the first has created.
        changes([{**nothing, "k": "x", "y": 1, "a": [1]}], output).run(sink_of(tmp_path))
    assert content(tmp_path, "k", "y") == [("x", 1)] * 2


def test_two_queries_write_to_one_table(tmp_path):
    for k in "ab":
        changes([row(k, 1), row(k, 2)]).run(sink_of(tmp_path / "t"), checkpoint=tmp_path / k, drain=False)
    assert content(tmp_path / "t", "k", "n") == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def writer(path, query, mode="append", earlier=()):
    made = IcebergWriter(sink_of(path, mode=mode, key="k" if mode == "upsert" else ()), Owner([*earlier, query], 2))
    made.claim()
    made.prepare(COLUMNS)
    return made


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_commit_that_another_query_overtakes_is_tried_again(tmp_path, mode, monkeypatch):
    rows = pa.table({"k": ["a"], "n": [1]})
    one, two = writer(tmp_path, "one", mode), writer(tmp_path, "two", mode)
    commit = IcebergWriter._commit

    def overtaken(self, rows, batch):
        if self is one and (two._last_batch("two") or -1) < batch:
            two.write(two.records(rows), batch)
        commit(self, rows, batch)

    monkeypatch.setattr(IcebergWriter, "_commit", overtaken)
    for batch in range(1, 3):
        one.write(one.records(rows), batch)
    assert content(tmp_path) == [("a", 1)] * (4 if mode == "append" else 1)
    for each in (one, two):
        each.close()


def test_a_batch_that_comes_again_is_not_written_again_also_when_its_snapshot_has_expired(tmp_path):
    rows = pa.table({"k": ["a"], "n": [1]})
    first, other = writer(tmp_path, "one"), writer(tmp_path, "two")
    first.write(first.records(rows), 0)
    snapshot = first._table.current_snapshot()
    assert snapshot.summary.additional_properties["keyed-query"] == "one"
    assert snapshot.summary.additional_properties["keyed-batch"] == "0"
    other.write(other.records(rows), 0)
    other._table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    again = writer(tmp_path, "one")
    for batch in (0, 0, 1, 0):
        again.write(again.records(rows), batch)
    assert content(tmp_path) == [("a", 1)] * 3
    for each in (first, other, again):
        each.close()


def test_a_restored_query_that_repeats_batches_of_the_earlier_one_is_reported(tmp_path, caplog):
    first = writer(tmp_path, "one")
    for batch in range(3):
        first.write(first.records(pa.table({"k": ["a"], "n": [1]})), batch)
    writer(tmp_path, "two", earlier=["one"]).close()
    first.close()
    assert "has written batches up to 2 to the table, and this one goes on with batch 2" in caplog.text


KILLED = """
import os, pathlib, sys
from keyed.runtimes.local import local_query
from keyed.destinations.iceberg_table import IcebergWriter
from tests.keyed.runtimes.local.test_iceberg_table import changes, row, sink_of

out, place, batch, mode = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
write, outbox = IcebergWriter.write, local_query.encode_outbox

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

IcebergWriter.write, local_query.encode_outbox = dies, dies_before_commit
sink = sink_of(out / "t", mode=mode, **({"key": "k"} if mode == "upsert" else {}))
rows = [row(str(n), n) for n in range(9)]
# Other batches than in the run before.
changes(rows).run(sink, checkpoint=out / "ck", rows_per_batch=int(sys.argv[5]), drain=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("append", marks=pytest.mark.long), "upsert"])
def test_a_query_that_is_killed_writes_each_row_once(tmp_path, mode):
    """Kills at each step of a batch; the next run cuts its input into other batches."""
    kills = [("commit", 0, 2), ("before", 0, 3), ("after", 1, 1), ("commit", 2, 4), ("before", 3, 2), ("none", -1, 3)]
    for place, batch, size in kills:
        command = [sys.executable, "-c", KILLED, str(tmp_path), place, str(batch), mode, str(size)]
        done = subprocess.run(command, cwd=Path(keyed.__file__).parents[1], check=False, capture_output=True, text=True)
        assert done.returncode == (0 if place == "none" else -9), done.stderr
    assert content(tmp_path / "t", "n") == [(n,) for n in range(9)]


def test_columns_may_be_added(tmp_path):
    out, checkpoint = sink_of(tmp_path), tmp_path / "ck"
    changes([{"k": "a", "n": 1}], "k string, n bigint").run(out, checkpoint=checkpoint, drain=False)
    more = [{"k": "a", "n": 1}, {"k": "b", "n": 2, "x": 0.5}]
    changes(more, "k string, n bigint, x double").run(out, checkpoint=checkpoint, drain=False)
    assert content(tmp_path) == [("a", 1, None), ("b", 2, 0.5)]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("k string", "the output has no n. The table has k string, n int64; the output has k string"),
        ("k string, n string", "n is string in the output"),
        ("k string, N bigint", "N is n there"),
    ],
)
def test_other_columns_are_refused_with_both_schemas(tmp_path, output, message):
    changes([{"k": "a", "n": 1}], "k string, n bigint").run(sink_of(tmp_path))
    before = table_of(tmp_path).metadata_location
    with pytest.raises(SinkError, match=message):
        changes([{"k": "a"}], output).run(sink_of(tmp_path))
    assert table_of(tmp_path).metadata_location == before


def test_parameters_that_exclude_each_other_are_refused(tmp_path):
    wrong: list[dict[str, Any]] = [{"table": "t"}, {"table": "a."}, {"table": "a.b", "catalog": ""}]
    wrong += [{"table": "a.b", "mode": "merge"}, {"table": "a.b", "key": "k"}]
    for parameters in wrong:
        with pytest.raises(DefinitionError):
            keyed.iceberg_sink(**parameters)
    assert "s3cr3t" not in repr(keyed.iceberg_sink("a.b", options={"token": "s3cr3t"}))


def test_a_catalog_that_cannot_be_read_is_named_before_the_first_row(tmp_path):
    with pytest.raises(SinkError, match=r"iceberg_sink\('a.b', catalog='c', options=\{type\}\).*nothing"):
        changes([row("a", 1)]).run(keyed.iceberg_sink("a.b", catalog="c", options={"type": "nothing"}))


def test_a_missing_extra_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(ExtraNotInstalled, match=r"keyed-streams\[iceberg\]"):
        changes([row("a", 1)]).run(sink_of(tmp_path))
