"""Common parts of the bound states: address, namespaces, clock, and the writing of changes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from keyed.base.arguments import MAX_TIMESTAMP, mistaken, shown
from keyed.codec.keys import decode_key_at, encode_key, normalised
from keyed.content.addresses import KIND_OF_CLOCK, NULL, decode_time, encode_time, state_prefix
from keyed.engine.scope import Outside, Scope
from keyed.errors import EncodingError, StateAccessError
from keyed.job.state import State
from keyed.job.ttl import StateTtl, StateVisibility, UpdateType

if TYPE_CHECKING:
    from keyed.engine.changes import Changes
    from keyed.engine.isolation import Isolation

#: No item is known or stored.
MISSING: Any = type("Missing", (), {"__repr__": lambda _: "MISSING"})()
#: An entry that this batch removed.
REMOVED: Any = type("Removed", (), {"__repr__": lambda _: "REMOVED"})()

NO_NAMESPACE = encode_key(None)


def kind_of(ttl: StateTtl | None) -> int:
    """Return the kind byte of a state's entries."""
    return KIND_OF_CLOCK[None if ttl is None else ttl.time_domain.value]


class BoundState:
    """A declared state bound to one key group for one batch. Mixed into the public classes of `keyed.job.state`.

    Values of the function are held in the form that `keyed.engine.isolation` defines. With a time to live, an item is a
    pair (held value, due time); without one, it is the held value.
    """

    name: str
    kind: str
    declaration: Any
    isolation: Isolation
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    thaw: Callable[[Any], Any]
    frozen_classes: AbstractSet[type]
    #: The attributes with the cells of keys, by key.
    cells: ClassVar[tuple[str, ...]] = ("_cells",)

    def bind(self, declaration: State, scope: Scope, state_id: int) -> None:
        """Attach to a batch. Entries are accessible once `activate` was called."""
        self.declaration = declaration
        self.name = declaration.name
        self.ttl = declaration.ttl
        self._scope = scope
        self._state_id = state_id
        self._kind = kind_of(declaration.ttl)
        self._namespace = NO_NAMESPACE
        self._views: dict[bytes, Any] = {}
        self._views_by_value: dict[Any, Any] = {}
        ttl = declaration.ttl
        self._ttl_ms = ttl.milliseconds if ttl else 0
        self._refreshes = ttl is not None and ttl.update is UpdateType.ON_READ_AND_WRITE
        self._hides_expired = ttl is not None and ttl.visibility is StateVisibility.NEVER_RETURN_EXPIRED
        # The content retained from batch to batch, by key, if nothing reads the changes of a batch. States with a time
        # to live are stored instead, so that expired entries are found.
        self._retains = scope.retains and ttl is None
        self._retained: dict[Any, Any] = {}
        self._retained_views: dict[bytes, Any] = {}
        self._outside = Outside(declaration._unbound)
        self._is_active = False
        self.deactivate()

    def hold(self, isolation: Isolation) -> None:
        """Set the form in which values are held."""
        self.isolation = isolation
        self.encode, self.decode, self.thaw = isolation.encode, isolation.decode, isolation.thaw
        self.frozen_classes = isolation.frozen_classes

    def freeze(self, value: Any) -> Any:
        """Return the held form of a function's value.

        Raises:
            EncodingError: The value does not fit the declared type, or cannot be copied.
        """
        try:
            return self.isolation.freeze(value)
        except EncodingError as error:
            raise EncodingError(f"{self.kind} state {self.name!r}: {mistaken(value) or error}") from error
        except RecursionError as error:
            raise EncodingError(
                f"{self.kind} state {self.name!r}: a value is nested too deep, or contains itself; flatten it"
            ) from error

    def __repr__(self) -> str:
        return f"{self.declaration!r} of the current key"

    def activate(self) -> None:
        """Allow access: the function is open and calls with a key follow."""
        self._views, self._views_by_value = {}, {}
        self._is_active = True
        for cells in self.cells:
            self.__dict__[cells] = {}

    def deactivate(self) -> None:
        """End the access that `activate` allowed: no call with a key is running."""
        for bound in self.bound_views():
            bound._is_active = False
            for cells in bound.cells:
                bound.__dict__[cells] = bound._outside
        self._views, self._views_by_value = {}, {}

    def flush(self, changes: Changes) -> None:
        """Write the changes of this namespace and all others, or retain them in memory."""
        for view in self.bound_views():
            (view._retain if self._retains else view._flush)(changes)
        for namespace, view in self._views.items():
            if view._retained:
                self._retained_views[namespace] = view
            else:
                self._retained_views.pop(namespace, None)

    def namespace(self, namespace: Any) -> Any:
        """Return this state under ``namespace``, one object per namespace and batch."""
        if namespace is None and self._namespace == NO_NAMESPACE:
            return self
        # 1, 1.0 and True are equal dictionary keys in Python, also inside tuples; as namespaces they differ.
        cls = type(namespace)
        kind = tuple(map(type, namespace)) if issubclass(cls, tuple) else cls
        try:
            view = self._views_by_value.get((kind, namespace))
        except TypeError:
            view = None
        return self._view(kind, namespace) if view is None else view

    def _view(self, kind: Any, namespace: Any) -> Any:
        """Return the view of a namespace that is not found by its value: it is new, or equal values may differ."""
        if self._namespace != NO_NAMESPACE:
            raise StateAccessError(f"{self.kind} state {self.name!r}: namespace() of a namespace is not supported")
        if not self._is_active:
            self.declaration._unbound()
        encoded = encode_key(namespace)
        view = self._views.get(encoded)
        if view is None:
            view = self._retained_views.get(encoded)
            if view is None:
                view = object.__new__(type(self))
                view.__dict__.update(self.__dict__)
                view._namespace, view._retained = encoded, {}
            view.activate()
            self._views[encoded] = view
        if not (isinstance(kind, tuple) and any(issubclass(part, tuple) for part in kind)):
            self._views_by_value[kind, normalised(namespace)] = view
        return view

    def bound_views(self) -> Iterator[Any]:
        """Yield this state and its namespaces that were touched."""
        yield self
        yield from self._views.values()

    def prefix(self, key: Any) -> bytes:
        """Return the address of ``key`` in this state and namespace."""
        return state_prefix(self._kind, self._state_id, self._scope.encoded(key), self._namespace)

    def known_keys(self) -> dict[bytes, Any]:
        """Return the keys that may have entries in this namespace, by their encoding: a pass over the store."""
        touched = [self._retained, *(self.__dict__[cells] for cells in self.cells)]
        keys = {self._scope.encoded(key): key for cells in touched for key in cells}
        head = state_prefix(self._kind, self._state_id, b"", b"")
        for prefix in {prefix for prefix, _, _ in self._scope.store.items() if prefix.startswith(head)}:
            key, end = decode_key_at(prefix, len(head))
            if prefix[end:] == self._namespace:
                keys.setdefault(prefix[len(head) : end], key)
        return keys

    def write(self, changes: Changes, prefix: bytes, sub: bytes, data: bytes | None) -> None:
        """Write an entry of this state, or remove it with ``None``."""
        if self.ttl is None:
            changes.write(prefix, sub, data)
        else:
            changes.write_timed(prefix, sub, data, self._scope.clock(self._kind))

    def stored(self, item: Any, key: Any) -> Any:
        """Return the item that would be read back if an item of a key were stored."""
        return self.unwrap(self.wrap(item, self.encode, key), self.decode)

    def remove_all(self, changes: Changes, prefix: bytes, kept: Container[bytes] = ()) -> None:
        """Remove all stored entries with a prefix except the kept ones."""
        stored = self._scope.store.scan(prefix)
        if self.ttl is None:
            changes.remove_all(prefix, stored, kept)
            return
        for sub, _ in stored:
            if sub not in kept:
                self.write(changes, prefix, sub, None)

    # Time to live -----------------------------------------------------------------------------------------------

    def due_time(self) -> int:
        """Return the due time of an entry that is updated now."""
        return min(self._scope.stamp(self._kind) + self._ttl_ms, MAX_TIMESTAMP - 1)

    def expired(self, due: int) -> bool:
        """Return true if an entry with this due time is hidden now."""
        return self._hides_expired and due <= self._scope.clock(self._kind)

    def refreshed(self, due: int) -> int:
        """Return the due time of an entry after a read. As in Flink, reading does not revive expired entries."""
        if self._refreshes and due > self._scope.clock(self._kind):
            return self.due_time()
        return due

    def unwrap(self, raw: bytes, decode: Callable[[bytes], Any]) -> Any:
        """Return the item stored as ``raw``: its value, or with a time to live (value, due)."""
        if self.ttl is None:
            return None if raw == NULL else decode(raw)
        payload = raw[8:]
        return (None if payload == NULL else decode(payload)), decode_time(raw[:8])

    def wrap(self, item: Any, encode: Callable[[Any], bytes], key: Any) -> bytes:
        """Return the bytes that store ``item`` of a key.

        Raises:
            EncodingError: The value does not fit the declared type.
        """
        try:
            if self.ttl is None:
                return NULL if item is None else encode(item)
            value, due = item
            return encode_time(due) + (NULL if value is None else encode(value))
        except EncodingError as error:
            raise EncodingError(f"{self.kind} state {self.name!r}, key {shown(key)}: {error}") from error


class Cell:
    """Entries of one key in a batch.

    Args:
        prefix: The address of the key in the state.
        retained: The retained content of the key from the previous batch, ``None`` if there is none.
    """

    __slots__ = ("cleared", "prefix")

    def __init__(self, prefix: bytes, retained: Any) -> None:
        self.prefix = prefix
        self.cleared = False


C = TypeVar("C", bound=Cell)


class CellState(BoundState, Generic[C]):
    """A bound state with many entries per key, with a cell for each key that the batch touches."""

    cell_type: type[C]
    _cells: dict[Any, C]

    def _cell(self) -> C:
        key = self._scope.key
        cell = self._cells.get(key)
        if cell is None:
            if self._retains:
                cell = self.cell_type(b"", self._retained.get(key))
            else:
                cell = self.cell_type(self.prefix(key), None)
            self._cells[key] = cell
        return cell
