"""Emitting: the outputs of a key group for a batch, as pandas frames over Arrow columns.

A stage's output has the columns of its main output, then ``TIMESTAMP`` (only if another stage follows) and ``NOTE``.
Main outputs are typed columns with a null note. Side outputs, forwarded notes of earlier stages, and the group's mark
are notes with null columns (`keyed.runtimes.spark.worker.wire`).

Spark accepts Arrow columns without conversion, except for some types, which it converts value by value, and timestamps,
which it converts by the session's time zone. A timestamp is therefore sent as microseconds, which the plan converts
back (`Emitter.ddl`, `Emitter.expressions`); nested columns are sent as Python values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from keyed.arrow.read import plain_values
from keyed.arrow.write import arrays_of, arrow_schema
from keyed.base.schemas import Schema, quoted
from keyed.engine.batch import BatchResult, Emitted, EmittedTables
from keyed.runtimes.spark.worker.wire import NOTE, TIMESTAMP, GroupMark, chunk_note, output_id
from keyed.table_state.batches import shaped, timestamped

#: Rows of a side output in one chunk.
_CHUNK_ROWS = 65_536
#: Number of parts of the main output, of some thousand rows each, in one pandas frame.
_PARTS_A_FRAME = 16
#: Rows in one pandas frame of a main output that consists of tables.
_FRAME_ROWS = 131_072


def _is_timestamp(type_: str) -> bool:
    return type_.strip().lower() in ("timestamp", "timestamp_ltz")


@attrs.frozen
class Emitter:
    """The outputs of a stage.

    Attributes:
        operator: Name of the operator.
        stage: Index of the stage in its chain.
        main: Columns of the main output; ``None`` if it is not read, and dropped.
        side: Columns of the requested side outputs, by tag. Others are dropped, as in Flink.
        timestamps: True if rows have their timestamps, for a following stage.
        timed_side: Side outputs whose rows have their timestamps.
        main_chunks: Id under which the main output is emitted in notes, because other readers exist besides the chained
            operator.
    """

    operator: str
    stage: int
    main: Schema | None
    side: dict[str, Schema]
    timestamps: bool
    timed_side: frozenset[str] = frozenset()
    main_chunks: str | None = None

    @property
    def ddl(self) -> str:
        """The columns of the stage's output when it leaves the Python worker, as DDL."""
        columns = [f"{quoted(name)} {'bigint' if _is_timestamp(type_) else type_}" for name, type_ in self._columns]
        return ", ".join([*columns, f"{NOTE} binary"])

    @property
    def expressions(self) -> list[str]:
        """The SQL expressions that convert these columns to those of the stage's output."""
        columns = [(quoted(name), _is_timestamp(type_)) for name, type_ in self._columns]
        return [*(f"timestamp_micros({name}) AS {name}" if is_time else name for name, is_time in columns), NOTE]

    @property
    def _columns(self) -> list[tuple[str, str]]:
        """The columns of rows with their types: those of the main output, and their timestamps."""
        columns = self.main.columns if self.main is not None else ()
        return [*columns, (TIMESTAMP, "bigint")] if self.timestamps else [*columns]

    def rows(self) -> EmittedRows:
        """Return a consumer of the main output of a batch."""
        return EmittedRows(self)

    def frames(
        self, result: BatchResult, rows: EmittedRows, passed_on: list[bytes], marks: list[GroupMark]
    ) -> Iterator[Any]:
        """Yield the pandas frames of a batch: main outputs first, the group's marks last.

        Args:
            result: The engine's result.
            rows: The consumer of the main output.
            passed_on: Notes from earlier stages.
            marks: The marks of the group, with the mark of this operator last.

        Raises:
            OutputDefinitionError: A value does not fit its columns.
        """
        if isinstance(result.main, EmittedTables):
            table = self._concatenate(result.main)
            for batch in () if table is None else table.combine_chunks().to_batches(max_chunksize=_FRAME_ROWS):
                yield self.row_frame(batch.columns)
        else:
            rows.take(result.main)
            yield from rows.frames()
        yield self._notes([*passed_on, *self.side_notes(result), marks[-1].note(marks[:-1])])

    def side_notes(self, result: BatchResult) -> Iterator[bytes]:
        """Yield the requested side outputs as notes.

        Raises:
            OutputDefinitionError: A value does not fit its columns.
        """
        for tag, schema in self.side.items():
            emitted = result.side.get(tag)
            if emitted is not None:
                yield from self._chunks(tag, schema, emitted)

    def table(self, result: BatchResult, rows: EmittedRows) -> pa.Table | None:
        """Return the main output as a table for the chained operator; ``None`` if there is none.

        Args:
            result: The engine's result.
            rows: The consumer of the main output.

        Raises:
            OutputDefinitionError: A value does not fit its columns.
        """
        if isinstance(result.main, EmittedTables):
            return self._concatenate(result.main)
        rows.take(result.main)
        return rows.table()

    def main_notes(self, table: pa.Table) -> Iterator[bytes]:
        """Yield the main output as notes, if it has readers besides the chained operator."""
        if self.main_chunks is not None:
            yield from _chunk_notes(self.main_chunks, table.combine_chunks().to_batches())

    def row_frame(self, arrays: list[Any]) -> Any:
        """Return main outputs as a pandas frame.

        Args:
            arrays: The columns of the main output, and the timestamps if rows have them.
        """
        return self._frame(arrays, pa.nulls(len(arrays[0]), pa.binary()))

    def _notes(self, notes: list[bytes]) -> Any:
        nulls = [pa.nulls(len(notes), field.type) for field in arrow_schema(Schema(tuple(self._columns)))]
        return self._frame(nulls, pa.array(notes, pa.binary()))

    def _frame(self, arrays: list[Any], notes: Any) -> Any:
        import pandas as pd

        columns = {name: _wired(array, type_) for (name, type_), array in zip(self._columns, arrays, strict=True)}
        return pd.DataFrame({**columns, NOTE: _extension(notes)}, copy=False)

    def _concatenate(self, emitted: EmittedTables) -> pa.Table | None:
        if self.main is None or not emitted.tables:
            return None
        names = [name for name, _ in self._columns]
        return pa.concat_tables([timestamped(table).select(names) for table in emitted.tables])

    def _chunks(self, tag: str, schema: Schema, emitted: Emitted | EmittedTables) -> Iterator[bytes]:
        where = f"operator {self.operator!r}, side output {tag!r}"
        target, is_timed = arrow_schema(schema), tag in self.timed_side
        if is_timed:
            target = target.append(pa.field(TIMESTAMP, pa.int64()))
        if isinstance(emitted, EmittedTables):
            tables = [timestamped(shaped(table, schema, where)).select(target.names) for table in emitted.tables]
            batches = pa.concat_tables(tables).combine_chunks().to_batches() if tables else []
        else:
            arrays = arrays_of(emitted.values, arrow_schema(schema), where)
            times = [_timestamps(emitted)] if is_timed else []
            batches = [pa.RecordBatch.from_arrays([*arrays, *times], schema=target)]
        yield from _chunk_notes(output_id(self.stage, tag), batches)


