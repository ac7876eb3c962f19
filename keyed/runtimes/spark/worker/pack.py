"""Packing: many rows become one small row per batch and key group, so that Spark shuffles and calls per key group.

A `Packer` runs in ``mapInArrow``, stateless, over the rows of a source or of the previous stage. Rows are cut by key
group, with the hash of the key from the plan, combined if the function combines, and emitted as Arrow chunks; no row
becomes a Python object. Every task ends with a mark to every key group. Notes of the previous stage for sinks are
forwarded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NoReturn

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.arrow.event_times import event_times, highest_by_partition
from keyed.arrow.read import UNREADABLE, raw_rows, unreadable_column, unreadable_rows
from keyed.base.arguments import MAX_TIMESTAMP, shown
from keyed.codec.keys import is_null, null_key
from keyed.codec.refusals import BAD_ROW_REMEDY
from keyed.engine.batch import Upstream
from keyed.errors import RowError, TimestampError
from keyed.job.functions import VectorizedFunction
from keyed.job.graph import Transform
from keyed.runtimes.initial_frames import cut
from keyed.runtimes.recording import Recorder, with_timestamps
from keyed.runtimes.run_reports import unit_warning
from keyed.runtimes.spark.worker.wire import (
    HASH,
    NOTE,
    STATE,
    TIMESTAMP,
    GroupMark,
    PackedNote,
    RowsEncoder,
    TaskMark,
    chunk_note,
    chunk_prefix,
    encode_payload,
    encoded_mark,
    group_ids,
    read_chunk,
)
from keyed.runtimes.transforming import TransformedRows, transformed
from keyed.table_state.batches import combined, key_hashes, timestamped, with_times

#: Rows per key group that a task collects before it cuts them, so that chunks do not become tiny. Rows that are
#: combined are collected up to the limit of bytes, because combining more rows leaves fewer.
_ROWS_PER_GROUP = 1024
#: Maximal bytes of rows that a task holds before it cuts them.
_MAX_BYTES = 32 << 20


@attrs.frozen
class Reading:
    """The packing of one input of an operator.

    Attributes:
        operator: Name of the operator that it is packed for.
        keys: Key columns.
        columns: Columns of the rows except the hidden ones.
        time: Column with the event time, a timestamp or milliseconds; ``None`` if there is none. For rows of another
            stage it is ``TIMESTAMP``.
        of_source: True if the rows come from a source, and not from another stage.
        hash: Hidden column with the hash of the key, null if the key is null or the timestamp is too far ahead.
        bad_rows: Id of the output for bad rows; an empty id drops and counts them, ``None`` refuses them.
        combiner: The function, if it combines rows before they are sent.
        input: Number of the input.
        partition_by: Column that names the partition of a row, if the watermark follows partitions.
        chunks: Id of the output whose chunks hold the rows, if they are not the rows of the packed frame.
        last: True if no later stage reads those chunks.
        broadcast: True if every key group gets all rows, which have no key.
        recorder: The recorder of the rows, if they are recorded.
        side: The side of the operator.
        steps: Transformations of the rows.
        after: The packing of their results, which are keyed; this reading then has no keys.
        schema: The expected Arrow schema of the packed rows, which the key groups have, too.
        output: Of an operator without a key, the id of the output for the rows; empty for the columns of the frame.
    """

    operator: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    time: str | None
    of_source: bool
    hash: str = HASH
    bad_rows: str | None = None
    combiner: VectorizedFunction | None = None
    input: int = 0
    partition_by: str | None = None
    chunks: str | None = None
    last: bool = True
    broadcast: bool = False
    recorder: Recorder | None = None
    side: int = 0
    steps: tuple[Transform, ...] = ()
    after: Reading | None = None
    schema: pa.Schema | None = None
    output: str = ""


@attrs.frozen
class Packer:
    """Packs an operator's input from one frame; shared by the tasks of a packing step.

    Attributes:
        parallelism: Number of key groups.
        readings: The operator's inputs from the frame: one, or from the previous stage's frame any number.
        after_stage: True if the frame belongs to the previous stage, and has notes.
        forward: Id under which the rows are also forwarded, for a main output with a sink, and for rows that later
            operators read.
        main: The columns of the frame after operators without a key: rows are not packed but written. ``None`` if rows
            are packed.
    """

    parallelism: int
    readings: tuple[Reading, ...]
    after_stage: bool = False
    forward: str | None = None
    main: pa.Schema | None = None

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, batch: int = 0) -> Iterator[pa.RecordBatch]:
        """Pack the rows of one task.

        Args:
            batches: Columns of the user, then the hidden ones: the hashes of the readings that have them; after another
                stage ``TIMESTAMP`` if there is event time, and ``NOTE``.
            partition: Number of the task's partition.
            batch: Spark's id of the micro-batch.

        Raises:
            RowError: A row is bad, and such rows are refused.
        """
        task = _Task(self, partition)
        with ExitStack() as stack:
            for part in task.parts:
                each = part.reading
                if each.recorder is not None:
                    (part.after or part).record = stack.enter_context(
                        each.recorder.writer(batch, each.input, partition, each.side)
                    )
            yield from task.run(batches)


class _Task:
    """The state of one packing task."""

    def __init__(self, packer: Packer, partition: int) -> None:
        self._packer = packer
        self._out = _Packed(packer.parallelism, partition) if packer.main is None else _Relayed(packer.main, partition)
        self._seen = False
        self._end = self._starts_run = False
        self._upstream: dict[int, Upstream] = {}
        self._passed: dict[int, Upstream] = {}
        self.parts = [_Rows(reading, self._out) for reading in packer.readings]
        self._own = {NOTE, *(reading.hash for reading in packer.readings)}

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        out = self._out
        for batch in batches:
            if batch.num_rows:
                self._seen = True
                self._take(batch)
                if out.payloads:
                    yield from out.flush()
        if self._seen:
            mark = TaskMark(None, self._end, self._upstream, passed=self._passed, starts_run=self._starts_run)
            for part in self.parts:
                part.finish(mark)
            if not self.parts:
                out.to_all(encode_payload(mark))
        if out.payloads:
            yield from out.flush()

    def _take(self, batch: Any) -> None:
        """Process an Arrow batch from Spark: read its notes, forward the parts for other readers, and keep its rows."""
        packer = self._packer
        if packer.after_stage:
            notes = batch.column(NOTE)
            if notes.null_count < batch.num_rows:
                for note in notes.drop_null().to_pylist():
                    self._read_note(note)
                batch = batch.filter(notes.is_null())
        if not batch.num_rows:
            return
        if packer.forward is not None:
            # Including the hashes for other readers.
            names = [name for name in batch.schema.names if name not in self._own]
            self._out.forward(chunk_note(packer.forward, batch.select(names)))
        for part in self.parts:
            if part.chunks is None:
                part.keep(batch)

    def _read_note(self, note: bytes) -> None:
        kind = note[:1]
        if kind == b"S":
            readers = [part for part in self.parts if part.chunks is not None and note.startswith(part.chunks)]
            for part in readers:
                part.keep_chunk(note)
            if not readers or not readers[0].reading.last:
                self._out.forward(note)
        elif kind == b"M":
            mark = GroupMark.of_note(note)
            self._upstream[mark.group] = Upstream(mark.watermark, mark.idle)
            self._passed = mark.passed
            self._end = self._end or mark.end
            self._starts_run = self._starts_run or mark.starts_run


class _Packed:
    """Packed rows of a task that were not yielded to Spark yet."""

    def __init__(self, parallelism: int, partition: int) -> None:
        self.parallelism = parallelism
        self.payloads: list[tuple[int, bytes]] = []
        self._source = partition
        self._position = 0
        self._ids = group_ids(parallelism)

    def flush(self) -> Iterator[Any]:
        """Yield the packed rows so far, as rows for Spark."""
        groups, payloads = zip(*self.payloads, strict=True)
        self.payloads = []
        arrays: list[Any] = [pa.array(groups, pa.int32()), pa.array(payloads, pa.binary())]
        yield pa.RecordBatch.from_arrays(arrays, names=["keygroup", "payload"])

    def forward(self, note: bytes) -> None:
        """Send a note through a key group; the groups share this work."""
        group = self._ids[(self._source + self._position) % len(self._ids)]
        self.payloads.append((group, encode_payload(PackedNote(self._source, self._position, note))))
        self._position += 1

    def rows(self, chunks: Iterable[tuple[int, Any]], reading: Reading, mark: TaskMark | None = None) -> None:
        """Send rows of an input to their key groups, given by index, and to all groups the task's mark after them."""
        last = None if mark is None else encoded_mark(mark)
        left, schema, encoder = set(self._ids), None, None
        for index, chunk in chunks:
            if encoder is None or chunk.schema != schema:
                # Combined rows may have columns that depend on them, which the reader refuses.
                schema = chunk.schema
                encoder = RowsEncoder(schema, reading.schema, reading.input)
            group = self._ids[index]
            self.payloads.append((group, encoder.payload(chunk, self._source, self._position, last)))
            left.discard(group)
        self._position += 1
        if mark is not None:
            payload = encode_payload(mark)
            self.payloads += [(group, payload) for group in self._ids if group in left]

    def to_all(self, payload: bytes) -> None:
        """Send a payload to every key group."""
        self.payloads += [(group, payload) for group in self._ids]


