"""Initial state in the Python workers: rows are packed by key group, and read by the group's first batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from keyed.engine.initial_rows import InitialEntry, entries_of
from keyed.runtimes.initial_frames import cut
from keyed.runtimes.spark.group_ids import group_ids
from keyed.runtimes.spark.worker.wire import RowsEncoder, read_payload

_STATE = b"keyed_state"


def read_initial(payloads: list[bytes], keys: tuple[str, ...], operator: str) -> Iterator[InitialEntry]:
    """Yield the entries in the payloads of a key group, in the order of the frames' partitions."""
    decoded = map(read_payload, payloads)
    for payload in sorted(decoded, key=lambda payload: (payload.source, payload.position)):
        table = payload.table(None)
        name = (table.schema.metadata or {}).get(_STATE)
        yield from entries_of(table, None if name is None else name.decode(), keys, operator)


def pack_initial(
    state: str | None, keys: tuple[str, ...], operator: str, parallelism: int, batches: Iterator[Any]
) -> Iterator[pa.RecordBatch]:
    """Pack the rows of an initial state's frame by key group.

    Args:
        state: Name of the state; ``None`` if a column of the rows has it.
        keys: Columns of the key.
        operator: Name of the operator, for errors.
        parallelism: Number of key groups.
        batches: The rows.
    """
    from pyspark import TaskContext

    metadata: dict[bytes, bytes] = {} if state is None else {_STATE: state.encode()}
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    ids = group_ids(parallelism)
    for position, batch in enumerate(batches):
        for index, part in cut(pa.Table.from_batches([batch]), keys, operator, parallelism):
            rows = part.replace_schema_metadata(metadata).combine_chunks().to_batches()[0]
            payload = RowsEncoder(rows.schema, None).payload(rows, partition, position)
            arrays: list[Any] = [pa.array([ids[index]], pa.int32()), pa.array([payload], pa.binary())]
            yield pa.RecordBatch.from_arrays(arrays, names=["keygroup", "payload"])
