"""Entries of a state as typed values, and the addresses that hold them and under which they are shown.

Addresses are the stored addresses, unless namespaces have names (``named_by`` of a state): windows that merge keep
their contents in place, and the map state that ``named_by`` names has the pairs of their current window and its
namespace.

The one table of a library's operator has rows computed from its state, under addresses of their own. A state whose
description has ``shown_as`` (`keyed.extending.inner_state`) is shown under the operator's name, by the class that
``view`` names: `keyed.windows.window_table.WindowTable`. The address of a row is its key without a namespace, and the
encoded tuple of its bounds. Its value is what the class computed from the entries of the row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from importlib import import_module
from itertools import chain, groupby, pairwise
from operator import itemgetter
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.arguments import instant_ms, instant_of, type_of
from keyed.codec.fingerprints import format_type
from keyed.codec.keys import decode_key, decode_key_at, encode_key
from keyed.codec.state_schema import MAPS, StateSchema
from keyed.codec.values import value_codec
from keyed.content.addresses import KIND_OF_CLOCK, NULL, expiry
from keyed.content.entry_decoder import EntryDecoder
from keyed.errors import CorruptionError, DefinitionError, EncodingError, StateSchemaChanged
from keyed.job.state import AggregatingState, MapState, State
from keyed.stores.database import successor

if TYPE_CHECKING:
    from keyed.stores.version_store import Extent, VersionedBatch, VersionStore


_HEAD = Struct(">BH")
_NONE, _TUPLE = encode_key(None), encode_key(())[:1]
_Place = tuple[bytes, bytes]
Stored = tuple[bytes, bytes, bytes]
"""The prefix, sub and value of an entry."""
_Change = tuple[bytes, bytes, bytes | None, bytes | None]


@attrs.frozen
class Entry:
    """One entry of a state.

    Attributes:
        key: One value, or a tuple of several; ``None`` in a broadcast state.
        namespace: Beside the key; ``None`` is the state itself.
        entry: The map key, (batch, index) of a list element, the timestamp of a version, the other key columns of a
            table as a tuple, start and end of a window as datetimes (milliseconds beyond the years 1 to 9999);
            ``None`` if there is only one.
        value: The value, element, accumulator or result; of a table a dict of the other columns; ``None`` for a deleted
            version.
        expires: With a time to live, its end, in milliseconds of the state's clock.
    """

    key: Any
    namespace: Any
    entry: Any
    value: Any
    expires: int | None = None


class EntryReader(EntryDecoder):
    """Locates the entries of one state in a local store, and decodes them.

    Args:
        described: The state's description with its id, as commits have it (`GroupMeta.states`).
        type_: Type of its values, or its declaration, or the `keyed.AggregateFunction` whose results replace
            accumulators. By default plain values have their types, and a class is replaced by a `msgspec.Struct` with
            its fields.

    Attributes:
        range: The first address of its entries, and the address after the last.
        named_by: Name of the state with the names of its namespaces, if they have names.
        inner: Reads the state of which an operator's table has the rows; other states have none.
        rows_of: The class that computes these rows; ``None`` for other states.

    Raises:
        StateSchemaChanged: ``type_`` does not fit the stored entries.
    """

    inner: EntryReader
    rows_of: Any = None

    def __init__(self, described: dict[str, Any], type_: Any = None) -> None:
        super().__init__(described)
        schema = self.schema
        self.named_by = schema.named_by
        self.clock = schema.ttl["time_domain"] if schema.ttl else None
        kind, number = KIND_OF_CLOCK[self.clock], int(described["id"])
        self.range = _HEAD.pack(kind, number), _HEAD.pack(kind, number + 1)
        self._result: Callable[[Any], Any] | None = None
        if schema.kind == "table":
            if type_ is not None:
                raise StateSchemaChanged(f"types: the {schema} has columns with types of their own")
        elif type_ is not None:
            self._take(type_)

    def _take(self, type_: Any) -> None:
        """Read values, and keys of a map, in the user's types."""
        schema = self.schema
        # The descriptor of a broadcast state is a map.
        is_broadcast = schema.kind == "broadcast" and isinstance(type_, MapState)
        if isinstance(type_, State) and type_.kind != schema.kind and not is_broadcast:
            raise StateSchemaChanged(f"types: {type_.kind} state {type_.name!r} is not the {schema}")
        if isinstance(type_, MapState):
            self.use_key_type(type_.key_type, f"types: {type_.key_type!r}")
            type_ = type_.value_type
        elif isinstance(type_, AggregatingState):
            self._result, type_ = type_.aggregate.get_result, type_.accumulator_type
        elif isinstance(type_, State):
            type_ = type_.type  # type: ignore[attr-defined]
        elif callable(getattr(type_, "get_result", None)) and not isinstance(type_, type):
            self._result = type_.get_result
            return
        self.use_value_type(type_, f"types: {type_!r}")

    @property
    def types(self) -> str:
        """The types of the state as text."""
        value = format_type(self.schema.value)
        return f"{format_type(self.schema.key)} -> {value}" if self.schema.kind in MAPS else value

    def prefix(self, key: Any, namespace: Any) -> bytes:
        """Return the prefix of the entries of a key.

        Raises:
            EncodingError: The key or namespace cannot be one.
        """
        return self.prefix_maker(namespace)(key)

    def key_head(self, key: Any) -> bytes:
        """Return the common prefix of the addresses of a key's entries, in all namespaces."""
        return self.range[0] + encode_key(key)

    def prefix_maker(self, namespace: Any) -> Callable[[Any], bytes]:
        """Return a function from keys to their prefixes."""
        head, tail = self.range[0], encode_key(namespace)
        return lambda key: head + encode_key(key) + tail

    def bounds(self, prefix: Any, from_: Any, to: Any) -> tuple[bytes, bytes]:
        """Return the first address of the entries of a range of keys, and the address after the last.

        Args:
            prefix: Prefix of the keys: text, bytes, or the first parts of keys that are tuples.
            from_: The least key, or its first parts.
            to: The key, or its first parts, before which the range ends.
        """
        first, end = self.range
        if prefix is not None:
            head = self.range[0] + key_prefix(prefix)
            first, end = head, head + b"\xff" * 9
        if from_ is not None:
            first = max(first, self.range[0] + _bound(from_))
        if to is not None:
            end = min(end, self.range[0] + _bound(to))
        return first, end

    def window_bounds(self, example: Entry, from_: int, to: int) -> tuple[bytes, bytes]:
        """Return the range of addresses of a key's windows that start in a range of times.

        Args:
            example: An entry of the key.
            from_: The least start, in milliseconds.
            to: The start before which the range ends.
        """
        head = self.key_head(example.key)
        window = example.namespace
        if window is None:
            head, window = head + encode_key(None), example.entry
        if isinstance(window, tuple) and window and type(window[0]) is int:
            return head + _bound((from_,)), head + _bound((to,))
        if type(window) is int:
            return head + encode_key(from_), head + encode_key(to)
        return self.range

    def bounds_at(self, prefix: bytes, sub: bytes) -> tuple[bytes, bytes]:
        """Return the range of addresses in which to look for an entry."""
        return prefix + sub, prefix + sub + b"\x00"

    def range_of(self, head: bytes, first: bytes, end: bytes) -> tuple[bytes, bytes]:
        """Return the range of stored addresses from which the rows of a key within a range are computed."""
        return head, successor(head)

    def rows(self, head: bytes, entries: list[Stored], clocks: tuple[int, int]) -> list[Stored]:
        """Return the rows of a key by address, from its stored entries under the names of their namespaces."""
        return entries

    def sub(self, entry: Any) -> bytes:
        """Return the sub of an entry.

        Raises:
            EncodingError: It cannot be an entry of this state.
        """
        if self.schema.kind == "table" and not isinstance(entry, tuple):
            entry = (entry,)
        try:
            return self._encode_sub(entry)
        except (TypeError, StructError) as error:
            raise EncodingError(f"entry={entry!r:.100} is not an entry of the {self.schema}: {error}") from error

    def head_of(self, address: bytes) -> bytes:
        """Return the common prefix of the addresses of an address's key; a partial address is returned unchanged."""
        try:
            return address[: decode_key_at(address, _HEAD.size)[1]]
        except CorruptionError:
            return address

    def entry(self, prefix: bytes, sub: bytes, value: bytes | None) -> Entry:
        """Decode an entry; a removed one has no value."""
        key, namespace = self.place(prefix)
        if value is None:
            return Entry(key, namespace, self.decode_sub(sub), None)
        return Entry(key, namespace, self.decode_sub(sub), self.value(value), self.expires(value))

    def expires(self, value: bytes) -> int | None:
        """Return the end of a stored value's time to live, if it has one."""
        return None if self.clock is None else expiry(value)

    def values(self, values: list[bytes | None]) -> list[Any]:
        """Decode stored values; ``None`` if there is none."""
        decode = self._decode if self.clock is None and self._result is None else self.value
        return [None if value is None or value == NULL else decode(value) for value in values]

    def value(self, value: bytes) -> Any:
        """Decode a stored value."""
        decoded = self.decode(value if self.clock is None else value[8:])
        return decoded if self._result is None or decoded is None else self._result(decoded)