class _Relayed:
    """Rows of operators without a key that were not yielded to Spark yet, in the columns of the frame or in notes."""

    parallelism = 1

    def __init__(self, main: pa.Schema, partition: int) -> None:
        self.payloads: list[Any] = []
        self._main = main
        self._partition = partition
        self._counts: dict[tuple[str, int], int] = {}

    def flush(self) -> Iterator[Any]:
        """Yield the rows so far, as rows for Spark."""
        payloads, self.payloads = self.payloads, []
        yield from payloads

    def forward(self, note: bytes) -> None:
        """Add a note."""
        nulls: list[Any] = [pa.nulls(1, field.type) for field in self._main]
        note_column = pa.array([note], pa.binary())
        self.payloads.append(pa.RecordBatch.from_arrays([*nulls, note_column], names=[*self._main.names, NOTE]))

    def rows(self, chunks: Iterable[tuple[int, Any]], reading: Reading, mark: TaskMark | None = None) -> None:
        """Add rows of an input to the output of its operator, and after them the mark of the operator."""
        place = reading.operator, reading.input
        for _, chunk in chunks:
            self._counts[place] = self._counts.get(place, 0) + chunk.num_rows
            columns = chunk.select(reading.columns)
            if reading.output:
                self.forward(chunk_note(reading.output, columns))
                continue
            cells = pa.Table.from_batches([columns]).select(self._main.names).cast(self._main)
            for batch in cells.append_column(NOTE, pa.nulls(cells.num_rows, pa.binary())).to_batches():
                self.payloads.append(batch)
        if mark is not None:
            count = self._counts.get(place, 0)
            metrics = {"rows_in": count + mark.rows_bad, "rows_out": count, "rows_bad": mark.rows_bad}
            now = time.time_ns() // 1_000_000
            of_operator = GroupMark(reading.operator, self._partition, MAX_TIMESTAMP, now, mark.end, metrics)
            self.forward(attrs.evolve(of_operator, highest=mark.max_timestamp, bad=mark.bad).note())

    def to_all(self, payload: bytes) -> None:
        """Ignore a mark: there are no key groups."""


