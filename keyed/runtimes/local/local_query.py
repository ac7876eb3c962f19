"""Queries of the local runtime: batches from the source through the chain of operators, sinks, and commits.

A batch's outputs are written under its id before it is committed. After a crash it is run and written again under the
same id, so each row occurs once. State, source position and batch id are committed atomically
(`keyed.stores.commit_store`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import attrs

from keyed.base.background import Status
from keyed.base.ids import random_id
from keyed.base.private_files import folder_path
from keyed.base.shown import Shown
from keyed.base.sources import SeekableSource
from keyed.changelog.kafka.kafka_changelog import KafkaChangelog
from keyed.changelog.model import batch_id, export_interval
from keyed.changelog.position_bundles import encode_bundle
from keyed.destinations.ownership import Owner, decode_mark, encode_mark
from keyed.destinations.sink import Record, SinkWriter, claim_order
from keyed.engine.batch import Emitted, EmittedTables
from keyed.engine.channels import Upstream
from keyed.engine.loader import Loader
from keyed.engine.meta import MOST_COMMITS
from keyed.engine.output_copies import OutputCopies
from keyed.errors import CheckpointFinished, DefinitionError, KeyedError, OperatorChanged, QueryFailed, SinkError
from keyed.job.chaining import lines
from keyed.job.graph import BoundOutput, Port, Source, Stage
from keyed.job.options import Options
from keyed.job.results import Progress, Restored, RunResult, log_restore, shown_query, with_statuses
from keyed.job.transforms import keeps_tables
from keyed.recovery.cut import Cut, with_cut
from keyed.recovery.local_checkpoint import WAITING_POSITIONS, waiting_positions
from keyed.recovery.outbox import OUTBOX, Outbox, encode_outbox, waiting, without
from keyed.runtimes.collected import tabled
from keyed.runtimes.garbage import Collector
from keyed.runtimes.job_metrics import MetricsSource
from keyed.runtimes.kept_tables import KeptTables, kept_tables
from keyed.runtimes.local.local_operator import LocalOperator
from keyed.runtimes.local.local_position import (
    BegunBatch,
    LocalPosition,
    decode_begun,
    decode_position,
    encode_begun,
    encode_position,
    restored_position,
)
from keyed.runtimes.local.local_rows import Limit, SourceRows, after_steps, as_rows
from keyed.runtimes.local.local_sinks import packed
from keyed.runtimes.local.process import Interrupted, leave, watched
from keyed.runtimes.local.progress_lines import ProgressLines, terminal_of
from keyed.runtimes.local.source import Arrivals, arrivals, check_not_ended
from keyed.runtimes.metrics_export import MetricsExport, exported_metrics
from keyed.runtimes.recording import Recorder, recorder, table_of_elements, with_timestamps
from keyed.runtimes.usage_warnings import UsageWarnings
from keyed.stores.commit_store import BufferedCommits, CommitStore, MemoryCommitStore
from keyed.stores.scratch import ScratchFolder
from keyed.tables.state_tables import StateTables

_log = logging.getLogger(__name__)


Outputs = dict[tuple[str, str | None], Emitted | EmittedTables]

#: Seconds for which a batch waits for further rows if it makes a file.
_FILE_SECONDS = 1.0
#: Options of the Spark runtime, with the remedy in this runtime.
_NOT_HERE = {
    "trigger": "is for Spark; the local runtime runs a batch as soon as its source has rows for it: leave it out",
    "query_name": "is for Spark's progress: leave it out",
}


class LocalQuery(Shown):
    """A `keyed.Query` of the local runtime."""

    def __init__(
        self,
        last: Stage,
        outputs: tuple[BoundOutput, ...],
        options: Options,
        kept: KeptTables,
        export: MetricsExport,
    ) -> None:
        options.refuse(_NOT_HERE)
        self._last = last
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
        self._result: RunResult | None = None
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
        return with_statuses(self.progress, (stage.name for stage in self._last.chain), self._statuses())

    def _statuses(self) -> dict[str, int]:
        return {
            "query_status": self.status.number,
            **self._kept.statuses(),
            **self._export_of_metrics.statuses(),
        }

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
            self._thread.join()

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
                with watched(self._on_signal):
                    self._thread.join(timeout)
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
                self._result = self.run()
            except BaseException as error:  # noqa: BLE001 - raised where the program waits
                self._error = error
                if isinstance(error, Exception):
                    self._kept.leave()
                    if not self._waiting:
                        _log.error("the query %r failed", self._last.name, exc_info=error)
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
        self._export_of_metrics.follow(MetricsSource(lambda: None, self._of_query, self._is_exported, self._now))
        try:
            with watched(self._on_signal), suppress(Interrupted), ExitStack() as stack:
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
        commits: BufferedCommits = MemoryCommitStore()
        if self._checkpoint is not None:
            commits = CommitStore(self._checkpoint, group_access=self._group_access)
        operators: list[LocalOperator] = []
        with ExitStack() as stack:
            stack.callback(commits.close)
            collector = stack.enter_context(Collector())
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
                operators.append(
                    LocalOperator(stage, commits, folder, _microseconds, collector, last=last, keeps=keeps)
                )
                stack.callback(operators[-1].close)
            if position is None:
                for operator in operators:
                    operator.begin()
                position = self._first_position(commits, operators)
            else:
                for operator in operators:
                    operator.check_states()
            stack.callback(self._close_writers)
            self._claim(commits, position)
            stack.callback(self._close_source)
            return self._run_batches(commits, operators, position, collector)

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _on_signal(self, number: int) -> None:
        if self._signal is not None:
            leave(number)
        self._signal = number
        self._stopping.set()
        self._close_source()
        if self._is_reading and self._thread is None:
            raise Interrupted

    def _claim(self, commits: BufferedCommits, position: LocalPosition) -> None:
        """Claim the targets of sinks for this query. Its id is written to the checkpoint before the targets.

        Raises:
            SinkError: One belongs to another query.
        """
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
                from keyed.arrow.write import arrow_schema

                writer.prepare(arrow_schema(schema))
        if outbox.records:
            commits.forget(OUTBOX)
        if self._recorder is not None:
            self._recorder.claim(owner)

    def _run_batches(
        self, commits: BufferedCommits, operators: list[LocalOperator], position: LocalPosition, collector: Collector
    ) -> RunResult:
        keeps = self._checkpoint is not None or any(stage.changelog is not None for stage in self._last.chain)
        again = self._begun(commits, position)
        source = arrivals(
            self._last,
            position,
            self._rows_per_batch,
            keeps=keeps,
            limit_of=self._limit,
            now=self._now,
            more=_FILE_SECONDS if self._makes_files else 0.0,
            first=None if again is None else again.rows,
        )
        before = position.batches
        while not self._stopping.is_set() and (arrived := self._next(source, position)) is not None:
            if arrived.waits:
                now = self._now()
                if not any(operator.is_due(now) for operator in operators):
                    # The last batch can no longer be undone.
                    self._export(commits, operators, position, now)
                    collector.collect()
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
            self._batch(commits, operators, position, arrived, now, end=False)
            collector.collect()
        if self._drain and not position.ended and not self._stopping.is_set():
            self._batch(commits, operators, position, Arrivals(), self._now(), end=True)
        self._export(commits, operators, position, None)
        kept = [bound.sink.collected or {} for bound in self._outputs]
        ran = range(before, position.batches)
        values = [value for batches in kept for batch in ran for value in batches.get(batch, ())]
        metrics = {operator.stage.name: operator.counters() for operator in operators}
        self._warnings.end(of_input=not self._stopping.is_set())
        return RunResult(
            values, position.batches - before, metrics, self.restored, self._kept.read, tabled(self._outputs)
        )

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

    def _begun(self, commits: BufferedCommits, position: LocalPosition) -> BegunBatch | None:
        """Return the batch that an earlier run began with rows and did not commit."""
        record = commits.read("begun") if self._logs_time else None
        if record is None:
            return None
        begun = decode_begun(record, f"checkpoint {self._checkpoint}, record 'begun'")
        return begun if begun.batch == position.batches else None

    def _export(
        self, commits: BufferedCommits, operators: list[LocalOperator], position: LocalPosition, now: int | None
    ) -> None:
        """Export the last batch now, because there may be no next batch to do it.

        Args:
            commits: The committed state.
            operators: The operators.
            position: The position after the batch.
            now: Processing time; what is not due then is not exported. ``None`` exports all.
        """
        if self._exported == position.batches:
            return
        due = [each for each in operators if now is None or each.is_export_due(now)]
        _export_positions(commits, due, position)
        for operator in due:
            operator.flush(position.batches)
        self._exported = min(operator.flushed for operator in operators)

    def _limit(self, source: Source) -> Limit | None:
        """Return the limit of timestamps; ``None`` if the user gave the clock."""
        ahead = source.max_ahead_ms
        return None if ahead is None or self._has_own_clock else lambda: self._now() + ahead

    def _next(self, source: Iterator[Arrivals], position: LocalPosition) -> Arrivals | None:
        """Return the rows of the sources for the next batch, ``None`` at their end."""
        self._is_reading = True
        try:
            return next(source, None)
        except Interrupted:
            return None
        except KeyedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a source raises is named and raised again
            places: Any = zip(self._last.sources, [position, *position.beside], strict=False)
            read = ", ".join(f"{place.rows} rows of the {type(each.data).__name__}" for each, place in places)
            self._failed(error, f" while it read after {read}")
        finally:
            self._is_reading = False

    def _batch(
        self,
        commits: BufferedCommits,
        operators: list[LocalOperator],
        position: LocalPosition,
        arrived: Arrivals,
        now: int,
        *,
        end: bool,
    ) -> None:
        """Run, write and commit one micro-batch."""
        began = _microseconds()
        try:
            if self._logs_time and arrived.read[0]:
                commits.write("begun", encode_begun(BegunBatch(position.batches, arrived.read[0], now)))
                commits.commit()
            if self._recorder is not None:
                self._record(self._recorder, arrived, position.batches)
            positions = _export_positions(commits, [each for each in operators if each.is_export_due(now)], position)
            emitted: Outputs = {}
            outbox: dict[BoundOutput, list[Record]] = {}
            reached: dict[str, Upstream] = {}
            holders: dict[str, int | None] = {}
            for operator in operators:
                stage = operator.stage
                if stage.name in self._chained:
                    rows = operator.rows_forwarded(operators[operators.index(operator) - 1])
                else:
                    rows = operator.of_one_type(_rows_of(operator, arrived, emitted))
                self._log_reasons(stage, rows)
                result = operator.run(
                    rows,
                    upstream=[reached[name] for name in stage.waits_for],
                    processing_time=now,
                    end_of_input=end,
                )
                reached[stage.name] = Upstream(result.watermark, result.idle)
                holders[stage.name] = result.held_by
                emitted[stage.name, None] = result.main
                emitted |= {(stage.name, tag): side for tag, side in result.side.items()}
                _divert(stage, rows, emitted)
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
        except Exception as error:  # noqa: BLE001 - whatever a sink or source raises is named and raised again
            self._failed(error)
        metrics = {operator.stage.name: dict(operator.metrics) for operator in operators}
        watermark = min(each.watermark for each in reached.values())
        duration = (_microseconds() - began) // 1000
        self.progress = Progress(position.batches - 1, sum(arrived.read), watermark, now, metrics, duration)
        self._export_of_metrics.metrics.add(self.progress)
        self._warnings.look(self.progress, arrived.highest, holders)
        if self._lines is not None:
            self._lines.add(self.progress)
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def _log_reasons(self, stage: Stage, rows: SourceRows) -> None:
        """Log the reason of bad rows, once for each kind."""
        for each in rows.inputs or [rows]:
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

    def _failed(self, error: Exception, where: str = "") -> NoReturn:
        raise QueryFailed(f"the query failed{where}: {type(error).__name__}: {error}") from error

    def _position(self, commits: BufferedCommits) -> LocalPosition | None:
        """Return the position in the checkpoint, ``None`` if it is new.

        Raises:
            OperatorChanged: It belongs to another chain of operators.
        """
        names = [stage.name for stage in self._last.chain]
        record = commits.read("run")
        if record is None:
            return None
        position = decode_position(record, f"checkpoint {self._checkpoint}, record 'run'")
        if position.operators != names:
            raise OperatorChanged(
                f"the checkpoint {self._checkpoint} belongs to operators {position.operators}, the query has {names}; "
                "use the same chain and names, or a new checkpoint"
            )
        return position

    def _first_position(self, commits: BufferedCommits, operators: list[LocalOperator]) -> LocalPosition:
        """Return the start of a new query: the beginning, or the state and position in changelogs."""
        names = [operator.stage.name for operator in operators]
        points = {o.stage.name: o.stage.restore_from for o in operators if o.stage.restore_from is not None}
        if not points:
            return LocalPosition(names, sizes=self._sizes)
        cut, loaders = with_cut(points, lambda cut: (cut, self._load(commits, operators, cut)))
        position, with_position = restored_position(names, self._sizes, cut)
        if not with_position:
            _log.warning(
                "batch %d is restored without a position: the state is restored, and the source is read from its start",
                batch_id(cut.sequence),
            )
        self.restored = Restored(batch_id(cut.sequence), with_position=with_position)
        # In one commit, because a partially restored query is not valid.
        for loader in loaders:
            loader.write_meta()
        commits.write("run", encode_position(position))
        commits.commit()
        return position

    def _load(self, commits: BufferedCommits, operators: list[LocalOperator], cut: Cut) -> list[Loader]:
        """Load the key groups of all operators."""
        loaders: list[Loader] = []
        for operator in operators:
            restoration = cut.operators.get(operator.stage.name)
            loaders += operator.load(restoration, cut.sequence, self._on_restore, commits.commit)
        return loaders


def _after_steps(output: Port, emitted: Emitted | EmittedTables) -> Emitted | EmittedTables:
    """Return the rows of a batch for a sink after the transformations of the output."""
    plain = attrs.evolve(output, steps=())
    if isinstance(emitted, EmittedTables) and keeps_tables(output.steps):
        from keyed.runtimes.local.table_rows import after_tables

        tables = EmittedTables()
        after = after_tables(emitted, plain.schema, output.steps, output.stage.name, timed=False)
        if after is not None and after.count:
            tables.tables.append(after.table(output.stage.name))
        return tables
    own = map(OutputCopies(plain.schema).freeze, emitted.values)
    values = as_rows(list(own), plain.schema, output.stage.name)
    result = Emitted()
    result.values = after_steps(values, None, output.steps, plain.schema, output.stage.name).values()
    return result


def _rows_of(operator: LocalOperator, arrived: Arrivals, emitted: Outputs) -> SourceRows:
    """Return the rows that an operator reads in a batch."""
    stage = operator.stage
    inputs = []
    for number, each in enumerate(stage.inputs):
        if isinstance(each.origin, Source):
            inputs.append(arrived.rows.get((stage.name, number)) or SourceRows())
        else:
            inputs.append(operator.rows_after(number, each.origin, emitted.get(each.origin.address) or Emitted()))
    return inputs[0] if len(inputs) == 1 else SourceRows(inputs=inputs)


def _divert(stage: Stage, rows: SourceRows, emitted: Outputs) -> None:
    """Add bad rows to an operator's side outputs."""
    for number, each in stage.source_inputs.items():
        tag, bad = each.source.on_bad_row, (rows.inputs or [rows])[number].bad
        if tag is not None and bad:
            beside = emitted.get((stage.name, tag.name))
            diverted = emitted[stage.name, tag.name] = Emitted()
            diverted.values = [*(beside.values if beside else ()), *bad]


