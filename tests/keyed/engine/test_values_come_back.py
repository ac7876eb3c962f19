"""A value is read within its batch as it is read after it: by the same type, zone and class, and not only equal.

Random values go into every kind of state, of declared and undeclared types, and are read back at once and at the next
row. What is read is compared by its text, in batches of one row, of two and of all rows, in memory and with RocksDB.
"""

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import AggregatingState, KeyedProcessFunction, ListState, MapState, ReducingState, ValueState
from keyed.errors import EncodingError
from keyed.rows import row
from keyed.testing import KeyedTestHarness
from tests.support.jobs import Pass

BERLIN = ZoneInfo("Europe/Berlin")
REPEATED_HOUR = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)


class Point(NamedTuple):
    x: float
    at: dt.datetime | None = None


@attrs.frozen
class Reading:
    level: float
    at: dt.datetime
    next: "Reading | None" = None


numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.just(-0.0)
zones: Any = st.sampled_from([None, dt.UTC, BERLIN, dt.timezone(dt.timedelta(hours=2))])
times = st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2100, 1, 1), timezones=zones) | st.sampled_from(
    [REPEATED_HOUR, REPEATED_HOUR.replace(fold=1), REPEATED_HOUR.replace(fold=1, tzinfo=None)]
)
clocks = st.sampled_from(
    [dt.time(2, 30), dt.time(2, 30, fold=1), dt.time(2, tzinfo=dt.timezone(dt.timedelta(hours=1)))]
)
readings = st.builds(Reading, numbers, times, st.none() | st.builds(Reading, numbers, times))
#: Declared types, and values of each.
TYPES: dict[Any, Any] = {
    float: numbers,
    float | None: numbers,
    int | float: numbers,
    dt.datetime: times,
    dt.time: clocks,
    tuple[float, ...]: st.lists(numbers, max_size=3).map(tuple),
    tuple[float, dt.datetime | None]: st.tuples(numbers, times | st.none()),
    frozenset[float]: st.frozensets(numbers, max_size=1),
    list[float]: st.lists(numbers, max_size=3),
    dict[str, dt.datetime]: st.dictionaries(st.text("ab", max_size=1), times),
    Point: st.builds(Point, numbers, st.none() | times),
    Reading: readings,
    object: times | st.tuples(numbers, times) | st.builds(lambda a, b: row(a=a, b=b), numbers, times),
}


class First:
    """An aggregate that keeps the first value."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value if accumulator is None else accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return a


#: Accumulators of these are changed in place, and hold what `add` puts there until the batch ends.
IN_PLACE = [list[float], dict[str, dt.datetime]]


def program(type_: Any) -> KeyedProcessFunction:
    class Program(KeyedProcessFunction):
        single = ValueState(type_)
        items = ListState(type_)
        entries = MapState(str, type_)
        first = ReducingState(lambda a, _: a, type_)
        kept = AggregatingState(First(), object if type_ in IN_PLACE else type_)

        def process_element(self, element: Any, ctx: Any) -> Iterator[Any]:
            value = element[1]
            yield self.shown()
            self.single.update(value)
            self.single.namespace("other").update(value)
            self.items.add(value)
            self.entries["x"] = value
            self.first.add(value)
            self.kept.add(None if type_ in IN_PLACE else value)
            yield self.shown()

        def shown(self) -> str:
            read = [self.single.value(), self.single.namespace("other").value(), self.items.get()]
            read += [list(self.entries.items()), self.first.get(), self.kept.get()]
            return repr(read)

    return Program()


def shown(function: Any, values: list[Any], size: int, store: Any = "memory") -> list[str]:
    with KeyedTestHarness(function, key=lambda _: 1, store=store) as harness:
        for start in range(0, len(values), size):
            with harness.batch():
                for value in values[start : start + size]:
                    harness.process((1, value))
        return [record.value for record in harness.take_output()]


def run_locally(function: Any, values: list[Any], size: int) -> list[str]:
    """Without checkpoint and changelog, where states stay as they are from batch to batch."""
    stream = keyed.stream([(1, value) for value in values]).key_by(lambda element: element[0])
    return stream.process(function, name="f").run(rows_per_batch=size).values


PROGRAMS = {type_: program(type_) for type_ in TYPES}


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(list(TYPES)).flatmap(lambda t: st.tuples(st.just(t), st.lists(TYPES[t], min_size=1, max_size=4)))
)
def test_what_is_read_does_not_depend_on_where_batches_are_cut(chosen: tuple[Any, list[Any]]) -> None:
    type_, values = chosen
    expected = shown(PROGRAMS[type_], values, 1)
    assert shown(PROGRAMS[type_], values, 2) == expected
    assert shown(PROGRAMS[type_], values, len(values)) == expected
    assert run_locally(PROGRAMS[type_], values, 1) == expected
    assert run_locally(PROGRAMS[type_], values, 2) == expected


def test_what_is_of_another_type_is_refused_where_it_is_stored_though_it_is_replaced_in_the_same_batch() -> None:
    class Replaces(KeyedProcessFunction):
        count = ValueState(int)

        def process_element(self, value: Any, ctx: Any) -> None:
            self.count.update(value)
            self.count.update(1)

    with (
        KeyedTestHarness(Replaces()) as harness,
        pytest.raises(EncodingError, match=r"value state 'count': True of type bool.*process_element of element True"),
    ):
        harness.process(True)


def reused(count: int, shape: str) -> Iterator[Any]:
    """Elements that share a list which the source changes."""
    shared: list[int] = []
    element: Any = {"dict": {"k": 1, "tags": shared, "in": {"it": [shared]}}, "tuple": (1, shared), "list": shared}[
        shape
    ]
    for n in range(count):
        shared.append(n)
        yield element


@pytest.mark.parametrize("shape", ["dict", "tuple", "list"])
def test_a_source_may_use_its_lists_again(shape: str) -> None:
    def run(size: int) -> list[Any]:
        stream = keyed.stream(reused(4, shape)).key_by(lambda _: 1)
        return [repr(value) for value in stream.process(Pass()).run(rows_per_batch=size).values]

    one_by_one = run(1)
    assert len(set(one_by_one)) == 4
    assert run(2) == run(1000) == one_by_one
