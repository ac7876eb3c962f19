"""Output columns: every value that a column takes comes back, and what does not fit is refused with its place."""

import dataclasses
import datetime as dt
import enum
import uuid
import zoneinfo
from decimal import Decimal

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.arrow.read import column_values
from keyed.arrow.write import arrays_of, arrow_schema, arrow_type, converted_columns, table_of
from keyed.base.schemas import schema_of
from keyed.errors import OutputDefinitionError
from keyed.rows import row

UTC = dt.UTC


def round_trip(values, ddl):
    table = table_of(values, schema_of(ddl), "operator 'x'")
    columns = [column_values(column) for column in table.columns]
    return list(zip(*columns, strict=True))


LEAVES = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(codec="utf-8")),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(20,3)": st.decimals(-(10**15), 10**15, places=3, allow_nan=False),
}


def with_type(inner):
    """Pairs of a type and a strategy of its values, nested."""
    return st.one_of(
        inner.map(lambda t: (f"array<{t[0]}>", st.lists(st.none() | t[1], max_size=3))),
        st.tuples(st.sampled_from(["string", "bigint"]), inner).map(
            lambda t: (f"map<{t[0]},{t[1][0]}>", st.dictionaries(LEAVES[t[0]], st.none() | t[1][1], max_size=3))
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda fields: (
                "struct<" + ",".join(f"f{i}:{t}" for i, (t, _) in enumerate(fields)) + ">",
                st.tuples(*[st.none() | values for _, values in fields]),
            )
        ),
    )


TYPES = st.recursive(st.sampled_from(sorted(LEAVES)).map(lambda t: (t, LEAVES[t])), with_type, max_leaves=4)


@given(st.data())
def test_every_value_of_a_column_type_comes_back(data):
    type_, values = data.draw(TYPES)
    column = data.draw(st.lists(st.none() | values, min_size=1, max_size=5))
    # Rows of nested structs are equal to the tuples that they were made from.
    assert round_trip([(value,) for value in column], f"c {type_}") == [(value,) for value in column]


@attrs.frozen
class Made:
    a: int
    s: str


@dataclasses.dataclass
class Data:
    s: str
    a: int


def test_rows_in_lists_are_structs():
    assert table_of([row(a=[row(x=1, y="z")])], None).to_pylist() == [{"a": [{"x": 1, "y": "z"}]}]


def test_values_of_several_forms_are_one_table():
    values = [Made(1, "x"), (2, "y"), {"s": "z", "a": 3}, row(s="q", a=4), Data("w", 5)]
    assert round_trip(values, "a bigint, s string") == [(1, "x"), (2, "y"), (3, "z"), (4, "q"), (5, "w")]


