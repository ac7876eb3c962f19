"""Runs the rows and timers of one micro-batch through the user's function.

Broadcast elements run first (`keyed.engine.broadcasting`), then processing-time timers that are due. Then, before a row
at ``t``, the watermark advances as far as the rows so far allow, event-time timers fire, and the row runs; after the
last row the watermark advances to that of the batch. The loop over rows is the hot path of the row-by-row API:
everything that can be per batch is outside of it.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import repeat
from types import FrameType
from typing import Any, NoReturn

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, shown, time_text
from keyed.codec.snapshots import UNCHANGING
from keyed.engine.batch import Batch
from keyed.engine.bound import Scope
from keyed.engine.broadcasting import Broadcasting
from keyed.engine.emitted_values import check_return_value
from keyed.engine.engine_context import EngineContext, EngineTimerService
from keyed.errors import KeyedError, UserFunctionError
from keyed.job.context import Context, OutputTag, TimerService
from keyed.job.functions import KeyedProcessFunction, OperatorSpec, element_methods
from keyed.job.state import MapState, State, ValueState
from keyed.job.ttl import TimeDomain
from keyed.rows import fields_of

#: Number of main outputs after which they are passed to the consumer.
_HAND_OVER = 8192

#: Python's message for a tuple that is indexed with a name.
_TEXT_INDEX = "tuple indices must be integers or slices, not str"


@attrs.define(eq=False, repr=False, slots=False)
class Driver:
    """Drives one batch.

    Args:
        spec: The operator.
        function: The opened function.
        scope: The batch's scope, at the watermark before the batch.
        timers: Pending timers.
        context: Receives the outputs.
        broadcast: Runs broadcast elements, ``None`` if the function has none.
    """

    _spec: OperatorSpec
    _function: Any
    _scope: Scope
    _timers: EngineTimerService
    _context: EngineContext
    _broadcast: Broadcasting | None = None

    def __attrs_post_init__(self) -> None:
        spec, function, context = self._spec, self._function, self._context
        self._event, self._processing = self._timers.event, self._timers.processing
        self._on_timer = function.on_timer
        defines_end = type(function).on_batch_end is not KeyedProcessFunction.on_batch_end
        #: The keys of the batch's elements, if the function has ``on_batch_end``; and a flag that is true during its
        #: calls.
        self._keys: dict[Any, None] | None = {} if defines_end else None
        self._ending = False
        self._append, self._as_they_are = context.main.values.append, context.copies.as_they_are
        self._take = context.copies.freeze
        self._firing_processing = False
        self._element: Any = None
        self._call = ""
        self._tracks = spec.output_timestamps
        #: In the order of the watermark it passes each row and timer by itself, so that `current_watermark` does not
        #: depend on batches.
        self._steps = spec.order == "watermark"
        self.rows = self.late = self.handed_over = 0
        self._handing_over = False

    def run(self, batch: Batch, watermark: int) -> None:
        """Run a batch.

        Args:
            batch: Its rows and marks.
            watermark: The watermark after it, at or above the previous one.

        Raises:
            UserFunctionError: The function raised.
            KeyedError: The function used the API wrongly; the message names operator, key and element or timer.
        """
        try:
            if self._broadcast is not None:
                self._broadcast.run(batch.broadcast())
            self._fire_processing()
            self._rows(batch, watermark)
            self._advance(watermark)
            self._end_batch()
            self._hand_over(batch)
            if batch.end_of_input:
                # No later batch can reach them: pending timers fire now, timers that these set do not.
                self._timers.close_processing_time()
                self._processing.load(MAX_TIMESTAMP)
                self._processing.advance(MAX_TIMESTAMP, self._fire_processing_timer)
                # Event-time timers that they set have no later advance either.
                self._fire_events(watermark, watermark)
        except Exception as error:  # noqa: BLE001 - whatever user code raises is named and raised again
            self._fail(error)

    def _rows(self, batch: Batch, reached: int) -> None:
        scope, context, function = self._scope, self._context, self._function
        methods = tuple(getattr(function, name) for name in element_methods(function))
        # A generator always returns an iterable, so its result needs no check per row.
        generator = all(map(inspect.isgeneratorfunction, methods))
        main = context.main
        values, runs = main.values, main.runs
        append, as_they_are, take = self._append, self._as_they_are, self._take
        # Most outputs are tuples, which are checked here, which saves two calls.
        flat, unchanging = tuple in as_they_are, UNCHANGING.issuperset
        event_heap = self._event.heap
        processing_heap, now = self._processing.heap, scope.processing_time
        watermark = scope.watermark
        # Distance of the watermark behind a row's timestamp before the row runs, and its upper limit.
        lag = 1
        # With several inputs the watermark advances no further than the input with the lowest watermark in this batch.
        limit = reached
        moves = self._spec.delay_ms is not None or bool(batch.upstream) or batch.watermark is not None
        if self._spec.delay_ms is not None and not self._steps:
            lag += self._spec.delay_ms
        by_time = self._spec.by_time
        late_until = scope.batch_watermark
        tracks = self._tracks
        emitted = len(values)
        element: Any = None
        process_element = methods[0]
        try:
            for keys, timestamps, elements, sides in batch.chunks():
                self.rows += len(keys)
                times: Iterable[Any] = repeat(None, len(keys))
                if timestamps is not None:
                    times = timestamps
                    self.late += _late(timestamps, late_until, by_time)
                context.domain = context.name = None
                if self._keys is not None:
                    self._keys.update(dict.fromkeys(keys))
                calls = repeat(process_element, len(keys)) if sides is None else map(methods.__getitem__, sides)
                strict = timestamps is not None
                for key, timestamp, element, process_element in zip(keys, times, elements, calls, strict=strict):
                    if moves and timestamp is not None:
                        time = timestamp - lag
                        if time > watermark:
                            if time > limit:
                                time = limit
                            if time > watermark:
                                before = watermark
                                scope.watermark = watermark = time
                                if event_heap and event_heap[0] <= time:
                                    self._fire_events(before, time)
                                    emitted = len(values)
                                    context.domain = context.name = None
                    scope.key = key
                    scope.timestamp = timestamp
                    result = process_element(element, context)
                    if result is not None:
                        if not generator:
                            check_return_value(result)
                        for value in result:
                            cls = type(value)
                            if cls is not tuple:
                                append(value if cls in as_they_are else take(value))
                            elif value and type(value[0]) is OutputTag:
                                context.output_tagged(value)
                            else:
                                append(value if flat or unchanging(map(type, value)) else take(value))
                    if tracks and len(values) != emitted:
                        emitted = len(values)
                        if runs[-1][0] != emitted:
                            runs.append((emitted, timestamp))
                    if processing_heap and processing_heap[0] <= now:
                        self._fire_processing()
                        emitted = len(values)
                if len(values) >= _HAND_OVER:
                    self._hand_over(batch)
                    emitted = 0
        except Exception:
            # The loop does not record its element for messages.
            self._element, self._call = element, process_element.__name__
            raise

    def _end_batch(self) -> None:
        """Call ``on_batch_end`` for the keys that had elements."""
        if not self._keys:
            return
        context, scope = self._context, self._scope
        self._ending = True
        context.domain = context.name = None
        for key in self._keys:
            scope.key, scope.timestamp = key, None
            context.collect_all(self._function.on_batch_end(context), None)
        self._ending = False
        self._fire_processing()

    def _hand_over(self, batch: Batch) -> None:
        """Pass the main output so far to the batch's consumer, if it has one."""
        if batch.consumer is not None:
            main = self._context.main
            self.handed_over += len(main.values)
            self._handing_over = True
            batch.consumer.take(main)
            self._handing_over = False
            main.clear()

    def _advance(self, watermark: int) -> None:
        """Advance the watermark, and fire due timers."""
        before = self._scope.watermark
        if watermark > before:
            self._scope.watermark = watermark
            self._fire_events(before, watermark)

    def _fire_events(self, before: int, watermark: int) -> None:
        """Fire the event-time timers up to ``watermark``. Time to live runs on the times of the timers during this."""
        scope = self._scope
        scope.timer_clock = before
        if self._steps:
            scope.watermark = before
        self._context.domain = TimeDomain.EVENT_TIME
        self._event.advance(watermark, self._fire_event_timer)
        scope.timer_clock, scope.watermark = None, watermark

    def _fire_processing(self) -> None:
        """Fire the processing-time timers that are due."""
        if self._firing_processing:
            return
        self._firing_processing = True
        outer = self._context.domain
        self._processing.advance(self._scope.processing_time, self._fire_processing_timer)
        self._firing_processing = False
        self._context.domain = outer
        self._context.name = None

    def _fire_event_timer(self, timestamp: int, key: Any, name: Any) -> None:
        context, scope = self._context, self._scope
        scope.timestamp = timestamp
        if timestamp > scope.timer_clock:  # type: ignore[operator]
            scope.timer_clock = timestamp
            if self._steps:
                scope.watermark = timestamp
        context.name = name
        result = self._on_timer(timestamp, context)
        if result is not None:
            check_return_value(result)
            append, as_they_are, take = self._append, self._as_they_are, self._take
            for value in result:
                cls = value.__class__
                if cls is tuple and value and value[0].__class__ is OutputTag:
                    context.output_tagged(value)
                else:
                    append(value if cls in as_they_are else take(value))
        if self._tracks:
            context.main.close_run(timestamp)
        heap = self._processing.heap
        if heap and heap[0] <= scope.processing_time:
            self._fire_processing()

    def _fire_processing_timer(self, timestamp: int, key: Any, name: Any) -> None:
        context = self._context
        scope = self._scope
        scope.timestamp, scope.in_processing_time = timestamp, True
        context.domain, context.name = TimeDomain.PROCESSING_TIME, name
        context.collect_all(self._on_timer(timestamp, context), None)
        scope.in_processing_time = False

    def _fail(self, error: Exception) -> NoReturn:
        """Raise ``error`` with its place: operator, call, key and element or timer."""
        scope, context = self._scope, self._context
        if self._handing_over:
            # An invalid output is found after the call that emitted it.
            raise error
        if self._broadcast is not None and self._broadcast.running is not None:
            (element,) = self._broadcast.running
            call = f"process_broadcast_element of element {shown(element)}, timestamp {time_text(scope.timestamp)}"
        elif self._ending:
            call = "on_batch_end"
        elif context.domain is None:
            call = f"{self._call} of element {shown(self._element)}, timestamp {time_text(scope.timestamp)}"
        else:
            named = f" {shown(context.name)}" if context.name is not None else ""
            call = f"on_timer of {context.domain.value} timer{named} at {time_text(scope.timestamp)}"
        where = f"operator {self._spec.name!r}, {call}, key {shown(scope.key)}"
        raise_at(where, error, _remedy(error, self._function, self._element) or _of_none(error, self._function, scope))


