"""The contexts of triggers, evictors and window functions, over the context of the keyed function.

One object serves a task. The operator sets ``ctx`` and ``current`` before each call: the context of the keyed
function, whose key is current, and the window.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from keyed import Context, ListState, OpenContext, OutputTag, ReducingState, TimeDomain
from keyed.errors import DefinitionError, StateAccessError
from keyed.extending import TimerService, inner_state
from keyed.windows.definition import Definition, declared_states, trigger_states


def bind_state(context: OpenContext, descriptor: Any, name: str, *, is_shown: bool) -> Any:
    """Return a declared state bound to the operator under ``name``, shown as a table of its own or not at all."""
    renamed = copy.copy(descriptor)
    renamed.name = name
    if not is_shown:
        inner_state(renamed, is_shown=False)
    getter = "get_state" if descriptor.kind == "value" else f"get_{descriptor.kind}_state"
    bound = getattr(context, getter)(renamed)
    # The schema has the stored name. Messages have the name that the user declared.
    bound.name = descriptor.name or name
    return bound


class _Context:
    """Clocks, and the current window.

    Attributes:
        current: The window.
        ctx: The keyed function's context.
        timers: Its timer service.
    """

    def __init__(self) -> None:
        self.current: Any = None
        self.ctx: Any = None
        self.timers: Any = None
        self._states: dict[int, Any] = {}
        #: Pending timers that this batch registered: (key, name). Most elements register one that is pending already.
        self.registered: set[tuple[Any, Any]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.current!r})"

    def enter(self, ctx: Context) -> TimerService:
        """Use the context of the current call."""
        if ctx is not self.ctx:
            self.ctx = ctx
            self.timers = ctx.timer_service()
            self.registered.clear()
        return self.timers  # type: ignore[no-any-return]

    def _state(self, descriptor: Any, owner: str) -> Any:
        state = self._states.get(id(descriptor))
        if state is None:
            raise StateAccessError(
                f"{descriptor!r} is not declared by the {owner}: make it an attribute of its class or object"
            )
        return state


class WindowContext(_Context):
    """`ProcessWindowContext` for one task."""

    def __init__(self, definition: Definition, context: OpenContext, *, merging: bool) -> None:
        super().__init__()
        self._merging = merging
        if definition.process is not None:
            for name, descriptor in declared_states(definition.process).items():
                self._states[id(descriptor)] = bind_state(context, descriptor, f"process_{name}", is_shown=True)

    def window(self) -> Any:
        return self.current

    def current_watermark(self) -> int:
        return self.timers.current_watermark()  # type: ignore[no-any-return]

    def current_processing_time(self) -> int:
        return self.timers.current_processing_time()  # type: ignore[no-any-return]

    def window_state(self, descriptor: Any) -> Any:
        if self._merging:
            raise StateAccessError(
                "windows that merge have no per-window state; use global_state, or make it part of the aggregate"
            )
        return self._state(descriptor, "window function").namespace(tuple(self.current))

    def global_state(self, descriptor: Any) -> Any:
        return self._state(descriptor, "window function")

    def output(self, tag: OutputTag | str, value: Any) -> None:
        self.ctx.output(tag, value)


class TimerContext(_Context):
    """`OnMergeContext` for one task; also the context of evictors.

    A timer of a window is named (time, *window), so that each window has its own at each time, as in Flink. A key has
    only one global window, so its timers need no name, which is cheaper.
    """

    def __init__(self, definition: Definition, context: OpenContext) -> None:
        super().__init__()
        for name, descriptor in trigger_states(definition.trigger).items():
            self._states[id(descriptor)] = bind_state(context, descriptor, name, is_shown=False)
        #: The windows that are being merged into the current one.
        self.merged: Sequence[Any] = ()

    def get_current_watermark(self) -> int:
        return self.timers.current_watermark()  # type: ignore[no-any-return]

    def get_current_processing_time(self) -> int:
        return self.timers.current_processing_time()  # type: ignore[no-any-return]

    def register_event_time_timer(self, time: int) -> None:
        window = self.current
        if window:
            name = (time, *window)
            slot = (self.ctx.get_current_key(), name)
            if slot not in self.registered:
                self.registered.add(slot)
                self.timers.set_timer(name, time)
        else:
            self.timers.register_event_time_timer(time)

    def register_processing_time_timer(self, time: int) -> None:
        window = self.current
        if window:
            self.timers.set_timer((time, *window), time, TimeDomain.PROCESSING_TIME)
        else:
            self.timers.register_processing_time_timer(time)

    def delete_event_time_timer(self, time: int) -> None:
        window = self.current
        if window:
            name = (time, *window)
            self.registered.discard((self.ctx.get_current_key(), name))
            self.timers.cancel_timer(name)
        else:
            self.timers.delete_event_time_timer(time)

    def delete_processing_time_timer(self, time: int) -> None:
        window = self.current
        if window:
            self.timers.cancel_timer((time, *window), TimeDomain.PROCESSING_TIME)
        else:
            self.timers.delete_processing_time_timer(time)

    def get_partitioned_state(self, descriptor: Any) -> Any:
        return self._state(descriptor, "trigger").namespace(tuple(self.current))

    def merge_partitioned_state(self, descriptor: Any) -> None:
        state = self._state(descriptor, "trigger")
        parts = [state.namespace(tuple(window)) for window in self.merged]
        target = state.namespace(tuple(self.current))
        if isinstance(descriptor, ListState):
            values = [value for part in parts for value in part.get()]
        elif isinstance(descriptor, ReducingState):
            values = [value for part in parts if (value := part.get()) is not None]
        else:
            raise DefinitionError(
                f"{descriptor.kind} state {descriptor.name!r} cannot be merged; use a ReducingState or a ListState"
            )
        for part in parts:
            part.clear()
        for value in values:
            target.add(value)
