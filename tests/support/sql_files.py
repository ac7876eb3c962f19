"""Files of SQL queries, each behind a line with its name."""

from __future__ import annotations

import re
from pathlib import Path


def read_queries(path: Path) -> dict[str, str]:
    """Return the queries of a file by name."""
    parts = re.findall(r"^-- (\w+)\n(.+?);$", path.read_text(), re.MULTILINE | re.DOTALL)
    return dict(parts)
