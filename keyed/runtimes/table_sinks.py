"""Parts of the sinks of Delta and Iceberg tables, in both runtimes: columns are compared, and keys have one row.

A table records the last batch of each query: the id of the query, as in a Parquet sink's folder, with the id of the
batch, in the same commit as the rows. A batch whose id is not above the recorded one was written before.

The local runtime commits the rows of a batch with its state, as an Arrow stream in the record ``outbox``
(`keyed.recovery.outbox`), and writes them to the table afterwards, again after a crash if they were not
written. So they are the same rows. On Spark a batch that runs again has the input that Spark has logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from keyed.base.column_types import of_arrow
from keyed.errors import SinkError
from keyed.job.graph import BoundOutput
from keyed.sinks import DeltaSink, TableSink

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
Overtaken = type[Exception] | tuple[type[Exception], ...]
#: Number of attempts at a commit that other writers of the table overtake.
ATTEMPTS = 10
#: Start of the names of recorded ids.
PREFIX = "keyed-"
#: Iceberg has no smaller integers than those of 32 bits.
_SMALL = re.compile(r"\bint(?:8|16)\b")


def declared_columns(bound: BoundOutput) -> pa.Schema | None:
    """Return the Arrow schema of an output to a table; ``None`` if the first rows decide, in the local runtime.

    Raises:
        SinkError: The sink names a column that the output does not have, or has with another type.
    """
    from keyed.arrow.write import arrow_schema

    schema, sink = bound.output.schema, bound.sink
    assert isinstance(sink, TableSink)
    if schema is None:
        return None
    stored(sink, schema.names)
    check_types(sink, dict(schema.columns))
    return arrow_schema(schema)


def fitted(sink: TableSink, rows: pa.Table, columns: pa.Schema | None) -> pa.Table:
    """Return rows without declared columns, which have those of the query's first rows.

    Args:
        sink: The sink.
        rows: The rows.
        columns: The columns of the first rows; ``None`` for these themselves.

    Raises:
        SinkError: They have other columns, or the type of a column is unknown.
    """
    declare = "declare the columns: process(..., output=...) or OutputTag(name, type)"
    if columns is None:
        types = {each.name: of_arrow(each.type) or str(each.type).replace("list<", "array<") for each in rows.schema}
        for name, type_ in types.items():
            if re.search(r"\bnull$|\bnull[>,]", type_):
                raise SinkError(f"{sink!r}: the first rows have no value in {name!r}, so its type is open; {declare}")
        stored(sink, list(types))
        check_types(sink, types)
        return rows
    # Nulls alone have no type.
    nulls = [each.name for each in rows.schema if str(each.type) == "null" and each.name in columns.names]
    for name in nulls:
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, columns.field(name), rows.column(name).cast(columns.field(name).type))
    if not rows.schema.equals(columns):
        shown = [", ".join(f"{field.name} {field.type}" for field in schema) for schema in (rows.schema, columns)]
        raise SinkError(f"{sink!r}: the rows have the columns {shown[0]}, and the first ones had {shown[1]}; {declare}")
    return rows


def delta_kinds(schema: pa.Schema) -> dict[str, str]:
    """Return columns with the names of their types in Delta tables."""
    import pyarrow as pa

    from keyed.arrow.kinds import kinds

    local = {field.name for field in schema if pa.types.is_timestamp(field.type) and field.type.tz is None}
    return {name: "timestamp_ntz" if name in local else kind for name, kind in kinds(schema).items()}


def iceberg_kinds(schema: pa.Schema) -> dict[str, str]:
    """Return columns with the names of their types in Iceberg tables."""
    return {name: _SMALL.sub("int32", kind) for name, kind in delta_kinds(schema).items()}


def check_no_other(sink: DeltaSink, folder: Path) -> None:
    """Check that a folder without a Delta table has no other files.

    Raises:
        SinkError: It has.
    """
    if folder.exists():
        content = sorted(folder.iterdir()) if folder.is_dir() else [folder]
        other = next((each.name for each in content if each.name != "_delta_log"), None)
        if other is not None:
            raise SinkError(f"{sink!r}: the folder holds {other}, and is no Delta table; give another")


def stored(sink: TableSink, names: Sequence[str]) -> list[str]:
    """Return the columns of an output that the table has.

    Raises:
        SinkError: The output lacks a column that the sink names.
    """
    for name in (*sink.key, *([sink.deleted] if sink.deleted is not None else ())):
        if name not in names:
            raise SinkError(f"{sink!r}: the output has no column {name!r}, only {', '.join(names)}")
    return [name for name in names if name != sink.deleted]


def check_types(sink: TableSink, types: Mapping[str, str]) -> None:
    """Check the types of the columns that the sink names.

    Args:
        sink: The sink.
        types: Spark types of the output's columns by name.

    Raises:
        SinkError: A column of the key has no exact equality, or ``deleted`` is not boolean.
    """
    for name in sink.key:
        if types[name].startswith(("float", "double", "array", "map", "struct", "void")):
            raise SinkError(
                f"{sink!r}: the column {name!r} of the key is of type {types[name]}; give columns of integers, "
                "decimals, text, bytes, booleans, dates or timestamps"
            )
    if sink.deleted is not None and types[sink.deleted] != "boolean":
        raise SinkError(f"{sink!r}: the column {sink.deleted!r} is of type {types[sink.deleted]}, and not boolean")


def added(sink: TableSink, there: Mapping[str, str], new: Mapping[str, str], required: Sequence[str]) -> list[str]:
    """Return the columns that an output adds to a table.

    Args:
        sink: The sink.
        there: The table's columns with the names of their types.
        new: Those of the output.
        required: The table's columns that have no nulls.

    Raises:
        SinkError: The table has other columns.
    """
    same = {name.lower(): name for name in there}
    clash = next((name for name in new if name not in there and name.lower() in same), None)
    if clash is not None or required or any(new.get(name) != type_ for name, type_ in there.items()):
        why = (
            f"{clash} is {same[clash.lower()]} there"
            if clash is not None
            else f"{', '.join(required)} must not be null there, and a column of an output may be null"
            if required
            else ", ".join(
                f"the output has no {name}" if name not in new else f"{name} is {new[name]} in the output"
                for name, type_ in there.items()
                if new.get(name) != type_
            )
        )
        columns = [", ".join(f"{name} {type_}" for name, type_ in each.items()) for each in (there, new)]
        raise SinkError(
            f"{sink!r}: the table has other columns than the output: {why}. The table has {columns[0]}; the output has "
            f"{columns[1]}. Give another table, or the table's columns (an output may add columns)"
        )
    return [name for name in new if name not in there]


def last_rows(rows: pa.Table, sink: TableSink) -> pa.Table:
    """Return the last row of each key, in the order of the rows.

    Raises:
        SinkError: A key has a null.
    """
    import numpy as np
    import pyarrow as pa

    for name in sink.key:
        if rows.column(name).null_count:
            raise null_key(sink, name)
    numbered = rows.select([*sink.key]).append_column("", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by([*sink.key], use_threads=False).aggregate([("", "max")]).column("_max")
    return rows.take(last.combine_chunks().sort())


def null_key(sink: TableSink, name: str) -> SinkError:
    """Return the error for a null in a key."""
    return SinkError(f"{sink!r}: a row has a null in {name!r}, a column of the key; drop such rows before the sink")


def warn_of_overlap(sink: TableSink, query: str, last: int, next_batch: int) -> None:
    """Log that a restored query adds rows that the earlier query has added, if so.

    Args:
        sink: The sink.
        query: Id of the earlier query.
        last: Its last batch in the table.
        next_batch: The first batch of the restored query.
    """
    if sink.mode == "append" and last >= next_batch:
        _log.warning(
            "%r: the query %s, from which this one was restored, has written batches up to %d to the table, and this "
            "one goes on with batch %d: rows of batches in between are there twice unless the table is rolled back",
            sink,
            query,
            last,
            next_batch,
        )


def attempts(sink: TableSink, attempt: Callable[[], _T], overtaken: Overtaken) -> _T:
    """Return the result of an attempt at a commit, which is repeated while other writers overtake it.

    Args:
        sink: The sink.
        attempt: Reads the table, and commits to it.
        overtaken: The exceptions of a commit that another one has overtaken.

    Raises:
        SinkError: They overtake it again and again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return attempt()
        except overtaken as error:
            _log.info("%r: another writer of the table was first, trying again: %s", sink, error)
    try:
        return attempt()
    except overtaken as error:
        raise SinkError(f"{sink!r}: other writers of the table were first {ATTEMPTS} times: {error}") from error
