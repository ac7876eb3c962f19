"""Writing of tables on Spark, whatever their format, with the session's own libraries.

A batch that is skipped is computed all the same, because the operators' state is part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from keyed.base.column_types import of_spark, quoted
from keyed.base.ids import random_id
from keyed.base.schemas import Schema
from keyed.destinations.ownership import Owner
from keyed.destinations.sink import SinkBatch, SinkWriter, SparkSide
from keyed.destinations.table_sink import TableSink, added, attempts, check_declared, null_key, stored, warn_of_overlap
from keyed.errors import DefinitionError, KeyedError, OutputDefinitionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
#: A setting of the clusters of Databricks, which have Delta without any setting.
DATABRICKS = "spark.databricks.clusterUsageTags.sparkVersion"
#: Errors of a commit that another one has overtaken.
_OVERTAKEN = re.compile(
    r"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|io\.delta\.exceptions\.\w*(?:Concurrent|Changed)"
    r"|org\.apache\.iceberg\.exceptions\.(?:CommitFailedException|ValidationException|AlreadyExistsException)"
    r"|TABLE_OR_VIEW_ALREADY_EXISTS|FIELD_ALREADY_EXISTS|DELTA_TABLE_ALREADY_EXISTS|SQLITE_BUSY"
)
#: Errors of a session without the libraries.
NO_LIBRARY = re.compile(
    r"DATA_SOURCE_NOT_FOUND|CLASS_NOT_FOUND|ClassNotFound|NoClassDefFound|Cannot find catalog plugin class"
)
#: Streams run without it, and it saves tasks for shuffled rows.
_ADAPTIVE = {"spark.sql.adaptive.enabled": "true"}
#: Name of a column of numbered rows.
_ORDER = "__keyed_order"


class _OvertakenError(Exception):
    """Another writer of the table was first."""


def check_table(sink: TableSink, schema: Schema | None, spark: SparkSide) -> None:
    """Check that a query can write a table on Spark, before anything is created.

    Raises:
        DefinitionError: The query runs over Spark Connect.
        SinkError: The sink names a column that the output does not have, or has with another type.
    """
    if spark.is_remote:
        raise DefinitionError(
            f"{sink!r}: over Spark Connect a table has no writer that repeats no batch; run the query in Spark's own "
            "program, or write output.df with the table's own sink"
        )
    if schema is not None:
        check_declared(sink, schema)


def library(session: SparkSession, name: str, versions: Mapping[str, str]) -> str:
    """Return the setting for a library, for messages."""
    spark = ".".join(session.version.split(".")[:2])
    if spark in versions:
        return f"spark.jars.packages={name}{spark}_2.13:{versions[spark]}"
    newest = max(versions)
    return (
        f"spark.jars.packages={name}{spark}_2.13:<version> (none was published for Spark {spark} when this version of "
        f"keyed was: Spark {newest} has {name}{newest}_2.13:{versions[newest]})"
    )


class LakeTable(SinkWriter):
    """Base of the writers of one query's batches to a table.

    Args:
        sink: The sink.
        owner: The query.
        schema: The output's columns.
        spark: The Spark runtime.
    """

    def __init__(self, sink: TableSink, owner: Owner, schema: Schema, spark: SparkSide) -> None:
        self._sink: Any = sink
        self._owner = owner
        self._spark = spark
        self._repeats = spark.repeats
        columns = stored(sink, schema.names)
        self._columns = Schema(tuple((name, type_) for name, type_ in schema.columns if name in columns))

    def claim(self, repeated: int | None = None) -> None:
        """Look for the rows of earlier queries. See `SinkWriter`."""
        del repeated
        session = self._spark.session

        def look() -> None:
            self._refresh(session)
            if self._read_columns(session) is not None:
                warn_of_overlap(self._sink, self._owner, lambda query: self._last_batch(session, query))

        if self._owner.earlier:
            self._attempt(look)

    def prepare(self, schema: pa.Schema) -> None:
        """Compare the table with the output, create it, or add the output's new columns to it. See `SinkWriter`."""
        del schema
        session = self._spark.session

        def grow() -> None:
            self._refresh(session)
            if self._read_columns(session) is None:
                self._create(session)
            there = self._read_columns(session)
            assert there is not None
            required = [field.name for field in there if not field.nullable]
            now = self._kinds((field.name, of_spark(field.dataType)) for field in there)
            new = added(self._sink, now, self._kinds(self._columns.columns), required)
            if new:
                columns = Schema(tuple(each for each in self._columns.columns if each[0] in new))
                session.sql(f"ALTER TABLE {self._name(session)} ADD COLUMNS ({columns.ddl})")

        self._attempt(grow)

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """See `SinkWriter`."""
        frame = rows.frame
        session, sink = frame.sparkSession, self._sink
        with set_for(session, _ADAPTIVE if self._repeats else {}):
            if sink.mode == "append":
                # All tasks have to run, also if the batch was written before.
                if frame.count():
                    self._attempt(lambda: self._append(frame, batch_id))
                return
            last = _last_rows(frame, sink)
            if last is not None:
                view = f"keyed_{random_id().replace('-', '')}"
                last.createOrReplaceTempView(view)
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
                if _OVERTAKEN.search(text_of(error)):
                    raise _OvertakenError(self._spark.essence(error)) from error
                raise

        try:
            return attempts(self._sink, tried, _OvertakenError)
        except KeyedError:
            raise
        except Exception as error:
            raise self._spark.failed(self._sink, error) from error

    def _kinds(self, columns: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return columns with the names of their types, as the local runtime has them."""
        import pyarrow as pa

        from keyed.arrow.write import arrow_type

        kinds: dict[str, str] = {}
        for name, type_ in columns:
            try:
                kinds |= self._kinds_of(pa.schema([(name, arrow_type(type_))]))
            except OutputDefinitionError:
                kinds[name] = type_
        return kinds

    def _kinds_of(self, schema: pa.Schema) -> Mapping[str, str]:
        raise NotImplementedError

    def _name(self, session: SparkSession) -> str:
        """Return the name of the table in SQL."""
        raise NotImplementedError

    def _refresh(self, session: SparkSession) -> None:
        """Forget what this program has read of the table."""

    def _read_columns(self, session: SparkSession) -> Any:
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
    for name, nulls_of_key in zip(sink.key, counted[1:], strict=True):
        if nulls_of_key:
            raise null_key(sink, name)
    return last if counted[0] else None


def text_of(error: BaseException) -> str:
    """Return the type and the text of an error."""
    return f"{type(error).__name__}: {error}"


@contextmanager
def set_for(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session of a query, whose batches run one after the other, and restore them."""
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)
