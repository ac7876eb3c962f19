"""PyFlink's names over keyed and its windows: a keyed program written for PyFlink runs with other import lines.

Import here what the program imported from ``pyflink.common``, ``pyflink.datastream`` and the modules below them.
Arguments are PyFlink's, semantics those of `keyed` and `keyed.windows`. `StreamExecutionEnvironment` runs bounded
collections in this process; functions also run on Spark, with ``keyed.stream(frame).key_by("column").process(...)``.
Missing features (sources, operators without keys, ``window_all``) raise an error that names the alternative.
"""

# ruff: noqa: SLF001 - the classes of streams know what each other holds; their names are PyFlink's only

from __future__ import annotations

import copy
import datetime as dt
import decimal
import enum
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NoReturn, Protocol, Self, TypeAlias, TypeVar

import attrs

import keyed
import keyed.rows
from keyed import AggregateFunction, StateTtl, StateVisibility, TimeDomain, windows
from keyed.base.closing import Closeable as _Closeable
from keyed.errors import DefinitionError
from keyed.extending import Schema
from keyed.job.streams import BroadcastStream as _BroadcastStream
from keyed.windows import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    GlobalWindow,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    TimeEvictor,
    TimeWindow,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from keyed.windows import HoppingEventTimeWindows as SlidingEventTimeWindows
from keyed.windows import HoppingProcessingTimeWindows as SlidingProcessingTimeWindows
from keyed.windows.definition import ProcessWindowContext as _ProcessWindowContext
from keyed.windows.triggers import OnMergeContext as _OnMergeContext
from keyed.windows.triggers import TriggerContext as _TriggerContext
from keyed.windows.window import Window as _Window

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "CoFlatMapFunction",
    "CoMapFunction",
    "ConnectedStreams",
    "CountEvictor",
    "CountTrigger",
    "CountWindow",
    "DataStream",
    "DeltaEvictor",
    "Duration",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "FilterFunction",
    "FlatMapFunction",
    "GlobalWindow",
    "GlobalWindows",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "OutputTag",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "ReduceFunction",
    "ReducingStateDescriptor",
    "Row",
    "RuntimeContext",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "Time",
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TimestampAssigner",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TypeInformation",
    "Types",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "WindowFunction",
    "WindowedStream",
]

IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_KEYLESS = "has no key here: do it on a keyed.stream(...), which has map and filter, or inside a keyed function"
_SOURCE = "is a source of Flink: give keyed.stream a Spark DataFrame, or from_collection a list"
_SINK = "is a sink of Flink: run <stream>.output, a keyed.Output, with run(path) or start(path), or write its .df"
_SETTING = "is a setting of Flink: give <stream>.output.run(...) the options checkpoint=..., local_dir=... and so on"
_JOINS = "is a join: connect keyed streams of keyed.stream(...), and process a join of keyed.joins"
_NO_KEY = "has no key: key both streams, connect(...).key_by(selector1, selector2), for a KeyedCoProcessFunction"
_CONSTANT_KEY = "has no key: key the stream by a constant, key_by(lambda element: 0), and window that"
#: Features of PyFlink that keyed lacks, by their replacement.
_MISSING = {
    name: remedy
    for remedy, names in {
        _KEYLESS: "map flat_map filter project ProcessFunction BroadcastProcessFunction",
        _CONSTANT_KEY: "window_all count_window_all ProcessAllWindowFunction AllWindowFunction AllWindowedStream",
        _SOURCE: "add_source from_source read_text_file",
        _SINK: "add_sink sink_to Encoder OutputFileConfig RollingPolicy",
        _SETTING: "set_runtime_mode set_state_backend enable_checkpointing get_config add_jars",
        _JOINS: "join co_group interval_join",
        _NO_KEY: "CoProcessFunction",
        "is table code: keyed has Spark's SQL, on <stream>.output.df": "StreamTableEnvironment",
        "is keyed.KeyedStream.process(function, name=...) here": "name uid set_parallelism",
        "is keyed.windows.WindowAssigner here, whose assign_windows gets the processing time": "WindowAssigner "
        "MergingWindowAssigner Window",
        "is a type of what a call returns: leave the annotation out": "TimerService BroadcastStream "
        "BroadcastConnectedStream DataStreamSink JobClient JobExecutionResult JobStatus CompletableFuture",
        "has no use here: key_by gives each key its rows": "Partitioner SlotSharingGroup InputDependencyConstraint",
        "has no use here: an output has the changes of rows as Kafka and Delta write them": "RowKind",
        "is keyed's reduce with a function here: reduce(lambda a, b: ...)": "sum min max min_by max_by",
    }.items()
    for name in names.split()
}


