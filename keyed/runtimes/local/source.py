"""Sources of the local runtime: iterables, DataFrames and Arrow tables, cut into batches of elements.

Rows that earlier runs have consumed are skipped: by `keyed.SeekableSource.seek`, or else by reading the source from its
start, with a check that it begins with those rows (`Consumed`).

Watermark alignment: sources that are ahead of their group are not read until the others have caught up. As in Flink, a
source is held back while its watermark is more than the drift ahead of the least in its group. Sources
that have ended or are idle do not count. A source is read batch by batch, so it may be a batch further ahead. The
watermark of a source is known from its first rows in this run.
"""

from __future__ import annotations

import inspect
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from typing import Any

import attrs
import msgspec

from keyed.arrow.read import raw_rows, table_rows
from keyed.base.arguments import MIN_TIMESTAMP
from keyed.base.extras import arrow_table, is_instance
from keyed.base.sources import PAUSE, SeekableSource
from keyed.errors import CheckpointError, DefinitionError, KeyedError, QueryFailed, SourceError
from keyed.job.functions import VectorizedFunction
from keyed.job.global_tables import GlobalTable, TableReader
from keyed.job.graph import Source, Stage, keeps_tables
from keyed.runtimes.local.local_position import ROWS, LocalPosition, SourcePosition, Tracker
from keyed.runtimes.local.local_rows import (
    Limit,
    SourceRows,
    check_column,
    checked,
    column_times,
    element_of,
    own_element,
    transformed_rows,
    without_unreadable,
)


@attrs.define(eq=False)
class _Aligned:
    source: Source
    watermark: int = MIN_TIMESTAMP
    last_ms: int = 0
    ended: bool = False


class Alignment:
    """Decides which sources of a query are read.

    Args:
        sources: The sources, in order.
        now: Processing time, milliseconds.
    """

    def __init__(self, sources: Sequence[Source], now: Callable[[], int]) -> None:
        self._sources = {
            number: _Aligned(source, last_ms=now())
            for number, source in enumerate(sources)
            if source.watermark.alignment_group is not None
        }
        self._now = now

    def holds(self, number: int) -> bool:
        """Return true if a source has to wait for others."""
        mine = self._sources.get(number)
        if mine is None or mine.watermark == MIN_TIMESTAMP:
            return False
        name, drift_ms = mine.source.watermark.alignment_group, mine.source.watermark.max_drift_ms
        group = [each for each in self._sources.values() if each.source.watermark.alignment_group == name]
        least = min((each.watermark for each in group if not self._is_silent(each)), default=mine.watermark)
        is_held = mine.watermark > least + (drift_ms or 0)
        if is_held:
            # A source that is not read does not count as silent.
            mine.last_ms = self._now()
        return is_held

    def took(self, number: int, highest: int | None, *, ended: bool) -> None:
        """Record the rows read from a source: its highest timestamp, ``None`` if there was none."""
        mine = self._sources.get(number)
        if mine is None:
            return
        mine.ended = ended
        if highest is not None:
            mine.watermark = max(mine.watermark, highest - mine.source.watermark.delay_ms - 1)
            mine.last_ms = self._now()

    def _is_silent(self, each: _Aligned) -> bool:
        idleness = each.source.watermark.idleness_ms
        return each.ended or (idleness is not None and self._now() - each.last_ms >= idleness)


