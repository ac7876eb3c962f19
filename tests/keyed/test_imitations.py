"""Objects that imitate another type are refused by type, or pass as they are: descriptions of columns, and values."""

from __future__ import annotations

import collections
import enum
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import attrs
import deltalake
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

import keyed
from keyed import pyflink, sql
from keyed.arrow.write import table_of_values
from keyed.base.schemas import schema_of
from keyed.destinations.kafka import TopicWriter, _columns
from keyed.destinations.sink import Owner
from keyed.errors import DefinitionError, KeyedError, SinkError, StateDefinitionError
from keyed.runtimes.local.table_rows import _table
from keyed.tables import read_tables
from keyed.testing import KeyedTestHarness
from keyed.topics import KafkaSink
from keyed.vectorized import TableState


@attrs.define
class Looks:
    names = ("a",)
    fields = ()
    columns = ("a",)

    def simpleString(self):  # noqa: N802
        return "struct<a:int>"


IMITATIONS: list[Any] = [
    *(
        None,
        True,
        1,
        b"a int",
        Path("a"),
        Decimal("NaN"),
        ("a", "int"),
        {"a": "int"},
        iter(["a"]),
        Looks(),
        MagicMock(),
    ),
    *(collections.OrderedDict(a=int), collections.defaultdict(int)),
    *(np.int64(1), np.array(["a"]), pd.Timestamp(0), pd.NaT, pd.Series(["a"]), pd.DataFrame({"a": [1]})),
    *(pl.DataFrame({"a": [1]}), pa.table({"a": [1]}), pa.record_batch({"a": [1]}), pa.field("a", pa.int64())),
    pa.struct([("a", pa.int64())]),
    type("HasDefaults", (tuple,), {"_field_defaults": {}}),
    type("HasFields", (tuple,), {"_field_defaults": {}, "_fields": None}),
]


@pytest.mark.parametrize("given", IMITATIONS, ids=lambda each: type(each).__name__)
def test_what_looks_like_columns_is_refused_by_name(given):
    for describe in (schema_of, lambda schema: TableState(schema, key="a")):
        with pytest.raises(DefinitionError, match="output type"):
            describe(given)


def test_a_subclass_of_text_is_text():
    assert schema_of(type("Text", (str,), {})("a int")).names == ("a",)


class HasFields:
    """It has the attribute of a named tuple, and is none."""

    _fields = ("v",)
    v = 1


class NamesAnother:
    """``isinstance`` says that it is a tuple."""

    @property  # type: ignore[misc]
    def __class__(self):
        return tuple

    _fields = ("v",)


class TupleWithFields(tuple[Any, ...]):
    __slots__ = ()
    _fields = None


class Number(enum.IntEnum):
    ONE = 1


#: Values that imitate another type by an attribute, a subclass or a protocol.
VALUES: list[Any] = [
    *(HasFields(), NamesAnother(), MagicMock(), MagicMock(spec=tuple), MagicMock(spec=int), TupleWithFields((1,))),
    *(collections.UserDict(v=1), collections.OrderedDict(v=1), collections.defaultdict(int, v=1), Counter(v=1)),
    *(Number.ONE, True, Decimal("NaN"), Decimal("sNaN"), float("nan"), Fraction(1, 2), 1j, range(3), "\ud800"),
    *(np.int64(1), np.float32(0.5), np.bool_(True), np.str_("a"), np.array(1), np.array([1]), np.datetime64("NaT")),
    *(pd.Timestamp(0), pd.Timestamp(0, tz="UTC"), pd.NaT, pd.NA, pd.Series([1]), pd.DataFrame({"v": [1]})),
    *((pd.Timestamp(0), 1), (pd.NaT,), (pa.array([1]), 1), (pl.DataFrame({"v": [1]}),)),
    *(pl.DataFrame({"v": [1]}), pa.table({"v": [1]}), pa.scalar(1), bytearray(b"a"), memoryview(b"a")),
]


