"""Queries of the local runtime: batches from the source through the chain of operators, sinks, and commits.

A batch's outputs are written under its id before it is committed. After a crash it is run and written again under the
same id, so each row occurs once. State, source position and batch id are committed atomically
(`keyed.stores.commit_store`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NoReturn

import attrs

from keyed.arrow.write import arrow_schema
from keyed.base.arguments import Shown
from keyed.base.background import Status
from keyed.base.ids import random_id
from keyed.base.private_files import folder_path
from keyed.base.scratch import ScratchFolder
from keyed.base.sources import SeekableSource
from keyed.changelog.kafka.kafka_changelog import KafkaChangelog
from keyed.changelog.model import encode_bundle, export_interval
from keyed.destinations.sink import Owner, Record, SinkWriter, claim_order, decode_mark, encode_mark
from keyed.engine.batch import Emitted, EmittedTables, Upstream
from keyed.engine.group_log import MOST_COMMITS
from keyed.engine.replica import Loader
from keyed.errors import CheckpointFinished, DefinitionError, KeyedError, OperatorChanged, QueryFailed, SinkError
from keyed.job.chaining import lines
from keyed.job.graph import BoundOutput, Port, Source, Stage
from keyed.job.options import Options
from keyed.job.results import Progress, Restored, RunResult, log_restore, shown_query, with_statuses
from keyed.recovery.cut import Cut, with_cut
from keyed.recovery.local_checkpoint import (
    OUTBOX,
    WAITING_POSITIONS,
    Outbox,
    encode_outbox,
    waiting,
    waiting_positions,
    without,
)
from keyed.runtimes.garbage import Collector
from keyed.runtimes.job_metrics import MetricsSource
from keyed.runtimes.kept_tables import KeptTables, result_of
from keyed.runtimes.local.local_operator import LocalOperator
from keyed.runtimes.local.local_position import (
    BegunBatch,
    LocalPosition,
    commit_restored,
    decode_begun,
    decode_position,
    encode_begun,
    encode_position,
)
from keyed.runtimes.local.local_rows import Limit, SourceRows, output_after_steps, packed
from keyed.runtimes.local.source import Arrivals, arrivals, check_not_ended, read_alone
from keyed.runtimes.metrics_export import MetricsExport
from keyed.runtimes.recording import Recorder, recorder, table_of_elements, with_timestamps
from keyed.runtimes.run_reports import ProgressLines, UsageWarnings, terminal_of
from keyed.runtimes.stop_signals import handled_signals, leave
from keyed.stores.commit_store import BufferedCommits, CommitStore, MemoryCommitStore
from keyed.tables.state_tables import StateTables

_log = logging.getLogger(__name__)


Outputs = dict[tuple[str, str | None], Emitted | EmittedTables]

#: Seconds for which a batch waits for further rows if it makes a file.
_FILE_SECONDS = 1.0
#: Seconds after which the source of a query that stops is closed again.
_CLOSE_SECONDS = 0.5
#: Options of the Spark runtime, with the remedy in this runtime.
_NOT_HERE = {
    "trigger": "is for Spark; the local runtime runs a batch as soon as its source has rows for it: leave it out",
    "query_name": "is for Spark's progress: leave it out",
}


class _Interrupted(BaseException):
    """Interrupts the wait for a source."""


@attrs.define(eq=False)
class _Run:
    """The operators of a query while it runs, and what is committed.

    Attributes:
        commits: The committed records.
        collector: Bounds cyclic garbage.
        operators: The operators in order.
        position: The position after the last batch.
    """

    commits: BufferedCommits
    collector: Collector
    operators: list[LocalOperator] = attrs.field(factory=list, init=False)
    position: LocalPosition = attrs.field(init=False)

    def export_positions(self, operators: Sequence[LocalOperator]) -> list[tuple[int, bytes]]:
        """Log the positions after the last batches of operators. Returns those that may be unlogged."""
        record = self.commits.read("run")
        if record is None:
            return []
        positions = [*waiting_positions(self.commits), (self.position.batches, record)]
        for operator in operators:
            operator.export_positions(positions)
        return positions


class LocalQuery(Shown):
    """A `keyed.Query` of the local runtime."""

    def __init__(
        self, last: Stage, outputs: tuple[BoundOutput, ...], options: Options, kept: KeptTables, export: MetricsExport
    ) -> None:
        options.refuse(_NOT_HERE)
        self._last = last
        self._names = [stage.name for stage in last.chain]
        self._kept = kept
        self._export_of_metrics = export
        self._runs = False
        self._outputs = outputs
        _check_types(last, outputs)
        self._checkpoint = None if options.checkpoint is None else folder_path(options.checkpoint, "checkpoint")
        self._group_access = options.group_access
        self._drain = options.checkpoint is None if options.drain is None else options.drain
        self._on_progress = options.on_progress
        self._on_restore = options.on_restore or log_restore
        self._rows_per_batch = 100_000 if options.rows_per_batch is None else options.rows_per_batch
        if type(self._rows_per_batch) is not int or self._rows_per_batch < 1:
            raise DefinitionError(f"rows_per_batch={self._rows_per_batch!r} must be an int above 0")
        self._has_own_clock = options.processing_time is not None
        self._now = options.processing_time or (lambda: time.time_ns() // 1_000_000)
        self._local_dir = None if options.local_dir is None else folder_path(options.local_dir, "local_dir")
        for bound in outputs:
            bound.sink.check(bound.output.schema, None)
        self._recorder = recorder(options.record, last.chain[0])
        self._stopping = threading.Event()
        self._signal: int | None = None
        self._is_reading = False
        #: Number of batches that are known to be in the changelogs.
        self._exported = -1
        self._thread: threading.Thread | None = None
        #: The threads that wait for the end, which get the error of a query that fails.
        self._waiting: set[int] = set()
        self.restored: Restored | None = None
        self._error: BaseException | None = None
        self.progress: Progress | None = None
        self._warnings = UsageWarnings(last, outputs)
        #: The progress of a run that its program waits for in `run`.
        self._lines: ProgressLines | None = None
        self._writers: dict[BoundOutput, SinkWriter] = {}
        #: The kinds of bad rows that were logged, by operator.
        self._bad: set[tuple[str, str]] = set()
        #: Numbers of chained operators, and the operators that are chained to the previous one.
        self._sizes: list[int] = []
        self._chained: set[str] = set()

    # The handle of a started query ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return shown_query(self._last.name, self.progress, self.status, self._export_of_metrics.trouble)

    @property
    def status(self) -> Status:
        """Status of the query. See `keyed.Query.status`."""
        if self._error is not None:
            return Status.FAILED
        if not self._runs and not self.is_active:
            return Status.CLOSED
        return Status.STARTING if self.progress is None else Status.FOLLOWING

    @property
    def is_active(self) -> bool:
        """True while the query runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def tables(self) -> StateTables:
        """The tables of the query's state. See `keyed.Query.tables`."""
        return self._kept.tables

    def metrics(self) -> dict[str, dict[str, int]]:
        """Return the counters by operator and name, and statuses. See `keyed.Query.metrics`."""
        return with_statuses(self.progress, self._names, self._statuses())

    def _statuses(self) -> dict[str, int]:
        return {"query_status": self.status.number, **self._kept.statuses(), **self._export_of_metrics.statuses()}

    def _of_query(self) -> dict[str, int]:
        """Return the exported metrics of the query: the statuses, and the rows that its sources have skipped."""
        data = [each.data for each in self._last.sources if hasattr(type(each.data), "rows_skipped")]
        skipped = [each.rows_skipped for each in data]
        return {**self._statuses(), **({"rows_skipped": sum(skipped)} if skipped else {})}

    def _is_exported(self) -> bool | None:
        """Return true if the changelogs have the last batch, ``None`` if there are none."""
        if self.progress is None or all(stage.changelog is None for stage in self._last.chain):
            return None
        return self._exported > self.progress.batch_id

    def stop(self) -> None:
        """Stop after the running batch; its commit stays. May be called from ``on_progress`` too."""
        self._stopping.set()
        self._close_source()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._join(None)

    def _join(self, timeout: float | None) -> None:
        """Wait for the end of the thread. While the query stops, its source is closed again.

        The thread may begin the iteration just after the source was closed, which then does not end it.
        """
        thread, end = self._thread, math.inf if timeout is None else time.monotonic() + timeout
        while thread is not None and thread.is_alive() and (left := end - time.monotonic()) > 0:
            thread.join(min(left, _CLOSE_SECONDS))
            if self._stopping.is_set():
                self._close_source()

    def _close_source(self) -> None:
        for data in [source.data for source in self._last.sources]:
            if isinstance(data, SeekableSource) and callable(close := getattr(data, "close", None)):
                close()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end of the query. Returns true if it has ended.

        Raises:
            KeyedError: The query failed.
        """
        if self._thread is not None and self._thread.is_alive():
            waiting = threading.get_ident()
            self._waiting.add(waiting)
            try:
                with handled_signals(self._on_signal):
                    self._join(timeout)
            finally:
                self._waiting.discard(waiting)
            if self._signal is not None:
                leave(self._signal)
        if self._error is not None:
            raise self._error
        return not self.is_active

    def start(self) -> LocalQuery:
        """Run in its own thread."""

        def work() -> None:
            try:
                self.run()
            except BaseException as error:  # noqa: BLE001 - raised where the program waits
                self._error = error
                if not self._waiting:
                    _log.error("the query %r failed", self._last.name, exc_info=error)
                self._kept.leave()
            finally:
                self._export_of_metrics.close()

        self._thread = threading.Thread(target=work, name="keyed-local-query", daemon=True)
        self._thread.start()
        return self

    # Running ----------------------------------------------------------------------------------------------------

    def run(self) -> RunResult:
        """Run to the end of the source.

        SIGTERM and Ctrl-C end it after the running batch, or while it waits for the source; a second signal ends it at
        once.
        """
        self._runs = True
        source = MetricsSource(lambda: None, self._of_query, self._is_exported, self._now)
        self._export_of_metrics.metrics.source = source
        try:
            with handled_signals(self._on_signal), suppress(_Interrupted), ExitStack() as stack:
                if self._thread is None and self._on_progress is None:
                    prints = any(each.sink.prints for each in self._outputs)
                    self._lines = ProgressLines(self._last.name, terminal_of(prints=prints))
                    stack.callback(self._lines.close)
                result = self._run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._runs = False
        self._kept.finish()
        # The thread of `start` leaves it to the waiting program.
        if self._signal is not None and self._thread is None:
            leave(self._signal)
        return result

    def _run(self) -> RunResult:
        for source in self._last.sources:
            check_not_ended(source)
        with ExitStack() as stack:
            stack.enter_context(read_alone(self._last.sources))
            commits: BufferedCommits = MemoryCommitStore()
            if self._checkpoint is not None:
                commits = CommitStore(self._checkpoint, group_access=self._group_access)
            stack.callback(commits.close)
            run = _Run(commits, stack.enter_context(Collector()))
            if self._local_dir is not None:
                folder = Path(self._local_dir)
            elif self._checkpoint is not None:
                folder = Path(self._checkpoint) / "local"
            else:
                folder = stack.enter_context(ScratchFolder("local")).path
            position = self._position(commits)
            together = lines(self._last, None if position is None else position.sizes)
            self._sizes = [len(line) for line in together]
            self._chained = {stage.name for line in together for stage in line[1:]}
            chain = self._last.chain
            keeps = self._checkpoint is not None or any(stage.restore_from is not None for stage in chain)
            for stage in chain:
                last = stage is self._last
                operator = LocalOperator(stage, commits, folder, run.collector, last=last, keeps=keeps)
                run.operators.append(operator)
                stack.callback(operator.close)
                if position is None:
                    operator.begin()
                else:
                    operator.check_states()
            run.position = self._first_position(run) if position is None else position
            stack.callback(self._close_writers)
            self._claim(run)
            stack.callback(self._close_source)
            return self._run_batches(run, stack)

    def _close_writers(self) -> None:
        with ExitStack() as stack:
            for writer in self._writers.values():
                stack.callback(writer.close)

    def _on_signal(self, number: int) -> None:
        if self._signal is not None:
            leave(number)
        self._signal = number
        self._stopping.set()
        self._close_source()
        if self._is_reading and self._thread is None:
            raise _Interrupted

    def _claim(self, run: _Run) -> None:
        """Claim the targets of sinks for this query. Its id is written to the checkpoint before the targets.

        Raises:
            SinkError: One belongs to another query.
        """
        commits, position = run.commits, run.position
        if not position.queries:
            record = commits.read("query")
            if record is None:
                record = encode_mark([random_id()])
                commits.write("query", record)
                commits.commit()
            position.queries = decode_mark(record, f"checkpoint {self._checkpoint}, record 'query'")
        owner = Owner(position.queries, position.batches, position.batches - position.restored)
        for bound in self._outputs:
            self._writers[bound] = bound.sink.open(owner, bound.output.schema)
        outbox = waiting(commits, f"checkpoint {self._checkpoint}") or Outbox(-1, {})
        for name in without(outbox, {writer.id for writer in self._writers.values()}):
            raise SinkError(
                f"{name} may lack rows of batch {outbox.batch}: the run that committed the batch ended before it had "
                "written them, and this run has no such sink. Run the job once more with that sink, which writes them "
                "first (if the topic or table is gone, create it again); then change the sinks"
            )
        for bound in claim_order(self._writers):
            writer, schema = self._writers[bound], bound.output.schema
            rows = outbox.records.get(writer.id, [])
            writer.claim(outbox.batch if rows else None)
            if rows:
                writer.write(rows, outbox.batch)
            if schema is not None:
                writer.prepare(arrow_schema(schema))
        if outbox.records:
            commits.forget(OUTBOX)
        if self._recorder is not None:
            self._recorder.claim(owner)

    def _run_batches(self, run: _Run, stack: ExitStack) -> RunResult:
        position, operators = run.position, run.operators
        keeps = self._checkpoint is not None or any(stage.changelog is not None for stage in self._last.chain)
        again = self._begun(run)
        read = arrivals(
            self._last,
            position,
            self._rows_per_batch,
            keeps=keeps,
            limit_of=self._limit,
            now=self._now,
            more=_FILE_SECONDS if self._makes_files else 0.0,
            first=None if again is None else again.rows,
        )
        source = stack.enter_context(closing(read))
        before = position.batches
        while not self._stopping.is_set() and (arrived := self._next(source)) is not None:
            if arrived.waits:
                now = self._now()
                if not any(operator.is_due(now) for operator in operators):
                    # The last batch can no longer be undone.
                    self._export(run, now)
                    run.collector.collect()
                    if self._lines is not None:
                        self._lines.look()
                    continue
            if position.ended:
                drained = "state that was restored" if position.restored else f"checkpoint {self._checkpoint}"
                raise CheckpointFinished(
                    f"the {drained} was drained, its watermark is at +inf, and new rows came; start from a new "
                    "checkpoint, or restore a batch before the last one: keyed.RestorePoint(changelog, as_of=...)"
                )
            now = self._now() if again is None else again.processing_time
            again = None
            self._batch(run, arrived, now, end=False)
            run.collector.collect()
        if self._drain and not position.ended and not self._stopping.is_set():
            self._batch(run, Arrivals(), self._now(), end=True)
        self._export(run, None)
        metrics = {operator.stage.name: operator.counters() for operator in operators}
        self._warnings.end(of_input=not self._stopping.is_set())
        batches = range(before, position.batches)
        return result_of(self._outputs, batches, metrics, self.restored, self._kept.read)

    @property
    def _logs_time(self) -> bool:
        """True if a rerun of a batch has the rows and the time of its first attempt."""
        return self._checkpoint is not None and self._last.source.ingests

    @property
    def _makes_files(self) -> bool:
        """True if each batch makes a file or a version of a table, so that batches should not be small."""
        changelogs = [stage.changelog for stage in self._last.chain if stage.changelog is not None]
        return (
            self._recorder is not None
            or any(each.sink.makes_files for each in self._outputs)
            or any(not isinstance(each, KafkaChangelog) and not export_interval(each) for each in changelogs)
        )

    def _begun(self, run: _Run) -> BegunBatch | None:
        """Return the batch that an earlier run began with rows and did not commit."""
        record = run.commits.read("begun") if self._logs_time else None
        if record is None:
            return None
        begun = decode_begun(record, f"checkpoint {self._checkpoint}, record 'begun'")
        return begun if begun.batch == run.position.batches else None

    def _export(self, run: _Run, now: int | None) -> None:
        """Export the last batch now, because there may be no next batch to do it.

        Args:
            run: The run, after the batch.
            now: Processing time; what is not due then is not exported. ``None`` exports all.
        """
        if self._exported == run.position.batches:
            return
        due = [each for each in run.operators if now is None or each.is_export_due(now)]
        run.export_positions(due)
        for operator in due:
            operator.flush(run.position.batches)
        self._exported = min(operator.flushed for operator in run.operators)

    def _limit(self, source: Source) -> Limit | None:
        """Return the limit of timestamps; ``None`` if the user gave the clock."""
        ahead = source.max_ahead_ms
        return None if ahead is None or self._has_own_clock else lambda: self._now() + ahead

    def _next(self, source: Iterator[Arrivals]) -> Arrivals | None:
        """Return the rows of the sources for the next batch, ``None`` at their end."""
        self._is_reading = True
        try:
            # A signal may have come before a signal could end the wait.
            return None if self._stopping.is_set() else next(source, None)
        except _Interrupted:
            return None
        finally:
            self._is_reading = False

    def _batch(self, run: _Run, arrived: Arrivals, now: int, *, end: bool) -> None:
        """Run, write and commit one micro-batch."""
        began = time.monotonic()
        commits, operators, position = run.commits, run.operators, run.position
        try:
            if self._logs_time and arrived.read[0]:
                commits.write("begun", encode_begun(BegunBatch(position.batches, arrived.read[0], now)))
                commits.commit()
            if self._recorder is not None:
                self._record(self._recorder, arrived, position.batches)
            positions = run.export_positions([each for each in operators if each.is_export_due(now)])
            emitted: Outputs = {}
            outbox: dict[BoundOutput, list[Record]] = {}
            reached: dict[str, Upstream] = {}
            holders: dict[str, int | None] = {}
            for operator in operators:
                stage = operator.stage
                inputs, forwarded = list[SourceRows](), list[SourceRows]()
                if stage.name in self._chained:
                    forwarded = operator.rows_forwarded(operators[operators.index(operator) - 1])
                else:
                    inputs = operator.of_one_type(_inputs_of(operator, arrived, emitted))
                self._log_reasons(stage, inputs)
                result = operator.run(
                    inputs,
                    forwarded,
                    upstream=[reached[name] for name in stage.waits_for],
                    processing_time=now,
                    end_of_input=end,
                )
                reached[stage.name] = Upstream(result.watermark, result.idle)
                holders[stage.name] = result.held_by
                emitted[stage.name, None] = result.main
                emitted |= {(stage.name, tag): side for tag, side in result.side.items()}
                _divert(stage, inputs, emitted)
            for bound in self._outputs:
                output = emitted.get(bound.output.address) or Emitted()
                if bound.output.steps:
                    output = _after_steps(bound.output, output)
                records = packed(bound, self._writers[bound], output, position.batches)
                if records is not None:
                    outbox[bound] = records
            for (name, side), output in emitted.items():
                if side is not None and output.values:
                    self._warnings.emitted(name, [side])
            waits = any(export_interval(operator.stage.changelog) for operator in operators)
            if waits or positions[:-1]:
                logged = [operator.logged for operator in operators if operator.stage.changelog is not None]
                waiting = [each for each in positions if each[0] > min(logged, default=0)][1 - MOST_COMMITS :]
                commits.write(WAITING_POSITIONS, encode_bundle(waiting if waits else []))
            position.batches += 1
            position.rows += arrived.read[0]
            position.ended = position.ended or end
            commits.write("run", encode_position(position))
            if outbox:
                by_id = {self._writers[bound].id: records for bound, records in outbox.items()}
                commits.write(OUTBOX, encode_outbox(Outbox(position.batches - 1, by_id)))
            commits.commit()
            for bound, records in outbox.items():
                self._writers[bound].write(records, position.batches - 1)
            if outbox:
                commits.forget(OUTBOX)
        except KeyedError:
            raise
        except Exception as error:
            raise QueryFailed(f"the query failed: {type(error).__name__}: {error}") from error
        metrics = {operator.stage.name: dict(operator.metrics) for operator in operators}
        watermark = min(each.watermark for each in reached.values())
        duration = int((time.monotonic() - began) * 1000)
        self.progress = Progress(position.batches - 1, sum(arrived.read), watermark, now, metrics, duration)
        self._export_of_metrics.metrics.add(self.progress)
        self._warnings.look(self.progress, arrived.highest, holders)
        if self._lines is not None:
            self._lines.add(self.progress)
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def _log_reasons(self, stage: Stage, inputs: Sequence[SourceRows]) -> None:
        """Log the reason of bad rows, once for each kind."""
        for each in inputs:
            for kind, reason in each.reasons.items():
                if (stage.name, kind) not in self._bad:
                    self._bad.add((stage.name, kind))
                    _log.warning("operator %r: a bad row: %s; further ones are counted in rows_bad", stage.name, reason)

    def _record(self, to: Recorder, arrived: Arrivals, batch: int) -> None:
        """Record the rows of the first operator: in columns for vectorized functions, otherwise as elements."""
        to.begin(batch)
        first = self._last.chain[0]
        for number, each in first.source_inputs.items():
            rows = arrived.rows.get((first.name, number), SourceRows())
            table = None if rows.table is None else rows.table()
            if table is not None:
                tables = [with_timestamps(table, None)]
            else:
                tables = [table_of_elements([*values], times) for _, times, values, _ in rows.chunks()]
            to.write(batch, number, each.side, tables)

    def _position(self, commits: BufferedCommits) -> LocalPosition | None:
        """Return the position in the checkpoint, ``None`` if it is new.

        Raises:
            OperatorChanged: It belongs to another chain of operators.
        """
        record = commits.read("run")
        if record is None:
            return None
        position = decode_position(record, f"checkpoint {self._checkpoint}, record 'run'")
        if position.operators != self._names:
            raise OperatorChanged(
                f"the checkpoint {self._checkpoint} belongs to operators {position.operators}, the query has "
                f"{self._names}; use the same chain and names, or a new checkpoint"
            )
        return position

    def _first_position(self, run: _Run) -> LocalPosition:
        """Return the start of a new query: the beginning, or the state and position in changelogs."""
        points = {stage.name: stage.restore_from for stage in self._last.chain if stage.restore_from is not None}
        if not points:
            return LocalPosition(self._names, sizes=self._sizes)
        cut, loaders = with_cut(points, lambda cut: (cut, self._load(run, cut)))
        position, self.restored = commit_restored(run.commits, self._names, self._sizes, cut, loaders)
        if not self.restored.with_position:
            _log.warning(
                "batch %d is restored without a position: the state is restored, and the source is read from its start",
                self.restored.batch_id,
            )
        return position

    def _load(self, run: _Run, cut: Cut) -> list[Loader]:
        """Load the key groups of all operators."""
        loaders: list[Loader] = []
        for operator in run.operators:
            restoration = cut.operators.get(operator.stage.name)
            loaders += operator.load(restoration, cut.sequence, self._on_restore, run.commits.commit)
        return loaders


def _after_steps(output: Port, emitted: Emitted | EmittedTables) -> Emitted | EmittedTables:
    """Return the rows of a batch for a sink after the transformations of the output."""
    name = output.stage.name
    after = output_after_steps(emitted, attrs.evolve(output, steps=()), output.steps, name, timed=False)
    if isinstance(emitted, EmittedTables) and after.is_table and after.count:
        tables = EmittedTables()
        tables.tables.append(after.table(name))
        return tables
    result = Emitted()
    result.values = after.values()
    return result


def _inputs_of(operator: LocalOperator, arrived: Arrivals, emitted: Outputs) -> list[SourceRows]:
    """Return the rows of each input of an operator in a batch."""
    stage = operator.stage
    inputs = []
    for number, each in enumerate(stage.inputs):
        if isinstance(each.origin, Source):
            inputs.append(arrived.rows.get((stage.name, number)) or SourceRows())
        else:
            inputs.append(operator.rows_after(number, each.origin, emitted.get(each.origin.address) or Emitted()))
    return inputs


def _divert(stage: Stage, inputs: Sequence[SourceRows], emitted: Outputs) -> None:
    """Add bad rows to an operator's side outputs."""
    for number, each in stage.source_inputs.items():
        tag, bad = each.source.on_bad_row, inputs[number].bad
        if tag is not None and bad:
            beside = emitted.get((stage.name, tag.name))
            diverted = emitted[stage.name, tag.name] = Emitted()
            diverted.values = [*(beside.values if beside else ()), *bad]


