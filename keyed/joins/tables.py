"""Joins with the latest value of the right side: a table that changes, with or without waiting for it."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, Literal

from keyed import MIN_TIMESTAMP, Context, MapState, OnTimerContext, OutputTag, StateTtl, TimeDomain, ValueState
from keyed.errors import DefinitionError
from keyed.extending import milliseconds_of
from keyed.job.execution_path import Path
from keyed.joins.join_path import JoinPlan
from keyed.joins.pairs import ColumnPathJoin, Join, Pairing, time_of
from keyed.vectorized import VectorizedFunction


def _never(_: Any) -> bool:
    return False


class TableJoin(ColumnPathJoin):
    """Joins each left element with the latest right one of its key, at once (ksqlDB's stream-table join).

    A right element replaces the one before, unless it is older. At equal times and without times the right side runs
    first. To wait for later arrivals use an `AsOfJoin`.

    Args:
        join: As of all joins.
        how: As of all joins.
        deletes: Returns true for a right element that deletes the key's row; by default none.
        ttl: Time to live of the table's rows.
        path: As of all joins.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """

    known_side_outputs: Collection[str] | None = ()
    right_first = True

    def __init__(
        self,
        join: Join,
        *,
        how: Literal["inner", "left"] = "left",
        deletes: Callable[[Any], bool] = _never,
        ttl: StateTtl | None = None,
        path: Path = "auto",
    ) -> None:
        super().__init__(path)
        self.pairs = Pairing(join, how, ("inner", "left"))
        if not callable(deletes):
            raise DefinitionError(f"deletes={deletes!r} must be a function of the right element")
        self._deletes = deletes
        #: The latest element with its time; ``None`` in place of an element that deletes.
        self.table: ValueState[Any] = ValueState(tuple[int | None, Any], name="table", ttl=ttl)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def row_reason(self) -> str | None:
        if self._deletes is not _never:
            return "deletes= is a function of the right element"
        return None if self.table.ttl is None else "the rows of the table have a time to live"

    def over_columns(self, plan: JoinPlan) -> VectorizedFunction:
        from keyed.joins.table_columns import TableJoinColumns

        return TableJoinColumns(plan, self.pairs)

    def process_element1(self, value: Any, ctx: Context) -> Iterator[Any]:
        right = self._latest()
        if right is not None or self.pairs.keeps[0]:
            yield from self.pairs.emit(value, right)

    def process_element2(self, value: Any, ctx: Context) -> Iterator[Any] | None:
        self._keep(value, ctx)
        return None

    def _latest(self) -> Any:
        found = self.table.value()
        return None if found is None else found[1]

    def _keep(self, value: Any, ctx: Context) -> None:
        time, before = ctx.timestamp(), self.table.value()
        if before is None or before[0] is None or time is None or time >= before[0]:
            self.table.update((time, None if self._deletes(value) else value))


class EnrichmentJoin(TableJoin):
    """Joins as `TableJoin`, but an element without a right one waits: for the first one, or ``timeout``.

    Args:
        join: As of all joins.
        timeout: Time for which a left element waits.
        domain: Event time, from the element's timestamp on, or processing time, from its batch on.
        how: After the time-out, ``"left"`` emits the element with `None`, ``"inner"`` does not.
        timed_out: Side output for unmatched left elements, instead of the main output.
        deletes: As in `TableJoin`.
        ttl: As in `TableJoin`.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """

    #: The left elements that wait, by the end of their time-out and number of arrival.
    waiting: MapState[tuple[int, int], Any] = MapState(tuple[int, int], Any)
    arrived: ValueState[int] = ValueState(int, default=0)

    def __init__(
        self,
        join: Join,
        *,
        timeout: int | timedelta,
        domain: TimeDomain = TimeDomain.EVENT_TIME,
        how: Literal["inner", "left"] = "left",
        timed_out: OutputTag | None = None,
        deletes: Callable[[Any], bool] = _never,
        ttl: StateTtl | None = None,
    ) -> None:
        super().__init__(join, how=how, deletes=deletes, ttl=ttl)
        if not isinstance(domain, TimeDomain):
            raise DefinitionError(f"domain={domain!r} must be a TimeDomain")
        if timed_out is not None and not isinstance(timed_out, OutputTag):
            raise DefinitionError(f"timed_out={timed_out!r} must be an OutputTag")
        self._timeout = milliseconds_of(timeout, "timeout")
        self._domain = domain
        self._timed_out = timed_out
        self.known_side_outputs = {timed_out.name} if timed_out is not None else ()

    def row_reason(self) -> str:
        return "left elements wait for a right one"

    def process_element1(self, value: Any, ctx: Context) -> Iterator[Any]:
        right = self._latest()
        if right is not None:
            yield from self.pairs.emit(value, right)
            return
        service = ctx.timer_service()
        if self._domain is TimeDomain.EVENT_TIME:
            until = time_of(ctx) + self._timeout
            service.register_event_time_timer(until)
        else:
            until = service.current_processing_time() + self._timeout
            service.register_processing_time_timer(until)
        number = self.arrived.value()
        self.waiting.put((until, number), value)
        self.arrived.update(number + 1)

    def process_element2(self, value: Any, ctx: Context) -> Iterator[Any] | None:
        self._keep(value, ctx)
        right = self._latest()
        # The other input may hold the watermark back, and with it timers that are overdue for this element.
        now = ctx.timestamp() if self._domain is TimeDomain.EVENT_TIME else None
        return None if right is None else self._release(right, MIN_TIMESTAMP if now is None else now)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Any]:
        for place, value in self.waiting.items():
            if place[0] > timestamp:
                break
            self.waiting.remove(place)
            if self._timed_out is not None:
                ctx.output(self._timed_out, value)
            elif self.pairs.keeps[0]:
                yield from self.pairs.emit(value, None)
        self._forget_number()

    def _release(self, right: Any, now: int) -> Iterator[Any]:
        # Those whose time-out is over wait for their timer.
        found = sorted(self.waiting.items_from((now, 0)), key=lambda entry: entry[0][1])
        for place, value in found:
            self.waiting.remove(place)
            yield from self.pairs.emit(value, right)
        if found:
            self._forget_number()

    def _forget_number(self) -> None:
        if self.waiting.is_empty():
            self.arrived.clear()