class Passes(keyed.KeyedProcessFunction):
    value_ = keyed.ValueState(object)

    def __init__(self, use: Any) -> None:
        self.use = use

    def process_element(self, value, ctx):
        yield self.use(self, value, ctx)


class Kept(keyed.AggregateFunction):
    """The last element is the accumulator and the result."""

    def create_accumulator(self):
        return None

    def add(self, value, accumulator):
        return value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return b


class States(Passes):
    reduced = keyed.ReducingState(lambda _, value: value, object)
    aggregated = keyed.AggregatingState(Kept(), object)
    versions = keyed.VersionedState(object, history=10)
    items = keyed.ListState(object)
    entries = keyed.MapState(object, object)

    def on_timer(self, timestamp, ctx):
        yield timestamp


#: Uses of states: what writes a value, and what reads it.
WRITES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "a value": (lambda states, value: states.value_.update(value), lambda states: states.value_.value()),
    "a list element": (lambda states, value: states.items.add(value), lambda states: next(iter(states.items))),
    "a reducing state": (lambda states, value: states.reduced.add(value), lambda states: states.reduced.get()),
    "an aggregating state": (
        lambda states, value: states.aggregated.add(value),
        lambda states: states.aggregated.get(),
    ),
    "a version": (lambda states, value: states.versions.put(value, 1), lambda states: states.versions.get().value),
    "a map value": (lambda states, value: states.entries.put("k", value), lambda states: states.entries.get("k")),
    "a map key": (lambda states, value: states.entries.put(value, 1), lambda states: next(iter(states.entries.keys()))),
}


def write_twice(name: str) -> Any:
    """Return a use of states that writes a value twice, and reads it."""
    write, read = WRITES[name]

    def use(states: States, value: Any, _: Any) -> Any:
        write(states, value)
        write(states, value)
        return read(states)

    return use


def as_namespace(self, value, ctx):
    self.value_.namespace(value).update(1)
    return value


def as_timer(self, value, ctx):
    ctx.timer_service().set_timer(value, 5)
    return value


def harnessed(use: Any) -> Any:
    def run(value: Any) -> list[Any]:
        with KeyedTestHarness(States(use), key=lambda _: "k") as harness:
            harness.process(value, 1)
            return [record.value for record in harness.take_output()]

    return run


def of_stream(value: Any) -> list[Any]:
    if isinstance(value, pd.DataFrame | pl.DataFrame | pa.Table):
        # A list of tables is the rows of all of them.
        return []
    stream = keyed.stream([value, value]).key_by(lambda _: "k")
    return list(stream.process(States(lambda _, each, __: each)).run().values)


def of_key(value: Any) -> list[Any]:
    stream = keyed.stream([1]).key_by(lambda _: value)
    return list(stream.process(States(lambda _, __, ctx: ctx.get_current_key())).run().values)


def of_tables(value: Any) -> list[Any]:
    stream = keyed.stream([1]).map(lambda _: value).map_batches(lambda table: table)
    return list(stream.key_by(lambda _: "k").process(States(lambda _, each, __: each.v)).run().values)


def of_columns(columns: str) -> Any:
    def run(value: Any) -> list[Any]:
        output = keyed.stream([1]).key_by(lambda _: "k").process(States(lambda _, __, ___: {"v": value}), columns)
        return [row.v for row in output.run().values]

    return run


def of_file(write: Callable[[str, keyed.Output], pa.Table], columns: str) -> Any:
    def run(value: Any) -> list[Any]:
        output = keyed.stream([1]).key_by(lambda _: "k").process(States(lambda _, __, ___: {"v": value}), columns)
        with tempfile.TemporaryDirectory() as folder:
            return write(folder, output).column("v").to_pylist()

    return run


def parquet(folder: str, output: keyed.Output) -> pa.Table:
    output.run(keyed.parquet_sink(f"{folder}/rows"))
    return pq.read_table(f"{folder}/rows")


