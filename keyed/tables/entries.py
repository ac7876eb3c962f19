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
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from importlib import import_module
from itertools import chain, groupby, pairwise
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import TYPE_CHECKING, Any, TypeVar

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

    Raises:
        StateSchemaChanged: ``type_`` does not fit the stored entries.
    """

    def __init__(self, described: dict[str, Any], type_: Any = None) -> None:
        super().__init__(described)
        schema = self.schema
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


_NONE, _TUPLE = encode_key(None), encode_key(())[:1]
_Place = TypeVar("_Place", bytes, tuple[bytes, bytes])
_Stored = tuple[bytes, bytes, bytes]
_Change = tuple[bytes, bytes, bytes | None, bytes | None]


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

    def scan(self, first: bytes, end: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
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


def differences(
    before: Mapping[_Place, bytes | None], after: Mapping[_Place, bytes | None]
) -> Iterator[tuple[_Place, bytes | None, bytes | None]]:
    """Yield the (place, value before, value after) of entries that differ, by place."""
    for place in sorted(before.keys() | after.keys()):
        old, new = before.get(place), after.get(place)
        if old != new:
            yield place, old, new


class ComputedEntries(StoredEntries):
    """Entries that are computed from the stored ones of a key."""

    def get_many(self, prefixes: list[bytes]) -> list[bytes | None]:
        """Return the values of states with one entry a key."""
        return [self.get(prefix, b"") for prefix in prefixes]

    def history(self, prefix: bytes, sub: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the (commit, value) of an entry's versions, the newest first, as `VersionStore.history` does."""
        commits = self._commits_of(prefix, sub)
        values = ((commit, self._as_of(commit).get(prefix, sub)) for commit in commits)
        for (commit, value), (_, before) in pairwise(chain(values, [(-1, None)])):
            if value != before:
                yield commit, value

    def _commits_of(self, prefix: bytes, sub: bytes) -> Iterable[int]:
        """Return the commits that may have changed an entry, the newest first."""
        raise NotImplementedError

    def _as_of(self, commit: int) -> StoredEntries:
        """Return the entries as of another commit."""
        raise NotImplementedError


class Names:
    """The names of the namespaces of one key, both encoded.

    Args:
        pairs: Pairs of a name and a namespace.

    Raises:
        EncodingError: One has another form.
    """

    def __init__(self, pairs: Iterable[Any] = ()) -> None:
        self._stored = dict(map(_encode_pair, pairs))
        self._shown = {namespace: name for name, namespace in self._stored.items()}

    def shown(self, namespace: bytes) -> bytes:
        """Return the name of a namespace, or the namespace itself if it has no name."""
        return self._shown.get(namespace, namespace)

    def stored(self, name: bytes) -> bytes | None:
        """Return the namespace with a name; ``None`` if the name is a namespace that has another name."""
        return self._stored.get(name, None if name in self._shown else name)


def _encode_pair(pair: Any) -> tuple[bytes, bytes]:
    try:
        name, namespace = pair
    except (TypeError, ValueError) as error:
        raise EncodingError(f"{pair!r:.100} is not a pair of a name and a namespace") from error
    return encode_key(name), encode_key(namespace)


def shown_entries(
    reader: EntryReader, naming: EntryReader | None, stored: Iterable[tuple[bytes, bytes, bytes]]
) -> list[tuple[bytes, bytes, bytes]]:
    """Return the entries of a state under the names of their namespaces, by address.

    Args:
        reader: The reader of the state.
        naming: The reader of the state with the names, if there is one.
        stored: The (prefix, sub, value) of stored entries of all states.
    """
    (first, end), pairs = reader.range, dict[bytes, list[Any]]()
    entries = [entry for entry in stored if first <= entry[0] < end]
    if naming is None:
        return sorted(entries)
    low, high = naming.range
    for prefix, _, value in stored:
        if low <= prefix < high and prefix.endswith(_NONE):
            pairs.setdefault(first + prefix[len(low) : -len(_NONE)], []).append(naming.value(value))
    names = {head: Names(held) for head, held in pairs.items()}
    shown = []
    for prefix, sub, value in entries:
        head = reader.head_of(prefix)
        shown.append((head + names.get(head, Names()).shown(prefix[len(head) :]), sub, value))
    return sorted(shown)


