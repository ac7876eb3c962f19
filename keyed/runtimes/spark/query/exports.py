"""The driver's part of exports to changelogs, and the counters that key groups report to it.

It logs positions, publishes the staged entries of batches that Spark has committed, and flushes when the query ends.

The counters come from the marks of key groups, which Spark observes in each batch. The observed metric
``keyed.<operator>`` has one field, ``marks``: the `GroupMark` of each key group of the operator and of the operators
chained before it, as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.changelog.model import Changelog, StagingChangelog, close_positions, export_interval
from keyed.engine.group_log import MOST_COMMITS
from keyed.errors import CheckpointError, DefinitionError
from keyed.recovery.local_checkpoint import check_changelog
from keyed.runtimes.spark.checkpoint.begin import Begin, PositionLog
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder
from keyed.runtimes.spark.checkpoint.spark_recovery import StateOperator, committed_metas, export_last, spark_flush

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


#: Prefix of the names of operators' observed metrics.
OBSERVED = "keyed."


def group_marks(progress: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the marks of each operator's key groups in a batch.

    Args:
        progress: The progress report of the batch.
    """
    observed = progress["observedMetrics"] if isinstance(progress, Mapping) else progress.observedMetrics
    by_operator: dict[str, list[dict[str, Any]]] = {}
    for name, row in observed.items():
        if name.startswith(OBSERVED):
            fields = row.asDict() if hasattr(row, "asDict") else dict(row)
            if fields.keys() == {"schema", "values"}:
                # Spark Connect returns the row in parts.
                names = [field["name"] for field in fields["schema"]["fields"]]
                fields = dict(zip(names, fields["values"], strict=True))
            for operator, marks in marks_of(fields.get("marks")).items():
                by_operator.setdefault(operator, []).extend(marks)
    return by_operator


def marks_of(observed: str | None) -> dict[str, list[dict[str, Any]]]:
    """Return observed marks by operator."""
    by_operator: dict[str, list[dict[str, Any]]] = {}
    for mark in json.loads(observed or "[]"):
        by_operator.setdefault(mark["operator"], []).append(mark)
    return by_operator


def spark_metrics(progress: Mapping[str, Any] | StreamingQueryProgress) -> dict[str, dict[str, int]]:
    """Return the counters of each operator of a Spark query that was started with plain ``writeStream``.

    Args:
        progress: ``query.lastProgress``, or the progress that a ``StreamingQueryListener`` gets.

    Returns:
        By operator: its counters, ``watermark`` and ``processing_time``.
    """
    return {name: summed(marks) for name, marks in group_marks(progress).items()}


def operator_commits(progress: Any) -> dict[str, int]:
    """Return the number of the commit that each operator's key groups made in a batch.

    Args:
        progress: The progress report of the batch.

    Returns:
        The numbers by operator; operators that did not run in the batch are left out.
    """
    return {name: min(mark["commit"] for mark in marks) for name, marks in group_marks(progress).items()}


def next_work(progress: Any, exported: Container[str]) -> int | None:
    """Return the processing time at which a query has work without rows.

    Args:
        progress: The progress report of its last batch.
        exported: The operators with a changelog, to which a later batch exports the changes of a batch.

    Returns:
        Milliseconds, ``None`` if there is no work.
    """
    times = []
    for operator, marks in group_marks(progress).items():
        for mark in marks:
            if mark["changed"] and operator in exported:
                times.append(mark["export_at"])
            if mark["due"] is not None:
                times.append(mark["due"])
    return min(times, default=None)


def export_operators(progress: Any, time: int) -> set[str]:
    """Return the operators whose key groups export earlier batches to their changelogs in the next batch.

    Args:
        progress: The progress report of the last batch.
        time: Processing time of the next one.
    """
    marks = group_marks(progress).items()
    return {operator for operator, each in marks if any(time >= mark["export_at"] for mark in each)}


def starts_run(progress: Any) -> bool:
    """Return true if a batch had the tick with which a run of its query starts."""
    return any(mark["starts_run"] for marks in group_marks(progress).values() for mark in marks)


def waiting_batches(progress: Any) -> dict[str, int]:
    """Return the number of batches that a changelog may lack, by operator.

    Args:
        progress: The progress report of the last one.
    """
    return {operator: 1 + max(mark["waiting"] for mark in marks) for operator, marks in group_marks(progress).items()}