def delta(folder: str, output: keyed.Output) -> pa.Table:
    output.run(keyed.delta_sink(f"{folder}/rows"))
    return deltalake.DeltaTable(f"{folder}/rows").to_pyarrow_table()


def iceberg(folder: str, output: keyed.Output) -> pa.Table:
    place = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    output.run(keyed.iceberg_sink("lake.t", catalog="test", options=place))
    return load_catalog("test", **place).load_table("lake.t").scan().to_arrow()


def of_state_table(value: Any) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        function = States(lambda function, *_: write_twice("a value")(function, value, None))
        output = keyed.stream([1]).key_by(lambda _: "k").process(function)
        output.run(tables=f"{folder}/tables", checkpoint=f"{folder}/checkpoint")
        with read_tables(f"{folder}/tables") as tables:
            assert tables.sql("select * from value_").num_rows == 1
            return [tables["value_"].get("k")]


def of_topic(key: str | None) -> Any:
    def run(value: Any) -> list[Any]:
        sink = KafkaSink("t", bootstrap="127.0.0.1:1", key=key)
        ((text, _),) = TopicWriter(sink, Owner(["query"])).records([{"v": value}])
        assert issubclass(type(value), int | float | str | tuple | dict | Decimal | bytearray | memoryview)
        if text is not None:
            assert text == str(value).encode()
        return [value]

    return run


def of_script(type_: str) -> Any:
    def run(value: Any) -> list[Any]:
        text = f"CREATE STREAM s (k STRING KEY, v {type_}) WITH (FORMAT='JSON'); CREATE STREAM o AS SELECT * FROM s;"
        return [record.value["v"] for record in sql.script(text, {"s": [{"k": "k", "v": value}]})["o"]]

    return run


def of_script_as_text(value: Any) -> list[Any]:
    # Anything plain is text there.
    texts = of_script("STRING")(value)
    assert not texts or issubclass(type(value), int | float | str | dict | Decimal | datetime)
    return [value for _ in texts]


def of_elements(value: Any) -> list[Any]:
    if isinstance(value, pd.DataFrame | pl.DataFrame | pa.Table):
        # As in `of_stream`.
        return []
    stream: Any = pyflink.StreamExecutionEnvironment.get_execution_environment().from_collection([value, value])
    return list(stream.key_by(lambda _: "k").process(States(lambda _, each, __: each)).execute_and_collect())


SHARED = keyed.MapState(object, object, name="shared")


