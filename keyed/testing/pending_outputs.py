"""Outputs of a function under test that the test has not taken yet."""

from __future__ import annotations

from typing import Any

from keyed.engine.batch import BatchResult, Emitted, EmittedTables
from keyed.errors import DefinitionError
from keyed.job.outputs import OutputTag
from keyed.testing.timed_records import Record


class PendingOutputs:
    """Outputs by tag; the main output has the tag ``None``.

    Attributes:
        side: The names of the side outputs that have had rows.
    """

    def __init__(self) -> None:
        self.side: set[str] = set()
        self._rows: dict[str | None, list[Record]] = {}
        self._tables: dict[str | None, EmittedTables] = {}

    def add(self, result: BatchResult) -> None:
        """Add the outputs of a key group in a micro-batch."""
        self._add(None, result.main)
        for tag, emitted in result.side.items():
            self.side.add(tag)
            self._add(tag, emitted)

    def _add(self, tag: str | None, emitted: Emitted | EmittedTables) -> None:
        if isinstance(emitted, EmittedTables):
            self._tables.setdefault(tag, EmittedTables()).extend(emitted)
            return
        self._rows.setdefault(tag, []).extend(map(Record, emitted.values, emitted.timestamps()))

    def pending(self) -> dict[str | None, list[Record]]:
        """Return the outputs that were not taken, the main output first."""
        tags = sorted({*self._rows, *self._tables}, key=lambda tag: tag or "")
        return {tag: records for tag in tags if (records := self._of(tag))}

    def take(self, tag: str | None) -> list[Record]:
        """Return and remove an output as rows."""
        records = self._of(tag)
        self._rows.pop(tag, None)
        self._tables.pop(tag, None)
        return records

    def take_tables(self, tag: str | None) -> list[Any]:
        """Return and remove an output as the tables that were emitted."""
        return self._tables.pop(tag, EmittedTables()).tables

    def _of(self, tag: str | None) -> list[Record]:
        emitted = self._tables.get(tag, EmittedTables())
        return self._rows.get(tag, []) + list(map(Record, emitted.values, emitted.timestamps()))

    def side_name(self, tag: OutputTag | str) -> str:
        """Return the name of a side output.

        Raises:
            DefinitionError: An unknown name, while other side outputs have rows; an `OutputTag` may be empty.
        """
        name = tag.name if isinstance(tag, OutputTag) else tag
        if tag == name and self.side and name not in self.side:
            others = ", ".join(map(repr, sorted(self.side)))
            raise DefinitionError(
                f"side output {name!r} has no rows, only {others}; give the OutputTag itself to take an output that "
                "may be empty"
            )
        return name
