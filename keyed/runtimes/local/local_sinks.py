"""Writing of outputs in the local runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_never

from keyed.base.schemas import Schema
from keyed.engine.batch import Emitted, EmittedTables
from keyed.errors import KeyedError, OutputDefinitionError
from keyed.job.graph import BoundOutput
from keyed.job.inference import unannotated
from keyed.job.vectorized_functions import TIMESTAMP_COLUMN
from keyed.rows import fields_of, row_class
from keyed.runtimes.local.local_rows import as_rows
from keyed.runtimes.sink_folder import LocalFolder, check_columns, last_file, replace_file
from keyed.sinks import CollectSink, FunctionSink, ParquetSink, TableSink, failed
from keyed.topics import KafkaSink

#: Number of values that are checked and converted together, small enough for the processor's cache.
_PIECE = 4096


def check_declared(bound: BoundOutput) -> None:
    """Compare the declared columns of an output to a Parquet sink with those of existing files.

    Raises:
        SinkError: The columns differ.
    """
    schema = _schema(bound)
    if schema is not None and isinstance(bound.sink, ParquetSink):
        from keyed.arrow.write import arrow_schema

        _check_columns(bound.sink, arrow_schema(schema))


def _check_columns(sink: ParquetSink, new: Any) -> None:
    import pyarrow.parquet as pq

    from keyed.arrow.kinds import kinds

    last = last_file(LocalFolder(sink.path).parquet_files())
    if last is not None:
        check_columns(sink.path, last, kinds(pq.read_schema(Path(sink.path, last))), kinds(new))


def write(
    bound: BoundOutput,
    emitted: Emitted | EmittedTables,
    batch_id: int,
    *,
    query_id: str,
    checks: bool = False,
    to_outbox: Callable[[Any], object] = lambda _: None,
) -> bool:
    """Write the outputs of a batch to the output's sink, replacing earlier outputs of the same batch.

    Args:
        bound: The output with its sink.
        emitted: The outputs of the batch.
        batch_id: Its id.
        query_id: Id of the query.
        checks: Compare undeclared columns with those of existing files.
        to_outbox: Called with the rows of a Kafka sink, and with the Arrow table of a sink of tables.

    Returns:
        True if there was something to write.

    Raises:
        OutputDefinitionError: A value does not fit the columns of the output.
        SinkError: The existing files have other columns.
        QueryFailed: The sink raised.
    """
    sink, schema = bound.sink, _schema(bound)
    try:
        if isinstance(sink, CollectSink):
            sink.batches[batch_id] = _rows(bound, emitted.values)
        elif isinstance(sink, FunctionSink):
            sink.call(_rows(bound, emitted.values), batch_id, query_id)
        elif isinstance(sink, ParquetSink):
            table = _table_of(bound, emitted)
            if checks and schema is None and table is not None and not _takes_bad_rows(bound):
                _check_columns(sink, table.schema)
            _write_parquet(sink, table, schema, batch_id)
            return table is not None
        elif isinstance(sink, KafkaSink):
            to_outbox(_rows(bound, emitted.values))
        elif isinstance(sink, TableSink):
            to_outbox(_table_of(bound, emitted))
        else:
            assert_never(sink)
    except KeyedError:
        raise
    except Exception as error:
        raise failed(sink, batch_id, error) from error
    return True


def _rows(bound: BoundOutput, values: list[Any]) -> list[Any]:
    """Convert values to rows of the declared columns, which they have to fit as on Spark; bad rows stay unconverted."""
    schema, output = _schema(bound), bound.output
    if schema is None:
        return values
    from keyed.arrow.write import arrow_schema, check_values

    is_bad = _takes_bad_rows(bound)
    operator = output.stage.name
    where = f"operator {operator!r}, " + ("main output" if output.tag is None else f"side output {output.tag.name!r}")
    columns, make = arrow_schema(schema), row_class(schema.names)
    rows: list[Any] = []
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE]
        if not is_bad:
            check_values(piece, columns, where)
            if {tuple}.issuperset(map(type, piece)):
                rows += map(make, piece)
                continue
        rows += as_rows(piece, schema, operator)
    return rows


def _schema(bound: BoundOutput) -> Schema | None:
    return bound.output.schema


def _takes_bad_rows(bound: BoundOutput) -> bool:
    tag = bound.output.tag
    return tag is not None and not bound.output.steps and tag.name in bound.output.stage.bad_row_outputs


def _table_of(bound: BoundOutput, emitted: Emitted | EmittedTables) -> Any:
    if isinstance(emitted, EmittedTables):
        return _table_of_tables(bound, emitted)
    return _table_of_values(bound, emitted.values)


def _table_of_values(bound: BoundOutput, values: list[Any]) -> Any:
    """Return values as a table, ``None`` if there are none."""
    from keyed.arrow.write import raw_table_of, table_of

    schema = _schema(bound)
    if not values:
        return None
    if schema is None and fields_of(type(values[0])) is None:
        annotate = "" if bound.output.tag else unannotated(bound.output.stage.function)
        name = f"Parquet sink {bound.sink.path!r}" if isinstance(bound.sink, ParquetSink) else repr(bound.sink)
        raise OutputDefinitionError(
            f"{name}: values like {values[0]!r} have no columns; give process(..., "
            f"output=...) or OutputTag(name, type){annotate}"
        )
    return raw_table_of(values, schema) if _takes_bad_rows(bound) else table_of(values, schema)


def _table_of_tables(bound: BoundOutput, emitted: Any) -> Any:
    """Return the emitted tables as one without their timestamps, ``None`` if there are none."""
    import pyarrow as pa

    from keyed.table_state.batches import shaped

    if not emitted.tables:
        return None
    table = pa.concat_tables(emitted.tables, promote_options="default")
    if TIMESTAMP_COLUMN in table.column_names:
        table = table.drop_columns([TIMESTAMP_COLUMN])
    return shaped(table, _schema(bound), f"operator {bound.output.stage.name!r}, output to {bound.sink!r}")


def _write_parquet(sink: ParquetSink, table: Any, schema: Schema | None, batch_id: int) -> None:
    """Write one file per batch, published by a rename; none if there is no table, and other files exist."""
    import pyarrow.parquet as pq

    folder = Path(sink.path)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"part-{batch_id:010d}-0000.parquet"
    for old in folder.glob(f"part-{batch_id:010d}-*.parquet"):
        if old != target or table is None:
            old.unlink()
    for left in folder.glob(f".{target.name}.*.tmp"):
        # Left by a run that was killed while it wrote this batch.
        left.unlink()
    if table is None and schema is not None and not any(folder.glob("part-*.parquet")):
        from keyed.arrow.write import arrow_schema

        # An output without rows is still a table with columns.
        table = arrow_schema(schema).empty_table()
    if table is None:
        return
    replace_file(target, lambda file: pq.write_table(table, file))