def key_prefix(prefix: Any) -> bytes:
    """Return the common prefix of the encodings of all keys that begin with ``prefix``.

    Args:
        prefix: Text, bytes, or the first parts of keys that are tuples, of which the last may be incomplete.

    Raises:
        EncodingError: No key begins with it.
    """
    if isinstance(prefix, str | bytes | tuple):
        # The encoding ends with a terminator byte, which longer text and tuples do not have there.
        return encode_key(prefix)[:-1]
    raise EncodingError(
        f"prefix={prefix!r} is {type_of(prefix)}; give text, bytes, or a tuple of the first parts of keys that "
        "are tuples; for other keys use from_= and to="
    )


def _bound(key: Any) -> bytes:
    """Return the encoding of a key, or of its first parts."""
    encoded = encode_key(key)
    # A tuple sorts before all tuples that it begins, with and without its terminator, which is the least byte.
    return encoded[:-1] if isinstance(key, tuple) else encoded


class EntriesOfBatch:
    """Entries after one batch, as a store with this batch alone.

    Args:
        at: The batch.
        entries: The (prefix, sub, value) of the entries.
    """

    def __init__(self, at: VersionedBatch, entries: Iterable[Stored]) -> None:
        self._at = at
        self._entries = sorted(entries)

    def batch(self, commit: int) -> VersionedBatch:
        """Return the batch."""
        return self._at

    def scan(self, first: bytes, end: bytes, commit: int, *, reverse: bool = False) -> Iterable[Stored]:
        """Return the (prefix, sub, value) of the entries from one prefix to before another."""
        low, high = (bisect_left(self._entries, prefix, key=itemgetter(0)) for prefix in (first, end))
        return self._entries[low:high][:: -1 if reverse else 1]


