"""A chain over a stream with a checkpoint, ready to be started as a Spark query, and the query's background work.

Spark calls a function of this program with each batch, a `Callback`. A query's thread in the JVM opens a connection for
its calls, which a thread of this program serves. py4j closes it on neither
side when the query ends: each query would leak a thread and a descriptor here, and a descriptor in the JVM.
py4j also holds the function until the JVM has collected its proxy, which it never does while the function holds
DataFrames of the query.

The background work of a running query is publishing batches, writing ticks, and reading global tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.background import Background
from keyed.base.closing import closing_on_error
from keyed.base.private_files import make_private
from keyed.changelog.model import batch_id
from keyed.destinations.parquet import batch_folder
from keyed.destinations.sink import Sink, local_folder
from keyed.errors import ChangelogDiverged, CorruptionError, DefinitionError
from keyed.job.chaining import lines
from keyed.job.graph import BoundOutput, Stage
from keyed.job.options import Options
from keyed.job.results import Progress, Restored
from keyed.recovery.cut import Cut
from keyed.runtimes.metrics_export import MetricsExport
from keyed.runtimes.recording import Recorder, recorder
from keyed.runtimes.spark.checkpoint.begin import Begin, begin, begin_at, defined_states, read_begin, take_position
from keyed.runtimes.spark.checkpoint.checkpoint_lease import CheckpointLease
from keyed.runtimes.spark.checkpoint.folder import checkpoint_folder, spark_path
from keyed.runtimes.spark.checkpoint.global_table_files import TableFiles
from keyed.runtimes.spark.checkpoint.spark_recovery import check_path, checked_layout
from keyed.runtimes.spark.checkpoint.ticks import Ticks, ticks_of
from keyed.runtimes.spark.plan.build import Plan, parallelism_of
from keyed.runtimes.spark.query.exports import Exports, group_marks, summed
from keyed.runtimes.spark.query.failures import has_lost_jvm, is_gone, raise_translated
from keyed.runtimes.spark.query.job import PARTITIONS, Job, partitions_of
from keyed.runtimes.spark.query.spark_sinks import FolderSink, FrameBatch, Writer
from keyed.runtimes.spark.session.ship import shipped
from keyed.runtimes.spark.session.spark_session import checkpoint_settings, is_here, settings, shares_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


#: Errors after which a retry does not help.
_LASTING = (ChangelogDiverged, CorruptionError, DefinitionError)
#: Seconds between two polls of the query: the maximal delay of due work, in addition to the trigger's interval.
_POLL = 0.2
#: Seconds between two polls from the end of a batch's writing to Spark's report of its commit.
_MOMENT = 0.02
#: The same as a multiple of the duration of the last poll: a report of many key groups takes its time.
_PAUSE = 4
#: Seconds between two polls of a query without ticks.
_RARELY = 1.0


@attrs.define(eq=False, repr=False, slots=False)
class Ticker:
    """Does the background work for one query until it has ended.

    Something is due at the time of a processing-time timer, and while changes of a batch are not in the changelogs,
    which get them with the next batch. There is at most one unread tick.

    Attributes:
        work: The thread. An error that ends it also ends the query.

    Args:
        query: The query, which was started with a tick if it has ticks.
        ticks: Its ticks; ``None`` if it has none.
        exports: Its changelogs.
        writer: The writer of its batches; ``None`` if they are written in another process.
        tables: The global tables that it reads.
        ended: Called when the query has ended, or was stopped because of an error of the thread.
    """

    _query: StreamingQuery
    _ticks: Ticks | None
    _exports: Exports
    _writer: Writer | None
    _tables: TableFiles
    _ended: Callable[[], None]

    def __attrs_post_init__(self) -> None:
        self.work = Background(
            "the thread for the query's timers and changelogs",
            self._step,
            is_transient=lambda error: not isinstance(error, _LASTING),
            at_end=self._failed,
        )
        self._looked = self._next = 0.0
        self._batch = -1
        self._offset: str | None = None
        self._waits = True
        self._due: int | None = None
        # The report whose export failed: it is tried again while a newer batch is written and not committed yet.
        self._unexported: Mapping[str, Any] | None = None

    def end(self) -> None:
        """Stop writing ticks and publishing; a publication in progress is completed before this returns."""
        self.work.close()

    def _step(self) -> float | None:
        """Poll the query periodically, and more often when a batch is about to be committed."""
        now = time.monotonic()
        written = -1 if self._writer is None else self._writer.written
        due = self._next if written > self._batch else self._looked + _POLL
        # A call that does nothing would count as the success of a failed call's repetition.
        if now < due and self.work.trouble is None:
            return _MOMENT
        self._looked = now
        try:
            if not self._query.isActive:
                self._ended()
                return None
            if self._ticks is None:
                return _RARELY
            report: Mapping[str, Any] | None = None
            if self._writer is None:
                report = self._query.lastProgress
            elif written > self._batch:
                report = self._exports.committed_report(written) or self._unexported
                self._next = time.monotonic() + _PAUSE * (time.monotonic() - now)
            self._look(report, self._ticks)
            self._tables.write_changed()
        except Exception as error:
            if has_lost_jvm(error, self._query):
                self._ended()
            elif not is_gone(error):
                raise
            return None
        return _MOMENT

    def _failed(self, _: BaseException) -> None:
        """Stop the query: its timers would not fire, and its changelogs would lack batches."""
        # It fails if the JVM has ended.
        with suppress(Exception):
            self._query.stop()
            self._ended()

    def _look(self, report: Mapping[str, Any] | None, ticks: Ticks) -> None:
        problem: Exception | None = None
        # Spark also reports triggers without a batch, under the id of the next batch.
        if report is not None and report["batchId"] != self._batch and "addBatch" in report["durationMs"]:
            self._due = self._exports.next_work(report)
            source = len(report["sources"]) - 1
            offset = str(report["sources"][source]["endOffset"])
            if offset != self._offset:
                ticks.note_offset(source, offset)
                self._offset, self._waits = offset, False
            try:
                self._exports.after_batch(report)
                self._batch, self._unexported = report["batchId"], None
            except Exception as error:  # noqa: BLE001 - ticks come all the same
                problem, self._unexported = error, report
            self._due = self._exports.next_work(report)
        if self._due is not None and not self._waits and self._due <= time.time() * 1000:
            ticks.write()
            self._waits = True
        if problem is not None:
            raise problem


class Callback:
    """A function for ``foreachBatch`` of a query in this program's own JVM.

    Args:
        function: Called with the DataFrame and the id of each batch, in a thread of the query.
    """

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function: Callable[[DataFrame, int], None] | None = function
        #: The JVM's py4j client for this program, and the query's connection in it.
        self._connection: tuple[Any, Any] | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Call the function."""
        if self._connection is None:
            self._connection = _connection_of(frame)
        assert self._function is not None
        self._function(frame, batch_id)

    def close(self) -> None:
        """Release the connection and the function, once the query has ended. Closing again does nothing."""
        self._function = None
        connection, self._connection = self._connection, None
        if connection is not None:
            client, its_end = connection
            # A JVM that has ended has closed it.
            with suppress(Exception):
                client.connectionStopped(its_end)
                # The thread of this program ends when it reads the end of the stream.
                its_end.shutdown()


