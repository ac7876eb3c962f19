"""Data between the tasks of a query: packed payloads and notes. It never outlives a micro-batch.

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
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import attrs
import msgspec
import pyarrow as pa

from keyed.codec.arrow_streams import write_stream
from keyed.engine.batch import Upstream
from keyed.errors import CorruptionError

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
