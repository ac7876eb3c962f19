"""Aggregates over whole columns whose accumulator is a list: distinct values, counts, the k greatest, registers.

A part is a list column. Merging flattens the lists into rows, processes those like any others, and builds lists again.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.windows.sketches import estimate, hash_value
from keyed.windows.vectorized.accumulators import Accumulator, BatchRows, Parts
from keyed.windows.vectorized.row_groups import Groups, grouped, integers, pc, pick, reduced

#: A register and its rank are one integer: register · 2^6 + rank.
_RANK_BITS = 6


class _Lists(Accumulator):
    """Lists. Subclasses define which items of a group are kept."""

    neutral = ([], [])

    def _selected(self, items: list[Any], groups: Groups) -> Any:
        """Return the positions of the kept items, by group."""
        raise NotImplementedError

    def _of_values(self, columns: list[Any], groups: Groups) -> Parts:
        """Return lists out of the rows in which the last column is not null."""
        present = np.flatnonzero(columns[-1].is_valid().to_numpy(zero_copy_only=False))
        return self._of_items(pick(columns, present), groups.of(present))

    def _of_items(self, items: list[Any], groups: Groups) -> Parts:
        """Return lists out of items; the items of a list keep the order in which they were selected."""
        selected = self._selected(items, groups)
        offsets = _offsets(groups.of(selected).sizes())
        return [pa.ListArray.from_arrays(offsets, item) for item in pick(items, selected)]

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        parents = integers(pc.list_parent_indices(parts[0]))
        return self._of_items([pc.list_flatten(part) for part in parts], groups.of(parents))


def _first(selected: Any, groups: Groups, limit: int | None) -> Any:
    """Return the first positions of each group, out of those that are in the order of groups."""
    if limit is None:
        return selected
    ids = groups.ids[selected]
    return selected[np.arange(len(ids)) - np.searchsorted(ids, ids) < limit]


class AllValues(_Lists):
    """All values in order of arrival.

    Args:
        column: The column.
        type_: Its type.
        ignore_nulls: Nulls are left out.
        limit: The number of values that are kept; ``None`` for all.
    """

    def __init__(self, column: str, type_: str, *, ignore_nulls: bool, limit: int | None) -> None:
        super().__init__(column, ("values", f"array<{type_}>"))
        self._limit = limit
        self._ignore_nulls = ignore_nulls

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        of = self._of_values if self._ignore_nulls else self._of_items
        return of([rows.column(self._column)], groups)

    def _selected(self, items: list[Any], groups: Groups) -> Any:
        return _first(np.argsort(groups.ids, kind="stable"), groups, self._limit)


class DistinctValues(_Lists):
    """The distinct values, or their number.

    Args:
        column: The column.
        type_: Its type.
        limit: The number of values that are kept; ``None`` for all.
        count: Return their number, not the values in ascending order.
    """

    def __init__(self, column: str, type_: str, *, limit: int | None, count: bool) -> None:
        super().__init__(column, ("values", f"array<{type_}>"))
        self._limit = limit
        self._count = count

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        column = rows.column(self._column)
        if pa.types.is_floating(column.type):
            # Arrow distinguishes zeros and NaN by their signs.
            column = pc.if_else(
                pc.is_nan(column), pa.scalar(math.nan, column.type), pc.add(column, pa.scalar(0, column.type))
            )
        return self._of_values([column], groups)

    def _selected(self, items: list[Any], groups: Groups) -> Any:
        selected = np.sort(grouped([groups.ids, items[0]]).first_rows())
        return _first(selected[np.argsort(groups.ids[selected], kind="stable")], groups, self._limit)

    def result(self, parts: Parts) -> Any:
        values = parts[0]
        if self._count:
            return pc.list_value_length(values).cast(pa.int64())
        items = pa.table([pc.list_parent_indices(values), pc.list_flatten(values)], names=["group", "value"])
        order = pc.sort_indices(items, sort_keys=[("group", "ascending"), ("value", "ascending")])
        return pa.ListArray.from_arrays(
            _offsets(integers(pc.list_value_length(values))), items.column("value").combine_chunks().take(order)
        )


class ValueCounts(_Lists):
    """The k most frequent values with their counts; values of equal counts ascending.

    Args:
        k: Number of values.
        column: The column.
        type_: Its type.
    """

    def __init__(self, k: int, column: str, type_: str) -> None:
        super().__init__(column, ("values", f"array<{type_}>"), ("counts", "array<bigint>"))
        self._k = k

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        column = rows.column(self._column)
        present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        ones = pa.array(np.ones(len(present), dtype=np.int64))
        return self._of_items([*pick([column], present), ones], groups.of(present))

    def _of_items(self, items: list[Any], groups: Groups) -> Parts:
        """Return lists of the distinct values of each group with the sums of their counts."""
        alike = grouped([groups.ids, items[0]])
        counts = reduced(items[1], alike, "sum")
        first = alike.first_rows()
        order = np.argsort(groups.ids[first], kind="stable")
        offsets = _offsets(groups.of(first).sizes())
        values = pick([items[0]], first[order])[0]
        return [pa.ListArray.from_arrays(offsets, each) for each in (values, counts.take(pa.array(order)))]

    def result(self, parts: Parts) -> Any:
        lists = integers(pc.list_parent_indices(parts[0]))
        table = pa.table([pa.array(lists), *map(pc.list_flatten, parts)], names=["list", "value", "count"])
        keys = [("list", "ascending"), ("count", "descending"), ("value", "ascending")]
        order = integers(pc.sort_indices(table, sort_keys=keys))
        selected = _first(order, Groups(lists, len(parts[0])), self._k)
        values, counts = pick(
            [table.column("value").combine_chunks(), table.column("count").combine_chunks()], selected
        )
        offsets = _offsets(np.bincount(lists[selected], minlength=len(parts[0])))
        return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([values, counts], names=["value", "count"]))


class TopValues(_Lists):
    """The k values with the greatest rank; values of equal ranks ascending, null last.

    Args:
        k: Number of values.
        column: The value's column.
        type_: Its type.
        by: The rank's column.
        by_type: Its type.
    """

    def __init__(self, k: int, column: str, type_: str, by: str, by_type: str) -> None:
        self._k = k
        self._columns = (column,) if by == column else (column, by)
        values, ranks = f"array<{type_}>", f"array<{by_type}>"
        self.parts = (("top", values),) if by == column else (("values", values), ("ranks", ranks))

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        return self._of_values([rows.column(name) for name in self._columns], groups)

    def _selected(self, items: list[Any], groups: Groups) -> Any:
        table = pa.table([pa.array(groups.ids), items[0], items[-1]], names=["group", "value", "rank"])
        order = integers(
            pc.sort_indices(table, sort_keys=[("group", "ascending"), ("rank", "descending"), ("value", "ascending")])
        )
        return _first(order, groups, self._k)


class Registers(_Lists):
    """The registers of a HyperLogLog sketch that are set, as `keyed.windows.ApproxCountDistinct` has them.

    Args:
        column: The column.
        precision: There are 2^precision registers.
    """

    def __init__(self, column: str, precision: int) -> None:
        # Registers of another precision are a different state.
        super().__init__(column, (f"registers_{precision}", "array<int>"))
        self._precision = precision

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        column = rows.column(self._column)
        present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        encoded = column.take(pa.array(present)).dictionary_encode()
        hashes = np.fromiter(map(hash_value, _values(encoded.dictionary)), np.uint64, len(encoded.dictionary))
        width = 64 - self._precision
        registers = (hashes >> np.uint64(width)).astype(np.int64)
        rest = hashes & np.uint64((1 << width) - 1)
        # The number of bits is exact: rest has at most 60, and a float64 that is rounded up to 2^n is caught below.
        bits = np.frexp(rest.astype(np.float64))[1].astype(np.int64)
        bits -= (rest >> np.maximum(bits - 1, 0).astype(np.uint64)) == 0
        bits[rest == 0] = 0
        packed = (registers << _RANK_BITS) + (width - bits + 1)
        items = pa.array(packed[integers(encoded.indices)], pa.int32())
        return self._of_items([items], groups.of(present))

    def _selected(self, items: list[Any], groups: Groups) -> Any:
        packed = integers(items[0])
        order = np.lexsort((packed, groups.ids))
        register, ids = packed[order] >> _RANK_BITS, groups.ids[order]
        is_last = np.ones(len(order), dtype=bool)
        is_last[:-1] = (register[1:] != register[:-1]) | (ids[1:] != ids[:-1])
        return order[is_last]

    def result(self, parts: Parts) -> Any:
        width = 64 - self._precision
        parents = integers(pc.list_parent_indices(parts[0]))
        ranks = integers(pc.list_flatten(parts[0])) & ((1 << _RANK_BITS) - 1)
        counts = np.bincount(parents * (width + 2) + ranks, minlength=len(parts[0]) * (width + 2))
        counts = counts.reshape(len(parts[0]), width + 2)
        counts[:, 0] = (1 << self._precision) - counts.sum(axis=1)
        return pa.array([round(estimate(row)) for row in counts.tolist()], pa.int64())


def _values(column: Any) -> list[Any]:
    """Return the values as on the row path: instants as aware datetimes, whatever their unit."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


def _offsets(sizes: Any) -> Any:
    """Return the offsets of lists of these sizes, from 0."""
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
