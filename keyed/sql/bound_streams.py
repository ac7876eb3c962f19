"""Streams and tables of a script that are read from Spark DataFrames, streams and outputs of the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

import keyed
from keyed.base.arguments import Duration, shown
from keyed.base.schemas import quoted
from keyed.errors import DefinitionError
from keyed.expressions.engine import MAJOR
from keyed.formats.declared_formats import Registry
from keyed.formats.file_rows import cells_of
from keyed.job.graph import Input, Kept, Source, is_dataframe
from keyed.rows import members_of
from keyed.sql.catalog import STREAM, SqlSource
from keyed.sql.script_inputs import GONE, TIME, ScriptInput, names_in_data, typed
from keyed.sql.sql_operators import schema_of, stream_schema
from keyed.vectorized import TIMESTAMP_COLUMN

#: Nothing reads it: bad rows are counted.
_BAD = keyed.OutputTag("unreadable")
#: The columns of Spark's Kafka source that a record needs.
_RECORD = {"key": "binary", "value": "binary", "partition": "int", "offset": "bigint", "timestamp": "timestamp"}
#: Spark's types of a time, as expressions of its milliseconds.
_MILLISECONDS = {
    "timestamp": "unix_millis({0})",
    "timestamp_ntz": "unix_millis(CAST(concat(CAST({0} AS STRING), 'Z') AS TIMESTAMP))",
    "date": "unix_date({0}) * 86400000L",
    **dict.fromkeys(("bigint", "int", "smallint", "tinyint"), "CAST({0} AS BIGINT)"),
}


def is_bound(value: Any) -> bool:
    """Return whether a value is a DataFrame, a stream or an output of the Python API."""
    return is_dataframe(value) or isinstance(value, keyed.Stream | keyed.Output)


def session_of(value: Any) -> Any:
    """Return the Spark session of a DataFrame, stream or output; ``None`` if it is of this process."""
    if not is_dataframe(value):
        value = value.inputs[0].source.data
    return value.sparkSession if is_dataframe(value) else None


def check_executors(session: Any) -> None:
    """Check that the workers of a session have the DuckDB that scripts need.

    Raises:
        DefinitionError: One lacks it, or has another major version.
    """
    rows = session.range(64).mapInArrow(_versions, "version string").collect()
    wrong = sorted({row.version for row in rows if row.version.partition(".")[0] != MAJOR})
    if wrong:
        has = "lacks it" if not wrong[0] else f"has {wrong[0]}"
        remedy = f"install 'duckdb>={MAJOR},<3' there"
        raise DefinitionError(f"scripts need DuckDB {MAJOR} on Spark's executors, and one {has}: {remedy}")


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    version = next((each.version for each in distributions(name="duckdb")), "")
    for _ in batches:
        yield pa.record_batch([pa.array([version])], names=["version"])


def is_topic(value: Any) -> bool:
    """Return whether a value is a DataFrame of Spark's Kafka source, with the records as they are in the topic."""
    return is_dataframe(value) and _RECORD.items() <= dict(value.dtypes).items()


def bound_stream(
    source: SqlSource,
    rows: Any,
    *,
    is_strict: bool = False,
    registry: Registry | None = None,
    max_ahead: Duration | None = None,
) -> keyed.Stream | keyed.Output:
    """Return the rows of a DataFrame, stream or output as tables of the declared columns.

    Args:
        source: The stream or table.
        rows: The DataFrame, stream or output.
        is_strict: A record of a topic without a usable timestamp is an error.
        registry: The schema registry of topics.
        max_ahead: How far the times of a DataFrame may be ahead of the processing time.

    Raises:
        DefinitionError: A column is missing, or there is no event time.
    """
    idle_ms = source.topic_options.idle_ms
    if is_dataframe(rows):
        decoding = _Decoding(source, is_strict, registry)
        frame = _of_topic(source, rows, decoding) if is_topic(rows) else _of_frame(source, rows)
        times = attrs.evolve(keyed.bounded_out_of_orderness(0), idleness_ms=idle_ms)
        stream: Any = keyed.stream(frame, timestamp=TIME, watermark=times, on_bad_row=_BAD, max_ahead=max_ahead)
    elif idle_ms is not None:
        raise DefinitionError(
            f"{source.name}: IDLE_TIMEOUT is for rows, topics and DataFrames, and a stream of Python has its own "
            "watermark: give keyed.stream(..., watermark=....with_idleness(...))"
        )
    else:
        stream = rows if isinstance(rows, keyed.Output) else keyed.Stream(tuple(map(_timed, rows.inputs)))
        for each in stream.inputs:
            what = f"the stream of {source.name}"
            if each.source.timestamp is None:
                raise DefinitionError(f"{what} has no event time; give keyed.stream(..., timestamp=...)")
            columns = each.columns
            if columns is not None:
                names_in_data(source, list(columns), what)
    declared: keyed.Stream = stream.map_batches(Declared(source), output=stream_schema(source))
    return declared


def _timed(read: Input) -> Input:
    """Return a part of a stream with a time for each element, which the declared column replaces."""
    source = read.origin
    if not isinstance(source, Source) or source.timestamp is not None or is_dataframe(source.data):
        return read
    return attrs.evolve(read, origin=attrs.evolve(source, timestamp=lambda _: 0))


