"""The joins of scripts with tables, over whole columns. Joins of streams are `keyed.joins`."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from keyed.extending import Schema
from keyed.joins.matching import Ordered, codes_of
from keyed.sql.catalog import CHANGE, STREAM
from keyed.sql.engine import Columns
from keyed.sql.sql_operators import emit, emit_changes, schema_of
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState, VectorizedCoFunction
from keyed.windows.vectorized.row_groups import grouped, integers, pc, plain_column

#: The column of a join's key, and the one that is true where it is null.
JOIN, NO_KEY = "#join", "#no_key"
_KEYS = [NO_KEY, JOIN]
_TIME, _NUMBER, _PAIRED = "#time", "#number", "#paired"


class _TableJoin(VectorizedCoFunction):
    """A join with tables, whose rows are state by the key of the join.

    Args:
        key: The key of the join.
        left: Columns of the left rows.
        right: Columns of the right rows.
        how: ``INNER``, ``LEFT``, ``RIGHT`` or ``FULL``.
        own_key: Name of a column of joined rows with the key of the join.
    """

    def __init__(self, key: Columns, left: Columns, right: Columns, how: str, own_key: str | None = None) -> None:
        self._key = key
        self._columns = [[name for name, _ in side] for side in (left, right)]
        self._how = how
        self._own_key = own_key

    def _state(self, side: Columns, name: str, **more: str) -> TableState:
        keys = ((NO_KEY, "boolean"), *schema_of(self._key).columns)
        return TableState(Schema((*keys, *schema_of(side, **more).columns)).ddl, key=_KEYS, name=name)

    def _keeps(self, side: int) -> bool:
        return self._how == "FULL" or self._how == ("LEFT", "RIGHT")[side]

    def _joined(self, left: pa.Table, of_left: Any, right: pa.Table, of_right: Any) -> pa.Table:
        """Return joined rows.

        Args:
            left: Left rows.
            of_left: The place of each joined row's left row, -1 for none.
            right: Right rows.
            of_right: The same of the right ones.
        """
        columns: list[Any] = []
        names: list[str] = []
        for side, table, places in ((0, left, of_left), (1, right, of_right)):
            taken = table.select(self._columns[side]).take(pa.array(places, pa.int64(), mask=places < 0))
            columns += taken.columns
            names += taken.column_names
        found = pa.table(columns, names=names)
        keys = [
            pc.if_else(
                pa.array(of_left >= 0),
                left.column(name).take(pa.array(of_left, pa.int64(), mask=of_left < 0)).combine_chunks(),
                right.column(name).take(pa.array(of_right, pa.int64(), mask=of_right < 0)).combine_chunks(),
            )
            for name in _KEYS
        ]
        if self._own_key is not None:
            found = found.append_column(self._own_key, pc.if_else(keys[0], pa.scalar(None, keys[1].type), keys[1]))
        for name, cells in zip(_KEYS, keys, strict=True):
            found = found.append_column(name, cells)
        return found


class StreamTableJoin(_TableJoin):
    """Joins each row of a stream with the row that the table had at its time.

    Of equal times the table's rows come first. Rows of the table that come in a later batch change nothing.
    """

    def __init__(self, key: Columns, left: Columns, right: Columns, how: str, own_key: str | None = None) -> None:
        super().__init__(key, left, right, how, own_key)
        self.table = self._state(right, "table")

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        if second is not None:
            # Of a change that replaces a row, the row before it is not needed.
            second = second.append_column("#at", pa.array(np.arange(second.num_rows)))
        names = [*_KEYS, *self._columns[1]]
        if first is not None:
            before = self.table.lookup(_distinct(first.select(_KEYS))).select(names)
            times = np.full(before.num_rows, -(2**63), dtype=np.int64)
            gone = np.zeros(before.num_rows, dtype=bool)
            versions = before
            if second is not None:
                came = second.select(names).cast(before.schema)
                versions = pa.concat_tables([before, came])
                times = np.concatenate([times, integers(second.column(TIMESTAMP_COLUMN))])
                gone = np.concatenate([gone, integers(second.column(CHANGE)) < 0])
            codes, of_left = codes_of([versions, first.select(_KEYS).cast(versions.select(_KEYS).schema)], _KEYS)
            ordered = Ordered(codes, times, np.arange(len(times)))
            left_times = integers(first.column(TIMESTAMP_COLUMN))
            found = ordered.last(of_left, left_times, inclusive=True)
            has = np.flatnonzero(found >= 0)
            found[has[gone[found[has]]]] = -1
            no_key = first.column(NO_KEY).to_numpy()
            found[no_key] = -1
            chosen = np.arange(first.num_rows) if self._keeps(0) else np.flatnonzero(found >= 0)
            joined = self._joined(first.select([*_KEYS, *self._columns[0]]), chosen, versions, found[chosen])
            joined = joined.drop_columns(_KEYS).append_column(
                STREAM, first.column(STREAM).take(pa.array(chosen, pa.int64()))
            )
            emit(ctx, joined.append_column(TIMESTAMP_COLUMN, pa.array(left_times[chosen])))
        if second is not None:
            last = _last(second)
            is_gone = pc.less(last.column(CHANGE), 0)
            self.table.delete(last.filter(is_gone).select(_KEYS))
            self.table.upsert(last.filter(pc.invert(is_gone)).select(names))


class TableTableJoin(_TableJoin):
    """Joins the rows of two tables by their keys; a batch emits for each key the row before it and after it."""

    def __init__(self, key: Columns, left: Columns, right: Columns, how: str, own_key: str | None = None) -> None:
        super().__init__(key, left, right, how, own_key)
        time = {_TIME: "bigint"}
        self.lefts, self.rights = self._state(left, "lefts", **time), self._state(right, "rights", **time)

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        came = [each for each in (first, second) if each is not None]
        keys = pa.concat_tables([each.select([*_KEYS, TIMESTAMP_COLUMN]) for each in came])
        wanted = _distinct(keys.select(_KEYS))
        before, _ = self._rows(wanted)
        for state, table, names in zip((self.lefts, self.rights), (first, second), self._columns, strict=True):
            if table is None:
                continue
            last = _last(table)
            is_gone = pc.less(last.column(CHANGE), 0)
            state.delete(last.filter(is_gone).select(_KEYS))
            there = last.filter(pc.invert(is_gone)).select([*_KEYS, *names, TIMESTAMP_COLUMN])
            state.upsert(there.rename_columns([*_KEYS, *names, _TIME]))
        after, times = self._rows(wanted)
        # A joined row has the later of the times of its two sides.
        emit_changes(ctx, before, after, pa.concat_tables([each.cast(keys.schema) for each in (keys, *times)]), _KEYS)

    def _rows(self, wanted: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """Return the joined rows of keys, and the times of each side's rows by their keys."""
        lefts, rights = self.lefts.lookup(wanted), self.rights.lookup(wanted)
        codes, of_left, of_right = codes_of(
            [wanted, lefts.select(_KEYS).cast(wanted.schema), rights.select(_KEYS).cast(wanted.schema)], _KEYS
        )
        places = [np.full(int(codes.max()) + 1 if len(codes) else 0, -1) for _ in range(2)]
        places[0][of_left], places[1][of_right] = np.arange(len(of_left)), np.arange(len(of_right))
        left, right = places[0][codes], places[1][codes]
        kept = ((left >= 0) | (self._keeps(1) & (right >= 0))) & ((right >= 0) | (self._keeps(0) & (left >= 0)))
        names = [*_KEYS, TIMESTAMP_COLUMN]
        times = [each.select([*_KEYS, _TIME]).rename_columns(names) for each in (lefts, rights)]
        return self._joined(lefts, left[kept], rights, right[kept]), times


