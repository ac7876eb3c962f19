"""The stateful processor, which Spark calls once per key group and micro-batch, and which runs the engine.

It runs one operator and those chained to it (`job.chaining`): the same group of the next operator reads the rows that
a key group emits, so they stay in the worker.

The payloads of a key group are unpacked to a `Batch` for the engine. Chunks are sorted by their source partition and
position, so that a rerun of a batch has its rows in the same order, and then by timestamp, unless the operator uses
arrival order. For a row function, columns become Python objects in chunks while the batch runs
(`keyed.arrow.read.table_chunks`); a vectorized function gets the table.

A key group's log is in Spark's state store, and committed by Spark together with the micro-batch. An operator has two
state variables: the map ``log`` from row number (long) to record (binary), and the value ``meta`` (binary). The
variables of operators that are chained to the first one of a task end with their number: ``log1``, ``meta1``. Records
are framed and versioned by `keyed.engine.group_log`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

from keyed.arrow.event_times import event_times, time_order
from keyed.arrow.read import column_values, table_chunks
from keyed.base.arguments import MIN_TIMESTAMP
from keyed.base.ids import random_id
from keyed.changelog.model import ChangelogWriter, export_interval
from keyed.engine.batch import Batch, BatchResult, ChannelId, Chunk, InitialEntry, Upstream, entries_of, merged_chunks
from keyed.engine.group_log import GroupLog, GroupMeta
from keyed.engine.key_checks import check_table
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.errors import ChangelogFenced, CorruptionError, OutputDefinitionError
from keyed.job.functions import OperatorSpec, Store, VectorizedFunction, combines
from keyed.job.results import log_restore
from keyed.recovery.cut import Cut
from keyed.recovery.loading import load
from keyed.runtimes.garbage import Collector, freeze_modules
from keyed.runtimes.spark.worker.wire import (
    STATE,
    TIMESTAMP,
    EmittedRows,
    Emitter,
    GroupMark,
    PackedNote,
    PackedRows,
    group_ids,
    read_payload,
)
from keyed.runtimes.spark.worker.worker_caches import LateWriter, ReplicaCache, WriterCache, default_local_dir
from keyed.table_state.batches import combined, in_time_order, with_times

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessorHandle  # type: ignore[attr-defined]
    from pyspark.sql.types import StructType


def state_variables(place: int) -> tuple[str, str]:
    """Return the names of the variables of an operator, log and meta record.

    Args:
        place: Index of the operator in its chained line, from 0.
    """
    number = str(place) if place else ""
    return f"log{number}", f"meta{number}"


@cache
def state_schemas() -> tuple[StructType, StructType]:
    """Return the schemas ``row long`` and ``record binary``.

    If Spark gets a text, the worker sends it to the JVM to be parsed, six times for each key group and batch.
    """
    from pyspark.sql.types import BinaryType, LongType, StructField, StructType

    return StructType([StructField("row", LongType())]), StructType([StructField("record", BinaryType())])


class SparkGroupLog(GroupLog):
    """A `GroupLog` over the handle of a stateful processor.

    Every call goes to the JVM, at about a millisecond and 20 ms per MB, so the meta record is read once.

    Args:
        handle: The processor's handle. The key that Spark serves determines the group of the log.
        place: Index of the operator in its chained line.
    """

    def __init__(self, handle: StatefulProcessorHandle, place: int = 0) -> None:
        log, meta = state_variables(place)
        row, record = state_schemas()
        self._rows = handle.getMapState(log, row, record)
        self._meta = handle.getValueState(meta, record)
        self._known: bytes | None = None
        self._read = False

    def start(self) -> None:
        """Drop the cached meta record, before another key group."""
        self._known, self._read = None, False

    def read_meta(self) -> bytes | None:
        if not self._read:
            value = self._meta.get()
            self._known, self._read = (None if value is None else bytes(value[0])), True
        return self._known

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        for row in range(first, last + 1):
            value = self._rows.getValue((row,))
            if value is not None:
                yield row, bytes(value[0])

    def append(self, row: int, record: bytes) -> None:
        self._rows.updateValue((row,), (record,))

    def drop(self, row: int) -> None:
        self._rows.removeKey((row,))

    def write_meta(self, meta: bytes) -> None:
        self._meta.update((meta,))
        self._known, self._read = meta, True


@attrs.frozen
class PackedInput:
    """Packed input of a stage.

    Attributes:
        keys: Key columns.
        time: Column with the event time, a timestamp or milliseconds; ``None`` if there is none, or rows are combined.
        side: The side of a function of two streams; ``None`` for a function of one stream.
        broadcast: True if every key group gets the rows, which have no key.
        stage: Index of the stage whose output it is, if the watermark depends on that stage.
        schema: The expected Arrow schema of the packed rows, which the packer has, too.
    """

    keys: tuple[str, ...]
    time: str | None
    side: int | None = None
    broadcast: bool = False
    stage: int | None = None
    schema: pa.Schema | None = None


@attrs.define(eq=False)
class Incoming:
    """Input of a key group in one micro-batch.

    Attributes:
        batch: The batch for the engine, with what the marks of all tasks have; `batch_of` adds the rest.
        chunks: Payloads of rows by the number of their input, in order.
        notes: Notes to be forwarded, in order.
        upstream: Watermark and status of each key group of the previous stage, by index; empty if there is none.
        passed: Watermarks and statuses of earlier stages, by index.
        bad: The reason of one of the diverted rows; empty if there is none.
    """

    batch: Batch
    chunks: dict[int, list[PackedRows]] = attrs.field(factory=dict)
    notes: list[bytes] = attrs.field(factory=list)
    upstream: dict[int, Upstream] = attrs.field(factory=dict)
    passed: dict[int, Upstream] = attrs.field(factory=dict)
    bad: str = ""


def read_payloads(payloads: Iterable[bytes], clock: int) -> Incoming:
    """Decode the payloads of a key group, which come in any order.

    Args:
        payloads: The payloads.
        clock: Processing time of the batch, milliseconds.

    Raises:
        CorruptionError: A payload is damaged.
    """
    chunks: list[PackedRows] = []
    notes: list[tuple[int, int, bytes]] = []
    highest_times: dict[ChannelId, int] = {}
    batch = Batch(highest=highest_times, processing_time=clock)
    incoming = Incoming(batch)
    for each in map(read_payload, payloads):
        if isinstance(each, PackedNote):
            notes.append((each.source, each.position, each.note))
            continue
        if isinstance(each, PackedRows):
            chunks.append(each)
        mark = each.mark if isinstance(each, PackedRows) else each
        if mark is None:
            continue
        partitions = mark.partitions
        if partitions is None:
            partitions = {} if mark.max_timestamp is None else {"": mark.max_timestamp}
        for name, highest in partitions.items():
            channel = mark.input, name
            highest_times[channel] = max(highest, highest_times.get(channel, highest))
        batch.end_of_input = batch.end_of_input or mark.end
        batch.starts_run = batch.starts_run or mark.starts_run
        incoming.upstream.update(mark.upstream)
        incoming.passed.update(mark.passed)
        batch.rows_bad += mark.rows_bad
        batch.rows_combined += mark.rows_combined
        incoming.bad = incoming.bad or mark.bad
    for rows in sorted(chunks, key=lambda each: (each.input, each.source, each.position)):
        incoming.chunks.setdefault(rows.input, []).append(rows)
    incoming.notes = [note for _, _, note in sorted(notes)]
    return incoming


def reached_before(incoming: Incoming, stage: int, parallelism: int) -> dict[int, Upstream]:
    """Return the watermarks and statuses of the stages before one, by index.

    Args:
        incoming: The input of one of its key groups.
        stage: Its index.
        parallelism: Number of key groups of a stage.
    """
    if not stage:
        return {}
    groups = incoming.upstream
    # A missing mark would advance the watermark beyond rows that are still to come.
    assert len(groups) == parallelism, f"marks of {sorted(groups)} of {parallelism} key groups arrived"
    least = min(each.watermark for each in groups.values())
    return {**incoming.passed, stage - 1: Upstream(least, all(each.idle for each in groups.values()))}


def batch_of(
    incoming: Incoming,
    inputs: Sequence[PackedInput],
    *,
    by_time: bool,
    reached: Mapping[int, Upstream],
    vectorized: bool = False,
    right_first: bool = False,
) -> Batch:
    """Return the engine's batch.

    Args:
        incoming: The input of the group.
        inputs: The inputs of the stage.
        by_time: True if rows run in the order of their timestamps.
        reached: Watermarks and statuses of the earlier stages, by index.
        vectorized: True if the function gets the rows as one table.
        right_first: The rows of the second side are before those of the first one with the same time.
    """
    batch = incoming.batch
    batch.upstream = [reached[stage] for stage in dict.fromkeys(each.stage for each in inputs) if stage is not None]
    if not incoming.chunks:
        return batch
    read = [(incoming.chunks[number], inputs[number]) for number in sorted(incoming.chunks)]
    if vectorized:
        tables = [(partial(_read, chunks, each), each) for chunks, each in read]
        sides = [[part for part in tables if (part[1].side or 0) == side] for side in (0, 1)]
        batch.table, batch.table2 = (partial(_table, side, by_time=by_time) for side in sides)
        return batch
    keyed = [each for each in read if not each[1].broadcast]
    batch.chunks = _merged(keyed, by_time=by_time, right_first=right_first)
    batch.broadcast = _merged([each for each in read if each[1].broadcast], by_time=by_time)
    return batch


def chained_batch(
    table: pa.Table | None,
    packed: PackedInput,
    spec: OperatorSpec,
    upstream: str,
    group: int,
    before: Batch,
    reached: Upstream,
) -> Batch:
    """Return the batch of a chained operator.

    It equals that of `batch_of`: the rows of a key group come from the same group of the previous operator, in the same
    order. All groups of an operator have the same watermark after a batch, because all of them get the marks of all
    tasks.

    Args:
        table: The rows that the previous operator has emitted; ``None`` if there are none.
        packed: The input of the operator.
        spec: The operator.
        upstream: Name of the previous operator.
        group: The key group.
        before: The batch of the previous operator.
        reached: The watermark and status of that operator after the batch.

    Raises:
        RowError: A row has a key of another key group.
        NullKeyError: A key is null.
    """
    batch = Batch(
        starts_run=before.starts_run,
        upstream=[reached],
        processing_time=before.processing_time,
        end_of_input=before.end_of_input,
    )
    if table is None:
        return batch
    check_table(table, spec, upstream, group)
    if combines(spec.function):
        came, table = table.num_rows, combined(spec.function, table, spec.keys, spec.name)
        batch.rows_combined = came - table.num_rows
    if isinstance(spec.function, VectorizedFunction):
        batch.table = partial(_table, [(lambda: table, packed)], by_time=spec.by_time)
    else:
        batch.chunks = _rows(table, packed, by_time=spec.by_time)
    return batch


def _read(chunks: Iterable[PackedRows], packed: PackedInput) -> Any:
    tables = [chunk.table(packed.schema) for chunk in chunks]
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        # The rows of a source always have the same columns.
        raise OutputDefinitionError(
            f"combine returned tables with different columns for different rows ({error}); return the same names and "
            "types"
        ) from error


def _table(read: Sequence[tuple[Callable[[], pa.Table], PackedInput]], *, by_time: bool) -> Any:
    """Return the rows of a side for a vectorized function; ``None`` if there are none."""
    if not read:
        return None
    tables = [with_times(table(), each.time) for table, each in read]
    # A source and an output may have times in different zones.
    table = pa.concat_tables([table.select(tables[0].column_names).cast(tables[0].schema) for table in tables])
    return in_time_order(table) if by_time else table


def _merged(
    read: Sequence[tuple[list[PackedRows], PackedInput]], *, by_time: bool, right_first: bool = False
) -> Callable[[], Iterable[Chunk]]:
    """Return the rows of inputs for a row function."""
    if not read:
        return tuple
    if len(read) == 1 and read[0][1].side is None:
        return _rows(_read(*read[0]), read[0][1], by_time=by_time)
    parts = [(_rows(_read(chunks, each), each, by_time=by_time), each.side) for chunks, each in read]
    timed = by_time and read[0][1].time is not None
    return lambda: merged_chunks([(chunks(), side) for chunks, side in parts], by_time=timed, right_first=right_first)


def _rows(table: pa.Table, packed: PackedInput, *, by_time: bool) -> Callable[[], Iterable[Chunk]]:
    """Return the rows of one input for a row function."""
    time = packed.time
    numbers: Any = None
    if time is not None:
        times = event_times(table.column(time), time)
        # Rows without a timestamp, from processing-time timers of the previous stage, run first.
        numbers = times.fill_null(MIN_TIMESTAMP).to_numpy()
        order = time_order(numbers) if by_time else None
        if order is not None:
            table, times, numbers = table.take(order), times.take(order), numbers[order]
        if times.null_count:
            numbers = column_values(times)
        if time == TIMESTAMP:
            table = table.drop_columns([TIMESTAMP])
    return lambda: table_chunks(table, packed.keys, numbers)


def read_initial(payloads: list[bytes], keys: tuple[str, ...], operator: str) -> Iterator[InitialEntry]:
    """Yield the entries in the payloads of a key group, in the order of the frames' partitions."""
    decoded: Iterator[Any] = map(read_payload, payloads)
    for payload in sorted(decoded, key=lambda payload: (payload.source, payload.position)):
        table = payload.table(None)
        name = (table.schema.metadata or {}).get(STATE)
        yield from entries_of(table, None if name is None else name.decode(), keys, operator)


