"""Rows that are given for a stream or table of a script: lists, tables and files, as dictionaries of its columns."""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs

from keyed.errors import DefinitionError
from keyed.shown import shown, type_of
from keyed.sql.catalog import SqlSource
from keyed.sql.conversions import casting
from keyed.sql.engine_expressions import EngineColumns, columns_of
from keyed.sql.script_errors import nearest
from keyed.sql.sql_types import STRING, SqlType

#: What a record of a row that no query needs has in place of the values that are computed.
LEFT_OUT = (None,)
_ARROW_KINDS = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "bool": "boolean",
    "date32[day]": "date",
}
#: Rows over which DuckDB computes at a time.
_COMPUTED_ROWS = 50_000
_FILES = (".jsonl", ".json", ".csv", ".parquet")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)


@attrs.frozen(eq=False)
class GivenRows:
    """The rows of a stream or table, as records of its topic.

    Attributes:
        source: The stream or table.
        rows: Dictionaries, a pandas, polars or Arrow table, or the path of a file of JSON lines, CSV or Parquet. A file
            is read row by row, and may have more columns.
        filters: Rows of columns that no query needs are marked by `LEFT_OUT`: their timestamps do not matter.
    """

    source: SqlSource
    rows: Any
    filters: bool = False

    def __attrs_post_init__(self) -> None:
        if isinstance(self.rows, str | os.PathLike):
            path = Path(self.rows)
            if path.suffix.lower() not in _FILES:
                raise DefinitionError(
                    f"the rows of {self.source.name}: {str(path)!r} must be a file of {', '.join(_FILES)}"
                )
            if not path.is_file():
                raise DefinitionError(f"the rows of {self.source.name}: there is no file {str(path)!r}")
        elif isinstance(self.rows, Mapping | bytes) or not (
            isinstance(self.rows, Iterable) or hasattr(self.rows, "to_pylist")
        ):
            raise DefinitionError(
                f"the rows of {self.source.name} are {type_of(self.rows)}; give a list of dictionaries, a table, or "
                "the path of a file"
            )

    @property
    def is_flat(self) -> bool:
        """True if no cell is an array, map or struct, so that records share nothing with the rows."""
        columns = (*self.source.keys, *self.source.stored)
        return not any(type_.base in ("ARRAY", "MAP", "STRUCT") for _, type_ in columns)

    def __iter__(self) -> Iterator[Any]:
        """Return the records."""
        source, is_file = self.source, isinstance(self.rows, str | os.PathLike)
        convert = {name: converted(type_) for name, type_ in (*source.keys, *source.values)}
        columns = {*convert, "ROWTIME"}
        key_of, value_of, topic = source.key_encoder(), source.value_encoder(), source.topic
        keys = [(name, convert[name]) for name, _ in source.keys]
        values = [(name, convert[name]) for name, _ in source.stored]
        computed: list[Any] = []
        found: Iterable[Any]
        if source.computed is not None:
            conditions = source.computed.conditions if self.filters else ()
            found = _with_computed(_tables(self.rows), source.computed, conditions, computed)
        else:
            found = _file_rows(Path(self.rows)) if is_file else _plain_rows(self.rows)
        checked: tuple[str, ...] | None = None
        # The name in the rows of each column that they have.
        given: dict[str, str] = {}
        for row in found:
            if row.__class__ is not dict and not isinstance(row, Mapping):
                raise DefinitionError(f"the rows of {source.name}: a row is a dictionary, and this one is {shown(row)}")
            names = tuple(row)
            if names != checked:
                given = {str(name).upper(): name for name in names} | {str(name): name for name in names}
                unknown = [each for each in map(str, names) if each not in columns and each.upper() not in columns]
                if unknown and (not is_file or len(unknown) == len(names)):
                    raise DefinitionError(
                        f"{source.name} has no column {unknown[0]!r}{nearest(unknown[0], columns)}; the row is "
                        f"{shown(dict(row))}"
                    )
                checked = names
                time = given.get("ROWTIME")
                keys_at = [(given.get(name), make) for name, make in keys]
                values_at = [(given.get(name), make) for name, make in values]
            key = key_of(tuple([make(None if at is None else row[at]) for at, make in keys_at]))
            cells = tuple([make(None if at is None else row[at]) for at, make in values_at])
            value = value_of(cells) if values else None
            record = (topic, key, value, time_of(None if time is None else row[time]), 0, None, None, None)
            yield (*record, computed.pop()) if computed else record


def engine_of(rows: Any) -> EngineColumns | None:
    """Return the engine that computes over rows: DuckDB for an Arrow or polars table and a Parquet file.

    Returns:
        ``None`` for rows that are not columns, or without the package.
    """
    if importlib.util.find_spec("duckdb") is None:
        return None
    module, kind = type(rows).__module__.partition(".")[0], type(rows).__name__
    schema: Any = None
    if isinstance(rows, str | os.PathLike) and Path(rows).suffix.lower() == ".parquet" and Path(rows).is_file():
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = pq.read_schema(Path(rows))
        except (pa.ArrowException, OSError):
            return None  # reading it says what is wrong
    elif (module, kind) in (("pyarrow", "Table"), ("polars", "DataFrame")):
        schema = rows.schema if module == "pyarrow" else rows[:0].to_arrow().schema
    if schema is None:
        return None
    return EngineColumns("duckdb", columns_of(arrow_kinds(schema)))