class ForeignKeyJoin(_TableJoin):
    """Joins the rows of a table with those of another one that they name: its first stage, keyed by the named key.

    A batch emits, for each left row whose result changes, the row before it and the row after it. A left row that
    names another key leaves the group of the former one, and comes to that of the new one.

    Args:
        left_keys: Columns of the left rows' key in joined rows.
    """

    def __init__(self, key: Columns, left: Columns, right: Columns, how: str, left_keys: list[str]) -> None:
        super().__init__(key, left, right, how)
        self._left_keys = left_keys
        keys = ((NO_KEY, "boolean"), *schema_of(key).columns)
        columns = (*keys, *schema_of(left).columns)
        self.lefts = TableState(Schema(columns).ddl, key=(*_KEYS, *left_keys), name="lefts")
        self.rights = self._state(right, "rights")

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        identity = [*_KEYS, *self._left_keys]
        came = []
        if first is not None:
            came.append(first.select([*identity, TIMESTAMP_COLUMN]))
        if second is not None:
            named = pc.unique(second.column(JOIN).combine_chunks())
            held = self.lefts.scan(pc.field(JOIN).isin(named) & ~pc.field(NO_KEY)).select(identity)
            codes, of_right = codes_of(
                [held.select(_KEYS), second.select(_KEYS).cast(held.select(_KEYS).schema)], _KEYS
            )
            latest = np.full(int(max(codes.max(initial=-1), of_right.max(initial=-1))) + 1, -(2**63))
            np.maximum.at(latest, of_right, integers(second.column(TIMESTAMP_COLUMN)))
            times = pa.array(latest[codes], pa.int64())
            came.append(held.append_column(TIMESTAMP_COLUMN, times))
        rows = pa.concat_tables([came[0], *(each.cast(came[0].schema) for each in came[1:])])
        if rows.num_rows:
            groups = grouped([plain_column(rows.column(name)) for name in identity])
            wanted = rows.select(identity).take(pa.array(groups.first_rows(), pa.int64()))
            before = self._rows(wanted)
        self._apply(self.lefts, first, identity, self._columns[0])
        self._apply(self.rights, second, _KEYS, self._columns[1])
        if rows.num_rows:
            emit_changes(ctx, before, self._rows(wanted), rows, identity)

    def _apply(self, state: TableState, table: pa.Table | None, keys: list[str], columns: list[str]) -> None:
        if table is None:
            return
        groups = grouped([plain_column(table.column(name)) for name in keys])
        last = table.take(pa.array(np.sort(groups.last_rows()), pa.int64()))
        is_gone = pc.less(last.column(CHANGE), 0)
        state.delete(last.filter(is_gone).select(keys))
        state.upsert(last.filter(pc.invert(is_gone)).select([*_KEYS, *columns]))

    def _rows(self, wanted: pa.Table) -> pa.Table:
        """Return the joined rows of left rows."""
        lefts = self.lefts.lookup(wanted)
        rights = self.rights.lookup(_distinct(wanted.select(_KEYS)))
        of_left, of_right = codes_of(
            [lefts.select(_KEYS), rights.select(_KEYS).cast(lefts.select(_KEYS).schema)], _KEYS
        )
        places = np.full(int(max(of_left.max(initial=-1), of_right.max(initial=-1))) + 1, -1)
        places[of_right] = np.arange(len(of_right))
        right = places[of_left] if len(of_left) else np.empty(0, dtype=np.int64)
        kept = np.flatnonzero((right >= 0) | self._keeps(0))
        return self._joined(lefts, kept, rights, right[kept])


