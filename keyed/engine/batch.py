"""Inputs and results of a key group in a micro-batch: rows in one sequence, and the watermark of their channels.

The watermark of an operator that reads several streams or partitions is the least of those that count. A *channel* is a
source, a partition of a source whose strategy distinguishes them, or the output of another operator. An output has the
watermark of its operator, and is idle if all inputs of the operator are. The rules are those of Flink's
``StatusWatermarkValve``. A channel that was silent for the time-out of its strategy is idle and does not count. A
channel that returns behind the operator's watermark does not count before it has caught up. When all are idle, the
watermark goes to the greatest of theirs. It never goes back.

Ingestion time is assigned by the key group, because it knows the processing time of earlier batches, and none goes back
behind them. Every key group gets every batch, so all of them have the same time.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from keyed.arrow.read import column_values, plain_values, table_rows
from keyed.base.arguments import MIN_TIMESTAMP, instant_ms, shown
from keyed.changelog.model import Channel
from keyed.errors import DefinitionError, RowError
from keyed.job.functions import TIMESTAMP_COLUMN, OperatorSpec, combines
from keyed.job.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    import pyarrow as pa


class OutputConsumer(Protocol):
    """Consumes main outputs while the batch runs, so that few of them are Python objects at a time."""

    def take(self, emitted: Emitted) -> None:
        """Consume the outputs since the last call; ``emitted`` is cleared afterwards."""

    def restart(self) -> None:
        """Discard the consumed outputs: the batch runs again from its start."""


#: Keys, timestamps, elements, and the side of each if a function reads two.
Chunk = tuple[Sequence[Any], Sequence[Any] | None, Iterable[Any], Sequence[int] | None]


def _no_table() -> None:
    return None


@attrs.define(eq=False)
class Batch:
    """The rows and marks of one micro-batch for one key group.

    Attributes:
        chunks: The rows in the order in which they run (by timestamp, stable by arrival, or by arrival alone), in
            chunks, created on demand so that few Python objects exist at a time. A chunk is the key of each row, the
            event timestamp of each row in milliseconds (or ``None`` if the stream has no event time), the elements, and
            the side of each (or ``None`` if all belong to the first).
        table: For a vectorized function, in place of ``chunks``: the rows in the order in which they run, with
            `keyed.vectorized.TIMESTAMP_COLUMN` if the stream has event time.
        table2: The same for the second side of a function of two streams.
        broadcast: The broadcast elements, the same for all key groups and in the order in which they run; as
            ``chunks``, but with meaningless keys.
        highest: Highest timestamp over all rows of the batch in all key groups by channel, for channels with rows.
        upstream: Watermark and status of each operator whose output is read.
        watermark: The watermark after the batch, if it is set by hand.
        processing_time: The batch's processing time in milliseconds.
        starts_run: True if the query was stopped since the previous batch: that time does not count as silence.
        end_of_input: True if the input ends with this batch: the watermark goes to 2^63 − 1.
        key_type: Type of the keys of all key groups (`keyed.codec.keys.key_type`); empty while none is known.
        rows_bad: Rows that were diverted before the operator, counted in one of its key groups.
        rows_combined: Number of rows that `keyed.vectorized.VectorizedFunction.combine` has saved in all key groups,
            counted in one of them.
        consumer: Consumes the main output in parts; without it, the whole output is in the result.
        id: Id of the batch, if the runtime also numbers batches in which no key group ran.
        initial: Initial entries of a key group without state, if there are any; other groups ignore it.
    """

    chunks: Callable[[], Iterable[Chunk]] = tuple
    table: Callable[[], pa.Table | None] = _no_table
    table2: Callable[[], pa.Table | None] = _no_table
    broadcast: Callable[[], Iterable[Chunk]] = tuple
    highest: Mapping[ChannelId, int] = attrs.field(factory=dict)
    upstream: Sequence[Upstream] = ()
    watermark: int | None = None
    processing_time: int = 0
    starts_run: bool = False
    end_of_input: bool = False
    key_type: str = ""
    rows_bad: int = 0
    rows_combined: int = 0
    consumer: OutputConsumer | None = None
    initial: Callable[[], Iterable[InitialEntry]] | None = None
    id: int | None = None


class Emitted:
    """Values emitted to one output, in order, with their timestamps run-length encoded.

    Attributes:
        values: The values.
        runs: Pairs (end index, timestamp): values up to the index, from the end of the previous run, have the
            timestamp.
    """

    __slots__ = ("runs", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.runs: list[tuple[int, int | None]] = [(0, None)]

    def close_run(self, timestamp: int | None) -> None:
        """Set the timestamp of the values since the end of the last run."""
        end = len(self.values)
        last, before = self.runs[-1]
        if end != last:
            if before == timestamp and last:
                self.runs[-1] = (end, timestamp)
            else:
                self.runs.append((end, timestamp))

    def clear(self) -> None:
        """Remove all values."""
        self.values.clear()
        self.runs[:] = [(0, None)]

    def extend(self, other: Emitted) -> None:
        """Append the values of another output."""
        start = len(self.values)
        self.values += other.values
        self.runs += [(start + end, timestamp) for end, timestamp in other.runs if end]

    def timestamps(self) -> list[int | None]:
        """Return the timestamp of each value."""
        result: list[int | None] = []
        start = 0
        for end, timestamp in self.runs:
            result += [timestamp] * (end - start)
            start = end
        return result


class EmittedTables:
    """Tables emitted to one output, in order; timestamps, if any, are in `keyed.vectorized.TIMESTAMP_COLUMN`.

    Attributes:
        tables: The tables, none of them empty.
    """

    __slots__ = ("tables",)

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(table.num_rows for table in self.tables)

    @property
    def values(self) -> list[Any]:
        """The rows as Python objects, without their timestamps."""
        rows: list[Any] = []
        for table in self.tables:
            names = [name for name in table.column_names if name != TIMESTAMP_COLUMN]
            rows += table_rows(table.select(names))
        return rows

    def timestamps(self) -> list[int | None]:
        """Return the timestamp of each row."""
        times: list[int | None] = []
        for table in self.tables:
            has_times = TIMESTAMP_COLUMN in table.column_names
            times += column_values(table.column(TIMESTAMP_COLUMN)) if has_times else [None] * table.num_rows
        return times

    def extend(self, other: EmittedTables) -> None:
        """Append the rows of another output."""
        self.tables += other.tables


@attrs.frozen(eq=False)
class BatchResult:
    """Result of a key group for a batch.

    Attributes:
        main: The main output.
        side: Side outputs by tag name.
        watermark: The group's watermark after the batch.
        metrics: Cumulative counters of the group by name, see `keyed.engine.group_log.COUNTERS`.
        commit: Number of the group's last commit.
        changed: True if the batch, or one that waits for its export to the changelog, changed entries of the group.
        due: Processing time at which the group has work without rows, ``None`` if it has none.
        staged: The attempt, if the changelog has the batch staged; otherwise empty.
        idle: True if all inputs of the operator are idle.
        export_at: Processing time from which a batch exports the changes.
        waiting: Number of batches before the last one that wait for their export.
        held_by: Number of the input that held the watermark in this batch, as `Advance` has it.
    """

    main: Emitted | EmittedTables
    side: dict[str, Emitted] | dict[str, EmittedTables]
    watermark: int
    metrics: dict[str, int]
    commit: int = 0
    changed: bool = False
    due: int | None = None
    staged: str = ""
    idle: bool = False
    export_at: int = 0
    waiting: int = 0
    held_by: int | None = None


#: Chunks of one input, and its side; ``None`` if the function has one side.
Part = tuple[Iterable[Chunk], int | None]


def merged_chunks(parts: Sequence[Part], *, by_time: bool, right_first: bool = False) -> Iterator[Chunk]:
    """Yield the rows of several inputs by time; rows of equal times in the order of the inputs.

    Args:
        parts: The inputs, each in the order in which it would run alone.
        by_time: True if rows run by time; all of them need a time then. Otherwise one input runs after the other.
        right_first: The inputs of the second side are before those of the first one.
    """
    if right_first:
        parts = sorted(parts, key=lambda part: -(part[1] or 0))
    if not by_time:
        for chunks, side in parts:
            yield from (_of_side(chunk, side) for chunk in chunks)
        return
    heads = [head for head in (_Head(iter(chunks), side) for chunks, side in parts) if head.fill()]
    while len(heads) > 1:
        # No later row of any input is before the end of the chunk that ends first.
        first = min(heads, key=lambda head: head.last)
        until, is_after = first.last, False
        pieces = []
        for head in heads:
            pieces.append(head.take(until, inclusive=not is_after))
            is_after = is_after or head is first
        yield merged_by_time(pieces)
        heads = [head for head in heads if head.fill()]
    for head in heads:
        yield head.take(None)
        yield from (_of_side(chunk, head.side) for chunk in head.chunks)


def _of_side(chunk: Chunk, side: int | None) -> Chunk:
    keys, times, values, _ = chunk
    return keys, times, values, None if side is None else [side] * len(keys)


class _Head:
    """The current chunk of an input, and the index of its first unread row."""

    def __init__(self, chunks: Iterator[Chunk], side: int | None) -> None:
        self.chunks, self.side = chunks, side
        self._keys: Sequence[Any] = ()
        self._times: Sequence[Any] = ()
        self._order: Sequence[int] = ()
        self._values: Sequence[Any] = ()
        self._start = 0

    def fill(self) -> bool:
        """Read the next chunk if the current one is used up. Returns true if there are rows."""
        while self._start == len(self._keys):
            chunk = next(self.chunks, None)
            if chunk is None:
                return False
            keys, times, values, _ = chunk
            assert times is not None
            self._keys, self._times, self._values, self._start = keys, times, list(values), 0
            self._order = order_of(times)
        return True

    @property
    def last(self) -> int:
        """Return the time of the chunk's last row."""
        return self._order[-1]

    def take(self, until: int | None, *, inclusive: bool = True) -> Chunk:
        """Remove and return the rows up to a time, or before it; all rows without a time."""
        start, end = self._start, len(self._keys)
        if until is not None:
            end = (bisect_right if inclusive else bisect_left)(self._order, until, start)
        self._start = end
        keys, times, values = self._keys[start:end], self._times[start:end], self._values[start:end]
        return keys, times, values, None if self.side is None else [self.side] * (end - start)


