"""A test harness for one keyed function, with clocks that only the test moves.

The model is Flink's ``KeyedOneInputStreamOperatorTestHarness``; the engine, the log and the local stores are the real
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict, Unpack

import attrs

from keyed.arrow.read import column_values
from keyed.broadcast import check_descriptors
from keyed.changelog.model import Changelog
from keyed.changelog.objects import changelog_at
from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import decode_key, encode_key, key_type
from keyed.content.addresses import TIMER_EVENT, TIMER_PROCESSING, decode_time, key_of
from keyed.content.contents import contents
from keyed.content.delta import table_keys
from keyed.content.local_store import LocalStore
from keyed.context import Timer
from keyed.durations import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.engine.batch import Batch, BatchResult, Emitted, EmittedTables
from keyed.engine.channels import ChannelId
from keyed.engine.key_group import KeyGroup
from keyed.engine.keytypes import KeyTypes
from keyed.engine.replica import Replica
from keyed.errors import DefinitionError, TimestampError
from keyed.functions import (
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    check_function,
    declared_states,
    takes_two,
)
from keyed.global_tables import GlobalTable
from keyed.operators import OperatorSpec, Order, Store, check_order, check_parallelism, check_store
from keyed.outputs import OutputTag
from keyed.recovery.cut import cut_of, header_of
from keyed.recovery.loading import load
from keyed.restoring import RestorePoint
from keyed.runtimes.initial_frames import by_group
from keyed.runtimes.local.local_rows import element_of, key_getter
from keyed.shown import Shown, shown, shows_options
from keyed.state import MapState, State
from keyed.stores import MemoryStore, open_store
from keyed.stores.commit_store import MemoryCommitStore
from keyed.stores.scratch import ScratchFolder
from keyed.testing.memory_changelog import MemoryChangelog
from keyed.testing.states import namespaces, of_keys, state_by_key
from keyed.ttl import TimeDomain
from keyed.vectorized import TIMESTAMP_COLUMN, VectorizedCoFunction, VectorizedFunction, combines
from keyed.watermarks import WatermarkStrategy, strategy_of

if TYPE_CHECKING:
    import pyarrow as pa

Key = Callable[[Any], Any] | str | Sequence[str] | None


class FunctionOptions(TypedDict, total=False):
    """Keywords that the harness, the properties, the simulator and replay share, as in `KeyedTestHarness`."""

    key: Key
    key2: Key
    broadcast: Sequence[MapState[Any, Any]]
    watermark: WatermarkStrategy | None


class HarnessOptions(FunctionOptions, total=False):
    """Further keywords of `KeyedTestHarness`."""

    store: Store
    parallelism: int
    order: Order
    ingestion_time: bool


_shows = shows_options(HarnessOptions, broadcast=(), store="memory", parallelism=1, order="event_time")
_OPERATOR = "function"
_PARALLELISM = "parallelism"
#: An element, its timestamp and its side.
_Element = tuple[Any, int | None, int]
_NO_TIME = "is not an int in the range of int64; give milliseconds since the epoch"


class Record(NamedTuple):
    """An output, or a row of the input, with its timestamp.

    Attributes:
        value: The emitted value, or the input.
        timestamp: For an output, that of the element or of the event timer, or that of ``ctx.collect``; else ``None``.
    """

    value: Any
    timestamp: int | None

    @property
    def input(self) -> int:
        """The side of connected streams of the row: 1, and 2 for a `SecondRecord`."""
        return 1


class SecondRecord(Record):
    """A row of the second side of connected streams."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"SecondRecord(value={self.value!r}, timestamp={self.timestamp!r})"

    @property
    def input(self) -> int:
        """The side of the row: 2."""
        return 2


