"""Delta tables as sinks. The local runtime writes them with the package deltalake.

A commit has Delta's transaction identifier (``txn``) of the query, whose version is the id of the batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.arguments import path_text, texts
from keyed.base.extras import extra
from keyed.base.schemas import Schema, quoted
from keyed.destinations.sink import PREFIX, BatchMark, Owner, SinkWriter, SparkSide, folder_identity, local_folder
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
    text_of,
)
from keyed.errors import DefinitionError, SessionError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


#: The settings of a session with Delta Lake, and its versions by versions of Spark.
_EXTENSIONS = "spark.sql.extensions"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_SPARK_CATALOG = "spark.sql.catalog.spark_catalog"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
#: Versions of the libraries by versions of Spark.
_VERSIONS = {"4.0": "4.4.0", "4.1": "4.4.0", "4.2": "4.4.0"}
#: The newest commits of a table among which the last one of a copy is looked for.
_COMMITS = 100
#: Errors of Spark and Delta for a path without a table.
_NO_TABLE = re.compile(r"DELTA_(?:TABLE_NOT_FOUND|PATH_DOES_NOT_EXIST|MISSING_DELTA_TABLE)|PATH_NOT_FOUND")


def _storage_options(options: Any) -> dict[str, str]:
    return texts(options, "delta_sink: storage_options")


def _delta_path(path: Any) -> str:
    return path_text(path, "delta_sink: path", "the folder or the URI of a table")


@attrs.frozen(kw_only=True, eq=False)
class DeltaSink(TableSink):
    """A Delta table. See `delta_sink`.

    Attributes:
        path: The table's folder or URI.
        storage_options: Options of the store.
    """

    path: str = attrs.field(converter=_delta_path)
    storage_options: Mapping[str, str] = attrs.field(factory=dict, converter=_storage_options)

    def __repr__(self) -> str:
        options = {"storage_options": option_names(self.storage_options)} if self.storage_options else {}
        return self._shown("delta_sink", self.path, **options)

    @property
    def place(self) -> str:
        """See `TableSink`."""
        return self.path

    @property
    def location(self) -> str:
        """The table, as the package deltalake takes it."""
        folder = local_folder(self.path)
        return self.path if folder is None else str(folder)

    @property
    def identity(self) -> Hashable:
        """See `Sink`."""
        return folder_identity(self.path)

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `Sink`."""
        return DeltaWriter(self, owner, schema)

    def check_on_spark(self, spark: SparkSide) -> None:
        """See `TableSink`."""
        if self.storage_options:
            raise DefinitionError(
                f"{self!r}: storage_options= is for the local runtime; on Spark the session's settings reach the store "
                "(spark.hadoop.fs.s3a.access.key and so on): leave it out"
            )
        session = spark.session
        if session.conf.get(DATABRICKS, None):
            return
        extensions, catalog = session.conf.get(_EXTENSIONS, None) or "", session.conf.get(_SPARK_CATALOG, None) or ""
        has_library = finds_library(self, spark, lambda: _delta_columns(session, _place_on_spark(self, spark)))
        if has_library and _DELTA_EXTENSION in extensions and catalog not in ("", "builtin"):
            return
        package = library(session, "io.delta:delta-spark_", _VERSIONS)
        raise SessionError(
            f"{self!r}: the Spark session has no Delta Lake: start it with {package}, "
            f"{_EXTENSIONS}={_DELTA_EXTENSION} and {_SPARK_CATALOG}={_DELTA_CATALOG}"
        )

    def open_on_spark(self, owner: Owner, schema: Schema, spark: SparkSide) -> SinkWriter:
        """See `Sink`."""
        return DeltaLakeTable(self, owner, schema, spark)


