"""Writing of Iceberg tables in the local runtime, with the package pyiceberg.

The snapshots of a batch have the properties ``keyed-query`` and ``keyed-batch``. The same commit sets the table's
property ``keyed-<query id>`` to the id of the batch, because snapshots expire.
"""

from __future__ import annotations

import warnings
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
    iceberg_kinds,
    last_rows,
    packed,
    stored,
    unpacked,
    warn_of_overlap,
)
from keyed.sinks import IcebergSink


class IcebergWriter:
    """Writes the batches of one query to an Iceberg table. See `keyed.runtimes.table_sinks.TableWriter`.

    Args:
        sink: The sink.
        queries: Id of the query, after those of the queries that it was restored from.

    Raises:
        ExtraNotInstalled: The package is not installed.
    """

    def __init__(self, sink: IcebergSink, queries: Sequence[str]) -> None:
        with extra("iceberg", repr(sink)):
            import pyiceberg.catalog
            import pyiceberg.exceptions
            import pyiceberg.expressions
        self._iceberg: Any = pyiceberg
        self._sink = sink
        self.id = f"the Iceberg table {sink.place!r}"
        self._queries = queries
        self._catalog: Any = None
        #: The table, ``None`` before it is created.
        self._table: Any = None

    def claim(self, next_batch: int) -> None:
        def opened() -> None:
            self._catalog = self._iceberg.catalog.load_catalog(self._sink.catalog, **self._sink.options)
            if self._catalog.table_exists(self._sink.table):
                self._table = self._catalog.load_table(self._sink.table)

        self._attempt(opened)
        if self._table is None or self._last_batch(self._queries[-1]) is not None:
            return
        for query in self._queries[:-1]:
            warn_of_overlap(self._sink, query, self._last_batch(query) or 0, next_batch)

    def prepare(self, schema: pa.Schema) -> None:
        names = stored(self._sink, schema.names)
        wanted = pa.schema([schema.field(name) for name in names])

        def grow() -> None:
            if self._table is None:
                self._catalog.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
                self._table = self._catalog.create_table_if_not_exists(self._sink.table, wanted)
            self._table.refresh()
            fields = self._table.schema().fields
            required = [field.name for field in fields if field.required]
            new = added(self._sink, iceberg_kinds(self._table.schema().as_arrow()), iceberg_kinds(wanted), required)
            if new:
                with self._table.update_schema() as update:
                    update.union_by_name(wanted)

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
            self._table.refresh()
            last = self._last_batch(self._queries[-1])
            if last is None or last < batch_id:
                self._commit(rows, batch_id)

        self._attempt(commit)

    def close(self) -> None:
        catalog, self._catalog, self._table = self._catalog, None, None
        if catalog is not None:
            catalog.close()

    def _commit(self, rows: pa.Table, batch_id: int) -> None:
        sink, query = self._sink, self._queries[-1]
        properties = {"keyed-query": query, "keyed-batch": str(batch_id)}
        with self._table.transaction() as transaction, warnings.catch_warnings():
            # All keys of a batch may be new.
            warnings.filterwarnings("ignore", "Delete operation did not match any records")
            if sink.mode == "append":
                transaction.append(rows, snapshot_properties=properties)
            else:
                keys = rows.select([*sink.key])
                among = self._among(keys)
                if sink.deleted is not None:
                    kept = [gone is not True for gone in rows.column(sink.deleted).to_pylist()]
                    rows = rows.filter(pa.array(kept, pa.bool_())).drop_columns([sink.deleted])
                if len(sink.key) > 1:
                    rows = self._with_others(rows, keys, among)
                transaction.overwrite(rows, among, snapshot_properties=properties)
            transaction.set_properties({PREFIX + query: str(batch_id)})

    def _among(self, keys: pa.Table) -> Any:
        """Return a filter of all rows whose columns of the key have values of these keys, one by one."""
        filters = [
            self._iceberg.expressions.In(name, keys.column(name).unique().to_pylist()) for name in self._sink.key
        ]
        return filters[0] if len(filters) == 1 else self._iceberg.expressions.And(*filters)

    def _with_others(self, rows: pa.Table, keys: pa.Table, among: Any) -> pa.Table:
        """Return rows with those of the table that a filter finds, and that have none of the keys."""
        found = self._table.scan(row_filter=among).to_arrow()
        names = [*self._sink.key]
        numbered = found.select(names).append_column("", pa.array(range(found.num_rows), pa.int64()))
        typed = keys.cast(found.select(names).schema)
        others = numbered.join(typed, names, join_type="left anti", use_threads=False).column("")
        return pa.concat_tables([found.take(others), rows.cast(_within(found.schema, rows))], promote_options="default")

    def _last_batch(self, query: str) -> int | None:
        """Return the last batch of a query in the table."""
        found = [
            int(snapshot.summary.additional_properties["keyed-batch"])
            for snapshot in self._table.snapshots()
            if snapshot.summary is not None and snapshot.summary.additional_properties.get("keyed-query") == query
        ]
        kept = self._table.properties.get(PREFIX + query)
        return max([*found, *([] if kept is None else [int(kept)])], default=None)

    def _attempt(self, attempt: Any) -> Any:
        errors = self._iceberg.exceptions
        try:
            return attempts(self._sink, attempt, (errors.CommitFailedException, errors.ValidationException))
        except KeyedError:
            raise
        except Exception as error:
            raise SinkError(f"{self._sink!r}: {type(error).__name__}: {error}") from error


def _within(schema: pa.Schema, rows: pa.Table) -> pa.Schema:
    """Return the columns of rows with the types that they have in a schema."""
    return pa.schema([schema.field(name) for name in rows.column_names])
