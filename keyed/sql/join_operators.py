"""The joins of scripts: those of `keyed.joins` over columns."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from keyed.expressions.engine import Columns
from keyed.extending import Schema
from keyed.joins.column_join import TIME, integers
from keyed.joins.interval_columns import IntervalColumns
from keyed.joins.join_path import OWN, JoinPlan, Side
from keyed.joins.matching import Numbers
from keyed.joins.pairs import Pairing
from keyed.joins.select import Select
from keyed.joins.table_columns import ChangeColumns, TableJoinColumns
from keyed.sql.catalog import CHANGE, STREAM
from keyed.sql.planner import DAY_MS, JOIN, SourceJoin
from keyed.sql.sql_operators import schema_of
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState, VectorizedCoFunction
from keyed.windows.vectorized.row_groups import pc

#: The column that is not 0 in a row without a key: the number of its side, so that it has no partner.
NO_KEY = "#no_key"
#: The time of the stream when a stored row came.
_STREAM = f"{OWN}stream"


def join_of(join: SourceJoin, left: Columns, right: Columns, left_keys: Sequence[str]) -> VectorizedCoFunction:
    """Return the operator of a join.

    Args:
        join: The join.
        left: The columns of its left rows.
        right: The same of the right ones.
        left_keys: Of a join by a foreign key, the columns of the left rows' own key.
    """
    is_versions = join.kind == "stream-table"
    sides = []
    for columns in (left, right):
        more = [STREAM] if is_versions and columns is left else []
        types = dict(schema_of(((JOIN, join.key), *columns), *more).columns)
        sides.append(Side({NO_KEY: "bigint", **types}, (NO_KEY, JOIN), (NO_KEY, JOIN)))
    either = [] if join.own_key is None else [join.own_key]
    names = [[name for name in side.columns if name not in (NO_KEY, JOIN, *either)] for side in sides]
    select = Select(names[0], names[1], either=either)
    known = sides[1].columns | sides[0].columns
    output = Schema(tuple((name, known[name]) for name in (*either, *names[0], *names[1])))
    plan = JoinPlan(f"{join.clause.kind} JOIN", sides, output, is_shown=False)
    pairs = Pairing(select, join.clause.kind.lower())
    if is_versions:
        return TableJoinColumns(plan, pairs, CHANGE, by_arrival=True)
    if join.kind == "stream-stream":
        assert join.clause.within is not None
        before, after, grace = join.clause.within
        return StreamStreamJoin(plan, pairs, before, after, max(0, DAY_MS - before - after) if grace is None else grace)
    return ChangeColumns(plan, pairs, CHANGE, CHANGE, left_keys)


class StreamStreamJoin(IntervalColumns):
    """An interval join by the time of the streams, the highest of their rows so far.

    Once it has passed a row's bounds and the grace period, the row has no further partners, in its batch too; an outer
    join then emits a row without a partner, with its own time. A row that is late on arrival is emitted at once, as in
    Kafka Streams; an inner join drops it.

    Args:
        plan: The streams and the output.
        pairs: Returns the output of a pair.
        before: Time before the left row, in milliseconds.
        after: Time after it.
        grace: The grace period.
    """

    def __init__(self, plan: JoinPlan, pairs: Pairing, before: int, after: int, grace: int) -> None:
        super().__init__(plan, pairs, (-before, after), (after + grace, before + grace), stream="bigint")
        self._until_late = before + after + grace
        self._unmatched_ms = (0, 0)

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        self._late = [self.no_rows(0), self.no_rows(1)]
        super().process_batches(first, second, ctx)
        self.emit_unmatched(ctx, self._late)

    def stored(self, side: int, table: pa.Table) -> pa.Table:
        return super().stored(side, table).append_column(_STREAM, table.column(STREAM))

    def pairs(self, stored: list[pa.Table], new: list[pa.Table]) -> tuple[Numbers, Numbers]:
        places = super().pairs(stored, new)
        rows = [pa.concat_tables([stored[i], new[i]]).select([TIME, _STREAM]).take(places[i]) for i in (0, 1)]
        left, right = (integers(of, _STREAM) for of in rows)
        ends = [integers(of, TIME) + kept_ms for of, kept_ms in zip(rows, self._kept_ms, strict=True)]
        # Of two rows at one time of the stream, neither has ended when the other came.
        holds = (left == right) | (np.where(left < right, *ends) >= np.maximum(left, right))
        return places[0][holds], places[1][holds]

    def take_ended(self, state: TableState, watermark: int, kept_ms: int) -> pa.Table:
        rows = super().take_ended(state, watermark, kept_ms)
        # What came after the time of the stream advanced may be joined until it advances again, as in any other batch.
        is_ended = pc.less_equal(rows.column(_STREAM), watermark)
        state.upsert(rows.filter(pc.invert(is_ended)))
        return rows.filter(is_ended)

    def arrived(self, side: int, table: pa.Table | None, ctx: BatchContext, first_in_time: int) -> pa.Table | None:
        if table is None:
            return None
        rows = self.stored(side, table)
        is_late = integers(table, TIMESTAMP_COLUMN) < integers(table, STREAM) - self._until_late
        if is_late.any():
            if self._pairing.keeps[side]:
                self._late[side] = rows.filter(pa.array(is_late))
            else:
                ctx.drop(int(is_late.sum()))
            rows = rows.filter(pa.array(~is_late))
        return rows if rows.num_rows else None
