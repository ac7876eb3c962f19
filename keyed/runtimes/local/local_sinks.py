"""Writing of outputs in the local runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from keyed.destinations.sink import Record, SinkBatch, SinkWriter, failed
from keyed.engine.batch import Emitted, EmittedTables
from keyed.errors import KeyedError, OutputDefinitionError
from keyed.job.graph import BoundOutput
from keyed.job.inference import unannotated
from keyed.job.vectorized_functions import TIMESTAMP_COLUMN
from keyed.rows import fields_of, row_class
from keyed.runtimes.local.local_rows import as_rows

if TYPE_CHECKING:
    import pyarrow as pa

#: Number of values that are checked and converted together, small enough for the processor's cache.
_PIECE = 4096


@attrs.frozen
class LocalBatch(SinkBatch):
    """The rows of a batch. See `SinkBatch`."""

    bound: BoundOutput
    emitted: Emitted | EmittedTables

    @property
    def is_bad_rows(self) -> bool:  # type: ignore[override]
        """See `SinkBatch`."""
        return _takes_bad_rows(self.bound)

    @property
    def rows(self) -> list[Any]:
        """The values as rows of the declared columns, which they have to fit as on Spark."""
        return _rows(self.bound, self.emitted.values)

    @property
    def table(self) -> pa.Table | None:
        """See `SinkBatch`."""
        if isinstance(self.emitted, EmittedTables):
            return _table_of_tables(self.bound, self.emitted)
        return _table_of_values(self.bound, self.emitted.values)


def packed(
    bound: BoundOutput, writer: SinkWriter, emitted: Emitted | EmittedTables, batch_id: int
) -> list[Record] | None:
    """Return the outputs of a batch as they are committed with its state, or write them to a sink that replaces them.

    Args:
        bound: The output with its sink.
        writer: The writer of the sink.
        emitted: The outputs of the batch.
        batch_id: Its id.

    Raises:
        OutputDefinitionError: A value does not fit the columns of the output.
        SinkError: The target has other columns.
        QueryFailed: The sink raised.
    """
    batch = LocalBatch(bound, emitted)
    try:
        records = writer.pack(batch)
        if records is None:
            writer.write(batch, batch_id)
    except KeyedError:
        raise
    except Exception as error:
        raise failed(bound.sink, batch_id, error) from error
    return records


def _rows(bound: BoundOutput, values: list[Any]) -> list[Any]:
    """Convert values to rows of the declared columns, which they have to fit as on Spark; bad rows stay unconverted."""
    schema, output = bound.output.schema, bound.output
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


def _takes_bad_rows(bound: BoundOutput) -> bool:
    tag = bound.output.tag
    return tag is not None and not bound.output.steps and tag.name in bound.output.stage.bad_row_outputs


def _table_of_values(bound: BoundOutput, values: list[Any]) -> pa.Table | None:
    """Return values as a table, ``None`` if there are none."""
    from keyed.arrow.write import raw_table_of, table_of

    schema = bound.output.schema
    if not values:
        return None
    if schema is None and fields_of(type(values[0])) is None:
        annotate = "" if bound.output.tag else unannotated(bound.output.stage.function)
        raise OutputDefinitionError(
            f"{bound.sink.title.removeprefix('the ')}: values like {values[0]!r} have no columns; give process(..., "
            f"output=...) or OutputTag(name, type){annotate}"
        )
    return raw_table_of(values, schema) if _takes_bad_rows(bound) else table_of(values, schema)


def _table_of_tables(bound: BoundOutput, emitted: Any) -> pa.Table | None:
    """Return the emitted tables as one without their timestamps, ``None`` if there are none."""
    import pyarrow as pa

    from keyed.table_state.batches import shaped

    if not emitted.tables:
        return None
    table = pa.concat_tables(emitted.tables, promote_options="default")
    if TIMESTAMP_COLUMN in table.column_names:
        table = table.drop_columns([TIMESTAMP_COLUMN])
    return shaped(table, bound.output.schema, f"operator {bound.output.stage.name!r}, output to {bound.sink!r}")
