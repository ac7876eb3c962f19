"""Evictors, which remove elements of a window before or after its function is called.

Source: Flink's ``Evictor``, ``CountEvictor``, ``TimeEvictor`` and ``DeltaEvictor``. A window with an evictor keeps all
its elements, with their timestamps, until they are evicted or the window is cleaned up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Unpack

from keyed.errors import DefinitionError
from keyed.extending import Units, duration_of, milliseconds_of, shows_units
from keyed.windows.window import Duration, check_count


class TimestampedValue(NamedTuple):
    """An element of a window.

    Attributes:
        value: The element.
        timestamp: Its event timestamp in milliseconds, ``None`` in a stream without event time.
    """

    value: Any
    timestamp: int | None


class EvictorContext(Protocol):
    """Clocks for an evictor."""

    def get_current_watermark(self) -> int:
        """Return the watermark, milliseconds."""

    def get_current_processing_time(self) -> int:
        """Return the processing time, milliseconds."""


class Evictor:
    """Removes elements of a window that fires. Subclass it and define one of the methods, or both."""

    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        """Return the elements that the window keeps and its function gets, in order of arrival."""
        return elements

    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        """Return the elements to keep after the window's function was called."""
        return elements


class _Eviction(Evictor):
    """An eviction that is done either before or after the function."""

    def __init__(self, do_evict_after: bool) -> None:
        self._after = do_evict_after

    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return elements if self._after else self._keep(elements)

    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: Any, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return self._keep(elements) if self._after else elements

    def _keep(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        raise NotImplementedError


class CountEvictor(_Eviction):
    """Keeps the last ``max_count`` elements, 0 or more."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._max_count = check_count(max_count, "max_count", "elements", least=0)

    @classmethod
    def of(cls, max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Make the evictor.

        Raises:
            DefinitionError: The number is negative.
        """
        return cls(max_count, do_evict_after)

    def _keep(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        return elements[max(len(elements) - self._max_count, 0) :]


class TimeEvictor(_Eviction):
    """Keeps the elements less than a duration older than the newest in the window."""

    def __init__(self, duration: Duration, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._duration_ms = milliseconds_of(duration, "duration")

    @classmethod
    @shows_units
    def of(cls, duration: Duration | None = None, do_evict_after: bool = False, **units: Unpack[Units]) -> TimeEvictor:
        """Keep elements younger than ``duration``, and those without timestamps; evict before the function, or after.

        Raises:
            DefinitionError: The duration is negative, or given twice.
        """
        return cls(duration_of(duration, "duration", **units), do_evict_after)

    def _keep(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        times = [element.timestamp for element in elements if element.timestamp is not None]
        if len(times) != len(elements) or not times:
            return elements
        cutoff = max(times) - self._duration_ms
        return [element for element, time in zip(elements, times, strict=True) if time > cutoff]


class DeltaEvictor(_Eviction):
    """Keeps the elements with ``delta(element, last element) < threshold``."""

    def __init__(self, threshold: float, delta: Callable[[Any, Any], float], do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if not callable(delta):
            raise DefinitionError(f"delta={delta!r} is not callable; give a function (element, last element) -> number")
        self._threshold = threshold
        self._delta = delta

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Any, Any], float], do_evict_after: bool = False) -> DeltaEvictor:
        """Make the evictor.

        Raises:
            DefinitionError: ``delta`` is not callable.
        """
        return cls(threshold, delta, do_evict_after)

    def _keep(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        if not elements:
            return elements
        last = elements[-1].value
        return [element for element in elements if self._delta(element.value, last) < self._threshold]