def raise_at(where: str, error: Exception, remedy: str = "") -> NoReturn:
    """Raise the error of a call with its place: keyed's errors with their own type, others as the cause."""
    if type(error).__module__ == KeyedError.__module__ and isinstance(error, KeyedError):
        # A function may raise the same object repeatedly.
        error.args = (f"{vars(error).setdefault('_message', str(error))} ({where})",)
        raise error
    raise UserFunctionError(f"{where}: {type(error).__name__}: {error}{remedy}") from error


def _remedy(error: Exception, function: object, element: object) -> str:
    """Return the remedy for using a state as its value, a method without a call, or an unknown name.

    It is empty if there is none.
    """
    frame = _last_frame(error)
    if isinstance(error, KeyError):
        state = frame.f_locals.get("self") if frame is not None else None
        if isinstance(state, MapState):
            return f"; map state {state.name!r} has no such key: read it with .get(key, default)"
    elif isinstance(error, TypeError):
        text = str(error)
        if frame is not None and frame.f_globals is globals():
            return "; a call returns outputs: yield each of them, or return a list"
        # Python's message names only the class: "object of type 'BoundValueState' has no len()".
        for name, state in vars(function).items():
            if isinstance(state, State) and type(state).__name__ in text:
                return f"; self.{name} is a state and not its value: read the value with self.{name}{state.reading}"
        if text == _TEXT_INDEX and (names := fields_of(type(element))):
            return f"; {_listed(element, names)}, and are read as attributes: value.{names[0]}"
        if "'method'" in text:
            return "; a method was not called: call it, as in self.count.value() or ctx.timestamp()"
    elif isinstance(error, AttributeError):
        if isinstance(error.obj, State):
            return error.obj.no_attribute(str(error.name))
        if isinstance(error.obj, EngineContext | EngineTimerService):
            return _of_context(error.obj, str(error.name))
        if error.obj is element and (names := fields_of(type(element))):
            return f"; {_listed(element, names)}" + _suggest(str(error.name), names)
        if error.obj is function:
            return _suggest(str(error.name), [attribute for attribute in dir(function) if attribute[0] != "_"])
        # A method resolves attributes in its function.
        method = error.obj
        if inspect.isfunction(method) and method.__module__.startswith("keyed."):
            return f"; {method.__name__} is a method, so call it: {method.__name__}().{error.name}"
    return ""


