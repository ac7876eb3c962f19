"""Tumbling and hopping windows over whole columns.

State ``columnar_windows``: a row per key and open slice with its start (see `keyed.windows.window_operator`)
and the accumulators. Rows are reduced to their slices and merged into the state. Windows that have ended merge their
slices. Slices that no window needs any more are removed as one range.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.vectorized import BatchContext
from keyed.windows.definition import Definition
from keyed.windows.vectorized.accumulators import BatchRows
from keyed.windows.vectorized.row_groups import Groups, concatenated, grouped, integers, ordered, pick, plain_column
from keyed.windows.vectorized.window_tables import ColumnWindows, Slices, clamped

_ROWS = "window.rows"


class SliceWindows(ColumnWindows):
    """The logic of one key group for `keyed.windows.definition.HoppingWindows`."""

    def __init__(self, definition: Definition, state: Any) -> None:
        super().__init__(definition, state)
        assigner: Any = definition.assigner
        self._slices = Slices(assigner)
        self._slice = state.key[-1]
        # Otherwise single rows matter: because they fire windows, are late, or are in no window.
        is_simple = not self._lateness and definition.late_tag is None and self._slices.span == self._slices.step
        self._combines = self._event_time and is_simple

    # Before the shuffle -----------------------------------------------------------------------------------------

    def combine(self, table: Any) -> Any:
        """Reduce rows of any keys to accumulators by key and slice, with their numbers of rows, if that is enough."""
        if not self._combines:
            return super().combine(table)
        times = self.times(table)
        starts = self._slices.starts(times)
        return self._by_slice(table, times, starts, counts_rows=True)

    # In the key group -------------------------------------------------------------------------------------------

    def add(self, table: Any, before: int, after: int, ctx: BatchContext) -> Any:
        return (self._on_time if self._combines else self._reduced)(table, before, ctx)

    def _on_time(self, table: Any, watermark: int, ctx: BatchContext) -> Any:
        """Return combined rows without the late ones."""
        is_late = self._is_late(integers(table.column(self._slice)), watermark)
        if is_late.any():
            ctx.drop(int(integers(table.column(_ROWS))[is_late].sum()))
            table = table.filter(pa.array(~is_late))
        return table.drop_columns([_ROWS])

    def _reduced(self, table: Any, watermark: int, ctx: BatchContext) -> Any:
        """Return rows reduced to their slices, for definitions in which single rows matter."""
        times = self.times(table)
        starts = self._slices.starts(times)
        is_inside = times - starts < self._slices.span
        # A row between two windows is in none; it is late if it would be late for a window that ends at its time.
        is_late = np.where(is_inside, self._is_late(starts, watermark), times <= clamped(watermark - self._lateness))
        self.divert(ctx, table.filter(pa.array(is_late)))
        kept = np.flatnonzero(is_inside & ~is_late)
        table, times, starts = table.take(pa.array(kept)), times[kept], starts[kept]
        if self._lateness:
            self._fire_again(table, times, starts, watermark, ctx)
        return self._by_slice(table, times, starts)

    def add_now(self, table: Any, now: int, ctx: BatchContext) -> None:
        slices = self._slices
        times = np.full(table.num_rows, now)
        starts = slices.starts(times)
        if now - starts[0] >= slices.span:
            return
        rows = BatchRows(table, self.optional_times(table))
        # In its last millisecond a window has already fired for this batch: it fires again with each row.
        ending, windows = slices.windows(starts, now - 1, now)
        if len(ending):
            each = self._fold.of_rows(rows, Groups(np.arange(len(times)), len(times)))
            self.emit(ctx, pick(self.keys(table), ending), windows, windows + slices.size, each)
        if slices.last_windows(starts[:1])[0] + slices.size - 1 > now:
            self._merge(self._by_slice(table, rows.times, starts))

    def _is_late(self, starts: Any, watermark: int) -> Any:
        """Return a mask of the slices that are in no window that is still kept."""
        last = self._slices.last_windows(starts) + (self._slices.size - 1)
        return last <= clamped(watermark - self._lateness)

    def _by_slice(self, table: Any, times: Any, starts: Any, *, counts_rows: bool = False) -> Any:
        """Return rows reduced to key and slice, as rows of the state; if asked, with their numbers of rows."""
        keys = self.keys(table)
        numbers = (starts - (starts.min() if len(starts) else 0)) // self._slices.step
        groups = grouped([*keys, numbers])
        parts = self._fold.of_rows(BatchRows(table, times), groups)
        first = groups.first_rows()
        columns = {self._slice: starts[first]} | ({_ROWS: groups.sizes()} if counts_rows else {})
        return self.state_rows(pick(keys, first), columns, parts)

    def _merge(self, added: Any) -> None:
        """Merge slices into the state. A slice may occur several times."""
        if not added.num_rows:
            return
        if self._fold.operations is not None:
            self._state.merge(added, self._fold.operations)
            return
        stored = self._state.lookup(_distinct(added.select([*self._keys, self._slice])))
        # Stored parts come first.
        both = pa.concat_tables([stored, added.cast(stored.schema)])
        keys, starts = self.keys(both), integers(both.column(self._slice))
        groups = grouped([*keys, starts])
        first = groups.first_rows()
        merged = self._fold.merged(self._fold.stored(both), groups)
        self._state.upsert(self.state_rows(pick(keys, first), {self._slice: starts[first]}, merged))

    # Firing -----------------------------------------------------------------------------------------------------

    def advance(self, added: Any, before: int, after: int, ctx: BatchContext) -> None:
        """Add slices, fire the windows that end in ``(before, after]``, and remove slices that no window needs.

        Slices that begin and end within the batch are not stored; with long batches these are most of them.
        """
        slices = self._slices
        # Slices that start before the first limit are in no window after this batch; those before the second may fire
        # in it.
        expired = clamped(after - slices.size + 1 - self._lateness)
        expired += slices.slide - (expired - slices.offset) % slices.slide
        firing = clamped(after - slices.size + 1)
        firing += slices.size - (firing - slices.offset) % slices.slide
        table = self._state.take((self._slice, "<", expired))
        fires = firing - 1 > before
        if fires and expired < firing:
            kept = self._state.scan([(self._slice, ">=", expired), (self._slice, "<", firing)])
            table = pa.concat_tables([table, kept])
        if added is not None:
            starts = integers(added.column(self._slice))
            added = added.cast(table.schema)
            table = pa.concat_tables([table, added.filter(pa.array(starts < firing))])
            self._merge(added.filter(pa.array(starts >= expired)))
        if fires and table.num_rows:
            self._fire(table, before, after, ctx)

    def _fire(self, table: Any, before: int, after: int, ctx: BatchContext) -> None:
        """Fire windows from their slices; a slice may occur several times, earlier ones first."""
        slices, keys = self._slices, self.keys(table)
        numbers, starts = grouped(keys).ids, integers(table.column(self._slice))
        order = ordered(numbers, starts)
        numbers, starts = numbers[order], starts[order]
        # The slices of a window are now adjacent. Each window is found at its first slice.
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = numbers[1:] != numbers[:-1]
        previous = np.append(clamped(MIN_TIMESTAMP), starts[:-1])
        previous[is_first] = clamped(MIN_TIMESTAMP)
        first, windows = slices.windows(starts, before, after, previous)
        if not len(first):
            return
        following = np.append(starts[1:], clamped(MAX_TIMESTAMP))
        following[:-1][is_first[1:]] = clamped(MAX_TIMESTAMP)
        last = first.copy()
        growing = np.arange(len(first))
        while len(growing):
            growing = growing[following[last[growing]] < windows[growing] + slices.size]
            last[growing] += 1
        keys, parts = pick(keys, order), pick(self._fold.stored(table), order)
        parts = self._fold.spans(parts, first, last)
        self.emit(ctx, pick(keys, first), windows, windows + slices.size, parts)

    def _fire_again(self, table: Any, times: Any, starts: Any, watermark: int, ctx: BatchContext) -> None:
        """Fire, for each row, its windows that have ended and are kept, with their elements so far."""
        slices = self._slices
        rows, windows = slices.windows(starts, watermark - self._lateness, watermark)
        if not len(rows):
            return
        table, times = table.take(pa.array(rows)), times[rows]
        keys = self.keys(table)
        segments = grouped([*keys, windows])
        first = segments.first_rows()
        # The stored slices of these windows, once for each window that contains them.
        number = max(1, slices.size // slices.step)
        needed = np.repeat(first, number)
        places = np.tile(np.arange(number) * slices.step, len(first))
        needed_slices = {self._slice: windows[needed] + places}
        columns = [*pick(keys, needed), pa.array(needed_slices[self._slice])]
        stored = self._state.lookup(_distinct(pa.table(columns, names=[*self._keys, self._slice])))
        all_keys = [concatenated(pair) for pair in zip(self.keys(stored), columns[:-1], strict=True)]
        slots = grouped([*all_keys, np.concatenate([integers(stored.column(self._slice)), needed_slices[self._slice]])])
        at = np.full(slots.count, -1, dtype=np.int64)
        at[slots.ids[: stored.num_rows]] = np.arange(stored.num_rows)
        stored_at = at[slots.ids[stored.num_rows :]]
        is_stored = stored_at >= 0
        each = self._fold.of_rows(BatchRows(table, times), Groups(np.arange(len(rows)), len(rows)))
        held = pick(self._fold.stored(stored), stored_at[is_stored])
        parts = [concatenated(pair) for pair in zip(held, each, strict=True)]
        segment = np.concatenate([np.repeat(np.arange(len(first)), number)[is_stored], segments.ids])
        order = np.argsort(segment, kind="stable")
        is_row = order >= is_stored.sum()
        parts = self._fold.running(pick(parts, order), segment[order], np.flatnonzero(is_row))
        rows = order[is_row] - is_stored.sum()
        self.emit(ctx, pick(keys, rows), windows[rows], windows[rows] + slices.size, parts)


def _distinct(table: Any) -> Any:
    """Return the distinct rows."""
    groups = grouped([plain_column(column) for column in table.columns])
    return table.take(pa.array(groups.first_rows()))
