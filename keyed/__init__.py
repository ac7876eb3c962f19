"""Flink's programming model for Python: keyed functions with state and timers, on Spark or in this process."""

import importlib
from typing import TYPE_CHECKING, Any

from keyed.broadcast import BroadcastContext, BroadcastState, ReadOnlyBroadcastState
from keyed.chaining import explain
from keyed.changelog import Changelog, DirectoryChangelog, KafkaChangelog
from keyed.codec.snapshots import as_stored, snapshot
from keyed.context import Context, OnTimerContext, OpenContext, TaskContext, Timer, TimerService
from keyed.durations import MAX_TIMESTAMP, MIN_TIMESTAMP, milliseconds_of
from keyed.errors import (
    ChangelogDiverged,
    ChangelogError,
    ChangelogFenced,
    CheckpointError,
    CheckpointFinished,
    CorruptionError,
    DefinitionError,
    EncodingError,
    ForwardedKeyError,
    HistoryCompacted,
    JavaNotFound,
    KeyedError,
    KeysChanged,
    KeyTypeError,
    LocalStoreError,
    NullKeyError,
    OperatorChanged,
    OutputDefinitionError,
    ParallelismChanged,
    QueryFailed,
    RowError,
    SessionError,
    SinkError,
    SourceError,
    StateAccessError,
    StateDefinitionError,
    StateSchemaChanged,
    TableNotFound,
    TableOverflowError,
    TimerDefinitionError,
    TimestampError,
    UserFunctionError,
)
from keyed.functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from keyed.global_tables import GlobalTable, global_table
from keyed.kafka_source import KafkaSource
from keyed.options import OperatorOptions
from keyed.outputs import OutputTag, Schema, schema_of
from keyed.restoring import RestorePoint, StateMigration
from keyed.results import Progress, Query, Restored, RestoreProgress, RunResult
from keyed.rows import Row
from keyed.shown import shows_options
from keyed.sinks import collect_sink, parquet_sink
from keyed.sources import INGESTION_TIME, PAUSE, SeekableSource
from keyed.state import (
    NOT_PUT,
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    VersionedRecord,
    VersionedState,
)
from keyed.streams import BroadcastStream, ConnectedStreams, KeyedStream, Output, Stream, run, start, stream
from keyed.table_state import TableState
from keyed.ttl import StateTtl, StateVisibility, TimeDomain, UpdateType
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, VectorizedCoFunction, VectorizedFunction
from keyed.watermarks import WatermarkStrategy, ascending_timestamps, bounded_out_of_orderness

if TYPE_CHECKING:
    from keyed.arrow.read import table_rows
    from keyed.arrow.write import table_of
    from keyed.recovery import read_changelog
    from keyed.runtimes.spark.checkpoint.spark_flush import spark_flush
    from keyed.runtimes.spark.checkpoint.spark_verify import spark_verify
    from keyed.runtimes.spark.query.metrics import spark_metrics
    from keyed.runtimes.spark.session.spark_session import spark_session
    from keyed.views import StateTables, open_tables, read_tables

#: What needs the engine or a runtime, which programs that only declare functions do not load.
_ON_DEMAND = {
    "read_changelog": "recovery",
    "spark_flush": "runtimes.spark.checkpoint.spark_flush",
    "spark_verify": "runtimes.spark.checkpoint.spark_verify",
    "spark_metrics": "runtimes.spark.query.metrics",
    "spark_session": "runtimes.spark.session.spark_session",
    "StateTables": "views",
    "open_tables": "views",
    "read_tables": "views",
    "table_of": "arrow.write",
    "table_rows": "arrow.read",
}

__version__ = "0.1.0"

__all__ = [
    "INGESTION_TIME",
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "NOT_PUT",
    "PAUSE",
    "TIMESTAMP_COLUMN",
    "AggregateFunction",
    "AggregatingState",
    "BatchContext",
    "BroadcastContext",
    "BroadcastState",
    "BroadcastStream",
    "Changelog",
    "ChangelogDiverged",
    "ChangelogError",
    "ChangelogFenced",
    "CheckpointError",
    "CheckpointFinished",
    "ConnectedStreams",
    "Context",
    "CorruptionError",
    "DefinitionError",
    "DirectoryChangelog",
    "EncodingError",
    "ForwardedKeyError",
    "GlobalTable",
    "HistoryCompacted",
    "JavaNotFound",
    "KafkaChangelog",
    "KafkaSource",
    "KeyTypeError",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedError",
    "KeyedProcessFunction",
    "KeyedStream",
    "KeysChanged",
    "ListState",
    "LocalStoreError",
    "MapState",
    "NullKeyError",
    "OnTimerContext",
    "OpenContext",
    "OperatorChanged",
    "OperatorOptions",
    "Output",
    "OutputDefinitionError",
    "OutputTag",
    "ParallelismChanged",
    "Progress",
    "Query",
    "QueryFailed",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "RestorePoint",
    "RestoreProgress",
    "Restored",
    "Row",
    "RowError",
    "RunResult",
    "Schema",
    "SeekableSource",
    "SessionError",
    "SinkError",
    "SourceError",
    "StateAccessError",
    "StateDefinitionError",
    "StateMigration",
    "StateSchemaChanged",
    "StateTables",
    "StateTtl",
    "StateVisibility",
    "Stream",
    "TableNotFound",
    "TableOverflowError",
    "TableState",
    "TaskContext",
    "TimeDomain",
    "Timer",
    "TimerDefinitionError",
    "TimerService",
    "TimestampError",
    "UpdateType",
    "UserFunctionError",
    "ValueState",
    "VectorizedCoFunction",
    "VectorizedFunction",
    "VersionedRecord",
    "VersionedState",
    "WatermarkStrategy",
    "as_stored",
    "ascending_timestamps",
    "bounded_out_of_orderness",
    "collect_sink",
    "explain",
    "global_table",
    "milliseconds_of",
    "open_tables",
    "parquet_sink",
    "read_changelog",
    "read_tables",
    "run",
    "schema_of",
    "shows_options",
    "snapshot",
    "spark_flush",
    "spark_metrics",
    "spark_session",
    "spark_verify",
    "start",
    "stream",
    "table_of",
    "table_rows",
]


def __dir__() -> list[str]:
    return [*globals(), *_ON_DEMAND]


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(f"keyed.{_ON_DEMAND[name]}"), name)
    if name.endswith("StateDescriptor"):
        state = name.removesuffix("Descriptor")
        raise DefinitionError(
            f"keyed.{name} is keyed.pyflink.{name} now; or give context.get_... a keyed.{state}(..., name=...) in open"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
