"""Converts Arrow columns to the Python values of rows, column by column.

Structs become `keyed.rows.Row`, lists lists, maps dictionaries, timestamps aware UTC datetimes (those without a zone
naive ones); dates, decimals, binary and strings what Python has for them; nulls ``None``. pyarrow and numpy are
imported where they are used.

Python cannot represent invalid UTF-8, and times before year 1 or after year 9999, which Spark and files can hold.
Whether a column has one is found without looking at each value; which rows have it is found by halves, because few
have.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise, repeat
from typing import Any

from keyed.base.arguments import shown
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


#: What is wrong with a value that Python cannot represent, for messages.
UNREADABLE = "holds text that is no UTF-8, or a time before year 1 or after year 9999,"
#: The days of the years 1 to 9999, counted from 1970-01-01: the first, and the first that is no more.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def unreadable_rows(table: Any) -> list[int]:
    """Return the rows of an Arrow table or batch with a value that Python cannot represent, in order."""
    return sorted({row for column in table.columns for row in _unreadable(column, 0, len(column))})


def unreadable_column(row: Any) -> str | None:
    """Return the name of the first column of a row, a table of one, that has one; ``None`` if none has."""
    return next((name for name, column in zip(row.schema.names, row.columns, strict=True) if not _reads(column)), None)


def raw_values(column: Any) -> list[Any]:
    """Return what `column_values` does, and something for each value that Python has not.

    In a text, bytes that are no UTF-8 are spelt out; a time is its number: microseconds, or days, since the epoch.
    """
    if _reads(column):
        return column_values(column)
    return [_raw(value) for value in column]


def raw_rows(table: Any) -> list[Any]:
    """Return what `table_rows` does, with `raw_values`."""
    columns = [raw_values(column) for column in table.columns]
    return list(map(row_class(tuple(table.schema.names)), zip(*columns, strict=True)))


def _unreadable(column: Any, start: int, length: int) -> list[int]:
    if not length or _reads(column.slice(start, length)):
        return []
    if length == 1:
        return [start]
    half = length // 2
    return _unreadable(column, start, half) + _unreadable(column, start + half, length - half)


def _reads(column: Any) -> bool:
    """Return whether Python has a value for each of a column's."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return all(map(_reads, column.chunks))
    types, type_ = pa.types, column.type
    if types.is_string(type_) or types.is_large_string(type_):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True
    if types.is_timestamp(type_) or types.is_date(type_):
        return _is_in_range(column)
    if types.is_dictionary(type_):
        return _reads(column.dictionary_decode())
    if types.is_struct(type_):
        return all(map(_reads, column.flatten()))
    if types.is_map(type_) or types.is_list(type_) or types.is_large_list(type_):
        # Entries of null lists are skipped.
        return _reads(_flat_entries(column))
    return not types.is_fixed_size_list(type_) or _reads(column.flatten())


def _flat_entries(column: Any) -> Any:
    """Return the values of a list column, or the keys and values of a map column, flat."""
    import pyarrow as pa

    if pa.types.is_map(column.type):
        entry = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
        column = column.cast(pa.list_(entry))
    return column.flatten()


def _is_in_range(column: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    type_ = column.type
    is_days = pa.types.is_date32(type_)
    a_day = 1 if is_days else _A_DAY[type_.unit if pa.types.is_timestamp(type_) else "ms"]
    range_: Any = pc.min_max(column.view(pa.int32() if is_days else pa.int64())).as_py()
    least, most = range_["min"], range_["max"]
    return least is None or (least >= _FIRST_DAY * a_day and most < _END_DAY * a_day)


def _raw(value: Any) -> Any:
    """Return the value of an Arrow scalar."""
    import pyarrow as pa

    types, type_ = pa.types, value.type
    if not value.is_valid:
        return None
    if types.is_struct(type_):
        return row_class(tuple(field.name for field in type_))(_raw(value[i]) for i in range(type_.num_fields))
    if types.is_dictionary(type_):
        return _raw(value.dictionary[value.index.as_py()])
    if types.is_map(type_):
        return {_raw(entry[0]): _raw(entry[1]) for entry in value.values}
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return [_raw(each) for each in value.values]
    column = pa.array([value], type_)
    if _reads(column):
        return column_values(column)[0]
    if types.is_temporal(type_):
        return value.value
    return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
