"""Writing a micro-batch's outputs on Spark, each under the batch's id, replacing earlier files of the same batch.

A mounted folder gets flat files ``part-<batch id>-<n>.parquet``, as in the local runtime, also on a cluster. Spark
writes them to a staging folder beside them, ``_staging-<batch id>``, which readers skip; they are moved into place when
all are written. If the path has a scheme that only Spark reaches, each batch has a folder ``batch=<batch id>`` that
Spark overwrites. A mounted folder that a query over Spark Connect began keeps this form, because Spark's reader skips
files beside such folders.
"""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import attrs

from keyed.arrow.unreadable import raw_rows
from keyed.errors import DefinitionError, SinkError
from keyed.runtimes.kafka_sink import TopicWriter
from keyed.runtimes.recording import Recorder
from keyed.runtimes.sink_folder import MARK, LocalFolder, SinkFolder, check_columns, claim, last_file
from keyed.runtimes.spark.plan.build import Route
from keyed.runtimes.spark.query.lake_tables import LakeTable, lake_table
from keyed.sinks import CollectSink, FunctionSink, ParquetSink, Sink, TableSink, local_folder
from keyed.topics import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


#: Start of the name of the file that Spark's first task writes.
_FIRST = "part-00000-"


@attrs.frozen
class FolderSink:
    """Parquet in a folder ``<path>/batch=<batch id>`` for each batch, on any file system."""

    path: str


