"""Keyed functions with state and timers, in Flink's programming model, on Spark or in this process.

For writers of functions and jobs: functions and their contexts, states, timers, time to live, output tags, streams,
sources, sinks, watermarks, and the calls that run a job. Other packages: `keyed.windows`, `keyed.joins`,
`keyed.patterns`, `keyed.vectorized` (functions over Arrow tables), `keyed.tables` (readers of state), `keyed.recovery`
(operators of jobs), `keyed.metrics` (exports of metrics), `keyed.topics` (formats of Kafka values), `keyed.postgres`
(a sink), `keyed.testing`,
`keyed.errors`, `keyed.pyflink`, and `keyed.extending` (authors of libraries).
"""

import difflib
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.base.extras import check_alone as _check_alone
from keyed.base.sources import INGESTION_TIME, PAUSE, SeekableSource
from keyed.changelog import DirectoryChangelog, KafkaChangelog, ObjectStoreChangelog
from keyed.destinations.delta_table import delta_sink
from keyed.destinations.function import collect_sink
from keyed.destinations.iceberg_table import iceberg_sink
from keyed.destinations.parquet import parquet_sink
from keyed.errors import KeyedError
from keyed.job.context import BroadcastContext, Context, OnTimerContext, OpenContext, OutputTag
from keyed.job.functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from keyed.job.global_tables import global_table
from keyed.job.restoring import RestorePoint, StateMigration
from keyed.job.results import Progress, Query, RunResult
from keyed.job.state import (
    NOT_PUT,
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    VersionedState,
)
from keyed.job.streams import KeyedStream, Output, Stream, run, start, stream
from keyed.job.ttl import StateTtl, StateVisibility, TimeDomain, UpdateType
from keyed.job.watermarks import WatermarkStrategy, bounded_out_of_orderness
from keyed.kafka.kafka_source import KafkaSource
from keyed.rows import Row

if TYPE_CHECKING:
    from keyed import (  # noqa: F401 - for type checkers
        errors,
        extending,
        joins,
        metrics,
        patterns,
        postgres,
        recovery,
        sql,
        tables,
        testing,
        topics,
        vectorized,
        windows,
    )
    from keyed.runtimes.spark.session.spark_session import spark_session

#: Packages that are loaded when they are first used, so that `import keyed` is enough.
_PACKAGES = {
    "errors",
    "extending",
    "joins",
    "metrics",
    "patterns",
    "postgres",
    "recovery",
    "sql",
    "tables",
    "testing",
    "topics",
    "vectorized",
    "windows",
}

_check_alone()

__version__ = "0.1.0.dev0"

__all__ = [
    "INGESTION_TIME",
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "NOT_PUT",
    "PAUSE",
    "AggregateFunction",
    "AggregatingState",
    "BroadcastContext",
    "Context",
    "DirectoryChangelog",
    "KafkaChangelog",
    "KafkaSource",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedError",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "MapState",
    "ObjectStoreChangelog",
    "OnTimerContext",
    "OpenContext",
    "Output",
    "OutputTag",
    "Progress",
    "Query",
    "ReducingState",
    "RestorePoint",
    "Row",
    "RunResult",
    "SeekableSource",
    "StateMigration",
    "StateTtl",
    "StateVisibility",
    "Stream",
    "TimeDomain",
    "UpdateType",
    "ValueState",
    "VersionedState",
    "WatermarkStrategy",
    "bounded_out_of_orderness",
    "collect_sink",
    "delta_sink",
    "global_table",
    "iceberg_sink",
    "parquet_sink",
    "run",
    "spark_session",
    "start",
    "stream",
]


def __dir__() -> list[str]:
    return [*globals(), *_PACKAGES, "spark_session"]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"keyed.{name}")
    if name == "spark_session":
        return importlib.import_module("keyed.runtimes.spark.session.spark_session").spark_session
    if name.endswith("StateDescriptor"):
        from keyed.errors import DefinitionError

        state = name.removesuffix("Descriptor")
        raise DefinitionError(
            f"keyed.{name} is keyed.pyflink.{name} now; or give context.get_... a keyed.{state}(..., name=...) in open"
        )
    message = f"module {__name__!r} has no attribute {name!r}"
    if not name.startswith("_") and not importlib.util.find_spec(f"{__name__}.{name}"):
        message += _where(name)
        if sys._getframe(1).f_code.co_name == "_handle_fromlist":  # noqa: SLF001 - the caller is the import system
            # ``from keyed import name`` replaces the message of an AttributeError with its own.
            raise ImportError(message, name=__name__)
    raise AttributeError(message, name=name, obj=sys.modules[__name__])


def _where(name: str) -> str:
    """Return the remedy for a missing name: the import of the name, or of a similar one; else an empty text."""
    doors = dict.fromkeys(reversed(__all__), __name__)
    for package in ("pyflink", *sorted(_PACKAGES, reverse=True)):
        try:
            module = importlib.import_module(f"keyed.{package}")
        except ImportError:  # an extra that is not installed
            continue
        for each in module.__all__:
            if doors.get(each) != __name__:
                doors[each] = module.__name__
    if name in doors:
        return f"; it is in another package: from {doors[name]} import {name}"
    near = difflib.get_close_matches(name, doors, n=1, cutoff=0.75)
    return "".join(f"; did you mean {each!r}? from {doors[each]} import {each}" for each in near)
