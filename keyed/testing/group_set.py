"""The key groups of a function under test: on the real engine, over a commit store in memory.

Their committed state is shown as plain values by key, for assertions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import attrs

from keyed.base.arguments import instant_ms
from keyed.base.scratch import ScratchFolder
from keyed.codec.keys import encode_key
from keyed.codec.state_schema import is_shown_as_another, shown_tables
from keyed.content.addresses import TIMER_EVENT, TIMER_PROCESSING, key_of, split_value
from keyed.content.contents import content_entries, contents
from keyed.content.delta import Delta, table_keys
from keyed.content.local_store import LocalStore, ReadStore
from keyed.engine.batch import Batch, BatchResult
from keyed.engine.group_log import GroupMeta
from keyed.engine.held_rows import HELD_ROWS
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.errors import DefinitionError, StateAccessError
from keyed.job.context import Timer
from keyed.job.functions import Function, OperatorSpec, Store, check_parallelism, declared_states
from keyed.job.restoring import RestorePoint
from keyed.job.state import State
from keyed.job.table_declaration import TableState
from keyed.recovery.cut import cut_of, header_of
from keyed.recovery.loading import load
from keyed.stores import MemoryStore
from keyed.stores.commit_store import MemoryCommitStore
from keyed.stores.opening import open_store
from keyed.tables.entries import EntryReader
from keyed.tables.operator_view import view_of_entries
from keyed.tables.state_table import timer_of
from keyed.testing.function_options import OPERATOR
from keyed.testing.memory_changelog import MemoryChangelog

_PARALLELISM = "parallelism"


#: The watermark and the processing time of a restored state, in milliseconds.
Clocks = tuple[int, int]


class GroupSet:
    """The key groups of an operator with their local stores. Each `run` is one micro-batch and one commit.

    Args:
        spec: The operator.
        store: Local store: ``"memory"``, ``"rocksdb"`` or ``"lmdb"``.

    Attributes:
        spec: The operator, with its current function and parallelism.
        members: The key groups, in order.
    """

    def __init__(self, spec: OperatorSpec, store: Store = "memory") -> None:
        self.spec = spec
        self.members: list[KeyGroup] = []
        self._store = store
        self._folder: ScratchFolder | None = None
        self._commits = MemoryCommitStore()
        self._replicas: list[Replica] = []
        if spec.changelog is not None:
            spec.changelog.prepare(OPERATOR, spec.parallelism)
        self._open()

    def run(self, batches: list[Batch]) -> list[BatchResult]:
        """Run a micro-batch, one batch per key group, and commit it; commit nothing if a group fails."""
        results = []
        try:
            for group, batch in zip(self._check_open(), batches, strict=True):
                results.append(group.run(batch))
        except BaseException:
            self._commits.rollback()
            raise
        self._finish()
        return results

    def committed(self) -> Iterator[tuple[KeyGroup, GroupMeta, LocalStore]]:
        """Yield the key groups that have committed, each with its meta record and its content."""
        for group in self._check_open():
            meta, store = group.committed()
            if meta is not None:
                yield group, meta, store

    def _check_open(self) -> list[KeyGroup]:
        if not self.members:
            raise StateAccessError("the harness is closed; use it within its with block")
        return self.members

    def entries(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield the committed entries of all key groups."""
        for _, _, store in self.committed():
            yield from store.items()

    def snapshot(self) -> bytes:
        """Return the committed state as bytes."""
        return self._commits.snapshot()

    def load(self, point: RestorePoint) -> Clocks:
        """Load the state of a changelog.

        Raises:
            StateSchemaChanged: The function's states do not fit it.
        """
        operator = header_of(point.changelog).operator
        restoration = cut_of({operator: point}).operators[operator]
        for loader in load(restoration, self.spec, self.members):
            loader.write_meta()
        self._finish()
        markers = restoration.markers
        return min(each.watermark for each in markers), max(each.processing_time for each in markers)

    def keep_only(self, keys: set[bytes]) -> None:
        """Restart with the committed state of some keys only, given in their encoding."""
        metas, kept = [], []
        for _, meta, store in self.committed():
            metas.append(meta)
            kept.append([of_keys(delta, keys, meta.states) for delta in contents(store, meta.states)])
        self._commits = MemoryCommitStore()
        self.discard()
        self._open()
        for group, meta, deltas in zip(self.members, metas, kept, strict=True):
            loader = group.loader(meta.commit, meta.states)
            for delta in deltas:
                loader.add(delta)
            new = loader.write_log()
            new.watermark, new.processing_time, new.ended = meta.watermark, meta.processing_time, meta.ended
            new.key_columns, new.key_type, new.channels = meta.key_columns, meta.key_type, meta.channels
            loader.write_meta()
        self._finish()

    def recover(self, function: Function | None) -> None:
        """Drop the local stores and all uncommitted changes, and recover from the log.

        Args:
            function: The function afterwards; ``None`` for the same one.
        """
        if function is not None:
            self.spec = attrs.evolve(self.spec, function=function)
        self._commits.rollback()
        self.discard()
        self._open()

    def rescale(self, parallelism: int, function: Function | None) -> Clocks | None:
        """Continue with another number of key groups; returns the clocks, if anything is committed.

        Raises:
            DefinitionError: There is a changelog.
        """
        if self.spec.changelog is not None:
            raise DefinitionError(
                "rescale: the changelog has a fixed number of key groups; give restore_from= it instead"
            )
        check_parallelism(parallelism)
        changelog = changelog_of(self.snapshot(), self.spec.function)
        self._commits.close()
        self._commits = MemoryCommitStore()
        self.spec = attrs.evolve(self.spec, parallelism=parallelism)
        self.recover(function)
        return None if changelog.header() is None else self.load(RestorePoint(changelog))

    def close(self) -> None:
        """Close the function and the local stores."""
        try:
            for group in self.members:
                group.close()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the local stores alone, as when the process dies."""
        for replica in self._replicas:
            replica.close()
        self._replicas, self.members = [], []
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def __del__(self) -> None:
        if getattr(self, "_folder", None) is not None:
            self.discard()

    def _open(self) -> None:
        """Open the key groups over the commit store."""
        for index in range(self.spec.parallelism):
            store: LocalStore = MemoryStore()
            if self._store != "memory":
                self._folder = self._folder or ScratchFolder("harness")
                store = open_store(self._store, self._folder.path / str(index))
            self._replicas.append(Replica(store))
            log = self._commits.group_log(OPERATOR, index)
            writer = self.spec.changelog.writer(index) if self.spec.changelog is not None else None
            self.members.append(KeyGroup(self.spec, index, log, self._replicas[-1], writer))

    def _finish(self) -> None:
        """Commit the groups' changes, and export them to the changelog."""
        self._commits.write(_PARALLELISM, b"%d" % self.spec.parallelism)
        self._commits.commit()
        for group in self.members:
            group.flush()


