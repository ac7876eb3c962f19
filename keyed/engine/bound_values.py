"""Value, reducing and aggregating state over a key group's entries."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any

from keyed.codec.snapshots import snapshot
from keyed.codec.values import value_codec
from keyed.engine.bound import MISSING, BoundState, Scope, isolation_of, owned
from keyed.engine.changes import Changes
from keyed.errors import EncodingError, StateDefinitionError
from keyed.job.state import AggregatingState, ReducingState, ValueState


class _SingleValue(BoundState):
    """One item per key: the read and the written items, by key."""

    cells = ("_read", "_written")
    _completed: Callable[[Any], Any] | None = None
    _read: dict[Any, Any]
    _written: dict[Any, Any]

    def activate(self) -> None:
        super().activate()
        # An item that may be changed in place counts as written, so it is not read from the retained ones.
        if self._retains and not self.isolation.in_place:
            self._read = self._retained

    def item(self) -> Any:
        """Return the held item of the current key, or ``None``."""
        key = self._scope.key
        item = self._written.get(key, MISSING)
        if item is MISSING:
            item = self._read.get(key, MISSING)
            if item is MISSING:
                item = self._load(key)
        if self.ttl is None or item is None:
            return item
        held, due = item
        if self.expired(due):
            return None
        if self._refreshes and (later := self.refreshed(due)) != due:
            self._written[key] = (held, later)
        return held

    def _load(self, key: Any) -> Any:
        """Return the item of a key at its first read in the batch."""
        if self._retains:
            item = self._retained.get(key)
        else:
            raw = self._scope.store.get(self.prefix(key), b"")
            item = None if raw is None else self.unwrap(raw, self.decode)
        if item is not None and self.isolation.in_place:
            # It counts as written, because it may be changed.
            self._written[key] = item
        elif not self._retains:
            self._read[key] = item
        return item

    def set_item(self, held: Any) -> None:
        """Set the held item of the current key; ``None`` clears."""
        self._written[self._scope.key] = held if self.ttl is None or held is None else (held, self.due_time())

    def clear(self) -> None:
        self._written[self._scope.key] = None

    def set_result(self, held: Any) -> None:
        """Set the result of a reduction. Mutable results belong to the engine already; others are converted."""
        is_owned = self.isolation.in_place and not _is_time(held)
        self.set_item(held if held is None or is_owned or type(held) in self.frozen_classes else self.freeze(held))

    def _retain(self, changes: Changes) -> None:
        retained, written = self._retained, self._written
        before = len(retained)
        for key in [key for key, item in written.items() if item is None]:
            del written[key]
            retained.pop(key, None)
        if not self.isolation.unchanged(written.values()):
            written = {key: self.stored(item, key) for key, item in written.items()}
        retained.update(written)
        changes.entries += len(retained) - before

    def _flush(self, changes: Changes) -> None:
        encode, write, prefix = self.encode, changes.write, self.prefix
        if self.ttl is not None:
            clock = self._scope.clock(self._kind)
            for key, item in self._written.items():
                changes.write_timed(prefix(key), b"", None if item is None else self.wrap(item, encode, key), clock)
            return
        completed = self._completed
        for key, value in self._written.items():
            try:
                data = None if value is None else encode(value if completed is None else completed(value))
            except EncodingError as error:
                raise EncodingError(f"{self.kind} state {self.name!r}, key {key!r}: {error}") from error
            write(prefix(key), b"", data)


def _is_time(value: Any) -> bool:
    """Return true if a value is a datetime, or a tuple with one."""
    return type(value) is datetime or (isinstance(value, tuple) and datetime in map(type, value))


class BoundValueState(_SingleValue, ValueState[Any]):
    """`ValueState` in a key group. The fast path of the engine: two dictionary look-ups per call."""

    def __init__(self, declaration: ValueState[Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        codec = value_codec(declaration.type)
        self.hold(isolation_of(codec, in_place=declaration.in_place))
        self._completed = declaration.completed
        self._quick = self.ttl is None and self.isolation.is_immutable
        #: Classes whose values are stored without conversion.
        self._placed: AbstractSet[type] = self.frozen_classes if self.ttl is None else frozenset()
        self._default: Any = None
        if declaration.default is not None:
            try:
                codec.encode(declaration.default)
                self._default = self.freeze(declaration.default)
            except EncodingError as error:
                raise StateDefinitionError(
                    f"value state {self.name!r}: default={declaration.default!r} does not fit its type: {error}"
                ) from error

    def value(self) -> Any:
        if self._quick:
            key = self._scope.key
            value = self._written.get(key, MISSING)
            if value is MISSING:
                value = self._read.get(key, MISSING)
                if value is MISSING:
                    value = self.item()
            return self._default if value is None else value
        held = self.item()
        if held is None:
            held = self._default
        return None if held is None else self.thaw(held)

    def update(self, value: Any) -> None:
        if type(value) in self._placed:
            self._written[self._scope.key] = value
        else:
            self.set_item(None if value is None else self.freeze(value))


class BoundReducingState(_SingleValue, ReducingState[Any]):
    """`ReducingState` in a key group."""

    def __init__(self, declaration: ReducingState[Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        self.hold(owned(value_codec(declaration.type)))
        self.reduce = declaration.reduce

    def get(self) -> Any:
        held = self.item()
        return None if held is None else self.thaw(held)

    def add(self, value: Any) -> None:
        if value is None:
            raise EncodingError(f"reducing state {self.name!r}: None cannot be added; leave it out or clear()")
        value = self.freeze(value)
        current = self.item()
        self.set_result(value if current is None else self.reduce(current, value))


class BoundAggregatingState(_SingleValue, AggregatingState[Any, Any]):
    """`AggregatingState` in a key group."""

    def __init__(self, declaration: AggregatingState[Any, Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        self.hold(owned(value_codec(declaration.accumulator_type)))
        self.aggregate = declaration.aggregate

    def get(self) -> Any:
        accumulator = self.item()
        return None if accumulator is None else snapshot(self.aggregate.get_result(accumulator))

    def add(self, value: Any) -> None:
        value = snapshot(value)
        accumulator = self.item()
        if accumulator is None:
            accumulator = self.aggregate.create_accumulator()
            accumulator = None if accumulator is None else self.freeze(accumulator)
        self.set_result(self.aggregate.add(value, accumulator))
