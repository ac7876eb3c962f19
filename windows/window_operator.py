"""The window operator: a plain `KeyedProcessFunction` made of an assigner, a trigger, an aggregate and so on."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict, Unpack

from keyed import Context, KeyedProcessFunction, OnTimerContext, OpenContext, OutputTag
from keyed.extending import shows_options
from keyed.job.execution_path import shown_path
from keyed.windows.assigning import AnyAssigner
from keyed.windows.definition import Definition, define
from keyed.windows.evictors import Evictor
from keyed.windows.general import GeneralWindows
from keyed.windows.packed_sessions import PackedSessions
from keyed.windows.panes import PaneWindows
from keyed.windows.process_function import ProcessWindowFunction
from keyed.windows.triggers import Trigger

_LOGIC: dict[str, Any] = {"general": GeneralWindows, "panes": PaneWindows, "sessions": PackedSessions}


class OperatorParts(TypedDict, total=False):
    """The parts of a window operator except its assigner."""

    trigger: Trigger | None
    evictor: Evictor | None
    aggregate: Any
    process: ProcessWindowFunction | None
    allowed_lateness_ms: int
    late_tag: OutputTag | str | None
    idle_timeout_ms: int | None
    key_names: tuple[str, ...]
    timestamps: bool
    element_type: Any


class WindowOperator(KeyedProcessFunction):
    """The function that runs windows row by row (Flink's `WindowOperator`); `WindowedStream` builds it.

    A window ``[start, end)`` fires by its trigger, by default when the watermark reaches ``end - 1``, and its state is
    removed at ``end - 1 + allowed lateness``. An element is late for a window whose state was removed. Outputs carry
    the timestamp ``end - 1``.

    Args:
        assigner: Assigns windows to elements.
        trigger: By default the assigner's.
        evictor: Removes elements before or after the window function.
        aggregate: One aggregate, whose result is the output, or a dict by column name, for rows of key, window and
            results.
        process: A function over the elements, or over the aggregate's result.
        allowed_lateness_ms: As of `WindowedStream.allowed_lateness`.
        late_tag: Side output for late elements; without it they are dropped.
        idle_timeout_ms: As of `WindowedStream.close_when_idle`; a later element opens the window again.
        key_names: Names of the key's columns.
        timestamps: ``window_start`` and ``window_end`` are aware datetimes, not milliseconds.
        element_type: As of `WindowedStream.element_type`.

    Raises:
        DefinitionError: A part is of the wrong type, or parts do not fit each other.
    """

    @shows_options(OperatorParts, allowed_lateness_ms=0, key_names=("key",), timestamps=False, element_type=object)
    def __init__(self, *, assigner: AnyAssigner, **parts: Unpack[OperatorParts]) -> None:
        self.definition: Definition = define(assigner=assigner, **parts)

    @classmethod
    def of(cls, definition: Definition) -> WindowOperator:
        """Build the operator of a validated definition."""
        operator = cls.__new__(cls)
        operator.definition = definition
        return operator

    def open(self, context: OpenContext) -> None:
        logic = _LOGIC[self.definition.layout](self.definition, context)
        # Set on this task's copy, so that a call per element goes directly to the logic.
        self.process_element = logic.process_element  # type: ignore[method-assign]
        self.on_timer = logic.on_timer  # type: ignore[method-assign]
        if self.definition.process is not None:
            self.definition.process.open(context)

    @property
    def known_side_outputs(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The side output of late rows; ``None`` if a window function may have others."""
        return self.definition.known_side_outputs

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
