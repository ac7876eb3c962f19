"""The exported metrics of a query: their definitions, and their values at the moment."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.job.results import Progress

if TYPE_CHECKING:
    from prometheus_client import Metric as Family


@attrs.frozen
class Metric:
    """One exported metric.

    Attributes:
        name: Name without prefix and suffix; see `prometheus_name` and `opentelemetry_name`.
        kind: A counter only grows, until the query starts from another checkpoint; a gauge is a current value.
        unit: Unit of the value.
        meaning: What it counts or measures.
        alert: The observation that needs attention; empty if there is none, and of statuses and failures, which have
            one in common.
        counter: The counter of an operator (`keyed.engine.group_log`) that it exports; ``None`` if it belongs to the
            query.
        scale: Divisor of the counter.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    meaning: str
    alert: str = ""
    counter: str | None = None
    scale: int = 1

    @property
    def prometheus_name(self) -> str:
        """Its name in Prometheus."""
        return f"keyed_{self.name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def opentelemetry_name(self) -> str:
        """Its name in OpenTelemetry."""
        return f"keyed.{self.name}"


def _counter(name: str, unit: str, meaning: str, alert: str = "") -> Metric:
    return Metric(name, "counter", unit, meaning, alert, name)


def _gauge(name: str, unit: str, meaning: str, alert: str = "") -> Metric:
    return Metric(name, "gauge", unit, meaning, alert, name)


def _status(work: str, meaning: str) -> Metric:
    return Metric(f"{work}_status", "gauge", "status", meaning)


def _failures(work: str, meaning: str) -> Metric:
    return Metric(f"{work}_failures", "counter", "failures", meaning)