def changelog_of(snapshot: bytes, function: Function) -> MemoryChangelog:
    """Return a changelog with the state in a snapshot; it has no header if nothing was committed."""
    changelog, commits = MemoryChangelog(), MemoryCommitStore()
    commits.restore(snapshot)
    parallelism = int(commits.read(_PARALLELISM) or b"0")
    if parallelism:
        changelog.prepare(OPERATOR, parallelism)
        spec = OperatorSpec(OPERATOR, function, True, None, "arrival", parallelism)
        for index in range(parallelism):
            log, writer = commits.group_log(OPERATOR, index), changelog.writer(index)
            KeyGroup(spec, index, log, Replica(MemoryStore()), writer).flush()
    return changelog


def state_by_key(
    store: ReadStore, name: str, described: dict[str, Any], declared: State | None, namespace: Any
) -> dict[Any, Any]:
    """Return a key group's entries of one state.

    Args:
        store: The group's entries.
        name: The stored name of the state.
        described: The state's description with its id, as the group's meta record has it.
        declared: Its declaration, if it is known: values then have their classes.
        namespace: The namespace beside the key.
    """
    if described["schema"]["kind"] == "table":
        return _rows_by_key(store, described)
    reader = EntryReader(described, None if isinstance(declared, TableState) else declared)
    first, end = reader.range
    values: dict[Any, Any] = {}
    entries = sorted((prefix, sub, value) for prefix, sub, value in store.items() if first <= prefix < end)
    if name == HELD_ROWS:
        # As they will run: the order of arrival depends on how batches are cut.
        entries.sort(key=lambda each: (each[0], split_value(each[0], each[2])[0]))
    for prefix, sub, value in entries:
        entry = reader.entry(prefix, sub, value)
        if entry.namespace != namespace:
            continue
        if reader.schema.kind == "list":
            values.setdefault(entry.key, []).append(entry.value)
        elif reader.has_entries:
            values.setdefault(entry.key, {})[entry.entry] = entry.value
        else:
            values[entry.key] = entry.value
    return values


