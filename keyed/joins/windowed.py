"""Window joins: the elements of two sides in one window, as groups or as pairs."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import takewhile
from typing import Any, Unpack

from keyed import MAX_TIMESTAMP, Context, ListState, MapState, OnTimerContext
from keyed.errors import DefinitionError
from keyed.extending import TimerService, milliseconds_of, shows_options
from keyed.joins.join_path import JoinPlan
from keyed.joins.pairs import How, Join, JoinOptions, Pairing, TimedJoin, time_of
from keyed.vectorized import VectorizedFunction

#: Returns the outputs of a window from its start and end, and the elements of either side in order of arrival.
CoGroup = Callable[[int, int, list[Any], list[Any]], Iterable[Any] | None]


class CoGroupOptions(JoinOptions, total=False):
    """Keywords of `WindowCoGroup`."""

    size: int | timedelta | None
    slide: int | timedelta | None
    offset: int | timedelta
    gap: int | timedelta | None


class WindowCoGroup(TimedJoin):
    """Calls a function with both sides' elements of each key and window when the watermark passes its end.

    As Flink's ``coGroup``: a window excludes its end, its outputs have the time ``end - 1``, and an element is late if
    the watermark has passed the ends of all its windows. With ``gap`` windows are sessions of both sides together;
    elements exactly a gap apart are in one if the watermark has not passed the first one's session.

    Args:
        cogroup: Returns the outputs of a window, ``cogroup(start, end, lefts, rights)``; one list may be empty, and
            `None` means no outputs.
        size: Size of the windows.
        slide: Time from one start to the next; by default the size.
        offset: Shifts the starts, which are multiples of the slide.
        gap: Instead of the size: time for which a session waits for its next element.
        late_left: As of all joins.
        late_right: As of all joins.
        path: As of all joins.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """

    lefts = ListState(Any)
    rights = ListState(Any)

    @shows_options(JoinOptions, path="auto")
    def __init__(
        self,
        cogroup: CoGroup,
        *,
        size: int | timedelta | None = None,
        slide: int | timedelta | None = None,
        offset: int | timedelta = 0,
        gap: int | timedelta | None = None,
        **options: Unpack[JoinOptions],
    ) -> None:
        if not callable(cogroup):
            raise DefinitionError(f"cogroup={cogroup!r}: give a function cogroup(start, end, lefts, rights)")
        super().__init__(**options)
        self.cogroup = cogroup
        if (size is None) == (gap is None) or (gap is not None and (slide is not None or offset)):
            raise DefinitionError(
                f"{type(self).__name__}: size={size!r}, slide={slide!r}, offset={offset!r}, gap={gap!r}: give a size "
                "(with a slide and offset), or a gap alone"
            )
        self._gap_ms = None if gap is None else milliseconds_of(gap, "gap", least=1)
        #: Size, slide and offset.
        self.windows: tuple[int, int, int] | None = None
        if size is not None:
            size_ms = milliseconds_of(size, "size", least=1)
            slide_ms = size_ms if slide is None else milliseconds_of(slide, "slide", least=1)
            self.windows = size_ms, slide_ms, milliseconds_of(offset, "offset", least=-MAX_TIMESTAMP)
        if gap is not None:
            #: The start of each open session by its end.
            self.sessions = MapState(int, int, name="session_starts")

    def __repr__(self) -> str:
        if self.windows is None:
            return f"{type(self).__name__}(gap={self._gap_ms} ms)"
        return f"{type(self).__name__}({self.windows[0]} ms every {self.windows[1]} ms)"

    def row_reason(self) -> str | None:
        return "windows are sessions" if self.windows is None else None

    def spans_ms(self) -> tuple[int, int, int]:
        assert self.windows is not None
        return self.windows

    def over_columns(self, plan: JoinPlan) -> VectorizedFunction:
        from keyed.joins.window_columns import WindowColumns

        return WindowColumns(plan, self.cogroup, self.spans_ms())

    def process_element1(self, value: Any, ctx: Context) -> None:
        self._keep(0, self.lefts, value, ctx)

    def process_element2(self, value: Any, ctx: Context) -> None:
        self._keep(1, self.rights, value, ctx)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Any]:
        end = timestamp + 1
        start = self.sessions.pop(end) if self.windows is None else end - self.windows[0]
        lefts, rights = self.lefts.namespace(start), self.rights.namespace(start)
        yield from self.cogroup(start, end, list(lefts.get()), list(rights.get())) or ()
        lefts.clear()
        rights.clear()

    def _keep(self, side: int, state: ListState[Any], value: Any, ctx: Context) -> None:
        time, service = time_of(ctx), ctx.timer_service()
        watermark, is_late = service.current_watermark(), True
        if self.windows is None:
            windows = [self._session(time, service)]
        else:
            size, slide, offset = self.windows
            last = time - (time - offset) % slide
            earlier = (size - 1 - (time - last)) // slide
            windows = [(start, start + size) for start in range(last - earlier * slide, last + 1, slide)]
        for start, end in windows:
            if end - 1 > watermark:
                is_late = False
                state.namespace(start).add(value)
                service.register_event_time_timer(end - 1)
        if is_late and windows:
            self.drop_late(side, value, ctx)

    def _session(self, time: int, service: TimerService) -> tuple[int, int]:
        """Return the session of an element, merged with the sessions that it touches, unless it is late."""
        assert self._gap_ms is not None
        end = time + self._gap_ms
        # No two sessions overlap, so their starts are in the order of their ends.
        met = list(takewhile(lambda session: session[1] <= end, self.sessions.items_from(time)))
        first = min([time, *(start for _, start in met)])
        last = max([end, *(until for until, _ in met)])
        if last - 1 > service.current_watermark():
            for until, start in met:
                self.sessions.remove(until)
                service.delete_event_time_timer(until - 1)
                for state in (self.lefts, self.rights) if start != first else ():
                    state.namespace(first).add_all(list(state.namespace(start).get()))
                    state.namespace(start).clear()
            self.sessions.put(last, first)
        return first, last


class WindowJoin(WindowCoGroup):
    """Joins all left with all right elements of one key and window (Flink's window join).

    Parameters as of all joins; the windows are those of `WindowCoGroup`.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """

    @shows_options(CoGroupOptions, offset=0, path="auto")
    def __init__(self, join: Join, *, how: How = "inner", **options: Unpack[CoGroupOptions]) -> None:
        super().__init__(self._joined, **options)
        self.pairs = Pairing(join, how)

    def _joined(self, start: int, end: int, lefts: list[Any], rights: list[Any]) -> Iterator[Any]:
        if not rights and self.pairs.keeps[0]:
            rights = [None]
        if not lefts and self.pairs.keeps[1]:
            lefts = [None]
        for left in lefts:
            for right in rights:
                yield from self.pairs.emit(left, right)
