"""The operators of a script: keyed functions over changes, on public names of `keyed`.

Each is an ordinary operator: its state is in the checkpoint and in the changelog, and can be read as a state table.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from keyed import Context, KeyedCoProcessFunction, KeyedProcessFunction, ListState, OnTimerContext, ValueState
from keyed.sql.result_rows import ResultRows
from keyed.sql.row_changes import KEY, LAST, OLD, TIME, VALUE, WINDOW, Change, Sealed, meta_of, rank_of, route_of
from keyed.sql.sql_aggregates import SqlAggregate

Transform = Callable[[Change], Iterable[Change]]


class Projection(KeyedProcessFunction):
    """A projection and filter of a stream: emits the changes that a function makes of each."""

    rank_of = staticmethod(rank_of)

    def __init__(self, transform: Transform) -> None:
        self._transform = transform

    def process_element(self, value: Any, ctx: Context) -> None:
        for change in self._transform(value):
            ctx.collect(Sealed(change))


class _WritesRows(KeyedProcessFunction):
    """An operator whose output is a table: it keeps the rows in a state."""

    rank_of = staticmethod(rank_of)

    def __init__(self, rows: ResultRows) -> None:
        self._results = rows
        self._rows = rows.state

    def emit(self, changes: Iterable[Change], ctx: Context | OnTimerContext) -> None:
        """Write the rows of changes, and emit them."""
        for change in changes:
            self._results.write(self._rows, change)
            ctx.collect(Sealed(change))


class TableProjection(_WritesRows):
    """A projection and filter of a table."""

    def __init__(self, transform: Transform, rows: ResultRows) -> None:
        super().__init__(rows)
        self._transform = transform

    def process_element(self, value: Any, ctx: Context) -> None:
        self.emit(self._transform(value), ctx)


class TableRows(_WritesRows):
    """The rows of a table that is read from a topic; adds the row before each change."""

    def process_element(self, value: Any, ctx: Context) -> None:
        old = self._results.value(self._rows, value)
        self.emit(((*value[:OLD], old, *value[TIME:]),), ctx)


@attrs.frozen
class Grouping:
    """The aggregates of a query, and what it emits.

    Attributes:
        aggregates: The aggregates.
        emit: Returns the changes for a key, the results before and after (``None`` without a row), a time, a window and
            the number of the record.
        from_table: The rows are those of a table, so old ones are undone.
    """

    aggregates: tuple[SqlAggregate, ...]
    emit: Callable[[Any, Any, Any, int, Any, int], Iterable[Change]]
    from_table: bool = False

    def start(self) -> list[Any]:
        """Return new accumulators."""
        return [each.start() for each in self.aggregates]

    def add(self, cells: Sequence[Any], row: Any) -> list[Any]:
        """Return accumulators with a row added."""
        return [each.add(cell, row[i]) for i, (each, cell) in enumerate(zip(self.aggregates, cells, strict=True))]

    def undo(self, cells: Sequence[Any], row: Any) -> list[Any]:
        """Return accumulators with a row taken away."""
        return [
            cell if each.undo is None else each.undo(cell, row[i])
            for i, (each, cell) in enumerate(zip(self.aggregates, cells, strict=True))
        ]

    def merge(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        """Return merged accumulators."""
        return [each.merge(x, y) for each, x, y in zip(self.aggregates, a, b, strict=True)]

    def results(self, cells: Any) -> tuple[Any, ...] | None:
        """Return the results of accumulators."""
        if cells is None:
            return None
        return tuple(each.result(cell) for each, cell in zip(self.aggregates, cells, strict=True))


class Grouped(_WritesRows):
    """Aggregates without windows: one row for each key, emitted with each change."""

    def __init__(self, name: str, grouping: Grouping, rows: ResultRows) -> None:
        super().__init__(rows)
        self._grouping = grouping
        self._cells: ValueState[Any] = ValueState(object, name=f"{name}_aggregates")

    def process_element(self, value: Any, ctx: Context) -> None:
        grouping = self._grouping
        found = self._cells.value()
        before, time = (None, value[TIME]) if found is None else found
        # An aggregate of the user's may change its accumulator in place.
        had = grouping.results(before)
        cells = grouping.start() if before is None else before
        if value[OLD] is not None and before is not None:
            cells = grouping.undo(cells, value[OLD])
        if value[VALUE] is not None:
            cells = grouping.add(cells, value[VALUE])
        elif before is None:
            return
        time = max(time, value[TIME])
        self._cells.update((tuple(cells), time))
        self.emit(grouping.emit(value[KEY], had, grouping.results(cells), time, None, rank_of(value)), ctx)


class Windowed(_WritesRows):
    """Aggregates in tumbling and hopping windows.

    Emits a window with each change, or once when it is closed. A window is closed when the watermark has passed its end
    and the grace period; later rows are dropped.
    """

    def __init__(
        self,
        name: str,
        grouping: Grouping,
        rows: ResultRows,
        size_ms: int,
        advance_ms: int,
        grace_ms: int,
        *,
        is_final: bool,
    ) -> None:
        super().__init__(rows)
        self._grouping = grouping
        self._size = size_ms
        self._advance = advance_ms
        self._grace = grace_ms
        self._is_final = is_final
        self._cells: ValueState[Any] = ValueState(object, name=f"{name}_aggregates")

    def process_element(self, value: Any, ctx: Context) -> None:
        grouping, time = self._grouping, value[TIME]
        service = ctx.timer_service()
        watermark = service.current_watermark()
        first = max(0, time - self._size + self._advance) // self._advance * self._advance
        for start in range(first, time + 1, self._advance):
            end = start + self._size
            closing = end - 1 + self._grace
            if closing <= watermark:
                continue
            state = self._cells.namespace(start)
            found = state.value()
            before, latest = (None, time) if found is None else found[:2]
            had = None if self._is_final else grouping.results(before)
            cells = grouping.add(grouping.start() if before is None else before, value[VALUE])
            latest = max(latest, time)
            state.update((tuple(cells), latest, value[KEY]))
            if before is None:
                service.register_event_time_timer(closing)
            if not self._is_final:
                window = (start, end)
                new = grouping.results(cells)
                self.emit(grouping.emit(value[KEY], had, new, latest, window, rank_of(value)), ctx)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None:
        start = timestamp + 1 - self._grace - self._size
        state = self._cells.namespace(start)
        found = state.value()
        if found is None:
            return
        cells, latest, key = found
        state.clear()
        if self._is_final:
            window = (start, start + self._size)
            self.emit(self._grouping.emit(key, None, self._grouping.results(cells), latest, window, LAST), ctx)


class Sessions(_WritesRows):
    """Aggregates in sessions. When a session grows, a tombstone is emitted for the old one, then the new one.

    A session is closed, and forgotten, when the watermark has passed its end, the gap and the grace period.
    """

    def __init__(
        self, name: str, grouping: Grouping, rows: ResultRows, gap_ms: int, grace_ms: int, *, is_final: bool
    ) -> None:
        super().__init__(rows)
        self._grouping = grouping
        self._gap = gap_ms
        #: Time from the end of a session until it is closed.
        self._open = gap_ms + grace_ms
        self._is_final = is_final
        #: The key, and the sessions: start, end, accumulators.
        self._sessions: ValueState[Any] = ValueState(object, name=f"{name}_aggregates")

    def process_element(self, value: Any, ctx: Context) -> None:
        grouping, time, key = self._grouping, value[TIME], value[KEY]
        service = ctx.timer_service()
        held = self._sessions.value()
        sessions = [] if held is None else list(held[1])
        start = end = time
        cells = grouping.start()
        merged = []
        for session in sessions:
            if session[1] >= time - self._gap and session[0] <= time + self._gap:
                merged.append(session)
                start, end = min(start, session[0]), max(end, session[1])
                cells = grouping.merge(cells, session[2])
        closing = end + self._open
        if closing <= service.current_watermark():
            return
        for session in merged:
            sessions.remove(session)
            if not self._is_final and (start, end) != (time, time):
                before = grouping.results(session[2])
                window = (session[0], session[1])
                self.emit(grouping.emit(key, before, None, session[1], window, rank_of(value)), ctx)
        cells = grouping.add(cells, value[VALUE])
        sessions.append([start, end, cells])
        self._sessions.update((key, sessions))
        service.register_event_time_timer(closing)
        if not self._is_final:
            results = grouping.results(cells)
            self.emit(grouping.emit(key, None, results, end, (start, end), rank_of(value)), ctx)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None:
        held = self._sessions.value()
        if held is None:
            return
        key, sessions = held
        kept = []
        for session in sessions:
            if session[1] + self._open > timestamp:
                kept.append(session)
            elif self._is_final:
                window = (session[0], session[1])
                results = self._grouping.results(session[2])
                self.emit(self._grouping.emit(key, None, results, session[1], window, LAST), ctx)
        if not kept:
            self._sessions.clear()
        elif len(kept) < len(sessions):
            self._sessions.update((key, kept))


@attrs.frozen
class Sides:
    """The sides of a join.

    Attributes:
        left: Number of columns of a left row.
        right: Number of columns of a right row.
        keeps_left: Left rows without a partner are emitted.
        keeps_right: Right rows without a partner are emitted.
    """

    left: int
    right: int
    keeps_left: bool
    keeps_right: bool

    @property
    def is_outer(self) -> bool:
        """True if rows without a partner are emitted."""
        return self.keeps_left or self.keeps_right

    def joined(self, left: Any, right: Any) -> Any:
        """Return the joined row; ``None`` if the join does not have it."""
        if left is None:
            return None if right is None or not self.keeps_right else ((None,) * self.left) + tuple(right)
        if right is None:
            return None if not self.keeps_left else tuple(left) + ((None,) * self.right)
        return tuple(left) + tuple(right)


class _Join(KeyedCoProcessFunction):
    """A join: its inputs run in the order in which the records arrived."""

    rank_of = staticmethod(rank_of)


class StreamTableJoin(_Join):
    """Joins each row of a stream with the row that a table has for its key at that moment."""

    def __init__(self, name: str, sides: Sides) -> None:
        self._sides = sides
        self._row: ValueState[Any] = ValueState(object, name=name)

    def process_element1(self, value: Any, ctx: Context) -> None:
        found = self._row.value()
        row = self._sides.joined(value[VALUE], None if found is None else found[0])
        if row is not None:
            ctx.collect(Sealed((*value[:VALUE], row, None, *value[TIME:])))

    def process_element2(self, value: Any, ctx: Context) -> None:
        if value[VALUE] is None:
            self._row.clear()
        else:
            self._row.update((value[VALUE],))


class TableTableJoin(_Join):
    """Joins two tables by their keys: a change of either side changes the joined row."""

    def __init__(self, name: str, sides: Sides) -> None:
        self._sides = sides
        self._rows: ValueState[Any] = ValueState(object, name=name)

    def process_element1(self, value: Any, ctx: Context) -> None:
        self._changed(value, 0, ctx)

    def process_element2(self, value: Any, ctx: Context) -> None:
        self._changed(value, 1, ctx)

    def _changed(self, value: Change, side: int, ctx: Context) -> None:
        rows = list(self._rows.value() or (None, None, 0, 0))
        before = self._sides.joined(rows[0], rows[1])
        rows[side] = value[VALUE]
        rows[2 + side] = value[TIME]
        after = self._sides.joined(rows[0], rows[1])
        if rows[0] is None and rows[1] is None:
            self._rows.clear()
        else:
            self._rows.update(tuple(rows))
        if before is None and after is None:
            return
        other = rows[1 - side] is not None
        time = max(value[TIME], rows[3 - side]) if other else value[TIME]
        ctx.collect(Sealed((*value[:VALUE], after, before, time, value[WINDOW], meta_of(rank_of(value)))))


class ForeignKeyJoin(_Join):
    """Joins a table with another one by an expression of its rows: keyed by the other table's key.

    A left change comes as a row that subscribes to a key of the right table, or unsubscribes from it.
    """

    def __init__(self, name: str, sides: Sides) -> None:
        self._sides = sides
        self._held: ValueState[Any] = ValueState(object, name=name)

    def process_element1(self, value: Any, ctx: Context) -> None:
        right, subscribers = self._held.value() or (None, [])
        key, (row, moved) = value[KEY], value[VALUE]
        subscribers = [each for each in subscribers if each[0] != key]
        if row is not None:
            subscribers.append((key, row, value[TIME]))
        self._held.update((right, subscribers))
        old = value[OLD]
        right_row = None if right is None else right[0]
        after = self._sides.joined(row, right_row) if row is not None else None
        before = self._sides.joined(old, right_row) if old is not None else None
        if row is None and moved:
            # Another group emits the row; this one only forgets it.
            return
        if after is None and before is None and old is None:
            return
        time = value[TIME] if right is None else max(value[TIME], right[1])
        ctx.collect(Sealed((route_of(key), key, after, before, time, value[WINDOW], meta_of(rank_of(value)))))

    def process_element2(self, value: Any, ctx: Context) -> None:
        right, subscribers = self._held.value() or (None, [])
        old_row = None if right is None else right[0]
        row = value[VALUE]
        self._held.update((None if row is None else (row, value[TIME]), subscribers))
        for key, left, left_time in subscribers:
            before, after = self._sides.joined(left, old_row), self._sides.joined(left, row)
            if before is None and after is None:
                continue
            time = max(value[TIME], left_time)
            ctx.collect(Sealed((route_of(key), key, after, before, time, None, meta_of(rank_of(value)))))


class JoinedRows(KeyedProcessFunction):
    """Adds the row before each change of a join by a foreign key, which does not know it where the key changes."""

    rank_of = staticmethod(rank_of)

    def __init__(self, name: str) -> None:
        self._row: ValueState[Any] = ValueState(object, name=name)

    def process_element(self, value: Any, ctx: Context) -> None:
        old, new = self._row.value(), value[VALUE]
        if new is not None:
            self._row.update(new)
        elif old is not None:
            self._row.clear()
        ctx.collect(Sealed((*value[:OLD], old, *value[TIME:])))


class StreamStreamJoin(_Join):
    """Joins rows of two streams whose timestamps are close to each other.

    Without a grace period a row without a partner is emitted at once, and again when a partner comes. With one it is
    emitted when the watermark has passed the times of its partners and the grace period, or at once if the watermark
    has already passed the times of its partners. A row stays to be joined until the watermark has passed its time, both
    bounds and the grace period. These are the rules of Kafka Streams (``KStreamKStreamJoin``). There each side drops
    rows by the stream time of its own side; here both drop them by the watermark.
    """

    def __init__(
        self, sides: Sides, before_ms: int, after_ms: int, grace_ms: int, *, is_eager: bool, matches_end: bool
    ) -> None:
        self._sides = sides
        #: The rows of each side, and whether each needs no row without a partner anymore.
        self.lefts: ListState[Any] = ListState(object, name="lefts")
        self.rights: ListState[Any] = ListState(object, name="rights")
        #: Bounds of the right row's time from the left one's.
        self._bounds = (before_ms, after_ms)
        self._grace = grace_ms
        #: Time for which a row can be joined.
        self._kept = before_ms + after_ms + grace_ms
        self._is_eager = is_eager
        #: Places of a window's bounds that are the same in a pair: of sessions both, else the start.
        self._bound = slice(None if matches_end else 1)

    def process_element1(self, value: Any, ctx: Context) -> None:
        self._arrived(value, ctx, is_left=True)

    def process_element2(self, value: Any, ctx: Context) -> None:
        self._arrived(value, ctx, is_left=False)

    def _arrived(self, value: Change, ctx: Context, *, is_left: bool) -> None:
        time = value[TIME]
        before, after = self._bounds if is_left else self._bounds[::-1]
        mine, others = (self.lefts, self.rights) if is_left else (self.rights, self.lefts)
        service = ctx.timer_service()
        watermark = service.current_watermark()
        matched = is_changed = False
        found = list(others.get())
        for place, (other, is_done) in enumerate(found):
            if not time - before <= other[TIME] <= time + after:
                continue
            if value[WINDOW] is not None and other[WINDOW][self._bound] != value[WINDOW][self._bound]:
                continue
            matched = True
            if not is_done:
                found[place] = (other, True)
                is_changed = True
            pair = (value, other) if is_left else (other, value)
            self._emit(pair[0], pair[0][VALUE], pair[1][VALUE], max(time, other[TIME]), rank_of(value), ctx)
        if is_changed:
            others.update(found)
        keeps = self._sides.keeps_left if is_left else self._sides.keeps_right
        at_once = self._is_eager or time + after <= watermark
        if not matched and keeps and at_once:
            self._alone(value, rank_of(value), ctx, is_left=is_left)
        if time + self._kept <= watermark:
            return
        mine.add((tuple(value), matched or at_once or not keeps))
        service.register_event_time_timer(time + after + self._grace)
        service.register_event_time_timer(time + self._kept)

    def _alone(self, value: Change, number: int, ctx: Context | OnTimerContext, *, is_left: bool) -> None:
        left, right = (value[VALUE], None) if is_left else (None, value[VALUE])
        self._emit(value, left, right, value[TIME], number, ctx)

    def _emit(
        self, value: Change, left: Any, right: Any, time: int, number: int, ctx: Context | OnTimerContext
    ) -> None:
        row = self._sides.joined(left, right)
        if row is not None:
            ctx.collect(Sealed((*value[:VALUE], row, None, time, value[WINDOW], meta_of(number))))

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None:
        for is_left, state in ((True, self.lefts), (False, self.rights)):
            after = self._bounds[1 if is_left else 0]
            found = list(state.get())
            kept: list[Any] = []
            for value, is_done in found:
                is_over = value[TIME] + after + self._grace <= timestamp
                if is_over and not is_done:
                    self._alone(value, LAST, ctx, is_left=is_left)
                if value[TIME] + self._kept > timestamp:
                    kept.append((value, is_done or is_over))
            if not kept:
                state.clear()
            elif kept != found:
                state.update(kept)


def spread(transform: Transform) -> Callable[[Any], list[Any]]:
    """Return a transform as a function for ``flat_map``."""

    def spread_out(change: Any) -> list[Any]:
        return [Sealed(each) for each in transform(change)]

    return spread_out
