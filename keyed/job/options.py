"""Options that several calls share: of a run, and of an operator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import attrs

from keyed.changelog.model import Changelog
from keyed.errors import DefinitionError
from keyed.job.metrics_exports import OpenTelemetry, Prometheus
from keyed.job.operators import Store
from keyed.job.restoring import RestorePoint
from keyed.job.results import Progress, RestoreProgress


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
