"""Joins with the latest value of the right side: a table that changes, with or without waiting for it."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import attrs

from keyed import MIN_TIMESTAMP, Context, MapState, OnTimerContext, OutputTag, StateTtl, TimeDomain, ValueState
from keyed.errors import DefinitionError
from keyed.extending import Schema, milliseconds_of
from keyed.job.execution_path import Path
from keyed.joins.join_path import JoinPlan
from keyed.joins.pairs import ColumnPathJoin, How, Join, Pairing, time_of
from keyed.joins.select import Select
from keyed.vectorized import VectorizedFunction


def _never(_: Any) -> bool:
    return False


def _has_flag(column: Select, element: Any) -> bool:
    return bool(column(element, None)[0])


class TableJoin(ColumnPathJoin):
    """Joins each left element with the latest right one of its key, at once (ksqlDB's stream-table join).

    A right element replaces the one before, unless it is older. At equal times and without times the right side runs
    first. To wait for later arrivals use an `AsOfJoin`.

    With ``left_table=True`` it joins two tables, as Kafka Streams does: an element of either side replaces the one that
    came before it, and ``join(left, right, change)`` returns the joined row that is there no longer, with a change of
    −1, then the one that is, with 1. `Select` adds the change as the last column. Over whole columns a key changes once
    a batch.

    Args:
        join: As of all joins.
        how: As of all joins.
        deletes: Returns true for a right element that deletes the key's row; by default none. Of two tables, for an
            element of either; or the name of a boolean column.
        ttl: Time to live of the table's rows.
        path: As of all joins.
        left_table: The left side is a table too.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """

    known_side_outputs: Collection[str] | None = ()
    right_first = True

    def __init__(
        self,
        join: Callable[..., Any],
        *,
        how: How = "left",
        deletes: Callable[[Any], bool] | str = _never,
        ttl: StateTtl | None = None,
        path: Path = "auto",
        left_table: bool = False,
    ) -> None:
        super().__init__(path)
        self.has_change = left_table
        self.pairs = Pairing(join, how, ("inner", "left", "right", "full") if left_table else ("inner", "left"))
        if left_table and ttl is not None:
            raise DefinitionError("ttl= is for the join of a stream: rows of two tables go when they are deleted")
        self._removed_by = deletes if isinstance(deletes, str) and left_table else None
        if self._removed_by is None and not callable(deletes):
            either = " or left one, or the name of a boolean column" if left_table else ""
            raise DefinitionError(f"deletes={deletes!r} must be a function of the right{either} element")
        self._deletes: Any = deletes if self._removed_by is None else partial(_has_flag, Select([self._removed_by]))
        if left_table:
            #: The left elements of two tables, each with its time.
            self.lefts: ValueState[Any] = ValueState(tuple[int | None, Any], name="lefts")
        #: The latest element with its time; ``None`` in place of an element that deletes.
        self.table: ValueState[Any] = ValueState(tuple[int | None, Any], name="table", ttl=ttl)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def row_reason(self) -> str | None:
        if self.has_change and not isinstance(self.pairs.join, Select):
            return "join= is a function of each change"
        if self._deletes is not _never and self._removed_by is None:
            return f"deletes= is a function of {'an' if self.has_change else 'the right'} element"
        return None if self.table.ttl is None else "the rows of the table have a time to live"

    def over_columns(self, plan: JoinPlan) -> VectorizedFunction:
        from keyed.joins.table_columns import ChangeColumns, TableJoinColumns

        if not self.has_change:
            return TableJoinColumns(plan, self.pairs)
        if self._removed_by is not None and any(side.columns.get(self._removed_by) != "boolean" for side in plan.sides):
            raise DefinitionError(f"deletes={self._removed_by!r} must be a boolean column of both sides")
        *columns, (change, _) = plan.output.columns
        return ChangeColumns(attrs.evolve(plan, output=Schema(tuple(columns))), self.pairs, change, self._removed_by)

    def process_element1(self, value: Any, ctx: Context) -> Iterator[Any]:
        if self.has_change:
            self._change(self.lefts, value, ctx)
            return
        right = self._latest()
        if right is not None or self.pairs.keeps[0]:
            yield from self.pairs.emit(value, right)

    def process_element2(self, value: Any, ctx: Context) -> Iterator[Any] | None:
        if self.has_change:
            self._change(self.table, value, ctx)
        else:
            self._keep(value, ctx)
        return None

    def _change(self, table: Any, value: Any, ctx: Context) -> None:
        """Replace the element of one of two tables, and emit the joined row before it and after it."""
        before = self._joined()
        if self._deletes(value):
            table.clear()
        else:
            table.update((ctx.timestamp(), value))
        after = self._joined()
        times = [ctx.timestamp(), *(each[0] for each in after or () if each is not None)]
        latest = max((each for each in times if each is not None), default=None)
        join: Any = self.pairs.join
        for change, row in ((-1, before), (1, after)):
            if row is not None:
                pair = [None if each is None else each[1] for each in row]
                output = (*join(*pair), change) if isinstance(join, Select) else join(*pair, change)
                if output is not None:
                    ctx.collect(output, timestamp=latest)

    def _joined(self) -> tuple[Any, Any] | None:
        """Return the elements of two tables with their times; ``None`` if they give no row."""
        left, right = self.lefts.value(), self.table.value()
        keeps = self.pairs.keeps
        is_kept = (left is not None or keeps[1]) and (right is not None or keeps[0])
        return (left, right) if is_kept and (left is not None or right is not None) else None

    def _latest(self) -> Any:
        latest = self.table.value()
        return None if latest is None else latest[1]

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
        waiting = sorted(self.waiting.items_from((now, 0)), key=lambda entry: entry[0][1])
        for place, value in waiting:
            self.waiting.remove(place)
            yield from self.pairs.emit(value, right)
        if waiting:
            self._forget_number()

    def _forget_number(self) -> None:
        if self.waiting.is_empty():
            self.arrived.clear()
