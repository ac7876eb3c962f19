"""Windows kept one by one, as in Flink: any assigner, trigger, evictor and window function.

Source: Flink's ``WindowOperator`` and ``EvictingWindowOperator``. State, all under the window as namespace:
``window_contents`` (all elements, with timestamps if there is an evictor) or ``window_contents_<number of aggregates>``
(the accumulators as a list), the trigger's and the window function's own; without a namespace ``merging_windows``, if
windows merge: the pair of each window in flight and its state window, both as tuples, under the window from its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from keyed import (
    MAX_TIMESTAMP,
    Context,
    ListState,
    MapState,
    OnTimerContext,
    OpenContext,
    OutputTag,
    TimeDomain,
    ValueState,
)
from keyed.errors import DefinitionError
from keyed.extending import inner_state
from keyed.windows.cells import Cells, Published, stored_aggregate
from keyed.windows.definition import Definition, ProcessWindowFunction, SessionWindows
from keyed.windows.evictors import TimestampedValue
from keyed.windows.window import Merge, plan_merge
from keyed.windows.window_context import Emission, TimerContext, WindowContext
from keyed.windows.window_table import describe

_IDLE, _MERGING = "idle", "merging_windows"


class GeneralWindows:
    """The logic of one task.

    Args:
        definition: The operator.
        context: Binds the states.
    """

    def __init__(self, definition: Definition, context: OpenContext) -> None:
        self._definition = definition
        self._assigner = definition.assigner
        self._event_time = definition.assigner.event_time
        self._trigger = definition.trigger
        self._evictor = definition.evictor
        self._cells = Cells(definition.aggregates) if definition.aggregates else None
        merging = hasattr(self._assigner, "merge_windows")
        self._merging: Any = None
        if merging:
            self._merging = context.get_map_state(inner_state(MapState(name=_MERGING), is_shown=False))
        named_by = _MERGING if merging else None
        self._contents: Any
        self._keeps_elements = self._evictor is not None or self._cells is None
        type_: Any = definition.element_type
        if self._keeps_elements:
            if self._evictor is not None and type_ is not object:
                type_ = tuple[type_, int | None]
            table = describe(definition, "elements", timed=self._evictor is not None)
            elements: ListState[Any] = ListState(type_, name="window_contents")
            self._contents = context.get_list_state(inner_state(elements, named_by=named_by, table=table))
        else:
            assert self._cells is not None
            aggregates = list(map(stored_aggregate, definition.aggregates))
            self._single = aggregates[0].accumulator_type if len(aggregates) == 1 else None
            table = describe(definition, "windows", single=self._single is not None)
            cells = ValueState(self._single or object, name=f"window_contents_{self._cells.version}")
            completed = self._cells.completing(0, self._cells.width)
            if self._single is not None and isinstance(aggregates[0], Published):
                completed = aggregates[0].completed
            cells = inner_state(cells, in_place=True, completed=completed, named_by=named_by, table=table)
            self._contents = context.get_state(cells)
        self._triggering = TimerContext(definition, context)
        timers = self._triggering
        if self._event_time:
            self._register, self._delete = timers.register_event_time_timer, timers.delete_event_time_timer
        else:
            self._register, self._delete = timers.register_processing_time_timer, timers.delete_processing_time_timer
        self._processing = WindowContext(definition, context, merging=merging)
        self._emission = Emission(definition, self._cells, self._processing)
        process = definition.process
        self._clears = process is not None and type(process).clear is not ProcessWindowFunction.clear

    # Elements ---------------------------------------------------------------------------------------------------

    def process_element(self, element: Any, ctx: Context) -> None:
        """Add an element to its windows, and fire those whose trigger fires."""
        timers = self._triggering.enter(ctx)
        timestamp = ctx.timestamp()
        now = timers.current_processing_time()
        if self._event_time and timestamp is None:
            raise no_timestamp(element)
        windows = self._assigner.assign_windows(element, timestamp, now)
        watermark = timers.current_watermark()
        is_skipped = True
        for window in windows:
            state_window = window
            if self._merging is not None:
                window, state_window = self._add_window(window, watermark, now)
                if state_window is None:
                    continue
            elif self._event_time and self._definition.cleanup_time(window) <= watermark:
                continue
            is_skipped = False
            self._add(element, timestamp, window, state_window, now)
        if is_skipped and self._event_time:
            assert timestamp is not None
            if timestamp + self._definition.lateness_ms <= watermark:
                divert(element, self._definition.late_tag, ctx)

    def _add(self, element: Any, timestamp: int | None, window: Any, state_window: Any, now: int) -> None:
        contents = self._contents.namespace(tuple(state_window))
        if not self._keeps_elements:
            assert self._cells is not None
            cells = self._load(contents)
            if cells is None:
                cells = self._cells.create()
            self._cells.add(cells, 0, element, timestamp)
            contents.update(cells if self._single is None else cells[0])
        else:
            contents.add(element if self._evictor is None else (element, timestamp))
        triggering = self._triggering
        triggering.current = window
        result = self._trigger.on_element(element, timestamp, window, triggering)
        if result.fires:
            self._fire(window, contents)
        if result.purges:
            contents.clear()
        self._change_cleanup_timer(window, self._register)
        if self._definition.idle_timeout_ms is not None:
            time = min(now + self._definition.idle_timeout_ms, MAX_TIMESTAMP)
            triggering.timers.set_timer((_IDLE, *window), time, TimeDomain.PROCESSING_TIME)

    # Timers -----------------------------------------------------------------------------------------------------

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None:
        """Pass a timer to its window's trigger, and clean the window up when it is time."""
        timers = self._triggering.enter(ctx)
        name = ctx.timer_name()
        self._triggering.registered.discard((ctx.get_current_key(), name))
        is_idle = name is not None and name[0] == _IDLE
        window = self._assigner.window_type(*(name[1:] if name else ()))
        state_window = window
        if self._merging is not None:
            pair = self._merging.get(_place(window))
            if pair is None:
                return  # a stale timer of a merged window's trigger
            state_window = pair[1]
        contents = self._contents.namespace(tuple(state_window))
        self._triggering.current = window
        is_event = ctx.time_domain() is TimeDomain.EVENT_TIME
        if is_idle:
            self._close_idle(window, contents, timers.current_watermark())
            return
        act = self._trigger.on_event_time if is_event else self._trigger.on_processing_time
        result = act(timestamp, window, self._triggering)
        if result.fires:
            self._fire(window, contents)
        if result.purges:
            contents.clear()
        if is_event is self._event_time and timestamp == self._definition.cleanup_time(window):
            self._clean_up(window, contents)

    def _close_idle(self, window: Any, contents: Any, watermark: int) -> None:
        """Close a window that got no element for the idle time, unless the watermark has closed it already."""
        if self._event_time and window.max_timestamp() <= watermark:
            return
        self._fire(window, contents)
        self._change_cleanup_timer(window, self._delete)
        self._clean_up(window, contents)

    # Windows ----------------------------------------------------------------------------------------------------

    def _fire(self, window: Any, contents: Any) -> None:
        """Emit the result of a window that has contents."""
        triggering, processing, emission = self._triggering, self._processing, self._emission
        ctx = triggering.ctx
        processing.enter(ctx)
        key = ctx.get_current_key()
        last = window.max_timestamp()
        if not self._keeps_elements:
            cells = self._load(contents)
            if cells is not None:
                self._collect(emission.of_cells(key, window, cells, 0), last)
            return
        elements = contents.get()
        if not elements:
            return
        if self._evictor is None:
            self._collect(emission.of_elements(key, window, elements), last)
            return
        kept = [TimestampedValue(*element) for element in elements]
        kept = list(self._evictor.evict_before(kept, len(kept), window, triggering))
        self._collect(self._of_evicted(key, window, kept), last)
        kept = list(self._evictor.evict_after(kept, len(kept), window, triggering))
        if len(kept) != len(elements):
            contents.update([tuple(element) for element in kept])

    def _of_evicted(self, key: Any, window: Any, kept: list[TimestampedValue]) -> Iterable[Any]:
        if self._cells is None:
            return self._emission.of_elements(key, window, [element.value for element in kept])
        cells = self._cells.create()
        for value, timestamp in kept:
            self._cells.add(cells, 0, value, timestamp)
        return self._emission.of_cells(key, window, cells, 0)

    def _collect(self, values: Iterable[Any], timestamp: int) -> None:
        collect = self._triggering.ctx.collect
        for value in values:
            collect(value, timestamp)

    def _load(self, contents: Any) -> list[Any] | None:
        """Return the accumulators of a window, ``None`` if it has none."""
        value = contents.value()
        if value is None or self._single is None:
            return value  # type: ignore[no-any-return]
        return [value]

    def _change_cleanup_timer(self, window: Any, change_timer: Callable[[int], None]) -> None:
        """Register or delete the timer that cleans a window up."""
        time = self._definition.cleanup_time(window)
        if time < MAX_TIMESTAMP:  # the window never ends
            change_timer(time)

    def _clean_up(self, window: Any, contents: Any) -> None:
        """Remove all state of a window."""
        contents.clear()
        triggering = self._triggering
        triggering.current = window
        self._trigger.clear(window, triggering)
        if self._definition.idle_timeout_ms is not None:
            triggering.timers.cancel_timer((_IDLE, *window), TimeDomain.PROCESSING_TIME)
        if self._clears:
            self._processing.enter(triggering.ctx)
            self._processing.current = window
            assert self._definition.process is not None
            self._definition.process.clear(self._processing)
        if self._merging is not None:
            self._merging.remove(_place(window))

    # Merging ----------------------------------------------------------------------------------------------------

    def _add_window(self, window: Any, watermark: int, now: int) -> tuple[Any, Any]:
        """Add a window to those in flight. Return the window that contains it and its state window (``None``: late)."""
        assigner: Any = self._assigner
        make, merging = assigner.window_type, self._merging
        if type(assigner).merge_windows is SessionWindows.merge_windows:
            # Windows in flight do not overlap, so only adjacent ones can be touched. A custom rule gets all windows.
            entries = takewhile(lambda entry: entry[1][0][0] <= window.end, merging.items_from((window.start,)))
        else:
            entries = merging.items()
        in_flight = {make(*key): make(*value) for key, value in sorted(pair for _, pair in entries)}
        plan = plan_merge(in_flight, window, assigner.merge_windows)
        for merge in plan.merges:
            self._check_merge(merge.result, watermark, now)
            self._merge(merge)
        is_late = self._event_time and self._definition.cleanup_time(plan.window) <= watermark
        state_windows = plan.state_windows
        state_window = state_windows.pop(plan.window) if is_late else state_windows[plan.window]
        for unused in in_flight.keys() - state_windows.keys():
            merging.remove(_place(unused))
        for key, value in state_windows.items() - in_flight.items():
            merging.put(_place(key), (tuple(key), tuple(value)))
        return plan.window, None if is_late else state_window

    def _check_merge(self, result: Any, watermark: int, now: int) -> None:
        if self._event_time:
            is_past, clock, time = self._definition.cleanup_time(result) <= watermark, "watermark", watermark
        else:
            is_past, clock, time = result.max_timestamp() <= now, "processing time", now
        if is_past:
            raise DefinitionError(
                f"the end timestamp of a window cannot become earlier than the current {clock} by merging: "
                f"{self._assigner!r} merged into {result!r} at {time}"
            )

    def _merge(self, merge: Merge) -> None:
        """Merge windows: the trigger's state and timers, then the contents."""
        triggering = self._triggering
        triggering.current, triggering.merged = merge.result, merge.merged
        self._trigger.on_merge(merge.result, triggering)
        for window in merge.merged:
            triggering.current = window
            self._trigger.clear(window, triggering)
            self._change_cleanup_timer(window, self._delete)
            if self._definition.idle_timeout_ms is not None:
                triggering.timers.cancel_timer((_IDLE, *window), TimeDomain.PROCESSING_TIME)
        target = self._contents.namespace(tuple(merge.state_window))
        sources = [self._contents.namespace(tuple(window)) for window in merge.merged_state_windows]
        if self._keeps_elements:
            for source in sources:
                target.add_all(source.get())
                source.clear()
            return
        assert self._cells is not None
        cells = self._load(target)
        for source in sources:
            other = self._load(source)
            if other is not None:
                if cells is None:
                    cells = other
                else:
                    self._cells.merge(cells, 0, other, 0)
                source.clear()
        if cells is not None:
            target.update(cells if self._single is None else cells[0])


def _place(window: Any) -> tuple[Any, ...]:
    """Return the key of a window in flight, which orders windows by their ends."""
    return tuple(window)[::-1]


def divert(element: Any, late_tag: OutputTag | str | None, ctx: Context) -> None:
    """Route a late element to its side output, or count it as dropped (Flink's ``numLateRecordsDropped``)."""
    if late_tag is not None:
        ctx.output(late_tag, element)
    else:
        ctx.drop()


def no_timestamp(element: Any) -> DefinitionError:
    """Return the error for an element without a timestamp in event-time windows."""
    return DefinitionError(
        f"event-time windows need timestamps, and {element!r} has none; give keyed.stream(..., timestamp=...), a "
        "timestamp to the outputs of the operator upstream, or use processing-time windows"
    )
