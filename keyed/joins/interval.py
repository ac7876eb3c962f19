"""The interval join: pairs whose timestamps lie within bounds of each other."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any, Unpack

import attrs

from keyed import MAX_TIMESTAMP, Context, MapState, OnTimerContext, OpenContext, OutputTag
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.extending import milliseconds_of, shows_options
from keyed.joins.join_path import JoinPlan
from keyed.joins.pairs import How, Join, JoinOptions, Pairing, TimedJoin, time_of
from keyed.vectorized import VectorizedFunction

Kept = MapState[tuple[int, int], tuple[Any, bool]]


@attrs.frozen
class JoinContext:
    """Context of a `ProcessJoinFunction`: times of its pair in milliseconds, and side outputs."""

    _ctx: Context
    _times: tuple[int | None, int | None]
    _time: int

    def left_timestamp(self) -> int | None:
        """Return the left element's timestamp; `None` without an element."""
        return self._times[0]

    def right_timestamp(self) -> int | None:
        """Return the right element's timestamp; `None` without an element."""
        return self._times[1]

    def timestamp(self) -> int:
        """Return the timestamp of the outputs: the greater one."""
        return self._time

    def output(self, tag: OutputTag | str, value: Any) -> None:
        """Emit ``value`` to the side output ``tag``."""
        self._ctx.output(tag, value)


class ProcessJoinFunction:
    """Emits the outputs of pairs of an `IntervalJoin`, row by row (Flink's `ProcessJoinFunction`)."""

    def open(self, context: OpenContext) -> None:
        """Prepare, as in a `keyed.KeyedProcessFunction`."""

    def process_element(self, left: Any, right: Any, ctx: JoinContext) -> Iterable[Any] | None:
        """Yield any number of outputs of a pair; in an outer join one side may be `None`."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `open` took."""


class IntervalJoin(TimedJoin):
    """Joins elements of one key with ``left + lower <= right <= left + upper``, in event time.

    As Flink's `IntervalJoinOperator`: a pair is emitted as soon as both elements have arrived, with the greater
    timestamp. An element is kept until the watermark rules out further partners; then an outer join emits it without
    one, with that time. One below the watermark is late.

    Args:
        join: As of all joins; or a `ProcessJoinFunction`.
        lower: Least distance of the right element's time from the left one's; negative for earlier ones.
        upper: Greatest distance.
        lower_exclusive: Exclude ``lower`` itself.
        upper_exclusive: Exclude ``upper`` itself.
        how: As of all joins.
        late_left: As of all joins.
        late_right: As of all joins.
        path: As of all joins.

    Raises:
        DefinitionError: No time lies within the bounds, or a parameter breaks another rule.
    """

    #: The waiting elements by time and number within that time, each with a flag that is true once it has had a
    #: partner.
    lefts = MapState(tuple[int, int], tuple[Any, bool])
    rights = MapState(tuple[int, int], tuple[Any, bool])

    @shows_options(JoinOptions, path="auto")
    def __init__(
        self,
        join: Join | ProcessJoinFunction,
        *,
        lower: int | timedelta,
        upper: int | timedelta,
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
        how: How = "inner",
        **options: Unpack[JoinOptions],
    ) -> None:
        super().__init__(**options)
        function: Any = join
        self.function: ProcessJoinFunction | None = None
        if isinstance(function, type) and issubclass(function, ProcessJoinFunction):
            raise DefinitionError(f"join={function.__name__} is a class; give an object of it: {function.__name__}()")
        if isinstance(function, ProcessJoinFunction):
            self.function, function = function, function.process_element
            # It may have side outputs of its own.
            self.known_side_outputs = None
        self.pairs = Pairing(function, how)
        self.lower = milliseconds_of(lower, "lower", least=-MAX_TIMESTAMP) + lower_exclusive
        self.upper = milliseconds_of(upper, "upper", least=-MAX_TIMESTAMP) - upper_exclusive
        if self.lower > self.upper:
            raise DefinitionError(f"IntervalJoin: no time lies between lower={lower!r} and upper={upper!r}")
        # Time for which an element of either side is kept after its timestamp.
        self.kept_ms = (max(self.upper, 0), max(-self.lower, 0))

    def __repr__(self) -> str:
        return f"IntervalJoin({self.lower} ms <= right - left <= {self.upper} ms)"

    def row_reason(self) -> str | None:
        return None if self.function is None else f"{type(self.function).__name__} is a ProcessJoinFunction"

    def open(self, context: OpenContext) -> None:
        if self.function is not None:
            self.function = copy.copy(self.function)
            self.function.open(context)

    def close(self) -> None:
        if self.function is not None:
            self.function.close()

    def spans_ms(self) -> tuple[int, int]:
        return self.lower, self.upper

    def over_columns(self, plan: JoinPlan) -> VectorizedFunction:
        from keyed.joins.interval_columns import IntervalColumns

        return IntervalColumns(plan, self.pairs, (self.lower, self.upper), self.kept_ms)

    def process_element1(self, value: Any, ctx: Context) -> Iterator[Any]:
        return self._meet(0, value, ctx, self.lefts, self.rights, self.lower, self.upper)

    def process_element2(self, value: Any, ctx: Context) -> Iterator[Any]:
        return self._meet(1, value, ctx, self.rights, self.lefts, -self.upper, -self.lower)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Any]:
        for side, state in enumerate((self.lefts, self.rights)):
            time = timestamp - self.kept_ms[side]
            for number in count():
                kept = state.get((time, number))
                if kept is None:
                    break
                if self.pairs.keeps[side] and not kept[1]:
                    yield from self._outputs(side, kept[0], time, None, None, timestamp, ctx)
                state.remove((time, number))

    def _meet(self, side: int, value: Any, ctx: Context, own: Kept, other: Kept, low: int, up: int) -> Iterator[Any]:
        time = time_of(ctx)
        if time < ctx.timer_service().current_watermark():
            self.drop_late(side, value, ctx)
            return
        marks = self.pairs.keeps[1 - side]
        had_partner = False
        for place, (partner, had) in other.items_from((time + low, 0)):
            other_time = place[0]
            if other_time > time + up:
                break
            had_partner = True
            if marks and not had:
                other.put(place, (partner, True))
            latest = max(time, other_time)
            for output in self._outputs(side, value, time, partner, other_time, latest, ctx):
                ctx.collect(output, latest)
        own.put((time, _free(own, time)), (value, had_partner))
        ctx.timer_service().register_event_time_timer(time + self.kept_ms[side])
        yield from ()

    def _outputs(
        self, side: int, own: Any, time: int, other: Any, other_time: int | None, latest: int, ctx: Context
    ) -> Iterable[Any]:
        """Return the outputs of an element of a side with an element of the other side."""
        pair = (other, own) if side else (own, other)
        if self.function is None:
            return self.pairs.emit(*pair)
        times = (other_time, time) if side else (time, other_time)
        outputs = self.function.process_element(*pair, JoinContext(ctx, times, latest))
        if isinstance(outputs, str | bytes | dict | tuple):
            raise OutputDefinitionError(
                f"{outputs!r:.200} was returned by process_element of {type(self.function).__name__}, which would "
                "count as several outputs; yield it, or return a list of outputs"
            )
        return outputs or ()


def _free(state: Kept, time: int) -> int:
    """Return the number of elements of a time, which is the next free number, without reading all of them."""
    above = 1
    while (time, above - 1) in state:
        above *= 2
    return bisect_left(range(above - 1), True, above // 2, key=lambda number: (time, number) not in state)
