"""Runs the transformations of `keyed.job.graph` over the rows of a batch, in both runtimes.

Rows are a list of values or an Arrow table, whichever the last transformation made; they are converted when the next
one, or the reader, needs the other form. Declared results are converted to their columns and read back, so the next
function gets the same rows in both runtimes, and shares no mutable value with anyone.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa

from keyed.arrow.read import table_rows
from keyed.arrow.write import table_of
from keyed.base.arguments import shown, type_of
from keyed.base.schemas import Schema
from keyed.engine.emitted_values import check_return_value
from keyed.errors import KeyedError, OutputDefinitionError, UserFunctionError
from keyed.job.functions import TIMESTAMP_COLUMN
from keyed.job.graph import Kept, Transform
from keyed.rows import fields_of
from keyed.table_state.batches import shaped


@attrs.define(eq=False)
class TransformedRows:
    """Rows between two transformations, as a list of values, a table, or both.

    Attributes:
        times: The event time of each row in milliseconds, as int64; ``None`` if rows have none.
        schema: The declared columns, if they are known.
        bad: Number of bad rows that functions have left out.
        reason: The reason of the first of them.
    """

    times: pa.Array[Any] | None
    schema: Schema | None = None
    _values: list[Any] | None = None
    _table: pa.Table | None = None
    bad: int = 0
    reason: str = ""

    @property
    def count(self) -> int:
        """Number of rows."""
        if self._table is not None:
            return self._table.num_rows
        return len(self._values or ())

    @property
    def is_table(self) -> bool:
        """True if the rows are a table."""
        return self._table is not None

    def values(self) -> list[Any]:
        """Return the rows as Python objects."""
        if self._values is None:
            self._values = [] if self._table is None else table_rows(self._table)
        return self._values

    def table(self, where: str) -> pa.Table:
        """Return the rows as a table, without timestamps.

        Raises:
            OutputDefinitionError: The values have no columns, or do not fit the declared ones.
        """
        if self._table is None:
            values = self._values or []
            if self.schema is None and values and fields_of(type(values[0])) is None:
                raise OutputDefinitionError(
                    f"{where}: values like {shown(values[0])} have no columns; give the function before it output=..."
                )
            self._table = table_of(values, self.schema, where)
        return self._table

    def take(self, places: list[int]) -> TransformedRows:
        """Return the rows at some places."""
        if len(places) == self.count:
            return self
        indices = pa.array(places, pa.int64())
        return TransformedRows(
            None if self.times is None else self.times.take(indices),
            self.schema,
            None if self._values is None else [self._values[place] for place in places],
            None if self._table is None else self._table.take(indices),
        )


def transformed(
    rows: TransformedRows, steps: Sequence[Transform], operator: str, own: Callable[[Any], Any] | None = None
) -> TransformedRows:
    """Return rows after transformations.

    Args:
        rows: The rows.
        steps: The transformations.
        operator: Name of the operator that reads or made the rows, for messages.
        own: Returns results without declared columns in the form for functions.

    Raises:
        UserFunctionError: A function raised.
        OutputDefinitionError: It returned what cannot be rows of its columns.
    """
    bad, reason = 0, ""
    for step in steps:
        where = f"operator {operator!r}, {step!r}"
        if not rows.count:
            # A function of tables is not called without rows, as it would not be on Spark.
            rows = TransformedRows(rows.times, rows.schema if step.keeps_columns else step.schema, [])
        elif step.kind == "map_batches":
            rows = _map_batches(rows, step, where)
        elif step.kind == "filter":
            keeps = results_of(step.function, rows.values(), where, _check_truth)
            rows = rows.take([place for place, keep in enumerate(keeps) if keep])
        else:
            rows = _mapped(rows, step, where, own)
        bad, reason, rows.bad = bad + rows.bad, reason or rows.reason, 0
    rows.bad, rows.reason = bad, reason
    return rows


def _mapped(rows: TransformedRows, step: Transform, where: str, own: Callable[[Any], Any] | None) -> TransformedRows:
    times = rows.times
    if step.kind == "map":
        results = results_of(step.function, rows.values(), where, _check_row)
    else:
        results, counts = [], []
        for values in results_of(step.function, rows.values(), where, _rows_of):
            results += values
            counts.append(len(values))
        if times is not None:
            places = [place for place, count in enumerate(counts) for _ in range(count)]
            times = times.take(pa.array(places, pa.int64()))
    if step.schema is not None:
        # As columns and back: checked, and copies in the form in which a stage gets them.
        return TransformedRows(times, step.schema, None, table_of(results, step.schema, where))
    return TransformedRows(times, None, results if own is None else list(map(own, results)))


def results_of(
    function: Callable[[Any], Any], values: list[Any], where: str, accept: Callable[[Any, Any, str], Any] | None = None
) -> list[Any]:
    """Return the result of a function for each value, as another function accepts it, or refuses it."""
    results: list[Any] = []
    try:
        if accept is None:
            results.extend(map(function, values))
            return results
        for value in values:
            results.append(accept(function(value), value, where))  # noqa: PERF401 - an error names its value
    except KeyedError:
        raise
    except Exception as error:
        failing = values[len(results)]
        raise UserFunctionError(f"{where} of {shown(failing)}: {type(error).__name__}: {error}") from error
    return results


def _check_row(result: Any, value: Any, where: str) -> Any:
    """Return the row that a function returned."""
    if result is None:
        raise OutputDefinitionError(
            f"{where} returned None for {shown(value)}; return a row, or use filter or flat_map to drop rows"
        )
    if isinstance(result, Iterator | types.CoroutineType):
        raise OutputDefinitionError(
            f"{where} returned {type_of(result)} for {shown(value)}; return a row, or use flat_map"
        )
    return result


#: Classes whose instances are rows, and nothing that a function returns by mistake.
_ROWS = (tuple, dict)


def _rows_of(result: Any, value: Any, where: str) -> list[Any]:
    """Return the rows that a function of `flat_map` returned or yields."""
    if result.__class__ is list and all(isinstance(row, _ROWS) for row in result):
        return result
    if result is None:
        return []
    try:
        check_return_value(result)
    except OutputDefinitionError as error:
        raise OutputDefinitionError(f"{where}: {error}") from None
    if not isinstance(result, Iterable):
        raise OutputDefinitionError(
            f"{where} returned {shown(result)} of type {type(result).__name__} for {shown(value)}; return a list of "
            "rows, or yield them"
        )
    return [_check_row(row, value, where) for row in result]


def _check_truth(result: Any, value: Any, where: str) -> Any:
    """Return the truth value that a function returned."""
    # The second is numpy's.
    if result.__class__ is not bool and type(result).__name__ not in ("bool", "bool_"):
        raise OutputDefinitionError(
            f"{where} returned {shown(result)} of type {type(result).__name__} for {shown(value)}; return True or "
            "False, as with bool(...) or a comparison"
        )
    return result


def _map_batches(rows: TransformedRows, step: Transform, where: str) -> TransformedRows:
    of_values, columns = getattr(step.function, "of_values", None), None
    try:
        if of_values is not None and not rows.is_table:
            result = of_values(rows.values(), rows.times)
        else:
            table = rows.table(where)
            columns = table.schema
            if rows.times is not None:
                table = table.append_column(TIMESTAMP_COLUMN, pa.chunked_array([rows.times]))
            result = step.function(table)
    except KeyedError:
        raise
    except Exception as error:
        raise UserFunctionError(f"{where} of a table of {rows.count} rows: {type(error).__name__}: {error}") from error
    bad, reason = 0, ""
    if isinstance(result, Kept):
        result, bad, reason = result.table, result.bad, result.reason
    if not isinstance(result, pa.Table):
        raise OutputDefinitionError(f"{where} returned {type(result).__name__}; return a pyarrow.Table")
    times = None
    if rows.times is not None and TIMESTAMP_COLUMN not in result.column_names:
        raise OutputDefinitionError(
            f"{where}: its result lacks {TIMESTAMP_COLUMN!r}, the event time of each row; keep the column "
            "keyed.vectorized.TIMESTAMP_COLUMN of the table that it gets"
        )
    result = shaped(result, step.schema, where)
    if TIMESTAMP_COLUMN in result.column_names:
        if rows.times is not None:
            times = result.column(TIMESTAMP_COLUMN).combine_chunks()
        result = result.drop_columns([TIMESTAMP_COLUMN])
    if step.schema is None and columns is not None and not result.schema.equals(columns):
        raise OutputDefinitionError(
            f"{where}: without output= its result has the columns of its input, ({_shown(columns)}), and it returned "
            f"({_shown(result.schema)}); give output='name type, ...'"
        )
    return TransformedRows(times, rows.schema if step.schema is None else step.schema, None, result, bad, reason)


def _shown(columns: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)