_Position = LocalPosition | SourcePosition
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
) -> Generator[Arrivals]:
    """Yield the rows of all sources of a query, batch by batch, from each as many as from a single source.

    Each source is read once, for all operators that use it. Closing it ends the iterations of the sources.

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
        QueryFailed: A source raised; the message names it and its rows so far.
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
    places: list[_Position] = [position, *position.beside]
    readers = [last.readers_of(source) for source in sources]
    # Global tables have no end: they are polled while another source has rows.
    endless = [isinstance(source.data, GlobalTable) for source in sources]
    reading: list[Generator[list[SourceRows]]] = []
    for source, by, place in zip(sources, readers, places, strict=True):
        alone = [stage.reading(number) for stage, number in by]
        source_reader = SourceReader(alone, place, size, keeps, limit_of(source), first)
        reading.append(_named(source_reader, len(reading) + 1 if len(sources) > 1 else 0))
    alignment = Alignment(sources, now)
    waiting: list[Any] = [each.data for each in sources if callable(getattr(each.data, "set_waits", None))]
    silent_since = time.monotonic()
    try:
        while True:
            # A silent source delays the rows of the others by no more than a fraction of the time between them.
            silent = (time.monotonic() - silent_since) * _SHARE_OF_SILENCE if len(sources) > 1 else math.inf
            for each in waiting:
                each.set_waits(max(_LEAST_WAIT, silent), more)
            parts: list[list[SourceRows] | None] = []
            for number, reader in enumerate(reading):
                if alignment.holds(number) and not endless[number]:
                    parts.append([SourceRows(waits=True, held=True) for _ in readers[number]])
                    continue
                next_rows = None if endless[number] else next(reader, None)
                alignment.took(number, None if next_rows is None else next_rows[0].highest, ended=next_rows is None)
                parts.append(next_rows)
            if all(each is None for each in parts):
                return
            parts = [
                next(each) if is_table else rows for each, is_table, rows in zip(reading, endless, parts, strict=True)
            ]
            arrived = Arrivals(read=[0 if each is None else each[0].read for each in parts])
            arrived.waits = all(each is None or each[0].waits for each in parts)
            if not arrived.waits:
                silent_since = time.monotonic()
            for names, each in zip(readers, parts, strict=True):
                for (stage, number), rows in zip(names, each or (), strict=each is not None):
                    arrived.rows[stage.name, number] = rows
            # The caller counts the rows of the first source when it commits them.
            for place, read in zip(position.beside, arrived.read[1:], strict=True):
                place.rows += read
            yield arrived
    finally:
        # An error that is kept would keep them open, with their connections.
        for reader in reading:
            reader.close()


def _named(reader: SourceReader, number: int) -> Generator[list[SourceRows]]:
    """Yield the batches of a source, whose errors name it, by its number if there are several."""
    place, kind = reader.position, type(reader.readers[0].source.data).__name__
    name = f"source {number} ({kind})" if number else f"the source ({kind})"
    try:
        yield from reader.batches()
    except KeyedError as error:
        if number and isinstance(error, SourceError):
            raise SourceError(f"{name} failed after {place.rows} rows: {error}") from error
        if number:
            error.add_note(f"in {name}, after {place.rows} rows")
        raise
    except Exception as error:
        raise QueryFailed(f"{name} failed after {place.rows} rows: {type(error).__name__}: {error}") from error


def _read_once(sources: Sequence[Source]) -> list[Any]:
    """Return the iterators and the sources with positions, whose elements reach one reader."""
    return [source.data for source in sources if isinstance(source.data, Iterator | SeekableSource)]


#: The query that reads each of those sources, by the source's identity.
_readers: dict[int, object] = {}


@contextmanager
def read_alone(sources: Sequence[Source]) -> Iterator[None]:
    """Keep other queries of this process from reading the same iterators, and sources with positions.

    Raises:
        DefinitionError: Another query is reading one.
    """
    query = object()
    with ExitStack() as stack:
        for data in _read_once(sources):
            if _readers.setdefault(id(data), query) is not query:
                raise DefinitionError(
                    f"another query of this program is reading this {type(data).__name__}, and each element would "
                    "reach only one of the queries; create one for each query"
                )
            stack.callback(_readers.pop, id(data), None)
        yield


def _check_own(sources: Sequence[Source]) -> None:
    """Refuse sources that can be read only once and are used by two streams.

    Raises:
        DefinitionError: Two streams use one iterator, or one source with positions.
    """
    own = _read_once(sources)
    for number, data in enumerate(own):
        if any(data is other for other in own[:number]):
            raise DefinitionError(
                f"two streams read one {type(data).__name__}, and each element would reach only one of them; create "
                "one keyed.stream(...) of it, which may feed several operators"
            )


@attrs.frozen(eq=False)
class SourceReader:
    """Reads a source after a position, for the operators that use it.

    Attributes:
        readers: The operators that read it, each with this input alone.
        position: The rows that earlier runs have consumed. Its ``digests`` and ``source`` are advanced when a batch is
            yielded; the caller advances its ``rows``.
        size: Rows per batch.
        keeps: True if a checkpoint or changelog keeps the position.
        limit: The limit of timestamps.
        first: Number of rows of the first batch, if it is a rerun that has to have the same rows, whatever pauses the
            source has.
    """

    readers: Sequence[Stage]
    position: _Position
    size: int
    keeps: bool
    limit: Limit | None = None
    first: int | None = None

    def batches(self) -> Iterator[list[SourceRows]]:
        """Yield batches with the rows for each operator; an empty batch if a waiting source has no rows.

        Raises:
            DefinitionError: A column is missing, or the source cannot be iterated.
            CheckpointError: The source is not the one that earlier runs have read.
            RowError: A row is bad, and the stream does not divert bad rows.
        """
        source = self.readers[0].source
        data = TableReader(source.data) if isinstance(source.data, GlobalTable) else source.data
        if isinstance(data, SeekableSource):
            yield from self._of_seekable(data)
            return
        if self.position.source is not None:
            raise CheckpointError(
                f"the checkpoint has the position {self.position.source!r} of a source with seek(position), and "
                f"{type(data).__name__} has none; give that source, or start from a new checkpoint"
            )
        if (tables := _tables(data)) is not None:
            yield from self._of_tables(*tables)
        elif isinstance(data, str | bytes) or not isinstance(data, Iterable):
            raise DefinitionError(
                f"source of type {type(data).__name__} is not a stream; give a Spark, pandas or Arrow table, a "
                "pyarrow.RecordBatchReader, or an iterable of elements"
            )
        else:
            yield from self._of_elements(data)
        if isinstance(source.data, Iterator):
            source.ended.append(True)

    def _of_seekable(self, data: SeekableSource) -> Iterator[list[SourceRows]]:
        position = self.position
        if position.source is not None:
            data.seek(position.source)
        elif position.rows:
            raise CheckpointError(
                f"the checkpoint has consumed {position.rows} rows of a source without positions, and "
                f"{type(data).__name__} resumes from positions of its own; give the source that it has read, or start "
                "from a new checkpoint"
            )
        # A source of tables cuts its batches itself.
        tables: Any = getattr(data, "batches", None)
        gives_tables = callable(tables)
        for batch in tables() if gives_tables else _cut(iter(data), self.size, self.first, position):
            position.source = data.position()
            if position.source is None or not _is_plain(position.source):
                raise DefinitionError(
                    f"position() of {type(data).__name__} returned {position.source!r}, which a checkpoint cannot "
                    "store; return plain data: numbers, text, lists, dictionaries"
                )
            if gives_tables and batch is not PAUSE:
                yield [_of_table(stage, batch, self.limit) for stage in self.readers]
            else:
                yield self._for_each([] if batch is PAUSE else batch)

    def _of_elements(self, data: Iterable[Any]) -> Iterator[list[SourceRows]]:
        elements = iter(data)
        consumed: Iterator[Any] = elements
        if not isinstance(data, list | tuple):
            consumed = self._consumed(elements)
        tracker = self._tracker(lambda count: list(islice(consumed, count)), list)
        for batch in _cut(_no_tables(elements), self.size, self.first, self.position):
            self._track(tracker, batch, list)
            yield self._for_each(batch)

    def _consumed(self, elements: Iterator[Any]) -> Iterator[Any]:
        rows = 0
        try:
            for element in elements:
                if element is not PAUSE:
                    yield element_of(element)
                    rows += 1
        except Exception:
            # For the message.
            self.position.rows = rows
            raise

    def _of_tables(self, columns: Sequence[str], tables: Iterator[Any]) -> Iterator[list[SourceRows]]:
        for stage in self.readers:
            for name in _needed(stage):
                check_column(name, list(columns), stage.name)
        pieces = _Pieces(tables, self.position)
        tracker = self._tracker(pieces.take, raw_rows)
        count = self.first or self.size
        while (batch := pieces.take(count)) is not None:
            self._track(tracker, batch, raw_rows)
            yield [_of_table(stage, batch, self.limit) for stage in self.readers]
            count = self.size

    def _for_each(self, elements: list[Any]) -> list[SourceRows]:
        """Return elements for each reader, which may change its own copies."""
        if not elements:
            return [SourceRows(waits=True) for _ in self.readers]
        own = [elements, *([own_element(element) for element in elements] for _ in self.readers[1:])]
        return [checked(reader, rows, None, self.limit) for reader, rows in zip(self.readers, own, strict=True)]

    def _tracker(self, take: Callable[[int], Any], rows_of: Callable[[Any], list[Any]]) -> Tracker | None:
        """Pass the rows that earlier runs have consumed; return the tracker of further ones, if they are tracked.

        Args:
            take: Returns up to a number of the next rows as one piece.
            rows_of: Returns the rows of a piece.

        Raises:
            CheckpointError: The source does not begin with the consumed rows.
        """
        position, passed = self.position, 0
        first: list[Any] = []
        last: deque[Any] = deque(maxlen=ROWS)
        while passed < position.rows and (piece := take(min(position.rows - passed, _PASSED))):
            passed += len(piece)
            first += rows_of(piece[: max(0, ROWS - len(first))])
            last.extend(rows_of(piece[max(0, len(piece) - ROWS) :]))
        if passed < position.rows:
            raise CheckpointError(
                f"the checkpoint has consumed {position.rows} rows of the source, which has only {passed}; give the "
                "same source from its start, with new rows at its end, or start from a new checkpoint"
            )
        if not (self.keeps or position.digests):
            return None
        tracker = Tracker(passed, first, last)
        consumed = tracker.consumed()
        if position.digests is not None and position.digests != consumed:
            where = "first" if position.digests.first != consumed.first else "last"
            raise CheckpointError(
                f"the checkpoint has consumed {passed} rows, and the {where} {min(passed, ROWS)} of them differ from "
                "this source; give the same source from its start, with new rows at its end, or one that resumes by "
                "itself (keyed.SeekableSource), or start from a new checkpoint"
            )
        return tracker

    def _track(self, tracker: Tracker | None, piece: Any, rows_of: Callable[[Any], list[Any]]) -> None:
        """Record the rows of a batch in the position."""
        if tracker is not None and len(piece):
            tracker.add(len(piece), lambda start, end: rows_of(piece[start:end]))
            self.position.digests = tracker.consumed()


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


def _cut(elements: Iterator[Any], size: int, first: int | None, position: _Position) -> Iterator[list[Any]]:
    """Cut elements into lists of at most ``size``, shorter at pauses of the source; ``first`` is that of the first one.

    Elements are copied at once, because a source may reuse one dictionary for all.
    """
    count, has_more = first or size, True
    while has_more:
        batch: list[Any] = []
        try:
            for element in elements:
                if element is PAUSE:
                    if first:
                        continue
                    break
                batch.append(element_of(element))
                if len(batch) == count:
                    break
            else:
                has_more = False
        except Exception:
            # For the message.
            position.rows += len(batch)
            raise
        if batch or has_more:
            yield batch
        count, first = size, None


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
        position: The rows that earlier runs have consumed.
    """

    def __init__(self, tables: Iterator[Any], position: _Position) -> None:
        self._tables, self._position = tables, position
        #: The tables that were read and not passed on.
        self._parts: list[Any] = []
        self._rows = 0

    def take(self, count: int) -> Any:
        """Return the next rows as a table, fewer at the end; ``None`` if there are no more."""
        while (rows := sum(part.num_rows for part in self._parts)) < count:
            try:
                table = next(self._tables, None)
            except Exception:
                # For the message.
                self._position.rows = self._rows + rows
                raise
            if table is None:
                break
            self._parts.append(table)
        if not rows:
            return None
        table = self._parts[0] if len(self._parts) == 1 else sys.modules["pyarrow"].concat_tables(self._parts)
        piece, self._parts = table.slice(0, count), [table.slice(count)]
        self._rows += piece.num_rows
        return piece


