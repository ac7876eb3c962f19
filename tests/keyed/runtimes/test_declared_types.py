"""Outputs have their declared types on both runtimes, whatever form a function emits its values in."""

from __future__ import annotations

import datetime as dt
import enum
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed.arrow.read import table_rows
from keyed.arrow.write import table_of
from keyed.base.schemas import schema_of
from keyed.rows import row
from tests.keyed.arrow.test_write import LEAVES
from tests.keyed.arrow.test_write import TYPES as PLAIN
from tests.support.jobs import Tally

BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


@attrs.frozen
class Point:
    a: int
    b: float


#: Values of each type in the forms that a column takes.
FORMS: dict[str, list[Any]] = {
    "boolean": [True],
    "tinyint": [-1, Level.HIGH, np.int8(3)],
    "bigint": [2**62, np.int64(4), Level.HIGH],
    "float": [0.1, 1, np.float64(0.1), -0.0],
    "double": [1, 0.1, -0.0, 2**53, np.float32(0.5)],
    "decimal(10,2)": [1, Decimal("1.5"), Decimal("1E+1"), Decimal("-0")],
    "decimal(38,0)": [10**37],
    "string": ["ü", UUID(int=1), Colour.RED, np.str_("x")],
    "binary": [b"a", bytearray(b"x")],
    "date": [dt.date(1, 1, 1)],
    "timestamp": [0, dt.datetime(2020, 7, 1, tzinfo=BERLIN), dt.datetime(1, 1, 2, tzinfo=dt.UTC)],
    "timestamp_ntz": [dt.datetime(9999, 12, 31)],
    "interval day to second": [dt.timedelta(days=-1, microseconds=1)],
    "array<double>": [[1, 2.5], (1,), {3}, [None, math.nan]],
    "array<string>": [["a"], (UUID(int=2), Colour.RED)],
    "map<string,timestamp>": [{"a": 0}, {}],
    "struct<a:int,b:double>": [{"a": 1, "b": math.nan}, (1, 2), Point(1, 2), row(b=1, a=2)],
    "array<struct<a:decimal(5,1),b:float>>": [[{"a": 1, "b": 2}, (Decimal("1.0"), 0.1)], [None]],
}


#: Numbers of milliseconds and times with microseconds are refused in one column.
TYPES = PLAIN | st.sampled_from(sorted(FORMS)).map(
    lambda type_: (type_, st.sampled_from(FORMS[type_]) | LEAVES.get(type_ * (type_ != "timestamp"), st.nothing()))
)


class Emit(keyed.KeyedProcessFunction):
    """Emits the values that it has."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        yield self.values[value["i"]]


class Look(keyed.KeyedProcessFunction):
    """Keeps the rows that it gets."""

    rows: ClassVar[list[Any]] = []

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[tuple[int]]:
        yield self.note(value)

    @classmethod
    def note(cls, value: Any) -> tuple[int]:
        cls.rows.append(value)
        return (1,)


def typed(value: Any) -> Any:
    """Return a value with all of its types."""
    if isinstance(value, list | tuple):
        return type(value).__name__, getattr(value, "_fields", None), [typed(each) for each in value]
    if isinstance(value, dict):
        return [(typed(key), typed(each)) for key, each in value.items()]
    return type(value), repr(value)


SHAPES: dict[str, Any] = {"tuple": tuple, "dict": dict, "row": lambda pairs: row(**dict(pairs))}


@given(st.data(), st.sampled_from(sorted(SHAPES)), st.integers(1, 4))
def test_rows_have_the_declared_types_in_every_reader(data: Any, shape: str, rows_per_batch: int) -> None:
    types = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    ddl = "i bigint, " + ", ".join(f"c{number} {type_}" for number, (type_, _) in enumerate(types))
    cells = data.draw(st.lists(st.tuples(*[st.none() | values for _, values in types]), min_size=1, max_size=4))
    tuples = [(number, *each) for number, each in enumerate(cells)]
    pairs = [list(zip(schema_of(ddl).names, each, strict=True)) for each in tuples]
    values = tuples if shape == "tuple" else [SHAPES[shape](each) for each in pairs]
    # Spark gets these columns.
    expected = typed(table_rows(table_of(tuples, schema_of(ddl))))

    source = keyed.stream([{"i": number} for number in range(len(values))])
    output = source.key_by("i").process(Emit(values), ddl)
    assert typed(output.run(rows_per_batch=rows_per_batch).values) == expected
    for read in (output.key_by("i").process(Look(), "i bigint"), output.map(Look.note, output="i bigint")):
        Look.rows = []
        read.run(rows_per_batch=rows_per_batch)
        assert typed(Look.rows) == expected


def test_bare_values_and_objects() -> None:
    source = [{"i": 0}, {"i": 1}]
    assert typed(keyed.stream(source).key_by("i").process(Emit([1, (2,)]), "n double").run().values) == typed(
        [1.0, row(n=2.0)]
    )
    points = [Point(1, 2), (1, 2)]
    found = keyed.stream(source).key_by("i").process(Emit(points), "a bigint, b double").run().values
    assert typed(found) == typed([Point(1, 2), row(a=1, b=2.0)])


def test_a_number_is_the_same_key_in_the_next_stage() -> None:
    source = [{"i": number} for number in range(3)]
    rows = keyed.stream(source).key_by("i").process(Emit([(1,), (1.0,), (-0.0,)]), "x double")
    assert sorted(rows.key_by("x").process(Tally(), "x double, n bigint").run().values) == [
        (0.0, 1),
        (1.0, 1),
        (1.0, 2),
    ]


@pytest.mark.slow
def test_spark_gives_the_same(spark: Any) -> None:
    ddl = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(FORMS))
    most = max(map(len, FORMS.values()))
    values = [
        (number, *(each[number] if number < len(each) else None for each in FORMS.values())) for number in range(most)
    ]
    source = [{"i": number} for number in range(most)]
    rows = [
        keyed.stream(data).key_by("i").process(Emit(values), f"i bigint, {ddl}").run().values
        for data in (source, spark.createDataFrame([(number,) for number in range(most)], "i bigint"))
    ]
    assert typed(sorted(rows[0])) == typed(sorted(rows[1]))
