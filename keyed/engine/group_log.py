"""The log of a key group: the truth from which its local store can always be rebuilt.

Spark's state store, the local runtime's commit store and the test harness implement it. What `KeyGroup` does to it in
one batch becomes durable as one, together with the batch, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class GroupLog(Protocol):
    """Rows of bytes numbered from 1, and one meta record."""

    @property
    def keeps(self) -> bool:
        """Whether rows are kept. If not, a batch leaves none, and does not encode what would be in them."""
        ...

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


class UnreadLog:
    """The log of a group whose rows nothing reads, because its run leaves nothing behind: the meta record alone."""

    keeps = False

    def __init__(self) -> None:
        self._meta: bytes | None = None

    def read_meta(self) -> bytes | None:
        return self._meta

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        return iter(())

    def append(self, row: int, record: bytes) -> None:
        pass

    def drop(self, row: int) -> None:
        pass

    def write_meta(self, meta: bytes) -> None:
        self._meta = meta