def delta_sink(
    path: str | os.PathLike[str],
    *,
    mode: TableMode = "append",
    key: str | Sequence[str] = (),
    deleted: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DeltaSink:
    """Write rows to a Delta table, each exactly once: a batch is a transaction with the query's id and its own.

    The local runtime needs ``keyed-streams[delta]``; Spark needs Delta Lake in the session, whose settings reach the
    store.

    Args:
        path: The table's folder or URI. A missing table is created with the output's columns.
        mode: ``"append"`` adds rows; ``"upsert"`` replaces those with the same key by the batch's last one.
        key: The columns of the key, for ``"upsert"``.
        deleted: For ``"upsert"``, a boolean column that is true in a row that deletes its key; the table does not have
            it.
        storage_options: Further options of the store, in the local runtime; their values are never shown.

    Raises:
        DefinitionError: Parameters are missing or exclude each other.
    """
    return DeltaSink(path=path, mode=mode, key=key, deleted=deleted, storage_options=storage_options)


class DeltaWriter(TableWriter):
    """Writes the batches of one query to a Delta table.

    Args:
        sink: The sink.
        owner: The query.
        schema: The declared columns of the output.

    Raises:
        ExtraNotInstalled: The package is not installed.
    """

    def __init__(self, sink: DeltaSink, owner: Owner, schema: Schema | None = None) -> None:
        with extra("delta", repr(sink)):
            import deltalake
        self._delta: Any = deltalake
        self._options = dict(sink.storage_options) or None
        self._place = sink.location
        super().__init__(sink, owner, schema, f"the Delta table {self._place!r}")

    def _overtaken(self, error: BaseException) -> str | None:
        return str(error) if isinstance(error, self._delta.exceptions.CommitFailedError) else None

    def _open(self) -> Any:
        if self._delta.DeltaTable.is_deltatable(self._place, self._options):
            return self._delta.DeltaTable(self._place, storage_options=self._options)
        folder = local_folder(self._place)
        if folder is not None:
            check_no_other(self._sink, folder)
        return None

    def _create(self, columns: pa.Schema) -> None:
        schema = self._delta.Schema.from_arrow(columns)
        self._table = self._delta.DeltaTable.create(self._place, schema, mode="ignore", storage_options=self._options)

    def _refresh(self) -> None:
        if self._table is not None:
            self._table.update_incremental()

    def _schema(self) -> tuple[pa.Schema, list[str]]:
        import pyarrow as pa

        schema = self._table.schema()
        return pa.schema(schema), [field.name for field in schema.fields if not field.nullable]

    def _kinds(self, columns: pa.Schema) -> Mapping[str, str]:
        import pyarrow as pa

        return super()._kinds(pa.schema(self._delta.Schema.from_arrow(columns)))

    def _grow(self, columns: pa.Schema, new: Sequence[str]) -> None:
        fields = self._delta.Schema.from_arrow(columns).fields
        self._table.alter.add_columns([field for field in fields if field.name in new])

    def _last_batch(self, query: str) -> int | None:
        version: int | None = self._table.transaction_version(PREFIX + query)
        return version

    def _newest_commits(self) -> Iterable[Mapping[str, Any]]:
        return list(self._table.history(_COMMITS))

    def _has_rows(self) -> bool:
        return bool(self._table.file_uris())

    def _properties(self, batch_id: int, note: Mapping[str, str]) -> Any:
        query = self._owner.query
        return self._delta.CommitProperties(
            custom_metadata=BatchMark(query, batch_id, note).properties,
            app_transactions=[self._delta.Transaction(PREFIX + query, batch_id)],
        )

    def _replace(self, rows: pa.RecordBatchReader, batch_id: int, note: Mapping[str, str]) -> None:
        options = {"mode": "overwrite", "schema_mode": "overwrite"}
        options["commit_properties"] = self._properties(batch_id, note)
        self._delta.write_deltalake(self._table, rows, **options)

    def _commit(self, rows: pa.Table, batch_id: int, note: Mapping[str, str]) -> None:
        properties, deleted = self._properties(batch_id, note), self._deleted
        if self._sink.mode == "append" or not rows.num_rows:
            # A column that another query has added is null.
            options = {"mode": "append", "schema_mode": "merge", "commit_properties": properties}
            self._delta.write_deltalake(self._table, rows, **options)
            return
        columns = {quoted(name): f"s.{quoted(name)}" for name in rows.column_names if name != deleted}
        same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self._sink.key)
        merge = self._table.merge(rows, same, source_alias="s", target_alias="t", commit_properties=properties)
        kept = None
        if deleted is not None:
            is_deleted = f"coalesce(s.{quoted(deleted)}, false)"
            merge, kept = merge.when_matched_delete(is_deleted), f"NOT {is_deleted}"
        merge.when_matched_update(columns).when_not_matched_insert(columns, predicate=kept).execute()


