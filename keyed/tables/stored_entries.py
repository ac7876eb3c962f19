"""Stored entries of a state after a commit, by the addresses under which they are shown.

They are the stored addresses, unless namespaces have names (``named_by`` of a state): windows that merge keep their
contents in place, and the map state that ``named_by`` names has the pairs of their current window and its namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from keyed.codec.keys import encode_key
from keyed.errors import EncodingError
from keyed.stores.database import successor

if TYPE_CHECKING:
    from keyed.stores.version_store import VersionStore
    from keyed.tables.entries import EntryReader

_NONE = encode_key(None)
_Place = TypeVar("_Place", bytes, tuple[bytes, bytes])
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