def _export_positions(
    commits: BufferedCommits, operators: list[LocalOperator], position: LocalPosition
) -> list[tuple[int, bytes]]:
    """Log the positions after the last batches of operators from the checkpoint. Returns those that may be unlogged."""
    record = commits.read("run")
    if record is None:
        return []
    positions = [*waiting_positions(commits), (position.batches, record)]
    for operator in operators:
        operator.export_positions(positions)
    return positions


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
            from keyed.arrow.write import arrow_schema

            arrow_schema(schema)


def run(last: Stage, outputs: tuple[BoundOutput, ...], options: Options) -> RunResult:
    """Run a chain to the end of its source."""
    with exported_metrics(last, options, stay=False) as export, kept_tables(last, options, stay=False) as kept:
        return LocalQuery(last, outputs, options, kept, export).run()


def start(last: Stage, outputs: tuple[BoundOutput, ...], options: Options) -> LocalQuery:
    """Start a chain in its own thread."""
    with exported_metrics(last, options, stay=True) as export, kept_tables(last, options, stay=True) as kept:
        return LocalQuery(last, outputs, options, kept, export).start()


def dataframe(output: Port) -> NoReturn:
    """Raise an error: the local runtime has no DataFrames.

    Raises:
        DefinitionError: Always.
    """
    raise DefinitionError(
        f"the source of operator {output.stage.name!r} is not a Spark DataFrame, so its output is not one either; use "
        ".run(sink)"
    )


def _microseconds() -> int:
    return time.perf_counter_ns() // 1000
