"""The part of a local store that a running batch reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from keyed.content.blocks import Change

if TYPE_CHECKING:
    from keyed.tables.chunks import ChunkedTable, TableDelta

__all__ = ["LocalStore", "ReadStore"]


class ReadStore(Protocol):
    """Committed entries, unchanged while a batch runs."""

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """The value at an address."""
        ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The (sub, value) pairs of exactly this prefix, in order of sub."""
        ...

    def due(self, kind: int, up_to: int) -> Iterator[tuple[int, bytes, bytes]]:
        """The (time, prefix, sub) of the entries of a kind that are due by ``up_to``, in that order."""
        ...

    def items(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """All (prefix, sub, value)."""
        ...

    def table(self, state_id: int) -> ChunkedTable | None:
        """The rows of a table state, ``None`` if it has none."""
        ...


class LocalStore(ReadStore, Protocol):
    """A disposable cache of the committed entries of one key group. Implementations: `keyed.stores`."""

    def position(self) -> tuple[str, int] | None:
        """The (log id, last applied row), or ``None`` if the store is empty."""
        ...

    def apply(self, log_id: str, row: int, changes: Iterable[Change], tables: Sequence[TableDelta] = ()) -> None:
        """Apply changes in order, and those of tables, atomically with the position."""
        ...

    def reset(self) -> None:
        """Drop everything."""
        ...

    def close(self) -> None:
        """Release what the store holds."""
        ...
