"""The protocol of destinations: a `Sink` is declared for an output, and opens the `SinkWriter` of a run.

A run of a query opens the writers of its outputs, claims their targets, prepares them for the output's columns, and
gives each batch to `SinkWriter.pack`. There are two ways to hold each row exactly once:

- A writer that can replace a batch returns ``None``, and `SinkWriter.write` gets the batch before its state is
  committed. After a crash the batch comes again under the same id.
- Any other writer returns records. The local runtime commits them with the state of the batch
  (`keyed.recovery.local_checkpoint`), and `SinkWriter.write` gets them afterwards, again after a crash if it may not
  have written them. So they are the same records. On Spark a batch that runs again has the input that Spark has logged.

What a query writes has the query's id and the batch's. The id of a query is kept with its checkpoint; without a
checkpoint each run is a query. A query that is restored from the changelogs of another one has a new id, and knows that
of the earlier one. A target records the id of the query and that of its last batch, in the same transaction as the
rows: a folder of Parquet files in a mark and the names of files, a table of a lakehouse in ``keyed-<query id>`` and the
properties of a commit, a topic in a committed offset. A batch whose id is not above the recorded one was written
before.

The mark of a folder is a frame (`keyed.codec.frames`) of kind ``KSNK``, version 1, whose payload is msgpack of
``{"queries": [id, ...]}``: the query, after those that it was restored from.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from keyed.base.arguments import Shown
from keyed.base.schemas import Schema
from keyed.codec.frames import RecordFormat
from keyed.errors import DefinitionError, QueryFailed

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class Owner:
    """A query as the owner of the targets that it writes to.

    Attributes:
        queries: Id of the query, after those of the queries that it was restored from.
        next_batch: Id of the batch that it writes next.
        batches: Number of batches that the query itself has committed.
    """

    queries: Sequence[str]
    next_batch: int = 0
    batches: int = 0

    @property
    def query(self) -> str:
        """Id of the query."""
        return self.queries[-1]

    @property
    def earlier(self) -> Sequence[str]:
        """Ids of the queries that it was restored from."""
        return self.queries[:-1]

    def continues(self, queries: Iterable[str]) -> bool:
        """Return true if it is one of these queries, or was restored from one."""
        return not {*queries}.isdisjoint(self.queries)


#: Of what keyed records in tables.
PREFIX = "keyed-"


@attrs.frozen
class BatchMark:
    """The last batch of a query, as a target records it in the transaction of the rows.

    Attributes:
        query: Id of the query.
        batch: Id of the batch; −1 before the first.
        note: Further properties.
    """

    query: str
    batch: int = -1
    note: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """The mark as properties of a commit."""
        values = {"query": self.query, "batch": str(self.batch), **self.note}
        return {PREFIX + name: value for name, value in values.items()}

    @classmethod
    def of_commits(cls, query: str, commits: Iterable[Mapping[str, Any]]) -> Iterator[BatchMark]:
        """Yield the marks of a query in the properties of commits."""
        for commit in commits:
            note = {name.removeprefix(PREFIX): value for name, value in commit.items() if name.startswith(PREFIX)}
            if note.pop("query", None) == query:
                yield cls(query, int(note.pop("batch")), note)

    @property
    def offset(self) -> tuple[int, str]:
        """The mark as a committed offset, that of the next batch, and its metadata, with the note's ``digest``."""
        return self.batch + 1, f"{self.query} {self.note.get('digest', '')}"

    @classmethod
    def of_offset(cls, offset: int, metadata: str) -> BatchMark:
        """Return the mark of an offset and its metadata. One that was set by hand has no digest."""
        query, _, digest = metadata.partition(" ")
        return cls(query, offset - 1, {"digest": digest} if digest else {})


@attrs.frozen
class _Mark:
    queries: list[str]


_RECORD: RecordFormat[_Mark] = RecordFormat(b"KSNK", 1, _Mark)


def encode_mark(queries: Sequence[str]) -> bytes:
    """Return the mark of a query."""
    return _RECORD.encode(_Mark([*queries]))


def decode_mark(mark: bytes, where: str) -> list[str]:
    """Return the ids in a mark.

    Raises:
        CorruptionError: It is damaged.
    """
    return _RECORD.decode(mark, where).queries


