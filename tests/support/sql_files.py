"""Files of SQL queries and scripts, each behind a line with its name."""

from __future__ import annotations

import re
from pathlib import Path


def read_queries(path: Path) -> dict[str, str]:
    """Return the queries of a file by name."""
    parts = re.findall(r"^-- (\w+)\n(.+?);$", path.read_text(), re.MULTILINE | re.DOTALL)
    return dict(parts)


def read_scripts(path: Path) -> dict[str, str]:
    """Return the scripts of a file by name; each has one statement or several."""
    _, *parts = re.split(r"^-- (\w+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))
