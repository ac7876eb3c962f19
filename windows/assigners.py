"""Assigners: they assign windows to elements.

Calendar windows are days, weeks and months in a time zone, daylight saving included. A day starts at the first instant
of its local date: usually midnight, later if clocks are put forward at midnight. A day with a change of clocks has 23
or 25 hours. Days that a zone skipped (Samoa, 30 December 2011) have no window. They never overlap and leave no gaps.

Source: Flink's ``WindowAssigner`` and its implementations. Sizes, slides, gaps and offsets are `int` milliseconds or
`timedelta`. The part that operators use is in `keyed.windows.definition`. A
window that several elements share is the same tuple for all of them; no data is kept per key.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn, Self, TypeVar, Unpack, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from keyed import MAX_TIMESTAMP, KeyedStream
from keyed.errors import DefinitionError, TimestampError
from keyed.extending import Units, duration_of, milliseconds_of, shows_units
from keyed.windows.definition import AnyAssigner, HoppingWindows, SessionWindows
from keyed.windows.evictors import CountEvictor, Evictor
from keyed.windows.stream import WindowedStream
from keyed.windows.triggers import CountTrigger, EventTimeTrigger, NeverTrigger, PurgingTrigger, Trigger
from keyed.windows.window import Duration, GlobalWindow, TimeWindow, check_count

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"weeks", "days", "hours", "minutes", "seconds", "milliseconds"}


class WindowAssigner(AnyAssigner):
    """Assigns elements to windows (Flink's `WindowAssigner`); subclass it for your own.

    Attributes:
        event_time: False for processing time.
        window_type: Class of the windows: a named tuple with ``max_timestamp()``.
    """

    def windowed(self, stream: KeyedStream) -> WindowedStream:
        """Cut the stream into these windows, for ``stream.window(assigner)``."""
        return WindowedStream(stream, self)


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows merge, like sessions."""

    def merge_windows(self, windows: Iterable[Any]) -> Iterable[tuple[Any, list[Any]]]:
        """Merge ``windows``: return pairs of the new window and the two or more that it replaces."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge_windows")


def _call(arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Return the arguments of a call, for messages."""
    return ", ".join([*map(repr, arguments), *(f"{name}={value!r}" for name, value in named.items())])


def _not_called(cls: type, arguments: tuple[Any, ...], named: dict[str, Any], remedy: str) -> DefinitionError:
    """Return the error for calling an assigner's class instead of its factory."""
    shown, name = _call(arguments, named), cls.__name__
    return DefinitionError(f"{name}({shown}): windows are not made by calling the class; use {name}.{remedy}")


class Made(type):
    """Metaclass of assigners that class methods create: refuses calls and unknown methods, and names the right one."""

    _made_by: str

    def __call__(cls, *arguments: Any, **named: Any) -> NoReturn:
        raise _not_called(cls, arguments, named, cls._made_by)

    def _make(cls: type[T], *arguments: Any) -> T:
        assigner: T = type.__call__(cls, *arguments)
        return assigner

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}", name=name, obj=cls)
        raise AttributeError(
            f"{cls.__name__} has no {name!r}; its windows are made by {cls.__name__}.{cls._made_by}", name=name, obj=cls
        )


