"""A test harness for one keyed function, with clocks that only the test moves.

The model is Flink's ``KeyedOneInputStreamOperatorTestHarness``; the engine, the log and the local stores are the real
ones.

The elements and tables of a test are converted to the parts of a micro-batch for each key group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import attrs

from keyed.arrow.read import column_values
from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP, Shown, clock_text, shown, shows_options, time_text
from keyed.base.closing import Closeable
from keyed.changelog.model import Changelog
from keyed.changelog.objects.object_changelog import changelog_at
from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import encode_key, key_type
from keyed.engine.batch import Batch, ChannelId, Chunk
from keyed.engine.key_checks import KeyTypes
from keyed.errors import DefinitionError, TimestampError
from keyed.job.context import OutputTag
from keyed.job.functions import (
    TIMESTAMP_COLUMN,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OperatorSpec,
    Order,
    Store,
    check_function,
    check_order,
    check_store,
    combines,
    takes_two,
)
from keyed.job.global_tables import GlobalTable
from keyed.job.restoring import RestorePoint
from keyed.job.state import MapState
from keyed.job.watermarks import WatermarkStrategy, strategy_of
from keyed.runtimes.initial_frames import by_group
from keyed.runtimes.local.local_rows import element_of
from keyed.testing.function_options import HarnessOptions, Key, PendingOutputs, Record, has_sides, key_by, operator_of
from keyed.testing.group_set import Clocks, CommittedState, GroupSet, changelog_of
from keyed.vectorized import VectorizedCoFunction, VectorizedFunction

if TYPE_CHECKING:
    import pyarrow as pa

#: An element, its timestamp and its side.
Element = tuple[Any, int | None, int]


class MicroBatches:
    """Cuts micro-batches by key group.

    Args:
        name: Name of the operator.
        keys: Functions from an element of each side to its key.
        by_time: Whether the rows of a micro-batch are sorted by timestamp, stable by arrival.
    """

    def __init__(self, name: str, keys: Sequence[Callable[[Any], Any]], *, by_time: bool) -> None:
        self._key_types = KeyTypes(name)
        self._keys = keys
        # A batch with a row without a timestamp keeps the order of arrival, so the engine gets no order.
        self._by_time = by_time

    def of_rows(self, spec: OperatorSpec, rows: list[Element], processing_time: int) -> list[Batch]:
        """Return the micro-batch of elements, by key group; broadcast elements go to all."""
        if getattr(spec.function, "right_first", False):
            rows = sorted(rows, key=lambda row: -row[2])
        if self._by_time and all(timestamp is not None for _, timestamp, _ in rows):
            rows = sorted(rows, key=lambda row: row[1] or 0)
        routed: list[list[tuple[Any, ...]]] = [[] for _ in range(spec.parallelism)]
        highest: dict[ChannelId, int] = {}
        for _, timestamp, side in rows:
            if timestamp is not None:
                highest[side, ""] = max(timestamp, highest.get((side, ""), timestamp))
        broadcast: list[Chunk] = []
        if spec.broadcast:
            broadcast = [([None], [timestamp], [value], None) for value, timestamp, side in rows if side]
            rows = [row for row in rows if not row[2]]
        for value, timestamp, side in rows:
            key = self._key_types.check(self._keys[side](value), value)
            index = group_of(key_hash(key), len(routed)) if len(routed) > 1 else 0
            routed[index].append((key, timestamp, value, side))
        batches = self.without_rows(spec, processing_time)
        for batch, group in zip(batches, routed, strict=True):
            batch.chunks, batch.broadcast, batch.highest = partial(_chunks, group), lambda: broadcast, highest
        return batches

    def of_tables(self, spec: OperatorSpec, tables: list[pa.Table | None], processing_time: int) -> list[Batch]:
        """Return the micro-batch of the tables of each side, by key group.

        Raises:
            DefinitionError: A key column is missing.
        """
        from keyed.table_state.batches import check_keys, combined, first_key, group_indices, in_time_order

        function, name = spec.function, spec.name
        batches = self.without_rows(spec, processing_time)
        highest: dict[ChannelId, int] = {}
        count = 0
        for side, (table, keys) in enumerate(zip(tables, (spec.keys, spec.keys2), strict=False)):
            if table is None or not table.num_rows:
                continue
            check_keys(table, keys, name)
            if TIMESTAMP_COLUMN in table.column_names:
                highest[side, ""] = max(column_values(table[TIMESTAMP_COLUMN]))
            count += table.num_rows
            if combines(function):
                table = combined(function, table, keys, name)
                count -= table.num_rows
            type_ = key_type(first_key(table, keys)) if table.num_rows else ""
            groups = group_indices(table, keys, len(batches))
            for index, batch in enumerate(batches):
                part = table.filter(groups == index)
                batch.key_type = type_
                rows = partial(in_time_order if self._by_time else _itself, part)
                setattr(batch, "table2" if side else "table", rows)
        for batch in batches:
            batch.highest = highest
        batches[0].rows_combined = count if combines(function) else 0
        return batches

    def without_rows(
        self, spec: OperatorSpec, processing_time: int, *, watermark: int | None = None, end: bool = False
    ) -> list[Batch]:
        """Return a micro-batch that moves the clocks, or ends the input."""
        clocks: Any = {"watermark": watermark, "processing_time": processing_time, "end_of_input": end}
        return [Batch(**clocks, key_type=self._key_types.name) for _ in range(spec.parallelism)]


def _chunks(rows: list[tuple[Any, ...]]) -> list[Chunk]:
    """Return the keys, timestamps, elements and sides of rows as one chunk."""
    if not rows:
        return []
    keys, timestamps, values, sides = zip(*rows, strict=True)
    return [(keys, timestamps, values, sides if any(sides) else None)]


def _itself(table: pa.Table) -> pa.Table:
    return table


_NO_TIME = "is not an int in the range of int64; give milliseconds since the epoch"


class DrivenFunction(CommittedState, Closeable):
    """Runs a function over elements and clocks, one commit per call, on any set of key groups.

    `keyed.testing.KeyedTestHarness` drives healthy key groups, the simulator of the tests faulty ones.

    Args:
        groups: The key groups; they are closed with this object.
        key: Key of an element, as in `keyed.testing.KeyedTestHarness`.
        key2: The same for the second side.
        by_time: Whether the rows of a `batch` are sorted by timestamp.
        global_tables: Global tables that the function reads.
    """

    def __init__(
        self,
        groups: GroupSet,
        key: Key = None,
        key2: Key = None,
        *,
        by_time: bool = True,
        global_tables: Sequence[GlobalTable] = (),
    ) -> None:
        super().__init__(groups)
        function = groups.spec.function
        keys = [key_by(function, each) for each in (key, key if key2 is None else key2)]
        self._batches = MicroBatches(groups.spec.name, keys, by_time=by_time)
        self._outputs = PendingOutputs()
        self._global_tables = list(global_tables)
        self._watermark = MIN_TIMESTAMP
        self._watermarks = [MIN_TIMESTAMP, MIN_TIMESTAMP]
        self._processing_time = 0
        self._collecting: list[Element] | None = None

    def process(self, value: Any, timestamp: int | None = None) -> None:
        """Process one element at once and commit. Without a strategy the watermark does not move.

        Args:
            value: The element.
            timestamp: Its event timestamp in milliseconds.

        Raises:
            TimestampError: The timestamp is not an int in the range of int64.
        """
        self._process(value, timestamp, "process", (KeyedProcessFunction, KeyedBroadcastProcessFunction))

    def process_broadcast_element(self, value: Any, timestamp: int | None = None) -> None:
        """As `process`, for a broadcast element, in each key group."""
        self._process(value, timestamp, "process_broadcast_element", KeyedBroadcastProcessFunction, side=1)

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """As `process`, for the first side."""
        self._process(value, timestamp, "process_element1", KeyedCoProcessFunction)

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """As `process`, for the second side."""
        self._process(value, timestamp, "process_element2", KeyedCoProcessFunction, side=1)

    def _process(
        self, value: Any, timestamp: int | None, call: str, kind: type | tuple[type, ...], side: int = 0
    ) -> None:
        function = self._groups.spec.function
        if not isinstance(function, kind):
            calls = "process_batch" if isinstance(function, VectorizedFunction) else "process"
            if isinstance(function, KeyedCoProcessFunction):
                calls = "process_element1 and process_element2"
            elif isinstance(function, KeyedBroadcastProcessFunction):
                calls = "process and process_broadcast_element"
            raise DefinitionError(f"{call}: for {type(function).__name__} use {calls}")
        if timestamp is not None and not _is_time(timestamp):
            raise TimestampError(f"timestamp {timestamp!r} of element {value!r} {_NO_TIME}")
        if timestamp is not None and self._groups.spec.ingests:
            raise DefinitionError(
                f"timestamp {timestamp!r}: with ingestion_time=True each element has the time of its batch"
            )
        element = element_of(value)
        if self._collecting is not None:
            self._collecting.append((element, timestamp, side))
        else:
            self._run([(element, timestamp, side)])

    def reload_tables(self) -> None:
        """Read the global tables again, with one commit: the function sees the current versions.

        Raises:
            SourceError: One cannot be read.
            RowError: A row does not fit the types of its state.
        """
        versions = [{"name": table.state.name, "rows": table.version().rows} for table in self._global_tables]
        if versions:
            self._run([(element_of(version), None, 1) for version in versions])

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run the `process` calls inside as one micro-batch and one commit, in the order of the harness."""
        if self._collecting is not None:
            raise DefinitionError("batch() inside batch()")
        self._collecting = []
        try:
            yield
            rows = self._collecting
        finally:
            self._collecting = None
        self._run(rows)

    def process_batch(self, table: pa.Table, timestamps: str | None = None) -> None:
        """Process rows with a vectorized function as one micro-batch, and commit.

        Args:
            table: The rows; they go through the function's ``combine``, if any.
            timestamps: Column with the event time, a timestamp or milliseconds.

        Raises:
            DefinitionError: The function or the rows are of another kind, or a column is missing.
        """
        from keyed.table_state.batches import with_times

        function = self._groups.spec.function
        if not isinstance(function, VectorizedFunction) or takes_two(function):
            calls = "process_batches" if isinstance(function, VectorizedFunction) else "process"
            raise DefinitionError(f"process_batch: for {type(function).__name__} use {calls}")
        self._process_tables([with_times(table, timestamps)])

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, timestamps: str | None = None) -> None:
        """As `process_batch`, with a `keyed.vectorized.VectorizedCoFunction`.

        Args:
            first: Rows of the first side, or ``None``.
            second: Those of the second side.
            timestamps: As in `process_batch`, of both sides.

        Raises:
            DefinitionError: As in `process_batch`.
        """
        from keyed.table_state.batches import with_times

        function = self._groups.spec.function
        if not isinstance(function, VectorizedCoFunction):
            raise DefinitionError(f"process_batches: {type(function).__name__} is not a VectorizedCoFunction")
        tables = [table if table is None else with_times(table, timestamps) for table in (first, second)]
        self._process_tables(tables)

    def _process_tables(self, tables: list[pa.Table | None]) -> None:
        self._commit(self._batches.of_tables(self._groups.spec, tables, self._processing_time))

    def advance_watermark(self, timestamp: int) -> None:
        """Move the watermark to ``timestamp`` and fire event-time timers up to it. It never moves back."""
        self._advance(timestamp, 0, 1)

    def advance_watermark1(self, timestamp: int) -> None:
        """As `advance_watermark`, for the first side."""
        self._advance(timestamp, 0)

    def advance_watermark2(self, timestamp: int) -> None:
        """As `advance_watermark`, for the second side."""
        self._advance(timestamp, 1)

    def _advance(self, timestamp: int, *sides: int) -> None:
        """Move the watermarks of one side or of both; of neither if a timer fails."""
        if not _is_time(timestamp):
            raise DefinitionError(f"watermark {timestamp!r} {_NO_TIME}")
        if len(sides) == 1 and not has_sides(self.function):
            raise DefinitionError(f"{type(self.function).__name__} has one side: use advance_watermark")
        watermarks = [max(each, timestamp) if side in sides else each for side, each in enumerate(self._watermarks)]
        watermark = max(self._watermark, min(watermarks))
        self._commit(self._idle(watermark=watermark))
        self._watermark, self._watermarks = watermark, watermarks

    def advance_processing_time(self, timestamp: int) -> None:
        """Move the processing time to ``timestamp`` and fire processing-time timers up to it. It never moves back."""
        if not _is_time(timestamp):
            raise DefinitionError(f"processing time {timestamp!r} {_NO_TIME}")
        before, self._processing_time = self._processing_time, max(self._processing_time, timestamp)
        try:
            self._commit(self._idle())
        except BaseException:
            self._processing_time = before
            raise

    def end_of_input(self) -> None:
        """End the input: the watermark moves to 2^63 − 1 and all timers fire."""
        self._commit(self._idle(end=True))
        self._watermark = MAX_TIMESTAMP
        self._watermarks = [MAX_TIMESTAMP, MAX_TIMESTAMP]

    def crash_and_recover(self, function: Function | None = None) -> None:
        """Drop the local stores and all uncommitted changes, and recover from the log.

        Args:
            function: A fresh copy, or a changed one; by default the same object.
        """
        check_function(self.function if function is None else function)
        self._groups.recover(function)

    def rescale(self, parallelism: int, function: Function | None = None) -> None:
        """Continue with another number of key groups, from the committed state.

        Args:
            parallelism: Number of key groups.
            function: As in `crash_and_recover`.

        Raises:
            DefinitionError: There is a changelog.
        """
        check_function(self.function if function is None else function)
        clocks = self._groups.rescale(parallelism, function)
        if clocks is not None:
            self._resume(clocks)

    def take_output(self) -> list[Record]:
        """Return the main output since the last call."""
        return self._outputs.take(None)

    def take_table(self, tag: OutputTag | str | None = None) -> pa.Table:
        """Return a vectorized function's outputs since the last call.

        Args:
            tag: A side output; the main output by default.
        """
        import pyarrow as pa

        name = None if tag is None else self._outputs.side_name(tag)
        tables = self._outputs.take_tables(name)
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def take_side_output(self, tag: OutputTag | str) -> list[Record]:
        """Return the side output ``tag`` since the last call.

        Raises:
            DefinitionError: An unknown name, while other side outputs have rows; an `OutputTag` may be empty.
        """
        return self._outputs.take(self._outputs.side_name(tag))

    @property
    def side_outputs(self) -> list[str]:
        """The names of the side outputs with rows."""
        return sorted(self._outputs.side)

    @property
    def current_watermark(self) -> int:
        """The watermark, milliseconds."""
        return self._watermark

    @property
    def current_processing_time(self) -> int:
        """The processing time, milliseconds."""
        return self._processing_time

    def close(self) -> None:
        """Close the function and the local stores."""
        self._groups.close()

    def _run(self, rows: list[Element]) -> None:
        self._commit(self._batches.of_rows(self._groups.spec, rows, self._processing_time))

    def _idle(self, *, watermark: int | None = None, end: bool = False) -> list[Batch]:
        return self._batches.without_rows(self._groups.spec, self._processing_time, watermark=watermark, end=end)

    def _commit(self, batches: list[Batch]) -> None:
        """Run a micro-batch, commit it and keep its outputs."""
        results = self._groups.run(batches)
        if self._groups.spec.delay_ms is not None:
            self._watermark = min(result.watermark for result in results)
        for result in results:
            self._outputs.add(result)

    def _resume(self, clocks: Clocks) -> None:
        """Continue at the clocks of a restored state."""
        self._watermark, self._processing_time = clocks
        self._watermarks = [self._watermark, self._watermark]


