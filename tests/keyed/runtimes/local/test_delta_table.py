"""Delta tables as sinks of the local runtime, on real tables."""

from __future__ import annotations

import os
import sys
from operator import attrgetter

import pyarrow as pa
import pyarrow.parquet
import pytest

import keyed
from keyed.destinations.delta_table import DeltaWriter
from keyed.errors import DefinitionError, OutputDefinitionError, QueryFailed, SinkError
from keyed.topics import KafkaSink
from tests.keyed.runtimes.conftest import CASES
from tests.keyed.runtimes.local.table_sinks import COLUMNS, AppendSuite, TableSuite, UpsertSuite, changes, row
from tests.support.jobs import Pass, PassTuple

if os.environ.get("CI") != "true":
    pytest.importorskip("deltalake", reason="deltalake is not installed: make setup")

import deltalake

Writer = DeltaWriter
KIND = sys.modules[__name__]
PACKAGE, EXTRA = "deltalake", "delta"


def sink_of(path, **parameters):
    return keyed.delta_sink(path, **parameters)


def version(path):
    return deltalake.DeltaTable(path).version()


def content(path, *names):
    table = deltalake.DeltaTable(path).to_pyarrow_table()
    return sorted(tuple(each.values()) for each in table.select(names or table.column_names).to_pylist())


class TestDeltaTable(TableSuite):
    kind = KIND


class TestAppends(AppendSuite):
    kind = KIND


class TestUpserts(UpsertSuite):
    kind = KIND


def test_keys_and_columns_have_any_names(tmp_path):
    rows = [{"A b": "x", 'k`"': 1, "Value": 1}, {"A b": "x", 'k`"': 1, "Value": 2}, {"A b": "y", 'k`"': 1, "Value": 3}]
    sink = keyed.delta_sink(tmp_path / "t", mode="upsert", key=["A b", 'k`"'])
    out = keyed.stream(rows).key_by("A b").process(PassTuple(), '`A b` string, `k``"` bigint, Value bigint')
    out.run(sink, rows_per_batch=1)
    assert content(tmp_path / "t") == [("x", 1, 2), ("y", 1, 3)]


def test_a_table_has_the_columns_before_the_first_row(tmp_path):
    changes([]).run(keyed.delta_sink(tmp_path / "t"))
    assert deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().column_names == ["k", "n", "gone"]


def test_a_commit_that_a_change_of_columns_overtakes_is_tried_again(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", "keyed")
    one, two = writer(tmp_path, "one"), writer(tmp_path, "two")
    commit = DeltaWriter._commit

    def overtaken(self, rows, batch, note):
        two.prepare(pa.schema([*COLUMNS, pa.field("more", pa.int64())]))
        commit(self, rows, batch, note)

    monkeypatch.setattr(DeltaWriter, "_commit", overtaken)
    one.write(one.records(pa.table({"k": ["a"], "n": [1]})), 0)
    assert content(tmp_path / "t", "k", "more") == [("a", None)]
    assert caplog.text.count("trying again") == 1


def test_two_runs_of_one_query_at_once_write_a_batch_once(tmp_path):
    runs = [writer(tmp_path, "one") for _ in range(2)]
    for each in runs:
        each.write(each.records(pa.table({"k": ["a"], "n": [1]})), 0)
    assert content(tmp_path / "t") == [("a", 1)]


def interrupted(tmp_path, monkeypatch, changelog=None):
    """Run a job that ends after the commit of batch 1, before its rows are in the table."""
    write = DeltaWriter.write

    def dies(self, records, batch_id):
        if batch_id == 1:
            raise ZeroDivisionError
        write(self, records, batch_id)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaWriter, "write", dies)
        with pytest.raises(QueryFailed, match="ZeroDivisionError"):
            run(tmp_path, 4, keyed.delta_sink(tmp_path / "t"), changelog)


def run(tmp_path, count, sink, changelog=None):
    rows = [row("a", n) for n in range(count)]
    output = changes(rows, name="Changes", changelog=changelog)
    return output.run(sink, checkpoint=tmp_path / "ck", rows_per_batch=2, drain=False)


@pytest.mark.parametrize(
    "other",
    [
        lambda path: keyed.delta_sink(path / "other"),
        lambda _: None,
        lambda path: path / "files",
        lambda _: lambda batch, batch_id: None,
        lambda _: KafkaSink("other", bootstrap="127.0.0.1:1", timeout=100),
    ],
    ids=["table", "none", "files", "function", "topic"],
)
def test_rows_that_wait_for_a_table_are_not_lost_when_the_sink_is_changed(tmp_path, monkeypatch, other):
    interrupted(tmp_path, monkeypatch)
    refusal = rf"the Delta table '{tmp_path / 't'}' may lack rows of batch 1: .* Run the job once more with that sink"
    for _ in range(2):
        with pytest.raises(SinkError, match=refusal):
            run(tmp_path, 6, other(tmp_path))
    assert not (tmp_path / "other").exists()
    assert not [*tmp_path.glob("files/*")]
    run(tmp_path, 4, keyed.delta_sink(tmp_path / "t"))
    assert content(tmp_path / "t", "n") == [(0,), (1,), (2,), (3,)]
    # Nothing waits now.
    run(tmp_path, 6, keyed.delta_sink(tmp_path / "other"))
    assert content(tmp_path / "other", "n") == [(4,), (5,)]
    assert run(tmp_path, 8, None).values == [("a", 6, None), ("a", 7, None)]


