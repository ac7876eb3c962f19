"""Values of declared types: round trip with types, refusals before writing, damage, and the layout itself."""

import dataclasses
import datetime as dt
import enum
import functools
from collections import OrderedDict, defaultdict
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.codec.values import value_codec
from keyed.errors import CorruptionError, EncodingError
from keyed.rows import Row, row
from tests.keyed.codec.support import INTS, PLAIN, TEXT, TYPES, mutations, same, typed_values


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Half(enum.Enum):
    HALF = 0.5


@attrs.define
class Departure:
    carrier: str
    delay: int | None = None
    at: dt.datetime | None = None


@attrs.define(slots=False)
class Private:
    visible: int
    _hidden: int = 0
    made: int = attrs.field(init=False, default=7)

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.visible


@dataclasses.dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclasses.dataclass
class Wild:
    anything: Any
    more: list[object] = dataclasses.field(default_factory=list)
    color: Color = Color.RED


class Pair(NamedTuple):
    first: int
    second: str = ""


class WildPair(NamedTuple):
    first: int
    second: Any


class Options(TypedDict):
    size: int
    name: NotRequired[str]


class Circle(msgspec.Struct, tag=True, frozen=True):
    radius: float


class Square(msgspec.Struct, tag=True, frozen=True):
    side: float


class Compact(msgspec.Struct, array_like=True, tag="c", rename="camel"):
    item_id: int
    tags: frozenset[str] = frozenset()


@attrs.define
class Node:
    value: int
    children: "list[Node]" = attrs.Factory(list)


@attrs.define
class Positive:
    value: int = attrs.field(validator=attrs.validators.gt(0))


@dataclasses.dataclass
class Growing:
    value: int

    def __post_init__(self) -> None:
        self.value += 1


T = TypeVar("T")


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


UserId = NewType("UserId", int)


@given(typed_values())
def test_a_value_comes_back_equal_and_of_the_same_types(typed):
    type_, value = typed
    codec = value_codec(type_)
    assert same(codec.decode(codec.encode(value)), value)


@given(PLAIN)
def test_untyped_plain_data_comes_back_equal_and_of_the_same_types(value):
    codec = value_codec(object)
    assert same(codec.decode(codec.encode(value)), value)


@given(PLAIN)
def test_untyped_parts_of_typed_values_come_back_equal_and_of_the_same_types(value):
    for type_, whole in (
        (list[Any], [value]),
        (tuple[int, object], (1, value)),
        (dict[str, Any], {"a": value}),
        (dict[tuple[int, int], Any], {(1, 2): value}),
        (WildPair, WildPair(2**70, value)),
        (Any | None, value),
    ):
        codec = value_codec(type_)
        assert same(codec.decode(codec.encode(whole)), whole)


@given(PLAIN, st.lists(PLAIN, max_size=2))
def test_untyped_fields_of_classes_come_back_equal_and_of_the_same_types(anything, more):
    codec = value_codec(Wild)
    decoded = codec.decode(codec.encode(Wild(anything, more, Color.GREEN)))
    assert same([decoded.anything, decoded.more, decoded.color], [anything, more, Color.GREEN])
    assert type(decoded) is Wild