class KeyedTestHarness(Shown):
    """Runs a function over elements from a test, one commit per call.

    The watermark starts at −2^63 and the processing time at 0; only `advance_watermark` and `advance_processing_time`
    move them, unless ``watermark`` sets a strategy by which the watermark follows the elements.

    Args:
        function: The function under test.
        key: Key of an element, as in `keyed.Stream.key_by`: a function, or the names of columns, which a vectorized
            function needs. By default the element itself.
        key2: The same for elements of the second side of a `keyed.KeyedCoProcessFunction`; by default as ``key``.
        store: Local store: ``"memory"``, ``"rocksdb"`` or ``"lmdb"``.
        parallelism: Number of key groups.
        changelog: A changelog that gets each call's committed changes.
        restore_from: A changelog, or a `keyed.RestorePoint` in one, whose state the harness starts with.
        initial_state: Tables of initial state, as in `keyed.KeyedStream.process`.
        watermark: The strategy by which the watermark follows the timestamps, as in a job (`keyed.stream`); over two
            sides each follows its own, and that of the function is the least of both.
        order: Order of the rows of a `batch`: ``"event_time"`` (stable by arrival) or ``"arrival"``.
        broadcast: Descriptors of the broadcast states of a `keyed.KeyedBroadcastProcessFunction`.
        ingestion_time: Each element has the processing time of its batch as its timestamp, and the watermark follows
            the processing time, as with `keyed.INGESTION_TIME`.
        global_tables: Global tables that the function reads: they are read at once, and again by `reload_tables`.

    Raises:
        DefinitionError: The function or a parameter breaks a rule.
        StateSchemaChanged: The function's states do not fit those of ``restore_from``.
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
        check_function(function)
        check_order(order)
        check_store(store)
        check_parallelism(parallelism)
        watermark = strategy_of(watermark)
        delay = 0 if ingestion_time else None
        delay = delay if watermark is None else watermark.delay_ms
        key2 = key if key2 is None else key2
        if isinstance(function, KeyedBroadcastProcessFunction):
            check_descriptors(tuple(broadcast))
        elif broadcast:
            raise DefinitionError(f"broadcast={broadcast!r}: {type(function).__name__} takes no broadcast elements")
        sided = _has_sides(function)
        self._spec = OperatorSpec(
            _OPERATOR,
            function,
            True,
            delay,
            "arrival",
            parallelism,
            _key_columns(function, key),
            changelog=log,
            strategies=(watermark, watermark) if watermark is not None and sided else (),
            keys2=_key_columns(function, key2),
            broadcast=(*broadcast, *(table.state for table in global_tables)),
            global_tables={table.state.name: table.key for table in global_tables},
            ingestion_delay_ms=delay if ingestion_time else None,
        )
        self._global_tables = list(global_tables)
        self._keys = [key_by(function, each) for each in (key, key2)]
        self._store = store
        # A row without a timestamp leaves those of its batch as they came, so the engine is not told of an order.
        self._by_time = order == "event_time"
        self._folder: ScratchFolder | None = None
        self._commits = MemoryCommitStore()
        self._key_types = KeyTypes(self._spec.name)
        self._watermark = MIN_TIMESTAMP
        self._processing_time = 0
        self._output: dict[str | None, list[Record]] = {}
        self._tables: dict[str | None, EmittedTables] = {}
        self._side_outputs: set[str] = set()
        self._collecting: list[_Element] | None = None
        self._watermarks = [MIN_TIMESTAMP, MIN_TIMESTAMP]
        self._groups: list[KeyGroup] = []
        self._replicas: list[Replica] = []
        if log is not None:
            log.prepare(_OPERATOR, parallelism)
        self._start()
        if origin is not None:
            self._restore_from(origin)
        if initial_state is not None:
            entries = by_group(initial_state, function, self._spec.keys, self._spec.name, parallelism)
            self._commit([attrs.evolve(self._batch([]), initial=each) for each in entries])
        self.reload_tables()

    def __repr__(self) -> str:
        parts = [f"watermark {self._watermark}", f"processing time {self._processing_time}"]
        for name in self.state_names:
            for namespace in (None, *self.namespaces(name)):
                state = self.state(name, namespace)
                state = state.get(None, {}) if name in self.broadcast_state_names else state
                parts += [f"{name}{'' if namespace is None else f' in {namespace!r}'} {shown(state)}"] if state else []
        if timers := self.pending_timers():
            parts.append(f"timers {shown([(each.key, each.timestamp) for each in timers])}")
        for tag in sorted({*self._output, *self._tables}, key=lambda tag: tag or ""):
            if outputs := self._waiting(tag):
                parts.append(f"{'output' if tag is None else f'side output {tag!r}'} {shown(outputs)}")
        return f"KeyedTestHarness({self._spec.function!r}, {', '.join(parts)})"

    # Driving ----------------------------------------------------------------------------------------------------

    def process(self, value: Any, timestamp: int | None = None) -> None:
        """Process one element at once and commit. Without a strategy the watermark does not move.

        Args:
            value: The element.
            timestamp: Its event timestamp in milliseconds.

        Raises:
            TimestampError: The timestamp is not an int in the range of int64.
            KeyedError: The key is invalid, or the call failed. Nothing is committed then.
        """
        self._process(value, timestamp, "process", (KeyedProcessFunction, KeyedBroadcastProcessFunction))

    def process_broadcast_element(self, value: Any, timestamp: int | None = None) -> None:
        """Process one broadcast element of a `keyed.KeyedBroadcastProcessFunction`, in each key group. As `process`."""
        self._process(value, timestamp, "process_broadcast_element", KeyedBroadcastProcessFunction, side=1)

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """Process one element of the first side of a `keyed.KeyedCoProcessFunction`. As `process`."""
        self._process(value, timestamp, "process_element1", KeyedCoProcessFunction)

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """Process one element of the second side of a `keyed.KeyedCoProcessFunction`. As `process`."""
        self._process(value, timestamp, "process_element2", KeyedCoProcessFunction, side=1)

    def _process(
        self, value: Any, timestamp: int | None, call: str, kind: type | tuple[type, ...], side: int = 0
    ) -> None:
        function = self._spec.function
        if not isinstance(function, kind):
            calls = "process_batch" if isinstance(function, VectorizedFunction) else "process"
            if isinstance(function, KeyedCoProcessFunction):
                calls = "process_element1 and process_element2"
            elif isinstance(function, KeyedBroadcastProcessFunction):
                calls = "process and process_broadcast_element"
            raise DefinitionError(f"{call}: for {type(function).__name__} use {calls}")
        if timestamp is not None and not _is_time(timestamp):
            raise TimestampError(f"timestamp {timestamp!r} of element {value!r} {_NO_TIME}")
        if timestamp is not None and self._spec.ingests:
            raise DefinitionError(
                f"timestamp {timestamp!r}: with ingestion_time=True each element has that of its batch"
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
        """Make the `process` calls inside one micro-batch and one commit, in the order of the harness."""
        if self._collecting is not None:
            raise DefinitionError("batch() inside batch()")
        self._collecting = []
        try:
            yield
            rows = self._collecting
        finally:
            self._collecting = None
        if self._by_time and all(timestamp is not None for _, timestamp, _ in rows):
            rows = sorted(rows, key=lambda row: row[1] or 0)
        self._run(rows)

    def process_batch(self, table: pa.Table, timestamps: str | None = None) -> None:
        """Process rows with a vectorized function as one micro-batch and commit, as `process` does.

        Args:
            table: The rows. If the function defines ``combine``, they go through it.
            timestamps: Column with the event time, a timestamp or milliseconds; rows are processed in its order, unless
                ``order`` of the harness differs.

        Raises:
            DefinitionError: The function is not vectorized, or the rows are not a table or lack a column.
            NullKeyError: A key is null.
            KeyedError: The call failed. Nothing is committed then.
        """
        from keyed.table_state.batches import with_times

        function = self._spec.function
        if not isinstance(function, VectorizedFunction) or takes_two(function):
            calls = "process_batches" if isinstance(function, VectorizedFunction) else "process"
            raise DefinitionError(f"process_batch: for {type(function).__name__} use {calls}")
        self._process_tables([with_times(table, timestamps)])

    def process_batches(
        self,
        first: pa.Table | None,
        second: pa.Table | None,
        timestamps: str | None = None,
        timestamps2: str | None = None,
    ) -> None:
        """Process rows with a `keyed.vectorized.VectorizedCoFunction` as one micro-batch and commit.

        Args:
            first: The rows of the first side, ``None`` for none.
            second: Those of the second side.
            timestamps: As in `process_batch`.
            timestamps2: Column of the second side with the event time; by default that of the first.

        Raises:
            DefinitionError: The function is of another kind, or the rows are not a table or lack a column.
            NullKeyError: A key is null.
            KeyedError: The call failed. Nothing is committed then.
        """
        from keyed.table_state.batches import with_times

        function = self._spec.function
        if not isinstance(function, VectorizedCoFunction):
            raise DefinitionError(f"process_batches: {type(function).__name__} is no VectorizedCoFunction")
        sides = [(first, timestamps), (second, timestamps2 or timestamps)]
        self._process_tables([table if table is None else with_times(table, times) for table, times in sides])

    def _process_tables(self, tables: list[pa.Table | None]) -> None:
        from keyed.table_state.batches import check_keys, combined, first_key, group_indices, in_time_order

        function, name = self._spec.function, self._spec.name
        batches = [self._batch([]) for _ in self._groups]
        highest: dict[ChannelId, int] = {}
        came = 0
        for side, (table, keys) in enumerate(zip(tables, (self._spec.keys, self._spec.keys2), strict=False)):
            if table is None or not table.num_rows:
                continue
            check_keys(table, keys, name)
            if TIMESTAMP_COLUMN in table.column_names:
                highest[side, ""] = max(column_values(table[TIMESTAMP_COLUMN]))
            came += table.num_rows
            if combines(function):
                table = combined(function, table, keys, name)
                came -= table.num_rows
            type_ = key_type(first_key(table, keys)) if table.num_rows else ""
            groups = group_indices(table, keys, len(batches))
            for index, batch in enumerate(batches):
                part = table.filter(groups == index)
                batch.key_type = type_
                rows = partial(in_time_order if self._by_time else _itself, part)
                setattr(batch, "table2" if side else "table", rows)
        for batch in batches:
            batch.highest = highest
        batches[0].rows_combined = came if combines(function) else 0
        self._commit(batches)

    def advance_watermark(self, timestamp: int) -> None:
        """Move the watermark to ``timestamp`` and fire event-time timers up to it. It never moves back."""
        if not _is_time(timestamp):
            raise DefinitionError(f"watermark {timestamp!r} {_NO_TIME}")
        self._advance([max(each, timestamp) for each in self._watermarks])

    def advance_watermark1(self, timestamp: int) -> None:
        """Move the watermark of the first side; that of the function is the least of both."""
        self._advance_side(0, timestamp)

    def advance_watermark2(self, timestamp: int) -> None:
        """Move the watermark of the second side; that of the function is the least of both."""
        self._advance_side(1, timestamp)

    def _advance_side(self, side: int, timestamp: int) -> None:
        if not _is_time(timestamp):
            raise DefinitionError(f"watermark {timestamp!r} {_NO_TIME}")
        if not _has_sides(self._spec.function):
            raise DefinitionError(f"{type(self._spec.function).__name__} has one side: use advance_watermark")
        watermarks = list(self._watermarks)
        watermarks[side] = max(watermarks[side], timestamp)
        self._advance(watermarks)

    def _advance(self, watermarks: list[int]) -> None:
        """Move the watermarks of both sides, or of neither if a timer fails."""
        timestamp = max(self._watermark, min(watermarks))
        self._commit([self._batch([], watermark=timestamp) for _ in self._groups])
        self._watermark, self._watermarks = timestamp, watermarks

    def advance_processing_time(self, timestamp: int) -> None:
        """Move the processing time to ``timestamp`` and fire processing-time timers up to it. It never moves back."""
        if not _is_time(timestamp):
            raise DefinitionError(f"processing time {timestamp!r} {_NO_TIME}")
        before, self._processing_time = self._processing_time, max(self._processing_time, timestamp)
        try:
            self._commit([self._batch([]) for _ in self._groups])
        except BaseException:
            self._processing_time = before
            raise

    def end_of_input(self) -> None:
        """End the input: the watermark moves to 2^63 − 1 and all timers fire."""
        self._commit([self._batch([], end=True) for _ in self._groups])
        self._watermark = MAX_TIMESTAMP
        self._watermarks = [MAX_TIMESTAMP, MAX_TIMESTAMP]

    # Looking ----------------------------------------------------------------------------------------------------

    def take_output(self) -> list[Record]:
        """Return the main output since the last call."""
        return self._records(None)

    def take_table(self, tag: OutputTag | str | None = None) -> pa.Table:
        """Return a vectorized function's outputs since the last call; a table without columns if there are none.

        Args:
            tag: A side output; the main output by default.

        Raises:
            DefinitionError: As in `take_side_output`.
        """
        import pyarrow as pa

        name = None if tag is None else self._side(tag)
        tables = self._tables.pop(name, EmittedTables()).tables
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def take_side_output(self, tag: OutputTag | str) -> list[Record]:
        """Return the side output ``tag`` since the last call.

        Raises:
            DefinitionError: An unknown name, while other side outputs have rows; an `OutputTag` may be empty.
        """
        return self._records(self._side(tag))

    @property
    def side_outputs(self) -> list[str]:
        """The names of the side outputs with rows."""
        return sorted(self._side_outputs)

    def pending_timers(self, key: Any = None) -> list[Timer]:
        """Return the pending timers, of one key or of all: by timestamp, domain, key and name."""
        timers = []
        for kind, domain in ((TIMER_EVENT, TimeDomain.EVENT_TIME), (TIMER_PROCESSING, TimeDomain.PROCESSING_TIME)):
            for prefix, sub, value in self._entries():
                if prefix[0] == kind:
                    name = decode_key(sub[1:]) if sub[0] else None
                    timers.append((prefix[1:], sub, Timer(decode_time(value), domain, name, key_of(prefix))))
        timers.sort(key=lambda item: (item[2].timestamp, item[2].domain.value, *item[:2]))
        wanted = None if key is None else encode_key(key)
        return [timer for encoded, _, timer in timers if wanted is None or encoded == wanted]

    def state(self, name: str, namespace: Any = None) -> dict[Any, Any]:
        """Return the committed entries of a state by key, in order of keys.

        A value or accumulator is the result of ``value()`` or ``get()``, a list is a list, a map is a dictionary in key
        order, a versioned state is a dictionary by timestamp, and a table is a list of its rows. Keys without entries
        are omitted.

        Args:
            name: Name of the state.
            namespace: The namespace beside the key.

        Raises:
            DefinitionError: The function has no such state.
        """
        found: dict[Any, Any] = {}
        names: set[str] = set(self._declared())
        for group in self._groups:
            meta, store = group.committed()
            if meta is not None and name in meta.states:
                found |= state_by_key(store, meta.states[name], self._declared(group).get(name), namespace)
            names |= set(meta.states if meta is not None else ())
        if name not in names:
            raise DefinitionError(f"state {name!r}: there is none; there are {', '.join(sorted(names)) or 'none'}")
        return {key: found[key] for key in sorted(found, key=encode_key)}

    def namespaces(self, name: str) -> list[Any]:
        """Return the namespaces in which a state has entries, for example windows, in order.

        Raises:
            DefinitionError: The function has no such state.
        """
        self.state(name)
        found: set[Any] = set()
        for group in self._groups:
            meta, store = group.committed()
            if meta is not None and name in meta.states:
                found |= namespaces(store, meta.states[name])
        return sorted(found, key=encode_key)

    @property
    def broadcast_state_names(self) -> list[str]:
        """The names of the broadcast states."""
        return sorted(str(state.name) for state in self._spec.broadcast)

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """Return the committed entries of a broadcast state, in order of its keys.

        Raises:
            DefinitionError: There is no such state, or its copies differ between key groups.
        """
        copies: list[dict[Any, Any]] = []
        for group in self._groups:
            meta, store = group.committed()
            described = None if meta is None else meta.states.get(name)
            if meta is not None and (described is None or described["schema"]["kind"] != "broadcast"):
                raise DefinitionError(f"broadcast_state({name!r}): there is no such broadcast state")
            declared = next((state for state in self._spec.broadcast if state.name == name), None)
            found = {} if described is None else state_by_key(store, described, declared, None)
            copies.append(found.get(None, {}))
        if any(copy != copies[0] for copy in copies):
            raise DefinitionError(
                f"broadcast state {name!r} is not the same in all key groups: {copies!r:.500}; what "
                "process_broadcast_element writes may depend on the element and on broadcast state alone"
            )
        return copies[0]

    @property
    def state_names(self) -> list[str]:
        """The names of the states, including those that ``open`` obtains once an element has come."""
        described = [group.committed()[0] for group in self._groups]
        return sorted({*self._declared(), *(name for meta in described if meta for name in meta.states)})

    def state_entries(self, key: Any = None) -> int:
        """Count the live state entries of a key or of all: values, list elements, map entries and rows."""
        if key is not None:
            found = sum(1 for at, _, _ in self._entries() if at[0] < TIMER_PROCESSING and key_of(at) == key)
            return found + sum(len(self.state(name).get(key, ())) for name in self._table_names())
        count = sum(1 for prefix, _, _ in self._entries() if prefix[0] < TIMER_PROCESSING)
        committed = [group.committed() for group in self._groups]
        tables = [store.table(state_id) for meta, store in committed if meta for state_id in table_keys(meta.states)]
        return count + sum(table.num_rows for table in tables if table is not None)

    def _table_names(self) -> set[str]:
        described = [meta.states for group in self._groups if (meta := group.committed()[0])]
        return {name for each in described for name in each if each[name]["schema"]["kind"] == "table"}

    def metrics(self) -> dict[str, int]:
        """Return the counters, summed over key groups (`keyed.engine.counters`)."""
        total: dict[str, int] = {}
        for group in self._groups:
            meta, _ = group.committed()
            for name, value in (meta.counters if meta else {}).items():
                total[name] = total.get(name, 0) + value
        return total

    @property
    def function(self) -> Function:
        """The function."""
        return self._spec.function

    @property
    def current_watermark(self) -> int:
        """The watermark, milliseconds."""
        return self._watermark

    @property
    def current_processing_time(self) -> int:
        """The processing time, milliseconds."""
        return self._processing_time

    # Snapshots and crashes --------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the committed state, timers and clocks as bytes."""
        return self._commits.snapshot()

    @classmethod
    @_shows
    def restore(cls, function: Function, snapshot: bytes, **options: Unpack[HarnessOptions]) -> Self:
        """Create a harness that continues from a snapshot, also at another parallelism.

        Raises:
            CorruptionError: The snapshot is damaged.
            StateSchemaChanged: The function's states do not fit the snapshot's.
        """
        changelog = MemoryChangelog()
        _export(snapshot, function, changelog)
        harness = cls(function, **options)
        if changelog.header() is not None:
            harness._restore_from(changelog)
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
        """Create a harness with the real state of a job, to turn a failure in production into a unit test.

        States, timers and clocks are those after a batch. The changelog is only read.

        Args:
            changelog: The job's changelog.
            function: The job's function, or a changed one.
            as_of: Id of the batch, or a time; the newest batch by default.
            keys: The keys whose state and timers are loaded, as in ``key_by``; all by default.
            options: As in the constructor.

        Raises:
            ChangelogError: There is no such batch.
            DefinitionError: The changelog has no entries of the keys.
            HistoryCompacted: The batch was compacted away.
            StateSchemaChanged: The function's states do not fit the changelog's.
        """
        if isinstance(keys, str | bytes):
            raise DefinitionError(f"keys={keys!r}: give a list of keys")
        harness = cls(function, restore_from=RestorePoint(changelog, as_of=as_of), **options)
        if keys is not None:
            wanted = [*keys]
            harness._keep_only({encode_key(each) for each in wanted})
            if not any(harness.state_entries(key) or harness.pending_timers(key) for key in wanted):
                raise DefinitionError(f"keys={wanted!r}: the changelog has neither state nor timers of them")
        return harness

    def crash_and_recover(self, function: Function | None = None) -> None:
        """Drop all that is not committed and the local stores, and recover from the log.

        Args:
            function: The function afterwards: a fresh copy, as in a new process, or a changed one. By default the same
                object.

        Raises:
            StateSchemaChanged: At the next call, if the function's states do not fit what is committed.
        """
        if function is not None:
            check_function(function)
            self._spec = attrs.evolve(self._spec, function=function)
        self._commits.rollback()
        self._stop()
        self._start()

    def rescale(self, parallelism: int, function: Function | None = None) -> None:
        """Continue with another number of key groups, from the committed state.

        Args:
            parallelism: Number of key groups.
            function: The function afterwards, as in `crash_and_recover`.

        Raises:
            DefinitionError: There is a changelog, which has a fixed number of key groups.
            StateSchemaChanged: The function's states do not fit what is committed.
        """
        if self._spec.changelog is not None:
            raise DefinitionError(
                "rescale: the changelog is of one number of key groups; give restore_from= it instead"
            )
        check_parallelism(parallelism)
        changelog = MemoryChangelog()
        _export(self.snapshot(), self._spec.function, changelog)
        self._commits.close()
        self._commits = MemoryCommitStore()
        self._spec = attrs.evolve(self._spec, parallelism=parallelism)
        self.crash_and_recover(function)
        if changelog.header() is not None:
            self._restore_from(changelog)

    def close(self) -> None:
        """Close the function and the local stores."""
        try:
            for group in self._groups:
                group.close()
        finally:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_folder", None) is not None:
            self._stop()

    # Inside -----------------------------------------------------------------------------------------------------

    def _run(self, rows: list[_Element]) -> None:
        routed: list[list[tuple[Any, Any, int | None, int]]] = [[] for _ in self._groups]
        highest: dict[ChannelId, int] = {}
        for _, timestamp, side in rows:
            if timestamp is not None:
                highest[side, ""] = max(timestamp, highest.get((side, ""), timestamp))
        broadcast: list[_Element] = []
        if self._spec.broadcast:
            broadcast = [row for row in rows if row[2]]
            rows = [row for row in rows if not row[2]]
        for value, timestamp, side in rows:
            key = self._key_types.check(self._keys[side](value), value)
            index = group_of(key_hash(key), len(routed)) if len(routed) > 1 else 0
            routed[index].append((key, value, timestamp, side))
        self._commit([self._batch(group, broadcast=broadcast, highest=highest) for group in routed])

    def _batch(
        self,
        elements: list[tuple[Any, Any, int | None, int]],
        *,
        broadcast: Sequence[_Element] = (),
        highest: dict[ChannelId, int] | None = None,
        watermark: int | None = None,
        end: bool = False,
    ) -> Batch:
        keys, values, timestamps, sides = map(list, zip(*elements, strict=True)) if elements else ([], [], [], [])
        return Batch(
            lambda: [(keys, timestamps, values, sides if any(sides) else None)],
            broadcast=lambda: [([None], [timestamp], [value], None) for value, timestamp, _ in broadcast],
            highest=highest or {},
            watermark=watermark,
            processing_time=self._processing_time,
            end_of_input=end,
            key_type=self._key_types.name,
        )

    def _ran(self, batches: list[Batch]) -> list[BatchResult]:
        """Run a micro-batch over the groups and commit it; commit nothing if a group fails."""
        results = []
        try:
            for group, batch in zip(self._groups, batches, strict=True):
                results.append(group.run(batch))
        except BaseException:
            self._commits.rollback()
            raise
        self._finish()
        return results

    def _commit(self, batches: list[Batch]) -> None:
        """Run a micro-batch, commit it and keep its outputs."""
        results = self._ran(batches)
        if self._spec.delay_ms is not None:
            self._watermark = min(result.watermark for result in results)
        for result in results:
            self._take(None, result.main)
            for tag, emitted in result.side.items():
                self._side_outputs.add(tag)
                self._take(tag, emitted)

    def _take(self, tag: str | None, emitted: Emitted | EmittedTables) -> None:
        """Keep the values emitted to an output."""
        if isinstance(emitted, EmittedTables):
            self._tables.setdefault(tag, EmittedTables()).extend(emitted)
            return
        self._output.setdefault(tag, []).extend(map(Record, emitted.values, emitted.timestamps()))

    def _records(self, tag: str | None) -> list[Record]:
        """Return and remove the values emitted to an output."""
        found = self._waiting(tag)
        self._output.pop(tag, None)
        self._tables.pop(tag, None)
        return found

    def _waiting(self, tag: str | None) -> list[Record]:
        """Return the values emitted to an output."""
        emitted = self._tables.get(tag, EmittedTables())
        return self._output.get(tag, []) + list(map(Record, emitted.values, emitted.timestamps()))

    def _side(self, tag: OutputTag | str) -> str:
        """Return the name of a side output.

        Raises:
            DefinitionError: An unknown name, while other side outputs have rows; an `OutputTag` may be empty.
        """
        name = tag.name if isinstance(tag, OutputTag) else tag
        if tag == name and self._side_outputs and name not in self._side_outputs:
            others = ", ".join(map(repr, sorted(self._side_outputs)))
            raise DefinitionError(
                f"nothing went to side output {name!r}, but to {others}; give the OutputTag itself to take one that "
                "may be empty"
            )
        return name

    def _declared(self, group: KeyGroup | None = None) -> dict[str, State]:
        """Return the declarations of states by name: those of the class, and those that a group has obtained."""
        found = {name: state for name, (_, state) in declared_states(self._spec.function).items()}
        return found if group is None else found | group.declarations()

    def _entries(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        for group in self._groups:
            _, store = group.committed()
            yield from store.items()

    def _start(self) -> None:
        for index in range(self._spec.parallelism):
            store: LocalStore = MemoryStore()
            if self._store != "memory":
                self._folder = self._folder or ScratchFolder("harness")
                store = open_store(self._store, self._folder.path / str(index))
            self._replicas.append(Replica(store))
            log = self._commits.group_log(_OPERATOR, index)
            writer = self._spec.changelog.writer(index) if self._spec.changelog is not None else None
            self._groups.append(KeyGroup(self._spec, index, log, self._replicas[-1], writer))

    def _stop(self) -> None:
        for replica in self._replicas:
            replica.close()
        self._replicas, self._groups = [], []
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _restore_from(self, changelog: Changelog | RestorePoint) -> None:
        """Load the state of a changelog."""
        point = changelog if isinstance(changelog, RestorePoint) else RestorePoint(changelog)
        operator = header_of(point.changelog).operator
        restoration = cut_of({operator: point}).operators[operator]
        for loader in load(restoration, self._spec, self._groups):
            loader.write_meta()
        self._watermark = min(marker.watermark for marker in restoration.markers)
        self._watermarks = [self._watermark, self._watermark]
        self._processing_time = max(marker.processing_time for marker in restoration.markers)
        self._finish()

    def _keep_only(self, keys: set[bytes]) -> None:
        """Restart with the committed state of some keys only."""
        metas, kept = [], []
        for group in self._groups:
            meta, store = group.committed()
            assert meta is not None
            metas.append(meta)
            kept.append([of_keys(delta, keys, meta.states) for delta in contents(store, meta.states)])
        self._commits = MemoryCommitStore()
        self._stop()
        self._start()
        for group, meta, deltas in zip(self._groups, metas, kept, strict=True):
            loader = group.loader(meta.commit, meta.states)
            for delta in deltas:
                loader.add(delta)
            new = loader.write_log()
            new.watermark, new.processing_time, new.ended = meta.watermark, meta.processing_time, meta.ended
            new.key_columns, new.key_type, new.channels = meta.key_columns, meta.key_type, meta.channels
            loader.write_meta()
        self._finish()

    def _finish(self) -> None:
        """Commit the groups' changes, and export them to the changelog."""
        self._commits.write(_PARALLELISM, b"%d" % self._spec.parallelism)
        self._commits.commit()
        for group in self._groups:
            group.flush()


def _has_sides(function: Function) -> bool:
    """Return whether a function has two watermarks."""
    return takes_two(function) or isinstance(function, KeyedBroadcastProcessFunction)


def _export(snapshot: bytes, function: Function, changelog: MemoryChangelog) -> None:
    """Export the state of another harness to a changelog, if it has committed any."""
    commits = MemoryCommitStore()
    commits.restore(snapshot)
    parallelism = int(commits.read(_PARALLELISM) or b"0")
    if not parallelism:
        return
    changelog.prepare(_OPERATOR, parallelism)
    spec = OperatorSpec(_OPERATOR, function, True, None, "arrival", parallelism)
    for index in range(parallelism):
        log, writer = commits.group_log(_OPERATOR, index), changelog.writer(index)
        KeyGroup(spec, index, log, Replica(MemoryStore()), writer).flush()


def _key_columns(function: Function, key: Any) -> tuple[str, ...]:
    """Return the key columns; empty if the key is a function of the element.

    Raises:
        DefinitionError: A vectorized function needs names.
    """
    if isinstance(function, VectorizedFunction) and (key is None or callable(key)):
        raise DefinitionError(f"key={key!r}: {type(function).__name__} needs names of key columns, as in 'user'")
    return () if key is None or callable(key) else (key,) if isinstance(key, str) else tuple(key)


def _itself(table: pa.Table) -> pa.Table:
    return table


def key_by(function: Function, key: Key) -> Callable[[Any], Any]:
    """Return a function from an element to its key, for ``key`` of a `KeyedTestHarness`."""
    return key if callable(key) else key_getter(_key_columns(function, key)) if key else (lambda value: value)


def _is_time(timestamp: object) -> bool:
    return type(timestamp) is int and MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP
