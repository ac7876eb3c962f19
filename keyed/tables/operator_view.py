"""One operator's state after one batch, which its tables read."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, instant_ms, instant_of
from keyed.changelog.model import batch_id, sequence_of
from keyed.codec.state_schema import described_as, is_shown_as_another, shown_tables
from keyed.content.addresses import decode_time, key_of, split_value
from keyed.content.contents import MODULUS, hash_of_text, hash_text
from keyed.errors import ChangelogError, GroupUnavailable, HistoryCompacted, LocalStoreError, TableNotFound
from keyed.job.functions import Function
from keyed.job.state import VersionedRecord
from keyed.stores.database import successor
from keyed.stores.version_store import Extent, VersionedBatch, VersionStore
from keyed.tables.entries import (
    ComputedEntries,
    EntriesOfBatch,
    Entry,
    EntryReader,
    OperatorTableReader,
    Stored,
    StoredEntries,
)
from keyed.tables.follower import FolderReader, Follower, shown_groups

AsOf = int | datetime | None
"""A batch: its id, or a time; ``None`` is the newest one."""

#: Maximal bytes of stored changes, with their overhead, that are cached for subscribers of states.
_CHANGES_BYTES, _CHANGE_BYTES = 16 << 20, 500


@attrs.frozen
class Position:
    """The state of an operator from which an answer was taken.

    Attributes:
        operator: Name of the operator.
        batch: Id of the batch, from 0, as progress and sinks have it.
        watermark: The least watermark of the operator's key groups after it, milliseconds.
        processing_time: The processing time of the batch, milliseconds since the epoch.
        log_id: Identity of the changelog.
        entries: Number of live entries of the operator after it, timers included.
        hash: Order-independent hash of these entries: the sum of the hashes in the commit markers.
        groups: The key groups that ``entries``, ``hash`` and the answer cover, in order; ``None`` for all of them.
    """

    operator: str
    batch: int
    watermark: int
    processing_time: int
    log_id: str
    entries: int
    hash: str
    groups: tuple[int, ...] | None = None


class Operator:
    """One operator's source of tables: its store, written here or by another program."""

    def __init__(self, name: str, source: Follower | FolderReader, types: Mapping[str, Any]) -> None:
        self.name = name
        self.source = source
        self.types = types
        self._readers: dict[tuple[str, bool], tuple[Any, EntryReader]] = {}
        self._table_reader: tuple[Any, OperatorTableReader] | None = None
        self.changes = RecentChanges(_CHANGES_BYTES)

    @property
    def extent(self) -> Extent:
        """The range of batches in its store.

        Raises:
            TableNotFound: There is no batch yet.
        """
        self.source.pinned.check_open()
        extent = self.source.pinned.store.extent
        if extent is None:
            raise TableNotFound(
                f"the tables of operator {self.name!r} are empty: no batch of its changelog was applied yet; wait for "
                "one with wait_for(0)"
            )
        return extent

    @contextmanager
    def view(self, commit: int) -> Iterator[View]:
        """Open the state after a commit, which does not change while the context is open.

        Raises:
            HistoryCompacted: It is no longer kept.
        """
        pinned = self.source.pinned
        store = pinned.store
        try:
            pinned.pin(store, commit)
        except HistoryCompacted as error:
            raise self._history_error() from error
        extent = store.extent
        try:
            if extent is None or not extent.oldest <= commit <= extent.newest:
                raise self._history_error()
            yield View(self, store, extent, store.batch(commit))
        except LocalStoreError as error:
            if store.extent is not None and extent is not None and store.extent.oldest > extent.oldest:
                # What the reader missed may be what was removed meanwhile. Damage is found again by the next reader.
                raise self._history_error() from error
            pinned.report(store, error)
            raise
        finally:
            pinned.unpin(store, commit)

    @contextmanager
    def changed_view(self, commit: int) -> Iterator[View]:
        """Open the state after a commit, with the changes of its batch.

        Raises:
            HistoryCompacted: These are not kept.
        """
        with self.view(commit) as view:
            if not view.at.follows or commit <= view.extent.oldest:
                raise HistoryCompacted(f"the changes of batch {view.position.batch} are not kept")
            yield view

    def commit_of(self, batch: int) -> int:
        """Return the commit of a batch, by its id.

        Raises:
            HistoryCompacted: It is no longer kept.
            ChangelogError: The batch does not exist yet.
            TableNotFound: There is no batch yet.
        """
        extent = self.extent
        commit = extent.commit_of(sequence_of(batch))
        if commit is None:
            if sequence_of(batch) > extent.batch:
                raise ChangelogError(
                    f"as_of: the newest batch of operator {self.name!r} is {batch_id(extent.batch)}, not {batch}"
                )
            raise self._history_error(f"as_of: batch {batch} of operator {self.name!r} is gone; ")
        return commit

    def commit_at(self, time: datetime) -> int:
        """Return the newest commit whose processing time is not after ``time``.

        Raises:
            HistoryCompacted: There is no such commit any more.
            TableNotFound: There is no batch yet.
        """
        store = self.source.pinned.store
        with self.kept_history(store):
            commits = range(self.extent.oldest, self.extent.newest + 1)
            count = bisect_right(commits, instant_ms(time), key=lambda commit: store.batch(commit).processing_time)
            if not count:
                raise self._history_error(f"as_of={time.isoformat()}: ")
            return commits[count - 1]

    @contextmanager
    def kept_history(self, store: VersionStore) -> Iterator[None]:
        """Keep the commits of a store that can be read now, which the follower removes otherwise as they get old."""
        pinned = self.source.pinned
        oldest = pinned.pin_history(store)
        try:
            yield
        finally:
            if oldest is not None:
                pinned.unpin(store, oldest)

    def _history_error(self, what: str = "") -> HistoryCompacted:
        store = self.source.pinned.store
        with self.kept_history(store):
            extent = self.extent
            oldest = batch_id(extent.batch_of(extent.oldest))
            return HistoryCompacted(
                f"{what}the history of operator {self.name!r} goes back to batch {oldest} "
                f"({instant_of(store.batch(extent.oldest).processing_time).isoformat()})"
            )

    def reader(self, described: dict[str, Any], *, as_stored: bool) -> EntryReader:
        """Return the reader of a state, by the description in a batch, in the user's types or in the stored form."""
        state = described["schema"]["name"]
        type_ = None if as_stored else self.types.get(state)
        known = self._readers.get((state, as_stored))
        if known is None or known[0] != described:
            type_ = None if isinstance(type_, Function) else type_
            known = self._readers[state, as_stored] = (described, EntryReader(described, type_))
        return known[1]

    def table_reader(self, described: dict[str, Any]) -> EntryReader:
        """Return the reader of the one table of the operator, which shows a state."""
        known = self._table_reader
        if known is None or known[0] != described:
            known = described, OperatorTableReader(self.name, described, self.types.get(self.name))
            self._table_reader = known
        return known[1]


