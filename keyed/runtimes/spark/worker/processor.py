"""The stateful processor: Spark calls it once per key group and micro-batch, and it lets the engine do the work."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

from keyed.engine.batch import Batch, BatchResult
from keyed.engine.key_group import KeyGroup
from keyed.engine.meta import GroupMeta
from keyed.engine.replica import Replica
from keyed.errors import ChangelogFenced, CorruptionError
from keyed.ids import random_id
from keyed.operators import OperatorSpec, Store
from keyed.recovery.cut import Cut
from keyed.recovery.restore import restore
from keyed.results import RestoreProgress
from keyed.runtimes.spark.plan.group_ids import group_ids
from keyed.runtimes.spark.plan.packed_initial import read_initial
from keyed.runtimes.spark.worker.emit import Emitter
from keyed.runtimes.spark.worker.replica_cache import ReplicaCache, default_local_dir
from keyed.runtimes.spark.worker.settle import settle
from keyed.runtimes.spark.worker.spark_group_log import SparkGroupLog
from keyed.runtimes.spark.worker.unpack import PackedInput, batch_of, reached_before, read_payloads
from keyed.runtimes.spark.worker.wire import GroupMark
from keyed.runtimes.spark.worker.writer_cache import WriterCache
from keyed.vectorized import VectorizedFunction

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessorHandle  # type: ignore[attr-defined]

#: What this worker process remembers from batch to batch.
_REPLICAS = ReplicaCache()
WRITERS = WriterCache()

_log = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class Operation:
    """What the key groups of one operator need to know.

    Attributes:
        spec: The operator.
        inputs: What the operator reads.
        key_type: Type of the keys.
        emitter: Its outputs.
        store: Kind of local store.
        local_dir: Folder for stores on disk; ``None`` for a folder of the worker's choice.
        changelog_id: Identity of the changelog, if there is one.
        cut: What a new query is restored from, if it is.
    """

    spec: OperatorSpec
    inputs: tuple[PackedInput, ...]
    key_type: str
    emitter: Emitter
    store: Store
    local_dir: str | None
    changelog_id: str = ""
    cut: Cut | None = None


class Processor(StatefulProcessor):
    """Runs one operator. TimeMode is None: clocks and timers are the engine's."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._initial: dict[int, list[bytes]] = {}

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._log = SparkGroupLog(handle)
        self._index = {group: index for index, group in enumerate(group_ids(self._operation.spec.parallelism))}

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        # Every key group has rows in the first batch, marks at least.
        self._initial.setdefault(self._index[int(key[0])], []).extend(initialState.iloc[:, -1])

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        # Everything is done before the first frame leaves: Spark moves on to the next key group while frames of this
        # one are still to be taken. Half a million new tuples make Python's cyclic collector run for nothing.
        collects = gc.isenabled()
        gc.disable()
        try:
            return iter(self._run(self._index[int(key[0])], rows))
        finally:
            if collects:
                gc.enable()

    def close(self) -> None:
        settle()

    def _run(self, group: int, rows: Iterator[Any]) -> list[Any]:
        """Run one batch of one key group, and give its frames."""
        operation, log = self._operation, self._log
        spec = operation.spec
        log.start()
        frames = list(rows)
        # The columns are the group, the clock and the payload.
        payloads = (payload for frame in frames for payload in frame.iloc[:, -1])
        incoming = read_payloads(payloads, int(frames[0].iloc[0, -2]))
        reached = reached_before(incoming, operation.emitter.stage, spec.parallelism)
        batch = batch_of(
            incoming,
            operation.inputs,
            by_time=spec.order == "event_time",
            reached=reached,
            vectorized=isinstance(spec.function, VectorizedFunction),
        )
        batch.key_type = operation.key_type
        if group == 0:
            # Every group hears of these of all groups, so one of them counts.
            batch.rows_bad, batch.rows_combined = incoming.rows_bad, incoming.rows_combined
        if (initial := self._initial.pop(group, None)) is not None:
            batch.initial = lambda: read_initial(initial, operation.inputs[0].keys, spec.name)
        batch.taker = rows_out = operation.emitter.rows()
        folder = Path(operation.local_dir or default_local_dir()) if operation.store == "rocksdb" else None
        meta = self._meta(group)
        log_id = random_id() if meta is None else meta.log_id
        with _REPLICAS.replica(spec.name, group, log_id, folder, new=meta is None) as replica:
            try:
                result = self._work(group, meta, log_id, replica, batch)
            except ChangelogFenced:
                # The group was served elsewhere since this worker opened the writer, or is now by a left-over attempt.
                WRITERS.discard(operation.changelog_id, group)
                result = self._work(group, meta, log_id, replica, batch)
        mark = GroupMark(
            group,
            result.watermark,
            incoming.clock,
            incoming.end,
            result.metrics,
            result.commit,
            result.changed,
            result.due,
            max(incoming.highest.values(), default=None),
            tuple(sorted(result.side)),
            result.staged,
            result.idle,
            incoming.starts_run,
            reached,
        )
        return list(operation.emitter.frames(result, rows_out, incoming.notes, mark))

    def _work(self, group: int, meta: GroupMeta | None, log_id: str, replica: Replica, batch: Batch) -> BatchResult:
        """Let the engine run a batch; before the first one, restore what is to be restored."""
        operation, cut = self._operation, self._operation.cut
        spec, writer = operation.spec, None
        if spec.changelog is not None:
            writer = WRITERS.writer(spec.changelog, operation.changelog_id, group, meta)
        work = KeyGroup(spec, group, self._log, replica, writer, log_id, stages=True)
        try:
            if meta is None and cut is not None:
                if spec.name in cut.operators:
                    restore(cut.operators[spec.name], spec, [work], _log_progress)
                else:
                    empty = work.loader(cut.sequence, {})
                    empty.write_log()
                    empty.write_meta()
            return work.run(batch, _microseconds)
        finally:
            work.close()

    def _meta(self, group: int) -> GroupMeta | None:
        """Return the meta record; ``None`` before the first commit, and for a damaged one, which the engine reports."""
        with suppress(CorruptionError):
            return self._log.meta(f"key group {group}")
        return None


def _log_progress(progress: RestoreProgress) -> None:
    _log.info("restored %s", progress)


def _microseconds() -> int:
    return time.perf_counter_ns() // 1000
