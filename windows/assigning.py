"""Assigners for window operators: the protocol, and the kinds with an implementation of their own.

`keyed.windows.assigners` builds the public assigners on it. A window that several elements share is the same tuple for
all of them; no data is kept per key.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from keyed.extending import milliseconds_of
from keyed.windows.evictors import Evictor
from keyed.windows.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger
from keyed.windows.window import TimeWindow, merge_time_windows, time_window, window_start


class AnyAssigner:
    """An assigner as operators use it. The public base is `keyed.windows.WindowAssigner`.

    Attributes:
        event_time: True for windows in event time, false for processing time.
        window_type: Class of the windows: a named tuple with ``max_timestamp()``.
    """

    event_time: ClassVar[bool] = True
    window_type: Callable[..., Any] = TimeWindow

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        """Return the windows of an element, from these arguments alone; called once per element.

        Args:
            element: The element.
            timestamp: In milliseconds; never `None` if ``event_time`` is true.
            processing_time: The batch's, milliseconds.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define assign_windows")

    def default_trigger(self) -> Trigger:
        """Return the default trigger."""
        return EventTimeTrigger() if self.event_time else ProcessingTimeTrigger()

    def default_evictor(self) -> Evictor | None:
        """Return the default evictor."""
        return None


class HoppingWindows(AnyAssigner):
    """Windows of one size that start every ``slide``: the base of tumbling and hopping windows of both clocks.

    Attributes:
        size_ms: Length of a window.
        slide_ms: Distance between the starts of two windows. Tumbling if it equals the size; if it is larger, elements
            between windows belong to none.
        offset_ms: Windows start at this time modulo the slide.
    """

    def __init__(self, size_ms: int, slide_ms: int, offset_ms: int) -> None:
        self.size_ms = size_ms
        self.slide_ms = slide_ms
        self.offset_ms = offset_ms

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        if not self.event_time:
            timestamp = processing_time
        assert timestamp is not None
        start = window_start(timestamp, self.offset_ms, self.slide_ms)
        size, slide = self.size_ms, self.slide_ms
        if size == slide:
            return (time_window(start, start + size),)
        return [time_window(first, first + size) for first in range(start, timestamp - size, -slide)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size_ms} ms, slide={self.slide_ms} ms, offset={self.offset_ms} ms)"


class SessionWindows(AnyAssigner):
    """Windows that end after a gap without elements: the base of the session windows of both clocks.

    Attributes:
        gap_of: The gap after an element, in milliseconds, or one gap for all elements.
    """

    def __init__(self, gap_of: int | Callable[[Any], int]) -> None:
        self.gap_of = gap_of

    def gap_ms(self, element: Any) -> int:
        """Return the gap after ``element``.

        Raises:
            DefinitionError: The user's function returned no duration of at least 1 ms.
        """
        gap = self.gap_of
        return gap if isinstance(gap, int) else milliseconds_of(gap(element), "session gap", least=1)

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        if not self.event_time:
            timestamp = processing_time
        assert timestamp is not None
        return (time_window(timestamp, timestamp + self.gap_ms(element)),)

    def merge_windows(self, windows: Iterable[Any]) -> Iterable[tuple[Any, list[Any]]]:
        return merge_time_windows(windows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(gap={self.gap_of!r})"
