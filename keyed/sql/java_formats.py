"""Patterns of Java's ``DateTimeFormatter``: times as texts, and texts as times."""

from __future__ import annotations

import calendar
import datetime as dt
import re
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY_MS = 86_400_000
#: The letters of a date, and of a time of the day.
DATE_LETTERS = "GuyDMLdEe"
TIME_LETTERS = "aHkKhmsSnA"
_ZONE_LETTERS = "zVXxZO"
_LETTERS = DATE_LETTERS + TIME_LETTERS + _ZONE_LETTERS


@lru_cache(maxsize=128)
def _parts(pattern: str) -> tuple[tuple[str, int], ...]:
    """Return the letters of a pattern with their counts; a literal has the count 0."""
    found: list[tuple[str, int]] = []
    place = 0
    while place < len(pattern):
        sign = pattern[place]
        if sign == "'":
            end = pattern.find("'", place + 1)
            if end == place + 1:
                found.append(("'", 0))
            elif end < 0:
                raise ValueError(f"{pattern!r}: a quote has no end")
            else:
                found.append((pattern[place + 1 : end], 0))
            place = end + 1
        elif sign.isascii() and sign.isalpha():
            count = len(pattern[place:]) - len(pattern[place:].lstrip(sign))
            if sign not in _LETTERS:
                raise ValueError(f"{pattern!r}: unknown letter {sign!r}")
            found.append((sign, count))
            place += count
        else:
            if sign not in "[]":
                found.append((sign, 0))
            place += 1
    return tuple(found)


def format_moment(millis: int, pattern: str, zone: str = "UTC", *, letters: str = _LETTERS) -> str:
    """Return a timestamp as text.

    Raises:
        ValueError: The pattern is none, or has letters that are not among `letters`.
    """
    moment = (_EPOCH + dt.timedelta(milliseconds=millis)).astimezone(zone_of(zone))
    shown = []
    for sign, count in _parts(pattern):
        if count and sign not in letters:
            raise ValueError(f"{pattern!r}: the letter {sign!r} is not for this type")
        shown.append(sign if not count else _shown(sign, count, moment))
    return "".join(shown)


def _shown(sign: str, count: int, moment: dt.datetime) -> str:
    match sign:
        case "y" | "u":
            return f"{moment.year % 100:02}" if count == 2 else f"{moment.year:0{count}}"
        case "M" | "L":
            name = _MONTHS[moment.month - 1]
            return f"{moment.month:0{count}}" if count < 3 else _named(name, count)
        case "d":
            return f"{moment.day:0{count}}"
        case "D":
            return f"{moment.timetuple().tm_yday:0{count}}"
        case "H":
            return f"{moment.hour:0{count}}"
        case "k":
            return f"{moment.hour or 24:0{count}}"
        case "h":
            return f"{moment.hour % 12 or 12:0{count}}"
        case "K":
            return f"{moment.hour % 12:0{count}}"
        case "m":
            return f"{moment.minute:0{count}}"
        case "s":
            return f"{moment.second:0{count}}"
        case "S":
            return f"{moment.microsecond:06}".ljust(9, "0")[:count]
        case "n":
            return f"{moment.microsecond * 1000:0{count}}"
        case "A":
            seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
            return f"{seconds * 1000 + moment.microsecond // 1000:0{count}}"
        case "a":
            return "AM" if moment.hour < 12 else "PM"
        case "E" | "e":
            return _named(_DAYS[moment.weekday()], count)
        case "G":
            return "AD"
        case "z":
            return _zone_name(moment) if isinstance(moment.tzinfo, dt.timezone) else moment.tzname() or "UTC"
        case "V":
            return _zone_name(moment) if isinstance(moment.tzinfo, dt.timezone) else str(moment.tzinfo)
    return _shown_offset(sign, count, moment)


def _named(name: str, count: int) -> str:
    return name if count == 4 else name[:1] if count == 5 else name[:3]


def _zone_name(moment: dt.datetime) -> str:
    return _shown_offset("X", 3, moment)


def _shown_offset(sign: str, count: int, moment: dt.datetime) -> str:
    offset = moment.utcoffset() or dt.timedelta()
    minutes = int(offset.total_seconds()) // 60
    if sign == "O" or (sign == "Z" and count == 4):
        if not minutes:
            return "GMT"
        hour = f"{abs(minutes) // 60}" if sign == "O" and count == 1 else f"{abs(minutes) // 60:02}"
        rest = f":{abs(minutes) % 60:02}" if count == 4 or minutes % 60 else ""
        return f"GMT{'-' if minutes < 0 else '+'}{hour}{rest}"
    if not minutes and (sign == "X" or (sign == "Z" and count == 5)):
        return "Z"
    hours = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}"
    if sign in "Xx" and count == 1 and not minutes % 60:
        return hours
    colon = ":" if (sign in "Xx" and count in (3, 5)) or (sign == "Z" and count == 5) else ""
    return f"{hours}{colon}{abs(minutes) % 60:02}"


