"""Initial state on Spark: rows packed by key group, which Spark hands to the processor with its first batch only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

from keyed.engine.initial_rows import InitialEntry, entries_of
from keyed.graph import Stage, is_dataframe
from keyed.runtimes.initial_frames import arrow_table, cut, frames_of
from keyed.runtimes.spark.plan.group_ids import group_ids
from keyed.runtimes.spark.session.ship import Parcel, carried
from keyed.runtimes.spark.worker.wire import HEAD, PACKED, encode_payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.group import GroupedData


def packed_initial(stage: Stage, parallelism: int, parcel: Parcel | None) -> GroupedData | None:
    """Return a stage's initial state by key group; ``None`` if it has none.

    Raises:
        DefinitionError: Something is no frame.
    """
    if stage.initial_state is None:
        return None
    session = stage.source.data.sparkSession
    packed: list[DataFrame] = []
    for state, frame in frames_of(stage.initial_state, stage.function, stage.name):
        rows = frame if is_dataframe(frame) else session.createDataFrame(arrow_table(frame))
        packed.append(
            rows.mapInArrow(carried(parcel, _packing(state, stage.key_columns, stage.name, parallelism)), PACKED)
        )
    return reduce(lambda one, other: one.unionAll(other), packed).groupBy("keygroup")


def read_initial(payloads: list[bytes], keys: tuple[str, ...], operator: str) -> Iterator[InitialEntry]:
    """Yield the entries in what a key group was handed, in the order of the frames' partitions."""
    import pyarrow as pa

    for payload in sorted(payloads, key=lambda payload: HEAD.unpack_from(payload)[1:]):
        table = pa.ipc.open_stream(pa.py_buffer(payload).slice(HEAD.size)).read_all()
        name = (table.schema.metadata or {}).get(_STATE)
        yield from entries_of(table, None if name is None else name.decode(), keys, operator)


_STATE = b"keyed_state"


def _packing(
    state: str | None, keys: tuple[str, ...], operator: str, parallelism: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
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
                    pa.array([encode_payload(b"R", partition, position, rows)], pa.binary()),
                ]
                yield pa.RecordBatch.from_arrays(arrays, names=["keygroup", "payload"])

    return pack
