"""The engine's implementation of `keyed.job.context`, over a key group's scope, timers and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP, shown, time_text
from keyed.codec.snapshots import snapshot
from keyed.engine.batch import Emitted
from keyed.engine.bound import Outside, Scope
from keyed.engine.emitted_values import OutputCopies, check_return_value
from keyed.engine.timers import TimerQueue, check_timestamp
from keyed.errors import DefinitionError, OutputDefinitionError, StateAccessError
from keyed.job.context import BroadcastState, OutputTag, Timer
from keyed.job.functions import KeyedProcessFunction, RowFunction, no_on_timer
from keyed.job.state import ROW_CALLS, MapState, used_outside
from keyed.job.ttl import TimeDomain

#: The calls of the timer service that change timers.
_CALLS = [
    *(f"{call}_{domain}_time_timer" for call in ("register", "delete") for domain in ("event", "processing")),
    *("set_timer", "cancel_timer"),
]


def _check_end_of_input(timestamp: int) -> int:
    """Check that event time can reach a timestamp if rows have no timestamps, and return it.

    Raises:
        DefinitionError: It is not the timestamp of the end of the input.
    """
    if check_timestamp(timestamp) != MAX_TIMESTAMP:
        raise DefinitionError(
            f"an event-time timer at {time_text(timestamp)} would wait for ever, because the rows of the "
            "stream have no timestamps; give keyed.stream(..., timestamp=...), or register_processing_time_timer; "
            "keyed.MAX_TIMESTAMP is the end of the input"
        )
    return timestamp


def _ended() -> NoReturn:
    used_outside("the context", ROW_CALLS)


class EngineTimerService:
    """The timer service of one batch.

    Args:
        scope: The batch's scope.
        function: The function that owns the timers.
        event: Its timers in event time.
        processing: Its timers in processing time.
        event_time: True if rows have timestamps.
    """

    def __init__(
        self, scope: Scope, function: RowFunction, event: TimerQueue, processing: TimerQueue, event_time: bool
    ) -> None:
        self._scope = scope
        self._function = function
        self.event, self.processing = event, processing
        self._indexed = False
        if not event_time:
            self.event.check = _check_end_of_input
        # Saves a call for each registered timer.
        self._replace(self.event.register, "register_event_time_timer")
        self._replace(self.processing.register, "register_processing_time_timer")
        if type(function).on_timer is KeyedProcessFunction.on_timer:
            self._replace(self._refuse, "register_event_time_timer", "register_processing_time_timer", "set_timer")
        if self.event.is_indexed:
            self._index()

    def _replace(self, method: Callable[..., None], *calls: str) -> None:
        for call in calls:
            self.__dict__[call] = method

    def _refuse(self, *arguments: Any) -> None:
        raise no_on_timer(self._function, "while it runs")

    def __repr__(self) -> str:
        scope = self._scope
        clocks = f"watermark={scope.watermark}, processing_time={scope.processing_time}"
        return f"TimerService(key={shown(scope.key)}, {clocks})"

    def close_processing_time(self) -> None:
        """Ignore further processing-time timers: the input has ended, so they would never fire."""
        self.processing.closed = True
        self._replace(lambda _: None, "register_processing_time_timer")

    def end(self) -> None:
        """Refuse timers from now on."""
        for call in _CALLS:
            self.__dict__.pop(call, None)
        outside: Any = Outside(_ended)
        self.event = self.processing = outside

    def _index(self) -> None:
        self._indexed = True
        for queue in (self.event, self.processing):
            if not queue.is_indexed:
                queue.index()
        if type(self._function).on_timer is not KeyedProcessFunction.on_timer:
            self._replace(self.event.register_indexed, "register_event_time_timer")
            if not self.processing.closed:
                self._replace(self.processing.register_indexed, "register_processing_time_timer")

    def _queue(self, domain: TimeDomain) -> TimerQueue:
        if domain is TimeDomain.EVENT_TIME:
            return self.event
        if domain is TimeDomain.PROCESSING_TIME:
            return self.processing
        raise DefinitionError(
            f"domain={domain!r} is not a TimeDomain; give TimeDomain.EVENT_TIME or TimeDomain.PROCESSING_TIME"
        )

    def current_watermark(self) -> int:
        return self._scope.watermark

    def current_processing_time(self) -> int:
        return self._scope.processing_time

    def register_event_time_timer(self, timestamp: int) -> None:
        self.event.register(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self.processing.register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self.event.delete(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self.processing.delete(timestamp)

    def set_timer(self, name: Any, timestamp: int, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        queue = self.event if domain is TimeDomain.EVENT_TIME else self._queue(domain)
        queue.set_named(name, timestamp)

    def cancel_timer(self, name: Any, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        self._queue(domain).cancel(name)

    def timers(self) -> list[Timer]:
        if not self._indexed:
            self._index()
        key = self._scope.key
        timers = []
        for domain in (TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME):
            pending = self._queue(domain).pending(key)
            timers += [Timer(timestamp, domain, name, key) for timestamp, name in pending]
        return timers


@attrs.define(eq=False, repr=False)
class EngineContext:
    """The context of all calls of one batch; the driver sets the parts that change from call to call.

    Attributes:
        domain: Domain of the timer that fires, ``None`` while an element is processed.
        name: Name of the timer that fires.
        dropped: Number of elements that the function counted as dropped.
        copies: Copies the values of the main output.
    """

    _scope: Scope
    _timers: EngineTimerService
    copies: OutputCopies
    _broadcast: Mapping[str, BroadcastState[Any, Any]]
    domain: TimeDomain | None = attrs.field(default=None, init=False)
    name: Any = attrs.field(default=None, init=False)
    dropped: int = attrs.field(default=0, init=False)
    main: Emitted = attrs.field(factory=Emitted, init=False)
    side: dict[str, Emitted] = attrs.field(factory=dict, init=False)

    def __repr__(self) -> str:
        timer = ""
        if self.domain is not None:
            name = f" {shown(self.name)}" if self.name is not None else ""
            timer = f", {self.domain.value} timer{name}"
        return f"Context(key={shown(self._scope.key)}, timestamp={self._scope.timestamp}{timer})"

    def default_timestamp(self) -> int | None:
        """Return the default timestamp of the current call's outputs: that of the element or event-time timer."""
        return None if self.domain is TimeDomain.PROCESSING_TIME else self._scope.timestamp

    def timestamp(self) -> int | None:
        return self._scope.timestamp

    def get_current_key(self) -> Any:
        return self._scope.key

    def timer_service(self) -> EngineTimerService:
        return self._timers

    def get_broadcast_state(self, descriptor: MapState[Any, Any]) -> Any:
        try:
            return self._broadcast[descriptor.name]
        except (KeyError, AttributeError):
            raise StateAccessError(
                f"get_broadcast_state({descriptor!r}): no stream was broadcast with this descriptor; the broadcast "
                f"states are: {', '.join(map(repr, self._broadcast)) or 'none'}"
            ) from None

    def drop(self) -> None:
        self.dropped += 1

    def is_late(self) -> bool:
        timestamp = self._scope.timestamp
        return self.domain is None and timestamp is not None and timestamp <= self._scope.batch_watermark

    def time_domain(self) -> TimeDomain:
        if self.domain is None:
            raise DefinitionError("time_domain() is for on_timer; in process_element no timer has fired")
        return self.domain

    def timer_name(self) -> Any:
        return self.name

    def output(self, tag: OutputTag | str, value: Any) -> None:
        name = tag.name if isinstance(tag, OutputTag) else tag
        emitted = self.side.get(name)
        if emitted is None:
            if not isinstance(name, str):
                raise OutputDefinitionError(f"output tag {tag!r} is not an OutputTag")
            emitted = self.side[name] = Emitted()
        emitted.values.append(snapshot(value))
        emitted.close_run(self.default_timestamp())

    def output_tagged(self, value: tuple[Any, ...]) -> None:
        """Emit the side output of ``yield tag, value``, as in PyFlink."""
        if len(value) != 2:
            raise OutputDefinitionError(
                f"{value!r:.200} begins with an OutputTag and has {len(value)} parts; yield tag, value"
            )
        self.output(*value)

    def collect(self, value: Any, timestamp: int | None = None) -> None:
        if value.__class__ is tuple and value and value[0].__class__ is OutputTag:
            self.output_tagged(value)
            return
        main = self.main
        if timestamp is None:
            main.values.append(self.copies.freeze(value))
            return
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
            raise OutputDefinitionError(f"collect(timestamp={timestamp!r}): give int milliseconds since the epoch")
        main.close_run(self.default_timestamp())
        main.values.append(self.copies.freeze(value))
        main.close_run(timestamp)

    def collect_all(self, returned: Any, timestamp: int | None) -> None:
        """Emit the outputs that a call returned, with the default timestamp of the call."""
        if returned is not None:
            check_return_value(returned)
            for value in returned:
                self.collect(value)
        self.main.close_run(timestamp)

    def end(self) -> None:
        """Refuse outputs and timers from now on: the batch is over, and they would be lost."""
        self._timers.end()
        outside: Any = Outside(_ended)
        self.main = self.side = self.copies = outside
