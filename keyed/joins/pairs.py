"""Common parts of the joins: the function of pairs, kinds of joins, late rows and signed durations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, TypedDict

from keyed import Context, KeyedCoProcessFunction, KeyedStream, OutputTag
from keyed.errors import DefinitionError, TimestampError
from keyed.extending import schema_of
from keyed.job.execution_path import MOST_LENGTH, Path, check_path, choose_path, shown_path
from keyed.joins.join_path import JoinPlan, row_reason, sides_of
from keyed.joins.select import Select
from keyed.vectorized import VectorizedFunction

How = Literal["inner", "left", "right", "full"]
Join = Callable[[Any, Any], Any]


class JoinOptions(TypedDict, total=False):
    """Keywords of joins by event time."""

    late_left: OutputTag | None
    late_right: OutputTag | None
    path: Path


class Pairing:
    """Computes the output of a left and a right element.

    Args:
        join: The user's function; a missing partner is ``None``.
        how: The sides that are kept without a partner.
        kinds: The allowed values of ``how``.

    Attributes:
        join: The function.
        keeps: For the left and the right side, whether elements without a partner are emitted.

    Raises:
        DefinitionError: No function, or another kind of join.
    """

    def __init__(self, join: Join, how: str, kinds: Collection[str] = ("inner", "left", "right", "full")) -> None:
        if not callable(join):
            raise DefinitionError(
                f"join={join!r}: give a function join(left, right); a ProcessJoinFunction is for an IntervalJoin"
            )
        if how not in kinds:
            raise DefinitionError(f"how={how!r} must be one of {', '.join(map(repr, kinds))}")
        self.join = join
        self.keeps = (how in ("left", "full"), how in ("right", "full"))

    def emit(self, left: Any, right: Any) -> Iterator[Any]:
        """Yield the output of a pair, if it has one."""
        output = self.join(left, right)
        if output is not None:
            yield output


class ColumnPathJoin(KeyedCoProcessFunction):
    """A join with a path over whole columns.

    Args:
        path: Over whole columns if possible (``"auto"``), always (``"vectorized"``) or never (``"row"``).

    Raises:
        DefinitionError: The path is unknown.
    """

    path_reason: str | None = "it is not passed to process"
    #: The output has the change of a joined row as its last column.
    has_change = False
    late: tuple[OutputTag | None, OutputTag | None] = (None, None)

    def __init__(self, path: Path = "auto") -> None:
        check_path(path)
        self._path = path

    def for_stream(self, stream: KeyedStream, output: Any, order: str) -> KeyedCoProcessFunction | VectorizedFunction:
        """Return the join over whole columns if possible, else this one with the reason."""
        if len(stream.sides) < 2:
            return self
        select = getattr(getattr(self, "pairs", None), "join", None)
        if isinstance(select, Select):
            width = None if output is None else len(schema_of(output).columns)
            select.check([side.columns for side in stream.sides], width, has_change=self.has_change)
        reason = self.row_reason() or row_reason(stream, output, order)
        if reason is None and max(map(abs, self.spans_ms()), default=0) > MOST_LENGTH:
            reason = f"its bounds are above {MOST_LENGTH} ms"
        reason = choose_path(self._path, reason, repr(self))
        if reason is None:
            return self.over_columns(JoinPlan(repr(self), sides_of(stream), schema_of(output), self.late))
        by_row = copy.copy(self)
        by_row.path_reason = reason
        return by_row

    @property
    def explanation(self) -> str:
        """The path of the join and its reason, for `keyed.Output.explain`."""
        return shown_path(self.path_reason)

    def row_reason(self) -> str | None:
        """Return the reason why the join itself has to run row by row, if there is one."""
        return None

    def spans_ms(self) -> Collection[int]:
        """Return the durations that times are added to."""
        return ()

    def over_columns(self, plan: JoinPlan) -> VectorizedFunction:
        """Return the same join over whole columns."""
        raise NotImplementedError


class TimedJoin(ColumnPathJoin):
    """A join by event time, with a side output for the late rows of either side.

    Args:
        late_left: Side output of late left elements; without it they are dropped and counted.
        late_right: The same for right ones.
        path: As in `ColumnPathJoin`.

    Raises:
        DefinitionError: One is not an `OutputTag`, or the path is unknown.
    """

    def __init__(
        self, late_left: OutputTag | None = None, late_right: OutputTag | None = None, path: Path = "auto"
    ) -> None:
        super().__init__(path)
        for tag in (late_left, late_right):
            if tag is not None and not isinstance(tag, OutputTag):
                raise DefinitionError(f"{type(self).__name__}: {tag!r} is not an OutputTag for late rows")
        self.late = (late_left, late_right)
        self.known_side_outputs = {tag.name for tag in self.late if tag is not None}

    def drop_late(self, side: int, value: Any, ctx: Context) -> None:
        """Route a late element to the side output, or count it as dropped."""
        tag = self.late[side]
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
        raise TimestampError("the join uses event time, and the element has no timestamp; give stream(timestamp=)")
    return timestamp
