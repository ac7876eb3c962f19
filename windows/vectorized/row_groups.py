"""Rows in groups: each row gets the number of its group, and columns are reduced by these numbers.

Numbers are dense, from 0, and depend on the rows alone. Keys are compared as Arrow compares them, null being equal to
null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute

#: The published types of its functions do not accept plain numbers.
pc: Any = pyarrow.compute

#: Up to this many possible groups per row, groups are numbered by counting; beyond it by hashing.
_SPARSE = 4
_MOST_CODES = 2**62


@attrs.frozen(eq=False)
class Groups:
    """The groups of some rows.

    Attributes:
        ids: The number of each row's group, int64.
        count: Number of groups.
    """

    ids: Any
    count: int

    def first_rows(self) -> Any:
        """Return the position of each group's first row; each group has one."""
        # Of several writes to one position, the last one is kept.
        first = np.empty(self.count, dtype=np.int64)
        first[self.ids[::-1]] = np.arange(len(self.ids) - 1, -1, -1)
        return first

    def last_rows(self) -> Any:
        """Return the position of each group's last row; each group has one."""
        last = np.empty(self.count, dtype=np.int64)
        last[self.ids] = np.arange(len(self.ids))
        return last

    def sizes(self) -> Any:
        """Return the number of rows of each group."""
        return np.bincount(self.ids, minlength=self.count)

    def of(self, rows: Any) -> Groups:
        """Return the same groups over some of the rows; then a group may have no row.

        Args:
            rows: Positions, or a mask.
        """
        return Groups(self.ids[rows], self.count)


def array_of(column: Any) -> Any:
    """Return a column as one Arrow array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def plain_column(column: Any) -> Any:
    """Return a column as one array with the type that Spark's columns of its kind have."""
    column = array_of(column)
    types, type_ = pa.types, column.type
    if types.is_dictionary(type_):
        return plain_column(column.dictionary_decode())
    if types.is_large_string(type_) or types.is_string_view(type_):
        return column.cast(pa.string())
    if types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return column.cast(pa.binary())
    if types.is_timestamp(type_):
        return column.cast(pa.timestamp("us", "UTC" if type_.tz else None), safe=False)
    if types.is_decimal(type_):
        return column.cast(pa.decimal128(type_.precision, type_.scale))
    if types.is_date64(type_):
        return column.cast(pa.date32())
    return column


def integers(column: Any) -> Any:
    """Return an integer column without nulls as numpy int64."""
    return array_of(column).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def concatenated(columns: Sequence[Any]) -> Any:
    """Return arrays one after the other."""
    return columns[0] if len(columns) == 1 else pa.concat_arrays(list(columns))


def pick(columns: Sequence[Any], rows: Any) -> list[Any]:
    """Return the values of columns at positions; null where the position is negative."""
    positions = pa.array(rows, mask=rows < 0)
    return [column.take(positions) for column in columns]


def ordered(numbers: Any, times: Any) -> Any:
    """Return the positions of rows by number and then time, both int64; rows with both equal keep their order."""
    if not len(times):
        return np.arange(0)
    least = int(times.min())
    width = int(times.max()) - least + 1
    if width * (int(numbers.max()) + 1) >= _MOST_CODES:
        return np.lexsort((times, numbers))
    # One sort is several times as fast as two, and faster still if rows arrive in order.
    return np.argsort(numbers * width + (times - least), kind="stable")


def grouped(columns: Sequence[Any]) -> Groups:
    """Return the groups of rows with equal values in all columns.

    Args:
        columns: Arrow arrays, or numpy arrays of int64; at least one.
    """
    codes, count = _codes(columns[0])
    for column in columns[1:]:
        more, size = _codes(column)
        if count * size >= _MOST_CODES:
            codes, count = _dense(codes, count)
        codes, count = codes * size + more, count * size
    return Groups(*_dense(codes, count))