class EmittedRows:
    """Consumes the main output of a batch in parts, as Arrow columns: a `keyed.engine.batch.OutputConsumer`."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._schema = arrow_schema(emitter.main) if emitter.main is not None else None
        self._parts: list[list[Any]] = []

    def take(self, emitted: Emitted) -> None:
        """Convert emitted values to columns.

        Raises:
            OutputDefinitionError: A value does not fit its columns.
        """
        if self._schema is None or not emitted.values:
            return
        arrays = arrays_of(emitted.values, self._schema, f"operator {self._emitter.operator!r}, main output")
        if self._emitter.timestamps:
            arrays.append(_timestamps(emitted))
        self._parts.append(arrays)

    def restart(self) -> None:
        """Discard the consumed outputs."""
        self._parts = []

    def frames(self) -> Iterator[Any]:
        """Yield the consumed outputs as pandas frames."""
        for start in range(0, len(self._parts), _PARTS_A_FRAME):
            parts = self._parts[start : start + _PARTS_A_FRAME]
            yield self._emitter.row_frame([pa.concat_arrays(column) for column in zip(*parts, strict=True)])

    def table(self) -> pa.Table | None:
        """Return the consumed outputs as a table, ``None`` if there are none."""
        if self._schema is None or not self._parts:
            return None
        names = [*self._schema.names, *([TIMESTAMP] if self._emitter.timestamps else [])]
        return pa.table([pa.chunked_array(column) for column in zip(*self._parts, strict=True)], names=names)


def _chunk_notes(output: str, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            yield chunk_note(output, batch.slice(start, _CHUNK_ROWS))


def _timestamps(emitted: Emitted) -> Any:
    """Return the timestamps of emitted values, expanded by Arrow instead of Python."""
    ends = np.array([end for end, _ in emitted.runs], dtype="int64")
    times = pa.array([timestamp for _, timestamp in emitted.runs], pa.int64())
    if len(ends) == len(emitted.values) + 1:
        # One run per value, as when each element emits one row.
        return times.slice(1)
    places: Any = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    return times.take(pa.array(places))


def _wired(array: Any, type_: str) -> Any:
    import pandas as pd

    if _is_timestamp(type_):
        return _extension(array.cast(pa.int64()))
    if pa.types.is_nested(array.type):
        return pd.Series(plain_values(array), dtype=object)
    return _extension(array)


def _extension(array: Any) -> Any:
    import pandas as pd

    return pd.arrays.ArrowExtensionArray(array)