class _Rows:
    """The rows of one input that a task has not cut yet, and their counts and timestamps."""

    def __init__(self, reading: Reading, out: _Packed | _Relayed) -> None:
        self.reading = reading
        #: Writes the rows as a table, if they are recorded.
        self.record: Any = None
        self.chunks = None if reading.chunks is None else chunk_prefix(reading.chunks)
        self._out = out
        self._buffer: list[Any] = []
        self._rows = self._bytes = 0
        self._max_timestamp: int | None = None
        self._partitions: dict[str, int] = {}
        self._rows_bad = self._rows_combined = 0
        self._bad = ""
        #: The results of its transformations.
        self.after = None if reading.after is None else _Rows(reading.after, out)

    def finish(self, mark: TaskMark) -> None:
        """Send the rest of the rows, and the mark of this input."""
        last = self.after or self
        # Combining changes the counts of the mark.
        chunks = last.cut()
        self._out.rows(chunks, last.reading, self.mark(mark))

    def mark(self, mark: TaskMark) -> TaskMark:
        """Return a task's mark with the counts and timestamps of this input."""
        reading = self.reading
        if self.after is not None:
            mark = self.after.mark(mark)
        return msgspec.structs.replace(
            mark,
            max_timestamp=self._max_timestamp,
            rows_bad=self._rows_bad + mark.rows_bad,
            bad=self._bad or mark.bad,
            rows_combined=self._rows_combined + mark.rows_combined,
            input=reading.input,
            partitions=None if reading.partition_by is None else self._partitions,
        )

    def keep(self, batch: Any) -> None:
        """Check rows, and keep them to be cut."""
        reading = self.reading
        if reading.of_source or batch.column(reading.hash).null_count:
            batch = self._checked(batch)
        if not batch.num_rows:
            return
        times: Any = None
        if reading.time is not None:
            times = event_times(batch.column(reading.time), reading.time)
            highest = pc.max(times).as_py()
            if highest is not None and (self._max_timestamp is None or highest > self._max_timestamp):
                self._max_timestamp = highest
            if reading.partition_by is not None:
                for name, highest in highest_by_partition(batch.column(reading.partition_by), times).items():
                    self._partitions[name] = max(highest, self._partitions.get(name, highest))
        if self.after is not None:
            self._transform(batch, times, self.after)
            return
        if self.record is not None:
            self.record(with_timestamps(pa.Table.from_batches([batch.select(reading.columns)]), times))
        self._buffer.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        enough = reading.combiner is None and self._rows >= _ROWS_PER_GROUP * self._out.parallelism
        if enough or self._bytes >= _MAX_BYTES:
            self._out.rows(self.cut(), reading)

    def keep_chunk(self, note: bytes) -> None:
        """Keep the rows of a chunk, with the hash of their keys and their timestamps."""
        table = read_chunk(note)
        if self.reading.time == TIMESTAMP:
            table = timestamped(table)
        if self.reading.hash not in table.column_names:
            table = self._with_hashes(table)
        for batch in table.to_batches():
            self.keep(batch)

    def _with_hashes(self, table: Any) -> Any:
        """Return a table with the hashes of its keys; rows without a key have 0."""
        reading = self.reading
        is_keyed = reading.keys and not reading.broadcast
        hashes = key_hashes(table, reading.keys) if is_keyed else pa.array(np.zeros(table.num_rows, "int64"))
        return table.append_column(reading.hash, hashes)

    def _transform(self, batch: Any, times: Any, after: _Rows) -> None:
        """Keep the results of the transformations, with their timestamps and the hashes of their keys."""
        reading, target = self.reading, after.reading
        rows = TransformedRows(times, table=pa.Table.from_batches([batch.select(reading.columns)]))
        rows = transformed(rows, reading.steps, reading.operator)
        self._rows_bad += rows.bad
        self._bad = self._bad or rows.reason
        if not rows.count:
            return
        table = after._with_hashes(rows.table(f"operator {reading.operator!r}"))
        if target.time is not None:
            assert rows.times is not None
            table = table.append_column(target.time, pa.chunked_array([rows.times]))
        for part in table.combine_chunks().to_batches():
            after.keep(part)

    def _checked(self, batch: Any) -> Any:
        """Return the good rows; bad rows are refused or diverted."""
        reading = self.reading
        needed = [reading.hash, reading.time] if reading.time is not None and reading.of_source else [reading.hash]
        nulls = [column for column in map(batch.column, needed) if column.null_count]
        # Rows of an earlier stage are always readable.
        unreadable = unreadable_rows(batch.select(reading.columns)) if reading.of_source else []
        if not nulls and not unreadable:
            return batch
        good: Any = np.ones(batch.num_rows, dtype="bool")
        good[unreadable] = False
        for column in nulls:
            good &= column.is_valid().to_numpy(zero_copy_only=False)
        bad = batch.filter(pa.array(~good))
        if reading.bad_rows is None:
            self._refuse(bad.slice(0, 1))
        self._bad = self._bad or self._reason(bad.slice(0, 1))
        self._rows_bad += bad.num_rows
        if reading.bad_rows:
            self._out.forward(chunk_note(reading.bad_rows, bad.select(reading.columns)))
        return batch.filter(pa.array(good))

    def _refuse(self, row: Any) -> NoReturn:
        """Raise the error for a bad row."""
        reading = self.reading
        columns = row.select(reading.columns)
        element = raw_rows(columns)[0]
        where, of_row, remedy = f"operator {reading.operator!r}: ", f"in row {shown(element)}", BAD_ROW_REMEDY
        key = tuple(raw_rows(row.select(reading.keys))[0]) if reading.keys else ()
        if is_null(key):
            raise null_key(reading.operator, key if len(key) > 1 else None, element, of_source=reading.of_source)
        if reading.time is not None and row.column(reading.time).null_count:
            raise TimestampError(f"{where}the timestamp is null {of_row}; {remedy}")
        if (name := unreadable_column(columns)) is not None:
            raise RowError(f"{where}column {name!r} {UNREADABLE} {of_row}; {remedy}")
        reason = self._unit(row)
        raise TimestampError(
            f"{where}the timestamp {of_row} is further ahead of the batch's processing time than max_ahead= "
            f"allows{reason}; {remedy}, or give another max_ahead="
        )

    def _reason(self, row: Any) -> str:
        """Return the reason why a row is bad, without its values, because the text is in Spark's progress reports."""
        reading = self.reading
        if any(column.null_count for column in map(row.column, reading.keys)):
            return f"its key {', '.join(reading.keys)} is null"
        if reading.time is not None and row.column(reading.time).null_count:
            return "its timestamp is null"
        if (name := unreadable_column(row.select(reading.columns))) is not None:
            return f"column {name!r} {UNREADABLE}"
        return f"its timestamp is further ahead of the processing time than max_ahead= allows{self._unit(row)}"

    def _unit(self, row: Any) -> str:
        """Return a note on the unit of a row's timestamp, if it seems not to be milliseconds."""
        time = self.reading.time
        return "" if time is None else unit_warning(event_times(row.column(time), time)[0].as_py())

    def cut(self) -> list[tuple[int, Any]]:
        """Cut the collected rows into one chunk per key group, given by index."""
        if not self._buffer:
            return []
        reading = self.reading
        names = [*reading.columns, TIMESTAMP] if reading.time == TIMESTAMP else list(reading.columns)
        table = pa.Table.from_batches(self._buffer)
        self._buffer, self._rows, self._bytes = [], 0, 0
        parallelism = self._out.parallelism
        if reading.broadcast:
            [chunk] = table.select(names).combine_chunks().to_batches()
            return [(group, chunk) for group in range(parallelism)]
        hashes = table.column(reading.hash).to_numpy().view("uint64")
        batch = table.select(names).combine_chunks().to_batches()[0]
        if parallelism == 1:
            bounds = [0, batch.num_rows]
        else:
            # As in keyed.codec.key_hash.group_of. Sorting 16-bit numbers takes linear time.
            groups = ((hashes >> np.uint64(33)) % np.uint64(parallelism)).astype("uint16")
            order: Any = np.argsort(groups, kind="stable")
            batch = batch.take(pa.array(order))
            bounds = [0, *np.cumsum(np.bincount(groups, minlength=parallelism)).tolist()]
        chunks = [
            (index, self._combined(batch.slice(start, end - start)))
            for index, (start, end) in enumerate(pairwise(bounds))
            if end > start
        ]
        return [(index, chunk) for index, chunk in chunks if chunk.num_rows]

    def _combined(self, rows: Any) -> Any:
        reading = self.reading
        if reading.combiner is None:
            return rows
        table = with_times(pa.Table.from_batches([rows]), reading.time)
        table = combined(reading.combiner, table, reading.keys, reading.operator)
        self._rows_combined += rows.num_rows - table.num_rows
        return table.combine_chunks().to_batches(max_chunksize=None)[0] if table.num_rows else table


def pack_initial(
    state: str | None, keys: tuple[str, ...], operator: str, parallelism: int, batches: Iterator[Any]
) -> Iterator[pa.RecordBatch]:
    """Pack the rows of an initial state's frame by key group.

    Args:
        state: Name of the state; ``None`` if a column of the rows has it.
        keys: Columns of the key.
        operator: Name of the operator, for errors.
        parallelism: Number of key groups.
        batches: The rows.
    """
    from pyspark import TaskContext

    metadata: dict[bytes, bytes] = {} if state is None else {STATE: state.encode()}
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    ids = group_ids(parallelism)
    for position, batch in enumerate(batches):
        for index, part in cut(pa.Table.from_batches([batch]), keys, operator, parallelism):
            rows = part.replace_schema_metadata(metadata).combine_chunks().to_batches()[0]
            payload = RowsEncoder(rows.schema, None).payload(rows, partition, position)
            arrays: list[Any] = [pa.array([ids[index]], pa.int32()), pa.array([payload], pa.binary())]
            yield pa.RecordBatch.from_arrays(arrays, names=["keygroup", "payload"])
