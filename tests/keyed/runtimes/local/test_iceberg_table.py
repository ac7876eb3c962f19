"""Iceberg tables as sinks of the local runtime, on real tables in a catalog that is a file."""

from __future__ import annotations

import datetime as dt
import os
import sys
from decimal import Decimal

import pyarrow as pa
import pytest

import keyed
from keyed.destinations.iceberg_table import IcebergWriter
from keyed.errors import DefinitionError, SinkError
from tests.keyed.runtimes.conftest import CASES
from tests.keyed.runtimes.local.table_sinks import AppendSuite, TableSuite, UpsertSuite, changes, row
from tests.support.jobs import PassTuple

if os.environ.get("CI") != "true":
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: make setup")

from pyiceberg.catalog import load_catalog

Writer = IcebergWriter
KIND = sys.modules[__name__]
PACKAGE, EXTRA = "pyiceberg.catalog", "iceberg"


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


def version(path):
    return table_of(path).metadata_location


class TestIcebergTable(TableSuite):
    kind = KIND


class TestAppends(AppendSuite):
    kind = KIND


class TestUpserts(UpsertSuite):
    kind = KIND


def writer(path, query, mode="append"):
    return TestIcebergTable().writer(path, query, mode)


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
            rows = keyed.stream([{"k": value, "n": 1}]).key_by("n").process(PassTuple(), f"k {type_}, n bigint")
            rows.run(sink_of(folder, mode="upsert", key="k"))
        assert content(folder) == [(value, 1)]


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


def test_parameters_that_exclude_each_other_are_refused(tmp_path):
    for parameters in CASES["parameters of iceberg_sink that are refused"]:
        with pytest.raises(DefinitionError):
            keyed.iceberg_sink(**parameters)
    assert "s3cr3t" not in repr(keyed.iceberg_sink("a.b", options={"token": "s3cr3t"}))


def test_a_catalog_that_cannot_be_read_is_named_before_the_first_row(tmp_path):
    with pytest.raises(SinkError, match=r"iceberg_sink\('a.b', catalog='c', options=\{type\}\).*nothing"):
        changes([row("a", 1)]).run(keyed.iceberg_sink("a.b", catalog="c", options={"type": "nothing"}))
