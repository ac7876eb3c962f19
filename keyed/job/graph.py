"""The graph of a query as a description: sources, inputs of operators, steps without keys, operators, their outputs.

`keyed.job.streams` builds it, and the runtimes execute it. All nodes are frozen, and refer to their inputs.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeGuard

import attrs

from keyed.base.arguments import Shown, named
from keyed.base.schemas import Schema, of_arrow, of_spark, schema_of
from keyed.base.sources import IngestionTime
from keyed.changelog.model import Changelog
from keyed.destinations.sink import Sink, check_distinct
from keyed.errors import DefinitionError
from keyed.job.context import OutputTag
from keyed.job.functions import Function, OperatorSpec, Order, Relay, RowRelay, Store, inferred_result
from keyed.job.global_tables import GlobalTable
from keyed.job.restoring import RestorePoint
from keyed.job.state import MapState
from keyed.job.watermarks import WatermarkStrategy

Kind = Literal["map", "filter", "flat_map", "map_batches"]


@attrs.frozen(eq=False)
class Kept:
    """The result of a function of ``map_batches`` that leaves out bad rows, which ``rows_bad`` counts.

    Such a function may have a method ``of_values``: it is called with a list of elements that are in no table, and
    their timestamps, in place of the function.

    Attributes:
        table: The result.
        bad: Number of rows that it lacks.
        reason: The reason of the first of them.
    """

    table: Any
    bad: int = 0
    reason: str = ""


@attrs.frozen(eq=False, repr=False)
class Transform:
    """A function between a stream and the operator or sink that reads it.

    Attributes:
        kind: The method that added it.
        function: The function of an element; for ``map_batches`` of a table.
        schema: The columns of its results, ``None`` if they are not declared.
    """

    kind: Kind
    function: Callable[[Any], Any]
    schema: Schema | None = None

    def __repr__(self) -> str:
        return f"{self.kind}({named(self.function)})"

    @property
    def keeps_columns(self) -> bool:
        """True if its results have the columns of its input."""
        return self.kind == "filter" or (self.kind == "map_batches" and self.schema is None)


def transform_of(kind: Kind, function: Any, output: Any = None) -> Transform:
    """Return the transformation with a user's function.

    Raises:
        DefinitionError: The function cannot be one of its kind.
        OutputDefinitionError: ``output`` is not a type of rows.
    """
    if not callable(function):
        raise DefinitionError(f"{kind}({function!r}): give a function of {_argument(kind)}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{kind}({named(function)}): the function is asynchronous, and it is called directly")
    if kind != "flat_map" and inspect.isgeneratorfunction(function):
        remedy = "use flat_map" if kind in ("map", "filter") else "return one table"
        raise DefinitionError(f"{kind}({named(function)}): the function is a generator; {remedy}")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise DefinitionError(
            f"{kind}({named(function)}): it cannot be called with {_argument(kind)} ({error})"
        ) from None
    except ValueError:
        pass  # of a builtin without a signature
    schema = None if output is None else schema_of(output)
    if schema is None and kind in ("map", "flat_map"):
        schema = inferred_result(function, many=kind == "flat_map")
    return Transform(kind, function, schema)


def _argument(kind: Kind) -> str:
    return "one pyarrow.Table" if kind == "map_batches" else "one element"


def keeps_tables(steps: Sequence[Transform]) -> bool:
    """Return true if transformations take tables and give tables, so that no row becomes an object."""
    return all(step.kind == "map_batches" for step in steps)


def schema_after(schema: Schema | None, steps: Sequence[Transform]) -> Schema | None:
    """Return the columns after transformations, ``None`` if they are not known."""
    for step in steps:
        schema = schema if step.keeps_columns else step.schema
    return schema


def columns_after(columns: Mapping[str, str | None] | None, steps: Sequence[Transform]) -> dict[str, str | None] | None:
    """Return the types of the columns by name after transformations, ``None`` if they are not known."""
    for step in steps:
        if not step.keeps_columns:
            columns = None if step.schema is None else typing.cast("dict[str, str | None]", dict(step.schema.columns))
    return None if columns is None else dict(columns)


def shown_steps(steps: Sequence[Transform]) -> str:
    """Return transformations for messages: each after an arrow."""
    return "".join(f" → {step!r}" for step in steps)


Keys = tuple[str, ...] | Callable[[Any], Any]


@attrs.frozen(eq=False)
class Source:
    """A source of rows. See `stream` for the fields."""

    data: Any
    timestamp: str | Callable[[Any], Any] | IngestionTime | None
    watermark: WatermarkStrategy
    ticks: bool
    on_bad_row: OutputTag | None
    max_ahead_ms: int | None
    watermark_given: bool
    #: True once a run has read it to its end. An iterator then has nothing left for another run.
    ended: list[bool] = attrs.field(factory=list, init=False, repr=False)

    def __repr__(self) -> str:
        time = f", timestamp={named(self.timestamp)}" if self.timestamp is not None else ""
        return f"{type(self.data).__name__}{time}"

    @property
    def ingests(self) -> bool:
        """True if each row has the time of its batch."""
        return isinstance(self.timestamp, IngestionTime)

    @property
    def time(self) -> str | Callable[[Any], Any] | None:
        """The column or function of timestamps; ``None`` if rows have no timestamp, or the time of their batch."""
        return None if isinstance(self.timestamp, IngestionTime) else self.timestamp


@attrs.frozen(eq=False)
class Port(Shown):
    """The main output of an operator, or one of its side outputs (``tag``).

    Attributes:
        stage: The operator.
        tag: The tag of a side output.
        steps: Transformations of its rows.
    """

    stage: Stage
    tag: OutputTag | None
    steps: tuple[Transform, ...] = ()

    def __repr__(self) -> str:
        columns = f": {self.schema.ddl}" if self.schema is not None else ""
        return f"Output({self.stage!r}{shown_tag(self.tag)}{shown_steps(self.steps)}{columns})"

    @property
    def address(self) -> tuple[str, str | None]:
        """The names of its operator and of its tag, which are unique in a query."""
        return self.stage.name, None if self.tag is None else self.tag.name

    @property
    def schema(self) -> Schema | None:
        """The declared columns; ``None`` if none are declared."""
        return schema_after(self.stage.output if self.tag is None else self.tag.schema, self.steps)


@attrs.frozen(eq=False)
class Input:
    """A stream, and how an operator reads it.

    Attributes:
        origin: The source or the output.
        keys: Its keys; none before it is keyed.
        side: 0 for `KeyedProcessFunction.process_element` and the first side of connected streams, 1 for the second.
        is_broadcast: Every key group gets its elements, which have no key.
        chains: The operator may run in the tasks of the one before it (`keyed.job.chaining`).
        steps: Transformations of the rows before they are keyed.
        holds: The watermark waits for it.
    """

    origin: Source | Port
    keys: Keys
    side: int = 0
    is_broadcast: bool = False
    chains: bool = True
    steps: tuple[Transform, ...] = ()
    holds: bool = True

    def __repr__(self) -> str:
        origin = self.origin
        shown = repr(origin) if isinstance(origin, Source) else f"{origin.stage!r}{shown_tag(origin.tag)}"
        shown += shown_steps(self.steps)
        reading = "broadcast" if self.is_broadcast else shown_keys(self.keys) if self.keys else ""
        return f"{shown} → {reading}" if reading else shown

    def with_step(self, step: Transform) -> Input:
        """Return it with a further transformation of its rows."""
        return attrs.evolve(self, steps=(*self.steps, step))

    @property
    def source(self) -> Source:
        """Its source; the first one if there are several."""
        return self.origin if isinstance(self.origin, Source) else self.origin.stage.source

    @property
    def event_time(self) -> bool:
        """True if rows have timestamps."""
        return self.source.timestamp is not None

    @property
    def counts(self) -> bool:
        """True if the watermark depends on it; on a broadcast stream without timestamps it does not."""
        return self.holds and (self.event_time or not self.is_broadcast)

    @property
    def before_steps(self) -> Schema | None:
        """The declared columns of an output before its transformations."""
        return self.origin.schema if isinstance(self.origin, Port) else None

    @property
    def columns(self) -> dict[str, str | None] | None:
        """Types of its columns by name, ``None`` if they are not known before it is read."""
        columns: Mapping[str, str | None] | None = None
        if isinstance(self.origin, Port):
            columns = None if self.origin.schema is None else dict(self.origin.schema.columns)
        elif is_dataframe(data := self.origin.data):
            columns = {field.name: of_spark(field.dataType) for field in data.schema.fields}
        elif type(data).__module__.startswith("pyarrow") and hasattr(data, "schema"):
            columns = {field.name: of_arrow(field.type) for field in data.schema}
        return columns_after(columns, self.steps)


@attrs.frozen(eq=False)
class Stage:
    """One keyed operator with its inputs.

    Attributes:
        inputs: The streams that it reads, those of the first side first.
        before: The other operators of its query in the order in which they run, if it is the last operator of a query.
        broadcast_states: Descriptors of the broadcast states.
        global_tables: The broadcast states that are global tables: their key columns by name.
    """

    inputs: tuple[Input, ...]
    function: Function
    name: str
    output: Schema | None
    parallelism: int | None
    order: Order
    store: Store
    changelog: Changelog | None = None
    restore_from: RestorePoint | None = None
    initial_state: Any = None
    broadcast_states: tuple[MapState[Any, Any], ...] = ()
    before: tuple[Stage, ...] | None = None
    global_tables: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        return f"{shown_inputs(self.inputs)} → {self.name}"

    @property
    def source(self) -> Source:
        """Its source; the first one if there are several."""
        return self.inputs[0].source

    @property
    def keys(self) -> Keys:
        """The keys of its first input; all inputs have the same number of key columns."""
        return self.inputs[0].keys

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key; none where the stream is keyed by a function."""
        return () if callable(self.keys) else self.keys

    @property
    def event_time(self) -> bool:
        """True if rows have timestamps."""
        return self.source.timestamp is not None

    @property
    def is_relay(self) -> bool:
        """True if it has neither key nor state: it writes a stream as it is."""
        return isinstance(self.function, Relay | RowRelay)

    @property
    def keeps_state(self) -> bool:
        """True if an operator of its query has a key."""
        return not all(stage.is_relay for stage in self.chain)

    @property
    def chain(self) -> list[Stage]:
        """The operators of its query up to this one, in the order in which they run."""
        return in_order([self]) if self.before is None else [*self.before, self]

    @property
    def sources(self) -> list[Source]:
        """The sources of its query, in the order in which they are read."""
        return list(dict.fromkeys(each.origin for stage in self.chain for each in stage.source_inputs.values()))  # type: ignore[misc]

    @property
    def source_inputs(self) -> dict[int, Input]:
        """The inputs that are sources, by their number."""
        return {number: each for number, each in enumerate(self.inputs) if isinstance(each.origin, Source)}

    def readers_of(self, source: Source) -> list[tuple[Stage, int]]:
        """Return the operators of its query that read a source, each with the number of that input."""
        readers = [(stage, stage.source_inputs) for stage in self.chain]
        return [(stage, number) for stage, read in readers for number, each in read.items() if each.origin is source]

    @property
    def ticks(self) -> bool:
        """True if batches run without rows when something is due."""
        return self.keeps_state and all(source.ticks for source in self.sources)

    @property
    def bad_row_outputs(self) -> dict[str, list[int]]:
        """The numbers of the inputs whose bad rows go to a side output of this operator, by its name."""
        outputs: dict[str, list[int]] = {}
        for number, each in self.source_inputs.items():
            if (tag := each.source.on_bad_row) is not None:
                outputs.setdefault(tag.name, []).append(number)
        return outputs

    def reading(self, number: int) -> Stage:
        """Return this operator with only one of its inputs."""
        return attrs.evolve(self, inputs=(self.inputs[number],))

    @property
    def waits_for(self) -> list[str]:
        """The names of the operators whose watermarks determine its own."""
        return [stage.name for stage in producers_of([each for each in self.inputs if each.counts])]

    @property
    def producers(self) -> list[Stage]:
        """The operators whose outputs it reads."""
        return producers_of(self.inputs)

    def spec(self, parallelism: int, *, output_timestamps: bool = True) -> OperatorSpec:
        """Return the operator with its number of key groups."""
        source, read = self.source, self.source_inputs
        strategies = {number: each.source.watermark for number, each in read.items() if each.counts}
        return OperatorSpec(
            name=self.name,
            function=self.function,
            event_time=self.event_time,
            delay_ms=max((strategy.delay_ms for strategy in strategies.values()), default=None),
            ingestion_delay_ms=source.watermark.delay_ms if source.ingests else None,
            strategies=tuple(map(strategies.get, range(len(self.inputs)))),
            order=self.order,
            parallelism=parallelism,
            keys=self.key_columns,
            keys2=next((each.keys for each in self.inputs if each.side and not callable(each.keys)), ()),
            output=self.output,
            output_timestamps=output_timestamps,
            changelog=self.changelog,
            broadcast=self.broadcast_states,
            global_tables=self.global_tables,
        )