def _check_types(last: Stage, outputs: tuple[BoundOutput, ...]) -> None:
    """Refuse column types that Spark would refuse, for all sinks.

    Raises:
        OutputDefinitionError: A type is unknown, or no values can be written to it.
    """
    tags = [bound.output.tag for bound in outputs]
    schemas = [stage.output for stage in last.chain] + [tag.schema for tag in tags if tag is not None]
    steps = [step for stage in last.chain for each in stage.inputs for step in each.steps]
    schemas += [step.schema for step in [*steps, *(step for bound in outputs for step in bound.output.steps)]]
    for schema in schemas:
        if schema is not None:
            arrow_schema(schema)


def run(last: Stage, outputs: tuple[BoundOutput, ...], options: Options) -> RunResult:
    """Run a chain to the end of its source."""
    with closing(MetricsExport(last, options)) as export, KeptTables(last, options) as kept:
        return LocalQuery(last, outputs, options, kept, export).run()


def start(last: Stage, outputs: tuple[BoundOutput, ...], options: Options) -> LocalQuery:
    """Start a chain in its own thread."""
    with ExitStack() as stack:
        export = stack.enter_context(closing(MetricsExport(last, options)))
        kept = stack.enter_context(KeptTables(last, options))
        query = LocalQuery(last, outputs, options, kept, export).start()
        # The query ends them.
        stack.pop_all()
        return query


def dataframe(output: Port) -> NoReturn:
    """Raise an error: the local runtime has no DataFrames.

    Raises:
        DefinitionError: Always.
    """
    raise DefinitionError(
        f"the source of operator {output.stage.name!r} is not a Spark DataFrame, so its output is not one either; use "
        ".run(sink)"
    )
