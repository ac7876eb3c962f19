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
        """Mask of the late rows of the batch: their timestamp was at or below the watermark at its start.

        As long as the table that ``process_batch`` got, all false if that has no timestamps; empty in
        ``on_watermark``.
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
        """Emit rows to the main output.

        Args:
            table: The columns of the declared output, by name; others are dropped. If it has `TIMESTAMP_COLUMN`, it
                holds the timestamps of the rows for a keyed stage that follows.
        """

    def output(self, tag: OutputTag | str, table: pa.Table) -> None:
        """Emit rows to the side output ``tag``. The columns are as in `emit`."""

    def drop(self, rows: int) -> None:
        """Count rows as dropped, in the counter ``rows_dropped``."""


class VectorizedFunction(Shown):
    """A function over a keyed stream that works on whole columns, with `keyed.vectorized.TableState` as its state.

    Used in ``.process`` as a `keyed.KeyedProcessFunction` is, also beside those in one query. State is declared by
    class attributes, or set on the object in ``__init__``. A copy of the object serves each key group, on Spark a new
    one in each micro-batch: keep nothing on ``self`` but declared state and objects that `open` can create again.

    Attributes:
        known_side_outputs: Names of all its side outputs, so that others are refused; ``None`` allows any name.
        forwarded_fields: As `KeyedProcessFunction.forwarded_fields`.
        migration: As `KeyedProcessFunction.migration`. Tables can be renamed and dropped.
    """

    known_side_outputs: Collection[str] | None = None
    forwarded_fields: Mapping[str, str] = {}
    migration: StateMigration | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def open(self, context: TaskContext) -> None:
        """Prepare for the first batch of a key group (on Spark, of each micro-batch). State cannot be used here.

        Args:
            context: Names the task.
        """

    def process_batch(self, table: pa.Table, ctx: BatchContext, /) -> None:
        """Process the rows of a micro-batch; called for each that has rows for the key group, with all of them.

        It returns nothing: outputs are given to ``ctx.emit`` and ``ctx.output``.

        Args:
            table: The columns of the source, or of what `combine` returned, and `TIMESTAMP_COLUMN` if the stream has
                event time. Rows are in event-time order, stable by arrival; in arrival order with
                ``order="arrival"``, or if `combine` left out the timestamps.
            ctx: Clocks, late rows and outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_batch")

    def on_watermark(self, watermark: int, ctx: BatchContext, /) -> None:
        """Act on an advance of time: after a micro-batch's rows, and without rows when watermark or clock moved.

        This is where expired rows are taken out of the state and emitted.

        Args:
            watermark: The watermark after the batch; 2^63 − 1 at the end of input.
            ctx: Clocks and outputs.
        """

    def combine(self, table: pa.Table, /) -> pa.Table:
        """Aggregate rows partially before they are sent to their key groups. Optional; called only if it is defined.

        It may be called any number of times, with any part of a batch's rows of any keys. State cannot be used here.

        Args:
            table: As in `process_batch`, in arrival order.

        Returns:
            A table with at least the key columns. Its rows are sent by their keys, and `process_batch` gets them. The
            watermark is measured before it.
        """
        return table

    def close(self) -> None:
        """Release what `open` took, after a key group's last batch (on Spark, after each micro-batch) or a failure."""


class VectorizedCoFunction(VectorizedFunction):
    """A `VectorizedFunction` over two connected streams, as `keyed.KeyedCoProcessFunction` is over rows.

    Rows of both sides with the same key are in one key group, and share its tables. The key of a table state starts
    with the columns of the first side's ``key_by``; those of the second side may have other names. The watermark is the
    least of the two sides'. It defines `process_batches` in place of ``process_batch``, and does not combine.
    """

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext, /) -> None:
        """Process the rows of a micro-batch; called for each that has rows of either side for the key group.

        Args:
            first: The rows of the first side, as `VectorizedFunction.process_batch` gets them; ``None`` if it has none.
            second: Those of the second side.
            ctx: Clocks, outputs and late rows: ``ctx.late`` is of the first side's rows, then of the second side's.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_batches")


def combines(function: object) -> TypeGuard[VectorizedFunction]:
    """Return whether ``function`` is vectorized and defines ``combine``."""
    return isinstance(function, VectorizedFunction) and type(function).combine is not VectorizedFunction.combine
