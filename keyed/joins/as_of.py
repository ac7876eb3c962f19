"""The as-of join: each left element with the last right one that is not later."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal

from keyed import Context, ListState, MapState, OnTimerContext, OutputTag
from keyed.extending import milliseconds_of
from keyed.job.execution_path import Path
from keyed.joins.join_path import JoinPlan
from keyed.joins.pairs import Join, Pairing, TimedJoin, time_of
from keyed.vectorized import VectorizedFunction


class AsOfJoin(TimedJoin):
    """Joins each left element with the last right one of its key whose time is not later, as ``pandas.merge_asof``.

    A left element is emitted when the watermark has passed its time, and with it all candidates; those of a key in
    order of time. Of right elements with equal times the last to arrive counts. A late left element is not joined; a
    late right one counts for left elements not emitted yet. A key keeps the last right element that the watermark has
    passed, while the tolerance allows it, and those after it.

    Args:
        join: As of all joins.
        tolerance: Maximal age of the right element; by default any.
        allow_exact_matches: A right element of the same time counts.
        how: As of all joins.
        late_left: As of all joins.
        path: As of all joins.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """

    #: The waiting elements, by their time.
    lefts = ListState(Any)
    rights = MapState(int, Any)

    def __init__(
        self,
        join: Join,
        *,
        tolerance: int | timedelta | None = None,
        allow_exact_matches: bool = True,
        how: Literal["inner", "left"] = "left",
        late_left: OutputTag | None = None,
        path: Path = "auto",
    ) -> None:
        super().__init__(late_left, path=path)
        self.pairs = Pairing(join, how, ("inner", "left"))
        self.tolerance_ms = None if tolerance is None else milliseconds_of(tolerance, "tolerance")
        self.exact = allow_exact_matches

    def __repr__(self) -> str:
        return "AsOfJoin()" if self.tolerance_ms is None else f"AsOfJoin(tolerance={self.tolerance_ms} ms)"

    def spans_ms(self) -> tuple[int]:
        return (self.tolerance_ms or 0,)

    def over_columns(self, plan: JoinPlan) -> VectorizedFunction:
        from keyed.joins.as_of_columns import AsOfColumns

        return AsOfColumns(plan, self.pairs, self.tolerance_ms, exact=self.exact)

    def process_element1(self, value: Any, ctx: Context) -> None:
        time = time_of(ctx)
        if time <= ctx.timer_service().current_watermark():
            self.drop_late(0, value, ctx)
            return
        self.lefts.namespace(time).add(value)
        ctx.timer_service().register_event_time_timer(time)

    def process_element2(self, value: Any, ctx: Context) -> None:
        time = time_of(ctx)
        self.rights.put(time, value)
        # Once the watermark has passed it, earlier elements are not needed any more; after the tolerance, neither is
        # it.
        service = ctx.timer_service()
        service.register_event_time_timer(time)
        if self.tolerance_ms is not None:
            service.register_event_time_timer(time + self.tolerance_ms + (not self.exact))

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Any]:
        passed = []
        for time in self.rights:
            if time > timestamp:
                break
            passed.append(time)
        lefts = self.lefts.namespace(timestamp)
        waiting = list(lefts.get())
        if waiting:
            lefts.clear()
            last = next((time for time in reversed(passed) if time < timestamp or self.exact), None)
            in_time = last is not None and (self.tolerance_ms is None or timestamp - last <= self.tolerance_ms)
            if in_time or self.pairs.keeps[0]:
                right = self.rights[last] if in_time and last is not None else None
                for left in waiting:
                    yield from self.pairs.emit(left, right)
        for time in passed[:-1]:
            self.rights.remove(time)
        if passed and self.tolerance_ms is not None and timestamp - passed[-1] > self.tolerance_ms - self.exact:
            self.rights.remove(passed[-1])
