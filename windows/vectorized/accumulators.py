"""Aggregates over whole columns whose accumulators are numbers and values: an accumulator is some columns.

`Accumulator` is the form of an aggregate on this path. Its *parts* are columns with one row per group. They are
computed from rows, merged with other parts of the same groups, and give the results. The results equal those of the row
path: integers and decimals exactly, floats except for the order of additions.

Sums of integers are two columns, ``high`` and ``low``: the sum is high · 2^32 + low. Neither overflows for 2^31 rows,
so a sum is exact. As on the row path, it is refused only if the result does not fit into 64 bits.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.codec.tagged import decode_tagged, encode_tagged
from keyed.extending import snapshot
from keyed.windows.aggregates import decimal_mean, decimal_of, mean_type
from keyed.windows.vectorized.row_groups import Groups, pc, pick, plain_column, reduced

Parts = list[Any]
_LOW = 2**32 - 1
_EXACT = 2**53


@attrs.frozen(eq=False)
class BatchRows:
    """The rows to be added.

    Attributes:
        table: Their columns.
        times: Their timestamps in milliseconds, int64; ``None`` if they have none.
    """

    table: Any
    times: Any

    def column(self, name: str) -> Any:
        """Return a column as one array."""
        return plain_column(self.table.column(name))


class Accumulator:
    """An aggregate of a column on this path.

    Args:
        column: The column.
        parts: The parts.

    Attributes:
        parts: Name and column type of each part.
        operations: The operation with which a state table merges each part, where there is one.
        neutral: The replacement of null for each part, by default null itself. Parts are null if the aggregate was
            added while windows were open.
    """

    parts: tuple[tuple[str, str], ...]
    operations: tuple[str, ...] | None = None
    neutral: tuple[Any, ...] = ()

    def __init__(self, column: Any, *parts: tuple[str, str]) -> None:
        self._column = column
        self.parts = parts

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        """Return the parts of rows; each group has at least one row."""
        raise NotImplementedError

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        """Return parts of the same group merged; earlier ones come first."""
        raise NotImplementedError

    def result(self, parts: Parts) -> Any:
        """Return the results; by default the first part.

        Raises:
            OverflowError: A sum of integers does not fit into 64 bits.
        """
        return parts[0]


class _Simple(Accumulator):
    """Parts that are merged independently of each other."""

    operations: tuple[str, ...]

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        return [reduced(part, groups, how) for part, how in zip(parts, self.operations, strict=True)]


class CountColumn(_Simple):
    """Number of rows, or of values that are not null."""

    operations = ("sum",)
    neutral = (0,)

    def __init__(self, column: str | None) -> None:
        super().__init__(column, ("count", "bigint"))

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        if self._column is not None:
            column = rows.column(self._column)
            if column.null_count:
                groups = groups.of(column.is_valid().to_numpy(zero_copy_only=False))
        return [pa.array(groups.sizes())]


class SumColumn(_Simple):
    """Sum of integers, floats or decimals.

    Args:
        column: The column.
        type_: Its type.
        name: The aggregate's representation, for messages.
    """

    def __init__(self, column: str, type_: str, name: str) -> None:
        self._name = name
        self.is_integer = type_.endswith("int")
        if self.is_integer:
            super().__init__(column, ("high", "bigint"), ("low", "bigint"))
        else:
            is_decimal = type_.startswith("decimal")
            super().__init__(column, ("sum", f"decimal(38,{decimal_of(type_)[1]})" if is_decimal else "double"))
        self.operations = ("sum",) * len(self.parts)

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        column = rows.column(self._column)
        if self.is_integer:
            return _limbs(column.cast(pa.int64()), groups)
        wide = pa.decimal128(38, column.type.scale) if pa.types.is_decimal(column.type) else pa.float64()
        return [reduced(column.cast(wide), groups, "sum")]

    def result(self, parts: Parts) -> Any:
        if not self.is_integer:
            return parts[0]
        high, low = whole_limbs(parts)
        is_over = pc.or_(pc.less(high, -(2**31)), pc.greater_equal(high, 2**31))
        if pc.any(is_over).as_py():
            at = pc.index(is_over, True).as_py()
            total = (high[at].as_py() << 32) + low[at].as_py()
            raise OverflowError(f"{self._name}: the sum {total} does not fit into 64 bits; sum a decimal or a float")
        return pc.add(pc.shift_left(high, 32), low)


class MeanColumn(_Simple):
    """Arithmetic mean: a sum and a count.

    Args:
        column: The column.
        type_: Its type.
        name: The aggregate, for messages.
        mean: Type of the mean; ``None`` if it follows from that of the column.
    """

    def __init__(self, column: str, type_: str, name: str, mean: str | None) -> None:
        self._name = name
        self._type = mean or mean_type(*decimal_of(type_))
        self._count = CountColumn(column)
        self._sum = SumColumn(column, type_, name)
        self.parts = self._sum.parts + self._count.parts
        self.operations = self._sum.operations + self._count.operations
        self.neutral = (None,) * len(self._sum.parts) + self._count.neutral

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        return self._sum.of_rows(rows, groups) + self._count.of_rows(rows, groups)

    def result(self, parts: Parts) -> Any:
        *total, count = parts
        if pa.types.is_decimal(total[0].type):
            pairs = zip(total[0].to_pylist(), count.to_pylist(), strict=True)
            means = [None if total is None else decimal_mean(total, n, self._type, self._name) for total, n in pairs]
            return pa.array(means, pa.decimal128(*decimal_of(self._type)))
        if not self._sum.is_integer:
            return pc.divide(total[0], count.cast(pa.float64()))
        high, low = whole_limbs(total)
        exact = pc.and_(pc.less(high, _EXACT >> 32), pc.greater_equal(high, -(_EXACT >> 32)))
        if pc.all(exact).as_py():
            return pc.divide(pc.add(pc.shift_left(high, 32), low).cast(pa.float64()), count.cast(pa.float64()))
        # Beyond 53 bits only Python divides integers with one rounding, as the row path does.
        triples = zip(high.to_pylist(), low.to_pylist(), count.to_pylist(), strict=True)
        return pa.array([None if h is None else ((h << 32) + lo) / n for h, lo, n in triples], pa.float64())


class Moments(Accumulator):
    """Number, mean and sum of squared deviations: for variance and standard deviation.

    Args:
        column: The column.
        sample: Divide by n − 1.
        root: Return the root.
    """

    neutral = (0, 0.0, 0.0)

    def __init__(self, column: str, *, sample: bool, root: bool) -> None:
        super().__init__(column, ("count", "bigint"), ("mean", "double"), ("m2", "double"))
        self._sample = sample
        self._root = root

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        column = rows.column(self._column)
        if column.null_count:
            groups = groups.of(column.is_valid().to_numpy(zero_copy_only=False))
            column = column.drop_null()
        values = column.cast(pa.float64(), safe=False).to_numpy()
        ones = np.ones(len(values))
        return _moments(groups, ones, values, np.zeros(len(values)))

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        count, mean, m2 = (part.to_numpy() for part in parts)
        return _moments(groups, count.astype(np.float64), mean, m2)

    def result(self, parts: Parts) -> Any:
        count, _, m2 = parts
        divisor = pc.subtract(count, 1) if self._sample else count
        divisor = pc.if_else(pc.greater(divisor, 0), divisor, None)
        variance = pc.divide(m2, divisor.cast(pa.float64()))
        return pc.sqrt(variance) if self._root else variance


class Extreme(_Simple):
    """Least or greatest value.

    Args:
        column: The column.
        type_: Its type.
        operation: ``min`` or ``max``.
    """

    def __init__(self, column: str, type_: str, operation: str) -> None:
        super().__init__(column, (operation, type_))
        self.operations = (operation,)

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        return self.merged([rows.column(self._column)], groups)


class Timed(Accumulator):
    """First or latest value by time; of equal times the first or the last to arrive.

    Args:
        column: The column.
        type_: Its type.
        latest: True for the latest value, false for the first.
        ignore_nulls: Null is no value.
    """

    def __init__(self, column: str, type_: str, *, latest: bool, ignore_nulls: bool) -> None:
        super().__init__(column, ("value", type_), ("time", "bigint"))
        self._latest = latest
        self._ignore_nulls = ignore_nulls
        #: A time that loses to every other.
        self._never = MIN_TIMESTAMP if latest else MAX_TIMESTAMP
        self.neutral = (None, self._never)

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        column, times = rows.column(self._column), rows.times
        if self._ignore_nulls and column.null_count:
            times = np.where(column.is_valid().to_numpy(zero_copy_only=False), times, self._never)
        return self.merged([column, pa.array(times)], groups)

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        times = parts[1].to_numpy()
        extreme = np.full(groups.count, self._never)
        (np.maximum if self._latest else np.minimum).at(extreme, groups.ids, times)
        candidates = np.flatnonzero(times == extreme[groups.ids])
        chosen = groups.of(candidates)
        return pick(parts, candidates[chosen.last_rows() if self._latest else chosen.first_rows()])


class Arrived(Accumulator):
    """First or latest value by arrival.

    Args:
        column: The column.
        type_: Its type.
        latest: True for the latest value, false for the first.
        ignore_nulls: Null is no value.
    """

    neutral = (None, False)

    def __init__(self, column: str, type_: str, *, latest: bool, ignore_nulls: bool) -> None:
        super().__init__(column, ("value", type_), ("there", "boolean"))
        self._latest = latest
        self._ignore_nulls = ignore_nulls

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        column = rows.column(self._column)
        is_present = column.is_valid() if self._ignore_nulls else pa.repeat(True, len(groups.ids))
        return self.merged([column, is_present], groups)

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        present = np.flatnonzero(parts[1].to_numpy(zero_copy_only=False))
        chosen = groups.of(present)
        # Where no value is there, any row has a null.
        rows = groups.last_rows()
        rows[chosen.ids[::-1] if not self._latest else chosen.ids] = present[::-1] if not self._latest else present
        return pick(parts, rows)


class Ranked(Accumulator):
    """The value of one column where another is greatest or least; for ties, the least value, with null last.

    Args:
        column: The value's column.
        type_: Its type.
        by: The rank's column.
        by_type: Its type.
        operation: ``max`` or ``min``.
    """

    def __init__(self, column: str, type_: str, by: str, by_type: str, operation: str) -> None:
        super().__init__(column, ("value", type_), ("rank", by_type))
        self._by = by
        self._operation = operation

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        return self.merged([rows.column(self._column), rows.column(self._by)], groups)

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        values, ranks = parts
        extreme = reduced(ranks, groups, self._operation)
        (best,) = pick([extreme], groups.ids)
        is_best = pc.equal(ranks, best)
        if pa.types.is_floating(ranks.type):
            # The best value of a group is NaN if it has no other values.
            is_best = pc.or_(is_best, pc.is_nan(best))
        candidates = np.flatnonzero(is_best.fill_null(False).to_numpy(zero_copy_only=False))
        return [reduced(pick([values], candidates)[0], groups.of(candidates), "min"), extreme]


def whole_limbs(parts: Sequence[Any]) -> tuple[Any, Any]:
    """Return ``high`` and ``low`` of the same sums, normalized to low in [0, 2^32)."""
    high, low = parts
    return pc.add(high, pc.shift_right(low, 32)), pc.bit_wise_and(low, _LOW)


def _limbs(column: Any, groups: Groups) -> Parts:
    """Return the sums of integers, exactly."""
    bounds = pc.min_max(column).as_py()
    most = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    if most * len(column) < 2**63:
        sums = reduced(column, groups, "sum")
        return [pc.shift_right(sums, 32), pc.bit_wise_and(sums, _LOW)]
    return [
        reduced(pc.shift_right(column, 32), groups, "sum"),
        reduced(pc.bit_wise_and(column, _LOW), groups, "sum"),
    ]


def _moments(groups: Groups, counts: Any, means: Any, m2: Any) -> Parts:
    """Return the moments of groups from those of their parts; 0 for a group without values.

    The deviations of the parts' means from the group's mean are added up (Chan's formula for many parts at once).
    """

    def sums(values: Any) -> Any:
        # Without rows the counts are integers, with or without weights.
        return np.bincount(groups.ids, weights=values, minlength=groups.count).astype(np.float64, copy=False)

    count = sums(counts)
    # Sums of values far from 0 lose digits, so the values are first shifted by a value of their group.
    origin = np.zeros(groups.count)
    origin[groups.ids[counts > 0]] = means[counts > 0]
    with np.errstate(invalid="ignore", over="ignore"):
        near = means - origin[groups.ids]
        near_mean = sums(counts * near) / np.maximum(count, 1)
        deviation = near - near_mean[groups.ids]
        spread = sums(m2 + counts * deviation * deviation)
    return [pa.array(count.astype(np.int64)), pa.array(origin + near_mean), pa.array(spread)]


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