def _codes(column: Any) -> tuple[Any, int]:
    """Return a number for each value, equal for equal values, and a limit of them."""
    if isinstance(column, np.ndarray):
        if not len(column):
            return column, 1
        least, most = int(column.min()), int(column.max())
        if most - least < _SPARSE * len(column):
            return column - least, most - least + 1
        column = pa.array(column)
    encoded = column.dictionary_encode(null_encoding="encode")
    return integers(encoded.indices), max(1, len(encoded.dictionary))


def _dense(codes: Any, count: int) -> tuple[Any, int]:
    """Return the same numbers without gaps."""
    if count > _SPARSE * len(codes) + 1024:
        encoded = pa.array(codes).dictionary_encode()
        return integers(encoded.indices), len(encoded.dictionary)
    is_used = np.zeros(count, dtype=bool)
    is_used[codes] = True
    numbers = np.cumsum(is_used) - 1
    return numbers[codes], int(is_used.sum())


def reduced(column: Any, groups: Groups, operation: str) -> Any:
    """Return one value per group; null for a group without values.

    Sums are added row by row in the order of the rows, those of integers modulo 2^64.

    Args:
        column: An Arrow array.
        groups: Its groups.
        operation: ``sum``, ``min`` or ``max``. All ignore nulls; the last two ignore NaN if there is another value.

    Raises:
        OverflowError: A sum of decimals has more digits than its type.
    """
    is_plain = pa.types.is_int64(column.type) or pa.types.is_float64(column.type)
    if operation == "sum" and is_plain and column.null_count == 0 and groups.sizes().all():
        # Several times as fast as Arrow.
        sums = np.zeros(groups.count, dtype=column.type.to_pandas_dtype())
        with np.errstate(invalid="ignore", over="ignore"):
            np.add.at(sums, groups.ids, column.to_numpy())
        return pa.array(sums)
    if operation == "sum" and pa.types.is_decimal128(column.type) and not _sums_fit(column):
        return _checked_sums(column, groups)
    if operation != "sum" and pa.types.is_floating(column.type):
        is_nan = pc.is_nan(column).fill_null(False)
        if pc.any(is_nan).as_py():
            # If all values are NaN, older versions of Arrow return an infinity.
            nan = pa.scalar(np.nan, column.type)
            numbers = reduced(pc.if_else(is_nan, pa.scalar(None, column.type), column), groups, operation)
            has_nan = np.zeros(groups.count, dtype=bool)
            has_nan[groups.ids[is_nan.to_numpy(zero_copy_only=False)]] = True
            return pc.if_else(pc.and_(pc.is_null(numbers), pa.array(has_nan)), nan, numbers)
    table = pa.table([pa.array(groups.ids), column], names=["group", "value"])
    grouping: Any = table.group_by("group", use_threads=False)
    columns = grouping.aggregate([("value", operation)])
    place = np.full(groups.count, -1, dtype=np.int64)
    place[integers(columns["group"])] = np.arange(columns.num_rows)
    return pick([array_of(columns[f"value_{operation}"])], place)[0]


def _sums_fit(column: Any) -> bool:
    """Return true if no sum of decimals can have more than 38 digits, beyond which Arrow's sums wrap around."""
    ends = pc.min_max(column).as_py()
    # One digit less, because Python multiplies decimals with 28 digits.
    return ends["min"] is None or max(abs(ends["min"]), abs(ends["max"])) * len(column) < 10 ** (37 - column.type.scale)


def _checked_sums(column: Any, groups: Groups) -> Any:
    """Return the sums of decimals, in a wider type and back.

    Raises:
        OverflowError: One does not fit.
    """
    sums = reduced(column.cast(pa.decimal256(76, column.type.scale)), groups, "sum")
    try:
        return sums.cast(column.type)
    except pa.ArrowInvalid as error:
        raise OverflowError(
            f"a sum of decimals has more than {column.type.precision} digits ({error}); "
            "sum decimals with fewer digits or a float"
        ) from error