class Broadcasts(keyed.KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield next(iter(ctx.get_broadcast_state(SHARED).items()))[self.part]

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(SHARED).put(*((value, 1) if self.part == 0 else (1, value)))

    def __init__(self, part: int) -> None:
        self.part = part


def of_broadcast(part: int) -> Any:
    def run(value: Any) -> list[Any]:
        with KeyedTestHarness(Broadcasts(part), key=lambda _: "k", broadcast=[SHARED]) as harness:
            harness.process_broadcast_element(value)
            harness.process(1)
            return [record.value for record in harness.take_output()]

    return run


INPUTS = {
    "a broadcast key": of_broadcast(0),
    "a broadcast value": of_broadcast(1),
    "an element": harnessed(lambda _, value, __: value),
    "a list": of_stream,
    "a key": of_key,
    **{name: harnessed(write_twice(name)) for name in WRITES},
    "a collection": of_elements,
    "a file of ints": of_file(parquet, "v bigint"),
    "a file of texts": of_file(parquet, "v string"),
    "a file of times": of_file(parquet, "v timestamp"),
    "a Delta table of ints": of_file(delta, "v bigint"),
    "a Delta table of texts": of_file(delta, "v string"),
    "an Iceberg table of ints": of_file(iceberg, "v bigint"),
    "an Iceberg table of texts": of_file(iceberg, "v string"),
    "a state table": of_state_table,
    "a record of a topic": of_topic(None),
    "a key of a topic": of_topic("v"),
    "an int of a script": of_script("BIGINT"),
    "a text of a script": of_script_as_text,
    "a struct of a script": of_script("STRUCT<v BIGINT>"),
    "a namespace": harnessed(as_namespace),
    "a timer": harnessed(as_timer),
    "a table of a map": of_tables,
    "an int column": of_columns("v bigint"),
    "a float column": of_columns("v double"),
    "a text column": of_columns("v string"),
    "a struct column": of_columns("v struct<v: bigint>"),
}


#: Inputs of which each value costs more than half a second.
EXPENSIVE = ("an Iceberg table of ints", "an Iceberg table of texts", "a Delta table of ints", "a state table")


def is_same(found: Any, value: Any) -> bool:
    """Return true if a value came back as it was, or as the plain value that it stands for."""
    if found is value or type(found) is type(value) or (type(found).__name__ == type(value).__name__ == "MagicMock"):
        return True
    plain = value.value if isinstance(value, enum.Enum) else value.item() if isinstance(value, np.generic) else value
    plain = dict(plain) if isinstance(plain, collections.UserDict) else plain
    return bool(found == plain) and isinstance(plain, int | float | str | tuple | dict | Fraction | datetime)


@pytest.mark.parametrize("given", VALUES, ids=lambda each: object.__repr__(each).split()[0][1:])
@pytest.mark.parametrize(
    "where", [pytest.param(each, marks=[pytest.mark.slow] if each in EXPENSIVE else []) for each in INPUTS]
)
def test_a_value_that_imitates_another_type_comes_back_or_is_refused_by_type(where, given):
    try:
        found = INPUTS[where](given)
    except KeyedError:
        return
    assert all(is_same(each, given) for each in found), found


NO_NAMES: list[Any] = [None, 1, b"k", {"k": 1}, iter(["k"]), ["k", 1], pd.Series(["k"]), MagicMock()]


@pytest.mark.parametrize("given", NO_NAMES, ids=lambda each: type(each).__name__)
def test_a_key_of_a_table_that_is_no_name_is_refused(given):
    with pytest.raises(StateDefinitionError, match=r"(?s)key=.*give the name of a column"):
        TableState("k string, n bigint", key=given)


def test_what_has_fields_and_is_no_named_tuple_has_no_columns(tmp_path):
    output = keyed.stream([1]).key_by(lambda _: "k").process(States(lambda *_: HasFields()))
    uses: list[tuple[Callable[[], Any], str]] = [
        (lambda: output.run(tmp_path / "out"), "have no columns"),
        (lambda: _columns(HasFields()), "rows with named columns"),
        (lambda: _table([HasFields()], None, None, "here"), "has no columns"),
        (lambda: table_of_values([HasFields()], None), "no columns|column"),
    ]
    for use, message in uses:
        with pytest.raises(KeyedError, match=message):
            use()


def test_a_key_of_a_topic_without_a_text_of_its_own_is_refused():
    writer = TopicWriter(KafkaSink("t", bootstrap="127.0.0.1:1", key="v"), Owner(["query"]))
    for value, why in ((object(), "of type object"), (bytearray(b"a"), "of type bytearray"), ("\ud800", "is not text")):
        with pytest.raises(SinkError, match=why):
            writer.records([{"v": value}])
    several = TopicWriter(KafkaSink("t", bootstrap="127.0.0.1:1", key=["v", "w"]), Owner(["query"]))
    with pytest.raises(SinkError, match="cannot be written as Json"):
        several.records([{"v": object(), "w": 1}])


def test_the_remedy_for_a_value_declares_only_classes_with_fields():
    point = attrs.make_class("Point", ["x"])(1)
    for value, remedy in ((HasFields(), "store plain data"), (point, "declare the class")):
        with pytest.raises(KeyedError, match=remedy):
            harnessed(write_twice("a value"))(value)