#: Caches of this worker process, kept from batch to batch.
_REPLICAS = ReplicaCache()
WRITERS = WriterCache()


@attrs.frozen(eq=False)
class Operation:
    """The description of an operator for its key groups.

    Attributes:
        spec: The operator.
        inputs: The inputs of the operator.
        key_type: Type of the keys.
        emitter: Its outputs.
        store: Kind of local store.
        local_dir: Folder for stores on disk; ``None`` for a folder of the worker's choice.
        changelog_id: Identity of the changelog, if there is one.
        cut: The cut from which a new query is restored, if it is.
        first_batch: Number that is added to Spark's id of a batch for the public id.
    """

    spec: OperatorSpec
    inputs: tuple[PackedInput, ...]
    key_type: str
    emitter: Emitter
    store: Store
    local_dir: str | None
    changelog_id: str = ""
    cut: Cut | None = None
    first_batch: int = 0


class Processor(StatefulProcessor):
    """Runs an operator and those chained to it. TimeMode is None: the engine has its own clocks and timers."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._initial: dict[int, list[bytes]] = {}

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._logs = [SparkGroupLog(handle, place) for place in range(len(self._operations))]
        self._index = {group: index for index, group in enumerate(group_ids(self._operations[0].spec.parallelism))}

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        # Every key group has rows in the first batch, at least marks.
        self._initial.setdefault(self._index[int(key[0])], []).extend(initialState.iloc[:, -1])

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        # All work is done before the first frame is yielded: Spark starts the next key group while frames of this one
        # are still unread.
        with Collector() as collector:
            return iter(self._run(self._index[int(key[0])], rows, collector))

    def close(self) -> None:
        freeze_modules()

    def _run(self, group: int, rows: Iterator[Any], collector: Collector) -> list[Any]:
        """Run one batch of one key group, and return its frames."""
        first, *chained = self._operations
        spec = first.spec
        frames = list(rows)
        # The columns are the group, the clock and the payload.
        payloads = (payload for frame in frames for payload in frame.iloc[:, -1])
        incoming = read_payloads(payloads, int(frames[0].iloc[0, -2]))
        reached = reached_before(incoming, first.emitter.stage, spec.parallelism)
        batch = batch_of(
            incoming,
            first.inputs,
            by_time=spec.by_time,
            reached=reached,
            vectorized=isinstance(spec.function, VectorizedFunction),
            right_first=getattr(spec.function, "right_first", False),
        )
        if group:
            # Every group gets the counts of all tasks, and the first one reports them.
            batch.rows_bad = batch.rows_combined = 0
        if (initial := self._initial.pop(group, None)) is not None:
            batch.initial = lambda: read_initial(initial, first.inputs[0].keys, spec.name)
        rows_out = first.emitter.rows()
        batch.chunks = collector.within(batch.chunks)
        result = self._operate(first, self._logs[0], group, batch, rows_out)
        mark = attrs.evolve(_mark(spec, group, batch, result, reached), bad="" if group else incoming.bad)
        notes, marks = incoming.notes, [mark]
        before = first
        for operation, log in zip(chained, self._logs[1:], strict=True):
            table = before.emitter.table(result, rows_out)
            if table is not None:
                notes += before.emitter.main_notes(table)
            notes += before.emitter.side_notes(result)
            of_before = Upstream(result.watermark, result.idle)
            reached = {**reached, before.emitter.stage: of_before}
            (packed,) = operation.inputs
            batch = chained_batch(table, packed, operation.spec, before.spec.name, group, batch, of_before)
            batch.chunks = collector.within(batch.chunks)
            rows_out = operation.emitter.rows()
            result = self._operate(operation, log, group, batch, rows_out)
            marks.append(_mark(operation.spec, group, batch, result, reached))
            before = operation
        return list(before.emitter.frames(result, rows_out, notes, marks))

    def _operate(
        self, operation: Operation, log: SparkGroupLog, group: int, batch: Batch, rows_out: EmittedRows
    ) -> BatchResult:
        """Run one batch of one key group of an operator."""
        log.start()
        batch.key_type, batch.consumer = operation.key_type, rows_out
        context = TaskContext.get()
        number = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        batch.id = None if number is None else operation.first_batch + int(number)
        name = operation.spec.name
        kind = operation.store
        folder = Path(operation.local_dir or default_local_dir()) if kind != "memory" else None
        meta = _meta(log, group)
        log_id = random_id() if meta is None else meta.log_id
        with _REPLICAS.replica(name, group, log_id, folder, new=meta is None, kind=kind) as replica:
            try:
                return _work(operation, log, group, meta, log_id, replica, batch)
            except ChangelogFenced:
                # Another worker has served the group since this one opened the writer, or an outdated attempt is
                # serving it now.
                WRITERS.discard(operation.changelog_id, group)
                return _work(operation, log, group, meta, log_id, replica, batch)


def _mark(
    spec: OperatorSpec, group: int, batch: Batch, result: BatchResult, reached: Mapping[int, Upstream]
) -> GroupMark:
    return GroupMark(
        spec.name,
        group,
        result.watermark,
        batch.processing_time,
        batch.end_of_input,
        result.metrics,
        result.commit,
        result.changed,
        result.due,
        max(batch.highest.values(), default=None),
        tuple(sorted(result.side)),
        result.staged,
        result.idle,
        batch.starts_run,
        dict(reached),
        export_at=result.export_at,
        waiting=result.waiting,
        held_by=result.held_by,
    )


def _work(
    operation: Operation,
    log: SparkGroupLog,
    group: int,
    meta: GroupMeta | None,
    log_id: str,
    replica: Replica,
    batch: Batch,
) -> BatchResult:
    """Run a batch with the engine; before the first one, restore the state if requested."""
    spec, cut = operation.spec, operation.cut
    writer: ChangelogWriter | None = None
    if spec.changelog is not None:
        opened = partial(WRITERS.writer, spec.changelog, operation.changelog_id, group, meta)
        # Most batches export nothing if there is an interval.
        writer = LateWriter(opened) if export_interval(spec.changelog) else opened()
    work = KeyGroup(spec, group, log, replica, writer, log_id, stages=True)
    try:
        if meta is None and cut is not None:
            if spec.name in cut.operators:
                (loader,) = load(cut.operators[spec.name], spec, [work], log_restore)
                loader.write_meta()
            else:
                empty = work.loader(cut.sequence, {})
                empty.write_log()
                empty.write_meta()
        return work.run(batch, perf_counter_ns)
    finally:
        work.close()


def _meta(log: SparkGroupLog, group: int) -> GroupMeta | None:
    """Return the meta record; ``None`` before the first commit, and for a damaged one, which the engine reports."""
    with suppress(CorruptionError):
        return log.meta(f"key group {group}")
    return None
