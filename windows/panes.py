"""Tumbling and hopping windows with the default trigger, aggregated: all open slices of a key in one value of state.

A *slice* is the time between two neighbouring starts or ends of windows. An element is added to its one slice, however
many windows contain it; a window that fires merges its slices. For tumbling windows the slice is the window.

State ``panes_<number of aggregates>``: a flat list, per open slice its start and the accumulators. A timer is set when
a slice opens, for the next end of a window that contains it; each firing sets the next. An element therefore costs a
read of the key's last slice, and no timer. With allowed lateness a slice is kept until its last window is cleaned up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keyed import MAX_TIMESTAMP, Context, OnTimerContext, OpenContext, ValueState
from keyed.extending import inner_state
from keyed.windows.assigning import HoppingWindows
from keyed.windows.cells import Cells
from keyed.windows.definition import Definition, hopping_slice
from keyed.windows.emission import Emission
from keyed.windows.general import divert, no_timestamp
from keyed.windows.window_context import WindowContext
from keyed.windows.window_table import describe


class PaneWindows:
    """The logic of one task.

    Args:
        definition: The operator; its assigner is one of `HoppingWindows`.
        context: Binds the state.
    """

    def __init__(self, definition: Definition, context: OpenContext) -> None:
        assigner = definition.assigner
        assert isinstance(assigner, HoppingWindows)
        self._event_time = assigner.event_time
        self._size, self._slide, self._offset = assigner.size_ms, assigner.slide_ms, assigner.offset_ms
        self._step = hopping_slice(assigner)
        # With gaps between windows, a slice is as long as the slide, and its elements are in the first part of it.
        self._span = min(self._step, self._size)
        self._lateness = definition.lateness_ms
        self._late_tag = definition.late_tag
        self._cells = Cells(definition.aggregates)
        self._add = self._cells.add
        self._stride = 1 + self._cells.width
        state = ValueState(list, name=f"panes_{self._cells.version}")
        completed = self._cells.completing(1, self._stride)
        state = inner_state(state, in_place=True, completed=completed, table=describe(definition, "slices"))
        self._state: Any = context.get_state(state)
        self._context = WindowContext(definition, context, merging=False)
        self._emission = Emission(definition, self._cells, self._context)
        self._has_process = definition.process is not None

    # Elements ---------------------------------------------------------------------------------------------------

    def process_element(self, element: Any, ctx: Context) -> None:
        """Add an element to its slice; with allowed lateness, fire the windows again that the watermark has passed."""
        timestamp = ctx.timestamp()
        if not self._event_time:
            time = ctx.timer_service().current_processing_time()
        elif timestamp is None:
            raise no_timestamp(element)
        else:
            time = timestamp
        within = (time - self._offset) % self._step
        start = time - within
        if within >= self._span:
            self._divert_if_late(element, time, ctx)
            return
        if not self._event_time and self._ends_now(start, time, element, timestamp, ctx):
            return
        state, stride = self._state, self._stride
        panes = state.value()
        at = 1 - stride
        if panes is None or panes[-stride] != start:
            at = 0 if panes is None else self._find(panes, start)
            if not at:
                panes = self._open_slice(panes, start, element, ctx)
                if panes is None:
                    return
                at = 1 - stride
        self._add(panes, at, element, timestamp)
        state.update(panes)
        if self._lateness:
            self._fire_again(start, panes, ctx)

    def _fire_again(self, start: int, panes: list[Any], ctx: Context) -> None:
        """Fire the windows of a slice that the watermark has passed and that still exist, the latest first."""
        size, clock, first = self._size, ctx.timer_service().current_watermark(), self._first_window(start)
        window = min(self._floor(start), self._floor(clock + 1 - size))
        while window >= first and window + size - 1 + self._lateness > clock:
            last = self._last(window)
            for value in self._outputs(window, panes, ctx):
                ctx.collect(value, last)
            window -= self._slide

    def _ends_now(self, start: int, now: int, element: Any, timestamp: int | None, ctx: Context) -> bool:
        """Fire, for one element, the window of a slice that is in its last millisecond of processing time.

        Such a window fires again with each element, as a window that is kept one by one does. Returns true if it fired
        and no other window contains the slice, so the element needs no state.
        """
        window = self._first_window(start)
        if window + self._size - 1 != now:
            return False
        cells = self._cells.create()
        self._cells.add(cells, 0, element, timestamp)
        self._context.enter(ctx)
        for value in self._emission.of_bounds(ctx.get_current_key(), window, window + self._size, cells, 0):
            ctx.collect(value, now)
        return window == self._floor(start)

    def _open_slice(self, panes: list[Any] | None, start: int, element: Any, ctx: Context) -> list[Any] | None:
        """Append a slice and set its timers; ``None`` if the element is late for all of its windows."""
        timers = ctx.timer_service()
        clock = timers.current_watermark() if self._event_time else timers.current_processing_time()
        size, lateness = self._size, self._lateness
        last = self._floor(start)
        if self._event_time and min(last + size - 1 + lateness, MAX_TIMESTAMP) <= clock:
            self._divert_if_late(element, start, ctx)
            return None
        window = self._first_window(start)
        if window + size - 1 <= clock:
            window = self._floor(clock + 1 - size) + self._slide
        if window <= last:
            self._register(window + size - 1, ctx)
        if lateness:
            self._register(last + size - 1 + lateness, ctx)
        panes = [] if panes is None else panes
        panes.append(start)
        panes += self._cells.create()
        return panes

    def _divert_if_late(self, element: Any, time: int, ctx: Context) -> None:
        """Route an element without a window to the side output, unless it is between two windows and not late."""
        if self._event_time and time + self._lateness <= ctx.timer_service().current_watermark():
            divert(element, self._late_tag, ctx)

    # Timers -----------------------------------------------------------------------------------------------------

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Handle the end or the cleanup of windows."""
        panes = self._state.value()
        if panes is None:
            return None
        if timestamp == MAX_TIMESTAMP:
            self._fire_last(ctx)
            return None
        size, slide, stride, offset = self._size, self._slide, self._stride, self._offset
        end = timestamp + 1
        latest = end - size
        latest -= (latest - offset) % slide
        if not self._event_time and ctx.timer_service().current_watermark() == MAX_TIMESTAMP:
            # The end of the input: new timers do not fire any more.
            for window in range(latest, max(map(self._floor, panes[::stride])) + 1, slide):
                for value in self._outputs(window, panes, ctx):
                    ctx.collect(value, window + size - 1)
            self._state.clear()
            return None
        is_end = latest + size == end
        values = self._outputs(latest, panes, ctx) if is_end else None
        least = None
        kept: list[Any] = []
        for at in range(0, len(panes), stride):
            start = panes[at]
            last = start - (start - offset) % slide
            if last + size + self._lateness > end:
                kept += panes[at : at + stride]
                if last > latest and (least is None or start < least):
                    least = start
        if not kept:
            self._state.clear()
        elif len(kept) != len(panes):
            self._state.update(kept)
        # Where slices are windows, each has its own timer.
        if is_end and least is not None and slide < size:
            self._register(max(self._first_window(least), latest + slide) + size - 1, ctx)
        if self._event_time or values is None:
            return values
        for value in values:
            ctx.collect(value, timestamp)
        return None

    def _fire_last(self, ctx: OnTimerContext) -> None:
        """Handle the end of time: fire all windows that are cut there, and clean up everything."""
        panes, size = self._state.value(), self._size
        window = self._floor(MAX_TIMESTAMP)
        earlier = window
        while earlier + size - 1 >= MAX_TIMESTAMP:
            window, earlier = earlier, earlier - self._slide
        while window <= MAX_TIMESTAMP:
            for value in self._outputs(window, panes, ctx):
                ctx.collect(value, MAX_TIMESTAMP)
            window += self._slide
        self._state.clear()

    # Windows ----------------------------------------------------------------------------------------------------

    def _outputs(self, window: int, panes: list[Any], ctx: Context) -> Iterable[Any]:
        """Return the outputs of the window that starts at ``window`` from its merged slices; none without slices."""
        end, stride, cells = window + self._size, self._stride, self._cells
        places = [at for at in range(1, len(panes), stride) if window <= panes[at - 1] < end]
        if not places:
            return ()
        merged, first = panes, places[0]
        if len(places) > 1:
            places.sort(key=lambda at: panes[at - 1])
            merged, first = panes[places[0] : places[0] + cells.width], 0
            for at in places[1:]:
                cells.merge(merged, 0, panes, at)
        if self._has_process:
            self._context.enter(ctx)
        return self._emission.of_bounds(ctx.get_current_key(), window, end, merged, first)

    def _find(self, panes: list[Any], start: int) -> int:
        """Return the position of a slice's accumulators, 0 if there is no such slice."""
        for at in range(0, len(panes), self._stride):
            if panes[at] == start:
                return at + 1
        return 0

    def _floor(self, time: int) -> int:
        """Return the latest start of a window at or before ``time``."""
        return time - (time - self._offset) % self._slide

    def _first_window(self, start: int) -> int:
        """Return the start of the earliest window that contains the slice at ``start``."""
        earliest = start + self._span - self._size
        return earliest + (self._offset - earliest) % self._slide

    def _last(self, window: int) -> int:
        """Return the last timestamp of the window that starts at ``window``."""
        return min(window + self._size - 1, MAX_TIMESTAMP)

    def _register(self, time: int, ctx: Context) -> None:
        time = min(time, MAX_TIMESTAMP)
        if self._event_time:
            ctx.timer_service().register_event_time_timer(time)
        else:
            ctx.timer_service().register_processing_time_timer(time)