#: Metrics of each operator, with the label ``operator``.
OF_OPERATORS = (
    _counter("rows_in", "rows", "Rows for the function.", "Its rate falls to 0 while the source has rows."),
    _counter("rows_out", "rows", "Values emitted to the main output.", "Its rate falls to 0 while `rows_in` grows."),
    _counter(
        "rows_late",
        "rows",
        "Rows at or below the watermark at the start of their batch; the function gets them.",
        "It grows faster than a hundredth of `rows_in`: the watermark's delay is too short.",
    ),
    _counter(
        "rows_bad",
        "rows",
        "Bad rows that `on_bad_row` diverted; they are not in `rows_in`.",
        "It grows: a producer writes rows that the stream refuses.",
    ),
    _counter(
        "rows_dropped",
        "rows",
        "Elements that the function dropped; windows drop late elements that no side output takes.",
        "It grows: data is lost. Read the side output for late data, or allow more lateness.",
    ),
    _counter("rows_side_output", "rows", "Values emitted to side outputs, read or not."),
    _counter("timers_registered", "timers", "Timers that were created."),
    _counter("timers_fired", "timers", "Calls of `on_timer`."),
    _gauge(
        "rows_held",
        "rows",
        'Rows that wait for the watermark, with `order="watermark"`.',
        "It grows without end: the watermark stalls, because a source or partition is silent.",
    ),
    _gauge(
        "timers_pending",
        "timers",
        "Pending timers.",
        "It grows without end: timers are set faster than they fire, or the watermark stalls.",
    ),
    _gauge(
        "live_entries",
        "entries",
        "Entries of state: values, list elements, map entries, rows of tables; without timers.",
        "It grows without end: set a time to live, or clear state.",
    ),
    _gauge(
        "live_bytes",
        "bytes",
        "Bytes of all entries with their addresses, timers included.",
        'It approaches the memory of a worker with `store="memory"`.',
    ),
    _gauge("log_bytes", "bytes", "Bytes of the log in the checkpoint.", "It stays above twice `live_bytes`."),
    _gauge("log_rows", "rows", "Rows of the log in the checkpoint."),
    _gauge(
        "store_copies",
        "stores",
        "Copies of the state on the machines: for each key group, the processes of its machine that hold one.",
        'It is higher than the number of key groups, and memory grows with it: use `store="lmdb"`.',
    ),
    _gauge(
        "batches_held",
        "batches",
        "Consecutive batches with rows in which one input held the watermark below that of the others.",
        "It grows without end: an input is silent, and rows, windows and timers wait for it. The log names it.",
    ),
    _counter("entries_expired", "entries", "Entries that were removed because their time to live was over."),
    _counter(
        "versions_dropped",
        "versions",
        "Puts and deletes of a `VersionedState` that were older than its history.",
        "It grows: rows come later than the history is kept.",
    ),
    _counter(
        "segments_replayed",
        "log rows",
        "Log rows that local stores replayed to catch up.",
        'It grows in every batch: key groups move between workers; use `store="lmdb"`.',
    ),
    _counter("entries_replayed", "entries", "Entries in the log rows that were replayed."),
    _counter(
        "stores_rebuilt",
        "stores",
        "Local stores that were rebuilt completely.",
        "It grows while no worker restarts: local stores are lost.",
    ),
    _counter("stores_opened", "stores", "Local stores that were opened."),
    _counter("records_restored", "records", "Records of a changelog that were read to restore the state."),
    _counter("records_exported", "records", "Records exported to the changelog.", "It stalls while `rows_in` grows."),
    Metric(
        "busy_seconds",
        "counter",
        "seconds",
        "Time spent in key groups, from catching up to the commit, without the time in Spark.",
        "Its rate approaches the number of cores.",
        "busy_microseconds",
        1_000_000,
    ),
    Metric(
        "group_batches",
        "counter",
        "batches",
        "Batches of key groups: with 4 key groups it grows by 4 with each micro-batch.",
        counter="batches",
    ),
)
_STATUS = "0 starting, 1 following, 2 failed, 3 closed"
#: Metrics of the query.
OF_QUERY = (
    Metric(
        "start_time_seconds",
        "gauge",
        "seconds since 1970",
        "Time at which this run of the query started; it changes with every restart.",
        "It changes more often than the job is deployed: `changes(keyed_start_time_seconds[1h])` counts restarts.",
    ),
    Metric(
        "batches",
        "counter",
        "batches",
        "Micro-batches that this run has committed.",
        "Its rate is 0 for longer than the trigger's interval while rows come.",
    ),
    Metric("batch_seconds", "counter", "seconds", "Total duration of these micro-batches."),
    Metric(
        "last_batch_seconds",
        "gauge",
        "seconds",
        "Duration of the last micro-batch, from its start to its commit.",
        "It stays above the trigger's interval: the query falls behind its source.",
    ),
    Metric("last_batch", "gauge", "id", "Id of the last micro-batch."),
    Metric(
        "last_batch_timestamp_seconds",
        "gauge",
        "seconds since 1970",
        "Processing time of the last micro-batch.",
        "`time() - keyed_last_batch_timestamp_seconds` grows while rows come.",
    ),
    Metric(
        "watermark_seconds",
        "gauge",
        "seconds since 1970",
        "The lowest watermark of the operators; missing before the first row, +Inf at the end of the input.",
    ),
    Metric(
        "watermark_lag_seconds",
        "gauge",
        "seconds",
        "Processing time now less the watermark; missing before the first row and at the end of the input.",
        "It grows: rows arrive later, no rows come, or one source stalls. Windows and timers wait for it.",
    ),
    Metric(
        "changelog_lag_seconds",
        "gauge",
        "seconds",
        "Time since the commit of the last micro-batch if its changes are not in all changelogs yet, otherwise 0; "
        "missing without changelogs.",
        "It exceeds a few intervals of the trigger: readers of state are behind. See `export_failures`.",
    ),
    Metric(
        "rows_skipped",
        "counter",
        "rows",
        "Records that a SQL script has skipped: their format cannot read them, or they have no usable timestamp.",
        "It grows: a producer writes records that the script does not read.",
    ),
    _status("query", f"Status of the query: {_STATUS}."),
    _status("export", f"On Spark, status of the thread that exports to changelogs and fires timers: {_STATUS}."),
    _failures("export", "Failures of that thread; they are retried."),
    _status("tables", f"With `tables=`, status of the follower of the tables: {_STATUS}."),
    _failures("tables", "Failures of that follower; they are retried."),
    _status("metrics", "Status of this export: 0 before the first scrape, file or collection, then 1."),
    _failures("metrics", "Failures of this export."),
)
#: Metrics of a replication of a state table; their names are those of `Replication.metrics`.
OF_REPLICATIONS = (
    _status("replication", f"Status of the replication: {_STATUS}."),
    _failures("replication", "Attempts that failed; they are retried."),
    Metric("replication_batch", "gauge", "id", "Id of the last batch in the copy; -1 before it is known."),
    Metric(
        "replication_lag",
        "gauge",
        "batches",
        "Batches that the tables have and the copy lacks.",
        "It grows: the copy is written more slowly than the job commits.",
    ),
    Metric("replication_transactions", "counter", "transactions", "Transactions: one for each batch with changes."),
    Metric("replication_rows", "counter", "rows", "Rows written to the copy."),
    Metric("replication_tombstones", "counter", "rows", "Rows removed from the copy."),
    Metric(
        "replication_resyncs",
        "counter",
        "resynchronizations",
        "Comparisons of the whole state with a copy that was not empty.",
        "It grows: the replication is stopped for longer than the history of the tables.",
    ),
)
METRICS = (*OF_QUERY, *OF_OPERATORS, *OF_REPLICATIONS)