@attrs.define(eq=False, slots=False)
class StoredEntries:
    """Entries under their stored addresses.

    Args:
        store: The store that holds them.
        commit: The commit.
        reader: The reader of the state.
    """

    _store: VersionStore
    _commit: int
    _reader: EntryReader

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the value of an entry."""
        return self._store.get(prefix + sub, self._commit)

    def get_many(self, prefixes: list[bytes]) -> list[bytes | None]:
        """Return the values of states with one entry a key."""
        return self._store.get_many(prefixes, self._commit)

    def scan(self, first: bytes, end: bytes, *, reverse: bool) -> Iterator[Stored]:
        """Yield the (prefix, sub, value) of a range of addresses."""
        return self._store.scan(first, end, self._commit, reverse=reverse)

    def history(self, prefix: bytes, sub: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the (commit, value) of an entry's versions, the newest first, as `VersionStore.history` does."""
        return self._store.history(prefix + sub)

    def changes(self) -> Iterator[_Change]:
        """Yield the (prefix, sub, value before, value after) of what the commit changed, by address."""
        for address in self._store.changed(self._commit, *self._reader.range):
            change = self._store.change(address, self._commit)
            if change is not None:
                yield change


class OperatorTableReader(EntryReader):
    """Locates and decodes the rows of an operator's table.

    Args:
        operator: Name of the operator, and of the table.
        described: The description of the shown state, with its id.
        function: The operator or its aggregates, if the reader of the tables gave them.

    Raises:
        CorruptionError: There is no such class.
    """

    def __init__(self, operator: str, described: dict[str, Any], function: Any = None) -> None:
        super().__init__(described)
        self.inner = EntryReader(described)
        shown_as = described["schema"]["shown_as"]
        if shown_as["view"] != "windows":
            raise CorruptionError(f"operator {operator!r} has a table of an unknown kind, {shown_as['view']!r:.100}")
        codec = value_codec(list)
        make: Any = import_module("keyed.windows.window_table").WindowTable
        try:
            self.rows_of = make(shown_as, self.inner.value, codec.encode, codec.decode, function)
        except (AttributeError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"the table of operator {operator!r} is malformed ({error!r}): {shown_as!r:.200}"
            ) from error
        bounds = zip(self.rows_of.bounds, self.rows_of.are_times, strict=True)
        columns = [*((bound, "timestamp" if is_time else "object") for bound, is_time in bounds), *self.rows_of.columns]
        fields = {column: {"type": type_ or "object", "required": True} for column, type_ in columns}
        value = {"kind": "fields", "name": operator, "fields": fields}
        self.schema = StateSchema(operator, "window", self.rows_of.bounds, value)
        self.has_entries = bool(self.rows_of.bounds)

    @property
    def types(self) -> str:
        """The columns other than the key's, as text."""
        return ", ".join(f"{name}: {field['type']}" for name, field in self.schema.value["fields"].items())

    def sub(self, entry: Any) -> bytes:
        """Return the sub of a window: its start and end, or its start alone, in milliseconds or as datetimes."""
        parts = entry if isinstance(entry, tuple) else (entry,)
        return encode_key(self.rows_of.window_of(tuple(map(_milliseconds, parts))))

    def decode_sub(self, sub: bytes) -> Any:
        """Return the start and end of a window as times; ``None`` if there is one window."""
        if not self.has_entries:
            return None
        parts = zip(decode_key(sub), self.rows_of.are_times, strict=True)
        return tuple(shown_time(part) if is_time else part for part, is_time in parts)

    def value(self, value: bytes) -> Any:
        """Return the results of a row by column."""
        return self.rows_of.results(value)

    def values(self, values: list[bytes | None]) -> list[Any]:
        """Return the results of rows; ``None`` for a missing row."""
        return [None if value is None else self.value(value) for value in values]

    def window_bounds(self, example: Any, from_: int, to: int) -> tuple[bytes, bytes]:
        """Return the range of addresses of a key's windows that start in a range of times."""
        head = self.key_head(example.key) + _NONE
        return head + encode_key((from_,))[:-1], head + encode_key((to,))[:-1]

    def address(self, head: bytes, window: tuple[Any, ...]) -> tuple[bytes, bytes]:
        """Return the prefix and sub of a key's window."""
        return head + _NONE, encode_key(tuple(window)) if self.has_entries else b""

    def bounds_at(self, prefix: bytes, sub: bytes) -> tuple[bytes, bytes]:
        """Return the range of the windows with a window's start: an end need not be given."""
        start = _start_of(sub)
        return prefix + sub[:-1], successor(prefix) if start is None else prefix + encode_key((start + 1,))[:-1]

    def rows(self, head: bytes, entries: list[Stored], clocks: tuple[int, int]) -> list[Stored]:
        """Return the rows of a key by address, from its stored entries under the names of their namespaces."""
        decode = self.inner.decode_sub
        stored = ((decode_key_at(prefix, len(head))[0], decode(sub), value) for prefix, sub, value in entries)
        rows = self.rows_of.rows(stored, clocks)
        return sorted((*self.address(head, window), value) for window, value in rows.items())

    def range_of(self, head: bytes, first: bytes, end: bytes) -> tuple[bytes, bytes]:
        """Return the range of stored addresses from which the rows of a key within a range are computed."""
        start, stop = (_start_of(address[len(head) + len(_NONE) :]) for address in (first, end))
        where = None if start is None or stop is None else self.rows_of.range_of(start, stop)
        if where is None:
            return head, successor(head)
        in_namespaces, low, high = where
        inside = head if in_namespaces else head + _NONE
        return inside + encode_key((low,))[:-1], inside + encode_key((high,))[:-1]


