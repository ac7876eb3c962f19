"""Patterns of Java's ``DateTimeFormatter``: times as texts, and texts as times."""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

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
            if sign not in "GyuMLdDHhkKmsSnAaEezZXxVOw":
                raise ValueError(f"{pattern!r}: unknown letter {sign!r}")
            found.append((sign, count))
            place += count
        else:
            if sign not in "[]":
                found.append((sign, 0))
            place += 1
    return tuple(found)


def format_moment(millis: int, pattern: str, zone: str = "UTC") -> str:
    """Return a timestamp as text."""
    moment = (_EPOCH + dt.timedelta(milliseconds=millis)).astimezone(zone_of(zone))
    shown = []
    for sign, count in _parts(pattern):
        shown.append(sign if not count else _shown(sign, count, moment))
    return "".join(shown)


def _shown(sign: str, count: int, moment: dt.datetime) -> str:
    match sign:
        case "y" | "u":
            return f"{moment.year % 100:02}" if count == 2 else f"{moment.year:0{count}}"
        case "M" | "L":
            name = _MONTHS[moment.month - 1]
            return f"{moment.month:0{count}}" if count < 3 else name[:3] if count == 3 else name
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
            return str(moment.microsecond * 1000)
        case "a":
            return "AM" if moment.hour < 12 else "PM"
        case "E" | "e":
            name = _DAYS[moment.weekday()]
            return name[:3] if count <= 3 else name
        case "G":
            return "AD"
        case "z":
            return moment.tzname() or "UTC"
        case "V":
            return str(moment.tzinfo)
    offset = moment.utcoffset() or dt.timedelta()
    minutes = int(offset.total_seconds()) // 60
    if sign == "X" and not minutes:
        return "Z"
    colon = ":" if (sign in "Xx" and count in (3, 5)) else ""
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}{colon}{abs(minutes) % 60:02}"


@lru_cache(maxsize=128)
def _expression(pattern: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    found, names = [], []
    parts = _parts(pattern)
    for place, (sign, count) in enumerate(parts):
        if not count:
            found.append(re.escape(sign))
            continue
        adjacent = place + 1 < len(parts) and parts[place + 1][1] > 0
        digits = rf"\d{{{count}}}" if adjacent or count > 1 else r"\d{1,2}"
        match sign:
            case "y" | "u":
                expression = r"\d{2}" if count == 2 else r"\d{4}" if adjacent or count > 1 else r"[+-]?\d{1,6}"
            case "M" | "L" if count >= 3:
                expression = "|".join(name if count > 3 else name[:3] for name in _MONTHS)
            case "E" | "e":
                expression = "|".join(name if count > 3 else name[:3] for name in _DAYS)
            case "a":
                expression = "AM|PM"
            case "G":
                expression = "AD|BC"
            case "S":
                expression = rf"\d{{{count}}}"
            case "n" | "A":
                expression = r"\d+"
            case "z" | "V":
                expression = r"[A-Za-z_/+\-0-9:]+"
            case "X" | "x" | "Z" | "O":
                expression = r"Z|[+-]\d{2}:?(?:\d{2})?"
            case "D":
                expression = r"\d{1,3}"
            case _:
                expression = digits
        found.append(f"({expression})")
        names.append(sign)
    return re.compile("".join(found), re.IGNORECASE), tuple(names)


def parse_moment(text: str, pattern: str, zone: str = "UTC", *, is_prefix: bool = False) -> int:
    """Return the milliseconds of a text; a part that the pattern lacks is that of 1970-01-01T00:00 UTC.

    Upper and lower case are the same. With `is_prefix` the text may go on.

    Raises:
        ValueError: The text does not have the form, or the pattern is none.
    """
    expression, names = _expression(pattern)
    match = (expression.match if is_prefix else expression.fullmatch)(text)
    if match is None:
        raise ValueError(f"{text!r} does not have the form {pattern!r}")
    found: dict[str, Any] = {}
    info: dt.tzinfo = zone_of(zone)
    for sign, value in zip(names, match.groups(), strict=True):
        if sign in "zVXxZO":
            info = _zone(value)
        elif sign in "ML" and not value.isdigit():
            found["M"] = [name[:3] for name in _MONTHS].index(value[:3].title()) + 1
        elif sign in "yu":
            found["y"] = int(value) + (2000 if len(value) == 2 else 0)
        elif sign == "S":
            found["S"] = int(value.ljust(6, "0")[:6])
        elif sign in "aEeG":
            found[sign] = value.upper()
        else:
            found["M" if sign == "L" else sign] = int(value)
    hour = found.get("H", found.get("k", 0) % 24)
    if "h" in found or "K" in found:
        hour = found.get("h", found.get("K", 0)) % 12 + (12 if found.get("a") == "PM" else 0)
    moment = dt.datetime(
        found.get("y", 1970),
        found.get("M", 1),
        found.get("d", 1),
        hour,
        found.get("m", 0),
        found.get("s", 0),
        found.get("S", 0),
        tzinfo=info,
    )
    if "D" in found:
        moment += dt.timedelta(days=found["D"] - 1)
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def _zone(name: str) -> dt.tzinfo:
    if name in ("Z", "z"):
        return dt.UTC
    if name[0] in "+-":
        digits = name[1:].replace(":", "").ljust(4, "0")
        offset = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        return dt.timezone(-offset if name[0] == "-" else offset)
    return zone_of(name)


@lru_cache(maxsize=64)
def zone_of(name: str) -> dt.tzinfo:
    """Return a time zone by its name or offset."""
    if name[0] in "+-":
        return _zone(name)
    short = {"PST": "America/Los_Angeles", "EST": "America/New_York", "CST": "America/Chicago", "UTC": "UTC"}
    return ZoneInfo(short.get(name, name))
