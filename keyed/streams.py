"""Streams: the chain ``stream → key_by → process → outputs`` as a description, and the runtime that carries it out.

Nothing here runs anything: a chain is a list of frozen nodes. `Output.run`, `Output.start`, `Output.df` and `run` hand
the nodes to the runtime that the source asks for: Spark for a DataFrame, the local one for everything else.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, Unpack, cast

import attrs

from keyed.broadcast import check_descriptors
from keyed.changelog.model import Changelog
from keyed.column_types import of_arrow, of_spark
from keyed.durations import Duration, milliseconds_of
from keyed.errors import DefinitionError, StateDefinitionError
from keyed.functions import (
    Function,
    KeyedBroadcastProcessFunction,
    RowFunction,
    check_function,
    declared_states,
    takes_two,
)
from keyed.inference import inferred_output
from keyed.operators import OperatorSpec, Order, Store, check_order, check_parallelism
from keyed.options import Options, RunOptions, StartOptions, options_of, shows
from keyed.outputs import OutputTag, Schema, schema_of
from keyed.private_files import folder_path
from keyed.restoring import RestorePoint
from keyed.results import Query, RunResult
from keyed.shown import Shown, named
from keyed.sinks import CollectSink, Sink, SinkLike, check_distinct, nowhere, sink_of
from keyed.sources import IngestionTime
from keyed.state import MapState
from keyed.vectorized import VectorizedFunction
from keyed.watermarks import WatermarkStrategy, ascending_timestamps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Keys = tuple[str, ...] | Callable[[Any], Any]
ConnectedKeys = str | tuple[str, ...] | Callable[[Any], Any]


W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)


class Assigner(Protocol[W_co]):
    """What `KeyedStream.window` takes: a window assigner of the package `windows`, or one with this method."""

    def windowed(self, stream: KeyedStream) -> W_co:
        """Cut ``stream`` into windows."""
        ...


@attrs.frozen(eq=False)
class Source:
    """Where rows come from. See `stream` for the fields."""

    data: Any
    timestamp: str | Callable[[Any], Any] | IngestionTime | None
    watermark: WatermarkStrategy
    ticks: bool
    on_bad_row: OutputTag | None
    max_ahead_ms: int | None
    watermark_given: bool

    def __repr__(self) -> str:
        time = f", timestamp={named(self.timestamp)}" if self.timestamp is not None else ""
        return f"{type(self.data).__name__}{time}"

    @property
    def ingests(self) -> bool:
        """Whether each row has the time of its batch."""
        return isinstance(self.timestamp, IngestionTime)

    @property
    def time(self) -> str | Callable[[Any], Any] | None:
        """What timestamps are read with; ``None`` where the rows have none, or that of their batch."""
        return None if isinstance(self.timestamp, IngestionTime) else self.timestamp


@attrs.frozen(eq=False)
class Input:
    """A source as the first operator of a query reads it.

    Attributes:
        source: The source.
        keys: Its keys.
        side: 0 for `KeyedProcessFunction.process_element` and the first side of connected streams, 1 for the second.
        is_broadcast: Whether every key group gets its elements, which have no key.
    """

    source: Source
    keys: Keys
    side: int = 0
    is_broadcast: bool = False

    def __repr__(self) -> str:
        return f"{self.source!r} → {'broadcast' if self.is_broadcast else _shown_keys(self.keys)}"


@attrs.frozen(eq=False)
class Stage:
    """One keyed operator and what feeds it.

    Attributes:
        beside: What it reads beside ``upstream``, where that is a source.
        reads: Which output it reads, as the name of its operator and the tag, ``None`` for the main output; ``None``
            for the main output of ``upstream``. In a query that is a graph ``upstream`` is the stage that runs before,
            as `linear` puts them.
        broadcast_states: Descriptors of the broadcast states.
    """

    upstream: Source | Stage
    keys: Keys
    function: Function
    name: str
    output: Schema | None
    parallelism: int | None
    order: Order
    store: Store
    changelog: Changelog | None = None
    restore_from: RestorePoint | None = None
    initial_state: Any = None
    beside: tuple[Input, ...] = ()
    reads: tuple[str, OutputTag | None] | None = None
    broadcast_states: tuple[MapState[Any, Any], ...] = ()

    def __repr__(self) -> str:
        return f"{_shown_inputs(self.upstream, self.keys, self.beside)} → {self.name}"

    @property
    def source(self) -> Source:
        """Where the chain starts; the first source where there are several."""
        return self.upstream if isinstance(self.upstream, Source) else self.upstream.source

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key; none where the stream is keyed by a function."""
        return () if callable(self.keys) else self.keys

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The sources of the chain, as its first operator reads them."""
        first = self.chain[0]
        return (Input(first.source, first.keys), *first.beside)

    @property
    def ticks(self) -> bool:
        """Whether key groups are woken though no row comes."""
        return all(each.source.ticks for each in self.inputs)

    @property
    def bad_row_outputs(self) -> dict[str, list[int]]:
        """The inputs by the name of the side output of this operator that takes their bad rows."""
        outputs: dict[str, list[int]] = {}
        for index, each in enumerate(self.inputs if isinstance(self.upstream, Source) else ()):
            if each.source.on_bad_row is not None:
                outputs.setdefault(each.source.on_bad_row.name, []).append(index)
        return outputs

    def reading(self, index: int) -> Stage:
        """Return this first operator as if it read one of its inputs alone."""
        each = self.inputs[index]
        return attrs.evolve(self, upstream=each.source, keys=each.keys, beside=())

    @property
    def chain(self) -> list[Stage]:
        """The stages from the source to this one."""
        return [*(self.upstream.chain if isinstance(self.upstream, Stage) else []), self]

    def reader_of(self, output: tuple[str, OutputTag | None]) -> bool:
        """Tell whether this stage reads an output, given as `reads`."""
        if self.reads is not None:
            name, tag = self.reads
            other = output[1]
            return name == output[0] and (tag and tag.name) == (other and other.name)
        return isinstance(self.upstream, Stage) and output == (self.upstream.name, None)

    def spec(self, parallelism: int, *, output_timestamps: bool = True) -> OperatorSpec:
        """Return the operator with its number of key groups settled."""
        source = self.source
        first = isinstance(self.upstream, Source)
        # A broadcast source without timestamps says nothing of event time. Such sources are the last.
        timed = [each.source for each in self.inputs if each.source.timestamp is not None or not each.is_broadcast]
        return OperatorSpec(
            name=self.name,
            function=self.function,
            event_time=source.timestamp is not None,
            delay_ms=max(each.watermark.delay_ms for each in timed) if first else None,
            ingestion_delay_ms=source.watermark.delay_ms if source.ingests else None,
            strategies=tuple(each.watermark for each in timed) if first else (),
            order=self.order,
            parallelism=parallelism,
            keys=self.key_columns,
            keys2=next((each.keys for each in self.inputs if each.side and not callable(each.keys)), ()),
            output=self.output,
            output_timestamps=output_timestamps,
            changelog=self.changelog,
            broadcast=self.broadcast_states,
        )


@attrs.frozen(eq=False)
class Stream(Shown):
    """Rows that are not keyed yet.

    Attributes:
        source: Where they come from.
        beside: Where they come from too, after a `union`.
    """

    source: Source
    beside: tuple[Source, ...] = ()

    def __repr__(self) -> str:
        return f"Stream({' ∪ '.join(map(repr, (self.source, *self.beside)))})"

    def union(self, *others: Stream) -> Stream:
        """Return a stream of the rows of this one and of others, which have the same columns.

        Each source keeps its own timestamps, watermark and bad rows; the watermark of what reads the union is the least
        of theirs. Rows of one micro-batch run by timestamp, those of equal times in the order of the streams.

        Raises:
            DefinitionError: Something else than streams, or columns differ.
        """
        if not others or not all(isinstance(other, Stream) for other in others):
            raise DefinitionError(f"union{others!r}: give one or more streams of keyed.stream(...)")
        sources = [source for stream in (self, *others) for source in (stream.source, *stream.beside)]
        columns = [_columns(source.data) for source in sources]
        for other in columns[1:]:
            if columns[0] is not None and other is not None and columns[0] != other:
                raise DefinitionError(
                    f"union: the streams have different columns, {_shown_columns(columns[0])} and "
                    f"{_shown_columns(other)}; select the same ones, with the same types"
                )
        _check_together(sources)
        return Stream(sources[0], tuple(sources[1:]))

    def connect(self, other: Stream) -> ConnectedStreams:
        """Connect this stream with another one, for a `KeyedCoProcessFunction` over both.

        Raises:
            DefinitionError: It is no stream, or the two cannot be in one query.
        """
        if isinstance(other, BroadcastStream):
            raise DefinitionError(
                "connect: a broadcast stream is connected with a keyed one: a.key_by(...).connect(b.broadcast(...))"
            )
        if not isinstance(other, Stream):
            raise DefinitionError(f"connect({other!r}): give a stream of keyed.stream(...), not keyed")
        _check_together([self.source, *self.beside, other.source, *other.beside])
        return ConnectedStreams(self, other)

    def broadcast(self, *descriptors: MapState[Any, Any]) -> BroadcastStream:
        """Return this stream for `KeyedStream.connect`: every key group gets all of its elements.

        Without timestamps it has no part in the watermark; with them the watermark is the least of both sides'.

        Args:
            descriptors: The broadcast states that a `KeyedBroadcastProcessFunction` makes of the elements, each with a
                name: ``keyed.MapState(str, Rule, name="rules")``.

        Raises:
            DefinitionError: There is none, or something else is among them.
            StateDefinitionError: One has no name or a time to live, or two have one name.
        """
        check_descriptors(descriptors)
        return BroadcastStream(self, descriptors)

    def key_by(self, *keys: str | Callable[[Any], Any]) -> KeyedStream:
        """Key the stream by columns (or, in the local runtime, by a function of the element).

        Raises:
            DefinitionError: No key, or a function beside other keys.
        """
        keyed = _keys(keys)
        return KeyedStream(self.source, keyed, tuple(Input(source, keyed) for source in self.beside))


@attrs.frozen(eq=False)
class ConnectedStreams(Shown):
    """Two streams that one function reads (Flink's ``ConnectedStreams``)."""

    first: Stream
    second: Stream

    def __repr__(self) -> str:
        return f"ConnectedStreams({self.first!r}, {self.second!r})"

    def key_by(self, first: ConnectedKeys, second: ConnectedKeys | None = None) -> KeyedStream:
        """Key both streams, so that elements with the same key meet.

        Args:
            first: Column of the first stream, a tuple of columns, or (in the local runtime) a function of the element.
            second: The same for the second stream; by default as the first.

        Raises:
            DefinitionError: No key, or the two have different numbers of columns.
        """
        mine, theirs = (_keys(keys if isinstance(keys, tuple) else (keys,)) for keys in (first, second or first))
        return self.first.key_by(*_parts(mine)).connect(self.second.key_by(*_parts(theirs)))


@attrs.frozen(eq=False)
class BroadcastStream(Shown):
    """A stream of which every key group gets all elements (Flink's ``BroadcastStream``).

    Attributes:
        stream: The stream.
        descriptors: The broadcast states that are made of it.
    """

    stream: Stream
    descriptors: tuple[MapState[Any, Any], ...]

    def __repr__(self) -> str:
        return f"BroadcastStream({self.stream!r}, {', '.join(map(repr, self.descriptors))})"


@attrs.frozen(eq=False)
class KeyedStream(Shown):
    """A stream partitioned by key, or two of them that are connected.

    Attributes:
        upstream: What it comes from.
        keys: Its keys.
        beside: Further sources of it.
        tag: Which side output of an operator it is; ``None`` for the main output.
        broadcast_states: Descriptors of the broadcast states, where it is connected with a broadcast stream.
    """

    upstream: Source | Stage
    keys: Keys
    beside: tuple[Input, ...] = ()
    tag: OutputTag | None = None
    broadcast_states: tuple[MapState[Any, Any], ...] = ()

    def __repr__(self) -> str:
        return f"KeyedStream({_shown_inputs(self.upstream, self.keys, self.beside)})"

    def connect(self, other: KeyedStream | BroadcastStream) -> KeyedStream:
        """Connect this keyed stream with another one, for a function over both.

        Args:
            other: A keyed stream, for a `KeyedCoProcessFunction`; or a broadcast one, for a
                `KeyedBroadcastProcessFunction`.

        Raises:
            DefinitionError: The other one is neither, or has another number of key columns, or one of them is
                connected or the output of an operator.
        """
        if isinstance(other, BroadcastStream):
            return self._with_broadcast(other)
        if not isinstance(other, KeyedStream):
            raise DefinitionError(
                f"connect({other!r}): key both streams, a.key_by(...).connect(b.key_by(...)), or broadcast the other "
                "one, b.broadcast(keyed.MapState(..., name='rules'))"
            )
        _check_connectable(self, other)
        if callable(self.keys) != callable(other.keys) or len(_parts(self.keys)) != len(_parts(other.keys)):
            raise DefinitionError(
                f"connect: {_shown_keys(self.keys)} and {_shown_keys(other.keys)} make different keys; give both sides "
                "the same number of columns, in the same order, or both a function"
            )
        assert isinstance(self.upstream, Source)
        assert isinstance(other.upstream, Source)
        theirs = (Input(other.upstream, other.keys), *other.beside)
        _check_together([self.upstream, *(each.source for each in (*self.beside, *theirs))])
        return attrs.evolve(self, beside=(*self.beside, *(attrs.evolve(each, side=1) for each in theirs)))

    def _with_broadcast(self, other: BroadcastStream) -> KeyedStream:
        _check_connectable(self)
        assert isinstance(self.upstream, Source)
        sources = [other.stream.source, *other.stream.beside]
        mine = [self.upstream, *(each.source for each in self.beside)]
        _check_runtime([*mine, *sources])
        _check_times(mine if other.stream.source.timestamp is None else [*mine, *sources])
        read = (Input(source, (), side=1, is_broadcast=True) for source in sources)
        return attrs.evolve(self, beside=(*self.beside, *read), broadcast_states=other.descriptors)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key; none where the stream is keyed by a function."""
        return () if callable(self.keys) else self.keys

    @property
    def columns(self) -> dict[str, str | None] | None:
        """Types of the columns by name, as in `Schema`; ``None`` where they are not known before the stream runs.

        A type is ``None`` where an Arrow column has one that Spark has not, or a nested one.
        """
        if isinstance(self.upstream, Stage):
            schema = self._output
            return None if schema is None else dict(schema.columns)
        return _columns(self.upstream.data)

    @property
    def sides(self) -> tuple[KeyedStream, ...]:
        """The stream itself, or the two that are connected."""
        second = [each for each in self.beside if each.side]
        if not second:
            return (self,)
        first = attrs.evolve(self, beside=tuple(each for each in self.beside if not each.side))
        rest = tuple(attrs.evolve(each, side=0) for each in second[1:])
        return first, KeyedStream(second[0].source, second[0].keys, rest)

    @property
    def _output(self) -> Schema | None:
        """The declared columns of the output that is read."""
        assert isinstance(self.upstream, Stage)
        return self.upstream.output if self.tag is None else self.tag.schema

    @property
    def watermark_delay_ms(self) -> int:
        """How far the watermark stays behind the highest timestamp; 0 where another operator sets it."""
        if isinstance(self.upstream, Stage):
            return 0
        return max(each.watermark.delay_ms for each in (self.upstream, *(read.source for read in self.beside)))

    @property
    def on_spark(self) -> bool:
        """Whether the stream starts at a Spark DataFrame."""
        source = self.upstream if isinstance(self.upstream, Source) else self.upstream.source
        return is_dataframe(source.data)

    def process(
        self,
        function: Function,
        output: Any = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        order: Order = "event_time",
        store: Store = "memory",
        changelog: Changelog | None = None,
        restore_from: Changelog | RestorePoint | None = None,
        initial_state: Any = None,
    ) -> Output:
        """Run ``function`` over the keyed stream.

        Args:
            function: The function; one copy of it serves each task.
            output: Type of the main output: DDL string, ``StructType``, attrs class, dataclass or named tuple. Spark
                needs it, the local runtime for Parquet only. Without it it is what the annotations of
                ``process_element`` and ``on_timer`` say that they yield: ``-> Iterator[Count]`` with such a class.
            name: Name of the operator, in checkpoints and metrics; by default the function's class name.
            parallelism: Number of key groups; by default ``spark.sql.shuffle.partitions`` on Spark and 1 locally.
                Fixed by the checkpoint.
            order: ``"event_time"`` runs the rows of a batch by timestamp, ``"arrival"`` as they came.
            store: Where each worker keeps its copy of the state: ``"memory"`` or ``"rocksdb"``.
            changelog: Where every committed change of state goes, such as a `DirectoryChangelog`.
            restore_from: The changelog of an earlier query, or a `RestorePoint` in it: a new query starts with its
                state, timers and clocks. A query that goes on from its checkpoint does not look at it.
            initial_state: What a new query starts with that comes from elsewhere: a Spark, pandas or Arrow table with
                columns for key, ``state``, ``entry`` and ``value``, or by the name of a state such a table. A query
                that goes on from its checkpoint does not look at it.

        Raises:
            DefinitionError: The function or a parameter breaks a rule. Nothing has run then.
        """
        check_function(function)
        _check_sides(function, self)
        name = name if name is not None else type(function).__name__
        check_order(order)
        if isinstance(function, RowFunction):
            function = function.planned(self, output, order)
        if callable(self.keys) and isinstance(function, VectorizedFunction):
            raise DefinitionError(f"{type(function).__name__} is vectorized: key_by needs the names of columns for it")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", name):
            raise DefinitionError(f"operator name {name!r} must match [A-Za-z0-9_-]{{1,128}}; give name=...")
        if store not in ("memory", "rocksdb"):
            raise DefinitionError(f"store={store!r} must be 'memory' or 'rocksdb'")
        if parallelism is not None:
            check_parallelism(parallelism)
        if changelog is not None and not isinstance(changelog, Changelog):
            raise DefinitionError(f"changelog={changelog!r} is not a changelog")
        if restore_from is not None and not isinstance(restore_from, RestorePoint):
            restore_from = RestorePoint(restore_from)
        if restore_from is not None and restore_from.changelog == changelog:
            raise DefinitionError(
                f"restore_from and changelog are the same, {changelog!r}: a restored query starts one of its own"
            )
        if restore_from is not None and initial_state is not None:
            raise DefinitionError("restore_from and initial_state are both given, and a query starts with one of them")
        if isinstance(self.upstream, Stage):
            if any(stage.name == name for stage in self.upstream.chain):
                raise DefinitionError(f"operator name {name!r} is used twice in this query; give name=... to one")
            if changelog is not None and any(stage.changelog == changelog for stage in self.upstream.chain):
                raise DefinitionError(f"changelog={changelog!r} is that of another operator of this query")
            known = self._output
            if known is not None and not callable(self.keys):
                missing = [key for key in self.keys if key not in known.names]
                if missing:
                    side = f"side output {self.tag.name!r}" if self.tag is not None else "the output"
                    raise DefinitionError(
                        f"key column {missing[0]!r} is not in {side} of {self.upstream.name!r}: "
                        f"{', '.join(known.names)}"
                    )
        schema = inferred_output(function) if output is None else schema_of(output)
        stage = Stage(
            self.upstream,
            self.keys,
            function,
            name,
            schema,
            parallelism,
            order,
            store,
            changelog,
            restore_from,
            initial_state,
            self.beside,
            (self.upstream.name, self.tag) if isinstance(self.upstream, Stage) and self.tag is not None else None,
            self.broadcast_states,
        )
        return Output(stage, None)

    def window(self, assigner: Assigner[W]) -> W:
        """Cut the stream into windows: what ``assigner.windowed(self)`` makes of it (see the package `windows`)."""
        build = getattr(assigner, "windowed", None)
        if build is None:
            raise DefinitionError(f"window({assigner!r}): not a window assigner; use one of the package windows")
        return cast("W", build(self))


@attrs.frozen(eq=False)
class Output(Shown):
    """The main output of an operator, or one of its side outputs (``tag``)."""

    stage: Stage
    tag: OutputTag | None

    def __repr__(self) -> str:
        side = f", side output {self.tag.name!r}" if self.tag is not None else ""
        columns = f": {self.schema.ddl}" if self.schema is not None else ""
        return f"Output({self.stage!r}{side}{columns})"

    @property
    def schema(self) -> Schema | None:
        """The declared columns; ``None`` where there are none."""
        return self.stage.output if self.tag is None else self.tag.schema

    @property
    def operators(self) -> dict[str, Function]:
        """The functions from the source to this output, by the name of their operator."""
        return {stage.name: stage.function for stage in self.stage.chain}

    def side_output(self, tag: OutputTag | str) -> Output:
        """Return the side output ``tag`` of the same operator.

        Raises:
            DefinitionError: The operator says which side outputs it has (`known_side_outputs`), and this is none.
        """
        tag = tag if isinstance(tag, OutputTag) else OutputTag(tag)
        known = self.stage.function.known_side_outputs
        if known is not None and tag.name not in {*known, *self.stage.bad_row_outputs}:
            raise DefinitionError(
                f"operator {self.stage.name!r} has no side output {tag.name!r}; it has "
                + (", ".join(map(repr, sorted(known))) or "none: late rows go to one with side_output_late_data(tag)")
            )
        return Output(self.stage, tag)

    def key_by(self, *keys: str | Callable[[Any], Any]) -> KeyedStream:
        """Key this output, a side output too, for another operator in the same query.

        One output may feed several operators; `run` them together, with outputs of all of them.
        """
        return KeyedStream(self.stage, _keys(keys), tag=self.tag)

    def to(self, sink: SinkLike) -> BoundOutput:
        """Return this output with the sink that it is written to, for `keyed.run` and `keyed.start`."""
        return BoundOutput(self, sink_of(sink))

    @property
    def df(self) -> DataFrame:
        """This output as a Spark DataFrame.

        Raises:
            DefinitionError: The source is not a Spark DataFrame.
        """
        frame: DataFrame = _runtime(self.stage.source).dataframe(self)
        return frame

    @shows(RunOptions)
    def run(self, sink: SinkLike | None = None, **options: Unpack[RunOptions]) -> RunResult:
        """Run a query with this output alone to its end; without a sink its values are collected. See `run`."""
        return run(self.to(CollectSink() if sink is None else sink), **options)

    @shows(StartOptions)
    def start(self, sink: SinkLike | None = None, **options: Unpack[StartOptions]) -> Query:
        """Start a query with this output alone; with ``tables=`` it may do without a sink. See `start`."""
        if sink is None and options.get("tables") is None:
            raise DefinitionError("start: give a sink for the output, or tables= to ask for the state alone")
        return start(self.to(nowhere if sink is None else sink), **options)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            # Never a look at the DataFrame: building the plan may create the topic of a changelog.
            remedy = "" if name.startswith("_") else f"; the DataFrame of an output on Spark is .df: output.df.{name}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{remedy}")


@attrs.frozen(eq=False)
class BoundOutput(Shown):
    """An output and its sink."""

    output: Output
    sink: Sink

    def __repr__(self) -> str:
        return f"BoundOutput({self.output!r} to {self.sink!r})"


def stream(
    source: Any,
    *,
    timestamp: str | Callable[[Any], Any] | IngestionTime | None = None,
    watermark: WatermarkStrategy | None = None,
    ticks: bool = True,
    on_bad_row: OutputTag | None = None,
    max_ahead: Duration | None = timedelta(days=365),
) -> Stream:
    """Return a stream of rows.

    Args:
        source: A streaming or batch Spark DataFrame; for the local runtime any iterable or generator of elements, a
            pandas DataFrame or an Arrow table.
        timestamp: Column with the event time: a timestamp, or an integer in milliseconds since the epoch. In the local
            runtime also a function of the element. `INGESTION_TIME` gives each row the time of its batch. Without it
            the stream has no event time.
        watermark: The strategy; by default rows are taken to arrive in the order of their timestamps, and a warning
            says it once where windows drop rows because they do not.
        ticks: Whether key groups are woken when something is due and no row comes: processing-time timers, changelogs,
            the end of the input (Spark, streaming).
        on_bad_row: Where bad rows go, beside the first operator's outputs; without it they fail the query. A row is bad
            if its key is null or cannot be encoded, if its timestamp is missing or too far ahead, or if a text in it is
            no UTF-8 or a time one that Python has not.
        max_ahead: How far a timestamp may be ahead of the processing time of its batch; ``None`` for any distance. One
            timestamp in the far future would move the watermark there, and make all other rows late. With
            ``processing_time=`` in the local runtime, and in the harness, there is no limit.

    Raises:
        DefinitionError: A watermark without a timestamp, or a parameter of the wrong type.
    """
    if watermark is not None and not isinstance(watermark, WatermarkStrategy):
        raise DefinitionError(f"watermark={watermark!r}: give keyed.bounded_out_of_orderness(...)")
    if watermark is not None and timestamp is None:
        raise DefinitionError("watermark is given but timestamp is not: name the event-time column")
    if not (timestamp is None or isinstance(timestamp, str | IngestionTime) or callable(timestamp)):
        raise DefinitionError(
            f"timestamp={timestamp!r} must be a column name, keyed.INGESTION_TIME or, in the local runtime, a function"
        )
    if on_bad_row is not None and not isinstance(on_bad_row, OutputTag):
        raise DefinitionError(f"on_bad_row={on_bad_row!r} must be an OutputTag")
    # No sum with a processing time leaves int64.
    max_ahead_ms = None if max_ahead is None else min(milliseconds_of(max_ahead, "max_ahead"), 2**62)
    strategy = ascending_timestamps() if watermark is None else watermark
    given = watermark is not None
    return Stream(Source(source, timestamp, strategy, ticks, on_bad_row, max_ahead_ms, watermark_given=given))


@shows(RunOptions)
def run(*outputs: BoundOutput, **options: Unpack[RunOptions]) -> RunResult:
    """Run all available input through one query that writes ``outputs``, and return when it is done.

    Args:
        outputs: Outputs of the operators of one query, each with its sink (`Output.to`).
        checkpoint: Folder for what must not be lost; on Spark a streaming source needs it.
        drain: Whether the watermark moves to +inf at the end, so that every timer fires. By default it does in the
            local runtime where there is no checkpoint, and for a batch DataFrame.
        on_progress: Called after each batch.
        on_restore: Called while state is restored from a changelog.
        local_dir: Folder of local stores on disk.
        group_access: Whether the group may read the checkpoint, if its folder is made; otherwise the user alone.
        tables: Folder in which the query keeps state tables of its operators, for `RunResult.tables`,
            `keyed.read_tables` and the command ``keyed``. An operator without a changelog gets one in there. The folder
            belongs to this query: run with the same ``checkpoint`` it goes on in it.
        query_name: Name of the query in Spark's progress; on Spark only.
        rows_per_batch: Rows of a micro-batch, 100,000 by default; in the local runtime only.
        processing_time: The clock, in milliseconds, by default the machine's; in the local runtime only.

    Returns:
        A result with ``values`` (of the collecting sink, if there is one), ``metrics``, and ``tables`` if it kept them.

    Raises:
        DefinitionError: No outputs, outputs of different chains, or an option that the runtime does not have.
        KeyedError: What the query failed with.
    """
    last, outputs = linear(outputs)
    given = options_of(options, RunOptions)
    last, outputs = _with_changelogs(last, outputs, given)
    result: RunResult = _runtime(last.source).run(last, outputs, given)
    return result


@shows(StartOptions)
def start(*outputs: BoundOutput, **options: Unpack[StartOptions]) -> Query:
    """Start one query that writes ``outputs`` and return a handle to it.

    Args:
        outputs: Outputs of the operators of one query, each with its sink (`Output.to`).
        checkpoint: As in `run`, and so the others that are not described here.
        trigger: ``"5 seconds"`` or a dict of the arguments of Spark's trigger, one second by default; on Spark only.
        drain: In the local runtime only.
        on_progress: Called after each batch.
        on_restore: Called while state is restored from a changelog.
        local_dir: Folder of local stores on disk.
        group_access: Whether the group may read the checkpoint, if its folder is made; otherwise the user alone.
        tables: Folder for state tables of the operators, as in `run`, which `Query.tables` gives.
        query_name: On Spark only.
        rows_per_batch: In the local runtime only.
        processing_time: In the local runtime only.

    Raises:
        DefinitionError: As in `run`.
    """
    last, outputs = linear(outputs)
    given = options_of(options, StartOptions)
    last, outputs = _with_changelogs(last, outputs, given)
    query: Query = _runtime(last.source).start(last, outputs, given)
    return query


def is_dataframe(data: Any) -> bool:
    """Tell whether ``data`` is a Spark DataFrame (classic or Connect), without importing pyspark."""
    return any(cls.__module__.startswith("pyspark.sql") and cls.__name__ == "DataFrame" for cls in type(data).__mro__)


def linear(outputs: tuple[BoundOutput, ...]) -> tuple[Stage, tuple[BoundOutput, ...]]:
    """Return the last stage of the operators that outputs need, put one after the other, and the outputs of those.

    The operators of a query run one after the other in each batch, which is all that Spark can run of several without
    computing what they share again for each of them. So that the order does not depend on that of the outputs, one that
    reads the main output comes first, and then they go by name.

    Raises:
        DefinitionError: There is no output, the operators have no common source, or two have one name.
    """
    if not outputs or not all(isinstance(output, BoundOutput) for output in outputs):
        raise DefinitionError("run and start take outputs with their sinks: run(output.to(sink), ...)")
    stages = list(dict.fromkeys(stage for bound in outputs for stage in bound.output.stage.chain))
    first, *others = [stage for stage in stages if isinstance(stage.upstream, Source)]
    if others:
        shares = "read one stream" if others[0].source is first.source else "have different sources"
        raise DefinitionError(
            f"operators {first.name!r} and {others[0].name!r} {shares}, and a query begins with one operator: Spark "
            "would read the source for each of them. Begin with an operator that hands its rows on, and let both read "
            "that; or run two queries"
        )
    names = [stage.name for stage in stages]
    for stage in stages:
        if names.count(stage.name) > 1:
            raise DefinitionError(f"operator name {stage.name!r} is used twice in this query; give name=... to one")
        if stage.changelog is not None and any(
            stage.changelog == other.changelog for other in stages if other is not stage
        ):
            raise DefinitionError(f"changelog={stage.changelog!r} is that of two operators of this query")
    placed: dict[Stage, Stage] = {}

    def place(stage: Stage, before: Source | Stage) -> Stage:
        """Put a stage and those behind it after another one. Returns the last of them."""
        reads = stage.reads
        if reads is None and isinstance(stage.upstream, Stage) and placed[stage.upstream] is not before:
            reads = stage.upstream.name, None
        is_there = stage.upstream is before and reads == stage.reads
        last = placed[stage] = stage if is_there else attrs.evolve(stage, upstream=before, reads=reads)
        following = [other for other in stages if other.upstream is stage]
        for other in sorted(following, key=lambda other: (other.reads is not None, other.name)):
            last = place(other, last)
        return last

    last = place(first, first.source)
    outputs = tuple(
        attrs.evolve(each, output=attrs.evolve(each.output, stage=placed[each.output.stage])) for each in outputs
    )
    check_distinct(bound.sink for bound in outputs)
    initial = next((stage.name for stage in last.chain if stage.initial_state is not None), None)
    restored = next((stage.name for stage in last.chain if stage.restore_from is not None), None)
    if initial is not None and restored is not None:
        raise DefinitionError(
            f"operator {initial!r} has initial_state and operator {restored!r} restore_from, and a query starts with "
            "one of them; give initial_state to a query of its own first"
        )
    return last, outputs


def _with_changelogs(
    last: Stage, outputs: tuple[BoundOutput, ...], options: Options
) -> tuple[Stage, tuple[BoundOutput, ...]]:
    """Return the chain and its outputs with a changelog for each operator, if the query keeps tables."""
    if options.tables is None:
        return last, outputs
    from keyed.changelog.directory import DirectoryChangelog

    folder = Path(folder_path(options.tables, "tables"))
    stages: dict[Stage, Stage] = {}
    upstream: Source | Stage = last.source
    for stage in last.chain:
        changelog = stage.changelog
        if changelog is None:
            changelog = DirectoryChangelog(folder / stage.name / "changelog", group_access=options.group_access)
        if stage.restore_from is not None and stage.restore_from.changelog == changelog:
            raise DefinitionError(
                f"tables={str(folder)!r} holds the changelog that operator {stage.name!r} is restored from, and a "
                "restored query starts one of its own: give changelog= another place, or tables= another folder"
            )
        upstream = stages[stage] = attrs.evolve(stage, upstream=upstream, changelog=changelog)
    bound = (attrs.evolve(each, output=attrs.evolve(each.output, stage=stages[each.output.stage])) for each in outputs)
    return stages[last], tuple(bound)


def _runtime(source: Source) -> Any:
    """Return the module that runs chains over this kind of source; imported by name so that the API stays light."""
    spark = is_dataframe(source.data)
    return importlib.import_module("keyed.runtimes.spark.query.spark_query" if spark else "keyed.runtimes.local")


def _columns(data: Any) -> dict[str, str | None] | None:
    """Return the types of a source's columns by name, ``None`` where they are not known before it is read."""
    if is_dataframe(data):
        return {field.name: of_spark(field.dataType) for field in data.schema.fields}
    if type(data).__module__.startswith("pyarrow") and hasattr(data, "schema"):
        return {field.name: of_arrow(field.type) for field in data.schema}
    return None


def _shown_columns(columns: dict[str, str | None]) -> str:
    return "(" + ", ".join(f"{name} {type_ or '?'}" for name, type_ in columns.items()) + ")"


def _check_connectable(*streams: KeyedStream) -> None:
    """Check that keyed streams can be a side of connected ones.

    Raises:
        DefinitionError: One is the output of an operator, or connected.
    """
    for each in streams:
        if isinstance(each.upstream, Stage):
            raise DefinitionError(
                f"connect reads sources, and {each.upstream.name!r} is an operator of a query: write its output to "
                "a sink, and connect what keyed.stream(...) reads of that"
            )
        if any(beside.side for beside in each.beside):
            raise DefinitionError("connect takes two streams, and one of these is connected; unite those of a side")


def _check_sides(function: Function, stream: KeyedStream) -> None:
    """Check that a function takes what there is: one stream, two connected ones, or a broadcast one beside it.

    Raises:
        DefinitionError: It takes something else.
    """
    name = type(function).__name__
    if stream.broadcast_states:
        if not isinstance(function, KeyedBroadcastProcessFunction):
            raise DefinitionError(f"{name} is no KeyedBroadcastProcessFunction, which a broadcast stream takes")
        described = {state.name: state for state in stream.broadcast_states}
        for state_name, (attribute, state) in declared_states(function).items():
            if described.get(state_name, state) is not state:
                raise StateDefinitionError(
                    f"{name} declares state {state_name!r}, as {attribute!r}, and a broadcast state has that name; "
                    "rename one"
                )
    elif isinstance(function, KeyedBroadcastProcessFunction):
        raise DefinitionError(f"{name} takes a broadcast stream: give it a.key_by(...).connect(b.broadcast(...))")
    elif any(each.side for each in stream.beside) != takes_two(function):
        raise DefinitionError(
            f"{name} takes two streams: give it a.connect(b).key_by(...)"
            if takes_two(function)
            else f"{name} is no KeyedCoProcessFunction (or VectorizedCoFunction), which two connected streams take"
        )


def _check_together(sources: Sequence[Source]) -> None:
    """Check that one query can read these sources, and has one event time of them.

    Raises:
        DefinitionError: They are on different runtimes, some are streams and some are not, or some have timestamps.
    """
    _check_runtime(sources)
    _check_times(sources)


def _check_runtime(sources: Sequence[Source]) -> None:
    if len({is_dataframe(source.data) for source in sources}) > 1:
        raise DefinitionError(
            "a Spark DataFrame and a source of the local runtime cannot be in one query; make a DataFrame of both: "
            "spark.createDataFrame(...)"
        )
    if is_dataframe(sources[0].data) and len({source.data.isStreaming for source in sources}) > 1:
        raise DefinitionError(
            "a streaming and a batch DataFrame cannot be united in Spark; read both as streams (spark.readStream), or "
            "both as batches"
        )


def _check_times(sources: Sequence[Source]) -> None:
    if any(source.ingests for source in sources):
        raise DefinitionError(
            "timestamp=INGESTION_TIME is for a single stream: the batch's time is the same for all of them; give "
            "keyed.stream(..., timestamp=...) a column, or leave it out and use processing time"
        )
    if len({source.timestamp is None for source in sources}) > 1:
        raise DefinitionError(
            "one of the streams has timestamps and another one has not, so that there is no common event time; give "
            "keyed.stream(..., timestamp=...) for all of them or for none"
        )


def _parts(keys: Keys) -> tuple[str | Callable[[Any], Any], ...]:
    return (keys,) if callable(keys) else keys


def _shown_inputs(upstream: Source | Stage, keys: Keys, beside: tuple[Input, ...]) -> str:
    first = f"{upstream!r} → {_shown_keys(keys)}"
    sides = [" ∪ ".join([first, *(repr(each) for each in beside if not each.side)])]
    if any(each.side for each in beside):
        sides.append(" ∪ ".join(repr(each) for each in beside if each.side))
    return sides[0] if not beside else " & ".join(f"({side})" for side in sides)


def _shown_keys(keys: Keys) -> str:
    return f"key_by({named(keys) if callable(keys) else ', '.join(map(repr, keys))})"


def _keys(keys: tuple[str | Callable[[Any], Any], ...]) -> Keys:
    if len(keys) == 1 and callable(keys[0]):
        return keys[0]
    names = tuple(key for key in keys if isinstance(key, str))
    if not keys or len(names) != len(keys):
        raise DefinitionError(f"key_by{keys!r}: give one or more column names, or one function")
    if len(set(names)) != len(names):
        raise DefinitionError(f"key_by{keys!r} names a column twice")
    return names
