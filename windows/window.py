"""Windows: the values that an assigner assigns to elements.

A window is a named tuple, so that ``tuple(window)`` can be a namespace of state and part of a timer's name, and
``type(window)(*name)`` restores the window. Source: Flink's ``TimeWindow`` and ``GlobalWindow``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.errors import DefinitionError

#: Milliseconds, or a `timedelta`.
Duration = int | timedelta


def check_count(count: Any, parameter: str, unit: str, *, least: int = 1) -> int:
    """Return a number of elements or other things, which a parameter sets.

    Raises:
        DefinitionError: It is not a whole number, or out of range.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= MAX_TIMESTAMP:
        raise DefinitionError(f"{parameter}={count!r} must be an int of at least {least} {unit}")
    return count


class Window(Protocol):
    """Protocol of a window: a tuple of encodable values with an end."""

    def max_timestamp(self) -> int:
        """Return the last timestamp that belongs to the window, which its timers and results have."""


class TimeWindow(NamedTuple):
    """The half-open interval ``[start, end)`` in milliseconds since the epoch.

    Attributes:
        start: First timestamp that belongs to the window.
        end: First timestamp that does not.
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Return ``end - 1``."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether the windows overlap or touch; such sessions merge."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


class GlobalWindow(NamedTuple):
    """The one window of `keyed.windows.GlobalWindows`; it never ends."""

    def max_timestamp(self) -> int:
        """Return the end of time."""
        return MAX_TIMESTAMP


def window_start(timestamp: int, offset_ms: int, size_ms: int) -> int:
    """Return the start of the window that contains ``timestamp``; windows start at ``offset_ms`` modulo ``size_ms``.

    Flink's ``TimeWindow.getWindowStartWithOffset``; the remainder is never negative, so times before 1970 are handled
    correctly.
    """
    return timestamp - (timestamp - offset_ms) % size_ms


def time_window(start: int, end: int) -> TimeWindow:
    """Return the window ``[start, end)``, cut at the limits of int64 so that its last timestamp can be a timer's."""
    return TimeWindow(max(start, MIN_TIMESTAMP), min(end, MAX_TIMESTAMP + 1))
