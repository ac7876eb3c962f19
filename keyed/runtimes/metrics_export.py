"""The export of a query's metrics, for as long as it runs: to a port, to a file, or through OpenTelemetry's API."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from keyed.base.arguments import milliseconds_of
from keyed.base.background import Background, close_in_children
from keyed.base.extras import extra
from keyed.base.private_files import folder_path
from keyed.destinations.parquet import remove_staged, replace_file
from keyed.errors import DefinitionError
from keyed.job.graph import Stage
from keyed.job.options import OpenTelemetry, Options, Prometheus
from keyed.runtimes.job_metrics import METRICS, JobMetrics, Metric, ReplicationMetrics, Sample, prometheus_families
from keyed.tables.replication import Replication

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

_log = logging.getLogger(__name__)
_Metrics: TypeAlias = JobMetrics | ReplicationMetrics


class MetricsExport:
    """The metrics of a query, and their export if the user wants one.

    Attributes:
        metrics: The metrics. A running query sets their ``source``.

    Args:
        last: The last stage.
        options: The options of the query.

    Raises:
        DefinitionError: The port is in use, the file cannot be written, or OpenTelemetry exports nothing.
        ExtraNotInstalled: The client of Prometheus, or OpenTelemetry's API, is not installed.
    """

    def __init__(self, last: Stage, options: Options) -> None:
        self.metrics = JobMetrics(options.query_name or last.name, [stage.name for stage in last.chain])
        self._export: _Port | _File | _Callbacks | None = None
        if options.metrics is not None:
            self._export = _begun(options.metrics, self.metrics)

    def statuses(self) -> dict[str, int]:
        """Return the status of the export and its failures, for metrics; nothing if there is none."""
        if self._export is None:
            return {}
        work = self._export.work
        return {"metrics_status": work.status.number, "metrics_failures": work.failures}

    @property
    def trouble(self) -> BaseException | None:
        """The error of the last scrape, file or collection; ``None`` if it succeeded."""
        return None if self._export is None else self._export.work.last_error

    def close(self) -> None:
        """End the export. Closing again does nothing."""
        export, self._export = self._export, None
        if export is not None:
            export.close()


def _begun(config: Any, metrics: _Metrics) -> _Port | _File | _Callbacks:
    """Begin an export.

    Raises:
        DefinitionError: See `MetricsExport`.
        ExtraNotInstalled: The client of Prometheus, or OpenTelemetry's API, is not installed.
    """
    if isinstance(config, Prometheus):
        return (_Port if config.file is None else _File)(config, metrics)
    if isinstance(config, OpenTelemetry):
        return _Callbacks(config, metrics)
    raise DefinitionError(f"metrics={config!r} must be a keyed.metrics.Prometheus or a keyed.metrics.OpenTelemetry")


@contextmanager
def exported_replication(replication: Replication, config: Any) -> Iterator[None]:
    """Export the metrics of a replication. See `keyed.metrics.export`."""
    if not isinstance(replication, Replication):
        raise DefinitionError(
            f"export({replication!r}): give the result of StateTable.replicate; a query takes metrics= itself"
        )
    with closing(_begun(config, ReplicationMetrics(replication.table, replication.metrics))):
        yield


class _Port:
    """An HTTP server for scrapes, and the collector of its answers."""

    def __init__(self, config: Prometheus, metrics: _Metrics) -> None:
        with extra("prometheus", "keyed.metrics.Prometheus"):
            from prometheus_client import CollectorRegistry, start_http_server
        assert config.port is not None
        self._metrics = metrics
        self.work = Background(f"the export of metrics at {config.host}:{config.port}", lambda: None)
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(config.port, config.host, registry)
        except OSError as error:
            raise DefinitionError(
                f"metrics={config!r}: {config.host}:{config.port} cannot be opened: {error}; choose another port, or "
                "stop the program that has it"
            ) from error
        close_in_children(self._server.socket)

    def collect(self) -> list[Family]:
        """Return the values of the moment, for Prometheus' client."""
        return prometheus_families(self._metrics.query, _tried(self.work, self._metrics.samples))

    def close(self) -> None:
        if not self.work.is_inherited:
            self._server.shutdown()
            self._thread.join()
        self.work.close()
        self._server.server_close()