#: Key and value of a topic's record, or ``None`` and an Arrow stream of rows.
Record = tuple[bytes | None, bytes]
#: The remedy for a target that holds no copies of state tables.
NO_COPY = (
    "must be keyed.topics.UpsertTopic(topic, bootstrap=...), or a sink with a key, such as "
    'keyed.delta_sink(path, mode="upsert", key=[...])'
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class SinkBatch(ABC):
    """The rows of one batch for a sink.

    Attributes:
        frame: On Spark the rows as a DataFrame, else ``None``. Without `Sink.rereads` each use computes the batch
            again.
        is_bad_rows: True for rows that a source could not read, whose columns may differ.
    """

    frame: Any = None
    is_bad_rows: bool = False

    @property
    @abstractmethod
    def rows(self) -> list[Any]:
        """The rows: values of the declared columns as `keyed.Row`, others as they were emitted."""

    @property
    @abstractmethod
    def table(self) -> pa.Table | None:
        """The rows as an Arrow table without their timestamps; ``None`` if there are none."""


class CopiedTable(Protocol):
    """Protocol of a state table as its copies see it.

    Attributes:
        key: The columns that identify a row.
    """

    key: tuple[str, ...]

    @property
    def columns(self) -> dict[str, pa.DataType | None]:
        """All columns with their types; ``None`` for a type that is not declared."""

    @property
    def digest(self) -> str:
        """A digest of the columns and their types; empty if they are not known yet."""

    def schema(self) -> pa.Schema:
        """Return the columns as a schema.

        Raises:
            DefinitionError: A column has no declared type.
        """

    def stored_schema(self) -> pa.Schema:
        """Return the columns of `SinkBatch.table`: times are in microseconds."""


@attrs.define
class Written:
    """Counts of a transaction of a copy.

    Attributes:
        rows: Written rows.
        tombstones: Removed rows.
    """

    rows: int = 0
    tombstones: int = 0


@attrs.frozen
class TableChanges:
    """Changes of a copy of a state table.

    Attributes:
        table: The table; ``None`` if its columns are not known: then there are no rows.
        upserts: Rows that replace those with their keys, in parts: dicts by column, and tables. Each key comes once.
        removed: Keys of rows to remove, in parts.
        replaces: True to remove all rows that are not among ``upserts``.
        written: Counts of both, as they are iterated. A writer that writes only differences corrects them.
    """

    table: CopiedTable | None
    upserts: Iterable[SinkBatch] = ()
    removed: Iterable[SinkBatch] = ()
    replaces: bool = False
    written: Written = attrs.field(factory=Written)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the rows as tables; ``None`` for those of the target.

        Raises:
            DefinitionError: A column has no declared type.
        """
        return None if self.table is None else self.table.stored_schema()


class SinkWriter:
    """Writes the batches of one query in one run. One thread at a time uses it.

    Attributes:
        id: Name of the target, for committed records and messages; empty if `pack` returns ``None``.
        copy_key: The columns that identify a row of a copy; ``None`` if any may.
    """

    id: str = ""
    copy_key: Sequence[str] | None = None

    def claim(self, repeated: int | None = None) -> None:
        """Claim the target for the query, before anything is written to it in this run.

        Args:
            repeated: Id of a batch that an earlier run may have written; ``None`` if the next batch is a new one.

        Raises:
            SinkError: It belongs to another query, or cannot be used.
        """

    def prepare(self, schema: pa.Schema) -> None:
        """Make the target fit the declared columns of the output. Called after `claim` if there are any.

        Raises:
            SinkError: The target has other columns.
        """

    def pack(self, batch: SinkBatch) -> list[Record] | None:
        """Return the records for `write`; by default ``None``: `write` gets the batch itself, and can replace it."""
        return None

    @staticmethod
    def packed(table: pa.Table) -> list[Record]:
        """Return a table as records; none if it has no rows."""
        from keyed.codec.arrow_streams import write_stream

        return [(None, write_stream(table))] if table.num_rows else []

    @staticmethod
    def unpack(records: Sequence[Record]) -> pa.Table:
        """Return the table of records that `packed` returned.

        Raises:
            CorruptionError: The records are damaged.
        """
        from keyed.codec.arrow_streams import read_stream

        return read_stream(records[0][1], "the rows of the last batch for a table")

    def write(self, rows: Any, batch_id: int) -> None:
        """Write a batch, unless it was written before.

        Args:
            rows: The records of `pack`, or the batch if it returned ``None``.
            batch_id: Its id.

        Raises:
            SinkError: It cannot be written.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define write")

    def last_copy(self) -> tuple[int, Mapping[str, str]] | None:
        """Return the number, 0 before the first, and the note, if it is known, of the last `write_changes`.

        ``None`` if the target has other rows.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define last_copy")

    def digest_copy(self, table: CopiedTable) -> str:
        """Return a digest of the columns of a copy and of their format, by default that of the columns.

        If it differs from that of the last `write_changes`, the next ones replace all rows.

        Raises:
            KeyedError: The target cannot hold the table.
        """
        return table.digest

    def write_changes(self, changes: TableChanges, number: int, note: Mapping[str, str]) -> bool:
        """Write changes of a copy of a state table in one transaction, with its number, from 1 on, and a note.

        Returns false, and writes nothing, if the last transaction has not the number before.

        Args:
            changes: `TableChanges`: ``upserts``, rows that replace those with their keys, ``removed``, keys, and
                ``schema``, all columns, ``None`` if there are no rows. If ``replaces``, all other rows are removed.
            number: The number.
            note: ``token``, the position in the table's changes, ``columns``, the digest of `digest_copy`, and
                ``state-batch``, the id of the batch.

        Raises:
            SinkError: They cannot be written.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define write_changes")

    def is_transient(self, error: BaseException) -> bool:
        """Return true if an error of a copy may be transient, so that it is claimed again."""
        return isinstance(error, OSError)

    def close(self) -> None:
        """Release connections and locks.

        On Spark it is called after each batch, before further calls of `write`.
        """


class SparkSide(Protocol):
    """Protocol of the Spark runtime as sinks see it."""

    @property
    def session(self) -> Any:
        """The session of the query's source."""

    @property
    def is_remote(self) -> bool:
        """True over Spark Connect."""

    @property
    def is_mounted(self) -> bool:
        """True if paths without a scheme are folders of this machine that Spark's tasks reach too."""

    @property
    def repeats(self) -> bool:
        """True if a batch may come again."""

    def essence(self, error: BaseException) -> str:
        """Return the relevant part of the text of Spark's error."""

    def failed(self, sink: Sink, error: Exception) -> Exception:
        """Return the error for an exception of Spark; one of a worker keeps its type."""


class Sink(Shown, ABC):
    """A destination of an output, as declared. It may be sent to other processes.

    Attributes:
        makes_files: True if each batch makes a file or version, so that batches should not be small.
        prints: True if writing may print to the terminal.
        rereads: True if a DataFrame is read more than once.
        namespaces: True if copies have the namespace of a state as a column of the key.
        collected: The values of each batch, by its id, if the sink keeps them in this process.
    """

    makes_files = False
    prints = False
    rereads = False
    namespaces: bool = False
    collected: dict[int, list[Any]] | None = None

    @property
    def title(self) -> str:
        """The sink, for messages."""
        return repr(self)

    @property
    def identity(self) -> Hashable:
        """The identity of the target, which two outputs of a query cannot share; ``None`` if they can."""
        return None

    @property
    def clash(self) -> str:
        """The message for two outputs with one target."""
        return (
            f"two outputs go to {self.title}, and the second would replace the first; give each output a sink of its "
            "own"
        )

    def check(self, schema: Schema | None, spark: SparkSide | None) -> None:
        """Check a query's output before the query is started.

        Args:
            schema: The declared columns of the output.
            spark: The Spark runtime; ``None`` in the local runtime.

        Raises:
            KeyedError: This runtime cannot write to the sink.
        """

    @abstractmethod
    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """Return the writer of a run, which has created nothing yet.

        Args:
            owner: The query.
            schema: The declared columns of the output; ``None`` if the first rows decide, in the local runtime.

        Raises:
            SinkError: The output lacks columns.
            ExtraNotInstalled: A package is not installed.
        """

    def open_copy(self, owner: Owner) -> SinkWriter:
        """Return a writer that has `SinkWriter.write_changes`, for `keyed.tables.StateTable.replicate`.

        Raises:
            DefinitionError: The sink does not hold copies.
        """
        raise DefinitionError(f"replicate: {self!r} {NO_COPY}")

    def open_on_spark(self, owner: Owner, schema: Schema, spark: SparkSide) -> SinkWriter:
        """Return the writer of a run on Spark; by default that of `open`, in Spark's driver."""
        return self.open(owner, schema)


def check_distinct(sinks: Iterable[Sink]) -> None:
    """Check that no two outputs of a query have the same sink, where the second would replace the first.

    Raises:
        DefinitionError: Two have: the same folder under any names, or the same collecting sink.
    """
    seen = set()
    for sink in sinks:
        identity = sink.identity
        if identity is not None and identity in seen:
            raise DefinitionError(sink.clash)
        seen.add(identity)


def claim_order(sinks: Mapping[Any, SinkWriter]) -> list[Any]:
    """Return outputs in the order of their claims: a claim of a writer that replaces batches may remove files."""
    return sorted(sinks, key=lambda output: not sinks[output].id)


def failed(sink: Sink, batch_id: int, error: Exception) -> QueryFailed:
    """Return the error for an exception of a sink; raise it from that exception."""
    return QueryFailed(f"{sink.title} cannot take batch {batch_id}: {type(error).__name__}: {error}")


def local_folder(path: str) -> Path | None:
    """Return the folder of this machine that a path names; ``None`` if it has another scheme than ``file``."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(path) else Path(path).absolute()


def folder_identity(path: str) -> Hashable:
    """Return the identity of a folder under any of its names."""
    folder = local_folder(path)
    if folder is None:
        scheme, _, rest = path.partition(":")
        return scheme.lower(), re.sub("/+", "/", rest).rstrip("/")
    folder = folder.resolve()
    # Other names may lead to one folder without a link: where case does not matter, or over a mount.
    return folder.stat()[1:3] if folder.exists() else folder
