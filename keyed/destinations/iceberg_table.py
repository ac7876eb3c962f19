"""Iceberg tables as sinks. The local runtime writes them with the package pyiceberg.

The snapshots of a batch have the properties ``keyed-query`` and ``keyed-batch``. The same commit sets the table's
property ``keyed-<query id>`` to the id of the batch, because snapshots expire.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.arguments import shown, text, texts
from keyed.base.extras import extra
from keyed.base.schemas import Schema, quoted
from keyed.destinations.sink import PREFIX, BatchMark, Owner, SinkWriter, SparkSide
from keyed.destinations.table_sink import (
    DATABRICKS,
    LakeTable,
    TableMode,
    TableSink,
    TableWriter,
    finds_library,
    library,
    option_names,
    set_for,
)
from keyed.errors import DefinitionError, SessionError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


#: The class of Iceberg's catalogs, and its versions by versions of Spark.
_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_VERSIONS = {"4.0": "1.11.0", "4.1": "1.12.0"}
#: Iceberg has no smaller integers than those of 32 bits.
_SMALL = re.compile(r"\bint(?:8|16)\b")


def _catalog_options(options: Any) -> dict[str, str]:
    return texts(options, "iceberg_sink: options")


@attrs.frozen(kw_only=True, eq=False)
class IcebergSink(TableSink):
    """An Iceberg table. See `iceberg_sink`.

    Attributes:
        table: The table's name with its namespace.
        catalog: Name of the catalog.
        options: Properties of the catalog.
    """

    table: str
    catalog: str
    options: Mapping[str, str] = attrs.field(factory=dict, converter=_catalog_options)

    def __repr__(self) -> str:
        options = {"options": option_names(self.options)} if self.options else {}
        return self._shown("iceberg_sink", self.table, catalog=shown(self.catalog), **options)

    def __attrs_post_init__(self) -> None:
        for name in ("table", "catalog"):
            text(getattr(self, name), f"iceberg_sink: {name}", f"the name of a {name}")
        if not all(self.table.split(".")) or "." not in self.table:
            raise DefinitionError(
                f"iceberg_sink: table={self.table!r}, catalog={self.catalog!r}: give the name of a table with its "
                "namespace, such as 'sales.counts', and the name of a catalog"
            )
        super().__attrs_post_init__()

    @property
    def place(self) -> str:
        """See `TableSink`."""
        return f"{self.catalog}.{self.table}"

    def kinds(self, schema: pa.Schema) -> dict[str, str]:
        """See `TableSink`."""
        return {name: _SMALL.sub("int32", kind) for name, kind in super().kinds(schema).items()}

    @property
    def identity(self) -> Hashable:
        """See `Sink`."""
        return "iceberg", self.catalog, self.table

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `Sink`."""
        return IcebergWriter(self, owner, schema)

    def check_on_spark(self, spark: SparkSide) -> None:
        """See `TableSink`."""
        if self.options:
            raise DefinitionError(
                f"{self!r}: options= is for the local runtime; on Spark the catalog is one of the session's: set "
                f"spark.sql.catalog.{self.catalog} and its properties, spark.sql.catalog.{self.catalog}.type and so "
                "on, and leave it out"
            )
        session, name = spark.session, f"spark.sql.catalog.{self.catalog}"
        has_catalog = session.conf.get(name, None) or session.conf.get(DATABRICKS, None)
        # Spark loads a catalog when it is used.
        if has_catalog and finds_library(self, spark, lambda: session.catalog.tableExists(_name_on_spark(self))):
            return
        package = library(session, "org.apache.iceberg:iceberg-spark-runtime-", _VERSIONS)
        raise SessionError(
            f"{self!r}: the Spark session has no Iceberg catalog {self.catalog!r}: start it with {package}, "
            f"{name}={_CATALOG} and the catalog's properties: {name}.type, {name}.uri, {name}.warehouse and so on"
        )

    def open_on_spark(self, owner: Owner, schema: Schema, spark: SparkSide) -> SinkWriter:
        """See `Sink`."""
        return IcebergLakeTable(self, owner, schema, spark)


def iceberg_sink(
    table: str,
    *,
    catalog: str = "default",
    mode: TableMode = "append",
    key: str | Sequence[str] = (),
    deleted: str | None = None,
    options: Mapping[str, str] | None = None,
) -> IcebergSink:
    """Write rows to an Iceberg table, each exactly once: a batch is a snapshot with the query's id and its own.

    The local runtime needs ``keyed-streams[iceberg]``; Spark needs a catalog of Iceberg in the session.

    Args:
        table: The table's name with its namespace, such as ``"sales.counts"``; created if missing.
        catalog: Name of the catalog: of pyiceberg, and on Spark of the session.
        mode: As of ``delta_sink``.
        key: As of ``delta_sink``.
        deleted: As of ``delta_sink``.
        options: Further properties of the catalog, in the local runtime; their values are never shown.

    Raises:
        DefinitionError: Parameters are missing or exclude each other.
    """
    return IcebergSink(table=table, catalog=catalog, mode=mode, key=key, deleted=deleted, options=options)


