"""State tables: the entries of one state, or the timers, of all keys of an operator."""

from __future__ import annotations

import html
import math
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from keyed.base.arguments import SHOWN_ROWS, html_table, instant_ms
from keyed.changelog.model import batch_id, sequence_of
from keyed.codec.keys import decode_key, encode_key
from keyed.codec.state_schema import MAPS, StateSchema
from keyed.content.addresses import TIMER_EVENT, TIMER_PROCESSING, decode_time, key_of, timer_prefix
from keyed.errors import DefinitionError, GroupUnavailable, HistoryCompacted, KeyedError, KeyTypeError
from keyed.job.context import Timer
from keyed.job.ttl import TimeDomain
from keyed.stores.database import successor
from keyed.tables.entries import Entry, EntryReader
from keyed.tables.operator_view import AsOf, Position, View, Viewing
from keyed.tables.replication import Replication
from keyed.tables.subscription import Change, Feed, Subscription, changes_of

if TYPE_CHECKING:
    from keyed.destinations.sink import Sink
    from keyed.tables.state_dataset import StateDataset

NOT_GIVEN: Any = object()
"""The default of ``entry``: no entry is given."""
#: Types of map keys that are compared by class.
_LEAVES = ("bool", "bytes", "float", "int", "str")
_DOMAINS = {TIMER_EVENT: TimeDomain.EVENT_TIME, TIMER_PROCESSING: TimeDomain.PROCESSING_TIME}
Time = int | datetime
_token = msgspec.msgpack.Decoder(tuple[str, int, bytes]).decode


@attrs.frozen
class QueryResult:
    """An answer with the state from which it was taken (Kafka Streams' ``QueryResult``).

    Attributes:
        value: The result of `StateTable.get`.
        position: The state.
        found: True if there is an entry; its value may be ``None``.
    """

    value: Any
    position: Position
    found: bool


@attrs.frozen
class Version:
    """A version of an entry after a batch.

    Attributes:
        batch: Id of the batch, from 0.
        processing_time: Its processing time, milliseconds since the epoch.
        watermark: The watermark after it.
        value: The value; ``None`` if it was removed.
        removed: True if the entry was removed.
    """

    batch: int
    processing_time: int
    watermark: int
    value: Any
    removed: bool


class Scan(Iterator[Entry]):
    """Entries in the order of their addresses, read lazily.

    Attributes:
        position: The state from which they are taken.
        last: Address of the last entry, before the end of the scan.
        token: At the end, the ``after=`` of a further `StateTable.scan`, or ``None`` if nothing follows.
    """

    def __init__(self, entries: Iterator[tuple[bytes, Entry]], limit: int | None, position: Position) -> None:
        self._entries = entries
        self._left = limit
        self.last: bytes | None = None
        self.position = position
        self.token: str | None = None

    def __next__(self) -> Entry:
        if self._left == 0:
            if self.last is not None and next(self._entries, None) is not None:
                self.token = scan_token(self.position.log_id, sequence_of(self.position.batch), self.last)
            self.last = None
            raise StopIteration
        self.last, entry = next(self._entries)
        if self._left is not None:
            self._left -= 1
        return entry

    def __repr__(self) -> str:
        return f"<Scan of batch {self.position.batch}>"


class History(list[Version]):
    """Versions of an entry, the newest first.

    Attributes:
        token: The ``after=`` of a further `StateTable.history`, or ``None`` at its end.
    """

    token: str | None = None


