"""Input and output rows of vectorized functions: timestamps, combining, key groups, output columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.arrow.event_times import event_times, time_order
from keyed.arrow.read import column_values, distinct_keys, table_rows
from keyed.arrow.write import arrow_schema
from keyed.base.arguments import MIN_TIMESTAMP, type_of
from keyed.base.schemas import Schema
from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import null_key
from keyed.errors import DefinitionError, EncodingError, KeyedError, OutputDefinitionError, UserFunctionError
from keyed.job.functions import TIMESTAMP_COLUMN, VectorizedFunction
from keyed.table_state.layout import fitted, normalised_column


def with_times(table: pa.Table, name: str | None) -> pa.Table:
    """Return a table with `TIMESTAMP_COLUMN`, out of the column with the event time; as it is if there is none.

    Raises:
        DefinitionError: It is no table, the column is missing, or holds no times.
    """
    if not isinstance(table, pa.Table):
        raise DefinitionError(f"{type(table).__name__} is not a pyarrow.Table")
    if name is None or name == TIMESTAMP_COLUMN:
        return table
    if name not in table.column_names:
        raise DefinitionError(f"timestamp column {name!r} is not in {', '.join(table.column_names)}")
    times = event_times(table.column(name), name)
    index = table.schema.get_field_index(TIMESTAMP_COLUMN)
    if index >= 0:
        return table.set_column(index, TIMESTAMP_COLUMN, times)
    return table.append_column(TIMESTAMP_COLUMN, times)


def timestamped(table: pa.Table) -> pa.Table:
    """Return a table with `TIMESTAMP_COLUMN`; null if it has none."""
    if TIMESTAMP_COLUMN in table.column_names:
        return table
    return table.append_column(TIMESTAMP_COLUMN, pa.nulls(table.num_rows, pa.int64()))


def check_keys(table: pa.Table, keys: Sequence[str], operator: str) -> None:
    """Check that each row has a key.

    Raises:
        DefinitionError: A key column is missing.
        NullKeyError: A key is null.
        EncodingError: A key column has lists or structs, another type by which Arrow cannot group, or times with
            nanoseconds or without a zone.
    """
    check_key_types(table, keys, operator)
    for key in keys:
        if table.column(key).null_count:
            row = table_rows(table.filter(table.column(key).is_null()).slice(0, 1))[0]
            parts = tuple(row[part] for part in keys if part in table.column_names)
            raise null_key(operator, parts[0] if len(keys) == 1 else parts, row, of_source=False)


def check_key_types(table: pa.Table, keys: Sequence[str], operator: str) -> None:
    """Check that the values of key columns can be keys.

    Raises:
        DefinitionError: A key column is missing.
        EncodingError: A key column has lists or structs, another type by which Arrow cannot group, or times with
            nanoseconds or without a zone.
    """
    for key in keys:
        if key not in table.column_names:
            columns = ", ".join(table.column_names)
            raise DefinitionError(f"operator {operator!r}: key column {key!r} is not in {columns}")
        column = table.column(key)
        if pa.types.is_nested(column.type):
            raise EncodingError(
                f"operator {operator!r}: key column {key!r} has type {column.type}, which cannot be a key; "
                "give each part a column of its own, as in key_by('a', 'b')"
            )
        try:
            column.slice(0, 0).dictionary_encode()
        except pa.ArrowNotImplementedError as error:
            raise EncodingError(
                f"operator {operator!r}: key column {key!r} has type {column.type}, by which Arrow cannot group; give "
                "it as text, binary, numbers, dates or times"
            ) from error
        if pa.types.is_timestamp(column.type) and column.type.tz is None:
            raise EncodingError(
                f"operator {operator!r}: key column {key!r} has times without a time zone, which are no instants, and "
                "cannot be keys; give the column a zone, as with pandas' dt.tz_localize('UTC')"
            )
        is_time = pa.types.is_timestamp(column.type)
        if (is_time or pa.types.is_duration(column.type)) and column.type.unit == "ns":
            try:
                column.cast(pa.timestamp("us", column.type.tz) if is_time else pa.duration("us"))
            except pa.ArrowInvalid as error:
                raise EncodingError(
                    f"operator {operator!r}: key column {key!r} has times with nanoseconds, and those of keys have "
                    "microseconds, so that different ones would become one key; round them, or key by the number"
                ) from error


def normalised_keys(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the table with its key columns as keys are stored."""
    for key in keys:
        if pa.types.is_floating(table.column(key).type):
            table = table.set_column(table.column_names.index(key), key, normalised_column(table.column(key)))
    return table


