"""Rows of the input of a function under test, and its outputs."""

from __future__ import annotations

from typing import Any, NamedTuple


class Record(NamedTuple):
    """An output, or a row of the input, with its timestamp.

    Attributes:
        value: The emitted value, or the input.
        timestamp: Of an output, that of the element, of the event-time timer or of ``ctx.collect``, else ``None``.
    """

    value: Any
    timestamp: int | None

    @property
    def input(self) -> int:
        """The side of connected streams of the row: 1, and 2 for a `SecondRecord`."""
        return 1


class SecondRecord(Record):
    """A row of the second side of connected streams."""

    __slots__ = ()

    @property
    def input(self) -> int:
        """The side of the row: 2."""
        return 2