def test_a_flush_reports_rows_that_wait_for_a_table(tmp_path, monkeypatch, caplog):
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    interrupted(tmp_path, monkeypatch, changelog)
    keyed.recovery.flush(tmp_path / "ck", {"Changes": changelog})
    assert "may lack rows of batch 1, and a query that is restored from the changelog begins after" in caplog.text
    run(tmp_path, 4, keyed.delta_sink(tmp_path / "t"), changelog)
    caplog.clear()
    keyed.recovery.flush(tmp_path / "ck", {"Changes": changelog})
    assert caplog.text == ""


def test_a_table_whose_columns_must_not_be_null_is_refused(tmp_path):
    deltalake.DeltaTable.create(tmp_path / "t", pa.schema([pa.field("k", pa.string(), nullable=False)]))
    with pytest.raises(SinkError, match="k must not be null there"):
        changes([{"k": "a"}], "k string").run(keyed.delta_sink(tmp_path / "t"))


def writer(tmp_path, query, mode="append"):
    return TestDeltaTable().writer(tmp_path / "t", query, mode)


@pytest.mark.parametrize(("sink", "output", "message"), CASES["sinks and declared columns that do not fit"])
def test_columns_that_do_not_fit_the_sink_are_refused_before_the_first_row(tmp_path, sink, output, message):
    with pytest.raises(SinkError, match=message):
        changes(iter(lambda: pytest.fail("a row was read"), None), output).run(keyed.delta_sink(tmp_path / "t", **sink))
    assert not (tmp_path / "t").exists()


def undeclared(*rows):
    """A query of rows with the columns k and n, a row a batch."""
    return keyed.stream([{"k": k, "n": n} for k, n in rows]).key_by("k").process(Pass())


@pytest.mark.parametrize("sink", [{}, {"mode": "upsert", "key": "k"}])
def test_without_declared_columns_the_first_rows_decide_as_in_a_parquet_sink(tmp_path, sink):
    rows = [("a", 1), ("b", 2), ("c", None), ("d", 4)]
    for to in (keyed.delta_sink(tmp_path / "t", **sink), keyed.parquet_sink(tmp_path / "p")):
        undeclared(*rows).run(to, rows_per_batch=2, checkpoint=tmp_path / type(to).__name__)
    table = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("k")
    assert table == pyarrow.parquet.read_table(tmp_path / "p").sort_by("k")
    assert table.to_pylist() == [{"k": k, "n": n} for k, n in rows]


def test_rows_that_do_not_fit_the_first_ones_are_refused_and_not_written(tmp_path):
    query = undeclared(("a", 1), ("b", "two"))
    with pytest.raises(SinkError, match=r"k string, n string, and the first ones had k string, n int64; declare"):
        query.run(keyed.delta_sink(tmp_path / "t"), rows_per_batch=1)
    assert deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist() == [{"k": "a", "n": 1}]
    with pytest.raises(SinkError, match="n is string in the output"):
        undeclared(("a", "one")).run(keyed.delta_sink(tmp_path / "t"))


@pytest.mark.parametrize(("sink", "message"), CASES["sinks that first rows do not fit"])
def test_first_rows_that_do_not_fit_the_sink_are_refused_before_there_is_a_table(tmp_path, sink, message):
    with pytest.raises((SinkError, DefinitionError), match=message):
        undeclared(("a", 1 if sink else None)).run(keyed.delta_sink(tmp_path / "t", **sink))
    # Version 1.1 of deltalake leaves an empty folder where it looks for a table.
    assert not [*(tmp_path / "t").glob("*")]


def test_values_without_names_are_refused_with_the_remedy(tmp_path):
    with pytest.raises(OutputDefinitionError, match=r"delta_sink.*values like .* have no columns; give"):
        keyed.stream([1]).key_by(lambda _: 1).process(Pass()).run(keyed.delta_sink(tmp_path / "t"))


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x.parquet").touch()
    with pytest.raises(SinkError, match=r"the folder holds x\.parquet, and is no Delta table"):
        changes([row("a", 1)]).run(keyed.delta_sink(tmp_path / "t"))
    assert [each.name for each in (tmp_path / "t").iterdir()] == ["x.parquet"]


def test_a_null_in_a_key_is_refused(tmp_path):
    sink = keyed.delta_sink(tmp_path / "t", mode="upsert", key="n")
    with pytest.raises(SinkError, match="a row has a null in 'n'"):
        changes([row("a", None)]).run(sink)


def test_parameters_that_exclude_each_other_are_refused(tmp_path):
    for options in CASES["parameters of delta_sink that exclude each other"]:
        with pytest.raises(DefinitionError):
            keyed.delta_sink(tmp_path, **options)
    sink = keyed.delta_sink(tmp_path / "t", storage_options={"aws_secret_access_key": "s3cr3t"})
    assert "s3cr3t" not in repr(sink)
    assert "aws_secret_access_key" in repr(sink)


def test_two_outputs_into_one_table_are_refused(tmp_path):
    output = changes([row("a", 1)])
    with pytest.raises(DefinitionError, match="two outputs go to the table"):
        keyed.run(*(output.to(keyed.delta_sink(tmp_path / "t")) for _ in range(2)))


@pytest.mark.parametrize(("call", "arguments", "message"), CASES["arguments of a wrong type"])
def test_what_has_the_wrong_type_is_refused_where_it_is_given(call, arguments, message):
    with pytest.raises(DefinitionError, match=message):
        attrgetter(call)(keyed)(**arguments)
