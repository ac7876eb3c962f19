"""Merging rows into stored rows: one grouping over both, the stored ones first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.errors import StateAccessError, TableOverflowError
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
