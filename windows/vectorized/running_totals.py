"""Continuous aggregates over whole columns: what was there and what came, merged key by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from keyed import MIN_TIMESTAMP, TIMESTAMP_COLUMN, BatchContext, TableState
from windows.aggregates import AnyAggregate
from windows.general import no_timestamp
from windows.vectorized.accumulators import BatchRows
from windows.vectorized.fold import fold_of
from windows.vectorized.row_groups import array_of, concatenated, grouped, integers, pc, plain_column, taken


class RunningTotals:
    """Adds rows to the totals of their keys.

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

    def add(self, table: Any, accumulators: TableState, results: TableState, ctx: BatchContext) -> None:
        """Add the rows of a batch, and emit the new totals of their keys.

        Args:
            table: The rows, in the order in which they arrived.
            accumulators: The accumulators of all keys.
            results: The results of all keys.
            ctx: Takes the totals.
        """
        times = self._times(table)
        keys = [plain_column(table.column(name)) for name in self._keys]
        groups = grouped(keys)
        parts = self._fold.of_rows(BatchRows(table, times), groups)
        latest = None if times is None else np.full(groups.count, MIN_TIMESTAMP)
        if latest is not None:
            np.maximum.at(latest, groups.ids, times)
        keys = taken(keys, groups.first_rows())
        stored = accumulators.lookup(self._table(keys, []))
        if stored.num_rows:
            before = [plain_column(stored.column(name)) for name in self._keys]
            keys = [concatenated(pair) for pair in zip(before, keys, strict=True)]
            parts = [concatenated(pair) for pair in zip(self._fold.stored(stored), parts, strict=True)]
            groups = grouped(keys)
            parts = self._fold.merged(parts, groups)
            # What came stands behind what was there, and each key of that is among it.
            last = groups.last_rows()
            keys = taken(keys, last)
            latest = None if latest is None else latest[last - stored.num_rows]
        accumulators.upsert(self._table(keys, parts, [name for name, _ in self._fold.columns]))
        totals = self._table(keys, self._fold.results(parts), self._names)
        results.upsert(totals)
        ctx.emit(totals if latest is None else totals.append_column(TIMESTAMP_COLUMN, pa.array(latest)))

    def _table(self, keys: Any, columns: Any, names: Any = ()) -> Any:
        return pa.table([*keys, *columns], names=[*self._keys, *names])

    def _times(self, table: Any) -> Any:
        """Return the timestamps of rows; ``None`` if they are not needed and some are missing.

        Raises:
            DefinitionError: They are needed.
        """
        column = array_of(table.column(TIMESTAMP_COLUMN)) if TIMESTAMP_COLUMN in table.column_names else None
        if column is not None and not column.null_count:
            return integers(column)
        if self._timed:
            at = 0 if column is None else pc.index(column.is_null(), True).as_py()
            raise no_timestamp(table.slice(at, 1).to_pylist()[0])
        return None