def test_one_column_takes_bare_values():
    assert round_trip([1, (2,), {"n": 3}], "n int") == [(1,), (2,), (3,)]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (uuid.UUID(int=1), "string", "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "string", "red"),
        (Level.HIGH, "bigint", 2),
        (np.int64(3), "int", 3),
        (np.float32(0.5), "double", 0.5),
        (3, "double", 3.0),
        (3, "decimal(5,2)", Decimal(3)),
        (1500, "timestamp", dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        (
            dt.datetime(2020, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            "timestamp",
            dt.datetime(2020, 1, 1, tzinfo=UTC),
        ),
        ({3, 1}, "array<int>", [1, 3]),
        (Made(1, "x"), "struct<s:string,a:int>", ("x", 1)),
    ],
)
def test_values_are_converted_as_documented(value, type_, expected):
    [(found,)] = round_trip([(value,)], f"c {type_}")
    assert (sorted(found) if isinstance(value, set) else found) == expected


@pytest.mark.parametrize(
    ("value", "type_", "said"),
    [
        (1.5, "bigint", "1.5 of type float"),
        (True, "int", "True of type bool"),
        (np.True_, "int", "of type bool"),
        ("1", "int", "'1' of type str"),
        (300, "tinyint", "tinyint takes int in its range"),
        (2**63, "bigint", "bigint takes int in its range"),
        (2**60 + 1, "double", "that they hold exactly"),
        (True, "double", "True of type bool"),
        (1, "string", "string takes str"),
        (b"x", "string", "string takes str"),
        ("x", "binary", "binary takes bytes"),
        ("\ud800", "string", "surrogates"),
        (dt.datetime(2020, 1, 1), "timestamp", "takes an aware datetime"),
        (dt.datetime(2020, 1, 1, tzinfo=UTC), "timestamp_ntz", "takes a naive datetime"),
        (dt.datetime(2020, 1, 1), "date", "date takes datetime.date"),
        (2**60, "timestamp", "out of range"),
        (253_402_300_800_000, "timestamp", "out of range, the years 1 to 9999"),
        (Decimal("1.005"), "decimal(10,2)", "decimal(10,2) takes"),
        (1.5, "decimal(10,2)", "decimal(10,2) takes"),
        ("ab", "array<string>", "array takes list"),
        ([1, "x"], "array<int>", "column 'c'[]: 'x' of type str"),
        ([(1, 2)], "map<int,int>", "map takes dict"),
        ({None: 1}, "map<int,int>", "no null key"),
        ({"k": "x"}, "map<string,int>", "map value"),
        ({"b": 1}, "struct<a:int>", "lacks 'a'"),
        ((1, 2), "struct<a:int>", "2 values for 1 columns"),
        ({"a": {"b": "x"}}, "struct<a:struct<b:int>>", "column 'c'.a.b: 'x'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(value, type_, said):
    with pytest.raises(OutputDefinitionError) as caught:
        table_of([(None,), (value,)], schema_of(f"c {type_}"), "operator 'x', main output")
    assert said in str(caught.value)
    assert "operator 'x', main output, column 'c'" in str(caught.value)
    schema = arrow_schema(schema_of(f"c {type_}"))
    for values in ([(value,)], [(None,), (value,)]):
        with pytest.raises(OutputDefinitionError) as checked:
            converted_columns(values, schema, "operator 'x', main output", raw=False)
        assert str(checked.value) == str(caught.value)


@pytest.mark.parametrize("value", [(1,), {"a": 1}, row(a=1), object()])
def test_a_value_that_lacks_a_column_is_refused(value):
    with pytest.raises(OutputDefinitionError, match="the columns are a, b"):
        table_of([value], schema_of("a int, b int"))


@pytest.mark.parametrize("type_", ["variant", "nonsense", "map<int>", "array<", "geometry(4326)"])
def test_a_type_that_is_not_known_is_refused(type_):
    with pytest.raises(OutputDefinitionError):
        arrow_type(type_)


def test_rows_without_a_declared_type_get_the_types_that_arrow_finds():
    table = table_of([row(a=1, b=row(c="x")), row(a=2, b=None)], None)
    assert table.schema == pa.schema([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])


def test_milliseconds_and_times_of_another_season_are_one_column():
    summer = dt.datetime(2020, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    assert round_trip([(0,), (summer,)], "c timestamp")[1] == (dt.datetime(2020, 6, 30, 22, tzinfo=UTC),)


def test_values_of_the_types_need_no_conversion():
    def convert(values):
        return converted_columns(values, arrow_schema(schema_of("a bigint, b string, c double")), "x", raw=False)

    assert convert([(2**63 - 1, "ü", 1.0), (-(2**63), "", 1.5), (None, None, None)])[1]
    assert convert([])[1]
    assert convert([(1, "a", 1)]) == ([(1,), ("a",), [1.0]], False)


def test_no_values_give_empty_columns():
    schema = arrow_schema(schema_of("a int, b struct<c:array<string>>, d map<string,date>"))
    assert [len(array) for array in arrays_of([], schema, "x")] == [0, 0, 0]
