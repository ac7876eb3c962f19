"""The as-of join over whole columns."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from keyed import BatchContext, Schema
from keyed.joins.column_join import NUMBER, TIME, ColumnJoin, in_order, integers, numbered
from keyed.joins.join_path import Side
from keyed.joins.matching import Ordered, codes_of

if TYPE_CHECKING:
    from keyed.joins.as_of import AsOfJoin


class AsOfColumns(ColumnJoin):
    """Does what an `AsOfJoin` does. Left rows come out by time.

    Right rows that the watermark has passed are in a table of their own, with one row a key: the last.

    Args:
        definition: The join.
        sides: The two streams.
        output: Columns of the output.
    """

    def __init__(self, definition: AsOfJoin, sides: list[Side], output: Schema) -> None:
        super().__init__(sides, output, definition.late)
        self._definition = definition
        self.lefts = self.state(0, "lefts", (TIME, NUMBER), time="bigint", number="bigint")
        self.rights = self.state(1, "rights", (TIME,), time="bigint")
        self.passed = self.state(1, "passed", (), time="bigint")

    def __repr__(self) -> str:
        return repr(self._definition)

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        lefts = self.arrived(0, first, ctx, ctx.current_watermark() + 1)
        if lefts is not None:
            times = integers(lefts, TIME)
            there = self.lefts.scan([(TIME, ">=", int(times.min())), (TIME, "<=", int(times.max()))])
            self.lefts.upsert(numbered(lefts, there))
        rights = self.arrived(1, second, ctx, -(2**63))
        if rights is not None:
            self.rights.upsert(rights)

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        if watermark <= ctx.previous_watermark():
            return
        definition = self._definition
        lefts = in_order(self.lefts.take((TIME, "<=", watermark)), TIME, NUMBER)
        rights = self.rights.take((TIME, "<=", watermark))
        keys = pa.concat_tables([lefts.select(self.keys), rights.select(self.keys)])
        before = self.passed.lookup(keys.group_by(list(self.keys), use_threads=False).aggregate([]))
        # Those that have been passed come first: of equal times the one that came later counts.
        rights = pa.concat_tables([before, rights.select(before.column_names)])
        codes, of_left = codes_of([rights, lefts], self.keys)
        times, left_times = integers(rights, TIME), integers(lefts, TIME)
        ordered = Ordered(codes, times, np.arange(len(times)))
        found = ordered.last(of_left, left_times, inclusive=definition.exact)
        if definition.tolerance_ms is not None and len(times):
            found[left_times - times[found] > definition.tolerance_ms] = -1
        chosen = np.arange(lefts.num_rows) if definition.pairs.keeps[0] else np.flatnonzero(found >= 0)
        self.emit_pairs(ctx, definition.pairs.join, (lefts, chosen), (rights, found[chosen]), left_times[chosen])
        if rights.num_rows > before.num_rows:
            lasts = np.unique(ordered.last(codes, np.full(len(codes), watermark), inclusive=True))
            self.passed.upsert(rights.take(lasts[lasts >= before.num_rows]))
        if definition.tolerance_ms is not None:
            self.passed.take((TIME, "<", watermark + 1 - definition.tolerance_ms))
