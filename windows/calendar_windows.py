"""Calendar windows: days, weeks and months in a time zone, daylight saving included.

A day starts at the first instant of its local date: usually midnight, later if clocks are put forward at midnight. A
day with a change of clocks has 23 or 25 hours. Days that a zone skipped (Samoa, 30 December 2011) have no window.
Windows never overlap and leave no gaps.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from keyed.errors import DefinitionError, TimestampError
from keyed.windows.assigners import Made, WindowAssigner
from keyed.windows.window import TimeWindow

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
        self._first, self._next = _UNITS[unit]
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
_UNITS: dict[str, _Unit] = {
    "day": (lambda date, _: date, lambda date: date + _DAY),
    "week": (lambda date, first: date - (date.weekday() - first) % 7 * _DAY, lambda date: date + 7 * _DAY),
    "month": (lambda date, _: date.replace(day=1), _next_month),
}
