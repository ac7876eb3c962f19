"""Data between the tasks of a query: packed payloads and notes, and the emitter of a key group.

It never outlives a micro-batch.

A *packed row* is what the packer sends to a key group: the group's id, a payload and, added by the plan, the
processing time of the batch.

    crc32 of the rest (u32, little-endian) | msgpack of a `TaskMark`, `PackedNote` or `PackedRows`: their tag and fields

A record batch is Arrow's encapsulated message. Its schema is a part of the plan (`Reading.schema`). Rows with another
schema, such as those that a function has combined, have it with them, as Arrow's message of a schema.

Every task with rows sends every group one mark for each of its inputs, with the last rows for the group, if there are
any.

A *note* is a row of a stage's output that is not data; it is in the column ``NOTE``, which is null in rows of data.

    M | JSON of `GroupMark`s, with commas between them             once per key group and batch
    S | length of the id (u16) | id of an output | Arrow IPC stream, lz4      rows of an output that leaves as a chunk

The id of an output is the index of its stage and the tag, ``0/late``, with an empty tag for the main output; the id of
a source with several readers is its number, ``s0``. There is a mark for each operator of a chained line, in order.

The id of each key group is chosen so that the shuffle puts one group on each partition. Spark sends a row with grouping
column ``id`` to shuffle partition ``pmod(hash(id), partitions)``, where ``hash`` of an int is Murmur3 (x86, 32 bit)
with seed 42. The id of group ``i`` is the least non-negative int that goes to partition ``i``. The ids for any number
of groups contain 0. A query that is started on a checkpoint with another number of groups therefore always reads one of
its groups, whose meta record has the number.

The outputs of a key group for a batch are pandas frames over Arrow columns. A stage's output has the columns of its
main output, then ``TIMESTAMP`` (only if another stage follows) and ``NOTE``. Main outputs are typed columns with a null
note. Side outputs, forwarded notes of earlier stages, and the group's mark are notes with null columns.

Spark accepts Arrow columns without conversion, except for some types, which it converts value by value, and timestamps,
which it converts by the session's time zone. A timestamp is therefore sent as microseconds, which the plan converts
back (`Emitter.ddl`, `Emitter.expressions`); nested columns are sent as Python values, with NumPy's NaN.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from keyed.arrow.read import plain_values
from keyed.arrow.write import arrays_of, arrow_schema
from keyed.base.schemas import Schema, quoted
from keyed.codec.arrow_streams import write_stream
from keyed.engine.batch import BatchResult, Emitted, EmittedTables, Upstream
from keyed.errors import CorruptionError
from keyed.table_state.batches import shaped, timestamped

#: Hidden columns besides those of the user.
TIMESTAMP, HASH, NOTE = "__keyed_timestamp", "__keyed_hash", "__keyed_note"
#: Name of the state of initial rows that all belong to one, in the metadata of their schema.
STATE = b"keyed_state"
#: The columns of packed rows. pandas does not accept names that start with an underscore.
PACKED = "keygroup int, payload binary"

#: The compression of record batches. They are copied half a dozen times in the JVM, which costs more than compression.
#: A message is compressed as a whole: compression of each of its buffers takes three times as long for few rows.
_LZ4: Literal["lz4_raw"] = "lz4_raw"


class TaskMark(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """The mark that a packing task sends to every key group after its rows.

    Attributes:
        max_timestamp: Highest timestamp of its rows, ``None`` if there is none.
        end: True if the input ends with this batch.
        upstream: Watermark and status of each key group of the previous stage whose mark the task has read, by index.
        rows_bad: Number of diverted rows.
        rows_combined: Number of rows that combining has saved.
        input: Number of the input that it packs.
        partitions: Highest timestamp of its rows by partition, if the input's strategy distinguishes partitions.
        starts_run: True if the query was stopped since the previous batch.
        passed: Watermarks and statuses of earlier stages, by index.
        bad: The reason of the first bad row; empty if there is none.
    """

    max_timestamp: int | None
    end: bool
    upstream: dict[int, Upstream]
    rows_bad: int = 0
    rows_combined: int = 0
    input: int = 0
    partitions: dict[str, int] | None = None
    starts_run: bool = False
    passed: dict[int, Upstream] = {}
    bad: str = ""


@attrs.frozen
class GroupMark:
    """The mark that a key group sends to the next stage and the driver after each batch.

    Attributes:
        operator: Name of its operator.
        group: Index of the group.
        watermark: Its watermark after the batch.
        clock: Processing time of the batch, milliseconds.
        end: True if the input ends with this batch.
        metrics: Cumulative counters.
        commit: Number of its last commit.
        changed: True if that commit, or one that waits for its export, has changes, which a later batch exports to a
            changelog.
        due: Processing time at which the group has work without rows, ``None`` if it has none.
        highest: Highest timestamp of all rows of the batch, ``None`` if there is none.
        side_outputs: Side outputs to which the group has emitted in the batch, including unread ones.
        staged: The attempt, if the group's changelog has the batch staged; otherwise empty.
        idle: True if all inputs of the operator are idle.
        starts_run: True if the query was stopped since the previous batch.
        passed: Watermarks and statuses of earlier stages, by index.
        bad: The reason of the first bad row of the batch, from one of the groups; empty if there is none.
        export_at: Processing time from which a batch exports the changes.
        waiting: Number of batches before this one that wait for their export.
        held_by: Number of the input that held the watermark, as `keyed.engine.batch.Advance` has it.
    """

    operator: str
    group: int
    watermark: int
    clock: int
    end: bool
    metrics: dict[str, int]
    commit: int = 0
    changed: bool = False
    due: int | None = None
    highest: int | None = None
    side_outputs: tuple[str, ...] = ()
    staged: str = ""
    idle: bool = False
    starts_run: bool = False
    passed: dict[int, Upstream] = attrs.field(factory=dict)
    bad: str = ""
    export_at: int = 0
    waiting: int = 0
    held_by: int | None = None

    def note(self, before: Iterable[GroupMark] = ()) -> bytes:
        """Return the note of this mark and of the marks of the operators before it in its chained line."""
        return b"M" + b",".join(map(msgspec.json.encode, (*before, self)))

    @classmethod
    def of_note(cls, note: bytes) -> GroupMark:
        """Return the mark of the last operator in a note."""
        return _decode_marks(b"[" + note[1:] + b"]")[-1]


_decode_marks = msgspec.json.Decoder(list[GroupMark]).decode


class PackedNote(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A note that a key group passes on as it is.

    Attributes:
        source: Partition of the packing task.
        position: Position among the payloads of the task: the group restores the same order in every run of the batch.
        note: The note.
    """

    source: int
    position: int
    note: bytes


