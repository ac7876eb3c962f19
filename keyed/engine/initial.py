"""Entries from tables: those that a key group writes before its first row, and versions of global tables.

Initial entries are written as a function would write them, so they are checked against the declared types, get their
times to live, and are part of the group's first commit and so of its changelog.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from keyed.arrow.read import column_values
from keyed.base.arguments import instant_ms, shown
from keyed.codec.arrow_streams import read_stream
from keyed.codec.keys import encode_key, is_null, key_type, normalised
from keyed.content.addresses import TTL_EVENT
from keyed.engine.batch import InitialEntry
from keyed.engine.bound import MISSING, Scope
from keyed.engine.bound_lists import BoundListState
from keyed.engine.bound_maps import BoundBroadcastState, BoundMapState
from keyed.engine.bound_tables import BoundTableState
from keyed.engine.bound_values import BoundAggregatingState, BoundReducingState, BoundValueState
from keyed.engine.registry import Registry
from keyed.errors import KeyedError, RowError
from keyed.job.context import TimerService
from keyed.job.ttl import TimeDomain

#: Names in place of a state's name in rows that are timers.
TIMERS = {f"timer:{domain.value}": domain for domain in TimeDomain}


def write_initial(
    entries: Iterable[InitialEntry], registry: Registry, scope: Scope, timers: TimerService | None, key_type_: str
) -> None:
    """Write entries to the states of a key group, which are active.

    Args:
        entries: The entries; elements of a list are in its order if they have no place.
        registry: The states.
        scope: The scope, whose key is changed.
        timers: The timers; ``None`` if the function has none.
        key_type_: Type of the keys of the stream, empty while none is known.

    Raises:
        RowError: A row does not fit; the message names it.
    """
    writing = _Writing(registry, scope, timers, key_type_)
    for entry in entries:
        try:
            writing.write(entry)
        except (KeyedError, msgspec.ValidationError) as error:
            raise RowError(f"initial_state, row {shown(entry.row)}: {error}") from error
    writing.finish()


class _Writing:
    def __init__(self, registry: Registry, scope: Scope, timers: TimerService | None, key_type_: str) -> None:
        self._registry = registry
        self._scope = scope
        self._timers = timers
        self._key_type = key_type_
        self._seen: set[tuple[str, bytes, Any]] = set()
        self._lists: dict[tuple[str, bytes, bytes], list[InitialEntry]] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._now = scope.processing_time

    def write(self, entry: InitialEntry) -> None:
        if is_null(entry.key):
            raise RowError(f"the key {shown(entry.key)} is null, in whole or part; leave the row out")
        key = normalised(entry.key)
        kind = key_type(key)
        if self._key_type and kind != self._key_type:
            raise RowError(f"the key is of type {kind}, not {self._key_type} like the keys of the stream; convert it")
        self._key_type = kind
        encoded = encode_key(key)
        self._scope.key = key
        state = None if entry.state in TIMERS else self._registry.bound.get(entry.state)
        if state is None and entry.state not in TIMERS:
            raise RowError(
                f"there is no state {entry.state!r}; the states are "
                f"{', '.join(sorted(self._registry.bound)) or 'none'}, and for timers {' and '.join(map(repr, TIMERS))}"
            )
        if isinstance(state, BoundBroadcastState):
            raise RowError(
                f"{entry.state!r} is a broadcast state, which belongs to no key; broadcast a stream of its entries"
            )
        if entry.namespace is not None:
            if state is None or isinstance(state, BoundTableState):
                raise RowError("timers and table states have no namespaces; leave the column empty for them")
            state = state.namespace(entry.namespace)
        if isinstance(state, BoundTableState):
            self._rows.setdefault(entry.state, []).append(entry.row)
            return
        if entry.value is None and not isinstance(state, BoundMapState):
            raise RowError("the value is null; leave the row out")
        if isinstance(state, BoundListState):
            # Its place among the others is known when all were read.
            as_declared(entry.value, state.declaration.type)
            self._lists.setdefault((entry.state, encoded, encode_key(entry.namespace)), []).append(entry)
            return
        place = encode_key(entry.namespace) + (encode_key(entry.entry) if entry.entry is not None else b"")
        if (entry.state, encoded, place) in self._seen:
            raise RowError("there is a row for this key, state and entry already; leave one out")
        self._seen.add((entry.state, encoded, place))
        if state is None:
            self._set_timer(entry)
        else:
            self._put(state, entry)

    def _put(self, state: Any, entry: InitialEntry) -> None:
        """Write an entry of a state that is neither a list nor a table."""
        declaration, name = state.declaration, entry.entry
        single = isinstance(state, BoundValueState | BoundReducingState | BoundAggregatingState)
        if single == (name is not None):
            rule = "has one value for each key: leave entry out" if single else "needs entry: a key or time"
            raise RowError(f"{state.kind} state {state.name!r} {rule}")
        self._set_time(state, entry)
        if isinstance(state, BoundMapState):
            value = None if entry.value is None else as_declared(entry.value, declaration.value_type)
            state.put(as_declared(name, declaration.key_type), value)
        elif isinstance(state, BoundAggregatingState):
            state.set_item(state.freeze(as_declared(entry.value, declaration.accumulator_type)))
        elif isinstance(state, BoundValueState):
            state.update(as_declared(entry.value, declaration.type))
        elif isinstance(state, BoundReducingState):
            state.add(as_declared(entry.value, declaration.type))
        else:
            state.put(as_declared(entry.value, declaration.type), _milliseconds(name))
        self._reset_time()

    def _set_time(self, state: Any, entry: InitialEntry) -> None:
        """Set the clock so that the written entry expires at the row's time."""
        ttl, scope = state.declaration.ttl, self._scope
        if ttl is None or state.kind == "versioned":
            return
        if state._kind == TTL_EVENT:
            if entry.expires is None:
                raise RowError(f"{state.kind} state {state.name!r} lives in event time: give the column expires")
            scope.timestamp = entry.expires - ttl.milliseconds
        elif entry.expires is not None:
            scope.processing_time = entry.expires - ttl.milliseconds

    def _reset_time(self) -> None:
        self._scope.timestamp, self._scope.processing_time = None, self._now

    def _set_timer(self, entry: InitialEntry) -> None:
        timers, domain = self._timers, TIMERS[entry.state]
        if timers is None:
            raise RowError("a vectorized function has no timers; leave the row out")
        time = _milliseconds(entry.value)
        if entry.entry is not None:
            timers.set_timer(entry.entry, time, domain)
        elif domain is TimeDomain.EVENT_TIME:
            timers.register_event_time_timer(time)
        else:
            timers.register_processing_time_timer(time)

    def finish(self) -> None:
        """Write the lists and tables."""
        for (name, *_), entries in self._lists.items():
            places = [entry.entry for entry in entries]
            if any(place is not None for place in places):
                if None in places or len(set(places)) < len(places):
                    raise RowError(
                        f"initial_state, rows of list state {name!r}, key {shown(entries[0].key)}: entry is "
                        f"{shown(places)}; give each element another place, or none of them"
                    )
                entries.sort(key=lambda entry: entry.entry)
            self._scope.key = normalised(entries[0].key)
            state: Any = self._registry.bound[name].namespace(entries[0].namespace)
            for entry in entries:
                try:
                    self._set_time(state, entry)
                    state.add(as_declared(entry.value, state.declaration.type))
                except (KeyedError, msgspec.ValidationError) as error:
                    raise RowError(f"initial_state, row {shown(entry.row)}: {error}") from error
                self._reset_time()
        for name, rows in self._rows.items():
            self._write_table(self._registry.bound[name], rows)

    def _write_table(self, state: BoundTableState, rows: list[dict[str, Any]]) -> None:
        names = [name for name in state.layout.visible if name in rows[0]]
        seen = set()
        for row in rows:
            key = tuple(row.get(name) for name in state.key)
            if key in seen:
                raise RowError(f"initial_state, row {shown(row)}: there is a row for this key already; leave one out")
            seen.add(key)
        try:
            state.upsert(_table(state, names, rows))
        except (KeyedError, *_UNFIT) as error:
            for row in rows:
                try:
                    _table(state, names, [row])
                except _UNFIT as reason:
                    raise RowError(f"initial_state, row {shown(row)}: {reason}") from reason
            raise RowError(f"initial_state, rows of table state {state.name!r}: {error}") from error


