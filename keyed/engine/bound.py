"""Common parts of the bound states: scope, address, namespaces, isolated values, and the writing of changes.

A function and its state never share mutable objects. `freeze` stores a function's value at that moment, and `thaw`
returns the function's own copy. Immutable values are held as they would be decoded from their bytes. Of mutable values
the bytes are held, so that each call has the same effect as if the batch ended there. Accumulators belong only to the
engine, so they are held as objects that are changed in place.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Container, Iterator
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Any, ClassVar, Generic, NoReturn, TypeVar
from uuid import UUID

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP, mistaken, shown
from keyed.codec.keys import decode_key_at, encode_key, normalised
from keyed.codec.snapshots import snapshot
from keyed.codec.values import ValueCodec
from keyed.content.addresses import KIND_OF_CLOCK, NULL, TTL_PROCESSING, decode_time, encode_time, state_prefix
from keyed.content.local_store import ReadStore
from keyed.engine.changes import Changes
from keyed.errors import EncodingError, StateAccessError
from keyed.job.state import State
from keyed.job.ttl import StateTtl, StateVisibility, UpdateType
from keyed.rows import Row


@attrs.frozen(eq=False)
class Isolation:
    """The form in which values are held.

    Attributes:
        freeze: Converts a function's value to its held form.
        thaw: Converts a held value to the function's value.
        encode: Converts a held value to bytes.
        decode: Converts bytes to a held value.
        unchanged: Returns true if all held values are known to equal `decode` of their bytes.
        frozen_classes: Classes whose values `freeze` returns unchanged, so that the call is skipped; it may add some.
        is_immutable: True if `thaw` does nothing.
        in_place: True if held values may be changed in place, and therefore count as written once they were read.
    """

    freeze: Callable[[Any], Any]
    thaw: Callable[[Any], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    unchanged: Callable[[Collection[Any]], bool]
    frozen_classes: AbstractSet[type] = frozenset()
    is_immutable: bool = False
    in_place: bool = False


class _Encoded(bytes):
    """The bytes of a value, in a form that also holds immutable values as they are."""

    __slots__ = ()


def isolation_of(codec: ValueCodec, *, in_place: bool = False) -> Isolation:
    """Return the form in which the values of a declared type are held.

    Args:
        codec: The codec of the type.
        in_place: True if the function may change them in place.
    """
    if codec.immutable:
        return _unchanging(codec)
    if in_place:
        return Isolation(
            *(_itself, _itself, codec.encode, codec.decode, codec.unchanged),
            frozen_classes={list, dict},
            is_immutable=True,
            in_place=True,
        )
    if codec.by_value:
        return _by_value(codec)
    return Isolation(codec.encode, codec.decode, _itself, _itself, lambda _: True)


def owned(codec: ValueCodec) -> Isolation:
    """Return the form in which accumulators are held: values are copied into them, and out of them."""
    if codec.immutable:
        return isolation_of(codec)
    round_tripped = _round_tripped(codec, snapshot)
    return Isolation(round_tripped, round_tripped, codec.encode, codec.decode, codec.unchanged, in_place=True)


def _unchanging(codec: ValueCodec) -> Isolation:
    """Return the form in which immutable values are held."""
    encode, decode, frozen_classes = codec.encode, codec.decode, set(codec.classes)
    if codec.exact is not None:
        stored = _round_tripped(codec, _itself)
        return Isolation(stored, _itself, encode, decode, codec.unchanged, frozen_classes, is_immutable=True)

    def freeze(value: Any) -> Any:
        # One value of each class is checked now, the others when they are written.
        encode(value)
        frozen_classes.add(type(value))
        return value

    return Isolation(freeze, _itself, encode, decode, codec.unchanged, frozen_classes, is_immutable=True)


def _round_tripped(codec: ValueCodec, copy: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that decodes a value from its bytes, or returns ``copy`` of it if that is equal."""
    exact: Callable[[Any], bool] = _is_exact if codec.by_value else codec.exact or (lambda _: True)

    def round_tripped(value: Any) -> Any:
        try:
            if exact(value):
                return copy(value)
        except (AttributeError, TypeError, IndexError):
            # It does not have the declared type, and encoding raises the error.
            pass
        return codec.decode(codec.encode(value))

    return round_tripped


def _by_value(codec: ValueCodec) -> Isolation:
    """Return the form in which values without a declared type are held: unchanged, or their bytes."""

    def freeze(value: Any) -> Any:
        return value if _comes_back_as_it_is(value) else _Encoded(codec.encode(value))

    def thaw(held: Any) -> Any:
        return codec.decode(held) if type(held) is _Encoded else held

    def encode(held: Any) -> bytes:
        return bytes(held) if type(held) is _Encoded else codec.encode(held)

    def decode(data: bytes) -> Any:
        value = codec.decode(data)
        return value if _comes_back_as_it_is(value) else _Encoded(data)

    def unchanged(held: Collection[Any]) -> bool:
        return codec.unchanged([value for value in held if type(value) is not _Encoded])

    return Isolation(freeze, thaw, encode, decode, unchanged, _PLAIN)


