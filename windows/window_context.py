"""The contexts of triggers, evictors and window functions, over the context of the keyed function.

One object serves a task. The operator sets ``ctx`` and ``current`` before each call: the context of the keyed
function, whose key is current, and the window.

`Emission` builds the output values of the results of windows:

- one aggregate: its result, as in Flink;
- named aggregates: a row of the key's columns, ``window_start``, ``window_end`` (not for global windows) and the
  aggregates. The times are `int` milliseconds, or aware datetimes if the output's columns are timestamps;
- a window function: the values that it yields. It gets the elements, or the aggregate's result (a row if named).
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import copy
import datetime as dt
import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP, Context, ListState, OpenContext, OutputTag, ReducingState, TimeDomain
from keyed.errors import DefinitionError, OutputDefinitionError, StateAccessError
from keyed.extending import TimerService, inner_state, snapshot
from keyed.windows.cells import Cells
from keyed.windows.definition import Definition, declared_states, trigger_states
from keyed.windows.window import GlobalWindow, time_window


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


#: Classes whose values in a returned tuple are parts of one output, and not outputs.
_PLAIN = (int, float, str, bytes, Decimal, dt.date, type(None))
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

OfBounds = Callable[[Any, int, int, list[Any], int], Iterable[Any]]


class Emission:
    """Builds output values.

    Attributes:
        of_bounds: ``of_bounds(key, start, end, cells, at)``: the outputs of the time window ``[start, end)`` for the
            accumulators at ``at`` of ``cells``.

    Args:
        definition: The operator.
        cells: Its accumulators, if it has any.
        context: The context of its window function. It has to be entered before a call, if there is such a function.
    """

    def __init__(self, definition: Definition, cells: Cells | None, context: WindowContext) -> None:
        self._cells = cells
        self._context = context
        self._process = definition.process
        self._one_key = len(definition.key_names) == 1
        self._has_bounds = definition.assigner.window_type is not GlobalWindow
        self._of_result: Callable[[list[Any]], Any] = itemgetter(0)
        self._make: Callable[[Sequence[Any]], Any] | None = None
        self._has_times = definition.timestamps
        self.of_bounds: OfBounds = self._of_bounds
        if definition.names is not None and self._process is not None:
            self._of_result = row_maker(definition.names)
        elif definition.names is not None:
            self._make = tuple if definition.plain_rows else row_maker(definition.row_names)
            if cells is not None and self._one_key and not self._has_times:
                self.of_bounds = _plain_rows(cells, self._make)

    def of_cells(self, key: Any, window: Any, cells: list[Any], at: int) -> Iterable[Any]:
        """Return the outputs of a window for the accumulators at ``at`` of ``cells``."""
        assert self._cells is not None
        results = self._cells.results(cells, at)
        if self._process is not None:
            # A copy for the function, which may change its argument.
            return self.of_elements(key, window, (snapshot(self._of_result(results)),))
        if self._make is None:
            return results
        keys = (key,) if self._one_key else key
        if not self._has_bounds:
            return (self._make((*keys, *results)),)
        start, end = window
        if self._has_times:
            start, end = _datetime(start), _datetime(end)
        elif end > MAX_TIMESTAMP:
            end = MAX_TIMESTAMP
        return (self._make((*keys, start, end, *results)),)

    def of_elements(self, key: Any, window: Any, elements: Sequence[Any]) -> Iterable[Any]:
        """Return the outputs of the window function."""
        assert self._process is not None
        context = self._context
        context.current = window
        result = self._process.process(key, context, elements) or ()
        # A tuple of rows is a sequence of outputs; a tuple with plain values is one row.
        is_row = isinstance(result, tuple) and any(isinstance(item, _PLAIN) for item in result)
        if is_row or isinstance(result, str | bytes | dict):
            raise OutputDefinitionError(
                f"{result!r} of type {type(result).__name__} was returned by {type(self._process).__name__}.process, "
                "which would count as several outputs; yield it, or return a list of outputs"
            )
        return result

    def _of_bounds(self, key: Any, start: int, end: int, cells: list[Any], at: int) -> Iterable[Any]:
        return self.of_cells(key, time_window(start, end), cells, at)


@lru_cache(4096)
def _datetime(time: int) -> dt.datetime | None:
    """Return a time as a datetime; ``None`` outside of Python's range. Many windows share few bounds."""
    try:
        return _EPOCH + dt.timedelta(milliseconds=time)
    except OverflowError:
        return None


def _plain_rows(cells: Cells, make: Callable[[Sequence[Any]], Any]) -> OfBounds:
    """Return rows of one key column, the window's bounds in milliseconds and the results: this runs once per window."""
    width, results = cells.width, None if cells.are_results else cells.results

    def of_bounds(key: Any, start: int, end: int, values: list[Any], at: int) -> Iterable[Any]:
        cells = values[at : at + width] if results is None else results(values, at)
        if end > MAX_TIMESTAMP or start < MIN_TIMESTAMP:
            start, end = max(start, MIN_TIMESTAMP), min(end, MAX_TIMESTAMP)
        return (make((key, start, end, *cells)),)

    return of_bounds


def row_maker(names: tuple[str, ...]) -> Callable[[Sequence[Any]], Any]:
    """Return a function from values to a row: a named tuple, or a plain one if a name cannot be an attribute."""
    if all(n.isidentifier() and not keyword.iskeyword(n) and not n.startswith("_") for n in names):
        cls = namedtuple("WindowResult", names)  # type: ignore[misc]  # noqa: PYI024

        def make(values: Sequence[Any], new: Any = tuple.__new__, cls: type = cls) -> Any:
            return new(cls, values)

        return make
    return tuple
