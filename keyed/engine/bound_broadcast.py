"""Broadcast state over a key group's entries: the group's own copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from keyed.engine.bound import MISSING
from keyed.engine.bound_maps import BoundMapState
from keyed.engine.scope import Scope
from keyed.errors import StateAccessError
from keyed.job.state import MapState

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
