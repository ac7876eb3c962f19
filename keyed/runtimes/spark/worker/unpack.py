"""Unpacking: conversion of the payloads of a key group to a `Batch` for the engine.

Chunks are sorted by their source partition and position, so that a rerun of a batch has its rows in the same order, and
then by timestamp, unless the operator uses arrival order. For a row function, columns become Python objects in chunks
while the batch runs (`keyed.arrow.read.table_chunks`); a vectorized function gets the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import pyarrow as pa

from keyed.arrow.event_times import event_times, time_order
from keyed.arrow.read import column_values, table_chunks
from keyed.base.arguments import MIN_TIMESTAMP
from keyed.engine.batch import Batch, ChannelId, Chunk, InitialEntry, Upstream, entries_of, merged_chunks
from keyed.engine.key_checks import check_table
from keyed.errors import OutputDefinitionError
from keyed.job.functions import OperatorSpec, VectorizedFunction, combines
from keyed.runtimes.spark.worker.wire import STATE, TIMESTAMP, PackedNote, PackedRows, read_payload
from keyed.table_state.batches import combined, in_time_order, with_times


@attrs.frozen
class PackedInput:
    """Packed input of a stage.

    Attributes:
        keys: Key columns.
        time: Column with the event time, a timestamp or milliseconds; ``None`` if there is none, or rows are combined.
        side: The side of a function of two streams; ``None`` for a function of one stream.
        broadcast: True if every key group gets the rows, which have no key.
        stage: Index of the stage whose output it is, if the watermark depends on that stage.
        schema: The expected Arrow schema of the packed rows, which the packer has, too.
    """

    keys: tuple[str, ...]
    time: str | None
    side: int | None = None
    broadcast: bool = False
    stage: int | None = None
    schema: pa.Schema | None = None


@attrs.define(eq=False)
class Incoming:
    """Input of a key group in one micro-batch.

    Attributes:
        batch: The batch for the engine, with what the marks of all tasks have; `batch_of` adds the rest.
        chunks: Payloads of rows by the number of their input, in order.
        notes: Notes to be forwarded, in order.
        upstream: Watermark and status of each key group of the previous stage, by index; empty if there is none.
        passed: Watermarks and statuses of earlier stages, by index.
        bad: The reason of one of the diverted rows; empty if there is none.
    """

    batch: Batch
    chunks: dict[int, list[PackedRows]] = attrs.field(factory=dict)
    notes: list[bytes] = attrs.field(factory=list)
    upstream: dict[int, Upstream] = attrs.field(factory=dict)
    passed: dict[int, Upstream] = attrs.field(factory=dict)
    bad: str = ""


def read_payloads(payloads: Iterable[bytes], clock: int) -> Incoming:
    """Decode the payloads of a key group, which come in any order.

    Args:
        payloads: The payloads.
        clock: Processing time of the batch, milliseconds.

    Raises:
        CorruptionError: A payload is damaged.
    """
    chunks: list[PackedRows] = []
    notes: list[tuple[int, int, bytes]] = []
    highest_times: dict[ChannelId, int] = {}
    batch = Batch(highest=highest_times, processing_time=clock)
    incoming = Incoming(batch)
    for each in map(read_payload, payloads):
        if isinstance(each, PackedNote):
            notes.append((each.source, each.position, each.note))
            continue
        if isinstance(each, PackedRows):
            chunks.append(each)
        mark = each.mark if isinstance(each, PackedRows) else each
        if mark is None:
            continue
        partitions = mark.partitions
        if partitions is None:
            partitions = {} if mark.max_timestamp is None else {"": mark.max_timestamp}
        for name, highest in partitions.items():
            channel = mark.input, name
            highest_times[channel] = max(highest, highest_times.get(channel, highest))
        batch.end_of_input = batch.end_of_input or mark.end
        batch.starts_run = batch.starts_run or mark.starts_run
        incoming.upstream.update(mark.upstream)
        incoming.passed.update(mark.passed)
        batch.rows_bad += mark.rows_bad
        batch.rows_combined += mark.rows_combined
        incoming.bad = incoming.bad or mark.bad
    for rows in sorted(chunks, key=lambda each: (each.input, each.source, each.position)):
        incoming.chunks.setdefault(rows.input, []).append(rows)
    incoming.notes = [note for _, _, note in sorted(notes)]
    return incoming


def reached_before(incoming: Incoming, stage: int, parallelism: int) -> dict[int, Upstream]:
    """Return the watermarks and statuses of the stages before one, by index.

    Args:
        incoming: The input of one of its key groups.
        stage: Its index.
        parallelism: Number of key groups of a stage.
    """
    if not stage:
        return {}
    groups = incoming.upstream
    # A missing mark would advance the watermark beyond rows that are still to come.
    assert len(groups) == parallelism, f"marks of {sorted(groups)} of {parallelism} key groups arrived"
    least = min(each.watermark for each in groups.values())
    return {**incoming.passed, stage - 1: Upstream(least, all(each.idle for each in groups.values()))}


def batch_of(
    incoming: Incoming,
    inputs: Sequence[PackedInput],
    *,
    by_time: bool,
    reached: Mapping[int, Upstream],
    vectorized: bool = False,
    right_first: bool = False,
) -> Batch:
    """Return the engine's batch.

    Args:
        incoming: The input of the group.
        inputs: The inputs of the stage.
        by_time: True if rows run in the order of their timestamps.
        reached: Watermarks and statuses of the earlier stages, by index.
        vectorized: True if the function gets the rows as one table.
        right_first: The rows of the second side are before those of the first one with the same time.
    """
    batch = incoming.batch
    batch.upstream = [reached[stage] for stage in dict.fromkeys(each.stage for each in inputs) if stage is not None]
    if not incoming.chunks:
        return batch
    read = [(incoming.chunks[number], inputs[number]) for number in sorted(incoming.chunks)]
    if vectorized:
        tables = [(partial(_read, chunks, each), each) for chunks, each in read]
        sides = [[part for part in tables if (part[1].side or 0) == side] for side in (0, 1)]
        batch.table, batch.table2 = (partial(_table, side, by_time=by_time) for side in sides)
        return batch
    keyed = [each for each in read if not each[1].broadcast]
    batch.chunks = _merged(keyed, by_time=by_time, right_first=right_first)
    batch.broadcast = _merged([each for each in read if each[1].broadcast], by_time=by_time)
    return batch


def chained_batch(
    table: pa.Table | None,
    packed: PackedInput,
    spec: OperatorSpec,
    upstream: str,
    group: int,
    before: Batch,
    reached: Upstream,
) -> Batch:
    """Return the batch of a chained operator.

    It equals that of `batch_of`: the rows of a key group come from the same group of the previous operator, in the same
    order. All groups of an operator have the same watermark after a batch, because all of them get the marks of all
    tasks.

    Args:
        table: The rows that the previous operator has emitted; ``None`` if there are none.
        packed: The input of the operator.
        spec: The operator.
        upstream: Name of the previous operator.
        group: The key group.
        before: The batch of the previous operator.
        reached: The watermark and status of that operator after the batch.

    Raises:
        RowError: A row has a key of another key group.
        NullKeyError: A key is null.
    """
    batch = Batch(
        starts_run=before.starts_run,
        upstream=[reached],
        processing_time=before.processing_time,
        end_of_input=before.end_of_input,
    )
    if table is None:
        return batch
    check_table(table, spec, upstream, group)
    if combines(spec.function):
        came, table = table.num_rows, combined(spec.function, table, spec.keys, spec.name)
        batch.rows_combined = came - table.num_rows
    if isinstance(spec.function, VectorizedFunction):
        batch.table = partial(_table, [(lambda: table, packed)], by_time=spec.by_time)
    else:
        batch.chunks = _rows(table, packed, by_time=spec.by_time)
    return batch


def _read(chunks: Iterable[PackedRows], packed: PackedInput) -> Any:
    tables = [chunk.table(packed.schema) for chunk in chunks]
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        # The rows of a source always have the same columns.
        raise OutputDefinitionError(
            f"combine returned tables with different columns for different rows ({error}); return the same names and "
            "types"
        ) from error


def _table(read: Sequence[tuple[Callable[[], pa.Table], PackedInput]], *, by_time: bool) -> Any:
    """Return the rows of a side for a vectorized function; ``None`` if there are none."""
    if not read:
        return None
    tables = [with_times(table(), each.time) for table, each in read]
    # A source and an output may have times in different zones.
    table = pa.concat_tables([table.select(tables[0].column_names).cast(tables[0].schema) for table in tables])
    return in_time_order(table) if by_time else table


def _merged(
    read: Sequence[tuple[list[PackedRows], PackedInput]], *, by_time: bool, right_first: bool = False
) -> Callable[[], Iterable[Chunk]]:
    """Return the rows of inputs for a row function."""
    if not read:
        return tuple
    if len(read) == 1 and read[0][1].side is None:
        return _rows(_read(*read[0]), read[0][1], by_time=by_time)
    parts = [(_rows(_read(chunks, each), each, by_time=by_time), each.side) for chunks, each in read]
    timed = by_time and read[0][1].time is not None
    return lambda: merged_chunks([(chunks(), side) for chunks, side in parts], by_time=timed, right_first=right_first)


def _rows(table: pa.Table, packed: PackedInput, *, by_time: bool) -> Callable[[], Iterable[Chunk]]:
    """Return the rows of one input for a row function."""
    time = packed.time
    numbers: Any = None
    if time is not None:
        times = event_times(table.column(time), time)
        # Rows without a timestamp, from processing-time timers of the previous stage, run first.
        numbers = times.fill_null(MIN_TIMESTAMP).to_numpy()
        order = time_order(numbers) if by_time else None
        if order is not None:
            table, times, numbers = table.take(order), times.take(order), numbers[order]
        if times.null_count:
            numbers = column_values(times)
        if time == TIMESTAMP:
            table = table.drop_columns([TIMESTAMP])
    return lambda: table_chunks(table, packed.keys, numbers)


def read_initial(payloads: list[bytes], keys: tuple[str, ...], operator: str) -> Iterator[InitialEntry]:
    """Yield the entries in the payloads of a key group, in the order of the frames' partitions."""
    decoded: Iterator[Any] = map(read_payload, payloads)
    for payload in sorted(decoded, key=lambda payload: (payload.source, payload.position)):
        table = payload.table(None)
        name = (table.schema.metadata or {}).get(STATE)
        yield from entries_of(table, None if name is None else name.decode(), keys, operator)