def order_of(times: Sequence[Any]) -> Sequence[int]:
    """Return the sort keys of times: rows of processing-time timers, which have none, come first."""
    return [MIN_TIMESTAMP if time is None else time for time in times] if None in times else times


def merged_by_time(chunks: Sequence[Chunk]) -> Chunk:
    """Return chunks as one, sorted by time; rows of equal times in the order of the chunks."""
    import numpy as np

    keys = [key for chunk in chunks for key in chunk[0]]
    times: list[Any] = [time for chunk in chunks for time in chunk[1] or ()]
    values = [value for chunk in chunks for value in chunk[2]]
    sides = None if chunks[0][3] is None else [side for chunk in chunks for side in chunk[3] or ()]
    if len(keys) < 2:
        return keys, times, values, sides
    order = np.argsort(np.array(order_of(times)), kind="stable").tolist()
    pick: Callable[[Any], tuple[Any, ...]] = itemgetter(*order)
    return pick(keys), pick(times), pick(values), None if sides is None else pick(sides)


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


#: The number of an input, and the name of a partition, which is empty if the strategy does not distinguish partitions.
ChannelId = tuple[int, str]


@attrs.frozen
class Upstream:
    """Watermark and status of an upstream operator.

    Attributes:
        watermark: The least watermark of its key groups.
        idle: True if all its inputs are idle.
    """

    watermark: int
    idle: bool = False


