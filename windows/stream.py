"""Windowed streams: what ``stream.key_by(...).window(assigner)`` returns, and what builds the window operator."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import attrs

from keyed import DefinitionError, KeyedStream, Output, OutputTag, Schema, milliseconds_of
from windows.aggregates import Reduce
from windows.assigners import HoppingWindows, WindowAssigner
from windows.definition import hopping_slice
from windows.evictors import Evictor
from windows.output_schema import input_columns, is_spark, key_names, output_ddl, row_timestamps, upstream_delay
from windows.paths import Path, row_reason
from windows.process_function import ProcessWindowFunction
from windows.triggers import Trigger
from windows.vectorized.batch_operator import WindowBatchOperator
from windows.window_operator import WindowOperator

__all__ = ["WindowedStream", "explain"]

Duration = int | dt.timedelta
_OLD_NAME: str = "columnar"


@attrs.frozen(eq=False)
class WindowedStream:
    """A keyed stream cut into windows. Each method returns a new description; the last one is an output.

    Attributes:
        stream: The keyed stream.
        assigner: Its windows.
    """

    stream: KeyedStream
    assigner: WindowAssigner
    _trigger: Trigger | None = None
    _evictor: Evictor | None = None
    _lateness_ms: int = 0
    _late_tag: OutputTag | str | None = None
    _idle_ms: int | None = None
    _element_type: Any = object
    _path: Path = "auto"

    def trigger(self, trigger: Trigger) -> WindowedStream:
        """Fire by ``trigger`` instead of the assigner's."""
        return attrs.evolve(self, trigger=trigger)

    def evictor(self, evictor: Evictor) -> WindowedStream:
        """Take elements out with ``evictor`` when a window fires. All elements of the window are kept then."""
        return attrs.evolve(self, evictor=evictor)

    def allowed_lateness(self, lateness: Duration) -> WindowedStream:
        """Keep windows for ``lateness`` after their end, and fire again for each element that comes in that time.

        Raises:
            DefinitionError: It is negative.
        """
        return attrs.evolve(self, lateness_ms=milliseconds_of(lateness, "allowed_lateness"))

    def side_output_late_data(self, tag: OutputTag | str) -> WindowedStream:
        """Emit elements that are late for all of their windows to the side output ``tag`` instead of dropping them."""
        return attrs.evolve(self, late_tag=tag)

    def close_when_idle(self, timeout: Duration) -> WindowedStream:
        """Close a window, as its end would, when no element came to it for ``timeout`` of processing time.

        For streams that may fall silent: their watermark stands still, and so would open windows.

        Raises:
            DefinitionError: It is below 1 ms.
        """
        return attrs.evolve(self, idle_ms=milliseconds_of(timeout, "timeout", least=1))

    def element_type(self, type: Any) -> WindowedStream:
        """The elements' type for the codec, where windows keep elements that are neither rows nor plain data."""
        return attrs.evolve(self, element_type=type)

    def path(self, path: Path) -> WindowedStream:
        """How aggregates are computed: ``"row"`` by row, ``"vectorized"`` (whole columns), or ``"auto"``.

        By default it is whole columns where the definition allows it; `windows.explain` says which and why. Results are
        the same. A checkpoint goes on with the path that it was started with: another one is refused
        (`keyed.StateSchemaChanged`).

        Raises:
            DefinitionError: It is none of the three.
        """
        if path not in ("auto", "row", "vectorized"):
            now = "; it is called 'vectorized' now" if path == _OLD_NAME else ""
            raise DefinitionError(f"path={path!r} must be 'auto', 'row' or 'vectorized'{now}")
        return attrs.evolve(self, path=path)

    def reduce(
        self,
        reduce: Callable[[Any, Any], Any],
        process: ProcessWindowFunction | None = None,
        *,
        type: Any = None,
        output: Any = None,
        **options: Any,
    ) -> Output:
        """Combine the elements of each window to one of their kind.

        Args:
            reduce: ``(current, element) -> new``, associative.
            process: Gets the reduced element; without it that is the output.
            type: Type of the elements for the codec, where they are neither rows nor plain data.
            output: Columns of the output, as in ``KeyedStream.process``.
            options: ``name``, ``parallelism``, ``order``, ``store``, ``changelog`` and ``restore_from``, as in
                ``KeyedStream.process``.

        Raises:
            DefinitionError: Parts do not fit each other.
        """
        return self._build(Reduce(reduce, type), process, output, options)

    def aggregate(
        self,
        aggregate: Any = None,
        process: ProcessWindowFunction | None = None,
        *,
        output: Any = None,
        name: str | None = None,
        parallelism: int | None = None,
        order: str = "event_time",
        store: str = "memory",
        changelog: Any = None,
        restore_from: Any = None,
        **columns: Any,
    ) -> Output:
        """Aggregate the elements of each window.

        ``aggregate(Sum("amount"))`` outputs the sum. ``aggregate(orders=Count(), revenue=Sum("amount"))`` outputs rows:
        the key's columns, ``window_start`` and ``window_end``, ``orders`` and ``revenue``. Their types follow from the
        input's columns; the window's bounds are milliseconds, or timestamps where ``output`` says so.

        Args:
            aggregate: One aggregate, or a dict of them by column name (for names that are parameters here).
            process: Gets the aggregate's result (named aggregates: one row of them); what it yields is the output.
            output: Columns of the output, as in ``KeyedStream.process``.
            name: As in ``KeyedStream.process``, and so the next five.
            parallelism: Number of key groups.
            order: Order of the rows of a batch.
            store: Where the state is kept.
            changelog: Where committed changes go.
            restore_from: What a new query starts with.
            columns: Aggregates by column name.

        Raises:
            DefinitionError: Both or neither form is used, or parts do not fit each other.
            OutputDefinitionError: On Spark, the columns cannot be derived and are not given.
        """
        if (aggregate is None) == (not columns):
            raise DefinitionError(
                "aggregate takes one aggregate, or aggregates by name: aggregate(orders=Count(), revenue=Sum('amount'))"
            )
        options = {"name": name, "parallelism": parallelism, "order": order, "store": store}
        options |= {"changelog": changelog, "restore_from": restore_from}
        return self._build(aggregate if aggregate is not None else columns, process, output, options)

    def process(self, process: ProcessWindowFunction, *, output: Any = None, **options: Any) -> Output:
        """Give all elements of each window to a function. The window keeps them all.

        Args:
            process: The function.
            output: Columns of the output, as in ``KeyedStream.process``.
            options: ``name``, ``parallelism``, ``order``, ``store``, ``changelog`` and ``restore_from``, as in
                ``KeyedStream.process``.

        Raises:
            DefinitionError: Parts do not fit each other.
        """
        return self._build(None, process, output, options)

    def _build(self, aggregate: Any, process: ProcessWindowFunction | None, output: Any, options: Any) -> Output:
        """The output of the window operator over the stream."""
        # The same on both paths, so that a checkpoint knows the operator.
        options = {**options, "name": options.get("name") or WindowOperator.__name__}
        columns = input_columns(self.stream)
        operator = self._operator(aggregate, process)
        definition = operator.definition
        reason = "of path='row'" if self._path == "row" else None
        reason = reason or row_reason(definition, columns, self.stream.keys, options.get("order", "event_time"))
        if reason is not None and self._path == "vectorized":
            raise DefinitionError(
                f"path='vectorized': {definition.assigner!r} cannot be computed over whole columns, because {reason}; "
                "use path='auto' or 'row'"
            )
        if output is None:
            output = output_ddl(definition, columns, strict=is_spark(self.stream))
        operator.definition = attrs.evolve(definition, row_reason=reason)
        described = self.stream.process(operator, output, **options)
        schema = described.stage.output
        if schema is None or definition.names is None or process is not None:
            return described
        if reason is None:
            return self.stream.process(self._batch_operator(aggregate, columns, schema), schema, **options)
        rows_fit = is_spark(self.stream) and schema.names == definition.row_names
        fitted = self._operator(aggregate, None, timestamps=row_timestamps(schema), plain_rows=rows_fit)
        fitted.definition = attrs.evolve(fitted.definition, row_reason=reason)
        return self.stream.process(fitted, schema, **options)

    def _batch_operator(self, aggregate: Any, columns: Any, schema: Schema) -> WindowBatchOperator:
        return WindowBatchOperator(
            assigner=self.assigner,
            aggregate=aggregate,
            columns=columns,
            key_names=key_names(self.stream),
            allowed_lateness_ms=self._lateness_ms,
            late_tag=self._late_tag,
            timestamps=row_timestamps(schema),
            delay_ms=upstream_delay(self.stream),
        )

    def _operator(self, aggregate: Any, process: ProcessWindowFunction | None, **rows: bool) -> WindowOperator:
        return WindowOperator(
            assigner=self.assigner,
            trigger=self._trigger,
            evictor=self._evictor,
            aggregate=aggregate,
            process=process,
            allowed_lateness_ms=self._lateness_ms,
            late_tag=self._late_tag,
            idle_timeout_ms=self._idle_ms,
            key_names=key_names(self.stream),
            element_type=self._element_type,
            open_slices=self._open_slices(),
            **rows,
        )

    def _open_slices(self) -> int:
        """How many more slices are open because the watermark stays behind."""
        assigner = self.assigner
        if not isinstance(assigner, HoppingWindows) or not assigner.event_time:
            return 0
        return upstream_delay(self.stream) // hopping_slice(assigner)


def explain(output: Output) -> str:
    """How the windows of a chain are computed and kept, and why: a line for each window operator up to ``output``."""
    operators = [(stage.name, stage.function) for stage in output.stage.chain]
    return "\n".join(
        f"{name}: {function.explain()}"
        for name, function in operators
        if isinstance(function, WindowOperator | WindowBatchOperator)
    )
