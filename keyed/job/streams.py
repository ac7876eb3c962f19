"""Streams: the chain of a job, ``stream → key_by → process → outputs``, which builds the nodes of `keyed.job.graph`.

Nothing here runs anything. `Output.run`, `Output.start`, `Output.df` and `run` pass the nodes to the runtime of the
source: Spark for a DataFrame, the local one for everything else.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self, TypeVar, Unpack, cast

import attrs

from keyed.base.arguments import (
    Duration,
    Shown,
    milliseconds_of,
    named,
    names_options,
    shows_options,
    type_of,
    without_credentials,
)
from keyed.base.extras import arrow_table, is_instance
from keyed.base.private_files import folder_path
from keyed.base.schemas import Schema, schema_of
from keyed.base.sources import IngestionTime
from keyed.changelog.model import Changelog
from keyed.changelog.objects.object_changelog import changelog_at
from keyed.destinations.function import CollectSink, SinkLike, nowhere, sink_of
from keyed.errors import DefinitionError, StateDefinitionError
from keyed.job.context import OutputTag, check_descriptors
from keyed.job.explanation import explained
from keyed.job.functions import (
    Function,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    Order,
    Relay,
    RowFunction,
    RowRelay,
    Store,
    VectorizedFunction,
    check_function,
    check_order,
    check_parallelism,
    check_store,
    declared_states,
    inferred_output,
    takes_two,
)
from keyed.job.global_tables import GlobalTable
from keyed.job.graph import (
    BoundOutput,
    Input,
    Keys,
    Kind,
    Port,
    Source,
    Stage,
    check_one_query,
    check_together,
    in_order,
    is_dataframe,
    keeps_tables,
    linear,
    producers_of,
    shown_inputs,
    shown_keys,
    transform_of,
)
from keyed.job.options import Options, RunOptions, StartOptions
from keyed.job.restoring import RestorePoint
from keyed.job.results import Query, RunResult
from keyed.job.state import _NAME, MapState
from keyed.job.watermarks import WatermarkStrategy, strategy_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KeyColumns = str | tuple[str, ...] | list[str] | Callable[[Any], Any]


W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)


class Assigner(Protocol[W_co]):
    """The argument of `KeyedStream.window`: an assigner of `keyed.windows`, or any object with this method."""

    def windowed(self, stream: KeyedStream) -> W_co:
        """Cut ``stream`` into windows."""


class Matcher(Protocol[W_co]):
    """The argument of `KeyedStream.match`: a `keyed.patterns.Pattern`, or any object with this method."""

    def matched(self, stream: KeyedStream) -> W_co:
        """Find the matches in ``stream``."""


class _NoOperation(DefinitionError, AttributeError):
    """An operation that a stream does not have. It is an `AttributeError` too, as ``hasattr`` expects."""


# A traceback names the public class.
_NoOperation.__module__, _NoOperation.__qualname__ = DefinitionError.__module__, DefinitionError.__qualname__


_KEY_FIRST = "key the stream first: {0}.key_by('column').{1}(...)"
_ROWS = "change and filter rows before keyed.stream(...), or in a KeyedProcessFunction: .key_by('column').process(...)"
_PROCESS_FIRST = "an output runs: stream.key_by('column').process(function).{1}(...)"
_VALUES = "the values are those of a run: output.run().values, .to_arrow() or .to_pandas(); on Spark also output.df"
_SINK = "run it with the sink, as in output.run('folder'), or several with keyed.run(output.to('folder'), ...)"
_TIMES = "give them to the source: keyed.stream(source, timestamp='column', watermark=...)"
#: Operations that other objects have and streams lack, with remedies.
_REMEDIES = {
    **dict.fromkeys(("match", "process", "window"), _KEY_FIRST),
    **dict.fromkeys(("select", "reduce", "sum", "count"), _ROWS),
    **dict.fromkeys(
        ("map", "filter", "flat_map", "map_batches"), "it comes before the key: stream.{1}(...).key_by(...)"
    ),
    **dict.fromkeys(("run", "start", "to", "side_output", "df"), _PROCESS_FIRST),
    **dict.fromkeys(("aggregate", "reduce_window"), "cut windows first: {0}.key_by('column').window(...).{1}(...)"),
    **dict.fromkeys(("union", "broadcast"), "it comes before the key: stream.{1}(...)"),
    **dict.fromkeys(("assign_timestamps_and_watermarks", "with_watermark", "withWatermark"), _TIMES),
    **dict.fromkeys(("group_by", "groupby", "groupBy", "keyBy", "keyby"), "the method is key_by('column')"),
}


#: The same for outputs.
_OF_OUTPUTS = {
    **dict.fromkeys(("print", "show", "collect", "values", "to_pandas", "to_arrow", "toPandas", "execute"), _VALUES),
    **dict.fromkeys(("sink_to", "add_sink", "write", "save", "to_parquet"), _SINK),
    **dict.fromkeys(("get_side_output", "getSideOutput"), "the method is side_output(tag)"),
    **dict.fromkeys(
        ("allowed_lateness", "close_when_idle", "element_type", "evictor", "side_output_late_data", "trigger"),
        "it belongs to the windows: call it after window(...), before aggregate, reduce or process",
    ),
}


class _SuggestsOperations(Shown):
    """Suggests remedies for operations that a stream does not have."""

    #: Name of a variable, for messages.
    _variable: ClassVar[str] = "stream"

    def _remedy(self, name: str) -> str:
        """Return the remedy for an operation that the stream lacks, if there is one."""
        if name in _REMEDIES:
            return _REMEDIES[name].format(self._variable, name)
        near = difflib.get_close_matches(name, [each for each in dir(type(self)) if each[0] != "_"], n=1)
        return f"did you mean {near[0]!r}?" if near else ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name.startswith("_"):
                raise AttributeError(what)
            remedy = self._remedy(name)
            raise _NoOperation(what + (remedy and "; ") + remedy)


class Unkeyed(_SuggestsOperations):
    """Base of `Stream` and `Output`: both can be united, connected and keyed."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The sources and outputs that it combines, with their transformations."""
        raise NotImplementedError

    def map(self, function: Callable[[Any], Any], output: Any = None) -> Self:
        """Return a stream of the results of a function of each element, with its timestamp.

        Args:
            function: Returns one row: a tuple, a dictionary, or an object of a class with fields.
            output: Type of the results, by default that of the function's annotation. Spark needs it.

        Raises:
            DefinitionError: It is not a function of one element, or is a generator.
        """
        return self._transformed("map", function, output)

    def flat_map(self, function: Callable[[Any], Any], output: Any = None) -> Self:
        """Return a stream of the rows that a function returns or yields for each element, with its timestamp.

        `None` is no rows; ``output`` as in ``map``: ``-> Iterator[Word]``.

        Raises:
            DefinitionError: It is not a function of one element.
        """
        return self._transformed("flat_map", function, output)

    def filter(self, function: Callable[[Any], bool]) -> Self:
        """Return a stream of the elements for which a function returns true; others still advance the watermark.

        Raises:
            DefinitionError: It is not a function of one element.
        """
        return self._transformed("filter", function)

    def map_batches(self, function: Callable[[Any], Any], output: Any = None) -> Self:
        """Return a stream of the rows of the tables that a function returns for tables of rows.

        Results should not depend on where the input is cut into tables.

        Args:
            function: Takes and returns a ``pyarrow.Table``. Before ``key_by``, with event time, both have the column
                `keyed.vectorized.TIMESTAMP_COLUMN`.
            output: Type of the result, by default that of the input.

        Raises:
            DefinitionError: It is not a function of one table.
        """
        return self._transformed("map_batches", function, output)

    def _transformed(self, kind: Kind, function: Callable[[Any], Any], output: Any = None) -> Self:
        raise NotImplementedError

    def union(self, *others: Stream | Output) -> Stream:
        """Return a stream of the rows of this one and of others with the same columns.

        Each source keeps its timestamps, watermark and bad rows; the union's watermark is the least. Rows of a
        micro-batch run by timestamp, at equal times in the order of the streams.

        Raises:
            DefinitionError: An argument is not a stream or output, or columns differ.
        """
        if not others or not all(isinstance(other, Unkeyed) for other in others):
            raise DefinitionError(f"union{others!r}: give one or more streams of keyed.stream(...), or outputs")
        inputs = tuple(read for each in (self, *others) for read in each.inputs)
        columns = [each.columns for each in inputs]
        for other in columns[1:]:
            if columns[0] is not None and other is not None and columns[0] != other:
                raise DefinitionError(
                    f"union: the streams have different columns, {_shown_columns(columns[0])} and "
                    f"{_shown_columns(other)}; select the same ones, with the same types"
                )
        check_together(inputs)
        return Stream(inputs)

    def connect(self, other: Stream | Output) -> ConnectedStreams:
        """Connect this stream with another one, for a `KeyedCoProcessFunction`.

        Raises:
            DefinitionError: It is not a stream or output, or the two cannot be in one query.
        """
        if isinstance(other, BroadcastStream):
            raise DefinitionError(
                "connect: a broadcast stream is connected with a keyed one: a.key_by(...).connect(b.broadcast(...))"
            )
        if not isinstance(other, Unkeyed):
            raise DefinitionError(f"connect({other!r}): give a stream of keyed.stream(...) or an output, not keyed")
        check_together([*self.inputs, *other.inputs])
        return ConnectedStreams(self, other)

    def broadcast(self, *descriptors: MapState[Any, Any]) -> BroadcastStream:
        """Return this stream for `KeyedStream.connect`: every key group gets all of its elements.

        With timestamps the watermark is the least of both sides', without them it is the keyed side's. ``descriptors``
        are the states that a `KeyedBroadcastProcessFunction` writes: ``keyed.MapState(str, Rule, name="rules")``.

        Raises:
            DefinitionError: There is none, or an argument is not a descriptor.
            StateDefinitionError: One has no name or a time to live, or two have one name.
        """
        check_descriptors(descriptors)
        return BroadcastStream(cast("Stream | Output", self), descriptors)

    def key_by(self, *keys: KeyColumns) -> KeyedStream:
        """Key the rows by columns, or by a list of them; in the local runtime also by a function.

        One stream or output may feed several operators; ``run`` them together, with outputs of all.

        Raises:
            DefinitionError: No key, or a function beside other keys.
        """
        keyed = _keys(keys)
        return KeyedStream(tuple(attrs.evolve(each, keys=keyed) for each in self.inputs))