@attrs.frozen
class Advance:
    """The channels after a batch.

    Attributes:
        channels: The channels of the sources after it.
        watermark: The operator's watermark after it.
        idle_in_ms: Processing time until the next channel becomes idle, ``None`` if none does.
        idle: True if all are idle.
        held_by: Number of the input that holds the watermark below that of another one, ``None`` if none does; upstream
            operators are numbered after the inputs.
    """

    channels: list[Channel]
    watermark: int
    idle_in_ms: int | None
    idle: bool
    held_by: int | None = None


def counts_channels(strategies: Sequence[WatermarkStrategy | None]) -> bool:
    """Return true if the watermark depends on channels: there are several, or one that may be idle."""
    declared = [each for each in strategies if each is not None]
    return len(declared) > 1 or any(each.partition_by or each.idleness_ms for each in declared)


def advance(
    strategies: Sequence[WatermarkStrategy | None],
    channels: Sequence[Channel],
    highest: Mapping[ChannelId, int],
    watermark: int,
    elapsed_ms: int,
    upstream: Collection[Upstream] = (),
) -> Advance:
    """Return the channels and the operator's watermark after a batch.

    Args:
        strategies: The strategy of each input; ``None`` for an output of another operator.
        channels: The channels of the sources before the batch; none before the first one.
        highest: Highest timestamp of the batch's rows by channel, for channels with rows; `MIN_TIMESTAMP` for an input
            that was held back: it has unread rows, so none of its channels is silent.
        watermark: The operator's watermark before it.
        elapsed_ms: Processing time since the previous batch, 0 if the query was stopped in between.
        upstream: Watermarks and statuses of the other operators whose outputs are read.
    """
    sources = {index: strategy for index, strategy in enumerate(strategies) if strategy is not None}
    held = {place[0] for place, time in highest.items() if time == MIN_TIMESTAMP}
    highest = {place: time for place, time in highest.items() if place[0] in sources.keys() - held}
    # A strategy may have changed: partitions that it no longer distinguishes are not channels.
    followed = (each for each in channels if each.input in sources)
    known = {
        (channel.input, channel.partition): channel
        for channel in followed
        if not channel.partition or sources[channel.input].partition_by
    }
    for index in sources:
        # An input is one channel until a partition of it is known.
        if not any(number == index for number, _ in (*known, *highest)):
            known[index, ""] = Channel(index, "", watermark)
    for index, partition in highest:
        if partition:
            known.pop((index, ""), None)
        known.setdefault((index, partition), Channel(index, partition, MIN_TIMESTAMP if channels else watermark))
    after = []
    for place, channel in known.items():
        if (time := highest.get(place)) is not None:
            reached = max(channel.watermark, time - sources[channel.input].delay_ms - 1)
            after.append(attrs.evolve(channel, watermark=reached, silent_ms=0))
        else:
            silent = 0 if channel.input in held else elapsed_ms
            after.append(attrs.evolve(channel, silent_ms=channel.silent_ms + silent))
    active = [(each.watermark, number) for number, each in enumerate(upstream, len(strategies)) if not each.idle]
    idle_in = []
    for channel in after:
        timeout = sources[channel.input].idleness_ms
        if timeout is None or channel.silent_ms < timeout:
            active.append((channel.watermark, channel.input))
            if timeout is not None:
                idle_in.append(timeout - channel.silent_ms)
    held_by = None
    if not active:
        reached = max(each.watermark for group in (after, upstream) for each in group)
    else:
        reached, lowest = min((each for each in active if each[0] >= watermark), default=(watermark, None))
        held_by = lowest if max(active)[0] > reached else None
    return Advance(
        sorted(after, key=lambda each: (each.input, each.partition)),
        max(watermark, reached),
        min(idle_in, default=None),
        not active,
        held_by,
    )