def _of_frame(source: SqlSource, frame: Any) -> Any:
    """Return the columns of a DataFrame that a source needs, and the time of each row."""
    names = names_in_data(source, frame.columns, f"the DataFrame of {source.name}")
    time = names.get("ROWTIME") if source.timestamp is None else names[source.timestamp[0]]
    selected = [quoted(name) for name in dict.fromkeys(names.values())]
    kind = None if time is None else dict(frame.dtypes)[time]
    if kind is None or (kind in _MILLISECONDS and (source.timestamp is None or source.timestamp[1] is None)):
        millis = "CAST(0 AS BIGINT)" if kind is None else _MILLISECONDS[kind].format(quoted(str(time)))
        return frame.selectExpr(*selected, f"CASE WHEN {millis} >= 0 THEN {millis} END AS `{TIME}`")
    frame = frame.selectExpr(*selected)
    columns = ", ".join(f"{quoted(name)} {type_}" for name, type_ in frame.dtypes)
    return frame.mapInArrow(_Timing(source), f"{columns}, `{TIME}` bigint")


def _of_topic(source: SqlSource, frame: Any, decoding: _Decoding) -> Any:
    """Return the records of a DataFrame of Spark's Kafka source as rows; bad ones have no time."""
    for part in source.parts:
        part.check(decoding.registry)
    columns = [name for name in _RECORD if name != "timestamp"] + ["headers"] * bool(source.headers)
    frame = frame.selectExpr(*columns, "unix_millis(timestamp) AS timestamp")
    schema = schema_of((*source.columns, *source.further), GONE, TIME)
    return frame.mapInArrow(decoding, schema.ddl)


@attrs.frozen(eq=False)
class _Timing:
    """Adds the times of rows to batches; null for a row without a usable one."""

    source: SqlSource

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = names_in_data(self.source, batch.schema.names, "")
            cells = {name: batch.column(own_name) for name, own_name in names.items()}
            _, times, wrong = typed(self.source, cells, batch.num_rows, {})
            milliseconds = times.to_pylist()
            for place in wrong:
                milliseconds[place] = None
            yield pa.record_batch([*batch.columns, pa.array(milliseconds, pa.int64())], [*batch.schema.names, TIME])


@attrs.frozen(eq=False)
class _Decoding:
    """Decodes the records of a topic."""

    source: SqlSource
    is_strict: bool
    registry: Registry | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source = self.source
        names = [*(name for name, _ in (*source.columns, *source.further)), GONE]
        reader = ScriptInput(source, (), {}, is_strict=self.is_strict, is_topic=True, registry=self.registry)
        for batch in batches:
            cells, count = batch.to_pydict(), batch.num_rows
            headers = [[(each["key"], each["value"]) for each in of or ()] for of in cells.get("headers", [()] * count)]
            parts = [cells[name] for name in ("key", "value", "timestamp", "partition", "offset")]

            def where(place: int, parts: list[Any] = parts) -> str:
                return f"topic {source.topic}, partition {parts[3][place]}, offset {parts[4][place]}"

            table = reader.without_bad(reader.decoded([*parts, headers, [None] * count], where))
            table = table.select(names).append_column(TIME, table.column(TIME))
            nothing: list[Any] = [pa.nulls(count - table.num_rows, field.type) for field in table.schema]
            bad = pa.Table.from_arrays(nothing, schema=table.schema)
            yield from pa.concat_tables([table, bad]).to_batches()


@attrs.frozen(eq=False)
class Declared:
    """Converts rows to the columns of a source, in the process that has them.

    Attributes:
        source: The stream or table.
    """

    source: SqlSource

    def __call__(self, table: pa.Table) -> Kept:
        """Return the rows of a table that fit."""
        names = names_in_data(self.source, table.column_names, f"the stream of {self.source.name}")
        # Records of topics have more.
        own = [GONE, *(name for name, _ in (*self.source.headers, *self.source.further))]
        names |= {name: name for name in own if name in table.column_names}
        cells = {name: table.column(own_name) for name, own_name in names.items()}
        return self._kept(cells, table.num_rows, table.column(TIMESTAMP_COLUMN).combine_chunks())

    def of_values(self, values: list[Any], times: pa.Array[Any]) -> Kept:
        """Return the elements that fit."""
        rows, known = list(map(members_of, values)), set[tuple[Any, ...]]()
        for element, row in zip(values, rows, strict=True):
            if row is None:
                raise DefinitionError(
                    f"the stream of {self.source.name}: an element has named fields, and this one is {shown(element)}; "
                    "yield dictionaries or rows of a class, or name the columns: process(..., output='title string')"
                )
            if (fields := tuple(row)) not in known:
                what = f"the stream of {self.source.name}, in the element {shown(element)},"
                names_in_data(self.source, list(map(str, fields)), what)
                known.add(fields)
        cells, _, seen = cells_of(rows, [*(name for name, _ in self.source.without_headers), "ROWTIME"])
        if "rowtime" in {str(name).lower() for name in seen}:
            pairs = zip(cells["ROWTIME"], times.to_pylist(), strict=True)
            cells["ROWTIME"] = [own if each is None else each for each, own in pairs]
        else:
            del cells["ROWTIME"]
        return self._kept(cells, len(values), times)

    def _kept(self, cells: Mapping[str, Any], count: int, times: Any) -> Kept:
        source = self.source
        columns, times, wrong = typed(source, cells, count, {}, times)
        names = [name for name, _ in source.columns]
        for name, type_ in source.further:
            names.append(name)
            columns.append(cells[name] if name in cells else pa.repeat(0, count).cast(type_.arrow))
        columns.append(cells.get(GONE, pa.repeat(False, count)) if source.is_table else times)
        names.append(GONE if source.is_table else STREAM)
        table = pa.table([*columns, times], names=[*names, TIMESTAMP_COLUMN])
        if not wrong:
            return Kept(table)
        good = np.delete(np.arange(count), list(wrong))
        return Kept(table.take(good), len(wrong), ": ".join((source.name, *wrong[min(wrong)])))