@given(INTS)
def test_ints_of_any_size_come_back_in_any_type(number):
    for type_, value in (
        (int, number),
        (int | None, number),
        (tuple[int, int], (1, number)),
        (dict[str, list[int]], {"a": [number]}),
        (dict[tuple[int, ...], UUID], {(number,): UUID(int=5)}),
        (Pair, Pair(number, "a")),
        (Departure, Departure("UA", number, dt.datetime(2024, 1, 1, tzinfo=dt.UTC))),
        (Node, Node(1, [Node(number)])),
        (Compact, Compact(number, frozenset({"a"}))),
        (Options, {"size": number}),
        (Private, Private(number, 2)),
        (tuple[Color, int, bytes], (Color.RED, number, b"\xff")),
    ):
        codec = value_codec(type_)
        assert same(codec.decode(codec.encode(value)), value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (None, None),
        (Color, Color.GREEN),
        (Level, Level.LOW),
        (dict[Color, int], {Color.RED: 1}),
        (Departure, Departure("UA", 4, dt.datetime(2013, 1, 1, tzinfo=dt.UTC))),
        (Money, Money(Decimal("1.50"))),
        (dict[str, list[Money]], {"a": [Money(Decimal(1)), Money(Decimal(2), "USD")]}),
        (Pair, Pair(1, "a")),
        (Options, {"size": 1}),
        (Options, {"size": 1, "name": "a"}),
        (Circle | Square, Square(1.5)),
        (Compact, Compact(1, frozenset({"a"}))),
        (Departure | None, None),
        (Node, Node(1, [Node(2), Node(3, [Node(4)])])),
        (Box[int], Box(1)),
        (Box[tuple[int, str]], Box((1, "a"))),
        (Box, Box((1, {2}))),
        (UserId, 5),
        (Annotated[int, msgspec.Meta(ge=0)], 5),
        (Annotated[str, "a comment"], "a"),
        (Annotated[int, []], 5),
        (Literal["a", 1] | None, 1),
        (int | str | None, "a"),
        (int | float, 1),
        (int | float, 1.0),
        (float | bool, True),
        (dt.datetime | int, 5),
        (tuple[()], ()),
        (bytearray, bytearray(b"a")),
        (list, [1, (2,), {3: b"4"}]),
        (dict, {1: (2,), "a": None}),
        (tuple, (1, [2])),
        (set, {1, (2, 3)}),
        (frozenset, frozenset({1})),
        (Row, row(a=1, b=row(c=[2]))),
        (object, [row(a=1), {"b": row(c=2)}]),
        (dict[Money, int], {Money(Decimal(1)): 5}),
        (set[Pair], {Pair(1, "a")}),
    ],
    ids=str,
)
def test_every_kind_of_type_comes_back(type_, value):
    codec = value_codec(type_)
    decoded = codec.decode(codec.encode(value))
    assert decoded == value
    assert type(decoded) is type(value)


def test_all_fields_of_a_class_come_back():
    codec, value = value_codec(Private), Private(1, 2)
    value.made = 9
    value.twice  # noqa: B018  # now it stands in the instance's dict, where msgspec would find it
    decoded = codec.decode(codec.encode(value))
    assert (decoded.visible, decoded._hidden, decoded.made) == (1, 2, 9)
    assert b"twice" not in codec.encode(value)


def test_a_field_with_a_default_may_be_missing_in_stored_bytes():
    @attrs.define
    class Old:
        carrier: str

    assert value_codec(Departure).decode(value_codec(Old).encode(Old("UA"))) == Departure("UA")


def test_a_float_takes_an_int_and_gives_a_float():
    for type_, value, expected in (
        (float, 3, 3.0),
        (float | None, 3, 3.0),
        (list[float], [1.5, 3], [1.5, 3.0]),
        (tuple[float, object], (3, None), (3.0, None)),
        (Circle, Circle(3), Circle(3.0)),
    ):
        codec = value_codec(type_)
        assert codec.decode(codec.encode(value)) == expected
        assert "3.0" in repr(codec.decode(codec.encode(value)))