@attrs.frozen(eq=False)
class BoundOutput(Shown):
    """An output and its sink."""

    output: Port
    sink: Sink

    def __repr__(self) -> str:
        return f"BoundOutput({self.output!r} to {self.sink!r})"


def is_dataframe(data: Any) -> bool:
    """Return whether ``data`` is a Spark DataFrame (classic or Connect), without importing pyspark."""
    return any(cls.__module__.startswith("pyspark.sql") and cls.__name__ == "DataFrame" for cls in type(data).__mro__)


def linear(outputs: tuple[BoundOutput, ...]) -> Stage:
    """Return the last of the operators that outputs need, with those before it.

    Raises:
        DefinitionError: There is no output, the operators cannot be in one query, or two have the same name.
    """
    if not outputs or not all(isinstance(output, BoundOutput) for output in outputs):
        raise DefinitionError("run and start take outputs with their sinks: run(output.to(sink), ...)")
    stages = in_order([bound.output.stage for bound in outputs])
    last = attrs.evolve(stages[-1], before=tuple(stages[:-1]))
    check_one_query(last.sources)
    names = [stage.name for stage in stages]
    for stage in stages:
        if names.count(stage.name) > 1:
            raise DefinitionError(f"operator name {stage.name!r} is used twice in this query; give name=... to one")
        others = [other.changelog for other in stages if other is not stage]
        if stage.changelog is not None and stage.changelog in others:
            raise DefinitionError(
                f"changelog={stage.changelog!r} is used by two operators of this query; give each its own"
            )
    check_distinct(bound.sink for bound in outputs)
    initial = next((stage.name for stage in stages if stage.initial_state is not None), None)
    restored = next((stage.name for stage in stages if stage.restore_from is not None), None)
    if initial is not None and restored is not None:
        raise DefinitionError(
            f"operator {initial!r} has initial_state and operator {restored!r} has restore_from, and a query starts "
            "with one of them; start a separate query with initial_state first"
        )
    return last