class DeltaLakeTable(LakeTable):
    """Writes the batches of one query to a Delta table on Spark. See `LakeTable`.

    A commit has Delta's transaction identifier (``txn``), as in the local runtime: ``keyed-<query id>`` with the id of
    the batch as version. Delta itself skips a batch whose version the table has.
    """

    @property
    def _name(self) -> str:
        return f"delta.{quoted(_place_on_spark(self._sink, self._spark))}"

    def _refresh(self) -> None:
        """Do nothing: Spark reads the newest version."""

    def _fields(self) -> Any:
        return _delta_columns(self._session, _place_on_spark(self._sink, self._spark))

    def _create(self, columns: pa.Schema) -> None:
        folder = local_folder(self._sink.path)
        if folder is not None and self._spark.is_mounted:
            check_no_other(self._sink, folder)
        self._session.sql(f"CREATE TABLE IF NOT EXISTS {self._name} ({self._stored.ddl}) USING delta")

    def _last_batch(self, query: str) -> int | None:
        from pyspark.sql import functions

        log = f"{_place_on_spark(self._sink, self._spark).rstrip('/')}/_delta_log"
        reader = self._session.read.schema("txn struct<appId: string, version: bigint>")
        transactions = reader.option("pathGlobFilter", "*.json").json(log)
        transactions = transactions.union(reader.option("pathGlobFilter", "*.checkpoint*.parquet").parquet(log))
        of_query = transactions.where(functions.col("txn.appId") == PREFIX + query)
        (row,) = of_query.agg(functions.max("txn.version").alias("last")).collect()
        last: int | None = row["last"]
        return last

    def _append(self, frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("delta").mode("append")
        if self._repeats:
            writer = writer.option("txnAppId", PREFIX + self._owner.query).option("txnVersion", batch_id)
        # A column that another query has added is null.
        writer.save(_place_on_spark(self._sink, self._spark))

    def _merge(self, view: str, batch_id: int) -> None:
        # These settings are those of the query's own session. A batch DataFrame has that of the user.
        txn = {
            "spark.databricks.delta.write.txnAppId": PREFIX + self._owner.query,
            "spark.databricks.delta.write.txnVersion": str(batch_id),
        }
        with set_for(self._session, txn if self._repeats else {}):
            self._merge_into(view)


def _place_on_spark(sink: DeltaSink, spark: SparkSide) -> str:
    """Return the path of a table as Spark takes it."""
    return sink.location if spark.is_mounted else sink.path


def _delta_columns(session: SparkSession, place: str) -> Any:
    try:
        return session.read.format("delta").load(place).schema
    except Exception as error:
        if _NO_TABLE.search(text_of(error)):
            return None
        raise


def check_no_other(sink: DeltaSink, folder: Path) -> None:
    """Check that a folder without a Delta table has no other files.

    Raises:
        SinkError: It has.
    """
    if folder.exists():
        content = sorted(folder.iterdir()) if folder.is_dir() else [folder]
        other = next((each.name for each in content if each.name != "_delta_log"), None)
        if other is not None:
            raise SinkError(f"{sink!r}: the folder holds {other}, and is no Delta table; give another")
