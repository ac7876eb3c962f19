"""Values are read without the classes that they were written with."""

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict

import attrs
import msgspec
import pytest

from keyed.codec.values import value_codec
from keyed.content.entry_decoder import value_reader
from keyed.errors import CorruptionError
from tests.keyed.codec.support import PICKLES


class Color(enum.Enum):
    RED = "r"


@attrs.frozen
class Point:
    x: int
    y: float = 1.0


@dataclasses.dataclass
class Typed:
    point: Point
    points: dict[str, Point]
    color: Color
    when: dt.datetime
    price: Decimal | None = None


@dataclasses.dataclass
class Untyped:
    point: Point
    anything: Any


class Position(NamedTuple):
    line: int
    place: tuple[str, int] = ("", 0)


class Left(msgspec.Struct, tag=True):
    x: int


class Right(msgspec.Struct, tag=True):
    x: int


class Array(msgspec.Struct, tag=3, array_like=True):
    x: int


class Dict(TypedDict):
    a: int
    b: NotRequired[str]


@attrs.define
class Node:
    value: Decimal
    following: Optional["Node"] = None


NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
ID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("type_", "value", "read"),
    [
        (int, 2**80, "1208925819614629174706176"),
        (bytes, b"x", "b'x'"),
        (Point, Point(1), "Point(x=1, y=1.0)"),
        (Point, Point(2**70), f"Point(x={2**70}, y=1.0)"),
        (
            Typed,
            Typed(Point(1), {"k": Point(2)}, Color.RED, NOW, Decimal("2.50")),
            (
                "Typed(point=Point(x=1, y=1.0), points={'k': Point(x=2, y=1.0)}, color='r', "
                f"when={NOW!r}, price=Decimal('2.50'))"
            ),
        ),
        (Untyped, Untyped(Point(1), {1: (2, NOW)}), f"Untyped(point=Point(x=1, y=1.0), anything={{1: (2, {NOW!r})}})"),
        (Position, Position(1, ("a", 2)), "Position(line=1, place=('a', 2))"),
        (Left | Right, Right(7), "Right(x=7)"),
        (set[Point], {Point(1)}, "{Point(x=1, y=1.0)}"),
        (frozenset[tuple[int, ...]], frozenset({(1, 2)}), "frozenset({(1, 2)})"),
        (int | str | None, None, "None"),
        (Literal["a", 1], "a", "'a'"),
        (Array, Array(4), "Array(x=4)"),
        (object, {(1, 2): Decimal(3)}, "{(1, 2): Decimal('3')}"),
        (Node, Node(Decimal(1), Node(Decimal(2))), "{'following': {'following': None, 'value': '2'}, 'value': '1'}"),
        (dict[uuid.UUID, dt.date], {ID: dt.date(2020, 1, 1)}, f"{{{ID!r}: datetime.date(2020, 1, 1)}}"),
        (Dict, {"a": 1}, "Dict(a=1, b=None)"),
        (Annotated[int, msgspec.Meta(ge=0)], 3, "3"),
        (list, [1, (2,)], "[1, (2,)]"),
    ],
)
def test_values_come_back_as_they_were_written(type_, value, read):
    codec = value_codec(type_)
    decode = value_reader(codec.fingerprint)
    assert repr(decode(codec.encode(value))) == read
    for damaged in (b"", codec.encode(value) + b"\0", b"\xc1", *PICKLES):
        with pytest.raises(CorruptionError):
            decode(damaged)


def test_fields_whose_names_are_no_names():
    Odd = TypedDict("Odd", {"a-b": int, "class": str})
    codec = value_codec(Odd)
    assert repr(value_reader(codec.fingerprint)(codec.encode({"a-b": 1, "class": "x"}))) == (
        "Odd(field_0=1, field_1='x')"
    )


@pytest.mark.parametrize(
    "fingerprint",
    ["x", {}, {"kind": "list"}, {"kind": "q"}, 5, None, {"kind": "fields", "name": 1, "fields": {}}, {"kind": "union"}],
)
def test_what_is_no_fingerprint_is_corruption(fingerprint):
    with pytest.raises(CorruptionError, match="malformed"):
        value_reader(fingerprint)