def test_aware_datetimes_come_back_in_utc():
    codec = value_codec(dt.datetime)
    value = dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))
    assert codec.decode(codec.encode(value)) == value
    assert codec.decode(codec.encode(value)).tzinfo is dt.UTC


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (int, True, "declared type int"),
        (int, 1.0, "declared type int"),
        (int, np.int64(1), r"\.item\(\)"),
        (int, Level.LOW, r"its \.value"),
        (int, None, "NoneType"),
        (float, np.float64(1.5), r"\.item\(\)"),
        (float, 2**53 + 1, "declared type float"),
        (float, 10**400, "declared type float"),
        (str, b"a", "declared type str"),
        (str, "\ud800", "surrogates"),
        (list[str], ["\ud800"], "surrogates"),
        (bytes, bytearray(b"a"), r"bytes\(value\)"),
        (dt.date, dt.datetime(2024, 1, 1), "declared type date"),
        (dt.datetime, dt.date(2024, 1, 1), "declared type datetime"),
        (dt.datetime, dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))), "out of range"),
        (dt.time, dt.time(1, tzinfo=dt.timezone(dt.timedelta(seconds=1))), "whole|fixed number of minutes"),
        (tuple[int, int], [1, 2], "declared type tuple"),
        (tuple[int, int], (1, 2, 3), "declared type tuple"),
        (tuple[int, int], (1, True), r"True of type bool, at value\[1\]"),
        (tuple[int, ...], (1, "a"), r"'a' of type str, at value\[1\]"),
        (list[int], (1,), "declared type list"),
        (list[int], [1, None], r"value\[1\]"),
        (list[tuple[int, str]], [(1, "a"), (2, 3)], r"value\[1\]\[1\]"),
        (dict[str, int], OrderedDict(a=1), r"dict\(value\)"),
        (dict[str, int], defaultdict(int), r"dict\(value\)"),
        (dict[str, int], {1: 1}, r"value\.keys\(\)"),
        (dict[str, int], {"a": "b"}, r"value\['a'\]"),
        (set[int], frozenset({1}), "declared type set"),
        (Color, "red", "declared type Color"),
        (Literal[1], True, "Literal"),
        (Literal["a"], "b", "Literal"),
        (int | None, "a", "int"),
        (list[int] | None, ["a"], r"value\[0\]"),
        (Departure, Departure("UA", "4"), r"value\.delay"),  # type: ignore[arg-type]
        (Departure, {"carrier": "UA"}, "declared type Departure"),
        (Money, Departure("UA"), "declared type Money"),
        (Node, Node(1, [Node("a")]), r"value\.children\[0\]\.value"),  # type: ignore[arg-type]
        (Pair, (1, "a"), "declared type Pair"),
        (Options, {"size": 1, "other": 2}, "Options"),
        (Options, {}, "Options"),
        (Options, {"size": "a"}, r"value\['size'\]"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "would be refused when it is read back"),
        (list[Annotated[int, msgspec.Meta(ge=0)]], [-1], "would be refused"),
        (Growing, Growing(1), "would change when it is read back"),
        (Row, (1,), "Row"),
        (list, (1,), "list"),
        (object, Departure("UA"), r"ValueState\(Departure\)"),
        (object, [Money(Decimal(1))], r"ValueState\(Money\)"),
        (object, Pair(1), r"ValueState\(Pair\)"),
        (object, Color.RED, "declare the enum"),
        (object, OrderedDict(), r"dict\(value\)"),
        (object, {"a": defaultdict(int)}, r"dict\(value\)"),
        (object, np.float64(1), r"\.item\(\)"),
        (object, "\ud800", "surrogates"),
        (object, bytearray(b"a"), r"bytes\(value\)"),
        pytest.param(object, lambda: 1, "store plain data", id="a function"),
        (object, dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))), "out of range"),
        (object, dt.time(1, tzinfo=dt.timezone(dt.timedelta(seconds=1))), "fixed number of minutes"),
        pytest.param(list[Any], [object()], "store plain data", id="a plain object"),
    ],
    ids=str,
)
def test_what_is_not_of_the_type_is_refused_before_it_is_written(type_, value, expected):
    with pytest.raises(EncodingError, match=expected):
        value_codec(type_).encode(value)


def test_what_a_validator_refuses_is_refused_before_it_is_written():
    codec, value = value_codec(Positive), Positive(1)
    assert codec.decode(codec.encode(value)) == value
    object.__setattr__(value, "value", -1)
    with pytest.raises(EncodingError, match="would be refused when it is read back as Positive: 'value' must be > 0"):
        codec.encode(value)


