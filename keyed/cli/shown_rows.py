"""Rows on standard output: JSON lines, or a human-readable table with aligned columns."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from keyed.base.arguments import time_text
from keyed.formats.json_writer import as_json


def print_json(rows: Iterable[Any]) -> None:
    """Print rows as JSON, one object per line."""
    for row in rows:
        sys.stdout.write(as_json(row).decode() + "\n")


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


def namespace_text(namespace: Any) -> Any:
    """Return a human-readable namespace: a number that may be a time in milliseconds is shown with that time."""
    if isinstance(namespace, tuple):
        return ", ".join(_text(namespace_text(part)) for part in namespace)
    return time_text(namespace) if type(namespace) is int else namespace


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else as_json(value).decode()
    if isinstance(value, datetime):
        text = text.strip('"')
    # Keys and values are untrusted: they must not move the cursor or break a line.
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
