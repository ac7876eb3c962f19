"""The window operator over whole columns: a plain `VectorizedFunction`.

Windows depend on both watermarks of a batch, before and after it. The rows that `process_batch` gets are therefore
processed in `on_watermark`, which is called in the same batch.

State ``columnar_windows``, a table with the key's columns and

- for sessions ``window.start`` (in the table's key) and ``window.end``;
- for tumbling and hopping windows the start of a slice (in the table's key), in a column that is named after the length
  of slices, ``slice_60000``, the offset where they have one, ``slice_60000_at_900``, and the length of the part that
  windows cover where there are gaps between them, ``slice_60000_first_20000``: slices of another kind are another
  state;
- the accumulators, ``<aggregate>.<part>``: see `keyed.windows.vectorized.accumulators` and `list_accumulators`.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyed import MAX_TIMESTAMP
from keyed.extending import Schema, inner_state
from keyed.job.execution_path import plain_type, shown_path
from keyed.vectorized import BatchContext, TableState, TaskContext, VectorizedFunction
from keyed.windows.assigning import HoppingWindows, SessionWindows
from keyed.windows.definition import Definition, hopping_slice
from keyed.windows.window_table import describe

if TYPE_CHECKING:
    import pyarrow as pa


class WindowBatchOperator(VectorizedFunction):
    """Cuts a keyed stream into windows, whole columns at a time. Results are those of `WindowOperator`.

    For tumbling, hopping and session windows with the default trigger, and built-in aggregates of columns whose results
    do not depend on the order of rows (`keyed.windows.paths`). ``stream.window(assigner).aggregate(...)`` uses it if
    possible.

    Args:
        definition: The windows.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.known_side_outputs = definition.known_side_outputs
        self.windows = self._state()
        self._logic: Any = None
        self._table: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.definition.assigner!r})"

    def _state(self) -> TableState:
        """Return the state's declaration: key, time, accumulators."""
        from keyed.windows.vectorized.fold import fold_of

        definition, assigner = self.definition, self.definition.assigner
        known = definition.known_columns
        layout, times = "session_rows", ["window.start", "window.end"]
        if isinstance(assigner, HoppingWindows):
            step = hopping_slice(assigner)
            at = assigner.offset_ms % step
            offset = f"_at_{at}" if at else ""
            covered = f"_first_{assigner.size_ms}" if assigner.size_ms < step else ""
            layout, times = "slice_rows", [f"slice_{step}{offset}{covered}"]
        columns = [(key, plain_type(known[key])) for key in definition.key_names]
        columns += [(time, "bigint") for time in times] + fold_of(definition.named, known).columns
        ddl = Schema(tuple(columns)).ddl
        state = TableState(ddl, key=(*definition.key_names, times[0]), name="columnar_windows")
        return inner_state(state, table=describe(definition, layout))

    def _created_logic(self) -> Any:
        """Return the logic, which is created where it runs because it imports pyarrow."""
        if self._logic is None:
            from keyed.windows.vectorized import session_windows, slice_windows

            sessions = isinstance(self.definition.assigner, SessionWindows)
            logic = session_windows.VectorizedSessions if sessions else slice_windows.SliceWindows
            self._logic = logic(self.definition, self.windows)
        return self._logic

    def open(self, context: TaskContext) -> None:
        self._logic = self._table = None

    def combine(self, table: pa.Table) -> pa.Table:
        combined: pa.Table = self._created_logic().combine(table)
        return combined

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        self._table = table

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        table, self._table = self._table, None
        logic = self._created_logic()
        if self.definition.assigner.event_time:
            logic.run(table, ctx.previous_watermark(), watermark, ctx)
            return
        now = ctx.current_processing_time()
        logic.run(table, ctx.previous_processing_time(), now, ctx)
        if watermark == MAX_TIMESTAMP:
            # The input has ended: all open windows fire.
            logic.run(None, now, MAX_TIMESTAMP, ctx)

    @property
    def explanation(self) -> str:
        """The path of the windows and its reason, for `keyed.Output.explain`."""
        return f"{shown_path(None)}, a row of state per key and window"
