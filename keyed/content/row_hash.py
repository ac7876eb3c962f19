"""Hashes of rows, by whole columns, which locate rows of tables and verify tables.

The module also computes the size of rows in bytes.

The hash of a row is a 64-bit number, all arithmetic modulo 2^64::

    hash     = mix(seed + sum over columns that are not null of mix(word ^ tag))
    mix(x)   = the finaliser of splitmix64
    tag      = blake2b of the column's name, 8 bytes, little-endian

so it does not depend on the order of columns, and a column of nulls changes nothing. The word of a value::

    integer, boolean, date, time, timestamp, duration   its number in two's complement
    float                                               IEEE 754 as double, one zero, one NaN
    string, binary                                      length * K + sum of byte[i] * K^i
    decimal                                             its 64-bit words w, least first: sum of mix(w[i] + i)
    list, map                                           as a string, of the mixed words of the items
    struct                                              sum over fields that are not null of mix(word ^ tag)

with K = 0x9E3779B97F4A7C15; a null item of a list counts as a constant.

The numbers are stored: local stores on disk keep each row's beside it and rely on their order
(`keyed.stores.disk_tables`), and commits of changelogs and meta records have their sums. So a change of the numbers
requires a new `HASH_VERSION`: local stores of another version are rebuilt. Sums do not say which version they are of,
and would have to from version 2 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HASH_VERSION = 1
"""Version of the numbers, which a test checks."""

_K = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD1B54A32D192ED03)
_NAN = np.array([np.nan]).view("uint64")[0]
#: Rows whose temporary arrays fit the processor's cache.
_BLOCK = 1 << 15

Words = np.ndarray[Any, np.dtype[np.uint64]]


def row_hashes(table: pa.Table, columns: Sequence[str] | None = None, seed: int = 0) -> Words:
    """Return the hash of each row.

    Args:
        table: The rows.
        columns: The hashed columns; all by default.
        seed: Another seed gives independent hashes.
    """
    names = table.column_names if columns is None else list(columns)
    result = np.empty(table.num_rows, dtype="uint64")
    arrays = [(_tag(name), _contiguous(table.column(name))) for name in names]
    for start in range(0, table.num_rows, _BLOCK):
        total = np.full(min(_BLOCK, table.num_rows - start), seed & 0xFFFFFFFFFFFFFFFF, dtype="uint64")
        for tag, array in arrays:
            total += _mixed(array.slice(start, _BLOCK), tag)
        result[start : start + len(total)] = _mix(total)
    return result


def rows_hash(table: pa.Table, state_id: int) -> int:
    """Return the sum of 128-bit hashes of the rows of a state, modulo 2^128: it does not depend on their order."""
    high, low = (row_hashes(table, seed=2 * state_id + half) for half in range(2))
    # Each row counts as high * 2^64 + low; the sums of 32-bit halves do not overflow.
    total = 0
    for words, shift in ((low, 0), (high, 64)):
        total += int((words & np.uint64(0xFFFFFFFF)).sum()) << shift
        total += int((words >> np.uint64(32)).sum()) << (shift + 32)
    return total % (1 << 128)


@lru_cache(maxsize=4096)
def _tag(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))


def _contiguous(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _mix(words: Words) -> Words:
    """Mix in place."""
    words ^= words >> np.uint64(30)
    words *= _M1
    words ^= words >> np.uint64(27)
    words *= _M2
    words ^= words >> np.uint64(31)
    return words


def _mixed(array: Any, tag: np.uint64) -> Words:
    """Return a column's terms of the hashes: zero for nulls."""
    words = _mix(_words(array) ^ tag)
    if array.null_count:
        words[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return words


def _words(array: Any) -> Words:
    """Return the word of each value; undefined for nulls."""
    type_ = array.type
    types = pa.types
    if types.is_dictionary(type_):
        return _words(array.dictionary_decode())
    if types.is_null(type_):
        return np.zeros(len(array), dtype="uint64")
    if types.is_string(type_) or types.is_binary(type_) or types.is_large_string(type_) or types.is_large_binary(type_):
        return _text_words(array)
    if types.is_decimal(type_):
        return _decimal_words(array)
    if types.is_struct(type_):
        total = np.zeros(len(array), dtype="uint64")
        for index in range(type_.num_fields):
            total += _mixed(array.field(index), _tag(type_.field(index).name))
        return total
    if types.is_nested(type_):
        return _list_words(array)
    if types.is_floating(type_):
        doubles = array.cast(pa.float64()).fill_null(0).to_numpy() + 0.0
        words: Words = doubles.view("uint64")
        words[np.isnan(doubles)] = _NAN
        return words
    if types.is_boolean(type_):
        booleans: Words = array.cast(pa.uint8()).fill_null(0).to_numpy().astype("uint64")
        return booleans
    # Dates, times, timestamps and durations are integers of 4 or 8 bytes.
    integers = array if types.is_integer(type_) else array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    values = integers.fill_null(0).to_numpy() if integers.null_count else integers.to_numpy()
    numbers: Words = values.astype("int64" if values.dtype.kind == "i" else "uint64").view("uint64").copy()
    return numbers


def _text_words(array: Any) -> Words:
    if not pa.types.is_large_binary(array.type) and not pa.types.is_large_string(array.type):
        offset_type = "int32"
    else:
        offset_type = "int64"
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, offset_type)[array.offset : array.offset + len(array) + 1]
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    raw = np.frombuffer(data, "uint8")[first:last] if data is not None else np.empty(0, "uint8")
    return _polynomial(raw, offsets[:-1].astype("int64") - first, np.diff(offsets).astype("int64"))


