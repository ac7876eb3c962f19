"""Assigners: which windows an element belongs to.

Source: Flink's ``WindowAssigner`` and its implementations. Sizes, slides, gaps and offsets are `int` milliseconds or
`timedelta`. A window that several elements share is the same tuple for all of them; nothing is kept per key here.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from keyed import MAX_TIMESTAMP, DefinitionError, KeyedStream, milliseconds_of
from windows.evictors import CountEvictor, Evictor
from windows.merge_plan import merge_time_windows
from windows.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from windows.window import Duration, GlobalWindow, TimeWindow, time_window, window_start

if TYPE_CHECKING:
    from windows.stream import WindowedStream

A = TypeVar("A", bound="WindowAssigner")


class WindowAssigner:
    """Assigns elements to windows (Flink's ``WindowAssigner``). Subclass it for windows of your own.

    Attributes:
        event_time: Whether the windows are in event time; otherwise they are in processing time.
        window_type: Class of the windows: a named tuple with ``max_timestamp()``.
    """

    event_time: ClassVar[bool] = True
    window_type: Callable[..., Any] = TimeWindow
    #: What `windowed` makes; `windows.stream`, which is built on this module, says what that is.
    _stream_type: ClassVar[Callable[[KeyedStream, WindowAssigner], WindowedStream]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        """Return the windows of an element. Called once per element; must depend on its arguments alone.

        Args:
            element: The element.
            timestamp: Its event timestamp, milliseconds; never ``None`` where ``event_time`` is true.
            processing_time: The batch's processing time, milliseconds.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define assign_windows")

    def default_trigger(self) -> Trigger:
        """Return the trigger that is used where none is given."""
        return EventTimeTrigger() if self.event_time else ProcessingTimeTrigger()

    def default_evictor(self) -> Evictor | None:
        """Return the evictor that is used where none is given."""
        return None

    def windowed(self, stream: KeyedStream) -> WindowedStream:
        """Cut the stream into these windows, for ``stream.window(assigner)``."""
        return WindowAssigner._stream_type(stream, self)


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows merge, as sessions do."""

    def merge_windows(self, windows: Iterable[Any]) -> Iterable[tuple[Any, list[Any]]]:
        """Tell which of ``windows`` become one: pairs of the new window and the two or more that it replaces."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge_windows")


class HoppingWindows(WindowAssigner):
    """Windows of one size that start every ``slide``; what tumbling and hopping windows of both clocks share.

    Attributes:
        size_ms: Length of a window.
        slide_ms: Distance between the starts of two windows. Tumbling where it equals the size; where it is larger,
            elements between windows belong to none.
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


class _Tumbling(HoppingWindows):
    @classmethod
    def of(cls, size: Duration, offset: Duration = 0) -> Self:
        """Make windows of ``size`` that follow each other.

        Args:
            size: Length of a window, at least 1 ms.
            offset: Windows start at this time modulo the size; an hour's windows with an offset of 15 minutes start at
                a quarter past. May be negative.

        Raises:
            DefinitionError: The size is below 1 ms, or the offset's absolute value not below the size.
        """
        size_ms = milliseconds_of(size, "size", least=1)
        return cls(size_ms, size_ms, _offset(offset, size_ms, "size"))


class _Hopping(HoppingWindows):
    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> Self:
        """Make windows of ``size`` that start every ``slide``.

        Args:
            size: Length of a window, at least 1 ms.
            slide: Distance between the starts of two windows, at least 1 ms.
            offset: Windows start at this time modulo the slide. May be negative.

        Raises:
            DefinitionError: Size or slide is below 1 ms, or the offset's absolute value not below the slide.
        """
        size_ms, slide_ms = milliseconds_of(size, "size", least=1), milliseconds_of(slide, "slide", least=1)
        return cls(size_ms, slide_ms, _offset(offset, slide_ms, "slide"))


class TumblingEventTimeWindows(_Tumbling):
    """Windows of one size that follow each other, in event time. Make them with `of`."""


class TumblingProcessingTimeWindows(_Tumbling):
    """Windows of one size that follow each other, in processing time. Make them with `of`."""

    event_time = False


class HoppingEventTimeWindows(_Hopping):
    """Windows of one size that start every slide, in event time (Flink: sliding). Make them with `of`."""


class HoppingProcessingTimeWindows(_Hopping):
    """Windows of one size that start every slide, in processing time (Flink: sliding). Make them with `of`."""

    event_time = False


#: Flink's names.
SlidingEventTimeWindows = HoppingEventTimeWindows
SlidingProcessingTimeWindows = HoppingProcessingTimeWindows


class SessionWindows(MergingWindowAssigner):
    """Windows that end when no element came for a gap; what the session windows of both clocks share.

    Attributes:
        gap_of: The gap after an element, in milliseconds, or the one gap of all.
    """

    def __init__(self, gap_of: int | Callable[[Any], int]) -> None:
        self.gap_of = gap_of

    def gap_ms(self, element: Any) -> int:
        """Return the gap after ``element``.

        Raises:
            DefinitionError: The user's function gave no duration of at least 1 ms.
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


