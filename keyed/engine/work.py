"""The work of a key group on a batch, for both kinds of functions: over rows and over whole columns.

`RowWork` is in this module, `keyed.engine.vectorized_work.VectorizedWork` is the other implementation.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import attrs

from keyed.base.durations import MAX_TIMESTAMP
from keyed.content.addresses import TIMER_EVENT, TIMER_PROCESSING, TTL_EVENT, TTL_PROCESSING
from keyed.engine.batch import Batch, Emitted, EmittedTables
from keyed.engine.broadcasting import Broadcasting
from keyed.engine.changes import Changes
from keyed.engine.driver import Driver
from keyed.engine.emitted_values import OutputCopies
from keyed.engine.engine_context import EngineContext, EngineTimerService
from keyed.engine.initial import replace_table, write_initial
from keyed.engine.registry import Registry
from keyed.engine.scope import Scope
from keyed.engine.timers import TimerQueue
from keyed.job.functions import RowFunction
from keyed.job.operators import OperatorSpec


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
