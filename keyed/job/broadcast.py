"""Broadcast state: maps that all keys read, written by elements that every key group gets (Flink's broadcast state).

Every key group has a copy of each map, which only elements of the broadcast side change. So that the copies stay equal,
`KeyedBroadcastProcessFunction.process_broadcast_element` gets the same elements in the same order in each key group,
and its writes may depend only on them and on broadcast state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar, overload

from keyed.errors import DefinitionError, StateDefinitionError
from keyed.job.outputs import OutputTag
from keyed.job.state import KeyedState, MapState

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
