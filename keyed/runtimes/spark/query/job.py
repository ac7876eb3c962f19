"""A chain with its sinks and options, checked and ready to be started as one Spark query or run as one batch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyed.changelog.model import Changelog
from keyed.durations import MIN_TIMESTAMP
from keyed.errors import DefinitionError
from keyed.ids import random_id
from keyed.options import Options
from keyed.private_files import make_private
from keyed.recovery.cut import Cut, cut_of
from keyed.recovery.origin import keep_origin
from keyed.restoring import RestorePoint
from keyed.results import Progress, Restored, RestoreProgress, RunResult
from keyed.runtimes.spark.checkpoint.begin import Begin, begin, begun, take_position
from keyed.runtimes.spark.checkpoint.folder import reached
from keyed.runtimes.spark.checkpoint.recorded import checked_parallelism
from keyed.runtimes.spark.checkpoint.state_reader import check_path
from keyed.runtimes.spark.checkpoint.ticks import Ticks, ticks_of
from keyed.runtimes.spark.plan.build import Plan, build, parallelism_of
from keyed.runtimes.spark.query.exports import Exports
from keyed.runtimes.spark.query.failures import raise_translated
from keyed.runtimes.spark.query.metrics import operator_metrics, summed
from keyed.runtimes.spark.query.spark_sinks import FolderSink, Writer, batch_folder, collected
from keyed.runtimes.spark.query.ticker import Ticker
from keyed.runtimes.spark.session.session_check import check_session, check_versions, is_remote
from keyed.runtimes.spark.session.ship import carried
from keyed.runtimes.spark.session.spark_session import is_here, settings
from keyed.sinks import CollectSink, Sink, local_folder
from keyed.streams import BoundOutput, Output, Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_PARTITIONS = "spark.sql.shuffle.partitions"
_LOCAL_DIR = "keyed.local.dir"


#: Options of the local runtime, and what there is here.
_NOT_HERE = {
    "rows_per_batch": "is for the local runtime; limit batches at Spark's source, with maxFilesPerTrigger and so on",
    "processing_time": "is for the local runtime; on Spark it is the batch's time, which Spark logs: leave it out",
}


class Job:
    """A chain with its sinks and options.

    Args:
        last: The last stage.
        outputs: Outputs of the chain with their sinks.
        options: What the user asks for.

    Raises:
        DefinitionError: An option is not known or missing.
        SessionError: The session lacks what keyed needs.
    """

    def __init__(self, last: Stage, outputs: tuple[BoundOutput, ...], options: Options) -> None:
        options.refuse(_NOT_HERE)
        self._last = last
        self._outputs = outputs
        self._session = _session(last)
        self.streaming: bool = last.source.data.isStreaming
        self._on_progress = options.on_progress
        self._on_restore = options.on_restore or _log_restored
        self._told = False
        self.title = f"the query {' → '.join(repr(stage.name) for stage in last.chain)}"
        self._name = options.query_name
        self._local_dir = _local_dir(self._session, options.local_dir)
        self._remote = is_remote(self._session)
        # A batch DataFrame is written by this program, a stream over Spark Connect by the server.
        self._here = is_here(self._session) and (self.streaming or not self._remote)
        checkpoint = options.checkpoint
        if self.streaming and checkpoint is None:
            raise DefinitionError(
                "a streaming DataFrame needs checkpoint=<folder>, where Spark keeps position and state"
            )
        self._checkpoint = os.fspath(checkpoint) if checkpoint is not None else ""
        self._changelogs = {stage.name: stage.changelog for stage in last.chain if stage.changelog is not None}
        self._begin, self._cut = Begin(queries=[random_id()]), None
        points = _restore_points(last)
        if not self.streaming:
            if self._changelogs:
                raise DefinitionError(
                    f"changelog={next(iter(self._changelogs.values()))!r}: a batch DataFrame has no checkpoint whose "
                    "commits could be exported; leave it out, or read a stream and run it with a checkpoint"
                )
            self._cut = cut_of(points) if points else None
            return
        if self._changelogs:
            check_path(self._checkpoint)
        if self._here and (here := local_folder(self._checkpoint)) is not None:
            # Before Spark makes it for all to read.
            make_private(here, group=options.group_access)
        folder = None
        if self._here or points or self._changelogs:
            folder = reached(self._session, self._checkpoint)
        if folder is not None:
            self._begin, self._cut = begin(folder, points, ticks=last.source.ticks)
        elif points:
            raise DefinitionError(
                f"restore_from= of operator {min(points)!r}: this program does not reach the file system of the "
                f"checkpoint {self._checkpoint}; give one that it reaches, with its scheme, or write <output>.df with "
                "writeStream, which restores state without the position in the source"
            )
        else:
            self._begin = begun(self._session, self._checkpoint)
        self._folder = folder
        self._exports = Exports(
            self._session,
            self._checkpoint,
            folder,
            [stage.name for stage in last.chain],
            self._changelogs,
            ticks=last.source.ticks,
            first_batch=self._begin.first_batch,
            queries=self._begin.queries,
        )

    @property
    def name(self) -> str:
        """The name of the last operator."""
        return self._last.name

    @property
    def first_batch(self) -> int:
        """What sinks get as the id of Spark's batch 0."""
        return self._begin.first_batch

    @property
    def restored(self) -> Restored | None:
        """What this program restores the query with."""
        return None if self._cut is None else Restored(self._cut.sequence, self._begin.with_position)

    @property
    def takes_position(self) -> bool:
        """Whether the query is to go on where an earlier one was. `take_position` does it, once there is state."""
        return self._begin.sources is not None

    def take_position(self) -> None:
        """Let the query's sources go on where the earlier one was."""
        assert self._folder is not None
        self._begin = take_position(self._folder, self._begin)

    def flush(self) -> None:
        """Export the last batch, which nothing will undo any more."""
        self._exports.flush()

    def start(
        self, trigger: Mapping[str, Any], *, end: bool = False, ticks_alone: bool = False
    ) -> tuple[StreamingQuery, Writer, Ticker | None]:
        """Start a query over the streaming source.

        Args:
            trigger: Arguments of Spark's ``trigger``.
            end: Whether the input ends with the query's first batch.
            ticks_alone: Whether the source is left out.

        Returns:
            The query, what writes its outputs, and what wakes it, if it goes on without rows.
        """
        ticks = None
        if self._last.source.ticks and not ticks_alone:
            ticks = ticks_of(self._session, self._checkpoint, self._folder)
        if ticks is not None:
            ticks.begin()
        plan, parallelism = self._plan(end=end, ticks=ticks, ticks_alone=ticks_alone)
        writer = self._writer(plan)
        if self._here:
            last = self._folder.last_commit() if self._folder is not None else None
            writer.claim(self._session, 0 if last is None else last + 1)
        self._exports.starting()
        stream = plan.frame.writeStream.foreachBatch(carried(plan.parcel, writer.write))
        stream = stream.option("checkpointLocation", self._checkpoint)
        if self._name is not None:
            stream = stream.queryName(self._name)
        # Spark plans with one shuffle partition per key group. A query keeps the number that it starts with.
        with settings(self._session, {_PARTITIONS: str(parallelism)}):
            try:
                query = stream.trigger(**trigger).start()
            except Exception as error:  # noqa: BLE001 - it is raised again, translated
                raise_translated(error, self.title)
        self._exports.started(query, parallelism)
        ticker = None
        if ticks is not None and "processingTime" in trigger:
            ticker = Ticker(query, ticks, self._changelogs.keys())
            ticker.start()
        return query, writer, ticker

    def run_batch(self) -> RunResult:
        """Run over the batch source, whose end is the end of the input."""
        plan, parallelism = self._plan(end=True)
        writer = self._writer(plan)
        with settings(self._session, {_PARTITIONS: str(parallelism)}):
            try:
                writer.write(plan.frame, 0)
            except Exception as error:  # noqa: BLE001 - it is raised again, translated
                raise_translated(error, f"{self.title}{writer.place}")
        observed = {name: summed(observation.get["marks"]) for name, observation in plan.observations.items()}
        progress = self._progress(0, None, observed)
        self.tell(progress)
        return RunResult(self.values({0}), 1, progress.metrics, self.restored)

    def values(self, batches: set[int]) -> list[Any]:
        """What the collecting sinks got in these batches."""
        for number, bound in enumerate(self._outputs):
            if isinstance(bound.sink, CollectSink) and self.streaming and self._remote:
                for batch in batches:
                    frame = self._session.read.parquet(batch_folder(self._collecting(number), batch))
                    bound.sink.batches[batch] = collected(frame)
        sinks = [bound.sink for bound in self._outputs if isinstance(bound.sink, CollectSink)]
        return [value for sink in sinks for batch in sorted(batches) for value in sink.batches.get(batch, ())]

    def tell(self, progress: Progress) -> None:
        """Tell the user of a batch that was committed; of the first one of a restored query, what it has restored."""
        if self._cut is not None and not self._told:
            self._told = True
            for operator, restoration in self._cut.operators.items():
                before = sum(marker.counters.get("records_restored", 0) for marker in restoration.markers)
                records = progress.metrics[operator].get("records_restored", 0) - before
                groups = len(restoration.markers)
                self._on_restore(RestoreProgress(operator, groups, groups, records))
        if self._on_progress is not None:
            self._on_progress(progress)

    def progress(self, progress: Mapping[str, Any]) -> Progress:
        """Spark's progress of a batch as ours."""
        observed = operator_metrics(progress)
        # The tick was united with the source's rows last.
        sources = progress["sources"][:-1] if self._last.source.ticks else progress["sources"]
        return self._progress(
            self.first_batch + progress["batchId"], sum(source["numInputRows"] for source in sources), observed
        )

    def _progress(self, batch_id: int, rows: int | None, observed: Mapping[str, dict[str, int]]) -> Progress:
        metrics = {stage.name: dict(observed.get(stage.name, {})) for stage in self._last.chain}
        clocks = {
            name: (counters.pop("watermark", MIN_TIMESTAMP), counters.pop("processing_time", 0))
            for name, counters in metrics.items()
        }
        if rows is None:
            rows = metrics[self._last.chain[0].name].get("rows_in", 0)
        watermark, processing_time = clocks[self._last.name]
        return Progress(batch_id, rows, watermark, processing_time, metrics)

    def _plan(self, *, end: bool, ticks: Ticks | None = None, ticks_alone: bool = False) -> tuple[Plan, int]:
        """The plan, and its number of key groups."""
        parallelism = parallelism_of(self._last)
        if self.streaming:
            parallelism = checked_parallelism(self._session, self._checkpoint, parallelism, here=self._here)
        parallelism = parallelism or _partitions(self._session)
        wanted = [bound.output for bound in self._outputs]
        plan = build(
            self._last,
            wanted,
            parallelism,
            changelogs=_prepared(self._changelogs, parallelism, self._cut),
            local_dir=self._local_dir,
            end=end,
            cut=self._cut,
            ticks_alone=ticks_alone,
            tick_files=None if ticks is None else ticks.frame(),
        )
        return plan, parallelism

    def _writer(self, plan: Plan) -> Writer:
        sinks: list[Sink | FolderSink] = [bound.sink for bound in self._outputs]
        if self.streaming and self._remote:
            # What a server collects does not reach this program: it comes by way of files.
            sinks = [
                FolderSink(self._collecting(number)) if isinstance(sink, CollectSink) else sink
                for number, sink in enumerate(sinks)
            ]
        before = self._exports.before_batch if self.streaming and not self._remote else None
        return Writer(plan.routes, sinks, self._here, self._checkpoint, self._begin.queries, self.first_batch, before)

    def _collecting(self, number: int) -> str:
        """The folder through which a collecting sink gets its values over Spark Connect."""
        return f"{self._checkpoint.rstrip('/')}/keyed-collected/{number}"