def arrow_kinds(schema: Any) -> list[tuple[str, str | None]]:
    """Return the columns of an Arrow schema with the kinds that Spark has for their types."""
    found: list[tuple[str, str | None]] = []
    for field in schema:
        type_ = str(field.type)
        is_decimal = type_.startswith("decimal128")
        kind = f"decimal({field.type.precision},{field.type.scale})" if is_decimal else _ARROW_KINDS.get(type_)
        if type_.startswith(("timestamp[s", "timestamp[ms", "timestamp[us")):
            kind = "timestamp" if field.type.tz else "timestamp_ntz"
        found.append((field.name, kind))
    return found


def _tables(rows: Any) -> Iterator[Any]:
    """Yield rows as Arrow tables of a limited size."""
    import pyarrow as pa

    if isinstance(rows, str | os.PathLike):
        import pyarrow.parquet as pq

        with pq.ParquetFile(Path(rows)) as file:
            for batch in file.iter_batches(_COMPUTED_ROWS):
                yield pa.Table.from_batches([batch])
        return
    table = rows if isinstance(rows, pa.Table) else rows.to_arrow()
    for start in range(0, table.num_rows, _COMPUTED_ROWS):
        yield table.slice(start, _COMPUTED_ROWS)


def _with_computed(
    tables: Iterator[Any], engine: EngineColumns, conditions: Sequence[int], computed: list[Any]
) -> Iterator[Any]:
    """Yield the rows of tables as dictionaries.

    Args:
        tables: Arrow tables.
        engine: The expressions that DuckDB computes.
        conditions: The places of those of which a row that is needed meets one; none if all are needed.
        computed: Receives their values: the last ones are those of the row.
    """
    import duckdb

    # The connection sees the tables alone: neither files nor extensions.
    config: dict[str, Any] = {"enable_external_access": False, "threads": 1}
    with duckdb.connect(config=config) as connection:
        for table in tables:
            values: list[Any] = [()] * table.num_rows
            if engine.expressions:
                connection.register("given", table.select([name for name, _ in engine.given.values()]))
                found = connection.table("given").project(", ".join(engine.expressions)).to_arrow_table()
                columns = [column.to_pylist() for column in found.columns]
                values = list(zip(*columns, strict=True))
                if conditions:
                    needed = zip(*(columns[place] for place in conditions), strict=True)
                    values = [each if any(met) else None for each, met in zip(values, needed, strict=True)]
            computed[:] = values[::-1]
            yield from table.to_pylist()


def inserting(source: SqlSource) -> Callable[[Mapping[str, Any], Any], tuple[Any, ...]]:
    """Return the function from a row with all columns of a source, and its timestamp, to a record of its topic."""
    keys, values = [name for name, _ in source.keys], [name for name, _ in source.stored]
    key_of, value_of, topic = source.key_encoder(), source.value_encoder(), source.topic

    def inserted(row: Mapping[str, Any], time: Any) -> tuple[Any, ...]:
        encoded = value_of(tuple([row.get(name) for name in values])) if values else None
        return topic, key_of(tuple([row.get(name) for name in keys])), encoded, time, 0, None, None, None

    return inserted


def time_of(cell: Any) -> int:
    """Return the cell of ``ROWTIME`` as milliseconds, 0 without one."""
    found = cell or 0
    return found if isinstance(found, int) else int(plain_time(found))


def _plain_rows(rows: Any) -> Iterable[Any]:
    """Return the rows of a table or of an iterable."""
    if type(rows).__name__ in ("DataFrame", "Table"):
        for name in ("to_pylist", "to_dicts"):
            if hasattr(rows, name):
                found: Iterable[Any] = getattr(rows, name)()
                return found
        rows = rows.astype(object).where(rows.notna(), None).to_dict("records")
    return rows  # type: ignore[no-any-return]


def _file_rows(path: Path) -> Iterator[Any]:
    """Yield the rows of a file."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
        return
    with path.open(encoding="utf-8", newline="") as lines:
        if suffix == ".csv":
            for row in csv.DictReader(lines):
                yield {name: cell or None for name, cell in row.items() if name is not None}
            return
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line, parse_float=Decimal)
            except ValueError as error:
                raise DefinitionError(f"{str(path)!r}, line {number} is not JSON: {error}") from error


def converted(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function from a cell to a value as a record has it; what does not convert is left as it is."""
    is_text = type_.base == "STRING"
    cast = casting(STRING, type_) if type_.base not in ("STRING", "BYTES") else None

    def convert(cell: Any) -> Any:
        if cell.__class__ is int or (is_text and cell.__class__ is str):
            return cell
        if isinstance(cell, dt.date | dt.time):
            return plain_time(cell)
        if isinstance(cell, str) and type_.base != "STRING":
            try:
                if type_.base in ("ARRAY", "MAP", "STRUCT"):
                    return json.loads(cell, parse_float=Decimal)
                return cell if cast is None else cast(cell)
            except (ValueError, ArithmeticError):
                return cell
        return cell

    return convert


def plain_time(cell: dt.date | dt.time) -> int:
    """Return a time as ksqlDB's records have it: milliseconds, or days of a date."""
    if isinstance(cell, dt.datetime):
        return ((cell if cell.tzinfo is not None else cell.replace(tzinfo=dt.UTC)) - _EPOCH) // _MILLISECOND
    if isinstance(cell, dt.date):
        return (cell - _EPOCH.date()).days
    return (cell.hour * 3600 + cell.minute * 60 + cell.second) * 1000 + cell.microsecond // 1000
