"""The export of a query's metrics, for as long as it runs: to a port, to a file, or through OpenTelemetry's API."""

from __future__ import annotations

import glob
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from keyed.base.background import Background, close_in_children
from keyed.base.durations import milliseconds_of
from keyed.base.extras import extra
from keyed.base.private_files import folder_path
from keyed.destinations.parquet_folder import replace_file
from keyed.errors import DefinitionError
from keyed.job.graph import Stage
from keyed.job.metrics_exports import OpenTelemetry, Prometheus
from keyed.job.options import Options
from keyed.runtimes.job_metrics import (
    METRICS,
    JobMetrics,
    Metric,
    ReplicationMetrics,
    Sample,
    prometheus_text,
)
from keyed.tables.replication import Replication

_log = logging.getLogger(__name__)
#: Concurrent scrapes; further connections are closed at once.
_SCRAPES = 8
#: Seconds that a client may take to send its request and to read the answer.
_REQUEST = 5.0
#: Seconds before the next attempt to accept a connection for which the process has no free descriptor.
_PAUSE = 0.1


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
        ExtraNotInstalled: OpenTelemetry's API is not installed.
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
        ExtraNotInstalled: OpenTelemetry's API is not installed.
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
    export = _begun(config, ReplicationMetrics(replication.table, replication.metrics))
    try:
        yield
    finally:
        export.close()


class _Port:
    """An HTTP server for scrapes."""

    def __init__(self, config: Prometheus, metrics: _Metrics) -> None:
        assert config.port is not None
        try:
            self._server = _Server((config.host, config.port), self._text)
        except OSError as error:
            raise DefinitionError(
                f"metrics={config!r}: {config.host}:{config.port} cannot be opened: {error}; choose another port, or "
                "stop the program that has it"
            ) from error
        close_in_children(self._server.socket)
        self._host, self._port = config.host, config.port
        self._metrics = metrics
        self._ends = False
        self.work = Background(f"the export of metrics at {config.host}:{config.port}", self._serve)
        self.work.start()

    def _serve(self) -> None:
        while not self._ends and not self.work.is_stopping:
            self._server.handle_request()
            self._server.end_slow()

    def _text(self) -> bytes:
        samples = _tried(self.work, self._metrics.samples)
        return prometheus_text(self._metrics.query, samples).encode()

    def close(self) -> None:
        self._ends = True
        if not self.work.is_inherited:
            # A connection ends the wait for one.
            with suppress(OSError), socket.create_connection((self._host, self._port), timeout=_REQUEST):
                pass
        self.work.close()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Answers GET /metrics with a text. Requests have threads, a bounded number at a time."""

    block_on_close = False
    #: Seconds after which `handle_request` returns without a request.
    timeout = 1.0

    def __init__(self, address: tuple[str, int], text: Callable[[], bytes]) -> None:
        self.text = text
        self._free = threading.BoundedSemaphore(_SCRAPES)
        self._lock = threading.Lock()
        #: The connections that are being served, and the times since when.
        self._served: dict[socket.socket, float] = {}
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        # Not that of HTTPServer, which looks up the name of the host.
        super(HTTPServer, self).server_bind()

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            # Without a free descriptor the connection keeps waiting, so the next attempt fails at once as well.
            time.sleep(_PAUSE)
            raise

    def end_slow(self) -> None:
        """End connections of clients that took too long, also of one that sends a byte now and then."""
        limit = time.monotonic() - _REQUEST
        with self._lock:
            for request, since in self._served.items():
                if since < limit:
                    with suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._served[request] = time.monotonic()
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                del self._served[request]
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a scrape was not answered", exc_info=True)


class _Request(BaseHTTPRequestHandler):
    """One scrape."""

    server: _Server
    timeout = _REQUEST
    server_version, sys_version = "keyed", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, "text/plain", b"the metrics are at /metrics\n")
            return
        try:
            text = self.server.text()
        except Exception as error:  # noqa: BLE001 - it is logged and counted; the scrape fails
            self._answer(500, "text/plain; charset=utf-8", f"{type(error).__name__}: {error}\n".encode())
        else:
            self._answer(200, "text/plain; version=0.0.4; charset=utf-8", text)

    def _answer(self, status: int, type_: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", type_)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


class _File:
    """A thread that replaces a file at an interval."""

    def __init__(self, config: Prometheus, metrics: _Metrics) -> None:
        assert config.file is not None
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
            for left in self._path.parent.glob(f".{glob.escape(self._path.name)}.*.tmp"):
                # Of a program that was killed while it wrote the file.
                left.unlink(missing_ok=True)
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
        text = prometheus_text(self._metrics.query, samples).encode()
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
