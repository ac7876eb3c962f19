"""One keyed operator in the local runtime: its key groups, and the routing of rows to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from keyed.base.arguments import MIN_TIMESTAMP
from keyed.base.closing import closing_on_error
from keyed.changelog.model import close_positions, export_interval, put_positions
from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import STORED_AS_THEY_ARE
from keyed.engine.batch import Batch, BatchResult, Chunk, Emitted, EmittedTables, InitialEntry, Upstream, merged_chunks
from keyed.engine.group_log import UnreadLog
from keyed.engine.key_checks import KeyTypes, check_table, key_of_other_group, refused
from keyed.engine.key_group import KeyGroup, check_group
from keyed.engine.replica import Loader, Replica
from keyed.errors import KeyTypeError
from keyed.job.functions import VectorizedFunction
from keyed.job.graph import Port, Stage
from keyed.job.results import RestoreProgress
from keyed.recovery.cut import Restoration, keep_origin
from keyed.recovery.loading import load
from keyed.recovery.local_checkpoint import check_changelog
from keyed.runtimes.garbage import Collector
from keyed.runtimes.initial_frames import by_group
from keyed.runtimes.local.local_rows import (
    SourceRows,
    channels_of,
    emitted_rows,
    key_getter,
    output_after_steps,
    partitioned,
    transformed_rows,
)
from keyed.stores import MemoryStore
from keyed.stores.commit_store import BufferedCommits
from keyed.stores.opening import open_store

#: Number of keys whose group is cached.
_ROUTES = 1_000_000


class LocalOperator:
    """The key groups of one stage.

    Args:
        stage: The stage.
        commits: The store of the groups' logs.
        folder: The folder of local stores on disk.
        collector: Bounds cyclic garbage while a batch runs.
        last: True if no operator follows.
        keeps: Keep the logs in any case; otherwise they are kept only if the operator itself reads them again.
    """

    def __init__(
        self, stage: Stage, commits: BufferedCommits, folder: Path, collector: Collector, *, last: bool, keeps: bool
    ) -> None:
        self.stage = stage
        self.spec = stage.spec(stage.parallelism or 1, output_timestamps=not last)
        self._collector = collector
        self._key_types = KeyTypes(stage.name)
        #: The Python type of the keys, once all keys of a batch had it.
        self._one_kind: type | None = None
        self._routes: dict[Any, int] = {}
        self._closing = ExitStack()
        self.groups = []
        changelog = stage.changelog
        is_read = keeps or changelog is not None or stage.store != "memory"
        with closing_on_error(self._closing):
            for index in range(self.spec.parallelism):
                log = commits.group_log(stage.name, index) if is_read else UnreadLog()
                where = f"operator {stage.name!r}, key group {index}"
                if (meta := log.meta(where)) is not None:
                    check_group(meta, self.spec, index)
                if changelog is not None and not index:
                    changelog.prepare(stage.name, self.spec.parallelism)
                    self._closing.callback(close_positions, changelog)
                store: Any = MemoryStore()
                if stage.store != "memory":
                    store = open_store(stage.store, folder / stage.name / str(index))
                self._closing.callback(store.close)
                writer = None
                if changelog is not None:
                    writer = changelog.writer(index)
                    self._closing.callback(writer.close)
                    if meta is not None:
                        check_changelog(writer, meta, where)
                self.groups.append(KeyGroup(self.spec, index, log, Replica(store), writer))
                self._closing.callback(self.groups[-1].close)
        #: Number of batches whose positions are logged.
        self.logged = 0
        #: Number of batches after which the changelog was flushed.
        self.flushed = -1
        self._initial: list[Callable[[], Iterable[InitialEntry]] | None] = [None] * self.spec.parallelism
        self._has_run = False
        self.metrics: dict[str, int] = {}
        self._times_broadcast = any(each.is_broadcast and each.event_time for each in stage.inputs)
        self._keys_of = [key_getter(each.keys, stage.name) for each in stage.inputs]
        self._vectorized = isinstance(stage.function, VectorizedFunction)
        #: The main output of each key group in the last batch, for an operator that is chained to this one.
        self.emitted: list[Emitted | EmittedTables] = []

    def load(
        self,
        restoration: Restoration | None,
        sequence: int,
        on_progress: Callable[[RestoreProgress], object],
        written: Callable[[], object],
    ) -> list[Loader]:
        """Load the key groups, which have no state yet, from a changelog.

        Args:
            restoration: The restore of the operator. An operator that is new in the query starts empty, but counts its
                commits from the same batch as the others.
            sequence: Number of that batch.
            on_progress: Called while the changelog is read.
            written: Called after rows were written that may be committed separately.

        Returns:
            Their loaders: the meta records have to be written and committed together with all others.
        """
        if restoration is not None:
            if self.stage.changelog is not None:
                keep_origin(self.stage.changelog, restoration)
            return load(restoration, self.spec, self.groups, on_progress, written)
        loaders = [group.loader(sequence, {}) for group in self.groups]
        for loader in loaders:
            loader.write_log()
        return loaders

    def begin(self) -> None:
        """Start a new query with the initial state.

        Raises:
            DefinitionError: The initial state is not a frame, or has no columns for the key.
        """
        initial, spec = self.stage.initial_state, self.spec
        if initial is not None:
            self._initial = [*by_group(initial, spec.function, spec.keys, spec.name, spec.parallelism)]

    def check_states(self) -> None:
        """Check the states of a checkpoint against the function.

        Raises:
            StateSchemaChanged: A state does not fit its declaration.
        """
        checked: list[dict[str, Any]] = []
        for group in self.groups:
            group.check_states(checked)

    def export_positions(self, positions: Sequence[tuple[int, bytes]]) -> None:
        """Log positions of the query, each after a number of batches, before these batches are exported."""
        changelog = self.stage.changelog
        new = [each for each in positions if each[0] > self.logged]
        if changelog is not None and new:
            put_positions(changelog, new)
            self.logged = new[-1][0]

    def is_export_due(self, processing_time: int) -> bool:
        """Return true if a batch at a time exports the batches before it."""
        if not export_interval(self.stage.changelog):
            return True
        starts_run = not self._has_run
        return any(group.is_export_due(processing_time, starts_run=starts_run) for group in self.groups)

    def is_due(self, processing_time: int) -> bool:
        """Return true if there is work without rows: a processing-time timer is due."""
        return any(group.is_due(processing_time) for group in self.groups)

    def counters(self) -> dict[str, int]:
        """Return the counters after the last batch, also of an earlier run, summed over the key groups."""
        return self.metrics or _summed(group.counters() for group in self.groups)

    def flush(self, batches: int) -> None:
        """Export the last one of a number of batches, and those that wait for their export."""
        if self.stage.changelog is not None and self.flushed != batches:
            for group in self.groups:
                group.flush()
        self.flushed = batches

    def rows_after(self, number: int, output: Port, emitted: Emitted | EmittedTables) -> SourceRows:
        """Return an output of an upstream stage as the rows of an input: tuples and dictionaries become rows."""
        timed = self.spec.event_time
        read = self.stage.inputs[number]
        if read.steps:
            after = output_after_steps(emitted, output, read.steps, self.stage.name, timed=timed)
            return transformed_rows(read, after, self.stage.name, vectorized=self._vectorized)
        if self._vectorized:
            from keyed.runtimes.local.table_rows import output_rows

            return output_rows(emitted, output, timed=timed)
        values = emitted_rows(emitted, output)
        return SourceRows.of(list(map(self._keys_of[number], values)), emitted.timestamps() if timed else None, values)

    def rows_forwarded(self, before: LocalOperator) -> list[SourceRows]:
        """Return the rows that the operator before this one in the chain has emitted, by key group."""
        output = Port(before.stage, None)
        return [self.rows_after(0, output, emitted) for emitted in before.emitted]

    def run(
        self,
        inputs: Sequence[SourceRows],
        forwarded: list[SourceRows],
        *,
        upstream: Sequence[Upstream],
        processing_time: int,
        end_of_input: bool,
    ) -> BatchResult:
        """Run a batch over all key groups.

        Args:
            inputs: The rows of each input; none if it is chained to the operator before it.
            forwarded: The rows that the operator before it has emitted, by key group; none if it is not chained.
            upstream: Watermarks and statuses of the operators whose outputs are read.
            processing_time: Its time, milliseconds.
            end_of_input: True if the input ends with it.

        Returns:
            The outputs of the groups one after the other, the least watermark, and the summed counters.
        """
        results = []
        rows_by_group: list[dict[str, Any]]
        rows_combined = 0
        sides: tuple[list[SourceRows], list[SourceRows]] = ([], [])
        for each, part in zip(() if forwarded else self.stage.inputs, inputs, strict=True):
            sides[each.side if self._vectorized else each.is_broadcast].append(part)
        if forwarded:
            rows_by_group, key_type, rows_combined = self._forwarded(forwarded)
        elif self._vectorized:
            from keyed.runtimes.local.table_rows import routed

            tables, type_, rows_combined = routed(self.spec, sides[0], self.spec.keys)
            tables2, type2, _ = routed(self.spec, sides[1], self.spec.keys2)
            rows_by_group = [{"table": one, "table2": two} for one, two in zip(tables, tables2, strict=True)]
            key_type = self._one_type({type_, type2})
        else:
            keyed, broadcast = sides
            chunks_by_group = self._merged(keyed) if len(keyed) > 1 else self._route(keyed[0])
            rows_by_group = [{"chunks": chunks, "broadcast": self._broadcast(broadcast)} for chunks in chunks_by_group]
            key_type = self._one_type({each.key_type for each in keyed})
        channels, starts_run, self._has_run = channels_of(inputs), not self._has_run, True
        initial, self._initial = self._initial, [None] * len(self.groups)
        for group, rows_of_group, entries in zip(self.groups, rows_by_group, initial, strict=True):
            is_first = group is self.groups[0]
            batch = Batch(
                **rows_of_group,
                highest=channels,
                starts_run=starts_run,
                upstream=upstream,
                processing_time=processing_time,
                end_of_input=end_of_input,
                key_type=key_type,
                rows_bad=sum(len(each.bad) + each.left_out for each in inputs) if is_first else 0,
                rows_combined=rows_combined if is_first else 0,
                initial=entries,
            )
            batch.chunks = self._collector.within(batch.chunks)
            results.append(group.run(batch, perf_counter_ns))
        self.emitted = [result.main for result in results]
        merged = merge(results)
        self.metrics = merged.metrics
        return merged

    def of_one_type(self, inputs: list[SourceRows]) -> list[SourceRows]:
        """Return the rows of each input; rows with keys of another type are bad if the stream diverts bad rows."""
        inputs = [*inputs]
        for number, read in self.stage.source_inputs.items():
            if read.source.on_bad_row is None or any(step.kind != "filter" for step in read.steps):
                continue
            each = inputs[number]
            # A column of a table has one type; a query with another type is refused.
            if each.table is None and not each.key_type and not read.is_broadcast:
                fitting = each.without(self._other_types(each))
                if self._vectorized:
                    from keyed.runtimes.local.table_rows import misfits

                    elements = [element for _, _, elements, _ in fitting.chunks() for element in elements]
                    fitting = fitting.without(misfits(elements))
                if fitting is not each and read.steps:
                    # The source's rows have the timestamps and partitions.
                    fitting.highest, fitting.by_partition = each.highest, each.by_partition
                    inputs[number] = fitting
                elif fitting is not each:
                    inputs[number] = partitioned(read.source, fitting)
        return inputs

    def _other_types(self, rows: SourceRows) -> dict[int, str]:
        """Return the positions of keys whose type differs from the state's keys or the first key, with the reason."""
        keys = [key for keys, *_ in rows.chunks() for key in keys]
        kinds = set(map(type, keys))
        if kinds == {self._one_kind}:
            return {}
        committed = self.groups[0].key_type()
        misfit = self._key_types.misfit
        reasons = {index: why for index, key in enumerate(keys) if (why := self._nested(key) or misfit(key, committed))}
        if not reasons and len(kinds) == 1 and tuple not in kinds:
            (self._one_kind,) = kinds
        return reasons

    def _nested(self, key: Any) -> str | None:
        """Return the reason why a key cannot be in columns; ``None`` if it can. A tuple in a column becomes a list."""
        parts = (key,) if len(self.spec.keys) == 1 else key
        if self._vectorized and any(isinstance(part, tuple) for part in parts):
            return "key: it is a tuple, which a column holds as a list; give each part a column of its own"
        return None

    def _forwarded(self, groups: list[SourceRows]) -> tuple[list[dict[str, Any]], str, int]:
        """Return the input of each key group from the rows that the same group of the previous operator has emitted.

        Returns:
            The rows, the type of the keys, and the number of rows that combining has saved.

        Raises:
            RowError: A row has a key of another key group.
        """
        spec = self.spec
        (before,) = self.stage.waits_for
        if not self._vectorized:
            rows = [{"chunks": self._checked(each, group, before)} for group, each in enumerate(groups)]
            return rows, self._key_types.name, 0
        from keyed.runtimes.local.table_rows import routed

        tables, types, combined = [], [""], 0
        for group, each in enumerate(groups):
            if each.table is not None:
                check_table(each.table(), spec, before, group)
            parts, type_, fewer = routed(spec, [each], spec.keys)
            tables.append({"table": parts[group]})
            types.append(type_)
            combined += fewer
        return tables, self._one_type(set(types)), combined

    def _checked(self, rows: SourceRows, group: int, before: str) -> Callable[[], Iterable[Chunk]]:
        """Return the chunks of a key group, whose keys are checked."""
        ((keys, timestamps, values, _),) = rows.chunks()
        values = list(values)
        if not values:
            return tuple
        check, spec = self._key_types.check, self.spec
        if len(kinds := set(map(type, keys))) == 1 and kinds <= STORED_AS_THEY_ARE:
            check(keys[0], values[0])
        else:
            keys = list(map(check, keys, values))
        if spec.parallelism > 1:
            foreign = key_of_other_group(dict.fromkeys(keys), spec.parallelism, group)
            if foreign is not None:
                raise refused(foreign, values[list(keys).index(foreign)], spec, before, group)
        if timestamps is None or not spec.by_time:
            return lambda: ((keys, timestamps, values, None),)
        return self._ordered(list(zip(keys, timestamps, values, strict=True)), has_time=True)

    def _broadcast(self, rows: list[SourceRows]) -> Callable[[], Iterable[Chunk]]:
        """Return the chunks for all groups, in the order in which they run."""
        if not rows:
            return tuple
        parts = []
        for each in rows:
            chunks = each.chunks
            if not each.ordered:
                chunks = self._ordered(
                    [
                        row
                        for keys, timestamps, values, _ in chunks()
                        for row in zip(keys, timestamps or repeat(None), values, strict=False)
                    ],
                    has_time=self._times_broadcast,
                )
            parts.append(chunks)
        by_time = self._times_broadcast and self.spec.by_time
        return lambda: merged_chunks([(chunks(), None) for chunks in parts], by_time=by_time)

    def _merged(self, rows: list[SourceRows]) -> list[Callable[[], Iterable[Chunk]]]:
        """Return the chunks of each group, merged from those of the inputs."""
        by_time = self.spec.event_time and self.spec.by_time
        inputs = [each for each in self.stage.inputs if not each.is_broadcast]
        sides = [each.side for each in inputs] if any(each.side for each in inputs) else [None] * len(inputs)
        routed = [self._route(each) for each in rows]
        right_first = getattr(self.stage.function, "right_first", False)

        def chunks(group: int) -> Iterable[Chunk]:
            parts = [(each[group](), side) for each, side in zip(routed, sides, strict=True)]
            return merged_chunks(parts, by_time=by_time, right_first=right_first)

        return [partial(chunks, group) for group in range(len(self.groups))]

    def _one_type(self, types: set[str]) -> str:
        """Return the type of the keys of a routed batch, from the types of its inputs.

        Raises:
            KeyTypeError: The inputs have keys of different types.
        """
        types = (types | {self._key_types.name}) - {""}
        if len(types) > 1:
            raise KeyTypeError(
                f"operator {self.stage.name!r}: the streams that it reads have keys of types "
                f"{' and '.join(sorted(types))}; convert them to one type"
            )
        return next(iter(types), "")

    def _route(self, rows: SourceRows) -> list[Callable[[], Iterable[Chunk]]]:
        """Return the chunks of each group in the order in which they run."""
        parallelism = len(self.groups)
        if parallelism == 1 and rows.ordered:
            return [rows.chunks]
        routed: list[list[tuple[Any, Any, Any]]] = [[] for _ in range(parallelism)]
        check, route = self._key_types.check, self._group
        has_time = False
        for keys, timestamps, values, _ in rows.chunks():
            has_time = timestamps is not None
            for key, timestamp, value in zip(keys, timestamps or repeat(None), values, strict=False):
                stored = check(key, value)
                routed[route(stored)].append((stored, timestamp, value))
        return [self._ordered(chosen, has_time=has_time) for chosen in routed]

    def _group(self, key: Any) -> int:
        """Return the key group of a key."""
        if len(self.groups) == 1:
            return 0
        index = self._routes.get(key)
        if index is None:
            if len(self._routes) > _ROUTES:
                self._routes.clear()
            index = self._routes[key] = group_of(key_hash(key), len(self.groups))
        return index

    def _ordered(self, rows: list[tuple[Any, Any, Any]], *, has_time: bool) -> Callable[[], Iterable[Chunk]]:
        if not rows:
            return tuple
        if has_time and self.spec.by_time:
            # Rows without a timestamp come from processing-time timers upstream; they run first.
            rows.sort(key=lambda row: MIN_TIMESTAMP - 1 if row[1] is None else row[1])
        keys, timestamps, values = map(list, zip(*rows, strict=True))
        return lambda: ((keys, timestamps if has_time else None, values, None),)

    def close(self) -> None:
        """Close the function in each group, the local stores and the changelog."""
        self._closing.close()


def merge(results: list[BatchResult]) -> BatchResult:
    """Return the results of an operator's key groups as one."""
    if len(results) == 1:
        return results[0]
    main, side = type(results[0].main)(), dict[str, Any]()
    for result in results:
        main.extend(result.main)  # type: ignore[arg-type]
        for tag, emitted in result.side.items():
            side.setdefault(tag, type(emitted)()).extend(emitted)
    watermark = min(result.watermark for result in results)
    idle = all(result.idle for result in results)
    metrics = _summed(result.metrics for result in results)
    return BatchResult(main, side, watermark, metrics, idle=idle, held_by=results[0].held_by)


def _summed(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the sums of counters by name."""
    sums: dict[str, int] = {}
    for group in counters:
        for name, value in group.items():
            sums[name] = sums.get(name, 0) + value
    return sums
