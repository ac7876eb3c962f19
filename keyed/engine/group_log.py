"""The log of a key group: the truth from which its local store can always be rebuilt.

Spark's state store, the local runtime's commit store and the test harness implement it. What `KeyGroup` does to it in
one batch becomes durable as one, together with the batch, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class GroupLog(Protocol):
    """Rows of bytes numbered from 1, and one meta record."""

    def read_meta(self) -> bytes | None:
        """The meta record, or ``None`` before the first commit."""
        ...

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """The rows from ``first`` to ``last``, both included, in order; rows that are not there are left out."""
        ...

    def append(self, row: int, record: bytes) -> None:
        """Write a row."""
        ...

    def drop(self, row: int) -> None:
        """Remove a row."""
        ...

    def write_meta(self, meta: bytes) -> None:
        """Replace the meta record."""
        ...
