"""List state over a key group's entries.

An element is an entry of its own under (commit number, index in the commit), both big-endian, so appending reads and
rewrites nothing and elements sort by the order in which they were added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from keyed.codec.values import value_codec
from keyed.content.addresses import list_sub
from keyed.engine.bound import MISSING, Cell, CellState, Scope, isolation_of
from keyed.engine.changes import Changes
from keyed.errors import EncodingError
from keyed.job.state import ListState


class _Elements(list[Any]):
    """Elements from before the batch, as far as they were read.

    Attributes:
        subs: Their subs in the store.
        is_whole: True if there are no others.
        expired: Number of leading elements that have expired; those that the batch added follow.
    """

    __slots__ = ("expired", "is_whole", "subs")

    def __init__(self, *, is_whole: bool = True) -> None:
        super().__init__()
        self.subs: list[bytes] = []
        self.is_whole = is_whole
        self.expired = 0


class _ListCell(Cell):
    """The list of one key. With retained elements, ``stored`` has all from before the batch.

    Attributes:
        stored: The elements before the batch.
        appended: The elements that the batch added.
    """

    __slots__ = ("appended", "stored")

    def __init__(self, prefix: bytes, retained: _Elements | None) -> None:
        super().__init__(prefix, retained)
        # Retained content has no address.
        self.stored = _Elements(is_whole=not prefix) if retained is None else retained
        self.appended: list[Any] = []

    def replace(self, items: list[Any]) -> None:
        """Replace all elements. Running iterations keep theirs."""
        self.cleared, self.stored, self.appended = True, _Elements(), items


class BoundListState(CellState[_ListCell], ListState[Any]):
    """`ListState` in a key group."""

    cell_type = _ListCell

    def __init__(self, declaration: ListState[Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        self.hold(isolation_of(value_codec(declaration.type)))

    def _item(self, value: Any) -> Any:
        if value is None:
            raise EncodingError(f"list state {self.name!r}: elements cannot be None; leave it out")
        held = value if type(value) in self.frozen_classes else self.freeze(value)
        return held if self.ttl is None else (held, self.due_time())

    def _read(self, cell: _ListCell, stored: _Elements, most: int | None = None) -> bool:
        """Read further stored elements, all or at most a number of them. Return false if there are no others."""
        if stored.is_whole:
            return False
        read = len(stored)
        scan = list(islice(self._scope.store.scan(cell.prefix), read, None if most is None else read + most))
        stored.subs += [sub for sub, _ in scan]
        stored += [self.unwrap(raw, self.decode) for _, raw in scan]
        stored.is_whole = most is None or len(scan) < most
        return True

    def _stored(self, cell: _ListCell, stored: _Elements) -> Iterator[Any]:
        """Yield stored items. As many are read as were read, so that reading costs in proportion to what is used."""
        at = 0
        while at < len(stored) or self._read(cell, stored, at or 1):
            yield from islice(stored, at, at := len(stored))

    def _unexpired(self, cell: _ListCell, stored: _Elements, appended: list[Any], added: int) -> Iterator[Any]:
        """Yield the held values that have not expired, and refresh them."""
        at = stored.expired
        while True:
            while at >= len(stored) and self._read(cell, stored, at or 1):
                pass
            items, place = (stored, at) if at < len(stored) else (appended, at - len(stored))
            if items is appended and place >= added:
                return
            held, due = items[place]
            at += 1
            if not self.expired(due):
                if self._refreshes:
                    items[place] = held, self.refreshed(due)
                yield held
            elif stored.expired == at - 1:
                # No later iteration of the batch finds it alive.
                stored.expired = at

    def get(self) -> list[Any]:
        cell = self._cell()
        self._read(cell, cell.stored)
        if self.ttl is not None:
            return list(self)
        items = cell.stored + cell.appended
        return items if self.isolation.is_immutable else list(map(self.thaw, items))

    def __iter__(self) -> Iterator[Any]:
        cell = self._cell()
        stored, appended, added = cell.stored, cell.appended, len(cell.appended)
        items: Iterator[Any]
        if self.ttl is not None:
            items = self._unexpired(cell, stored, appended, added)
        else:
            before = islice(stored, len(stored)) if stored.is_whole else self._stored(cell, stored)
            items = chain(before, islice(appended, added))
        return items if self.isolation.is_immutable else map(self.thaw, items)

    def __bool__(self) -> bool:
        return next(iter(self), MISSING) is not MISSING

    def __len__(self) -> int:
        if self.ttl is not None:
            return sum(1 for _ in self)
        cell = self._cell()
        self._read(cell, cell.stored)
        return len(cell.stored) + len(cell.appended)

    def __getitem__(self, index: Any) -> Any:
        cell = self._cell()
        if self.ttl is not None or type(index) is not int:
            return self.get()[index]
        stored, appended = cell.stored, cell.appended
        if index < 0:
            index += len(appended)
            if index < 0:
                self._read(cell, stored)
            held = (stored if index < 0 else appended)[index]
        else:
            while index >= len(stored) and self._read(cell, stored, len(stored) or 1):
                pass
            held = stored[index] if index < len(stored) else appended[index - len(stored)]
        return self.thaw(held)

    def add(self, value: Any) -> None:
        self._cell().appended.append(self._item(value))

    def add_all(self, values: Iterable[Any]) -> None:
        # All of them first: the iterable may fail, or read this same list.
        items = [self._item(value) for value in values]
        self._cell().appended += items

    def update(self, values: Iterable[Any]) -> None:
        if values is None:
            raise EncodingError(f"list state {self.name!r}: update(None) is refused, as in Flink; clear() to empty it")
        items = [self._item(value) for value in values]
        self._cell().replace(items)

    def clear(self) -> None:
        self._cell().replace([])

    def _retain(self, changes: Changes) -> None:
        cells = [(key, cell) for key, cell in self._cells.items() if cell.appended or cell.cleared]
        unchanged = self.isolation.unchanged(list(chain.from_iterable(cell.appended for _, cell in cells)))
        for key, cell in cells:
            before = len(self._retained.get(key, ())) if cell.cleared else 0
            cell.stored += cell.appended if unchanged else [self.stored(item, key) for item in cell.appended]
            changes.entries += len(cell.appended) - before
            if cell.stored:
                self._retained[key] = cell.stored
            else:
                self._retained.pop(key, None)

    def _flush(self, changes: Changes) -> None:
        commit, encode = self._scope.commit, self.encode
        for key, cell in self._cells.items():
            prefix = cell.prefix
            if cell.cleared:
                self.remove_all(changes, prefix)
            elif self._refreshes and cell.stored:
                for sub, item in zip(cell.stored.subs, cell.stored, strict=True):
                    self.write(changes, prefix, sub, self.wrap(item, encode, key))
            for index, item in enumerate(cell.appended):
                self.write(changes, prefix, list_sub(commit, index), self.wrap(item, encode, key))
