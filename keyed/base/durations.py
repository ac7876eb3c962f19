"""Durations and times: whole milliseconds everywhere, `timedelta` accepted everywhere a duration is.

A call that is about one duration also takes it as keywords, as in ``with_idleness(minutes=1)``. Options, and calls with
two durations, take one value each.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack

from keyed.base.shown import shows_options, type_of
from keyed.errors import DefinitionError

#: The watermark before the first row: no time has passed (Flink's ``Watermark.UNINITIALIZED``).
MIN_TIMESTAMP = -(2**63)
#: The watermark at the end of input (Flink's ``Watermark.MAX_WATERMARK``).
MAX_TIMESTAMP = 2**63 - 1
#: Timestamps that are read as times in messages: 1973 to 5138. Lesser numbers are those of tests.
_FIRST_READ, _LAST_READ = 10**11, 10**14

Duration = int | timedelta
F = TypeVar("F", bound=Callable[..., Any])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def instant_ms(instant: datetime) -> int:
    """Return the milliseconds from the epoch to an instant, a datetime with a zone."""
    return (instant - _EPOCH) // _MILLISECOND


def instant_of(milliseconds: int) -> datetime:
    """Return the instant a number of milliseconds after the epoch.

    Raises:
        OverflowError: It is outside the range of Python's datetimes.
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def clock_text(clock: int) -> str:
    """Return a watermark or processing time as text: milliseconds and their time, ``none`` or ``end of input``."""
    if clock in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        return "none" if clock < 0 else "end of input"
    try:
        time = instant_of(clock)
    except OverflowError:
        return str(clock)
    return f"{clock} ({time.replace(tzinfo=None).isoformat(sep=' ', timespec='milliseconds')} UTC)"


def time_text(number: Any) -> str:
    """Return the text of a number that may be a timestamp: with its time if it is one of 1973 to 5138."""
    return clock_text(number) if type(number) is int and _FIRST_READ <= number < _LAST_READ else str(number)


def milliseconds_of(duration: Duration, parameter: str, *, least: int = 0) -> int:
    """Return the duration as whole milliseconds.

    Args:
        duration: An `int` in milliseconds or a `timedelta`.
        parameter: Name of the parameter, for the message.
        least: Least value allowed, in milliseconds.

    Raises:
        DefinitionError: Not an `int` or `timedelta`, not a whole number of milliseconds, or below ``least``.
    """
    if isinstance(duration, timedelta):
        milliseconds, rest = divmod(duration, _MILLISECOND)
        if rest:
            raise DefinitionError(f"{parameter}={duration!r} is not a whole number of milliseconds; round it first")
    elif isinstance(duration, int) and not isinstance(duration, bool):
        milliseconds = duration
    else:
        raise DefinitionError(f"{parameter}={duration!r} is {type_of(duration)}; give int milliseconds or a timedelta")
    if not least <= milliseconds <= MAX_TIMESTAMP:
        raise DefinitionError(f"{parameter}={duration!r} must be between {least} ms and 2^63 - 1 ms")
    return milliseconds


class Units(TypedDict, total=False):
    """A duration as keywords."""

    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float


def shows_units(function: F) -> F:
    """Show the units of a function that unpacks `Units` in its signature, and refuse other keywords."""
    return shows_options(Units, **dict.fromkeys(Units.__annotations__, 0))(function)


def duration_of(duration: Duration | None, parameter: str, *, least: int = 0, **keywords: Unpack[Units]) -> int:
    """Return a duration in milliseconds, given as one argument or as units by keyword.

    Raises:
        DefinitionError: Both or neither form is given, or the value breaks the rule of `milliseconds_of`.
    """
    milliseconds = keywords.get("milliseconds", 0)
    whole_ms = milliseconds if isinstance(milliseconds, int) else 0
    keywords["milliseconds"] = milliseconds - whole_ms
    try:
        parts = timedelta(**keywords)
        # Alone, milliseconds may be more than a timedelta holds.
        units: Duration = parts + timedelta(milliseconds=whole_ms) if parts else whole_ms
    except (OverflowError, ValueError) as error:
        raise DefinitionError(f"{parameter}: a unit is out of range ({error}); give int milliseconds") from error
    except TypeError as error:
        raise TypeError(f"{parameter}: {error}; the units are {', '.join(Units.__annotations__)}") from error
    if duration is None:
        if not units and least > 0:
            raise DefinitionError(
                f"{parameter} needs a duration above 0: give milliseconds, a timedelta or seconds=..."
            )
        duration = units
    elif units:
        raise DefinitionError(f"{parameter} takes a duration or units as keywords, not both")
    return milliseconds_of(duration, parameter, least=least)
