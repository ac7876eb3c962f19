"""The result of a run, with the values that its sinks have collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from keyed.arrow.write import table_of_values
from keyed.job.graph import BoundOutput
from keyed.job.results import Restored, RunResult
from keyed.tables.state_tables import StateTables


def result_of(
    outputs: Sequence[BoundOutput],
    batches: range,
    metrics: dict[str, dict[str, int]],
    restored: Restored | None,
    read_tables: Callable[[], StateTables] | None = None,
) -> RunResult:
    """Return the result of a run.

    Args:
        outputs: Its outputs. Several collected ones have no common columns.
        batches: Ids of the batches that it has committed.
        metrics: Counters at its end.
        restored: The restored batch.
        read_tables: Opens its state tables, if it has kept any.
    """
    schemas, values = [], []
    for bound in outputs:
        if (collected := bound.sink.collected) is not None:
            schemas.append(bound.output.schema)
            values += [value for batch in batches for value in collected.get(batch, ())]
    table = partial(table_of_values, schema=schemas[0] if len(schemas) == 1 else None)
    return RunResult(values, len(batches), metrics, restored, read_tables, table)