@attrs.define(eq=False)
class Writer:
    """Writes the outputs of one query. ``foreachBatch`` calls `write`.

    Attributes:
        routes: The outputs as parts of the query's DataFrame.
        sinks: The sink of each output.
        mounted: True if paths without a scheme are folders of this machine that Spark's tasks reach too.
        checkpoint: The query's checkpoint; empty if it has none.
        queries: Id of the query, after those of the queries that it was restored from; empty if this program cannot
            reach the checkpoint, in which case Spark's own id is used.
        first_batch: Id of Spark's batch 0 for sinks.
        restores: True if the key groups load their state in Spark's batch 0.
        recorder: The recorder of the input, if it is recorded.
        before: Functions that are called with Spark's id of each batch before it runs.
        error: The error of the last write.
        place: The output that was being written, for a message.
        written: Spark's id of the last written batch.
        repeats: True if an earlier run has begun the next batch; ``None`` if this program cannot know it.
    """

    routes: Sequence[Route]
    sinks: Sequence[Sink | FolderSink]
    mounted: bool
    checkpoint: str = ""
    queries: Sequence[str] = ()
    first_batch: int = 0
    restores: bool = False
    before: Sequence[Callable[[int], object]] = ()
    recorder: Recorder | None = None
    error: BaseException | None = None
    place: str = ""
    written: int = -1
    repeats: bool | None = False
    _is_claimed: bool = attrs.field(default=False, init=False)
    #: The writers of the sinks of tables, by the number of the output.
    _tables: dict[int, LakeTable] = attrs.field(factory=dict, init=False)
    #: The folder of each sink that gets flat files, and ``None`` for the others, by path.
    _folders: dict[str, Path | None] = attrs.field(factory=dict, init=False)

    def claim(self, session: SparkSession, batch_id: int) -> None:
        """Claim the folders of the sinks for this query, before it writes.

        Args:
            session: The session.
            batch_id: Spark's id of the next batch.

        Raises:
            SinkError: One belongs to another query.
        """
        queries = self._queries(session)
        for number, (route, sink) in enumerate(zip(self.routes, self.sinks, strict=True)):
            if isinstance(sink, TableSink):
                self.place = f", {_named(sink)},"
                schema = route.schema if route.result is None else route.result
                self._tables[number] = lake_table(sink, queries, schema, repeats=bool(self.checkpoint))
                self._tables[number].claim(session, self.first_batch + batch_id)
            if isinstance(sink, KafkaSink):
                repeats = batch_id > 0 if self.repeats is None else self.repeats
                with closing(TopicWriter(sink, queries)) as writer:
                    writer.claim(self.first_batch + batch_id if repeats else None)
            if isinstance(sink, ParquetSink):
                claim(sink, self._folder(session, sink), queries, batch_id, self.first_batch + batch_id)
        self._is_claimed = True

    def write(self, whole: DataFrame, batch_id: int) -> None:
        """Write one batch."""
        if self.recorder is not None:
            # Tasks record rows as soon as any part of the batch is computed.
            queries = self._queries(whole.sparkSession)
            self.recorder.claim(queries, batch_id, self.first_batch + batch_id)
            self.recorder.begin(batch_id)
        # Each action would run the stateful operators again, so a batch that is read more than once is cached.
        restores = self.restores and batch_id == 0
        kept = restores or len(self.sinks) > 1 or isinstance(self.sinks[0], FunctionSink | TableSink)
        if kept:
            whole = whole.persist()
        try:
            if restores:
                # It may fail because the changelog was compacted, and begin with a later batch at the next attempt. The
                # files of the earlier query up to that batch must still exist then.
                whole.count()
            if not self._is_claimed:
                self.claim(whole.sparkSession, batch_id)
                self._check_columns(whole)
            for call in self.before:
                call(batch_id)
            written, batch_id = batch_id, batch_id + self.first_batch
            for number, (route, sink) in enumerate(zip(self.routes, self.sinks, strict=True)):
                self.place = f", batch {batch_id} for {_named(sink)},"
                if isinstance(sink, TableSink):
                    self._tables[number].write(route.frame(whole), batch_id)
                else:
                    self._write(route.frame(whole), sink, batch_id)
        except BaseException as error:
            self.error = error
            raise
        finally:
            if kept:
                whole.unpersist()
        self.written = written

    def _check_columns(self, whole: DataFrame) -> None:
        """Compare the columns of the Parquet sinks with those of existing files.

        Raises:
            SinkError: The columns differ.
        """
        session = whole.sparkSession
        for route, sink in zip(self.routes, self.sinks, strict=True):
            if isinstance(sink, ParquetSink):
                folder = self._folder(session, sink)
                last = last_file(folder.parquet_files())
                if last is not None:
                    local = isinstance(folder, LocalFolder)
                    path = Path(folder.path, last).as_uri() if local else f"{folder.path.rstrip('/')}/{last}"
                    there, new = session.read.parquet(path).schema, route.frame(whole).schema
                    check_columns(sink.path, last, _types(there), _types(new))

    def _folder(self, session: SparkSession, sink: ParquetSink) -> SinkFolder:
        local = self._flat(sink)
        return SparkFolder(session, sink.path) if local is None else LocalFolder(str(local))

    def _flat(self, sink: ParquetSink) -> Path | None:
        """Return the folder of a sink with flat files; ``None`` if it has a folder for each batch."""
        if sink.path not in self._folders:
            folder = local_folder(sink.path) if self.mounted else None
            if folder is not None and ((folder / MARK).is_dir() or any(folder.glob("batch=*"))):
                folder = None
            self._folders[sink.path] = folder
        return self._folders[sink.path]

    def _write(
        self, frame: DataFrame, sink: ParquetSink | FolderSink | CollectSink | FunctionSink | KafkaSink, batch_id: int
    ) -> None:
        if isinstance(sink, ParquetSink | FolderSink):
            folder = self._flat(sink) if isinstance(sink, ParquetSink) else None
            if folder is not None:
                _write_files(frame, folder, batch_id)
            else:
                frame.write.mode("overwrite").parquet(batch_folder(sink.path, batch_id))
        elif isinstance(sink, CollectSink):
            sink.batches[batch_id] = collected(frame)
        elif isinstance(sink, FunctionSink):
            sink.call(frame, batch_id, self._queries(frame.sparkSession)[-1])
        elif isinstance(sink, KafkaSink):
            queries = self._queries(frame.sparkSession)
            with closing(TopicWriter(sink, queries)) as writer:
                writer.write(writer.records(collected(frame)), batch_id)
        else:
            assert_never(sink)

    def _queries(self, session: SparkSession) -> Sequence[str]:
        return self.queries or [_spark_id(session, self.checkpoint)]


