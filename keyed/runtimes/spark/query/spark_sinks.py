"""Writing a micro-batch's outputs on Spark: each sink's writer gets its output as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from keyed.arrow.read import raw_rows
from keyed.arrow.write import arrow_schema
from keyed.base.schemas import Schema
from keyed.destinations.function import CallingWriter
from keyed.destinations.parquet import write_folder
from keyed.destinations.sink import Owner, Sink, SinkBatch, SinkWriter, SparkSide, claim_order
from keyed.errors import QueryFailed, SinkError
from keyed.runtimes.recording import Recorder
from keyed.runtimes.spark.plan.build import Route
from keyed.runtimes.spark.query.failures import essence, is_gone, translated
from keyed.runtimes.spark.session.spark_session import is_remote, shares_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@attrs.frozen
class SparkRuntime:
    """The Spark runtime as sinks see it. See `SparkSide`."""

    session: SparkSession
    is_mounted: bool
    repeats: bool

    @classmethod
    def of(cls, session: SparkSession) -> SparkRuntime:
        """Return it for a check before a query is started."""
        return cls(session, shares_files(session), repeats=True)

    @property
    def is_remote(self) -> bool:
        """See `SparkSide`."""
        return is_remote(self.session)

    def essence(self, error: BaseException) -> str:
        """See `SparkSide`."""
        return essence(error, str(error))

    def failed(self, sink: Sink, error: Exception) -> Exception:
        """See `SparkSide`."""
        if is_gone(error):
            return error
        failure = translated(error, "")
        return SinkError(f"{sink!r}: {self.essence(error)}") if isinstance(failure, QueryFailed) else failure


class FrameBatch(SinkBatch):
    """The rows of a batch. See `SinkBatch`."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame

    @property
    def rows(self) -> list[Any]:
        """See `SinkBatch`."""
        return raw_rows(self._collected)

    @property
    def table(self) -> pa.Table | None:
        """See `SinkBatch`."""
        return self._collected if self._collected.num_rows else None

    @cached_property
    def _collected(self) -> pa.Table:
        table: pa.Table = self.frame.toArrow()
        return table


@attrs.frozen
class FolderSink(Sink):
    """Parquet in a folder ``<path>/batch=<batch id>`` for each batch, on any file system, for values to collect."""

    path: str

    @property
    def title(self) -> str:
        """See `Sink`."""
        return f"the Parquet sink {self.path!r}"

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `Sink`."""
        return CallingWriter(lambda rows, batch_id: write_folder(rows.frame, self.path, batch_id))


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
    sinks: Sequence[Sink]
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
    #: The writers of the sinks by the number of the output, once the targets are claimed.
    _writers: dict[int, SinkWriter] = attrs.field(factory=dict, init=False)

    def claim(self, session: SparkSession, batch_id: int) -> None:
        """Claim the targets of the sinks for this query, before it writes.

        Args:
            session: The session.
            batch_id: Spark's id of the next batch.

        Raises:
            SinkError: One belongs to another query, or has other columns.
        """
        owner = Owner(self._queries(session), self.first_batch + batch_id, batch_id)
        spark: SparkSide = SparkRuntime(session, self.mounted, bool(self.checkpoint))
        schemas = [route.schema if route.result is None else route.result for route in self.routes]
        repeats = batch_id > 0 if self.repeats is None else self.repeats
        writers = {
            number: sink.open_on_spark(owner, schema, spark)
            for number, (sink, schema) in enumerate(zip(self.sinks, schemas, strict=True))
        }
        for number in claim_order(writers):
            self.place = f", {_shown(self.sinks[number])},"
            with closing(writers[number]) as writer:
                writer.claim(owner.next_batch if repeats else None)
                writer.prepare(arrow_schema(schemas[number]))
        self._writers = writers

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch."""
        if self.recorder is not None:
            # Tasks record rows as soon as any part of the batch is computed.
            queries = self._queries(frame.sparkSession)
            self.recorder.claim(Owner(queries, self.first_batch + batch_id, batch_id))
            self.recorder.begin(batch_id)
        # Each action would run the stateful operators again, so a batch that is read more than once is cached.
        restores = self.restores and batch_id == 0
        kept = restores or len(self.sinks) > 1 or self.sinks[0].rereads
        if kept:
            frame = frame.persist()
        try:
            if restores:
                # It may fail because the changelog was compacted, and begin with a later batch at the next attempt. The
                # files of the earlier query up to that batch must still exist then.
                frame.count()
            if not self._writers:
                self.claim(frame.sparkSession, batch_id)
            for call in self.before:
                call(batch_id)
            written, batch_id = batch_id, batch_id + self.first_batch
            for number, (route, sink) in enumerate(zip(self.routes, self.sinks, strict=True)):
                self.place = f", batch {batch_id} for {_shown(sink)},"
                batch = FrameBatch(route.frame(frame))
                with closing(self._writers[number]) as writer:
                    records = writer.pack(batch)
                    writer.write(batch if records is None else records, batch_id)
        except BaseException as error:
            self.error = error
            raise
        finally:
            if kept:
                frame.unpersist()
        self.written = written

    def _queries(self, session: SparkSession) -> Sequence[str]:
        return self.queries or [_spark_id(session, self.checkpoint)]


def _spark_id(session: SparkSession, checkpoint: str) -> str:
    """Return Spark's id of the query."""
    (line,) = session.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
    return str(json.loads(line.value)["id"])


def _shown(sink: Sink) -> str:
    """Return the name of a sink for messages."""
    return sink.title.replace("the function", "the sink")
