"""Writing of tables in the local runtime, whatever their format: each batch of a query is one commit, made once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keyed.base.schemas import Schema
from keyed.destinations.ownership import BatchMark, Owner
from keyed.destinations.sink import Record, SinkBatch, TableChanges
from keyed.destinations.table_sink import LakeWriter, TableSink, check_types, fitted, last_rows
from keyed.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

#: A column of the changes of a copy, true in rows whose keys are removed.
_DELETED = "__keyed_deleted"


class TableWriter(LakeWriter):
    """Writes the batches of one query to a table, in the local runtime.

    Args:
        sink: The sink.
        owner: The query.
        schema: The declared columns of the output; ``None`` if the first rows decide.
        place: The table, for messages.

    Raises:
        SinkError: The output lacks a column that the sink names, or has it with another type.
    """

    def __init__(self, sink: TableSink, owner: Owner, schema: Schema | None, place: str) -> None:
        if schema is not None:
            check_types(sink, dict(schema.columns))
        super().__init__(sink, owner)
        self.id = place
        self.copy_key = sink.key
        self._deleted = sink.deleted
        self._is_declared = schema is not None
        #: The columns of the first rows, if none are declared.
        self._first: pa.Schema | None = None
        #: The table, ``None`` before it is created.
        self._table: Any = None

    @abstractmethod
    def _open(self) -> Any:
        """Return the table, ``None`` if there is none."""

    @abstractmethod
    def _schema(self) -> tuple[pa.Schema, list[str]]:
        """Return the columns of the table, and the names of those without nulls."""

    @abstractmethod
    def _newest_commits(self) -> Iterable[Mapping[str, Any]]:
        """Return the properties of commits, the newest first."""

    @abstractmethod
    def _has_rows(self) -> bool:
        """Return whether the table has rows."""

    @abstractmethod
    def _commit(self, rows: pa.Table, batch_id: int, note: Mapping[str, str]) -> None:
        """Commit rows, with the id of their batch and a note."""

    @abstractmethod
    def _replace(self, rows: pa.RecordBatchReader, batch_id: int, note: Mapping[str, str]) -> None:
        """Commit rows in place of all others, with the id of their batch and a note."""

    def claim(self, repeated: int | None = None) -> None:
        """Open the table, if there is one. See `SinkWriter`."""
        self._table = self._attempt(self._open)
        if self._table is not None:
            self._warn_of_overlap()

    def _columns(self) -> tuple[Mapping[str, str], list[str]] | None:
        if self._table is None:
            return None
        schema, required = self._schema()
        return self._kinds(schema), required

    def _failed(self, error: Exception) -> SinkError:
        return SinkError(f"{self._sink!r}: {type(error).__name__}: {error}")

    def pack(self, batch: SinkBatch) -> list[Record]:
        """See `SinkWriter`. Without declared columns the first rows decide."""
        rows = batch.table
        if rows is not None and not self._is_declared:
            rows = fitted(self._sink, rows, self._first)
            if self._first is None:
                self.prepare(rows.schema)
                self._first = rows.schema
        return self.records(rows)

    def records(self, rows: pa.Table | None) -> list[Record]:
        """Return the rows of a batch as they are committed with its state."""
        if rows is None or not rows.num_rows:
            return []
        return self.packed(last_rows(rows, self._sink) if self._sink.mode == "upsert" else rows)

    def write(self, rows: Sequence[Record], batch_id: int) -> None:
        """See `SinkWriter`."""
        if not rows:
            return
        table = self.unpack(rows)
        if self._table is None:
            # The rows were committed before the table was created.
            self.prepare(table.schema)

        def commit() -> None:
            self._refresh()
            last = self._last_batch(self._owner.query)
            if last is None or last < batch_id:
                self._commit(table, batch_id, {})

        self._attempt(commit)

    def last_copy(self) -> tuple[int, Mapping[str, str]] | None:
        """See `SinkWriter`."""
        query = self._owner.query
        last = None if self._table is None else self._last_batch(query)
        if last is None:
            return None if self._table is not None and self._has_rows() else (0, {})
        newest = next(BatchMark.of_commits(query, self._newest_commits()), None)
        return last, {} if newest is None else newest.note

    def write_changes(self, changes: TableChanges, number: int, note: Mapping[str, str]) -> bool:
        """See `SinkWriter`."""
        import pyarrow as pa

        schema = changes.schema
        if self._table is None:
            assert schema is not None
            self._create(schema)
        self._refresh()
        if (self._last_batch(self._owner.query) or 0) != number - 1:
            return False
        columns = self._schema()[0] if schema is None else schema
        if changes.replaces:
            tables = (part.table for part in changes.upserts)
            batches = (batch for table in tables if table is not None for batch in table.to_batches())
            self._replace(pa.RecordBatchReader.from_batches(columns, batches), number, note)
        elif schema is None:
            self._commit(columns.empty_table(), number, note)
        else:
            self._deleted = _DELETED
            marked = [
                table.append_column(_DELETED, pa.array([is_removed] * table.num_rows, pa.bool_()))
                for parts, is_removed in ((changes.upserts, False), (changes.removed, True))
                for part in parts
                if (table := part.table) is not None
            ]
            self._commit(pa.concat_tables(marked, promote_options="default"), number, note)
        return True

    def is_transient(self, error: BaseException) -> bool:
        """See `SinkWriter`."""
        return self._overtaken(error) is not None or super().is_transient(error)

    def close(self) -> None:
        """Release the table. Closing again does nothing."""
        self._table = None
