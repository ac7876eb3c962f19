"""Triggers, which decide when a window emits its result and when its contents are removed.

Source: Flink's ``Trigger`` and its implementations; method names are PyFlink's. A trigger object is shared by all keys
and windows: its state per window is declared on the trigger (an attribute that is a `ValueState`, `ListState` or
`ReducingState`) and reached through ``ctx.get_partitioned_state(self.attribute)``.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import enum
from typing import Any, ClassVar, Protocol, Unpack

from keyed import MAX_TIMESTAMP, ReducingState, ValueState
from keyed.errors import DefinitionError
from keyed.extending import Units, duration_of, shows_units
from keyed.windows.window import Duration, check_count


class TriggerResult(enum.Enum):
    """The action on a window: `FIRE` emits its result, `PURGE` removes its contents."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def __init__(self, fires: bool, purges: bool) -> None:
        self.fires = fires
        self.purges = purges


class TriggerContext(Protocol):
    """Clocks, timers and state of a trigger, by key and window."""

    def get_current_watermark(self) -> int:
        """Return the watermark, milliseconds."""

    def get_current_processing_time(self) -> int:
        """Return the processing time, milliseconds."""

    def register_event_time_timer(self, time: int) -> None:
        """Call ``on_event_time`` when the watermark reaches ``time``."""

    def register_processing_time_timer(self, time: int) -> None:
        """Call ``on_processing_time`` when the processing time reaches ``time``."""

    def delete_event_time_timer(self, time: int) -> None:
        """Delete the event-time timer at ``time``, if set."""

    def delete_processing_time_timer(self, time: int) -> None:
        """Delete the processing-time timer at ``time``, if set."""

    def get_partitioned_state(self, descriptor: Any) -> Any:
        """Return the state declared as ``descriptor``, for this key and window."""


class OnMergeContext(TriggerContext, Protocol):
    """Context of a trigger while windows merge."""

    def merge_partitioned_state(self, descriptor: Any) -> None:
        """Merge the state of the merged windows into that of the new one (`ReducingState` and `ListState`)."""


class Trigger:
    """Decides when a window fires; subclass it for your own.

    Methods run with the window's key current. Timers belong to the window for which they were set. Timestamps are
    `None` in a stream without event time.
    """

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Decide about an element, after it was added to the window."""
        raise NotImplementedError(f"{type(self).__name__} does not define on_element")

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Decide when an event-time timer of the window fires, its cleanup timer too."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        """Decide when a processing-time timer of the window fires, its cleanup timer too."""
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        """Return whether merging windows are supported: by default if ``on_merge`` is defined."""
        return type(self).on_merge is not Trigger.on_merge

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Set the timers again and merge the state; called when windows became ``window``."""
        raise DefinitionError(f"{type(self).__name__} does not support merging windows; define on_merge")

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Delete the timers that were set and the state; called when the window is removed."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class EventTimeTrigger(Trigger):
    """Fires when the watermark reaches the window's last timestamp, and for each late element."""

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        last = window.max_timestamp()
        if last <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(last)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        # A window that has passed fires for the element that caused the merge.
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(Trigger):
    """Fires when the processing time reaches the window's last timestamp."""

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class _ContinuousTrigger(Trigger):
    """A trigger that fires at every multiple of an interval. The next such time of a window is its state."""

    _event_time: ClassVar[bool]

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self._next = ReducingState(min, int, name="next_fire")

    @classmethod
    @shows_units
    def of(cls, interval: Duration | None = None, **units: Unpack[Units]) -> Any:
        """Make the trigger with an interval of at least 1 ms.

        Raises:
            DefinitionError: The interval is below 1 ms, or given twice.
        """
        return cls(duration_of(interval, "interval", least=1, **units))

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._next)
        time = ctx.get_partitioned_state(self._next).get()
        if time is not None:
            (ctx.register_event_time_timer if self._event_time else ctx.register_processing_time_timer)(time)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        state = ctx.get_partitioned_state(self._next)
        time = state.get()
        if time is not None:
            (ctx.delete_event_time_timer if self._event_time else ctx.delete_processing_time_timer)(time)
            state.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.interval_ms} ms)"


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires when the watermark passes a multiple of an interval, and at the end (early results)."""

    _event_time = True

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        last = window.max_timestamp()
        if last <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(last)
        if timestamp is not None and ctx.get_partitioned_state(self._next).get() is None:
            self._set(timestamp - timestamp % self.interval_ms + self.interval_ms, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        state = ctx.get_partitioned_state(self._next)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        if ctx.get_current_watermark() == window.max_timestamp() == MAX_TIMESTAMP:
            # The input has ended, and multiples would follow for ever: only the window's end is left to fire.
            return TriggerResult.CONTINUE
        self._set(time + self.interval_ms, ctx)
        return TriggerResult.FIRE

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        super().clear(window, ctx)
        # Flink does not delete this timer, which then fires without effect.
        ctx.delete_event_time_timer(window.max_timestamp())

    def _set(self, time: int, ctx: TriggerContext) -> None:
        if time <= MAX_TIMESTAMP:
            ctx.get_partitioned_state(self._next).add(time)
            ctx.register_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires at every multiple of an interval of processing time, and at the window's end.

    A window that outlives its end by this clock, as in event time, fires at the next multiple after an element
    (FLINK-35069).
    """

    _event_time = False

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        if ctx.get_partitioned_state(self._next).get() is None:
            now = ctx.get_current_processing_time()
            self._set(now - now % self.interval_ms, window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self._next)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        if time < window.max_timestamp():
            self._set(time, window, ctx)
        return TriggerResult.FIRE

    def _set(self, time: int, window: Any, ctx: TriggerContext) -> None:
        following = time + self.interval_ms
        # Flink always takes the lower of the two, which for a window in the past of this clock is in the past too.
        if time < window.max_timestamp() < following:
            following = window.max_timestamp()
        ctx.get_partitioned_state(self._next).add(following)
        ctx.register_processing_time_timer(following)


