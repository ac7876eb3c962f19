"""Human-readable rows: a table with aligned columns, and clocks as numbers with their times."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from keyed.durations import MAX_TIMESTAMP, MIN_TIMESTAMP, instant_of
from keyed.tables.json_values import as_json

#: Numbers that probably are times in milliseconds: 1973 to 5138.
_FIRST_TIME, _LAST_TIME = 10**11, 10**14


def print_rows(rows: Iterable[dict[str, Any]]) -> None:
    """Print rows of the same columns, or a note that there are none."""
    shown = [{name: _text(value) for name, value in row.items()} for row in rows]
    if not shown:
        sys.stdout.write("nothing\n")
        return
    names = list(shown[0])
    widths = [max(len(name), *(len(row[name]) for row in shown)) for name in names]
    for line in (dict(zip(names, names, strict=True)), *shown):
        text = "  ".join(line[name].ljust(width) for name, width in zip(names, widths, strict=True))
        sys.stdout.write(text.rstrip() + "\n")


def clock_text(clock: int) -> str:
    """Return a watermark or processing time as text: milliseconds and their time, or ``none``."""
    if clock in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        return "none" if clock < 0 else "end of input"
    try:
        time = instant_of(clock)
    except OverflowError:
        return str(clock)
    return f"{clock} ({time.replace(tzinfo=None).isoformat(sep=' ', timespec='milliseconds')} UTC)"


def namespace_text(namespace: Any) -> Any:
    """Return a human-readable namespace: a number that may be a time in milliseconds is shown with that time."""
    if isinstance(namespace, tuple):
        return ", ".join(_text(namespace_text(part)) for part in namespace)
    return clock_text(namespace) if type(namespace) is int and _FIRST_TIME <= namespace < _LAST_TIME else namespace


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else as_json(value).decode()
    if isinstance(value, datetime):
        text = text.strip('"')
    # Keys and values are untrusted: they must not move the cursor or break a line.
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
