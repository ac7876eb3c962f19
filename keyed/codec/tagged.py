"""Values without a declared type as bytes: every value is tagged with its type.

MessagePack has no tuples, sets or decimals, so these are written as its extension types; a value comes back equal and
of the same type in all its parts (aware datetimes in UTC; the ``fold`` of naive ones, which does not affect
comparisons, is not kept). Only plain data is written: an instance of a class is refused, because its bytes would have
to name the class. Declare the class as the type of the state instead.

Byte layout, version 1: MessagePack, with these extension types (numbers big-endian; "array" is a MessagePack array)::

    -1  datetime with a time zone   MessagePack's timestamp; comes back in UTC
     1  tuple                       array of the elements
     2  dict with other keys        array of key, value, key, value, ...; a dict whose keys are all str is a map
     3  set                         array of the elements, in the order of their bytes
     4  frozenset                   the same
     5  int beyond 64 bits          two's complement
     6  Decimal                     its text in ASCII
     7  UUID                        16 bytes
     8  datetime without time zone  microseconds since 1970-01-01T00:00:00, int64
     9  date                        proleptic ordinal, u32
    10  time                        ISO 8601 in ASCII
    11  timedelta                   days int32 | seconds u32 | microseconds u32
    12  Row                         array of two arrays: field names, values
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any
from uuid import UUID

from msgspec import Raw
from msgspec.msgpack import Decoder, Encoder, Ext

from keyed.base.arguments import shown
from keyed.codec.refusals import remedy, type_name
from keyed.errors import CorruptionError, EncodingError
from keyed.rows import Row, row_class

MAX_VALUE_DEPTH = 64
"""Maximal nesting of containers in a value without a declared type."""

_NAIVE_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # the origin of naive datetimes is naive
_MICROSECOND = dt.timedelta(microseconds=1)
_i64 = struct.Struct(">q")
_u32 = struct.Struct(">I")
_delta = struct.Struct(">iII")

_NATIVE = frozenset({type(None), bool, int, float, str, bytes})
_NATIVE_BUT_INT = _NATIVE - {int}

_pack = Encoder().encode


def encode_tagged(value: Any) -> bytes:
    """Encode plain data of any shape.

    Args:
        value: None, bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID, Row, or a list,
            tuple, dict, set or frozenset of these, nested up to `MAX_VALUE_DEPTH`.

    Raises:
        EncodingError: The value is, or contains, something else.
    """
    try:
        try:
            return _pack(_prepare(value, _NATIVE, 0))
        except OverflowError:
            # An int beyond 64 bits. They are rare, so ints are checked only now.
            return _pack(_prepare(value, _NATIVE_BUT_INT, 0))
    except OverflowError as error:
        raise EncodingError(f"{shown(value)} cannot be encoded: in UTC a datetime in it is out of range") from error
    except UnicodeEncodeError as error:
        raise EncodingError(
            f"the text {error.object!r:.200} cannot be encoded: {error.reason}; remove lone surrogates"
        ) from error


def decode_tagged(data: bytes) -> Any:
    """Decode the bytes of `encode_tagged`.

    Raises:
        CorruptionError: The bytes are malformed.
    """
    try:
        return _unpack(data)
    except CorruptionError:
        raise
    except Exception as error:
        # msgspec raises several types, and so do the constructors of decimals, dates and sets.
        raise CorruptionError(f"an encoded value is malformed ({error})") from error


def offset_is_whole_minutes(value: dt.time) -> bool:
    """Return true if ISO 8601 can express the time zone of a time: none, or a fixed number of minutes."""
    if value.tzinfo is None:
        return True
    offset = value.utcoffset()
    return offset is not None and not offset % dt.timedelta(minutes=1)


def _prepare(value: Any, native: frozenset[type], depth: int) -> Any:
    """Return ``value`` in a form for msgspec's encoder, with extension types for types that MessagePack lacks."""
    cls = type(value)
    if cls in native:
        return value
    if depth > MAX_VALUE_DEPTH:
        raise EncodingError(f"a value is nested more than {MAX_VALUE_DEPTH} deep, or contains itself; flatten it")
    if cls is tuple:
        return Ext(1, _pack(_items(value, native, depth)))
    if cls is list:
        return _items(value, native, depth)
    if cls is dict:
        return _prepare_dict(value, native, depth)
    scalar = _SCALARS.get(cls)
    if scalar is not None:
        return scalar(value)
    if cls is set or cls is frozenset:
        # Sorted, because the order of a set of strings differs from process to process.
        members = sorted(_pack(_prepare(member, native, depth + 1)) for member in value)
        return Ext(3 if cls is set else 4, _pack([Raw(member) for member in members]))
    if isinstance(value, Row):
        return Ext(12, _pack([value._fields, _items(value, native, depth)]))
    raise EncodingError(
        f"a value of type {type_name(cls)} cannot be encoded without a declared type; {remedy(cls, role='value')}"
    )


