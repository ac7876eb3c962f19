"""Writing of outputs in the local runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from keyed.arrow.write import raw_table_of, table_of
from keyed.destinations.sink import Record, SinkBatch, SinkWriter, failed
from keyed.engine.batch import Emitted, EmittedTables
from keyed.errors import KeyedError, OutputDefinitionError
from keyed.job.functions import TIMESTAMP_COLUMN, unannotated
from keyed.job.graph import BoundOutput
from keyed.rows import fields_of
from keyed.runtimes.local.local_rows import typed_rows

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class LocalBatch(SinkBatch):
    """The rows of a batch. See `SinkBatch`."""

    bound: BoundOutput
    emitted: Emitted | EmittedTables

    @property
    def is_bad_rows(self) -> bool:  # type: ignore[override]
        """See `SinkBatch`."""
        output = self.bound.output
        return output.tag is not None and not output.steps and output.tag.name in output.stage.bad_row_outputs

    @property
    def rows(self) -> list[Any]:
        """The values as rows with the declared types; bad rows stay as they came."""
        return typed_rows(self.emitted.values, self.bound.output, raw=self.is_bad_rows)

    @property
    def table(self) -> pa.Table | None:
        """See `SinkBatch`."""
        if isinstance(self.emitted, EmittedTables):
            return self._concatenate(self.emitted)
        output, values = self.bound.output, self.emitted.values
        if not values:
            return None
        if output.schema is None and fields_of(type(values[0])) is None:
            annotate = "" if output.tag else unannotated(output.stage.function)
            raise OutputDefinitionError(
                f"{self.bound.sink.title.removeprefix('the ')}: values like {values[0]!r} have no columns; give "
                f"process(..., output=...) or OutputTag(name, type){annotate}"
            )
        return (raw_table_of if self.is_bad_rows else table_of)(values, output.schema)

    def _concatenate(self, emitted: EmittedTables) -> pa.Table | None:
        """Return the emitted tables as one without their timestamps, ``None`` if there are none."""
        import pyarrow as pa

        from keyed.table_state.batches import shaped

        if not emitted.tables:
            return None
        table = pa.concat_tables(emitted.tables, promote_options="default")
        if TIMESTAMP_COLUMN in table.column_names:
            table = table.drop_columns([TIMESTAMP_COLUMN])
        output = self.bound.output
        return shaped(table, output.schema, f"operator {output.stage.name!r}, output to {self.bound.sink!r}")


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
