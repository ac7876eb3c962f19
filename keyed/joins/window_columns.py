"""Window joins and cogroups over whole columns."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.joins.column_join import NUMBER, TIME, ColumnJoin, in_order, integers, numbered
from keyed.joins.join_path import OWN, JoinPlan
from keyed.joins.matching import codes_of
from keyed.vectorized import BatchContext

_START, _CODE = f"{OWN}start", f"{OWN}code"


class WindowColumns(ColumnJoin):
    """A `WindowCoGroup` or `WindowJoin` over whole columns. Windows are emitted in order of their start.

    Args:
        plan: The streams and the output.
        cogroup: Returns the outputs of a window.
        windows: Size, slide and offset of the windows.
    """

    def __init__(
        self,
        plan: JoinPlan,
        cogroup: Callable[[int, int, list[Any], list[Any]], Iterable[Any] | None],
        windows: tuple[int, int, int],
    ) -> None:
        super().__init__(plan)
        self._cogroup = cogroup
        self._size, self._slide, self._offset = windows
        self.lefts = self.state(0, "lefts", (_START, NUMBER), start="bigint", number="bigint", time="bigint")
        self.rights = self.state(1, "rights", (_START, NUMBER), start="bigint", number="bigint", time="bigint")

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        size, slide, watermark = self._size, self._slide, ctx.current_watermark()
        for side, (table, state) in enumerate(((first, self.lefts), (second, self.rights))):
            rows = self.arrived(side, table, ctx, -(2**63))
            if table is None or rows is None:
                continue
            times = integers(rows, TIME)
            last = times - (times - self._offset) % slide
            number = (size - 1 - (times - last)) // slide + 1
            # One row per window, the earliest window first.
            of = np.repeat(np.arange(len(times)), number)
            nth = np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number)
            starts = last[of] - (number[of] - 1 - nth) * slide
            is_open = starts + (size - 1) > watermark
            in_time = np.zeros(len(times), dtype="bool")
            in_time[of[is_open]] = True
            late = ~in_time & (number > 0)
            if late.any():
                self.divert(side, table.filter(pa.array(late)), ctx)
            if is_open.any():
                kept = rows.take(of[is_open]).append_column(_START, pa.array(starts[is_open]))
                stored = state.scan(
                    [(_START, ">=", int(starts[is_open].min())), (_START, "<=", int(starts[is_open].max()))]
                )
                state.upsert(numbered(kept, stored))

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        if watermark <= ctx.previous_watermark():
            return
        size = self._size
        over = [state.take((_START, "<=", watermark - size + 1)) for state in (self.lefts, self.rights)]
        if not any(table.num_rows for table in over):
            return
        codes = codes_of(over, self.keys)
        sides = []
        for side, (table, code) in enumerate(zip(over, codes, strict=True)):
            table = in_order(table.append_column(_CODE, pa.array(code)), _START, _CODE, NUMBER)
            windows = np.stack([integers(table, _START), integers(table, _CODE)], axis=1)
            sides.append((windows, self.rows(side, table)))
        values: list[Any] = []
        times: list[int] = []
        for start, outputs in self._outputs(sides):
            of_window = list(outputs)
            values += of_window
            times += [start + size - 1] * len(of_window)
        self.emit(ctx, values, np.array(times, dtype="int64"))

    def _outputs(self, sides: list[tuple[Any, list[Any]]]) -> Iterator[tuple[int, Any]]:
        """Yield the start of each window and the function's outputs for it."""
        size, cogroup = self._size, self._cogroup
        distinct = np.unique(np.concatenate([windows for windows, _ in sides]), axis=0)
        bounds = []
        for windows, _ in sides:
            # The number of rows of each window; the rows of a side are sorted by window.
            _, inverse = np.unique(np.concatenate([distinct, windows]), axis=0, return_inverse=True)
            counts = np.bincount(inverse.reshape(-1)[len(distinct) :], minlength=len(distinct))
            bounds.append([0, *np.cumsum(counts).tolist()])
        for index, start in enumerate(distinct[:, 0].tolist()):
            lefts, rights = (
                elements[ends[index] : ends[index + 1]] for (_, elements), ends in zip(sides, bounds, strict=True)
            )
            yield start, cogroup(start, start + size, lefts, rights) or ()
