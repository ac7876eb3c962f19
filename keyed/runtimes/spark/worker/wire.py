"""Data between the tasks of a query: packed payloads and notes. It never outlives a micro-batch.

A *packed row* is what the packer sends to a key group: the group's id, a payload and, added by the plan, the
processing time of the batch.

    R | head | schema of the rows, or nothing | record batch, lz4 | mark, or nothing
                                                                rows of one group, in arrival order
    S | head | Arrow IPC stream | mark, or nothing              the same, for rows with dictionaries
    N | head | note                                             a note that the group passes on as it is
    M | crc32 (u32) | mark                                      the mark of a task without rows for the group

    head: input (u8) | 0 (u16) | source (u32) | position (u32) | length of the schema (u32) | length of the mark (u32)
          | length of the record batch before compression (u32) | crc32 (u32), of the payload without this number

All integers are little-endian. ``input`` is the number of the stage's input, ``source`` the packing task's partition,
and ``position`` counts its payloads, so that the group can restore the same order in every run of the batch.

A record batch is Arrow's encapsulated message. Its schema is a part of the plan (`Reading.schema`). Rows with another
schema, such as those that a function has combined, have it with them, as Arrow's message of a schema.

Every task with rows sends every group one mark for each of its inputs: msgpack of the fields of a `TaskMark`, in
order. It is at the end of the last rows for the group, if there are any.

A *note* is a row of a stage's output that is not data; it is in the column ``NOTE``, which is null in rows of data.

    M | JSON of `GroupMark`s, with commas between them             once per key group and batch
    S | length of the id (u16) | id of an output | Arrow IPC stream, lz4      rows of an output that leaves as a chunk

The id of an output is the index of its stage and the tag, ``0/late``, with an empty tag for the main output; the id of
a source with several readers is its number, ``s0``. There is a mark for each operator of a chained line, in order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Literal

import attrs
import msgspec
import pyarrow as pa

from keyed.codec.arrow_streams import write_stream
from keyed.engine.channels import Upstream
from keyed.errors import CorruptionError

#: Hidden columns besides those of the user.
TIMESTAMP, HASH, NOTE = "__keyed_timestamp", "__keyed_hash", "__keyed_note"
#: Name of the state of initial rows that all belong to one, in the metadata of their schema.
STATE = b"keyed_state"
#: The columns of packed rows. pandas does not accept names that start with an underscore.
PACKED = "keygroup int, payload binary"

_HEAD = Struct("<cB2xIIIII")
_CRC = Struct("<I")
_CONTENT = _HEAD.size + _CRC.size
_LENGTH = Struct("<H")
#: The compression of record batches. They are copied half a dozen times in the JVM, which costs more than compression.
#: A message is compressed as a whole: compression of each of its buffers takes three times as long for few rows.
_LZ4: Literal["lz4_raw"] = "lz4_raw"


class TaskMark(msgspec.Struct, array_like=True, frozen=True):
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
        held_by: Number of the input that held the watermark, as `keyed.engine.channels.Advance` has it.
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
_decode_mark = msgspec.msgpack.Decoder(TaskMark).decode
#: Return a task's mark as the end of a payload of rows.
mark_content = msgspec.msgpack.Encoder().encode


def encode_mark(mark: TaskMark) -> bytes:
    """Return the payload of a task's mark without rows."""
    content = mark_content(mark)
    return b"M" + _CRC.pack(zlib.crc32(content, zlib.crc32(b"M"))) + content


