"""The work of a key group on a batch, for both kinds of functions: over rows and over whole columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, time_text, type_of
from keyed.base.schemas import Schema
from keyed.content.addresses import TIMER_EVENT, TIMER_PROCESSING, TTL_EVENT, TTL_PROCESSING
from keyed.engine.batch import Batch, Emitted, EmittedTables
from keyed.engine.bound import Outside, Scope
from keyed.engine.broadcasting import Broadcasting
from keyed.engine.changes import Changes
from keyed.engine.driver import Driver, raise_at
from keyed.engine.emitted_values import OutputCopies
from keyed.engine.engine_context import EngineContext, EngineTimerService
from keyed.engine.initial import replace_table, write_initial
from keyed.engine.registry import Registry
from keyed.engine.timers import TimerQueue
from keyed.errors import OutputDefinitionError
from keyed.job.context import OutputTag
from keyed.job.functions import TIMESTAMP_COLUMN, OperatorSpec, RowFunction, VectorizedCoFunction, VectorizedFunction
from keyed.job.state import BATCH_CALLS, used_outside

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen(eq=False)
class WorkResult:
    """Result of a batch.

    Attributes:
        main: The main output.
        side: Side outputs by tag name.
        counters: Increments of the counters (`keyed.engine.group_log.COUNTERS`).
        due: Processing time of the next work without rows, ``None`` if there is none.
    """

    main: Emitted | EmittedTables
    side: dict[str, Emitted] | dict[str, EmittedTables]
    counters: dict[str, int]
    due: int | None


class Work(Protocol):
    """Runs the batches of an opened function; one object per task."""

    def run(self, batch: Batch, watermark: int, changes: Changes) -> WorkResult:
        """Run a batch.

        Args:
            batch: Rows and marks.
            watermark: The watermark after it. The scope has the previous one before the call, and this one after it.
            changes: Receives the changes.
        """


class RowWork:
    """Runs a function over rows.

    Args:
        spec: The operator.
        function: The opened function.
        registry: Its states.
        scope: The scope, which `KeyGroup` sets to each batch.
    """

    def __init__(self, spec: OperatorSpec, function: RowFunction, registry: Registry, scope: Scope) -> None:
        self._spec = spec
        self._function: Any = function
        self._registry = registry
        self._scope = scope
        self._copies = OutputCopies(spec.output)
        self._queues: tuple[TimerQueue, TimerQueue] | None = None

    def is_due(self, processing_time: int) -> bool:
        """Return true if a retained timer is due without rows."""
        due = None if self._queues is None else self._due(*self._queues)
        return due is not None and due <= processing_time

    def _due(self, event: TimerQueue, processing: TimerQueue) -> int | None:
        """Return the processing time at which the first timer fires without rows."""
        due = processing.earliest()
        delay = self._spec.ingestion_delay_ms
        if delay is not None and (first := event.earliest()) is not None and first < MAX_TIMESTAMP - delay:
            due = first + delay + 1 if due is None else min(due, first + delay + 1)
        return due

    def run(self, batch: Batch, watermark: int, changes: Changes) -> WorkResult:
        """See `Work.run`."""
        scope, registry = self._scope, self._registry
        event, processing = self._queues or (TimerQueue(scope, TIMER_EVENT), TimerQueue(scope, TIMER_PROCESSING))
        if scope.retains:
            self._queues = event, processing
        event.start()
        processing.start()
        timers = EngineTimerService(scope, self._function, event, processing, self._spec.event_time)
        context = EngineContext(scope, timers, self._copies, registry.broadcast)
        main, side = context.main, context.side
        event.load(watermark)
        processing.load(scope.processing_time)
        broadcast = None
        if registry.broadcast:
            tables = self._spec.global_tables
            replace = partial(replace_table, tables, registry.broadcast)
            process = replace if tables else self._function.process_broadcast_element
            broadcast = Broadcasting(process, scope, registry, context)
        driver = Driver(self._spec, self._function, scope, timers, context, broadcast)
        registry.activate()
        try:
            if batch.initial is not None:
                write_initial(batch.initial(), registry, scope, timers, batch.key_type)
            held = registry.held
            if held is not None:
                arrived, batch.chunks = batch.chunks, lambda: held.in_order(arrived(), watermark)
            driver.run(batch, watermark)
            registry.flush(changes)
            changes.expire(TTL_PROCESSING, scope.clock(TTL_PROCESSING))
            changes.expire(TTL_EVENT, scope.clock(TTL_EVENT))
            event.flush(changes)
            processing.flush(changes)
        finally:
            registry.deactivate()
            context.end()
        fired = event.fired + processing.fired
        deleted = event.deleted + processing.deleted
        # Every key group has the broadcast elements, and one group counts them.
        counted = broadcast if registry.get_index_of_this_subtask() == 0 else None
        # Rows count as input when they arrive.
        began, ended = (held.arrived, held.released) if held is not None else (0, 0)
        counters = {
            "rows_in": driver.rows + began - ended + (counted.rows if counted else 0),
            "rows_out": driver.handed_over + len(main.values),
            "rows_late": driver.late + (counted.late if counted else 0),
            "rows_side_output": sum(len(emitted.values) for emitted in side.values()),
            "rows_dropped": context.dropped + (counted.dropped if counted else 0),
            **({"rows_held": began - ended} if held is not None else {}),
            "timers_registered": changes.timers + fired + deleted,
            "timers_fired": fired,
        }
        return WorkResult(main, side, counters, self._due(event, processing))


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
        """See `Work.run`."""
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