@attrs.frozen
class SparkFolder:
    """A folder that Spark reaches, on any file system; see `keyed.runtimes.sink_folder.SinkFolder`."""

    session: SparkSession
    path: str

    def read_mark(self) -> bytes | None:
        """See `SinkFolder`.

        Raises:
            SinkError: Several queries have left a mark.
        """
        marks = self._marks()
        if len(marks) > 1:
            raise SinkError(
                f"Parquet sink {self.path!r}: {len(marks)} queries began to write to the folder at the same time; "
                f"remove {MARK} from it, and continue one of them"
            )
        return next(iter(marks), None)

    def write_mark(self, mark: bytes, *, new: bool) -> None:
        """See `SinkFolder`. Of several concurrent new marks, at most one is kept."""
        place = f"{self.path.rstrip('/')}/{MARK}"
        if not new:
            self._write_lines(place, mark)
            return
        own = f"{place}/{sha256(mark).hexdigest()[:16]}"
        self._write_lines(own, mark)
        if self._marks() != {mark}:
            self._write_lines(own)
            raise FileExistsError(MARK)

    def _write_lines(self, place: str, *marks: bytes) -> None:
        lines = self.session.createDataFrame([(b64encode(mark).decode(),) for mark in marks], "value string")
        lines.coalesce(1).write.mode("overwrite").text(place)

    def _marks(self) -> set[bytes]:
        found = self._files(MARK, "part-*")
        return {b64decode(row.value) for row in self.session.read.text(found).collect()} if found else set()

    def parquet_files(self) -> list[str]:
        """See `SinkFolder`."""
        return [
            name[name.rindex("/batch=") + 1 :] if "/batch=" in name else name.rpartition("/")[2]
            for name in self._files("", "*.parquet")
        ]

    def remove(self, files: Sequence[str]) -> None:
        """See `SinkFolder`."""
        for folder in {name.partition("/")[0] for name in files}:
            path = f"{self.path.rstrip('/')}/{folder}"
            # Spark has no other way to remove the content of a folder.
            empty = self.session.createDataFrame([], self.session.read.parquet(path).schema)
            empty.write.mode("overwrite").parquet(path)

    def _files(self, folder: str, pattern: str) -> list[str]:
        from pyspark.errors import PySparkException

        reader = self.session.read.format("binaryFile").option("pathGlobFilter", pattern)
        try:
            rows = (
                reader.option("recursiveFileLookup", "true")
                .load(f"{self.path.rstrip('/')}/{folder}")
                .select("path")
                .collect()
            )
        except PySparkException:
            # There is no such folder.
            return []
        return [row.path for row in rows]


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}


def _spark_id(session: SparkSession, checkpoint: str) -> str:
    """Return Spark's id of the query."""
    (line,) = session.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
    return str(json.loads(line.value)["id"])


def _named(sink: Sink | FolderSink) -> str:
    """Return the name of a sink for messages."""
    if isinstance(sink, FunctionSink):
        return f"the sink {getattr(sink.function, '__qualname__', None) or repr(sink.function)}"
    if isinstance(sink, CollectSink):
        return "a collecting sink"
    if isinstance(sink, KafkaSink | TableSink):
        return repr(sink)
    if isinstance(sink, ParquetSink | FolderSink):
        return f"the Parquet sink {sink.path!r}"
    assert_never(sink)


def batch_folder(path: str, batch_id: int) -> str:
    """Return the folder of one batch of a sink with a folder for each."""
    return f"{path.rstrip('/')}/batch={batch_id:010d}"


def collected(frame: DataFrame) -> list[Any]:
    """Return the rows of a DataFrame as `keyed.rows.Row`, with aware UTC times, in the order of its partitions."""
    # Bad rows may have values that Python cannot represent.
    return raw_rows(frame.toArrow())


def _write_files(frame: DataFrame, folder: Path, batch_id: int) -> None:
    """Replace the files of one batch."""
    staging = folder / f"_staging-{batch_id:010d}"
    frame.write.mode("overwrite").parquet(staging.as_uri())
    if not any(staging.glob("part-*.parquet")):
        raise DefinitionError(
            f"Parquet sink {str(folder)!r}: Spark wrote the files on other machines; give a path that all machines "
            "reach, with its scheme: hdfs://... or s3a://..., or a folder that is mounted on all"
        )
    # Of the tasks without rows only the first one writes a file.
    written = [
        path for path in sorted(staging.glob("part-*.parquet")) if not path.name.startswith(_FIRST) or _has_rows(path)
    ]
    for old in folder.glob(f"part-{batch_id:010d}-*.parquet"):
        old.unlink()
    if not written and not any(folder.glob("part-*.parquet")):
        # An output without rows is still a table with columns.
        written = sorted(staging.glob("part-*.parquet"))[:1]
    for number, path in enumerate(written):
        path.replace(folder / f"part-{batch_id:010d}-{number:04d}.parquet")
    shutil.rmtree(staging)


def _has_rows(path: Path) -> bool:
    import pyarrow.parquet as pq

    return bool(pq.ParquetFile(path).metadata.num_rows)
