"""The log of a key group: the truth from which its local store can always be rebuilt.

Spark's state store, the local runtime's commit store and the test harness implement it. The changes that `KeyGroup`
makes to it in one batch become durable atomically with the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from keyed.engine.meta import GroupMeta, decode_meta


class GroupLog(ABC):
    """Rows of bytes numbered from 1, and one meta record.

    Attributes:
        keeps: True if rows are kept. If not, a batch writes and encodes none.
    """

    keeps = True
    _decoded: tuple[bytes, GroupMeta] | None = None

    def meta(self, where: str) -> GroupMeta | None:
        """Return the decoded meta record, ``None`` before the first commit; the same object for the same record.

        Raises:
            CorruptionError: It is damaged.
        """
        record = self.read_meta()
        if record is None:
            return None
        if self._decoded is None or self._decoded[0] != record:
            self._decoded = record, decode_meta(record, f"{where}, meta record")
        return self._decoded[1]

    @abstractmethod
    def read_meta(self) -> bytes | None:
        """Return the meta record, or ``None`` before the first commit."""

    @abstractmethod
    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield the rows from ``first`` to ``last``, both included, in order; missing rows are left out."""

    @abstractmethod
    def append(self, row: int, record: bytes) -> None:
        """Write a row."""

    @abstractmethod
    def drop(self, row: int) -> None:
        """Remove a row."""

    @abstractmethod
    def write_meta(self, meta: bytes) -> None:
        """Replace the meta record."""


class UnreadLog(GroupLog):
    """The log of a group whose rows are never read, because its run persists nothing: only the meta record."""

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
