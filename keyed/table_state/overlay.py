"""Changes of a table in a batch: an overlay over the stored rows, which stay unchanged.

Rows are merged into stored rows with one grouping over both, the stored ones first.

A stored row has a status; rows that the batch wrote are *fresh*, and each knows the stored row that it replaces. What
is left at the end is the net change: fresh rows, keys of removed rows, and the ranges that were removed as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.content.blocks import Range, TableDelta
from keyed.content.local_store import StoredTable
from keyed.content.row_hash import row_hashes
from keyed.errors import StateAccessError, TableOverflowError
from keyed.table_state.chunks import Positions, Sorted, mask_of
from keyed.table_state.layout import DUE_COLUMN, Layout

_ROW = "__keyed_row"
_HOW = ("sum", "min", "max", "first", "last")
_DIGITS = 38


def check_how(layout: Layout, how: Mapping[str, str]) -> None:
    """Check the aggregations of a merge.

    Raises:
        StateAccessError: A column is missing, is not a value column, or does not support the aggregation.
    """
    where = f"table state {layout.name!r}"
    values = [name for name in layout.values if name != DUE_COLUMN]
    if set(how) != set(values):
        raise StateAccessError(f"{where}: how={dict(how)!r} must say how each of {', '.join(values)} is combined")
    for column, aggregation in how.items():
        type_ = layout.schema.field(column).type
        types = pa.types
        number = types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_)
        if aggregation not in _HOW:
            raise StateAccessError(f"{where}: how of {column!r} is {aggregation!r}; give one of {', '.join(_HOW)}")
        # Arrow has no minima of these.
        unordered = types.is_nested(type_) or types.is_duration(type_) or types.is_float16(type_)
        number = number and not types.is_float16(type_)
        if (aggregation == "sum" and not number) or (aggregation in ("min", "max") and unordered):
            raise StateAccessError(f"{where}: {aggregation!r} is not defined for column {column!r} of {type_}")


def grouped(layout: Layout, rows: pa.Table, how: Mapping[str, str]) -> tuple[pa.Table, Any, Any]:
    """Aggregate rows to one row per key.

    Args:
        layout: The table.
        rows: Rows with the key columns and those of ``how``.
        how: The aggregation of each value column, checked.

    Returns:
        The rows with the columns of ``rows``, and for each of them the numbers of its first and last input rows.

    Raises:
        TableOverflowError: A sum is out of the range of its column.
    """
    # Arrow names results <column>_<aggregation>, which may be the name of a key: under numbers they are told apart.
    numbers = {name: str(number) for number, name in enumerate(rows.column_names)}
    numbered = rows.rename_columns(list(numbers.values()))
    numbered = numbered.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    aggregations: list[Any] = [(_ROW, "min"), (_ROW, "max")]
    for column, aggregation in how.items():
        if aggregation not in ("first", "last"):
            aggregations.append((numbers[column], aggregation))
            if aggregation == "sum":
                numbered = _summable(numbered, numbers[column])
    groups = numbered.group_by([numbers[key] for key in layout.keys], use_threads=False).aggregate(aggregations)
    first, last = (groups.column(f"{_ROW}_{end}").to_numpy() for end in ("min", "max"))
    columns = []
    for name in rows.column_names:
        type_ = rows.schema.field(name).type
        aggregation = how.get(name, "")
        if name in layout.keys:
            columns.append(groups.column(numbers[name]))
        elif aggregation in ("first", "last"):
            columns.append(rows.column(name).take(pa.array(first if aggregation == "first" else last)))
        else:
            columns.append(_typed(groups.column(f"{numbers[name]}_{aggregation}"), type_, layout.name, name))
    return pa.Table.from_arrays(columns, schema=rows.schema), first, last


def _summable(rows: pa.Table, name: str) -> pa.Table:
    """Return ``rows`` with a column in a type that holds its sums: Arrow's sums wrap around."""
    column = rows.column(name)
    type_ = column.type
    types = pa.types
    wider: Any = None
    if types.is_integer(type_) and not _fits(column, 2**63):
        column = column.cast(pa.int64() if types.is_signed_integer(type_) else pa.uint64())
        wider = pa.decimal128(20, 0)
    elif types.is_decimal(type_):  # Arrow's sums have the type of their values before version 21
        narrow = types.is_decimal128(type_) and _fits(column, 10 ** (_DIGITS - 1 - type_.scale))
        wider = pa.decimal128(_DIGITS, type_.scale) if narrow else pa.decimal256(2 * _DIGITS, type_.scale)
    if wider is None:
        return rows
    return rows.set_column(rows.column_names.index(name), name, column.cast(wider))


