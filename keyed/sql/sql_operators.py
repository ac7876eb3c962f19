"""The keyed operators of scripts, over whole columns."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyed import MAX_TIMESTAMP
from keyed.errors import TableOverflowError
from keyed.expressions.engine import Columns
from keyed.extending import Schema, inner_state
from keyed.formats.sql_types import BIGINT
from keyed.joins.column_join import in_order
from keyed.joins.matching import codes_of, last_rows
from keyed.joins.table_columns import changes_of
from keyed.sql.catalog import CHANGE, PLACE, STREAM, SqlSource
from keyed.sql.planner import Aggregation, QueryPlan
from keyed.sql.script_inputs import GONE
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState, VectorizedFunction
from keyed.windows import Max
from keyed.windows.continuous import RunningColumns
from keyed.windows.vectorized.fold import SumOverflow
from keyed.windows.vectorized.row_groups import integers, pc
from keyed.windows.vectorized.session_merging import Spans, merged_by_arrival


def schema_of(columns: Columns, *further: str) -> Schema:
    """Return the schema of columns, and of further ones by their names."""
    types = {CHANGE: "tinyint", GONE: "boolean", DELETED: "boolean"}
    more = ((name, types.get(name, "bigint")) for name in further)
    return Schema((*((name, type_.spark) for name, type_ in columns), *more))


def stream_schema(source: SqlSource, *, has_places: bool = False) -> Schema:
    """Return the columns of the stream that is given for a source."""
    order = [STREAM, PLACE] if has_places else [] if source.is_table else [STREAM]
    return schema_of((*source.columns, *source.further), *([GONE] if source.is_table else []), *order)


def table_state(columns: Columns, key: Sequence[str], name: str, *, is_shown: bool = True) -> TableState:
    """Return the state of a table, whose times of a day queries show as such."""
    times = {each: type_.arrow_with(TIME=pa.time32("ms")) for each, type_ in columns if type_.has("TIME")}
    return inner_state(TableState(schema_of(columns).ddl, key=key, name=name), is_shown=is_shown, shown_types=times)


#: The columns of records with the time of a row, and whether the row of a table was removed.
MOMENT, DELETED = "#moment", "DELETED"
#: The column that the state of a table has for the time of a row.
_ROWTIME = ("ROWTIME", BIGINT)


def in_arrival_order(table: pa.Table) -> pa.Table:
    """Return rows in the order in which they came, in scripts in which batches may have another one."""
    return in_order(table, STREAM, PLACE) if PLACE in table.column_names else table


def emit(ctx: BatchContext, table: pa.Table) -> None:
    """Emit rows, whose time is a column too."""
    ctx.emit(table.append_column(MOMENT, table.column(TIMESTAMP_COLUMN)))


class TableRows(VectorizedFunction):
    """The rows of a declared table: the latest of each key.

    A batch emits for each key the row before it and the row after it.

    Args:
        name: Name of the state.
        keys: Columns of the key.
        values: The other columns.
        is_shown: State tables list it.
    """

    def __init__(self, name: str, keys: Columns, values: Columns, *, is_shown: bool = True) -> None:
        self._keys = [each for each, _ in keys]
        self._names = [*self._keys, *(each for each, _ in values)]
        self.rows = table_state((*keys, *values, _ROWTIME), self._keys, name, is_shown=is_shown)

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        if CHANGE in table.column_names:
            # Of a row that moved between key groups, where it is comes after where it was.
            order = np.argsort(integers(table.column(CHANGE)), kind="stable")
            table = table.take(pa.array(order, pa.int64()))
            table = table.append_column(GONE, pc.less(table.column(CHANGE), 0))
        # Rows are in the order of time: the last one of a key is the one that stays.
        last = table.take(last_rows(table, self._keys))
        before = self.rows.lookup(last.select(self._keys))
        is_removed = last.column(GONE)
        kept = last.filter(pc.invert(is_removed))
        if pc.any(is_removed).as_py():
            self.rows.delete(last.filter(is_removed).select(self._keys))
        if kept.num_rows:
            self.rows.upsert(kept.select(self._names).append_column(_ROWTIME[0], kept.column(TIMESTAMP_COLUMN)))
        emit_changes(ctx, before.select(self._names), kept.select(self._names), last, self._keys)


def emit_changes(ctx: BatchContext, before: pa.Table, after: pa.Table, rows: pa.Table, keys: list[str]) -> None:
    """Emit rows that are there no longer, and those that are there now, with the times of the rows that came.

    Args:
        ctx: Receives them.
        before: The rows before the batch.
        after: The rows after it.
        rows: A row of each key, with its time.
        keys: Columns of the key.
    """
    both = pa.concat_tables(alike([before, after]))
    of_rows, of_both = codes_of(alike([rows.select(keys), both.select(keys)]), keys)
    latest = np.zeros(int(of_rows.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(latest, of_rows, integers(rows.column(TIMESTAMP_COLUMN)))
    emit(ctx, changes_of(both, before.num_rows, of_both, latest, CHANGE))


def alike(tables: list[pa.Table]) -> list[pa.Table]:
    """Return tables of the same columns with the types of the first."""
    return [each.cast(tables[0].schema) for each in tables]


class Totals(RunningColumns):
    """The aggregates of each key, or of each window of it.

    Their results after the projection and ``HAVING`` are the rows of the table. A session is of rows with no longer gap
    between them, and ends with its last row. If it grows or merges, the row before is there no longer.

    Args:
        query: The query.
        plan: Its aggregates.
        name: Name of the table.
    """

    def __init__(self, query: QueryPlan, plan: Aggregation, name: str) -> None:
        self._plan, self._name = plan, name
        self._window: Any = plan.window
        self._is_session = plan.window is not None and plan.window.kind == "SESSION"
        self._group = [each for each, _ in query.keys]
        self._keys = [*self._group, *plan.bounds]
        self._values = [each for each, _ in query.values]
        keys: Columns = (*query.keys, *((each, BIGINT) for each in plan.bounds))
        columns = schema_of((*keys, *plan.arguments), TIMESTAMP_COLUMN).columns
        # A row has the time of the latest of those that it is made of.
        aggregates = {**plan.aggregates, MOMENT: Max(TIMESTAMP_COLUMN)}
        if plan.keeps_rows:
            # It is the first state, which errors name.
            self.rows = table_state((*keys, *query.values, _ROWTIME), self._keys, name)
        super().__init__(aggregates, columns[: len(keys)], dict(columns), counts_apart=not self._is_session)
        #: The totals of the batch, for windows that end with it.
        self._came: pa.Table | None = None
        #: The keys of the sessions that have moved in it, and their accumulators under their new keys.
        self._moved: pa.Table | None = None
        self._held: pa.Table | None = None

    # Windows.

    def _windowed(self, table: pa.Table, ctx: BatchContext) -> pa.Table:
        """Return a row for each window of each row that is not late."""
        size, advance = self._window.size_ms, self._window.advance_ms
        times = integers(table.column(TIMESTAMP_COLUMN))
        last = times - times % advance
        count = -(-size // advance)
        starts = (last[:, None] - advance * np.arange(count)[None, ::-1]).ravel()
        rows = np.repeat(np.arange(len(times)), count)
        kept = (starts + size > times[rows]) & (starts >= 0)
        rows, starts = rows[kept], starts[kept]
        if count > 1 or not kept.all():
            table = table.take(pa.array(rows, pa.int64()))
        # The time of the stream has reached the end of the window.
        late = starts + size + self._window.grace_ms <= self._stream(table, ctx)
        return _bounded(_kept(table, late, ctx), starts[~late], starts[~late] + size)

    def _in_sessions(self, table: pa.Table, ctx: BatchContext) -> pa.Table:
        """Return rows that are not late with the bounds of their sessions, and move sessions that grow or merge."""
        gap = self._window.size_ms
        times = integers(table.column(TIMESTAMP_COLUMN))
        least, most = int(times.min()) - gap, int(times.max()) + gap
        stored = self.accumulators.scan([("WINDOWSTART", "<=", most), ("WINDOWEND", ">=", least)])
        both = alike([stored.select(self._group), table.select(self._group)])
        of_stored, of_rows = codes_of(both, self._group)
        starts, ends = (integers(stored.column(name)) for name in self._plan.bounds)
        open_, came = Spans(of_stored, starts, ends + gap), Spans(of_rows, times, times + gap)
        # A session is over when the time of the stream has reached its end, which includes the gap here.
        over = self._stream(table, ctx) - self._window.grace_ms + gap
        sessions, of_stored, of_rows = merged_by_arrival(open_, came, over)
        late = of_rows < 0
        of_rows = of_rows[~late]
        is_moved = np.isin(of_stored, of_rows)
        starts, ends = sessions.starts, sessions.ends - gap
        moved, numbers = stored.filter(pa.array(is_moved)), of_stored[is_moved]
        self._moved = moved.select(self._keys)
        self.accumulators.delete(self._moved)
        self._held = _bounded(moved.drop_columns(list(self._plan.bounds)), starts[numbers], ends[numbers])
        return _bounded(_kept(table, late, ctx), starts[of_rows], ends[of_rows])

    def _stream(self, table: pa.Table, ctx: BatchContext) -> Any:
        """Return the time of the stream when each row came."""
        return np.maximum(integers(table.column(STREAM)), ctx.current_watermark() + 1)

    # Batches.

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        table = in_arrival_order(table)
        if self._window is not None:
            table = (self._in_sessions if self._is_session else self._windowed)(table, ctx)
        if not table.num_rows:
            return
        parts: list[pa.Table] = []
        self._named(table, lambda rows: parts.append(self.totals.combine(rows)))
        if self._held is not None:
            # Those of a session come before the rows of the batch.
            parts = [self._held, parts[0].select(self._held.column_names).cast(self._held.schema)]
        came = pa.concat_tables(parts)
        if self._plan.is_final:
            self._came = came
        else:
            self._named(came, lambda totals: self._add(totals, ctx))

    def _named(self, table: pa.Table, process: Callable[[pa.Table], None]) -> None:
        """Process rows of groups, with an error that names the group of a sum that does not fit.

        Raises:
            TableOverflowError: A sum does not fit.
        """
        try:
            process(table)
        except SumOverflow as error:
            # The query ends. The half of the groups that fails again has the group.
            (codes,) = codes_of([table], self._keys)
            is_first = codes <= codes.max() // 2
            for half in (is_first, ~is_first) if codes.any() else ():
                self._named(table.filter(pa.array(half)), process)
            row = table.select(self._keys).to_pylist()[0]
            window = " to ".join(str(row.pop(name)) for name in self._plan.bounds)
            shown = ", ".join(f"{name} = {value!r}" for name, value in row.items())
            aggregate = f'"{error.aggregate}'
            names = [name for name, expression, _ in self._plan.after.columns if aggregate in expression]
            where = f"column {', '.join(names)}" if names else "HAVING"
            raise TableOverflowError(
                f"table {self._name}, key {shown}{', window from ' * bool(window)}{window}, {where}: "
                f"{str(error).rpartition('): ')[2]}"
            ) from error

    def _add(self, table: pa.Table, ctx: BatchContext) -> None:
        """Add totals, put the rows of their groups that fit ``HAVING`` in the place of those before, and emit both."""
        stored = None if self._held is None else self._held.slice(0, 0)
        keys, (*results, times), _ = self.totals.merge(table, self.accumulators, self.counted(), stored)
        before = self.rows.lookup(pa.table(keys, names=self._keys) if self._moved is None else self._moved)
        after = self._finished(keys, results, times, ctx).cast(before.schema)
        if self._moved is not None or after.num_rows < len(times):
            self.rows.delete(before.select(self._keys))
        self.rows.upsert(after)
        came = pa.table([*keys, times], names=[*self._keys, TIMESTAMP_COLUMN])
        removed = before.select([*self._keys, "ROWTIME"]).rename_columns(came.column_names).cast(came.schema)
        shown = [*self._keys, *self._values]
        emit_changes(ctx, before.select(shown), after.select(shown), pa.concat_tables([removed, came]), self._keys)

    def _finished(self, keys: list[Any], results: list[Any], times: Any, ctx: BatchContext) -> pa.Table:
        """Return the rows of groups, of those that fit ``HAVING``, as they are stored."""
        plan = self._plan
        groups = [f"#g{place}" for place in range(len(self._group))]
        names = [*groups, *plan.bounds, *plan.aggregates, TIMESTAMP_COLUMN]
        rows, bad = plan.after.run(pa.table([*keys, *results, times], names=names))
        if bad:
            ctx.drop(len(bad))
        shown = rows.select([*self._keys, *self._values])
        return shown.append_column(_ROWTIME[0], rows.column(TIMESTAMP_COLUMN))

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        plan, window = self._plan, self._window
        if window is None:
            return
        # The watermark is one millisecond behind the time of the stream.
        stream = max(-(2**62), watermark) + 1
        limit = stream - window.grace_ms
        came, self._came = self._came, None
        over: list[pa.Table] = []
        if came is not None:
            self._named(came, lambda rows: over.append(self._store_open(rows, limit)))
        if watermark <= ctx.previous_watermark():
            return
        over = [self.accumulators.take(("WINDOWEND", "<=", limit)), *(each for each in over if each.num_rows)]
        for counted in self.counted().values():
            counted.take(("WINDOWEND", "<=", limit))
        ended = pa.concat_tables([each.select(over[0].column_names).cast(over[0].schema) for each in over])
        if plan.is_final and ended.num_rows:
            self._named(ended, lambda rows: self._end(rows, ctx))
        # At the end of the input the table stays as it is.
        if plan.keeps_rows and watermark < MAX_TIMESTAMP:
            self.rows.take(("WINDOWEND", "<=", stream - max(window.grace_ms, window.retention_ms)))

    def _store_open(self, table: pa.Table, limit: int) -> pa.Table:
        """Store totals, except those of windows that end now, which it returns."""
        # Which values are new is known from the state.
        is_over = integers(table.column("WINDOWEND")) <= (-(2**63) if self.counted() else limit)
        rest = table.filter(pa.array(~is_over))
        if rest.num_rows:
            self.totals.store(rest, self.accumulators, self.counted())
        return table.filter(pa.array(is_over))

    def _end(self, table: pa.Table, ctx: BatchContext) -> None:
        """Emit the rows of windows that have ended and fit ``HAVING``, in the order of their times and bounds."""
        keys, (*results, times) = self.totals.ended(table)
        rows = self._finished(keys, results, times, ctx)
        if self._plan.keeps_rows and rows.num_rows:
            self.rows.upsert(rows)
        order = np.lexsort([integers(rows.column(each)) for each in ("WINDOWSTART", "ROWTIME")])
        change = pa.array(np.ones(rows.num_rows, dtype=np.int8))
        changes = rows.rename_columns([*self._keys, *self._values, TIMESTAMP_COLUMN]).append_column(CHANGE, change)
        emit(ctx, changes.take(pa.array(order, pa.int64())))


def _kept(table: pa.Table, late: Any, ctx: BatchContext) -> pa.Table:
    """Return the rows that are not late, and count the others."""
    if late.any():
        ctx.drop(int(late.sum()))
        table = table.filter(pa.array(~late))
    return table


def _bounded(table: pa.Table, starts: Any, ends: Any) -> pa.Table:
    """Return rows with the bounds of their windows."""
    return table.append_column("WINDOWSTART", pa.array(starts)).append_column("WINDOWEND", pa.array(ends))
