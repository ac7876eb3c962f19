"""Sources of the local runtime: iterables, DataFrames and Arrow tables, cut into batches of elements.

Rows that earlier runs have consumed are skipped: by `keyed.SeekableSource.seek`, or else by reading the source from its
start, with a check that it begins with those rows (`keyed.runtimes.local.consumed`).
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import attrs
import msgspec

from keyed.arrow.read import table_chunks, table_rows
from keyed.arrow.unreadable import raw_rows
from keyed.base.extras import arrow_table, is_instance
from keyed.base.sources import PAUSE, SeekableSource
from keyed.codec.keys import key_type
from keyed.errors import CheckpointError, DefinitionError, SourceError
from keyed.job.global_tables import GlobalTable, TableReader
from keyed.job.graph import Source, Stage
from keyed.job.transforms import keeps_tables
from keyed.job.vectorized_functions import VectorizedFunction
from keyed.runtimes.local.alignment import Alignment
from keyed.runtimes.local.consumed import ROWS, Tracker
from keyed.runtimes.local.local_position import LocalPosition, SourcePosition
from keyed.runtimes.local.local_rows import (
    Limit,
    SourceRows,
    check_column,
    checked,
    column_times,
    element_of,
    keyed_rows,
    own_element,
    table_of_rows,
    without_unreadable,
)

_log = logging.getLogger(__name__)
#: Rows of a table that are passed at a time.
_PASSED = 100_000
#: Seconds for which one of several sources waits for its first element: at least, and as a share of the time for which
#: all of them have been silent.
_LEAST_WAIT, _SHARE_OF_SILENCE = 0.001, 0.1


@attrs.define(eq=False)
class Arrivals:
    """Rows of a query's sources for a batch.

    Attributes:
        rows: The rows of each input that is a source, by operator and number of the input.
        read: Number of rows read from each source, bad ones included.
        waits: True if no source has rows for now, so that no batch is needed.
    """

    rows: dict[tuple[str, int], SourceRows] = attrs.field(factory=dict)
    read: list[int] = attrs.field(factory=lambda: [0])
    waits: bool = False

    @property
    def highest(self) -> int | None:
        """The highest timestamp, ``None`` if there is none."""
        return max((rows.highest for rows in self.rows.values() if rows.highest is not None), default=None)


def arrivals(
    last: Stage,
    position: LocalPosition,
    size: int,
    *,
    keeps: bool,
    limit_of: Callable[[Source], Limit | None],
    now: Callable[[], int],
    more: float,
    first: int | None = None,
) -> Iterator[Arrivals]:
    """Yield the rows of all sources of a query, batch by batch, from each as many as from a single source (`batches`).

    Each source is read once, for all operators that use it.

    Args:
        last: The last stage.
        position: The rows that earlier runs have consumed.
        size: Rows per batch of each source.
        keeps: True if a checkpoint or changelog keeps the position.
        limit_of: Returns the limit of a source's timestamps.
        now: Returns the processing time, for sources with watermark alignment.
        more: Seconds for which a batch waits for further rows after its first one.
        first: Number of rows of the first batch, if an earlier run has begun it from a single source.

    Raises:
        CheckpointError: Earlier runs have read other sources, or another number of them.
    """
    sources = last.sources
    known = 1 + len(position.beside)
    if position.batches > position.restored and known != len(sources):
        raise CheckpointError(
            f"the checkpoint was written by a query over {known} sources, and this one has {len(sources)}; give it the "
            "same sources, or start from a new checkpoint, with restore_from= its changelog"
        )
    position.beside += [SourcePosition() for _ in sources[1 + len(position.beside) :]]
    _check_own(sources)
    places: list[LocalPosition | SourcePosition] = [position, *position.beside]
    readers = [last.readers_of(source) for source in sources]
    # Global tables have no end: they are polled while another source has rows.
    endless = [isinstance(source.data, GlobalTable) for source in sources]
    reading = []
    for source, by, place in zip(sources, readers, places, strict=True):
        alone = [stage.reading(number) for stage, number in by]
        reading.append(batches(alone, place, size, keeps=keeps, limit=limit_of(source), first=first))
    alignment = Alignment(sources, now)
    waiting: list[Any] = [each.data for each in sources if callable(getattr(each.data, "set_waits", None))]
    silent_since = time.monotonic()
    while True:
        # A silent source delays the rows of the others by no more than a fraction of the time between them.
        silent = (time.monotonic() - silent_since) * _SHARE_OF_SILENCE if len(sources) > 1 else math.inf
        for each in waiting:
            each.set_waits(max(_LEAST_WAIT, silent), more)
        found: list[list[SourceRows] | None] = []
        for number, reader in enumerate(reading):
            if alignment.holds(number) and not endless[number]:
                found.append([SourceRows(waits=True, held=True) for _ in readers[number]])
                continue
            taken = None if endless[number] else next(reader, None)
            alignment.took(number, None if taken is None else taken[0].highest, ended=taken is None)
            found.append(taken)
        if all(each is None for each in found):
            return
        found = [next(each) if is_table else rows for each, is_table, rows in zip(reading, endless, found, strict=True)]
        arrived = Arrivals(read=[0 if each is None else each[0].read for each in found])
        arrived.waits = all(each is None or each[0].waits for each in found)
        if not arrived.waits:
            silent_since = time.monotonic()
        for names, each in zip(readers, found, strict=True):
            for (stage, number), rows in zip(names, each or (), strict=each is not None):
                arrived.rows[stage.name, number] = rows
        # The caller counts the rows of the first source when it commits them.
        for place, read in zip(position.beside, arrived.read[1:], strict=True):
            place.rows += read
        yield arrived


def _check_own(sources: Sequence[Source]) -> None:
    """Refuse sources that can be read only once and are used by two streams.

    Raises:
        DefinitionError: Two streams use one iterator, or one source with positions.
    """
    own = [source.data for source in sources if isinstance(source.data, Iterator | SeekableSource)]
    for number, data in enumerate(own):
        if any(data is other for other in own[:number]):
            raise DefinitionError(
                f"two streams read one {type(data).__name__}, and each element would reach only one of them; create "
                "one keyed.stream(...) of it, which may feed several operators"
            )


def batches(
    readers: Sequence[Stage],
    position: LocalPosition | SourcePosition,
    size: int,
    *,
    keeps: bool,
    limit: Limit | None = None,
    first: int | None = None,
) -> Iterator[list[SourceRows]]:
    """Yield a source's rows after a position, in batches; an empty batch if a waiting source has no rows.

    The position of the source (`LocalPosition.digests`, `LocalPosition.source`) is advanced when a batch is yielded;
    the caller advances `LocalPosition.rows`.

    Args:
        readers: The operators that read it, each with this input alone. A batch has the rows for each of them.
        position: The rows that earlier runs have consumed.
        size: Rows per batch.
        keeps: True if a checkpoint or changelog keeps the position.
        limit: The limit of timestamps.
        first: Number of rows of the first batch, if it is a rerun that has to have the same rows, whatever pauses the
            source has.

    Raises:
        DefinitionError: A column is missing, or the source cannot be iterated.
        CheckpointError: The source is not the one that earlier runs have read.
        RowError: A row is bad, and the stream does not divert bad rows.
    """
    source = readers[0].source
    data = TableReader(source.data) if isinstance(source.data, GlobalTable) else source.data
    if isinstance(data, SeekableSource):
        yield from _seekable_batches(readers, data, position, size, limit, first)
        return
    if position.source is not None:
        raise CheckpointError(
            f"the checkpoint has the position {position.source!r} of a source with seek(position), and "
            f"{type(data).__name__} has none; give that source, or start from a new checkpoint"
        )
    tables = _tables(data)
    if tables is not None:
        yield from _table_batches(readers, tables, position, size, keeps=keeps, limit=limit, first=first)
        _note_end(source)
        return
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise DefinitionError(
            f"source of type {type(data).__name__} is not a stream; give a Spark, pandas or Arrow table, a "
            "pyarrow.RecordBatchReader, or an iterable of elements"
        )
    elements, begin, last = _passed(data, position.rows)
    elements = _no_tables(elements)
    tracker = _tracker(position, begin, last) if keeps or position.digests else None
    for taken in _cut(elements, size, first):
        if tracker is not None and taken:
            tracker.add(len(taken), lambda start, end, taken=taken: taken[start:end])  # type: ignore[misc]
            position.digests = tracker.consumed()
        yield _for_each(readers, taken, limit)
    _note_end(source)


def _note_end(source: Source) -> None:
    if isinstance(source.data, Iterator):
        source.ended.append(True)


def check_not_ended(source: Source) -> None:
    """Check that a source is not an exhausted iterator. Called before a run changes anything.

    Raises:
        SourceError: An earlier run or other code has read it to its end.
    """
    data = source.data
    is_closed = inspect.isgenerator(data) and inspect.getgeneratorstate(data) == inspect.GEN_CLOSED
    if is_closed or source.ended:
        raise SourceError(
            f"the source is an iterator ({type(data).__name__}) that was read to its end already, so this run would "
            "get no rows; give a list, or create the stream again with a new iterator"
        )


def _for_each(readers: Sequence[Stage], taken: list[Any], limit: Limit | None) -> list[SourceRows]:
    """Return elements for each reader, which may change its own copies."""
    if not taken:
        return [SourceRows(waits=True) for _ in readers]
    own = [taken, *([own_element(element) for element in taken] for _ in readers[1:])]
    return [checked(reader, elements, None, limit) for reader, elements in zip(readers, own, strict=True)]


def _seekable_batches(
    readers: Sequence[Stage],
    data: SeekableSource,
    position: LocalPosition | SourcePosition,
    size: int,
    limit: Limit | None,
    first: int | None,
) -> Iterator[list[SourceRows]]:
    if position.source is not None:
        data.seek(position.source)
    elif position.rows:
        raise CheckpointError(
            f"the checkpoint has consumed {position.rows} rows of a source without positions, and "
            f"{type(data).__name__} resumes from positions of its own; give the source that it has read, or start from "
            "a new checkpoint"
        )
    # A source of tables cuts its batches itself.
    tables: Any = getattr(data, "batches", None)
    gives_tables = callable(tables)
    for taken in tables() if gives_tables else _cut(iter(data), size, first):
        position.source = data.position()
        if position.source is None or not _is_plain(position.source):
            raise DefinitionError(
                f"position() of {type(data).__name__} returned {position.source!r}, which a checkpoint cannot store; "
                "return plain data: numbers, text, lists, dictionaries"
            )
        if gives_tables and taken is not PAUSE:
            yield [_of_table(stage, taken, limit) for stage in readers]
        else:
            yield _for_each(readers, [] if taken is PAUSE else taken, limit)


def _no_tables(elements: Iterator[Any]) -> Iterator[Any]:
    """Check that elements are not tables, and return them.

    Raises:
        DefinitionError: The first element is a table, so the elements are parts of one.
    """
    first = list(islice(elements, 1))
    if first and arrow_table(first[0]) is not None:
        raise DefinitionError(
            f"the elements of the source are of type {type(first[0]).__name__}; give a list of them, a "
            "pyarrow.RecordBatchReader, whose columns are known before it is read, or an iterable of their rows"
        )
    return chain(first, elements)


def _is_plain(position: Any) -> bool:
    try:
        return bool(msgspec.msgpack.decode(msgspec.msgpack.encode(position)) == position)
    except (TypeError, ValueError, OverflowError):
        return False


def _cut(elements: Iterator[Any], size: int, first: int | None) -> Iterator[list[Any]]:
    """Cut elements into lists of at most ``size``, shorter at pauses of the source; ``first`` is that of the first one.

    Elements are copied at once, because a source may reuse one dictionary for all.
    """
    wanted = first or size
    while True:
        taken = []
        for element in elements:
            if element is PAUSE:
                if first:
                    continue
                break
            taken.append(element_of(element))
            if len(taken) == wanted:
                break
        else:
            if taken:
                yield taken
            return
        yield taken
        wanted, first = size, None


def _passed(data: Iterable[Any], count: int) -> tuple[Iterator[Any], list[Any], list[Any]]:
    """Return the elements after the first ``count``, and the first and last of the skipped ones.

    Raises:
        CheckpointError: There are fewer elements.
    """
    if isinstance(data, list | tuple):
        _check_length(min(len(data), count), count)
        return islice(data, count, None), list(data[: min(ROWS, count)]), list(data[max(0, count - ROWS) : count])
    elements = iter(data)
    passed = islice((element_of(element) for element in elements if element is not PAUSE), count)
    first = list(islice(passed, ROWS))
    last = deque(first, ROWS)
    there = len(first)
    for element in passed:
        last.append(element)
        there += 1
    _check_length(there, count)
    return elements, first, list(last)


def _tracker(position: LocalPosition | SourcePosition, first: Iterable[Any], last: Iterable[Any]) -> Tracker:
    """Track the consumed rows from the current position of the source.

    Raises:
        CheckpointError: The source does not begin with the consumed rows.
    """
    tracker = Tracker(position.rows, first, last)
    found = tracker.consumed()
    if position.digests is not None and position.digests != found:
        where = "first" if position.digests.first != found.first else "last"
        raise CheckpointError(
            f"the checkpoint has consumed {position.rows} rows, and the {where} {min(position.rows, ROWS)} of them "
            "differ from this source; give the same source from its start, with new rows at its end, or one that "
            "resumes by itself (keyed.SeekableSource), or start from a new checkpoint"
        )
    return tracker


def _arrow(data: Any) -> Any:
    """Return ``data``, a table or a list of tables, as an Arrow table, or ``None`` if it is neither."""
    if not isinstance(data, list | tuple):
        return arrow_table(data)
    tables: list[Any] = []
    for part in data:
        tables.append(arrow_table(part))
        if tables[-1] is None:
            return None
    return sys.modules["pyarrow"].concat_tables(tables, promote_options="permissive") if tables else None


def _tables(data: Any) -> tuple[Sequence[str], Iterator[Any]] | None:
    """Return the columns of ``data`` and its parts as Arrow tables, or ``None`` if it is not a table.

    A ``pyarrow.RecordBatchReader`` is read batch by batch, so that it may be larger than memory.
    """
    if is_instance(data, "pyarrow", "RecordBatchReader"):
        return data.schema.names, map(arrow_table, data)
    table = _arrow(data)
    return None if table is None else (table.column_names, iter([table]))


class _Pieces:
    """The rows of tables that follow each other, in pieces of any size.

    Args:
        tables: The tables.
    """

    def __init__(self, tables: Iterator[Any]) -> None:
        self._tables = tables
        self._rest: Any = None

    def take(self, count: int) -> Any:
        """Return the next rows as a table, fewer at the end; ``None`` if there are no more."""
        taken: list[Any] = []
        missing = count
        while missing:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._tables, None)
                if self._rest is None:
                    break
            piece = self._rest.slice(0, missing)
            self._rest = self._rest.slice(piece.num_rows)
            missing -= piece.num_rows
            if piece.num_rows:
                taken.append(piece)
        if len(taken) < 2:
            return taken[0] if taken else None
        import pyarrow as pa

        return pa.concat_tables(taken)


def _passed_rows(pieces: _Pieces, count: int) -> tuple[list[Any], list[Any]]:
    """Pass rows that earlier runs have consumed, and return the first and the last of them.

    Raises:
        CheckpointError: There are fewer rows.
    """
    first: list[Any] = []
    last: deque[Any] = deque(maxlen=ROWS)
    there = 0
    while there < count:
        piece = pieces.take(min(count - there, _PASSED))
        if piece is None:
            break
        there += piece.num_rows
        first += raw_rows(piece.slice(0, max(0, ROWS - len(first))))
        last.extend(raw_rows(piece.slice(max(0, piece.num_rows - ROWS))))
    _check_length(there, count)
    return first, list(last)


def _table_batches(
    readers: Sequence[Stage],
    tables: tuple[Sequence[str], Iterator[Any]],
    position: LocalPosition | SourcePosition,
    size: int,
    *,
    keeps: bool,
    limit: Limit | None,
    first: int | None,
) -> Iterator[list[SourceRows]]:
    columns, parts = tables
    for stage in readers:
        for name in _needed(stage):
            check_column(name, list(columns), stage.name)
    pieces = _Pieces(parts)
    begin, last = _passed_rows(pieces, position.rows)
    tracker = _tracker(position, begin, last) if keeps or position.digests else None
    wanted = first or size
    while (batch := pieces.take(wanted)) is not None:
        if tracker is not None:
            tracker.add(batch.num_rows, lambda first, end, batch=batch: raw_rows(batch.slice(first, end - first)))  # type: ignore[misc]
            position.digests = tracker.consumed()
        yield [_of_table(stage, batch, limit) for stage in readers]
        wanted = size


def _needed(stage: Stage) -> tuple[str, ...]:
    """Return the columns of keys and timestamps."""
    timestamp = stage.source.timestamp
    return (() if stage.inputs[0].steps else stage.key_columns) + ((timestamp,) if isinstance(timestamp, str) else ())


def _of_table(stage: Stage, batch: Any, limit: Limit | None) -> SourceRows:
    """Return a part of a table as the rows of a batch."""
    source, keys, read = stage.source, stage.keys, batch.num_rows
    batch, unreadable = without_unreadable(source, stage.name, batch)
    if not batch.num_rows:
        rows = SourceRows()
    elif stage.inputs[0].steps:
        rows = _table_after_steps(stage, batch, limit) or checked(
            stage, table_rows(batch), column_times(source, batch), limit
        )
    elif isinstance(stage.function, VectorizedFunction):
        from keyed.runtimes.local.table_rows import source_rows

        rows = source_rows(stage, batch, limit)
    elif (
        callable(keys)
        or callable(source.time)
        or source.watermark.partition_by is not None
        or any(batch.column(name).null_count for name in _needed(stage))
    ):
        rows = checked(stage, table_rows(batch), column_times(source, batch), limit)
    else:
        rows = _table_rows(stage, batch, keys, source.time)
        if limit is not None and rows.highest is not None and rows.highest > limit():
            rows = checked(stage, table_rows(batch), column_times(source, batch), limit)
    return attrs.evolve(rows, read=read, bad=[*unreadable, *rows.bad])


def _table_after_steps(stage: Stage, batch: Any, limit: Limit | None) -> SourceRows | None:
    """Return a part of a table after functions of tables, as a table; ``None`` if something has to look at rows."""
    from keyed.arrow.event_times import event_times
    from keyed.runtimes.transforming import TransformedRows, transformed

    source, read, timestamp = stage.source, stage.inputs[0], stage.source.time
    if not keeps_tables(read.steps) or callable(timestamp) or source.watermark.partition_by is not None:
        return None
    rows, times = SourceRows(), None
    if timestamp is not None:
        times = event_times(batch.column(timestamp), timestamp)
        if times.null_count:
            return None
        rows.highest = int(times.to_numpy().max())
        if limit is not None and rows.highest > limit():
            return None
    after = transformed(TransformedRows(times, read.before_steps, None, batch), read.steps, stage.name)
    if after.count:
        table = after.table(f"operator {stage.name!r}")
        if any(name in table.column_names and table.column(name).null_count for name in stage.key_columns):
            return None
    if isinstance(stage.function, VectorizedFunction):
        made = table_of_rows(after, stage.name)
    else:
        made = keyed_rows(read, after, stage.name)
    made.highest = rows.highest
    return made


def _check_length(there: int, consumed: int) -> None:
    """Check that a source still has the rows that earlier runs have consumed.

    Raises:
        CheckpointError: The source is shorter: it is another one, or has only new rows.
    """
    if there < consumed:
        raise CheckpointError(
            f"the checkpoint has consumed {consumed} rows of the source, which has only {there}; give the same source "
            "from its start, with new rows at its end, or start from a new checkpoint"
        )


def _table_rows(stage: Stage, batch: Any, keys: Sequence[str], timestamp: str | None) -> SourceRows:
    """Return rows of a table without bad rows, in the order in which they run."""
    from keyed.arrow.event_times import event_times, time_order
    from keyed.table_state.batches import check_key_types, first_key

    check_key_types(batch, keys, stage.name)
    times, highest = None, None
    if timestamp is not None:
        times = event_times(batch.column(timestamp), timestamp).to_numpy()
        highest = int(times.max())
        order = time_order(times) if stage.order != "arrival" else None
        if order is not None:
            batch, times = batch.take(order), times[order]
    return SourceRows(
        lambda: table_chunks(batch, keys, times),
        read=batch.num_rows,
        highest=highest,
        key_type=key_type(first_key(batch, keys)),
    )
