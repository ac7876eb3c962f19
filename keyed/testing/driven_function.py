"""A function that a test drives with elements, clocks, crashes and rescaling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.base.closing import Closeable
from keyed.engine.batch import Batch
from keyed.errors import DefinitionError, TimestampError
from keyed.job.context import OutputTag
from keyed.job.functions import (
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    check_function,
    takes_two,
)
from keyed.job.global_tables import GlobalTable
from keyed.runtimes.local.local_rows import element_of
from keyed.testing.committed_state import CommittedState
from keyed.testing.function_options import Key, has_sides, key_by
from keyed.testing.group_set import Clocks, GroupSet
from keyed.testing.micro_batches import Element, MicroBatches
from keyed.testing.pending_outputs import PendingOutputs
from keyed.testing.timed_records import Record
from keyed.vectorized import VectorizedCoFunction, VectorizedFunction

if TYPE_CHECKING:
    import pyarrow as pa

_NO_TIME = "is not an int in the range of int64; give milliseconds since the epoch"


class DrivenFunction(CommittedState, Closeable):
    """Runs a function over elements and clocks, one commit per call, on any set of key groups.

    `keyed.testing.KeyedTestHarness` drives healthy key groups, the simulator of the tests faulty ones.

    Args:
        groups: The key groups; they are closed with this object.
        key: Key of an element, as in `keyed.testing.KeyedTestHarness`.
        key2: The same for the second side.
        by_time: Whether the rows of a `batch` are sorted by timestamp.
        global_tables: Global tables that the function reads.
    """

    def __init__(
        self,
        groups: GroupSet,
        key: Key = None,
        key2: Key = None,
        *,
        by_time: bool = True,
        global_tables: Sequence[GlobalTable] = (),
    ) -> None:
        super().__init__(groups)
        function = groups.spec.function
        keys = [key_by(function, each) for each in (key, key if key2 is None else key2)]
        self._batches = MicroBatches(groups.spec.name, keys, by_time=by_time)
        self._outputs = PendingOutputs()
        self._global_tables = list(global_tables)
        self._watermark = MIN_TIMESTAMP
        self._watermarks = [MIN_TIMESTAMP, MIN_TIMESTAMP]
        self._processing_time = 0
        self._collecting: list[Element] | None = None

    def process(self, value: Any, timestamp: int | None = None) -> None:
        """Process one element at once and commit. Without a strategy the watermark does not move.

        Args:
            value: The element.
            timestamp: Its event timestamp in milliseconds.

        Raises:
            TimestampError: The timestamp is not an int in the range of int64.
        """
        self._process(value, timestamp, "process", (KeyedProcessFunction, KeyedBroadcastProcessFunction))

    def process_broadcast_element(self, value: Any, timestamp: int | None = None) -> None:
        """As `process`, for a broadcast element, in each key group."""
        self._process(value, timestamp, "process_broadcast_element", KeyedBroadcastProcessFunction, side=1)

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """As `process`, for the first side."""
        self._process(value, timestamp, "process_element1", KeyedCoProcessFunction)

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """As `process`, for the second side."""
        self._process(value, timestamp, "process_element2", KeyedCoProcessFunction, side=1)

    def _process(
        self, value: Any, timestamp: int | None, call: str, kind: type | tuple[type, ...], side: int = 0
    ) -> None:
        function = self._groups.spec.function
        if not isinstance(function, kind):
            calls = "process_batch" if isinstance(function, VectorizedFunction) else "process"
            if isinstance(function, KeyedCoProcessFunction):
                calls = "process_element1 and process_element2"
            elif isinstance(function, KeyedBroadcastProcessFunction):
                calls = "process and process_broadcast_element"
            raise DefinitionError(f"{call}: for {type(function).__name__} use {calls}")
        if timestamp is not None and not _is_time(timestamp):
            raise TimestampError(f"timestamp {timestamp!r} of element {value!r} {_NO_TIME}")
        if timestamp is not None and self._groups.spec.ingests:
            raise DefinitionError(
                f"timestamp {timestamp!r}: with ingestion_time=True each element has the time of its batch"
            )
        element = element_of(value)
        if self._collecting is not None:
            self._collecting.append((element, timestamp, side))
        else:
            self._run([(element, timestamp, side)])

    def reload_tables(self) -> None:
        """Read the global tables again, with one commit: the function sees the current versions.

        Raises:
            SourceError: One cannot be read.
            RowError: A row does not fit the types of its state.
        """
        versions = [{"name": table.state.name, "rows": table.version().rows} for table in self._global_tables]
        if versions:
            self._run([(element_of(version), None, 1) for version in versions])

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run the `process` calls inside as one micro-batch and one commit, in the order of the harness."""
        if self._collecting is not None:
            raise DefinitionError("batch() inside batch()")
        self._collecting = []
        try:
            yield
            rows = self._collecting
        finally:
            self._collecting = None
        self._run(rows)

    def process_batch(self, table: pa.Table, timestamps: str | None = None) -> None:
        """Process rows with a vectorized function as one micro-batch, and commit.

        Args:
            table: The rows; they go through the function's ``combine``, if any.
            timestamps: Column with the event time, a timestamp or milliseconds.

        Raises:
            DefinitionError: The function or the rows are of another kind, or a column is missing.
        """
        from keyed.table_state.batches import with_times

        function = self._groups.spec.function
        if not isinstance(function, VectorizedFunction) or takes_two(function):
            calls = "process_batches" if isinstance(function, VectorizedFunction) else "process"
            raise DefinitionError(f"process_batch: for {type(function).__name__} use {calls}")
        self._process_tables([with_times(table, timestamps)])

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, timestamps: str | None = None) -> None:
        """As `process_batch`, with a `keyed.vectorized.VectorizedCoFunction`.

        Args:
            first: Rows of the first side, or ``None``.
            second: Those of the second side.
            timestamps: As in `process_batch`, of both sides.

        Raises:
            DefinitionError: As in `process_batch`.
        """
        from keyed.table_state.batches import with_times

        function = self._groups.spec.function
        if not isinstance(function, VectorizedCoFunction):
            raise DefinitionError(f"process_batches: {type(function).__name__} is not a VectorizedCoFunction")
        tables = [table if table is None else with_times(table, timestamps) for table in (first, second)]
        self._process_tables(tables)

    def _process_tables(self, tables: list[pa.Table | None]) -> None:
        self._commit(self._batches.of_tables(self._groups.spec, tables, self._processing_time))

    def advance_watermark(self, timestamp: int) -> None:
        """Move the watermark to ``timestamp`` and fire event-time timers up to it. It never moves back."""
        self._advance(timestamp, 0, 1)

    def advance_watermark1(self, timestamp: int) -> None:
        """As `advance_watermark`, for the first side."""
        self._advance(timestamp, 0)

    def advance_watermark2(self, timestamp: int) -> None:
        """As `advance_watermark`, for the second side."""
        self._advance(timestamp, 1)

    def _advance(self, timestamp: int, *sides: int) -> None:
        """Move the watermarks of one side or of both; of neither if a timer fails."""
        if not _is_time(timestamp):
            raise DefinitionError(f"watermark {timestamp!r} {_NO_TIME}")
        if len(sides) == 1 and not has_sides(self.function):
            raise DefinitionError(f"{type(self.function).__name__} has one side: use advance_watermark")
        watermarks = [max(each, timestamp) if side in sides else each for side, each in enumerate(self._watermarks)]
        watermark = max(self._watermark, min(watermarks))
        self._commit(self._idle(watermark=watermark))
        self._watermark, self._watermarks = watermark, watermarks

    def advance_processing_time(self, timestamp: int) -> None:
        """Move the processing time to ``timestamp`` and fire processing-time timers up to it. It never moves back."""
        if not _is_time(timestamp):
            raise DefinitionError(f"processing time {timestamp!r} {_NO_TIME}")
        before, self._processing_time = self._processing_time, max(self._processing_time, timestamp)
        try:
            self._commit(self._idle())
        except BaseException:
            self._processing_time = before
            raise

    def end_of_input(self) -> None:
        """End the input: the watermark moves to 2^63 − 1 and all timers fire."""
        self._commit(self._idle(end=True))
        self._watermark = MAX_TIMESTAMP
        self._watermarks = [MAX_TIMESTAMP, MAX_TIMESTAMP]

    def crash_and_recover(self, function: Function | None = None) -> None:
        """Drop the local stores and all uncommitted changes, and recover from the log.

        Args:
            function: A fresh copy, or a changed one; by default the same object.
        """
        check_function(self.function if function is None else function)
        self._groups.recover(function)

    def rescale(self, parallelism: int, function: Function | None = None) -> None:
        """Continue with another number of key groups, from the committed state.

        Args:
            parallelism: Number of key groups.
            function: As in `crash_and_recover`.

        Raises:
            DefinitionError: There is a changelog.
        """
        check_function(self.function if function is None else function)
        clocks = self._groups.rescale(parallelism, function)
        if clocks is not None:
            self._resume(clocks)

    def take_output(self) -> list[Record]:
        """Return the main output since the last call."""
        return self._outputs.take(None)

    def take_table(self, tag: OutputTag | str | None = None) -> pa.Table:
        """Return a vectorized function's outputs since the last call.

        Args:
            tag: A side output; the main output by default.
        """
        import pyarrow as pa

        name = None if tag is None else self._outputs.side_name(tag)
        tables = self._outputs.take_tables(name)
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def take_side_output(self, tag: OutputTag | str) -> list[Record]:
        """Return the side output ``tag`` since the last call.

        Raises:
            DefinitionError: An unknown name, while other side outputs have rows; an `OutputTag` may be empty.
        """
        return self._outputs.take(self._outputs.side_name(tag))

    @property
    def side_outputs(self) -> list[str]:
        """The names of the side outputs with rows."""
        return sorted(self._outputs.side)

    @property
    def current_watermark(self) -> int:
        """The watermark, milliseconds."""
        return self._watermark

    @property
    def current_processing_time(self) -> int:
        """The processing time, milliseconds."""
        return self._processing_time

    def close(self) -> None:
        """Close the function and the local stores."""
        self._groups.close()

    def _run(self, rows: list[Element]) -> None:
        self._commit(self._batches.of_rows(self._groups.spec, rows, self._processing_time))

    def _idle(self, *, watermark: int | None = None, end: bool = False) -> list[Batch]:
        return self._batches.without_rows(self._groups.spec, self._processing_time, watermark=watermark, end=end)

    def _commit(self, batches: list[Batch]) -> None:
        """Run a micro-batch, commit it and keep its outputs."""
        results = self._groups.run(batches)
        if self._groups.spec.delay_ms is not None:
            self._watermark = min(result.watermark for result in results)
        for result in results:
            self._outputs.add(result)

    def _resume(self, clocks: Clocks) -> None:
        """Continue at the clocks of a restored state."""
        self._watermark, self._processing_time = clocks
        self._watermarks = [self._watermark, self._watermark]


def _is_time(timestamp: object) -> bool:
    return type(timestamp) is int and MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP
