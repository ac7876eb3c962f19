"""Converts Arrow columns to the Python values of rows, column by column.

Structs become `keyed.rows.Row`, lists lists, maps dictionaries, timestamps aware UTC datetimes (those without a zone
naive ones); dates, decimals, binary
and strings what Python has for them; nulls ``None``. pyarrow and numpy are imported where they are used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise, repeat
from typing import Any

from keyed.base.shown import shown
from keyed.codec.keys import normalised
from keyed.errors import RowError
from keyed.rows import Row, row_class

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


#: Rows that are Python objects at a time: few enough to stay in the processor's cache.
CHUNK_ROWS = 8192


def table_chunks(
    table: Any, keys: Sequence[str], times: Any
) -> Iterator[tuple[list[Any], list[Any] | None, Iterable[Any], None]]:
    """Yield the rows of a table in chunks (`keyed.engine.batch.Chunk`), made as they are needed.

    Args:
        table: An Arrow table.
        keys: Key columns: one gives scalars, several or none give tuples. Keys are as they are stored
            (`keyed.codec.keys.normalised`), and equal ones are one object, hashed once.
        times: Timestamps as a numpy array or list, or ``None``.
    """
    import numpy as np

    if not table.num_rows:
        return
    table = table.combine_chunks()
    names, columns = table.column_names, [column.chunk(0) for column in table.columns]
    dictionary, codes = distinct_keys(table, keys)
    distinct = np.fromiter(map(normalised, dictionary), dtype=object, count=len(dictionary))
    # Functions get the rows of the source unchanged.
    came = len(keys) == 1 and all(map(operator.is_, dictionary, distinct))
    single = names.index(keys[0]) if came else -1
    cls: type[Row] = row_class(tuple(names))
    for start in range(0, table.num_rows, CHUNK_ROWS):
        key_values = distinct[codes[start : start + CHUNK_ROWS]].tolist()
        lists = [
            key_values if position == single else column_values(column.slice(start, CHUNK_ROWS))
            for position, column in enumerate(columns)
        ]
        chunk_times = times[start : start + CHUNK_ROWS] if times is not None else None
        if chunk_times is not None and not isinstance(chunk_times, list):
            chunk_times = chunk_times.tolist()
        yield key_values, chunk_times, map(tuple.__new__, repeat(cls), zip(*lists, strict=True)), None


def table_rows(table: Any) -> list[Any]:
    """Return the rows of an Arrow table."""
    columns = [column_values(column) for column in table.columns]
    return list(map(row_class(tuple(table.column_names)), zip(*columns, strict=True)))


def distinct_keys(table: Any, keys: Sequence[str]) -> tuple[list[Any], Any]:
    """Return the distinct keys of a table in one chunk, and each row's index into them."""
    import numpy as np
    import pyarrow as pa

    if not keys:
        return [()], np.zeros(table.num_rows, dtype="int64")
    if len(keys) == 1:
        encoded = table.column(keys[0]).chunk(0).dictionary_encode()
        return column_values(encoded.dictionary), encoded.indices.to_numpy(zero_copy_only=False).astype("int64")
    codes: Any = np.empty(table.num_rows, dtype="int64")
    rows = table.select(list(keys)).append_column("__keyed_row", pa.array(np.arange(table.num_rows)))
    groups: Any = rows.group_by(list(keys), use_threads=False).aggregate([("__keyed_row", "list")])
    members = groups.column("__keyed_row_list").combine_chunks()
    codes[members.flatten().to_numpy()] = np.repeat(np.arange(len(members)), members.value_lengths().to_numpy())
    return list(zip(*(column_values(groups.column(name)) for name in keys), strict=True)), codes


