"""State tables as the sources of push queries: their columns, and their entries as changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from keyed.sql.catalog import SqlSource
from keyed.sql.row_changes import NO_META, Change
from keyed.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    STRING,
    TIME,
    TIMESTAMP,
    SqlType,
    array,
    decimal,
    map_of,
    struct,
)

if TYPE_CHECKING:
    import pyarrow as pa

_BOUNDS = ("WINDOWSTART", "WINDOWEND")
#: Columns of a dataset that are not of the entry.
_OTHERS = ("namespace", "expires")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS = dt.timedelta(milliseconds=1)


class PushedTable:
    """A state table as the source of a push query.

    Args:
        name: Its name in the query.
        schema: The schema of its dataset.
        key_columns: Names of the columns of its key.

    Attributes:
        source: The source, with the columns of its entries.
    """

    def __init__(self, name: str, schema: pa.Schema, key_columns: Sequence[str]) -> None:
        types = {field.name: sql_type(field.type) for field in schema}
        fields = [each for each in types if each not in (*_OTHERS, *key_columns, "key")]
        self._windowed = {*_BOUNDS} <= types.keys()
        self._fields = [each for each in fields if each not in ("ROWTIME", *_BOUNDS)]
        # Rows of a script have the columns of the key, and their key is the text by which they are routed.
        keys = [] if "ROWTIME" in types else [*key_columns] or ["key"]
        self._keys = [each for each in keys if each in types]
        self._are_windows = "window_start" in types and "entry" not in types
        parts = ("entry", *(("window_start", "window_end") if self._are_windows else ()))
        self._is_row = [each for each in fields if each not in parts] != ["value"]
        taken: set[str] = set()
        named = []
        for column in (*self._keys, *self._fields):
            upper = column.upper() if column.upper() not in taken else column
            taken.add(upper)
            named.append((upper, types[column]))
        self._read = [_reader(type_) for _, type_ in named]
        self.source = SqlSource(
            name, "STREAM", (), tuple(named), name, window="TUMBLING" if self._windowed else None, is_query=True
        )

    def change(self, key: Any, entry: Any, value: Any) -> Change:
        """Return an entry as a change.

        Args:
            key: Its key.
            entry: The entry of the key, as in `keyed.tables.Change`.
            value: Its value: an object with fields, a dictionary of them, or another value of the column ``value``.
        """
        keys = key if isinstance(key, tuple) and len(self._keys) > 1 else (key,)
        known = {"entry": entry}
        if self._are_windows and entry is not None:
            known |= zip(("window_start", "window_end"), entry, strict=False)
        found = (*keys[: len(self._keys)], *(self._cell(each, known, value) for each in self._fields))
        cells = tuple(read(cell) for read, cell in zip(self._read, found, strict=True))
        window = tuple(_field(value, each) for each in _BOUNDS) if self._windowed else None
        return "", (), cells, None, _field(value, "ROWTIME") or 0, window, NO_META

    def _cell(self, column: str, known: dict[str, Any], value: Any) -> Any:
        if column in known:
            return known[column]
        return _field(value, column) if self._is_row else value


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def shown_cell(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function from a value of SQL to that of Python: a time for a number, for columns of times."""
    return _WRITERS.get(type_.base, _same)


def _reader(type_: SqlType) -> Callable[[Any], Any]:
    return _READERS.get(type_.base, _same)


def _same(value: Any) -> Any:
    return value


def _moment(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        return value
    return ((value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)) - _EPOCH) // _MS


def _days(value: Any) -> Any:
    return (value - _EPOCH.date()).days if isinstance(value, dt.date) else value


def _time_of_day(value: Any) -> Any:
    if not isinstance(value, dt.time):
        return value
    return (dt.datetime.combine(_EPOCH, value.replace(tzinfo=dt.UTC)) - _EPOCH) // _MS


#: Values of times in expressions are numbers: milliseconds, and days of a date.
_READERS: dict[str, Callable[[Any], Any]] = {"TIMESTAMP": _moment, "DATE": _days, "TIME": _time_of_day}
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "TIMESTAMP": lambda value: None if value is None else _EPOCH + value * _MS,
    "DATE": lambda value: None if value is None else _EPOCH.date() + dt.timedelta(days=value),
    "TIME": lambda value: None if value is None else (_EPOCH + value * _MS).time(),
}


def sql_type(type_: pa.DataType) -> SqlType:
    """Return the SQL type of an Arrow type."""
    import pyarrow as pa

    known = pa.types
    for test, found in (
        (known.is_boolean, BOOLEAN),
        (known.is_integer, BIGINT),
        (known.is_floating, DOUBLE),
        (known.is_binary, BYTES),
        (known.is_date, DATE),
        (known.is_time, TIME),
        (known.is_timestamp, TIMESTAMP),
    ):
        if test(type_):
            return found
    if known.is_decimal(type_):
        return decimal(type_.precision, type_.scale)
    if known.is_list(type_):
        return array(sql_type(type_.value_type))
    if known.is_map(type_):
        return map_of(sql_type(type_.key_type), sql_type(type_.item_type))
    if known.is_struct(type_):
        return struct(*((field.name.upper(), sql_type(field.type)) for field in type_))
    return STRING
