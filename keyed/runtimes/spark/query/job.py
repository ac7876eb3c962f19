"""A checked chain with its sinks and options: the common base of jobs, and the job over a batch DataFrame."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.base.background import Status
from keyed.base.ids import random_id
from keyed.changelog.model import batch_id
from keyed.errors import DefinitionError
from keyed.job.chaining import lines
from keyed.job.graph import BoundOutput, Stage
from keyed.job.options import Options
from keyed.job.results import Progress, Restored, RestoreProgress, RunResult, log_restore
from keyed.recovery.cut import Cut, cut_of, keep_origin
from keyed.runtimes.job_metrics import MetricsSource
from keyed.runtimes.kept_tables import result_of
from keyed.runtimes.metrics_export import MetricsExport
from keyed.runtimes.run_reports import UsageWarnings
from keyed.runtimes.spark.checkpoint.global_table_files import table_now
from keyed.runtimes.spark.plan.build import Plan, build, parallelism_of
from keyed.runtimes.spark.query.exports import marks_of, summed
from keyed.runtimes.spark.query.failures import raise_translated
from keyed.runtimes.spark.query.spark_sinks import SparkRuntime, Writer
from keyed.runtimes.spark.session.spark_session import check_session, check_versions, is_remote, settings, shares_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_log = logging.getLogger(__name__)
#: Spark plans with one shuffle partition per key group.
PARTITIONS = "spark.sql.shuffle.partitions"
#: Batches whose counts are kept: Spark reports fewer again.
_COUNTED = 1_000
_LOCAL_DIR = "keyed.local.dir"
#: Options of the local runtime, with the remedy on Spark.
_NOT_HERE = {
    "rows_per_batch": "is for the local runtime; limit batches at Spark's source, with maxFilesPerTrigger and so on",
    "processing_time": "is for the local runtime; on Spark it is the batch's time, which Spark logs: leave it out",
}


class Job:
    """A chain with its sinks and options.

    Args:
        last: The last stage.
        outputs: Outputs of the chain with their sinks.
        options: The user's options.
        export: The export of its metrics.

    Raises:
        DefinitionError: An option or a sink belongs to the local runtime.
        SessionError: The session lacks what keyed needs.
    """

    def __init__(
        self, last: Stage, outputs: tuple[BoundOutput, ...], options: Options, export: MetricsExport | None = None
    ) -> None:
        options.refuse(_NOT_HERE)
        #: The export of the metrics of a run.
        self.export = MetricsExport(last, options) if export is None else export
        self._last = last
        #: The names of all operators.
        self.operators = [stage.name for stage in last.chain]
        self._outputs = outputs
        self._session = session_of(last)
        for bound in outputs:
            bound.sink.check(bound.output.schema, SparkRuntime.of(self._session))
        self._remote = is_remote(self._session)
        local_dir = options.local_dir
        self._local_dir = os.fspath(local_dir) if local_dir is not None else self._session.conf.get(_LOCAL_DIR, None)
        self._changelogs = {stage.name: stage.changelog for stage in last.chain if stage.changelog is not None}
        self._on_progress = options.on_progress
        self._on_restore = options.on_restore or log_restore
        self.points = {stage.name: stage.restore_from for stage in last.chain if stage.restore_from is not None}
        # The cut that key groups without state load.
        self._cut: Cut | None = None
        self._restore_reported = False
        self._warnings = UsageWarnings(last, outputs)
        #: The counters of operators without state after the last batches.
        self._counted: dict[int, dict[str, dict[str, int]]] = {}
        self._counting = Lock()
        #: The operators with a logged bad row.
        self._bad: set[str] = set()
        self.title = f"the query {' → '.join(map(repr, self.operators))}"

    @property
    def restored(self) -> Restored | None:
        """The batch and position from which this program restores the query."""
        return None if self._cut is None else Restored(batch_id(self._cut.sequence), with_position=False)

    def report(self, progress: Progress) -> None:
        """Call ``on_progress`` for a committed batch, and ``on_restore`` for the first one of a restored query."""
        if self._cut is not None and not self._restore_reported:
            self._restore_reported = True
            for operator, restoration in self._cut.operators.items():
                before = sum(marker.counters.get("records_restored", 0) for marker in restoration.markers)
                records = progress.metrics[operator].get("records_restored", 0) - before
                groups = len(restoration.markers)
                self._on_restore(RestoreProgress(operator, groups, groups, records))
        if self._on_progress is not None:
            self._on_progress(progress)

    def _progress(
        self, batch: int, rows: int | None, observed: Mapping[str, dict[str, int]], duration_ms: int
    ) -> Progress:
        """Return the progress of a batch; an unknown number of rows is read from the first operator's counters."""
        metrics = {stage.name: dict(observed.get(stage.name, {})) for stage in self._last.chain}
        clocks = {
            name: (counters.pop("watermark", MIN_TIMESTAMP), counters.pop("processing_time", 0))
            for name, counters in metrics.items()
        }
        if rows is None:
            rows = metrics[self._last.chain[0].name].get("rows_in", 0)
        processing_time = max(each for _, each in clocks.values())
        # An output without a key has no watermark, and waits for nothing.
        relays = [stage.name for stage in self._last.chain if stage.is_relay]
        watermark = min((each for name, (each, _) in clocks.items() if name not in relays), default=MAX_TIMESTAMP)
        self._add_earlier(batch, {name: metrics[name] for name in relays})
        return Progress(batch, rows, watermark, processing_time, metrics, duration_ms)

    def _add_earlier(self, batch: int, metrics: Mapping[str, dict[str, int]]) -> None:
        """Add the counts of earlier batches of this run to those of operators without a state that would have them."""
        with self._counting:
            if metrics and batch not in self._counted:
                totals = self._counted.get(max(self._counted, default=-1), {})
                for name, counters in metrics.items():
                    for counter, count in totals.get(name, {}).items():
                        counters[counter] = counters.get(counter, 0) + count
                self._counted[batch] = {name: dict(counters) for name, counters in metrics.items()}
                self._counted.pop(batch - _COUNTED, None)
            for name, counters in metrics.items():
                counters.update(self._counted[batch][name])

    def _warn(self, progress: Progress, marks: Mapping[str, list[dict[str, Any]]]) -> None:
        """Log warnings about a batch with these marks; a second call for the same batch is harmless."""
        for operator, each in marks.items():
            bad = next((mark["bad"] for mark in each if mark.get("bad")), None)
            if bad is not None and operator not in self._bad:
                self._bad.add(operator)
                _log.warning("operator %r: a bad row: %s; further ones are counted in rows_bad", operator, bad)
            self._warnings.emitted(operator, {name for mark in each for name in mark["side_outputs"]})
        for stage in self._last.chain:
            if progress.metrics[stage.name].get("rows_bad"):
                self._warnings.emitted(stage.name, stage.bad_row_outputs)
        first = self._last.chain[0].name
        times = [mark["highest"] for mark in marks.get(first, ()) if mark["highest"] is not None]
        holders = {operator: each[0]["held_by"] for operator, each in marks.items()}
        self._warnings.look(progress, max(times, default=None), holders)

    def _built(self, lines: Sequence[Sequence[Stage]], parallelism: int, **options: Any) -> Plan:
        """Return the plan of the operators with a number of key groups; see `build` for the options."""
        return build(
            lines,
            [bound.output for bound in self._outputs],
            parallelism,
            changelogs=self._prepared(parallelism),
            local_dir=self._local_dir,
            cut=self._cut,
            **options,
        )

    def _prepared(self, parallelism: int) -> dict[str, str]:
        """Return the identity of each changelog, which is created if it does not exist."""
        ids = {name: changelog.prepare(name, parallelism).log_id for name, changelog in self._changelogs.items()}
        for name, restoration in (self._cut.operators if self._cut is not None else {}).items():
            if name in ids:
                keep_origin(self._changelogs[name], restoration)
        return ids

    def frame(self) -> DataFrame:
        """Return the first output as a DataFrame, for the user to write or to transform."""
        if self.points:
            _log.warning(
                "the DataFrame of an output restores the state of %s, but not its position", sorted(self.points)
            )
            self._cut = cut_of(self.points)
        # The checkpoint is unknown here, so no operators are chained, as in all checkpoints of such frames.
        plan = self._built(
            [[each] for each in self._last.chain],
            parallelism_of(self._last) or partitions_of(self._session),
            end=not self._last.source.data.isStreaming,
            tables=partial(table_now, self._session, self._last.source.data.isStreaming),
            first_batch=0 if self._cut is None else self._cut.sequence,
        )
        return plan.routes[0].frame(plan.frame)


