"""Data between the tasks of a query: packed payloads and notes. It never outlives a micro-batch.

A *packed row* is what the packer sends to a key group: the group's id, a payload and, added by the plan, the
processing time of the batch.

    R | input (u8) | 0 (6 bytes) | source (u32) | position (u32) | Arrow IPC stream, lz4
                                                                rows of one group, in arrival order
    N | 0 (7 bytes) | source (u32) | position (u32) | note      a note that the group passes on as it is
    M | msgpack of `TaskMark`                                   once per task, the same to every group

All integers are little-endian. ``input`` is the number of the stage's input, ``source`` the packing task's partition,
and ``position`` counts its payloads, so that the group can restore the same order in every run of the batch. The zeros
align uncompressed numbers to multiples of 8, so that Arrow reads them in place.

A *note* is a row of a stage's output that is not data; it is in the column ``NOTE``, which is null in rows of data.

    M | JSON of `GroupMark`s, with commas between them             once per key group and batch
    S | length of the id (u16) | id of an output | Arrow IPC stream, lz4      rows of an output that leaves as a chunk

The id of an output is the index of its stage and the tag, ``0/late``, with an empty tag for the main output; the id of
a source with several readers is its number, ``s0``. There is a mark for each operator of a chained line, in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from keyed.engine.channels import Upstream

if TYPE_CHECKING:
    import pyarrow as pa

#: Hidden columns besides those of the user.
TIMESTAMP, HASH, NOTE = "__keyed_timestamp", "__keyed_hash", "__keyed_note"
#: The columns of packed rows. pandas does not accept names that start with an underscore.
PACKED = "keygroup int, payload binary"

HEAD = Struct("<cB6xII")
_LENGTH = Struct("<H")


@attrs.frozen
class TaskMark:
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
    passed: dict[int, Upstream] = attrs.field(factory=dict)
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
        changed: True if that commit has changes, which the next batch exports to a changelog.
        due: Processing time at which the group has work without rows, ``None`` if it has none.
        highest: Highest timestamp of all rows of the batch, ``None`` if there is none.
        side_outputs: Side outputs to which the group has emitted in the batch, including unread ones.
        staged: The attempt, if the group's changelog has the batch staged; otherwise empty.
        idle: True if all inputs of the operator are idle.
        starts_run: True if the query was stopped since the previous batch.
        passed: Watermarks and statuses of earlier stages, by index.
        bad: The reason of the first bad row of the batch, from one of the groups; empty if there is none.
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

    def note(self, before: Iterable[GroupMark] = ()) -> bytes:
        """Return the note of this mark and of the marks of the operators before it in its chained line."""
        return b"M" + ",".join(json.dumps(attrs.asdict(mark)) for mark in (*before, self)).encode()

    @classmethod
    def of_note(cls, note: bytes) -> GroupMark:
        """Return the mark of the last operator in a note."""
        fields = json.loads(b"[" + note[1:] + b"]")[-1]
        # JSON has only lists, and only texts as keys.
        passed = {int(stage): Upstream(**each) for stage, each in fields["passed"].items()}
        return cls(**fields | {"side_outputs": tuple(fields["side_outputs"]), "passed": passed})


def encode_mark(mark: TaskMark) -> bytes:
    """Return the payload of a task's mark."""
    return b"M" + msgspec.msgpack.encode(mark)


_decode_mark = msgspec.msgpack.Decoder(TaskMark).decode


def decode_mark(payload: bytes) -> TaskMark:
    """Return the mark in a payload."""
    return _decode_mark(memoryview(payload)[1:])


def encode_payload(
    kind: bytes, source: int, position: int, content: bytes | pa.RecordBatch, input_number: int = 0
) -> bytes:
    """Return a payload of rows (``R``, with their Arrow batch) or of a note (``N``)."""
    head = HEAD.pack(kind, input_number, source, position)
    return head + content if isinstance(content, bytes) else write_stream(content, head)


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
    return write_stream(batch, chunk_prefix(output))


def read_chunk(note: bytes) -> Any:
    """Return the Arrow table in the note of a chunk."""
    import pyarrow as pa

    (length,) = _LENGTH.unpack_from(note, 1)
    return read_stream(pa.py_buffer(note).slice(3 + length))


def write_stream(batch: pa.RecordBatch, head: bytes = b"") -> bytes:
    """Return an Arrow IPC stream of one batch, after ``head``."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    sink.write(head)
    # It is copied half a dozen times in the JVM, which costs more than compression.
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def read_stream(stream: pa.Buffer) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    import pyarrow as pa

    # Handing columns to threads takes most of the time to read a chunk of few rows.
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