def namespaces(store: ReadStore, described: dict[str, Any]) -> set[Any]:
    """Return the namespaces in which a key group has entries of a state."""
    if described["schema"]["kind"] == "table":
        return set()
    reader = EntryReader(described)
    first, end = reader.range
    names = {reader.entry(*item).namespace for item in store.items() if first <= item[0] < end}
    return names - {None}


def windows_by_key(store: ReadStore, meta: GroupMeta, function: Function) -> dict[Any, dict[Any, Any]]:
    """Return the rows of an operator's one table by key and window, a window as its times in milliseconds.

    Args:
        store: The key group's entries.
        meta: Its meta record.
        function: The operator.
    """
    changes = content_entries(store, meta.states)
    entries = ((prefix, sub, value) for prefix, sub, value in changes if value is not None)
    clocks = meta.watermark, meta.processing_time
    view = view_of_entries(meta.operator, meta.states, clocks, entries, {meta.operator: function})
    reader = view.reader(meta.operator)
    windows: dict[Any, dict[Any, Any]] = {}
    for row in view.stored(reader, *reader.range):
        entry = reader.entry(*row)
        window = tuple(instant_ms(bound) if isinstance(bound, datetime) else bound for bound in entry.entry or ())
        windows.setdefault(entry.key, {})[window] = entry.value
    return windows


def _rows_by_key(store: ReadStore, described: dict[str, Any]) -> dict[Any, Any]:
    table, table_and_rows = store.table(int(described["id"])), dict[Any, Any]()
    schema = described["schema"]
    names = schema["key"][: schema["value"]["stream_keys"]]
    for _, part in () if table is None else table.select(None):
        for row in part.to_pylist():
            key = tuple(row[name] for name in names)
            table_and_rows.setdefault(key[0] if len(key) == 1 else key, []).append(row)
    return {key: sorted(rows, key=repr) for key, rows in table_and_rows.items()}


def of_keys(delta: Delta, keys: set[bytes], states: dict[str, Any]) -> Delta:
    """Return a delta's entries of some keys.

    Args:
        delta: The live entries of a key group.
        keys: The keys, encoded.
        states: Descriptions of the states with their ids, by name.
    """
    tables = []
    for table in delta.tables:
        schema = next(state["schema"] for state in states.values() if int(state["id"]) == table.state_id)
        names = schema["key"][: schema["value"]["stream_keys"]]
        if table.upserts is not None:
            rows = [tuple(row.values()) for row in table.upserts.select(names).to_pylist()]
            mask = [encode_key(row[0] if len(row) == 1 else row) in keys for row in rows]
            tables.append(attrs.evolve(table, upserts=table.upserts.filter(mask)))
    # Broadcast states belong to no key, so their entries are always included.
    encoded = {*keys, encode_key(None)}
    entries = [entry for entry in delta.entries if encode_key(key_of(entry[0])) in encoded]
    return attrs.evolve(delta, entries=entries, tables=tables)


#: Name of the one table of an operator, which has no name of its own in a harness.
WINDOWS = "windows"


