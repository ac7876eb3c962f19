"""Merging of windows as a plan: the merged windows, and the namespace of their state. The functions are pure.

Source: Flink's ``TimeWindow.mergeWindows`` and ``MergingWindowSet``. A merged window keeps its state under its first
window, the *state window*, so that growing by one element moves no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from keyed.windows.window import TimeWindow

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
