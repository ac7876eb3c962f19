"""Windows: what an assigner assigns elements to.

A window is a named tuple, so that ``tuple(window)`` can be a namespace of state and part of a timer's name, and
``type(window)(*name)`` gives the window back. Source: Flink's ``TimeWindow`` and ``GlobalWindow``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple, Protocol

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP

#: Milliseconds, or a `timedelta`.
Duration = int | timedelta


class Window(Protocol):
    """What the window operator needs of a window: that it is a tuple of encodable values, and an end."""

    def max_timestamp(self) -> int:
        """Return the last timestamp that belongs to the window; timers and results of the window stand at it."""


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
        """Tell whether the windows overlap or touch; such sessions merge."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


class GlobalWindow(NamedTuple):
    """The one window of `keyed.windows.GlobalWindows`; it never ends."""

    def max_timestamp(self) -> int:
        """Return the end of time."""
        return MAX_TIMESTAMP


def window_start(timestamp: int, offset_ms: int, size_ms: int) -> int:
    """Return the start of the window that holds ``timestamp``; windows start at ``offset_ms`` modulo ``size_ms``.

    Flink's ``TimeWindow.getWindowStartWithOffset``; the remainder is never negative, so times before 1970 are right.
    """
    return timestamp - (timestamp - offset_ms) % size_ms


def time_window(start: int, end: int) -> TimeWindow:
    """Return the window ``[start, end)``, cut at the limits of int64 so that its last timestamp can be a timer's."""
    return TimeWindow(max(start, MIN_TIMESTAMP), min(end, MAX_TIMESTAMP + 1))