def _is_time(timestamp: object) -> bool:
    return type(timestamp) is int and MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP


_shows = shows_options(HarnessOptions, broadcast=(), store="memory", parallelism=1, order="event_time")


class KeyedTestHarness(DrivenFunction, Shown):
    """Runs a function over elements from a test, one commit per call; a call that fails commits nothing.

    The watermark starts at −2^63 and the processing time at 0; only `advance_watermark` and `advance_processing_time`
    move them, unless ``watermark`` sets a strategy. A call raises `KeyedError` if a key is invalid or the function
    fails, `StateSchemaChanged` if its states do not fit the stored ones, `DefinitionError` for an unknown state, and
    `CorruptionError` for a damaged snapshot.

    Args:
        function: The function under test.
        key: As in `keyed.Stream.key_by`: a function, or the names of columns, which a vectorized function needs; by
            default the element itself.
        key2: The same for the second side of a `keyed.KeyedCoProcessFunction`; by default as ``key``.
        store: Local store: ``"memory"``, ``"rocksdb"`` or ``"lmdb"``.
        parallelism: Number of key groups.
        changelog: A changelog that gets each call's committed changes.
        restore_from: A changelog or `keyed.RestorePoint` whose state the harness starts with.
        initial_state: Tables of initial state, as in `keyed.KeyedStream.process`.
        watermark: The strategy, as in `keyed.stream`; with two sides each has its own watermark, and the function's
            is the least of both.
        order: Order of the rows of a `batch`: ``"event_time"`` (stable by arrival), ``"arrival"``, or
            ``"watermark"``: elements wait until the watermark has passed them.
        broadcast: Descriptors of the broadcast states of a `keyed.KeyedBroadcastProcessFunction`.
        ingestion_time: Timestamps and watermark follow the processing time, as with `keyed.INGESTION_TIME`.
        global_tables: Global tables of the function, read at once, and again by `reload_tables`.

    Raises:
        DefinitionError: The function or a parameter breaks a rule.
    """

    def __init__(
        self,
        function: Function,
        *,
        key: Key = None,
        key2: Key = None,
        store: Store = "memory",
        parallelism: int = 1,
        changelog: Changelog | str | None = None,
        restore_from: Changelog | RestorePoint | str | None = None,
        initial_state: Any = None,
        watermark: WatermarkStrategy | timedelta | None = None,
        order: Order = "event_time",
        broadcast: Sequence[MapState[Any, Any]] = (),
        ingestion_time: bool = False,
        global_tables: Sequence[GlobalTable] = (),
    ) -> None:
        log: Changelog | None = changelog_at(changelog)
        origin: Changelog | RestorePoint | None = changelog_at(restore_from)
        check_order(order)
        check_store(store)
        spec = operator_of(
            function,
            key=key,
            key2=key2,
            parallelism=parallelism,
            changelog=log,
            watermark=strategy_of(watermark),
            broadcast=broadcast,
            ingestion_time=ingestion_time,
            global_tables=global_tables,
            order=order,
        )
        by_time = order != "arrival"
        super().__init__(GroupSet(spec, store), key, key2, by_time=by_time, global_tables=global_tables)
        if origin is not None:
            self._resume(self._groups.load(origin if isinstance(origin, RestorePoint) else RestorePoint(origin)))
        if initial_state is not None:
            entries = by_group(initial_state, function, spec.keys, spec.name, parallelism)
            batches = zip(self._idle(), entries, strict=True)
            self._commit([attrs.evolve(batch, initial=each) for batch, each in batches])
        self.reload_tables()

    def __repr__(self) -> str:
        if not self._groups.members:
            return f"KeyedTestHarness({self.function!r}, closed)"
        parts = [f"watermark {clock_text(self._watermark)}", f"processing time {time_text(self._processing_time)}"]
        for name in self.state_names:
            for namespace in (None, *self.namespaces(name)):
                state = self.state(name, namespace)
                state = state.get(None, {}) if name in self.broadcast_state_names else state
                parts += [f"{name}{'' if namespace is None else f' in {namespace!r}'} {shown(state)}"] if state else []
        if timers := self.pending_timers():
            parts.append(f"timers {shown([(each.key, each.timestamp) for each in timers])}")
        for tag, outputs in self._outputs.pending().items():
            parts.append(f"{'output' if tag is None else f'side output {tag!r}'} {shown(outputs)}")
        return f"KeyedTestHarness({self.function!r}, {', '.join(parts)})"

    def snapshot(self) -> bytes:
        """Return the committed state, timers and clocks as bytes."""
        return self._groups.snapshot()

    @classmethod
    @_shows
    def restore(cls, function: Function, snapshot: bytes, **options: Unpack[HarnessOptions]) -> Self:
        """Create a harness that continues from a snapshot, also at another parallelism."""
        changelog = changelog_of(snapshot, function)
        harness = cls(function, **options)
        if changelog.header() is not None:
            harness._resume(harness._groups.load(RestorePoint(changelog)))
        return harness

    @classmethod
    @_shows
    def from_changelog(
        cls,
        changelog: Changelog | str,
        function: Function,
        *,
        as_of: int | datetime | None = None,
        keys: Iterable[Any] | None = None,
        **options: Unpack[HarnessOptions],
    ) -> Self:
        """Create a harness with the state, timers and clocks of a job after a batch.

        The changelog is only read.

        Args:
            changelog: The job's changelog.
            function: The job's function, or a changed one.
            as_of: Id of the batch, or a time; by default the newest.
            keys: Keys to load, as in ``key_by``; all by default.
            options: As in the constructor.

        Raises:
            ChangelogError: There is no such batch.
            DefinitionError: The changelog has no entries of the keys.
            HistoryCompacted: The batch was compacted away.
        """
        if isinstance(keys, str | bytes):
            raise DefinitionError(f"keys={keys!r}: give a list of keys")
        harness = cls(function, restore_from=RestorePoint(changelog, as_of=as_of), **options)
        if keys is not None:
            restored = [*keys]
            harness._groups.keep_only({encode_key(each) for each in restored})
            if not any(harness.state_entries(key) or harness.pending_timers(key) for key in restored):
                raise DefinitionError(f"keys={restored!r}: the changelog has no state or timers of them")
        return harness
