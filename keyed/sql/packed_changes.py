"""Changes as rows of Spark: the route as text, and the change as bytes of the codec of states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keyed import Context, OnTimerContext
from keyed.codec.values import value_codec
from keyed.sql.row_changes import ROUTE, Change

#: The columns of a row.
PACKED = "route string, change binary"
_codec = value_codec(object)


def pack(change: Change) -> tuple[str, bytes]:
    """Return a change as a row."""
    return change[ROUTE], _codec.encode(tuple(change))


def unpack(row: Any) -> Change:
    """Return the change of a row."""
    found: Change = _codec.decode(bytes(row.change))
    return found


def packed_rows(row: Any) -> Iterator[Any]:
    """Yield a row with the columns of a change only, for ``flat_map``."""
    yield row.route, row.change


def packed_transform(transform: Callable[[Change], Iterable[Change]]) -> Callable[[Any], Iterator[Any]]:
    """Return a function of changes as one of rows, for ``flat_map``."""

    def transformed(row: Any) -> Iterator[Any]:
        for change in transform(unpack(row)):
            yield pack(change)

    return transformed


def packed_elements(changes: Callable[[Any], Iterable[Change]]) -> Callable[[Any], Iterator[Any]]:
    """Return a function from elements to changes as one to rows, for ``flat_map``."""

    def packed(element: Any) -> Iterator[Any]:
        for change in changes(element):
            yield pack(change)

    return packed


class _Packing:
    """The context of an operator, which packs what it collects."""

    def __init__(self, context: Context | OnTimerContext) -> None:
        self._context = context
        self.timer_service = context.timer_service

    def collect(self, change: Change, timestamp: int | None = None) -> None:
        self._context.collect(pack(change), timestamp)


def prepared_function(function: Any, prepare: Callable[[Change], Iterable[Change]]) -> Any:
    """Return an operator that gets the changes which a function makes of each element.

    It is that of ``flat_map`` before the operator, and leaves the operator directly behind the one that it reads.
    """
    kind = type(function)
    call = kind.process_element

    def process_element(self: Any, value: Change, ctx: Context) -> None:
        for change in prepare(value):
            call(self, change, ctx)

    function.__class__ = type(
        kind.__name__, (kind,), {"process_element": process_element, "__module__": kind.__module__}
    )
    return function


def packed_function(function: Any) -> Any:
    """Return an operator whose elements and results are rows."""
    kind = type(function)
    calls: dict[str, Any] = {}
    for name in ("process_element", "process_element1", "process_element2"):
        if name in dir(kind):
            calls[name] = _packed_call(getattr(kind, name))
    if any("on_timer" in vars(each) for each in kind.__mro__ if each.__module__ == kind.__module__):
        on_timer = getattr(kind, "on_timer")  # noqa: B009 - only some have it

        def fired(self: Any, timestamp: int, ctx: OnTimerContext) -> None:
            on_timer(self, timestamp, _Packing(ctx))

        calls["on_timer"] = fired
    function.__class__ = type(kind.__name__, (kind,), calls)
    return function


def _packed_call(call: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Context], None]:
    def packed(self: Any, value: Any, ctx: Context) -> None:
        call(self, unpack(value), _Packing(ctx))

    return packed