#: Datetimes are not included, because they are decoded in UTC.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, dt.date, dt.timedelta, Decimal, UUID})
_COLLECTIONS = frozenset({list, tuple, set, frozenset})
_all_plain = _PLAIN.issuperset
#: The depth up to which tuples in tuples are looked at; their bytes are held beyond it.
_DEPTH = 4


def _comes_back_as_it_is(value: Any, depth: int = _DEPTH) -> bool:
    """Return true if a value is immutable and storing does not change it. For most values the class decides."""
    cls = type(value)
    if cls in _PLAIN:
        return True
    if cls is tuple:
        return _all_plain(map(type, value)) or (
            depth > 0 and all(_comes_back_as_it_is(item, depth - 1) for item in value)
        )
    return issubclass(cls, Row) and _all_plain(map(type, value))


def _is_exact(value: Any) -> bool:
    """Return true if a value without a declared type is decoded unchanged."""
    cls = type(value)
    if cls in _PLAIN:
        return True
    if cls is dict:
        return all(map(_is_exact, value)) and all(map(_is_exact, value.values()))
    if cls in _COLLECTIONS or issubclass(cls, Row):
        return _all_plain(map(type, value)) or all(map(_is_exact, value))
    return False


def _itself(value: Any) -> Any:
    return value


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

    Values of the function are held in the form that `Isolation` defines. With a time to live, an item is a
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


class Scope:
    """State that all parts of a key group's function share; one object serves all batches of a task.

    Attributes:
        key: The current key.
        timestamp: Timestamp of the current element or timer, or ``None``.
        watermark: Current event time, milliseconds.
        batch_watermark: Watermark at the start of the batch.
        processing_time: Current processing time, milliseconds.
        batch_processing_time: Processing time of the previous batch.
        commit: Number of the commit of this batch.
        timer_clock: While event-time timers fire, their current time: it lies between the old and the new watermark, so
            that results do not depend on the size of the step.
        in_processing_time: True while a processing-time timer fires; ``timestamp`` is not an event time then.
        store: Committed entries.
        retains: True if nothing reads the changes of a batch, so that states and timers are retained in memory.
        key_bytes: Encoded keys seen in this batch, by key.
    """

    __slots__ = (
        "batch_processing_time",
        "batch_watermark",
        "commit",
        "in_processing_time",
        "key",
        "key_bytes",
        "processing_time",
        "retains",
        "store",
        "timer_clock",
        "timestamp",
        "watermark",
    )

    def __init__(self, store: ReadStore, *, retains: bool = False) -> None:
        self.store = store
        self.retains = retains
        self.begin(0, MIN_TIMESTAMP, 0)

    def begin(self, commit: int, watermark: int, processing_time: int, before: int = MIN_TIMESTAMP) -> None:
        """Start a batch; ``before`` is the processing time of the previous one."""
        self.batch_processing_time = before
        self.key: Any = None
        self.timestamp: int | None = None
        self.watermark = watermark
        self.batch_watermark = watermark
        self.timer_clock: int | None = None
        self.in_processing_time = False
        self.processing_time = processing_time
        self.commit = commit
        self.key_bytes: dict[Any, bytes] = {}

    def encoded(self, key: Any) -> bytes:
        """Return the encoded key, which is computed once per key and batch."""
        data = self.key_bytes.get(key)
        if data is None:
            data = self.key_bytes[key] = encode_key(key)
        return data

    def clock(self, kind: int) -> int:
        """Return the current time of a kind of expiring entries; entries due at `MAX_TIMESTAMP` never expire."""
        if kind == TTL_PROCESSING:
            return self.processing_time
        return min(self.watermark if self.timer_clock is None else self.timer_clock, MAX_TIMESTAMP - 1)

    def stamp(self, kind: int) -> int:
        """Return the time that an update of such an entry gets: an element may be ahead of the watermark."""
        clock = self.clock(kind)
        if kind == TTL_PROCESSING or self.timestamp is None or self.in_processing_time:
            return clock
        return max(clock, self.timestamp)


class Outside:
    """Placeholder for an object that is valid only during a call of the user's function. Its use raises an error.

    A kept state or context therefore needs no check during calls.
    """

    __slots__ = ("_refuse",)

    def __init__(self, refuse: Callable[[], NoReturn]) -> None:
        self._refuse = refuse

    def __getattr__(self, attribute: str) -> NoReturn:
        self._refuse()

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self._refuse()
