"""The frequent case of `windows.panes`: event time, no allowed lateness, no gaps between windows.

There an element of a slice that is open is never late, and a timer fires only at the end of a window. The functions
here do what `PaneWindows` does in general, on the same state, with nothing looked up that could be looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from keyed import MAX_TIMESTAMP, Context, OnTimerContext
from windows.cells import Cells
from windows.general import divert, no_timestamp

__all__ = ["quick_fire", "quick_process"]

Outputs = Callable[[Any, int, int, list[Any], int], Iterable[Any]]


def quick_process(
    state: Any, cells: Cells, size: int, slide: int, offset: int, step: int, late_tag: Any
) -> Callable[[Any, Context], None]:
    """The function that adds an element to its slice."""
    value, update, add, create = state.value, state.update, cells.add, cells.create
    width = cells.width
    stride = 1 + width

    def process_element(element: Any, ctx: Context) -> None:
        timestamp = ctx.timestamp()
        if timestamp is None:
            raise no_timestamp(element)
        start = timestamp - (timestamp - offset) % step
        panes = value()
        at = -width
        if panes is None or panes[-stride] != start:
            at = 0
            if panes is not None:
                for position in range(0, len(panes), stride):
                    if panes[position] == start:
                        at = position + 1
                        break
            if not at:
                timers = ctx.timer_service()
                watermark = timers.current_watermark()
                # The end of the latest window that holds the slice, and of the earliest that is still to fire.
                latest = start - (start - offset) % slide + size - 1
                if latest <= watermark:
                    divert(element, late_tag, ctx)
                    return
                earliest = latest
                while earliest - slide >= start + step - 1 and earliest - slide > watermark:
                    earliest -= slide
                timers.register_event_time_timer(min(MAX_TIMESTAMP, earliest))
                at = -width
                if panes is None:
                    panes = [start, *create()]
                else:
                    panes += (start, *create())
        add(panes, at, element, timestamp)
        update(panes)

    return process_element


def quick_fire(
    state: Any,
    cells: Cells,
    size: int,
    slide: int,
    offset: int,
    step: int,
    outputs: Outputs,
    end_of_time: Callable[[OnTimerContext], None],
) -> Callable[[int, OnTimerContext], Iterable[Any] | None]:
    """The function that gives out the window that ends at a timer, and drops the slices that no window needs more."""
    value, update, clear, merge = state.value, state.update, state.clear, cells.merge
    width = cells.width
    stride = 1 + width

    def on_timer(timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        panes = value()
        if panes is None:
            return None
        window = timestamp + 1 - size
        if timestamp == MAX_TIMESTAMP:
            end_of_time(ctx)
            return None
        end, expired = window + size, window + slide
        if len(panes) == stride:
            start = panes[0]
            values = outputs(ctx.get_current_key(), window, end, panes, 1) if window <= start < end else None
            if start < expired:
                clear()
                return values
            following = expired
        else:
            found = []
            kept: list[Any] = []
            following = MAX_TIMESTAMP
            for at in range(0, len(panes), stride):
                start = panes[at]
                if window <= start < end:
                    found.append(at + 1)
                if start >= expired:
                    kept += panes[at : at + stride]
                    following = min(following, start)
            values = None
            if found:
                first, source = found[0], panes
                if len(found) > 1:
                    found.sort(key=lambda at: panes[at - 1])
                    source, first = panes[found[0] : found[0] + width], 0
                    for at in found[1:]:
                        merge(source, 0, panes, at)
                values = outputs(ctx.get_current_key(), window, end, source, first)
            if not kept:
                clear()
                return values
            if len(kept) != len(panes):
                update(kept)
            start = following
        if step < size:
            # The next window that holds a slice that is left. Where slices are windows, each has its own timer.
            following = start + step - size
            following += (offset - following) % slide
            following = (max(expired, following)) + size - 1
            ctx.timer_service().register_event_time_timer(min(MAX_TIMESTAMP, following))
        return values

    return on_timer
