"""Map state over a key group's entries. A map entry is an entry of its own; one is read without the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from keyed.codec.map_keys import map_key_codec
from keyed.codec.values import value_codec
from keyed.engine.bound import MISSING, REMOVED, Cell, CellState
from keyed.engine.isolation import isolation_of
from keyed.errors import EncodingError
from keyed.state import MapState

if TYPE_CHECKING:
    from keyed.engine.changes import Changes
    from keyed.engine.scope import Scope


#: Number of encoded map keys that are cached.
_MOST_KNOWN = 4096


class _MapCell(Cell):
    """The map of one key: entries read, and entries written or removed by the batch, by encoded map key.

    With retained entries, ``read`` has all entries from before the batch.
    """

    __slots__ = ("read", "written")

    def __init__(self, prefix: bytes, retained: dict[bytes, Any] | None) -> None:
        super().__init__(prefix, retained)
        self.read = {} if retained is None else retained
        self.written: dict[bytes, Any] = {}


class BoundMapState(CellState[_MapCell], MapState[Any, Any]):
    """`MapState` in a key group."""

    cell_type = _MapCell

    def __init__(self, declaration: MapState[Any, Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        keys = map_key_codec(declaration.key_type)
        self._encode_key, self._decode_key = keys.encode, keys.decode
        self.hold(isolation_of(value_codec(declaration.value_type)))
        # Map keys of this class are encoded once, because the same few keys repeat.
        self._known_class = declaration.key_type if declaration.key_type in (int, str) else None
        self._known: dict[Any, bytes] = {}
        #: The same class, if reads return the held values.
        self._quick_class = self._known_class if self.ttl is None and self.isolation.gives_held else None

    def _sub(self, key: Any) -> bytes:
        is_known = key.__class__ is self._known_class
        sub = self._known.get(key) if is_known else None
        if sub is None:
            try:
                sub = self._encode_key(key)
            except EncodingError as error:
                raise EncodingError(f"map state {self.name!r}: {error}") from error
            if is_known:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[key] = sub
        return sub

    def _load(self, cell: _MapCell, sub: bytes) -> Any:
        """Return the item at ``sub``, or `MISSING`."""
        item = cell.written.get(sub, MISSING)
        if item is MISSING and not cell.cleared:
            item = cell.read.get(sub, MISSING)
            if item is MISSING and not self._retains:
                raw = self._scope.store.get(cell.prefix, sub)
                item = cell.read[sub] = REMOVED if raw is None else self.unwrap(raw, self.decode)
        return MISSING if item is REMOVED else item

    def _unexpired(self, cell: _MapCell, sub: bytes, item: Any) -> Any:
        """Return the held value of ``item``, or `MISSING` if it has expired."""
        if self.ttl is None or item is MISSING:
            return item
        held, due = item
        if self.expired(due):
            return MISSING
        if self._refreshes and (later := self.refreshed(due)) != due:
            cell.written[sub] = (held, later)
        return held

    def _given(self, held: Any) -> Any:
        """Return the value of a held value."""
        return held if held is None or self.isolation.gives_held else self.give(held)

    def _find(self, key: Any) -> Any:
        cell, sub = self._cells.get(self._scope.key) or self._cell(), self._sub(key)
        item = self._load(cell, sub)
        return item if self.ttl is None else self._unexpired(cell, sub, item)

    def get(self, key: Any, default: Any = None) -> Any:
        # Rows mostly read entries that an earlier row has written, so this path avoids calls.
        if key.__class__ is self._quick_class:
            cell, sub = self._cells.get(self._scope.key), self._known.get(key)
            held = None if cell is None or sub is None else cell.written.get(sub)
            if held is not None and held is not REMOVED:
                return held
        held = self._find(key)
        return default if held is MISSING else self._given(held)

    def put(self, key: Any, value: Any) -> None:
        held = value if value is None or value.__class__ in self.plain else self.take(value)
        cell = self._cells.get(self._scope.key) or self._cell()
        sub = (self._known.get(key) if key.__class__ is self._known_class else None) or self._sub(key)
        cell.written[sub] = held if self.ttl is None else (held, self.due_time())

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        for key, value in dict(entries).items():
            self.put(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        held = self._find(key)
        if held is not MISSING:
            return self._given(held)
        self.put(key, default)
        return self._given(self._find(key))

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        held = self._find(key)
        if held is not MISSING:
            self.remove(key)
            return self._given(held)
        if default is MISSING:
            raise KeyError(key)
        return default

    def remove(self, key: Any) -> None:
        self._cell().written[self._sub(key)] = REMOVED

    def contains(self, key: Any) -> bool:
        return self._find(key) is not MISSING

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not MISSING

    def __getitem__(self, key: Any) -> Any:
        held = self._find(key)
        if held is MISSING:
            raise KeyError(key)
        return self._given(held)

    def __delitem__(self, key: Any) -> None:
        if self._find(key) is MISSING:
            raise KeyError(key)
        self.remove(key)

    def _entries(self) -> Iterator[tuple[bytes, Any]]:
        """Yield the live pairs of sub and held value of the current key, in order of sub."""
        return self._live(self._cell())

    def _live(self, cell: _MapCell) -> Iterator[tuple[bytes, Any]]:
        """Yield the live pairs of a cell, of keys that exist at the start: it may change during the iteration."""
        removed = {sub for sub, item in cell.written.items() if item is REMOVED}
        subs = cell.written.keys() | cell.read.keys() if self._retains and not cell.cleared else cell.written.keys()
        new = iter(sorted(subs - removed))
        stored: Iterator[tuple[bytes, bytes]] = iter(())
        if not (self._retains or cell.cleared):
            scan = self._scope.store.scan(cell.prefix)
            stored = (entry for entry in scan if entry[0] not in removed) if removed else scan
        next_new, next_stored = next(new, None), next(stored, None)
        while next_new is not None or next_stored is not None:
            if next_stored is None or (next_new is not None and next_new <= next_stored[0]):
                assert next_new is not None
                sub = next_new
                if next_stored is not None and next_stored[0] == sub:
                    next_stored = next(stored, None)
                next_new = next(new, None)
            else:
                sub, raw = next_stored
                next_stored = next(stored, None)
                if not cell.cleared and sub not in cell.written and sub not in cell.read:
                    cell.read[sub] = self.unwrap(raw, self.decode)
            held = self._unexpired(cell, sub, self._load(cell, sub))
            if held is not MISSING:
                yield sub, held

    def keys(self) -> Iterator[Any]:
        return (self._decode_key(sub) for sub, _ in self._entries())

    def values(self) -> Iterator[Any]:
        return (self._given(held) for _, held in self._entries())

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((self._decode_key(sub), self._given(held)) for sub, held in self._entries())

    def is_empty(self) -> bool:
        return next(self._entries(), None) is None

    def clear(self) -> None:
        cell = self._cell()
        cell.cleared = True
        cell.written = {}

    def _retain(self, changes: Changes) -> None:
        cells = [(key, cell) for key, cell in self._cells.items() if cell.written or cell.cleared]
        values = chain.from_iterable(cell.written.values() for _, cell in cells)
        unchanged = self.isolation.unchanged([item for item in values if item is not None and item is not REMOVED])
        for key, cell in cells:
            before = len(cell.read)
            entries = {} if cell.cleared else cell.read
            for sub, item in cell.written.items():
                if item is REMOVED:
                    entries.pop(sub, None)
                else:
                    entries[sub] = item if unchanged else self.stored(item, key)
            if entries:
                self._retained[key] = entries
            else:
                self._retained.pop(key, None)
            changes.entries += len(entries) - before

    def _flush(self, changes: Changes) -> None:
        encode = self.encode
        for key, cell in self._cells.items():
            prefix, written = cell.prefix, cell.written
            if cell.cleared:
                self.remove_all(changes, prefix, written)
            for sub, item in written.items():
                self.write(changes, prefix, sub, None if item is REMOVED else self.wrap(item, encode, key))