@attrs.define(eq=False, slots=False)
class NamedEntries(ComputedEntries):
    """Entries under the names of their namespaces.

    Args:
        store: The store that holds them.
        commit: The commit.
        reader: The reader of the state.
        names_reader: The reader of the state with the names.
    """

    _names_reader: EntryReader

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the value of an entry."""
        head = self._reader.head_of(prefix)
        namespace = self._names(head).stored(prefix[len(head) :])
        return None if namespace is None else super().get(head + namespace, sub)

    def scan(self, first: bytes, end: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield the (prefix, sub, value) of a range of addresses. All entries of each key in the range are read."""
        low, high = self._reader.head_of(first), self._reader.head_of(end)
        stored = super().scan(low, end if high == end else successor(high), reverse=reverse)
        for head, entries in groupby(stored, lambda entry: self._reader.head_of(entry[0])):
            names = self._names(head)
            shown = [(head + names.shown(prefix[len(head) :]), sub, value) for prefix, sub, value in entries]
            for prefix, sub, value in sorted(shown, key=lambda entry: entry[0] + entry[1], reverse=reverse):
                if first <= prefix + sub < end:
                    yield prefix, sub, value

    def _commits_of(self, prefix: bytes, sub: bytes) -> Iterator[int]:
        extent, changed = self._store.extent, self._store.changed
        assert extent is not None
        head = self._reader.head_of(prefix)
        ranges = [(first, successor(first)) for first in (head, self._address(head))]
        for commit in range(extent.newest, extent.oldest - 1, -1):
            if commit == extent.oldest or any(changed(commit, *each) for each in ranges):
                yield commit

    def _as_of(self, commit: int) -> NamedEntries:
        return NamedEntries(self._store, commit, self._reader, self._names_reader)

    def changes(self) -> Iterator[_Change]:
        """Yield the (prefix, sub, value before, value after) of what the commit changed, by address."""
        changed: dict[bytes, list[_Change]] = {}
        for change in super().changes():
            changed.setdefault(self._reader.head_of(change[0]), []).append(change)
        renamed: dict[bytes, dict[bytes, bytes | None]] = {}
        for prefix, sub, old, _ in StoredEntries(self._store, self._commit, self._names_reader).changes():
            head = self._reader.range[0] + prefix[len(self._reader.range[0]) : -len(_NONE)]
            renamed.setdefault(head, {})[sub] = old
        for head in sorted(changed.keys() | renamed.keys()):
            after: dict[tuple[bytes, bytes], bytes | None] = {}
            stored = self._stored_names(head)
            names = (self._decode(stored | renamed.get(head, {})), self._decode(stored))
            if head in renamed:
                now = StoredEntries.scan(self, head, successor(head), reverse=False)
                after = {(prefix, sub): value for prefix, sub, value in now}
            before = dict(after)
            for prefix, sub, old, new in changed.get(head, ()):
                before[prefix, sub], after[prefix, sub] = old, new
            shown = [
                {
                    (head + named.shown(prefix[len(head) :]), sub): value
                    for (prefix, sub), value in entries.items()
                    if value is not None
                }
                for named, entries in zip(names, (before, after), strict=True)
            ]
            for (prefix, sub), old, new in differences(*shown):
                yield prefix, sub, old, new

    def _address(self, head: bytes) -> bytes:
        """Return the address of the names of a key."""
        first = self._names_reader.range[0]
        return first + head[len(first) :] + _NONE

    def _stored_names(self, head: bytes) -> dict[bytes, bytes | None]:
        """Return the stored pairs of a key by their subs."""
        first = self._address(head)
        return {sub: pair for _, sub, pair in self._store.scan(first, successor(first), self._commit, reverse=False)}

    def _decode(self, stored: dict[bytes, bytes | None]) -> Names:
        return Names(self._names_reader.value(pair) for pair in stored.values() if pair is not None)

    def _names(self, head: bytes) -> Names:
        return self._decode(self._stored_names(head))