#: Names of columns in `StateDataset` and Spark's reader, with the names here.
_ALIASES = {"valid_from": "entry", "user_map_key": "entry", "user_map_value": "value", "list_element": "value"}
#: Columns of these that are not part of an entry.
_NOT_READ = {"valid_to", "partition_id"}
_NAMED = ("state", "namespace", "entry", "value", "expires")


@attrs.frozen
class InitialEntry:
    """An initial entry of a key group.

    Attributes:
        key: Its key.
        state: Name of its state, or ``timer:`` and the domain of a timer.
        entry: Key of a map entry, place in a list, time from which a version is valid, name of a timer.
        value: Its value, or the time of a timer; a dictionary if its fields have their own columns.
        expires: Its expiry time in milliseconds, if it was given.
        namespace: The namespace of the state, ``None`` for the state itself.
        row: The source row, for messages.
    """

    key: Any
    state: str
    entry: Any
    value: Any
    expires: int | None
    namespace: Any
    row: dict[str, Any]


def key_columns(names: Sequence[str], keys: Sequence[str], operator: str) -> list[str]:
    """Return the columns of the key: those of ``key_by``, or ``key``, or ``key_1``, ``key_2`` and so on.

    Raises:
        DefinitionError: There are none.
    """
    if keys and all(key in names for key in keys):
        return list(keys)
    if "key" in names and len(keys) <= 1:
        return ["key"]
    numbered = [name for number in range(1, len(names) + 1) if (name := f"key_{number}") in names]
    if numbered and len(numbered) == len(keys or numbered):
        return numbered
    labels = ", ".join(keys) or "key"
    raise DefinitionError(
        f"operator {operator!r}: initial_state has columns {', '.join(names)}, and none for the key; name them {labels}"
    )


