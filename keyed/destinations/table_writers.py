"""Writers of tables of a lakehouse, whatever their format: in the local runtime, and with the libraries of a session.

In the local runtime each batch of a query is one commit, made once. On Spark a batch that is skipped is computed all
the same, because the operators' state is part of it.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from keyed.base.ids import random_id
from keyed.base.schemas import Schema, of_spark, quoted
from keyed.destinations.sink import BatchMark, Owner, Record, SinkBatch, SparkSide, TableChanges
from keyed.destinations.table_sink import LakeWriter, TableSink, check_types, fitted, last_rows, null_key, stored
from keyed.errors import OutputDefinitionError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


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


#: A setting of the clusters of Databricks, which have Delta without any setting.
DATABRICKS = "spark.databricks.clusterUsageTags.sparkVersion"
#: Errors of a commit that another one has overtaken.
_OVERTAKEN = re.compile(
    r"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|io\.delta\.exceptions\.\w*(?:Concurrent|Changed)"
    r"|org\.apache\.iceberg\.exceptions\.(?:CommitFailedException|ValidationException|AlreadyExistsException)"
    r"|TABLE_OR_VIEW_ALREADY_EXISTS|FIELD_ALREADY_EXISTS|DELTA_TABLE_ALREADY_EXISTS|SQLITE_BUSY"
)
#: Errors of a session without the libraries.
_NO_LIBRARY = re.compile(
    r"DATA_SOURCE_NOT_FOUND|CLASS_NOT_FOUND|ClassNotFound|NoClassDefFound|Cannot find catalog plugin class"
)
#: Streams run without it, and it saves tasks for shuffled rows.
_ADAPTIVE = {"spark.sql.adaptive.enabled": "true"}
#: Name of a column of numbered rows.
_ORDER = "__keyed_order"


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


def finds_library(sink: TableSink, spark: SparkSide, look: Callable[[], object]) -> bool:
    """Return whether a look at a table finds the libraries of its format.

    Raises:
        KeyedError: It fails for another reason.
    """
    try:
        look()
    except Exception as error:
        if not _NO_LIBRARY.search(text_of(error)):
            raise spark.failed(sink, error) from error
        return False
    return True


class LakeTable(LakeWriter):
    """Base of the writers of one query's batches to a table on Spark.

    Args:
        sink: The sink.
        owner: The query.
        schema: The output's columns.
        spark: The Spark runtime.
    """

    def __init__(self, sink: TableSink, owner: Owner, schema: Schema, spark: SparkSide) -> None:
        super().__init__(sink, owner)
        self._spark = spark
        #: That of the last batch, once there is one.
        self._session = spark.session
        self._repeats = spark.repeats
        columns = stored(sink, schema.names)
        self._stored = Schema(tuple((name, type_) for name, type_ in schema.columns if name in columns))

    def claim(self, repeated: int | None = None) -> None:
        """Look for the rows of earlier queries. See `SinkWriter`."""

        def look() -> None:
            self._refresh()
            if self._fields() is not None:
                self._warn_of_overlap()

        if self._owner.earlier:
            self._attempt(look)

    def _columns(self) -> tuple[Mapping[str, str], list[str]] | None:
        import pyarrow as pa

        from keyed.arrow.write import arrow_type

        fields = self._fields()
        if fields is None:
            return None
        kinds: dict[str, str] = {}
        for field in fields:
            type_ = of_spark(field.dataType)
            try:
                kinds |= self._kinds(pa.schema([(field.name, arrow_type(type_))]))
            except OutputDefinitionError:
                kinds[field.name] = type_
        return kinds, [field.name for field in fields if not field.nullable]

    def _grow(self, columns: pa.Schema, new: Sequence[str]) -> None:
        added = Schema(tuple(each for each in self._stored.columns if each[0] in new))
        self._session.sql(f"ALTER TABLE {self._name} ADD COLUMNS ({added.ddl})")

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """See `SinkWriter`."""
        frame, sink = rows.frame, self._sink
        self._session = frame.sparkSession
        with set_for(self._session, _ADAPTIVE if self._repeats else {}):
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
                    self._attempt(lambda: self._merge(view, batch_id))
                finally:
                    self._session.catalog.dropTempView(view)

    def _merge_into(self, view: str) -> None:
        sink, names = self._sink, [quoted(name) for name in self._stored.names]
        same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in sink.key)
        is_deleted = "false" if sink.deleted is None else f"coalesce(s.{quoted(sink.deleted)}, false)"
        deletes = "" if sink.deleted is None else f"WHEN MATCHED AND {is_deleted} THEN DELETE "
        updates = ", ".join(f"t.{name} = s.{name}" for name in names)
        inserts = f"({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
        # Names are quoted, and there are no values.
        self._session.sql(
            f"MERGE INTO {self._name} t USING {view} s ON {same} {deletes}WHEN MATCHED THEN UPDATE SET "
            f"{updates} WHEN NOT MATCHED AND NOT {is_deleted} THEN INSERT {inserts}"
        )

    def _overtaken(self, error: BaseException) -> str | None:
        return self._spark.essence(error) if _OVERTAKEN.search(text_of(error)) else None

    def _failed(self, error: Exception) -> Exception:
        return self._spark.failed(self._sink, error)

    @property
    @abstractmethod
    def _name(self) -> str:
        """The name of the table in SQL."""

    @abstractmethod
    def _fields(self) -> Any:
        """Return the table's columns as Spark has them; ``None`` if there is no table."""

    @abstractmethod
    def _append(self, frame: DataFrame, batch_id: int) -> None:
        """Append the rows of a batch, unless the table has them."""

    @abstractmethod
    def _merge(self, view: str, batch_id: int) -> None:
        """Merge the rows of a view, those of a batch, unless the table has them."""


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
