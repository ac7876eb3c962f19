"""Streams and tables of a script that are read from Spark DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keyed
from keyed.errors import DefinitionError
from keyed.sql.catalog import SqlSource
from keyed.sql.given_rows import converted, inserting
from keyed.sql.packed_changes import PACKED, pack
from keyed.sql.row_changes import Change

_TIME = "sql_time"


def is_frame(given: Any) -> bool:
    """Return whether a value is a Spark DataFrame, without importing pyspark."""
    return any(
        each.__module__.startswith("pyspark.sql") and each.__name__ == "DataFrame" for each in type(given).__mro__
    )


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
