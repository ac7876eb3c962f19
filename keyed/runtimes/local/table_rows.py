"""Rows of tables in the local runtime, and rows for vectorized operators, as one Arrow table per batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.arrow.event_times import event_times, highest_by_partition, time_order
from keyed.arrow.read import table_chunks, table_rows
from keyed.arrow.write import table_of
from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.base.schemas import Schema, schema_of
from keyed.codec.keys import key_type
from keyed.engine.batch import Emitted, EmittedTables
from keyed.errors import KeyedError, OutputDefinitionError
from keyed.job.functions import TIMESTAMP_COLUMN, OperatorSpec, VectorizedFunction, combines
from keyed.job.graph import Port, Stage
from keyed.rows import fields_of
from keyed.runtimes.local.local_rows import Limit, SourceRows, check_column, checked, column_times, timestamp_of
from keyed.table_state.batches import (
    check_key_types,
    check_keys,
    combined,
    first_key,
    group_indices,
    in_time_order,
    timestamped,
)

#: Exceptions for an element that does not fit the columns of a table.
_MISFITS = (KeyedError, pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError)


def source_rows(stage: Stage, table: pa.Table, limit: Limit | None) -> SourceRows:
    """Return a batch from a source that is a table: as a table for a vectorized function, else in chunks.

    Args:
        stage: The first stage, whose keys are columns.
        table: The rows.
        limit: The limit of timestamps.
    """
    source, keys = stage.source, stage.key_columns
    timestamp = source.time
    times: Any = None
    if callable(timestamp):
        times = pa.array([timestamp_of(timestamp(row)) for row in table_rows(table)], pa.int64())
    elif timestamp is not None:
        times = event_times(table.column(timestamp), timestamp)
    latest = MAX_TIMESTAMP if limit is None else limit()
    good: Any = np.ones(table.num_rows, dtype="bool")
    for column in [*map(table.column, keys), *([] if times is None else [times])]:
        if column.null_count:
            good &= np.asarray(column.is_valid())
    if times is not None and limit is not None:
        good &= times.fill_null(MIN_TIMESTAMP).to_numpy() <= latest
    rows = SourceRows(read=table.num_rows)
    if not good.all():
        bad = table.filter(~good)
        refused = checked(stage, table_rows(bad), column_times(source, bad), lambda: latest)
        rows.bad, rows.reasons = refused.bad, refused.reasons
        table, times = table.filter(good), None if times is None else times.filter(pa.array(good))
        if not table.num_rows:
            return rows
    if times is not None:
        rows.highest = pc.max(times).as_py()
        if (name := source.watermark.partition_by) is not None:
            check_column(name, table.column_names, stage.name)
            rows.by_partition = highest_by_partition(table.column(name), times)
    if isinstance(stage.function, VectorizedFunction):
        table = table if times is None else table.append_column(TIMESTAMP_COLUMN, times)
        rows.table = lambda: table
        return rows
    check_key_types(table, keys, stage.name)
    numbers: Any = None if times is None else times.to_numpy()
    order = None if numbers is None or stage.order == "arrival" else time_order(numbers)
    if order is not None:
        table, numbers = table.take(order), numbers[order]
    rows.chunks = lambda: table_chunks(table, keys, numbers)
    rows.key_type = key_type(first_key(table, keys))
    return rows


def output_rows(emitted: Emitted | EmittedTables, output: Port, *, timed: bool) -> SourceRows:
    """Return an output of an upstream stage.

    Args:
        emitted: The emitted rows.
        output: The output.
        timed: True if the stream has event time.
    """
    rows = SourceRows()
    if isinstance(emitted, EmittedTables):
        tables = [timestamped(table) if timed else _plain(table) for table in emitted.tables]
        if tables:
            rows.table = lambda: pa.concat_tables(tables, promote_options="default")
    elif emitted.values:
        times = emitted.timestamps() if timed else None
        what = "main output" if output.tag is None else f"side output {output.tag.name!r}"
        where = f"operator {output.stage.name!r}, {what}"
        rows.table = lambda: _table(emitted.values, times, output.schema, where)
    return rows


def routed(
    spec: OperatorSpec, rows: Sequence[SourceRows], keys: tuple[str, ...]
) -> tuple[list[Callable[[], pa.Table | None]], str, int]:
    """Return the table of each key group, with its rows in the order in which they run.

    Args:
        spec: The operator.
        rows: The rows of a side, input by input.
        keys: Its key columns.

    Returns:
        The tables, the type of the keys, and the number of rows that combining has saved.

    Raises:
        DefinitionError: A key column is missing.
        NullKeyError: A key is null.
        UserFunctionError: ``combine`` raised.
    """
    whole_inputs = [table for each in rows if (table := _read_all(spec, each)) is not None]
    table = pa.concat_tables(whole_inputs, promote_options="default") if whole_inputs else None
    if table is None or not table.num_rows:
        return [lambda: None] * spec.parallelism, "", 0
    if not keys:
        # Of an output without a key, which has one key group.
        only = in_time_order(table) if spec.by_time else table
        return [lambda: only], "", 0
    check_keys(table, keys, spec.name)
    came = table.num_rows
    function: Any = spec.function
    if combines(function) and not spec.ingests:
        table = combined(function, table, keys, spec.name)
    groups = group_indices(table, keys, spec.parallelism)

    def part(index: int) -> pa.Table:
        chosen = table.filter(groups == index) if spec.parallelism > 1 else table
        return in_time_order(chosen) if spec.by_time else chosen

    parts: list[Any] = [lambda index=index: part(index) for index in range(spec.parallelism)]
    return parts, key_type(first_key(table, keys)), came - table.num_rows


def _read_all(spec: OperatorSpec, rows: SourceRows) -> pa.Table | None:
    """Return all rows of an input."""
    if rows.table is not None:
        table: pa.Table = rows.table()
        return table
    where = f"operator {spec.name!r}, elements of the source"
    tables = [_table(list(values), times, None, where) for keys, times, values, _ in rows.chunks() if keys]
    return pa.concat_tables(tables, promote_options="default") if tables else None


def misfits(values: list[Any]) -> dict[int, str]:
    """Return the positions of elements that do not fit into one table with those before them, with the reason."""
    try:
        if values:
            _table(values, None, None, "")
    except _MISFITS:
        pass
    else:
        return {}
    misfit, columns = {}, None
    for number, value in enumerate(values):
        try:
            own = _table([value], None, None, "").schema
            if columns is not None and own.names != columns.names:
                misfit[number] = f"value: it has other columns than {', '.join(columns.names)}"
            else:
                columns = own if columns is None else pa.unify_schemas([columns, own], promote_options="permissive")
        except _MISFITS as error:
            misfit[number] = f"value: {error}"
    return misfit


def _table(values: list[Any], times: Any, schema: Schema | None, where: str) -> pa.Table:
    """Return elements as a table, with their timestamps.

    Raises:
        OutputDefinitionError: They have no columns.
    """
    kind = type(values[0])
    if schema is None and (attrs.has(kind) or dataclasses.is_dataclass(kind)):
        schema = schema_of(kind)
    if schema is None and fields_of(kind) is None:
        raise OutputDefinitionError(
            f"{where}: {kind.__name__} has no columns, which a vectorized function needs; give dictionaries or objects "
            "of an attrs class, or declare the output of the previous operator"
        )
    table = table_of(values, schema, where)
    return table if times is None else table.append_column(TIMESTAMP_COLUMN, pa.array(times, pa.int64()))


def _plain(table: pa.Table) -> pa.Table:
    return table.drop_columns([TIMESTAMP_COLUMN]) if TIMESTAMP_COLUMN in table.column_names else table
