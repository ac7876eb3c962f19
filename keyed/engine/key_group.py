"""One key group of one operator: catch up, run a batch, commit."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.base.ids import random_id
from keyed.changelog.model import ChangelogWriter, export_interval, sequence_of
from keyed.codec.keys import key_type
from keyed.content.addresses import TIMER_EVENT, TIMER_PROCESSING
from keyed.content.blocks import records_of
from keyed.content.contents import LiveHash, hash_of_text, hash_text, stored_key
from keyed.content.delta import Delta, exported
from keyed.content.local_store import LocalStore
from keyed.engine.batch import Batch, BatchResult, Emitted, EmittedTables, advance, counts_channels, stamped
from keyed.engine.bound import Scope
from keyed.engine.changes import Changes
from keyed.engine.export import check_new, export, stage
from keyed.engine.group_log import GroupLog, GroupMeta, clean, encode_meta, encode_rows
from keyed.engine.migrate import Migration, class_migration
from keyed.engine.registry import Registry
from keyed.engine.replica import Loader, Pending, Replica, checked_hash, position_of
from keyed.engine.work import RowWork, VectorizedWork, Work
from keyed.errors import (
    CheckpointFinished,
    KeyedError,
    KeysChanged,
    LocalStoreError,
    OperatorChanged,
    ParallelismChanged,
    UserFunctionError,
)
from keyed.job.functions import OperatorSpec, VectorizedFunction
from keyed.job.state import State

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def check_group(meta: GroupMeta, spec: OperatorSpec, index: int) -> None:
    """Check that a log belongs to a key group of an operator.

    Raises:
        OperatorChanged: It belongs to another operator.
        ParallelismChanged: It belongs to another number of key groups, or to another group.
    """
    if meta.operator != spec.name:
        raise OperatorChanged(
            f"the checkpoint belongs to operator {meta.operator!r}, the query has {spec.name!r}; give "
            f"name={meta.operator!r} to keep its state, or start from a new checkpoint"
        )
    if meta.parallelism != spec.parallelism:
        raise ParallelismChanged(
            f"operator {spec.name!r}: the checkpoint has {meta.parallelism} key groups, the query {spec.parallelism}; "
            f"set parallelism={meta.parallelism}, or start from a new checkpoint, with "
            "restore_from= the operator's changelog"
        )
    if meta.group != index:
        raise ParallelismChanged(
            f"operator {spec.name!r}: key group {index} found the state of key group {meta.group} in its place; the "
            "checkpoint's files were moved or mixed, so restore it from a copy, or start from a new checkpoint, with "
            "restore_from= the operator's changelog"
        )


def _position_of_migrated(meta: GroupMeta) -> str:
    """Return the position of a local store with the changes of a migration that no batch has committed yet."""
    return f"migrated by {meta.attempt}"


@attrs.define(eq=False, repr=False, slots=False)
class KeyGroup:
    """Runs batches of one key group. The changes of a batch to the log become durable atomically with the batch.

    Args:
        spec: The operator.
        index: Index of the group, from 0.
        log: The group's log.
        replica: The group's local store.
        writer: Writer of the group's changelog, if there is one.
        log_id: Identity of the group's log, if it has none yet.
        stages: True if staged batches are published.
    """

    _spec: OperatorSpec
    index: int
    _log: GroupLog
    _replica: Replica
    _writer: ChangelogWriter | None = None
    _log_id: str = ""
    _stages: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self._export_interval = export_interval(self._spec.changelog)
        self._stages = self._stages and not self._export_interval
        self._log_id = self._log_id or random_id()
        self._where = f"operator {self._spec.name!r}, key group {self.index}"
        self._scope = Scope(self._replica.store, retains=not self._log.keeps)
        self._function: Any = None
        self._registry: Registry | None = None
        self._work: Work | None = None
        self._loaded = False
        #: Time at which a channel becomes idle, after the first batch of this object.
        self._idle_at: int | None = None

    def run(self, batch: Batch, clock: Callable[[], int] = lambda: 0) -> BatchResult:
        """Run a batch and append its segment to the log.

        Args:
            batch: Rows and marks.
            clock: Returns nanoseconds, for the counter of busy time.

        Raises:
            CheckpointError: The log belongs to another operator, parallelism, key or state schema, or is finished.
            CorruptionError: The log is damaged.
            KeyedError: The function failed, or used the API wrongly. Nothing is committed then.
        """
        return self._rebuilding(lambda: self._run(batch, clock), batch)

    def _rebuilding(self, work: Callable[[], _Result], batch: Batch | None = None) -> _Result:
        """Do work that reads the local store; if the store is damaged, do it again with one rebuilt from the log."""
        try:
            return work()
        except LocalStoreError:
            if not self._log.keeps:
                raise
            self.close()
            self._replica.store.reset()
            if batch is not None and batch.consumer is not None:
                batch.consumer.restart()
            return work()

    def committed(self) -> tuple[GroupMeta | None, LocalStore]:
        """Return the meta record and the local store, up to date with the committed log.

        Raises:
            CorruptionError: The log is damaged.
        """
        meta = self._log.meta(self._where)
        self._replica.catch_up(self._log, meta, self._where)
        return meta, self._replica.store

    def is_due(self, processing_time: int) -> bool:
        """Return true if a timer, in processing or ingestion time, or the idleness of a source is due without rows.

        Raises:
            CorruptionError: The log is damaged.
        """
        if self._idle_at is not None and self._idle_at <= processing_time:
            return True
        if self._scope.retains:
            return isinstance(self._work, RowWork) and self._work.is_due(processing_time)
        return self._rebuilding(lambda: self._has_due(processing_time))

    def _has_due(self, processing_time: int) -> bool:
        _, store = self.committed()
        if next(store.due(TIMER_PROCESSING, processing_time), None) is not None:
            return True
        reached = self._spec.time_reached(processing_time)
        return reached is not None and next(store.due(TIMER_EVENT, reached), None) is not None

    def is_export_due(self, processing_time: int, *, starts_run: bool = False) -> bool:
        """Return true if a batch exports the commits before it to the changelog.

        Args:
            processing_time: Time of the batch, milliseconds.
            starts_run: The query was stopped since the previous batch.
        """
        meta = self._log.meta(self._where)
        if meta is None:
            return False
        return starts_run or max(processing_time, meta.processing_time) >= meta.export_at(self._export_interval)

    def counters(self) -> dict[str, int]:
        """Return the committed counters; none before the first commit."""
        meta = self._log.meta(self._where)
        return {} if meta is None else meta.counters

    def key_type(self) -> str:
        """Return the committed type of the keys; empty while none is known."""
        meta = self._log.meta(self._where)
        return "" if meta is None else meta.key_type

    def declarations(self) -> dict[str, State]:
        """Return the declarations of the states by name; none before the function is opened."""
        bound = self._registry.bound if self._registry is not None else {}
        return {name: state.declaration for name, state in bound.items()}

    def check_states(self, checked: list[dict[str, Any]]) -> None:
        """Open the function on the committed state, which a changed function is refused for, before a batch runs.

        Args:
            checked: Descriptions of states that were checked for other key groups; these are added.

        Raises:
            StateSchemaChanged: A state does not fit its declaration.
        """
        meta = self._log.meta(self._where)
        # A migration converts the states with the first batch, which checks them.
        if meta is not None and not meta.ended and self._spec.function.migration is None:
            described = {name: state["schema"] for name, state in meta.states.items()}
            if described not in checked:
                self._open(meta)
                checked.append(described)

    def flush(self) -> None:
        """Export the commits that the changelog lacks, which can no longer be undone.

        Raises:
            ChangelogError: It cannot be written, or has another history.
            CorruptionError: The log is damaged.
        """
        self._rebuilding(self._flush)

    def _flush(self) -> None:
        meta, _ = self.committed()
        self._loaded = False
        self._export(meta)

    def loader(self, commit: int, states: dict[str, Any]) -> Loader:
        """Return a loader for the group, which has no state yet.

        Args:
            commit: Number of its first commit. List elements are ordered by commit, so it is not below the commits of
                the loaded elements.
            states: Descriptions of the states, with the ids that the entries have.

        Raises:
            ChangelogDiverged: The group's changelog is not empty.
            StateSchemaChanged: The function's states do not fit them.
        """
        spec = self._spec
        # The ids of the states may differ from those of an earlier attempt.
        self.close()
        self._export(None)
        meta = GroupMeta(self._log_id, spec.name, self.index, spec.parallelism, commit, random_id(), states=states)
        self._open(meta)
        self._loaded = True
        return Loader(self._log, self._replica.store, meta)

    def close(self) -> None:
        """Call the function's ``close``, if it was opened."""
        function, self._function, self._registry, self._work = self._function, None, None, None
        if function is not None:
            self._call("close", function.close)

    def _run(self, batch: Batch, clock: Callable[[], int]) -> BatchResult:
        started = clock()
        log = self._log
        old = log.meta(self._where)
        if old is not None:
            check_group(old, self._spec, self.index)
        replayed, rebuilt = self._replica.catch_up(log, old, self._where)
        # Entries that were just loaded are committed with this batch, or not at all.
        known = None if self._loaded else old
        exports = known is None or self.is_export_due(batch.processing_time, starts_run=batch.starts_run)
        records_exported = self._export(known) if exports else 0
        meta = self._next_meta(old, batch)
        if self._writer is None or self._loaded:
            meta.exported, meta.waiting = 0, []
        elif old is not None:
            meta.exported = old.commit if exports else old.exported
            meta.waiting = [] if exports else old.unexported()
        if old is not None and old.ended:
            return self._finished(batch, old)
        self._check_keys(meta, batch)
        migrated, dropped = (None, {}) if old is None else self._migrated(meta)
        work, registry = self._open(meta)
        scope = self._scope
        before = MIN_TIMESTAMP if old is None else old.processing_time
        scope.begin(meta.commit, meta.watermark, max(batch.processing_time, meta.processing_time), before)
        if self._spec.ingests:
            batch = stamped(batch, self._spec, scope.processing_time)
        if old is not None:
            batch.initial = None
        changes = Changes(self._replica.store, spells_out=self._writer is not None)
        reached, idle_at, idle, held_by = self._batch_watermark(meta, before, batch)
        done = work.run(batch, reached, changes)
        registry.check_attributes(self._function)
        # The last read of the local store except for the cleaning: if it fails, the log is unchanged.
        meta.hash = self._hash(meta.hash, changes)
        if migrated is not None:
            changes.follow(migrated)
        counters = meta.counters
        for name, amount in {
            **done.counters,
            "batches": 1,
            "rows_bad": batch.rows_bad,
            "entries_expired": changes.expired,
            "versions_dropped": changes.versions_dropped,
            "segments_replayed": replayed,
            "entries_replayed": self._replica.entries_replayed,
            "stores_rebuilt": int(rebuilt),
            "stores_opened": self._replica.stores_opened,
            "records_exported": records_exported,
            "timers_pending": changes.timers,
            "live_entries": changes.entries,
            "live_bytes": changes.bytes,
        }.items():
            counters[name] = counters.get(name, 0) + amount
        counters["store_copies"] = self._replica.copies
        self._replica.stores_opened = 0
        meta.watermark = scope.watermark
        meta.processing_time = scope.processing_time
        meta.states, meta.last_state_id = registry.described() | dropped, registry.last_id
        if meta.waiting and meta.waiting[-1].states == meta.states:
            meta.waiting[-1] = attrs.evolve(meta.waiting[-1], states=None)
        staged = self._commit(meta, changes, started, clock, migrated=migrated is not None)
        changed = changes.delta != Delta() or any(commit.records for commit in meta.waiting)
        self._idle_at = idle_at
        due = min((each for each in (done.due if meta.live else None, idle_at) if each is not None), default=None)
        return BatchResult(
            done.main,
            done.side,
            scope.watermark,
            counters,
            meta.commit,
            changed,
            due,
            staged,
            idle,
            meta.export_at(self._export_interval),
            meta.commit - meta.waiting[0].sequence if meta.waiting else 0,
            held_by,
        )

    def _commit(
        self, meta: GroupMeta, changes: Changes, started: int, clock: Callable[[], int], *, migrated: bool
    ) -> str:
        """Append the segment, clean the oldest rows and write the meta record. Returns the attempt if it is staged."""
        log = self._log
        counts = {name: meta.counters[name] for name in ("live_entries", "timers_pending")}
        if min(counts.values()) < 0:
            raise LocalStoreError(f"{self._where}: the local store is damaged: it leads to the counts {counts}")
        rows_before, before = meta.last_row, meta.head
        blocks: list[Any] = []
        rows: list[bytes] = []
        if not log.keeps:
            # A segment without content only advances the local store.
            rows = [b""] if changes.delta != Delta() else []
        else:
            blocks = list(changes.delta.log_blocks())
            size = sum(size for size, _ in blocks)
            reappended = clean(log, meta, self._replica.store, changes.delta, size, self._where)
            # A batch without changes writes no row, only its clocks and counters.
            if blocks or reappended.records:
                rows = encode_rows(meta.commit, reappended.log_blocks(), blocks, meta.attempt, before)
        if rows:
            meta.head = meta.attempt
        meta.commit_rows = len(rows)
        meta.commit_records = sum(records_of(exported(block)) for _, block in blocks)
        appended: dict[int, bytes] = {}
        for record in rows:
            meta.last_row += 1
            appended[meta.last_row] = record
            meta.log_bytes += len(record)
            log.append(meta.last_row, record)
        meta.counters["log_bytes"] = meta.log_bytes
        meta.counters["log_rows"] = meta.last_row - meta.first_row + 1 if log.keeps else 0
        meta.counters["busy_microseconds"] = meta.counters.get("busy_microseconds", 0) + (clock() - started) // 1000
        log.write_meta(encode_meta(meta))
        self._loaded = False
        position = position_of(meta.log_id, before) if not migrated else _position_of_migrated(meta)
        written = [block for _, block in blocks]
        self._replica.expect(
            Pending(meta.attempt, position, rows_before, changes.delta, written), appended if log.keeps else {}
        )
        return stage(meta, self._writer, written) if self._stages else ""

    def _migrated(self, meta: GroupMeta) -> tuple[Changes | None, dict[str, Any]]:
        """Apply the migration of the function's class to the local store, and to the states and hash in a meta record.

        Until the batch is committed, the store has a position that no log has. If it is not, the store is rebuilt.

        Returns:
            The changes, which the batch commits, and the descriptions of the dropped states, which its commit still has
            for readers of the changes; ``None`` if no entry changes.

        Raises:
            StateSchemaChanged: A value cannot be converted.
        """
        if self._loaded or self._spec.function.migration is None:
            return None, {}
        migrate = class_migration(self._spec.function, meta.states)
        before, store, migration = meta.states, self._replica.store, Migration(migrate, meta.states)
        meta.states = migration.states
        changes = Changes(store, spells_out=self._writer is not None)
        migration.write(store, changes)
        if changes.delta == Delta():
            return None, {}
        _log.info("%s: the state is migrated in place: %s", self._where, migrate)
        # An attempt that failed may have opened the function with the states after the migration.
        self.close()
        if meta.hash:
            meta.hash = self._hash(meta.hash, changes)
        store.apply(_position_of_migrated(meta), meta.last_row, changes.delta.entries, changes.delta.tables)
        return changes, {name: before[name] for name in migrate.dropped}

    def _hash(self, before: str, changes: Changes) -> str:
        """Return the hash of the live entries after the batch; nothing without a changelog."""
        if self._writer is None:
            return ""
        live = LiveHash(self._replica.store, hash_of_text(before, self._where) if before else 0)
        live.add(changes.delta, changes.replaced)
        if live.live != changes.entries + changes.timers:
            raise LocalStoreError(f"{self._where}: the local store is damaged: it answered differently in one batch")
        return hash_text(live.value)

    def _export(self, meta: GroupMeta | None) -> int:
        """Export the commits that the changelog lacks, if there is one. Returns the number of their records."""
        writer, replica = self._writer, self._replica
        if writer is None:
            return 0
        if meta is None:
            check_new(writer, self._where)
            return 0
        # The earlier batches may have had no changelog.
        meta.hash = meta.hash or checked_hash(replica.store, meta)
        blocks = replica.take_committed(meta)
        export(self._log, meta, writer, lambda: replica.store, self._where, blocks)
        last = writer.last()
        # Also if an earlier attempt has exported it.
        if last is None or last.snapshot:
            return 0 if last is None else last.records
        return last.records + sum(commit.records for commit in meta.waiting)

    def _next_meta(self, old: GroupMeta | None, batch: Batch) -> GroupMeta:
        """Return the next meta record, as far as it is known before the batch runs."""
        spec = self._spec
        if old is None:
            meta = GroupMeta(self._log_id, spec.name, self.index, spec.parallelism)
        else:
            meta = attrs.evolve(old, counters=dict(old.counters))
        meta.counters.setdefault("batches_held", 0)
        # A batch that reached no key group also has an id.
        number = meta.commit + 1 if batch.id is None else max(meta.commit + 1, sequence_of(batch.id))
        meta.skipped, meta.commit = number - meta.commit - 1, number
        meta.previous, meta.attempt = meta.attempt, random_id()
        meta.ended = meta.ended or batch.end_of_input
        return meta

    def _batch_watermark(self, meta: GroupMeta, before: int, batch: Batch) -> tuple[int, int | None, bool, int | None]:
        """Return the watermark after a batch, when idleness advances it, whether all inputs are idle, and the holder.

        Args:
            meta: The next meta record, which gets the channels and the number of held batches.
            before: Processing time of the previous batch.
            batch: The batch.
        """
        watermark, strategies = meta.watermark, self._spec.strategies
        if batch.end_of_input:
            meta.counters["batches_held"] = 0
            return MAX_TIMESTAMP, None, False, None
        if batch.watermark is not None:
            return max(watermark, batch.watermark), None, False, None
        if batch.upstream or counts_channels(strategies):
            now = self._scope.processing_time
            elapsed = 0 if batch.starts_run or not meta.previous else now - before
            after = advance(strategies, meta.channels, batch.highest, watermark, elapsed, batch.upstream)
            meta.channels = after.channels
            held_by = after.held_by if after.watermark == watermark else None
            if held_by is None:
                meta.counters["batches_held"] = 0
            elif self.index == 0 and (batch.highest or batch.upstream):
                meta.counters["batches_held"] += 1
            idle_at = None if after.idle_in_ms is None else now + after.idle_in_ms
            return after.watermark, idle_at, after.idle, held_by
        if batch.highest and self._spec.delay_ms is not None:
            watermark = max(watermark, max(batch.highest.values()) - self._spec.delay_ms - 1)
        return watermark, None, False, None

    def _open(self, meta: GroupMeta) -> tuple[Work, Registry]:
        """Return the opened function and its states; opens a copy of it at the first batch of this task."""
        if self._work is None or self._registry is None:
            spec, scope = self._spec, self._scope
            function: Any = copy.copy(spec.function)
            registry = Registry(spec, self.index, scope, meta.states, meta.last_state_id)
            registry.bind_declared(function)
            self._call("open", lambda: function.open(registry))
            registry.check()
            registry.watch(function)
            self._function, self._registry = function, registry
            if isinstance(function, VectorizedFunction):
                self._work = VectorizedWork(spec, function, registry, scope, self._where)
            else:
                self._work = RowWork(spec, function, registry, scope)
        return self._work, self._registry

    def _finished(self, batch: Batch, meta: GroupMeta) -> BatchResult:
        """Return the result of a batch after the end of input, which may have no rows."""
        rows = sum(len(keys) for keys, *_ in (*batch.chunks(), *batch.broadcast()))
        rows += sum(table.num_rows for table in (batch.table(), batch.table2()) if table is not None)
        if rows:
            raise CheckpointFinished(
                f"{self._where}: the checkpoint was drained, its watermark is at +inf, and {rows} new rows came; "
                "start from a new checkpoint"
            )
        main = EmittedTables() if isinstance(self._spec.function, VectorizedFunction) else Emitted()
        return BatchResult(main, {}, meta.watermark, meta.counters, meta.commit)

    def _check_keys(self, meta: GroupMeta, batch: Batch) -> None:
        """Check the keys of a batch against those of the commits before, and record them."""
        spec, columns = self._spec, list(self._spec.keys)
        where = f"operator {spec.name!r}"
        if meta.key_columns and columns and meta.key_columns != columns:
            raise KeysChanged(
                f"{where}: the state is keyed by {', '.join(meta.key_columns)}, the query by {', '.join(columns)}; use "
                f"key_by({', '.join(map(repr, meta.key_columns))}) to keep it, or start from a new checkpoint"
            )
        if not meta.key_type:
            known = stored_key(self._replica.store, meta.states) if batch.key_type else None
            meta.key_type = batch.key_type if known is None else key_type(known)
        meta.key_columns = columns
        if batch.key_type and meta.key_type != batch.key_type:
            raise KeysChanged(
                f"{where}: the keys of the state are of type {meta.key_type}, those of the rows of type "
                f"{batch.key_type}, so they are different keys; convert them to {meta.key_type}, or start from a new "
                "checkpoint"
            )

    def _call(self, name: str, method: Callable[[], object]) -> None:
        """Call ``open`` or ``close`` of the function."""
        try:
            method()
        except KeyedError:
            raise
        except Exception as error:
            raise UserFunctionError(f"{self._where}, {name}: {type(error).__name__}: {error}") from error
