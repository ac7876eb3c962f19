"""Reports of a run: progress after each batch, and the result at its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, overload

import attrs

from keyed.base.arguments import SHOWN_ROWS, Shown, html_table
from keyed.base.extras import extra
from keyed.errors import DefinitionError, KeyedError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from keyed.base.background import Status
    from keyed.tables import StateTables

_log = logging.getLogger(__name__)


#: The counters that a summary names if they are above zero.
_COUNTERS = {"late": "rows_late", "dropped": "rows_dropped", "bad": "rows_bad", "timers pending": "timers_pending"}


def _rows(metrics: dict[str, dict[str, int]]) -> str:
    """Summarize counters: the rows into and out of each operator, and those that its user may not expect."""
    parts = []
    for name, each in metrics.items():
        counts = [f"{count} {what}" for what, counter in _COUNTERS.items() if (count := each.get(counter))]
        parts.append(", ".join([f"{name!r}: {each.get('rows_in', 0)} in", f"{each.get('rows_out', 0)} out", *counts]))
    return f"<{'; '.join(parts)}>"


@attrs.frozen
class Progress(Shown):
    """One committed micro-batch.

    Attributes:
        batch_id: Its id, from 0, the same in sinks, tables, restore points and commands. On Spark it is that of
            ``foreachBatch`` and Spark's progress; in a restored query ids continue after the restored batch.
        rows: Number of rows that it read from the sources.
        watermark: Watermark of the last operator after it, milliseconds; −2^63 before any row.
        processing_time: Its processing time, milliseconds.
        metrics: Cumulative counters by operator and name (`keyed.engine.group_log`).
        duration_ms: Its duration up to its commit, milliseconds.
    """

    batch_id: int
    rows: int
    watermark: int
    processing_time: int
    metrics: dict[str, dict[str, int]] = attrs.field(repr=_rows)
    duration_ms: int = attrs.field(default=0, eq=False)


@attrs.frozen
class RestoreProgress:
    """Progress of the restore of an operator.

    Attributes:
        operator: Its name.
        groups_done: Key groups of the changelog that were read.
        groups: All of its key groups.
        records: Records that were read.
    """

    operator: str
    groups_done: int
    groups: int
    records: int


def log_restore(progress: RestoreProgress) -> None:
    """Log the progress of a restore, if no ``on_restore=`` is given."""
    _log.info("operator %s: %d of %d key groups and %d records are restored", *attrs.astuple(progress))


@attrs.frozen
class Restored:
    """The batch from which a query was restored.

    Attributes:
        batch_id: Its id.
        with_position: True if the sources resume where it ended; if not, only state, timers and clocks were restored.
    """

    batch_id: int
    with_position: bool


@attrs.frozen
class RunResult(Shown):
    """Result of a bounded run.

    Attributes:
        values: Values of the collecting sinks of this run, sink by sink.
        batches: Number of batches that this run committed.
        metrics: Cumulative counters by operator and name at its end.
        restored: The restored batch, if this run has restored the query.
    """

    values: list[Any] = attrs.field(repr=lambda values: f"<{len(values)}>")
    batches: int
    metrics: dict[str, dict[str, int]] = attrs.field(repr=_rows)
    restored: Restored | None = None
    _read_tables: Callable[[], StateTables] | None = attrs.field(default=None, repr=False, eq=False)
    _table: Callable[[list[Any]], pa.Table] | None = attrs.field(default=None, repr=False, eq=False)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the values."""
        return iter(self.values)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return the value at an index, or the list of those in a slice."""
        return self.values[index]

    def __bool__(self) -> bool:
        """Return true: a result without values is a result."""
        return True

    def _repr_html_(self) -> str:
        first = self.values[: SHOWN_ROWS + 1]
        try:
            table = self.to_arrow() if len(first) == len(self.values) else attrs.evolve(self, values=first).to_arrow()
            columns, rows = table.column_names, [tuple(row.values()) for row in table.to_pylist()]
        except (KeyedError, ImportError):
            columns, rows = ["value"], [(value,) for value in first]
        if not self.values:
            columns = ["operator", "rows in", "rows out"]
            counters = self.metrics.items()
            rows = [(name, each.get("rows_in", 0), each.get("rows_out", 0)) for name, each in counters]
        return html_table(repr(self), columns, rows, more=len(self.values) > len(first))

    def to_arrow(self) -> pa.Table:
        """Return the values as an Arrow table.

        Columns are those of the output's declared type, else the fields of the values; values without fields are one
        column, ``value``.

        Raises:
            OutputDefinitionError: The values have no common columns or types.
        """
        if self._table is None:
            raise DefinitionError("the result does not come from a run, and has no columns")
        return self._table(self.values)

    def to_pandas(self) -> pd.DataFrame:
        """Return the values as a pandas DataFrame, as ``to_arrow``.

        Raises:
            ExtraNotInstalled: pandas is not installed.
        """
        with extra("spark", "to_pandas"):
            return self.to_arrow().to_pandas()

    @cached_property
    def tables(self) -> StateTables:
        """The state tables of the run, as `keyed.tables.read_tables` opens them; close them, best by ``with``.

        Raises:
            DefinitionError: It was run without ``tables=``.
        """
        if self._read_tables is None:
            raise DefinitionError("the run kept no tables: give run(...) tables=, the path of a folder for them")
        return self._read_tables()


class Query(Protocol):
    """A query that `keyed.start` has started, on either runtime."""

    @property
    def is_active(self) -> bool:
        """True while it runs."""

    @property
    def status(self) -> Status:
        """Status of the query: its ``value`` is ``"starting"`` until its first batch, then ``"following"``.

        The query ends as ``"closed"``, or as ``"failed"``, when ``await_termination`` raises the error. A failed export
        to a changelog is retried and does not change it; ``repr`` names that error.
        """

    @property
    def progress(self) -> Progress | None:
        """The last committed `Progress`."""

    @property
    def restored(self) -> Restored | None:
        """The `Restored` batch, if this program has restored the query."""

    @property
    def tables(self) -> StateTables:
        """The tables of the query's state, which follow it to its last batch.

        Raises:
            DefinitionError: The query was started without ``tables=``.
        """

    def metrics(self) -> dict[str, dict[str, int]]:
        """Return the operators' cumulative counters as of the last batch, and statuses as of now."""

    def stop(self) -> None:
        """Stop the query; its committed batches stay, also in its changelogs."""

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end, or ``timeout`` seconds; return true if the query has ended.

        Raises:
            KeyedError: The query failed.
        """


def with_statuses(
    progress: Progress | None, operators: Iterable[str], statuses: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Return the counters of the last batch by operator and name, with the statuses of a query in those of each."""
    metrics = {} if progress is None else progress.metrics
    return {name: {**metrics.get(name, {}), **statuses} for name in operators}


def shown_query(name: str, progress: Progress | None, status: Status, trouble: BaseException | None) -> str:
    """Return the ``repr`` of a query: its last operator, its last batch, its status and the error that it retries."""
    parts = ["no batch yet" if progress is None else f"batch {progress.batch_id}", status.value]
    if trouble is not None:
        parts.append(f"{type(trouble).__name__}: {trouble}")
    return f"Query({name!r}, {', '.join(parts)})"