class _Sessions(SessionWindows):
    @classmethod
    def with_gap(cls, gap: Duration) -> Self:
        """Make sessions that end ``gap`` after their last element.

        Args:
            gap: At least 1 ms.

        Raises:
            DefinitionError: It is below 1 ms.
        """
        return cls(milliseconds_of(gap, "gap", least=1))

    @classmethod
    def with_dynamic_gap(cls, gap_of: Callable[[Any], Any]) -> Self:
        """Make sessions whose elements each say how long after them the session stays open.

        Args:
            gap_of: Gives the gap after an element: `int` milliseconds or a `timedelta`, at least 1 ms.

        Raises:
            DefinitionError: It is not callable.
        """
        if not callable(gap_of):
            raise DefinitionError(f"gap_of={gap_of!r} is not callable; give a function element -> gap, or with_gap")
        return cls(gap_of)


class EventTimeSessionWindows(_Sessions):
    """Sessions in event time. Make them with `with_gap` or `with_dynamic_gap`."""


class ProcessingTimeSessionWindows(_Sessions):
    """Sessions in processing time. Make them with `with_gap` or `with_dynamic_gap`."""

    event_time = False


#: Flink's names for sessions with a dynamic gap.
DynamicEventTimeSessionWindows = EventTimeSessionWindows
DynamicProcessingTimeSessionWindows = ProcessingTimeSessionWindows

_GLOBAL = (GlobalWindow(),)


class GlobalWindows(WindowAssigner):
    """One window per key that never ends. Needs a trigger: by default it never fires."""

    # As in Flink: no clock ends the window, so its elements need no timestamps.
    event_time = False
    window_type = GlobalWindow

    def __init__(self, trigger: Trigger | None = None, evictor: Evictor | None = None) -> None:
        self._trigger = trigger
        self._evictor = evictor

    @classmethod
    def create(cls) -> GlobalWindows:
        """Make the windows; give them a trigger."""
        return GlobalWindows()

    @classmethod
    def create_with_end_of_stream_trigger(cls) -> GlobalWindows:
        """Make the windows with a trigger that fires at the end of the input."""
        return GlobalWindows(EventTimeTrigger())

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        return _GLOBAL

    def default_trigger(self) -> Trigger:
        return self._trigger or NeverTrigger()

    def default_evictor(self) -> Evictor | None:
        return self._evictor


class CountWindows(GlobalWindows):
    """Windows of a number of elements (Flink's ``countWindow``): global windows with a trigger and an evictor."""

    @classmethod
    def of(cls, size: int, slide: int | None = None) -> CountWindows:
        """Make windows of ``size`` elements.

        Args:
            size: Number of elements of a window.
            slide: Without it, windows follow each other: each fires when it is full. With it, every ``slide``
                elements the last ``size`` are given out (fewer at the start).

        Raises:
            DefinitionError: A number is below 1.
        """
        for name, number in (("size", size), ("slide", 1 if slide is None else slide)):
            if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_TIMESTAMP:
                raise DefinitionError(f"{name}={number!r} must be an int of at least 1 element")
        if slide is None:
            return cls(PurgingTrigger.of(CountTrigger.of(size)))
        return cls(CountTrigger.of(slide), CountEvictor.of(size))


def _offset(offset: Duration, period_ms: int, of: str) -> int:
    """Return an offset in milliseconds, which may be negative.

    Raises:
        DefinitionError: It is not whole milliseconds, or its absolute value not below the period.
    """
    offset_ms = milliseconds_of(offset, "offset", least=-MAX_TIMESTAMP)
    if abs(offset_ms) >= period_ms:
        raise DefinitionError(f"offset={offset!r}: its absolute value must be below the {of} of {period_ms} ms")
    return offset_ms
