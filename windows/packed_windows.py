"""Windows with the default trigger, aggregated: all open windows of a key in one value of state, a flat list.

Tumbling and hopping windows: state ``panes_<number of aggregates>``, per open slice its start and the accumulators. A
*slice* is the time between two neighbouring starts or ends of windows. An element is added to its one slice, however
many windows contain it; a window that fires merges its slices. For tumbling windows the slice is the window. A timer is
set when a slice opens, for the next end of a window that contains it; each firing sets the next. An element therefore
costs a read of the key's last slice, and no timer. With allowed lateness a slice is kept until its last window is
cleaned up.

Sessions: state ``sessions_<number of aggregates>``, per open session, by start: its start, its end, the time for which
its timer is set, and the accumulators. A session that grows does not move its timer: a timer that fires too early is
set again for the current end. An element that continues a session therefore costs no timer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from keyed import MAX_TIMESTAMP, Context, OnTimerContext, OpenContext, ValueState
from keyed.extending import TimerService, inner_state
from keyed.windows.cells import Cells
from keyed.windows.definition import Definition, HoppingWindows, SessionWindows, hopping_slice
from keyed.windows.general import divert, no_timestamp
from keyed.windows.window_context import Emission, WindowContext
from keyed.windows.window_table import describe

_START, _END, _TIMER, _CELLS = 0, 1, 2, 3


class _PackedWindows:
    """Base of the logic of one task.

    Args:
        definition: The operator.
        context: Binds the state.
        name: Name of the state, without the number of aggregates.
        layout: Its layout (`keyed.windows.window_table`).
        first: Position of the accumulators after the start of a slice or session.
    """

    def __init__(self, definition: Definition, context: OpenContext, *, name: str, layout: str, first: int) -> None:
        self._event_time = definition.assigner.event_time
        self._lateness = definition.lateness_ms
        self._late_tag = definition.late_tag
        self._cells = Cells(definition.aggregates)
        self._stride = first + self._cells.width
        state = ValueState(list, name=f"{name}_{self._cells.version}")
        completed = self._cells.completing(first, self._stride)
        state = inner_state(state, in_place=True, completed=completed, table=describe(definition, layout))
        self._state: Any = context.get_state(state)
        self._context = WindowContext(definition, context, merging=layout == "sessions")
        self._emission = Emission(definition, self._cells, self._context)

    @staticmethod
    def _emit(values: Iterable[Any], time: int | None, ctx: Context) -> None:
        for value in values:
            ctx.collect(value, time)

    def _register(self, time: int, timers: TimerService) -> None:
        if self._event_time:
            timers.register_event_time_timer(min(time, MAX_TIMESTAMP))
        else:
            timers.register_processing_time_timer(min(time, MAX_TIMESTAMP))


class PaneWindows(_PackedWindows):
    """The logic of one task for `HoppingWindows`."""

    def __init__(self, definition: Definition, context: OpenContext) -> None:
        assigner = definition.assigner
        assert isinstance(assigner, HoppingWindows)
        super().__init__(definition, context, name="panes", layout="slices", first=1)
        self._size, self._slide, self._offset = assigner.size_ms, assigner.slide_ms, assigner.offset_ms
        self._step = hopping_slice(assigner)
        # With gaps between windows, a slice is as long as the slide, and its elements are in the first part of it.
        self._span = min(self._step, self._size)
        self._add = self._cells.add
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
            self._emit(self._outputs(window, panes, ctx), min(window + size - 1, MAX_TIMESTAMP), ctx)
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
        end = window + self._size
        self._emit(self._emission.of_bounds(ctx.get_current_key(), window, end, cells, 0), now, ctx)
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
            self._register(window + size - 1, timers)
        if lateness:
            self._register(last + size - 1 + lateness, timers)
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
                self._emit(self._outputs(window, panes, ctx), window + size - 1, ctx)
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
            self._register(max(self._first_window(least), latest + slide) + size - 1, ctx.timer_service())
        if self._event_time or values is None:
            return values
        self._emit(values, timestamp, ctx)
        return None

    def _fire_last(self, ctx: OnTimerContext) -> None:
        """Handle the end of time: fire all windows that are cut there, and clean up everything."""
        panes, size = self._state.value(), self._size
        window = self._floor(MAX_TIMESTAMP)
        earlier = window
        while earlier + size - 1 >= MAX_TIMESTAMP:
            window, earlier = earlier, earlier - self._slide
        while window <= MAX_TIMESTAMP:
            self._emit(self._outputs(window, panes, ctx), MAX_TIMESTAMP, ctx)
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


class PackedSessions(_PackedWindows):
    """The logic of one task for `SessionWindows`."""

    def __init__(self, definition: Definition, context: OpenContext) -> None:
        assigner = definition.assigner
        assert isinstance(assigner, SessionWindows)
        super().__init__(definition, context, name="sessions", layout="sessions", first=_CELLS)
        self._gap = assigner.gap_of if isinstance(assigner.gap_of, int) else 0
        self._gap_of = assigner.gap_ms
        self.process_element = self._quick_process()

    def _quick_process(self) -> Callable[[Any, Context], None]:
        """Add an element, with the most frequent case first: without lateness, the key's last session continues.

        In that case nothing else can change: open sessions are not late, earlier ones end before the last one starts,
        and the session's timer is at or before its end.
        """
        value, update, add = self._state.value, self._state.update, self._cells.add
        first, end_of, cells_of = -self._stride, _END - self._stride, _CELLS - self._stride
        event_time, gap, gap_of, process = self._event_time, self._gap, self._gap_of, self._process
        is_quick = self._lateness == 0

        def process_element(element: Any, ctx: Context) -> None:
            timestamp = time = ctx.timestamp()
            if not event_time:
                time = ctx.timer_service().current_processing_time()
            elif time is None:
                raise no_timestamp(element)
            end = time + (gap or gap_of(element))
            sessions = value()
            if is_quick and sessions is not None and sessions[first] <= time <= sessions[end_of]:
                if end > sessions[end_of]:
                    sessions[end_of] = end if end <= MAX_TIMESTAMP else MAX_TIMESTAMP + 1
                add(sessions, cells_of, element, timestamp)
                update(sessions)
            else:
                process(element, ctx, sessions or [], time, end)

        return process_element

    def _process(self, element: Any, ctx: Context, sessions: list[Any], time: int, end: int) -> None:
        """Add an element to its session; open or merge sessions."""
        timers = ctx.timer_service()
        clock = timers.current_watermark() if self._event_time else timers.current_processing_time()
        at = self._join(sessions, time, min(end, MAX_TIMESTAMP + 1), clock)
        if at < 0:
            if time + self._lateness <= clock:
                divert(element, self._late_tag, ctx)
            return
        self._cells.add(sessions, at + _CELLS, element, ctx.timestamp())
        self._state.update(sessions)
        last = sessions[at + _END] - 1
        if last <= clock and self._event_time:
            # Late, but allowed: the session has fired and fires again.
            self._emit(self._outputs(sessions, at, ctx), last, ctx)
            last = min(last + self._lateness, MAX_TIMESTAMP)
        if last < sessions[at + _TIMER]:
            sessions[at + _TIMER] = last
            self._register(last, timers)

    def _join(self, sessions: list[Any], time: int, end: int, clock: int) -> int:
        """Find, merge or open the session of an element. Return its position, −1 if the element is too late for any."""
        stride, start = self._stride, time
        place = following = self._first_from(sessions, time)
        while following < len(sessions) and sessions[following + _START] <= end:
            following += stride
        joined = range(place, following, stride)
        if joined:
            start = min(start, sessions[joined[0]])
            end = max(end, sessions[joined[-1] + _END])
        if self._event_time and min(end - 1 + self._lateness, MAX_TIMESTAMP) <= clock:
            return -1
        if not joined:
            # No timer is set yet: any time is earlier.
            sessions[place:place] = [start, end, MAX_TIMESTAMP + 1, *self._cells.create()]
            return place
        target = joined[0]
        sessions[target], sessions[target + _END] = start, end
        for at in joined[1:]:
            sessions[target + _TIMER] = min(sessions[target + _TIMER], sessions[at + _TIMER])
            self._cells.merge(sessions, target + _CELLS, sessions, at + _CELLS)
        if len(joined) > 1:
            del sessions[joined[1] : following]
        return target

    def _first_from(self, sessions: list[Any], time: int) -> int:
        """Find the first session that ends at ``time`` or later: no two overlap, so ends ascend too."""
        stride = self._stride
        count = bisect_left(range(len(sessions) // stride), time, key=lambda at: sessions[at * stride + _END])
        return count * stride

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None:
        """Fire and clean up the sessions that this timer was set for, or set it again where they have grown."""
        sessions = self._state.value()
        if sessions is None:
            return
        timers = ctx.timer_service()
        stride, is_changed = self._stride, False
        # At the end of the input, new processing-time timers do not fire any more.
        is_over = not self._event_time and timers.current_watermark() == MAX_TIMESTAMP
        for at in self._due(sessions, timestamp):
            is_changed = True
            last = sessions[at + _END] - 1
            if last == timestamp or is_over:
                # Outputs that an event-time timer collects get the timer's time.
                time = None if self._event_time else last
                for value in self._outputs(sessions, at, ctx):
                    ctx.collect(value, time)
            cleanup = min(last + self._lateness, MAX_TIMESTAMP)
            if cleanup <= timestamp or is_over:
                del sessions[at : at + stride]
                continue
            following = last if last > timestamp else cleanup
            sessions[at + _TIMER] = following
            if self._event_time:
                timers.register_event_time_timer(following)
            else:
                timers.register_processing_time_timer(following)
        if is_changed:
            self._state.update(sessions or None)

    def _due(self, sessions: list[Any], timer: int) -> list[int]:
        """Return the positions of the sessions whose timer is set for this time, the last first.

        It was set for the session's last timestamp at that point, or for that plus the lateness; sessions only grow.
        The session therefore holds one of the two, unless the lateness has changed since, or cleanup was cut at the end
        of time.
        """
        stride = self._stride
        holder = self._first_from(sessions, timer + 1)
        near = {holder, self._first_from(sessions, timer - self._lateness + 1)}
        places = [at for at in near if at < len(sessions) and sessions[at + _TIMER] == timer]
        if timer == MAX_TIMESTAMP or not places:
            places = [
                at for at in range(0, min(holder + stride, len(sessions)), stride) if sessions[at + _TIMER] == timer
            ]
        return sorted(places, reverse=True)

    def _outputs(self, sessions: list[Any], at: int, ctx: Context) -> Iterable[Any]:
        self._context.enter(ctx)
        start, end = sessions[at + _START], sessions[at + _END]
        return self._emission.of_bounds(ctx.get_current_key(), start, end, sessions, at + _CELLS)
