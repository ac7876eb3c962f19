"""Values of Arrow columns that Python cannot represent: invalid UTF-8, and times before year 1 or after year 9999.

Spark and files can hold them. Whether a column has one is found without looking at each value; which rows have it is
found by halves, because few have.
"""

from __future__ import annotations

from typing import Any

from keyed.arrow.read import column_values
from keyed.rows import row_class

#: What is wrong with such a value, for messages.
UNREADABLE = "holds text that is no UTF-8, or a time before year 1 or after year 9999,"
#: The days of the years 1 to 9999, counted from 1970-01-01: the first, and the first that is no more.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def unreadable_rows(table: Any) -> list[int]:
    """Return the rows of an Arrow table or batch that have such a value in some column, in order."""
    return sorted({row for column in table.columns for row in _unreadable(column, 0, len(column))})


def unreadable_column(row: Any) -> str | None:
    """Return the name of the first column of a row, a table of one, that has such a value; ``None`` if none has."""
    return next((name for name, column in zip(row.schema.names, row.columns, strict=True) if not _reads(column)), None)


def raw_values(column: Any) -> list[Any]:
    """Return what `keyed.arrow.read.column_values` does, and something for each value that Python has not.

    In a text, bytes that are no UTF-8 are spelt out; a time is its number: microseconds, or days, since the epoch.
    """
    if _reads(column):
        return column_values(column)
    return [_raw(value) for value in column]


def raw_rows(table: Any) -> list[Any]:
    """Return what `keyed.arrow.read.table_rows` does, with `raw_values`."""
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
        return _reads(_entries(column))
    return not types.is_fixed_size_list(type_) or _reads(column.flatten())


def _entries(column: Any) -> Any:
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