@attrs.define(eq=False, slots=False)
class ComputedEntries(StoredEntries):
    """Entries that are computed from all stored ones of a key: under the names of namespaces, or rows of a table.

    Args:
        store: The store that holds them.
        commit: The commit.
        reader: The reader of the state or table.
        naming: The reader of the state with the names of namespaces, if they have names.

    Attributes:
        clocks: The watermark and the processing time after the commit.
    """

    _naming: EntryReader | None

    def __attrs_post_init__(self) -> None:
        at = self._store.batch(self._commit)
        self.clocks = at.watermark, at.processing_time
        self._rows_of = self._reader.rows_of

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the value of an entry; without a window's end, of the first window with the start."""
        rows = self.scan(*self._reader.bounds_at(prefix, sub), reverse=False)
        return next((value for _, each, value in rows if each.startswith(sub[:-1])), None)

    def get_many(self, prefixes: list[bytes]) -> list[bytes | None]:
        """Return the values of states with one entry a key."""
        return [self.get(prefix, b"") for prefix in prefixes]

    def scan(self, first: bytes, end: bytes, *, reverse: bool) -> Iterator[Stored]:
        """Yield the (prefix, sub, value) of a range of addresses."""
        head_of, has_names = self._reader.head_of, self._naming is not None
        low, high = head_of(first), head_of(end)
        bounds = (low, end if high == end else successor(high))
        if low == high and len(low) < min(len(first), len(end)) and not has_names:
            bounds = self._reader.range_of(low, first, end)
        stored = super().scan(*bounds, reverse=reverse)
        one_by_one = ((head_of(entry[0]), [entry]) for entry in stored)
        by_key = ((head, list(entries)) for head, entries in groupby(stored, lambda entry: head_of(entry[0])))
        # Stored values with rows of their own are not read ahead.
        for head, entries in by_key if has_names or not self._rows_of.is_apart else one_by_one:
            rows = self._rows(head, entries)
            for row in reversed(rows) if reverse else rows:
                if first <= row[0] + row[1] < end:
                    yield row

    def history(self, prefix: bytes, sub: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the (commit, value) of an entry's versions, the newest first, as `VersionStore.history` does."""
        commits = self._commits_of(prefix, sub)
        values = ((commit, self._as_of(commit).get(prefix, sub)) for commit in commits)
        for (commit, value), (_, before) in pairwise(chain(values, [(-1, None)])):
            if value != before:
                yield commit, value

    def changes(self) -> Iterator[_Change]:
        """Yield the (prefix, sub, value before, value after) of what the commit changed, by address."""
        before, changed, whole = self._as_of(self._commit - 1), dict[bytes, list[_Change]](), set[bytes]()
        for change in super().changes():
            changed.setdefault(self._reader.head_of(change[0]), []).append(change)
        if self._naming is not None:
            names = self._store.changed(self._commit, *self._naming.range)
            whole = {self._address(self._naming.head_of(address), self._reader) for address in names}
        if self._rows_of is not None and not self._rows_of.is_apart:
            whole |= changed.keys()
            if self._rows_of.removes(before.clocks, self.clocks):
                stored = super().scan(*self._reader.range, reverse=False)
                whole |= {self._reader.head_of(prefix) for prefix, _, _ in stored}
        for head in sorted(changed.keys() | whole):
            after: dict[_Place, bytes | None] = {}
            if head in whole:
                stored = super().scan(head, successor(head), reverse=False)
                after = {(prefix, sub): value for prefix, sub, value in stored}
            older = dict(after)
            for prefix, sub, old, new in changed.get(head, ()):
                older[prefix, sub], after[prefix, sub] = old, new
            was, now = before.rows_at(head, older), self.rows_at(head, after)
            for place in sorted(was.keys() | now.keys()):
                if was.get(place) != now.get(place):
                    yield *place, was.get(place), now.get(place)

    def _rows(self, head: bytes, entries: list[Stored]) -> list[Stored]:
        """Return the rows of a key by address, from its stored entries."""
        if self._naming is not None:
            first, at = self._address(head, self._naming) + _NONE, len(head)
            pairs = self._store.scan(first, successor(first), self._commit)
            names = dict(_encode_pair(self._naming.value(pair)) for _, _, pair in pairs)
            entries = [(head + names.get(prefix[at:], prefix[at:]), sub, value) for prefix, sub, value in entries]
        return self._reader.rows(head, sorted(entries), self.clocks)

    def rows_at(self, head: bytes, held: dict[_Place, bytes | None]) -> dict[_Place, bytes]:
        """Return the rows of a key by place, from its stored entries by place."""
        entries = [(*place, value) for place, value in held.items() if value is not None]
        return {(prefix, sub): value for prefix, sub, value in self._rows(head, entries)}

    def _address(self, head: bytes, reader: EntryReader) -> bytes:
        """Return the common prefix of a key's addresses in another state."""
        first = reader.range[0]
        return first + head[len(first) :]

    def _as_of(self, commit: int) -> ComputedEntries:
        return ComputedEntries(self._store, commit, self._reader, self._naming)

    def _commits_of(self, prefix: bytes, sub: bytes) -> Iterable[int]:
        """Return the commits that may have changed an entry, the newest first."""
        extent, changed, head = self._store.extent, self._store.changed, self._reader.head_of(prefix)
        assert extent is not None
        window = decode_key(sub) if sub else ()
        places = None if self._naming is not None else self._rows_of.places(window)
        if places is None:
            heads = [head] if self._naming is None else [head, self._address(head, self._naming)]
            ranges = [(first, successor(first)) for first in heads]
            commits = range(extent.newest, extent.oldest, -1)
            return chain((n for n in commits if any(changed(n, *each) for each in ranges)), [extent.oldest])
        numbers: set[int] = set()
        for namespace, entry in places:
            address = head + encode_key(namespace) + (b"" if entry is None else self._reader.inner.sub(entry))
            numbers.update(number for number, _ in self._store.history(address))
        removed_at = self._rows_of.removed_at(window)
        if removed_at is not None:
            numbers.update(self._commits_at(removed_at, extent))
        return sorted({max(commit, extent.oldest) for commit in numbers}, reverse=True)

    def _commits_at(self, time: int, extent: Extent) -> Iterator[int]:
        """Yield the first commits at which the clock of the windows has reached a time, in each run of the job."""
        ends = [*(era.commit - 1 for era in extent.eras[1:]), extent.newest]
        for era, high in zip(extent.eras, ends, strict=True):
            low = max(era.commit, extent.oldest)
            if low <= high:
                yield low
                yield low + bisect_left(range(low, high), time, key=self._clock_at)

    def _clock_at(self, commit: int) -> int:
        """Return the clock of the windows after a commit."""
        clock: int = self._rows_of.clock_of(self._as_of(commit).clocks)
        return clock


def _encode_pair(pair: Any) -> tuple[bytes, bytes]:
    """Return the encoded namespace and name of a pair."""
    try:
        name, namespace = pair
    except (TypeError, ValueError) as error:
        raise EncodingError(f"{pair!r:.100} is not a pair of a name and a namespace") from error
    return encode_key(namespace), encode_key(name)


def _start_of(encoded: bytes) -> int | None:
    """Return the first number of a complete or partial tuple; ``None`` if there is none."""
    try:
        start = decode_key_at(encoded, 1)[0] if encoded[:1] == _TUPLE else None
    except CorruptionError:
        return None
    return start if type(start) is int else None


def _milliseconds(part: Any) -> Any:
    if isinstance(part, datetime):
        if part.tzinfo is None:
            raise DefinitionError(f"entry={part!r} has no time zone; give an aware datetime, or milliseconds")
        return instant_ms(part)
    return part


def shown_time(milliseconds: Any) -> Any:
    """Return a time as a datetime; a time outside of the range of datetimes is returned as milliseconds."""
    try:
        return instant_of(milliseconds) if type(milliseconds) is int else milliseconds
    except OverflowError:
        return milliseconds
