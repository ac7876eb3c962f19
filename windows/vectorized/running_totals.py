"""Continuous aggregates over whole columns: stored totals and new rows, merged by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState
from keyed.windows.aggregates import AnyAggregate
from keyed.windows.vectorized.accumulators import BatchRows
from keyed.windows.vectorized.fold import fold_of
from keyed.windows.vectorized.row_groups import array_of, concatenated, grouped, integers, plain_column, reduced, taken
from keyed.windows.vectorized.window_tables import timestamps

#: The column with the highest timestamp of combined rows. No key has such a name (`keyed.windows.paths`).
_LATEST = "window.latest"


class RunningTotals:
    """Adds rows to the running totals of their keys.

    Args:
        aggregates: The aggregates by name.
        keys: Names of the key's columns.
        columns: Types of the input's columns.
    """

    def __init__(
        self, aggregates: Mapping[str, AnyAggregate], keys: tuple[str, ...], columns: Mapping[str, str]
    ) -> None:
        self._names = tuple(aggregates)
        self._timed = any(aggregate.timed for aggregate in aggregates.values())
        self._keys = keys
        self._fold = fold_of(aggregates, columns)
        self._parts = tuple(name for name, _ in self._fold.columns)

    def combine(self, table: Any) -> Any:
        """Aggregate rows of any keys by key, and find the highest timestamp of each.

        Args:
            table: The rows, in the order in which they arrived.

        Raises:
            DefinitionError: An aggregate needs timestamps, and a row has none.
        """
        times = timestamps(table, needed=self._timed)
        keys = [plain_column(table.column(name)) for name in self._keys]
        groups = grouped(keys)
        parts = self._fold.of_rows(BatchRows(table, integers(times) if self._timed else None), groups)
        combined = self._table(taken(keys, groups.first_rows()), parts, self._parts)
        return combined if times is None else combined.append_column(_LATEST, reduced(times, groups, "max"))

    def add(self, table: Any, accumulators: TableState, results: TableState, ctx: BatchContext) -> None:
        """Add the rows of a batch, and emit the new totals of their keys.

        Args:
            table: The rows, as `combine` returned them, in the order in which they arrived.
            accumulators: The accumulators of all keys.
            results: The results of all keys.
            ctx: Receives the totals.
        """
        keys = [plain_column(table.column(name)) for name in self._keys]
        stored = accumulators.lookup(self._table(taken(keys, grouped(keys).first_rows())))
        before = [plain_column(stored.column(name)) for name in self._keys]
        keys = [concatenated(pair) for pair in zip(before, keys, strict=True)]
        parts = [concatenated(pair) for pair in zip(*map(self._fold.stored, (stored, table)), strict=True)]
        groups = grouped(keys)
        parts = self._fold.merged(parts, groups)
        keys = taken(keys, groups.first_rows())
        accumulators.upsert(self._table(keys, parts, self._parts))
        totals = self._table(keys, self._fold.results(parts), self._names)
        results.upsert(totals)
        if _LATEST in table.column_names:
            came = groups.of(slice(stored.num_rows, None))
            totals = totals.append_column(TIMESTAMP_COLUMN, reduced(array_of(table.column(_LATEST)), came, "max"))
        ctx.emit(totals)

    def _table(self, keys: Any, columns: Any = (), names: Any = ()) -> Any:
        return pa.table([*keys, *columns], names=[*self._keys, *names])
