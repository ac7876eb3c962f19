"""Options that several calls share: of a run, with its exports of metrics, and of an operator."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypedDict

import attrs

from keyed.base.arguments import Duration, Shown, milliseconds_of, path_text, text
from keyed.changelog.model import Changelog
from keyed.errors import DefinitionError
from keyed.job.functions import Store
from keyed.job.restoring import RestorePoint
from keyed.job.results import Progress, RestoreProgress

if TYPE_CHECKING:
    from keyed.tables.replication import Replication


@attrs.frozen
class Prometheus(Shown):
    """Exports metrics to Prometheus, over HTTP at ``/metrics`` of a port or in a file; needs the extra ``prometheus``.

    Args:
        port: The port. Give each query its own.
        host: Its address, by default this machine only. Everyone who reaches it reads the metrics.
        file: Instead of a port a file for the node exporter's text collector, ending in ``.prom``, replaced
            atomically.
        every: Interval at which the file is written: `int` milliseconds or `timedelta`.

    Raises:
        DefinitionError: Neither or both of ``port`` and ``file`` are given, or one is out of its range.
    """

    port: int | None = None
    host: str = attrs.field(default="127.0.0.1", kw_only=True)
    file: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    every: Duration = attrs.field(default=15_000, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if (self.port is None) == (self.file is None):
            raise DefinitionError(f"Prometheus: port={self.port!r} and file={self.file!r}: give one of them")
        if self.port is not None and (type(self.port) is not int or not 0 < self.port < 2**16):
            raise DefinitionError(f"Prometheus: port={self.port!r} must be an int from 1 to 65535")
        text(self.host, "Prometheus: host", "an address, such as '127.0.0.1' or '0.0.0.0'")
        file = None if self.file is None else path_text(self.file, "Prometheus: file", "the path of a file")
        if file is not None and not file.endswith(".prom"):
            raise DefinitionError(f"Prometheus: file={file!r} must end in '.prom', as the node exporter wants it")
        milliseconds_of(self.every, "Prometheus(every)", least=1)


@attrs.frozen
class OpenTelemetry(Shown):
    """Exports metrics through OpenTelemetry's API; needs the extra ``keyed-streams[opentelemetry]`` and an SDK.

    The program sets up the SDK, its readers and exporters.

    Args:
        provider: The `opentelemetry.metrics.MeterProvider`; by default the global one, which has to be set before the
            query starts.
    """

    provider: Any = None


def export(replication: Replication, to: Prometheus | OpenTelemetry) -> AbstractContextManager[None]:
    """Export the metrics of a replication of a state table, as a context manager that ends the export.

    Args:
        replication: The result of `keyed.tables.StateTable.replicate`.
        to: The destination.

    Raises:
        DefinitionError: The port is in use, the file cannot be written, or OpenTelemetry exports nothing.
        ExtraNotInstalled: The client of Prometheus, or OpenTelemetry's API, is not installed.
    """
    runtimes = importlib.import_module("keyed.runtimes.metrics_export")
    exported: AbstractContextManager[None] = runtimes.exported_replication(replication, to)
    return exported


class OperatorOptions(TypedDict, total=False):
    """Keywords of calls that create an operator by `KeyedStream.process`, which documents them."""

    parallelism: int | None
    store: Store | None
    changelog: Changelog | str | None
    restore_from: Changelog | RestorePoint | str | None


class RunOptions(TypedDict, total=False):
    """The keywords of `keyed.run`, which documents them."""

    checkpoint: str | os.PathLike[str] | None
    drain: bool | None
    on_progress: Callable[[Progress], object] | None
    on_restore: Callable[[RestoreProgress], object] | None
    local_dir: str | os.PathLike[str] | None
    group_access: bool
    tables: str | os.PathLike[str] | None
    record: str | os.PathLike[str] | None
    metrics: Prometheus | OpenTelemetry | None
    query_name: str | None
    rows_per_batch: int | None
    processing_time: Callable[[], int] | None


class StartOptions(RunOptions, total=False):
    """The keywords of `keyed.start`."""

    trigger: str | Mapping[str, Any] | None


@attrs.frozen(kw_only=True)
class Options:
    """The options of a run with their defaults, as the runtimes get them."""

    checkpoint: str | os.PathLike[str] | None = None
    drain: bool | None = None
    on_progress: Callable[[Progress], object] | None = None
    on_restore: Callable[[RestoreProgress], object] | None = None
    local_dir: str | os.PathLike[str] | None = None
    group_access: bool = False
    rows_per_batch: int | None = None
    processing_time: Callable[[], int] | None = None
    trigger: str | Mapping[str, Any] | None = None
    query_name: str | None = None
    tables: str | os.PathLike[str] | None = None
    record: str | os.PathLike[str] | None = None
    metrics: Prometheus | OpenTelemetry | None = None

    def refuse(self, remedies: Mapping[str, str]) -> None:
        """Refuse options that a runtime does not have.

        Args:
            remedies: The replacement of each option.

        Raises:
            DefinitionError: One of them is given.
        """
        for name, remedy in remedies.items():
            value = getattr(self, name)
            if value is not None:
                raise DefinitionError(f"{name}={value!r} {remedy}")
