"""Aggregate functions of the user's over whole columns: accumulators are stored as bytes, and results have a type."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from keyed.codec.tagged import decode_tagged, encode_tagged
from keyed.extending import snapshot
from keyed.windows.vectorized.accumulators import Accumulator, BatchRows, Parts
from keyed.windows.vectorized.row_groups import Groups


@attrs.frozen(eq=False)
class PythonAggregate(Accumulator):
    """An aggregate function of values of a column, which is its own accumulator; rows whose value is null do not count.

    Attributes:
        function: A `keyed.AggregateFunction`, whose accumulators are plain data.
        column: Name of the column.
        type: Arrow type of the results.
    """

    function: Any
    column: str
    type: pa.DataType
    timed = False
    parts = (("accumulator", "binary"),)

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        function = self.function
        accumulators: list[Any] = [None] * groups.count
        has_value = np.zeros(groups.count, dtype=bool)
        for place, value in zip(groups.ids.tolist(), rows.column(self.column).to_pylist(), strict=True):
            if value is None:
                continue
            if not has_value[place]:
                accumulators[place], has_value[place] = function.create_accumulator(), True
            value = tuple(value.values()) if isinstance(value, dict) else value
            accumulators[place] = function.add(value, accumulators[place])
        cells = [encode_tagged(each) if has else None for each, has in zip(accumulators, has_value, strict=True)]
        return [pa.array(cells, pa.binary())]

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        function = self.function
        accumulators: list[Any] = [None] * groups.count
        counts = np.zeros(groups.count, dtype=int)
        for place, cell in zip(groups.ids.tolist(), parts[0].to_pylist(), strict=True):
            if cell is None:
                continue
            if counts[place] == 0:
                accumulators[place] = cell
            else:
                before = decode_tagged(accumulators[place]) if counts[place] == 1 else accumulators[place]
                accumulators[place] = function.merge(before, decode_tagged(cell))
            counts[place] += 1
        cells = [encode_tagged(each) if count > 1 else each for each, count in zip(accumulators, counts, strict=True)]
        return [pa.array(cells, pa.binary())]

    def result(self, parts: Parts) -> Any:
        function = self.function
        results = []
        for cell in parts[0].to_pylist():
            accumulator = function.create_accumulator() if cell is None else decode_tagged(cell)
            results.append(snapshot(function.get_result(accumulator)))
        return pa.array(results, self.type)