class OperatorTableReader(EntryReader):
    """Locates and decodes the rows of an operator's table.

    Args:
        operator: Name of the operator, and of the table.
        described: The description of the shown state, with its id.
        function: The operator or its aggregates, if the reader of the tables gave them.

    Attributes:
        inner: Reads the shown state.
        rows_of: The class that computes rows.

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

    def rows_by_sub(self, entries: list[_Stored], clocks: tuple[int, int]) -> dict[bytes, bytes]:
        """Return the rows of a key by their subs, in their order, from its stored entries."""
        decode = self.inner.decode_sub

        def stored() -> Iterator[tuple[Any, Any, bytes]]:
            for prefix, sub, value in entries:
                yield decode_key_at(prefix, decode_key_at(prefix, 3)[1])[0], decode(sub), value

        rows = self.rows_of.rows(stored(), clocks)
        return dict(sorted((self.address(b"", window)[1], value) for window, value in rows.items()))

    def rows_of_entries(self, entries: list[_Stored], clocks: tuple[int, int]) -> Iterator[Entry]:
        """Yield the rows of all keys from their stored entries in the order of their addresses."""
        for head, of_key in groupby(entries, lambda entry: self.head_of(entry[0])):
            for sub, value in self.rows_by_sub(list(of_key), clocks).items():
                yield Entry(decode_key_at(head, 3)[0], None, self.decode_sub(sub), self.value(value))

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
class OperatorTableEntries(ComputedEntries):
    """The rows of an operator's table as of a commit.

    Args:
        store: The store that holds them.
        commit: The commit.
        reader: The reader of the table.
        source_at: Returns the stored entries of the state as of a commit.
    """

    _reader: OperatorTableReader
    _source_at: Callable[[VersionedBatch], StoredEntries]

    def __attrs_post_init__(self) -> None:
        self._at = self._store.batch(self._commit)
        self._source = self._source_at(self._at)

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the value of a row; without a window's end, of the first window with the start."""
        head = self._reader.head_of(prefix)
        if prefix != head + _NONE:
            return None
        start = _start_of(sub)
        end = prefix if start is None else prefix + encode_key((start + 1,))
        bounds = self._reader.range_of(head, prefix + sub, end)
        rows = self._rows(self._at, list(self._source.scan(*bounds, reverse=False)))
        row = rows.get(sub)
        if row is None and sub:
            return next((value for each, value in rows.items() if each.startswith(sub[:-1])), None)
        return row

    def scan(self, first: bytes, end: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield the (prefix, sub, value) of a range of addresses."""
        low, high = self._reader.head_of(first), self._reader.head_of(end)
        bounds = (low, end if high == end else successor(high))
        if low == high and len(low) < min(len(first), len(end)):
            bounds = self._reader.range_of(low, first, end)
        stored = self._source.scan(*bounds, reverse=reverse)
        one_by_one = ((self._reader.head_of(entry[0]), [entry]) for entry in stored)
        # Stored values with rows of their own are not read ahead.
        for head, entries in one_by_one if self._reader.rows_of.is_apart else self._by_key(stored):
            prefix = head + _NONE
            rows = self._rows(self._at, entries[::-1] if reverse else entries).items()
            for sub, value in reversed(rows) if reverse else rows:
                if first <= prefix + sub < end:
                    yield prefix, sub, value

    def changes(self) -> Iterator[_Change]:
        """Yield the (prefix, sub, value before, value after) of the rows that the commit changed, by address."""
        changed: dict[bytes, list[_Change]] = {}
        for change in self._source.changes():
            changed.setdefault(self._reader.head_of(change[0]), []).append(change)
        before = self._store.batch(self._commit - 1)
        heads: set[bytes] = {*changed}
        if self._reader.rows_of.removes(_clocks(before), _clocks(self._at)):
            heads |= {head for head, _ in self._by_key(self._source.scan(*self._reader.range, reverse=False))}
        for head in sorted(heads):
            after: dict[tuple[bytes, bytes], bytes | None] = {}
            if head not in changed or not self._reader.rows_of.is_apart:
                stored = self._source.scan(head, successor(head), reverse=False)
                after = {(prefix, sub): value for prefix, sub, value in stored}
            older = dict(after)
            for prefix, sub, old, new in changed.get(head, ()):
                older[prefix, sub], after[prefix, sub] = old, new
            was, now = (
                self._rows(at, sorted((*place, value) for place, value in entries.items() if value is not None))
                for at, entries in ((before, older), (self._at, after))
            )
            for sub, old, new in differences(was, now):
                yield head + _NONE, sub, old, new

    def _rows(self, at: VersionedBatch, entries: list[_Stored]) -> dict[bytes, bytes]:
        return self._reader.rows_by_sub(entries, _clocks(at))

    def _by_key(self, stored: Iterator[_Stored]) -> Iterator[tuple[bytes, list[_Stored]]]:
        """Yield the stored entries of each key."""
        groups = groupby(stored, lambda entry: self._reader.head_of(entry[0]))
        return ((head, list(entries)) for head, entries in groups)

    def _as_of(self, commit: int) -> OperatorTableEntries:
        return OperatorTableEntries(self._store, commit, self._reader, self._source_at)

    def _commits_of(self, prefix: bytes, sub: bytes) -> list[int]:
        extent = self._store.extent
        assert extent is not None
        return sorted({max(commit, extent.oldest) for commit in self._changes_of(prefix, sub, extent)}, reverse=True)

    def _changes_of(self, prefix: bytes, sub: bytes, extent: Extent) -> Iterator[int]:
        """Yield the commits that may have changed a row, in no order."""
        head = self._reader.head_of(prefix)
        window = decode_key(sub) if sub else ()
        places = self._reader.rows_of.places(window)
        if places is None:
            is_named = self._reader.inner.schema.named_by is not None
            for commit in range(extent.oldest, extent.newest + 1):
                if commit == extent.oldest or is_named or self._store.changed(commit, head, successor(head)):
                    yield commit
            return
        for namespace, entry in places:
            address = b"" if entry is None else self._reader.inner.sub(entry)
            yield from (number for number, _ in self._source.history(head + encode_key(namespace), address))
        removed_at = self._reader.rows_of.removed_at(window)
        if removed_at is not None:
            yield from self._commits_at(removed_at, extent)

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
        clock: int = self._reader.rows_of.clock_of(_clocks(self._store.batch(commit)))
        return clock


def _clocks(at: VersionedBatch) -> tuple[int, int]:
    return at.watermark, at.processing_time


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
