"""The accumulators of a definition side by side, as the columns of the state table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.job.execution_path import plain_type
from keyed.windows.aggregates import AnyAggregate, Count, Mean, Min, Stddev, Sum, Variance
from keyed.windows.collecting import (
    ArgMax,
    ArgMin,
    CollectList,
    CollectSet,
    CountDistinct,
    First,
    Latest,
    MostFrequent,
    TopK,
)
from keyed.windows.sketches import ApproxCountDistinct
from keyed.windows.vectorized.accumulators import (
    Accumulator,
    Arrived,
    BatchRows,
    CountColumn,
    Extreme,
    MeanColumn,
    Moments,
    Parts,
    Ranked,
    SumColumn,
    Timed,
)
from keyed.windows.vectorized.list_accumulators import AllValues, DistinctValues, Registers, TopValues, ValueCounts
from keyed.windows.vectorized.row_groups import Groups, array_of, concatenated, pc, pick

#: Rows of a segment that are merged at a time by `Fold.running`.
_BLOCK = 32


class SumOverflow(OverflowError):
    """A value of an aggregate that does not fit into its type.

    Attributes:
        aggregate: The name of the aggregate.
    """

    def __init__(self, aggregate: str, message: str) -> None:
        super().__init__(message)
        self.aggregate = aggregate


class Fold:
    """Accumulators by name.

    Attributes:
        columns: Name and type of each part: ``<aggregate>.<part>``.
        operations: The operation with which a state table merges each of these columns; ``None`` if it cannot merge all
            of them.

    Args:
        accumulators: The accumulators by the name of their aggregate.
    """

    def __init__(self, accumulators: dict[str, Accumulator]) -> None:
        self._accumulators = accumulators
        self.columns = [
            (f"{name}.{part}", type_) for name, accumulator in accumulators.items() for part, type_ in accumulator.parts
        ]
        operations: list[str] = []
        self._neutral: list[Any] = []
        for accumulator in accumulators.values():
            operations += accumulator.operations or ()
            filled = [*accumulator.neutral, *[None] * len(accumulator.parts)]
            self._neutral += filled[: len(accumulator.parts)]
        is_whole = len(operations) == len(self.columns)
        self.operations = dict(zip(dict(self.columns), operations, strict=True)) if is_whole else None
        self._adds_integers = is_whole and set(operations) == {"sum"} and {of for _, of in self.columns} == {"bigint"}

    def stored(self, table: Any) -> Parts:
        """Return the parts that are columns of a table."""
        parts = []
        for (name, _), neutral in zip(self.columns, self._neutral, strict=True):
            part = array_of(table.column(name))
            if neutral is not None and part.null_count:
                part = pc.coalesce(part, pa.scalar(neutral, part.type))
            parts.append(part)
        return parts

    def of_rows(self, rows: BatchRows, groups: Groups) -> Parts:
        """Return the parts of rows; each group has at least one row.

        Raises:
            SumOverflow: A sum of decimals does not fit into 38 digits.
        """
        return [part for array in self._each(lambda each, _: each.of_rows(rows, groups)) for part in array]

    def merged(self, parts: Parts, groups: Groups) -> Parts:
        """Return parts of the same group merged; earlier ones come first.

        Raises:
            SumOverflow: As in `of_rows`.
        """
        return [part for array in self._each(lambda each, own: each.merged(own, groups), parts) for part in array]

    def spans(self, parts: Parts, first: Any, last: Any) -> Parts:
        """Return the merged parts of spans of adjacent rows.

        Args:
            parts: Parts of rows.
            first: Positions of the first row of each span.
            last: Positions of the last row of each span, which is in it.
        """
        counts = last - first + 1
        if not len(counts) or counts.max() == 1:
            return pick(parts, first)
        if self._adds_integers and not any(part.null_count for part in parts):
            # Spans may share most of their rows: differences of running sums visit each row once. They are exact,
            # because integers wrap around both ways.
            return [_span_sums(part.to_numpy(), first, last) for part in parts]
        ids = np.repeat(np.arange(len(first)), counts)
        rows = first[ids] + np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.merged(pick(parts, rows), Groups(ids, len(first)))

    def results(self, parts: Parts) -> list[Any]:
        """Return the results, one column per aggregate.

        Raises:
            SumOverflow: A sum of integers does not fit into 64 bits.
        """
        return self._each(lambda each, own: each.result(own), parts)

    def running(self, parts: Parts, segments: Any, places: Any) -> Parts:
        """Return, for each wanted row, the merged parts of the rows of its segment up to it.

        Args:
            parts: Parts of rows.
            segments: The number of each row's segment, ascending.
            places: Positions of rows, ascending.
        """
        if not len(places):
            return pick(parts, places)
        starts = np.flatnonzero(np.diff(segments, prepend=segments[0] - 1))
        segment = np.cumsum(np.diff(segments, prepend=segments[0]) != 0)
        place = np.arange(len(segments)) - starts[segment]
        carried: Parts | None = None
        results: list[Parts] = []
        outputs: list[Any] = []
        for block in range(int(place[places].max()) // _BLOCK + 1):
            here = np.flatnonzero(place // _BLOCK == block)
            chosen = places[place[places] // _BLOCK == block]
            # Each wanted row is a group of its own: the carried parts, then the rows of the block up to it.
            counts = place[chosen] % _BLOCK + 1
            group = np.repeat(np.arange(len(chosen)), counts)
            rows = chosen[group] - (np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(group)))
            outputs.append(chosen)
            results.append(self._joined(carried, segment[chosen], parts, rows, group, len(chosen)))
            carried = self._joined(carried, np.arange(len(starts)), parts, here, segment[here], len(starts))
        order = np.argsort(np.concatenate(outputs), kind="stable")
        joined = [concatenated(columns) for columns in zip(*results, strict=True)]
        return pick(joined, order)

    def _joined(self, carried: Parts | None, of: Any, parts: Parts, rows: Any, group: Any, count: int) -> Parts:
        """Return the carried parts at ``of``, one per group, merged with rows of the groups."""
        columns = pick(parts, rows)
        if carried is not None:
            columns = [concatenated(pair) for pair in zip(pick(carried, of), columns, strict=True)]
            group = np.concatenate([np.arange(count), group])
        return self.merged(columns, Groups(group, count))

    def _each(self, of: Callable[[Accumulator, Parts], Any], parts: Sequence[Any] = ()) -> list[Any]:
        """Return the results of a function of each accumulator and its parts."""
        arrays, at = [], 0
        for name, accumulator in self._accumulators.items():
            end = at + len(accumulator.parts)
            try:
                arrays.append(of(accumulator, list(parts[at:end])))
            except OverflowError as error:
                raise SumOverflow(name, str(error)) from error
            at = end
        return arrays


def _span_sums(numbers: Any, first: Any, last: Any) -> Any:
    """Return the sum of each span of integers."""
    sums = np.zeros(len(numbers) + 1, dtype=np.int64)
    np.cumsum(numbers, out=sums[1:])
    return pa.array(sums[last + 1] - sums[first])


def fold_of(aggregates: Mapping[str, AnyAggregate], columns: Mapping[str, str]) -> Fold:
    """Return the accumulators of aggregates that can take this path.

    Args:
        aggregates: The aggregates by name.
        columns: Types of the input's columns.
    """
    return Fold({name: _accumulator(aggregate, columns) for name, aggregate in aggregates.items()})


def _accumulator(aggregate: Any, columns: Mapping[str, str]) -> Accumulator:
    if isinstance(aggregate, Accumulator):
        return aggregate
    name, column = repr(aggregate), aggregate.column
    if isinstance(aggregate, Count):
        return CountColumn(column)
    type_ = plain_type(columns[column])
    if isinstance(aggregate, Variance):
        return Moments(column, sample=aggregate.sample, root=isinstance(aggregate, Stddev))
    if isinstance(aggregate, First):
        kind = Timed if aggregate.by_time else Arrived
        return kind(column, type_, latest=isinstance(aggregate, Latest), ignore_nulls=aggregate.ignore_nulls)
    if isinstance(aggregate, ArgMax):
        operation = "min" if isinstance(aggregate, ArgMin) else "max"
        return Ranked(column, type_, str(aggregate.by), plain_type(columns[str(aggregate.by)]), operation)
    if isinstance(aggregate, TopK):
        return TopValues(aggregate.k, column, type_, str(aggregate.by), plain_type(columns[str(aggregate.by)]))
    if isinstance(aggregate, MostFrequent):
        return ValueCounts(aggregate.k, column, type_)
    if isinstance(aggregate, CollectList):
        return AllValues(column, type_, ignore_nulls=aggregate.ignore_nulls, limit=aggregate.limit)
    if isinstance(aggregate, CollectSet):
        return DistinctValues(column, type_, limit=aggregate.limit, count=isinstance(aggregate, CountDistinct))
    if isinstance(aggregate, ApproxCountDistinct):
        return Registers(column, aggregate.precision)
    if isinstance(aggregate, Sum):
        return SumColumn(column, type_, name)
    if isinstance(aggregate, Mean):
        return MeanColumn(column, type_, name, aggregate.type)
    return Extreme(column, type_, "min" if isinstance(aggregate, Min) else "max")
