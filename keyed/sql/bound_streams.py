"""Streams and tables of a script that are read from Spark DataFrames, streams and outputs of the Python API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keyed
from keyed.errors import DefinitionError
from keyed.rows import Row
from keyed.shown import shown
from keyed.sql.catalog import SqlSource
from keyed.sql.given_rows import converted, inserting, time_of
from keyed.sql.packed_changes import PACKED, pack
from keyed.sql.row_changes import Change
from keyed.sql.script_errors import nearest

_TIME = "sql_time"


def is_frame(given: Any) -> bool:
    """Return whether a value is a Spark DataFrame, without importing pyspark."""
    return any(
        each.__module__.startswith("pyspark.sql") and each.__name__ == "DataFrame" for each in type(given).__mro__
    )


def is_stream(given: Any) -> bool:
    """Return whether a value is a stream or an output of the Python API."""
    return isinstance(given, keyed.Stream | keyed.Output)


def is_on_spark(given: Any) -> bool:
    """Return whether what is bound to a name runs on Spark."""
    if not is_stream(given):
        return is_frame(given)
    origins = [getattr(each, "stage", None) or getattr(each, "origin", each) for each in given.origins]
    return any(is_frame(each.source.data if hasattr(each, "source") else each.data) for each in origins)


def element_changes(
    source: SqlSource, decode: Callable[[Any], Iterable[Change]], moment_of: Callable[[Any, Any, int], int | None]
) -> Callable[[Any], Iterable[Change]]:
    """Return the function from an element with the columns of a source to its changes; none without a timestamp.

    Args:
        source: The stream or table.
        decode: Returns the changes of a record.
        moment_of: Returns the timestamp of a record by its key, value and the column ``ROWTIME``, 0 without one.
    """
    insert = inserting(source)
    columns = [*source.keys, *source.stored]
    makes = [(name, name.upper(), converted(type_)) for name, type_ in columns]

    def changes(element: Any) -> Iterable[Change]:
        fields = _fields(source, element)
        given = {**{str(name).upper(): cell for name, cell in fields.items()}, **fields}
        cells = {}
        for name, upper, make in makes:
            if name not in given and upper not in given:
                raise DefinitionError(
                    f"the stream of {source.name} has no column {name!r}{nearest(name, map(str, fields))}; its element "
                    f"is {shown(element)}"
                )
            cells[name] = make(given.get(name, given.get(upper)))
        topic, key, value, time, *rest = insert(cells, time_of(given.get("ROWTIME")))
        moment = moment_of(key, value, time)
        if moment is None or moment < 0:
            return ()
        return decode((topic, key, value, moment, rest[0], 0, *rest[2:], 0))

    return changes


def _fields(source: SqlSource, element: Any) -> Mapping[str, Any]:
    if isinstance(element, Row):
        return dict(zip(element._fields, element, strict=True))
    if isinstance(element, Mapping):
        return element
    names = getattr(element, "_fields", None) or getattr(element, "__match_args__", None)
    if not names:
        raise DefinitionError(
            f"the stream of {source.name}: an element has named fields, and this one is {shown(element)}; yield "
            "dictionaries or rows of a class, or name the columns: process(..., output='title string, price int')"
        )
    return {name: getattr(element, name) for name in names}


def packed_stream(frame: Any, source: SqlSource, decode: Callable[[Any], Iterable[Change]]) -> keyed.Stream:
    """Return the changes of a DataFrame with the columns of a source, as rows.

    Rows without a timestamp are left out.

    Args:
        frame: The DataFrame, batch or streaming.
        source: The stream or table.
        decode: Returns the changes of a record.

    Raises:
        DefinitionError: A column is missing, or the timestamp cannot be read on Spark.
    """
    given = {name.upper(): (name, kind) for name, kind in frame.dtypes}
    columns = [*source.keys, *source.stored]
    missing = [name for name, _ in columns if name.upper() not in given]
    if missing:
        raise DefinitionError(
            f"the DataFrame of {source.name} has no column {missing[0]!r}; it has {', '.join(frame.columns)}"
        )
    selected = []
    for number, (name, type_) in enumerate(columns):
        quoted = f"`{given[name.upper()][0]}`"
        is_nested = type_.base in ("ARRAY", "MAP", "STRUCT") and given[name.upper()][1] != "string"
        selected.append(f"{f'to_json({quoted})' if is_nested else quoted} AS column_{number}")
    frame = frame.selectExpr(*selected, f"{_time(source, given)} AS {_TIME}").where(f"{_TIME} >= 0")
    insert = inserting(source)
    makes = [(name, f"column_{number}", converted(type_)) for number, (name, type_) in enumerate(columns)]

    def changes(row: Any) -> Iterator[Any]:
        record = insert({name: make(getattr(row, column)) for name, column, make in makes}, row.sql_time)
        for change in decode((*record[:5], 0, *record[6:], 0)):
            yield pack(change)

    return keyed.stream(frame, timestamp=_TIME, max_ahead=None).flat_map(changes, output=PACKED)


def _time(source: SqlSource, given: dict[str, tuple[str, str]]) -> str:
    """Return the expression of a row's timestamp in milliseconds."""
    column, pattern = source.timestamp or ("ROWTIME", None)
    if column.upper() not in given:
        return "CAST(0 AS BIGINT)"
    if pattern is not None:
        raise DefinitionError(
            f"{source.name}: TIMESTAMP_FORMAT is not read on Spark; give a DataFrame with a column of type timestamp, "
            "and declare it as TIMESTAMP"
        )
    name, kind = given[column.upper()]
    if kind in ("bigint", "int"):
        return f"CAST(`{name}` AS BIGINT)"
    return f"unix_millis(CAST(`{name}` AS TIMESTAMP))"