class CountTrigger(Trigger):
    """Fires at every ``max_count`` elements, at least 1, of a window."""

    def __init__(self, max_count: int) -> None:
        self.max_count = check_count(max_count, "max_count", "element")
        self._count = ReducingState(_add, int, name="count")

    @classmethod
    def of(cls, max_count: int) -> CountTrigger:
        """Make the trigger.

        Raises:
            DefinitionError: The number is below 1.
        """
        return cls(max_count)

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() >= self.max_count:
            count.clear()
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._count).clear()

    def __repr__(self) -> str:
        return f"CountTrigger({self.max_count})"


class NeverTrigger(Trigger):
    """Never fires."""

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        pass


class PurgingTrigger(Trigger):
    """Fires when ``nested`` does, and then removes the window's contents."""

    def __init__(self, nested: Trigger) -> None:
        self.nested = _trigger(nested)

    @classmethod
    def of(cls, nested: Trigger) -> PurgingTrigger:
        """Make the trigger.

        Raises:
            DefinitionError: ``nested`` is not a trigger.
        """
        return cls(nested)

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_processing_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.nested.can_merge()

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        self.nested.on_merge(window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        self.nested.clear(window, ctx)

    def __repr__(self) -> str:
        return f"PurgingTrigger({self.nested!r})"


class ProcessingTimeoutTrigger(Trigger):
    """Fires when another trigger fires, or after a time-out without that (Flink)."""

    def __init__(
        self, nested: Trigger, timeout_ms: int, reset_timer_on_new_record: bool, clear_on_timeout: bool
    ) -> None:
        self.nested = _trigger(nested)
        self.timeout_ms = timeout_ms
        self._resets = reset_timer_on_new_record
        self._clears = clear_on_timeout
        self._timeout = ValueState(int, name="timeout")

    @classmethod
    @shows_units
    def of(
        cls,
        nested: Trigger,
        timeout: Duration | None = None,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
        **units: Unpack[Units],
    ) -> ProcessingTimeoutTrigger:
        """Fire when ``nested`` does, or ``timeout`` of processing time, at least 1 ms, after an element.

        Args:
            nested: The other trigger.
            timeout: The time-out.
            reset_timer_on_new_record: Each element restarts the time-out, not only the first.
            should_clear_on_timeout: Clear the nested trigger at a time-out.
            units: The time-out.

        Raises:
            DefinitionError: ``nested`` is not a trigger, or the timeout below 1 ms or given twice.
        """
        timeout_ms = duration_of(timeout, "timeout", least=1, **units)
        return cls(nested, timeout_ms, reset_timer_on_new_record, should_clear_on_timeout)

    def on_element(self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext) -> TriggerResult:
        result = self.nested.on_element(element, timestamp, window, ctx)
        if result.fires:
            self.clear(window, ctx)
            return result
        state = ctx.get_partitioned_state(self._timeout)
        time = state.value()
        if time is None or self._resets:
            if time is not None:
                ctx.delete_processing_time_timer(time)
            time = ctx.get_current_processing_time() + self.timeout_ms
            state.update(time)
            ctx.register_processing_time_timer(time)
        return result

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._expire(self.nested.on_event_time(time, window, ctx), window, ctx)

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._expire(self.nested.on_processing_time(time, window, ctx), window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        state = ctx.get_partitioned_state(self._timeout)
        time = state.value()
        if time is not None:
            ctx.delete_processing_time_timer(time)
            state.clear()
        self.nested.clear(window, ctx)

    def _expire(self, result: TriggerResult, window: Any, ctx: TriggerContext) -> TriggerResult:
        if self._clears:
            self.clear(window, ctx)
        return TriggerResult.FIRE_AND_PURGE if result.purges else TriggerResult.FIRE

    def __repr__(self) -> str:
        return f"ProcessingTimeoutTrigger({self.nested!r}, {self.timeout_ms} ms)"


def _add(a: int, b: int) -> int:
    return a + b


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.fires else result


def _trigger(trigger: Any) -> Trigger:
    """Return ``trigger`` itself.

    Raises:
        DefinitionError: It is not a trigger.
    """
    if not isinstance(trigger, Trigger):
        raise DefinitionError(f"{trigger!r} is not a Trigger")
    return trigger