def in_order(stages: Sequence[Stage]) -> list[Stage]:
    """Return operators and their upstream operators in the order in which they run.

    The operators of a query run in sequence in each batch, because Spark would otherwise compute shared inputs once for
    each of them. One that reads several outputs runs after all of them. The order does not depend on the order of the
    arguments: operators that read only sources are ordered by name; of the operators that read the same one, the
    readers of its main output come first, then by name. Those without a key, which nothing reads, come last.
    """
    ordered: dict[Stage, None] = {}

    def find(stage: Stage) -> None:
        if stage not in ordered:
            ordered[stage] = None
            for each in stage.producers:
                find(each)

    for stage in stages:
        find(stage)
    placed: dict[Stage, None] = {}

    def place(stage: Stage) -> None:
        if stage in placed or not all(each in placed for each in stage.producers):
            return
        placed[stage] = None
        readers = [
            (all(tag is not None for tag in tags), other.name, other)
            for other in ordered
            if (tags := [each.origin.tag for each in other.inputs if _is_of(each.origin, stage)])
        ]
        for *_, reader in sorted(readers, key=lambda reader: reader[:2]):
            place(reader)

    for stage in sorted(ordered, key=lambda stage: stage.name):
        place(stage)
    return sorted(placed, key=lambda stage: stage.is_relay)


