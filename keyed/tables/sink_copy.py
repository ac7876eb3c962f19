"""Copies of a state table in sinks with a key: Delta and Iceberg tables, PostgreSQL, and sinks of others.

Each batch is one transaction. Its note has ``token``, the place in the feed, ``columns``, a digest of the columns, and
``state-batch``, the id of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from keyed.destinations.ownership import Owner
from keyed.destinations.sink import Sink, TableChanges
from keyed.errors import DefinitionError, KeyedError, SinkError
from keyed.tables.entries import Entry
from keyed.tables.replicated_rows import ReplicatedRows, Written

_ROWS = 8192


class SinkCopy:
    """Writes a table to a sink.

    Args:
        to: The sink.
        table: Operator and table.

    Raises:
        DefinitionError: The sink does not hold copies.
        ExtraNotInstalled: A package is not installed.
    """

    namespaces = False

    def __init__(self, to: Sink, table: str) -> None:
        self._to = to
        self._key: tuple[str, ...] = tuple(getattr(to, "key", ()))
        self._name = table
        self._writer = to.open_copy(Owner([table]))
        self.name = self._writer.id
        #: Number of the last transaction, and the digest of the columns then.
        self._number, self._shape = 0, ""

    def claim(self) -> tuple[str, str] | None:
        """Return the token of the last batch and the digest of its columns; ``None`` if they are not known.

        Raises:
            SinkError: It is not the copy of this table.
        """
        self._writer.claim()
        last = self._writer.last_copy()
        if last is None:
            raise SinkError(f"{self._to!r}: {self.name} is not a copy of {self._name!r}; give another one")
        self._number, note = last
        self._shape = note.get("columns", "")
        return (note["token"], self._shape) if "token" in note else None

    def shape(self, rows: ReplicatedRows) -> str:
        """Return a digest of the columns; empty if they are not known yet.

        Raises:
            DefinitionError: The sink has another key.
        """
        if set(self._key) != set(rows.key):
            raise DefinitionError(
                f"replicate: {self._to!r}: the columns that identify a row of {self._name!r} are "
                f"{', '.join(rows.key)}; give key={list(rows.key)!r}"
            )
        self._shape = xxh3_64_hexdigest(str(_stored(rows.schema())).encode()) if rows.are_types_known else ""
        return self._shape

    def write(
        self, rows: ReplicatedRows, upserts: Sequence[Entry], removed: Sequence[Entry], token: str, batch: int
    ) -> Written:
        """Write the changes of a batch in one transaction, with its token."""
        schema = _stored(rows.schema())
        keys = rows.table(removed, of_keys=True)
        keys = keys.cast(pa.schema([schema.field(name) for name in keys.column_names]))
        written = Written(tombstones=keys.num_rows)
        changes = TableChanges(schema, self._tables(rows, iter(upserts), written), keys)
        self._commit(changes, token, batch)
        return written

    def replace(self, rows: ReplicatedRows, snapshot: Iterator[Entry], token: str, batch: int) -> Written:
        """Change the copy to the rows of a snapshot in one transaction, with its token."""
        written = Written(was_empty=not self._number)
        if rows.are_types_known:
            tables = self._tables(rows, snapshot, written)
            self._commit(TableChanges(_stored(rows.schema()), tables, None), token, batch)
        elif self._number:
            # The table has no rows, and the types of its keys are not known.
            self._commit(TableChanges(None, (), None), token, batch)
        return written

    def note(self, token: str, batch: int) -> None:
        """Store the token of a batch without changes."""
        if self._number:
            self._commit(TableChanges(None, (), pa.table({})), token, batch)

    def is_transient(self, error: Exception) -> bool:
        """Return true if an error may be transient."""
        return self._writer.is_transient(error.__cause__ or error)

    def translated(self, error: Exception) -> Exception:
        """Return the error to raise for an error."""
        if isinstance(error, KeyedError):
            return error
        return SinkError(f"{self._to!r}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Release the copy. Closing again does nothing."""
        self._writer.close()

    def _tables(self, rows: ReplicatedRows, entries: Iterator[Entry], written: Written) -> Iterator[pa.Table]:
        schema: Any = _stored(rows.schema())
        while part := list(islice(entries, _ROWS)):
            table = rows.table(part)
            for name in rows.key:
                if table.column(name).null_count:
                    raise SinkError(f"{self._to!r}: a row has a null in {name!r}, a column of the key")
            written.rows += table.num_rows
            yield table.cast(schema)

    def _commit(self, changes: TableChanges, token: str, batch: int) -> None:
        note = {"token": token, "state-batch": str(batch), "columns": self._shape}
        if not self._writer.write_changes(changes, self._number + 1, note):
            raise SinkError(
                f"{self._to!r}: another replication of this table has written; it goes on in the place of this one"
            )
        self._number += 1


def _stored(schema: pa.Schema) -> pa.Schema:
    """Return the columns with times in microseconds, as tables have them."""
    types = pa.types
    return pa.schema(
        [
            (field.name, pa.timestamp("us", field.type.tz) if types.is_timestamp(field.type) else field.type)
            for field in schema
        ]
    )
