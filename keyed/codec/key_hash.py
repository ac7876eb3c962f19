"""The hash that assigns a key to its key group, with the same value in Spark's plan and in Python.

Spark packs rows by an expression in its plan (`spark_hash_expression`); the local runtime, restoring and looking up a
key compute `key_hash`. Both are XXH64 (as ``xxhash64`` in Spark) with seed 42 over the normalised columns. The hash of
a column is the seed of the next one, so a tuple is the chain of its elements, and a null leaves the hash as it is::

    column type                      Spark expression                             Python value: hashed bytes
    tinyint, smallint, int, bigint   CAST(c AS BIGINT)                            int: int64 little-endian
    float, double                    CAST(c AS DOUBLE)                            float: IEEE 754 little-endian,
                                                                                  one zero, one NaN, as Spark has it
    boolean                          c                                            bool: int32 0 or 1
    string, char, varchar            CAST(c AS BINARY)                            str: UTF-8
    binary                           c                                            bytes: as they are
    date                             c                                            date: int32 days since 1970-01-01
    timestamp                        c                                            datetime: int64 microseconds, UTC
    interval day to second (parts)   CAST(c AS INTERVAL DAY TO SECOND)            timedelta: int64 microseconds
    decimal(p,s)                     format_number(c, '0.###') with s times '#'   Decimal: plain digits, no trailing
                                                                                  zeros, in UTF-8: 1.50 is "1.5"

Unlike a cast to string, ``format_number`` writes decimals exactly, in the locale US, with any
``spark.sql.ansi.enabled``. The cast to binary makes strings of any collation hash by their bytes, as Python compares
them. Equal values of different types (``1``, ``1.0``, ``True``) hash differently. Values that no Spark column can hold
are hashed in Python only: an int beyond 64 bits by its digits, a longer timedelta by its microseconds in digits, a
decimal of more than 38 digits before or after the point as its encoded key, a UUID by its 16 bytes, a tuple in a tuple
as a part of the chain.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

from xxhash import xxh64_intdigest

from keyed.codec.keys import EPOCH, FLIP_64, MASK_64, MAX_KEY_DEPTH, MICROSECOND, decode_key_at, encode_key
from keyed.errors import EncodingError
from keyed.rows import fields_of

_SEED = 42
#: Type bytes of encoded strings and bytes. Their content has no byte 00, and 01 is an escape byte.
_TEXTS = (b"\x40", b"\x41")
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_SPARK_DIGITS = 38

_int64 = struct.Struct("<q").pack
_int32 = struct.Struct("<i").pack
_double = struct.Struct("<d").pack
_NAN = struct.pack("<Q", 0x7FF8000000000000)

#: The types of key columns: the hashed expression of a column, and the Python type of its values.
_TYPES = [
    (re.compile(pattern), expression, python_type)
    for pattern, expression, python_type in (
        (r"tinyint|smallint|int|bigint", "CAST({column} AS BIGINT)", "int"),
        (r"float|double", "CAST({column} AS DOUBLE)", "float"),
        (r"boolean", "{column}", "bool"),
        (r"binary", "{column}", "bytes"),
        (r"date", "{column}", "date"),
        (r"timestamp", "{column}", "datetime"),
        (r"(string|char\(\d+\)|varchar\(\d+\))( collate \S+)?", "CAST({column} AS BINARY)", "str"),
        (r"decimal\(\d+,\s*(?P<scale>-?\d+)\)", "format_number({column}, '{digits}')", "Decimal"),
        (
            r"interval (day|hour|minute|second)( to (hour|minute|second))?",
            "CAST({column} AS INTERVAL DAY TO SECOND)",
            "timedelta",
        ),
    )
]
_CONTAINER = re.compile(r"(struct|array|map)<|variant")


def key_hash(key: Any) -> int:
    """Hash a key.

    Args:
        key: Any value that `encode_key` takes; for a key of several columns the tuple of their values.

    Returns:
        A signed 64-bit integer, the value of `spark_hash_expression` for the same columns.

    Raises:
        EncodingError: `encode_key` refuses the key.
    """
    hashed = _chain(key, _SEED)
    return hashed - (1 << 64) if hashed >= FLIP_64 else hashed


def encoded_key_hash(data: bytes, offset: int = 0) -> int:
    """Hash a key that `encode_key` has encoded; a text is hashed without decoding it.

    Args:
        data: Bytes that hold the encoded key.
        offset: Its offset.

    Returns:
        The `key_hash` of the key.

    Raises:
        CorruptionError: There is no encoded key.
    """
    if data[offset : offset + 1] in _TEXTS:
        end = data.find(b"\x00", offset)
        text = data[offset + 1 : end]
        if end > 0 and b"\x01" not in text:
            hashed = xxh64_intdigest(text, _SEED)
            return hashed - (1 << 64) if hashed >= FLIP_64 else hashed
    return key_hash(decode_key_at(data, offset)[0])


def group_of(hashed: int, parallelism: int) -> int:
    """Return the key group, 0 to ``parallelism - 1``, of a key with this hash.

    In Spark: ``CAST(shiftrightunsigned(h, 33) % parallelism AS INT)``. It uses the upper bits, so that the group does
    not depend on the same bits as a partitioning by the hash itself.
    """
    return ((hashed & MASK_64) >> 33) % parallelism


def spark_hash_expression(columns: list[tuple[str, str]]) -> str:
    """Return the SQL expression whose value for a row is `key_hash` of the row's key.

    Args:
        columns: Name and simple type string (``field.dataType.simpleString()``) of each key column.

    Raises:
        EncodingError: There is no column, or one has a type that a key cannot have.
    """
    if not columns:
        raise EncodingError("a key needs at least one column; name the columns in key_by(...)")
    return f"xxhash64({', '.join(_normalised(name, type_) for name, type_ in columns)})"


def spark_key_type(types: list[str]) -> str:
    """Return the `keyed.codec.keys.key_type` of keys with columns of these types.

    Args:
        types: The simple type strings of the key columns, which `spark_hash_expression` takes.
    """
    texts = [text.strip().lower() for text in types]
    names = [next((name for type_, _, name in _TYPES if type_.fullmatch(text)), "str") for text in texts]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _normalised(name: str, type_: str) -> str:
    column = "`" + name.replace("`", "``") + "`"
    type_ = type_.strip().lower()
    for pattern, expression, _ in _TYPES:
        if match := pattern.fullmatch(type_):
            digits = "#" * int(match.groupdict().get("scale", 0))
            return expression.format(column=column, digits=f"0.{digits}" if digits else "0")
    if _CONTAINER.match(type_):
        remedy = "name its fields as key columns, for example key_by('a.b'), or key by a column computed from it"
    elif type_ == "timestamp_ntz":
        remedy = f"a time without a zone is not an instant; use CAST({column} AS TIMESTAMP)"
    else:
        remedy = f"cast it, for example CAST({column} AS STRING)"
    raise EncodingError(f"the column {name!r} of type {type_} cannot be a key; {remedy}")


def _chain(value: Any, seed: int, depth: int = 0) -> int:
    as_bytes = _BYTES.get(type(value))
    if as_bytes is not None:
        return xxh64_intdigest(as_bytes(value), seed)
    if value is None:
        return seed
    if not isinstance(value, tuple) or depth == MAX_KEY_DEPTH:
        raise _refused(value)
    if type(value) is not tuple and fields_of(type(value)) is None:
        raise _refused(value)
    for item in value:
        seed = _chain(item, seed, depth + 1)
    return seed


def _refused(value: Any) -> EncodingError:
    """Return the error of `encode_key`, which lists the types of keys."""
    try:
        encode_key(value)
    except EncodingError as error:
        return error
    return EncodingError(f"a key has tuples nested more than {MAX_KEY_DEPTH} deep; flatten it")


def _int_bytes(value: int) -> bytes:
    try:
        return _int64(value)
    except struct.error:
        return b"%d" % value


def _str_bytes(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise _refused(value) from None


def _datetime_bytes(value: dt.datetime) -> bytes:
    if value.tzinfo is not dt.UTC:
        # Refuses a naive one and one that is out of range in UTC.
        encode_key(value)
    return _int64((value - EPOCH) // MICROSECOND)


def _decimal_bytes(value: Decimal) -> bytes:
    if not value:
        return b"0"
    if not value.is_finite() or abs(value.adjusted()) > _SPARK_DIGITS:
        return encode_key(value)
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).encode()


_BYTES: dict[type, Callable[[Any], bytes]] = {
    bool: _int32,
    int: _int_bytes,
    float: lambda value: _NAN if math.isnan(value) else _double(value + 0.0),
    str: _str_bytes,
    bytes: lambda value: value,
    dt.datetime: _datetime_bytes,
    dt.date: lambda value: _int32(value.toordinal() - _EPOCH_DAY),
    dt.timedelta: lambda value: _int_bytes(value // MICROSECOND),
    Decimal: _decimal_bytes,
    UUID: lambda value: value.bytes,
}
