"""The strategies: rows of schemas, arrivals, steps, and their shrinking."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from decimal import Decimal
from random import Random
from typing import Any, Literal, NamedTuple, cast

import attrs
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from keyed.arrow.write import arrow_schema
from keyed.errors import DefinitionError
from keyed.extending import schema_of
from keyed.testing import Record, strategies
from keyed.testing.scripts import Crash, ProcessingTime, Rescale, Rows, Watermark

DDL = (
    "b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f float, d double, s string, y binary, day date, "
    "t timestamp, n timestamp_ntz, m decimal(10,2), a array<bigint>, p map<string,int>, r struct<x:int,y:string>"
)
ROW = strategies.rows("user string, n bigint", user=strategies.skewed("a", "b", "c"))


@attrs.frozen
class Booking:
    user: str
    amount: int
    at: dt.datetime


@dataclasses.dataclass(frozen=True)
class Click:
    user: str
    time: int


#: Without the phase that explains examples, which takes longer than to find them.
FINDING = settings(database=None, max_examples=500, phases=[Phase.generate, Phase.shrink])


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(NamedTuple):
    x: int
    y: float | None


@attrs.frozen
class Order:
    _user: str
    price: Decimal
    at: Place
    way: list[Place]
    colours: set[Colour]
    pair: tuple[int, str]
    kind: Literal["a", "b"]
    comment: Click | None = None
    number: int = attrs.field(init=False, default=1)


def smallest(strategy, condition):
    return find(strategy, condition, random=Random(1), settings=FINDING)


@given(strategies.rows(DDL))
def test_rows_of_a_schema_have_its_columns_and_types(row):
    import pyarrow as pa

    table = pa.Table.from_pylist([row], schema=arrow_schema(schema_of(DDL)))
    assert table.num_rows == 1
    assert isinstance(row["m"], Decimal)


@given(strategies.rows(Order))
def test_fields_of_a_class_have_objects_of_their_types(order):
    assert {type(place) for place in (order.at, *order.way)} == {Place}
    assert order.colours <= {*Colour}
    assert (type(order.pair), type(order.price), order.number) == (tuple, Decimal, 1)
    assert order.kind in ("a", "b")
    assert order.comment is None or type(order.comment) is Click


def test_a_field_may_be_none_and_may_not():
    for there in (True, False):
        assert smallest(strategies.rows(Place), lambda place: (place.y is not None) is there)  # noqa: B023


def test_decimals_take_all_their_digits():
    smallest(strategies.values("decimal(2,2)"), lambda value: abs(value) > Decimal("0.5"))
    smallest(strategies.values("decimal(38,38)"), lambda value: 0 < value < 1)


@given(strategies.rows("k string, n int, at struct<x:int,y:int>"))
def test_columns_come_in_the_order_of_the_schema(row):
    assert [*row] == ["k", "n", "at"]
    assert [*row["at"]] == ["x", "y"]


def test_a_column_that_is_not_there_or_has_no_values_is_refused():
    with pytest.raises(DefinitionError, match="column 'users' is not in the schema: user, n"):
        strategies.rows("user string, n bigint", users=st.just("a"))
    with pytest.raises(DefinitionError, match="'interval'"):
        strategies.rows("i interval")
    with pytest.raises(DefinitionError, match="a Python dictionary cannot have such keys"):
        strategies.rows("i map<array<int>,int>")
    with pytest.raises(DefinitionError, match="users='ann' is not a strategy"):
        strategies.rows("users string", users=cast("Any", "ann"))
    with pytest.raises(DefinitionError, match=r"Span.length: type .* is not supported; give rows a strategy"):
        strategies.rows(attrs.make_class("Span", {"length": attrs.field(type=dt.timedelta)}))
    with pytest.raises(DefinitionError, match="rows of int: give DDL"):
        strategies.rows(int)


@given(st.data())
def test_rows_may_be_objects_and_hold_their_timestamp(data):
    at = strategies.rows(Booking, at=st.just(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)))
    for record in data.draw(strategies.streams(at, timestamp="at", min_size=1)):
        assert round(record.value.at.timestamp() * 1000) == record.timestamp
    for record in data.draw(strategies.streams(strategies.rows(Click), timestamp="time", min_size=1)):
        assert record.value.time == record.timestamp


@given(strategies.streams(ROW), strategies.streams(ROW, delay=500))
def test_a_stream_is_in_order_or_disordered_within_its_delay(ordered, disordered):
    times = [record.timestamp for record in ordered]
    assert times == sorted(times)
    highest = 0
    for record in disordered:
        assert record.timestamp >= highest - 500
        highest = max(highest, record.timestamp)


def late(records, delay):
    return any(
        later.timestamp < record.timestamp - delay for n, record in enumerate(records) for later in records[n + 1 :]
    )


def test_what_may_arrive_does_and_shrinks_to_the_rows_that_matter():
    assert len(smallest(strategies.streams(ROW, delay=500, late=500, max_size=6), lambda found: late(found, 500))) == 2
    burst = smallest(
        strategies.streams(ROW, max_size=6), lambda found: len(found) > len({record.timestamp for record in found})
    )
    assert burst == [Record({"user": "a", "n": 0}, 0)] * 2


@given(st.lists(strategies.skewed("a", "b", "c"), min_size=200, max_size=200))
def test_the_first_key_is_drawn_most_but_not_alone(keys):
    assert set(keys) <= {"a", "b", "c"}


@given(st.data(), strategies.streams(ROW))
def test_steps_have_all_rows_in_their_order_and_clocks_that_only_move_forward(data, stream):
    done = data.draw(strategies.steps(stream, watermarks=True, crashes=True, parallelisms=(1, 2)))
    assert [row for step in done if isinstance(step, Rows) for row in step.rows] == stream
    for clock in (ProcessingTime, Watermark):
        times = [step.to for step in done if isinstance(step, clock)]
        assert times == sorted(set(times))
    assert {type(step) for step in done} <= {Rows, Watermark, ProcessingTime, Crash, Rescale}


@given(strategies.two_streams(strategies.streams(ROW), strategies.streams(ROW)))
def test_two_streams_keep_the_order_of_each(rows):
    for number in (1, 2):
        times = [record.timestamp for record in rows if record.input == number]
        assert times == sorted(times)


@given(st.from_type(Record), st.from_type(Rescale))
def test_hypothesis_knows_the_types(record, rescale):
    assert isinstance(record.timestamp, int)
    assert rescale.parallelism >= 1


def test_a_key_falls_silent_by_itself():
    def silent_for_a_minute_while_another_comes(rows):
        times = {key: [row.timestamp for row in rows if row.value["user"] == key] for key in ("a", "b")}
        gaps = zip(times["a"], times["a"][1:], strict=False)
        return any(end - start >= 60_000 and any(start < time < end for time in times["b"]) for start, end in gaps)

    users = strategies.rows("user string", user=strategies.skewed("a", "b"))
    stream = strategies.streams(users, silence=60_000, silent="user", max_size=5)
    assert len(smallest(stream, silent_for_a_minute_while_another_comes)) == 3
