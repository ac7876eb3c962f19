"""Map state over a key group's entries, and broadcast state over the group's own copy of it.

A map entry is an entry of its own; one is read without the others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NoReturn

from keyed.codec.map_keys import map_key_codec
from keyed.codec.values import value_codec
from keyed.engine.bound import MISSING, REMOVED, Cell, CellState, Scope, isolation_of
from keyed.engine.changes import Changes
from keyed.errors import EncodingError, StateAccessError
from keyed.job.state import MapState

#: Number of encoded map keys that are cached.
_MOST_KNOWN = 4096


class _Entries(dict[bytes, Any]):
    """Entries from before the batch, by encoded map key.

    Attributes:
        live: Their keys in order; ``None`` until the first iteration, and while a cell has them.
    """

    __slots__ = ("live",)

    def __init__(self) -> None:
        self.live: list[bytes] | None = None


class _MapCell(Cell):
    """The map of one key: entries read, and entries written or removed by the batch, by encoded map key.

    With retained entries, ``read`` has all entries from before the batch.

    Attributes:
        live: The keys of live entries in order: the written ones, and those from before the batch as far as they were
            found. From the first iteration on, so that an iteration costs what it yields, not what was written.
        scanned: The number of stored entries found so far, in order; ``None`` if there are no others.
        scanned_to: The key of the last one.
        walks: For each running iteration, the keys that were written or removed since it began: true if they existed.
        edits: Number of changes of ``live``.
    """

    __slots__ = ("edits", "live", "read", "scanned", "scanned_to", "walks", "written")

    def __init__(self, prefix: bytes, retained: _Entries | None) -> None:
        super().__init__(prefix, retained)
        self.read = _Entries() if retained is None else retained
        self.live, self.read.live = self.read.live, None
        self.written: dict[bytes, Any] = {}
        self.scanned: int | None = 0
        self.scanned_to = b""
        self.walks: list[dict[bytes, bool]] = []
        self.edits = 0


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
        self._quick_class = self._known_class if self.ttl is None and self.isolation.is_immutable else None

    def _sub(self, key: Any) -> bytes:
        is_known = type(key) is self._known_class
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

    def _value_of(self, held: Any) -> Any:
        """Return the value of a held value."""
        return held if held is None or self.isolation.is_immutable else self.thaw(held)

    def _find(self, key: Any) -> Any:
        cell, sub = self._cells.get(self._scope.key) or self._cell(), self._sub(key)
        item = self._load(cell, sub)
        return item if self.ttl is None else self._unexpired(cell, sub, item)

    def get(self, key: Any, default: Any = None) -> Any:
        # Rows mostly read entries that an earlier row has written, so this path avoids calls.
        if type(key) is self._quick_class:
            cell, sub = self._cells.get(self._scope.key), self._known.get(key)
            held = None if cell is None or sub is None else cell.written.get(sub)
            if held is not None and held is not REMOVED:
                return held
        held = self._find(key)
        return default if held is MISSING else self._value_of(held)

    def put(self, key: Any, value: Any) -> None:
        held = value if value is None or type(value) in self.frozen_classes else self.freeze(value)
        cell = self._cells.get(self._scope.key) or self._cell()
        sub = (self._known.get(key) if type(key) is self._known_class else None) or self._sub(key)
        item = held if self.ttl is None else (held, self.due_time())
        if cell.live is None:
            cell.written[sub] = item
        else:
            self._write(cell, sub, item)

    def _write(self, cell: _MapCell, sub: bytes, item: Any) -> None:
        """Write an item, or `REMOVED`, where iterations find it."""
        live = cell.live
        if live is not None:
            at = bisect_left(live, sub)
            is_live = at < len(live) and live[at] == sub
            for walk in cell.walks:
                if sub not in walk:
                    walk[sub] = is_live or self._load(cell, sub) is not MISSING
            if is_live != (item is not REMOVED):
                cell.edits += 1
                if is_live:
                    del live[at]
                else:
                    live.insert(at, sub)
        cell.written[sub] = item

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        for key, value in dict(entries).items():
            self.put(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        held = self._find(key)
        if held is not MISSING:
            return self._value_of(held)
        self.put(key, default)
        return self._value_of(self._find(key))

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        held = self._find(key)
        if held is not MISSING:
            self.remove(key)
            return self._value_of(held)
        if default is MISSING:
            raise KeyError(key)
        return default

    def remove(self, key: Any) -> None:
        self._write(self._cell(), self._sub(key), REMOVED)

    def contains(self, key: Any) -> bool:
        return self._find(key) is not MISSING

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not MISSING

    def __getitem__(self, key: Any) -> Any:
        held = self._find(key)
        if held is MISSING:
            raise KeyError(key)
        return self._value_of(held)

    def __delitem__(self, key: Any) -> None:
        if self._find(key) is MISSING:
            raise KeyError(key)
        self.remove(key)

    def _entries(self, first: bytes = b"") -> Iterator[tuple[bytes, Any]]:
        """Yield the live pairs of sub and held value of the current key, in order of sub, from ``first`` on."""
        return self._live(self._cell(), first)

    def _live(self, cell: _MapCell, first: bytes = b"") -> Iterator[tuple[bytes, Any]]:
        """Yield the live pairs of a cell, of keys that exist at the start: it may change during the iteration."""
        if cell.live is None:
            subs = cell.written.keys() | cell.read.keys() if self._retains and not cell.cleared else cell.written.keys()
            cell.live = sorted(sub for sub in subs if cell.written.get(sub) is not REMOVED)
        if first > cell.scanned_to and cell.scanned is not None and not (self._retains or cell.cleared):
            yield from self._merged(cell, first)
            return
        live, at, edits = cell.live, bisect_left(cell.live, first), cell.edits
        stored: Iterator[tuple[bytes, bytes]] | None = None
        position = 0
        walk: dict[bytes, bool] = {}
        cell.walks.append(walk)
        try:
            while cell.live is live:
                sub = live[at] if at < len(live) else None
                if cell.scanned is not None and not (self._retains or cell.cleared):
                    if sub is None or sub > cell.scanned_to:
                        if stored is None or position != cell.scanned:
                            after = cell.scanned_to + b"\x00" if cell.scanned else b""
                            stored = self._scope.store.scan(cell.prefix, after)
                        self._find_stored(cell, stored)
                        position = cell.scanned
                        continue
                elif sub is None:
                    return
                assert sub is not None
                held = self._load(cell, sub)
                if self.ttl is not None and (held := self._unexpired(cell, sub, held)) is MISSING:
                    # It has expired, and no later iteration of the batch finds it alive.
                    del live[at]
                    edits = cell.edits = cell.edits + 1
                    continue
                at += 1
                if not walk or walk.get(sub, True):
                    yield sub, held
                    if cell.edits != edits:
                        at, edits = bisect_right(live, sub), cell.edits
        finally:
            cell.walks = [each for each in cell.walks if each is not walk]

    def _merged(self, cell: _MapCell, first: bytes) -> Iterator[tuple[bytes, Any]]:
        """Yield what `_live` does, where stored entries before ``first`` are not found yet: they stay unread."""
        live = cell.live
        assert live is not None
        at, edits = bisect_left(live, first), cell.edits
        stored = self._scope.store.scan(cell.prefix, first)
        following = next(stored, None)
        walk: dict[bytes, bool] = {}
        cell.walks.append(walk)
        try:
            while cell.live is live:
                sub = live[at] if at < len(live) else None
                if following is not None and (sub is None or following[0] <= sub):
                    at += following[0] == sub
                    sub, raw = following
                    following = next(stored, None)
                    if sub not in cell.written and sub not in cell.read:
                        cell.read[sub] = self.unwrap(raw, self.decode)
                elif sub is None:
                    return
                else:
                    at += 1
                held = self._unexpired(cell, sub, self._load(cell, sub))
                if held is not MISSING and walk.get(sub, True):
                    yield sub, held
                    if cell.edits != edits:
                        at, edits = bisect_right(live, sub), cell.edits
        finally:
            cell.walks = [each for each in cell.walks if each is not walk]

    def _find_stored(self, cell: _MapCell, stored: Iterator[tuple[bytes, bytes]]) -> None:
        """Find the next stored entries: as many as were found, so that finding all costs in proportion to them."""
        live, read, written = cell.live, cell.read, cell.written
        assert live is not None
        before = cell.scanned or 0
        entries = list(islice(stored, before or 1))
        for sub, raw in entries:
            if sub not in written:
                if written:
                    insort(live, sub)
                else:
                    live.append(sub)
                if sub not in read:
                    read[sub] = self.unwrap(raw, self.decode)
            elif written[sub] is not REMOVED:
                # A read has refreshed it, or it is there.
                at = bisect_left(live, sub)
                if live[at : at + 1] != [sub]:
                    live.insert(at, sub)
        cell.scanned = before + len(entries) if entries else None
        if entries:
            cell.scanned_to = entries[-1][0]
            cell.edits += 1

    def keys(self) -> Iterator[Any]:
        return (self._decode_key(sub) for sub, _ in self._entries())

    def values(self) -> Iterator[Any]:
        return (self._value_of(held) for _, held in self._entries())

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((self._decode_key(sub), self._value_of(held)) for sub, held in self._entries())

    def items_from(self, key: Any) -> Iterator[tuple[Any, Any]]:
        return ((self._decode_key(sub), self._value_of(held)) for sub, held in self._entries(self._sub(key)))

    def is_empty(self) -> bool:
        return next(self._entries(), None) is None

    def __len__(self) -> int:
        cell = self._cell()
        is_whole = cell.scanned is None or self._retains or cell.cleared
        # Which entries have expired shows when they are read.
        if self.ttl is None and cell.live is not None and is_whole:
            return len(cell.live)
        return sum(1 for _ in self._live(cell))

    def clear(self) -> None:
        cell = self._cell()
        cell.cleared = True
        cell.written, cell.live = {}, None

    def _retain(self, changes: Changes) -> None:
        cells = [(key, cell) for key, cell in self._cells.items() if cell.written or cell.cleared]
        for cell in self._cells.values():
            cell.read.live = cell.live
        values = chain.from_iterable(cell.written.values() for _, cell in cells)
        unchanged = self.isolation.unchanged([item for item in values if item is not None and item is not REMOVED])
        for key, cell in cells:
            before = len(cell.read)
            entries = _Entries() if cell.cleared else cell.read
            entries.live = cell.live
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


#: Not looked up yet.
_UNKNOWN: Any = object()


class BoundBroadcastState(BoundMapState):
    """A map whose key is null. Broadcast elements write it before anything else in a batch; then it is only read.

    Attributes:
        is_writable: True while a broadcast element runs.
    """

    kind = "broadcast"

    #: Cached look-ups, `MISSING` for missing entries, by keys of the class that are found by their value; and all held
    #: entries with their keys. They are retained from batch to batch until a write.
    _values: dict[Any, Any]
    _all: list[tuple[Any, Any]] | None
    _kept: tuple[dict[Any, Any], list[tuple[Any, Any]] | None]
    _is_changed = True

    def __init__(self, declaration: MapState[Any, Any], scope: Scope, state_id: int) -> None:
        # In a separate scope the key stays null, whatever the key of the element is.
        super().__init__(declaration, Scope(scope.store, retains=scope.retains), state_id)
        self.is_writable = False

    def __repr__(self) -> str:
        return repr(self.declaration)

    def activate(self) -> None:
        super().activate()
        self._values, self._all = self._kept
        self._is_changed = False

    def deactivate(self) -> None:
        super().deactivate()
        # Written entries are not committed yet.
        self._kept = ({}, None) if self._is_changed else (self._values, self._all)
        self._values, self._all = {}, None

    # Reading: for each keyed element, so look-ups are cached --------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        if type(key) is not self._quick_class:
            return super().get(key, default)
        value = self._values.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._values[key] = super().get(key, MISSING)
        return default if value is MISSING else value

    def _live_items(self) -> Iterable[tuple[Any, Any]]:
        items = ((self._decode_key(sub), held) for sub, held in self._entries())
        if self.is_writable:
            # A broadcast element may need the first one only, and write another.
            return items
        if self._all is None:
            self._all = list(items)
        return self._all

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self._live_items())

    def values(self) -> Iterator[Any]:
        return (self._value_of(held) for _, held in self._live_items())

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self._value_of(held)) for key, held in self._live_items())

    # Writing: only by broadcast elements ------------------------------------------------------------------------------

    def _change(self) -> None:
        if not self.is_writable:
            raise StateAccessError(
                f"broadcast state {self.name!r} is read-only here: the write of a keyed element would reach only one "
                "key group; write it in process_broadcast_element"
            )
        self._values, self._all, self._is_changed = {}, None, True

    def put(self, key: Any, value: Any) -> None:
        self._change()
        super().put(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self._change()
        return super().setdefault(key, default)

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        self._change()
        return super().pop(key, default)

    def remove(self, key: Any) -> None:
        self._change()
        super().remove(key)

    def clear(self) -> None:
        self._change()
        super().clear()

    def namespace(self, namespace: Any) -> NoReturn:
        raise StateAccessError(
            f"broadcast state {self.name!r} has no namespaces; make the namespace part of the map key"
        )