def _is_of(origin: Source | Port, stage: Stage) -> TypeGuard[Port]:
    return isinstance(origin, Port) and origin.stage is stage


def producers_of(inputs: Sequence[Input]) -> list[Stage]:
    """Return the operators whose outputs are read."""
    return list(dict.fromkeys(each.origin.stage for each in inputs if isinstance(each.origin, Port)))


def check_one_query(sources: Sequence[Source]) -> None:
    """Check that one query can read these sources.

    Raises:
        DefinitionError: They are on different runtimes, or some are streams and some are not.
    """
    # A global table is read by both runtimes.
    sources = [source for source in sources if not isinstance(source.data, GlobalTable)]
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
    if len(set(sources)) > 1 and any(source.ingests for source in sources):
        raise _ingests_alone()


def _ingests_alone() -> DefinitionError:
    return DefinitionError(
        "timestamp=INGESTION_TIME is for a single stream: the batch's time is the same for all of them; give "
        "keyed.stream(..., timestamp=...) a column, or leave it out and use processing time"
    )


def check_together(inputs: Sequence[Input]) -> None:
    """Check that one operator can read these inputs.

    Raises:
        DefinitionError: They cannot be in one query, or only some of them have timestamps.
    """
    sources = [each.source for each in inputs]
    check_one_query(sources)
    if len(inputs) > 1 and any(isinstance(each.origin, Source) and each.origin.ingests for each in inputs):
        raise _ingests_alone()
    if len({source.timestamp is None for source in sources}) > 1:
        raise DefinitionError(
            "one of the streams has timestamps and another has none, so there is no common event time; give "
            "keyed.stream(..., timestamp=...) for all of them or for none"
        )


def shown_inputs(inputs: tuple[Input, ...]) -> str:
    """Return the inputs of an operator for messages."""
    sides = [[repr(each) for each in inputs if each.side == side] for side in (0, 1)]
    shown = [" ∪ ".join(side) for side in sides if side]
    return shown[0] if len(inputs) == 1 else " & ".join(f"({side})" for side in shown)


def shown_tag(tag: OutputTag | None) -> str:
    """Return the name of the output at its operator, for messages."""
    return f", side output {tag.name!r}" if tag is not None else ""


def shown_keys(keys: Keys) -> str:
    """Return keys for messages."""
    return f"key_by({named(keys) if callable(keys) else ', '.join(map(repr, keys))})"
