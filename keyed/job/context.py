"""The interface of a running function: contexts, the timer service and the runtime context of ``open``.

The classes here are the contract; the engine's own classes implement them. Source: Flink's
``KeyedProcessFunction.Context``, ``OnTimerContext``, ``TimerService`` and ``RuntimeContext``; named timers are Beam's.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

from keyed.job.broadcast import ReadOnlyBroadcastState
from keyed.job.outputs import OutputTag
from keyed.job.state import AggregatingState, ListState, MapState, ReducingState, ValueState, VersionedState
from keyed.job.ttl import TimeDomain

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
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