@attrs.frozen
class Changed:
    """An entry that a batch changed.

    Attributes:
        address: Its address.
        entry: The entry, with its value after the batch; ``None`` if it was removed.
        old: The value before.
        removed: True if it was removed.
        size: The bytes of both values.
    """

    address: bytes
    entry: Entry
    old: Any
    removed: bool
    size: int


class ChangedEntries(list[Changed]):
    """Changes of a state in a commit, by address."""

    __slots__ = ("__weakref__",)


class RecentChanges:
    """Cache of recent changes of states by commit, limited in bytes. Threads share it.

    Changes that exceed the limit by themselves are cached only while they are used.

    Args:
        limit: Maximal number of bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._cached: OrderedDict[tuple[VersionStore, int, str], tuple[ChangedEntries, int]] = OrderedDict()
        self._large: WeakValueDictionary[tuple[VersionStore, int, str], ChangedEntries] = WeakValueDictionary()
        self._bytes = 0

    def get(self, store: VersionStore, commit: int, state: str) -> ChangedEntries | None:
        """Return the changes of a commit of a store in a state, if they are cached."""
        with self._lock:
            changes = self._cached.get((store, commit, state))
            if changes is None:
                return self._large.get((store, commit, state))
            self._cached.move_to_end((store, commit, state))
            return changes[0]

    def put(self, store: VersionStore, commit: int, state: str, changes: ChangedEntries, size: int) -> None:
        """Cache the changes of a commit, of ``size`` bytes."""
        with self._lock:
            before = self._cached.pop((store, commit, state), None)
            self._bytes -= before[1] if before is not None else 0
            if size <= self._limit:
                self._cached[store, commit, state] = changes, size
                self._bytes += size
            else:
                self._large[store, commit, state] = changes
            while self._bytes > self._limit:
                self._bytes -= self._cached.popitem(last=False)[1][1]


class View:
    """One operator's state after a commit.

    Attributes:
        operator: The operator.
        store: The store that holds it.
        extent: What the store held when the view was opened.
        at: The commit.
    """

    def __init__(self, operator: Operator, store: VersionStore, extent: Extent, at: VersionedBatch) -> None:
        self.operator = operator
        self.store = store
        self.extent = extent
        self.at = at

    @property
    def position(self) -> Position:
        """The position of answers."""
        at = self.at
        total = sum(hash_of_text(text, "a commit") for text in at.hashes if text) % MODULUS
        return Position(
            self.operator.name,
            batch_id(at.batch),
            at.watermark,
            at.processing_time,
            at.log_id,
            at.entries,
            hash_text(total),
            at.groups,
        )

    @property
    def missing(self) -> list[int]:
        """The key groups of the operator that are not among those of the tables."""
        groups = self.at.groups
        return [] if groups is None else sorted({*range(self.extent.buckets)}.difference(groups))

    def check_key(self, reader: EntryReader | None, prefix: bytes) -> None:
        """Check that the tables have the key group of a key.

        Args:
            reader: Reads the state; ``None`` for timers.
            prefix: An address of the key.

        Raises:
            GroupUnavailable: They do not.
        """
        groups = self.at.groups
        is_everywhere = reader is not None and reader.schema.kind == "broadcast"
        if groups is not None and not is_everywhere and self.group_of(prefix) not in groups:
            raise self._unavailable(
                f"key {key_of(prefix)!r:.200} is in key group {self.group_of(prefix)}, which these tables do not have",
                [self.group_of(prefix)],
            )

    def group_of(self, prefix: bytes) -> int:
        """Return the key group of an entry of tables with a share of the groups."""
        return self.store.group_of(prefix)

    def check_all(self, reader: EntryReader | None, what: str) -> None:
        """Check that the tables have all key groups; of a broadcast state each group has all entries.

        Args:
            reader: Reads the state; ``None`` for timers.
            what: The request, for the message.

        Raises:
            GroupUnavailable: They do not.
        """
        if self.missing and (reader is None or reader.schema.kind != "broadcast"):
            raise self._unavailable(
                f"{what} needs all key groups; these tables lack {shown_groups(self.missing)}. Use tables.share for "
                "an answer from their groups alone",
                self.missing,
            )

    def _unavailable(self, what: str, missing: list[int]) -> GroupUnavailable:
        assert self.at.groups is not None
        return GroupUnavailable(
            f"operator {self.operator.name!r}: {what}. They have key groups {shown_groups(self.at.groups)} of "
            f"{self.extent.buckets} (groups=)",
            operator=self.operator.name,
            groups=missing,
        )

    def reader(self, table: str, *, as_stored: bool = False) -> EntryReader:
        """Return the reader of a table.

        Args:
            table: Its name: that of a state, or of the operator if it has one table.
            as_stored: Return values in their stored form, and not in the user's types.
        """
        states = self.at.states
        tables = shown_tables(states, self.operator.name)
        if table not in tables:
            raise TableNotFound(
                f"there is no table {table!r} in batch {batch_id(self.at.batch)} of operator {self.operator.name!r}; "
                f"there are: {', '.join(tables) or 'none'}"
            )
        state = states[tables[table]]
        if is_shown_as_another(state):
            return self.operator.table_reader(state)
        return self.operator.reader(described_as(state, table), as_stored=as_stored)

    def live(self, reader: EntryReader, value: bytes | None) -> bytes | None:
        """Return a stored value, unless it has expired by the clocks of the batch."""
        if value is None or reader.clock is None:
            return value
        clock = self.at.processing_time if reader.clock == "processing_time" else self.at.watermark
        # An entry that is due at the greatest time never expires, also after the end of input.
        return value if decode_time(value) > min(clock, MAX_TIMESTAMP - 1) else None

    def stored_entries(self, reader: EntryReader) -> StoredEntries:
        """Return the stored entries of a state, by the addresses under which they are shown."""
        store, commit, states = self.store, self.at.commit, self.at.states
        names = None if reader.named_by is None else states.get(reader.named_by)
        if names is None and reader.rows_of is None:
            return StoredEntries(store, commit, reader)
        naming = None if names is None else self.operator.reader(names, as_stored=True)
        return ComputedEntries(store, commit, reader, naming)

    def get(self, reader: EntryReader, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the stored value of an entry that is live."""
        return self.live(reader, self.stored_entries(reader).get(prefix, sub))

    def changes(self, state: str) -> ChangedEntries:
        """Return the changes of the batch in a state, by address. All subscribers of the state share the list."""
        number = self.at.commit
        changes = self.operator.changes.get(self.store, number, state)
        if changes is None:
            reader = self.reader(state)
            changes, size = ChangedEntries(), _CHANGE_BYTES
            for prefix, sub, old, new in self.stored_changes(reader):
                entry, before = reader.entry(prefix, sub, new), None if old is None else reader.value(old)
                values = len(old or b"") + len(new or b"")
                changes.append(Changed(prefix + sub, entry, before, new is None, values))
                size += _CHANGE_BYTES + len(prefix) + len(sub) + values
            self.operator.changes.put(self.store, number, state, changes, size)
        return changes

    def stored_changes(self, reader: EntryReader) -> Iterator[tuple[bytes, bytes, bytes | None, bytes | None]]:
        """Yield the (prefix, sub, value before, value after) of the entries that the batch changed, by address."""
        for prefix, sub, old, new in self.stored_entries(reader).changes():
            # Otherwise only the expiry time has changed.
            if not old or not new or split_value(prefix, old)[1] != split_value(prefix, new)[1]:
                yield prefix, sub, old, new

    def versions(self, reader: EntryReader, prefix: bytes) -> Iterator[VersionedRecord[Any]]:
        """Yield the versions of a key in a versioned state, the newest first, without deletions."""
        valid_to = None
        for _, sub, value in self.scan(reader, prefix, successor(prefix)):
            timestamp, version = reader.decode_sub(sub), reader.value(value)
            if version is not None:
                yield VersionedRecord(version, timestamp, valid_to)
            valid_to = timestamp

    def version(self, reader: EntryReader, prefix: bytes, as_of: int | None) -> VersionedRecord[Any] | None:
        """Return the result that `VersionedState.get` would have."""
        versions = self.versions(reader, prefix)
        if as_of is None:
            newest = next(versions, None)
            return newest if newest is None or newest.valid_to is None else None
        assert reader.schema.ttl is not None
        record = next((record for record in versions if record.timestamp <= as_of), None)
        if record is None or record.valid_to is None:
            return record
        older = as_of + reader.schema.ttl["milliseconds"] <= self.at.watermark
        return None if older or record.valid_to <= as_of else record

    def scan(self, reader: EntryReader, first: bytes, end: bytes, *, reverse: bool = False) -> Iterator[Stored]:
        """Yield the live (prefix, sub, value) of a range of addresses."""
        for prefix, sub, value in self.stored(reader, first, end, reverse=reverse):
            if self.live(reader, value) is not None:
                yield prefix, sub, value

    def stored(self, reader: EntryReader, first: bytes, end: bytes, *, reverse: bool = False) -> Iterator[Stored]:
        """Yield the (prefix, sub, value) of a range of addresses, also of entries that have expired."""
        return self.stored_entries(reader).scan(first, end, reverse=reverse)


def view_of_entries(
    operator: str, states: dict[str, Any], clocks: tuple[int, int], entries: Iterable[Stored], types: Mapping[str, Any]
) -> View:
    """Return the state of an operator after its last batch, without history, in some of its entries.

    Args:
        operator: Name of the operator.
        states: Descriptions of its states, by name.
        clocks: The watermark and the processing time after the batch.
        entries: The (prefix, sub, value) of the entries: all of each key that has any.
        types: As those of `Operator`.
    """
    watermark, time = clocks
    at = VersionedBatch(
        commit=0, batch=0, log_id="", watermark=watermark, processing_time=time, hashes=(), entries=0, states=states
    )
    store: Any = EntriesOfBatch(at, entries)
    no_source: Any = None
    return View(Operator(operator, no_source, types), store, no_source, at)


Viewing = Callable[[AsOf], AbstractContextManager[View]]
"""Opens an operator's state as of a batch."""
