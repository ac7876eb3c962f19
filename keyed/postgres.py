"""Tables of PostgreSQL as sinks, with the package psycopg: rows and the id of their batch are one transaction.

For writers of jobs. It uses public names only, as a sink of your own would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from keyed.errors import DefinitionError, ExtraNotInstalled, KeyedError, SinkError
from keyed.extending import Owner, Schema, Sink, SinkBatch, SinkWriter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["postgres_sink"]

_BATCHES = "keyed_batches"
#: The statement that writes a row.
_UPSERT = "INSERT INTO {table} ({names}) VALUES ({places}) ON CONFLICT ({key}) DO {action}"
#: Types of PostgreSQL by those of Arrow.
_TYPES = {
    "bool": "boolean",
    **dict.fromkeys(("int8", "int16"), "smallint"),
    "int32": "integer",
    "int64": "bigint",
    "float": "real",
    "double": "double precision",
    **dict.fromkeys(("string", "large_string"), "text"),
    **dict.fromkeys(("binary", "large_binary"), "bytea"),
    "date32[day]": "date",
}
_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[\w+(, tz=.*)?\]")


@attrs.frozen(kw_only=True, eq=False)
class PostgresSink(Sink):
    """A table of PostgreSQL. See `postgres_sink`.

    Attributes:
        table: The table, with or without its schema.
        key: The columns of the key.
        deleted: The column that is true in a row that deletes its key.
        conninfo: The connection; never shown.
    """

    table: str
    key: tuple[str, ...]
    deleted: str | None = None
    conninfo: str = attrs.field(default="", repr=False)

    rereads = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.table, str) or not all(self.table.split(".")) or self.table.count(".") > 1:
            raise DefinitionError(f"postgres_sink: table={self.table!r} must be the name of a table, or schema.table")
        names = [*self.key, *([] if self.deleted is None else [self.deleted])]
        if not self.key or not all(isinstance(name, str) and name for name in names) or len({*names}) < len(names):
            raise DefinitionError(
                f"postgres_sink({self.table!r}): key={self.key!r}, deleted={self.deleted!r}: key= takes the columns "
                "whose values name a row, and deleted= a column that is not one of them"
            )
        if not isinstance(self.conninfo, str) or self.conninfo.count("@") > 1:
            # A part of the password would be taken for a host, and be shown.
            raise DefinitionError(
                f"postgres_sink({self.table!r}): conninfo= must be a connection string or URI; write an @ of a user or "
                "password as %40, or give the connection in the environment (PGHOST, PGUSER, PGPASSFILE and so on)"
            )

    def __repr__(self) -> str:
        deleted = "" if self.deleted is None else f", deleted={self.deleted!r}"
        return f"postgres_sink({self.table!r}, key={self.key!r}{deleted})"

    @property
    def identity(self) -> tuple[str, str, str]:
        """See `keyed.extending.Sink`."""
        return "postgres", self.conninfo, self.table

    def check(self, schema: Schema | None, spark: Any) -> None:
        """See `keyed.extending.Sink`."""
        if spark is not None and spark.is_remote:
            raise DefinitionError(
                f"{self!r}: over Spark Connect the server would connect, and get the password; run the query in "
                "Spark's own program"
            )

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `keyed.extending.Sink`."""
        if schema is None:
            raise SinkError(f"{self!r}: declare the columns: process(..., output=...) or OutputTag(name, type)")
        for name in (*self.key, *([] if self.deleted is None else [self.deleted])):
            if name not in schema.names:
                raise SinkError(f"{self!r}: the output has no column {name!r}, only {', '.join(schema.names)}")
        types = dict(schema.columns)
        for name in self.key:
            if types[name] in ("float", "double"):
                raise SinkError(
                    f"{self!r}: the column {name!r} of the key is of type {types[name]}; give columns of integers, "
                    "decimals, text, bytes, booleans, dates or timestamps"
                )
        if self.deleted is not None and types[self.deleted] != "boolean":
            raise SinkError(f"{self!r}: the column {self.deleted!r} is not boolean")
        return _PostgresWriter(self, owner, [name for name in schema.names if name != self.deleted])

    def open_copy(self, owner: Owner) -> SinkWriter:
        """See `keyed.extending.Sink`."""
        if self.deleted is not None:
            raise DefinitionError(f"replicate: {self!r} must have no deleted=")
        return _PostgresWriter(self, owner, ())


