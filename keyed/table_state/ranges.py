"""Predicates over the rows of a table: ranges of integers, which are data and can skip rows unread, or expressions.

A range is ``(column, least, greatest)``, both included, over the integer that an integer, date or timestamp column
holds; several of them must all hold. That is what a removed range is in the log. Null is in no range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.content.blocks import Range
from keyed.errors import StateAccessError

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_LEAST, _GREATEST = -(2**63), 2**63 - 1
_PER_MILLISECOND = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_OPERATORS = {"<": pc.less, "<=": pc.less_equal, "==": pc.equal, ">=": pc.greater_equal, ">": pc.greater}


def parse(predicate: Any, schema: pa.Schema, where: str) -> list[Range] | pc.Expression:
    """Return a user's predicate in normal form.

    Args:
        predicate: A comparison, a list of comparisons, or an expression.
        schema: The columns that it may name.
        where: For messages.

    Raises:
        StateAccessError: It is something else, names another column, or compares with a value of another type.
    """
    if isinstance(predicate, pc.Expression):
        return predicate
    comparisons = [predicate] if isinstance(predicate, tuple) else predicate
    if not isinstance(comparisons, list) or not comparisons:
        raise _refused(predicate, where)
    ranges: list[Range] = []
    expression: Any = None
    for comparison in comparisons:
        if not isinstance(comparison, tuple) or len(comparison) != 3 or comparison[1] not in _OPERATORS:
            raise _refused(predicate, where)
        column, _, value = comparison
        if column not in schema.names:
            raise StateAccessError(f"{where}: predicate {predicate!r}: there is no column {column!r}")
        type_: Any = schema.field(column).type
        try:
            operator, scalar = _limit(comparison[1], value, type_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StateAccessError(
                f"{where}: predicate {predicate!r}: {value!r} is not of type {type_}: {error}"
            ) from error
        if not scalar.is_valid:
            raise StateAccessError(f"{where}: predicate {predicate!r} compares with null, which never holds")
        term = _OPERATORS[operator](pc.field(column), scalar)
        expression = term if expression is None else expression & term
        if _is_range_type(type_):
            ranges.append((column, *_bounds(operator, scalar.as_py() if pa.types.is_integer(type_) else scalar.value)))
    return ranges if len(ranges) == len(comparisons) else expression


def _limit(operator: str, value: Any, type_: Any) -> tuple[str, Any]:
    """Return a comparison with a value in the type of the column.

    Integers are milliseconds where the column holds timestamps, as times are everywhere. One beyond what the column can
    hold becomes the comparison with the end of its range that holds for the same rows: a limit such as ``watermark -
    60_000`` is beyond 64 bits before the first row.

    Raises:
        ArrowException, TypeError, ValueError, OverflowError: It is no value of the type.
    """
    if isinstance(value, pa.Scalar):
        if not pa.types.is_integer(value.type) or not value.is_valid:
            return operator, value.cast(type_)
        value = value.as_py()
    if not isinstance(value, Integral) or isinstance(value, bool):
        return operator, pa.scalar(value, type_)
    number, least, greatest = int(value), _LEAST, _GREATEST
    if pa.types.is_timestamp(type_):
        if type_.tz is None or type_.unit not in _PER_MILLISECOND:
            raise TypeError("an integer is a number of milliseconds since the epoch; give a datetime")
        number *= _PER_MILLISECOND[type_.unit]
    elif pa.types.is_signed_integer(type_):
        least, greatest = -(1 << (type_.bit_width - 1)), (1 << (type_.bit_width - 1)) - 1
    elif pa.types.is_integer(type_):
        least, greatest = 0, (1 << type_.bit_width) - 1
    else:
        return operator, pa.scalar(number, type_)
    if number < least:
        operator, number = (">=" if operator in (">", ">=") else "<"), least
    elif number > greatest:
        operator, number = ("<=" if operator in ("<", "<=") else ">"), greatest
    return operator, pa.scalar(number, type_)


def _refused(predicate: Any, where: str) -> StateAccessError:
    return StateAccessError(
        f"{where}: predicate {predicate!r} is neither a pyarrow.compute.Expression nor (column, operator, value), with "
        f"one of {' '.join(_OPERATORS)}, nor a list of those"
    )


def _is_range_type(type_: Any) -> bool:
    types = pa.types
    signed = types.is_signed_integer(type_) or (types.is_unsigned_integer(type_) and type_.bit_width < 64)
    return signed or types.is_timestamp(type_) or types.is_date(type_)


def _integers(column: Any) -> Any:
    """Return a range column as an array of integers."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_integer(array.type):
        return array
    return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())


def _bounds(operator: str, value: int) -> tuple[int, int]:
    if (operator == "<" and value == _LEAST) or (operator == ">" and value == _GREATEST):
        return 1, 0
    return {
        "<": (_LEAST, value - 1),
        "<=": (_LEAST, value),
        "==": (value, value),
        ">=": (value, _GREATEST),
        ">": (value + 1, _GREATEST),
    }[operator]


def mask_of(predicate: Sequence[Range] | pc.Expression, table: pa.Table) -> Mask:
    """Return a mask of the rows for which a predicate holds."""
    if isinstance(predicate, pc.Expression):
        rows = table.append_column("__keyed_row", pa.array(np.arange(table.num_rows)))
        mask: Mask = np.zeros(table.num_rows, dtype="bool")
        mask[rows.filter(predicate).column("__keyed_row").to_numpy()] = True
        return mask
    mask = np.ones(table.num_rows, dtype="bool")
    for column, least, greatest in predicate:
        if column not in table.column_names:
            # Added since these rows were written, so it is null in them.
            return np.zeros(table.num_rows, dtype="bool")
        integers = _integers(table.column(column))
        numbers = integers.fill_null(0).to_numpy() if integers.null_count else integers.to_numpy()
        if greatest < _GREATEST:
            mask &= numbers <= greatest
        if least > _LEAST:
            mask &= numbers >= least
        if integers.null_count:
            mask &= integers.is_valid().to_numpy(zero_copy_only=False)
    return mask


def bounds_of(table: pa.Table) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest integer of each range column that has one."""
    bounds = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _is_range_type(column.type):
            ends: Any = pc.min_max(_integers(column)).as_py()
            if ends["min"] is not None:
                bounds[name] = (ends["min"], ends["max"])
    return bounds


def meets(ranges: Sequence[Range], bounds: Mapping[str, tuple[int, int]]) -> bool:
    """Return whether rows with these bounds can be in the ranges."""
    for column, least, greatest in ranges:
        ends = bounds.get(column)
        if ends is None or ends[1] < least or ends[0] > greatest:
            return False
    return True
