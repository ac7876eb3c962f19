"""Initial state in the Python workers: rows are packed by key group, and read by the group's first batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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


def packing_of(
    state: str | None, keys: tuple[str, ...], operator: str, parallelism: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function that packs the rows of an initial state's frame by key group.

    Args:
        state: Name of the state; ``None`` if a column of the rows has it.
        keys: Columns of the key.
        operator: Name of the operator, for errors.
        parallelism: Number of key groups.
    """
    metadata: dict[bytes, bytes] = {} if state is None else {_STATE: state.encode()}

    def pack(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        ids = group_ids(parallelism)
        for position, batch in enumerate(batches):
            table = pa.Table.from_batches([batch])
            for index, part in cut(table, keys, operator, parallelism):
                rows = part.replace_schema_metadata(metadata).combine_chunks().to_batches()[0]
                arrays: list[Any] = [
                    pa.array([ids[index]], pa.int32()),
                    pa.array([RowsEncoder(rows.schema, None).payload(rows, partition, position)], pa.binary()),
                ]
                yield pa.RecordBatch.from_arrays(arrays, names=["keygroup", "payload"])

    return pack
