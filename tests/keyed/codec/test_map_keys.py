"""Map keys of declared types: round trip, order, refusals, damage, and the layout itself."""

import contextlib
import dataclasses
import datetime as dt
import enum
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional
from uuid import UUID

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.codec.keys import encode_key
from keyed.codec.map_keys import map_key_codec
from keyed.errors import CorruptionError, EncodingError
from tests.keyed.codec.support import KEY_LEAVES, KEYS, mutations


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@attrs.frozen
class Place:
    country: str
    _city: str = ""


@dataclasses.dataclass(frozen=True)
class Slot:
    start: int
    color: Color | None = None


class Window(NamedTuple):
    start: int
    end: int


class Named(NamedTuple):
    window: Window
    level: Level


class Frozen(msgspec.Struct, frozen=True):
    weight: float


@attrs.define
class Mutable:
    a: int


@dataclasses.dataclass(frozen=True)
class Made:
    a: int
    b: int = dataclasses.field(init=False, default=1)


@attrs.frozen
class Chain:
    rest: Optional["Chain"] = None


@attrs.frozen
class Positive:
    value: int = attrs.field(validator=attrs.validators.gt(0))


CASES = [
    (type(None), None, None),
    (bool, True, True),
    (int, 5, 5),
    (int, 2**70, 2**70),
    (float, 1.5, 1.5),
    (str, "JFK", "JFK"),
    (bytes, b"a", b"a"),
    (dt.datetime, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    (dt.date, dt.date(2024, 1, 1), dt.date(2024, 1, 1)),
    (dt.timedelta, dt.timedelta(1), dt.timedelta(1)),
    (Decimal, Decimal("1.5"), Decimal("1.5")),
    (UUID, UUID(int=1), UUID(int=1)),
    (tuple[int, str], (1, "a"), (1, "a")),
    (tuple[int, ...], (1, 2), (1, 2)),
    (tuple, (1, "a"), (1, "a")),
    (int | None, None, None),
    (int | str, "a", "a"),
    (float | str, 1.5, 1.5),
    (float | int, 1, 1),
    (Literal["a", "b"], "a", "a"),
    (Annotated[int, msgspec.Meta(ge=0)], 5, 5),
    (Annotated[int, []], 5, 5),
    (Color, Color.RED, "red"),
    (Color | None, Color.RED, "red"),
    (Color | None, None, None),
    (Level, Level.HIGH, 2),
    (tuple[Color, int], (Color.BLUE, 1), ("blue", 1)),
    (tuple[Color, ...], (Color.BLUE, Color.RED), ("blue", "red")),
    (tuple[float, int], (1, 2), (1.0, 2)),
    (Place, Place("NL", "Delft"), ("NL", "Delft")),
    (Slot, Slot(1, Color.RED), (1, "red")),
    (Slot | None, Slot(1), (1, None)),
    (Window, Window(0, 60_000), (0, 60_000)),
    (Named, Named(Window(0, 1), Level.LOW), ((0, 1), 1)),
    (Frozen, Frozen(1), (1.0,)),
    (object, (1, "a"), (1, "a")),
    (Any, "a", "a"),
]


@pytest.mark.parametrize(("type_", "key", "plain"), CASES, ids=str)
def test_a_key_comes_back_and_is_written_as_plain_data(type_, key, plain):
    codec = map_key_codec(type_)
    assert codec.encode(key) == encode_key(plain)
    decoded = codec.decode(codec.encode(key))
    assert decoded == key
    assert type(decoded) is type(key)


@given(KEYS)
def test_undeclared_keys_are_those_of_the_key_encoding(key):
    assert map_key_codec(object).encode(key) == encode_key(key)


@pytest.mark.parametrize("type_", KEY_LEAVES, ids=lambda type_: type_.__name__)
@given(data=st.data())
def test_keys_of_every_plain_type_come_back(type_, data):
    key, codec = data.draw(KEY_LEAVES[type_]), map_key_codec(type_)
    assert codec.encode(codec.decode(codec.encode(key))) == codec.encode(key)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)).map(Window._make)))
def test_classes_are_in_the_order_of_their_fields(windows):
    assert sorted(windows, key=map_key_codec(Window).encode) == sorted(windows)


def test_an_int_for_a_float_is_the_same_key():
    for type_, one, other in (
        (float, 1, 1.0),
        (tuple[float], (1,), (1.0,)),
        (float | str, 1, 1.0),
        (float | None, 1, 1.0),
    ):
        assert map_key_codec(type_).encode(one) == map_key_codec(type_).encode(other)
    assert map_key_codec(int | float).encode(1) != map_key_codec(int | float).encode(1.0)


@pytest.mark.parametrize(
    ("type_", "key", "expected"),
    [
        (int, True, "declared type int"),
        (str, 1, "declared type str"),
        (tuple[int, str], (1, 2), r"value\[1\]"),
        (Color, "red", "declared type Color"),
        (Literal["a"], "b", "Literal"),
        (Window, (0, 1), "declared type Window"),
        (Place, Place("NL", 1), r"value\._city"),  # type: ignore[arg-type]
        (dt.datetime, dt.datetime(2024, 1, 1), "time zone"),
        (object, Color.RED, r"\.value"),
        (object, [1], "tuple"),
    ],
    ids=str,
)
def test_what_is_not_of_the_type_is_refused(type_, key, expected):
    with pytest.raises(EncodingError, match=expected):
        map_key_codec(type_).encode(key)


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (list[int], "list cannot be a map key"),
        (dict[str, int], "dict cannot be a map key"),
        (frozenset[int], "frozenset cannot be a map key"),
        (tuple[list[int], int], "list cannot be a map key"),
        (dt.time, "time cannot be a map key"),
        (bytearray, "bytearray cannot be a map key"),
        (Mutable, "frozen=True"),
        (tuple[Mutable, int], "frozen=True"),
        (Made, "init=False"),
        (Chain, "contains itself"),
        (Color | int, "one of several types"),
        (complex, "complex"),
    ],
    ids=str,
)
def test_types_that_cannot_be_map_keys_are_refused(type_, expected):
    with pytest.raises(EncodingError, match=expected):
        map_key_codec(type_)


@given(st.sampled_from(CASES), st.binary() | mutations(KEYS.map(encode_key)))
def test_other_bytes_are_corruption_or_the_one_encoding_of_a_key(case, data):
    codec = map_key_codec(case[0])
    with contextlib.suppress(CorruptionError):
        assert codec.encode(codec.decode(data)) == data


@pytest.mark.parametrize(
    ("type_", "plain"),
    [
        (Color, "green"),
        (Color, True),
        (Level, True),
        (Level, 3),
        (Window, "ab"),
        (Window, (1,)),
        (Place, 5),
        (Positive, (-1,)),
    ],
    ids=str,
)
def test_plain_keys_that_fit_no_instance_are_corruption(type_, plain):
    with pytest.raises(CorruptionError, match=type_.__name__):
        map_key_codec(type_).decode(encode_key(plain))


def test_a_codec_is_made_once_per_type():
    assert map_key_codec(tuple[int, str]) is map_key_codec(tuple[int, str])
