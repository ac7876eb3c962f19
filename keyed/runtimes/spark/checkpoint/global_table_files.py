"""Versions of global tables: files of a checkpoint that its query reads as a stream.

A rerun of a batch therefore has the same versions, even if the table has changed. The files of a table are Parquet, one
row each, in ``keyed-global/<name of the state>``: the name, a number that counts the versions, the digest of the
version, and the rows as an Arrow IPC stream. Versions that were replaced before the oldest batch that Spark keeps
(``spark.sql.streaming.minBatchesToRetain``) are deleted, if this program reaches the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from keyed.errors import CheckpointError, DefinitionError
from keyed.job.global_tables import GlobalTable, TableReader, TableVersion
from keyed.job.graph import Stage
from keyed.runtimes.spark.checkpoint.begin import file_batch, logged
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_FOLDER = "keyed-global"
_COLUMNS = "name string, number bigint, digest string, rows binary"
#: Number of batches between two deletions of old versions.
_TIDY = 10


def table_now(session: SparkSession, streams: bool, table: GlobalTable) -> DataFrame:
    """Return a table's current content as a DataFrame, for a query without its own checkpoint.

    Args:
        session: The session.
        streams: True if the query is a stream, for which it raises an error.
        table: The table.
    """
    if streams:
        raise DefinitionError(
            f"global table {table.state.name!r}: a stream keeps the versions of a table in its checkpoint, which "
            "the DataFrame of an output lacks; use run(...) or start(...)"
        )
    return _row(session, table, 1, table.version())


class TableFiles:
    """The versions of global tables in a checkpoint.

    Args:
        session: The session.
        folder: The checkpoint.
        last: The last stage of the chain that reads the tables.

    Attributes:
        query: The query, once it has started.
    """

    def __init__(self, session: SparkSession, folder: CheckpointFolder, last: Stage) -> None:
        self.query: StreamingQuery | None = None
        self._session = session
        self._folder = folder
        tables = (source.data for source in last.sources if isinstance(source.data, GlobalTable))
        self._tables = [(table, TableReader(table)) for table in tables]
        self._numbers: dict[str, int] = {}
        for table, reader in self._tables:
            self._numbers[table.state.name], digest = self._newest(table)
            reader.seek(digest)

    def write_changed(self) -> None:
        """Write the tables that have changed.

        Raises:
            SourceError: The first read of a table failed.
        """
        for table, reader in self._tables:
            version = reader.changed()
            if version is not None:
                self._numbers[table.state.name] += 1
                row = _row(self._session, table, self._numbers[table.state.name], version)
                row.coalesce(1).write.mode("append").parquet(self._path(table))

    def before_batch(self, batch: int) -> None:
        """Delete old versions periodically, in the query's thread: Spark lists the files between batches."""
        if batch % _TIDY == 0:
            self.tidy()

    def tidy(self) -> None:
        """Delete the versions that were replaced before the oldest batch that Spark keeps, while it lists no files."""
        report = self.query.lastProgress if self.query is not None and self._tables else None
        if self._folder.is_writable and report is not None:
            # They are deleted later.
            with suppress(CheckpointError):
                self._tidy(report)

    def _tidy(self, report: Mapping[str, Any]) -> None:
        folder = self._folder
        lines = folder.offsets(min(folder.numbers("offsets"))) or []
        for table, _ in self._tables:
            path = f"{_FOLDER}/{table.state.name}"
            present = {name for name in folder.names(path) if name.endswith(".parquet")}
            for number, (source, line) in enumerate(zip(report["sources"], lines, strict=False)):
                batch = file_batch(line) if source["description"].endswith(f"/{path}/*.parquet]") else None
                # A version is a batch of the source.
                if batch and len(present) > 1:
                    replaced = {entry["path"].rpartition("/")[2] for entry in logged(folder, number, 0, batch - 1)}
                    for name in replaced & present:
                        folder.delete(f"{path}/.{name}.crc")
                        folder.delete(f"{path}/{name}")

    def stream(self, table: GlobalTable) -> DataFrame:
        """Return the versions of a table as a stream, one per batch, once the first was written."""
        reader = self._session.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1)
        # The log of a restored query has the files of the earlier one, which Spark refuses for a plain folder.
        return reader.parquet(f"{self._path(table)}/*.parquet").select("name", "rows")

    def _path(self, table: GlobalTable) -> str:
        return f"{self._folder.path.rstrip('/')}/{_FOLDER}/{table.state.name}"

    def _newest(self, table: GlobalTable) -> tuple[int, str]:
        """Return the number and the digest of the newest version; 0 and an empty text before the first."""
        from pyspark.errors import PySparkException

        try:
            versions = self._session.read.schema(_COLUMNS).parquet(self._path(table))
            newest = versions.selectExpr("max(struct(number, digest)) AS newest").first()
        except PySparkException:
            # There is no other way to check for a folder on a file system that only Spark reaches.
            return 0, ""
        return (0, "") if newest is None or newest.newest is None else (newest.newest.number, newest.newest.digest)


def _row(session: SparkSession, table: GlobalTable, number: int, version: TableVersion) -> DataFrame:
    row = (table.state.name, number, version.digest, bytearray(version.rows))
    return session.createDataFrame([row], _COLUMNS)
