"""Tables of a lakehouse as sinks, of any format, in both runtimes: columns are compared, and keys have one row.

A table records the last batch of each query: the id of the query with the id of the batch, in the same commit as the
rows.

In the local runtime each batch of a query is one commit, made once. On Spark a batch that is skipped is computed all
the same, because the operators' state is part of it.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from keyed.base.arguments import names, shown, text
from keyed.base.ids import random_id
from keyed.base.schemas import Schema, of_arrow, of_spark, quoted
from keyed.destinations.sink import BatchMark, Owner, Record, Sink, SinkBatch, SinkWriter, SparkSide, TableChanges
from keyed.errors import DefinitionError, KeyedError, OutputDefinitionError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


_log = logging.getLogger(__name__)
TableMode = Literal["append", "upsert"]
_T = TypeVar("_T")
#: Number of attempts at a commit that other writers of the table overtake.
ATTEMPTS = 10


def _key(columns: Any) -> tuple[str, ...]:
    return names(columns, "key")


def option_names(options: Mapping[str, str]) -> str:
    """Return the names of options, whose values are never shown."""
    return "{" + ", ".join(options) + "}"


@attrs.frozen(kw_only=True, eq=False)
class TableSink(Sink):
    """A table of a lakehouse: the parameters that all formats have.

    Attributes:
        mode: ``"append"`` adds the rows; ``"upsert"`` replaces the rows with the same key.
        key: The columns of the key, for ``"upsert"``.
        deleted: The column that is true in a row that deletes its key, for ``"upsert"``. The table does not have it.
    """

    mode: TableMode = "append"
    key: tuple[str, ...] = attrs.field(default=(), converter=_key)
    deleted: str | None = None

    makes_files = True
    rereads = True

    def __attrs_post_init__(self) -> None:
        if self.mode not in ("append", "upsert"):
            raise DefinitionError(f"{self!r}: mode={shown(self.mode)} must be 'append' or 'upsert'")
        if (self.mode == "upsert") != bool(self.key) or (self.deleted is not None and self.mode != "upsert"):
            raise DefinitionError(
                f'{self!r}: mode="upsert" needs key=, the columns whose values name a row; "append" takes neither key= '
                "nor deleted="
            )
        if self.deleted is not None:
            text(self.deleted, f"{self!r}: deleted", "the name of a column")
        if self.deleted in self.key:
            raise DefinitionError(f"{self!r}: deleted= takes the name of a column that is not one of the key")

    @property
    def place(self) -> str:
        """The table, as users name it."""
        raise NotImplementedError(f"{type(self).__name__} does not define place")

    @property
    def clash(self) -> str:
        """See `Sink`."""
        return (
            f"two outputs go to the table {self.place!r}, and the batches of one would be taken for those of "
            "the other; give each output a table of its own"
        )

    def check(self, schema: Schema | None, spark: SparkSide | None) -> None:
        """See `Sink`."""
        if spark is None:
            return
        if spark.is_remote:
            raise DefinitionError(
                f"{self!r}: over Spark Connect a table has no writer that repeats no batch; run the query in Spark's "
                "own program, or write output.df with the table's own sink"
            )
        if schema is not None:
            check_types(self, dict(schema.columns))
        self.check_on_spark(spark)

    def check_on_spark(self, spark: SparkSide) -> None:
        """Check that a Spark session can write the table.

        Raises:
            DefinitionError: A parameter is for the local runtime.
            SessionError: The session lacks a library, or settings for it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define check_on_spark")

    def open_copy(self, owner: Owner) -> SinkWriter:
        """See `Sink`."""
        if self.mode != "upsert" or self.deleted is not None:
            raise DefinitionError(f'replicate: {self!r} must have mode="upsert", and no deleted=')
        return self.open(owner, None)

    def kinds(self, schema: pa.Schema) -> dict[str, str]:
        """Return columns with the names of their types in tables of this format."""
        import pyarrow as pa

        from keyed.arrow.kinds import kinds

        local = {field.name for field in schema if pa.types.is_timestamp(field.type) and field.type.tz is None}
        return {name: "timestamp_ntz" if name in local else kind for name, kind in kinds(schema).items()}

    def _shown(self, function: str, table: str, **others: Any) -> str:
        """Return the call that made the sink."""
        values = {"mode": self.mode, "key": self.key, "deleted": self.deleted}
        usual = {"mode": "append", "key": (), "deleted": None}
        options = {name: shown(value) for name, value in values.items() if value != usual[name]}
        return f"{function}({', '.join([shown(table), *(f'{n}={v}' for n, v in {**others, **options}.items())])})"


