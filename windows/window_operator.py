"""The window operators, made of an assigner, a trigger, an aggregate and so on: by rows, and over whole columns.

The one over whole columns is a plain `VectorizedFunction`. Windows depend on both watermarks of a batch, before and
after it. The rows that `process_batch` gets are therefore processed in `on_watermark`, which is called in the same
batch. Its state ``columnar_windows`` is a table with the key's columns and

- for sessions ``window.start`` (in the table's key) and ``window.end``;
- for tumbling and hopping windows the start of a slice (in the table's key), in a column that is named after the length
  of slices, ``slice_60000``, the offset where they have one, ``slice_60000_at_900``, and the length of the part that
  windows cover where there are gaps between them, ``slice_60000_first_20000``: slices of another kind are another
  state;
- the accumulators, ``<aggregate>.<part>``: see `keyed.windows.vectorized.accumulators` and `list_accumulators`.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keyed import MAX_TIMESTAMP, Context, KeyedProcessFunction, OnTimerContext, OpenContext
from keyed.extending import Schema, inner_state
from keyed.job.execution_path import plain_type, shown_path
from keyed.vectorized import BatchContext, TableState, TaskContext, VectorizedFunction
from keyed.windows.definition import Definition, HoppingWindows, SessionWindows, hopping_slice
from keyed.windows.general import GeneralWindows
from keyed.windows.packed_windows import PackedSessions, PaneWindows
from keyed.windows.window_table import describe

if TYPE_CHECKING:
    import pyarrow as pa


_LOGIC: dict[str, Any] = {"general": GeneralWindows, "panes": PaneWindows, "sessions": PackedSessions}


class WindowOperator(KeyedProcessFunction):
    """The function that runs windows row by row (Flink's `WindowOperator`); `WindowedStream` builds it.

    A window ``[start, end)`` fires by its trigger, by default when the watermark reaches ``end - 1``, and its state is
    removed at ``end - 1 + allowed lateness``. An element is late for a window whose state was removed. Outputs carry
    the timestamp ``end - 1``.

    Args:
        definition: The windows.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.known_side_outputs = definition.known_side_outputs

    def open(self, context: OpenContext) -> None:
        logic = _LOGIC[self.definition.layout](self.definition, context)
        # Set on this task's copy, so that a call per element goes directly to the logic.
        self.process_element = logic.process_element  # type: ignore[method-assign]
        self.on_timer = logic.on_timer  # type: ignore[method-assign]
        if self.definition.process is not None:
            self.definition.process.open(context)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.definition.assigner!r})"

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        raise AssertionError("process_element before open")

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        raise AssertionError("on_timer before open")

    def close(self) -> None:
        if self.definition.process is not None:
            self.definition.process.close()

    @property
    def explanation(self) -> str:
        """The path and layout of the windows with their reasons, for `keyed.Output.explain`."""
        definition = self.definition
        if definition.layout_reason is None:
            kept = f"one value of state per key, its open {'sessions' if definition.layout == 'sessions' else 'slices'}"
        else:
            kept = f"state per key and window, because {definition.layout_reason}"
        path = "row by row" if definition.row_reason is None else shown_path(definition.row_reason)
        return f"{path}; {kept}"


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