class StateTable:
    """The entries of one state, of all keys.

    Each call answers from one batch: the newest, that of ``as_of``, or that of the table's `Snapshot`. Entries that
    have expired by its clocks are omitted. Each raises `TableNotFound` if there is no such state or no batch yet,
    `KeyTypeError` for a key of another type, and `HistoryCompacted` if the batch is older than the history.

    With a share of the key groups (``groups=`` of `open_tables`), a call about a key of another group or about all
    keys raises `GroupUnavailable`; `StateTables.share` answers the latter from the share. A copy (`replicate`) needs
    all groups.

    Attributes:
        name: Name of the state.
        operator: Name of the operator.
    """

    def __init__(self, operator: str, state: str, view: Viewing, feed: Feed | None, *, is_share: bool = False) -> None:
        self._is_share = is_share
        self._view = view
        self._feed = feed
        self.name = state
        self.operator = operator

    def get(self, key: Any, entry: Any = NOT_GIVEN, *, namespace: Any = None, as_of: AsOf = None) -> Any:
        """Return the value, or the entries, of a key.

        Args:
            key: One value, or a tuple of several.
            entry: The map key, the other key columns of a table as a tuple, the time of a version, or the start or
                ``(start, end)`` of a window, as datetimes or milliseconds.
            namespace: For example a window that your function keeps, as ``(start, end)``; ``None`` is the state
                itself.
            as_of: Id of a batch, or a time: the newest batch whose processing time is not after it.

        Returns:
            The value, or ``None``. Without ``entry``, a list's elements, or a dict of all entries of a map, of
            windows, or of a table with further key columns. For a versioned state, a `VersionedRecord`.
        """
        with self._view(as_of) as view:
            return self._value(view, key, entry, namespace)[0]

    def query(self, key: Any, entry: Any = NOT_GIVEN, *, namespace: Any = None, as_of: AsOf = None) -> QueryResult:
        """Return the result of `get` with the position of the answer."""
        with self._view(as_of) as view:
            value, stored = self._value(view, key, entry, namespace)
            return QueryResult(value, view.position, stored)

    def _value(self, view: View, key: Any, entry: Any, namespace: Any) -> tuple[Any, bool]:
        """Return the value or entries, and whether there are any."""
        reader = view.reader(self.name)
        prefix = reader.prefix(key, namespace)
        self._check_entry(reader, entry)
        self._check_group(view, reader, key)
        if reader.schema.kind == "versioned":
            record = view.version(reader, prefix, None if entry is NOT_GIVEN else entry)
            if record is None:
                self._check_key(view, reader, key)
            return record, record is not None
        if entry is not NOT_GIVEN or not reader.has_entries:
            stored = view.get(reader, prefix, b"" if entry is NOT_GIVEN else reader.sub(entry))
            if stored is None:
                self._check_key(view, reader, key, entry=entry)
            return (None, False) if stored is None else (reader.value(stored), True)
        entries = list(view.scan(reader, prefix, successor(prefix)))
        if not entries:
            self._check_key(view, reader, key)
        if reader.schema.kind == "list":
            return [reader.value(stored) for _, _, stored in entries], bool(entries)
        return {reader.decode_sub(sub): reader.value(stored) for _, sub, stored in entries}, bool(entries)

    def get_many(self, keys: Iterable[Any], *, namespace: Any = None, as_of: AsOf = None) -> list[Any]:
        """Return `get` for each of several keys, in their order, from one batch.

        Raises:
            DefinitionError: The state has several entries per key, or ``keys`` is one text.
        """
        if isinstance(keys, str | bytes):
            raise DefinitionError(f"get_many: {keys!r:.100} is one key; give a list of keys")
        with self._view(as_of) as view:
            reader = view.reader(self.name)
            if reader.has_entries:
                raise DefinitionError(f"get_many: {reader.schema} has several entries per key; call get for each key")
            make = reader.prefix_maker(namespace)
            keys = list(keys)
            for key in () if view.at.groups is None else keys:
                self._check_group(view, reader, key)
            stored = view.stored_entries(reader).get_many([make(key) for key in keys])
            if None in stored:
                missing = {_kinds(key): key for key, value in zip(keys, stored, strict=True) if value is None}
                for key in missing.values():
                    self._check_key(view, reader, key)
            if reader.clock is not None:
                stored = [view.live(reader, value) for value in stored]
            return reader.values(stored)

    def scan(
        self,
        *,
        key: Any = NOT_GIVEN,
        namespace: Any = NOT_GIVEN,
        prefix: Any = None,
        from_: Any = None,
        to: Any = None,
        windows: tuple[Time, Time] | None = None,
        limit: int | None = None,
        after: str | None = None,
        as_of: AsOf = None,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> Scan:
        """Yield the entries of a key or of a range of keys, in their order.

        Args:
            key: Only this key.
            namespace: Only this namespace.
            prefix: Of the keys: text, bytes, or the first parts of tuples.
            from_: The least key, or its first parts.
            to: End of the range, exclusive.
            windows: Only windows that start from the first time to before the second: milliseconds, or datetimes with
                a zone. Without `keyed.windows` the window is the namespace; in a table or map its start is the first
                further key column or the map key. With ``key`` only these windows are read.
            limit: Maximal number of entries.
            after: The `Scan.token` of an earlier scan of the same range: resumes in the same batch.
            as_of: As in `get`.
            reverse: The greatest key comes first.
            timeout: Maximal seconds of reading, of expired entries and other windows too.

        Raises:
            TimeoutError: Reading took longer.
            DefinitionError: A parameter breaks its rule.
        """
        if type(reverse) is not bool:
            raise DefinitionError(f"scan(reverse={reverse!r}): give True or False")
        if limit is not None and (type(limit) is not int or limit < 1):
            raise DefinitionError(f"scan(limit={limit!r}): give a number from 1, or None")
        if namespace is not NOT_GIVEN and key is NOT_GIVEN:
            raise DefinitionError(f"scan(namespace={namespace!r:.100}) belongs to a key: give key= too")
        token = None if after is None else _decode_token(after)
        deadline = None if timeout is None else time.monotonic() + timeout
        with ExitStack() as stack:
            view = stack.enter_context(self._view(as_of if token is None else batch_id(token[1])))
            position, reader = view.position, view.reader(self.name)
            if key is NOT_GIVEN:
                self._check_all(view, reader, "scan")
            else:
                self._check_group(view, reader, key)
            first, end = reader.bounds(prefix, from_, to)
            for bound in (prefix, from_, to):
                if bound is not None:
                    self._check_key(view, reader, bound, is_part=True)
            times = None if windows is None else _range_of(windows)
            if key is not NOT_GIVEN:
                head = reader.key_head(key) if namespace is NOT_GIVEN else reader.prefix(key, namespace)
                first, end = max(first, head), min(end, successor(head))
                example = None if times is None else next(view.scan(reader, first, end), None)
                if times is None or example is None:
                    self._check_key(view, reader, key)
                else:
                    within = reader.window_bounds(reader.entry(*example), *times)
                    first, end = max(first, within[0]), min(end, within[1])
            if token is not None:
                if token[0] != position.log_id:
                    raise HistoryCompacted(
                        f"scan(after={after!r}): the token belongs to another changelog; start again without it"
                    )
                if reverse:
                    end = min(end, token[2])
                else:
                    first = max(first, token[2] + b"\x00")
            context = stack.pop_all()

        def entries() -> Iterator[tuple[bytes, Entry]]:
            with context:
                for address in view.stored(reader, first, end, reverse=reverse):
                    if deadline is not None and time.monotonic() > deadline:
                        raise TimeoutError(f"scan of {self.name!r}: it took longer than {timeout:g} s; give key=")
                    if view.live(reader, address[2]) is None:
                        continue
                    entry = reader.entry(*address)
                    if times is None or times[0] <= _window_start(entry) < times[1]:
                        yield address[0] + address[1], entry

        return Scan(entries(), limit, position)

    def history(
        self,
        key: Any,
        entry: Any = NOT_GIVEN,
        *,
        namespace: Any = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> History:
        """Return the versions of an entry, the newest first.

        Args:
            key: The key.
            entry: As in `get`; required if there are several.
            namespace: The namespace.
            limit: Maximal number of versions.
            after: The `History.token` of an earlier answer.

        Raises:
            DefinitionError: No entry is named, or a parameter breaks its rule.
            HistoryCompacted: The version of ``after`` is older than the history.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise DefinitionError(f"history(limit={limit!r}): give a number from 1, or None")
        token = None if after is None else _decode_token(after)
        with self._view(None) as view, view.operator.kept_history(view.store):
            reader = view.reader(self.name)
            if reader.has_entries and entry is NOT_GIVEN:
                raise DefinitionError(f"history: {reader.schema} has several entries per key; give entry=")
            self._check_entry(reader, entry)
            self._check_group(view, reader, key)
            self._check_key(view, reader, key, entry=entry)
            prefix, sub = reader.prefix(key, namespace), b"" if entry is NOT_GIVEN else reader.sub(entry)
            extent = view.store.extent
            assert extent is not None
            newest = view.at.commit
            if token is not None:
                last = extent.commit_of(token[1], token[0])
                if last is None:
                    raise HistoryCompacted(f"history(after={after!r}): batch {token[1]} is no longer kept; begin again")
                newest = last - 1
            versions = History()
            at = view.at
            for number, stored in view.stored_entries(reader).history(prefix, sub):
                if number > newest:
                    continue
                if limit is not None and len(versions) == limit:
                    versions.token = scan_token(at.log_id, at.batch, b"")
                    break
                # The first kept version may be older than the kept commits.
                at = view.store.batch(max(number, extent.oldest))
                value = None if stored is None else reader.value(stored)
                versions.append(Version(batch_id(at.batch), at.processing_time, at.watermark, value, stored is None))
            return versions

    @property
    def schema(self) -> StateSchema:
        """Name, kind, types and time to live of the state, in their stored form."""
        with self._view(None) as view:
            return view.reader(self.name).schema

    @property
    def types(self) -> str:
        """The types of the values, and of the keys of a map, as text."""
        with self._view(None) as view:
            return view.reader(self.name).types

    @property
    def key_columns(self) -> list[str]:
        """Names of the key's columns in ``key_by``; none if it has a function."""
        with self._view(None) as view:
            return list(view.at.key_columns)

    @property
    def row_key(self) -> list[str]:
        """The columns that identify a row in a copy, without the namespace. Needs pyarrow."""
        from keyed.tables.replicated_rows import ReplicatedRows

        with self._view(None) as view:
            return list(ReplicatedRows(view, self.name, namespaces=False).key)

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The key groups that the tables have, in order; ``None`` if they have all."""
        with self._view(None) as view:
            return view.at.groups

    @property
    def missing(self) -> list[int]:
        """The key groups that the tables lack, in order."""
        with self._view(None) as view:
            return view.missing

    @property
    def position(self) -> Position:
        """The newest state from which answers are taken."""
        with self._view(None) as view:
            return view.position

    def first(self) -> Entry | None:
        """Return the entry with the least key; ``None`` if the table is empty."""
        with self._view(None) as view:
            reader = view.reader(self.name)
            self._check_all(view, reader, "first")
            return _first(view, reader)

    def subscribe(self, key: Any = NOT_GIVEN, *, prefix: Any = None, after: str | None = None) -> Subscription:
        """Follow the table: its state at the newest batch, and then each change of it.

        Args:
            key: Only this key.
            prefix: Only keys that begin with this, as in `scan`.
            after: ``None`` begins with the newest state, ``"now"`` with the next change, ``"beginning"`` with the
                oldest state that is kept; a `Subscription.token` resumes after it.

        Raises:
            DefinitionError: ``after`` is not a token, both ``key`` and ``prefix`` are given, or the table belongs to
                a snapshot.
        """
        if self._feed is None:
            raise DefinitionError(f"subscribe: a snapshot of {self.name!r} does not change; subscribe to the tables")
        if key is not NOT_GIVEN and prefix is not None:
            raise DefinitionError(f"subscribe: give key={key!r} or prefix={prefix!r}, and not both")

        def within(reader: EntryReader) -> tuple[bytes, bytes]:
            if key is NOT_GIVEN:
                return reader.bounds(prefix, None, None)
            head = reader.key_head(key)
            return head, successor(head)

        with self._view(None) as view:
            reader = view.reader(self.name)
            if key is NOT_GIVEN:
                self._check_all(view, reader, "subscribe")
            else:
                self._check_group(view, reader, key)
            within(reader)
            if prefix is not None:
                self._check_key(view, reader, prefix, is_part=True)
            elif key is not NOT_GIVEN:
                self._check_key(view, reader, key)
        return Subscription(self.name, self._feed, within, after)

    def replicate(self, to: Sink) -> Replication:
        """Copy the table to a compacted Kafka topic or a sink, in a thread: its state, then each change of it.

        See `Replication`.

        Args:
            to: A `keyed.topics.UpsertTopic`, or a sink of Delta, Iceberg, PostgreSQL or your own, with the columns of
                `row_key` as key.

        Raises:
            DefinitionError: ``to`` holds no copies, or the table belongs to a snapshot.
            SinkError: The copy belongs to another table, its topic is not compacted, or it cannot be reached.
            ExtraNotInstalled: A package is not installed.
        """
        if self._feed is None:
            raise DefinitionError(f"replicate: a snapshot of {self.name!r} does not change; replicate from the tables")
        with self._view(None) as view:
            # A replication of a share would remove the rows of the others.
            view.check_all(view.reader(self.name), f"a replication of {self.name!r}")
        return Replication(self.name, self.operator, self._feed, to)

    def last_changes(self, limit: int = 100, *, as_of: AsOf = None, timeout: float | None = None) -> list[Change]:
        """Return the last changes of the table, those of the newest batch first.

        Args:
            limit: Maximal number of changes.
            as_of: Only changes up to a batch, as in `get`.
            timeout: Seconds after which it returns the changes that were found.

        Raises:
            DefinitionError: ``limit`` is less than 1.
        """
        if type(limit) is not int or limit < 1:
            raise DefinitionError(f"last_changes(limit={limit!r}): give a number from 1")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        changes: list[Change] = []
        with self._view(as_of) as view:
            self._check_all(view, view.reader(self.name), "last_changes")
            operator, number = view.operator, view.at.commit
        with suppress(HistoryCompacted):
            while len(changes) < limit and time.monotonic() < deadline:
                with operator.changed_view(number) as view:
                    changes += changes_of(view, self.name, limit - len(changes))
                number -= 1
        return changes

    @property
    def oldest_batch(self) -> int:
        """Id of the oldest batch that ``as_of`` reaches."""
        with self._view(None) as view:
            return batch_id(view.extent.batch_of(view.extent.oldest))

    def dataset(
        self,
        *,
        has_key: bool = False,
        beside: Collection[str] = (),
        groups: Collection[int] | None = None,
        files: Sequence[str] = (),
    ) -> StateDataset:
        """Return the table as an Arrow dataset, for DuckDB, Polars and others. Needs pyarrow's ``dataset``.

        Args:
            has_key: Repeat the key's columns at the end, as ``key``, or ``key_1``, ``key_2`` and so on.
            beside: ``namespace`` or ``expires``, which a table state has only if named here.
            groups: Only keys of these key groups.
            files: Files with the rows of other servers, Arrow streams of the same table.
        """
        from keyed.tables.state_dataset import StateDataset

        with self._view(None) as view:
            self._check_all(view, view.reader(self.name, as_stored=True), "a dataset")
        return StateDataset(self.name, self._view, has_key=has_key, beside=beside, groups=groups, files=files)

    def __len__(self) -> int:
        """Return the number of entries. They are counted, in time proportional to their number."""
        with self._view(None) as view:
            reader = view.reader(self.name)
            self._check_all(view, reader, "len")
            return sum(1 for _ in view.scan(reader, *reader.range))

    def __iter__(self) -> Iterator[Entry]:
        return self.scan()

    def __contains__(self, key: Any) -> bool:
        """Return whether `get` has a value or entries of a key."""
        return self.query(key).found

    def __bool__(self) -> bool:
        return True

    def _repr_html_(self) -> str:
        names = ("key", "namespace", "entry", "value")
        try:
            rows = [tuple(getattr(each, name) for name in names) for each in self.scan(limit=SHOWN_ROWS + 1)]
        except KeyedError as error:
            return f"<code>{html.escape(repr(self))}: {html.escape(str(error))}</code>"
        used = [
            n for n, name in enumerate(names) if name in ("key", "value") or any(row[n] is not None for row in rows)
        ]
        cells = [[row[n] for n in used] for row in rows]
        return html_table(repr(self), [names[n] for n in used], cells, more=False)

    def __repr__(self) -> str:
        try:
            with self._view(None) as view:
                schema = view.reader(self.name).schema
                return f"<StateTable {self.operator}.{self.name}: {schema}, batch {view.position.batch}>"
        except KeyedError:
            return f"<StateTable {self.operator}.{self.name}: no batch yet>"

    def _check_all(self, view: View, reader: EntryReader, what: str) -> None:
        """Check that the tables have all key groups, unless answers from a share are asked for."""
        if not self._is_share:
            view.check_all(reader, f"{what} of {self.name!r}")

    def _check_group(self, view: View, reader: EntryReader, key: Any) -> None:
        """Check that the tables have the key group of a key; a key of another type has another group."""
        if view.at.groups is not None:
            try:
                view.check_key(reader, reader.key_head(key))
            except GroupUnavailable:
                self._check_key(view, reader, key)
                raise

    def _check_entry(self, reader: EntryReader, entry: Any) -> None:
        """Check that a state has entries of the requested kind."""
        if entry is NOT_GIVEN:
            return
        if not reader.has_entries:
            raise DefinitionError(f"entry={entry!r}: {reader.schema} has one entry per key; leave entry out")
        if reader.schema.kind == "versioned" and type(entry) is not int:
            raise DefinitionError(f"entry={entry!r}: give the time of the version in milliseconds")

    def _check_key(
        self, view: View, reader: EntryReader, key: Any, *, entry: Any = NOT_GIVEN, is_part: bool = False
    ) -> None:
        """Check the types of a key or of its first parts, and of an entry, against the stored ones."""
        first = _first(view, reader)
        if first is None:
            return
        where = f"state {self.name!r} of operator {self.operator!r}"
        key = decode_key(encode_key(key))
        if not _fits(key, first.key, is_part=is_part):
            if first.key is None:
                raise KeyTypeError(
                    f"{where}: key {key!r}: a broadcast state has entries but no keys: get(None, {key!r}), or over "
                    f"HTTP and in commands the key null and the entry {key!r}"
                )
            raise KeyTypeError(
                f"{where}: key {key!r} has type {_kinds(key)!r}, the stored keys have {_kinds(first.key)!r}, as in "
                f"{first.key!r}"
            )
        kind = reader.schema.key if reader.schema.kind in MAPS else None
        if entry is not NOT_GIVEN and kind in _LEAVES and type(decode_key(encode_key(entry))).__name__ != kind:
            raise KeyTypeError(f"{where}: entry {entry!r} has type {type(entry)!r}, the keys of the map have {kind}")


class TimersTable:
    """The pending timers of an operator."""

    def __init__(self, operator: str, view: Viewing, *, is_share: bool = False) -> None:
        self._view = view
        self._is_share = is_share
        self.operator = operator

    def get(self, key: Any, *, as_of: AsOf = None) -> list[Timer]:
        """Return the pending timers of a key, by domain and time."""
        timers = [timer for _, timer in self.stored(key, as_of=as_of)]
        return sorted(timers, key=lambda timer: (timer.domain.value, timer.timestamp))

    def scan(self, *, as_of: AsOf = None) -> Iterator[Timer]:
        """Yield all pending timers: those in event time, then those in processing time, by key."""
        return (timer for _, timer in self.stored(as_of=as_of))

    def stored(self, key: Any = NOT_GIVEN, *, as_of: AsOf = None) -> Iterator[tuple[bytes, Timer]]:
        """Yield the (address, timer) of a key or of all keys, by address."""
        with self._view(as_of) as view:
            if key is NOT_GIVEN and not self._is_share:
                view.check_all(None, "a scan of timers")
            for kind in _DOMAINS:
                first, end = bytes((kind,)), bytes((kind + 1,))
                if key is not NOT_GIVEN:
                    first = timer_prefix(kind, encode_key(key))
                    end = successor(first)
                    view.check_key(None, first)
                for prefix, sub, value in view.store.scan(first, end, view.at.commit):
                    yield prefix + sub, timer_of(prefix, sub, value)

    def __iter__(self) -> Iterator[Timer]:
        return self.scan()

    def __contains__(self, key: Any) -> bool:
        """Return whether a key has pending timers."""
        return bool(self.get(key))

    def __len__(self) -> int:
        return sum(1 for _ in self.scan())

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<TimersTable of operator {self.operator}>"


def timer_of(prefix: bytes, sub: bytes, value: bytes) -> Timer:
    """Decode the entry of a timer."""
    return Timer(decode_time(value), _DOMAINS[prefix[0]], decode_key(sub[1:]) if sub[0] else None, key_of(prefix))


def _window_start(entry: Entry) -> float:
    """Return the start of the window of an entry, in milliseconds.

    Raises:
        DefinitionError: It does not belong to a window.
    """
    window = entry.entry if entry.namespace is None else entry.namespace
    start = window[0] if isinstance(window, tuple) and window else window
    if isinstance(start, datetime) or type(start) is int:
        return _milliseconds(start)
    raise DefinitionError(
        f"scan(windows=): the entry of key {entry.key!r} belongs to {window!r}, which is not a window"
    )


def _first(view: View, reader: EntryReader) -> Entry | None:
    """Return the entry with the least key, if there is one."""
    first = next(view.stored(reader, *reader.range), None)
    return None if first is None else reader.entry(*first)


def _fits(key: Any, stored: Any, *, is_part: bool = False) -> bool:
    """Return true if a key, or its first parts, has the types of a table's key."""
    if isinstance(key, tuple) and isinstance(stored, tuple):
        same = len(key) <= len(stored) if is_part else len(key) == len(stored)
        return same and all(map(_fits, key, stored))
    return type(key) is type(stored)


def _range_of(windows: Any) -> tuple[int, int]:
    if not isinstance(windows, tuple | list) or len(windows) != 2:
        raise DefinitionError(f"scan(windows={windows!r}): give two times, (from, to)")
    return _milliseconds(windows[0]), _milliseconds(windows[1])


def _milliseconds(time: Time) -> int:
    if isinstance(time, datetime) and time.tzinfo is not None:
        return instant_ms(time)
    if type(time) is not int:
        raise DefinitionError(f"scan(windows=): {time!r} is not a time: give milliseconds, or a datetime with a zone")
    return time


def _kinds(key: Any) -> Any:
    return tuple(map(_kinds, key)) if isinstance(key, tuple) else type(key)


def scan_token(log_id: str, sequence: int, address: bytes) -> str:
    """Return the token of a scan that ended with an address."""
    return urlsafe_b64encode(msgspec.msgpack.encode((log_id, sequence, address))).decode()


def _decode_token(token: str) -> tuple[str, int, bytes]:
    try:
        return _token(urlsafe_b64decode(token.encode()))
    except (ValueError, AttributeError) as error:
        raise DefinitionError(f"after={token!r} is not a token of a scan") from error