class CommittedState:
    """States, timers and counters as of the last commit.

    Args:
        groups: The key groups that hold them.
    """

    def __init__(self, groups: GroupSet) -> None:
        self._groups = groups

    def pending_timers(self, key: Any = None) -> list[Timer]:
        """Return the pending timers, of one key or of all: by timestamp, domain, key and name."""
        timers = []
        for prefix, sub, value in self._groups.entries():
            if prefix[0] in (TIMER_EVENT, TIMER_PROCESSING):
                timers.append((prefix[1:], sub, timer_of(prefix, sub, value)))
        timers.sort(key=lambda item: (item[2].timestamp, item[2].domain.value, *item[:2]))
        encoded_key = None if key is None else encode_key(key)
        return [timer for encoded, _, timer in timers if encoded_key is None or encoded == encoded_key]

    def state(self, name: str, namespace: Any = None) -> dict[Any, Any]:
        """Return the committed entries of a state by key, in order of keys.

        A value or accumulator is the result of ``value()`` or ``get()``, a map a dictionary in key order, a versioned
        state a dictionary by timestamp, a table a list of rows. Windows are the state ``"windows"``, a dictionary of
        results by (start, end).

        Args:
            name: Name of the state.
            namespace: The namespace beside the key.
        """
        values: dict[Any, Any] = {}
        names: set[str] = set(self._declared())
        for group, meta, store in self._groups.committed():
            stored = self._stored_names(meta)
            names |= stored.keys()
            if name not in stored:
                continue
            state = stored[name]
            if not _is_computed(meta.states[state]):
                declared = self._declared(group).get(state)
                values |= state_by_key(store, state, meta.states[state], declared, namespace)
            elif namespace is None:
                values |= windows_by_key(store, meta, self._groups.spec.function)
        if name not in names:
            raise DefinitionError(
                f"state {name!r} does not exist; the states are: {', '.join(sorted(names)) or 'none'}"
            )
        return {key: values[key] for key in sorted(values, key=encode_key)}

    def namespaces(self, name: str) -> list[Any]:
        """Return the namespaces in which a state has entries, in order."""
        self.state(name)
        names: set[Any] = set()
        for _, meta, store in self._groups.committed():
            state = self._stored_names(meta).get(name)
            if state is not None and not _is_computed(meta.states[state]):
                names |= namespaces(store, meta.states[state])
        return sorted(names, key=encode_key)

    @property
    def broadcast_state_names(self) -> list[str]:
        """The names of the broadcast states."""
        return sorted(str(state.name) for state in self._groups.spec.broadcast)

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """Return the committed entries of a broadcast state, in order of its keys.

        Raises:
            DefinitionError: There is no such state, or its copies differ between key groups.
        """
        copies: list[dict[Any, Any]] = []
        declared = next((state for state in self._groups.spec.broadcast if state.name == name), None)
        for _, meta, store in self._groups.committed():
            described = meta.states.get(name)
            if described is None or described["schema"]["kind"] != "broadcast":
                raise DefinitionError(f"broadcast_state({name!r}): there is no such broadcast state")
            copies.append(state_by_key(store, name, described, declared, None).get(None, {}))
        if any(copy != copies[0] for copy in copies):
            raise DefinitionError(
                f"broadcast state {name!r} differs between key groups: {copies!r:.500}; the writes of "
                "process_broadcast_element may depend only on the element and on broadcast state"
            )
        return copies[0] if copies else {}

    @property
    def state_names(self) -> list[str]:
        """The names of the states; those of ``open`` once an element was processed."""
        names = {name for _, meta, _ in self._groups.committed() for name in self._stored_names(meta)}
        return sorted(names | {name for name, state in self._declared().items() if state.shown_as is None})

    def state_entries(self, key: Any = None) -> int:
        """Count the live entries of a key or of all."""
        if key is not None:
            entries = sum(1 for at, _, _ in self._groups.entries() if at[0] < TIMER_PROCESSING and key_of(at) == key)
            states = [each for _, meta, _ in self._groups.committed() for each in meta.states.items()]
            names = {name for name, state in states if state["schema"]["kind"] == "table"}
            return entries + sum(len(self.state(name).get(key, ())) for name in names)
        count = sum(1 for prefix, _, _ in self._groups.entries() if prefix[0] < TIMER_PROCESSING)
        committed = self._groups.committed()
        tables = [store.table(state_id) for _, meta, store in committed for state_id in table_keys(meta.states)]
        return count + sum(table.num_rows for table in tables if table is not None)

    def metrics(self) -> dict[str, int]:
        """Return the counters, summed over key groups."""
        total: Counter[str] = Counter()
        for _, meta, _ in self._groups.committed():
            total.update(meta.counters)
        return dict(total)

    @property
    def function(self) -> Function:
        """The function."""
        return self._groups.spec.function

    def _stored_names(self, meta: GroupMeta) -> dict[str, str]:
        """Return the stored names of the states by the names of their tables; states without a table have their own.

        A state that only names the namespaces of another one is part of that one.
        """
        shown = shown_tables(meta.states, WINDOWS)
        naming = {described["schema"].get("named_by") for described in meta.states.values()}
        inner = {name: name for name in meta.states if name not in shown.values() and name not in naming}
        return inner | shown

    def _declared(self, group: KeyGroup | None = None) -> dict[str, State]:
        """Return the declarations of states by name: those of the class, and those that a group has obtained."""
        states = {name: state for name, (_, state) in declared_states(self._groups.spec.function).items()}
        return states if group is None else states | group.declarations()


def _is_computed(described: dict[str, Any]) -> bool:
    """Return true if a state is shown as the one table of its operator."""
    return is_shown_as_another(described) and bool(described["schema"]["shown_as"]["view"])