def column_values(column: Any) -> list[Any]:
    """Return the column's values as Python objects."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    type_ = column.type
    types = pa.types
    if types.is_dictionary(type_):
        return column_values(column.dictionary_decode())
    if types.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        # flatten() applies the struct's own nulls and offset to its children.
        cls = row_class(tuple(f.name for f in fields))
        rows = list(map(cls, zip(*[column_values(child) for child in column.flatten()], strict=True)))
        return _with_nulls(column, rows)
    if types.is_map(type_):
        return [None if entries is None else dict(entries) for entries in _nested(column, _entries)]
    if types.is_list(type_) or types.is_large_list(type_):
        return _nested(column, column_values)
    if types.is_fixed_size_list(type_):
        return column_values(column.cast(pa.list_(type_.value_type)))
    if types.is_timestamp(type_):
        return _timestamps(column)
    if types.is_duration(type_) and type_.unit == "ns":
        # Otherwise these are of a class of pandas.
        return column_values(column.cast(pa.duration("us"), safe=False))
    if column.null_count == 0 and (types.is_integer(type_) or types.is_floating(type_)):
        numbers: list[Any] = column.to_numpy().tolist()
        return numbers
    values: list[Any] = column.to_pylist()
    return values


def _timestamps(column: Any) -> list[Any]:
    import pyarrow as pa

    micros = column.cast(pa.timestamp("us"), safe=False)
    numbers = micros.cast(pa.int64())
    deltas = (
        (numbers.fill_null(0) if numbers.null_count else numbers).to_numpy().astype("timedelta64[us]").astype(object)
    )
    epoch = _EPOCH if column.type.tz is not None else _EPOCH.replace(tzinfo=None)
    return _with_nulls(column, list(map(epoch.__add__, deltas)))


def _entries(flat: Any) -> list[tuple[Any, Any]]:
    """Return the (key, value) pairs of a map column's entries."""
    return list(zip(column_values(flat.field(0)), column_values(flat.field(1)), strict=True))


def _nested(column: Any, convert: Any) -> list[Any]:
    """Return the lists of a list or map column: its flat values cut at the offsets."""
    import pyarrow as pa

    if pa.types.is_map(column.type):
        flat = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    else:
        flat = column.values
    offsets = column.offsets.to_pylist()
    start, end = (offsets[0], offsets[-1]) if offsets else (0, 0)
    values = convert(flat.slice(start, end - start))
    lists = [values[a - start : b - start] for a, b in pairwise(offsets)]
    return _with_nulls(column, lists)


def _with_nulls(column: Any, values: list[Any]) -> list[Any]:
    """Return ``values`` with ``None`` if the column is null."""
    if column.null_count:
        for position, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                values[position] = None
    return values


def plain_values(column: Any) -> list[Any]:
    """Return the values of a column as pyarrow gives them, but maps as dictionaries, also before pyarrow 20.

    Raises:
        RowError: A map has a key twice.
    """
    convert = _with_dictionaries(column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [convert(value) for value in values]


def _with_dictionaries(type_: Any) -> Callable[[Any], Any] | None:
    """Return a function that converts the maps in a value to dictionaries; ``None`` if its type has none."""
    import pyarrow as pa

    def same(value: Any) -> Any:
        return value

    def of_map(pairs: Any) -> Any:
        if pairs is None:
            return None
        values = {key(each): item(value) for each, value in pairs}
        if len(values) < len(pairs):
            raise RowError(f"a map has a key twice: {shown(pairs)}")
        return values

    def of_list(values: Any) -> Any:
        return None if values is None else [item(value) for value in values]

    def of_struct(value: Any) -> Any:
        return None if value is None else {**value, **{name: part(value[name]) for name, part in parts.items()}}

    if pa.types.is_map(type_):
        key, item = (_with_dictionaries(each) or same for each in (type_.key_type, type_.item_type))
        return of_map
    if pa.types.is_struct(type_):
        parts = {each.name: part for each in type_ if (part := _with_dictionaries(each.type)) is not None}
        return of_struct if parts else None
    elements = _with_dictionaries(type_.value_type) if hasattr(type_, "value_type") else None
    if elements is None:
        return None
    item = elements
    return of_list