def first_key(table: pa.Table, keys: Sequence[str]) -> Any:
    """Return the key of the first row of a table."""
    values = [column_values(table.column(name).slice(0, 1))[0] for name in keys]
    return values[0] if len(keys) == 1 else tuple(values)


def in_time_order(table: pa.Table) -> pa.Table:
    """Return the rows in the order of `TIMESTAMP_COLUMN`, stable; rows without a timestamp first."""
    if TIMESTAMP_COLUMN not in table.column_names:
        return table
    column: Any = table.column(TIMESTAMP_COLUMN)
    order = time_order(column.fill_null(MIN_TIMESTAMP).to_numpy())
    return table if order is None else table.take(order)


def combined(function: VectorizedFunction, table: pa.Table, keys: Sequence[str], operator: str) -> pa.Table:
    """Return the rows combined by ``combine``.

    Raises:
        UserFunctionError: It raised.
        OutputDefinitionError: It did not return a table, or returned one with missing or null key columns.
    """
    where = f"operator {operator!r}, combine of {table.num_rows} rows"
    try:
        result = function.combine(normalised_keys(table, keys))
    except KeyedError:
        raise
    except Exception as error:
        raise UserFunctionError(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(result, pa.Table):
        raise OutputDefinitionError(f"{where} gave {type_of(result)}; return a pyarrow.Table")
    for key in keys:
        if key not in result.column_names:
            raise OutputDefinitionError(f"{where} lost the key column {key!r}; keep the columns of key_by")
        if result.column(key).null_count:
            raise OutputDefinitionError(f"{where} put null into the key column {key!r}; keep the keys as they are")
    return result


def group_indices(table: pa.Table, keys: Sequence[str], parallelism: int) -> Any:
    """Return the key group of each row, as a numpy array. Each distinct key is hashed once."""
    if parallelism == 1:
        return np.zeros(table.num_rows, dtype="int64")
    return _for_each_key(table, keys, lambda key: group_of(key_hash(key), parallelism))


def key_hashes(table: pa.Table, keys: Sequence[str]) -> Any:
    """Return the hash of each row's key as int64, as Spark computes it; null where the key or a part of it is."""
    null = np.zeros(table.num_rows, dtype="bool")
    for key in keys:
        null |= np.asarray(table.column(key).is_null())
    hashes: Any = np.zeros(table.num_rows, dtype="int64")
    hashes[~null] = _for_each_key(table.filter(pa.array(~null)), keys, key_hash)
    return pa.array(hashes, pa.int64(), mask=null)


def _for_each_key(table: pa.Table, keys: Sequence[str], of: Callable[[Any], int]) -> Any:
    """Return the result of a function of each row's key; the function is called once for each distinct key."""
    if not table.num_rows:
        return np.empty(0, dtype="int64")
    columns = [_decoded(table.column(key)) for key in keys]
    distinct, codes = distinct_keys(pa.table(columns, names=list(keys)).combine_chunks(), keys)
    results: Any = np.array([of(key) for key in distinct], dtype="int64")
    return results[codes]


def _decoded(column: Any) -> Any:
    """Return a column without a dictionary, which differs from chunk to chunk."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def shaped(table: Any, schema: Schema | None, where: str) -> pa.Table:
    """Return an emitted table in the declared columns, with its `TIMESTAMP_COLUMN`, if it has one, as int64.

    Raises:
        OutputDefinitionError: It is not a table, or a column is missing or does not fit.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise OutputDefinitionError(f"{where}: {type(table).__name__} was emitted; give a pyarrow.Table")
    if TIMESTAMP_COLUMN in table.column_names:
        index = table.column_names.index(TIMESTAMP_COLUMN)
        table = table.set_column(index, TIMESTAMP_COLUMN, event_times(table.column(index), TIMESTAMP_COLUMN))
    rows: pa.Table = table
    if schema is None:
        return rows
    target = arrow_schema(schema)
    if TIMESTAMP_COLUMN in table.column_names:
        target = target.append(pa.field(TIMESTAMP_COLUMN, pa.int64()))
    return pa.Table.from_arrays(fitted(rows, target, where, OutputDefinitionError), schema=target)