class IcebergWriter(TableWriter):
    """Writes the batches of one query to an Iceberg table.

    Args:
        sink: The sink.
        owner: The query.
        schema: The declared columns of the output.

    Raises:
        ExtraNotInstalled: The package is not installed.
    """

    def __init__(self, sink: IcebergSink, owner: Owner, schema: Schema | None = None) -> None:
        with extra("iceberg", repr(sink)):
            import pyiceberg.catalog
            import pyiceberg.exceptions
            import pyiceberg.expressions
        self._iceberg: Any = pyiceberg
        self._catalog: Any = None
        super().__init__(sink, owner, schema, f"the Iceberg table {sink.place!r}")

    def _overtaken(self, error: BaseException) -> str | None:
        errors = self._iceberg.exceptions
        return str(error) if isinstance(error, errors.CommitFailedException | errors.ValidationException) else None

    def _open(self) -> Any:
        # All keys of a batch may be new. Copies run in threads, and filters are those of the process: they stay.
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        self._catalog = self._iceberg.catalog.load_catalog(self._sink.catalog, **self._sink.options)
        return self._catalog.load_table(self._sink.table) if self._catalog.table_exists(self._sink.table) else None

    def _create(self, columns: pa.Schema) -> None:
        self._catalog.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
        self._table = self._catalog.create_table_if_not_exists(self._sink.table, columns)

    def _refresh(self) -> None:
        if self._table is not None:
            self._table.refresh()

    def _schema(self) -> tuple[pa.Schema, list[str]]:
        schema = self._table.schema()
        return schema.as_arrow(), [field.name for field in schema.fields if field.required]

    def _grow(self, columns: pa.Schema, new: Sequence[str]) -> None:
        with self._table.update_schema() as update:
            update.union_by_name(columns)

    def close(self) -> None:
        """See `SinkWriter`."""
        catalog, self._catalog, self._table = self._catalog, None, None
        if catalog is not None:
            catalog.close()

    @contextmanager
    def _transaction(self, batch_id: int, note: Mapping[str, str]) -> Iterator[tuple[Any, dict[str, str]]]:
        """Yield a transaction with the id of a batch, and the properties of its snapshots."""
        query = self._owner.query
        with self._table.transaction() as transaction:
            yield transaction, BatchMark(query, batch_id, note).properties
            transaction.set_properties({PREFIX + query: str(batch_id)})

    def _replace(self, rows: pa.RecordBatchReader, batch_id: int, note: Mapping[str, str]) -> None:
        table = rows.read_all()
        self._grow(table.schema, ())
        with self._transaction(batch_id, note) as (transaction, properties):
            transaction.overwrite(table, snapshot_properties=properties)

    def _newest_commits(self) -> Iterable[Mapping[str, Any]]:
        snapshots = [each.summary for each in self._table.snapshots() if each.summary is not None]
        return [each.additional_properties for each in reversed(snapshots)]

    def _has_rows(self) -> bool:
        return self._table.current_snapshot() is not None

    def _commit(self, rows: pa.Table, batch_id: int, note: Mapping[str, str]) -> None:
        import pyarrow as pa

        sink = self._sink
        with self._transaction(batch_id, note) as (transaction, properties):
            if sink.mode == "append" or not rows.num_rows:
                transaction.append(rows, snapshot_properties=properties)
            else:
                keys = rows.select([*sink.key])
                among = self._filter_of(keys)
                if self._deleted is not None:
                    kept = [deleted is not True for deleted in rows.column(self._deleted).to_pylist()]
                    rows = rows.filter(pa.array(kept, pa.bool_())).drop_columns([self._deleted])
                if len(sink.key) > 1:
                    rows = self._with_others(rows, keys, among)
                transaction.overwrite(rows, among, snapshot_properties=properties)

    def _filter_of(self, keys: pa.Table) -> Any:
        """Return a filter of all rows whose columns of the key have values of these keys, one by one."""
        filters = [
            self._iceberg.expressions.In(name, keys.column(name).unique().to_pylist()) for name in self._sink.key
        ]
        return filters[0] if len(filters) == 1 else self._iceberg.expressions.And(*filters)

    def _with_others(self, rows: pa.Table, keys: pa.Table, among: Any) -> pa.Table:
        """Return rows with those of the table that a filter finds, and that have none of the keys."""
        import pyarrow as pa

        hits = self._table.scan(row_filter=among).to_arrow()
        names = [*self._sink.key]
        numbered = hits.select(names).append_column("", pa.array(range(hits.num_rows), pa.int64()))
        typed = keys.cast(hits.select(names).schema)
        others = numbered.join(typed, names, join_type="left anti", use_threads=False).column("")
        types = pa.schema([hits.schema.field(name) for name in rows.column_names])
        return pa.concat_tables([hits.take(others), rows.cast(types)], promote_options="default")

    def _last_batch(self, query: str) -> int | None:
        """Return the last batch of a query in the table."""
        batches = [mark.batch for mark in BatchMark.of_commits(query, self._newest_commits())]
        kept = self._table.properties.get(PREFIX + query)
        return max(batches if kept is None else [*batches, int(kept)], default=None)