def session_of(stage: Stage) -> SparkSession:
    """Return the session of a chain's source.

    Raises:
        SessionError: It lacks what keyed needs.
    """
    check_versions()
    session: SparkSession = stage.source.data.sparkSession
    check_session(session)
    return session


def partitions_of(session: SparkSession) -> int:
    """Return the default number of key groups of a query."""
    return int(session.conf.get(PARTITIONS) or 200)


class BatchJob(Job):
    """A chain over a batch DataFrame.

    Args:
        last: The last stage.
        outputs: Outputs of the chain with their sinks.
        options: The user's options.
        export: The export of its metrics.

    Raises:
        DefinitionError: It has a changelog.
        ChangelogError: The state of a changelog cannot be restored.
    """

    def __init__(self, last: Stage, outputs: tuple[BoundOutput, ...], options: Options, export: MetricsExport) -> None:
        super().__init__(last, outputs, options, export)
        self._drains = options.drain is not False
        options.refuse({"record": "is for a stream: a batch DataFrame has no changelog to replay over; leave it out"})
        if self._changelogs:
            option = f"changelog={next(iter(self._changelogs.values()))!r}"
            if options.tables is not None:
                option = f"tables={os.fspath(options.tables)!r}"
            raise DefinitionError(
                f"{option}: a batch DataFrame has no checkpoint whose commits could be exported; leave it out, or read "
                "a stream and run it with a checkpoint"
            )
        self._cut = cut_of(self.points) if self.points else None

    def run(self) -> RunResult:
        """Run to the end of the input."""
        began = time.monotonic()
        status = Status.STARTING
        self.export.metrics.source = MetricsSource(
            lambda: None, lambda: {"query_status": status.number, **self.export.statuses()}, lambda: None
        )
        parallelism = parallelism_of(self._last) or partitions_of(self._session)
        tables = partial(table_now, self._session, False)
        plan = self._built(lines(self._last), parallelism, end=self._drains, tables=tables)
        # This program writes the outputs, also over Spark Connect.
        mounted = shares_files(self._session) and not self._remote
        writer = Writer(plan.routes, [bound.sink for bound in self._outputs], mounted, queries=[random_id()])
        with settings(self._session, {PARTITIONS: str(parallelism)}):
            try:
                writer.write(plan.frame, 0)
            except Exception as error:  # noqa: BLE001 - it is raised again, translated
                status = Status.FAILED
                raise_translated(error, f"{self.title}{writer.place}")
        marks: dict[str, list[dict[str, Any]]] = {}
        for observation in plan.observations.values():
            marks |= marks_of(observation.get["marks"])
        observed = {name: summed(each) for name, each in marks.items()}
        progress = self._progress(0, None, observed, int((time.monotonic() - began) * 1000))
        self.export.metrics.add(progress)
        status = Status.CLOSED
        self._warn(progress, marks)
        self._warnings.end(of_input=True)
        self.report(progress)
        return result_of(self._outputs, range(1), progress.metrics, self.restored)
