"""Value, reducing and aggregating state over a key group's entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from keyed.codec.values import value_codec
from keyed.engine.bound import MISSING, BoundState
from keyed.errors import EncodingError, StateDefinitionError
from keyed.state import AggregatingState, ReducingState, ValueState

if TYPE_CHECKING:
    from keyed.engine.changes import Changes
    from keyed.engine.scope import Scope

__all__ = ["BoundAggregatingState", "BoundReducingState", "BoundValueState"]


class _SingleValue(BoundState):
    """One item per key: what was read and what was written, by key."""

    _read: dict[Any, Any]
    _written: dict[Any, Any]

    def activate(self) -> None:
        self._views, self._views_by_value = {}, {}
        self._read = {}
        self._written = {}
        self.__dict__["_cells"] = self._written

    def item(self) -> Any:
        """The value of the current key, or ``None``."""
        key = self._scope.key
        item = self._written.get(key, MISSING)
        if item is MISSING:
            item = self._read.get(key, MISSING)
            if item is MISSING:
                raw = self._scope.store.get(self.prefix(key), b"")
                item = None if raw is None else self.unwrap(raw, self.decode)
                self._read[key] = item
        if self.ttl is None or item is None:
            return item
        value, due = item
        if self.expired(due):
            return None
        if self._refreshes and (later := self.refreshed(due)) != due:
            self._written[key] = (value, later)
        return value

    def set_item(self, value: Any) -> None:
        """Store ``value`` for the current key; ``None`` clears."""
        self._written[self._scope.key] = value if self.ttl is None or value is None else (value, self.due_time())

    def flush(self, changes: Changes) -> None:
        for view in self.bound_views():
            view._flush(changes)

    def _flush(self, changes: Changes) -> None:
        encode, write, prefix = self.encode, changes.write, self.prefix
        if self.ttl is not None:
            clock = self._scope.clock(self._kind)
            for key, item in self._written.items():
                changes.write_timed(prefix(key), b"", None if item is None else self.wrap(item, encode), clock)
            return
        for key, value in self._written.items():
            try:
                data = None if value is None else encode(value)
            except EncodingError as error:
                raise EncodingError(f"{self.kind} state {self.name!r}, key {key!r}: {error}") from error
            write(prefix(key), b"", data)


class BoundValueState(_SingleValue, ValueState[Any]):
    """`ValueState` in a key group. The fast path of the whole engine: two dictionary look-ups a call."""

    def __init__(self, declaration: ValueState[Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        codec = value_codec(declaration.type)
        self.encode, self.decode = codec.encode, codec.decode
        self._default = declaration.default
        self._default_bytes: bytes | None = None
        if declaration.default is not None:
            try:
                data = codec.encode(declaration.default)
            except EncodingError as error:
                raise StateDefinitionError(
                    f"value state {self.name!r}: default={declaration.default!r} does not fit its type: {error}"
                ) from error
            if not codec.immutable:
                # Each key gets its own copy, so that a function may change what it was given.
                self._default_bytes = data

    def namespace(self, namespace: Any) -> Self:
        return self.view(namespace)  # type: ignore[no-any-return]

    def value(self) -> Any:
        if self.ttl is None:
            key = self._scope.key
            value = self._written.get(key, MISSING)
            if value is MISSING:
                value = self._read.get(key, MISSING)
                if value is MISSING:
                    value = self.item()
        else:
            value = self.item()
        if value is None:
            return self._default if self._default_bytes is None else self.decode(self._default_bytes)
        return value

    def update(self, value: Any) -> None:
        if self.ttl is None:
            self._written[self._scope.key] = value
        else:
            self.set_item(value)

    def clear(self) -> None:
        self._written[self._scope.key] = None


class BoundReducingState(_SingleValue, ReducingState[Any]):
    """`ReducingState` in a key group."""

    def __init__(self, declaration: ReducingState[Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        codec = value_codec(declaration.type)
        self.encode, self.decode = codec.encode, codec.decode
        self.reduce = declaration.reduce

    def namespace(self, namespace: Any) -> Self:
        return self.view(namespace)  # type: ignore[no-any-return]

    def get(self) -> Any:
        return self.item()

    def add(self, value: Any) -> None:
        if value is None:
            raise EncodingError(f"reducing state {self.name!r}: None cannot be added; leave it out or clear()")
        current = self.item()
        self.set_item(value if current is None else self.reduce(current, value))

    def clear(self) -> None:
        self._written[self._scope.key] = None


class BoundAggregatingState(_SingleValue, AggregatingState[Any, Any]):
    """`AggregatingState` in a key group."""

    def __init__(self, declaration: AggregatingState[Any, Any], scope: Scope, state_id: int) -> None:
        self.bind(declaration, scope, state_id)
        codec = value_codec(declaration.accumulator_type)
        self.encode, self.decode = codec.encode, codec.decode
        self.aggregate = declaration.aggregate

    def namespace(self, namespace: Any) -> Self:
        return self.view(namespace)  # type: ignore[no-any-return]

    def get(self) -> Any:
        accumulator = self.item()
        return None if accumulator is None else self.aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        accumulator = self.item()
        if accumulator is None:
            accumulator = self.aggregate.create_accumulator()
        self.set_item(self.aggregate.add(value, accumulator))

    def accumulator(self) -> Any:
        """The accumulator itself, or ``None``."""
        return self.item()

    def merge(self, accumulator: Any) -> None:
        """Merge another accumulator into the current one."""
        current = self.item()
        self.set_item(accumulator if current is None else self.aggregate.merge(current, accumulator))

    def clear(self) -> None:
        self._written[self._scope.key] = None