def _fits(column: Any, limit: Any) -> bool:
    """Return whether no sum of values can reach the limit; of decimals to 28 digits, as Python multiplies them."""
    ends: Any = pc.min_max(column).as_py()
    return ends["min"] is None or max(abs(ends["min"]), abs(ends["max"])) * len(column) < limit


def _typed(column: Any, type_: Any, state: str, name: str) -> Any:
    if column.type == type_:
        return column
    try:
        return column.cast(type_)
    except pa.ArrowException as error:
        raise TableOverflowError(
            f"table state {state!r}: a sum of column {name!r} is out of the range of {type_} ({error}); "
            "declare a wider type"
        ) from error


#: Status of a stored row: as it was, replaced by a fresh row, removed by itself, removed with a range.
_AS_IT_WAS, _REPLACED, _REMOVED, _IN_RANGE = range(4)
#: A table with up to this many times the rows of a delta is merged as a whole; rows of larger ones are looked up.
_WHOLE = 2


class Overlay:
    """A table during a batch.

    Args:
        layout: Its columns.
        stored: The committed rows.
    """

    def __init__(self, layout: Layout, stored: StoredTable) -> None:
        self._layout = layout
        self._stored = stored
        self._status = np.zeros(stored.positions, dtype="int8")
        self._live = stored.num_rows
        self._fresh = layout.schema.empty_table()
        self._origin: Positions = np.empty(0, dtype="int64")
        self._sorted: Sorted | None = None
        self._ranges: list[tuple[Range, ...]] = []

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._live + self._fresh.num_rows

    # Reading ----------------------------------------------------------------------------------------------------

    def scan(self, predicate: Sequence[Range] | pc.Expression | None) -> pa.Table:
        """Return the rows for which a predicate holds, in no particular order."""
        _, table = self._select(predicate)
        return pa.concat_tables([table, self._fresh.filter(self._mask(predicate))])

    def lookup(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, in the order of ``keys``."""
        stored, fresh = self._find(keys)
        rows, places = [], []
        at: Any
        for positions, at in ((stored, self._rows_at), (fresh, self._fresh.take)):
            hits = np.flatnonzero(positions >= 0)
            rows.append(at(positions[hits]))
            places.append(hits)
        order: Any = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(rows).take(order)

    # Writing ----------------------------------------------------------------------------------------------------

    def merge(self, delta: pa.Table, how: Mapping[str, str]) -> None:
        """Merge rows, given in the layout's columns, into those with the same keys."""
        positions, old = self._candidates(delta)
        rows = pa.concat_tables([old, self._fresh, delta])
        merged, first, last = grouped(self._layout, rows, how)
        fresh_from, delta_from = old.num_rows, old.num_rows + self._fresh.num_rows
        touched = last >= delta_from
        if not touched.all():
            merged, first = merged.filter(touched), first[touched]
        origin = np.full(len(first), -1)
        was_stored = np.flatnonzero(first < fresh_from)
        origin[was_stored] = positions[first[was_stored]]
        self._set_status(origin[was_stored], _REPLACED)
        was_fresh = np.flatnonzero((first >= fresh_from) & (first < delta_from))
        replaced = first[was_fresh] - fresh_from
        origin[was_fresh] = self._origin[replaced]
        kept = np.ones(self._fresh.num_rows, dtype="bool")
        kept[replaced] = False
        self._set_fresh(
            pa.concat_tables([self._fresh.filter(kept), merged]), np.concatenate([self._origin[kept], origin])
        )

    def delete(self, keys: pa.Table) -> None:
        """Remove the rows with these keys."""
        stored, fresh = self._find(keys)
        self._set_status(np.unique(stored[stored >= 0]), _REMOVED)
        mask = np.zeros(self._fresh.num_rows, dtype="bool")
        mask[fresh[fresh >= 0]] = True
        self._remove_fresh(mask, None)

    def take(self, predicate: Sequence[Range] | pc.Expression | None) -> pa.Table:
        """Remove the rows for which a predicate holds, and return them."""
        positions, table = self._select(predicate)
        mask = self._mask(predicate)
        rows = pa.concat_tables([table, self._fresh.filter(mask)])
        ranges = None if isinstance(predicate, pc.Expression) else tuple(predicate or ())
        self._set_status(positions, _REMOVED if ranges is None else _IN_RANGE)
        self._remove_fresh(mask, ranges)
        if ranges is not None and len(positions):
            self._ranges.append(ranges)
        return rows

    # Inside -----------------------------------------------------------------------------------------------------

    def _candidates(self, delta: pa.Table) -> tuple[Positions, pa.Table]:
        """Return stored rows, at least those with keys that are in ``delta``."""
        if self._live <= _WHOLE * delta.num_rows:
            return self._select(None)
        keys = list(self._layout.keys)
        distinct = delta.select(keys).group_by(keys, use_threads=False).aggregate([])
        positions, _ = self._find(distinct, fresh=False)
        positions = positions[positions >= 0]
        return positions, self._rows_at(positions)

    def _select(self, predicate: Sequence[Range] | pc.Expression | None) -> tuple[Positions, pa.Table]:
        """Return the stored rows for which a predicate holds, with their positions."""
        expression, ranges = (predicate, None) if isinstance(predicate, pc.Expression) else (None, predicate)
        places, tables = [np.empty(0, dtype="int64")], [self._layout.schema.empty_table()]
        for positions, part in self._stored.select(ranges):
            table = self._layout.completed(part)
            mask = self._status[positions] == _AS_IT_WAS
            if expression is not None:
                mask &= mask_of(expression, table)
            if not mask.all():
                positions, table = positions[mask], table.filter(mask)
            places.append(positions)
            tables.append(table)
        return np.concatenate(places), pa.concat_tables(tables)

    def _mask(self, predicate: Sequence[Range] | pc.Expression | None) -> Any:
        return mask_of(predicate if predicate is not None else (), self._fresh)

    def _find(self, keys: pa.Table, *, fresh: bool = True) -> tuple[Positions, Positions]:
        """Return for each key its stored row and its fresh row, −1 if there is none; at most one of them exists."""
        names = self._layout.keys
        hashes = row_hashes(keys, names)
        order = np.argsort(hashes, kind="stable")
        ordered = Sorted(hashes[order], keys.select(names).take(order))
        stored, new = np.full(len(order), -1), np.full(len(order), -1)
        positions = self._stored.find(ordered)
        if len(self._status):
            positions[(positions >= 0) & (self._status[positions] != _AS_IT_WAS)] = -1
        stored[order] = positions
        if fresh:
            new[order] = self._in_hash_order().find(ordered.hashes, ordered.table)
        return stored, new

    def _in_hash_order(self) -> Sorted:
        """Return the fresh rows, put in the order of their hashes."""
        if self._sorted is None:
            hashes = row_hashes(self._fresh, self._layout.keys)
            order = np.argsort(hashes, kind="stable")
            self._fresh, self._origin = self._fresh.take(order), self._origin[order]
            self._sorted = Sorted(hashes[order], self._fresh)
        return self._sorted

    def _rows_at(self, positions: Positions) -> pa.Table:
        """Return the stored rows at positions."""
        table = self._stored.at(positions)
        return self._layout.schema.empty_table() if table is None else self._layout.completed(table)

    def _set_status(self, positions: Positions, status: int) -> None:
        """Set the status of unchanged stored rows."""
        self._status[positions] = status
        self._live -= len(positions)

    def _set_fresh(self, table: pa.Table, origin: Positions) -> None:
        self._fresh, self._origin, self._sorted = table, origin, None

    def _remove_fresh(self, mask: Any, ranges: tuple[Range, ...] | None) -> None:
        """Remove fresh rows. The stored rows that they replaced are removed with the ranges if they are in them."""
        if not mask.any():
            return
        origin = self._origin[mask]
        origin = origin[origin >= 0]
        self._status[origin] = _REMOVED
        if ranges is not None and len(origin):
            covered: Any = slice(None)
            if not all(column in self._layout.keys for column, _, _ in ranges):
                covered = mask_of(ranges, self._rows_at(origin))
            self._status[origin[covered]] = _IN_RANGE
            self._ranges.append(ranges)
        self._set_fresh(self._fresh.filter(~mask), self._origin[~mask])

    # At the end of the batch ------------------------------------------------------------------------------------

    def net_change(self, state_id: int, *, spell_out: bool) -> tuple[TableDelta, pa.Table] | None:
        """Return the changes of the batch, with the stored rows that it removes or overwrites.

        Args:
            state_id: Id of the state.
            spell_out: Whether rows that were removed with a range are given as keys too, and no ranges.
        """
        new = self._in_hash_order().table
        touched = np.flatnonzero(self._status)
        if not len(touched) and not new.num_rows:
            return None
        old = self._rows_at(touched)
        status = self._status[touched]
        by_key = status == _REMOVED
        if spell_out:
            by_key |= status == _IN_RANGE
        ranges = () if spell_out or not bool((status == _IN_RANGE).any()) else tuple(dict.fromkeys(self._ranges))
        removed = old.select(self._layout.keys).filter(by_key) if by_key.any() else None
        return TableDelta(state_id, self._layout.keys, ranges, removed, new if new.num_rows else None), old