class IcebergLakeTable(LakeTable):
    """Writes the batches of one query to an Iceberg table on Spark. See `LakeTable`.

    The snapshots of a batch have the properties ``keyed-query`` and ``keyed-batch``, which are looked up before a batch
    is written. Spark cannot change a table's properties in the commit of rows. So the property ``keyed-<query id>``,
    which outlives the snapshots, is set in a commit of its own right afterwards.
    """

    @property
    def _name(self) -> str:
        return _name_on_spark(self._sink)

    def _refresh(self) -> None:
        # Iceberg's catalogs keep tables that were read.
        if self._session.catalog.tableExists(self._name):
            self._session.sql(f"REFRESH TABLE {self._name}")

    def _fields(self) -> Any:
        return self._session.table(self._name).schema if self._session.catalog.tableExists(self._name) else None

    def _create(self, columns: pa.Schema) -> None:
        namespace = self._name.removesuffix("." + quoted(self._sink.table.rpartition(".")[2]))
        self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        # Iceberg has no smaller integers.
        schema = Schema(tuple((name, _widen_integers(type_)) for name, type_ in self._stored.columns))
        self._session.sql(f"CREATE TABLE IF NOT EXISTS {self._name} ({schema.ddl}) USING iceberg")

    def _last_batch(self, query: str) -> int | None:
        from pyspark.sql import functions

        session, name = self._session, self._name
        properties = {row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        if "format" not in properties and "current-snapshot-id" not in properties:
            raise SinkError(f"{self._sink!r}: {self._sink.place} is no Iceberg table; give another")
        kept = properties.get(PREFIX + query)
        summary = functions.col("summary")
        of_query = session.table(f"{name}.snapshots").where(summary["keyed-query"] == query)
        batches = [int(row[0]) for row in of_query.select(summary["keyed-batch"]).collect()]
        return max([*batches, *([] if kept is None else [int(kept)])], default=None)

    def _append(self, frame: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions

        def append() -> None:
            own = {*self._stored.names}
            # A column that another query has added is null.
            columns = [
                functions.col(quoted(field.name))
                if field.name in own
                else functions.lit(None).cast(field.dataType).alias(field.name)
                for field in self._session.table(self._name).schema
            ]
            writer = frame.select(*columns).writeTo(self._name)
            for key, value in self._marks(batch_id).items():
                writer = writer.option(f"snapshot-property.{key}", value)
            writer.append()

        self._once(batch_id, append)

    def _merge(self, view: str, batch_id: int) -> None:
        marks = {f"spark.sql.iceberg.snapshot-property.{key}": value for key, value in self._marks(batch_id).items()}

        def merge() -> None:
            # The session's settings: see `DeltaLakeTable`.
            with set_for(self._session, marks if self._repeats else {}):
                self._merge_into(view)

        self._once(batch_id, merge)

    def _once(self, batch_id: int, write: Callable[[], None]) -> None:
        """Write a batch unless the table has it."""
        self._refresh()
        query = self._owner.query
        if not self._repeats:
            write()
            return
        last = self._last_batch(query)
        if last is None or last < batch_id:
            write()
        if last is None or last <= batch_id:
            self._session.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{PREFIX}{query}' = '{batch_id}')")

    def _marks(self, batch_id: int) -> dict[str, str]:
        return BatchMark(self._owner.query, batch_id).properties


def _name_on_spark(sink: IcebergSink) -> str:
    """Return the name of a table in SQL."""
    return ".".join(map(quoted, [sink.catalog, *sink.table.split(".")]))


def _widen_integers(type_: str) -> str:
    return re.sub(r"(?<![\w`])(?:tinyint|smallint|byte|short)(?![\w`:])", "int", type_, flags=re.IGNORECASE)
