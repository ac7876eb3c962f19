"""Continuous aggregates over whole columns: stored totals and new rows, merged by key.

The values that a `CountDistinct` counts are rows of a state table, and its accumulator is their number: a batch costs
what it adds, not what it has. Windows keep them in lists, which end with the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState
from keyed.windows.aggregates import AnyAggregate, Count
from keyed.windows.collecting import CountDistinct
from keyed.windows.vectorized.accumulators import BatchRows
from keyed.windows.vectorized.fold import fold_of
from keyed.windows.vectorized.row_groups import (
    array_of,
    concatenated,
    grouped,
    integers,
    pc,
    pick,
    plain_column,
    reduced,
)
from keyed.windows.vectorized.window_tables import timestamps

#: The column with the highest timestamp of combined rows. No key has such a name (`keyed.windows.paths`).
_LATEST = "window.latest"
#: The column of a distinct value in its state.
DISTINCT_VALUE = "window.value"


def distinct_columns(aggregates: Mapping[str, AnyAggregate]) -> dict[str, str]:
    """Return the columns whose distinct values are counted, by the names of their aggregates."""
    return {name: str(each.column) for name, each in aggregates.items() if isinstance(each, CountDistinct)}


class RunningTotals:
    """Adds rows to the running totals of their keys.

    Args:
        aggregates: The aggregates by name.
        keys: Names of the key's columns.
        columns: Types of the input's columns.
        counts_apart: The stored accumulator of a `CountDistinct` is the number of values, and not these.

    Attributes:
        parts: Names and types of the columns of the stored accumulators.
    """

    def __init__(
        self,
        aggregates: Mapping[str, AnyAggregate],
        keys: tuple[str, ...],
        columns: Mapping[str, str],
        *,
        counts_apart: bool,
    ) -> None:
        self._names = tuple(aggregates)
        self._timed = any(aggregate.timed for aggregate in aggregates.values())
        self._keys = keys
        #: The accumulators of rows that are combined, before it is known which values are new.
        self._combined = fold_of(aggregates, columns)
        counts = dict.fromkeys(distinct_columns(aggregates) if counts_apart else (), Count())
        self._fold = fold_of({**aggregates, **counts}, columns)
        self.parts = self._fold.columns
        self._parts = tuple(name for name, _ in self.parts)

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
        parts = self._combined.of_rows(BatchRows(table, integers(times) if self._timed else None), groups)
        names = [name for name, _ in self._combined.columns]
        combined = self._table(pick(keys, groups.first_rows()), parts, names)
        return combined if times is None else combined.append_column(_LATEST, reduced(times, groups, "max"))

    def add(
        self,
        table: Any,
        accumulators: TableState,
        distinct: Mapping[str, TableState],
        results: TableState,
        ctx: BatchContext,
    ) -> None:
        """Add the rows of a batch, and emit the new totals of their keys.

        Args:
            table: The rows, as `combine` returned them, in the order in which they arrived.
            accumulators: The accumulators of all keys.
            distinct: The values that each `CountDistinct` has counted.
            results: The results of all keys.
            ctx: Receives the totals.
        """
        keys, sums, latest = self.merge(table, accumulators, distinct)
        totals = self._table(keys, sums, self._names)
        results.upsert(totals)
        ctx.emit(totals if latest is None else totals.append_column(TIMESTAMP_COLUMN, latest))

    def merge(
        self, table: Any, accumulators: TableState, distinct: Mapping[str, TableState], stored: Any = None
    ) -> tuple[list[Any], list[Any], Any]:
        """Add combined rows to the totals of their keys; return the keys, the results, and the latest times, if any.

        Args:
            table: The rows, as `combine` returned them.
            accumulators: The accumulators of all keys.
            distinct: The values that each `CountDistinct` has counted.
            stored: The accumulators of their keys; by default they are looked up.
        """
        table, keys = self._counted(table, distinct)
        if stored is None:
            stored = accumulators.lookup(self._table(pick(keys, grouped(keys).first_rows())))
        keys, parts, groups = self._merged(stored, table)
        results = self._fold.results(parts)
        accumulators.upsert(self._table(keys, parts, self._parts))
        latest = None
        if _LATEST in table.column_names:
            latest = reduced(array_of(table.column(_LATEST)), groups.of(slice(stored.num_rows, None)), "max")
        return keys, results, latest

    def store(self, table: Any, accumulators: TableState, distinct: Mapping[str, TableState]) -> None:
        """Add combined rows to the totals of their keys, as `merge` does, whose results nobody needs yet."""
        operations: Any = self._fold.operations
        if operations is None or distinct or any(of.startswith("decimal") for _, of in self._fold.columns):
            self.merge(table, accumulators, distinct)
        else:
            accumulators.merge(table.select([*self._keys, *self._parts]), operations)

    def ended(self, table: Any) -> tuple[list[Any], list[Any]]:
        """Return the keys of accumulators, and their results. Those of a key are merged, earlier ones first."""
        keys, parts, _ = self._merged(table)
        return keys, self._fold.results(parts)

    def _counted(self, table: Any, distinct: Mapping[str, TableState]) -> tuple[Any, list[Any]]:
        """Return combined rows with the number of new values in each, and their keys."""
        keys = [plain_column(table.column(name)) for name in self._keys]
        for name, counted in distinct.items():
            table = table.append_column(
                f"{name}.count", self._new_values(array_of(table.column(f"{name}.values")), keys, counted)
            )
        return table, keys

    def _merged(self, *tables: Any) -> tuple[list[Any], Any, Any]:
        """Return the keys of accumulators, the parts merged, and the group of each row. Earlier ones come first."""
        keys = [concatenated([plain_column(each.column(name)) for each in tables]) for name in self._keys]
        parts = [concatenated(own) for own in zip(*map(self._fold.stored, tables), strict=True)]
        groups = grouped(keys)
        return pick(keys, groups.first_rows()), self._fold.merged(parts, groups), groups

    def _new_values(self, values: Any, keys: list[Any], counted: TableState) -> Any:
        """Add values to those that were counted, and return the number of new ones by row.

        Args:
            values: The values of each row, as lists.
            keys: The key columns of the rows.
            counted: The values that were counted.
        """
        of_row = integers(pc.list_parent_indices(values))
        names = (*self._keys, DISTINCT_VALUE)
        came = pa.table([*pick(keys, of_row), pc.list_flatten(values)], names=list(names))
        known = counted.lookup(came)
        groups = grouped([concatenated([*known.column(name).chunks, *came.column(name).chunks]) for name in names])
        first = groups.first_rows()
        new = np.sort(first[first >= known.num_rows]) - known.num_rows
        if len(new):
            counted.upsert(came.take(pa.array(new)))
        return pa.array(np.bincount(of_row[new], minlength=len(values)))

    def _table(self, keys: Any, columns: Any = (), names: Any = ()) -> Any:
        return pa.table([*keys, *columns], names=[*self._keys, *names])
