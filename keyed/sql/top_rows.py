"""The first rows of each partition, for ``QUALIFY row_number() OVER (...) <= n``, as a table keyed by their ranks.

The semantic is that of Flink's Top-N: of a stream the first rows are kept; of a table all rows are, so that the next
one moves up when a row leaves. They are read only if a row leaves that was among the first.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from keyed.expressions.engine import SqlStep
from keyed.expressions.tokens import quoted
from keyed.formats.sql_types import BIGINT
from keyed.joins.matching import codes_of, distinct
from keyed.sql.catalog import CHANGE
from keyed.sql.planner import RankPlan
from keyed.sql.sql_operators import alike, emit_changes, in_arrival_order, table_state
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, VectorizedFunction
from keyed.windows.vectorized.row_groups import integers, pc

_TIME = "ROWTIME"
#: The rank of a row before a batch, 0 if it had none; and the order of rows that are equal.
_WAS, _TIE = "#was", "#tie"


class TopRows(VectorizedFunction):
    """Ranks the rows of each partition, and emits the ranks whose rows have changed.

    Of equal rows of a stream the first that came is first, of a table that with the lesser key.

    Args:
        plan: The partition, the order and the number of rows.
        name: Name of the table.
    """

    def __init__(self, plan: RankPlan, name: str) -> None:
        self._count, self._name = plan.clause.count, plan.clause.name
        self._group = [each for each, _ in plan.keys]
        self._key = [*self._group, self._name]
        self._shown = [*self._key, *(each for each, _ in plan.values)]
        self._identity = [*self._group, *(each for each, _ in plan.identity)]
        self._held = [*(each for each, _ in plan.columns), _TIME]
        self.rows = table_state((*plan.keys, (self._name, BIGINT), *plan.values, (_TIME, BIGINT)), self._key, name)
        first = (*plan.columns, (_TIME, BIGINT), (self._name, BIGINT))
        self.first = table_state(first, self._key, f"{name}_first", is_shown=False)
        self._is_of_table = bool(plan.identity)
        if self._is_of_table:
            members = (*plan.columns, (_TIME, BIGINT))
            self.members = table_state(members, self._identity, f"{name}_members", is_shown=False)
        order = [f'"{each}" {how}' for (each, _), (_, how) in zip(plan.order, plan.clause.order_by, strict=True)]
        order += [quoted(each) for each in (self._identity if self._is_of_table else [_TIE])]
        groups = ", ".join(map(quoted, self._group))
        rank = f"row_number() OVER (PARTITION BY {groups} ORDER BY {', '.join(order)})"
        self._step = SqlStep(((self._name, rank, BIGINT),), kept=(*self._held, _WAS))

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        table = in_arrival_order(table)
        came = table.append_column(_TIME, table.column(TIMESTAMP_COLUMN)).select(self._held)
        removed = came.slice(0, 0)
        if self._is_of_table:
            is_gone = pc.less(table.column(CHANGE), 0)
            removed, came = came.filter(is_gone), came.filter(pc.invert(is_gone))
            self.members.delete(removed)
            self.members.upsert(came)
        partitions = distinct(table, self._group)
        places = np.repeat(np.arange(partitions.num_rows), self._count)
        ranks = pa.array(np.tile(np.arange(1, self._count + 1), partitions.num_rows))
        first_ranks = partitions.take(pa.array(places, pa.int64()))
        first = self.first.lookup(first_ranks.append_column(self._name, ranks))
        left = _are_among(first, removed, self._identity) if removed.num_rows else np.zeros(first.num_rows, dtype=bool)
        kept = first.filter(pa.array(~left))
        was = integers(kept.column(self._name))
        both = [kept.select(self._held), came]
        if left.any():
            both.append(self._next(first.filter(pa.array(left)), pa.concat_tables(alike(both))))
        rows = pa.concat_tables(alike(both))
        new = np.arange(rows.num_rows - kept.num_rows)
        rows = rows.append_column(_WAS, pa.array(np.concatenate([was, new * 0])))
        rows = rows.append_column(_TIE, pa.array(np.concatenate([was - self._count - 1, new])))
        ranked, bad = self._step.run(rows)
        if bad:
            ctx.drop(len(bad))
        best = ranked.filter(pc.less_equal(ranked.column(self._name), self._count))
        self.first.delete(first)
        self.first.upsert(best.select([*self._held, self._name]))
        # The ranks whose rows have changed.
        is_same = pc.equal(best.column(_WAS), best.column(self._name))
        after = best.filter(pc.invert(is_same))
        before = first.filter(pa.array(~_are_among(first, best.filter(is_same), self._key)))
        vanished = before.filter(pa.array(~_are_among(before, after, self._key))).select(self._key)
        self.rows.delete(vanished)
        self.rows.upsert(after.select([*self._shown, _TIME]))
        latest = pa.repeat(pc.max(table.column(TIMESTAMP_COLUMN)), vanished.num_rows)
        times = [after.select([*self._key, _TIME]), vanished.append_column(_TIME, latest)]
        changed = pa.concat_tables(alike(times)).rename_columns([*self._key, TIMESTAMP_COLUMN])
        emit_changes(ctx, before.select(self._shown), after.select(self._shown), changed, self._key)

    def _next(self, left: pa.Table, known: pa.Table) -> pa.Table:
        """Return the rows of partitions that have lost one of the first, without those that are known."""
        name = self._group[0]
        rows = self.members.scan(pc.field(name).isin(left.column(name).unique()))
        rows = rows.filter(pa.array(_are_among(rows, left, self._group))).select(self._held)
        return rows.filter(pa.array(~_are_among(rows, known, self._identity)))


def _are_among(rows: pa.Table, others: pa.Table, names: list[str]) -> Any:
    """Return a mask of the rows whose columns have the values of another row's."""
    of_rows, of_others = codes_of(alike([rows.select(names), others.select(names)]), names)
    return np.isin(of_rows, of_others)