def _refuses_other_calls(make: F) -> F:
    """Make a class method refuse wrong arguments, with the right call in the message."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def checked(cls: type[Any], *arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True  # what pytest shows of a failing test is the call
        try:
            signature.bind(cls, *arguments, **named)
        except TypeError as error:
            called = f"{cls.__name__}.{make.__name__}"
            parameters = [each for each in signature.parameters.values() if each.name != "cls"]
            names = ", ".join(each.name + ("" if each.default is each.empty else "=...") for each in parameters)
            units = _call((), {name: value for name, value in named.items() if name in _UNITS})
            duration = f"; a duration is int milliseconds or a timedelta: timedelta({units})" if units else ""
            raise DefinitionError(
                f"{called}({_call(arguments, named)}): {error}; the call is {called}({names}){duration}"
            ) from None
        return make(cls, *arguments, **named)

    return cast("F", checked)


class _Tumbling(WindowAssigner, HoppingWindows, metaclass=Made):
    _made_by = "of(size)"

    @classmethod
    @_refuses_other_calls
    @shows_units
    def of(cls, size: Duration | None = None, offset: Duration = 0, **units: Unpack[Units]) -> Self:
        """Make windows of ``size``, at least 1 ms.

        Args:
            size: Length of a window.
            offset: Windows start at this time modulo the size: 15 minutes moves an hour's windows to a quarter past.
                Its absolute value is below the size.
            units: Length of a window.

        Raises:
            DefinitionError: The size is below 1 ms, or the offset's absolute value is not below the size.
        """
        size_ms = duration_of(size, "size", least=1, **units)
        return cls._make(size_ms, size_ms, _offset(offset, size_ms, "size"))


class _Hopping(WindowAssigner, HoppingWindows, metaclass=Made):
    _made_by = "of(size, slide)"

    @classmethod
    @_refuses_other_calls
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> Self:
        """Make windows of ``size`` that start every ``slide``, at least 1 ms each.

        ``offset``, with an absolute value below the slide, shifts the starts.

        Raises:
            DefinitionError: Size or slide is below 1 ms, or the offset's absolute value is not below the slide.
        """
        size_ms, slide_ms = milliseconds_of(size, "size", least=1), milliseconds_of(slide, "slide", least=1)
        return cls._make(size_ms, slide_ms, _offset(offset, slide_ms, "slide"))


class TumblingEventTimeWindows(_Tumbling):
    """Windows of one size that follow each other, in event time."""


class TumblingProcessingTimeWindows(_Tumbling):
    """Windows of one size that follow each other, in processing time."""

    event_time = False


class HoppingEventTimeWindows(_Hopping):
    """Windows of one size that start every slide (Flink: sliding), in event time."""


class HoppingProcessingTimeWindows(_Hopping):
    """Windows of one size that start every slide (Flink: sliding), in processing time."""

    event_time = False


class _Sessions(SessionWindows, MergingWindowAssigner, metaclass=Made):
    _made_by = "with_gap(gap), or with_dynamic_gap(function of the element)"

    @classmethod
    @_refuses_other_calls
    @shows_units
    def with_gap(cls, gap: Duration | None = None, **units: Unpack[Units]) -> Self:
        """Make sessions that end ``gap``, at least 1 ms, after their last element.

        A row exactly ``gap`` after the last one belongs to the session only if that has not fired.

        Raises:
            DefinitionError: The gap is below 1 ms.
        """
        return cls._make(duration_of(gap, "gap", least=1, **units))

    @classmethod
    @_refuses_other_calls
    def with_dynamic_gap(cls, gap_of: Callable[[Any], Any]) -> Self:
        """Make sessions whose gap a function of the element returns.

        The gap is `int` milliseconds or a `timedelta`, at least 1 ms.

        Raises:
            DefinitionError: It is not callable.
        """
        if not callable(gap_of):
            raise DefinitionError(f"gap_of={gap_of!r} is not callable; give a function element -> gap, or with_gap")
        return cls._make(gap_of)


class EventTimeSessionWindows(_Sessions):
    """Sessions in event time: windows that end after a gap without elements."""


class ProcessingTimeSessionWindows(_Sessions):
    """Sessions in processing time."""

    event_time = False


_GLOBAL = (GlobalWindow(),)


class GlobalWindows(WindowAssigner):
    """One window per key that never ends. Without a trigger it never fires."""

    # As in Flink: no clock ends the window, so its elements need no timestamps.
    event_time = False
    window_type = GlobalWindow

    def __init__(self, trigger: Trigger | None = None, evictor: Evictor | None = None) -> None:
        if not isinstance(trigger, Trigger | None) or not isinstance(evictor, Evictor | None):
            name = "of(size)" if isinstance(self, CountWindows) else "create()"
            raise _not_called(type(self), (trigger, evictor)[: 1 if evictor is None else 2], {}, name)
        self._trigger = trigger
        self._evictor = evictor

    @classmethod
    def create(cls) -> GlobalWindows:
        """Make the windows, to be given a trigger."""
        return GlobalWindows()

    @classmethod
    def create_with_end_of_stream_trigger(cls) -> GlobalWindows:
        """Make windows that fire at the end of the input."""
        return GlobalWindows(EventTimeTrigger())

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        return _GLOBAL

    def default_trigger(self) -> Trigger:
        return self._trigger or NeverTrigger()

    def default_evictor(self) -> Evictor | None:
        return self._evictor


class CountWindows(GlobalWindows):
    """Windows of a number of elements (Flink's ``countWindow``)."""

    @classmethod
    @_refuses_other_calls
    def of(cls, size: int, slide: int | None = None) -> CountWindows:
        """Make windows of ``size`` (1 or more) elements; with ``slide``, emit the last ``size`` every ``slide``.

        Raises:
            DefinitionError: A number is below 1.
        """
        check_count(size, "size", "element")
        if slide is None:
            return cls(PurgingTrigger.of(CountTrigger.of(size)))
        check_count(slide, "slide", "element")
        return cls(CountTrigger.of(slide), CountEvictor.of(size))


def _offset(offset: Duration, period_ms: int, of: str) -> int:
    """Return an offset in milliseconds, which may be negative.

    Raises:
        DefinitionError: It is not whole milliseconds, or its absolute value is not below the period.
    """
    offset_ms = milliseconds_of(offset, "offset", least=-MAX_TIMESTAMP)
    if abs(offset_ms) >= period_ms:
        raise DefinitionError(f"offset={offset!r}: its absolute value must be below the {of} of {period_ms} ms")
    return offset_ms


_DAY_MS = 86_400_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY = dt.timedelta(days=1)
_MILLISECOND = dt.timedelta(milliseconds=1)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MOST_CACHED = 10_000


class CalendarWindows(WindowAssigner, metaclass=Made):
    """Windows of calendar days, weeks or months in event time, in a time zone by its IANA name."""

    _made_by = "days(zone), weeks(zone) or months(zone)"
    #: The range of milliseconds since the epoch that have a date in every zone.
    _RANGE: ClassVar[tuple[int, int]] = (-62_135_000_000_000, 253_402_000_000_000)

    def __init__(self, unit: str, zone: str, first_weekday: int = 0) -> None:
        self._unit = unit
        self._zone_name = zone
        self._first_weekday = first_weekday
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            raise DefinitionError(
                f"zone={zone!r} is not a time zone; give an IANA name such as 'Europe/Berlin'"
            ) from error
        self._first, self._next = _CALENDAR_UNITS[unit]
        # Windows that overlap a UTC day, by the number of the day: at most three. Elements of a batch share them.
        self._windows: dict[int, tuple[TimeWindow, ...]] = {}

    @classmethod
    def days(cls, zone: str = "UTC") -> Self:
        """Make a window for each day.

        Raises:
            DefinitionError: There is no such zone.
        """
        return cls._make("day", zone)

    @classmethod
    def weeks(cls, zone: str = "UTC", starts_on: str = "monday") -> Self:
        """Make a window for each week; ``starts_on`` is its first day, in English.

        Raises:
            DefinitionError: There is no such zone or weekday.
        """
        if starts_on not in _WEEKDAYS:
            raise DefinitionError(f"starts_on={starts_on!r} must be one of {', '.join(_WEEKDAYS)}")
        return cls._make("week", zone, _WEEKDAYS.index(starts_on))

    @classmethod
    def months(cls, zone: str = "UTC") -> Self:
        """Make a window for each month."""
        return cls._make("month", zone)

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        time = timestamp if self.event_time else processing_time
        assert time is not None
        day = time // _DAY_MS
        windows = self._windows.get(day)
        if windows is None:
            if len(self._windows) >= _MOST_CACHED:
                self._windows.clear()
            windows = self._windows[day] = self._overlapping(day)
        for window in windows:
            if window.start <= time < window.end:
                return (window,)
        raise AssertionError(f"calendar windows {windows} have a gap at {time}")

    def start_of(self, date: dt.date) -> int:
        """Return the first instant that has this local date or a later one, in milliseconds since the epoch."""
        midnight = dt.datetime(date.year, date.month, date.day, tzinfo=self._zone)
        # In a gap fold=0 gives the offset before the change, which leads to the instant of the change or past it.
        start = (midnight - _EPOCH) // _MILLISECOND
        while self._date(start) < date:
            start += 1_000 * 60
        if self._date(start - 1) < date:
            return start
        earlier = start - _DAY_MS
        while start - earlier > 1:
            middle = (start + earlier) // 2
            start, earlier = (middle, earlier) if self._date(middle) >= date else (start, middle)
        return start

    def _overlapping(self, day: int) -> tuple[TimeWindow, ...]:
        """Return the windows that overlap a UTC day."""
        low, high = day * _DAY_MS, (day + 1) * _DAY_MS
        if not self._RANGE[0] <= low < high <= self._RANGE[1]:
            raise TimestampError(f"timestamp {low} is outside of the years 1 to 9999, which the calendar covers")
        date = self._first(self._date(low - _DAY_MS), self._first_weekday)
        windows = []
        start = self.start_of(date)
        while start < high:
            date = self._next(date)
            end = self.start_of(date)
            if end > low and end > start:
                windows.append(TimeWindow(start, end))
            start = end
        return tuple(windows)

    def _date(self, time: int) -> dt.date:
        return (_EPOCH + time * _MILLISECOND).astimezone(self._zone).date()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._unit}, {self._zone_name!r})"


class CalendarProcessingTimeWindows(CalendarWindows):
    """Windows of calendar days, weeks or months in processing time."""

    event_time = False


def _next_month(date: dt.date) -> dt.date:
    return date.replace(year=date.year + date.month // 12, month=date.month % 12 + 1)


_Unit = tuple[Callable[[dt.date, int], dt.date], Callable[[dt.date], dt.date]]
#: By unit: the first day of a date's window, and of the next window.
_CALENDAR_UNITS: dict[str, _Unit] = {
    "day": (lambda date, _: date, lambda date: date + _DAY),
    "week": (lambda date, first: date - (date.weekday() - first) % 7 * _DAY, lambda date: date + 7 * _DAY),
    "month": (lambda date, _: date.replace(day=1), _next_month),
}
