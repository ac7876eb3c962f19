"""Reasons why windows and aggregates are computed row by row and not over whole columns.

The vectorized path has the results of the row path, for definitions whose results do not depend on the order of
elements and whose aggregates are built in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keyed.job.execution_path import MOST_LENGTH, kind_of
from keyed.windows.aggregates import AnyAggregate, Count, Max, Mean, Min, Stddev, Sum, Variance
from keyed.windows.collecting import ArgMax, ArgMin, CollectSet, CountDistinct, First, Latest, MostFrequent, TopK
from keyed.windows.definition import Definition, HoppingWindows, SessionWindows
from keyed.windows.sketches import ApproxCountDistinct

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FLOATS = ("float", "double")
#: Types whose values have the same order and equality in Python and in Arrow.
_EXACT = (*_INTEGERS, "decimal", "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
#: Types of keys. A timestamp without a zone is not an instant, so it is not a key type.
_KEYS = tuple(type_ for type_ in _EXACT if type_ != "timestamp_ntz")
_NUMBERS = (*_INTEGERS, *_FLOATS, "decimal")
_ORDERED = (*_EXACT, *_FLOATS)

#: The types of the columns that an aggregate can read on this path.
_TYPES: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((Sum, Mean, Variance, Stddev), _NUMBERS),
    **dict.fromkeys((Min, Max, First, Latest, ArgMax, ArgMin, TopK, ApproxCountDistinct), _ORDERED),
    **dict.fromkeys((CollectSet, CountDistinct, MostFrequent), _EXACT),
}


def row_reason(definition: Definition, keys: tuple[str, ...], order: str) -> str | None:
    """Return the reason why a definition has to run row by row; ``None`` if whole columns are possible.

    Args:
        definition: The definition.
        keys: The key's columns; empty if the key is a function.
        order: Order of the rows of a batch.
    """
    assigner = definition.assigner
    if (
        not isinstance(assigner, HoppingWindows | SessionWindows)
        or type(assigner).__module__ != "keyed.windows.assigners"
    ):
        return "the assigner is neither tumbling, hopping nor sessions"
    if isinstance(assigner, HoppingWindows):
        longest = max(assigner.size_ms, assigner.slide_ms)
    elif not isinstance(assigner.gap_of, int):
        return "the session gap is a function of the element"
    elif not assigner.event_time and assigner.gap_of == 1:
        return "in processing time sessions with a gap of 1 ms end within the batch"
    else:
        longest = assigner.gap_of
    if longest > MOST_LENGTH:
        return f"windows are longer than {MOST_LENGTH} ms"
    if definition.custom_reason is not None:
        return definition.custom_reason
    if definition.process is not None:
        return "a window function is called for each window"
    if definition.names is None:
        return "the aggregate has no column name"
    if order != "event_time":
        return f"order={order!r}"
    for aggregate in definition.aggregates:
        if isinstance(aggregate, First) and not aggregate.by_time:
            return f"{aggregate!r} depends on the order of arrival"
    return columns_reason(definition.aggregates, definition.columns, keys)


def columns_reason(
    aggregates: Iterable[AnyAggregate], columns: Mapping[str, str | None] | None, keys: tuple[str, ...]
) -> str | None:
    """Return the reason why aggregates by these keys cannot be computed over whole columns; ``None`` if they can.

    Args:
        aggregates: The aggregates.
        columns: Types of the input's columns; ``None`` if they are not known.
        keys: The key's columns; empty if the key is a function.
    """
    if not keys:
        return "the stream is keyed by a function"
    if columns is None:
        return "the types of the input's columns are not known before it runs"
    for key in keys:
        if kind_of(columns.get(key)) not in _KEYS:
            return f"the key column {key!r} is of type {columns.get(key)}"
        if key.startswith(("slice_", "window.")):
            return f"the key column {key!r} may have the name of a column of the state"
    for aggregate in aggregates:
        reason = _aggregate_reason(aggregate, columns)
        if reason is not None:
            return reason
    return None


def _aggregate_reason(aggregate: AnyAggregate, columns: Mapping[str, str | None]) -> str | None:
    """Return the reason why an aggregate cannot be computed over whole columns."""
    cls, column, by = type(aggregate), getattr(aggregate, "column", None), getattr(aggregate, "by", None)
    reads_column = isinstance(column, str) if cls in _TYPES else cls is Count and not callable(column)
    if not reads_column or callable(by):
        return f"{aggregate!r} is not a built-in aggregate of a column"
    for name in (column, by):
        if name is None:
            continue
        if name not in columns:
            return f"{aggregate!r}: the input has no column {name!r}"
        if cls is not Count and kind_of(columns[name]) not in _TYPES[cls]:
            return f"{aggregate!r} of a column of type {columns[name]}"
    return None