@lru_cache(maxsize=128)
def _expression(pattern: str, *, is_lenient: bool) -> tuple[re.Pattern[str], tuple[tuple[str, int], ...]]:
    """Return the regular expression of a pattern, and the letter and the count of each of its groups."""
    found, names = [], []
    parts = _parts(pattern)
    for place, (sign, count) in enumerate(parts):
        if not count:
            found.append(re.escape(sign))
            continue
        adjacent = place + 1 < len(parts) and parts[place + 1][1] > 0
        digits = rf"[0-9]{{{count}}}" if adjacent or count > 1 else "[0-9]{1,2}"
        match sign:
            case "y" | "u" | "d" | "D" | "H" | "h" | "k" | "K" | "m" | "s" | "S" if is_lenient:
                expression = rf"[0-9]{{{count}}}" if adjacent else r"[ \t]*[0-9]{1,9}"
            case "M" | "L" if is_lenient and count < 3:
                expression = rf"[0-9]{{{count}}}" if adjacent else r"[ \t]*[0-9]{1,9}"
            case "y" | "u":
                expression = "[0-9]{2}" if count == 2 else "[0-9]{4}" if adjacent or count > 1 else "[+-]?[0-9]{1,6}"
            case "M" | "L" if count >= 3:
                expression = "|".join(name if count > 3 else name[:3] for name in _MONTHS)
            case "E" | "e":
                expression = "|".join(name if count > 3 else name[:3] for name in _DAYS)
            case "a":
                expression = "AM|PM"
            case "G":
                expression = "AD|BC"
            case "S":
                expression = rf"[0-9]{{{count}}}"
            case "n" | "A":
                expression = "[0-9]{1,18}"
            case "z" | "V":
                expression = r"[A-Za-z_/+\-0-9:]+"
            case "X" | "x" | "Z" | "O":
                expression = "Z|[+-][0-9]{2}:?(?:[0-9]{2})?"
            case "D":
                expression = "[0-9]{1,3}"
            case _:
                expression = digits
        found.append(f"({expression})")
        names.append((sign, count))
    return re.compile("".join(found), re.IGNORECASE), tuple(names)


def parse_moment(text: str, pattern: str, zone: str = "UTC") -> int:
    """Return the milliseconds of a text; a part that the pattern lacks is that of 1970-01-01T00:00 UTC.

    Upper and lower case are the same.

    Raises:
        ValueError: The text does not have the form, or the pattern is none.
    """
    found, info = _fields(text, pattern)
    moment = dt.datetime.combine(_date(found), dt.time(), info or zone_of(zone))
    # The time is that of the clock of the zone, so it is set, and not added.
    return (_with_time(moment, found) - _EPOCH) // dt.timedelta(milliseconds=1)


def parse_days(text: str, pattern: str) -> int:
    """Return the days since 1970 of a text, whose pattern has all of a date.

    Raises:
        ValueError: The text does not have the form, or the pattern has no date.
    """
    found, _ = _fields(text, pattern)
    if "y" not in found or ("D" not in found and not {"M", "d"} <= found.keys()):
        raise ValueError(f"{pattern!r} has no year, month and day")
    return (_date(found) - _EPOCH.date()).days


def parse_time_of_day(text: str, pattern: str) -> int:
    """Return the milliseconds of a time of the day.

    Raises:
        ValueError: The text does not have the form, or the pattern has a date, or no hour.
    """
    found, _ = _fields(text, pattern)
    has_hour = {"H", "k", "A"} & found.keys() or ("a" in found and {"h", "K"} & found.keys())
    is_gapless = "m" in found or not {"s", "S", "n"} & found.keys()
    is_gapless = is_gapless and ("s" in found or not {"S", "n"} & found.keys())
    if not has_hour or not is_gapless or any(sign in found for sign in DATE_LETTERS):
        raise ValueError(f"{pattern!r} is no pattern of a time of the day")
    return (_with_time(_EPOCH, found) - _EPOCH) // dt.timedelta(milliseconds=1)


