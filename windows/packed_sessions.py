"""Session windows with the default trigger, aggregated: all open sessions of a key in one value of state.

State ``sessions_<number of aggregates>``: a flat list, per open session, by start: its start, its end, the time for
which its timer is set, and the accumulators. A session that grows does not move its timer: a timer that fires too early
is set again for the current end. An element that continues a session therefore costs no timer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from keyed import MAX_TIMESTAMP, Context, OnTimerContext, OpenContext, ValueState
from keyed.extending import inner_state
from keyed.windows.assigning import SessionWindows
from keyed.windows.cells import Cells
from keyed.windows.definition import Definition
from keyed.windows.emission import Emission
from keyed.windows.general import divert, no_timestamp
from keyed.windows.window_context import WindowContext
from keyed.windows.window_table import describe

_START, _END, _TIMER, _CELLS = 0, 1, 2, 3


class PackedSessions:
    """The logic of one task.

    Args:
        definition: The operator; its assigner is one of `SessionWindows`.
        context: Binds the state.
    """

    def __init__(self, definition: Definition, context: OpenContext) -> None:
        assigner = definition.assigner
        assert isinstance(assigner, SessionWindows)
        self._event_time = assigner.event_time
        self._gap = assigner.gap_of if isinstance(assigner.gap_of, int) else 0
        self._gap_of = assigner.gap_ms
        self._lateness = definition.lateness_ms
        self._late_tag = definition.late_tag
        self._cells = Cells(definition.aggregates)
        self._stride = _CELLS + self._cells.width
        state = ValueState(list, name=f"sessions_{self._cells.version}")
        completed = self._cells.completing(_CELLS, self._stride)
        state = inner_state(state, in_place=True, completed=completed, table=describe(definition, "sessions"))
        self._state: Any = context.get_state(state)
        self._context = WindowContext(definition, context, merging=True)
        self._emission = Emission(definition, self._cells, self._context)
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
            for value in self._outputs(sessions, at, ctx):
                ctx.collect(value, last)
            last = min(last + self._lateness, MAX_TIMESTAMP)
        if last < sessions[at + _TIMER]:
            sessions[at + _TIMER] = last
            if self._event_time:
                timers.register_event_time_timer(last)
            else:
                timers.register_processing_time_timer(last)

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
        stride = self._stride
        # At the end of the input, new processing-time timers do not fire any more.
        is_over = not self._event_time and timers.current_watermark() == MAX_TIMESTAMP
        is_changed = False
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
