"""Writing of Delta tables in the local runtime, with the package deltalake.

A commit has Delta's transaction identifier (``txn``) of the query, whose version is the id of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from keyed.base.extras import extra
from keyed.runtimes.local.table_writer import TableWriter
from keyed.runtimes.table_sinks import PREFIX, Overtaken, check_no_other, delta_kinds, stored
from keyed.sinks import DeltaSink, local_folder


class DeltaWriter(TableWriter):
    """Writes the batches of one query to a Delta table.

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
        self._options = dict(sink.storage_options) or None
        folder = local_folder(sink.path)
        self._place = sink.path if folder is None else str(folder)
        super().__init__(sink, queries, f"the Delta table {self._place!r}")

    @property
    def _overtaken(self) -> Overtaken:
        error: type[Exception] = self._delta.exceptions.CommitFailedError
        return error

    def _open(self) -> Any:
        if self._delta.DeltaTable.is_deltatable(self._place, self._options):
            return self._delta.DeltaTable(self._place, storage_options=self._options)
        folder = local_folder(self._place)
        if folder is not None:
            check_no_other(self._sink, folder)
        return None

    def _create(self, wanted: pa.Schema) -> None:
        columns = self._delta.Schema.from_arrow(wanted)
        self._table = self._delta.DeltaTable.create(self._place, columns, mode="ignore", storage_options=self._options)

    def _refresh(self) -> None:
        self._table.update_incremental()

    def _columns(self) -> tuple[pa.Schema, list[str]]:
        schema = self._table.schema()
        return pa.schema(schema), [field.name for field in schema.fields if not field.nullable]

    def _kinds(self, schema: pa.Schema) -> Mapping[str, str]:
        return delta_kinds(pa.schema(self._delta.Schema.from_arrow(schema)))

    def _grow(self, wanted: pa.Schema, new: Sequence[str]) -> None:
        fields = self._delta.Schema.from_arrow(wanted).fields
        self._table.alter.add_columns([field for field in fields if field.name in new])

    def _last_batch(self, query: str) -> int | None:
        version: int | None = self._table.transaction_version(PREFIX + query)
        return version

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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