def fitted(sink: TableSink, rows: pa.Table, columns: pa.Schema | None) -> pa.Table:
    """Return rows without declared columns, which have those of the query's first rows.

    Args:
        sink: The sink.
        rows: The rows.
        columns: The columns of the first rows; ``None`` for these themselves.

    Raises:
        SinkError: They have other columns, or the type of a column is unknown.
    """
    declare = "declare the columns: process(..., output=...) or OutputTag(name, type)"
    if columns is None:
        types = {each.name: of_arrow(each.type) or str(each.type).replace("list<", "array<") for each in rows.schema}
        for name, type_ in types.items():
            if re.search(r"\bnull$|\bnull[>,]", type_):
                raise SinkError(f"{sink!r}: the first rows have no value in {name!r}, so its type is open; {declare}")
        check_types(sink, types)
        return rows
    # Nulls alone have no type.
    nulls = [each.name for each in rows.schema if str(each.type) == "null" and each.name in columns.names]
    for name in nulls:
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, columns.field(name), rows.column(name).cast(columns.field(name).type))
    if not rows.schema.equals(columns):
        both = [", ".join(f"{field.name} {field.type}" for field in schema) for schema in (rows.schema, columns)]
        raise SinkError(f"{sink!r}: the rows have the columns {both[0]}, and the first ones had {both[1]}; {declare}")
    return rows


def stored(sink: TableSink, columns: Sequence[str]) -> list[str]:
    """Return the columns of an output that the table has.

    Raises:
        SinkError: The output lacks a column that the sink names.
    """
    for name in (*sink.key, *([sink.deleted] if sink.deleted is not None else ())):
        if name not in columns:
            raise SinkError(f"{sink!r}: the output has no column {name!r}, only {', '.join(columns)}")
    return [name for name in columns if name != sink.deleted]


def check_types(sink: TableSink, types: Mapping[str, str]) -> None:
    """Check the types of the columns that the sink names.

    Args:
        sink: The sink.
        types: Spark types of the output's columns by name.

    Raises:
        SinkError: One is missing, a column of the key has no exact equality, or ``deleted`` is not boolean.
    """
    stored(sink, list(types))
    for name in sink.key:
        if types[name].startswith(("float", "double", "array", "map", "struct", "void")):
            raise SinkError(
                f"{sink!r}: the column {name!r} of the key is of type {types[name]}; give columns of integers, "
                "decimals, text, bytes, booleans, dates or timestamps"
            )
    if sink.deleted is not None and types[sink.deleted] != "boolean":
        raise SinkError(f"{sink!r}: the column {sink.deleted!r} is of type {types[sink.deleted]}, and not boolean")


def added_columns(
    sink: TableSink, existing: Mapping[str, str], new: Mapping[str, str], required: Sequence[str]
) -> list[str]:
    """Return the columns that an output adds to a table.

    Args:
        sink: The sink.
        existing: The table's columns with the names of their types.
        new: Those of the output.
        required: The table's columns that have no nulls.

    Raises:
        SinkError: The table has other columns.
    """
    same = {name.lower(): name for name in existing}
    clashes = [f"{name} is {same[name.lower()]} there" for name in new if name not in existing and name.lower() in same]
    not_null = [f"{', '.join(required)} must not be null there, and a column of an output may be null"]
    others = [
        f"the output has no {name}" if name not in new else f"{name} is {new[name]} in the output"
        for name, type_ in existing.items()
        if new.get(name) != type_
    ]
    if why := clashes[:1] or (not_null if required else others):
        columns = [", ".join(f"{name} {type_}" for name, type_ in each.items()) for each in (existing, new)]
        raise SinkError(
            f"{sink!r}: the table has other columns than the output: {', '.join(why)}. The table has {columns[0]}; the "
            f"output has {columns[1]}. Give another table, or the table's columns (an output may add columns)"
        )
    return [name for name in new if name not in existing]


