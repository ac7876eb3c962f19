"""Session windows over whole columns.

State ``columnar_windows``: a row per key and open session (see `keyed.windows.window_operator`). The open
sessions that a batch's rows may touch are read, merged with the rows (`keyed.windows.vectorized.session_merging`) and
written again; a session whose start has moved is written under the new one.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from keyed.vectorized import BatchContext
from keyed.windows.definition import Definition
from keyed.windows.vectorized.accumulators import BatchRows
from keyed.windows.vectorized.row_groups import Groups, concatenated, grouped, integers, pick
from keyed.windows.vectorized.session_merging import NEVER, Clock, Merged, Spans, accepted, merged, spans_of
from keyed.windows.vectorized.window_tables import ColumnWindows, clamped

_START, _END = "window.start", "window.end"


class VectorizedSessions(ColumnWindows):
    """The logic of one key group for `keyed.windows.definition.SessionWindows` with one gap for all.

    Rows are not combined, because the lateness of a row depends on other rows.
    """

    def __init__(self, definition: Definition, state: Any) -> None:
        super().__init__(definition, state)
        assigner: Any = definition.assigner
        self._gap: int = assigner.gap_of
        self._lag = definition.delay_ms + 1

    def add(self, table: Any, before: int, after: int, ctx: BatchContext) -> None:
        times = self.times(table)
        self._add(table, times, times, Clock(before, after, self._lag, self._lateness), ctx)

    def add_now(self, table: Any, now: int, ctx: BatchContext) -> None:
        self._add(table, np.full(table.num_rows, now), self.optional_times(table), NEVER, ctx)

    def _add(self, table: Any, times: Any, timestamps: Any, clock: Clock, ctx: BatchContext) -> None:
        """Add rows to their sessions.

        Args:
            table: The rows.
            times: The times that their sessions start with.
            timestamps: Their event times, for aggregates that need them.
            clock: The watermarks.
            ctx: Receives late rows, and firings of sessions that had ended before.
        """
        stored = self._state.scan([(_START, "<=", int(times.max()) + self._gap), (_END, ">=", int(times.min()))])
        numbers = grouped([concatenated(pair) for pair in zip(self.keys(stored), self.keys(table), strict=True)])
        has_rows = np.zeros(numbers.count, dtype=bool)
        has_rows[numbers.ids[stored.num_rows :]] = True
        chosen = np.flatnonzero(has_rows[numbers.ids[: stored.num_rows]])
        number_of_rows = numbers.ids[stored.num_rows :]
        open_numbers = numbers.ids[chosen]
        stored = stored.take(pa.array(chosen))
        open_ = Spans(open_numbers, integers(stored.column(_START)), integers(stored.column(_END)))
        rows = Spans(number_of_rows, times, times + self._gap)
        is_accepted = accepted(open_, rows, clock)
        if not is_accepted.all():
            self.divert(ctx, table.filter(pa.array(~is_accepted)))
            kept = np.flatnonzero(is_accepted)
            table, rows, timestamps = table.take(pa.array(kept)), rows.of(kept), timestamps[kept]
        if not len(rows):
            return
        spans, span_of_row = spans_of(rows, self._gap, clock)
        plan = merged(open_, spans, clock)
        added = BatchRows(table, timestamps)
        if len(plan.fires):
            self._fire_again(plan, stored, added, rows.keys, span_of_row, ctx)
        self._write(plan, stored, added, span_of_row, clock, ctx)

    def _write(self, plan: Merged, stored: Any, rows: BatchRows, spans: Any, clock: Clock, ctx: BatchContext) -> None:
        """Write the sessions that rows were added to.

        Sessions that end and are cleaned up within the batch are not stored; with long batches these are most of them.
        """
        session_of_open, session_of_span = np.split(plan.numbers, [stored.num_rows])
        session_of_row = session_of_span[spans]
        # Sessions without a new row do not change.
        is_changed = np.zeros(len(plan.sessions), dtype=bool)
        is_changed[session_of_span] = True
        place = np.cumsum(is_changed) - 1
        sessions = plan.sessions.of(is_changed)
        groups = Groups(place[session_of_row], len(sessions))
        parts = self._fold.of_rows(rows, groups)
        columns = pick(self.keys(rows.table), groups.first_rows())
        old = np.flatnonzero(is_changed[session_of_open])
        if len(old):
            held = place[session_of_open[old]]
            parts = [concatenated(pair) for pair in zip(pick(self._fold.stored(stored), old), parts, strict=True)]
            parts = self._fold.merged(parts, Groups(np.concatenate([held, np.arange(len(sessions))]), len(sessions)))
        is_gone = sessions.ends <= clamped(clock.after + 1 - self._lateness)
        if len(old):
            moved = old[is_gone[held] | (integers(stored.column(_START))[old] != sessions.starts[held])]
            self._state.delete(stored.select([*self._keys, _START]).take(pa.array(moved)))
        kept, ended = np.flatnonzero(~is_gone), np.flatnonzero(is_gone & (sessions.ends > clamped(clock.before + 1)))
        open_ = sessions.of(kept)
        times = {_START: open_.starts, _END: open_.ends}
        self._state.upsert(self.state_rows(pick(columns, kept), times, pick(parts, kept)))
        done = sessions.of(ended)
        self.emit(ctx, pick(columns, ended), done.starts, done.ends, pick(parts, ended))

    # Firing -----------------------------------------------------------------------------------------------------

    def advance(self, added: Any, before: int, after: int, ctx: BatchContext) -> None:
        if self._lateness:
            ended = self._state.scan([(_END, ">", clamped(before + 1)), (_END, "<=", clamped(after + 1))])
            self._state.take((_END, "<=", clamped(after + 1 - self._lateness)))
        else:
            ended = self._state.take((_END, "<=", clamped(after + 1)))
        starts, ends = integers(ended.column(_START)), integers(ended.column(_END))
        self.emit(ctx, self.keys(ended), starts, ends, self._fold.stored(ended))

    def _fire_again(
        self, plan: Merged, stored: Any, rows: BatchRows, key_of_row: Any, span_of_row: Any, ctx: BatchContext
    ) -> None:
        """Fire sessions during the batch, with their elements so far."""
        spans = Groups(span_of_row, len(plan.order) - stored.num_rows)
        held = self._fold.stored(stored)
        parts = [concatenated(pair) for pair in zip(held, self._fold.of_rows(rows, spans), strict=True)]
        # Most sessions do not fire during the batch.
        segments = plan.numbers[plan.order]
        fires = np.zeros(len(plan.sessions), dtype=bool)
        fires[segments[plan.fires]] = True
        chosen = np.flatnonzero(fires[segments])
        places = np.searchsorted(chosen, plan.fires)
        results = self._fold.running(pick(parts, plan.order[chosen]), segments[chosen], places)
        joins = np.flatnonzero(plan.ahead >= 0)
        if len(joins):
            both = [concatenated(pair) for pair in zip(results, pick(held, plan.ahead[joins]), strict=True)]
            numbers = np.concatenate([np.arange(len(plan.fires)), joins])
            results = self._fold.merged(both, Groups(numbers, len(plan.fires)))
        # Any row of the key has its columns.
        row_of_key = np.full(int(plan.sessions.keys.max()) + 1, -1, dtype=np.int64)
        row_of_key[key_of_row] = np.arange(len(key_of_row))
        fired = plan.fired
        self.emit(ctx, pick(self.keys(rows.table), row_of_key[fired.keys]), fired.starts, fired.ends, results)
