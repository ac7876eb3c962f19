"""The interval join: pairs whose timestamps lie within bounds of each other."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from keyed import Context, DefinitionError, MapState, OnTimerContext, OutputTag
from keyed.joins.pairs import How, Join, LateRowsFunction, Pairing, signed_milliseconds, time_of


class IntervalJoin(LateRowsFunction):
    """Joins elements of one key with ``left + lower <= right <= left + upper``, times in event time.

    The rules are those of Flink's ``IntervalJoinOperator``: a pair comes out as soon as both are there, with the
    greater of their timestamps; an element is kept until the watermark says that no partner can come; an element below
    the watermark is late. Those without a partner, in an outer join, come out when they are no longer kept, with the
    time of that.

    Args:
        join: Makes the output of a pair; a side without a partner is ``None``.
        lower: Least distance of the right element's time from the left one's: milliseconds or a `timedelta`, negative
            for right elements that come earlier.
        upper: Greatest distance.
        lower_exclusive: Whether ``lower`` itself is outside.
        upper_exclusive: Whether ``upper`` itself is outside.
        how: ``"inner"``, ``"left"``, ``"right"`` or ``"full"``.
        late_left: Side output of late left elements; without it they are dropped and counted (``rows_dropped``).
        late_right: The same for right ones.

    Raises:
        DefinitionError: No time lies within the bounds, or a parameter breaks another rule.
    """

    #: By time, the elements that wait for partners, each with whether it has had one.
    lefts = MapState(int, list[Any])
    rights = MapState(int, list[Any])

    def __init__(
        self,
        join: Join,
        *,
        lower: int | timedelta,
        upper: int | timedelta,
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
        how: How = "inner",
        late_left: OutputTag | None = None,
        late_right: OutputTag | None = None,
    ) -> None:
        super().__init__(late_left, late_right)
        self._pairs = Pairing(join, how)
        self._lower = signed_milliseconds(lower, "lower") + lower_exclusive
        self._upper = signed_milliseconds(upper, "upper") - upper_exclusive
        if self._lower > self._upper:
            raise DefinitionError(f"IntervalJoin: no time lies between lower={lower!r} and upper={upper!r}")
        # How long an element of either side is kept after its time.
        self._kept_ms = (max(self._upper, 0), max(-self._lower, 0))

    def __repr__(self) -> str:
        return f"IntervalJoin({self._lower} ms <= right - left <= {self._upper} ms)"

    def process_element1(self, value: Any, ctx: Context) -> Iterator[Any]:
        return self._meet(0, value, ctx, self.lefts, self.rights, self._lower, self._upper)

    def process_element2(self, value: Any, ctx: Context) -> Iterator[Any]:
        return self._meet(1, value, ctx, self.rights, self.lefts, -self._upper, -self._lower)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Any]:
        for side, state in enumerate((self.lefts, self.rights)):
            for time in state:
                if time + self._kept_ms[side] > timestamp:
                    break
                if self._pairs.keeps[side]:
                    for value, had_partner in state[time]:
                        if not had_partner:
                            yield from self._pairs.emit(*((None, value) if side else (value, None)))
                state.remove(time)

    def _meet(
        self, side: int, value: Any, ctx: Context, own: MapState[int, Any], other: MapState[int, Any], low: int, up: int
    ) -> Iterator[Any]:
        time = time_of(ctx)
        if time < ctx.timer_service().current_watermark():
            self.drop_late(side, value, ctx)
            return
        marks = self._pairs.keeps[1 - side]
        had_partner = False
        for other_time, kept in other.items():
            if other_time > time + up:
                break
            if other_time < time + low:
                continue
            had_partner = True
            if marks and not all(had for _, had in kept):
                other.put(other_time, [(partner, True) for partner, _ in kept])
            for partner, _ in kept:
                for output in self._pairs.emit(*((partner, value) if side else (value, partner))):
                    ctx.collect(output, max(time, other_time))
        own.put(time, [*own.get(time, ()), (value, had_partner)])
        ctx.timer_service().register_event_time_timer(time + self._kept_ms[side])
        yield from ()