@attrs.frozen
class Sample:
    """The value of a metric; ``operator`` is empty for those of the query."""

    metric: Metric
    operator: str
    value: float


@attrs.frozen
class MetricsSource:
    """The parts of a running query that an export reads.

    Attributes:
        look: Adds the batches that were committed since the last call to the `JobMetrics`.
        statuses: Returns the statuses and failures of the query, by name of the metric.
        is_exported: Returns true if the changelogs have the last batch; ``None`` if that is unknown, or there are none.
        now: Returns the processing time, milliseconds.
    """

    look: Callable[[], object]
    statuses: Callable[[], Mapping[str, int]]
    is_exported: Callable[[], bool | None]
    now: Callable[[], int] = lambda: time.time_ns() // 1_000_000


class JobMetrics:
    """The metrics of one run of a query, at any moment and for any thread.

    Args:
        query: The value of the label ``query``.
        operators: The names of the operators.

    Attributes:
        source: The running query; ``None`` before it has started.
    """

    def __init__(self, query: str, operators: Sequence[str]) -> None:
        self.query = query
        self.source: MetricsSource | None = None
        self._operators = operators
        self._lock = threading.Lock()
        self._started = time.time()
        self._last: Progress | None = None
        self._committed = 0.0
        self._batches = 0
        self._milliseconds = 0

    @property
    def next_batch(self) -> int:
        """The id after that of the last batch."""
        with self._lock:
            return 0 if self._last is None else self._last.batch_id + 1

    def add(self, progress: Progress, *, committed: float | None = None) -> None:
        """Add a committed batch; one that was added before is ignored.

        Args:
            progress: The batch.
            committed: Time of its commit, in seconds since 1970; now by default.
        """
        with self._lock:
            if self._last is None or progress.batch_id > self._last.batch_id:
                self._last = progress
                self._committed = time.time() if committed is None else committed
                self._batches += 1
                self._milliseconds += progress.duration_ms

    def samples(self) -> tuple[list[Sample], Exception | None]:
        """Return the values of all metrics that have one, and the error for which batches are missing."""
        source, failure = self.source, None
        of_query: dict[str, float] = {}
        if source is not None:
            try:
                source.look()
            except Exception as error:  # noqa: BLE001 - the statuses are exported whatever has failed
                failure = error
            of_query |= source.statuses()
        with self._lock:
            last, committed = self._last, self._committed
            of_query |= {
                "start_time_seconds": self._started,
                "batches": self._batches,
                "batch_seconds": self._milliseconds / 1000,
            }
        if last is not None and source is not None:
            of_query |= {
                "last_batch": last.batch_id,
                "last_batch_seconds": last.duration_ms / 1000,
                "last_batch_timestamp_seconds": last.processing_time / 1000,
            }
            if last.watermark == MAX_TIMESTAMP:
                of_query["watermark_seconds"] = math.inf
            elif last.watermark != MIN_TIMESTAMP:
                of_query["watermark_seconds"] = last.watermark / 1000
                of_query["watermark_lag_seconds"] = (source.now() - last.watermark) / 1000
            is_exported = source.is_exported()
            if is_exported is not None:
                of_query["changelog_lag_seconds"] = 0.0 if is_exported else max(0.0, time.time() - committed)
        samples = [Sample(each, "", of_query[each.name]) for each in OF_QUERY if each.name in of_query]
        metrics = {} if last is None else last.metrics
        for each in OF_OPERATORS:
            for operator in self._operators:
                value = metrics.get(operator, {}).get(each.counter or "")
                if value is not None:
                    samples.append(Sample(each, operator, value if each.scale == 1 else value / each.scale))
        return samples, failure


class ReplicationMetrics:
    """The metrics of a replication of a state table.

    Args:
        query: The value of the label ``query``: operator and table.
        counters: Returns the counters, by name.
    """

    def __init__(self, query: str, counters: Callable[[], Mapping[str, int]]) -> None:
        self.query = query
        self._counters = counters

    def samples(self) -> tuple[list[Sample], Exception | None]:
        """Return the values of all metrics that have one, and no error."""
        counters = self._counters()
        return [Sample(each, "", counters[each.name]) for each in OF_REPLICATIONS if each.name in counters], None


def prometheus_families(query: str, samples: Iterable[Sample]) -> list[Family]:
    """Return samples as Prometheus' client has them: a family for each metric."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for each in samples:
        metric, labels = each.metric, {"query": query} | ({"operator": each.operator} if each.operator else {})
        if metric.name not in families:
            families[metric.name] = kinds[metric.kind](f"keyed_{metric.name}", metric.meaning, labels=[*labels])
        families[metric.name].add_metric([*labels.values()], each.value)
    return list(families.values())
