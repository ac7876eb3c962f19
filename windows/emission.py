"""Output values of the results of windows.

- one aggregate: its result, as in Flink;
- named aggregates: a row of the key's columns, ``window_start``, ``window_end`` (not for global windows) and the
  aggregates. The times are `int` milliseconds, or aware datetimes if the output's columns are timestamps;
- a window function: the values that it yields. It gets the elements, or the aggregate's result (a row if named).
"""

from __future__ import annotations

import datetime as dt
import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import Any

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.errors import OutputDefinitionError
from keyed.extending import snapshot
from keyed.windows.cells import Cells
from keyed.windows.definition import Definition
from keyed.windows.window import GlobalWindow, time_window
from keyed.windows.window_context import WindowContext

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
