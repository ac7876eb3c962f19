"""What a run reports: progress after each batch, and the result at its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from keyed.errors import DefinitionError
from keyed.shown import Shown

if TYPE_CHECKING:
    from keyed.views import StateTables

_log = logging.getLogger(__name__)


def _rows(metrics: dict[str, dict[str, int]]) -> str:
    """Shorten counters: how many rows went into each operator, and how many came out."""
    said = (f"{name!r}: {each.get('rows_in', 0)} in, {each.get('rows_out', 0)} out" for name, each in metrics.items())
    return f"<{'; '.join(said)}>"


@attrs.frozen
class Progress(Shown):
    """One micro-batch that has been committed.

    Attributes:
        batch_id: Its number, from 0.
        rows: Rows that it read from the source.
        watermark: Watermark of the last operator after it, milliseconds; −2^63 before any row.
        processing_time: Its processing time, milliseconds.
        metrics: Cumulative counters by operator and name (`keyed.engine.counters`).
    """

    batch_id: int
    rows: int
    watermark: int
    processing_time: int
    metrics: dict[str, dict[str, int]] = attrs.field(repr=_rows)


@attrs.frozen
class RestoreProgress:
    """How far the restore of an operator has come.

    Attributes:
        operator: Its name.
        groups_done: Key groups of the changelog that were read.
        groups: Key groups of the changelog that are to be read.
        records: Records that were read.
    """

    operator: str
    groups_done: int
    groups: int
    records: int


def log_restore(progress: RestoreProgress) -> None:
    """Log it, where no ``on_restore=`` is given."""
    _log.info("operator %s: %d of %d key groups and %d records are restored", *attrs.astuple(progress))


@attrs.frozen
class Restored:
    """What a query was restored with from changelogs.

    Attributes:
        sequence: Number of the batch in the changelogs after which the state was.
        with_position: Whether the query goes on in its sources where that batch ended. If not, they are read as they
            would be by a new query: only state, timers and clocks were restored.
    """

    sequence: int
    with_position: bool


@attrs.frozen
class RunResult(Shown):
    """What a bounded run leaves.

    Attributes:
        values: Values of the collecting sinks, if the run had any, sink by sink: those of this run.
        batches: Number of batches that this run committed.
        metrics: Cumulative counters by operator and name at its end.
        restored: What the query was restored with, if this run has restored it.
    """

    values: list[Any] = attrs.field(repr=lambda values: f"<{len(values)}>")
    batches: int
    metrics: dict[str, dict[str, int]] = attrs.field(repr=_rows)
    restored: Restored | None = None
    _read_tables: Callable[[], StateTables] | None = attrs.field(default=None, repr=False, eq=False)

    @cached_property
    def tables(self) -> StateTables:
        """The tables that the run has left, to be read, as by `keyed.read_tables`; to be closed, best by ``with``.

        Raises:
            DefinitionError: It was run without ``tables=``.
        """
        if self._read_tables is None:
            raise DefinitionError("the run kept no tables: give run(...) tables=, the path of a folder for them")
        return self._read_tables()


class Query(Protocol):
    """A query that `keyed.start` has started, on either runtime.

    On Spark it is a `keyed.runtimes.spark.query.spark_query.SparkQuery`, whose ``query`` is Spark's own handle.
    """

    @property
    def is_active(self) -> bool:
        """Whether the query is running."""

    @property
    def progress(self) -> Progress | None:
        """The last batch that was committed."""

    @property
    def restored(self) -> Restored | None:
        """What the query was restored with, if this program has restored it."""

    @property
    def tables(self) -> StateTables:
        """The tables of the query's state, which follow it, and have its last batch when it has ended.

        Raises:
            DefinitionError: The query was started without ``tables=``.
        """

    def metrics(self) -> dict[str, dict[str, int]]:
        """Return the cumulative counters by operator and name, as of the last batch."""

    def stop(self) -> None:
        """Stop the query; what it has committed stays, also in its changelogs."""

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end of the query.

        Args:
            timeout: Seconds; ``None`` waits for ever.

        Returns:
            Whether it has ended.

        Raises:
            KeyedError: What the query failed with.
        """


def shown_query(name: str, progress: Progress | None) -> str:
    """Return a query in short: the name of its last operator, and its last batch."""
    return f"Query({name!r}, {'no batch yet' if progress is None else f'batch {progress.batch_id}'})"
