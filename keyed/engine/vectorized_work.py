"""Runs a `keyed.vectorized.VectorizedFunction`: all rows of the batch at once, then the watermark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.durations import time_text
from keyed.base.schemas import Schema
from keyed.base.shown import type_of
from keyed.engine.batch import Batch, EmittedTables
from keyed.engine.changes import Changes
from keyed.engine.driver import raise_at
from keyed.engine.initial import write_initial
from keyed.engine.registry import Registry
from keyed.engine.scope import Outside, Scope
from keyed.engine.work import WorkResult
from keyed.errors import OutputDefinitionError
from keyed.job.context import OutputTag
from keyed.job.functions import TIMESTAMP_COLUMN, VectorizedCoFunction, VectorizedFunction
from keyed.job.operators import OperatorSpec
from keyed.job.state import BATCH_CALLS, used_outside

if TYPE_CHECKING:
    import pyarrow as pa


class EngineBatchContext:
    """The `keyed.vectorized.BatchContext` of one batch.

    Attributes:
        dropped: Number of rows that the function counted as dropped.
        reads_clock: True if the function has read the processing time.
    """

    def __init__(self, spec: OperatorSpec, scope: Scope, where: str) -> None:
        self._spec = spec
        self._scope = scope
        self._where = where
        self._late: pa.BooleanArray | None = None
        self.dropped = 0
        self.reads_clock = False
        self.main = EmittedTables()
        self.side: dict[str, EmittedTables] = {}

    def __repr__(self) -> str:
        scope = self._scope
        return f"BatchContext(watermark={scope.watermark}, processing_time={scope.processing_time})"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._spec.keys

    @property
    def late(self) -> pa.BooleanArray:
        import pyarrow as pa

        return pa.array([], pa.bool_()) if self._late is None else self._late

    def current_watermark(self) -> int:
        return self._scope.watermark

    def current_processing_time(self) -> int:
        self.reads_clock = True
        return self._scope.processing_time

    def previous_watermark(self) -> int:
        return self._scope.batch_watermark

    def previous_processing_time(self) -> int:
        return self._scope.batch_processing_time

    def emit(self, table: pa.Table) -> None:
        self._emit(self.main, table, self._spec.output, "main output")

    def output(self, tag: OutputTag | str, table: pa.Table) -> None:
        name = tag.name if isinstance(tag, OutputTag) else tag
        if not isinstance(name, str):
            raise OutputDefinitionError(f"output tag {tag!r} is not an OutputTag")
        schema = tag.schema if isinstance(tag, OutputTag) else None
        self._emit(self.side.setdefault(name, EmittedTables()), table, schema, f"side output {name!r}")

    def drop(self, rows: int) -> None:
        self.dropped += int(rows)

    def _emit(self, emitted: EmittedTables, table: pa.Table, schema: Schema | None, what: str) -> None:
        from keyed.table_state.batches import shaped

        table = shaped(table, schema, f"{self._where}, {what}")
        if table.num_rows:
            emitted.tables.append(table)

    def begin(self, tables: list[pa.Table]) -> int:
        """Find the late rows of the batch, and return their number."""
        import pyarrow as pa
        import pyarrow.compute as pc

        batch_tables: Any = []
        for table in tables:
            late: Any = pa.chunked_array([pa.repeat(False, table.num_rows)])
            if TIMESTAMP_COLUMN in table.column_names:
                late = pc.less_equal(table.column(TIMESTAMP_COLUMN), pa.scalar(self._scope.batch_watermark))
            batch_tables += late.fill_null(False).chunks
        late = pa.chunked_array(batch_tables, pa.bool_()).combine_chunks()
        self._late = late
        return int(late.true_count)

    def end(self) -> None:
        """Refuse outputs from now on: the batch is over."""
        outside: Any = Outside(lambda: used_outside("the context", BATCH_CALLS))
        self.main = self.side = outside


@attrs.frozen(eq=False, repr=False)
class VectorizedWork:
    """Runs a `VectorizedFunction`.

    Args:
        spec: The operator.
        function: The opened function.
        registry: Its states.
        scope: The scope, which `KeyGroup` sets to each batch.
        where: Operator and key group, for messages.
    """

    _spec: OperatorSpec
    _function: VectorizedFunction
    _registry: Registry
    _scope: Scope
    _where: str

    def run(self, batch: Batch, watermark: int, changes: Changes) -> WorkResult:
        """See `keyed.engine.work.Work.run`."""
        scope, function, registry = self._scope, self._function, self._registry
        context = EngineBatchContext(self._spec, scope, self._where)
        main, side = context.main, context.side
        rows = late = 0
        registry.activate()
        try:
            if batch.initial is not None:
                write_initial(batch.initial(), registry, scope, None, batch.key_type)
            first = self._normalised(batch.table(), self._spec.keys)
            second = self._normalised(batch.table2(), self._spec.keys2)
            tables = [table for table in (first, second) if table is not None]
            if tables:
                rows, late = sum(table.num_rows for table in tables), context.begin(tables)
                if isinstance(function, VectorizedCoFunction):
                    call, process = "process_batches", partial(function.process_batches, first, second, context)
                else:
                    call, process = "process_batch", partial(function.process_batch, tables[0], context)
                self._call(f"{call} of {rows} rows", process)
                context._late = None
            scope.watermark = watermark
            self._call(f"on_watermark at {time_text(watermark)}", lambda: function.on_watermark(watermark, context))
            registry.flush(changes)
        finally:
            registry.deactivate()
            context.end()
        counters = {
            "rows_in": rows + batch.rows_combined,
            "rows_out": main.num_rows,
            "rows_late": late,
            "rows_side_output": sum(emitted.num_rows for emitted in side.values()),
            "rows_dropped": context.dropped,
        }
        # Such a function has no timers, so one that reads the clock has to run repeatedly.
        by_clock = context.reads_clock or self._spec.ingestion_delay_ms is not None
        due = scope.processing_time if by_clock else None
        return WorkResult(main, side, counters, due)

    def _normalised(self, table: pa.Table | None, keys: tuple[str, ...]) -> pa.Table | None:
        """Return the rows of a side with keys in their stored form; ``None`` if there are none."""
        from keyed.table_state.batches import normalised_keys

        return None if table is None or not table.num_rows else normalised_keys(table, keys)

    def _call(self, call: str, method: Callable[[], object]) -> None:
        returned: object = None
        try:
            returned = method()
        except Exception as error:  # noqa: BLE001 - whatever user code raises is named and raised again
            raise_at(f"{self._where}, {call}", error)
        if returned is not None:
            # A method that contains yield has not even run.
            raise OutputDefinitionError(
                f"{self._where}, {call} returned {type_of(returned)}, which is ignored; pass tables to ctx.emit"
            )
