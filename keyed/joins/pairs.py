"""What the joins share: the function that makes outputs of pairs, kinds of joins, late rows and signed durations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, Literal

from keyed import Context, DefinitionError, KeyedCoProcessFunction, OutputTag, TimestampError, milliseconds_of

How = Literal["inner", "left", "right", "full"]
Join = Callable[[Any, Any], Any]


class Pairing:
    """Makes one output of a left and a right element.

    Args:
        join: The function of the user; a side without a partner is ``None``.
        how: Which sides are kept without a partner.
        kinds: What ``how`` may be.

    Attributes:
        keeps: Whether left, and whether right elements without a partner come out.

    Raises:
        DefinitionError: No function, or another kind of join.
    """

    def __init__(self, join: Join, how: str, kinds: Collection[str] = ("inner", "left", "right", "full")) -> None:
        if not callable(join):
            raise DefinitionError(f"join={join!r}: give a function join(left, right)")
        if how not in kinds:
            raise DefinitionError(f"how={how!r} must be one of {', '.join(map(repr, kinds))}")
        self._join = join
        self.keeps = (how in ("left", "full"), how in ("right", "full"))

    def emit(self, left: Any, right: Any) -> Iterator[Any]:
        """Yield the output of a pair, if it has one."""
        output = self._join(left, right)
        if output is not None:
            yield output


class LateRowsFunction(KeyedCoProcessFunction):
    """A function of two sides by event time, with a side output for the late rows of either.

    Args:
        late_left: Side output of late left elements; without it they are dropped and counted.
        late_right: The same for right ones.

    Raises:
        DefinitionError: One is no `OutputTag`.
    """

    def __init__(self, late_left: OutputTag | None, late_right: OutputTag | None) -> None:
        for tag in (late_left, late_right):
            if tag is not None and not isinstance(tag, OutputTag):
                raise DefinitionError(f"{type(self).__name__}: {tag!r} is no OutputTag for late rows")
        self._late = (late_left, late_right)
        self.known_side_outputs = {tag.name for tag in self._late if tag is not None}

    def drop_late(self, side: int, value: Any, ctx: Context) -> None:
        """Send a late element aside, or count it as dropped."""
        tag = self._late[side]
        if tag is None:
            ctx.drop()
        else:
            ctx.output(tag, value)


def time_of(ctx: Context) -> int:
    """Return the timestamp of the element.

    Raises:
        TimestampError: It has none.
    """
    timestamp: int | None = ctx.timestamp()
    if timestamp is None:
        raise TimestampError("the join goes by event time, and the element has no timestamp; give stream(timestamp=)")
    return timestamp


def signed_milliseconds(duration: int | timedelta, parameter: str) -> int:
    """Return a duration, which may be negative, as milliseconds.

    Raises:
        DefinitionError: It is none, or not whole milliseconds.
    """
    if isinstance(duration, timedelta):
        negative = duration < timedelta(0)
    else:
        negative = isinstance(duration, int) and duration < 0
    return -milliseconds_of(-duration, parameter) if negative else milliseconds_of(duration, parameter)
