"""Writing of Delta tables in the local runtime, with the package deltalake.

A commit has Delta's transaction identifier (``txn``) of the query, whose version is the id of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from keyed.errors import KeyedError, SinkError
from keyed.extras import extra
from keyed.recovery.outbox import Record
from keyed.runtimes.table_sinks import (
    PREFIX,
    added,
    attempts,
    check_no_other,
    delta_kinds,
    last_rows,
    packed,
    stored,
    unpacked,
    warn_of_overlap,
)
from keyed.sinks import DeltaSink, local_folder


class DeltaWriter:
    """Writes the batches of one query to a Delta table. See `keyed.runtimes.table_sinks.TableWriter`.

    Args:
        sink: The sink.
        queries: Id of the query, after those of the queries that it was restored from.

    Raises:
        ExtraNotInstalled: The package is not installed.
    """

    def __init__(self, sink: DeltaSink, queries: Sequence[str]) -> None:
        with extra("delta", repr(sink)):
            import deltalake
        self._delta: Any = deltalake
        self._sink = sink
        folder = local_folder(sink.path)
        self._place = sink.path if folder is None else str(folder)
        self.id = f"the Delta table {self._place!r}"
        self._queries = queries
        #: The table, ``None`` before it is created.
        self._table: Any = None

    def claim(self, next_batch: int) -> None:
        self._table = self._opened()
        if self._table is None or self._version(self._queries[-1]) is not None:
            return
        for query in self._queries[:-1]:
            warn_of_overlap(self._sink, query, self._version(query) or 0, next_batch)

    def prepare(self, schema: pa.Schema) -> None:
        delta = self._delta
        names = stored(self._sink, schema.names)
        wanted = delta.Schema.from_arrow(pa.schema([schema.field(name) for name in names]))

        def grow() -> None:
            if self._table is None:
                self._table = delta.DeltaTable.create(
                    self._place, wanted, mode="ignore", storage_options=dict(self._sink.storage_options) or None
                )
            self._table.update_incremental()
            fields = self._table.schema().fields
            required = [field.name for field in fields if not field.nullable]
            new = added(
                self._sink, delta_kinds(pa.schema(self._table.schema())), delta_kinds(pa.schema(wanted)), required
            )
            if new:
                self._table.alter.add_columns([field for field in wanted.fields if field.name in new])

        self._attempt(grow)

    def records(self, rows: pa.Table | None) -> list[Record]:
        if rows is not None and rows.num_rows and self._sink.mode == "upsert":
            rows = last_rows(rows, self._sink)
        return packed(rows)

    def write(self, records: Sequence[Record], batch_id: int) -> None:
        rows = unpacked(records)
        if rows is None:
            return
        if self._table is None:
            # The rows were committed before the table was created.
            self.prepare(rows.schema)

        def commit() -> None:
            self._table.update_incremental()
            last = self._version(self._queries[-1])
            if last is None or last < batch_id:
                self._commit(rows, batch_id)

        self._attempt(commit)

    def close(self) -> None:
        self._table = None

    def _commit(self, rows: pa.Table, batch_id: int) -> None:
        delta, sink, query = self._delta, self._sink, self._queries[-1]
        properties = delta.CommitProperties(
            custom_metadata={"keyed-query": query, "keyed-batch": str(batch_id)},
            app_transactions=[delta.Transaction(PREFIX + query, batch_id)],
        )
        if sink.mode == "append":
            # A column that another query has added is null.
            delta.write_deltalake(self._table, rows, mode="append", schema_mode="merge", commit_properties=properties)
            return
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in stored(sink, rows.column_names)}
        same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in sink.key)
        merge = self._table.merge(rows, same, source_alias="s", target_alias="t", commit_properties=properties)
        kept = None
        if sink.deleted is not None:
            gone = f"coalesce(s.{_quoted(sink.deleted)}, false)"
            merge, kept = merge.when_matched_delete(gone), f"NOT {gone}"
        merge.when_matched_update(columns).when_not_matched_insert(columns, predicate=kept).execute()

    def _opened(self) -> Any:
        options = dict(self._sink.storage_options) or None

        def opened() -> Any:
            if self._delta.DeltaTable.is_deltatable(self._place, options):
                return self._delta.DeltaTable(self._place, storage_options=options)
            folder = local_folder(self._place)
            if folder is not None:
                check_no_other(self._sink, folder)
            return None

        return self._attempt(opened)

    def _version(self, query: str) -> int | None:
        """Return the last batch of a query in the table."""
        version: int | None = self._table.transaction_version(PREFIX + query)
        return version

    def _attempt(self, attempt: Any) -> Any:
        try:
            return attempts(self._sink, attempt, self._delta.exceptions.CommitFailedError)
        except KeyedError:
            raise
        except Exception as error:
            raise SinkError(f"{self._sink!r}: {type(error).__name__}: {error}") from error


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
