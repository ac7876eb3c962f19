"""A test harness for one keyed function, with clocks that only the test moves.

The model is Flink's ``KeyedOneInputStreamOperatorTestHarness``; the engine, the log and the local stores are the real
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, Unpack

import attrs

from keyed.base.arguments import Shown, clock_text, shown, shows_options, time_text
from keyed.changelog.model import Changelog
from keyed.changelog.objects.object_changelog import changelog_at
from keyed.codec.keys import encode_key
from keyed.errors import DefinitionError
from keyed.job.functions import Function, Order, Store, check_order, check_store
from keyed.job.global_tables import GlobalTable
from keyed.job.restoring import RestorePoint
from keyed.job.state import MapState
from keyed.job.watermarks import WatermarkStrategy, strategy_of
from keyed.runtimes.initial_frames import by_group
from keyed.testing.driven_function import DrivenFunction
from keyed.testing.function_options import HarnessOptions, Key, operator_of
from keyed.testing.group_set import GroupSet, changelog_of

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
