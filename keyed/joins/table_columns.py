"""Joins with tables over whole columns: a stream with the rows that a table has at its times, and two tables."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.extending import table_of
from keyed.joins.column_join import TIME, ColumnJoin, integers
from keyed.joins.join_path import JoinPlan
from keyed.joins.key_index import KeyIndex
from keyed.joins.matching import Numbers, Ordered, codes_of, distinct, last_rows
from keyed.joins.pairs import Pairing
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState

#: The time of a row without one: before all others.
_NO_TIME = -(2**63)


class _TableSides(ColumnJoin):
    """Base of the joins with tables.

    Args:
        plan: The streams and the output.
        pairs: Returns the output of a pair.
        gone: The column that is negative, or true, in a row of a table that is there no longer; without one, none goes.
    """

    def __init__(self, plan: JoinPlan, pairs: Pairing, gone: str | None = None) -> None:
        super().__init__(plan)
        self._pairing = pairs
        self._removed_by = gone

    def _arrived(self, side: int, table: pa.Table | None) -> tuple[pa.Table, Numbers]:
        """Return the rows of a side in their stored form, and a mask of those that are there no longer."""
        if table is None:
            return self.no_rows(side), np.empty(0, dtype=bool)
        if TIMESTAMP_COLUMN not in table.column_names:
            table = table.append_column(TIMESTAMP_COLUMN, pa.nulls(table.num_rows, pa.int64()))
        is_gone = np.zeros(table.num_rows, dtype=bool)
        if self._removed_by in table.column_names:
            column: Any = table.column(self._removed_by)
            is_flag = pa.types.is_boolean(column.type)
            is_gone = column.fill_null(False).to_numpy() if is_flag else column.to_numpy() < 0
        return self.stored(side, table).cast(self.no_rows(side).schema), is_gone

    def _apply(self, state: TableState, rows: pa.Table, is_gone: Numbers) -> None:
        """Write rows, of which no two have the same key."""
        if is_gone.any():
            state.delete(rows.filter(pa.array(is_gone)))
            rows = rows.filter(pa.array(~is_gone))
        if rows.num_rows:
            state.upsert(rows)


class TableJoinColumns(_TableSides):
    """A `keyed.joins.TableJoin` over whole columns.

    Args:
        plan: The streams and the output.
        pairs: Returns the output of a pair.
        gone: The column that is negative in a right row that deletes the row of its key.
        order: Columns, the first one a time, with the order in which rows came, by which they are matched: the right
            row that came last counts, also if it is older than one before. Right rows may have none, and then come at
            their times.
    """

    def __init__(
        self, plan: JoinPlan, pairs: Pairing, gone: str | None = None, *, order: Sequence[str] | None = None
    ) -> None:
        super().__init__(plan, pairs, gone)
        self._order = order
        self.table = self.state(1, "table", (), time="bigint")

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        lefts, _ = self._arrived(0, first)
        rights, is_gone = self._arrived(1, second)
        came = pa.concat_tables([lefts.select(self.keys), rights.select(self.keys)])
        before = self.table.lookup(distinct(came, self.keys)).select(rights.column_names)
        versions = pa.concat_tables([before, rights.cast(before.schema)])
        codes, of_left = codes_of([versions, lefts], self.keys)
        count = before.num_rows
        times, moments = _times(versions), _times(lefts)
        if self._order is not None:
            names = self._order
            if second is not None and names[0] in second.column_names:
                own = [integers(second, name) for name in names]
            else:
                own = [times[count:], *np.zeros((len(names) - 1, len(times) - count), dtype=np.int64)]
            moments, times[count:] = _ranks([integers(lefts, name) for name in names], own)
        elif count:
            held = np.full(int(codes.max()) + 1, _NO_TIME)
            held[codes[:count]] = times[:count]
            kept = (times >= held[codes]) | (times == _NO_TIME)
            versions, codes, times = versions.filter(pa.array(kept)), codes[kept], times[kept]
            is_gone = is_gone[kept[count:]]
        # The row before the batch counts at all of its times.
        times[:count] = _NO_TIME
        is_gone = np.concatenate([np.zeros(count, dtype=bool), is_gone])
        ordered = Ordered(codes, times, np.arange(len(times)))
        if lefts.num_rows:
            matches = ordered.last(of_left, moments, inclusive=True)
            has = np.flatnonzero(matches >= 0)
            matches[has[is_gone[matches[has]]]] = -1
            chosen = np.arange(lefts.num_rows) if self._pairing.keeps[0] else np.flatnonzero(matches >= 0)
            left_times: Numbers = np.ma.masked_equal(_times(lefts), _NO_TIME)
            self.emit_pairs(ctx, (lefts, chosen), (versions, matches[chosen]), left_times[chosen])
        if versions.num_rows > count:
            last = np.unique(ordered.last(codes, np.full(len(codes), 2**63 - 1), inclusive=True))
            last = last[last >= count]
            self._apply(self.table, versions.take(last), is_gone[last])


class ChangeColumns(_TableSides):
    """A join of two tables, whose rows are changes: rows that are there no longer, and rows that are there now.

    A batch emits for each joined row that it touches the row before it and the row after it, with the later of the
    times of its two sides. The left table may name rows of the right one, beside a key of its own: by a foreign key.

    Args:
        plan: The streams, and the output without the column of changes.
        pairs: Returns the output of a pair: columns of both.
        change: The column of changes of the output: −1 for a row that is there no longer, 1 for one that is there.
        gone: As of the joins with tables.
        left_keys: Columns of the left rows' own key, if the right rows' key is none of theirs.
    """

    def __init__(
        self, plan: JoinPlan, pairs: Pairing, change: str, gone: str | None, left_keys: Sequence[str] = ()
    ) -> None:
        super().__init__(plan, pairs, gone)
        self._change = change
        self._schema = table_of([], plan.output).schema
        self._identity = (*self.keys, *left_keys)
        self.lefts = self.state(0, "lefts", left_keys, time="bigint")
        self.rights = self.state(1, "rights", (), time="bigint")
        self._left_keys = tuple(left_keys)
        if left_keys:
            types = plan.sides[0].stored
            columns = [(name, types[name]) for name in self._identity]
            self.numbers, self.members, self.counts = KeyIndex.states(columns, len(self.keys))

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        (lefts, left_gone), (rights, right_gone) = self._last(0, first), self._last(1, second)
        index = KeyIndex(self.numbers, self.members, self.counts) if self._left_keys else None
        touched = [lefts.select([*self._identity, TIME])]
        if index is None:
            touched.append(rights.select([*self.keys, TIME]))
        elif rights.num_rows:
            members, places = index.rows_of(rights.select(self.keys))
            touched.append(members.append_column(TIME, rights.column(TIME).take(places)))
        came = pa.concat_tables([touched[0], *(each.cast(touched[0].schema) for each in touched[1:])])
        identities = distinct(came.select(self._identity), self._identity)
        before, before_places, _ = self._joined(identities)
        if index is not None and lefts.num_rows:
            index.change(lefts.select(self._identity), left_gone)
        self._apply(self.lefts, lefts, left_gone)
        self._apply(self.rights, rights, right_gone)
        after, after_places, after_times = self._joined(identities)
        if not before.num_rows and not after.num_rows:
            return
        (of_came,) = codes_of([came], self._identity)
        latest = np.full(identities.num_rows, _NO_TIME)
        np.maximum.at(latest, np.concatenate([of_came, after_places]), np.concatenate([_times(came), after_times]))
        places = np.concatenate([before_places, after_places])
        both = pa.concat_tables([before, after]).cast(self._schema)
        ctx.emit(changes_of(both, before.num_rows, places, latest, self._change))

    def _last(self, side: int, table: pa.Table | None) -> tuple[pa.Table, Numbers]:
        """Return the last row of each key of a side, and a mask of those that are there no longer."""
        rows, is_gone = self._arrived(side, table)
        last = last_rows(rows, self.keys if side else self._identity)
        return rows.take(last), is_gone[last]

    def _joined(self, identities: pa.Table) -> tuple[pa.Table, Numbers, Numbers]:
        """Return the joined rows of some left rows or keys, each with its place among those and its time."""
        lefts = self.lefts.lookup(identities)
        rights = self.rights.lookup(distinct(identities, self.keys))
        _, of_left = codes_of([identities, lefts], self._identity)
        codes, of_right = codes_of([identities, rights], self.keys)
        left = np.full(identities.num_rows, -1)
        left[of_left] = np.arange(len(of_left))
        right = np.full(int(codes.max(initial=-1)) + 1, -1)
        right[of_right] = np.arange(len(of_right))
        right = right[codes]
        keeps = self._pairing.keeps
        places = np.flatnonzero(((left >= 0) | ((right >= 0) & keeps[1])) & ((right >= 0) | keeps[0]))
        left, right = left[places], right[places]
        times = np.maximum(*(_times(side, of) for side, of in ((lefts, left), (rights, right))))
        select: Any = self._pairing.join
        return self.selected(select, (lefts, rights), (left, right)), places, times


def changes_of(rows: pa.Table, count: int, places: Numbers, latest: Numbers, column: str) -> pa.Table:
    """Return rows as changes: those of a key together, with its time, the one that is there no longer first.

    Args:
        rows: Rows that are there no longer, and after them those that are there now.
        count: The number of the former.
        places: The number of the key of each row.
        latest: The times by the numbers of keys.
        column: The column of changes.
    """
    change = np.repeat([-1, 1], [count, rows.num_rows - count])
    order = np.lexsort((change, places))
    rows = rows.take(order).append_column(column, pa.array(change[order], pa.int8()))
    times = latest[places[order]]
    return rows.append_column(TIMESTAMP_COLUMN, pa.array(times, mask=times == _NO_TIME))


def _ranks(first: Sequence[Numbers], second: Sequence[Numbers]) -> list[Numbers]:
    """Return numbers for the rows of two tables in the order of the same columns of both, equal for equal rows."""
    columns = np.array([np.concatenate(each) for each in zip(first, second, strict=True)])
    order = np.lexsort(columns[::-1])
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(np.diff(columns[:, order], prepend=0).any(axis=0))
    return np.split(ranks, [len(first[0])])


def _times(rows: pa.Table, places: Numbers | None = None) -> Numbers:
    """Return the times of stored rows, of all or of some; of a place of −1 the time of no row."""
    column: Any = rows.column(TIME)
    times: Numbers = column.fill_null(_NO_TIME).to_numpy().copy()
    return times if places is None else np.append(times, _NO_TIME)[places]