@attrs.frozen
class Payload:
    """A decoded payload.

    Attributes:
        kind: ``R`` or ``S`` for rows, ``N`` for a note, ``M`` for a mark alone.
        input: Number of the input of the rows.
        source: Partition of the packing task.
        position: Its position among the payloads of the task.
        content: The rows or the note.
        mark: The mark of the task, if it has one.
        schema: The schema that the rows have with them, as bytes.
        size: Length of the record batch before compression.
    """

    kind: bytes
    input: int = 0
    source: int = 0
    position: int = 0
    content: memoryview | bytes = b""
    mark: TaskMark | None = None
    schema: bytes = b""
    size: int = 0

    def table(self, schema: pa.Schema | None) -> pa.Table:
        """Return the rows.

        Args:
            schema: Their schema in the plan.

        Raises:
            CorruptionError: The rows are damaged, or have another schema.
        """
        try:
            if self.kind == b"S":
                return read_stream(pa.py_buffer(self.content))
            schema = _read_schema(self.schema) if self.schema else schema
            assert schema is not None, "rows without a schema arrived, and the plan has none for them"
            message = _codec().decompress(self.content, decompressed_size=self.size)
            batch = pa.ipc.read_record_batch(message, schema)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _damaged(f"rows of task {self.source} are malformed: {error}") from error
        return pa.Table.from_batches([batch])


def read_payload(payload: bytes) -> Payload:
    """Decode a payload.

    Raises:
        CorruptionError: It is damaged.
    """
    kind = payload[:1]
    try:
        if kind == b"M":
            (crc,), content = _CRC.unpack_from(payload, 1), memoryview(payload)[1 + _CRC.size :]
            _check(crc, zlib.crc32(content, zlib.crc32(b"M")))
            return Payload(b"M", mark=_read_mark(content))
        kind, number, source, position, schema, mark, size = _HEAD.unpack_from(payload)
        (crc,) = _CRC.unpack_from(payload, _HEAD.size)
    except struct_error:
        raise _damaged(f"{len(payload)} bytes are too short for a payload") from None
    view = memoryview(payload)
    content = view[_CONTENT:]
    _check(crc, zlib.crc32(content, zlib.crc32(view[: _HEAD.size])))
    if kind not in (b"R", b"S", b"N"):
        raise _damaged(f"a payload is of the unknown kind {kind!r}")
    end = len(content) - mark
    return Payload(
        kind,
        number,
        source,
        position,
        content[schema:end],
        _read_mark(content[end:]) if mark else None,
        bytes(content[:schema]),
        size,
    )


def _read_mark(content: memoryview) -> TaskMark:
    try:
        return _decode_mark(content)
    except ValueError as error:
        raise _damaged(f"a mark is malformed: {error}") from error


def _check(crc: int, version: int) -> None:
    if crc != version:
        raise _damaged("the checksum of a payload does not match")


def _damaged(problem: str) -> CorruptionError:
    return CorruptionError(problem, where="the rows that Spark has shuffled to a key group")


def encode_note(source: int, position: int, note: bytes) -> bytes:
    """Return the payload of a note."""
    return _payload(_HEAD.pack(b"N", 0, source, position, 0, 0, 0), note)


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

    def payload(self, rows: pa.RecordBatch, source: int, position: int, mark: bytes = b"") -> bytes:
        """Return the payload of rows.

        Args:
            rows: The rows.
            source: Partition of the packing task.
            position: Number of the payload in the task.
            mark: The mark that follows them, from `mark_content`.
        """
        if self._as_stream:
            kind, size, content = b"S", 0, write_stream(rows, compression="lz4")
        else:
            message = rows.serialize()
            kind, size, content = b"R", message.size, _codec().compress(message, asbytes=True)
        head = _HEAD.pack(kind, self._number, source, position, len(self._schema), len(mark), size)
        return _payload(head, self._schema, content, mark)


def _payload(head: bytes, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return b"".join((head, _CRC.pack(zlib.crc32(content, zlib.crc32(head))), content))


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
    return b"S" + _LENGTH.pack(len(name)) + name


def chunk_note(output: str, batch: pa.RecordBatch) -> bytes:
    """Return the note of a chunk of an output's rows."""
    return write_stream(batch, head=chunk_prefix(output), compression="lz4")


def read_chunk(note: bytes) -> Any:
    """Return the Arrow table in the note of a chunk."""
    (length,) = _LENGTH.unpack_from(note, 1)
    return read_stream(pa.py_buffer(note).slice(3 + length))


def read_stream(stream: pa.Buffer) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    # Handing columns to threads takes most of the time to read a chunk of few rows.
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