class _PostgresWriter(SinkWriter):
    def __init__(self, sink: PostgresSink, owner: Owner, columns: Sequence[str]) -> None:
        try:
            import psycopg
            import psycopg.conninfo
            import psycopg.sql
        except ModuleNotFoundError as error:
            message = f"{sink!r} needs the package psycopg: pip install 'keyed-streams[postgres]'"
            raise ExtraNotInstalled(message, name=error.name) from error
        self._psycopg: Any = psycopg
        self._sink = sink
        self._owner = owner
        self._columns = columns
        self._connection: Any = None
        self.id = f"the PostgreSQL table {sink.table!r}"
        self.copy_key = sink.key
        schema, _, table = sink.table.rpartition(".")
        name = psycopg.sql.Identifier
        self._table = name(schema, table) if schema else name(table)
        self._batches = name(schema, _BATCHES) if schema else name(_BATCHES)

    def claim(self, repeated: int | None = None) -> None:
        """See `keyed.extending.SinkWriter`."""
        with self._transaction() as execute:
            # Programs that create a table at once would fail.
            execute("SELECT pg_advisory_xact_lock(hashtext('keyed'))")
            execute(
                "CREATE TABLE IF NOT EXISTS {batches} "
                "(target text, query text, batch bigint NOT NULL, note text, PRIMARY KEY (target, query))"
            )
            execute("INSERT INTO {batches} VALUES (%s, %s, -1) ON CONFLICT DO NOTHING", self._mark)

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or add the output's new columns to it."""
        types = {name: self._type_of(name, str(schema.field(name).type)) for name in self._columns}
        with self._transaction() as execute:
            execute("SELECT pg_advisory_xact_lock(hashtext('keyed'))")
            columns = self._list((f"{{}} {type_}", name) for name, type_ in types.items())
            execute("CREATE TABLE IF NOT EXISTS {table} ({columns}, PRIMARY KEY ({key}))", columns=columns)
            rows = execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                [self._table.as_string(self._connection)],
            )
            there = dict(rows.fetchall())
            for name, type_ in types.items():
                if name not in there:
                    column = self._list([(f"{{}} {type_}", name)])
                    execute("ALTER TABLE {table} ADD COLUMN {column}", column=column)
                elif there[name] != type_:
                    raise SinkError(
                        f"{self._sink!r}: the column {name!r} is {there[name]} in the table and {type_} in the output; "
                        "give another table"
                    )
            # Without a unique index on the key the server refuses the plan.
            execute("EXPLAIN " + _UPSERT, [None] * len(self._columns), **self._parts)

    def pack(self, batch: SinkBatch) -> list[tuple[bytes | None, bytes]]:
        """Check that the table can hold the rows, before they are committed with state. See `SinkWriter`.

        Raises:
            SinkError: A key has a null, a text a NUL, or a time is not in the years 1 to 9999.
        """
        return [] if batch.table is None else self.packed(self._check_rows(batch.table))

    def _check_rows(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        for name in self._sink.key:
            if table.column(name).null_count:
                raise SinkError(f"{self._sink!r}: a row has a null in the key; drop such rows before the sink")
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
                raise SinkError(f"{self._sink!r}: a row has a NUL in {name!r}, which PostgreSQL's text cannot hold")
            if pa.types.is_temporal(column.type):
                try:
                    pc.min_max(column).as_py()
                except (OverflowError, ValueError) as error:
                    raise SinkError(f"{self._sink!r}: a time in {name!r} is not in the years 1 to 9999") from error
        return table

    def write(self, rows: Any, batch_id: int) -> None:
        """Write the rows of a batch and its id in one transaction. See `keyed.extending.SinkWriter`."""
        if not rows:
            return
        upserts, deletes = self._last_rows(self.unpack(rows).to_pylist())
        with self._transaction() as execute:
            last, _ = self._last(execute)
            if last < batch_id:
                self._change(execute, deletes, [upserts], batch_id, {})

    def last_copy(self) -> tuple[int, Mapping[str, str]] | None:
        """See `keyed.extending.SinkWriter`."""
        with self._transaction() as execute:
            last, note = self._last(execute)
            if last < 0:
                (table,) = execute("SELECT to_regclass(%s)", [self._table.as_string(self._connection)]).fetchone()
                has_rows = table is not None and execute("SELECT EXISTS (SELECT FROM {table})").fetchone()[0]
                return None if has_rows else (0, {})
            return last, json.loads(note)

    def write_changes(self, changes: Any, number: int, note: Mapping[str, str]) -> bool:
        """Write changes and their note in one transaction. See `keyed.extending.SinkWriter`."""
        if changes.schema is not None and [*self._columns] != changes.schema.names:
            self._columns = changes.schema.names
            self.prepare(changes.schema)
        with self._transaction() as execute:
            last, _ = self._last(execute)
            if max(last, 0) != number - 1:
                return False
            if changes.replaces:
                execute("DELETE FROM {table}")
            keys = (row for part in changes.removed for row in part.table.to_pylist())
            deletes = [[row[name] for name in self._sink.key] for row in keys]
            tables = (self._check_rows(part.table).to_pylist() for part in changes.upserts)
            upserts = ([[row[name] for name in self._columns] for row in rows] for rows in tables)
            self._change(execute, deletes, upserts, number, note)
        return True

    def is_transient(self, error: BaseException) -> bool:
        """See `keyed.extending.SinkWriter`."""
        return isinstance(error, self._psycopg.OperationalError)

    def _last(self, execute: Any) -> Any:
        """Return the last batch and its note. Another run of this query waits for this one."""
        query = "SELECT batch, note FROM {batches} WHERE target = %s AND query = %s FOR UPDATE"
        return execute(query, self._mark).fetchone()

    def _change(
        self, execute: Any, deletes: list[Any], upserts: Iterable[list[Any]], batch: int, note: Mapping[str, str]
    ) -> None:
        condition = self._list((("{} = %s", name) for name in self._sink.key), " AND ")
        execute("DELETE FROM {table} WHERE {condition}", deletes, many=True, condition=condition)
        for rows in upserts:
            execute(_UPSERT, rows, many=True, **self._parts)
        mark = "UPDATE {batches} SET batch = %s, note = %s WHERE target = %s AND query = %s"
        execute(mark, [batch, json.dumps({**note}), *self._mark])

    def close(self) -> None:
        """See `keyed.extending.SinkWriter`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def _mark(self) -> list[str]:
        return [self._sink.table.rpartition(".")[2], self._owner.query]

    @property
    def _parts(self) -> dict[str, Any]:
        """The parts of the statement that writes a row."""
        others = [name for name in self._columns if name not in self._sink.key]
        updates = self._list(("{0} = EXCLUDED.{0}", name) for name in others)
        sql = self._psycopg.sql.SQL
        return {
            "names": self._list(("{}", name) for name in self._columns),
            "places": sql(", ").join([sql("%s")] * len(self._columns)),
            "action": sql("UPDATE SET {}").format(updates) if others else sql("NOTHING"),
        }

    def _list(self, parts: Any, between: str = ", ") -> Any:
        """Return parts of a statement, each with the quoted name of a column."""
        sql = self._psycopg.sql
        return sql.SQL(between).join(sql.SQL(text).format(sql.Identifier(name)) for text, name in parts)

    def _last_rows(self, rows: list[dict[str, Any]]) -> tuple[list[list[Any]], list[list[Any]]]:
        """Return the last row of each key, and the keys of the rows that delete theirs."""
        sink = self._sink
        last = {tuple(row[name] for name in sink.key): row for row in rows}
        gone = {key for key, row in last.items() if sink.deleted is not None and row[sink.deleted]}
        upserts = [[row[name] for name in self._columns] for key, row in last.items() if key not in gone]
        return upserts, [[*key] for key in gone]

    def _type_of(self, name: str, type_: str) -> str:
        if match := _DECIMAL.fullmatch(type_):
            return f"numeric({match[1]},{match[2]})"
        if match := _TIMESTAMP.fullmatch(type_):
            return f"timestamp with{'' if match[1] else 'out'} time zone"
        if type_ not in _TYPES:
            raise SinkError(f"{self._sink!r}: the column {name!r} of type {type_} has no type in PostgreSQL")
        return _TYPES[type_]

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Yield a function that executes a statement with quoted names; all of them are one transaction.

        Raises:
            SinkError: The server refuses it, or cannot be reached.
        """
        sql = self._psycopg.sql

        def execute(text: str, values: Sequence[Any] = (), *, many: bool = False, **parts: Any) -> Any:
            key = self._list(("{}", name) for name in self._sink.key)
            statement = sql.SQL(text).format(table=self._table, batches=self._batches, key=key, **parts)
            cursor = self._connection.cursor()
            (cursor.executemany if many else cursor.execute)(statement, values)
            return cursor

        try:
            if self._connection is None:
                self._connection = self._connect()
            with self._connection.transaction():
                yield execute
        except KeyedError:
            raise
        except self._psycopg.Error as error:
            self.close()
            reason = error.diag.message_primary or str(error)
            raise SinkError(f"{self._sink!r}: {type(error).__name__}: {reason}") from error

    def _connect(self) -> Any:
        try:
            settings = self._psycopg.conninfo.conninfo_to_dict(self._sink.conninfo)
        except self._psycopg.Error:
            settings = {"port": "?"}
        if not re.fullmatch(r"[\d,]*", settings.get("port") or "") or "@" in settings.get("dbname", ""):
            # The client's error would show a part of the password.
            raise SinkError(
                f"{self._sink!r}: conninfo= is not a connection string or URI; write @ : / ? # and % of a user or "
                "password as %40 %3A %2F %3F %23 and %25"
            )
        return self._psycopg.connect(**settings, autocommit=True)


def postgres_sink(
    table: str, *, key: str | Sequence[str], deleted: str | None = None, conninfo: str = ""
) -> PostgresSink:
    """Write the rows of an output to a table of PostgreSQL, each exactly once.

    A row replaces the row with the same key. Each batch is one transaction, which records the query's id and the
    batch's in the table ``keyed_batches``. On Spark the driver writes the rows. It needs ``keyed-streams[postgres]``.

    Args:
        table: The table, with or without its schema. If there is no table, one with the output's columns is created.
        key: The columns of the key, for which the table has a unique index.
        deleted: A boolean column that is true in a row that deletes its key. The table does not have this column.
        conninfo: The connection, as text or URI; its parts that are left out are those of the environment (``PGHOST``,
            ``PGPASSFILE`` and so on). It is never shown.

    Raises:
        DefinitionError: Parameters are missing or exclude each other.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    return PostgresSink(table=table, key=names, deleted=deleted, conninfo=conninfo)
