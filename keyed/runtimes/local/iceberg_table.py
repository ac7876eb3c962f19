"""Writing of Iceberg tables in the local runtime, with the package pyiceberg.

The snapshots of a batch have the properties ``keyed-query`` and ``keyed-batch``. The same commit sets the table's
property ``keyed-<query id>`` to the id of the batch, because snapshots expire.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from keyed.base.extras import extra
from keyed.runtimes.local.table_writer import TableWriter
from keyed.runtimes.table_sinks import PREFIX, Overtaken, iceberg_kinds
from keyed.sinks import IcebergSink


class IcebergWriter(TableWriter):
    """Writes the batches of one query to an Iceberg table.

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
        self._catalog: Any = None
        super().__init__(sink, queries, f"the Iceberg table {sink.place!r}")

    @property
    def _overtaken(self) -> Overtaken:
        errors = self._iceberg.exceptions
        return errors.CommitFailedException, errors.ValidationException

    def _open(self) -> Any:
        self._catalog = self._iceberg.catalog.load_catalog(self._sink.catalog, **self._sink.options)
        return self._catalog.load_table(self._sink.table) if self._catalog.table_exists(self._sink.table) else None

    def _create(self, wanted: pa.Schema) -> None:
        self._catalog.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
        self._table = self._catalog.create_table_if_not_exists(self._sink.table, wanted)

    def _refresh(self) -> None:
        self._table.refresh()

    def _columns(self) -> tuple[pa.Schema, list[str]]:
        schema = self._table.schema()
        return schema.as_arrow(), [field.name for field in schema.fields if field.required]

    def _kinds(self, schema: pa.Schema) -> Mapping[str, str]:
        return iceberg_kinds(schema)

    def _grow(self, wanted: pa.Schema, new: Sequence[str]) -> None:
        with self._table.update_schema() as update:
            update.union_by_name(wanted)

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


def _within(schema: pa.Schema, rows: pa.Table) -> pa.Schema:
    """Return the columns of rows with the types that they have in a schema."""
    return pa.schema([schema.field(name) for name in rows.column_names])
