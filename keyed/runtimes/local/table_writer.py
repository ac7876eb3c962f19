"""Writing of tables in the local runtime, whatever their format: each batch of a query is one commit, made once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from keyed.codec.arrow_streams import read_stream, write_stream
from keyed.errors import KeyedError, SinkError
from keyed.recovery.outbox import Record
from keyed.runtimes.table_sinks import Overtaken, added, attempts, last_rows, stored, warn_of_overlap
from keyed.sinks import TableSink

_T = TypeVar("_T")


class TableWriter(ABC):
    """Writes the batches of one query to a table.

    Args:
        sink: The sink.
        queries: Id of the query, after those of the queries that it was restored from.
        place: The table, for messages.

    Attributes:
        id: Id of its rows among those that are committed with the state of a batch, a name for messages.
    """

    def __init__(self, sink: TableSink, queries: Sequence[str], place: str) -> None:
        self._queries = queries
        self._target = sink
        self.id = place
        #: The table, ``None`` before it is created.
        self._table: Any = None

    @property
    @abstractmethod
    def _overtaken(self) -> Overtaken:
        """The exceptions of a commit that another one has overtaken."""

    @abstractmethod
    def _open(self) -> Any:
        """Return the table, ``None`` if there is none."""

    @abstractmethod
    def _create(self, wanted: pa.Schema) -> None:
        """Create the table."""

    @abstractmethod
    def _refresh(self) -> None:
        """Read the newest version of the table."""

    @abstractmethod
    def _columns(self) -> tuple[pa.Schema, list[str]]:
        """Return the columns of the table, and the names of those without nulls."""

    @abstractmethod
    def _kinds(self, schema: pa.Schema) -> Mapping[str, str]:
        """Return columns with the names of their types in tables of this format."""

    @abstractmethod
    def _grow(self, wanted: pa.Schema, new: Sequence[str]) -> None:
        """Add the new ones of columns to the table."""

    @abstractmethod
    def _last_batch(self, query: str) -> int | None:
        """Return the last batch of a query in the table."""

    @abstractmethod
    def _commit(self, rows: pa.Table, batch_id: int) -> None:
        """Commit rows, with the id of their batch."""

    def claim(self, next_batch: int) -> None:
        """Open the table, if there is one.

        Args:
            next_batch: Id of the batch that the query writes next.

        Raises:
            SinkError: It cannot be read, or something else is in its place.
        """
        self._table = self._attempt(self._open)
        if self._table is None or self._last_batch(self._queries[-1]) is not None:
            return
        for query in self._queries[:-1]:
            warn_of_overlap(self._target, query, self._last_batch(query) or 0, next_batch)

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or add the output's new columns to it.

        Raises:
            SinkError: The table has other columns.
        """
        wanted = pa.schema([schema.field(name) for name in stored(self._target, schema.names)])

        def grow() -> None:
            if self._table is None:
                self._create(wanted)
            self._refresh()
            columns, required = self._columns()
            if new := added(self._target, self._kinds(columns), self._kinds(wanted), required):
                self._grow(wanted, new)

        self._attempt(grow)

    def records(self, rows: pa.Table | None) -> list[Record]:
        """Return the rows of a batch as they are committed with its state."""
        if rows is None or not rows.num_rows:
            return []
        return [(None, write_stream(last_rows(rows, self._target) if self._target.mode == "upsert" else rows))]

    def write(self, records: Sequence[Record], batch_id: int) -> None:
        """Write the rows of a batch, unless they were written before.

        Raises:
            SinkError: They cannot be written.
        """
        if not records:
            return
        rows = read_stream(records[0][1], "the rows of the last batch for a table")
        if self._table is None:
            # The rows were committed before the table was created.
            self.prepare(rows.schema)

        def commit() -> None:
            self._refresh()
            last = self._last_batch(self._queries[-1])
            if last is None or last < batch_id:
                self._commit(rows, batch_id)

        self._attempt(commit)

    def close(self) -> None:
        """Release the table. Closing again does nothing."""
        self._table = None

    def _attempt(self, attempt: Callable[[], _T]) -> _T:
        try:
            return attempts(self._target, attempt, self._overtaken)
        except KeyedError:
            raise
        except Exception as error:
            raise SinkError(f"{self._target!r}: {type(error).__name__}: {error}") from error