def _items(values: Iterable[Any], native: frozenset[type], depth: int) -> Any:
    if native.issuperset(map(type, values)):
        return values if type(values) is list else tuple(values)
    return [_prepare(value, native, depth + 1) for value in values]


def _prepare_dict(value: dict[Any, Any], native: frozenset[type], depth: int) -> Any:
    if not _ONLY_STR.issuperset(map(type, value)):
        return Ext(2, _pack(_items([part for item in value.items() for part in item], native, depth)))
    if native.issuperset(map(type, value.values())):
        return value
    return {key: _prepare(item, native, depth + 1) for key, item in value.items()}


_ONLY_STR = frozenset({str})


def _prepare_int(value: int) -> Any:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return Ext(5, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _prepare_datetime(value: dt.datetime) -> Any:
    if value.tzinfo is None:
        return Ext(8, _i64.pack((value - _NAIVE_EPOCH) // _MICROSECOND))
    if value.utcoffset() is None:
        raise EncodingError(f"{value!r} cannot be encoded: its time zone has no offset; use a fixed offset or none")
    return value


def _prepare_time(value: dt.time) -> Any:
    if not offset_is_whole_minutes(value):
        raise EncodingError(
            f"{value!r} cannot be encoded: its time zone is not a fixed number of minutes; use UTC or none"
        )
    return Ext(10, value.isoformat().encode())


_SCALARS: dict[type, Callable[[Any], Any]] = {
    int: _prepare_int,
    Decimal: lambda value: Ext(6, str(value).encode()),
    UUID: lambda value: Ext(7, value.bytes),
    dt.datetime: _prepare_datetime,
    dt.date: lambda value: Ext(9, _u32.pack(value.toordinal())),
    dt.time: _prepare_time,
    dt.timedelta: lambda value: Ext(11, _delta.pack(value.days, value.seconds, value.microseconds)),
}


def _unpack_extension(code: int, data: memoryview) -> Any:
    reader = _READERS.get(code)
    if reader is None:
        raise CorruptionError(f"an encoded value has the unknown extension type {code}")
    return reader(data)


_unpack = Decoder(ext_hook=_unpack_extension).decode
_unpack_tuple = Decoder(tuple[Any, ...], ext_hook=_unpack_extension).decode
_unpack_row = Decoder(tuple[tuple[str, ...], tuple[Any, ...]], ext_hook=_unpack_extension).decode


def _read_dict(data: memoryview) -> dict[Any, Any]:
    parts = _unpack_tuple(data)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _read_row(data: memoryview) -> Row:
    names, values = _unpack_row(data)
    if len(names) != len(values):
        raise CorruptionError(f"an encoded row has {len(names)} fields and {len(values)} values")
    return row_class(names)(values)


_READERS: dict[int, Callable[[memoryview], Any]] = {
    1: _unpack_tuple,
    2: _read_dict,
    3: lambda data: set(_unpack_tuple(data)),
    4: lambda data: frozenset(_unpack_tuple(data)),
    5: lambda data: int.from_bytes(data, "big", signed=True),
    6: lambda data: Decimal(str(data, "ascii")),
    7: lambda data: UUID(bytes=bytes(data)),
    8: lambda data: _NAIVE_EPOCH + dt.timedelta(microseconds=_i64.unpack(data)[0]),
    9: lambda data: dt.date.fromordinal(_u32.unpack(data)[0]),
    10: lambda data: dt.time.fromisoformat(str(data, "ascii")),
    11: lambda data: dt.timedelta(*_delta.unpack(data)),
    12: _read_row,
}