def _list_words(array: Any) -> Words:
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if pa.types.is_map(array.type):
        items = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    else:
        items = array.values
    offsets = array.offsets.to_numpy().astype("int64")
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    items = items.slice(first, last - first)
    words = _mix(_words(items))
    if items.null_count:
        words[items.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return _polynomial(words, offsets[:-1] - first, np.diff(offsets))


def _polynomial(items: Any, starts: Any, lengths: Any) -> Words:
    """Return per row, length * K + sum of item[i] * K^i over the items from its start."""
    words: Words = lengths.astype("uint64") * _K
    if not len(items) or not len(lengths):
        return words
    longest = int(lengths.max())
    powers = np.cumprod(np.full(longest, _K), dtype="uint64") * _inverse_of_k()
    if int(lengths.min()) == longest and len(items) == longest * len(lengths):
        words += (items.reshape(-1, longest).astype("uint64") * powers).sum(axis=1, dtype="uint64")
        return words
    places = np.arange(len(items)) - np.repeat(starts, lengths)
    # For rows without items reduceat returns the item at their start, so they are excluded.
    filled = lengths > 0
    words[filled] += np.add.reduceat(items.astype("uint64") * powers[places], starts[filled])
    return words


@lru_cache(maxsize=1)
def _inverse_of_k() -> np.uint64:
    return np.uint64(pow(int(_K), -1, 1 << 64))


def _decimal_words(array: Any) -> Words:
    width = array.type.bit_width // 64
    _, data = array.buffers()
    parts = np.frombuffer(data, "uint64")[array.offset * width : (array.offset + len(array)) * width]
    total = np.zeros(len(array), dtype="uint64")
    for index in range(width):
        total += _mix(parts[index::width] + np.uint64(index))
    return total


def row_bytes(table: pa.Table) -> int:
    """Return the size of rows in the counter of live bytes: the bytes of their values, without overhead.

    A column of nulls changes nothing, so a row has the size with which it was written after a column was added.
    """
    return sum(_array_bytes(chunk) for column in table.columns for chunk in column.chunks)


def _array_bytes(array: Any) -> int:
    type_ = array.type
    types = pa.types
    if types.is_struct(type_):
        return sum(_array_bytes(child) for child in array.flatten())
    if types.is_map(type_):
        entries = array.cast(pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)])))
        return _array_bytes(entries)
    values: int = len(array) - array.null_count
    if types.is_nested(type_):
        return 4 * values + _array_bytes(array.flatten())
    try:
        width: int = type_.bit_width
    except ValueError:
        return 4 * values + (pc.sum(pc.binary_length(array)).as_py() or 0)
    return values * ((width + 7) // 8)
