"""Aggregates that keep values: lists, sets, the first and the latest, the k greatest, the value at an extreme.

The most frequent values are counted exactly, or by a sketch of bounded size for columns with many values.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there
# ruff: noqa: PLR0124 - only NaN differs from itself

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

from keyed import Row
from keyed.errors import DefinitionError
from keyed.windows.aggregates import Column, ColumnAggregate, kept_getter
from keyed.windows.window import check_count


class CollectList(ColumnAggregate):
    """All values in order of arrival.

    The list is one value of state, written again in each batch that adds to it: for large windows use ``.process``,
    which appends.

    Args:
        column: The values.
        ignore_nulls: False keeps nulls.
        limit: Keep this number of values, the first ones; by default all.
        type: As of all aggregates.
    """

    commutative = False
    _keeps = True
    _result = "array<{}>"

    def __init__(
        self, column: Column = None, *, ignore_nulls: bool = True, limit: int | None = None, type: str | None = None
    ) -> None:
        super().__init__(column, type=type)
        self.ignore_nulls = ignore_nulls
        self.limit = limit

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if (value is not None or not self.ignore_nulls) and (self.limit is None or len(accumulator) < self.limit):
            accumulator.append(value)
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return (a + b)[: self.limit]

    def get_result(self, accumulator: Any) -> Any:
        return list(accumulator)


class CollectSet(ColumnAggregate):
    """The distinct values, at most ``limit``, in ascending order. NaN is one value, the last; −0.0 is 0.0."""

    _keeps = True
    _result = "array<{}>"

    def __init__(self, column: Column = None, *, limit: int | None = None, type: str | None = None) -> None:
        super().__init__(column, type=type)
        self.limit = limit

    def create_accumulator(self) -> Any:
        return set()

    def add(self, value: Any, accumulator: Any) -> Any:
        return self._with(accumulator, self._value(value))

    def _with(self, accumulator: Any, value: Any) -> Any:
        if value.__class__ is float:
            # Zeros become the positive one. Sets compare NaN by identity, and a stored NaN is another object.
            if value != value and any(other != other for other in accumulator):
                return accumulator
            value += 0.0
        if value is not None and (self.limit is None or len(accumulator) < self.limit):
            accumulator.add(value)
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        if self.limit is not None:
            for value in CollectSet.get_result(self, b):
                self._with(a, value)
            return a
        if any(value != value for value in a):
            b = {value for value in b if value == value}
        return a | b

    def get_result(self, accumulator: Any) -> Any:
        try:
            return sorted(accumulator, key=lambda value: (value != value, value))
        except TypeError:  # values of several types
            return sorted(accumulator, key=lambda value: (type(value).__name__, ascii(value)))

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return set(part("values") or ())


class CountDistinct(CollectSet):
    """Exact number of distinct values, all of which it keeps."""

    _result = "bigint"

    def get_result(self, accumulator: Any) -> Any:
        return len(accumulator)


class First(ColumnAggregate):
    """The first value by arrival, null included.

    Args:
        column: The value.
        by_time: By timestamps; of equal ones, the first to arrive.
        ignore_nulls: Skip nulls.
        type: As of all aggregates.
    """

    commutative = False
    _keeps = True

    def __init__(
        self, column: Column = None, *, by_time: bool = False, ignore_nulls: bool = False, type: str | None = None
    ) -> None:
        super().__init__(column, type=type)
        self.by_time = by_time
        self.ignore_nulls = ignore_nulls
        self.timed = by_time

    def add(self, value: Any, accumulator: Any) -> Any:
        if accumulator is not None:
            return accumulator
        cell = self._value(value)
        return None if cell is None and self.ignore_nulls else [cell]

    def add_at(self, value: Any, timestamp: int, accumulator: Any) -> Any:
        if accumulator is None or timestamp < accumulator[1]:
            cell = self._value(value)
            return accumulator if cell is None and self.ignore_nulls else [cell, timestamp]
        return accumulator

    def _merged(self, a: Any, b: Any) -> Any:
        return b if self.by_time and b[1] < a[1] else a

    def get_result(self, accumulator: Any) -> Any:
        return None if accumulator is None else accumulator[0]

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        if self.by_time:
            return None if part("time") is None else [part("value"), part("time")]
        return [part("value")] if part("there") else None


class Latest(First):
    """The last value by arrival, or by time (of equal timestamps, the last to arrive). Parameters as of `First`."""

    def add(self, value: Any, accumulator: Any) -> Any:
        cell = self._value(value)
        return accumulator if cell is None and self.ignore_nulls else [cell]

    def add_at(self, value: Any, timestamp: int, accumulator: Any) -> Any:
        if accumulator is None or timestamp >= accumulator[1]:
            cell = self._value(value)
            return accumulator if cell is None and self.ignore_nulls else [cell, timestamp]
        return accumulator

    def _merged(self, a: Any, b: Any) -> Any:
        return a if self.by_time and b[1] < a[1] else b


class TopK(ColumnAggregate):
    """The k values with the greatest rank, as a list.

    Order: rank descending (NaN last), then value ascending (NaN, then null last); equal values are each counted. So
    neither order nor batches matter. Elements with a null rank are ignored. The rank ``by`` is a column or a function
    of the element, by default the value.
    """

    _keeps = True
    _result = "array<{}>"

    def __init__(self, k: int, column: Column = None, *, by: Column = None, type: str | None = None) -> None:
        super().__init__(column, type=type)
        self.k = check_count(k, "k", "value")
        self.by = column if by is None else by
        self._rank = kept_getter(self.by)

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        rank = self._rank(value)
        if rank is None or (len(accumulator) == self.k and rank < accumulator[-1][0]):
            return accumulator
        return self._best([*accumulator, (rank, self._value(value))])

    def merge(self, a: Any, b: Any) -> Any:
        return self._best([*a, *b])

    def get_result(self, accumulator: Any) -> Any:
        return [value for _, value in accumulator]

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        top = part("top")
        ranks, values = (part("ranks"), part("values")) if top is None else (top, top)
        return list(zip(ranks or (), values or (), strict=True))

    def _best(self, pairs: list[Any]) -> list[Any]:
        # Two stable sorts, because ranks that descend need not be numbers.
        if self.by is not self.column:
            pairs.sort(key=lambda pair: (pair[1] is None, pair[1] != pair[1], pair[1]))
        pairs.sort(key=lambda pair: (pair[0] == pair[0], pair[0]), reverse=True)
        return pairs[: self.k]


class ArgMax(ColumnAggregate):
    """The value of ``column`` where ``by`` is greatest; of ties, the least value.

    Elements with a null ``by`` are ignored; NaN counts only without other values.
    """

    _keeps = True
    _greatest = True

    def __init__(self, column: Column, by: Column, *, type: str | None = None) -> None:
        super().__init__(column, type=type)
        self.by = by
        self._rank = kept_getter(by)

    def add(self, value: Any, accumulator: Any) -> Any:
        rank = self._rank(value)
        if rank is None:
            return accumulator
        pair = (rank, self._value(value))
        return pair if accumulator is None else self._merged(accumulator, pair)

    def get_result(self, accumulator: Any) -> Any:
        return None if accumulator is None else accumulator[1]

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return None if part("rank") is None else (part("rank"), part("value"))

    def _merged(self, a: Any, b: Any) -> Any:
        x, y = a[0], b[0]
        if x != y:
            if y == y and (x != x or (y > x) is self._greatest):
                return b
            if x == x:
                return a
        if a[1] is None or b[1] is None:
            return b if a[1] is None else a
        return b if b[1] < a[1] or a[1] != a[1] else a


class ArgMin(ArgMax):
    """The value of ``column`` where ``by`` is least; ties and nulls as in `ArgMax`."""

    _greatest = False


class _Counted(Row):
    """A value with its count: the row of a struct column."""

    __slots__ = ()
    _fields = ("value", "count")
    _positions: ClassVar[dict[str, int]] = {"value": 0, "count": 1}
    __match_args__ = ("value", "count")
    value = property(operator.itemgetter(0))
    count = property(operator.itemgetter(1))


class MostFrequent(ColumnAggregate):
    """The k (at least 1) most frequent values, a list of rows ``(value, count)``, the most frequent first.

    Equal counts are in ascending order of values (NaN last), so neither order nor batches matter. It keeps a count for
    each distinct value; `ApproxMostFrequent` is bounded.

    Raises:
        DefinitionError: ``k`` is below 1.
    """

    _keeps = True
    _result = "array<struct<value:{},count:bigint>>"

    def __init__(self, k: int, column: Column = None, *, type: str | None = None) -> None:
        super().__init__(column, type=type)
        self.k = check_count(k, "k", "value")

    def create_accumulator(self) -> Any:
        return {}

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if value is not None:
            value = _counted(value, accumulator)
            accumulator[value] = accumulator.get(value, 0) + 1
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        merged = dict(a)
        for value, count in b.items():
            value = _counted(value, merged)
            merged[value] = merged.get(value, 0) + count
        return merged

    def get_result(self, accumulator: Any) -> Any:
        counts = list(accumulator.items())
        try:
            counts.sort(key=lambda pair: (-pair[1], pair[0] != pair[0], pair[0]))
        except TypeError:  # values of several types
            counts.sort(key=lambda pair: (-pair[1], type(pair[0]).__name__, ascii(pair[0])))
        return [_Counted((value, count)) for value, count in counts[: self.k]]

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return dict(zip(part("values") or (), part("counts") or (), strict=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.k}{'' if self.column is None else f', {self.column!r}'})"


class ApproxMostFrequent(MostFrequent):
    """The k most frequent values with approximate counts, by ``capacity`` counters, at least k (Misra–Gries).

    Of n values, a count is at most the true one, and at least the true one less n / (capacity + 1). Every more
    frequent value is kept, and up to ``capacity`` distinct values counts are exact; also after merging (Misra and
    Gries 1982; Agarwal et al. 2012, "Mergeable summaries"). Beyond ``capacity`` counts depend on the order of
    elements, that of event time whatever the batches; so hopping windows share no slices, and rows run one by one.

    Raises:
        DefinitionError: ``k`` is below 1, or the capacity below ``k``.
    """

    commutative = False

    def __init__(self, k: int, column: Column = None, *, capacity: int = 1000, type: str | None = None) -> None:
        super().__init__(k, column, type=type)
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < k:
            raise DefinitionError(f"capacity={capacity!r} must be an int of at least k={k} counters")
        self.capacity = capacity

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if value is None:
            return accumulator
        value = _counted(value, accumulator)
        if value in accumulator:
            accumulator[value] += 1
        elif len(accumulator) < self.capacity:
            accumulator[value] = 1
        else:
            # Including the new value, capacity + 1 occurrences are removed: at most n / (capacity + 1) times.
            return {other: count - 1 for other, count in accumulator.items() if count > 1}
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        merged = super().merge(a, b)
        if len(merged) <= self.capacity:
            return merged
        lost = sorted(merged.values(), reverse=True)[self.capacity]
        return {value: count - lost for value, count in merged.items() if count > lost}


def _counted(value: Any, counts: dict[Any, int]) -> Any:
    """Return the value under which a value is counted: the positive zero for zeros, the counted NaN for NaN."""
    if value.__class__ is not float:
        return value
    if value == value:
        return value + 0.0
    # Dictionaries find NaN by identity, and a stored NaN is another object.
    return next((other for other in counts if other != other), math.nan)
