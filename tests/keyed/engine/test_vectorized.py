"""Vectorized functions: what they are called with, when, and what becomes of what they emit."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP, OutputTag, errors
from keyed.arrow.read import plain_values
from keyed.arrow.write import table_of
from keyed.base.schemas import schema_of
from keyed.table_state.batches import shaped
from keyed.testing import KeyedTestHarness, Record
from keyed.vectorized import TIMESTAMP_COLUMN, VectorizedFunction


class Recorder(VectorizedFunction):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def open(self, context):
        task = (context.get_task_name(), context.get_index_of_this_subtask(), context.get_number_of_parallel_subtasks())
        self.calls.append(("open", task))

    def process_batch(self, table, ctx):
        clocks = (ctx.current_watermark(), ctx.current_processing_time())
        self.calls.append(("rows", table.to_pylist(), clocks, ctx.late.to_pylist(), ctx.key_columns))

    def on_watermark(self, watermark, ctx):
        clocks = (ctx.current_watermark(), ctx.current_processing_time())
        before = (ctx.previous_watermark(), ctx.previous_processing_time())
        self.calls.append(("watermark", watermark, clocks, before, ctx.late.to_pylist()))

    def close(self):
        self.calls.append(("close",))

    def taken(self) -> list[Any]:
        taken = list(self.calls)
        self.calls.clear()
        return taken


def test_a_function_sees_rows_in_time_order_then_the_watermark() -> None:
    function = Recorder()
    with KeyedTestHarness(function, key="k") as tests:
        tests.advance_watermark(10)
        tests.advance_processing_time(7)
        function.taken()
        tests.process_batch(pa.table({"k": ["a", "b", "a", "b"], "t": [20, 10, 11, 10], "n": [1, 2, 3, 4]}), "t")
        assert function.taken() == [
            (
                "rows",
                [
                    {"k": "b", "t": 10, "n": 2, TIMESTAMP_COLUMN: 10},
                    {"k": "b", "t": 10, "n": 4, TIMESTAMP_COLUMN: 10},
                    {"k": "a", "t": 11, "n": 3, TIMESTAMP_COLUMN: 11},
                    {"k": "a", "t": 20, "n": 1, TIMESTAMP_COLUMN: 20},
                ],
                (10, 7),
                [True, True, False, False],
                ("k",),
            ),
            ("watermark", 10, (10, 7), (10, 7), []),
        ]
        assert tests.metrics()["rows_late"] == 2
        assert tests.metrics()["rows_in"] == 4
        tests.advance_watermark(30)
        assert function.taken() == [("watermark", 30, (30, 7), (10, 7), [])]
        tests.end_of_input()
        assert function.taken() == [("watermark", MAX_TIMESTAMP, (MAX_TIMESTAMP, 7), (30, 7), [])]
    assert function.taken() == [("close",)]


def test_the_first_batch_opens_the_function() -> None:
    function = Recorder()
    with KeyedTestHarness(function, key="k", parallelism=2) as tests:
        tests.advance_processing_time(3)
        calls: list[Any] = []
        for group in range(2):
            calls.append(("open", ("function", group, 2)))
            calls.append(("watermark", MIN_TIMESTAMP, (MIN_TIMESTAMP, 3), (MIN_TIMESTAMP, MIN_TIMESTAMP), []))
        assert function.taken() == calls


def test_timestamps_may_be_of_any_unit() -> None:
    function = Recorder()
    time = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    with KeyedTestHarness(function, key="k") as tests:
        for unit in ("ms", "us", "ns"):
            tests.process_batch(pa.table({"k": ["a"], "t": pa.array([time], pa.timestamp(unit, "UTC"))}), "t")
            (row,) = next(call for call in function.taken() if call[0] == "rows")[1]
            assert row[TIMESTAMP_COLUMN] == -1
        for bad in (pa.array(["x"]), pa.array([1.5])):
            with pytest.raises(errors.DefinitionError, match="timestamp column 't'"):
                tests.process_batch(pa.table({"k": ["a"], "t": bad}), "t")


def test_rows_without_time_come_as_they_are() -> None:
    function = Recorder()
    with KeyedTestHarness(function, key="k") as tests:
        tests.process_batch(pa.table({"k": ["b", "a"]}))
        call = next(call for call in function.taken() if call[0] == "rows")
        assert call[1] == [{"k": "b"}, {"k": "a"}]
        assert call[3] == [False, False]


class Totals(VectorizedFunction):
    """A running sum a key, with a partial one before."""

    totals = keyed.vectorized.TableState("k string, n bigint", key="k")

    def combine(self, table):
        return table.group_by("k").aggregate([("n", "sum")]).rename_columns(["k", "n"])

    def process_batch(self, table, ctx):
        assert TIMESTAMP_COLUMN not in table.column_names
        assert ctx.late.to_pylist() == [False] * table.num_rows
        self.totals.merge(table, {"n": "sum"})
        ctx.emit(self.totals.lookup(table))
        ctx.drop(1)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_combined_rows_are_what_the_function_gets(parallelism: int) -> None:
    with KeyedTestHarness(Totals(), key="k", parallelism=parallelism) as tests:
        for _ in range(2):
            tests.process_batch(pa.table({"k": list("abcab"), "n": [1, 2, 3, 4, 5], "t": range(5)}), "t")
        assert sorted(tests.take_output()) == [
            Record(value, None) for value in [("a", 5), ("a", 10), ("b", 7), ("b", 14), ("c", 3), ("c", 6)]
        ]
        # What came is counted, and not what it was combined to.
        assert (tests.metrics()["rows_in"], tests.metrics()["rows_out"]) == (10, 6)
        assert tests.metrics()["rows_dropped"] == 2 * sum(
            1 for group in tests._groups.members if group.committed()[1].table(1)
        )


@pytest.mark.parametrize(
    ("combine", "error", "message"),
    [
        (lambda table: table.select(["n"]), errors.OutputDefinitionError, "lost the key column 'k'"),
        (
            lambda table: table.set_column(0, "k", pa.nulls(table.num_rows)),
            errors.OutputDefinitionError,
            "put null into",
        ),
        (lambda table: None, errors.OutputDefinitionError, "gave a NoneType"),
        (lambda table: table["x"], errors.UserFunctionError, "combine of 1 rows: KeyError"),
    ],
)
def test_a_wrong_combine_is_named(combine: Any, error: Any, message: str) -> None:
    class Wrong(Totals):
        def combine(self, table):
            return combine(table)

    with KeyedTestHarness(Wrong(), key="k") as tests, pytest.raises(error, match=message):
        tests.process_batch(pa.table({"k": ["a"], "n": [1]}))


@pytest.mark.parametrize(
    ("table", "timestamps", "error", "message"),
    [
        ({"k": ["a"]}, None, errors.DefinitionError, "dict is not a pyarrow.Table"),
        (pa.table({"x": [1]}), None, errors.DefinitionError, "key column 'k' is not in x"),
        (pa.table({"k": ["a", None]}), None, errors.NullKeyError, r"key None of Row\(k=None\) is null"),
        (pa.table({"k": ["a"]}), "t", errors.DefinitionError, "timestamp column 't' is not in k"),
    ],
)
def test_rows_that_no_runtime_takes_are_refused(table: Any, timestamps: Any, error: Any, message: str) -> None:
    with KeyedTestHarness(Totals(), key="k") as tests, pytest.raises(error, match=message):
        tests.process_batch(table, timestamps)


class Emit(VectorizedFunction):
    """Emits what it is told to."""

    tag = OutputTag("side", "n bigint, at timestamp")

    def __init__(self) -> None:
        self.tables: list[Any] = []
        self.contexts: list[Any] = []

    def process_batch(self, table, ctx):
        self.contexts.append(ctx)
        for to, emitted in self.tables:
            if to is None:
                ctx.emit(emitted)
            else:
                ctx.output(to, emitted)


def test_outputs_keep_their_timestamps_and_order() -> None:
    function = Emit()
    with KeyedTestHarness(function, key="k") as tests:
        one = pa.table({"n": [1, 2], TIMESTAMP_COLUMN: [5, None]})
        two = pa.record_batch({"n": [3]})
        function.tables[:] = [(None, one), (None, two), (None, one.slice(0, 0)), ("other", one)]
        tests.process_batch(pa.table({"k": ["a"]}))
        assert tests.take_output() == [Record((1,), 5), Record((2,), None), Record((3,), None)]
        assert tests.take_side_output("other") == [Record((1,), 5), Record((2,), None)]
        assert tests.take_output() == tests.take_side_output("other") == []
        tests.process_batch(pa.table({"k": ["a"]}))
        assert tests.take_table().num_rows == 3
        assert tests.take_table("other").equals(one)
        assert tests.take_table().num_columns == 0
        assert tests.metrics()["rows_out"] == 6
        assert tests.metrics()["rows_side_output"] == 4


def test_declared_columns_are_chosen_and_converted() -> None:
    function = Emit()
    with KeyedTestHarness(function, key="k") as tests:
        instant = datetime(2024, 1, 1, tzinfo=UTC)
        for values in ([1704067200000], [instant]):
            rows = pa.table({"extra": [1], "at": values, "n": pa.array([7], pa.int8()), TIMESTAMP_COLUMN: [instant]})
            function.tables[:] = [(function.tag, rows)]
            tests.process_batch(pa.table({"k": ["a"]}))
            assert tests.take_side_output("side") == [Record((7, instant), 1704067200000)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"n": [1]}, "column 'at' is missing"),
        ({"n": ["x"], "at": [1]}, "column 'n' of string does not fit int64: types differ"),
        ({"n": [1.5], "at": [1]}, "column 'n' of double does not fit int64"),
        ({"n": [1], "at": [datetime(2024, 1, 1)]}, "column 'at' of timestamp.us. does not fit"),
        ({"n": [1], "at": [2**62]}, "column 'at' of int64 does not fit"),
        ({"n": pa.array([2**64 - 1], pa.uint64()), "at": [1]}, "column 'n' of uint64 does not fit int64"),
        (5, "int was emitted"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(rows: Any, message: str) -> None:
    function = Emit()
    with KeyedTestHarness(function, key="k") as tests:
        function.tables[:] = [(function.tag, pa.table(rows) if isinstance(rows, dict) else rows)]
        with pytest.raises(errors.OutputDefinitionError, match=message):
            tests.process_batch(pa.table({"k": ["a"]}))
        function.tables[:] = [(5, pa.table({"n": [1]}))]
        with pytest.raises(errors.OutputDefinitionError, match="is not an OutputTag"):
            tests.process_batch(pa.table({"k": ["a"]}))


ONE, DAY = datetime(2024, 1, 1), datetime(2024, 1, 1).date()


@pytest.mark.parametrize(
    ("type_", "column", "fits"),
    [
        ("double", pa.array([1, None]), True),
        ("decimal(10,2)", pa.array([1, 100]), True),
        ("decimal(3,2)", pa.array([100]), False),
        ("decimal(10,2)", pa.array([Decimal("1.5")]), True),
        ("decimal(10,1)", pa.array([Decimal("1.55")]), False),
        ("timestamp", pa.array([DAY]), False),
        ("timestamp", pa.array([ONE]), False),
        ("array<timestamp>", pa.array([[ONE]]), False),
        ("array<timestamp>", pa.array([[1_000]]), False),
        ("array<double>", pa.array([[1], None]), True),
        ("array<int>", pa.array([["1"]]), False),
        ("array<string>", pa.array([["a"]], pa.large_list(pa.large_string())), True),
        ("struct<a:int>", pa.array([{"a": "1"}]), False),
        ("struct<a:double>", pa.array([{"a": 1}, None]), True),
        ("struct<a:int,b:int>", pa.array([{"a": 1}]), False),
        ("map<string,int>", pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string())), False),
        ("map<string,int>", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), True),
        ("string", pa.array(["a", None]).dictionary_encode(), True),
        ("string", pa.array(["a"], pa.large_string()), True),
    ],
)
def test_columns_become_what_rows_become(type_: str, column: Any, fits: bool) -> None:
    schema = schema_of(f"c {type_}")
    if not fits:
        with pytest.raises(errors.OutputDefinitionError, match=r"column 'c' of .* does not fit"):
            shaped(pa.table({"c": column}), schema, "it")
        return
    assert shaped(pa.table({"c": column}), schema, "it") == table_of(
        [(value,) for value in plain_values(column)], schema
    )


@pytest.mark.parametrize("method", ["process_batch", "on_watermark"])
@pytest.mark.parametrize("kind", ["Table", "generator"])
def test_tables_that_are_returned_or_yielded_are_refused(method: str, kind: str) -> None:
    def returns(self, argument, ctx):
        return pa.table({"n": [1]})

    def yields(self, argument, ctx):
        yield pa.table({"n": [1]})

    methods = {"process_batch": lambda *_: None, method: returns if kind == "Table" else yields}
    function = type("Wrong", (VectorizedFunction,), methods)()
    with (
        KeyedTestHarness(function, key="k") as tests,
        pytest.raises(
            errors.OutputDefinitionError, match=rf"{method}.* returned a {kind}, .*; pass tables to ctx.emit"
        ),
    ):
        tests.process_batch(pa.table({"k": ["a"]}))


def test_a_kept_context_is_refused() -> None:
    function = Emit()
    with KeyedTestHarness(function, key="k") as tests:
        tests.process_batch(pa.table({"k": ["a"]}))
        with pytest.raises(errors.StateAccessError, match="used outside of a call"):
            function.contexts[0].emit(pa.table({"n": [1]}))


def test_errors_name_operator_group_and_call() -> None:
    class Fails(VectorizedFunction):
        rows = keyed.vectorized.TableState("k string, n bigint", key="k")

        def process_batch(self, table, ctx):
            self.rows.merge(table, {"n": "sum"})

        def on_watermark(self, watermark, ctx):
            if watermark > 0:
                raise LookupError("no")

    with KeyedTestHarness(Fails(), key="k") as tests:
        with pytest.raises(
            errors.UserFunctionError, match=r"operator 'function', key group 0, on_watermark at 5: LookupError: no"
        ):
            tests.advance_watermark(5)
        with pytest.raises(errors.TableOverflowError, match="process_batch of 2 rows"):
            tests.process_batch(pa.table({"k": ["a", "a"], "n": [2**62, 2**62]}))
        assert tests.metrics() == {}


def test_a_function_without_process_batch_is_refused() -> None:
    with pytest.raises(errors.StateDefinitionError, match="does not define process_batch"):
        KeyedTestHarness(type("Empty", (VectorizedFunction,), {})(), key="k")
    with pytest.raises(errors.StateDefinitionError, match="give an object, not the class"):
        KeyedTestHarness(Totals, key="k")  # type: ignore[arg-type]
    for key in (None, lambda value: value):
        with pytest.raises(errors.DefinitionError, match="Totals needs names of key columns"):
            KeyedTestHarness(Totals(), key=key)
    with KeyedTestHarness(Totals(), key="k") as tests, pytest.raises(errors.DefinitionError, match="use process_batch"):
        tests.process({"k": "a"})


def test_after_the_end_of_input_no_rows_may_come() -> None:
    with KeyedTestHarness(Totals(), key="k") as tests:
        tests.end_of_input()
        tests.advance_processing_time(5)
        with pytest.raises(errors.CheckpointFinished, match="1 new rows came"):
            tests.process_batch(pa.table({"k": ["a"], "n": [1]}))
