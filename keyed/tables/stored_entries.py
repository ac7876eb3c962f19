"""Stored entries of a state after a commit, by the addresses under which they are shown.

They are the stored addresses, except for namespaces with names (``named_by`` of a state): windows that merge keep their
contents in place, and the state that ``named_by`` names maps them to their current window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from keyed.codec.keys import encode_key
from keyed.errors import EncodingError
from keyed.stores.database import successor

if TYPE_CHECKING:
    from keyed.stores.version_store import VersionStore
    from keyed.tables.entries import EntryReader

_NONE = encode_key(None)
_Change = tuple[bytes, bytes, bytes | None, bytes | None]


class StoredEntries:
    """Entries under their stored addresses.

    Args:
        store: The store that holds them.
        commit: The commit.
        reader: The reader of the state.
    """

    def __init__(self, store: VersionStore, commit: int, reader: EntryReader) -> None:
        self._store = store
        self._commit = commit
        self._reader = reader

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


class Names:
    """The names of the namespaces of one key, both encoded.

    Args:
        pairs: Pairs of a name and a namespace, or a dict of the same.

    Raises:
        EncodingError: It has another form.
    """

    def __init__(self, pairs: Any = None) -> None:
        found = pairs.items() if isinstance(pairs, dict) else pairs or ()
        try:
            self._stored = {encode_key(name): encode_key(namespace) for name, namespace in found}
        except (TypeError, ValueError) as error:
            raise EncodingError(f"{pairs!r:.100} does not hold pairs of a name and a namespace") from error
        self._shown = {namespace: name for name, namespace in self._stored.items()}

    def shown(self, namespace: bytes) -> bytes:
        """Return the name of a namespace, or the namespace itself if it has no name."""
        return self._shown.get(namespace, namespace)

    def stored(self, name: bytes) -> bytes | None:
        """Return the namespace with a name; ``None`` if the name is a namespace that has another name."""
        return self._stored.get(name, None if name in self._shown else name)


def shown_entries(
    reader: EntryReader, naming: EntryReader | None, stored: Iterable[tuple[bytes, bytes, bytes]]
) -> list[tuple[bytes, bytes, bytes]]:
    """Return the entries of a state under the names of their namespaces, by address.

    Args:
        reader: The reader of the state.
        naming: The reader of the state with the names, if there is one.
        stored: The (prefix, sub, value) of stored entries of all states.
    """
    (first, end), names = reader.range, dict[bytes, Names]()
    entries = [entry for entry in stored if first <= entry[0] < end]
    if naming is None:
        return sorted(entries)
    low, high = naming.range
    for prefix, _, value in stored:
        if low <= prefix < high and prefix.endswith(_NONE):
            names[first + prefix[len(low) : -len(_NONE)]] = Names(naming.value(value))
    found = []
    for prefix, sub, value in entries:
        head = reader.head_of(prefix)
        found.append((head + names.get(head, Names()).shown(prefix[len(head) :]), sub, value))
    return sorted(found)


class NamedEntries(StoredEntries):
    """Entries under the names of their namespaces.

    Args:
        store: The store that holds them.
        commit: The commit.
        reader: The reader of the state.
        names: The reader of the state with the names.
    """

    def __init__(self, store: VersionStore, commit: int, reader: EntryReader, names: EntryReader) -> None:
        super().__init__(store, commit, reader)
        self._names_reader = names

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the value of an entry."""
        head = self._reader.head_of(prefix)
        namespace = self._names(head).stored(prefix[len(head) :])
        return None if namespace is None else super().get(head + namespace, sub)

    def get_many(self, prefixes: list[bytes]) -> list[bytes | None]:
        """Return the values of states with one entry a key."""
        return [self.get(prefix, b"") for prefix in prefixes]

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

    def history(self, prefix: bytes, sub: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the (commit, value) of an entry's versions, the newest first, as `VersionStore.history` does."""
        extent = self._store.extent
        oldest = 0 if extent is None else extent.oldest
        head = self._reader.head_of(prefix)
        names = [(number, self._decoded(value)) for number, value in self._store.history(self._address(head))]
        # There are no names before the first version of the state with the names.
        homes = [(number, found.stored(prefix[len(head) :])) for number, found in [*names, (-1, Names())]]
        versions = {
            namespace: [*self._store.history(head + namespace + sub), (-1, None)]
            for _, namespace in homes
            if namespace is not None
        }

        def value_at(number: int) -> bytes | None:
            namespace = next(namespace for since, namespace in homes if since <= number)
            return None if namespace is None else next(value for since, value in versions[namespace] if since <= number)

        numbers = {number for found in (homes, *versions.values()) for number, _ in found if number >= 0}
        newer = sorted({max(number, oldest) for number in numbers}, reverse=True)
        values = [*map(value_at, newer), None]
        for at, number in enumerate(newer):
            if values[at] != values[at + 1]:
                yield number, values[at]

    def changes(self) -> Iterator[_Change]:
        """Yield the (prefix, sub, value before, value after) of what the commit changed, by address."""
        changed: dict[bytes, list[_Change]] = {}
        for change in super().changes():
            changed.setdefault(self._reader.head_of(change[0]), []).append(change)
        renamed: dict[bytes, tuple[Names, Names]] = {}
        for prefix, _, old, new in StoredEntries(self._store, self._commit, self._names_reader).changes():
            head = self._reader.range[0] + prefix[len(self._reader.range[0]) : -len(_NONE)]
            renamed[head] = self._decoded(old), self._decoded(new)
        for head in sorted(changed.keys() | renamed.keys()):
            after: dict[tuple[bytes, bytes], bytes | None] = {}
            if head in renamed:
                now = StoredEntries.scan(self, head, successor(head), reverse=False)
                after = {(prefix, sub): value for prefix, sub, value in now}
                names = renamed[head]
            else:
                names = (self._names(head),) * 2
            before = dict(after)
            for prefix, sub, old, new in changed.get(head, ()):
                before[prefix, sub], after[prefix, sub] = old, new
            found = [
                {
                    (head + there.shown(prefix[len(head) :]), sub): value
                    for (prefix, sub), value in entries.items()
                    if value is not None
                }
                for there, entries in zip(names, (before, after), strict=True)
            ]
            for prefix, sub in sorted(found[0].keys() | found[1].keys(), key=b"".join):
                old, new = (entries.get((prefix, sub)) for entries in found)
                if old != new:
                    yield prefix, sub, old, new

    def _address(self, head: bytes) -> bytes:
        """Return the address of the names of a key."""
        first = self._names_reader.range[0]
        return first + head[len(first) :] + _NONE

    def _names(self, head: bytes) -> Names:
        return self._decoded(self._store.get(self._address(head), self._commit))

    def _decoded(self, value: bytes | None) -> Names:
        return Names(None if value is None else self._names_reader.value(value))