@pytest.mark.parametrize("type_", [object, list, Node])
def test_what_contains_itself_is_refused(type_):
    value: Any = Node(1) if type_ is Node else []
    (value.children if type_ is Node else value).append(value)
    with pytest.raises(EncodingError, match=r"contains itself|recursion"):
        value_codec(type_).encode(value)


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (complex, "complex"),
        (list[complex], "complex"),
        (Flags, "declare int"),
        (Half, "all str or all int"),
        (str | bytes, "more than one str-like"),
        (Departure | Money, "more than one dataclass"),
        (memoryview, "memoryview"),
        (list[Row], "declare `object`"),
        (5, "not supported"),
        ("int", "not supported"),
        (type, "type"),
    ],
    ids=str,
)
def test_types_that_cannot_be_stored_are_refused(type_, expected):
    with pytest.raises(EncodingError, match=expected):
        value_codec(type_)


def test_classes_without_annotations_are_refused():
    @attrs.define
    class Undefined:
        field: "NoSuchName"  # type: ignore[name-defined]  # noqa: F821

    @attrs.define
    class Bare:
        field = attrs.field()

    for cls in (Undefined, Bare):
        with pytest.raises(EncodingError, match="Annotate all fields"):
            value_codec(cls)


@pytest.mark.parametrize(
    ("type_", "immutable"),
    [
        (int, True),
        (object, False),
        (list[int], False),
        (bytearray, False),
        (tuple[int, str], True),
        (tuple[list[int], int], False),
        (frozenset[str], True),
        (Color, True),
        (Money, True),
        (Departure, False),
        (Pair, True),
        (WildPair, False),
        (Circle | Square, True),
        (Compact, False),
        (Options, False),
        (int | None, True),
        (Row, False),
    ],
    ids=str,
)
def test_immutable_types_are_known(type_, immutable):
    assert value_codec(type_).immutable is immutable


def test_a_codec_is_made_once_per_type():
    assert value_codec(tuple[int, str]) is value_codec(tuple[int, str])
    assert value_codec(Literal[1]) is not value_codec(Literal[True])


@given(typed_values(), st.data())
def test_damaged_values_are_corruption_or_a_value_of_the_type(typed, data):
    codec = value_codec(typed[0])
    damaged = data.draw(mutations(st.just(codec.encode(typed[1]))))
    try:
        value = codec.decode(damaged)
    except CorruptionError:
        return
    codec.encode(value)


@given(typed_values(), st.data())
def test_values_that_are_cut_short_are_corruption(typed, data):
    codec = value_codec(typed[0])
    encoded = codec.encode(typed[1])
    with pytest.raises(CorruptionError):
        codec.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(TYPES, PLAIN)
def test_any_value_is_refused_or_comes_back(type_, value):
    codec = value_codec(type_)
    try:
        encoded = codec.encode(value)
    except EncodingError:
        return
    assert codec.decode(encoded) == value or same(codec.decode(encoded), value)


@pytest.mark.parametrize("data", [b"\x91" * 100_000, b"\xd4\x01" * 100_000, b"\xc9\0\0\0\x05\x01" * 50_000])
def test_deep_nesting_is_corruption(data):
    for type_ in (object, list, Node):
        with pytest.raises(CorruptionError):
            value_codec(type_).decode(data)