#: Exceptions of pyarrow for a value that does not fit a column's type, including its own classes.
_UNFIT = (TypeError, ValueError, OverflowError)


def _table(state: BoundTableState, names: list[str], rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    schema: Any = pa.schema([state.layout.schema.field(name) for name in names])
    return pa.Table.from_pylist(rows, schema=schema)


def _milliseconds(time: Any) -> int:
    """Return a time, given as a timestamp or as milliseconds, in milliseconds.

    Raises:
        RowError: It is neither.
    """
    if isinstance(time, datetime):
        return instant_ms(time.replace(tzinfo=UTC) if time.tzinfo is None else time)
    if type(time) is not int:
        raise RowError(f"{shown(time)} is not a time; give a timestamp, or int milliseconds since the epoch")
    return time


def as_declared(value: Any, type_: Any) -> Any:
    """Return a value in its declared type: an object of a class for Arrow's form of it.

    Raises:
        msgspec.ValidationError: It does not fit.
    """
    if type_ is None or type_ is Any or type_ is object:
        return value
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError:
        parts = list(value.values()) if isinstance(value, dict) else []
        if len(parts) == 1:
            # Spark's state tables have a struct with one field for a value.
            return msgspec.convert(parts[0], type_)
        if parts and (typing.get_origin(type_) is tuple or (isinstance(type_, type) and issubclass(type_, tuple))):
            # Arrow has no tuples: state tables have structs instead.
            return msgspec.convert(parts, type_)
        raise


def replace_table(
    keys: Mapping[str, tuple[str, ...]], states: Mapping[str, BoundBroadcastState], version: Any, _: object
) -> None:
    """Replace the content of a broadcast state by the rows of a version of a global table.

    Unchanged rows are not written again.

    Args:
        keys: The key columns of each table (`keyed.job.global_tables`), by name.
        states: The broadcast states.
        version: The version.

    Raises:
        RowError: A row does not fit the types of the state.
    """
    name = version.name
    state, key = states[name], keys[name]
    declared = state.declaration
    table = read_stream(version.rows, f"global table {name!r}")
    columns = table.column_names
    rows = {}
    for values in zip(*map(column_values, table.columns), strict=True):
        row = dict(zip(columns, values, strict=True))
        parts = tuple(row[column] for column in key)
        try:
            entry = as_declared(parts[0] if len(parts) == 1 else parts, declared.key_type)
            rows[entry] = as_declared(row, declared.value_type)
        except msgspec.ValidationError as error:
            raise RowError(f"global table {name!r}, row {shown(row)}: {error}") from error
    for entry in [entry for entry in state.keys() if entry not in rows]:  # noqa: SIM118 - it is no dictionary
        state.remove(entry)
    for entry, value in rows.items():
        if state.get(entry, MISSING) != value:
            state.put(entry, value)
