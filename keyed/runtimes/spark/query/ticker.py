"""Background work for a running query: publishing batches, writing ticks, reading global tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.background import Background
from keyed.errors import ChangelogDiverged, CorruptionError, DefinitionError
from keyed.runtimes.spark.checkpoint.ticks import Ticks
from keyed.runtimes.spark.query.exports import Exports
from keyed.runtimes.spark.query.failures import has_lost_jvm, is_gone
from keyed.runtimes.spark.query.spark_sinks import Writer
from keyed.runtimes.spark.query.table_files import TableFiles

if TYPE_CHECKING:
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
