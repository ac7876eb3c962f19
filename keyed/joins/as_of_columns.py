"""The as-of join over whole columns."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import numpy as np
import pyarrow as pa

from keyed.joins.column_join import NUMBER, TIME, ColumnJoin, in_order, integers, numbered
from keyed.joins.join_path import JoinPlan
from keyed.joins.matching import Ordered, codes_of
from keyed.joins.pairs import Pairing
from keyed.vectorized import BatchContext


class AsOfColumns(ColumnJoin):
    """An `AsOfJoin` over whole columns. Left rows are emitted in order of time.

    Right rows that the watermark has passed are in a separate table with one row per key: the last.

    Args:
        plan: The streams and the output.
        pairs: Returns the output of a pair.
        tolerance_ms: Maximal age of the right row; ``None`` for any.
        exact: A right row of the same time counts.
    """

    def __init__(self, plan: JoinPlan, pairs: Pairing, tolerance_ms: int | None, *, exact: bool) -> None:
        super().__init__(plan)
        self._pairing = pairs
        self._tolerance_ms = tolerance_ms
        self._exact = exact
        self.lefts = self.state(0, "lefts", (TIME, NUMBER), time="bigint", number="bigint")
        self.rights = self.state(1, "rights", (TIME,), time="bigint")
        self.passed = self.state(1, "passed", (), time="bigint")

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        lefts = self.arrived(0, first, ctx, ctx.current_watermark() + 1)
        if lefts is not None:
            times = integers(lefts, TIME)
            stored = self.lefts.scan([(TIME, ">=", int(times.min())), (TIME, "<=", int(times.max()))])
            self.lefts.upsert(numbered(lefts, stored))
        rights = self.arrived(1, second, ctx, -(2**63))
        if rights is not None:
            self.rights.upsert(rights)

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        if watermark <= ctx.previous_watermark():
            return
        tolerance_ms = self._tolerance_ms
        lefts = in_order(self.lefts.take((TIME, "<=", watermark)), TIME, NUMBER)
        rights = self.rights.take((TIME, "<=", watermark))
        keys = pa.concat_tables([lefts.select(self.keys), rights.select(self.keys)])
        before = self.passed.lookup(keys.group_by(list(self.keys), use_threads=False).aggregate([]))
        # Rows that the watermark has passed come first: of equal times the last to arrive counts.
        rights = pa.concat_tables([before, rights.select(before.column_names)])
        codes, of_left = codes_of([rights, lefts], self.keys)
        times, left_times = integers(rights, TIME), integers(lefts, TIME)
        ordered = Ordered(codes, times, np.arange(len(times)))
        matches = ordered.last(of_left, left_times, inclusive=self._exact)
        if tolerance_ms is not None and len(times):
            matches[left_times - times[matches] > tolerance_ms] = -1
        chosen = np.arange(lefts.num_rows) if self._pairing.keeps[0] else np.flatnonzero(matches >= 0)
        self.emit_pairs(ctx, (lefts, chosen), (rights, matches[chosen]), left_times[chosen])
        if rights.num_rows > before.num_rows:
            lasts = np.unique(ordered.last(codes, np.full(len(codes), watermark), inclusive=True))
            self.passed.upsert(rights.take(lasts[lasts >= before.num_rows]))
        if tolerance_ms is not None:
            self.passed.take((TIME, "<", watermark + 1 - tolerance_ms))