@pytest.mark.parametrize(
    ("type_", "value", "encoded"),
    [  # MessagePack lets msgspec choose between d6 (4 bytes), d7 (8), d8 (16) and c7 (length) for extension types
        (type(None), None, "c0"),
        (bool, True, "c3"),
        (int, 5, "05"),
        (int, -(2**63), "d3 8000000000000000"),
        (int, 2**64 - 1, "cf ffffffffffffffff"),
        (int, 2**64, "c7 0c 14  c7 09 05 010000000000000000"),
        (float, 1.5, "cb 3ff8000000000000"),
        (str, "JFK", "a3 4a464b"),
        (bytes, b"\0", "c4 01 00"),
        (Decimal, Decimal("1.50"), "a4 312e3530"),
        (UUID, UUID(int=1), "c4 10 00000000000000000000000000000001"),
        (dt.date, dt.date(2024, 2, 29), "aa" + b"2024-02-29".hex()),
        (dt.time, dt.time(1, 2, 3), "a8" + b"01:02:03".hex()),
        (dt.timedelta, dt.timedelta(1, 2, 3), "ad" + b"P1DT2.000003S".hex()),
        (dt.datetime, dt.datetime(2024, 1, 1), "b3" + b"2024-01-01T00:00:00".hex()),
        (dt.datetime, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "d6 ff 00000001"),
        (Color, Color.RED, "a3 726564"),
        (tuple[int, int], (5, 100_000), "92 05 ce 000186a0"),
        (list[str], ["a"], "91 a1 61"),
        (frozenset[int], frozenset({1}), "91 01"),
        (dict[int, bool], {1: False}, "81 01 c2"),
        (Departure, Departure("UA", 4), "83 a26174c0 a7" + b"carrier".hex() + "a25541 a5" + b"delay".hex() + "04"),
        (Pair, Pair(1, "a"), "92 01 a1 61"),
        (
            Circle | Square,
            Circle(1.5),
            "82 a4" + b"type".hex() + "a6" + b"Circle".hex() + "a6" + b"radius".hex() + "cb 3ff8000000000000",
        ),
        (Compact, Compact(1), "93 a1 63 01 90"),
        (tuple[int, int], (1, 2**64), "c7 11 14  c7 0e 01  92 01 c7 09 05 010000000000000000"),
        (tuple[int, object], (1, "a"), "d6 01  92 01 a1 61"),
        (object, None, "c0"),
        (object, {"a": [1, 1.5, b"x"]}, "81 a1 61 93 01 cb 3ff8000000000000 c4 01 78"),
        (object, (1, "a"), "d6 01  92 01 a1 61"),
        (object, {1: "a"}, "d6 02  92 01 a1 61"),
        (object, {2, 1}, "c7 03 03  92 01 02"),
        (object, frozenset({2, 1}), "c7 03 04  92 01 02"),
        (object, -(2**63) - 1, "c7 09 05 ff7fffffffffffffff"),
        (object, Decimal("1.50"), "d6 06 312e3530"),
        (object, UUID(int=1), "d8 07 00000000000000000000000000000001"),
        (object, dt.datetime(1970, 1, 1, 0, 0, 1), "d7 08 00000000000f4240"),
        (object, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "d6 ff 00000001"),
        (object, dt.date(1970, 1, 1), "d6 09 000af93b"),
        (object, dt.time(1, 2, 3), "d7 0a" + b"01:02:03".hex()),
        (object, dt.timedelta(-1, 2, 3), "c7 0c 0b ffffffff 00000002 00000003"),
        (object, row(a=1), "c7 06 0c  92 91 a1 61 91 01"),
        (Row, row(a=1), "c7 06 0c  92 91 a1 61 91 01"),
    ],
    ids=str,
)
def test_the_layout_is_as_documented(type_, value, encoded):
    codec = value_codec(type_)
    assert codec.encode(value).hex() == bytes.fromhex(encoded).hex()
    assert same(codec.decode(bytes.fromhex(encoded)), value)


@given(st.lists(TEXT, unique=True, max_size=5).flatmap(lambda texts: st.tuples(st.just(texts), st.permutations(texts))))
def test_the_bytes_of_untyped_sets_do_not_depend_on_their_history(texts):
    codec = value_codec(object)
    assert codec.encode(set(texts[0])) == codec.encode(set(texts[1]))


def test_a_class_of_the_program_can_still_be_pickled_after_it_was_encoded():
    # As Spark does it. What msgspec leaves on a class cannot be pickled.
    from pyspark import cloudpickle

    @attrs.frozen
    class Inner:
        number: int

    codec = value_codec(list[Inner])
    assert codec.decode(codec.encode([Inner(1)])) == [Inner(1)]
    cloudpickle.dumps(Inner)
    assert codec.decode(codec.encode([Inner(2)])) == [Inner(2)]