def staged_commits(progress: Any) -> dict[str, dict[int, tuple[int, str]]]:
    """Return the commits of a batch that the key groups have staged.

    Args:
        progress: The progress report of the batch.

    Returns:
        Number of the commit and attempt, by operator and key group; nothing for an operator if one of its groups has
        staged nothing, or ran twice, so that the report does not show which attempt Spark has kept.
    """
    commits = {}
    for operator, marks in group_marks(progress).items():
        staged = {mark["group"]: (mark["commit"], mark["staged"]) for mark in marks if mark["staged"]}
        if len(staged) == len(marks):
            commits[operator] = staged
    return commits


def is_quiet(progress: Any, exported: Container[str]) -> bool:
    """Return true if the key groups changed nothing that has to be exported in a batch, and their input did not end.

    Args:
        progress: The progress report of the batch.
        exported: The operators with a changelog.
    """
    return not any(
        mark["changed"] or mark["watermark"] == MAX_TIMESTAMP
        for operator, marks in group_marks(progress).items()
        if operator in exported
        for mark in marks
    )


def summed(marks: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the marks of an operator's key groups as one."""
    total: dict[str, int] = {}
    watermark, processing_time = MAX_TIMESTAMP, MIN_TIMESTAMP
    for mark in marks:
        watermark = min(watermark, mark["watermark"])
        processing_time = max(processing_time, mark["clock"])
        for name, value in mark["metrics"].items():
            total[name] = total.get(name, 0) + value
    return total | {"watermark": watermark, "processing_time": processing_time}


#: Number of batches that Spark keeps in a checkpoint, and its default.
_RETAINED = "spark.sql.streaming.minBatchesToRetain"
_RETAINED_BATCHES = "100"
#: Seconds that a query's first batch waits until Spark has returned the query to the program that starts it.
_START = 60.0
#: Key groups that are published at the same time. Each waits for its disk or object store, and for little else.
_PUBLISHERS = 16


@attrs.define(eq=False, repr=False, slots=False)
class Exports:
    """The changelogs of a query over a checkpoint.

    Entries reach the changelogs at three moments of a batch's life, as far as is safe at each:

    1. `after_batch`, when Spark reports the batch. If Spark has committed it and all key groups have staged it, its
       position is logged and the staged entries are published.
    2. `before_batch`, before the next batch is written. The position of the batch is logged; the key groups themselves
       export its entries in the next batch, if they are not published. With an export interval, both are done for
       several batches together, when they are due.
    3. `flush`, before a query starts and after it has ended, when no next batch runs. The position and the entries of
       the last committed batch are written, if the changelogs lack them.

    No call repeats the work of an earlier one, so all of them are safe after a crash.

    Args:
        session: The session.
        folder: The checkpoint, which is only read here.
        changelogs: The changelogs, by operator.
        ticks: True if the last of the query's sources are the ticks.
        written_here: True if this program calls `before_batch`; over Spark Connect it cannot, and logs the
            position of a batch at its report.

    Raises:
        DefinitionError: Commits are exported together, and Spark removes their batches from the checkpoint before.
    """

    _session: SparkSession
    _folder: CheckpointFolder
    _changelogs: Mapping[str, Changelog]
    _ticks: bool = attrs.field(kw_only=True)
    _written_here: bool = attrs.field(default=True, kw_only=True)

    def __attrs_post_init__(self) -> None:
        session, changelogs = self._session, self._changelogs
        self._parallelism = 0
        self._lines: Sequence[Sequence[str]] = ()
        self._started = Event()
        self._query: StreamingQuery | None = None
        self._positions: PositionLog | None = None
        self._logging = Lock()
        self._published = -1
        self._is_flushed = False
        # True until the batch with the tick that starts a run is committed.
        self._begins = self._ticks
        # The report that was read last, so that it is not read from Spark again.
        self._newest: Mapping[str, Any] | None = None
        # Of two concurrent attempts of a task, Spark may report one and keep the state of the other.
        self._publishes = (
            bool(changelogs)
            and all(
                isinstance(changelog, StagingChangelog) and not export_interval(changelog)
                for changelog in changelogs.values()
            )
            and session.conf.get("spark.speculation", "false") == "false"
        )
        retained = int(session.conf.get(_RETAINED, _RETAINED_BATCHES) or _RETAINED_BATCHES)
        for operator, changelog in changelogs.items():
            if (interval := export_interval(changelog)) and retained <= MOST_COMMITS:
                raise DefinitionError(
                    f"operator {operator!r}, changelog=: with export_interval={interval}, up to {MOST_COMMITS} batches "
                    f"wait in the checkpoint, and Spark keeps {retained} there; set {_RETAINED} to more than "
                    f"{MOST_COMMITS}, or leave out export_interval="
                )

    def start(
        self, record: Begin, parallelism: int, lines: Sequence[Sequence[str]], start: Callable[[], StreamingQuery]
    ) -> StreamingQuery:
        """Start the query whose batches are exported.

        Its first batch may run before ``start`` returns: `before_batch` waits for that if it needs the query.

        Args:
            record: The record of the query's start.
            parallelism: Its number of key groups.
            lines: The names of its operators in order, grouped into chained lines.
            start: Starts it.
        """
        self._query = self._newest = None
        self._is_flushed, self._begins = False, self._ticks
        self._started.clear()
        # The checkpoint of a query that only the server reaches has no record of ours; its sinks have Spark's id.
        queries = [*record.queries]
        self._positions = PositionLog(
            self._folder,
            self._changelogs,
            ticks=self._ticks,
            first_batch=record.first_batch,
            queries=queries,
            sequences=self._sequences,
        )
        query = start()
        if not queries and not self._written_here:
            queries.append(str(query.id))
        self._query = query
        self._parallelism, self._lines = parallelism, lines
        self._started.set()
        return query

    def before_batch(self, batch: int) -> None:
        """Export the batch before one that is about to be written.

        Raises:
            ChangelogError: A changelog cannot be written, or has another position.
            CheckpointError: The start of the query has failed, or takes too long.
        """
        self._log_position(batch - 1, self._due(batch))

    def flush(self) -> None:
        """Export the last committed batch, which can no longer be undone, if it has changes.

        Raises:
            ChangelogError: A changelog cannot be written, or has another position.
        """
        try:
            if self._changelogs:
                self._export_last()
        finally:
            for changelog in self._changelogs.values():
                close_positions(changelog)
        self._is_flushed = True

    def has(self, report: Mapping[str, Any]) -> bool:
        """Return true if the changelogs have the batch of a report, the last one."""
        return self._is_flushed or report["batchId"] == self._published or is_quiet(report, self._changelogs)

    def committed_report(self, batch: int) -> Mapping[str, Any] | None:
        """Return Spark's report of a batch once it is committed; ``None`` before that."""
        if self._folder.read(f"commits/{batch}") is None:
            return None
        return self._report(batch)

    def next_work(self, report: Mapping[str, Any]) -> int | None:
        """Return the processing time at which the query has work without rows.

        A batch with changes that is not published is exported by the next one.

        Args:
            report: Spark's report of its last batch.

        Returns:
            Milliseconds, ``None`` if there is no work.
        """
        return next_work(report, () if report["batchId"] == self._published else self._changelogs)

    def _due(self, batch: int) -> set[str]:
        """Return the operators whose key groups export the batches before a batch that was started.

        All of them do in the batch with the tick that starts the run, which may follow a batch that is run again.
        """
        report = self._report(batch - 1) if any(map(export_interval, self._changelogs.values())) else None
        if report is None:
            return {*self._changelogs}
        return self._due_at(report, self._folder.batch_time(batch))

    def _due_at(self, report: Mapping[str, Any], time_ms: int | None) -> set[str]:
        """Return the operators whose key groups export a batch in one that starts at a time, as far as it is known."""
        grouping = {operator for operator, changelog in self._changelogs.items() if export_interval(changelog)}
        self._begins = self._begins and not starts_run(report)
        if self._begins or time_ms is None:
            return {*self._changelogs}
        return self._changelogs.keys() - (grouping - export_operators(report, time_ms))

    def _log_position(self, batch: int, operators: Container[str] | None = None) -> None:
        """Log the position of a batch for operators, all if ``None``; there is none before batch 0."""
        if self._changelogs and self._positions is not None and batch >= 0:
            with self._logging:
                self._positions.log(batch, operators)

    def after_batch(self, report: Mapping[str, Any]) -> None:
        """Publish the staged entries of a batch, if all key groups have staged it and Spark has committed it.

        Raises:
            ChangelogError: A changelog cannot be written, or has another position.
        """
        batch, staged = report["batchId"], staged_commits(report)
        publishes = self._publishes and staged.keys() >= self._changelogs.keys()
        if not self._changelogs or (self._written_here and not publishes):
            return
        if self._folder.read(f"commits/{batch}") is None:
            return
        if not publishes:
            self._log_position(batch, self._due_at(report, int(time.time() * 1000)))
            return
        self._log_position(batch)
        commits = [
            (changelog, group, *commit)
            for operator, changelog in self._changelogs.items()
            if isinstance(changelog, StagingChangelog)
            for group, commit in staged[operator].items()
        ]
        with ThreadPoolExecutor(max(1, min(_PUBLISHERS, len(commits))), "keyed-publishing") as publishers:
            if all(publishers.map(_published, commits)):
                self._published = batch

    def _export_last(self) -> None:
        batch = self._folder.last_commit()
        if batch is None or batch == self._published:
            return
        report = self._report(batch)
        if report is None:
            # Not for a batch that this program has run, or whose report it has received.
            spark_flush(self._session, self._folder.path, self._changelogs)
        elif not self._was_idle(report):
            self._log_position(batch)
            # Spark numbers its operators from the last one.
            last = {
                StateOperator(number, self._parallelism, batch, place): name
                for number, line in enumerate(reversed(self._lines))
                for place, name in enumerate(line)
            }
            export_last(self._session, self._folder.path, last, self._changelogs, waiting_batches(report))

    def _was_idle(self, report: Mapping[str, Any]) -> bool:
        """Return true if a batch with only a tick has done nothing except export the batch before it."""
        sources = report["sources"][:-1] if self._ticks else report["sources"]
        return is_quiet(report, self._changelogs) and not any(source["numInputRows"] for source in sources)

    def _report(self, batch: int) -> Mapping[str, Any] | None:
        """Return Spark's report of a batch, ``None`` if it has none.

        A report has the counters of all key groups. So as few of them are read from Spark as possible.
        """
        if _is_of(self._newest, batch):
            return self._newest
        if self._query is None:
            return None
        last = self._query.lastProgress
        if last is None or last["batchId"] < batch:
            return None
        reports = [last] if last["batchId"] == batch else [*reversed(self._query.recentProgress)]
        latest = next((report for report in reports if _is_of(report, batch)), None)
        self._newest = latest or self._newest
        return latest

    def _sequences(self, batch: int) -> Mapping[str, int]:
        """Return the sequence of a batch, by operator, from the query's last report or the checkpoint.

        Raises:
            ChangelogDiverged: A changelog does not belong to this checkpoint.
            CheckpointError: The start of the query has failed, or takes too long.
        """
        if not self._started.wait(_START):
            raise CheckpointError(
                f"the query on the checkpoint {self._folder.path} has run a batch, and its start has not completed in "
                f"{_START:g} s; start it again"
            )
        assert self._query is not None
        report = self._report(batch)
        commits = operator_commits(report) if report is not None else {}
        if commits.keys() >= self._changelogs.keys():
            return commits
        metas = committed_metas(self._session, self._folder.path).values()
        for meta in metas:
            if meta.operator in self._changelogs:
                reader = self._changelogs[meta.operator].reader(meta.group)
                check_changelog(reader, meta, f"operator {meta.operator!r}, key group {meta.group}")
        return {meta.operator: meta.commit for meta in metas}


def _published(commit: tuple[StagingChangelog, int, int, str]) -> bool:
    changelog, group, sequence, attempt = commit
    return changelog.publish(group, sequence, attempt)


def _is_of(report: Mapping[str, Any] | None, batch: int) -> bool:
    """Return true if a report is that of a batch; Spark also reports triggers without one, under the id of the next."""
    return report is not None and report["batchId"] == batch and "addBatch" in report["durationMs"]
