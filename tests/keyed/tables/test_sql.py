"""SQL over state tables against pandas, whatever the predicates; and what a query cannot reach."""

from __future__ import annotations

import datetime as dt
import enum
import gc
import os
import random
import signal
import weakref
from contextlib import suppress
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.tables import read_tables, sql
from keyed.tables.predicates import bounds_of
from tests.support.data_files import read_data
from tests.support.states import Average
from tests.support.tables import entries_read, followed


@attrs.frozen
class Reading:
    at: dt.datetime
    level: float | None
    tags: list[str]
    place: tuple[int, str]


class Readings(keyed.KeyedProcessFunction):
    last = keyed.ValueState(Reading)
    count = keyed.ValueState(int)
    by_day = keyed.MapState(dt.date, Decimal)
    seen = keyed.ListState(int)
    note = keyed.ValueState(object)

    def process_element(self, value, ctx):
        _, number = value
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number)
        self.last.update(Reading(at, None if number % 5 == 0 else number / 4, ["a"] * (number % 3), (number, "x")))
        self.count.update((self.count.value() or 0) + number)
        self.by_day.put(at.date(), Decimal(number) / 8)
        self.seen.add(number)
        self.note.update({"number": number, "parts": [1, None]})
        self.count.namespace((0, number)).update(number)


KEYS: dict[str, list[Any]] = {
    "text": ["", "a", "ab", "b", 'it\'s "quoted"', "ü", "z\0z"],
    "numbers": [-(2**63), -5, 0, 3, 4, 2**63 - 1],
    "pairs": [("a", 1), ("a", 2), ("a\0", 1), ("b", -1), ("", 0)],
}