def _log_restored(progress: RestoreProgress) -> None:
    _log.info("operator %s: %d records are restored", progress.operator, progress.records)


def frame_of(output: Output) -> DataFrame:
    """An output as a DataFrame of its own, for the user to write or go on with."""
    stage = output.stage
    session = _session(stage)
    parallelism = parallelism_of(stage) or _partitions(session)
    changelogs = {each.name: each.changelog for each in stage.chain if each.changelog is not None}
    points = _restore_points(stage)
    if points:
        _log.warning("the position of %s is not restored with the DataFrame of an output, its state is", sorted(points))
    cut = cut_of(points) if points else None
    plan = build(
        stage,
        [output],
        parallelism,
        changelogs=_prepared(changelogs, parallelism, cut),
        local_dir=_local_dir(session, None),
        cut=cut,
    )
    return plan.routes[0].frame(plan.frame)


def _session(stage: Stage) -> SparkSession:
    check_versions()
    session: SparkSession = stage.source.data.sparkSession
    check_session(session)
    return session


def _restore_points(last: Stage) -> dict[str, RestorePoint]:
    """What the operators of a chain are restored from, by name."""
    return {stage.name: stage.restore_from for stage in last.chain if stage.restore_from is not None}


def _prepared(changelogs: Mapping[str, Changelog], parallelism: int, cut: Cut | None) -> dict[str, str]:
    """The identity of each changelog, which is created if it was not there."""
    ids = {name: changelog.prepare(name, parallelism).log_id for name, changelog in changelogs.items()}
    for name, restoration in (cut.operators if cut is not None else {}).items():
        if name in changelogs:
            keep_origin(changelogs[name], restoration)
    return ids


def _partitions(session: SparkSession) -> int:
    return int(session.conf.get(_PARTITIONS) or 200)


def _local_dir(session: SparkSession, given: Any) -> str | None:
    return os.fspath(given) if given is not None else session.conf.get(_LOCAL_DIR, None)
