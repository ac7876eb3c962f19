"""The interval join of streams by their own time, over whole columns."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.joins.column_join import TIME, integers
from keyed.joins.interval_columns import IntervalColumns
from keyed.joins.join_path import OWN, JoinPlan
from keyed.joins.matching import Numbers
from keyed.joins.pairs import Pairing
from keyed.joins.select import Select
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState

#: The time of the streams when a stored row came, and its number.
_STREAM, _PLACE = f"{OWN}stream", f"{OWN}place"


class StreamStreamJoin(IntervalColumns):
    """An interval join by the time of the streams, the highest of their rows so far, which a column has for each row.

    Once it has passed a row's bounds and the grace period, the row has no further partners, in its batch too; an outer
    join then emits a row without a partner, with its own time. A row that is late on arrival is emitted at once, as by
    Kafka Streams' ``KStreamKStreamJoin``; an inner join drops it. The output has the columns too.

    Args:
        plan: The streams and the output.
        pairs: Returns the output of a pair.
        order: The column, and perhaps one of the numbers of rows, in the order in which they came.
        before: Time before the left row, in milliseconds.
        after: Time after it.
        grace: The grace period.
    """

    def __init__(
        self, plan: JoinPlan, pairs: Pairing, order: Sequence[str], before: int, after: int, grace: int
    ) -> None:
        #: The columns of the order by their stored names.
        self._order = dict(zip((_STREAM, _PLACE), order, strict=False))
        own = {name.removeprefix(OWN): "bigint" for name in self._order}
        super().__init__(plan, pairs, (-before, after), (after + grace, before + grace), **own)
        self._until_late = before + after + grace
        self._unmatched_ms = (0, 0)

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        self._late = [self.no_rows(0), self.no_rows(1)]
        super().process_batches(first, second, ctx)
        self.emit_unmatched(ctx, self._late)

    def stored(self, side: int, table: pa.Table) -> pa.Table:
        rows = super().stored(side, table)
        for stored, name in self._order.items():
            rows = rows.append_column(stored, table.column(name))
        return rows

    def no_rows(self, side: int) -> pa.Table:
        rows = super().no_rows(side)
        for stored in self._order:
            rows = rows.append_column(stored, pa.array([], pa.int64()))
        return rows

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
        is_ended = integers(rows, _STREAM) <= watermark
        state.upsert(rows.filter(pa.array(~is_ended)))
        rows = rows.filter(pa.array(is_ended))
        # After all rows that came up to its end, or at the time of the stream at which it came itself.
        ends = np.maximum(integers(rows, TIME) + kept_ms, integers(rows, _STREAM))
        last = (ends, np.full(rows.num_rows, 2**63 - 1))
        for name, values in zip(self._order, last, strict=False):
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
        return rows

    def selected(self, select: Select, stored: tuple[pa.Table, pa.Table], places: tuple[Numbers, Numbers]) -> pa.Table:
        indices = [pa.array(of, pa.int64(), mask=of < 0) for of in places]
        outputs = super().selected(select, stored, places)
        for own, name in self._order.items():
            # That of the later row, or of the end of a row without a partner.
            columns: list[Any] = [of.column(own).take(at) for of, at in zip(stored, indices, strict=True)]
            outputs = outputs.append_column(name, pc.max_element_wise(*columns))
        return outputs

    def arrived(self, side: int, table: pa.Table | None, ctx: BatchContext, first_in_time: int) -> pa.Table | None:
        if table is None:
            return None
        rows = self.stored(side, table)
        is_late = integers(table, TIMESTAMP_COLUMN) < integers(table, self._order[_STREAM]) - self._until_late
        if is_late.any():
            if self._pairing.keeps[side]:
                self._late[side] = rows.filter(pa.array(is_late))
            else:
                ctx.drop(int(is_late.sum()))
            rows = rows.filter(pa.array(~is_late))
        return rows if rows.num_rows else None