def _one_key(_: Any) -> int:
    return 0


def _check_name(name: str) -> None:
    """Check the name of an operator.

    Raises:
        DefinitionError: It is not valid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(f"operator name {name!r} must match [A-Za-z0-9_-]{{1,128}}; give name=...")


@attrs.frozen(eq=False)
class Stream(Unkeyed):
    """Rows that are not keyed yet.

    Attributes:
        inputs: Its sources and outputs: the first one, and those united with it.
    """

    inputs: tuple[Input, ...]

    def __repr__(self) -> str:
        return f"Stream({' ∪ '.join(map(repr, self.inputs))})"

    def to(self, sink: SinkLike, *, name: str = "rows") -> BoundOutput:
        """Return this stream with its sink, for `keyed.run` and `keyed.start`: rows are written without key or state.

        On Spark this is a plain write; if another operator reads its source first, that one passes the rows on.

        Args:
            sink: The sink.
            name: Name in metrics and checkpoints, unique in the query.

        Raises:
            DefinitionError: The name or the sink is not valid.
        """
        _check_name(name)
        inputs, columns = self.inputs, self.inputs[0].columns
        is_table = all(
            is_dataframe(each.source.data) or (each.columns is not None and keeps_tables(each.steps)) for each in inputs
        )
        if not is_table:
            inputs = tuple(attrs.evolve(each, keys=_one_key) for each in inputs)
        types = {} if columns is None or None in columns.values() else cast("dict[str, str]", columns)
        schema = Schema(tuple(types.items())) if types else None
        function = Relay() if is_table else RowRelay()
        return Output(Stage(inputs, function, name, schema, None, "arrival", "memory"), None).to(sink)

    def _transformed(self, kind: Kind, function: Callable[[Any], Any], output: Any = None) -> Stream:
        step = transform_of(kind, function, output)
        return Stream(tuple(each.with_step(step) for each in self.inputs))


@attrs.frozen(eq=False)
class ConnectedStreams(_SuggestsOperations):
    """Two streams that one function reads (Flink's ``ConnectedStreams``)."""

    _variable = "first.connect(second)"

    first: Unkeyed
    second: Unkeyed

    def __repr__(self) -> str:
        return f"ConnectedStreams({self.first!r}, {self.second!r})"

    def key_by(self, first: KeyColumns, second: KeyColumns | None = None) -> KeyedStream:
        """Key both streams, the second by default as the first.

        Each by a column, a tuple of columns or, in the local runtime, a function.

        Raises:
            DefinitionError: No key, or the two have different numbers of columns.
        """
        mine, theirs = (_keys((keys,)) for keys in (first, second or first))
        return self.first.key_by(*_parts(mine)).connect(self.second.key_by(*_parts(theirs)))


@attrs.frozen(eq=False)
class BroadcastStream(_SuggestsOperations):
    """A stream of which every key group gets all elements (Flink's ``BroadcastStream``).

    Attributes:
        stream: The stream.
        descriptors: The broadcast states that its elements write.
    """

    stream: Stream | Output
    descriptors: tuple[MapState[Any, Any], ...]

    def __repr__(self) -> str:
        return f"BroadcastStream({self.stream!r}, {', '.join(map(repr, self.descriptors))})"


@attrs.frozen(eq=False)
class KeyedStream(_SuggestsOperations):
    """A stream partitioned by key, or two connected ones.

    Attributes:
        inputs: The streams that it combines.
        broadcast_states: Descriptors of the broadcast states that it is connected with.
        global_tables: Those of them that are global tables, as key columns by name.
    """

    inputs: tuple[Input, ...]
    broadcast_states: tuple[MapState[Any, Any], ...] = ()
    global_tables: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        return f"KeyedStream({shown_inputs(self.inputs)})"

    def connect(self, other: KeyedStream | BroadcastStream | GlobalTable) -> KeyedStream:
        """Connect this keyed stream with another one, or with a table.

        Args:
            other: A keyed stream, for a `KeyedCoProcessFunction`; a broadcast one, for a
                `KeyedBroadcastProcessFunction`; or a ``global_table``, of which there may be several, for a
                `KeyedProcessFunction`.

        Raises:
            DefinitionError: The key columns differ in type or number, or one is connected already.
        """
        if isinstance(other, BroadcastStream):
            return self._with_broadcast(other)
        if isinstance(other, GlobalTable):
            return self._with_table(other)
        if not isinstance(other, KeyedStream):
            raise DefinitionError(
                f"connect({other!r}): key both streams, a.key_by(...).connect(b.key_by(...)), or broadcast the other "
                "one, b.broadcast(keyed.MapState(..., name='rules'))"
            )
        _check_connectable(self, other)
        mine, theirs = self.inputs[0].keys, other.inputs[0].keys
        if callable(mine) != callable(theirs) or len(_parts(mine)) != len(_parts(theirs)):
            raise DefinitionError(
                f"connect: {shown_keys(mine)} and {shown_keys(theirs)} make different keys; give both sides "
                "the same number of columns, in the same order, or both a function"
            )
        inputs = (*self.inputs, *(attrs.evolve(each, side=1) for each in other.inputs))
        check_together(inputs)
        return KeyedStream(inputs)

    def _with_broadcast(self, other: BroadcastStream) -> KeyedStream:
        _check_connectable(self)
        mine, theirs = self.inputs, other.stream.inputs
        check_one_query([each.source for each in (*mine, *theirs)])
        check_together((*mine, *theirs) if any(each.event_time for each in theirs) else mine)
        read = (attrs.evolve(each, side=1, is_broadcast=True) for each in theirs)
        return KeyedStream((*mine, *read), other.descriptors)

    def _with_table(self, table: GlobalTable) -> KeyedStream:
        if not self.global_tables:
            _check_connectable(self)
        check_descriptors((*self.broadcast_states, table.state))
        (read,) = stream(table).inputs
        return KeyedStream(
            (*self.inputs, attrs.evolve(read, side=1, is_broadcast=True)),
            (*self.broadcast_states, table.state),
            {**self.global_tables, table.state.name: table.key},
        )

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The key's columns; none for a function."""
        keys = self.inputs[0].keys
        return () if callable(keys) else keys

    def prepared(self, function: Callable[[Any], Any], output: Any) -> KeyedStream:
        """Apply a function of tables before rows are keyed, as `Stream.map_batches`, for authors of libraries."""
        step = transform_of("map_batches", function, output)
        return attrs.evolve(self, inputs=tuple(each.with_step(step) for each in self.inputs))

    @property
    def columns(self) -> dict[str, str | None] | None:
        """Types of the columns by name, as in `Schema`; `None` if unknown before the stream runs.

        A type is `None` if it is nested, or has no Spark equivalent.
        """
        return self.inputs[0].columns

    @property
    def sides(self) -> tuple[KeyedStream, ...]:
        """The stream itself, or the two that are connected."""
        first, second = (tuple(each for each in self.inputs if each.side == side) for side in (0, 1))
        if not second:
            return (self,)
        return attrs.evolve(self, inputs=first), KeyedStream(tuple(attrs.evolve(each, side=0) for each in second))

    @property
    def watermark_delay_ms(self) -> int:
        """Delay of the watermark behind the highest timestamp, in milliseconds; 0 if other operators set it."""
        sources = [each.origin for each in self.inputs if isinstance(each.origin, Source)]
        return max((source.watermark.delay_ms for source in sources), default=0)

    @property
    def on_spark(self) -> bool:
        """True if the stream starts at a Spark DataFrame."""
        return is_dataframe(self.inputs[0].source.data)

    @names_options
    def process(
        self,
        function: Function,
        output: Any = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        order: Order = "event_time",
        store: Store | None = None,
        changelog: Changelog | str | None = None,
        restore_from: Changelog | RestorePoint | str | None = None,
        initial_state: Any = None,
    ) -> Output:
        """Run ``function`` over the keyed stream.

        Args:
            function: The function; a copy serves each task.
            output: Type of the main output: DDL string, `StructType`, attrs class, dataclass or named tuple. By
                default the annotation of ``process_element`` and ``on_timer``, ``-> Iterator[Count]`` with such a
                class. Spark needs it, the local runtime for Parquet only.
            name: Name of the operator in checkpoints and metrics; by default the class's.
            parallelism: Number of key groups, fixed by the checkpoint; by default ``spark.sql.shuffle.partitions`` on
                Spark and 1 locally.
            order: ``"event_time"`` runs the rows of a batch by timestamp, ``"arrival"`` as they arrive.
                ``"watermark"`` holds each row in state until the watermark has passed it, as Flink's CEP: results of
                deterministic functions then depend neither on batches nor on arrival within the delay. Late rows and
                broadcast elements are not held.
            store: Each worker's copy of the state: ``"memory"``, the default locally; ``"lmdb"``, one copy for the
                workers of a machine, the default on Spark; ``"rocksdb"``; or a function or class of a module that
                opens a `LocalStore` in a folder.
            changelog: Where every committed change of state is exported: a `DirectoryChangelog`, another one, or the
                URL of a prefix in an object store.
            restore_from: The changelog of an earlier query, or a `RestorePoint` in it, with whose state, timers and
                clocks a new query starts.
            initial_state: State from another system for a new query: a Spark, pandas or Arrow table with columns for
                key, ``state``, ``entry`` and ``value``, or such tables by state. A query that resumes from its
                checkpoint ignores both.

        Raises:
            DefinitionError: The function or a parameter breaks a rule; before anything runs.
        """
        check_function(function)
        _check_sides(function, self)
        name = name if name is not None else type(function).__name__
        check_order(order)
        if isinstance(function, RowFunction):
            function = function.for_stream(self, output, order)
        if not self.key_columns and isinstance(function, VectorizedFunction):
            raise DefinitionError(f"{type(function).__name__} is vectorized: key_by needs the names of columns for it")
        _check_name(name)
        if store is None:
            store = "lmdb" if self.on_spark else "memory"
        check_store(store)
        if parallelism is not None:
            check_parallelism(parallelism)
        changelog = changelog_at(changelog)
        if changelog is not None and not isinstance(changelog, Changelog):
            raise DefinitionError(f"changelog={without_credentials(repr(changelog))} is not a changelog")
        if restore_from is not None and not isinstance(restore_from, RestorePoint):
            restore_from = RestorePoint(restore_from)
        if restore_from is not None and restore_from.changelog == changelog:
            raise DefinitionError(
                f"restore_from and changelog are the same, {changelog!r}: a restored query starts a new changelog"
            )
        if restore_from is not None and initial_state is not None:
            raise DefinitionError("restore_from and initial_state are both given, and a query starts with one of them")
        for earlier in in_order(producers_of(self.inputs)):
            if earlier.name == name:
                raise DefinitionError(f"operator name {name!r} is used twice in this query; give name=... to one")
            if changelog is not None and earlier.changelog == changelog:
                raise DefinitionError(f"changelog={changelog!r} is used by another operator of this query")
        for each in self.inputs:
            if (isinstance(each.origin, Output) or each.steps) and each.columns is not None and not callable(each.keys):
                missing = [key for key in each.keys if key not in each.columns]
                if missing:
                    where = f"the result of {each.steps[-1]!r}" if each.steps else ""
                    if isinstance(each.origin, Output):
                        tag = each.origin.tag
                        output_name = "the output" if tag is None else f"side output {tag.name!r}"
                        where = f"{output_name} of {each.origin.stage.name!r}"
                    raise DefinitionError(f"key column {missing[0]!r} is not in {where}: {', '.join(each.columns)}")
        if order == "watermark":
            _check_held(function, self)
        schema = inferred_output(function) if output is None else schema_of(output)
        stage = Stage(
            self.inputs,
            function,
            name,
            schema,
            parallelism,
            order,
            store,
            changelog,
            restore_from,
            initial_state,
            broadcast_states=self.broadcast_states,
            global_tables=self.global_tables,
        )
        return Output(stage, None)

    def window(self, assigner: Assigner[W]) -> W:
        """Cut the stream into windows: ``assigner.windowed(self)`` (see `keyed.windows`)."""
        if isinstance(assigner, type):
            raise DefinitionError(
                f"window({assigner.__name__}): give an object and not the class, such as {assigner.__name__}.of(size)"
            )
        build = getattr(assigner, "windowed", None)
        if build is None:
            raise DefinitionError(
                f"window({assigner!r}): not a window assigner; use one of keyed.windows, such as "
                "TumblingEventTimeWindows.of(timedelta(minutes=5))"
            )
        return cast("W", build(self))

    def match(self, pattern: Matcher[W]) -> W:
        """Find the matches of a pattern: ``pattern.matched(self)`` (see `keyed.patterns`)."""
        matched = getattr(pattern, "matched", None)
        if matched is None or isinstance(pattern, type):
            raise DefinitionError(
                f"match({pattern!r}): give a pattern, such as keyed.patterns.Pattern.begin('small', where=...)"
            )
        return cast("W", matched(self))


@attrs.frozen(eq=False, repr=False)
class Output(Unkeyed, Port):
    """The main output of an operator, or one of its side outputs (``tag``)."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The output itself, as the only input."""
        return (Input(attrs.evolve(self, steps=()) if self.steps else self, (), steps=self.steps),)

    def _transformed(self, kind: Kind, function: Callable[[Any], Any], output: Any = None) -> Output:
        return attrs.evolve(self, steps=(*self.steps, transform_of(kind, function, output)))

    @property
    def operators(self) -> dict[str, Function]:
        """The functions from the source to this output, by the name of their operator."""
        return {stage.name: stage.function for stage in self.stage.chain}

    def side_output(self, tag: OutputTag | str) -> Output:
        """Return a side output of the same operator.

        Raises:
            DefinitionError: It is not among the operator's ``known_side_outputs``.
        """
        tag = tag if isinstance(tag, OutputTag) else OutputTag(tag)
        known = self.stage.function.known_side_outputs
        if known is not None and tag.name not in {*known, *self.stage.bad_row_outputs}:
            raise DefinitionError(
                f"operator {self.stage.name!r} has no side output {tag.name!r}; it has "
                + (", ".join(map(repr, sorted(known))) or "none: late rows go to one with side_output_late_data(tag)")
            )
        return Output(self.stage, tag)

    def key_by(self, *keys: KeyColumns, chain: bool = True) -> KeyedStream:
        """Key the rows, as `Stream.key_by`.

        With ``chain``, the next operator runs in the tasks of this one, without a shuffle, if its keys are this one's.
        `Output.explain` shows where it does.

        Raises:
            DefinitionError: No key, a function beside other keys, or ``chain`` is not a bool.
        """
        if not isinstance(chain, bool):
            raise DefinitionError(f"key_by: chain={chain!r} must be True or False")
        return KeyedStream((attrs.evolve(self.inputs[0], keys=_keys(keys), chains=chain),))

    def to(self, sink: SinkLike) -> BoundOutput:
        """Return this output with its sink, for `keyed.run` and `keyed.start`."""
        return BoundOutput(self, sink_of(sink))

    def explain(self, *others: Output) -> None:
        """Print how the query would run, also with other outputs; nothing runs.

        It prints sources, watermarks, shuffles and chains, paths, key groups, stores, changelogs and tables.

        Raises:
            DefinitionError: One is not an output, or they cannot be in one query.
        """
        if not all(isinstance(other, Output) for other in others):
            raise DefinitionError("explain takes outputs of operators: output.explain(other, ...)")
        print(explained(linear(tuple(each.to(CollectSink()) for each in (self, *others)))))  # noqa: T201

    @property
    def df(self) -> DataFrame:
        """This output as a Spark DataFrame.

        Raises:
            DefinitionError: The source is not a Spark DataFrame.
        """
        frame: DataFrame = _runtime(self.stage.source).dataframe(self)
        return frame

    @shows_options(RunOptions, group_access=False)
    def run(self, sink: SinkLike | None = None, **options: Unpack[RunOptions]) -> RunResult:
        """Run a query with this output alone, as ``run``; without a sink its values are collected."""
        return run(self.to(CollectSink() if sink is None else sink), **options)

    @shows_options(StartOptions, group_access=False)
    def start(self, sink: SinkLike | None = None, **options: Unpack[StartOptions]) -> Query:
        """Start a query with this output alone, as ``start``; with ``tables=`` the sink is optional."""
        if sink is None and options.get("tables") is None:
            raise DefinitionError("start: give a sink for the output, or tables= to ask for the state alone")
        return start(self.to(nowhere if sink is None else sink), **options)

    def _remedy(self, name: str) -> str:
        # Never a look at the DataFrame: building the plan may create the topic of a changelog.
        return _OF_OUTPUTS.get(name, f"the DataFrame of an output on Spark is .df: output.df.{name}")


@names_options
def stream(
    source: Any,
    *,
    timestamp: str | Callable[[Any], Any] | IngestionTime | None = None,
    watermark: WatermarkStrategy | timedelta | None = None,
    ticks: bool = True,
    on_bad_row: OutputTag | None = None,
    max_ahead: Duration | None = timedelta(days=365),
) -> Stream:
    """Return a stream of rows.

    Args:
        source: A streaming or batch Spark DataFrame; for the local runtime an iterable or generator of elements, a
            pandas or polars DataFrame, an Arrow table, or a ``pyarrow.RecordBatchReader``, which is read as batches
            need rows and may exceed memory.
        timestamp: Column with the event time: a timestamp, or integer milliseconds since the epoch. In the local
            runtime also a function of the element. `INGESTION_TIME` is the time of the batch. Without it the stream
            has no event time.
        watermark: The strategy, or the delay of ``bounded_out_of_orderness`` as a `timedelta`. By default rows are
            expected in order, and a warning is logged once if windows drop others.
        ticks: Run a batch when something is due without rows: processing-time timers, changelogs, the end of the input
            (Spark, streaming).
        on_bad_row: Side output of the first operator for bad rows, which otherwise fail the query. A row is bad if its
            key is null or cannot be encoded, its timestamp is missing or too far ahead, or it has text that is not
            UTF-8 or a time that Python cannot represent; in the local runtime also without these fields, with a key of
            another type than the others, or with a cycle.
        max_ahead: How far a timestamp may be ahead of the processing time of its batch; `None` for any distance. No
            limit applies with ``processing_time=``, and in the harness.

    Raises:
        DefinitionError: A watermark without a timestamp, or a parameter of the wrong type.
    """
    watermark = strategy_of(watermark)
    if watermark is not None and timestamp is None:
        raise DefinitionError("watermark is given but timestamp is not: name the event-time column")
    if not (timestamp is None or isinstance(timestamp, str | IngestionTime) or callable(timestamp)):
        raise DefinitionError(
            f"timestamp={timestamp!r} must be a column name, keyed.INGESTION_TIME or, in the local runtime, a function"
        )
    if not isinstance(ticks, bool):
        raise DefinitionError(f"ticks={ticks!r} must be True or False")
    if on_bad_row is not None and not isinstance(on_bad_row, OutputTag):
        raise DefinitionError(f"on_bad_row={on_bad_row!r} must be an OutputTag")
    # No sum with a processing time leaves int64.
    max_ahead_ms = None if max_ahead is None else min(milliseconds_of(max_ahead, "max_ahead"), 2**62)
    strategy = WatermarkStrategy(0) if watermark is None else watermark
    data = _as_arrow(source)
    read = Source(data, timestamp, strategy, ticks, on_bad_row, max_ahead_ms, watermark_given=watermark is not None)
    return Stream((Input(read, ()),))


@shows_options(RunOptions, group_access=False)
def run(*outputs: BoundOutput, **options: Unpack[RunOptions]) -> RunResult:
    """Run all available input through one query that writes ``outputs``, and return when it is done.

    Args:
        outputs: Outputs of one query, each with its sink (`Output.to`).
        checkpoint: Folder for state and positions that survive the run; on Spark a streaming source needs it.
        drain: Move the watermark to +inf at the end, so that every timer fires. The default in the local runtime
            without a checkpoint, and for a batch DataFrame. `False` leaves timers after the last row pending.
        on_progress: Called with a `Progress` after each batch. On Spark the thread that waits in ``run`` or
            `Query.await_termination`, or reads `Query.progress`, calls it; batches before Spark's last 100 are
            skipped.
        on_restore: Called with a `RestoreProgress` while state is restored from a changelog.
        local_dir: Folder of local stores on disk.
        group_access: Let the group read the checkpoint, if its folder is created; by default only the user can.
        tables: Folder, of this query alone, for state tables of its operators: `RunResult.tables`, `Query.tables`,
            `keyed.tables.read_tables` and the command `keyed` read them. An operator without a changelog gets one in
            there.
        record: Folder for the rows of each batch, for `keyed.testing.Recording` and ``keyed replay``. The first
            operator needs a changelog; on Spark all executors have to reach the folder.
        metrics: Export of metrics while it runs: a `keyed.metrics.Prometheus` or a `keyed.metrics.OpenTelemetry`.
        query_name: Name of the query in Spark's progress; on Spark only.
        rows_per_batch: Rows of a micro-batch, 100,000 by default; in the local runtime only.
        processing_time: The clock, in milliseconds, by default the machine's; in the local runtime only.

    Raises:
        DefinitionError: No outputs, outputs of different chains, or an option that the runtime does not have.
        KeyedError: The query failed.
    """
    settings = Options(**options)
    last = _with_changelogs(linear(outputs), settings)
    result: RunResult = _runtime(last.source).run(last, outputs, settings)
    return result


@shows_options(StartOptions, group_access=False)
def start(*outputs: BoundOutput, **options: Unpack[StartOptions]) -> Query:
    """Start one query that writes ``outputs`` and return a handle to it.

    Options and errors are those of ``run``, with ``drain`` in the local runtime only.

    Args:
        outputs: As of ``run``.
        trigger: ``"5 seconds"`` or a dict of the arguments of Spark's trigger, one second by default; on Spark only.
    """
    settings = Options(**options)
    last = _with_changelogs(linear(outputs), settings)
    query: Query = _runtime(last.source).start(last, outputs, settings)
    return query


def _with_changelogs(last: Stage, options: Options) -> Stage:
    """Return the last operator of a query with a changelog for each of them, if it keeps tables."""
    if options.tables is None:
        return last
    from keyed.changelog.directory import DirectoryChangelog

    folder = Path(folder_path(options.tables, "tables"))
    stages: list[Stage] = []
    for stage in last.chain:
        changelog = stage.changelog
        if changelog is None and not stage.is_relay:
            changelog = DirectoryChangelog(folder / stage.name / "changelog", group_access=options.group_access)
        if stage.restore_from is not None and stage.restore_from.changelog == changelog:
            raise DefinitionError(
                f"tables={str(folder)!r} holds the changelog that operator {stage.name!r} is restored from, and a "
                "restored query starts a new changelog: give changelog= another place, or tables= another folder"
            )
        stages.append(attrs.evolve(stage, changelog=changelog))
    return attrs.evolve(stages[-1], before=tuple(stages[:-1]))


def _runtime(source: Source) -> Any:
    """Return the module that runs chains over this kind of source; imported by name so that the API stays light."""
    spark = is_dataframe(source.data)
    return importlib.import_module(
        "keyed.runtimes.spark.query.spark_query" if spark else "keyed.runtimes.local.local_query"
    )


#: Functions that read a file, by its suffix, for messages.
_READ = {
    ".csv": "pyarrow.csv.read_csv",
    ".json": "pyarrow.json.read_json",
    ".jsonl": "pyarrow.json.read_json",
    ".parquet": "pyarrow.parquet.read_table",
    ".txt": "open",
}


def _as_arrow(source: Any) -> Any:
    """Return a pandas or polars DataFrame as an Arrow table, whose columns are known; return other sources unchanged.

    Raises:
        DefinitionError: It is not a source, or has unsupported columns.
    """
    if isinstance(source, Mapping):
        raise DefinitionError(
            f"source is {type_of(source)}, which iterates its keys; give rows, as a list of dictionaries: "
            "[{'user': 'ann', 'amount': 5}, ...]; or columns, as pyarrow.table({'user': [...], 'amount': [...]}); or "
            "its .values() or .items()"
        )
    is_path = isinstance(source, os.PathLike)
    if source is None or is_path or isinstance(source, str | bytes | int | float | type) or inspect.isroutine(source):
        called = "; call it" if inspect.isroutine(source) else ""
        if (is_path or isinstance(source, str)) and (read := _READ.get(Path(source).suffix.lower())):
            called = f", as from {read}({os.fspath(source)!r})"
        raise DefinitionError(
            f"source of type {type(source).__name__} is not a stream; give a Spark, pandas or Arrow table, a "
            f"pyarrow.RecordBatchReader, or an iterable of elements{called}"
        )
    is_arrow = is_instance(source, "pyarrow", "Table", "RecordBatch", "RecordBatchReader")
    columns = source.schema.names if is_arrow else ()
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise DefinitionError(
            f"the source has the column {twice[0]!r} {columns.count(twice[0])} times, and columns are found by name; "
            "rename one, as with table.rename_columns([...])"
        )
    # A lazy frame is computed when the query runs.
    table = None if is_instance(source, "polars", "LazyFrame") else arrow_table(source)
    return source if table is None else table


def _shown_columns(columns: dict[str, str | None]) -> str:
    return "(" + ", ".join(f"{name} {type_ or '?'}" for name, type_ in columns.items()) + ")"


def _check_connectable(*streams: KeyedStream) -> None:
    """Check that keyed streams can be connected.

    Raises:
        DefinitionError: One is connected.
    """
    if any(each.side for stream in streams for each in stream.inputs):
        raise DefinitionError(
            "connect takes two streams, and one of these is connected already; unite the streams of a side"
        )


def _check_held(function: Function, stream: KeyedStream) -> None:
    """Check that the rows of a stream can wait for its watermark.

    Raises:
        DefinitionError: The stream has no event time, or the function is vectorized.
    """
    if isinstance(function, VectorizedFunction):
        raise DefinitionError(
            f"order='watermark' is for functions over rows, and {type(function).__name__} gets the rows of a batch as "
            "one table, by timestamp: leave order out"
        )
    if not all(each.event_time for each in stream.inputs if not each.is_broadcast):
        raise DefinitionError(
            "order='watermark' runs rows by timestamp, and the stream has no event time: give keyed.stream(..., "
            "timestamp=...)"
        )
    if any(each.source.ingests for each in stream.inputs):
        raise DefinitionError(
            "order='watermark': in ingestion time a row has the time of its batch, so rows are never out of order: "
            "leave order out"
        )


def _check_sides(function: Function, stream: KeyedStream) -> None:
    """Check that a function fits the stream: one stream, two connected ones, or one with a broadcast stream.

    Raises:
        DefinitionError: It does not.
    """
    name = type(function).__name__
    if stream.broadcast_states:
        if stream.global_tables and not isinstance(function, KeyedProcessFunction):
            raise DefinitionError(f"{name} is not a KeyedProcessFunction, which a stream with global tables needs")
        if not (stream.global_tables or isinstance(function, KeyedBroadcastProcessFunction)):
            raise DefinitionError(f"{name} is not a KeyedBroadcastProcessFunction, which a broadcast stream needs")
        described = {state.name: state for state in stream.broadcast_states}
        for state_name, (attribute, state) in declared_states(function).items():
            if described.get(state_name, state) is not state:
                raise StateDefinitionError(
                    f"{name} declares state {state_name!r}, as {attribute!r}, and a broadcast state has that name; "
                    "rename one"
                )
    elif isinstance(function, KeyedBroadcastProcessFunction):
        raise DefinitionError(f"{name} takes a broadcast stream: give it a.key_by(...).connect(b.broadcast(...))")
    elif any(each.side for each in stream.inputs) != takes_two(function):
        raise DefinitionError(
            f"{name} takes two streams: give it a.connect(b).key_by(...)"
            if takes_two(function)
            else f"{name} is not a KeyedCoProcessFunction (or VectorizedCoFunction), which two connected streams need"
        )


def _parts(keys: Keys) -> tuple[str | Callable[[Any], Any], ...]:
    return (keys,) if callable(keys) else keys


def _check_key_function(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of a builtin without one
    try:
        signature.bind(None)
    except TypeError as error:
        raise DefinitionError(
            f"key_by({named(function)}): it cannot be called with an element ({error}); give a function of one "
            "element, such as lambda value: value.name, or one or more column names"
        ) from None


def _keys(columns: tuple[KeyColumns, ...]) -> Keys:
    keys = tuple(columns[0]) if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
    if len(keys) == 1 and callable(keys[0]):
        _check_key_function(keys[0])
        return keys[0]
    names = tuple(key for key in keys if isinstance(key, str))
    if not keys or len(names) != len(keys):
        shown = ", ".join(map(repr, keys))
        raise DefinitionError(f"key_by({shown}): give one or more column names, or one function")
    if len(set(names)) != len(names):
        raise DefinitionError(f"key_by({', '.join(map(repr, keys))}) names a column twice")
    return names
