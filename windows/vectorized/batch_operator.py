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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyed import MAX_TIMESTAMP, OutputTag
from keyed.errors import DefinitionError
from keyed.extending import inner_state
from keyed.job.execution_path import plain_type, shown_path
from keyed.vectorized import BatchContext, TableState, TaskContext, VectorizedFunction
from keyed.windows.assigning import AnyAssigner, HoppingWindows, SessionWindows
from keyed.windows.definition import Definition, define, hopping_slice
from keyed.windows.paths import row_reason
from keyed.windows.window_table import describe

if TYPE_CHECKING:
    import pyarrow as pa


class WindowBatchOperator(VectorizedFunction):
    """Cuts a keyed stream into windows, whole columns at a time. Results are those of `WindowOperator`.

    For tumbling, hopping and session windows with the default trigger, and built-in aggregates of columns whose results
    do not depend on the order of rows. ``stream.window(assigner).aggregate(...)`` uses it if possible.

    Args:
        assigner: Assigns windows to rows.
        aggregate: Aggregates by column name.
        columns: Types of the input's columns by name.
        key_names: Names of the key's columns.
        allowed_lateness_ms: Time after its end in which a window accepts rows, and fires again for each.
        late_tag: Side output for late rows; without it they are dropped.
        timestamps: ``window_start`` and ``window_end`` are timestamps, not milliseconds.
        delay_ms: Delay of the watermark behind the highest timestamp; 0 if another operator sets it.

    Raises:
        DefinitionError: A part is of the wrong type, or the definition has to run row by row; the message has the
            reason.
    """

    def __init__(
        self,
        *,
        assigner: AnyAssigner,
        aggregate: Mapping[str, Any],
        columns: Mapping[str, str | None],
        key_names: tuple[str, ...] = ("key",),
        allowed_lateness_ms: int = 0,
        late_tag: OutputTag | str | None = None,
        timestamps: bool = False,
        delay_ms: int = 0,
    ) -> None:
        self.definition: Definition = define(
            assigner=assigner,
            aggregate=aggregate,
            allowed_lateness_ms=allowed_lateness_ms,
            late_tag=late_tag,
            key_names=key_names,
            timestamps=timestamps,
        )
        self._columns = {name: type_ for name, type_ in columns.items() if type_ is not None}
        self._delay_ms = delay_ms
        reason = row_reason(self.definition, columns, key_names, "event_time")
        if reason is not None:
            raise DefinitionError(f"these windows cannot be computed over whole columns: {reason}; use WindowOperator")
        self.windows = self._state()
        self._logic: Any = None
        self._table: Any = None

    @property
    def known_side_outputs(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The side output of late rows."""
        return self.definition.known_side_outputs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.definition.assigner!r})"

    def _state(self) -> TableState:
        """Return the state's declaration: key, time, accumulators."""
        from keyed.windows.vectorized.fold import fold_of

        assigner = self.definition.assigner
        times = ["window.start", "window.end"]
        if isinstance(assigner, HoppingWindows):
            step = hopping_slice(assigner)
            at = assigner.offset_ms % step
            offset = f"_at_{at}" if at else ""
            covered = f"_first_{assigner.size_ms}" if assigner.size_ms < step else ""
            times = [f"slice_{step}{offset}{covered}"]
        keys = self.definition.key_names
        columns = [(key, plain_type(self._columns[key])) for key in keys]
        columns += [(time, "bigint") for time in times] + fold_of(self.definition.named, self._columns).columns
        ddl = ", ".join(f"`{name.replace('`', '``')}` {type_}" for name, type_ in columns)
        layout = "slice_rows" if isinstance(assigner, HoppingWindows) else "session_rows"
        state = TableState(ddl, key=(*keys, times[0]), name="columnar_windows")
        return inner_state(state, table=describe(self.definition, layout, self._columns))

    def _created_logic(self) -> Any:
        """Return the logic, which is created where it runs because it imports pyarrow."""
        if self._logic is None:
            from keyed.windows.vectorized import session_windows, slice_windows
            from keyed.windows.vectorized.window_tables import Tables

            definition, tables = self.definition, Tables.of(self.definition, self._columns)
            if isinstance(definition.assigner, SessionWindows):
                self._logic = session_windows.VectorizedSessions(definition, tables, self.windows, self._delay_ms)
            else:
                self._logic = slice_windows.SliceWindows(definition, tables, self.windows)
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
            logic.finish(now, ctx)

    @property
    def explanation(self) -> str:
        """The path of the windows and its reason, for `keyed.Output.explain`."""
        return f"{shown_path(None)}, a row of state per key and window"