def _connection_of(frame: DataFrame) -> tuple[Any, Any] | None:
    """Return the JVM's client of this program and its connection of this thread; ``None`` if not accessible."""
    from py4j.clientserver import ClientServer
    from py4j.java_gateway import JavaObject
    from py4j.protocol import Py4JError

    gateway = frame.sparkSession.sparkContext._gateway  # noqa: SLF001 - pyspark has no other way to py4j
    # Without pinned threads (PYSPARK_PIN_THREAD) calls share connections, and py4j closes idle ones.
    if not isinstance(gateway, ClientServer):
        return None
    try:
        client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()  # noqa: SLF001 - as above
        return client, client.getPerThreadConnection()
    except Py4JError:
        # Managed Spark may allow only some methods.
        return None


class StreamJob(Job):
    """A chain over a stream with a checkpoint.

    Args:
        last: The last stage.
        outputs: Outputs of the chain with their sinks.
        options: The user's options.
        export: The export of its metrics, which ends when the job is closed.

    Attributes:
        points: The pending restore points of the operators, by name: see `begin_at`.

    Raises:
        DefinitionError: An option is missing, or the checkpoint cannot be restored into.
        CheckpointError: The checkpoint belongs to another query, or another run is using it.
    """

    def __init__(
        self, last: Stage, outputs: tuple[BoundOutput, ...], options: Options, export: MetricsExport | None = None
    ) -> None:
        super().__init__(last, outputs, options, export)
        if options.checkpoint is None:
            raise DefinitionError(
                "a streaming DataFrame needs checkpoint=<folder>, where Spark keeps position and state"
            )
        self._checkpoint = spark_path(self._session, os.fspath(options.checkpoint))
        self._query_name = options.query_name
        self._lease: CheckpointLease | None = None
        #: A started query: once it has ended, another one may take over the checkpoint, whether or not it was stopped.
        self.started: StreamingQuery | None = None
        self._callbacks: list[Callback] = []
        self._tables: TableFiles | None = None
        if self._remote:
            options.refuse(
                {
                    "record": "is not supported over Spark Connect, where the server writes the rows of a batch; leave "
                    "it out, or run the query in Spark's own program"
                }
            )
        self._record = recorder(options.record, last.chain[0])
        self._here = is_here(self._session)
        if self._changelogs:
            check_path(self._checkpoint)
        folder = local_folder(self._checkpoint)
        if folder is not None and self._here:
            # Created before Spark, which would make it readable for all.
            make_private(folder, group=options.group_access)
            # Over Spark Connect the program cannot ask the JVM for its lock.
            self._lease = CheckpointLease(folder, self._has_ended, None if self._remote else self._session)
        elif folder is not None and not self._remote and shares_files(self._session):
            # A mount, whose modes apply to the executors too.
            folder.mkdir(parents=True, exist_ok=True)
            self._lease = CheckpointLease(folder, self._has_ended, self._session)
        with closing_on_error(self):
            self._resolve_start(options)

    def _resolve_start(self, options: Options) -> None:
        """Determine the start of the query, while the lease keeps other queries from changing it."""
        last = self._last
        self._folder = checkpoint_folder(self._session, self._checkpoint)
        if self._folder.is_writable:
            record = begin(self._folder, self.points, ticks=last.ticks, states=defined_states(last.chain))
        elif self.points:
            raise DefinitionError(
                f"restore_from= of operator {min(self.points)!r}: over Spark Connect this program cannot write to the "
                f"checkpoint {self._checkpoint}; give it a folder that this program shares with Spark's server, run "
                "the query in Spark's own program, or write <output>.df with writeStream, which restores state without "
                "the position in the source"
            )
        else:
            # Its sinks depend on it.
            record = read_begin(self._folder)
        self._begin = record or Begin()
        if record is not None:
            # It was restored before.
            self.points = {}
        self._exports = Exports(
            self._session, self._folder, self._changelogs, ticks=last.ticks, written_here=self.writes_here
        )

    def close(self) -> None:
        """Release the checkpoint for other queries, once this one has ended. Closing again does nothing."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback.close()
        self.export.close()
        if self._lease is not None:
            self._lease.release()

    def _has_ended(self) -> bool:
        try:
            return self.started is not None and not self.started.isActive
        except Exception as error:
            if not is_gone(error):
                raise
            return True

    @property
    def first_batch(self) -> int:
        """The id of Spark's batch 0 in sinks."""
        return self._begin.first_batch

    @property
    def restored(self) -> Restored | None:
        """The batch and position from which this program restores the query."""
        return None if self._cut is None else Restored(batch_id(self._cut.sequence), self._begin.with_position)

    def begin_at(self, cut: Cut) -> None:
        """Make the key groups load the state of a cut in their first batch."""
        self._begin = begin_at(self._folder, cut, ticks=self._last.ticks, states=defined_states(self._last.chain))
        self._cut = cut

    @property
    def takes_position(self) -> bool:
        """Return true if `take_position` has to set the position of an earlier query, once there is state."""
        return self._begin.sources is not None

    def take_position(self) -> None:
        """Make the query's sources resume at the position of the earlier query."""
        self._begin = take_position(self._folder, self._begin)

    def flush(self) -> None:
        """Export the last batch, which can no longer be undone."""
        if self._tables is not None:
            self._tables.tidy()
        self._exports.flush()

    def start(
        self,
        trigger: Mapping[str, Any],
        *,
        end: bool = False,
        ticks_alone: bool = False,
        ended: Callable[[], None] | None = None,
    ) -> tuple[StreamingQuery, Writer, Ticker | None]:
        """Start a query over the streaming source.

        Args:
            trigger: Arguments of Spark's ``trigger``.
            end: True if the input ends with the query's first batch.
            ticks_alone: Leave out the source.
            ended: Called when the query has ended, in a thread; ``None`` if the program waits for it.

        Returns:
            The query, the writer of its outputs, and its ticker if the program does not wait for it.
        """
        ticks, folder = None, self._folder
        if self._last.ticks and not ticks_alone:
            ticks = ticks_of(self._session, folder)
        if folder.is_writable:
            folder.relocate()
        else:
            folder.check_location(ticks=ticks is not None)
        if ticks is not None:
            ticks.begin()
        declared = parallelism_of(self._last)
        layout = checked_layout(self._session, self._checkpoint, declared, here=self._here)
        parallelism = declared or partitions_of(self._session) if layout is None else layout.parallelism
        together = lines(self._last, None if layout is None else layout.sizes)
        tick_files = None if ticks is None else ticks.frame()
        last = folder.last_commit() if folder.is_writable else None
        tables = self._tables = TableFiles(self._session, folder, self._last)
        tables.write_changed()
        plan = self._built(
            together,
            parallelism,
            end=end,
            ticks_alone=ticks_alone,
            tick_files=tick_files,
            begins=last is None,
            recorder=self._recorder,
            tables=tables.stream,
            first_batch=self.first_batch,
        )
        writer = self._writer(plan, restores=self._cut is not None and last is None)
        first = 0 if last is None else last + 1
        writer.repeats = first in folder.numbers("offsets") if folder.is_writable else None
        # If this program cannot reach the checkpoint, the query's id is known once Spark has started it.
        if self._here and not self._remote and not writer.restores:
            writer.claim(self._session, first)
        stream = plan.frame.writeStream.foreachBatch(self._called(plan, writer))
        stream = stream.option("checkpointLocation", self._checkpoint)
        if self._query_name is not None:
            stream = stream.queryName(self._query_name)
        # Spark plans with one shuffle partition per key group. A query keeps the number that it starts with.
        with settings(self._session, {PARTITIONS: str(parallelism), **checkpoint_settings(self._session)}):
            try:
                names = [[stage.name for stage in line] for line in together if not line[0].is_relay]
                query = self._exports.start(self._begin, parallelism, names, stream.trigger(**trigger).start)
            except Exception as error:  # noqa: BLE001 - it is raised again, translated
                raise_translated(error, self.title)
        tables.query = query
        ticker = None
        if ended is not None:
            written = writer if self.writes_here else None
            ticker = Ticker(
                query, ticks if "processingTime" in trigger else None, self._exports, written, tables, ended
            )
        return query, writer, ticker

    @property
    def writes_here(self) -> bool:
        """True if this process writes the batches, and not the server of Spark Connect."""
        return not self._remote

    def fetch_values(self, batches: Iterable[int]) -> None:
        """Give the collecting sinks the values of these batches, which a server of Spark Connect has written."""
        for number, bound in enumerate(self._outputs):
            if bound.sink.collected is not None and self._remote:
                for batch in batches:
                    frame = self._session.read.parquet(batch_folder(self._collecting(number), batch))
                    bound.sink.collected[batch] = FrameBatch(frame).rows

    def progress(self, progress: Mapping[str, Any]) -> Progress:
        """Convert Spark's progress of a batch, and log warnings about it."""
        reported = self.progress_of(progress)
        self._warn(reported, group_marks(progress))
        return reported

    def progress_of(self, progress: Mapping[str, Any]) -> Progress:
        """Convert Spark's progress of a batch, in any thread."""
        marks = group_marks(progress)
        observed = {name: summed(each) for name, each in marks.items()}
        # The tick is the last source of the union.
        sources = progress["sources"][:-1] if self._last.ticks else progress["sources"]
        rows = sum(source["numInputRows"] for source in sources)
        duration = progress["durationMs"].get("triggerExecution", 0)
        return self._progress(self.first_batch + progress["batchId"], rows, observed, duration)

    def log_position(self, report: Mapping[str, Any]) -> None:
        """Log the position of a batch over Spark Connect, where no call of this program precedes the next batch."""
        if self._remote:
            self._exports.after_batch(report)

    def is_exported(self, report: Mapping[str, Any]) -> bool | None:
        """Return true if the changelogs have the batch of a report, Spark's last one; ``None`` if there are none."""
        return self._exports.has(report) if self._changelogs else None

    def end_warnings(self, reports: Iterable[Mapping[str, Any]], *, of_input: bool) -> None:
        """Log the warnings about the query's last batches and about the whole run, once the query has ended.

        Args:
            reports: Spark's progress of its last batches, which may not have been read while it ran.
            of_input: True if the query has read all that there was.
        """
        for report in reports:
            if report["observedMetrics"]:
                self.progress(report)
        self._warnings.end(of_input=of_input)

    @property
    def _recorder(self) -> Recorder | None:
        return None if self._record is None else attrs.evolve(self._record, first_batch=self.first_batch)

    def _writer(self, plan: Plan, *, restores: bool) -> Writer:
        sinks: list[Sink] = [bound.sink for bound in self._outputs]
        before: list[Callable[[int], object]] = []
        if self._remote:
            # Values that a server collects reach this program through files.
            sinks = [
                sink if sink.collected is None else FolderSink(self._collecting(number))
                for number, sink in enumerate(sinks)
            ]
        else:
            assert self._tables is not None
            before = [self._tables.before_batch, self._exports.before_batch]
        return Writer(
            plan.routes,
            sinks,
            shares_files(self._session),
            self._checkpoint,
            self._begin.queries,
            self.first_batch,
            restores,
            before,
            self._recorder,
        )

    def _called(self, plan: Plan, writer: Writer) -> Callable[[DataFrame, int], None]:
        """Return the function that Spark calls with each batch; over Spark Connect the server runs it."""
        if self._remote:
            written: Callable[[DataFrame, int], None] = shipped(plan.archive, writer.write)
            return written
        self._callbacks.append(Callback(writer.write))
        return self._callbacks[-1]

    def _collecting(self, number: int) -> str:
        """Return the folder that passes values to a collecting sink over Spark Connect."""
        return f"{self._checkpoint.rstrip('/')}/keyed-collected/{number}"
