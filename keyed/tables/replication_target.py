"""The protocol of the copies that `keyed.tables.replication` writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import attrs

from keyed.tables.entries import Entry

if TYPE_CHECKING:
    from keyed.tables.replicated_rows import ReplicatedRows

Change = tuple[Entry, bool]
"""A row, and true if it was removed."""


@attrs.define
class Written:
    """Counts of a transaction.

    Attributes:
        rows: Written rows.
        tombstones: Removed rows.
        was_empty: True if the copy had no rows before.
    """

    rows: int = 0
    tombstones: int = 0
    was_empty: bool = False


@attrs.frozen
class Copied:
    """The state of a copy.

    Attributes:
        token: Token of its last batch.
        shape: Digest of its columns; empty if they were not known.
    """

    token: str
    shape: str


class Target(Protocol):
    """Protocol of a copy of a table. One thread at a time uses it; `close` may be called at any time.

    Attributes:
        name: Its name, for messages.
    """

    name: str

    @property
    def namespaces(self) -> bool:
        """True if namespaces are a column of the key."""

    def claim(self) -> Copied | None:
        """Fence other writers of the copy, and return its state; ``None`` if it is new or its state is not known.

        Raises:
            SinkError: It is the copy of another table.
        """

    def shape(self, rows: ReplicatedRows) -> str:
        """Return a digest of the columns other than the key's; empty if they are not known yet.

        Raises:
            SinkError: The copy has another key.
        """

    def write(self, rows: ReplicatedRows, changes: Iterator[Change], token: str, batch: int) -> Written:
        """Write the changes of a batch in one transaction, with its token."""

    def replace(self, rows: ReplicatedRows, snapshot: Iterator[Entry], token: str, batch: int) -> Written:
        """Change the copy to the rows of a snapshot in one transaction, with its token."""

    def note(self, token: str, batch: int) -> None:
        """Store the token of a batch without changes."""

    def is_transient(self, error: Exception) -> bool:
        """Return true if an error may be transient."""

    def translated(self, error: Exception) -> Exception:
        """Return the error to raise for an error."""

    def close(self) -> None:
        """Release the copy. Closing again does nothing."""
