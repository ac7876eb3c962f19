"""Copies of state tables in files of JSON: an example of a third-party sink.

`table.replicate(JsonCopies(path))` copies a table. `keyed.testing.sink_conformance` has the contract of such sinks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyed.errors import DefinitionError
from keyed.extending import Owner, Schema, Sink, SinkWriter


class JsonCopies(Sink):
    """A file with the rows of a state table.

    Args:
        path: The file; the first transaction creates it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `keyed.extending.Sink`."""
        raise DefinitionError("JsonCopies holds copies of state tables, and no outputs")

    def open_copy(self, owner: Owner) -> SinkWriter:
        """See `keyed.extending.Sink`."""
        return JsonCopy(self.path, owner.query)


class JsonCopy(SinkWriter):
    """Replaces the file in each transaction. See `JsonCopies`."""

    def __init__(self, path: Path, table: str) -> None:
        self.id = str(path)
        self.path = path
        self.table = table

    def content(self) -> dict[str, Any]:
        """Return the table, the number and the note of the last transaction, and the rows by key."""
        if not self.path.exists():
            return {"table": self.table, "number": 0, "note": {}, "rows": {}}
        content: dict[str, Any] = json.loads(self.path.read_text())
        return content

    def last_copy(self) -> tuple[int, Mapping[str, str]] | None:
        """See `keyed.extending.SinkWriter`."""
        content = self.content()
        return (content["number"], content["note"]) if content["table"] == self.table else None

    def write_changes(self, changes: Any, number: int, note: Mapping[str, str]) -> bool:
        """See `keyed.extending.SinkWriter`."""
        content = self.content()
        if content["number"] != number - 1:
            return False
        rows = {} if changes.replaces else content["rows"]
        for parts, is_removed in ((changes.upserts, False), (changes.removed, True)):
            for row in (row for part in parts for row in part.rows):
                key = json.dumps([row[name] for name in changes.table.key])
                if is_removed:
                    rows.pop(key, None)
                else:
                    rows[key] = row
        staged = self.path.with_suffix(".staged")
        staged.write_text(json.dumps({"table": self.table, "number": number, "note": {**note}, "rows": rows}))
        staged.replace(self.path)
        return True