def _of_none(error: Exception, function: object, scope: Scope) -> str:
    """Return the remedy for computing with the value of an unset state, or without a timestamp; empty if it is neither.

    The code that failed must name the state, or ``timestamp``.
    """
    frame = _last_frame(error)
    if not isinstance(error, TypeError | AttributeError) or "'NoneType'" not in str(error) or frame is None:
        return ""
    names = frame.f_code.co_names
    for name, state in vars(function).items():
        if name in names and isinstance(state, ValueState):
            with contextlib.suppress(KeyedError):
                if state.value() is None:
                    return (
                        f"; self.{name} has no value for this key yet, so self.{name}.value() is None: check for None, "
                        "or give the state a default, as in ValueState(int, default=0)"
                    )
    if "timestamp" in names and scope.timestamp is None:
        return (
            "; ctx.timestamp() is None without timestamps: give keyed.stream(..., timestamp=...), in a test harness "
            "process(value, timestamp)"
        )
    return ""


def _last_frame(error: Exception) -> FrameType | None:
    """Return the frame that raised an error."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame if last is not None else None


def _listed(element: Any, fields: Sequence[str]) -> str:
    return f"the fields of {type(element).__name__} are {', '.join(fields)}"


def _suggest(name: str, names: Sequence[str]) -> str:
    return "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(name, names, n=1))


def _of_context(value: object, name: str) -> str:
    """Return the remedy for an attribute that the context or the timer service does not have."""
    if isinstance(value, EngineContext) and hasattr(EngineTimerService, name):
        return f"; timers are set with ctx.timer_service().{name}(...)"
    declared = Context if isinstance(value, EngineContext) else TimerService
    public = [each for each in dir(declared) if each[0] != "_"]
    near = [each for each in public if name.strip("_") in each] or difflib.get_close_matches(name, public, n=1)
    return f"; did you mean {near[0]}()?" if near else f"; there are {', '.join(public)}"


def _late(timestamps: Sequence[Any], watermark: int, by_time: bool) -> int:
    """Return the number of late rows: at or below the watermark at the start of their batch."""
    if by_time and timestamps and timestamps[0] is not None:
        return bisect_right(timestamps, watermark)
    return sum(1 for timestamp in timestamps if timestamp is not None and timestamp <= watermark)