class PackedRows(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Rows of one key group, in arrival order.

    Attributes:
        input: Number of their input.
        source: Partition of the packing task.
        position: As in `PackedNote`.
        size: Length of the record batch before compression; 0 for rows with dictionaries, which are an Arrow IPC
            stream.
        content: The record batch, lz4, or the stream.
        schema: The schema that the rows have with them, as bytes.
        mark: The mark of the task, if these are its last rows for the group.
    """

    input: int
    source: int
    position: int
    size: int
    content: memoryview
    schema: bytes
    mark: TaskMark | None

    def table(self, schema: pa.Schema | None) -> pa.Table:
        """Return the rows.

        Args:
            schema: Their schema in the plan.

        Raises:
            CorruptionError: The rows are damaged, or have another schema.
        """
        try:
            if not self.size:
                return read_stream(pa.py_buffer(self.content))
            schema = _read_schema(self.schema) if self.schema else schema
            assert schema is not None, "rows without a schema arrived, and the plan has none for them"
            message = _codec().decompress(self.content, decompressed_size=self.size)
            batch = pa.ipc.read_record_batch(message, schema)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _damaged(f"rows of task {self.source} are malformed: {error}") from error
        return pa.Table.from_batches([batch])


Payload: TypeAlias = TaskMark | PackedNote | PackedRows
_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[Payload] = msgspec.msgpack.Decoder(Payload)


def encode_payload(payload: Payload) -> bytes:
    """Return an encoded payload."""
    content = _encode(payload)
    return _checksum(content) + content


def encoded_mark(mark: TaskMark) -> Any:
    """Return a mark for the payloads of several key groups, encoded once."""
    return msgspec.Raw(_encode(mark))


def read_payload(payload: bytes) -> Payload:
    """Decode a payload.

    Raises:
        CorruptionError: It is damaged.
    """
    content = memoryview(payload)[4:]
    if payload[:4] != _checksum(content):
        raise _damaged("the checksum of a payload does not match")
    try:
        return _decode.decode(content)
    except ValueError as error:
        raise _damaged(f"a payload is malformed: {error}") from error


def _checksum(content: bytes | memoryview) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")


def _damaged(problem: str) -> CorruptionError:
    return CorruptionError(problem, where="the rows that Spark has shuffled to a key group")


class RowsEncoder:
    """Encodes rows of one schema.

    Args:
        schema: The schema.
        planned: The schema that the reader expects; rows of another one have it with them.
        number: Number of the input.
    """

    def __init__(self, schema: pa.Schema, planned: pa.Schema | None, number: int = 0) -> None:
        self._number = number
        self._as_stream = any(_has_dictionary(type_) for type_ in schema.types)
        known = (
            planned is not None
            and not schema.metadata
            # Columns that have no nulls are of another schema, but are encoded in the same way.
            and (schema.names, schema.types) == (planned.names, planned.types)
        )
        self._schema = b"" if known or self._as_stream else schema.serialize().to_pybytes()

    def payload(self, rows: pa.RecordBatch, source: int, position: int, mark: Any = None) -> bytes:
        """Return the payload of rows.

        Args:
            rows: The rows.
            source: Partition of the packing task.
            position: Number of the payload in the task.
            mark: The mark of the task with its last rows for a group, from `encoded_mark`.
        """
        content: Any
        if self._as_stream:
            size, content = 0, write_stream(rows, compression="lz4")
        else:
            message = rows.serialize()
            size, content = message.size, _codec().compress(message, asbytes=True)
        return encode_payload(PackedRows(self._number, source, position, size, content, self._schema, mark))


def _has_dictionary(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return True
    return any(_has_dictionary(type_.field(place).type) for place in range(type_.num_fields))


@lru_cache(maxsize=1)
def _codec() -> Any:
    return pa.Codec(_LZ4)


@lru_cache(maxsize=64)
def _read_schema(schema: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(schema))


def output_id(stage: int, tag: str | None) -> str:
    """Return the id of an output of a stage."""
    return f"{stage}/{tag or ''}"


def source_id(number: int) -> str:
    """Return the id of the rows of a source that several inputs read."""
    return f"s{number}"


def hash_column(stage: int, number: int) -> str:
    """Return the hidden column with the hashes of the keys of a stage's input."""
    return f"{HASH}_{stage}_{number}"


def chunk_prefix(output: str) -> bytes:
    """Return the prefix of the notes of an output's chunks."""
    name = output.encode()
    return b"S" + len(name).to_bytes(2, "little") + name


def chunk_note(output: str, batch: pa.RecordBatch) -> bytes:
    """Return the note of a chunk of an output's rows."""
    return write_stream(batch, head=chunk_prefix(output), compression="lz4")


def read_chunk(note: bytes) -> Any:
    """Return the Arrow table in the note of a chunk."""
    return read_stream(pa.py_buffer(note).slice(3 + int.from_bytes(note[1:3], "little")))


def read_stream(stream: pa.Buffer) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    # Handing columns to threads takes most of the time to read a chunk of few rows.
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()


_MASK = 0xFFFFFFFF


def spark_hash(value: int) -> int:
    """Return Spark's ``hash(CAST(value AS INT))``, a signed 32-bit integer."""
    mixed = _rotate((value & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    hashed = _rotate(42 ^ mixed, 13) * 5 + 0xE6546B64 & _MASK
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


@lru_cache(maxsize=64)
def group_ids(parallelism: int) -> tuple[int, ...]:
    """Return the id of each of ``parallelism`` key groups, by index of the group."""
    ids: dict[int, int] = {}
    candidate = 0
    while len(ids) < parallelism:
        ids.setdefault(spark_hash(candidate) % parallelism, candidate)
        candidate += 1
    return tuple(ids[partition] for partition in range(parallelism))


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


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
        values = plain_values(array)
        # A column that has NaN is not equal to itself.
        return pd.Series(values if array.equals(array) else _keep_nan(values), dtype=object)
    return _extension(array)


def _keep_nan(value: Any) -> Any:
    """Replace each NaN in a value by NumPy's: Spark reads Python's own as null, as pandas does."""
    if isinstance(value, dict):
        return {_keep_nan(key): _keep_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [*map(_keep_nan, value)]
    return np.float32(value) if isinstance(value, float) and np.isnan(value) else value


def _extension(array: Any) -> Any:
    import pandas as pd

    return pd.arrays.ArrowExtensionArray(array)
