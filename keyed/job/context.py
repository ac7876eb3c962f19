"""The interface of a running function: contexts, timers, side outputs, broadcast state, the context of ``open``.

The classes here are the contract; the engine's own classes implement them. Source: Flink's
``KeyedProcessFunction.Context``, ``OnTimerContext``, ``TimerService`` and ``RuntimeContext``; named timers are Beam's.

Broadcast state has maps that all keys read, written by elements that every key group gets (Flink's broadcast state).
Every key group has a copy of each map, which only elements of the broadcast side change. So that the copies stay equal,
`KeyedBroadcastProcessFunction.process_broadcast_element` gets the same elements in the same order in each key group,
and its writes may depend only on them and on broadcast state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

import attrs

from keyed.base.schemas import Schema, schema_of
from keyed.errors import DefinitionError, OutputDefinitionError, StateDefinitionError
from keyed.job.state import (
    _NAME,
    AggregatingState,
    KeyedState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    VersionedState,
)
from keyed.job.ttl import TimeDomain


@attrs.frozen(init=False)
class OutputTag:
    """Names a side output (Flink's `OutputTag`).

    Args:
        name: Matches ``[A-Za-z0-9_-]{1,128}``.
        type: Type of its rows, in any form of ``schema_of``; `None` for the operator's input columns.

    Raises:
        OutputDefinitionError: A bad name or type.
    """

    name: str
    schema: Schema | None

    def __init__(self, name: str, type: Any = None) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OutputDefinitionError(f"output tag {name!r} must match [A-Za-z0-9_-]{{1,128}}; rename it")
        self.__attrs_init__(name, None if type is None else schema_of(type))


K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
D = TypeVar("D")
S = TypeVar("S", bound=KeyedState)


class ReadOnlyBroadcastState(Protocol, Generic[K, V_co]):
    """A broadcast state as keyed elements and timers read it: copies, in the order of the encoded keys."""

    @overload
    def get(self, key: K) -> V_co | None: ...
    @overload
    def get(self, key: K, default: D) -> V_co | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``."""

    def contains(self, key: K) -> bool:
        """Return whether ``key`` is there (with a null value too)."""

    def keys(self) -> Iterator[K]:
        """Return the keys in order."""

    def values(self) -> Iterator[V_co]:
        """Return the values in the order of their keys."""

    def items(self) -> Iterator[tuple[K, V_co]]:
        """Return pairs of key and value in the order of the keys."""

    def is_empty(self) -> bool:
        """Return whether there is no entry."""

    def __getitem__(self, key: K) -> V_co: ...

    def __contains__(self, key: object) -> bool: ...

    def __iter__(self) -> Iterator[K]: ...

    def __len__(self) -> int: ...


class BroadcastState(ReadOnlyBroadcastState[K, V], Protocol):
    """A broadcast state as the broadcast side reads and writes it."""

    def put(self, key: K, value: V) -> None:
        """Set the value of ``key``."""

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Set all of ``entries``."""

    def update(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = (), /, **named: V) -> None:
        """Set all of ``entries``, a mapping or pairs, and of the keywords."""

    def setdefault(self, key: K, default: V) -> V:
        """Return a copy of the value of ``key``, set to ``default`` if missing."""

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: Any = None) -> Any:
        """Remove ``key`` and return its value, or ``default``."""

    def remove(self, key: K) -> None:
        """Remove ``key`` if it is there."""

    def clear(self) -> None:
        """Remove all entries."""

    def __setitem__(self, key: K, value: V) -> None: ...

    def __delitem__(self, key: K) -> None: ...


class BroadcastContext(Protocol):
    """The second argument of ``process_broadcast_element``: no key, no timers."""

    def timestamp(self) -> int | Any:
        """Return the element's timestamp, milliseconds; `None` if it has none."""

    def current_watermark(self) -> int:
        """Return the watermark before the batch."""

    def current_processing_time(self) -> int:
        """Return the processing time of the batch."""

    def get_broadcast_state(self, descriptor: MapState[K, V]) -> BroadcastState[K, V]:
        """Return the state of a descriptor of `keyed.Stream.broadcast`.

        Raises:
            StateAccessError: The descriptor was not given there.
        """

    def apply_to_keyed_state(self, descriptor: S, function: Callable[[Any, S], object]) -> None:
        """Call ``function(key, state)`` for each key of the key group with an entry in a keyed state.

        ``descriptor`` is the attribute that declares it: ``self.count``. The function may read, update and clear the
        state (without namespaces), and use this context; other keyed states have the same key meanwhile. It costs a
        pass over the key group's state.

        Raises:
            StateAccessError: The function has no such keyed state.
        """

    def output(self, tag: OutputTag | str, value: Any) -> None:
        """Emit ``value`` to the side output ``tag``, in each key group."""

    def collect(self, value: Any, timestamp: int | None = None) -> None:
        """Emit ``value`` to the main output, in each key group; by default with the element's timestamp."""

    def drop(self) -> None:
        """Count the element as dropped (``rows_dropped``), once for all key groups."""

    def is_late(self) -> bool:
        """Return whether the element was at or below the watermark at the start of its batch."""


def check_descriptors(descriptors: tuple[Any, ...]) -> None:
    """Check the descriptors that a stream is to be broadcast with.

    Raises:
        DefinitionError: There is none, or an argument is not a descriptor.
        StateDefinitionError: One has no name or a time to live, or two have the same name.
    """
    if not descriptors or not all(isinstance(each, MapState) for each in descriptors):
        raise DefinitionError(f"broadcast{descriptors!r}: give one or more keyed.MapState(..., name=...)")
    names = [each.name for each in descriptors]
    for each in descriptors:
        if not each.name:
            raise StateDefinitionError("broadcast: a descriptor has no name; give keyed.MapState(..., name='rules')")
        if each.ttl is not None:
            raise StateDefinitionError(
                f"broadcast state {each.name!r} has a time to live, which broadcast state cannot have (as in Flink): "
                "remove old entries in process_broadcast_element"
            )
        if names.count(each.name) > 1:
            raise StateDefinitionError(f"broadcast: two descriptors have the name {each.name!r}; rename one")


T = TypeVar("T")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class Timer(NamedTuple):
    """A pending timer.

    Attributes:
        timestamp: When it fires, milliseconds since the epoch in its domain.
        domain: The clock that it waits for.
        name: Its name, or ``None`` for an unnamed timer.
        key: The key that it belongs to.
    """

    timestamp: int
    domain: TimeDomain
    name: Any
    key: Any


class TimerService(Protocol):
    """Clocks and timers of the current key, in `int` milliseconds since the epoch.

    An unnamed timer is one per (key, domain, timestamp), as in Flink; a named one is one per (key, domain, name), and
    setting it again replaces it, as in Beam. Timers fire by timestamp, key, name. An event-time timer set in the past
    waits for the next advance of the watermark, a processing-time timer fires right after the call that set it.
    """

    def current_watermark(self) -> int:
        """Return the watermark; −2^63 before the first row, 2^63 − 1 after the end of input."""

    def current_processing_time(self) -> int:
        """Return the processing time of this micro-batch."""

    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` when the watermark reaches ``timestamp``."""

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` when the processing time reaches ``timestamp``."""

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the unnamed event-time timer at ``timestamp``, if set."""

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the unnamed processing-time timer at ``timestamp``, if set."""

    def set_timer(self, name: Any, timestamp: int, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        """Set the timer ``name``, any plain encodable value but `None`."""

    def cancel_timer(self, name: Any, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        """Cancel the timer ``name`` if it is set."""

    def timers(self) -> list[Timer]:
        """Return the key's pending timers by domain (event time first), timestamp and name."""


class Context(Protocol):
    """The second argument of ``process_element``: key, timestamp, timers and outputs."""

    def timestamp(self) -> int | Any:
        """Return the element's timestamp or the timer's time, milliseconds; `None` without event time."""

    def get_current_key(self) -> Any:
        """Return the key, a tuple where ``key_by`` has several columns."""

    def timer_service(self) -> TimerService:
        """Return the clocks and timers of the current key."""

    def get_broadcast_state(self, descriptor: MapState[K, V]) -> ReadOnlyBroadcastState[K, V]:
        """Return a broadcast state with all broadcast elements up to this batch.

        Raises:
            StateAccessError: No stream was broadcast with this descriptor. Also when the state is written.
        """

    def output(self, tag: OutputTag | str, value: Any) -> None:
        """Emit ``value`` to the side output ``tag``."""

    def collect(self, value: Any, timestamp: int | None = None) -> None:
        """Emit ``value`` to the main output; by default with the timestamp of the element or event timer."""

    def drop(self) -> None:
        """Count the element as dropped (``rows_dropped``)."""

    def is_late(self) -> bool:
        """Return whether the element was at or below the watermark at the start of its batch."""


class OnTimerContext(Context, Protocol):
    """The second argument of ``on_timer``."""

    def time_domain(self) -> TimeDomain:
        """Return the domain of the timer that fired."""

    def timer_name(self) -> Any:
        """Return the name of the timer that fired, or ``None``."""


class TaskContext(Protocol):
    """Names the task that a function runs in."""

    def get_task_name(self) -> str:
        """Return the name of the operator."""

    def get_index_of_this_subtask(self) -> int:
        """Return the index of the key group, from 0."""

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the number of key groups."""


class OpenContext(TaskContext, Protocol):
    """The argument of ``open``, with the part of PyFlink's `RuntimeContext` that applies: state by descriptor."""

    def get_state(self, descriptor: ValueState[T]) -> ValueState[T]:
        """Return the state, bound to this task."""

    def get_list_state(self, descriptor: ListState[T]) -> ListState[T]:
        """Return the state, bound to this task."""

    def get_map_state(self, descriptor: MapState[K, V]) -> MapState[K, V]:
        """Return the state, bound to this task."""

    def get_reducing_state(self, descriptor: ReducingState[T]) -> ReducingState[T]:
        """Return the state, bound to this task."""

    def get_aggregating_state(self, descriptor: AggregatingState[IN, OUT]) -> AggregatingState[IN, OUT]:
        """Return the state, bound to this task."""

    def get_versioned_state(self, descriptor: VersionedState[T]) -> VersionedState[T]:
        """Return the state, bound to this task."""