class _File:
    """A thread that replaces a file at an interval."""

    def __init__(self, config: Prometheus, metrics: _Metrics) -> None:
        with extra("prometheus", "keyed.metrics.Prometheus"):
            from prometheus_client import generate_latest
        assert config.file is not None
        self._text_of: Callable[[Any], bytes] = generate_latest
        self._path = Path(folder_path(config.file, "metrics file")).absolute()
        self._seconds = milliseconds_of(config.every, "every") / 1000
        self._metrics = metrics
        #: Identity of the file after the last write.
        self._written = (0, 0)
        with _registering:
            if self._path in _files:
                raise DefinitionError(
                    f"metrics={config!r}: another query of this program writes the file; give each query one of its own"
                )
            _files.add(self._path)
        try:
            self._begin(config)
        except BaseException:
            _files.discard(self._path)
            raise

    def _begin(self, config: Prometheus) -> None:
        try:
            remove_staged(self._path)
            self._write()
        except OSError as error:
            raise DefinitionError(
                f"metrics={config!r}: the file cannot be written: {error}; name a file in a folder that exists and "
                "that this user may write"
            ) from error
        self.work = Background(f"the export of metrics to {self._path}", self._step, is_transient=lambda _: True)
        self.work.start()

    def _write(self) -> Exception | None:
        """Write the file. Returns the error for which metrics are missing in it."""
        samples, failure = self._metrics.samples()
        families = prometheus_families(self._metrics.query, samples)
        text = self._text_of(SimpleNamespace(collect=lambda: families))
        replace_file(self._path, lambda file: file.write(text))
        self._written = self._identity()
        return failure

    def _identity(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return self._written
        return status.st_ino, status.st_mtime_ns

    def _step(self) -> float:
        is_others = self._identity() != self._written
        if failure := self._write():
            raise failure
        if is_others:
            raise DefinitionError(
                f"another program writes {self._path} too, and each replaces the metrics of the other; give "
                "each query a file of its own"
            )
        return self._seconds

    def close(self) -> None:
        if self.work.is_inherited:
            return
        self.work.close()
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - the export never ends the query
            _log.warning("%s: its last values were not written: %s", self.work.name, error)
        _files.discard(self._path)


#: The running queries of each meter provider, whose instruments all of them share: an API cannot remove instruments.
_running: WeakKeyDictionary[Any, list[_Callbacks]] = WeakKeyDictionary()
_registering = threading.Lock()
#: The files that queries of this program write.
_files: set[Path] = set()


class _Callbacks:
    """The share of a query in the observations of a meter provider."""

    def __init__(self, config: OpenTelemetry, metrics: _Metrics) -> None:
        with extra("opentelemetry", "keyed.metrics.OpenTelemetry"):
            from opentelemetry.metrics import NoOpMeterProvider, get_meter_provider
        provider = get_meter_provider() if config.provider is None else config.provider
        if isinstance(provider, NoOpMeterProvider) or type(provider).__name__ == "_ProxyMeterProvider":
            raise DefinitionError(
                "metrics=OpenTelemetry(): the program has set up no meter provider, so nothing would be exported; call "
                "opentelemetry.metrics.set_meter_provider(...) of an SDK before the query starts, or give provider="
            )
        if not callable(getattr(provider, "get_meter", None)):
            raise DefinitionError(f"OpenTelemetry: provider={provider!r} must be a MeterProvider")
        self.query = metrics.query
        self._metrics = metrics
        self._lock = threading.Lock()
        #: The samples of the running collection, and the metrics of which it has them already.
        self._samples: list[Sample] = []
        self._served: set[Metric] = set()
        self.work = Background(f"the export of the metrics of {metrics.query!r} to OpenTelemetry", lambda: None)
        with _registering:
            if provider not in _running:
                _register(provider)
            self._provider = provider
            _running[provider].append(self)

    def samples(self, metric: Metric) -> list[Sample]:
        """Return the samples of a metric. All metrics of a collection are read at once, with its first one."""
        with self._lock:
            if metric in self._served:
                self._samples, self._served = [], set()
            if not self._served:
                # A failure is counted and logged.
                with suppress(Exception):
                    self._samples = _tried(self.work, self._metrics.samples)
            self._served.add(metric)
            return [sample for sample in self._samples if sample.metric is metric]

    def close(self) -> None:
        self.work.close()
        with _registering:
            if self in _running[self._provider]:
                _running[self._provider].remove(self)


def _register(provider: Any) -> None:
    """Create an instrument for each metric, which observes all running queries of a provider."""
    from opentelemetry.metrics import CallbackOptions, Observation

    mine = _running[provider] = list[_Callbacks]()
    meter = provider.get_meter("keyed")

    def observed(metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            with _registering:
                callbacks = [*mine]
            for each in callbacks:
                for sample in each.samples(metric):
                    operator = {"operator": sample.operator} if sample.operator else {}
                    yield Observation(sample.value, {"query": each.query, **operator})

        return observe

    for metric in METRICS:
        create = meter.create_observable_counter
        if metric.kind == "gauge":
            create = meter.create_observable_gauge
        create(metric.opentelemetry_name, [observed(metric)], _unit(metric), metric.meaning)


def _unit(metric: Metric) -> str:
    """Return the unit in the notation of UCUM, as OpenTelemetry has it."""
    known = {"seconds": "s", "seconds since 1970": "s", "bytes": "By", "status": "1", "id": "1"}
    return known.get(metric.unit) or f"{{{metric.unit.removesuffix('s').replace('entrie', 'entry')}}}"


def _tried(work: Background, make: Callable[[], tuple[list[Sample], Exception | None]]) -> list[Sample]:
    """Return the samples that a function returns; record its success or its failure."""
    began = time.monotonic()
    try:
        samples, failure = make()
    except Exception as error:
        with suppress(Exception):
            work.failed(error, began)
        raise
    if failure is None:
        work.succeeded(began)
    else:
        with suppress(Exception):
            work.failed(failure, began)
    return samples
