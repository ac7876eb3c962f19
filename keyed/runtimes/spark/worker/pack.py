"""Packing: many rows become one small row per batch and key group, so that Spark shuffles and calls per key group.

A `Packer` runs in ``mapInArrow``, stateless, over the rows of a source or of the stage before. Rows are cut by key
group, with the hash of the key that the plan has computed, combined if the function combines, and leave as Arrow
chunks; no row becomes a Python object. Every task ends with a mark to every key group, and what the stage before had
for a sink is passed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from keyed.arrow.unreadable import UNREADABLE, raw_rows, unreadable_column, unreadable_rows
from keyed.codec.keys import is_null, null_key
from keyed.codec.refusals import BAD_ROW_REMEDY
from keyed.errors import RowError, TimestampError
from keyed.runtimes.hints import unit_hint
from keyed.runtimes.spark.plan.group_ids import group_ids
from keyed.runtimes.spark.worker.wire import (
    HASH,
    NOTE,
    TIMESTAMP,
    GroupMark,
    TaskMark,
    chunk_note,
    chunk_prefix,
    encode_mark,
    encode_payload,
    read_chunk,
)
from keyed.shown import shown
from keyed.vectorized import VectorizedFunction

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows per key group that a task collects before it cuts them, so that chunks do not become tiny. Rows that are
#: combined are collected up to the limit of bytes: the more there are, the fewer are left.
_ROWS_PER_GROUP = 1024
#: A task holds no more than this many bytes of rows that are not cut yet.
_MAX_BYTES = 32 << 20


@attrs.frozen
class Packer:
    """What the tasks of one packing step share.

    Attributes:
        operator: Name of the operator that is packed for.
        keys: Key columns.
        columns: Columns of the rows, without the hidden ones.
        parallelism: Number of key groups.
        time: Column with the event time, a timestamp or milliseconds; ``None`` if there is none. After another stage it
            is ``TIMESTAMP``.
        from_source: Whether the rows come from a source, and not from the stage before.
        bad_rows: Id of the output that bad rows go to; empty drops and counts them, ``None`` refuses them.
        forward_rows: Id of the output as which the rows are passed on as well; for a main output that has a sink.
        combiner: The function, if it combines rows before they are sent.
        input: Number of the operator's input that is packed.
        partition_by: Column that names the partition of a row, where the watermark follows partitions.
        reads: Id of the output whose chunks are the rows, where they are not the main output of the stage before.
        reads_last: Whether nobody behind reads those chunks.
        broadcast: Whether every key group gets all rows, which have no key.
    """

    operator: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    parallelism: int
    time: str | None
    from_source: bool
    bad_rows: str | None = None
    forward_rows: str | None = None
    combiner: VectorizedFunction | None = None
    input: int = 0
    partition_by: str | None = None
    reads: str | None = None
    reads_last: bool = True
    broadcast: bool = False

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        """Pack the rows of one task.

        Args:
            batches: Columns of the user, then the hidden ones: ``HASH``, null where the key is or the timestamp is too
                far ahead; after another stage ``TIMESTAMP`` if there is event time, and ``NOTE``.
            partition: Number of the task's partition.

        Raises:
            RowError: A row is bad, and such rows are refused.
        """
        return _Task(self, partition).run(batches)


class _Task:
    """The state of one packing task."""

    def __init__(self, packer: Packer, partition: int) -> None:
        self._packer = packer
        self._source = partition
        self._position = 0
        self._ids = group_ids(packer.parallelism)
        self._buffer: list[Any] = []
        self._rows = self._bytes = 0
        self._packed: list[tuple[int, bytes]] = []
        self._seen = False
        self._max_timestamp: int | None = None
        self._partitions: dict[str, int] = {}
        self._end = False
        self._rows_bad = self._rows_combined = 0
        self._upstream: dict[int, int] = {}
        self._wanted = None if packer.reads is None else chunk_prefix(packer.reads)

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if batch.num_rows:
                self._seen = True
                self._take(batch)
                if self._packed:
                    yield self._flush()
        self._cut()
        if self._seen:
            packer = self._packer
            mark = encode_mark(
                TaskMark(
                    self._max_timestamp,
                    self._end,
                    self._upstream,
                    self._rows_bad,
                    self._rows_combined,
                    packer.input,
                    None if packer.partition_by is None else self._partitions,
                )
            )
            self._packed += [(group, mark) for group in self._ids]
        if self._packed:
            yield self._flush()

    def _flush(self) -> Any:
        """Return what has been packed so far, as rows for Spark."""
        import pyarrow as pa

        groups, payloads = zip(*self._packed, strict=True)
        self._packed = []
        arrays: list[Any] = [pa.array(groups, pa.int32()), pa.array(payloads, pa.binary())]
        return pa.RecordBatch.from_arrays(arrays, names=["keygroup", "payload"])

    def _take(self, batch: Any) -> None:
        """Take an Arrow batch from Spark: read its notes, check its rows, and keep them to be cut."""
        packer = self._packer
        if not packer.from_source:
            notes = batch.column(NOTE)
            if notes.null_count < batch.num_rows:
                for note in notes.drop_null().to_pylist():
                    self._read_note(note)
                batch = batch.filter(notes.is_null())
            if batch.num_rows and packer.forward_rows is not None:
                names = [name for name in batch.schema.names if name not in (HASH, NOTE)]
                self._forward(chunk_note(packer.forward_rows, batch.select(names)))
            if self._wanted is not None:
                return
        self._keep(batch)

    def _keep(self, batch: Any) -> None:
        """Check rows, and keep them to be cut."""
        packer = self._packer
        if packer.from_source or batch.column(HASH).null_count:
            batch = self._checked(batch)
        if not batch.num_rows:
            return
        if packer.time is not None:
            highest = _highest(batch.column(packer.time), packer.time)
            if highest is not None and (self._max_timestamp is None or highest > self._max_timestamp):
                self._max_timestamp = highest
            if packer.partition_by is not None:
                self._look_at_partitions(batch)
        self._buffer.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        enough = packer.combiner is None and self._rows >= _ROWS_PER_GROUP * packer.parallelism
        if enough or self._bytes >= _MAX_BYTES:
            self._cut()

    def _look_at_partitions(self, batch: Any) -> None:
        from keyed.arrow.event_times import event_times, highest_by_partition

        packer = self._packer
        assert packer.time is not None
        assert packer.partition_by is not None
        times = event_times(batch.column(packer.time), packer.time)
        for name, highest in highest_by_partition(batch.column(packer.partition_by), times).items():
            self._partitions[name] = max(highest, self._partitions.get(name, highest))

    def _read_note(self, note: bytes) -> None:
        kind = note[:1]
        if kind == b"S":
            is_read = self._wanted is not None and note.startswith(self._wanted)
            if is_read:
                self._keep_chunk(note)
            if not (is_read and self._packer.reads_last):
                self._forward(note)
        elif kind == b"M":
            mark = GroupMark.of_note(note)
            self._upstream[mark.group] = mark.watermark
            self._end = self._end or mark.end

    def _keep_chunk(self, note: bytes) -> None:
        """Keep the rows of a chunk, with the hash of their keys and their timestamps."""
        import pyarrow as pa

        from keyed.tables.batches import key_hashes

        packer = self._packer
        table = read_chunk(note)
        if packer.time is not None and TIMESTAMP not in table.column_names:
            table = table.append_column(TIMESTAMP, pa.nulls(table.num_rows, pa.int64()))
        table = table.append_column(HASH, key_hashes(table, packer.keys))
        for batch in table.to_batches():
            self._keep(batch)

    def _forward(self, note: bytes) -> None:
        """Send a note through a key group; the groups share this work."""
        self._packed.append(
            (
                self._ids[(self._source + self._position) % len(self._ids)],
                encode_payload(b"N", self._source, self._position, note),
            )
        )
        self._position += 1

    def _checked(self, batch: Any) -> Any:
        """Return the rows that are not bad; the others are refused or diverted."""
        import numpy as np
        import pyarrow as pa

        packer = self._packer
        needed = [HASH, packer.time] if packer.time is not None and packer.from_source else [HASH]
        nulls = [column for column in map(batch.column, needed) if column.null_count]
        # What comes from a stage before was written by it.
        unreadable = unreadable_rows(batch.select(packer.columns)) if packer.from_source else []
        if not nulls and not unreadable:
            return batch
        good: Any = np.ones(batch.num_rows, dtype="bool")
        good[unreadable] = False
        for column in nulls:
            good &= column.is_valid().to_numpy(zero_copy_only=False)
        bad = batch.filter(pa.array(~good))
        if packer.bad_rows is None:
            self._refuse(bad.slice(0, 1))
        self._rows_bad += bad.num_rows
        if packer.bad_rows:
            self._forward(chunk_note(packer.bad_rows, bad.select(packer.columns)))
        return batch.filter(pa.array(good))

    def _refuse(self, row: Any) -> NoReturn:
        """Raise for a bad row."""
        packer = self._packer
        columns = row.select(packer.columns)
        element = raw_rows(columns)[0]
        where, of_row, remedy = f"operator {packer.operator!r}: ", f"in row {shown(element)}", BAD_ROW_REMEDY
        key = tuple(raw_rows(row.select(packer.keys))[0]) if packer.keys else ()
        if is_null(key):
            raise null_key(packer.operator, key if len(key) > 1 else None, element, of_source=packer.from_source)
        if packer.time is not None and row.column(packer.time).null_count:
            raise TimestampError(f"{where}the timestamp is null {of_row}; {remedy}")
        if (name := unreadable_column(columns)) is not None:
            raise RowError(f"{where}column {name!r} {UNREADABLE} {of_row}; {remedy}")
        said = unit_hint(_highest(row.column(packer.time), packer.time)) if packer.time is not None else ""
        raise TimestampError(
            f"{where}the timestamp {of_row} is further ahead of the batch's processing time than max_ahead= "
            f"allows{said}; {remedy}, or give another max_ahead="
        )

    def _cut(self) -> None:
        """Cut the rows that were kept into one chunk per key group."""
        import numpy as np
        import pyarrow as pa

        if not self._buffer:
            return
        packer = self._packer
        names = [*packer.columns, TIMESTAMP] if packer.time == TIMESTAMP else list(packer.columns)
        table = pa.Table.from_batches(self._buffer)
        self._buffer, self._rows, self._bytes = [], 0, 0
        if packer.broadcast:
            chunk = table.select(names).combine_chunks().to_batches()[0]
            payload = encode_payload(b"R", self._source, self._position, chunk, packer.input)
            self._packed += [(group, payload) for group in self._ids]
            self._position += 1
            return
        hashes = table.column(HASH).to_numpy().view("uint64")
        batch = table.select(names).combine_chunks().to_batches()[0]
        parallelism = packer.parallelism
        if parallelism == 1:
            bounds = [0, batch.num_rows]
        else:
            # As keyed.codec.key_hash.group_of has it. Sorting 16-bit numbers takes linear time.
            groups = ((hashes >> np.uint64(33)) % np.uint64(parallelism)).astype("uint16")
            order: Any = np.argsort(groups, kind="stable")
            batch = batch.take(pa.array(order))
            bounds = [0, *np.cumsum(np.bincount(groups, minlength=parallelism)).tolist()]
        for index, group in enumerate(self._ids):
            start, end = bounds[index], bounds[index + 1]
            if end > start:
                chunk = self._combined(batch.slice(start, end - start))
                if chunk.num_rows:
                    self._packed.append(
                        (group, encode_payload(b"R", self._source, self._position, chunk, packer.input))
                    )
        self._position += 1

    def _combined(self, rows: Any) -> Any:
        packer = self._packer
        if packer.combiner is None:
            return rows
        import pyarrow as pa

        from keyed.tables.batches import combined, with_times

        table = with_times(pa.Table.from_batches([rows]), packer.time)
        table = combined(packer.combiner, table, packer.keys, packer.operator)
        self._rows_combined += rows.num_rows - table.num_rows
        return table.combine_chunks().to_batches(max_chunksize=None)[0] if table.num_rows else table


def _highest(times: Any, name: str) -> Any:
    """Return the highest of an event-time column, in milliseconds."""
    import pyarrow.compute as pc

    from keyed.arrow.event_times import event_times

    return pc.max(event_times(times, name)).as_py()
