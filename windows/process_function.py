"""Functions over the contents of a window, to subclass.

Source: Flink's ``ProcessWindowFunction``; method names are PyFlink's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from keyed import OpenContext, OutputTag


class ProcessWindowContext(Protocol):
    """Context of a window function: window, clocks, state and side outputs."""

    def window(self) -> Any:
        """Return the window: a `TimeWindow`, a `GlobalWindow` or the assigner's own kind."""

    def current_watermark(self) -> int:
        """Return the watermark, milliseconds."""

    def current_processing_time(self) -> int:
        """Return the processing time, milliseconds."""

    def window_state(self, descriptor: Any) -> Any:
        """Return the state declared as ``descriptor``, for this key and window. Clear it in ``clear``.

        Raises:
            StateAccessError: The windows merge, so there is no state per window.
        """

    def global_state(self, descriptor: Any) -> Any:
        """Return the state declared as ``descriptor``, for this key and all its windows."""

    def output(self, tag: OutputTag | str, value: Any) -> None:
        """Emit ``value`` to the side output ``tag``."""


class ProcessWindowFunction:
    """A function over the elements of a window; state is declared as in `KeyedProcessFunction`.

    A declaration serves ``context.window_state`` and ``context.global_state``, which share no values.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def open(self, context: OpenContext) -> None:
        """Prepare; called once per task before its first window."""

    def process(self, key: Any, context: ProcessWindowContext, elements: Sequence[Any], /) -> Iterable[Any] | None:
        """Process the elements of a window; called whenever it fires.

        Args:
            key: The key.
            context: Window, clocks, state and side outputs.
            elements: In order of arrival, at least one; with an aggregate, only its result.

        Returns:
            An iterable of outputs (write a generator), or `None`. They get the window's last timestamp.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process")

    def clear(self, context: ProcessWindowContext) -> None:
        """Clear ``context.window_state``; called when the window is cleaned up."""

    def close(self) -> None:
        """Release what `open` took; called once per task after its last window."""