#: Classes of PyFlink that keyed lacks, by the ends of their names.
_ENDS = {
    r"Source(Builder|Function)?|Consumer|OffsetsInitializer|OffsetResetStrategy|StreamFormat|CursorPosition": _SOURCE,
    r"Sink(Builder|Function)?|Producer|BucketAssigner|Partitioner|DeliveryGuarantee|Semantic": _SINK,
    r"Backend|Storage|Configuration|Config|Options|Cleanup|Retention|Mode|Strategies|MemorySize|TimeCharacteristic": (
        _SETTING
    ),
    r"Schema(Builder)?|Format|Serializer|Writers": "is a format of Flink: keyed.KafkaSource and "
    "keyed.topics.KafkaSink take a format as value=, such as keyed.topics.Json()",
}


def __getattr__(name: str) -> NoReturn:
    if name in _MISSING or name[:1].isupper():
        remedy = _MISSING.get(name)
        remedy = remedy or next((each for ends, each in _ENDS.items() if re.search(f"({ends})$", name)), None)
        if remedy:
            raise _missing(name, remedy)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _missing(name: str, remedy: str) -> DefinitionError:
    return DefinitionError(f"{name} of PyFlink {remedy}")


class _Partial:
    """A PyFlink class with some of its methods."""

    def __getattr__(self, name: str) -> NoReturn:
        if name in _MISSING:
            raise _missing(name, _MISSING[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


# Types ----------------------------------------------------------------------------------------------------------------


@attrs.frozen
class TypeInformation:
    """A type of PyFlink.

    Attributes:
        python: The type of a state's values.
        column: The type of an output column, ``None`` if there is none.
        fields: Names and types of the columns of a tuple or row.
    """

    python: Any
    column: str | None
    fields: tuple[tuple[str, str | None], ...] | None = None

    @property
    def schema(self) -> Schema | None:
        """The columns of an output of this type; ``None`` if a part has no column type."""
        columns = [("f0", self.column)] if self.fields is None else self.fields
        known = tuple((name, type_) for name, type_ in columns if type_ is not None)
        return Schema(known) if len(known) == len(columns) else None


def _array(element: TypeInformation) -> TypeInformation:
    return TypeInformation(list[element.python], element.column and f"array<{element.column}>")  # type: ignore[name-defined]


def _simple(python: Any, column: str | None) -> Callable[[], TypeInformation]:
    return lambda: TypeInformation(python, column)


class Types:
    """PyFlink's ``Types``.

    Pickled types have to be plain data here, because keyed does not store pickles.
    """

    STRING = staticmethod(_simple(str, "string"))
    CHAR = STRING
    BOOLEAN = staticmethod(_simple(bool, "boolean"))
    BYTE = staticmethod(_simple(int, "tinyint"))
    SHORT = staticmethod(_simple(int, "smallint"))
    INT = staticmethod(_simple(int, "int"))
    LONG = staticmethod(_simple(int, "bigint"))
    BIG_INT = staticmethod(_simple(int, "decimal(38,0)"))
    FLOAT = staticmethod(_simple(float, "float"))
    DOUBLE = staticmethod(_simple(float, "double"))
    BIG_DEC = staticmethod(_simple(decimal.Decimal, "decimal(38,18)"))
    SQL_DATE = staticmethod(_simple(dt.date, "date"))
    SQL_TIMESTAMP = staticmethod(_simple(dt.datetime, "timestamp_ntz"))
    INSTANT = staticmethod(_simple(dt.datetime, "timestamp"))
    PICKLED_BYTE_ARRAY = staticmethod(_simple(object, None))
    LIST = staticmethod(_array)
    BASIC_ARRAY = LIST
    OBJECT_ARRAY = LIST

    @staticmethod
    def PRIMITIVE_ARRAY(element: TypeInformation) -> TypeInformation:  # noqa: N802
        """Describe an array; of bytes it is ``bytes``."""
        return TypeInformation(bytes, "binary") if element.column == "tinyint" else _array(element)

    @staticmethod
    def MAP(key: TypeInformation, value: TypeInformation) -> TypeInformation:  # noqa: N802
        """Describe a dictionary."""
        column = f"map<{key.column},{value.column}>" if key.column and value.column else None
        return TypeInformation(dict[key.python, value.python], column)  # type: ignore[name-defined]

    @staticmethod
    def TUPLE(types: list[TypeInformation]) -> TypeInformation:  # noqa: N802
        """Describe a tuple, whose columns are named ``f0``, ``f1`` and so on."""
        fields = tuple((f"f{number}", type_.column) for number, type_ in enumerate(types))
        return TypeInformation(tuple[tuple(type_.python for type_ in types)], None, fields)  # type: ignore[misc]

    @staticmethod
    def ROW(types: list[TypeInformation]) -> TypeInformation:  # noqa: N802
        """Describe a row, whose columns are named ``f0``, ``f1`` and so on."""
        return Types.ROW_NAMED([f"f{number}" for number in range(len(types))], types)

    @staticmethod
    def ROW_NAMED(names: list[str], types: list[TypeInformation]) -> TypeInformation:  # noqa: N802
        """Describe a row with named columns."""
        fields = tuple((name, type_.column) for name, type_ in zip(names, types, strict=True))
        return TypeInformation(object, None, fields)


class Row:
    """PyFlink's ``Row``.

    With positions a list, whose items can be set; with names an immutable `keyed.Row`.
    """

    def __new__(cls, *values: Any, **named: Any) -> Any:  # noqa: D102
        if values and named:
            raise DefinitionError(f"Row({values[0]!r}, ...): give positions or names, not both")
        return list(values) if not named else keyed.rows.row(**named)


def _python(type_: Any) -> Any:
    return type_.python if isinstance(type_, TypeInformation) else type_


def _schema(type_: Any) -> Any:
    return type_.schema if isinstance(type_, TypeInformation) else type_


def _unit(unit: dt.timedelta) -> Callable[[int], dt.timedelta]:
    return lambda n: n * unit


class Time:
    """PyFlink's ``Time``: a duration in a unit."""

    milliseconds = staticmethod(_unit(dt.timedelta(milliseconds=1)))
    seconds = staticmethod(_unit(dt.timedelta(seconds=1)))
    minutes = staticmethod(_unit(dt.timedelta(minutes=1)))
    hours = staticmethod(_unit(dt.timedelta(hours=1)))
    days = staticmethod(_unit(dt.timedelta(days=1)))


class Duration:
    """PyFlink's ``Duration``, under its names."""

    of_millis = Time.milliseconds
    of_seconds = Time.seconds
    of_minutes = Time.minutes
    of_hours = Time.hours
    of_days = Time.days


# State ----------------------------------------------------------------------------------------------------------------


class _Expiring:
    """Base of all descriptors."""

    ttl: StateTtl | None

    def enable_time_to_live(self, ttl_config: StateTtl | None) -> None:
        """Let entries expire by a `StateTtlConfig`."""
        self.ttl = ttl_config


def _state_name(name: str) -> str:
    """Return keyed's name for a state of Flink: Flink allows any text, and keyed's names become paths."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


class ValueStateDescriptor(_Expiring, keyed.ValueState[T]):
    """A named `keyed.ValueState` for ``open``: ``context.get_state(ValueStateDescriptor("n", Types.LONG()))``."""

    def __init__(self: ValueStateDescriptor[Any], name: str, value_type_info: Any = None) -> None:
        super().__init__(_python(value_type_info), name=_state_name(name))


class ListStateDescriptor(_Expiring, keyed.ListState[T]):
    """A named `keyed.ListState` for ``open``."""

    def __init__(self: ListStateDescriptor[Any], name: str, elem_type_info: Any = None) -> None:
        super().__init__(_python(elem_type_info), name=_state_name(name))


class MapStateDescriptor(_Expiring, keyed.MapState[K, V]):
    """A named `keyed.MapState` for ``open``."""

    def __init__(
        self: MapStateDescriptor[Any, Any], name: str, key_type_info: Any = None, value_type_info: Any = None
    ) -> None:
        super().__init__(_python(key_type_info), _python(value_type_info), name=_state_name(name))


class ReducingStateDescriptor(_Expiring, keyed.ReducingState[T]):
    """A named `keyed.ReducingState` for ``open``."""

    def __init__(self: ReducingStateDescriptor[Any], name: str, reduce_function: Any, type_info: Any = None) -> None:
        super().__init__(_reducing(reduce_function), _python(type_info), name=_state_name(name))


class AggregatingStateDescriptor(_Expiring, keyed.AggregatingState[IN, OUT]):
    """A named `keyed.AggregatingState` for ``open``."""

    def __init__(self, name: str, agg_function: AggregateFunction[IN, Any, OUT], state_type_info: Any = None) -> None:
        super().__init__(agg_function, _python(state_type_info), name=_state_name(name))


class StateTtlConfig:
    """PyFlink's ``StateTtlConfig``.

    ``build()`` builds a `keyed.StateTtl`; settings for clean-up are ignored.
    """

    class UpdateType(enum.Enum):
        """The operations that refresh an entry."""

        Disabled = None
        OnCreateAndWrite = keyed.UpdateType.ON_CREATE_AND_WRITE
        OnReadAndWrite = keyed.UpdateType.ON_READ_AND_WRITE

    class StateVisibility(enum.Enum):
        """The visibility of expired entries."""

        ReturnExpiredIfNotCleanedUp = StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        NeverReturnExpired = StateVisibility.NEVER_RETURN_EXPIRED

    @attrs.define
    class Builder:
        """Collects the settings."""

        _ttl: dt.timedelta
        _update: StateTtlConfig.UpdateType
        _visibility: StateTtlConfig.StateVisibility

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Set the operations that refresh an entry."""
            self._update = update_type
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Let writes refresh an entry."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Let reads and writes refresh an entry."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Set the visibility of expired entries."""
            self._visibility = visibility
            return self

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Hide expired entries."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Show expired entries until they are cleaned up."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Run on processing time, which is the default."""
            return self

        def _cleanup(self, *_: Any) -> StateTtlConfig.Builder:
            return self

        cleanup_full_snapshot = cleanup_incrementally = cleanup_in_rocksdb_compact_filter = _cleanup
        disable_cleanup_in_background = _cleanup

        def build(self) -> StateTtl | None:
            """Return the time to live; ``None`` if it is disabled."""
            if self._update is StateTtlConfig.UpdateType.Disabled:
                return None
            return StateTtl(self._ttl, update=self._update.value, visibility=self._visibility.value)

    @classmethod
    def new_builder(cls, ttl: dt.timedelta) -> StateTtlConfig.Builder:
        """Begin with a duration."""
        return cls.Builder(ttl, cls.UpdateType.OnCreateAndWrite, cls.StateVisibility.NeverReturnExpired)


# Functions ------------------------------------------------------------------------------------------------------------


class RuntimeContext(keyed.OpenContext, Protocol):
    """The argument of ``open``, under PyFlink's name."""


class KeyedProcessFunction(keyed.KeyedProcessFunction):
    """`keyed.KeyedProcessFunction` with the nested names that PyFlink's annotations use."""

    Context: TypeAlias = keyed.Context
    OnTimerContext: TypeAlias = keyed.OnTimerContext


class KeyedCoProcessFunction(keyed.KeyedCoProcessFunction):
    """`keyed.KeyedCoProcessFunction` with the nested names that PyFlink's annotations use."""

    Context: TypeAlias = keyed.Context
    OnTimerContext: TypeAlias = keyed.OnTimerContext


class KeyedBroadcastProcessFunction(keyed.KeyedBroadcastProcessFunction):
    """`keyed.KeyedBroadcastProcessFunction` with the nested names that PyFlink's annotations use."""

    Context: TypeAlias = keyed.BroadcastContext
    ReadOnlyContext: TypeAlias = keyed.Context
    OnTimerContext: TypeAlias = keyed.OnTimerContext


class _RichFunction:
    """Base of the functions of one element, with state of the key from `open`."""

    def open(self, runtime_context: keyed.OpenContext) -> None:
        """Prepare for the first element of a key group."""

    def close(self) -> None:
        """Release what `open` took, after the last one."""


class MapFunction(_RichFunction):
    """Maps each element to one element. Subclass it, or give a function."""

    def map(self, value: Any) -> Any:
        """Return the element that is emitted."""
        raise NotImplementedError(f"{type(self).__name__} does not define map")


class FlatMapFunction(_RichFunction):
    """Maps each element to any number of elements. Subclass it, or give a function."""

    def flat_map(self, value: Any) -> Iterable[Any]:
        """Return the elements that are emitted."""
        raise NotImplementedError(f"{type(self).__name__} does not define flat_map")


class CoMapFunction(_RichFunction):
    """Maps each element of two streams to one element; ``None`` emits nothing. Subclass it."""

    def map1(self, value: Any) -> Any:
        """Return the element that is emitted for one of the first stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define map1")

    def map2(self, value: Any) -> Any:
        """Return the element that is emitted for one of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define map2")


class CoFlatMapFunction(_RichFunction):
    """Maps each element of two streams to any number of elements. Subclass it."""

    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """Return the elements that are emitted for one of the first stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define flat_map1")

    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """Return the elements that are emitted for one of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define flat_map2")


class FilterFunction(_RichFunction):
    """Chooses elements. Subclass it, or give a function."""

    def filter(self, value: Any) -> bool:
        """Return whether ``value`` is emitted."""
        raise NotImplementedError(f"{type(self).__name__} does not define filter")


class ReduceFunction:
    """Combines two elements to one. Subclass it, or give a function."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return the combination of both."""
        raise NotImplementedError(f"{type(self).__name__} does not define reduce")


class KeySelector:
    """Gives the key of an element. Subclass it, or give a function."""

    def get_key(self, value: Any) -> Any:
        """Return the key of ``value``."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_key")


class TimestampAssigner:
    """Gives the event timestamp of an element. Subclass it."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Return the timestamp of ``value`` in milliseconds."""
        raise NotImplementedError(f"{type(self).__name__} does not define extract_timestamp")


class SessionWindowTimeGapExtractor:
    """Gives the session gap after an element. Subclass it, or give a function."""

    def extract(self, element: Any) -> int:
        """Return the gap after ``element`` in milliseconds."""
        raise NotImplementedError(f"{type(self).__name__} does not define extract")


class ProcessWindowFunction(windows.ProcessWindowFunction, Generic[IN, OUT, KEY, W]):
    """`keyed.windows.ProcessWindowFunction` with the type parameters and nested names that PyFlink's annotations use.

    State of ``context.window_state`` and ``global_state`` is declared by attributes, as in `windows`.
    """

    class Context(_ProcessWindowContext, Protocol[W_co]):
        """Context of ``process``, beside the key and the elements."""


class WindowFunction(Generic[IN, OUT, KEY, W]):
    """A function over the elements of a window that gets the window and no context. Subclass it."""

    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """Return the elements that are emitted."""
        raise NotImplementedError(f"{type(self).__name__} does not define apply")


class Trigger(windows.Trigger, Generic[T, W]):
    """`keyed.windows.Trigger` with the type parameters and nested names that PyFlink's annotations use."""

    TriggerContext: TypeAlias = _TriggerContext
    OnMergeContext: TypeAlias = _OnMergeContext


class EventTimeTrigger(windows.EventTimeTrigger):
    """Fires at the end of the window."""

    @staticmethod
    def create() -> windows.EventTimeTrigger:
        """Make the trigger."""
        return windows.EventTimeTrigger()


class ProcessingTimeTrigger(windows.ProcessingTimeTrigger):
    """Fires when the clock reaches the end of the window."""

    @staticmethod
    def create() -> windows.ProcessingTimeTrigger:
        """Make the trigger."""
        return windows.ProcessingTimeTrigger()


CountTrigger = windows.CountTrigger


class CountWindow(_Window, Protocol):
    """A window of a number of elements, for annotations.

    It has no ``id`` here.
    """


class EventTimeSessionWindows:
    """Sessions in event time."""

    with_gap = windows.EventTimeSessionWindows.with_gap

    @staticmethod
    def with_dynamic_gap(extractor: Any) -> windows.EventTimeSessionWindows:
        """Make sessions with a gap that depends on the element."""
        gap = extractor.extract if isinstance(extractor, SessionWindowTimeGapExtractor) else extractor
        return windows.EventTimeSessionWindows.with_dynamic_gap(gap)


class OutputTag:
    """Names a side output: creates a `keyed.OutputTag`."""

    def __new__(cls, tag_id: str, type_info: Any = None) -> Any:  # noqa: D102
        return keyed.OutputTag(tag_id, _schema(type_info))


@attrs.frozen
class WatermarkStrategy:
    """PyFlink's ``WatermarkStrategy``.

    Attributes:
        delay: Bound of the disorder of elements, milliseconds.
        assigner: Gives their timestamps.
    """

    delay: dt.timedelta
    assigner: TimestampAssigner | None = None

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Expect elements in the order of their timestamps."""
        return cls(dt.timedelta())

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: dt.timedelta) -> WatermarkStrategy:
        """Expect elements to be out of order by at most this duration."""
        return cls(max_out_of_orderness)

    def with_timestamp_assigner(self, timestamp_assigner: TimestampAssigner) -> WatermarkStrategy:
        """Return the strategy with an assigner of timestamps."""
        return attrs.evolve(self, assigner=timestamp_assigner)


def _reducing(function: Any) -> Callable[[Any, Any], Any]:
    reduce: Callable[[Any, Any], Any] = function.reduce if isinstance(function, ReduceFunction) else function
    return reduce


# Streams --------------------------------------------------------------------------------------------------------------


class StreamExecutionEnvironment(_Partial):
    """PyFlink's environment: it runs printed streams, in this process."""

    def __init__(self) -> None:
        self.parallelism = 1
        self._printed: list[keyed.Output] = []

    @classmethod
    def get_execution_environment(cls) -> StreamExecutionEnvironment:
        """Make a new environment."""
        return cls()

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of key groups of later operators."""
        self.parallelism = parallelism
        return self

    def from_collection(self, collection: Iterable[Any], type_info: TypeInformation | None = None) -> DataStream:
        """Return a bounded stream of these elements; those of a row type become rows."""
        elements = list(collection)
        if type_info is not None and type_info.fields is not None and type_info.python is object:
            make = keyed.rows.row_class(tuple(name for name, _ in type_info.fields))
            elements = [make(element) for element in elements]
        return DataStream(self, keyed.stream(elements), elements)

    def execute(self, job_name: str | None = None) -> None:
        """Run the printed streams."""
        for output in self._printed:
            output.run(_show)
        self._printed = []


def _show(values: list[Any], _: int) -> None:
    for value in values:
        print(tuple(value) if isinstance(value, keyed.Row) else value)  # noqa: T201 - what DataStream.print is for


@attrs.frozen(eq=False, repr=False)
class DataStream(_Partial):
    """PyFlink's ``DataStream``: a source, or the output of an operator.

    Attributes:
        output: The `keyed.Output` of an operator's stream: run it with options, or use its ``df``.
    """

    _env: StreamExecutionEnvironment
    _stream: keyed.Stream | keyed.Output
    _elements: list[Any] | None = None

    @property
    def output(self) -> keyed.Output:
        """The `keyed.Output` of the stream.

        Raises:
            DefinitionError: The stream is a source.
        """
        if isinstance(self._stream, keyed.Output):
            return self._stream
        raise DefinitionError("a stream that no operator has emitted is not an output: key_by(...).process(...) it")

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Give the source event time.

        Raises:
            DefinitionError: It is not a source, or the strategy has no timestamps.
        """
        if self._elements is None:
            raise DefinitionError("an operator gives its outputs their timestamps; assign them at the source")
        assigner = strategy.assigner
        if assigner is None:
            raise DefinitionError("the watermark strategy has no timestamps: with_timestamp_assigner(...)")
        stream = keyed.stream(
            self._elements,
            timestamp=lambda element: assigner.extract_timestamp(element, keyed.MIN_TIMESTAMP),
            watermark=keyed.bounded_out_of_orderness(strategy.delay),
        )
        return DataStream(self._env, stream, self._elements)

    def key_by(self, key_selector: Any, key_type: TypeInformation | None = None) -> KeyedStream:
        """Key the stream by a function or a `KeySelector`; the type of the key follows from the keys."""
        select = key_selector.get_key if isinstance(key_selector, KeySelector) else key_selector
        return KeyedStream(self._env, self._stream.key_by(select), self._stream)

    def union(self, *streams: DataStream | KeyedStream) -> DataStream:
        """Return a stream of the elements of this one and of others, without a key."""
        return DataStream(self._env, self._stream.union(*map(_stream_of, streams)))

    def connect(self, other: DataStream | KeyedStream) -> ConnectedStreams:
        """Connect the stream with another one, to be keyed together."""
        return ConnectedStreams(self._env, self, other)

    def broadcast(self, *descriptors: MapStateDescriptor[Any, Any]) -> _BroadcastStream:
        """Give every key group all elements of this stream, for `KeyedStream.connect`."""
        return self._stream.broadcast(*descriptors)

    def process(self, function: Any, output_type: Any = None) -> NoReturn:
        """Refuse functions without a key.

        Raises:
            DefinitionError: Always.
        """
        raise DefinitionError(f"process of a stream that is not keyed {_KEYLESS}")

    def get_side_output(self, output_tag: keyed.OutputTag) -> DataStream:
        """Return the side output of the operator that emits this stream."""
        return DataStream(self._env, self.output.side_output(output_tag))

    def print(self) -> None:
        """Print the stream when the environment is executed."""
        self._env._printed.append(self.output)

    def execute_and_collect(self, job_execution_name: str | None = None, limit: int | None = None) -> Any:
        """Run the stream and return its values: an iterator that can be closed, or a list of at most ``limit``."""
        values = self.output.run().values
        return _Collected(values) if limit is None else values[:limit]


class _Collected(Iterator[Any], _Closeable):
    """PyFlink's ``CloseableIterator``."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = iter(values)

    def __next__(self) -> Any:
        return next(self._values)

    def close(self) -> None:
        """Drop the remaining values."""
        self._values = iter(())


@attrs.frozen(eq=False, repr=False)
class KeyedStream(_Partial):
    """PyFlink's ``KeyedStream``."""

    _env: StreamExecutionEnvironment
    _stream: keyed.KeyedStream
    _before: keyed.Stream | keyed.Output

    def union(self, *streams: DataStream | KeyedStream) -> DataStream:
        """Return a stream of the elements of this one and of others, without a key."""
        return DataStream(self._env, self._before).union(*streams)

    def connect(self, other: Any) -> Any:
        """Connect the stream with another one, keyed as well, or with a broadcast one.

        Returns:
            `ConnectedStreams` for a `KeyedCoProcessFunction`, or a `KeyedStream` for a `KeyedBroadcastProcessFunction`.
        """
        if not isinstance(other, _BroadcastStream):
            return ConnectedStreams(self._env, self, other)
        return KeyedStream(self._env, self._stream.connect(other), other.stream)

    def process(
        self, function: keyed.KeyedProcessFunction | keyed.KeyedBroadcastProcessFunction, output_type: Any = None
    ) -> DataStream:
        """Run a `KeyedProcessFunction` over the stream, or a `KeyedBroadcastProcessFunction` over connected ones."""
        options = _options(self._env, type(function).__name__, self._before)
        return DataStream(self._env, self._stream.process(function, _schema(output_type), **options))

    def reduce(self, function: Any) -> DataStream:
        """Combine the elements of each key, and emit the combination so far for each element."""
        return self.process(_Reduce(_reducing(function)))

    def map(self, func: Any, output_type: Any = None) -> DataStream:
        """Map each element to one element."""
        return self.process(_PerElement(func, "map", lambda _, result: (result,)), output_type)

    def flat_map(self, func: Any, output_type: Any = None) -> DataStream:
        """Map each element to any number of elements."""
        return self.process(_PerElement(func, "flat_map", lambda _, result: result), output_type)

    def filter(self, func: Any) -> DataStream:
        """Choose elements."""
        return self.process(_PerElement(func, "filter", lambda value, chosen: (value,) if chosen else ()))

    def window(self, window_assigner: Any) -> WindowedStream:
        """Cut the stream into windows."""
        options = _options(self._env, "WindowOperator", self._before)
        return WindowedStream(self._env, self._stream.window(window_assigner), options)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream:
        """Cut the stream into windows of a number of elements of a key."""
        return self.window(windows.CountWindows.of(size, slide))


def _stream_of(stream: DataStream | KeyedStream) -> keyed.Stream | keyed.Output:
    return stream._before if isinstance(stream, KeyedStream) else stream._stream


def _options(env: StreamExecutionEnvironment, name: str, *before: keyed.Stream | keyed.Output) -> dict[str, Any]:
    """Return the options of an operator, with a unique name."""
    names = {known for each in before if isinstance(each, keyed.Output) for known in each.operators}
    used = sum(known.split("-")[0] == name for known in names)
    return {"name": f"{name}-{used + 1}" if used else name, "parallelism": env.parallelism}


class ConnectedStreams(_Partial):
    """PyFlink's ``ConnectedStreams``: two streams for one function, keyed before or after."""

    def __init__(self, env: StreamExecutionEnvironment, first: Any, second: Any) -> None:
        for each in (first, second):
            if not isinstance(each, DataStream | KeyedStream):
                raise DefinitionError(
                    f"connect: {each!r} is not a stream of StreamExecutionEnvironment.from_collection"
                )
        self._env = env
        self._sides: list[DataStream | KeyedStream] = [first, second]

    def key_by(self, key_selector1: Any, key_selector2: Any, key_type: TypeInformation | None = None) -> Self:
        """Key both streams, each by its own function or `KeySelector`, with keys of one type."""
        first, second = (DataStream(self._env, _stream_of(each)) for each in self._sides)
        return type(self)(self._env, first.key_by(key_selector1), second.key_by(key_selector2))

    def process(self, func: keyed.KeyedCoProcessFunction, output_type: Any = None) -> DataStream:
        """Run a `KeyedCoProcessFunction` over both streams.

        Raises:
            DefinitionError: One of them is not keyed.
        """
        first, second = self._sides
        if not isinstance(first, KeyedStream) or not isinstance(second, KeyedStream):
            raise DefinitionError(f"process of connected streams that are not keyed {_NO_KEY}")
        options = _options(self._env, type(func).__name__, first._before, second._before)
        connected = first._stream.connect(second._stream)
        return DataStream(self._env, connected.process(func, _schema(output_type), **options))

    def map(self, func: CoMapFunction, output_type: Any = None) -> DataStream:
        """Map each element to one element."""
        return self.process(_CoPerElement(func, "map", lambda _, item: None if item is None else (item,)), output_type)

    def flat_map(self, func: CoFlatMapFunction, output_type: Any = None) -> DataStream:
        """Map each element to any number of elements."""
        return self.process(_CoPerElement(func, "flat_map", lambda _, result: result), output_type)


class _Reduce(keyed.KeyedProcessFunction):
    def __init__(self, reduce: Callable[[Any, Any], Any]) -> None:
        self.reduced = keyed.ReducingState(reduce)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterable[Any]:
        self.reduced.add(value)
        yield self.reduced.get()


class _Elementwise:
    """A function of one element, whose state is the key's."""

    _sides: tuple[str, ...] = ("",)

    def __init__(self, function: Any, method: str, outputs: Callable[[Any, Any], Iterable[Any] | None]) -> None:
        self._function = function
        self._method = method
        self._outputs = outputs
        self._is_plain = not isinstance(function, _RichFunction)

    def open(self, context: keyed.OpenContext) -> None:
        if not self._is_plain:
            # Each key group has its own, with its state.
            self._function = copy.copy(self._function)
            self._function.open(context)
        function = self._function
        self._calls = [function if self._is_plain else getattr(function, self._method + side) for side in self._sides]

    def call(self, value: Any, number: int = 0) -> Iterable[Any]:
        """Return the function's result for an element of a side."""
        return self._outputs(value, self._calls[number](value)) or ()

    def close(self) -> None:
        if not self._is_plain:
            self._function.close()


class _PerElement(_Elementwise, keyed.KeyedProcessFunction):
    def process_element(self, value: Any, ctx: keyed.Context) -> Iterable[Any]:
        yield from self.call(value)


class _CoPerElement(_Elementwise, keyed.KeyedCoProcessFunction):
    _sides = ("1", "2")

    def __init__(self, function: Any, method: str, outputs: Callable[[Any, Any], Iterable[Any] | None]) -> None:
        if not all(hasattr(function, f"{method}{side}") for side in self._sides):
            raise DefinitionError(f"{method} of connected streams: {function!r} has no {method}1 and {method}2")
        super().__init__(function, method, outputs)
        self._is_plain = False

    def process_element1(self, value: Any, ctx: keyed.Context) -> Iterable[Any]:
        yield from self.call(value, 0)

    def process_element2(self, value: Any, ctx: keyed.Context) -> Iterable[Any]:
        yield from self.call(value, 1)


class _Apply(windows.ProcessWindowFunction):
    def __init__(self, function: WindowFunction[Any, Any, Any, Any]) -> None:
        self._apply = function.apply

    def process(self, key: Any, context: _ProcessWindowContext, elements: Sequence[Any]) -> Iterable[Any]:
        return self._apply(key, context.window(), elements)


@attrs.frozen(eq=False, repr=False)
class WindowedStream(_Partial):
    """PyFlink's ``WindowedStream``."""

    _env: StreamExecutionEnvironment
    _stream: windows.WindowedStream
    _options: dict[str, Any]

    def trigger(self, trigger: windows.Trigger) -> WindowedStream:
        """Fire by ``trigger``."""
        return attrs.evolve(self, stream=self._stream.trigger(trigger))

    def evictor(self, evictor: Evictor) -> WindowedStream:
        """Remove elements with ``evictor``."""
        return attrs.evolve(self, stream=self._stream.evictor(evictor))

    def allowed_lateness(self, time_ms: int) -> WindowedStream:
        """Keep windows for a number of milliseconds after their end."""
        return attrs.evolve(self, stream=self._stream.allowed_lateness(time_ms))

    def side_output_late_data(self, output_tag: keyed.OutputTag) -> WindowedStream:
        """Emit elements that are late for all of their windows to a side output."""
        return attrs.evolve(self, stream=self._stream.side_output_late_data(output_tag))

    def process(self, process_window_function: windows.ProcessWindowFunction, output_type: Any = None) -> DataStream:
        """Call a function with all elements of each window."""
        output = self._stream.process(process_window_function, output=_schema(output_type), **self._options)
        return DataStream(self._env, output)

    def apply(self, window_function: WindowFunction[Any, Any, Any, Any], output_type: Any = None) -> DataStream:
        """Call a function with all elements of each window, and the window."""
        return self.process(_Apply(window_function), output_type)

    def reduce(
        self,
        reduce_function: Any,
        window_function: windows.ProcessWindowFunction | None = None,
        output_type: Any = None,
    ) -> DataStream:
        """Combine the elements of each window into one."""
        output = self._stream.reduce(
            _reducing(reduce_function), window_function, output=_schema(output_type), **self._options
        )
        return DataStream(self._env, output)

    def aggregate(
        self,
        aggregate_function: AggregateFunction[Any, Any, Any],
        window_function: windows.ProcessWindowFunction | None = None,
        accumulator_type: TypeInformation | None = None,
        output_type: Any = None,
    ) -> DataStream:
        """Aggregate the elements of each window; an accumulator of plain data needs no type."""
        output = self._stream.aggregate(
            aggregate_function, window_function, output=_schema(output_type), **self._options
        )
        return DataStream(self._env, output)
