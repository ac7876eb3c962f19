"""The base of windows over whole columns: columns of input, slices, state table and rows of results.

A slice is a span of time between two neighbouring starts or ends of windows, as in `keyed.windows.packed_windows`. All
times are milliseconds in numpy arrays of int64, at most `MOST_TIME` from 1970, and windows are at most `MOST_LENGTH`
long, so that nothing here overflows. Limits are Python integers of any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.errors import TimestampError
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext
from keyed.windows.definition import Definition, HoppingWindows, hopping_slice
from keyed.windows.general import no_timestamp
from keyed.windows.vectorized.accumulators import Parts
from keyed.windows.vectorized.fold import fold_of
from keyed.windows.vectorized.row_groups import array_of, integers, pc, plain_column

#: The greatest distance of a time from 1970 on this path, in milliseconds: 146 million years.
MOST_TIME = 2**62
_BEYOND = 2**62 + 2**61


def clamped(limit: int) -> int:
    """Return a limit clamped to the range of times, so that it separates the same times and sums do not overflow."""
    return max(-_BEYOND, min(limit, _BEYOND))


class Slices:
    """The slices of an assigner.

    Attributes:
        size: Length of a window.
        slide: Distance between the starts of two windows.
        offset: Windows start at this time modulo the slide.
        step: Length of a slice.
        span: Length of the part of a slice, from its start, that has elements; less than ``step`` with gaps between
            windows.
    """

    def __init__(self, assigner: HoppingWindows) -> None:
        self.size, self.slide, self.offset = assigner.size_ms, assigner.slide_ms, assigner.offset_ms
        self.step = hopping_slice(assigner)
        self.span = min(self.step, self.size)

    def starts(self, times: Any) -> Any:
        """Return the start of the slice that each time is in."""
        return times - (times - self.offset) % self.step

    def last_windows(self, starts: Any) -> Any:
        """Return the start of the latest window that contains each slice."""
        return starts - (starts - self.offset) % self.slide

    def first_windows(self, starts: Any) -> Any:
        """Return the start of the earliest window that contains each slice."""
        earliest = starts + (self.span - self.size)
        return earliest + (self.offset - earliest) % self.slide

    def windows(self, starts: Any, after: int, until: int, previous: Any = None) -> tuple[Any, Any]:
        """Return the windows of slices whose last timestamp is in ``(after, until]``.

        Args:
            starts: The starts of the slices.
            after: The limit before the first last timestamp.
            until: The greatest last timestamp.
            previous: Another slice for each: only windows that start after it, which therefore do not contain it.

        Returns:
            Two arrays: the position of the slice, ascending, and the start of the window, descending by slice, which is
            the order in which windows fire for one element.
        """
        # The last timestamp of a window that starts at w is w + size − 1.
        low = np.maximum(self.first_windows(starts), clamped(after - self.size + 2))
        if previous is not None:
            low = np.maximum(low, previous + 1)
        low += (self.offset - low) % self.slide
        high = np.minimum(self.last_windows(starts), clamped(until - self.size + 1))
        high -= (high - self.offset) % self.slide
        counts = np.maximum((high - low) // self.slide + 1, 0)
        rows = np.repeat(np.arange(len(starts)), counts)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, high[rows] - place * self.slide


#: The range of Python's datetimes, in milliseconds.
_FIRST_YEAR, _LAST_YEAR = -62_135_596_800_000, 253_402_300_799_999


class ColumnWindows:
    """The logic of one key group.

    Args:
        definition: The operator.
        state: Its state.
    """

    def __init__(self, definition: Definition, state: Any) -> None:
        self._definition = definition
        self._state = state
        self._keys = definition.key_names
        self._fold = fold_of(definition.named, definition.known_columns)
        self._event_time = definition.assigner.event_time
        self._lateness = definition.lateness_ms

    def run(self, table: Any, before: int, after: int, ctx: BatchContext) -> None:
        """Run a batch.

        Args:
            table: Its rows, as `combine` returned them; ``None`` if there are none.
            before: The clock before the batch: the watermark or the processing time.
            after: The clock after it.
            ctx: Receives outputs.
        """
        if self._event_time:
            self.advance(None if table is None else self.add(table, before, after, ctx), before, after, ctx)
            return
        # In processing time windows end between batches: ended windows fire first, then the rows are added.
        self.advance(None, before, after, ctx)
        if table is not None:
            self.add_now(table, after, ctx)

    def add(self, table: Any, before: int, after: int, ctx: BatchContext) -> Any:
        """Add rows in event time, or return what `advance` adds."""
        raise NotImplementedError

    def add_now(self, table: Any, now: int, ctx: BatchContext) -> None:
        """Add rows in processing time."""
        raise NotImplementedError

    def advance(self, added: Any, before: int, after: int, ctx: BatchContext) -> None:
        """Fire the windows that end in ``(before, after]``, and remove what no window needs any more."""
        raise NotImplementedError

    def combine(self, table: Any) -> Any:
        """Return the columns that are needed to reduce rows; all columns if late rows are an output."""
        if self._definition.late_tag is not None:
            return table
        read: set[Any] = {*self._keys, TIMESTAMP_COLUMN}
        for aggregate in self._definition.aggregates:
            read |= {getattr(aggregate, "column", None), getattr(aggregate, "by", None)}
        return table.select([name for name in table.column_names if name in read])

    def keys(self, table: Any) -> list[Any]:
        """Return the key columns."""
        return [plain_column(table.column(name)) for name in self._keys]

    def state_rows(self, keys: Sequence[Any], columns: Mapping[str, Any], parts: Parts) -> Any:
        """Return rows for the state table.

        Args:
            keys: The key columns.
            columns: The other columns except the accumulators.
            parts: The accumulators.
        """
        names = [*self._keys, *columns, *(name for name, _ in self._fold.columns)]
        return pa.table([*keys, *map(pa.array, columns.values()), *parts], names=names)

    def times(self, table: Any) -> Any:
        """Return the timestamps of rows.

        Raises:
            DefinitionError: A row has none.
            TimestampError: One is out of the range of this path.
        """
        times = integers(timestamps(table, needed=True))
        if len(times) and not -MOST_TIME <= times.min() <= times.max() <= MOST_TIME:
            raise TimestampError(
                f"a timestamp is more than 2^62 ms from 1970 ({times.min()} to {times.max()}): windows over whole "
                'columns do not support it; use .path("row")'
            )
        return times

    def optional_times(self, table: Any) -> Any:
        """Return the timestamps of rows if windows do not need them; ``None`` if any is missing."""
        times = timestamps(table, needed=False)
        return None if times is None or times.null_count else integers(times)

    def emit(self, ctx: BatchContext, keys: Sequence[Any], starts: Any, ends: Any, parts: Parts) -> None:
        """Emit the results of windows.

        Args:
            ctx: Receives the results.
            keys: Their key columns.
            starts: Their starts.
            ends: Their ends.
            parts: Their accumulators.
        """
        if not len(starts):
            return
        bounds = [_instants(times) if self._definition.timestamps else pa.array(times) for times in (starts, ends)]
        columns = [*keys, *bounds, *self._fold.results(parts), pa.array(ends - 1)]
        ctx.emit(pa.table(columns, names=[*self._definition.row_names, TIMESTAMP_COLUMN]))

    def divert(self, ctx: BatchContext, late: Any) -> None:
        """Route late rows to the side output, or count them as dropped."""
        if not late.num_rows:
            return
        if self._definition.late_tag is not None:
            ctx.output(self._definition.late_tag, late)
        else:
            ctx.drop(late.num_rows)


def timestamps(table: Any, *, needed: bool) -> Any:
    """Return the column of timestamps; ``None`` if there is none.

    Raises:
        DefinitionError: They are needed, and a row has none.
    """
    times = array_of(table.column(TIMESTAMP_COLUMN)) if TIMESTAMP_COLUMN in table.column_names else None
    if needed and (times is None or times.null_count):
        at = 0 if times is None else pc.index(times.is_null(), True).as_py()
        raise no_timestamp(table.slice(at, 1).to_pylist()[0])
    return times


def _instants(times: Any) -> Any:
    """Return milliseconds as timestamps; null outside of Python's range, as on the row path."""
    beyond = (times < _FIRST_YEAR) | (times > _LAST_YEAR)
    micros = np.where(beyond, 0, times) * 1000
    return pa.array(micros, pa.int64(), mask=beyond).cast(pa.timestamp("us", "UTC"))