def _needed(stage: Stage) -> tuple[str, ...]:
    """Return the columns of keys and timestamps."""
    timestamp = stage.source.timestamp
    return (() if stage.inputs[0].steps else stage.key_columns) + ((timestamp,) if isinstance(timestamp, str) else ())


def _of_table(stage: Stage, batch: Any, limit: Limit | None) -> SourceRows:
    """Return a part of a table as the rows of a batch."""
    from keyed.table_state.batches import check_key_types

    source, read = stage.source, batch.num_rows
    if not stage.inputs[0].steps:
        check_key_types(batch, stage.key_columns, stage.name)
    needs_rows = callable(source.time) or source.watermark.partition_by is not None
    batch, unreadable = without_unreadable(source, stage.name, batch)
    if not batch.num_rows:
        rows: SourceRows | None = SourceRows()
    elif stage.inputs[0].steps:
        rows = _table_after_steps(stage, batch, limit)
    elif callable(stage.keys) or (needs_rows and not isinstance(stage.function, VectorizedFunction)):
        rows = None
    else:
        from keyed.runtimes.local.table_rows import source_rows

        rows = source_rows(stage, batch, limit)
    if rows is None:
        rows = checked(stage, table_rows(batch), column_times(source, batch), limit)
    return attrs.evolve(rows, read=read, bad=[*unreadable, *rows.bad])


def _table_after_steps(stage: Stage, batch: Any, limit: Limit | None) -> SourceRows | None:
    """Return a part of a table after functions of tables, as a table; ``None`` if something has to look at rows."""
    from keyed.arrow.event_times import event_times
    from keyed.runtimes.transforming import TransformedRows, transformed

    source, read, timestamp = stage.source, stage.inputs[0], stage.source.time
    if not keeps_tables(read.steps) or callable(timestamp) or source.watermark.partition_by is not None:
        return None
    times, highest = None, None
    if timestamp is not None:
        times = event_times(batch.column(timestamp), timestamp)
        if times.null_count:
            return None
        highest = int(times.to_numpy().max())
        if limit is not None and highest > limit():
            return None
    after = transformed(TransformedRows(times, read.before_steps, None, batch), read.steps, stage.name)
    if after.count:
        table = after.table(f"operator {stage.name!r}")
        if any(name in table.column_names and table.column(name).null_count for name in stage.key_columns):
            return None
    rows = transformed_rows(read, after, stage.name, vectorized=isinstance(stage.function, VectorizedFunction))
    rows.highest = highest
    return rows
