"""The stateful processor, which Spark calls once per key group and micro-batch, and which runs the engine.

It runs one operator and those chained to it (`job.chaining`): the same group of the next operator reads the rows that
a key group emits, so they stay in the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import attrs
from pyspark import TaskContext
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

from keyed.base.ids import random_id
from keyed.changelog.model import ChangelogWriter, export_interval
from keyed.engine.batch import Batch, BatchResult, Upstream
from keyed.engine.group_log import GroupMeta
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.errors import ChangelogFenced, CorruptionError
from keyed.job.functions import OperatorSpec, Store, VectorizedFunction
from keyed.job.results import log_restore
from keyed.recovery.cut import Cut
from keyed.recovery.loading import load
from keyed.runtimes.garbage import Collector, freeze_modules
from keyed.runtimes.spark.worker.emit import EmittedRows, Emitter
from keyed.runtimes.spark.worker.spark_group_log import SparkGroupLog
from keyed.runtimes.spark.worker.unpack import (
    PackedInput,
    batch_of,
    chained_batch,
    reached_before,
    read_initial,
    read_payloads,
)
from keyed.runtimes.spark.worker.wire import GroupMark, group_ids
from keyed.runtimes.spark.worker.worker_caches import LateWriter, ReplicaCache, WriterCache, default_local_dir

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessorHandle  # type: ignore[attr-defined]

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
