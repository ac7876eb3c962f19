"""List state over a key group's entries.

An element is an entry of its own under (commit number, index in the commit), both big-endian, so appending reads and
rewrites nothing and elements sort by the order in which they were added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from keyed.codec.values import value_codec
from keyed.content.addresses import list_sub
from keyed.engine.bound import Cell, CellState
from keyed.engine.isolation import isolation_of
from keyed.errors import EncodingError
from keyed.state import ListState

if TYPE_CHECKING:
    from keyed.engine.changes import Changes
    from keyed.engine.scope import Scope


class _ListCell(Cell):
    """The list of one key: the elements before the batch, if they were read, and the changes of the batch.

    Attributes:
        stored: The elements before the batch.
        subs: Their subs in the store.
        appended: The elements that the batch added.
    """

    __slots__ = ("appended", "stored", "subs")

    def __init__(self, prefix: bytes, retained: list[Any] | None) -> None:
        super().__init__(prefix, retained)
        self.stored = retained
        self.subs: list[bytes] = []
        self.appended: list[Any] = []


class BoundListState(CellState[_ListCell], ListState[Any]):
    """`ListState` in a key group."""

    cell_type = _ListCell

    def __init__(self, declaration: ListState[Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        self.hold(isolation_of(value_codec(declaration.type)))

    def _item(self, value: Any) -> Any:
        if value is None:
            raise EncodingError(f"list state {self.name!r}: elements cannot be None; leave it out")
        held = value if value.__class__ in self.plain else self.take(value)
        return held if self.ttl is None else (held, self.due_time())

    def get(self) -> list[Any]:
        cell = self._cell()
        if cell.stored is None and not (self._retains or cell.cleared):
            scan = list(self._scope.store.scan(cell.prefix))
            cell.subs = [sub for sub, _ in scan]
            cell.stored = [self.unwrap(raw, self.decode) for _, raw in scan]
        stored = [] if cell.cleared or cell.stored is None else cell.stored
        if self.ttl is not None and self._refreshes:
            cell.stored = stored = [(held, self.refreshed(due)) for held, due in stored]
            cell.appended = [(held, self.refreshed(due)) for held, due in cell.appended]
        items = stored + cell.appended
        if self.ttl is not None:
            items = [held for held, due in items if not self.expired(due)]
        return items if self.isolation.gives_held else list(map(self.give, items))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

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
        cell = self._cell()
        cell.cleared = True
        cell.appended = items

    def clear(self) -> None:
        cell = self._cell()
        cell.cleared = True
        cell.appended = []

    def _retain(self, changes: Changes) -> None:
        cells = [(key, cell) for key, cell in self._cells.items() if cell.appended or cell.cleared]
        unchanged = self.isolation.unchanged(list(chain.from_iterable(cell.appended for _, cell in cells)))
        for key, cell in cells:
            before = cell.stored or []
            appended = cell.appended if unchanged else [self.stored(item, key) for item in cell.appended]
            changes.entries += len(appended) - (len(before) if cell.cleared else 0)
            if cell.cleared:
                before = appended
            else:
                before += appended
            if before:
                self._retained[key] = before
            else:
                self._retained.pop(key, None)

    def _flush(self, changes: Changes) -> None:
        commit, encode = self._scope.commit, self.encode
        for key, cell in self._cells.items():
            prefix = cell.prefix
            if cell.cleared:
                self.remove_all(changes, prefix)
            elif self._refreshes and cell.stored:
                for sub, item in zip(cell.subs, cell.stored, strict=True):
                    self.write(changes, prefix, sub, self.wrap(item, encode, key))
            for index, item in enumerate(cell.appended):
                self.write(changes, prefix, list_sub(commit, index), self.wrap(item, encode, key))
