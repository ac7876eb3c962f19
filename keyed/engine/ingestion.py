"""Ingestion time: the rows of a batch get the processing time of their batch as timestamp.

The key group assigns it, because it knows the processing time of earlier batches, and none goes back behind them. Every
key group gets every batch, so all of them have the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from keyed.engine.batch import Batch
from keyed.job.operators import OperatorSpec
from keyed.job.vectorized_functions import TIMESTAMP_COLUMN, combines

if TYPE_CHECKING:
    import pyarrow as pa


def stamped(batch: Batch, spec: OperatorSpec, processing_time: int) -> Batch:
    """Return a batch whose rows have a timestamp, and are combined if the function combines.

    Args:
        batch: Rows without timestamps that were not combined yet.
        spec: The operator.
        processing_time: The timestamp.
    """

    def table() -> pa.Table | None:
        rows = batch.table()
        if rows is None:
            return None
        import pyarrow as pa

        rows = rows.append_column(TIMESTAMP_COLUMN, pa.repeat(processing_time, rows.num_rows))
        function: Any = spec.function
        if not combines(function) or not rows.num_rows:
            return rows
        from keyed.table_state.batches import combined

        combined_table = combined(function, rows, spec.keys, spec.name)
        timed.rows_combined += rows.num_rows - combined_table.num_rows
        return combined_table

    timed = attrs.evolve(
        batch,
        chunks=lambda: (
            (keys, [processing_time] * len(keys), values, sides) for keys, _, values, sides in batch.chunks()
        ),
        table=table,
        highest={(0, ""): processing_time},
    )
    return timed