def flattened(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return a table with the columns of the key in place of a struct ``key``, as in Spark's state reader."""
    import pyarrow as pa

    if "key" not in table.column_names or not pa.types.is_struct(table.schema.field("key").type):
        return table
    key: Any = table.column("key").combine_chunks()
    parts = key.flatten()
    names = list(keys) if len(keys) == len(parts) else [f"key_{number}" for number in range(1, len(parts) + 1)]
    rest = table.drop_columns(["key"])
    return pa.table([*parts, *rest.columns], names=[*(names if len(parts) > 1 else names[:1]), *rest.column_names])


def entries_of(table: pa.Table, state: str | None, keys: Sequence[str], operator: str) -> Iterator[InitialEntry]:
    """Yield the entries of a table.

    Args:
        table: The rows.
        state: Name of the state, if all rows belong to one; otherwise there is a column ``state``, or one for each
            state.
        keys: The key columns of the stream.
        operator: Name of the operator, for messages.

    Raises:
        DefinitionError: There are no columns for the key.
        RowError: A row cannot be read.
    """
    table = flattened(table, keys)
    columns = key_columns(table.column_names, keys, operator)
    names = [_ALIASES.get(name, name) for name in table.column_names]
    rest = [name for name in names if name not in columns and name not in _NOT_READ and name not in _NAMED]
    for batch in table.rename_columns(names).to_batches(max_chunksize=8192):
        for values in zip(*map(plain_values, batch.columns), strict=True):
            row = dict(zip(names, values, strict=True))
            key = row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns)
            namespace = _namespace(row)
            expires, entry = _milliseconds(row.get("expires")), _plain(row.get("entry"))
            name = row.get("state") if state is None else state
            if name is None and "state" in row:
                raise RowError(f"initial_state, row {shown(row)}: the state is null; give its name")
            if name is not None:
                fields = [*rest, *(["value"] if "value" in row else [])]
                value = row["value"] if fields == ["value"] else {field: row[field] for field in fields}
                yield InitialEntry(key, name, entry, value, expires, namespace, row)
                continue
            for column in [*rest, *(["value"] if "value" in row else [])]:
                if row[column] is not None:
                    yield InitialEntry(key, column, entry, row[column], expires, namespace, row)


def _milliseconds(time: Any) -> int | None:
    return instant_ms(time) if isinstance(time, datetime) else time


def _namespace(row: dict[str, Any]) -> Any:
    """Return the namespace of a row: a text is JSON, as in state tables; any other value is the namespace.

    Raises:
        RowError: A text is not JSON.
    """
    namespace = row.get("namespace")
    if isinstance(namespace, str):
        try:
            namespace = json.loads(namespace)
        except ValueError:
            raise RowError(
                f"initial_state, row {shown(row)}: a text in the column namespace has to be JSON, as in state tables: "
                f"{json.dumps(namespace)!r} for {namespace!r}"
            ) from None
    return _with_tuples(_plain(namespace))


def _with_tuples(namespace: Any) -> Any:
    return tuple(map(_with_tuples, namespace)) if isinstance(namespace, list | tuple) else namespace


def _plain(entry: Any) -> Any:
    """Return the value of an entry: for a struct, its field or the tuple of its fields."""
    if not isinstance(entry, dict):
        return entry
    parts = tuple(entry.values())
    return parts[0] if len(parts) == 1 else parts
