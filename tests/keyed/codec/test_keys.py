"""Keys as bytes: round trip, order, prefixes, refusals, damage, and the layout itself."""

import datetime as dt
import enum
import math
import struct
from collections import OrderedDict, namedtuple
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.codec.keys import MAX_KEY_DEPTH, decode_key, decode_key_at, encode_key, normalised
from keyed.errors import CorruptionError, EncodingError
from keyed.rows import row
from tests.keyed.codec.support import BYTES, DECIMALS, ESCAPED_TEXT, INTS, KEY_LEAVES, KEYS, mutations, same


def normal(key: Any) -> Any:
    """The key as it comes back: times in UTC, one zero, decimals without trailing zeros."""
    if isinstance(key, tuple):
        return tuple(map(normal, key))
    if isinstance(key, float):
        return key + 0.0
    if isinstance(key, dt.datetime):
        return key.astimezone(dt.UTC)
    return key


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Decimal):
        return type(other) is Decimal and one == other
    return same(one, other)


def ordered(value: Any) -> Any:
    """Something that compares as the documented order of keys of one type."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    if isinstance(value, UUID):
        return value.bytes
    return 0 if value is None else value


@given(KEYS)
def test_a_key_comes_back_with_its_type(key):
    assert equal(decode_key(encode_key(key)), normal(key))


@given(KEYS)
def test_a_normalised_key_is_what_comes_back(key):
    stored, decoded = normalised(key), decode_key(encode_key(key))
    assert {stored: 1} == {decoded: 1}
    assert repr(stored) == repr(decoded)
    assert encode_key(stored) == encode_key(key)


BERLIN = ZoneInfo("Europe/Berlin")
HOURS = st.builds(
    lambda hour, fold, zone: dt.datetime(2024, 10, 27, hour, 30, tzinfo=zone, fold=fold),
    st.integers(0, 4),
    st.integers(0, 1),
    st.sampled_from([BERLIN, dt.UTC, ZoneInfo("UTC"), ZoneInfo("Europe/London")]),
)
FLOATS = st.sampled_from([0.0, -0.0, 1.0]) | st.builds(lambda: float("nan"))


@pytest.mark.parametrize("leaves", [HOURS, FLOATS, DECIMALS], ids=["repeated hour", "float", "decimal"])
@given(data=st.data())
def test_normalised_keys_are_equal_where_their_bytes_are(leaves, data):
    one, other = (data.draw(leaves | st.tuples(leaves) | st.tuples(st.tuples(leaves))) for _ in range(2))
    assert (encode_key(one) == encode_key(other)) == ({normalised(one): 1} == {normalised(other): 1})


@given(AWARE := KEY_LEAVES[dt.datetime])
def test_times_come_back_in_utc(value):
    decoded = decode_key(encode_key(value))
    assert decoded == value
    assert decoded.tzinfo is dt.UTC


@pytest.mark.parametrize("type_", KEY_LEAVES, ids=lambda type_: type_.__name__)
@given(data=st.data())
def test_bytes_are_in_the_order_of_the_values(type_, data):
    one, other = data.draw(KEY_LEAVES[type_]), data.draw(KEY_LEAVES[type_])
    assert (encode_key(one) < encode_key(other)) == (ordered(one) < ordered(other))
    assert (encode_key(one) == encode_key(other)) == (ordered(one) == ordered(other))


@given(st.tuples(ESCAPED_TEXT, INTS, BYTES), st.tuples(ESCAPED_TEXT, INTS, BYTES))
def test_bytes_of_tuples_are_in_the_order_of_the_tuples(one, other):
    assert (encode_key(one) < encode_key(other)) == (one < other)


@given(st.lists(st.sampled_from("\0\1a")).map(tuple), st.lists(st.sampled_from("\0\1a")).map(tuple))
def test_shorter_tuples_come_first(one, other):
    assert (encode_key(one) < encode_key(other)) == (one < other)


@given(KEYS, KEYS)
def test_no_encoding_is_a_prefix_of_another(one, other):
    one, other = encode_key(one), encode_key(other)
    assert one == other or not other.startswith(one)


@given(st.lists(KEYS), st.binary())
def test_encodings_written_one_after_the_other_are_split_again(keys, rest):
    data, offset = b"".join(map(encode_key, keys)) + rest, 0
    for key in keys:
        decoded, offset = decode_key_at(data, offset)
        assert equal(decoded, normal(key))
    assert data[offset:] == rest


@given(st.binary() | mutations(KEYS.map(encode_key)))
def test_other_bytes_are_corruption_or_the_one_encoding_of_a_key(data):
    try:
        key = decode_key(data)
    except CorruptionError:
        return
    assert encode_key(key) == data


@given(KEYS.map(encode_key), st.data())
def test_bytes_that_are_cut_short_are_corruption(encoded, data):
    length = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CorruptionError):
        decode_key(encoded[:length])


def test_a_long_claim_does_not_allocate():
    with pytest.raises(CorruptionError, match="cut short"):
        decode_key(b"\x22\xff\xff\xff\xff\x01")


def test_deep_nesting_is_refused_in_both_directions():
    key: Any = ()
    for _ in range(MAX_KEY_DEPTH - 1):
        key = (key,)
    assert decode_key(encode_key(key)) == key
    with pytest.raises(EncodingError, match="nested more than 32 deep"):
        encode_key((key,))
    with pytest.raises(CorruptionError, match="nested more than 32 deep"):
        decode_key(b"\x80" * 5_000 + b"\x00" * 5_000)


Point = namedtuple("Point", "x y")  # noqa: PYI024  # the untyped kind is what is tested


@pytest.mark.parametrize("key", [Point(1, "a"), row(x=1, y="a")])
def test_named_tuples_and_rows_are_the_tuple_of_their_values(key):
    assert encode_key(key) == encode_key((1, "a"))
    assert encode_key((0, key)) == encode_key((0, (1, "a")))
    assert type(decode_key(encode_key(key))) is tuple


def test_equal_values_of_one_type_are_one_key():
    assert encode_key(-0.0) == encode_key(0.0)
    assert encode_key(math.nan) == encode_key(-math.nan) == encode_key(struct.unpack(">d", b"\x7f\xf8" + b"\1" * 6)[0])
    assert encode_key(Decimal("1.0")) == encode_key(Decimal("1.00")) == encode_key(Decimal(1))
    assert encode_key(Decimal("-0.0")) == encode_key(Decimal(0))
    instant = dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)
    assert encode_key(instant) == encode_key(instant.astimezone(ZoneInfo("Europe/Berlin")))


def test_both_hours_of_the_end_of_summer_time_are_different_keys():
    first = dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert decode_key(encode_key(first.replace(fold=1))) - decode_key(encode_key(first)) == dt.timedelta(hours=1)


def test_values_of_different_types_are_different_keys():
    assert len({encode_key(key) for key in (1, 1.0, True, "1", b"1", Decimal(1), (1,), None, ())}) == 9


@pytest.mark.parametrize(
    ("text", "decoded"),
    [("100", "100"), ("1E+2", "100"), ("0.50", "0.5"), ("1E+40", "1E+40"), ("-0", "0"), ("1E-9", "1E-9")],
)
def test_decimals_come_back_without_trailing_zeros(text, decoded):
    assert str(decode_key(encode_key(Decimal(text)))) == decoded


class Color(enum.StrEnum):
    RED = "red"


class Shade(int):
    pass


@pytest.mark.parametrize(
    ("value", "named", "remedy"),
    [
        ([1], "list", "convert it to a tuple"),
        ({1}, "set", "tuple"),
        ({}, "dict", "tuple"),
        (OrderedDict(), "collections.OrderedDict", "tuple"),
        (bytearray(b"a"), "bytearray", r"bytes\(value\)"),
        (Color.RED, "Color", r"\.value"),
        (Shade(1), "Shade", r"int\(value\)"),
        (np.int64(1), "numpy.int64", r"\.item\(\)"),
        (np.float64(1), "numpy.float64", r"\.item\(\)"),
        (pd.Timestamp("2024-01-01", tz="UTC"), "Timestamp", "to_pydatetime"),
        (dt.time(1), "datetime.time", "tuple"),
        (dt.datetime(2024, 1, 1), "naive", "time zone"),
        (dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))), "9999", "UTC"),
        (Decimal("NaN"), "NaN", "use a value instead"),
        ("\ud800", "text", "surrogates"),
        (object(), "object", "tuple of its fields"),
        (1j, "complex", "tuple of its fields"),
    ],
)
def test_other_values_are_refused_with_a_remedy(value, named, remedy):
    for key in (value, (1, value), (1, (2, value))):
        with pytest.raises(EncodingError, match=remedy) as raised:
            encode_key(key)
        assert named in str(raised.value)


@pytest.mark.parametrize(
    ("key", "encoded"),
    [
        (None, "05"),
        (False, "10"),
        (True, "11"),
        (0, "21 8000000000000000"),
        (-1, "21 7fffffffffffffff"),
        (2**63 - 1, "21 ffffffffffffffff"),
        (2**63, "22 00000008 8000000000000000"),
        (2**64, "22 00000009 010000000000000000"),
        (-(2**63), "21 0000000000000000"),
        (-(2**63) - 1, "20 fffffff7 7ffffffffffffffe"),
        (1.5, "30 bff8000000000000"),
        (-1.5, "30 4007ffffffffffff"),
        (0.0, "30 8000000000000000"),
        (math.nan, "30 fff8000000000000"),
        (math.inf, "30 fff0000000000000"),
        ("", "40 00"),
        ("JFK", "40 4a464b 00"),
        ("\0a\1ü", "40 0101 61 0102 c3bc 00"),
        (b"\xff\0\1", "41 ff 0101 0102 00"),
        (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), "50 8000000000000000"),
        (dt.datetime(2013, 1, 1, 10, 15, 0, 1, tzinfo=dt.UTC), "50 8004d23767011101"),
        (dt.date(1970, 1, 1), "51 000af93b"),
        (dt.timedelta(days=-1, seconds=2, microseconds=3), "52 7fffffff 00000002 00000003"),
        (Decimal("123.40"), "60 04 8000000000000003 0d 23 00"),
        (Decimal("-0.05"), "60 02 8000000000000000 cc ff"),
        (Decimal(0), "60 03"),
        (Decimal("-Infinity"), "60 01"),
        (Decimal("Infinity"), "60 05"),
        (UUID(int=1), "70 00000000000000000000000000000001"),
        ((), "80 00"),
        (("a", (1,), None), "80 40 61 00 80 21 8000000000000001 00 05 00"),
    ],
)
def test_the_layout_is_as_documented(key, encoded):
    assert encode_key(key) == bytes.fromhex(encoded)
    assert equal(decode_key(bytes.fromhex(encoded)), normal(key))
