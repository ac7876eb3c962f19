"""Writing of Delta and Iceberg tables on Spark, with the session's own libraries.

A Delta commit has Delta's transaction identifier (``txn``), as in the local runtime: ``keyed-<query id>`` with the id
of the batch as version. Delta itself skips a batch whose version the table has.

The snapshots of an Iceberg batch have the properties ``keyed-query`` and ``keyed-batch``, which are looked up before a
batch is written. Spark cannot change a table's properties in the commit of rows. So the property ``keyed-<query id>``,
which outlives the snapshots, is set in a commit of its own right afterwards.

A batch that is skipped is computed all the same, because the operators' state is part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from keyed.arrow.write import arrow_type
from keyed.base.column_types import of_spark, quoted
from keyed.base.ids import random_id
from keyed.base.schemas import Schema
from keyed.errors import DefinitionError, KeyedError, OutputDefinitionError, QueryFailed, SessionError, SinkError
from keyed.job.graph import BoundOutput
from keyed.runtimes.spark.query.failures import essence, is_gone, translated
from keyed.runtimes.spark.session.session_check import is_remote
from keyed.runtimes.spark.session.spark_session import shares_files
from keyed.runtimes.table_sinks import (
    PREFIX,
    added,
    attempts,
    check_no_other,
    declared_columns,
    delta_kinds,
    iceberg_kinds,
    null_key,
    stored,
    warn_of_overlap,
)
from keyed.sinks import DeltaSink, IcebergSink, TableSink, local_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
_EXTENSIONS = "spark.sql.extensions"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_SPARK_CATALOG = "spark.sql.catalog.spark_catalog"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
#: A setting of the clusters of Databricks, which have Delta without any setting.
_DATABRICKS = "spark.databricks.clusterUsageTags.sparkVersion"
#: Versions of the libraries by versions of Spark.
_DELTA = {"4.0": "4.4.0", "4.1": "4.4.0", "4.2": "4.4.0"}
_ICEBERG = {"4.0": "1.11.0", "4.1": "1.12.0"}
#: Errors of a commit that another one has overtaken.
_OVERTAKEN = re.compile(
    r"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|io\.delta\.exceptions\.\w*(?:Concurrent|Changed)"
    r"|org\.apache\.iceberg\.exceptions\.(?:CommitFailedException|ValidationException|AlreadyExistsException)"
    r"|TABLE_OR_VIEW_ALREADY_EXISTS|FIELD_ALREADY_EXISTS|DELTA_TABLE_ALREADY_EXISTS|SQLITE_BUSY"
)
#: Errors of Spark and Delta for a path without a table.
_NO_TABLE = re.compile(r"DELTA_(?:TABLE_NOT_FOUND|PATH_DOES_NOT_EXIST|MISSING_DELTA_TABLE)|PATH_NOT_FOUND")
#: Errors of a session without the libraries.
_NO_LIBRARY = re.compile(
    r"DATA_SOURCE_NOT_FOUND|CLASS_NOT_FOUND|ClassNotFound|NoClassDefFound|Cannot find catalog plugin class"
)
#: Streams run without it, and it saves tasks for shuffled rows.
_ADAPTIVE = {"spark.sql.adaptive.enabled": "true"}
#: Name of a column of numbered rows.
_ORDER = "__keyed_order"


class _OvertakenError(Exception):
    """Another writer of the table was first."""


def check_table(session: SparkSession, bound: BoundOutput) -> None:
    """Check that a session can write a table, before anything is created.

    Raises:
        DefinitionError: An option is for the local runtime, or the columns of the output are not declared.
        SinkError: The sink names a column that the output does not have, or has with another type.
        SessionError: The session lacks the libraries of the table's format, or settings for them.
    """
    sink = bound.sink
    assert isinstance(sink, TableSink)
    if is_remote(session):
        raise DefinitionError(
            f"{sink!r}: over Spark Connect a table has no writer that repeats no batch; run the query in Spark's own "
            "program, or write output.df with the table's own sink"
        )
    declared_columns(bound)
    if isinstance(sink, DeltaSink):
        if sink.storage_options:
            raise DefinitionError(
                f"{sink!r}: storage_options= is for the local runtime; on Spark the session's settings reach the store "
                "(spark.hadoop.fs.s3a.access.key and so on): leave it out"
            )
        _check_delta(session, sink)
    elif isinstance(sink, IcebergSink):
        if sink.options:
            raise DefinitionError(
                f"{sink!r}: options= is for the local runtime; on Spark the catalog is one of the session's: set "
                f"spark.sql.catalog.{sink.catalog} and its properties, spark.sql.catalog.{sink.catalog}.type and so "
                "on, and leave it out"
            )
        _check_iceberg(session, sink)


def _check_delta(session: SparkSession, sink: DeltaSink) -> None:
    if session.conf.get(_DATABRICKS, None):
        return
    extensions, catalog = session.conf.get(_EXTENSIONS, None) or "", session.conf.get(_SPARK_CATALOG, None) or ""
    has_library = True
    try:
        _delta_columns(session, _delta_place(session, sink))
    except Exception as error:
        has_library = not _NO_LIBRARY.search(_text(error))
        if has_library:
            raise _failed(sink, error) from error
    if has_library and _DELTA_EXTENSION in extensions and catalog not in ("", "builtin"):
        return
    library = _library(session, "io.delta:delta-spark_", _DELTA)
    raise SessionError(
        f"{sink!r}: the Spark session has no Delta Lake: start it with {library}, "
        f"{_EXTENSIONS}={_DELTA_EXTENSION} and {_SPARK_CATALOG}={_DELTA_CATALOG}"
    )


def _check_iceberg(session: SparkSession, sink: IcebergSink) -> None:
    name = f"spark.sql.catalog.{sink.catalog}"
    if session.conf.get(name, None) or session.conf.get(_DATABRICKS, None):
        try:
            # Spark loads a catalog when it is used.
            session.catalog.tableExists(_iceberg_name(sink))
        except Exception as error:
            if not _NO_LIBRARY.search(_text(error)):
                raise _failed(sink, error) from error
        else:
            return
    library = _library(session, "org.apache.iceberg:iceberg-spark-runtime-", _ICEBERG)
    raise SessionError(
        f"{sink!r}: the Spark session has no Iceberg catalog {sink.catalog!r}: start it with {library}, "
        f"{name}={_ICEBERG_CATALOG} and the catalog's properties: {name}.type, {name}.uri, {name}.warehouse and so on"
    )


def _library(session: SparkSession, name: str, versions: Mapping[str, str]) -> str:
    """Return the setting for a library, for messages."""
    spark = ".".join(session.version.split(".")[:2])
    if spark in versions:
        return f"spark.jars.packages={name}{spark}_2.13:{versions[spark]}"
    newest = max(versions)
    return (
        f"spark.jars.packages={name}{spark}_2.13:<version> (none was published for Spark {spark} when this version of "
        f"keyed was: Spark {newest} has {name}{newest}_2.13:{versions[newest]})"
    )


class LakeTable:
    """Base of the writers of one query's batches to a table.

    Args:
        sink: The sink.
        queries: Id of the query, after those of the queries that it was restored from.
        schema: The output's columns.
        repeats: True if a batch may come again.
    """

    def __init__(self, sink: TableSink, queries: Sequence[str], schema: Schema, *, repeats: bool) -> None:
        self._sink: Any = sink
        self._queries = queries
        self._repeats = repeats
        names = stored(sink, schema.names)
        self._columns = Schema(tuple((name, type_) for name, type_ in schema.columns if name in names))

    def claim(self, session: SparkSession, next_batch: int) -> None:
        """Compare the table with the output, create it, or add the output's new columns to it.

        Args:
            session: The session.
            next_batch: Id of the batch that the query writes next.

        Raises:
            SinkError: The table has other columns, or cannot be read or created.
        """

        def claimed() -> None:
            self._refresh(session)
            if self._there(session) is None:
                self._create(session)
            elif len(self._queries) > 1 and self._last_batch(session, self._queries[-1]) is None:
                for query in self._queries[:-1]:
                    last = self._last_batch(session, query)
                    warn_of_overlap(self._sink, query, -1 if last is None else last, next_batch)
            there = self._there(session)
            assert there is not None
            required = [field.name for field in there if not field.nullable]
            now = self._kinds((field.name, of_spark(field.dataType)) for field in there)
            new = added(self._sink, now, self._kinds(self._columns.columns), required)
            if new:
                columns = Schema(tuple(each for each in self._columns.columns if each[0] in new))
                session.sql(f"ALTER TABLE {self._name(session)} ADD COLUMNS ({columns.ddl})")

        self._attempt(claimed)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch, unless they were written before.

        Args:
            frame: The rows, which are cached: they are read more than once.
            batch_id: Its id.

        Raises:
            SinkError: They cannot be written.
        """
        session, sink = frame.sparkSession, self._sink
        with _set(session, _ADAPTIVE if self._repeats else {}):
            if sink.mode == "append":
                # All tasks have to run, also if the batch was written before.
                if frame.count():
                    self._attempt(lambda: self._append(frame, batch_id))
                return
            rows = _last_rows(frame, sink)
            if rows is not None:
                view = f"keyed_{random_id().replace('-', '')}"
                rows.createOrReplaceTempView(view)
                try:
                    self._attempt(lambda: self._merge(session, view, batch_id))
                finally:
                    session.catalog.dropTempView(view)

    def _merge_into(self, session: SparkSession, view: str) -> None:
        sink, names = self._sink, [quoted(name) for name in self._columns.names]
        same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in sink.key)
        gone = "false" if sink.deleted is None else f"coalesce(s.{quoted(sink.deleted)}, false)"
        deletes = "" if sink.deleted is None else f"WHEN MATCHED AND {gone} THEN DELETE "
        updates = ", ".join(f"t.{name} = s.{name}" for name in names)
        inserts = f"({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
        # Names are quoted, and there are no values.
        session.sql(
            f"MERGE INTO {self._name(session)} t USING {view} s ON {same} {deletes}WHEN MATCHED THEN UPDATE SET "
            f"{updates} WHEN NOT MATCHED AND NOT {gone} THEN INSERT {inserts}"
        )

    def _attempt(self, attempt: Callable[[], _T]) -> _T:
        def tried() -> _T:
            try:
                return attempt()
            except Exception as error:
                if _OVERTAKEN.search(_text(error)):
                    raise _OvertakenError(essence(error, str(error))) from error
                raise

        try:
            return attempts(self._sink, tried, _OvertakenError)
        except KeyedError:
            raise
        except Exception as error:
            raise _failed(self._sink, error) from error

    def _kinds(self, columns: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return columns with the names of their types, as the local runtime has them."""
        found: dict[str, str] = {}
        for name, type_ in columns:
            try:
                found |= self._kinds_of(pa.schema([(name, arrow_type(type_))]))
            except OutputDefinitionError:
                found[name] = type_
        return found

    def _kinds_of(self, schema: pa.Schema) -> Mapping[str, str]:
        raise NotImplementedError

    def _name(self, session: SparkSession) -> str:
        """Return the name of the table in SQL."""
        raise NotImplementedError

    def _refresh(self, session: SparkSession) -> None:
        """Forget what this program has read of the table."""

    def _there(self, session: SparkSession) -> Any:
        """Return the table's columns; ``None`` if there is no table."""
        raise NotImplementedError

    def _create(self, session: SparkSession) -> None:
        raise NotImplementedError

    def _last_batch(self, session: SparkSession, query: str) -> int | None:
        """Return the last batch of a query in the table."""
        raise NotImplementedError

    def _append(self, frame: DataFrame, batch_id: int) -> None:
        raise NotImplementedError

    def _merge(self, session: SparkSession, view: str, batch_id: int) -> None:
        raise NotImplementedError


class DeltaLakeTable(LakeTable):
    """Writes the batches of one query to a Delta table. See `LakeTable`."""

    def _kinds_of(self, schema: pa.Schema) -> Mapping[str, str]:
        return delta_kinds(schema)

    def _name(self, session: SparkSession) -> str:
        return f"delta.{quoted(_delta_place(session, self._sink))}"

    def _there(self, session: SparkSession) -> Any:
        return _delta_columns(session, _delta_place(session, self._sink))

    def _create(self, session: SparkSession) -> None:
        folder = local_folder(self._sink.path)
        if folder is not None and shares_files(session):
            check_no_other(self._sink, folder)
        session.sql(f"CREATE TABLE IF NOT EXISTS {self._name(session)} ({self._columns.ddl}) USING delta")

    def _last_batch(self, session: SparkSession, query: str) -> int | None:
        from pyspark.sql import functions

        log = f"{_delta_place(session, self._sink).rstrip('/')}/_delta_log"
        reader = session.read.schema("txn struct<appId: string, version: bigint>")
        found = reader.option("pathGlobFilter", "*.json").json(log)
        found = found.union(reader.option("pathGlobFilter", "*.checkpoint*.parquet").parquet(log))
        of_query = found.where(functions.col("txn.appId") == PREFIX + query)
        (row,) = of_query.agg(functions.max("txn.version").alias("last")).collect()
        last: int | None = row["last"]
        return last

    def _append(self, frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("delta").mode("append")
        if self._repeats:
            writer = writer.option("txnAppId", PREFIX + self._queries[-1]).option("txnVersion", batch_id)
        # A column that another query has added is null.
        writer.save(_delta_place(frame.sparkSession, self._sink))

    def _merge(self, session: SparkSession, view: str, batch_id: int) -> None:
        # These settings are those of the query's own session. A batch DataFrame has that of the user.
        txn = {
            "spark.databricks.delta.write.txnAppId": PREFIX + self._queries[-1],
            "spark.databricks.delta.write.txnVersion": str(batch_id),
        }
        with _set(session, txn if self._repeats else {}):
            self._merge_into(session, view)


class IcebergLakeTable(LakeTable):
    """Writes the batches of one query to an Iceberg table. See `LakeTable`."""

    def _kinds_of(self, schema: pa.Schema) -> Mapping[str, str]:
        return iceberg_kinds(schema)

    def _name(self, session: SparkSession) -> str:
        return _iceberg_name(self._sink)

    def _refresh(self, session: SparkSession) -> None:
        # Iceberg's catalogs keep tables that were read.
        if session.catalog.tableExists(self._name(session)):
            session.sql(f"REFRESH TABLE {self._name(session)}")

    def _there(self, session: SparkSession) -> Any:
        name = self._name(session)
        return session.table(name).schema if session.catalog.tableExists(name) else None

    def _create(self, session: SparkSession) -> None:
        namespace = self._name(session).removesuffix("." + quoted(self._sink.table.rpartition(".")[2]))
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        # Iceberg has no smaller integers.
        columns = Schema(tuple((name, _whole(type_)) for name, type_ in self._columns.columns))
        session.sql(f"CREATE TABLE IF NOT EXISTS {self._name(session)} ({columns.ddl}) USING iceberg")

    def _last_batch(self, session: SparkSession, query: str) -> int | None:
        from pyspark.sql import functions

        name = self._name(session)
        properties = {row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        if "format" not in properties and "current-snapshot-id" not in properties:
            raise SinkError(f"{self._sink!r}: {self._sink.place} is no Iceberg table; give another")
        kept = properties.get(PREFIX + query)
        summary = functions.col("summary")
        of_query = session.table(f"{name}.snapshots").where(summary["keyed-query"] == query)
        found = [int(row[0]) for row in of_query.select(summary["keyed-batch"]).collect()]
        return max([*found, *([] if kept is None else [int(kept)])], default=None)

    def _append(self, frame: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions

        session, name = frame.sparkSession, self._name(frame.sparkSession)

        def append() -> None:
            own = {*self._columns.names}
            # A column that another query has added is null.
            columns = [
                functions.col(quoted(field.name))
                if field.name in own
                else functions.lit(None).cast(field.dataType).alias(field.name)
                for field in session.table(name).schema
            ]
            writer = frame.select(*columns).writeTo(name)
            for key, value in self._marks(batch_id).items():
                writer = writer.option(f"snapshot-property.{key}", value)
            writer.append()

        self._once(session, batch_id, append)

    def _merge(self, session: SparkSession, view: str, batch_id: int) -> None:
        marks = {f"spark.sql.iceberg.snapshot-property.{key}": value for key, value in self._marks(batch_id).items()}

        def merge() -> None:
            # The session's settings: see `DeltaLakeTable`.
            with _set(session, marks if self._repeats else {}):
                self._merge_into(session, view)

        self._once(session, batch_id, merge)

    def _once(self, session: SparkSession, batch_id: int, write: Callable[[], None]) -> None:
        """Write a batch unless the table has it."""
        self._refresh(session)
        query = self._queries[-1]
        if not self._repeats:
            write()
            return
        last = self._last_batch(session, query)
        if last is None or last < batch_id:
            write()
        if last is None or last <= batch_id:
            session.sql(f"ALTER TABLE {self._name(session)} SET TBLPROPERTIES ('{PREFIX}{query}' = '{batch_id}')")

    def _marks(self, batch_id: int) -> dict[str, str]:
        return {"keyed-query": self._queries[-1], "keyed-batch": str(batch_id)}


def lake_table(sink: TableSink, queries: Sequence[str], schema: Schema, *, repeats: bool) -> LakeTable:
    """Return the writer of a table; see `LakeTable`."""
    if isinstance(sink, DeltaSink):
        return DeltaLakeTable(sink, queries, schema, repeats=repeats)
    if isinstance(sink, IcebergSink):
        return IcebergLakeTable(sink, queries, schema, repeats=repeats)
    raise TypeError(f"{sink!r} has no writer")


def _last_rows(frame: DataFrame, sink: TableSink) -> DataFrame | None:
    """Return the last row of each key; ``None`` if there are no rows.

    All tasks of the batch run. Formats refuse to merge rows whose plan is not deterministic, so the plan ends here.

    Raises:
        SinkError: A key has a null.
    """
    from pyspark.sql import functions as f

    row = f.struct(*[f.col(quoted(name)) for name in frame.columns])
    # Rows of one key are in one partition, in the order in which the function emitted them.
    numbered = frame.select(row.alias("row"), f.monotonically_increasing_id().alias(_ORDER))
    keys = [f.col(f"row.{quoted(name)}").alias(f"k{number}") for number, name in enumerate(sink.key)]
    last = numbered.groupBy(*keys).agg(f.max_by("row", _ORDER).alias("row")).select("row.*").localCheckpoint()
    nulls = [f.count_if(f.col(quoted(name)).isNull()) for name in sink.key]
    (counted,) = last.agg(f.count(f.lit(1)), *nulls).collect()
    for name, found in zip(sink.key, counted[1:], strict=True):
        if found:
            raise null_key(sink, name)
    return last if counted[0] else None


def _delta_place(session: SparkSession, sink: DeltaSink) -> str:
    """Return the path of a table as Spark takes it."""
    folder = local_folder(sink.path)
    return str(folder) if folder is not None and shares_files(session) else sink.path


def _delta_columns(session: SparkSession, place: str) -> Any:
    try:
        return session.read.format("delta").load(place).schema
    except Exception as error:
        if _NO_TABLE.search(_text(error)):
            return None
        raise


def _iceberg_name(sink: IcebergSink) -> str:
    """Return the name of a table in SQL."""
    return ".".join(map(quoted, [sink.catalog, *sink.table.split(".")]))


def _whole(type_: str) -> str:
    return re.sub(r"(?<![\w`])(?:tinyint|smallint|byte|short)(?![\w`:])", "int", type_, flags=re.IGNORECASE)


def _failed(sink: TableSink, error: Exception) -> Exception:
    """Return the error for an exception of Spark; one of a worker keeps its type."""
    if is_gone(error):
        return error
    failure = translated(error, "")
    return SinkError(f"{sink!r}: {essence(error, str(error))}") if isinstance(failure, QueryFailed) else failure


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _set(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session of a query, whose batches run one after the other, and restore them."""
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)
