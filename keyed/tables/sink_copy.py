"""Copies of a state table in sinks: Delta and Iceberg tables, PostgreSQL, compacted topics, and sinks of others.

Each batch is one transaction. Its note has ``token``, the place in the feed, ``columns``, a digest of the columns, and
``state-batch``, the id of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from keyed.destinations.ownership import Owner
from keyed.destinations.sink import Sink, SinkBatch, TableChanges, Written
from keyed.errors import DefinitionError, KeyedError, SinkError
from keyed.tables.entries import Entry
from keyed.tables.replicated_rows import ReplicatedRows, Row

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows that are converted together.
_ROWS = 8192


@attrs.frozen
class _CopiedRows(SinkBatch):
    """Entries of a table as rows, or as their keys."""

    _copied: ReplicatedRows
    _entries: Sequence[Entry]
    _to: Sink
    _of_keys: bool

    @property
    def rows(self) -> list[Row]:
        """See `SinkBatch`."""
        return self._copied.rows(self._entries, of_keys=self._of_keys)

    @property
    def table(self) -> pa.Table:
        """See `SinkBatch`."""
        table = self._copied.table(self._entries, of_keys=self._of_keys)
        for name in self._copied.key:
            if table.column(name).null_count:
                raise SinkError(f"{self._to!r}: a row has a null in {name!r}, a column of the key")
        return table


class SinkCopy:
    """Writes a table to a sink.

    Args:
        to: The sink.
        table: Operator and table.

    Attributes:
        name: The target.

    Raises:
        DefinitionError: The sink does not hold copies.
        ExtraNotInstalled: A package is not installed.
    """

    def __init__(self, to: Sink, table: str) -> None:
        self._to = to
        self._table = table
        self._writer = to.open_copy(Owner([table]))
        self.name = self._writer.id
        #: Number of the last transaction, and the digest of the columns then.
        self._number, self._digest = 0, ""

    @property
    def is_new(self) -> bool:
        """True before the first transaction."""
        return not self._number

    def claim(self) -> tuple[str, str] | None:
        """Return the token of the last batch and the digest of its columns; ``None`` if they are not known.

        Raises:
            SinkError: It is not the copy of this table.
        """
        self._writer.claim()
        last = self._writer.last_copy()
        if last is None:
            raise SinkError(f"{self._to!r}: {self.name} is not a copy of {self._table!r}; give another one")
        self._number, note = last
        self._digest = note.get("columns", "")
        return (note["token"], self._digest) if "token" in note else None

    def digest(self, rows: ReplicatedRows) -> str:
        """Return a digest of the columns; empty if they are not known yet.

        Raises:
            DefinitionError: The sink has another key.
        """
        key = self._writer.copy_key
        if key is not None and {*key} != {*rows.key}:
            raise DefinitionError(
                f"replicate: {self._to!r}: the columns that identify a row of {self._table!r} are "
                f"{', '.join(rows.key)}; give key={list(rows.key)!r}"
            )
        self._digest = self._writer.digest_copy(rows) if rows.are_types_known else ""
        return self._digest

    def is_transient(self, error: Exception) -> bool:
        """Return true if an error may be transient."""
        return any(self._writer.is_transient(each) for each in (error, error.__cause__) if each is not None)

    def translated(self, error: Exception) -> Exception:
        """Return the error to raise for an error."""
        if isinstance(error, KeyedError):
            return error
        return SinkError(f"{self._to!r}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Release the copy. Closing again does nothing."""
        self._writer.close()

    def write(
        self,
        rows: ReplicatedRows | None,
        token: str,
        batch: int,
        upserts: Iterable[Entry] = (),
        removed: Iterable[Entry] = (),
        *,
        replaces: bool = False,
    ) -> Written:
        """Write changes in one transaction, with the token of their batch; none before there are rows.

        Args:
            rows: The rows of the table; ``None`` without changes.
            token: The token.
            batch: Id of the batch.
            upserts: Written entries.
            removed: Removed ones.
            replaces: True to remove all other rows.
        """
        written = Written()
        if rows is None or (replaces and not rows.are_types_known):
            if self.is_new:
                return written
            # There are no rows, so the types of their keys may not be known.
            rows, upserts = None, ()

        def parts(entries: Iterable[Entry], *, of_keys: bool) -> Iterator[SinkBatch]:
            remaining = iter(entries)
            while part := list(islice(remaining, _ROWS)):
                assert rows is not None
                written.rows += 0 if of_keys else len(part)
                written.tombstones += len(part) if of_keys else 0
                yield _CopiedRows(rows, part, self._to, of_keys)

        changes = TableChanges(rows, parts(upserts, of_keys=False), parts(removed, of_keys=True), replaces, written)
        note = {"token": token, "state-batch": str(batch), "columns": self._digest}
        if not self._writer.write_changes(changes, self._number + 1, note):
            raise SinkError(
                f"{self._to!r}: another replication of this table has written; it goes on in the place of this one"
            )
        self._number += 1
        return written
