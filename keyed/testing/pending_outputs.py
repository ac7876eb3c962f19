"""Outputs of a function under test that the test has not taken yet."""

from __future__ import annotations

from typing import Any

from keyed.engine.batch import BatchResult, Emitted, EmittedTables
from keyed.errors import DefinitionError
from keyed.job.context import OutputTag
from keyed.testing.timed_records import Record


class PendingOutputs:
    """Outputs by tag; the main output has the tag ``None``.

    Attributes:
        side: The names of the side outputs that have had rows.
    """

    def __init__(self) -> None:
        self.side: set[str] = set()
        self._emitted: dict[str | None, list[Emitted | EmittedTables]] = {}

    def add(self, result: BatchResult) -> None:
        """Add the outputs of a key group in a micro-batch."""
        self.side |= result.side.keys()
        for tag, emitted in [(None, result.main), *result.side.items()]:
            self._emitted.setdefault(tag, []).append(emitted)

    def pending(self) -> dict[str | None, list[Record]]:
        """Return the outputs that were not taken, the main output first."""
        tags = sorted(self._emitted, key=lambda tag: tag or "")
        return {tag: records for tag in tags if (records := self._records(tag))}

    def take(self, tag: str | None) -> list[Record]:
        """Return and remove an output as rows."""
        records = self._records(tag)
        self._emitted.pop(tag, None)
        return records

    def take_tables(self, tag: str | None) -> list[Any]:
        """Return and remove an output as the tables that were emitted."""
        emitted = self._emitted.pop(tag, [])
        return [table for each in emitted if isinstance(each, EmittedTables) for table in each.tables]

    def _records(self, tag: str | None) -> list[Record]:
        emitted = self._emitted.get(tag, ())
        return [record for each in emitted for record in map(Record, each.values, each.timestamps())]

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
