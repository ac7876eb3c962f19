"""The window operator: a plain `KeyedProcessFunction` made of an assigner, a trigger, an aggregate and so on."""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keyed import Context, KeyedProcessFunction, OnTimerContext, OpenContext
from keyed.job.execution_path import shown_path
from keyed.windows.definition import Definition
from keyed.windows.general import GeneralWindows
from keyed.windows.packed_windows import PackedSessions, PaneWindows

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