class StreamStreamJoin(_TableJoin):
    """Joins rows of two streams whose times lie within bounds of each other.

    A pair is emitted as soon as both rows are there. A row without a partner is emitted once, by an outer join, when
    its bounds and the grace period have passed; a late one at once, as in Kafka Streams. An inner join drops late rows.

    Args:
        within: Times before and after the left row, and the grace period, in milliseconds.
    """

    def __init__(
        self,
        key: Columns,
        left: Columns,
        right: Columns,
        how: str,
        within: tuple[int, int, int],
        own_key: str | None = None,
    ) -> None:
        super().__init__(key, left, right, how, own_key)
        self._before, self._after, self._grace = within
        more = ((_TIME, "bigint"), (_NUMBER, "bigint"), (_PAIRED, "boolean"))
        for side, columns, name in ((0, left, "lefts"), (1, right, "rights")):
            schema = Schema(((NO_KEY, "boolean"), *schema_of(self._key).columns, *schema_of(columns).columns, *more))
            state = TableState(schema.ddl, key=(*_KEYS, _TIME, _NUMBER), name=name)
            setattr(self, ("lefts", "rights")[side], state)
        self.lefts: TableState
        self.rights: TableState

    def _came(self, side: int, table: pa.Table | None, state: TableState, ctx: BatchContext) -> pa.Table:
        """Return the new rows of a side that are not late, as they are stored."""
        schema = state.scan((_TIME, "<", -(2**63))).schema
        if table is None:
            return schema.empty_table()
        times = integers(table.column(TIMESTAMP_COLUMN))
        kept_ms = self._before + self._after + self._grace
        late = times < integers(table.column(STREAM)) - kept_ms
        if late.any():
            if self._keeps(side):
                self._late.append((side, table.filter(pa.array(late)), times[late]))
            else:
                ctx.drop(int(late.sum()))
            table = table.filter(pa.array(~late))
            times = times[~late]
        there = state.scan([(_TIME, ">=", int(times.min())), (_TIME, "<=", int(times.max()))]) if len(times) else None
        first = 0
        if there is not None and there.num_rows:
            first = int(integers(there.column(_NUMBER)).max()) + 1
        more = {
            _TIME: pa.array(times),
            _NUMBER: pa.array(np.arange(first, first + len(times))),
            _PAIRED: pa.repeat(False, len(times)),
        }
        rows = table.select([*_KEYS, *self._columns[side]])
        for name, cells in more.items():
            rows = rows.append_column(name, cells)
        return rows.select(schema.names).cast(schema)

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        states = (self.lefts, self.rights)
        self._late: list[tuple[int, pa.Table, Any]] = []
        new = [self._came(side, table, states[side], ctx) for side, table in enumerate((first, second))]
        held = []
        for side, (low, up) in enumerate(((-self._after, self._before), (-self._before, self._after))):
            other = integers(new[1 - side].column(_TIME))
            wanted: Any = (
                [(_TIME, ">=", int(other.min()) + low), (_TIME, "<=", int(other.max()) + up)] if len(other) else []
            )
            held.append(states[side].scan(wanted) if wanted else new[side].slice(0, 0))
        lefts, rights = (pa.concat_tables([held[side], new[side].cast(held[side].schema)]) for side in (0, 1))
        codes, of_right = codes_of([lefts.select(_KEYS), rights.select(_KEYS).cast(lefts.select(_KEYS).schema)], _KEYS)
        left_times, right_times = integers(lefts.column(_TIME)), integers(rights.column(_TIME))
        ordered = Ordered(of_right, right_times, np.arange(len(right_times)))
        left, right = ordered.between(codes, left_times - self._before, left_times + self._after)
        is_new = (left >= held[0].num_rows) | (right >= held[1].num_rows)
        is_new &= ~lefts.column(NO_KEY).to_numpy()[left] & ~rights.column(NO_KEY).to_numpy()[right]
        left, right = left[is_new], right[is_new]
        times = np.maximum(left_times[left], right_times[right])
        order = np.argsort(times, kind="stable")
        left, right, times = left[order], right[order], times[order]
        for side, (state, rows, paired) in enumerate(zip(states, (lefts, rights), (left, right), strict=True)):
            flags = rows.column(_PAIRED).to_numpy().copy()
            was = flags.copy()
            flags[paired] = True
            changed = np.flatnonzero(flags != was) if self._keeps(side) else np.empty(0, dtype=np.int64)
            written = np.union1d(changed, np.arange(held[side].num_rows, rows.num_rows))
            place = rows.column_names.index(_PAIRED)
            state.upsert(rows.set_column(place, _PAIRED, pa.array(flags)).take(pa.array(written, pa.int64())))
        self._emit(ctx, lefts, left, rights, right, times)
        for side, rows, of_rows in self._late:
            self._emit_alone(ctx, side, rows, of_rows)

    def _emit(self, ctx: BatchContext, lefts: pa.Table, left: Any, rights: pa.Table, right: Any, times: Any) -> None:
        if not len(times):
            return
        joined = self._joined(lefts, left, rights, right).drop_columns(_KEYS)
        emit(ctx, joined.append_column(STREAM, pa.array(times)).append_column(TIMESTAMP_COLUMN, pa.array(times)))

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        if watermark <= ctx.previous_watermark():
            return
        stream = max(-(2**62), watermark) + 1
        for side, state in enumerate((self.lefts, self.rights)):
            reach = (self._after, self._before)[side]
            over = state.take((_TIME, "<", stream - reach - self._grace))
            if not self._keeps(side) or not over.num_rows:
                continue
            alone = over.filter(pc.invert(over.column(_PAIRED)))
            alone = alone.take(
                pa.array(np.lexsort((integers(alone.column(_NUMBER)), integers(alone.column(_TIME)))), pa.int64())
            )
            self._emit_alone(ctx, side, alone, integers(alone.column(_TIME)))

    def _emit_alone(self, ctx: BatchContext, side: int, rows: pa.Table, times: Any) -> None:
        """Emit rows of a side without a partner."""
        places, none = np.arange(rows.num_rows), np.full(rows.num_rows, -1)
        other = (self.rights, self.lefts)[side].scan((_TIME, "<", -(2**63)))
        if side:
            self._emit(ctx, other, none, rows, places, times)
        else:
            self._emit(ctx, rows, places, other, none, times)


def _distinct(table: pa.Table) -> pa.Table:
    groups = grouped([plain_column(column) for column in table.columns])
    return table.take(pa.array(groups.first_rows(), pa.int64()))


def _last(table: pa.Table) -> pa.Table:
    """Return the last row of each key."""
    groups = grouped([plain_column(table.column(name)) for name in _KEYS])
    return table.take(pa.array(np.sort(groups.last_rows()), pa.int64()))
