"""Windows: the values that an assigner assigns to elements.

A window is a named tuple, so that ``tuple(window)`` can be a namespace of state and part of a timer's name, and
``type(window)(*name)`` restores the window. Source: Flink's ``TimeWindow`` and ``GlobalWindow``.

Merging of windows is a plan: the merged windows, and the namespace of their state. A merged window keeps its state
under its first window, the *state window*, so that growing by one element moves no state. Source: Flink's
``TimeWindow.mergeWindows`` and ``MergingWindowSet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

import attrs

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


W = TypeVar("W", bound=Any)


@attrs.frozen
class Merge:
    """One merge of windows that are in flight.

    Attributes:
        result: The merged window.
        merged: The merged windows, without the added one.
        state_window: The namespace of the result's state: the state window of the first merged window.
        merged_state_windows: The state windows whose state moves there.
    """

    result: Any
    merged: tuple[Any, ...]
    state_window: Any
    merged_state_windows: tuple[Any, ...]


@attrs.frozen
class MergePlan:
    """The effect of adding a window.

    Attributes:
        window: The window that contains the added one.
        state_windows: The windows in flight afterwards, each with its state window.
        merges: Merges to carry out. Empty if the added window is new, or inside an existing one.
    """

    window: Any
    state_windows: dict[Any, Any]
    merges: tuple[Merge, ...]


def merge_time_windows(windows: Iterable[TimeWindow]) -> list[tuple[TimeWindow, list[TimeWindow]]]:
    """Return the windows that overlap or touch, merged.

    Returns:
        Pairs of a covering window and the two or more windows that it covers, by start.
    """
    groups: list[tuple[TimeWindow, list[TimeWindow]]] = []
    for window in sorted(windows):
        if groups and groups[-1][0].intersects(window):
            cover, members = groups[-1]
            groups[-1] = (cover.cover(window), [*members, window])
        else:
            groups.append((window, [window]))
    return [(cover, members) for cover, members in groups if len(members) > 1]


def plan_merge(
    in_flight: Mapping[W, W],
    added: W,
    merge_windows: Callable[[Iterable[Any]], Iterable[tuple[Any, list[Any]]]] = merge_time_windows,
) -> MergePlan:
    """Plan the addition of a window to those in flight.

    Args:
        in_flight: Windows in flight, each with its state window. Not changed.
        added: The window to add.
        merge_windows: The assigner's rule of merging.
    """
    state_windows: dict[Any, Any] = dict(in_flight)
    if added in state_windows:
        return MergePlan(added, state_windows, ())
    result = added
    merges = []
    for cover, members in merge_windows([*state_windows, added]):
        merged = tuple(window for window in members if window != added)
        if added in members:
            result = cover
        owners = [state_windows.pop(window) for window in merged if window in state_windows]
        if not owners:
            continue
        state_windows[cover] = owners[0]
        if merged != (cover,):
            merges.append(Merge(cover, merged, owners[0], tuple(owners[1:])))
    state_windows.setdefault(result, result)
    return MergePlan(result, state_windows, tuple(merges))
