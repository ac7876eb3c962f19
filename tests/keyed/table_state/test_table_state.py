"""Contract of `TableState` beside its operations: types, nulls, overflow, time to live, schema changes, durability."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import keyed
from keyed import StateTtl, StateVisibility, TimeDomain, UpdateType, errors
from keyed.testing import KeyedTestHarness
from keyed.vectorized import TIMESTAMP_COLUMN, TableState
from tests.keyed.table_state.model import EPOCH

ANY, ANY_ROW = pa.table({"k": ["any"]}), pa.table({"k": ["a"], "n": [1]})


class Calls(keyed.vectorized.VectorizedFunction):
    """Does what a test says, with one table state."""

    def __init__(self, schema: Any, key: Any = "k", ttl: StateTtl | None = None) -> None:
        self.rows = TableState(schema, key=key, ttl=ttl)
        self.todo: list[Callable[[TableState], Any]] = []
        self.results: list[Any] = []

    def process_batch(self, table, ctx):
        self.results[:] = [do(self.rows) for do in self.todo]


class TableHarness(KeyedTestHarness):
    """A harness that calls the table state of its function."""

    def __init__(self, function: Calls, **options: Any) -> None:
        super().__init__(function, **{"key": "k", **options})
        self.calls = function

    def call(self, *todo: Callable[[Any], Any]) -> Any:
        """Run calls in one batch, and return the result of the last one."""
        self.calls.todo[:] = todo
        self.process_batch(ANY)
        return self.calls.results[-1]

    def contents(self) -> list[dict[str, Any]]:
        """Return the rows of the table."""
        return sorted(self.call(do("scan")).to_pylist(), key=repr)


def do(name: str, *arguments: Any) -> Callable[[Any], Any]:
    """A call of a table state."""
    return lambda state: getattr(state, name)(*arguments)


# Declarations ---------------------------------------------------------------------------------------------------------


FIELDS: list[Any] = [("k", pa.string()), ("n", pa.int64())]
ARROW = pa.schema(FIELDS)


@attrs.frozen
class Total:
    k: str
    n: int = 0


@pytest.mark.parametrize("schema", ["k string, n bigint", Total, ARROW])
def test_a_schema_has_many_forms(schema: Any) -> None:
    with TableHarness(Calls(schema)) as tests:
        tests.call(do("upsert", pa.table({"n": [1], "k": ["a"]})))
        assert tests.contents() == [{"k": "a", "n": 1}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TableState("k string", key="x"), "key='x' must name"),
        (lambda: TableState("k string", key=()), "must name one or more"),
        (lambda: TableState("k string", key=("k", "k")), "each once"),
        (lambda: TableState("k string, k bigint", key="k"), "twice"),
        (lambda: TableState(pa.schema([pa.field("__keyed_x", pa.int64())]), key="__keyed_x"), "reserved"),
        (
            lambda: TableState("k string", key="k", ttl=StateTtl(1, update=UpdateType.ON_READ_AND_WRITE)),
            "by writes only",
        ),
        (lambda: TableState(5, key="k"), "not understood"),
    ],
)
def test_wrong_declarations_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((errors.StateDefinitionError, keyed.errors.OutputDefinitionError), match=message):
        make()


@pytest.mark.parametrize(
    ("schema", "key", "message"),
    [
        ("k string, n bigint", "n", "must start with the columns of key_by, k"),
        ("k string, l array<string>", ("k", "l"), "single value"),
        (pa.schema([pa.field("k", pa.dictionary(pa.int32(), pa.string()))]), "k", "dictionaries are not stored"),
        (pa.schema([pa.field("k", pa.string()), pa.field("l", pa.list_(pa.null()))]), "k", "cannot be stored"),
    ],
)
def test_tables_that_cannot_be_are_refused_before_the_first_row(schema: Any, key: Any, message: str) -> None:
    with TableHarness(Calls(schema, key)) as tests, pytest.raises(errors.StateDefinitionError, match=message):
        tests.process_batch(ANY)


def test_each_kind_of_function_has_its_states() -> None:
    class Rows(keyed.KeyedProcessFunction):
        rows = TableState("k string", key="k")

        def process_element(self, value, ctx):
            return None

    class Columns(keyed.vectorized.VectorizedFunction):
        value = keyed.ValueState(int)

        def process_batch(self, table, ctx):
            pass

    for function in (Rows(), Columns()):
        with pytest.raises(errors.StateDefinitionError, match="a VectorizedFunction has TableState"):
            KeyedTestHarness(function, key="k")


def test_a_table_is_used_in_a_batch_only() -> None:
    state = TableState("k string", key="k", name="rows")
    for use in (state.scan, lambda: state.num_rows, state.clear, lambda: state.upsert(ANY)):
        with pytest.raises(errors.StateAccessError, match="used outside of a call; use it inside process_batch"):
            use()
    with TableHarness(Calls("k string")) as tests:
        bound = tests.call(lambda rows: rows)
        with pytest.raises(errors.StateAccessError, match="used outside of a call; use it inside process_batch"):
            bound.scan()


# Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("todo", "message"),
    [
        (lambda rows: rows.merge(pa.table({"k": ["a"]}), {"n": "sum", "l": "last"}), "column 'n' is missing"),
        (lambda rows: rows.merge(ANY, {"n": "sum"}), "must say how each of n, l is combined"),
        (lambda rows: rows.merge(ANY, {"n": "mean", "l": "last"}), "'mean'; give one of sum, min"),
        (lambda rows: rows.merge(ANY, {"n": "sum", "l": "sum"}), "'sum' is not defined for column 'l'"),
        (
            lambda rows: rows.upsert(pa.table({"k": ["a"], "n": ["x"], "l": [[]]})),
            "column 'n' of string does not fit int64",
        ),
        (lambda rows: rows.upsert(pa.table({"k": ["a"], "n": [1.5], "l": [[]]})), "column 'n' of double does not fit"),
        (lambda rows: rows.upsert({"k": ["a"]}), "dict is not a pyarrow.Table"),
        (lambda rows: rows.lookup(pa.table({"x": [1]})), "column 'k' is missing"),
        (lambda rows: rows.take(("x", "<=", 1)), "no column 'x'"),
        (lambda rows: rows.take(("n", "~", 1)), "neither a pyarrow"),
        (lambda rows: rows.take([]), "neither a pyarrow"),
        (lambda rows: rows.take("n <= 1"), "neither a pyarrow"),
        (lambda rows: rows.scan(("n", "<=", "x")), "'x' is not of type int64"),
        (lambda rows: rows.scan(("n", "<=", None)), "compares with null"),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(todo: Callable[[Any], Any], message: str) -> None:
    with TableHarness(Calls("k string, n bigint, l array<string>")) as tests:
        tests.call(do("upsert", pa.table({"k": ["a"], "n": [1], "l": [["x"]]})))
        with pytest.raises(errors.StateAccessError, match=message) as failed:
            tests.call(do("clear"), todo)
        assert "operator 'function', key group 0, process_batch of 1 rows" in str(failed.value)
        assert tests.contents() == [{"k": "a", "n": 1, "l": ["x"]}]


def test_what_arrow_refuses_names_the_call() -> None:
    with TableHarness(Calls("k string, n bigint")) as tests:
        tests.call(do("upsert", ANY_ROW))
        with pytest.raises(errors.UserFunctionError, match="process_batch of 1 rows"):
            tests.call(do("scan", pc.field("missing") == 1))


def test_limits_beyond_the_range_of_a_column_hold_for_all_rows_or_none() -> None:
    with TableHarness(Calls("k string, n bigint, b tinyint")) as tests:
        rows = pa.table({"k": ["a", "b"], "n": [-(2**63), 2**63 - 1], "b": pa.array([-128, 127], pa.int8())})
        tests.call(do("upsert", rows))
        for column, least, greatest in (("n", -(2**63), 2**63 - 1), ("b", -128, 127)):
            for operator, below, at_least, at_most, above in (
                ("<", 0, 0, 1, 2),
                ("<=", 0, 1, 2, 2),
                ("==", 0, 1, 1, 0),
                (">=", 2, 2, 1, 0),
                (">", 2, 1, 0, 0),
            ):
                limits = (least - 60_000, least, greatest, greatest + 60_000)
                found = [tests.call(do("scan", (column, operator, limit))).num_rows for limit in limits]
                assert found == [below, at_least, at_most, above], (column, operator)


def test_integers_are_milliseconds_where_a_column_is_a_timestamp() -> None:
    with TableHarness(Calls("k string, at timestamp")) as tests:
        tests.call(do("upsert", pa.table({"k": ["a", "b"], "at": [1_000, 2_001]})))
        seconds = [EPOCH.replace(year=1970) + timedelta(milliseconds=ms) for ms in (1_000, 2_001)]
        assert [row["at"] for row in tests.contents()] == seconds
        for limit, count in ((999, 0), (1_000, 1), (2_000, 1), (2_001, 2), (2**63 - 1, 2), (-(2**63), 0)):
            for given in (limit, pa.scalar(limit), np.int64(limit)):
                assert tests.call(do("scan", ("at", "<=", given))).num_rows == count
        with TableHarness(Calls("k string, at timestamp_ntz")) as others:
            for todo in (do("scan", ("at", "<=", 1)), do("upsert", pa.table({"k": ["a"], "at": [1]}))):
                with pytest.raises(errors.StateAccessError):
                    others.call(todo)


def test_other_types_of_a_kind_are_converted_and_nothing_else() -> None:
    with TableHarness(Calls("k string, n bigint")) as tests:
        for keys in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
            rows = pa.table({"k": pa.array(["a"]).cast(keys), "n": pa.array([1], pa.int16())})
            tests.call(do("merge", rows, {"n": "sum"}))
        assert tests.contents() == [{"k": "a", "n": 3}]
        for value in ("5", 5.0, True, EPOCH):
            with pytest.raises(errors.StateAccessError, match=r"column 'n' of .* does not fit int64: types differ"):
                tests.call(do("upsert", pa.table({"k": ["a"], "n": [value]})))


def test_a_key_may_have_the_name_that_arrow_gives_to_a_sum() -> None:
    with TableHarness(Calls("k string, n_sum bigint, n bigint", key=("k", "n_sum"))) as tests:
        for _ in range(2):
            tests.call(do("merge", pa.table({"k": ["a"], "n_sum": [5], "n": [1]}), {"n": "sum"}))
        assert tests.contents() == [{"k": "a", "n_sum": 5, "n": 2}]


# Values ---------------------------------------------------------------------------------------------------------------


def merged(type_: Any, how: str, *batches: list[Any]) -> Any:
    """The merged value of a column of one row."""
    with TableHarness(Calls(pa.schema([pa.field("k", pa.string()), pa.field("v", type_)]))) as tests:
        for values in batches:
            rows = pa.table({"k": ["a"] * len(values), "v": pa.array(values, type_)})
            tests.call(do("merge", rows, {"v": how}))
        return tests.contents()[0]["v"]


def test_floats_are_added_from_left_to_right() -> None:
    values = [random.Random(1).uniform(-1e9, 1e9) * 10 ** (i % 30) for i in range(3000)]
    expected = 0.0
    for value in values:
        expected += value
    assert merged(pa.float64(), "sum", values) == expected
    assert merged(pa.float64(), "sum", values[:1], values[1:1000], values[1000:]) == expected
    assert merged(pa.float64(), "sum", [1e308], [1e308]) == float("inf")


@pytest.mark.parametrize(
    ("type_", "fits", "least_too_many"),
    [
        (pa.int64(), [2**63 - 2, 1], [2**63 - 1, 1]),
        (pa.int64(), [-(2**63) + 1, -1], [-(2**63), -1]),
        (pa.int64(), [2**63 - 1, -(2**63), 2**62], [2**63 - 1, 2**63 - 1, 2]),
        (pa.uint64(), [2**64 - 2, 1], [2**64 - 1, 1]),
        (pa.int32(), [2**31 - 2, 1], [2**31 - 1, 1]),
        (pa.int8(), [127, -128], [127, 1]),
        (pa.decimal128(5, 2), [Decimal("999.98"), Decimal("0.01")], [Decimal("999.99"), Decimal("0.01")]),
        (pa.decimal128(38, 0), [Decimal(10**37), Decimal(10**37)], [Decimal(10**38 - 1)] * 3),
    ],
)
def test_integers_and_decimals_do_not_overflow(type_: Any, fits: list[Any], least_too_many: list[Any]) -> None:
    for one, other in ((fits[:1], fits[1:]), (fits, [])):
        assert merged(type_, "sum", one, other) == sum(fits)
    for one, other in ((least_too_many[:1], least_too_many[1:]), (least_too_many, [])):
        with pytest.raises(errors.TableOverflowError, match="a sum of column 'v' is out of the range"):
            merged(type_, "sum", one, other)


def test_minima_and_maxima_of_what_has_an_order() -> None:
    low, high = datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)
    cases: list[tuple[Any, Any, Any]] = [
        (pa.timestamp("us", "UTC"), low, high),
        (pa.date32(), date(2020, 1, 1), date(2021, 1, 1)),
        (pa.string(), "a", "b"),
        (pa.decimal128(10, 2), Decimal("-1.00"), Decimal("1.00")),
        (pa.float64(), -0.5, 0.5),
    ]
    for type_, least, greatest in cases:
        assert merged(type_, "min", [greatest], [least, None]) == least
        assert merged(type_, "max", [greatest], [least, None]) == greatest


def test_null_nan_and_zero_are_keys_like_any_other() -> None:
    nan = np.array([0xFFF8000000000001], "uint64").view("float64")[0]
    with TableHarness(Calls("k double, n bigint")) as tests:
        for keys in ([None, float("nan"), 0.0], [nan, -0.0, None]):
            rows = pa.table({"k": pa.array(keys, pa.float64(), from_pandas=False), "n": [1, 1, 1]})
            tests.call(do("merge", rows, {"n": "sum"}))
        assert sorted(row["n"] for row in tests.contents()) == [2, 2, 2]
        rows = pa.table({"k": pa.array([-0.0, None, nan], pa.float64(), from_pandas=False)})
        assert tests.call(do("lookup", rows)).column("n").to_pylist() == [2, 2, 2]
        tests.call(do("delete", rows))
        assert tests.contents() == []


# Time to live ---------------------------------------------------------------------------------------------------------


def test_rows_expire_in_processing_time() -> None:
    with TableHarness(Calls("k string, n bigint", ttl=StateTtl(10))) as tests:
        tests.call(do("upsert", pa.table({"k": ["a", "b"], "n": [1, 1]})))
        tests.advance_processing_time(9)
        tests.call(do("merge", pa.table({"k": ["b"], "n": [1]}), {"n": "sum"}))
        assert len(tests.contents()) == 2
        tests.advance_processing_time(10)
        assert tests.contents() == [{"k": "b", "n": 2}]
        assert tests.metrics()["entries_expired"] == 1
        assert tests.metrics()["live_entries"] == 1
        tests.crash_and_recover()
        assert tests.contents() == [{"k": "b", "n": 2}]
        tests.advance_processing_time(19)
        assert tests.metrics()["live_entries"] == tests.metrics()["live_bytes"] == 0


def test_rows_expire_in_event_time_from_the_time_of_their_update() -> None:
    def rows(*times: int) -> pa.Table:
        return pa.table({"k": ["a"] * len(times), "n": [1] * len(times), TIMESTAMP_COLUMN: list(times)})

    with TableHarness(Calls("k string, n bigint", ttl=StateTtl(10, time_domain=TimeDomain.EVENT_TIME))) as tests:
        tests.call(do("merge", rows(5, 3), {"n": "sum"}))
        tests.advance_watermark(14)
        tests.call(do("merge", rows(4), {"n": "sum"}))
        assert tests.contents() == [{"k": "a", "n": 3}]
        tests.advance_watermark(23)
        assert tests.contents() == [{"k": "a", "n": 3}]
        tests.advance_watermark(24)
        assert tests.contents() == []
        instants = pa.array([25], pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        timed = pa.table({"k": ["a"], "n": [1], TIMESTAMP_COLUMN: instants})
        tests.call(do("upsert", timed))
        tests.advance_watermark(35)
        assert tests.contents() == []
        with pytest.raises(errors.StateAccessError, match="rows that are written need the column"):
            tests.call(do("upsert", ANY_ROW))


def test_an_expired_row_is_as_if_it_were_not_there() -> None:
    for visibility, total in (
        (StateVisibility.NEVER_RETURN_EXPIRED, 1),
        (StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP, 2),
    ):

        class Merge(keyed.vectorized.VectorizedFunction):
            rows = TableState("k string, n bigint", key="k", ttl=StateTtl(5, visibility=visibility))

            def process_batch(self, table, ctx):
                self.rows.merge(ANY_ROW, {"n": "sum"})
                ctx.emit(self.rows.scan())

        with KeyedTestHarness(Merge(), key="k") as tests:
            tests.process_batch(ANY)
            tests._processing_time = 5
            tests.process_batch(ANY)
            assert [record.value.n for record in tests.take_output()] == [1, total]


# Durability -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_the_log_stays_in_proportion_to_the_table(store: Any) -> None:
    with TableHarness(Calls("k bigint, n bigint"), store=store) as tests:
        numbers = random.Random(5)
        expected: dict[int, int] = {}
        for _ in range(60):
            keys = [numbers.randrange(8000) for _ in range(4000)]
            # Of numbers that cannot be compressed.
            stamp = numbers.getrandbits(62)
            values = [stamp ^ (key * 0x9E3779B97F4A7C1 % 2**62) for key in keys]
            rows = pa.table({"k": keys, "n": values})
            below = numbers.randrange(300)
            tests.call(do("upsert", rows), do("take", ("k", "<", below)))
            expected.update(zip(keys, values, strict=True))
            expected = {key: n for key, n in expected.items() if key >= below}
            counters = tests.metrics()
            assert counters["live_entries"] == len(expected)
            assert counters["live_bytes"] == 16 * len(expected)
            assert counters["log_bytes"] <= 2 * counters["live_bytes"] + 2 * (1 << 18)
        assert counters["log_rows"] < 40
        tests.crash_and_recover()
        assert {row["k"]: row["n"] for row in tests.contents()} == expected


def test_a_removed_range_is_one_record() -> None:
    with TableHarness(Calls("k bigint, n bigint")) as tests:
        keys = pa.array(np.random.default_rng(1).permutation(100_000))
        tests.call(do("upsert", pa.table({"k": keys, "n": keys})))
        before = tests.metrics()["log_bytes"]
        tests.call(do("take", ("n", "<", 99_990)))
        assert tests.metrics()["log_bytes"] - before < 500
        tests.crash_and_recover()
        assert len(tests.contents()) == 10


def test_a_batch_without_changes_leaves_no_row() -> None:
    with TableHarness(Calls("k bigint, n bigint")) as tests:
        tests.call(do("upsert", pa.table({"k": [1], "n": [1]})))
        tests.call(do("take", ("n", ">", 5)), do("delete", pa.table({"k": [2]})))
        tests.call(do("upsert", pa.table({"k": [3], "n": [1]})), do("delete", pa.table({"k": [3]})))
        assert tests.metrics()["log_rows"] == 1


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_state_moves_to_another_parallelism(store: Any) -> None:
    rows = pa.table({"k": list(range(500)) * 2, "w": [0] * 500 + [1] * 500, "n": range(1000)})
    with TableHarness(Calls("k bigint, w bigint, n bigint", key=("k", "w"))) as tests:
        tests.calls.todo.append(do("upsert", rows))
        tests.process_batch(rows)
        snapshot = tests.snapshot()
    with KeyedTestHarness.restore(Counting(), snapshot, key="k", parallelism=3, store=store) as restored:
        restored.process_batch(pa.table({"k": range(500)}))
        numbers: list[Any] = restored.take_table().column("n").to_pylist()
        assert sorted(numbers) == list(range(1000))
        assert restored.metrics()["live_entries"] == 1000


class Counting(keyed.vectorized.VectorizedFunction):
    """Emits the rows of the keys that come, in the key group that they come to."""

    rows = TableState("k bigint, w bigint, n bigint", key=("k", "w"))

    def process_batch(self, table, ctx):
        mine = self.rows.scan()
        ctx.emit(mine.filter(pc.is_in(mine["k"], table["k"].combine_chunks())))


# Schema changes -------------------------------------------------------------------------------------------------------


def reopen(changed: Calls, rows: pa.Table, **options: Any) -> TableHarness:
    """Return a harness of a changed function that continues with the rows of the one before."""
    with TableHarness(Calls("k string, n bigint")) as tests:
        tests.call(do("upsert", rows))
        return TableHarness.restore(changed, tests.snapshot(), **options)


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_an_added_column_is_null_and_columns_may_move(store: Any) -> None:
    changed = Calls("added array<string>, n bigint, k string")
    with reopen(changed, ANY_ROW, store=store) as tests:
        assert tests.contents() == [{"added": None, "n": 1, "k": "a"}]


def test_an_added_column_is_merged_into() -> None:
    changed = Calls("k string, n bigint, added bigint")
    with reopen(changed, pa.table({"k": ["a", "b"], "n": [1, 1]})) as tests:
        tests.call(do("merge", pa.table({"k": ["a"], "n": [1], "added": [5]}), {"n": "sum", "added": "sum"}))
        assert tests.call(do("scan", ("added", ">", 0))).num_rows == 1
        tests.crash_and_recover()
        assert tests.contents() == [{"k": "a", "n": 2, "added": 5}, {"k": "b", "n": 1, "added": None}]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (Calls("k string, n int"), "int64 became int32"),
        (Calls("k string"), "no longer has the field n"),
        (Calls("k string, n bigint", key=("k", "n")), "its key changed from k to k, n"),
        (Calls("k string, n bigint", ttl=StateTtl(5)), "the clock of its time to live changed"),
    ],
)
def test_other_changes_are_refused(changed: Calls, message: str) -> None:
    with pytest.raises(errors.StateSchemaChanged, match=message), reopen(changed, ANY_ROW) as tests:
        tests.contents()


# Types ----------------------------------------------------------------------------------------------------------------

INSTANT = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
KEY_VALUES: list[tuple[Any, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [1, -1]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float32(), [0.5, -0.5]),
    (pa.decimal128(20, 2), [Decimal("1.00"), Decimal("-1.50")]),
    (pa.decimal256(50, 2), [Decimal("1.00"), Decimal("-1.50")]),
    (pa.string(), ["", "ü" * 100]),
    (pa.large_string(), ["a", "b"]),
    (pa.binary(), [b"", b"\x00\xff"]),
    (pa.date32(), [date(1969, 1, 1), date(2024, 1, 1)]),
    (pa.timestamp("ms"), [INSTANT.replace(tzinfo=None, microsecond=0), datetime(1900, 1, 1)]),
    (pa.timestamp("us", "UTC"), [INSTANT, EPOCH]),
    (pa.duration("us"), [timedelta(microseconds=1), timedelta(days=-5)]),
    (pa.time64("us"), [time(1, 2, 3), time(0)]),
]
VALUES: list[tuple[Any, list[Any]]] = [
    (pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])), [[{"a": 1, "b": None}], []]),
    (pa.large_list(pa.timestamp("us", "UTC")), [[INSTANT, None], []]),
    (pa.struct([("a", pa.list_(pa.int64())), ("b", pa.decimal128(5, 1))]), [{"a": [1], "b": Decimal("1.5")}, None]),
    (pa.map_(pa.string(), pa.list_(pa.int64())), [[("a", [1, None])], []]),
]


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
@pytest.mark.parametrize(("type_", "values"), KEY_VALUES + VALUES, ids=[str(type_) for type_, _ in KEY_VALUES + VALUES])
def test_values_of_every_type_are_kept(type_: Any, values: list[Any], store: Any) -> None:
    is_key = not pa.types.is_nested(type_)
    fields: list[Any] = [("k", pa.string()), ("v", type_), ("n", pa.int64())]
    rows = pa.table({"k": ["a", "b", "c"], "v": pa.array([*values, None], type_), "n": [1, 2, 3]})
    with TableHarness(Calls(pa.schema(fields), key=("k", "v") if is_key else "k"), store=store) as tests:
        tests.call(do("upsert", rows))
        tests.crash_and_recover()
        assert tests.contents() == rows.to_pylist()
        before = tests.metrics()
        assert before["live_entries"] == 3
        tests.call(do("upsert", rows))
        assert tests.metrics()["live_bytes"] == before["live_bytes"] > 0
        tests.crash_and_recover()
        if is_key:
            tests.call(do("merge", rows, {"n": "sum"}))
            assert tests.call(do("lookup", rows)).column("n").to_pylist() == [2, 4, 6]
            assert tests.call(do("scan", ("v", "==", values[1]))).num_rows == 1
        tests.call(do("delete", rows))
        assert tests.metrics()["live_entries"] == tests.metrics()["live_bytes"] == 0