def last_rows(rows: pa.Table, sink: TableSink) -> pa.Table:
    """Return the last row of each key, in the order of the rows.

    Raises:
        SinkError: A key has a null.
    """
    import numpy as np
    import pyarrow as pa

    for name in sink.key:
        if rows.column(name).null_count:
            raise null_key(sink, name)
    numbered = rows.select([*sink.key]).append_column("", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by([*sink.key], use_threads=False).aggregate([("", "max")]).column("_max")
    return rows.take(last.combine_chunks().sort())


def null_key(sink: TableSink, name: str) -> SinkError:
    """Return the error for a null in a key."""
    return SinkError(f"{sink!r}: a row has a null in {name!r}, a column of the key; drop such rows before the sink")


class LakeWriter(SinkWriter, ABC):
    """Base of the writers of one query's batches to a table, in either runtime.

    Args:
        sink: The sink.
        owner: The query.
    """

    def __init__(self, sink: Any, owner: Owner) -> None:
        self._sink = sink
        self._owner = owner

    @abstractmethod
    def _overtaken(self, error: BaseException) -> str | None:
        """Return the text of the error of a commit that another one has overtaken; ``None`` for any other error."""

    @abstractmethod
    def _failed(self, error: Exception) -> Exception:
        """Return keyed's error for an error of a library."""

    @abstractmethod
    def _refresh(self) -> None:
        """Read the newest version of the table, if there is a table."""

    @abstractmethod
    def _columns(self) -> tuple[Mapping[str, str], list[str]] | None:
        """Return the table's columns with the names of their types, and those without nulls; ``None`` without one."""

    @abstractmethod
    def _create(self, columns: pa.Schema) -> None:
        """Create the table."""

    @abstractmethod
    def _grow(self, columns: pa.Schema, new: Sequence[str]) -> None:
        """Add the new ones of columns to the table."""

    @abstractmethod
    def _last_batch(self, query: str) -> int | None:
        """Return the last batch of a query in the table."""

    def _kinds(self, columns: pa.Schema) -> Mapping[str, str]:
        """Return columns with the names of their types in tables of this format."""
        kinds: Mapping[str, str] = self._sink.kinds(columns)
        return kinds

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or add the output's new columns to it.

        Raises:
            SinkError: The table has other columns.
        """
        import pyarrow as pa

        output = pa.schema([schema.field(name) for name in stored(self._sink, schema.names)])

        def grow() -> None:
            self._refresh()
            if self._columns() is None:
                self._create(output)
            columns = self._columns()
            assert columns is not None
            if new := added_columns(self._sink, columns[0], self._kinds(output), columns[1]):
                self._grow(output, new)

        self._attempt(grow)

    def _warn_of_overlap(self) -> None:
        """Log that a restored query adds rows that an earlier query has added, if so."""
        owner = self._owner
        if not owner.earlier or self._last_batch(owner.query) is not None:
            return
        for query in owner.earlier:
            last = self._last_batch(query)
            if self._sink.mode == "append" and last is not None and last >= owner.next_batch:
                _log.warning(
                    "%r: the query %s, from which this one was restored, has written batches up to %d to the table, "
                    "and this one goes on with batch %d: rows of batches in between are there twice unless the table "
                    "is rolled back",
                    self._sink,
                    query,
                    last,
                    owner.next_batch,
                )

    def _attempt(self, attempt: Callable[[], _T]) -> _T:
        """Return the result of an attempt at a commit, which is repeated while other writers overtake it.

        Raises:
            SinkError: They overtake it again and again, or it fails.
        """
        number = 0
        while True:
            number += 1
            try:
                return attempt()
            except KeyedError:
                raise
            except Exception as error:
                text = self._overtaken(error)
                if text is None:
                    raise self._failed(error) from error
                if number == ATTEMPTS:
                    raise SinkError(
                        f"{self._sink!r}: other writers of the table were first {ATTEMPTS} times: {text}"
                    ) from error
                _log.info("%r: another writer of the table was first, trying again: %s", self._sink, text)


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