@pytest.fixture(scope="module", params=KEYS)
def tables(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    chance = random.Random(7)
    with followed(Readings(), folder, parallelism=3) as (harness, tables):
        with harness.batch():
            for number in range(60):
                harness.process((chance.choice(KEYS[request.param]), number))
        tables.poll()
        yield tables


def keys_of(tables) -> list[str]:
    return [name for name in tables["count"].dataset().schema.names if name.startswith("key")]


def literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


@settings(max_examples=30)
@given(data=st.data())
def test_a_query_gives_what_pandas_gives(tables, data):
    frame = pd.DataFrame(tables["count"].dataset().to_table().to_pylist())
    names = keys_of(tables)
    conditions, masks = [], []
    for _ in range(data.draw(st.integers(0, 3))):
        name = data.draw(st.sampled_from([*names, "value"]))
        known = sorted(set(frame[name]))
        value = data.draw(st.sampled_from(known))
        operator = data.draw(st.sampled_from(["=", "<", "<=", ">", ">=", "in", "between", "not"]))
        if isinstance(value, str) and "\0" in value:
            continue  # SQL text has no such constant
        column = frame[name]
        if operator == "in":
            others = [other for other in known[:3] if not (isinstance(other, str) and "\0" in other)]
            conditions.append(f"{name} in ({', '.join(map(literal, [*others, value]))})")
            masks.append(column.isin([*others, value]))
        elif operator == "between":
            conditions.append(f"{name} between {literal(value)} and {literal(value)}")
            masks.append(column == value)
        elif operator == "not":
            conditions.append(f"not ({name} = {literal(value)})")
            masks.append(column != value)
        else:
            conditions.append(f"{name} {operator} {literal(value)}")
            compared = {"=": column.eq, "<": column.lt, "<=": column.le, ">": column.gt, ">=": column.ge}
            masks.append(compared[operator](value))
    join = data.draw(st.sampled_from([" and ", " or "]))
    mask = pd.concat(masks, axis=1).agg("all" if join == " and " else "any", axis=1) if masks else slice(None)
    where = f" where {join.join(conditions)}" if conditions else ""
    found = tables.sql(f"select {', '.join(names)}, namespace, value from count{where}").to_pandas()
    expected = frame[mask].reset_index(drop=True)
    assert found.astype(object).where(found.notna(), None).values.tolist() == (
        expected[[*names, "namespace", "value"]]
        .astype(object)
        .where(expected[[*names, "namespace", "value"]].notna(), None)
        .values.tolist()
    )


def test_only_the_keys_that_are_asked_for_are_read(tables, monkeypatch):
    name = keys_of(tables)[0]
    read = entries_read(tables, monkeypatch)
    value = tables["count"].dataset().to_table()[name][0].as_py()
    read.clear()
    if not (isinstance(value, str) and "\0" in value):
        found = tables.sql(f"select * from count where {name} = ?", [value])
        assert 0 < found.num_rows <= len(read) <= found.num_rows + 2


def test_types_of_values_are_columns(tables):
    names = keys_of(tables)
    schema = tables["last"].dataset().schema
    assert schema.names == [*names, "namespace", "at", "level", "tags", "place"]
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("tags").type == pa.list_(pa.string())
    row = tables.sql('select * from last order by "at" desc limit 1').to_pylist()[0]
    assert row["place"] == {"item_1": 59, "item_2": "x"}
    assert row["tags"] == ["a", "a"]
    assert tables.sql("select sum(value) as s from by_day").to_pylist()[0]["s"] is not None
    assert tables["by_day"].dataset().schema.field("entry").type == pa.date32()
    assert '"parts":[1,null]' in tables.sql("select value from note limit 1").to_pylist()[0]["value"]
    joined = f"select count(*) as n from last join seen using ({', '.join(names)})"
    assert tables.sql(joined).to_pylist() == [{"n": 60}]


def test_polars_reads_the_dataset(tables):
    name = keys_of(tables)[0]
    dataset = tables["count"].dataset()
    value = dataset.to_table()[name][0].as_py()
    found = pl.scan_pyarrow_dataset(dataset).filter(pl.col(name) == value).collect()
    assert found.height == sum(row[name] == value for row in dataset.to_table().to_pylist()) > 0


@pytest.mark.parametrize("query", read_data("keyed/tables/hostile_queries.json")["refused"])
def test_a_query_reaches_nothing_but_the_tables(tables, query):
    names = ["a python variable"]  # noqa: F841 - DuckDB would find it by default
    with pytest.raises(keyed.errors.DefinitionError, match="sql: "):
        tables.sql(query)


def test_what_fails_while_it_runs_says_so(tables):
    with pytest.raises(keyed.KeyedError, match=r"sql: .*Conver"):
        tables.sql("select cast(tags[1] as integer) from last where len(tags) > 0")


@given(
    st.recursive(
        st.tuples(st.sampled_from(["a", "n"]), st.sampled_from(["eq", "lt", "ge", "in", "null"]), st.integers(-2, 2)),
        lambda inner: st.tuples(st.sampled_from(["and", "or", "not", "if"]), inner, inner),
        max_leaves=5,
    )
)
@settings(deadline=None)
def test_bounds_let_through_whatever_the_filter_does(tree):
    table = pa.table({"a": [str(n) for n in range(-2, 3)] * 5, "n": [n for n in range(-2, 3) for _ in range(5)]})

    def build(node) -> pc.Expression:
        kind, left, right = node
        if kind in ("a", "n"):
            field = pc.field(kind)
            value = str(right) if kind == "a" else right
            made = {
                "eq": field == value,
                "lt": field < value,
                "ge": field >= value,
                "in": field.isin([value, value]),
                "null": field.is_null(),
            }
            return made[left]
        if kind == "not":
            return ~build(left)
        if kind == "if":
            return pc.if_else(build(left), build(right), pc.scalar(True))
        return build(left) & build(right) if kind == "and" else build(left) | build(right)

    expression = build(tree)
    bounds = bounds_of(expression, table.schema)
    for row in table.filter(expression).to_pylist():
        for name, bound in bounds.items():
            assert bound.values is None or row[name] in bound.values
            assert bound.least is None or row[name] >= bound.least
            assert bound.greatest is None or row[name] <= bound.greatest


def test_a_scan_ends_with_its_query_though_arrow_reads_ahead(tmp_path, monkeypatch):
    """Arrow's threads went on reading after the query, and met the closing of the folder."""
    monkeypatch.setattr("keyed.tables.state_dataset._ROWS", 100)
    with followed(Many(), tmp_path) as (harness, tables):
        harness.process(("a", 20_000))
        tables.poll()
        assert tables.sql("select entry from many limit 2").num_rows == 2
        dataset = tables["many"].dataset()
        reader = dataset.scanner().to_reader()
        read = reader.read_next_batch().num_rows
        dataset.end_scans()
        assert read + sum(batch.num_rows for batch in reader) < 20_000
        assert tables.sql("select count(*) as n from many").to_pylist() == [{"n": 20_000}]


class Many(keyed.KeyedProcessFunction):
    many = keyed.MapState(int, int)

    def process_element(self, value, ctx):
        for number in range(value[1]):
            self.many.put(number, number)


class Color(enum.Enum):
    RED = "red"


@attrs.frozen
class Car:
    color: Color


class Cars(keyed.KeyedProcessFunction):
    car = keyed.ValueState(Car)
    speed = keyed.AggregatingState(Average(), tuple[int, int])

    def process_element(self, value, ctx):
        self.car.update(Car(Color.RED))
        self.speed.add(value)
        return ()


@attrs.frozen
class Holder:
    id: UUID
    parent: UUID | None
    others: list[UUID]


class Holders(keyed.KeyedProcessFunction):
    holder = keyed.ValueState(Holder)

    def process_element(self, value, ctx):
        self.holder.update(Holder(*value))
        return ()


def test_a_uuid_is_the_same_text_wherever_it_is_declared(tmp_path):
    first, second = UUID(int=1), UUID(int=2)
    rows = [(first, second, [second]), (second, None, [])]
    result = keyed.stream(rows).key_by(lambda value: value[0]).process(Holders()).run(tables=tmp_path / "tables")
    with result.tables as tables:
        found = tables.sql(f"select id, parent, others from holder where parent = '{second}'").to_pylist()
        assert found == [{"id": str(first), "parent": str(second), "others": [str(second)]}]


def test_sql_has_what_is_stored_whatever_types_the_user_reads_it_in(tmp_path):
    result = keyed.stream([1, 4]).key_by(lambda value: "a").process(Cars()).run(tables=tmp_path / "tables")
    with result.tables as tables:
        assert (tables["car"].get("a"), tables["speed"].get("a")) == (Car(Color.RED), 2.5)
        assert tables.sql("select color from car").to_pylist() == [{"color": "red"}]
        assert tables.sql("select value from speed").to_pylist() == [{"value": {"item_1": 5, "item_2": 2}}]
        assert tables["car"].get("a") == Car(Color.RED)


def test_a_forked_process_opens_its_own_database(tables):
    """Whatever another thread was at in that of its parent."""
    assert tables.sql("select 1 as one").to_pylist() == [{"one": 1}]
    before, inherited = sql._database(), list(sql._free.queue)
    assert inherited
    with sql._free.mutex:
        child = os.fork()
    if child == 0:
        # It may hang.
        signal.alarm(60)
        status = 1
        with suppress(BaseException), read_tables(tables.path) as own:
            found = own.sql("select 1 as one").to_pylist()
            free = sql._free.queue
            is_own = sql._database() is not before and not any(each in inherited for each in free)
            status = 0 if found == [{"one": 1}] and is_own and len(free) == 1 else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sql._database() is before
    assert tables.sql("select 1 as one").to_pylist() == [{"one": 1}]


def test_closed_tables_are_kept_by_no_connection(tmp_path):
    with followed(Readings(), tmp_path) as (harness, tables):
        harness.process(("a", 1))
        tables.poll()
        for _ in range(2):
            assert tables.sql("select count(*) as n from count").to_pylist() == [{"n": 2}]
        kept = weakref.ref(tables._operators["function"].source)
    del tables
    gc.collect()
    assert kept() is None
