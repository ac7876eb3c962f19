"""Functions over whole columns, and their context."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeGuard

from keyed.base.shown import Shown
from keyed.job.context import TaskContext
from keyed.job.outputs import OutputTag

if TYPE_CHECKING:
    import pyarrow as pa

    from keyed.job.restoring import StateMigration

#: The column that holds the event timestamp of a row: int64, milliseconds since the epoch.
TIMESTAMP_COLUMN = "__keyed_timestamp"


class BatchContext(Protocol):
    """Context of ``process_batch`` and ``on_watermark``: clocks, late rows and outputs."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of ``key_by``."""

    @property
    def late(self) -> pa.BooleanArray:
        """Mask of the batch's late rows: at or below the watermark at its start.

        All false without timestamps; empty in ``on_watermark``.
        """

    def current_watermark(self) -> int:
        """Return the watermark: in ``process_batch`` that before the batch, in ``on_watermark`` the new one."""

    def current_processing_time(self) -> int:
        """Return the processing time of this micro-batch, milliseconds."""

    def previous_watermark(self) -> int:
        """Return the watermark before this micro-batch, also in ``on_watermark``."""

    def previous_processing_time(self) -> int:
        """Return the processing time of the micro-batch before; −2^63 in the first one."""

    def emit(self, table: pa.Table) -> None:
        """Emit rows to the main output: the declared columns, by name; others are dropped.

        `TIMESTAMP_COLUMN`, if there, has the timestamps for a keyed stage that follows.
        """

    def output(self, tag: OutputTag | str, table: pa.Table) -> None:
        """Emit rows to the side output ``tag``. The columns are as in `emit`."""

    def drop(self, rows: int) -> None:
        """Count rows as dropped, in the counter ``rows_dropped``."""


class StreamFunction(Shown):
    """Base of the functions over streams, by rows or by whole columns."""

    known_side_outputs: Collection[str] | None = None
    forwarded_fields: Mapping[str, str] = {}
    migration: StateMigration | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class VectorizedFunction(StreamFunction):
    """A function over a keyed stream that works on whole columns, for ``.process``.

    State is declared by class attributes, or set on the object in ``__init__``. Copies of the object are as those of a
    `keyed.KeyedProcessFunction`.

    Attributes:
        known_side_outputs: As `KeyedProcessFunction.known_side_outputs`.
        forwarded_fields: As `KeyedProcessFunction.forwarded_fields`.
        migration: As `KeyedProcessFunction.migration`; tables can be renamed and dropped.
    """

    def open(self, context: TaskContext) -> None:
        """Prepare for a key group's first batch (on Spark, each micro-batch). State cannot be used here."""

    def process_batch(self, table: pa.Table, ctx: BatchContext, /) -> None:
        """Process all rows of a micro-batch for the key group; outputs go to ``ctx.emit`` and ``ctx.output``.

        Args:
            table: The columns of the source, or of ``combine``, and `TIMESTAMP_COLUMN` if the stream has event time.
                By event time, stable by arrival; by arrival with ``order="arrival"``, or if ``combine`` left out the
                timestamps.
            ctx: Clocks, late rows and outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_batch")

    def on_watermark(self, watermark: int, ctx: BatchContext, /) -> None:
        """Act on an advance of watermark or clock, after a micro-batch's rows or without rows: emit what has expired.

        Args:
            watermark: The watermark after the batch; 2^63 − 1 at the end of input.
            ctx: Clocks and outputs.
        """

    def combine(self, table: pa.Table, /) -> pa.Table:
        """Aggregate rows partially before they are sent to their key groups. Optional; without state.

        Called any number of times, with any part of a batch, in arrival order. The watermark is measured before.

        Returns:
            A table with at least the key columns, for ``process_batch``.
        """
        return table

    def close(self) -> None:
        """Release what ``open`` took, after the last batch (on Spark, each micro-batch) or a failure."""


class VectorizedCoFunction(VectorizedFunction):
    """A `VectorizedFunction` over two connected streams, with ``process_batches`` and without ``combine``.

    Both sides' rows of a key are in one key group and share its tables. Keys of table states begin with the columns of
    the first side's ``key_by``; the second side's may have other names. The watermark is the lesser one.
    """

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext, /) -> None:
        """Process a micro-batch that has rows of either side for the key group.

        Args:
            first: As the table of `VectorizedFunction.process_batch`; `None` without rows.
            second: The same for the second side.
            ctx: Clocks and outputs; ``ctx.late`` is of the first side's rows, then of the second's.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_batches")


def combines(function: object) -> TypeGuard[VectorizedFunction]:
    """Return whether ``function`` is vectorized and defines ``combine``."""
    return isinstance(function, VectorizedFunction) and type(function).combine is not VectorizedFunction.combine
