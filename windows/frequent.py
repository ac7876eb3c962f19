"""The most frequent values: counted exactly, or by a sketch of bounded size for columns with many values."""

# ruff: noqa: D102 - what overrides a documented method is documented there
# ruff: noqa: PLR0124 - only NaN differs from itself

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

from keyed import Row
from keyed.errors import DefinitionError
from keyed.windows.aggregates import Column, ColumnAggregate
from keyed.windows.window import check_count


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
