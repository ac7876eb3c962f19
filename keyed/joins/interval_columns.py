"""The interval join over whole columns."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.joins.column_join import NUMBER, TIME, ColumnJoin, in_order, integers, numbered
from keyed.joins.join_path import OWN, JoinPlan
from keyed.joins.matching import Numbers, Ordered, codes_of
from keyed.joins.pairs import Pairing
from keyed.vectorized import BatchContext, TableState

_PAIRED = f"{OWN}paired"


class IntervalColumns(ColumnJoin):
    """An `IntervalJoin` over whole columns. Unmatched rows are emitted after the pairs of their batch.

    Args:
        plan: The streams and the output.
        pairs: Returns the output of a pair.
        bounds: The least and greatest distance of the right row's time from the left one's.
        kept_ms: Time for which a row of either side is kept after its timestamp.
        own: Types of further columns of stored rows.
    """

    def __init__(
        self, plan: JoinPlan, pairs: Pairing, bounds: tuple[int, int], kept_ms: tuple[int, int], **own: str
    ) -> None:
        super().__init__(plan)
        self._pairing = pairs
        self._lower, self._upper = bounds
        self._kept_ms = kept_ms
        #: The time of the output of a row without a partner, after that of the row, by side.
        self._unmatched_ms = kept_ms
        self.lefts, self.rights = (
            self.state(side, name, (TIME, NUMBER), time="bigint", number="bigint", paired="boolean", **own)
            for side, name in enumerate(("lefts", "rights"))
        )

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        watermark, low, up = ctx.current_watermark(), self._lower, self._upper
        came = [self.arrived(side, table, ctx, watermark) for side, table in enumerate((first, second))]
        # The stored rows of each side that may match new rows of the other side, or that have the times of its own new
        # rows.
        wide = [_span(came[1], -up, -low), _span(came[0], low, up)]
        states = self.lefts, self.rights
        stored, new = [], []
        for side, state in enumerate(states):
            spans = [span for span in (wide[side], _span(came[side], 0, 0)) if span is not None]
            least, greatest = (min(span[0] for span in spans), max(span[1] for span in spans)) if spans else (1, 0)
            candidates = state.scan([(TIME, ">=", least), (TIME, "<=", greatest)])
            stored.append(candidates)
            rows = came[side]
            new.append(candidates.slice(0, 0) if rows is None else self._new(rows, candidates))
        lefts, rights = (pa.concat_tables([stored[side], new[side]]) for side in (0, 1))
        pairs = self.pairs(stored, new)
        self._mark_and_keep(states, stored, new, pairs)
        times = np.maximum(integers(lefts, TIME)[pairs[0]], integers(rights, TIME)[pairs[1]])
        self.emit_pairs(ctx, (lefts, pairs[0]), (rights, pairs[1]), times)

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        if watermark <= ctx.previous_watermark():
            return
        over = []
        for side, (state, kept_ms) in enumerate(zip((self.lefts, self.rights), self._kept_ms, strict=True)):
            rows = self.take_ended(state, watermark, kept_ms)
            rows = rows.filter(pc.invert(rows.column(_PAIRED))) if self._pairing.keeps[side] else rows.slice(0, 0)
            over.append(in_order(rows, TIME, NUMBER))
        self.emit_unmatched(ctx, over)

    def take_ended(self, state: TableState, watermark: int, kept_ms: int) -> pa.Table:
        """Remove the rows that the watermark leaves without further partners, and return them."""
        return state.take((TIME, "<=", watermark - kept_ms))

    def emit_unmatched(self, ctx: BatchContext, rows: Sequence[pa.Table]) -> None:
        """Emit the rows of either side, which have no partner."""
        times = np.concatenate([integers(rows[side], TIME) + self._unmatched_ms[side] for side in (0, 1)])
        order = np.argsort(times, kind="stable")
        count = rows[0].num_rows
        places = np.where(order < count, order, -1), np.where(order < count, -1, order - count)
        self.emit_pairs(ctx, (rows[0], places[0]), (rows[1], places[1]), times[order])

    def _new(self, rows: pa.Table, stored: pa.Table) -> pa.Table:
        rows = numbered(rows, stored).append_column(_PAIRED, pa.repeat(False, rows.num_rows))
        return rows.select(stored.column_names).cast(stored.schema)

    def pairs(self, stored: list[pa.Table], new: list[pa.Table]) -> tuple[Numbers, Numbers]:
        """Return the rows of each pair with a new row, numbered over stored and new rows."""
        parts = [stored[0], new[0], stored[1], new[1]]
        codes = codes_of(parts, self.keys)
        times = [integers(part, TIME) for part in parts]
        numbers = [integers(part, NUMBER) for part in parts]
        # New left rows are matched with all right rows, new right rows with the stored left rows.
        rights = Ordered(*(np.concatenate(of[2:]) for of in (codes, times, numbers)))
        left, right = rights.between(codes[1], times[1] + self._lower, times[1] + self._upper)
        lefts = Ordered(codes[0], times[0], numbers[0])
        looking, matches = lefts.between(codes[3], times[3] - self._upper, times[3] - self._lower)
        left = np.concatenate([left + len(times[0]), matches])
        right = np.concatenate([right, looking + len(times[2])])
        # Pairs are ordered by the later of their rows, and within it by time and number of the other row.
        places = _places(times)
        later_is_right = places[1][right] > places[0][left]
        of_other = [
            np.where(later_is_right, np.concatenate(of[:2])[left], np.concatenate(of[2:])[right])
            for of in (numbers, times)
        ]
        order = np.lexsort((*of_other, np.maximum(places[0][left], places[1][right])))
        return left[order], right[order]

    def _mark_and_keep(
        self, states: Any, stored: list[pa.Table], new: list[pa.Table], pairs: tuple[Numbers, Numbers]
    ) -> None:
        """Write the new rows and, in an outer join, those that have a partner for the first time."""
        for side, state in enumerate(states):
            before, rows = stored[side], new[side]
            if self._pairing.keeps[side]:
                paired = np.zeros(before.num_rows + rows.num_rows, dtype="bool")
                paired[pairs[side]] = True
                index = rows.schema.get_field_index(_PAIRED)
                rows = rows.set_column(index, _PAIRED, pa.array(paired[before.num_rows :]))
                first = paired[: before.num_rows] & ~before.column(_PAIRED).to_numpy()
                if first.any():
                    marked = before.filter(pa.array(first))
                    state.upsert(marked.set_column(index, _PAIRED, pa.repeat(True, marked.num_rows)))
            if rows.num_rows:
                state.upsert(rows)


def _span(rows: pa.Table | None, low: int, up: int) -> tuple[int, int] | None:
    """Return the least and greatest time of possible partners."""
    if rows is None:
        return None
    times = integers(rows, TIME)
    return int(times.min()) + low, int(times.max()) + up


def _places(times: list[Numbers]) -> tuple[Numbers, Numbers]:
    """Return the position of each left and right row in the order of the batch, −1 for stored rows."""
    order = np.argsort(np.concatenate([times[1], times[3]]), kind="stable")
    places = np.empty(len(order), dtype="int64")
    places[order] = np.arange(len(order))
    split = len(times[1])
    old = [np.full(len(each), -1) for each in (times[0], times[2])]
    return np.concatenate([old[0], places[:split]]), np.concatenate([old[1], places[split:]])