def parse_date(text: str, pattern: str) -> int:
    """Return the days since 1970 of a text as Java's ``SimpleDateFormat`` reads it.

    Text after the date is ignored, numbers have any width, and a month or day out of range counts on from there.

    Raises:
        ValueError: The text does not begin with the form, or it has a time other than midnight.
    """
    found, info = _fields(text, pattern, is_lenient=True)
    months = found.get("y", 1970) * 12 + found.get("M", 1) - 1
    days = (found["D"] if "D" in found and "d" not in found else found.get("d", 1)) - 1
    date = dt.datetime(months // 12, months % 12 + 1, 1, tzinfo=info or dt.UTC) + dt.timedelta(days=days)
    moment: int = (date - _EPOCH) // dt.timedelta(milliseconds=1)
    minutes = _hour(found) * 60 + found.get("m", 0)
    moment += (minutes * 60 + found.get("s", 0)) * 1000 + found.get("S", 0)
    if moment % _DAY_MS:
        raise ValueError(f"{text!r} has a time, and is no date")
    return moment // _DAY_MS


def _fields(text: str, pattern: str, *, is_lenient: bool = False) -> tuple[dict[str, Any], dt.tzinfo | None]:
    """Return the values of a text by letters, and its time zone."""
    expression, names = _expression(pattern, is_lenient=is_lenient)
    match = (expression.match if is_lenient else expression.fullmatch)(text)
    if match is None:
        raise ValueError(f"{text!r} does not have the form {pattern!r}")
    found: dict[str, Any] = {}
    info = None
    for (sign, count), value in zip(names, match.groups(), strict=True):
        if sign in _ZONE_LETTERS:
            info = _zone(value)
        elif sign in "ML" and count >= 3:
            found["M"] = [name[:3] for name in _MONTHS].index(value[:3].title()) + 1
        elif sign in "yu":
            found["y"] = int(value) + (2000 if count == 2 and len(value) == 2 else 0)
        elif sign == "S" and not is_lenient:
            found["S"] = int(value.ljust(6, "0")[:6])
        elif sign in "aEeG":
            found["E" if sign == "e" else sign] = value.upper()
        else:
            found["M" if sign == "L" else sign] = int(value)
    return found, info


def _date(found: dict[str, Any]) -> dt.date:
    year = found.get("y", 1970)
    if "D" in found:
        date = dt.date(year, 1, 1) + dt.timedelta(days=found["D"] - 1)
        if date.year != year:
            raise ValueError(f"{year} has no day {found['D']}")
        return date
    month, day = found.get("M", 1), found.get("d", 1)
    if {"y", "M"} <= found.keys() and 28 < day <= 31:
        # The last day of the month stands for later ones, up to 31.
        day = min(day, calendar.monthrange(year, month)[1])
    date = dt.date(year, month, day)
    if "E" in found and {"y", "M", "d"} <= found.keys() and found["E"][:3].title() != _DAYS[date.weekday()][:3]:
        raise ValueError(f"{date} is no {found['E']}")
    return date


def _hour(found: dict[str, Any]) -> int:
    if "h" in found or "K" in found:
        return int(found.get("h", found.get("K", 0)) % 12 + (12 if found.get("a") == "PM" else 0))
    return int(found.get("H", found.get("k", 0) % 24))


def _with_time(moment: dt.datetime, found: dict[str, Any]) -> dt.datetime:
    if "A" in found:
        minutes, millis = divmod(found["A"], 60_000)
        return moment.replace(
            hour=minutes // 60, minute=minutes % 60, second=millis // 1000, microsecond=millis % 1000 * 1000
        )
    micros = found["n"] // 1000 if "n" in found else found.get("S", 0)
    return moment.replace(hour=_hour(found), minute=found.get("m", 0), second=found.get("s", 0), microsecond=micros)


def _zone(name: str) -> dt.tzinfo:
    """Return a time zone of a text, which may be a short name."""
    short = {"PST": "America/Los_Angeles", "EST": "America/New_York", "CST": "America/Chicago"}
    return zone_of(short.get(name.upper(), name))


_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?")


@lru_cache(maxsize=64)
def zone_of(name: str) -> dt.tzinfo:
    """Return a time zone by its name or offset.

    Raises:
        ValueError: There is none.
    """
    if name in ("Z", "z"):
        return dt.UTC
    if (offset := _OFFSET.fullmatch(name)) is not None:
        sign, hours, minutes, seconds = offset.groups()
        ahead = dt.timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
        return dt.timezone(-ahead if sign == "-" else ahead)
    # Java has no zones of these names.
    if name in ("EST", "MST", "HST"):
        raise ValueError(f"{name} is no name of a time zone; write one like America/New_York")
    try:
        return ZoneInfo(name)
    except (OSError, ZoneInfoNotFoundError) as error:
        raise ValueError(f"{name!r} is no name of a time zone; write one like Europe/Berlin") from error


def offset_ms(millis: int, zone: str) -> int:
    """Return the milliseconds by which the clock of a time zone is ahead of UTC at a timestamp."""
    moment = (_EPOCH + dt.timedelta(milliseconds=millis)).astimezone(zone_of(zone))
    return (moment.utcoffset() or dt.timedelta()) // dt.timedelta(milliseconds=1)
