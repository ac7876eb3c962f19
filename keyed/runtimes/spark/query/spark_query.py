"""Queries of the Spark runtime: `keyed.job.streams` calls this module for a DataFrame, and to run or start a chain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from keyed.base.arguments import MAX_TIMESTAMP, Shown
from keyed.base.background import Status
from keyed.destinations.function import CollectSink
from keyed.errors import DefinitionError, KeyedError, QueryFailed
from keyed.job.graph import BoundOutput, Port, Stage
from keyed.job.options import Options
from keyed.job.results import Progress, Restored, RunResult, shown_query, with_statuses
from keyed.recovery.cut import Cut, with_cut
from keyed.runtimes.job_metrics import MetricsSource
from keyed.runtimes.kept_tables import KeptTables, result_of
from keyed.runtimes.metrics_export import MetricsExport
from keyed.runtimes.spark.query.failures import has_lost_jvm, is_gone, jvm_ended, raise_translated
from keyed.runtimes.spark.query.job import BatchJob, Job
from keyed.runtimes.spark.query.stream_job import StreamJob
from keyed.runtimes.stop_signals import Stopped, noted_signals
from keyed.tables.state_tables import StateTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
#: Seconds for a query to stop after Ctrl-C or SIGTERM, with its last batch in its changelogs.
_PATIENCE = 10
#: Seconds between two polls for progress of a waiting program.
_POLL = 0.2


def dataframe(output: Port) -> DataFrame:
    """Return an output as a DataFrame for plain Spark."""
    return Job(output.stage, (BoundOutput(output, CollectSink()),), Options()).frame()


def run(last: Stage, outputs: tuple[BoundOutput, ...], options: Options) -> RunResult:
    """Run all available input through a chain, and return when it is done."""
    if not last.source.data.isStreaming:
        with closing(MetricsExport(last, options)) as export:
            return BatchJob(last, outputs, options, export).run()
    with (
        closing(MetricsExport(last, options)) as export,
        closing(StreamJob(last, outputs, options, export)) as job,
        KeptTables(last, options) as kept,
        noted_signals(),
    ):
        query = SparkQuery(job, {"availableNow": True}, after=_restored(job))
        query.wait()
        if options.drain and last.keeps_state and not query.has_drained:
            # Only after all data was read: the batch with which the input ends has no rate limit and reads the rest.
            query = SparkQuery(job, {"once": True}, end=True, after=query)
            query.wait()
            if not query.has_drained:
                raise QueryFailed(
                    f"{job.title} has not drained: Spark skipped the tick that ends its input, as it does if the "
                    "machine's clock was set back by more than a day; set the clock, and run it again"
                )
        job.flush()
        job.end_warnings((), of_input=True)
        kept.finish()
    job.fetch_values(query.batches)
    metrics = {} if query.progress is None else query.progress.metrics
    return result_of(outputs, query.batches, metrics, job.restored, kept.read)


def start(last: Stage, outputs: tuple[BoundOutput, ...], options: Options) -> SparkQuery:
    """Start a chain, and return a handle to the running query."""
    if options.drain:
        raise DefinitionError("drain=True is for run(...): stop the query, then run it with drain=True")
    if not last.source.data.isStreaming:
        raise DefinitionError("start(...) is for a streaming DataFrame; a batch DataFrame takes run(...)")
    trigger = _trigger("1 second" if options.trigger is None else options.trigger)
    with ExitStack() as stack:
        export = stack.enter_context(closing(MetricsExport(last, options)))
        job = stack.enter_context(closing(StreamJob(last, outputs, options, export)))
        kept = stack.enter_context(KeptTables(last, options))
        with noted_signals() as signals:
            query = SparkQuery(job, trigger, after=_restored(job), kept=kept)
            job.started = query.query
            if signals.received is not None:
                query.leave()
        # The query ends them.
        stack.pop_all()
        return query


def _restored(job: StreamJob) -> SparkQuery | None:
    """Run the one batch that restores state and position from changelogs to a checkpoint, if a restore is pending."""

    def first_batch(cut: Cut) -> SparkQuery | None:
        job.begin_at(cut)
        if not job.takes_position:
            return None
        query = SparkQuery(job, {"once": True}, ticks_alone=True)
        query.wait()
        return query

    query = with_cut(job.points, first_batch) if job.points else None
    if job.takes_position:
        job.take_position()
    return query


class SparkQuery(Shown):
    """A `keyed.Query` on Spark. Its end exports the last batch to its changelogs.

    Attributes:
        query: Spark's own handle.
        batches: Ids for sinks of the batches that it is known to have committed.

    Args:
        job: The job to run.
        trigger: Arguments of Spark's ``trigger``.
        end: True if the input ends with the first batch.
        ticks_alone: Leave out the source.
        after: A query that this one continues.
        kept: The tables that it keeps, if it was started with ``start``.
    """

    def __init__(
        self,
        job: StreamJob,
        trigger: Mapping[str, Any],
        *,
        end: bool = False,
        ticks_alone: bool = False,
        after: SparkQuery | None = None,
        kept: KeptTables | None = None,
    ) -> None:
        self._job = job
        self._kept = kept
        self._progress: Progress | None = after.progress if after is not None else None
        self.batches: range = after.batches if after is not None else range(0)
        self._flushing = threading.Lock()
        self._is_flushed = False
        #: True after Ctrl-C or SIGTERM: what the query and its JVM raise then is the stop, not a failure.
        self._was_stopped = False
        self._has_lost_jvm = False
        #: The threads that wait for the end, which get the error of a query that fails.
        self._waiting: set[int] = set()
        ended = None if kept is None else self._ended
        #: Spark's last report of a batch that the export of metrics has.
        self._exported_report: Mapping[str, Any] | None = None
        self.query, self._writer, self._ticker = job.start(trigger, end=end, ticks_alone=ticks_alone, ended=ended)
        job.export.metrics.source = MetricsSource(self._add_metrics, self._statuses, self._is_exported)
        if self._ticker is not None:
            self._ticker.work.start()

    @property
    def restored(self) -> Restored | None:
        """The restored batch, if this program has restored the query."""
        return self._job.restored

    def __repr__(self) -> str:
        return shown_query(self._job.operators[-1], self._progress, self.status, self._retried_error)

    @property
    def status(self) -> Status:
        """Status of the query, including its timers and the export to its changelogs. See `keyed.Query.status`."""
        if self._has_left:
            return Status.CLOSED
        try:
            if self._ticker is not None and self._ticker.work.status is Status.FAILED:
                return Status.FAILED
            if self.query.isActive:
                begins = self._progress is None and self.query.lastProgress is None
                return Status.STARTING if begins else Status.FOLLOWING
            return Status.CLOSED if self.query.exception() is None else Status.FAILED
        except Exception as error:
            if has_lost_jvm(error, self.query):
                return Status.FAILED
            if not is_gone(error):
                raise
            return Status.CLOSED

    @property
    def _has_left(self) -> bool:
        return self._was_stopped and not self.is_active

    @property
    def _retried_error(self) -> BaseException | None:
        """The error after which timers and changelogs are retried, or that ended them."""
        work = None if self._ticker is None else self._ticker.work
        return None if work is None else work.last_error

    @property
    def is_active(self) -> bool:
        """True while the query runs."""
        try:
            return bool(self.query.isActive)
        except Exception as error:
            if not (is_gone(error) or has_lost_jvm(error, self.query)):
                raise
            return False

    @property
    def progress(self) -> Progress | None:
        """The last committed batch."""
        self._look()
        return self._progress

    @property
    def has_drained(self) -> bool:
        """True if the input has ended."""
        progress = self.progress
        return progress is not None and progress.watermark == MAX_TIMESTAMP

    @property
    def tables(self) -> StateTables:
        """The tables of the query's state. See `keyed.Query.tables`."""
        assert self._kept is not None
        return self._kept.tables

    def metrics(self) -> dict[str, dict[str, int]]:
        """Return the counters by operator and name, and statuses. See `keyed.Query.metrics`."""
        return with_statuses(self.progress, self._job.operators, self._statuses())

    def _statuses(self) -> dict[str, int]:
        statuses = {"query_status": self.status.number, **self._job.export.statuses()}
        if self._ticker is not None:
            work = self._ticker.work
            statuses |= {"export_status": work.status.number, "export_failures": work.failures}
        if self._kept is not None:
            statuses |= self._kept.statuses()
        return statuses

    def _add_metrics(self) -> None:
        """Add the batches that were committed since the last call to the exported metrics."""
        metrics = self._job.export.metrics
        for report in self._committed_since(metrics.next_batch):
            progress = self._job.progress_of(report)
            metrics.add(progress, committed=(progress.processing_time + progress.duration_ms) / 1000)
            self._exported_report = report

    def _is_exported(self) -> bool | None:
        """Return true if the changelogs have the last batch, ``None`` if there are none or it is unknown."""
        return None if self._exported_report is None else self._job.is_exported(self._exported_report)

    def stop(self) -> None:
        """Stop the query, and export its last batch to its changelogs.

        A running batch is abandoned, and run again by the next query on the checkpoint.

        Raises:
            ChangelogError: The last batch cannot be exported. The query has stopped.
        """
        try:
            if self._ticker is not None:
                self._ticker.end()
            try:
                self.query.stop()
                failed = self.query.exception() is not None
            except Exception as error:
                if not (is_gone(error) or has_lost_jvm(error, self.query)):
                    raise
                self._lost(error)
                return
            if not failed:
                self._flush()
            elif self._kept is not None:
                self._kept.leave()
        finally:
            self._job.close()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end of the query, after which its last batch is exported to its changelogs.

        Args:
            timeout: Seconds; ``None`` waits for ever.

        Returns:
            True if it has ended.

        Raises:
            KeyedError: The query failed.
        """
        if self._has_left:
            return True
        ended = self.wait(timeout)
        if ended:
            try:
                self._flush()
            finally:
                self._job.close()
        return ended

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `await_termination` does, without the export."""
        waiting = threading.get_ident()
        self._waiting.add(waiting)
        try:
            return self._wait(timeout)
        finally:
            self._waiting.discard(waiting)

    def _wait(self, timeout: float | None) -> bool:
        waited = 0.0
        with noted_signals() as signals:
            try:
                while signals.received is None and not self._has_ended():
                    self._look()
                    waited += _POLL
                    if timeout is not None and waited >= timeout:
                        return False
            except Stopped:
                raise
            except BaseException:
                # A JVM that also got the signal has ended. Otherwise this is the failure of the query, or the error of
                # ``on_progress``.
                if signals.received is None:
                    with suppress(Exception):
                        self.stop()
                    raise
            if signals.received is not None:
                self.leave()
                raise signals.stopped()
        self._look()
        return True

    def leave(self) -> None:
        """Stop for a signal, within ten seconds, and log the outcome in one line."""
        self._was_stopped = True
        stopping = threading.Thread(target=self._stop_and_log, name="keyed-stopping", daemon=True)
        stopping.start()
        stopping.join(_PATIENCE)
        if stopping.is_alive():
            _log.warning(
                "%s did not stop in %d s; the next run exports the batches that its changelogs lack",
                self._job.title,
                _PATIENCE,
            )

    def _stop_and_log(self) -> None:
        try:
            self.stop()
        except Exception as error:  # noqa: BLE001 - there is nobody to raise it to
            _log.warning("%s has stopped, and its changelogs lack its last batch: %s", self._job.title, error)
            return
        lacking = "" if self._is_flushed else "; the next run exports the batches that its changelogs lack"
        _log.warning("%s has stopped%s", self._job.title, lacking)

    def _flush(self) -> None:
        with self._flushing:
            if not self._is_flushed:
                self._job.flush()
                self._is_flushed = True
                self._job.end_warnings(self.query.recentProgress, of_input=False)
                if self._kept is not None:
                    self._kept.finish()

    def _ended(self) -> None:
        """Log the error of a failed query, unless the program waits for it, and release its resources."""
        try:
            error = self.query.exception()
        except Exception as lost:
            if not is_gone(lost):
                raise
            self._lost(lost)
            return
        if error is None and self.status is not Status.FAILED:
            return
        if error is not None and not self._waiting:
            try:
                self._raise(error)
            except KeyedError as failure:
                _log.error("%s failed", self._job.title, exc_info=failure)
        if self._kept is not None:
            self._kept.leave()
        self._job.close()

    def _lost(self, error: Exception) -> None:
        """Log once that the JVM has ended, unless the program waits for the query, and release its resources."""
        if has_lost_jvm(error, self.query):
            if not (self._waiting or self._was_stopped or self._has_lost_jvm):
                _log.error("%s", jvm_ended(self._job.title))
            self._has_lost_jvm = True
            if self._kept is not None:
                self._kept.leave()
        self._job.close()

    def _raise(self, error: Exception) -> NoReturn:
        """Raise the error of the query, translated to that of the worker or sink."""
        raise_translated(self._writer.error or error, f"{self._job.title}{self._writer.place}")

    def _has_ended(self) -> bool:
        """Wait briefly for the end; raise the error of a failed query."""
        if self._ticker is not None:
            self._ticker.work.check()
        try:
            return bool(self.query.awaitTermination(_POLL))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - it is raised again, translated
            if has_lost_jvm(error, self.query):
                raise jvm_ended(self._job.title) from None
            self._raise(error)

    def _look(self) -> None:
        """Record the batches that were committed since the last call."""
        for report in self._committed_since(self.batches.stop):
            batch = self._job.first_batch + report["batchId"]
            self.batches = range(self.batches.start if self.batches else batch, batch + 1)
            self._progress = self._job.progress(report)
            if self._ticker is None:
                self._job.log_position(report)
            self._job.report(self._progress)

    def _committed_since(self, batch: int) -> Iterator[Mapping[str, Any]]:
        """Yield Spark's reports of the committed batches from one on, as far as Spark has them."""
        first = self._job.first_batch
        if self._job.writes_here and first + self._writer.written < batch:
            return
        try:
            last = self.query.lastProgress
            if last is None or first + last["batchId"] < batch:
                return
            # A report has the counters of all key groups. Most of the time the last one is the only new one.
            progresses = [last] if first + last["batchId"] == batch else self.query.recentProgress
        except Exception as error:
            if not is_gone(error):
                raise
            return
        for report in progresses:
            # Spark also reports triggers without a batch, under the id of the next batch.
            if "addBatch" in report["durationMs"] and first + report["batchId"] >= batch:
                batch = first + report["batchId"] + 1
                yield report


def _trigger(trigger: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(trigger, str):
        return {"processingTime": trigger}
    if isinstance(trigger, Mapping):
        return trigger
    raise DefinitionError(f"trigger={trigger!r}: give an interval such as '5 seconds' or a dict of Spark's arguments")
