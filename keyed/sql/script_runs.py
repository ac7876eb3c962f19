"""Runs scripts: `script` checks a text, builds its operators, and runs them over what is given."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import attrs
import pyarrow as pa

import keyed
from keyed.base.arguments import Duration, milliseconds_of, nearest, shown, shows_options, texts
from keyed.errors import DefinitionError
from keyed.expressions.engine import Columns, SqlStep, typed
from keyed.expressions.tokens import Given
from keyed.extending import Schema
from keyed.formats.registry_schemas import RegistrySchemas
from keyed.formats.sql_types import BIGINT, SqlType
from keyed.formats.typed_columns import column, plain
from keyed.job.graph import BoundOutput, Kept, is_dataframe
from keyed.job.options import RunOptions, StartOptions
from keyed.job.state import State
from keyed.sql.bound_streams import bound_stream, check_executors, is_bound, session_of
from keyed.sql.catalog import CHANGE, PLACE, STREAM, SqlSource
from keyed.sql.definitions import Answer, Definitions, WrittenQuery
from keyed.sql.join_operators import NO_KEY, join_of
from keyed.sql.kafka_deployment import Deployment, Kafka, last_changes
from keyed.sql.match_recognize import MatchPlan
from keyed.sql.name_scope import BOUNDS, free_name
from keyed.sql.planner import JOIN, FunctionCall, Relation
from keyed.sql.script_inputs import GONE, LATEST, SOURCE, TIME, UNREADABLE, ScriptInput, Skipped, skip
from keyed.sql.script_source import ScriptRows
from keyed.sql.sql_operators import DELETED, MOMENT, TableRows, Totals, schema_of, stream_schema
from keyed.sql.statements import parse
from keyed.sql.top_rows import TopRows
from keyed.vectorized import TIMESTAMP_COLUMN
from keyed.windows.vectorized.row_groups import pc

FAILS = "an expression fails"
NO_GROUP = "a part of the group is null"
NO_JOIN_KEY = "the key of the join is null"
#: Rows that Spark's workers have skipped, for any reason.
BAD = "bad rows"
#: The number of the format in which queries keep state: a checkpoint with another one is refused.
FORMAT = "1"
#: Values that stand in for null in keys, by the bases of their types; of others it is 0.
_NEUTRAL = {"STRING": "", "BYTES": b"", "BOOLEAN": False}
_DEFAULTS: dict[str, Any] = {"rows_per_batch": 10_000, "max_ahead": dt.timedelta(days=365)}


@attrs.frozen
class OutputRecord:
    """A record of a stream or table.

    Attributes:
        key: Its key: the value of one column, a dictionary of several, ``None`` without a key.
        value: Its value, ``None`` for a tombstone.
        timestamp: Milliseconds since 1970.
        window: Start and end of its window, ``None`` without one.
    """

    key: Any
    value: Any
    timestamp: int
    window: tuple[int, int] | None = None


#: Called with the name of an output, its records of a batch, and the id of the batch.
OnRecords = Callable[[str, list[OutputRecord], int], object]


@attrs.frozen(eq=False)
class ScriptResult:
    """The outputs of a script.

    Attributes:
        records: The records of each stream and table that a query wrote, by its name.
        run: The result of `keyed.run`.
        skipped: Records that this run has skipped, by the name of the stream or table and the reason.
        missing: Columns that no row of a file has, by the name of the stream or table, with the number of its rows.
        answers: The answers to ``SHOW``, ``DESCRIBE`` and ``EXPLAIN``, in the order of the statements.
    """

    records: Mapping[str, list[OutputRecord]]
    run: keyed.RunResult | None
    skipped: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)
    missing: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)
    answers: Sequence[Answer] = ()

    def __getitem__(self, name: str) -> list[OutputRecord]:
        """Return the records of a stream or table, whose name is in any case.

        Raises:
            KeyError: No query wrote it.
        """
        for each, records in self.records.items():
            if each.lower() == name.lower():
                return records
        raise KeyError(f"no query writes {name}{nearest(name, self.records)}")

    def table(self, name: str) -> dict[Any, Any]:
        """Return the rows of a table at the end, by key; in a windowed table by key and window.

        Raises:
            KeyError: No query wrote it.
        """
        rows: dict[Any, Any] = {}
        for record in self[name]:
            key = record.key
            if isinstance(key, dict):
                key = tuple((part, _one_nan(value)) for part, value in key.items())
            key = _one_nan(key)
            place = key if record.window is None else (key, record.window)
            if record.value is None:
                rows.pop(place, None)
            else:
                rows[place] = record.value
        return rows


def _one_nan(key: Any) -> Any:
    """Return the one NaN for any, which are different keys of a dictionary."""
    return math.nan if isinstance(key, float) and math.isnan(key) else key


def _picked(number: int, names: Sequence[str]) -> Callable[[pa.Table], pa.Table]:
    """Return the function that takes the rows of one source, and its columns, out of the merged rows."""

    def pick(table: pa.Table) -> pa.Table:
        own = pc.equal(table.column(SOURCE), number)
        if not pc.all(own).as_py():
            table = table.filter(own)
        columns = [table.column(name if name in (STREAM, PLACE) else f"{number}.{name}") for name in names]
        return pa.table([*columns, table.column(TIMESTAMP_COLUMN)], names=[*names, TIMESTAMP_COLUMN])

    return pick


def versions(table: pa.Table) -> pa.Table:
    """Return the rows of a declared table as changes: each replaces the row before it, or removes it."""
    change = pc.if_else(table.column(GONE), pa.scalar(-1, pa.int8()), pa.scalar(1, pa.int8()))
    return table.drop_columns([GONE]).append_column(CHANGE, change)


def with_own_time(table: pa.Table) -> pa.Table:
    """Return joined rows of streams, each of which is as old as its stream."""
    return table.append_column(STREAM, table.column(TIMESTAMP_COLUMN))


def with_last_place(table: pa.Table) -> pa.Table:
    """Return rows of an operator, which come after all others of their time."""
    return table.append_column(PLACE, pa.repeat(2**63 - 1, table.num_rows))


def streams_of(rows: Any, inputs: Mapping[str, ScriptInput], *, has_places: bool) -> dict[str, keyed.Stream]:
    """Return the streams of the merged rows of inputs, by name, with the order of their rows if that is asked for."""
    if not inputs:
        return {}
    # The inputs are one stream, which is silent if all are. Tables hold nothing back.
    idle = [each.source.topic_options.idle_ms for each in inputs.values() if not each.source.is_table]
    idle_ms = max((each for each in idle if each is not None), default=None) if None not in idle else None
    watermark = attrs.evolve(keyed.bounded_out_of_orderness(0), idleness_ms=idle_ms)
    base = keyed.stream(rows, timestamp=TIME, max_ahead=None, watermark=watermark)
    streams = {}
    for number, (name, each) in enumerate(inputs.items()):
        schema = stream_schema(each.source, has_places=has_places)
        streams[name] = base.map_batches(_picked(number, schema.names), output=schema)
    return streams


@attrs.frozen(eq=False)
class Stepped:
    """Runs a step over batches; rows in which it fails, or that have no group, are skipped and counted.

    Attributes:
        step: The step.
        query: The query, for the count.
        skipped: The counts.
        groups: Columns that may not be null.
        is_output: Its rows are records, which have their times, and those that are left out are counted; otherwise
            another query reads them.
        key: The type of the key of a join.
        side: The number of the side of the join, which rows without a key have in `NO_KEY`.
    """

    step: SqlStep
    query: str
    skipped: Skipped
    groups: tuple[str, ...] = ()
    is_output: bool = True
    key: SqlType | None = None
    side: int = 0

    def __call__(self, table: pa.Table) -> Kept:
        """Return the rows after the step."""
        rows, reasons = self.step.run(table)
        if not self.is_output:
            return Kept(rows)
        bad, reason = len(reasons), reasons[0][1] if reasons else ""
        skip(self.skipped, self.query, FAILS, bad, reason)
        for name in self.groups:
            if nulls := rows.column(name).null_count:
                what, why = ("the key", NO_JOIN_KEY) if name == JOIN else (name, NO_GROUP)
                bad, reason = bad + nulls, reason or why
                skip(self.skipped, self.query, why, nulls, f"{what} is null")
                rows = rows.filter(rows.column(name).is_valid())
        if self.key is not None:
            rows = self._with_side(rows, self.key)
        elif not self.groups:
            rows = rows.append_column(MOMENT, rows.column(TIMESTAMP_COLUMN))
        return Kept(rows, bad, reason)

    def _with_side(self, table: pa.Table, type_: SqlType) -> pa.Table:
        """Return rows of a join with a column that keeps those without a key, which an outer join emits, apart."""
        key = table.column(JOIN)
        no_key = pc.if_else(key.is_null(), pa.scalar(self.side, pa.int64()), pa.scalar(0, pa.int64()))
        if key.null_count:
            ((neutral,), _) = column([_NEUTRAL.get(type_.base, 0)], type_)
            table = table.set_column(0, JOIN, pc.fill_null(key, neutral))
        return table.append_column(NO_KEY, no_key)


@attrs.frozen(eq=False)
class Records:
    """The records of a query.

    Attributes:
        stream: They, as the output of an operator, or as a stream that is written as it is.
        name: The name of the query's operator.
    """

    stream: Any
    name: str

    def to(self, sink: Any, step: Any, output: Any) -> BoundOutput:
        """Return them with their sink, and a function of their tables before it with the columns of its result."""
        is_output = isinstance(self.stream, keyed.Output) and not self.stream.steps
        stream = self.stream.map_batches(step, output=output)
        return stream.to(sink) if is_output else keyed.Stream(stream.inputs).to(sink, name=self.name)


class Builder:
    """Builds the outputs of a script.

    Args:
        definitions: The definitions.
        streams: The streams of what is given for streams and tables by name, as tables of the declared columns, and of
            `GONE` for a table or `STREAM` for a stream.
        skipped: Counts rows that are skipped.
        has_places: The streams have `PLACE`.
    """

    def __init__(
        self, definitions: Definitions, streams: Mapping[str, keyed.Stream], skipped: Skipped, *, has_places: bool
    ) -> None:
        self._definitions = definitions
        self._has_places = has_places
        self._version_columns = [CHANGE, *([STREAM, PLACE] if has_places else [])]
        self._skipped = skipped
        self._streams = streams
        self._outputs: dict[str, Any] = {}
        self._sources: dict[str, Any] = {}
        #: The records of queries without a key, which are not what other queries read of them.
        self._records: dict[str, Records] = {}
        self._names: set[str] = set()

    def _name(self, what: str) -> str:
        name = free_name(what.lower(), self._names, first=2)
        self._names.add(name)
        return name

    def outputs(self) -> list[tuple[WrittenQuery, Records]]:
        """Return the records of each query."""
        outputs = [(query, self._output(query)) for query in self._definitions.queries]
        return [(query, self._records.get(query.name) or Records(output, query.name)) for query, output in outputs]

    def _output(self, query: WrittenQuery) -> Any:
        if query.name not in self._outputs:
            self._outputs[query.name] = self._query(query)
        return self._outputs[query.name]

    def _query(self, query: WrittenQuery) -> Any:
        plan = query.plan
        changes = self._relation(plan.relation, query.name)
        _, kind, *bounds = plan.relation.carried
        name, columns = self._name(query.name), (*plan.keys, *plan.values)
        ranking, grouping = plan.ranking, plan.grouping
        function: Any = None
        keys, held, further = plan.keys, columns, [CHANGE]
        if ranking is not None:
            function, keys, held = TopRows(ranking, name), ranking.keys, ranking.columns
        elif grouping is not None:
            function = Totals(plan, grouping, name)
            held, further = (*plan.keys, *grouping.arguments), [*grouping.bounds, CHANGE]
        elif plan.is_table:
            function = TableRows(name, (*plan.keys, *((each, BIGINT) for each in bounds)), plan.values)
            further = [kind, *bounds]
        step = Stepped(plan.before, query.name, self._skipped)
        kept = tuple(self._with_place(*plan.before.kept))
        placed = attrs.evolve(step, step=attrs.evolve(plan.before, kept=kept))
        if function is None:
            columns = query.target.columns
            schema = schema_of(columns, kind, *bounds, MOMENT)
            self._records[query.name] = Records(changes.map_batches(step, output=schema), name)
            schema = schema_of(columns, *self._with_place(kind), *bounds)
            return changes.map_batches(attrs.evolve(placed, is_output=False), output=schema)
        names = tuple(each for each, _ in keys)
        if ranking is not None or grouping is not None:
            placed = attrs.evolve(placed, groups=names)
        schema = schema_of(held, *self._with_place(kind), *bounds)
        keyed_by = changes.map_batches(placed, output=schema).key_by(*names)
        schema = schema_of(columns, *further, MOMENT)
        return keyed_by.process(_identified(function, plan.identity), schema, name=name, order="arrival")

    def _relation(self, relation: Relation, query: str) -> Any:
        """Return the stream of a relation's tables."""
        if isinstance(relation.input, SqlSource):
            return self._source(relation.input)
        if isinstance(relation.input, FunctionCall):
            if isinstance(relation.input.function, MatchPlan):
                return self._match(relation.input.function, relation, query)
            return self._call(relation.input, relation.label)
        join = relation.input
        sides: list[Any] = []
        for step, of in zip(join.steps, (join.left, join.right), strict=True):
            how = join.clause.kind
            keeps = how == "FULL" or how == ("LEFT", "RIGHT")[len(sides)]
            columns = typed(step.columns)
            is_table = join.kind == "stream-table" and of is join.right
            changes = self._versions(of) if is_table else None
            further = self._with_place(of.carried[1]) if changes is None else self._version_columns
            schema = schema_of(columns, NO_KEY, *further)
            groups = () if keeps else (JOIN,)
            step = attrs.evolve(step, kept=(TIMESTAMP_COLUMN, *further))
            stepped = Stepped(step, query, self._skipped, groups, key=join.key, side=len(sides) + 1)
            rows = self._relation(of, query) if changes is None else changes
            keyed_by = rows.map_batches(stepped, output=schema).key_by(NO_KEY, JOIN)
            if is_table:
                # A table holds no windows of the stream back.
                inputs = tuple(attrs.evolve(each, holds=False) for each in keyed_by.inputs)
                keyed_by = attrs.evolve(keyed_by, inputs=inputs)
            sides.append((keyed_by, columns[1:]))
        (left, left_columns), (right, right_columns) = sides
        is_foreign = join.kind == "foreign-key"
        keys = [part[0] for part in relation.keys] if is_foreign else []
        identity = {f"FROM of {query}": relation.label}
        function: Any = _identified(
            join_of(join, left_columns, right_columns, keys, has_places=self._has_places), identity
        )
        columns = tuple((each.stored, each.type) for each in relation.columns if each.stored != TIMESTAMP_COLUMN)
        schema = schema_of(columns, *self._with_place(relation.carried[1]))
        name = self._name(f"{query}_join")
        joined = left.connect(right).process(function, schema, name=name)
        if not is_foreign:
            return joined
        # Rows that are matched by the key that they name are gathered by their own.
        own: Columns = tuple(each for each in columns if each[0] in keys)
        rest: Columns = tuple(each for each in columns if each[0] not in keys)
        name = self._name(f"{query}_rows")
        schema = schema_of((*own, *rest), relation.carried[1], MOMENT)
        table_rows = _identified(TableRows(name, own, rest, is_shown=False), identity)
        return joined.key_by(*keys).process(table_rows, schema, name=name, order="arrival")

    def _call(self, call: FunctionCall, label: str) -> Any:
        """Return the output of a function of the user's."""
        if label not in self._sources:
            read = call.of.input
            assert isinstance(read, SqlSource)
            rows = self._source(read).map_batches(lambda table: table, output=schema_of(read.columns))
            output = rows.key_by(*call.keys).process(call.function, name=self._name(call.source.name))
            self._sources[label] = self._placed_last(bound_stream(call.source, output), call.source)
        return self._sources[label]

    def _match(self, plan: MatchPlan, relation: Relation, query: str) -> Any:
        """Return the rows of the matches of a pattern."""
        before = typed(plan.before.columns)
        step = Stepped(plan.before, query, self._skipped, plan.keys)
        assert isinstance(relation.input, FunctionCall)
        rows = self._relation(relation.input.of, query).map_batches(step, output=schema_of(before)).key_by(*plan.keys)
        operator, name = _identified(plan.operator, {f"FROM of {query}": relation.label}), self._name(f"{query}_match")
        matches = rows.process(operator, schema_of(plan.matched), name=name, order="watermark")
        timed = matches.map_batches(with_own_time, output=schema_of(plan.matched, STREAM))
        step = Stepped(plan.after, query, self._skipped)
        return self._placed_last(timed.map_batches(step, output=schema_of(plan.source.columns, STREAM)), plan.source)

    def _with_place(self, *carried: str) -> list[str]:
        """Return further columns of batches, with the place if they have the time of a stream."""
        return [*carried, PLACE] if self._has_places and STREAM in carried else [*carried]

    def _placed_last(self, rows: Any, source: SqlSource) -> Any:
        """Return the rows of an operator, with their place if the script needs it."""
        schema = schema_of(source.columns, *self._with_place(STREAM))
        return rows.map_batches(with_last_place, output=schema) if self._has_places else rows

    def _versions(self, relation: Relation) -> Any:
        """Return the changes of a declared table: all that come in a batch, not only the last of each key.

        ``None`` for rows that a query writes.
        """
        source = relation.input
        written = {each.target.name for each in self._definitions.queries}
        if not isinstance(source, SqlSource) or source.name not in self._streams.keys() - written:
            return None
        schema = schema_of(source.columns, *self._version_columns)
        return self._streams[source.name].map_batches(versions, output=schema)

    def _source(self, source: SqlSource) -> Any:
        """Return the stream of a source's tables."""
        if source.name in self._sources:
            return self._sources[source.name]
        parts = [self._output(each) for each in self._definitions.queries if each.target.name == source.name]
        if source.name in self._streams:
            changes: Any = self._streams[source.name]
            if source.is_table:
                keys = (*source.keys, *(each for each in source.further if each in BOUNDS.values()))
                values = (*source.values, *(each for each in source.further if each not in keys))
                rows = TableRows(self._name(source.name), keys, values)
                keyed_by = changes.key_by(*(each for each, _ in source.keys))
                schema = schema_of((*keys, *values), CHANGE, MOMENT)
                changes = keyed_by.process(rows, schema, name=rows.rows.name or source.name, order="arrival")
            parts.append(changes)
        if not parts:
            raise DefinitionError(
                f"{source.name}, which a query reads, has no rows; give them, or none: streams={{{source.name!r}: []}} "
                f"(--input {source.name}=FILE)"
            )
        stream = parts[0] if len(parts) == 1 else parts[0].union(*parts[1:])
        self._sources[source.name] = stream
        return stream


def _identified(function: Any, identity: Mapping[str, str]) -> Any:
    """Return a function whose states a checkpoint keeps only for the same parts of a query."""
    for state in vars(function).values():
        if isinstance(state, State):
            state.meaning = {**(state.meaning or {}), **identity, "format": FORMAT}
    return function


def record_columns(query: WrittenQuery) -> Schema:
    """Return the columns of records: those of the target, the bounds of windows, the time, of a table if it is gone."""
    bounds = BOUNDS if query.plan.has_bounds else ()
    return schema_of(query.target.columns, *bounds, "ROWTIME", *([DELETED] if query.plan.is_table else []))


@attrs.frozen(eq=False, repr=False)
class RecordRows:
    """Makes the changes of a batch records: of a table the last one of each key.

    Attributes:
        target: What they are written to.
        names: The columns.
    """

    target: SqlSource
    names: tuple[str, ...]

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the records."""
        table = last_changes(self.target, table)
        table = table.append_column("ROWTIME", table.column(MOMENT))
        if CHANGE in table.column_names:
            table = table.append_column(DELETED, pc.less(table.column(CHANGE), 0))
        return table.select([name for name in (*self.names, TIMESTAMP_COLUMN) if name in table.column_names])


@attrs.frozen(eq=False)
class RecordCollector:
    """Collects the records of an output.

    Attributes:
        query: The query.
        collected: Takes them.
        on_records: Takes them in place of ``collected``.
    """

    query: WrittenQuery
    collected: list[OutputRecord]
    on_records: OnRecords | None

    def __call__(self, rows: Any, batch: int) -> None:
        """Take the rows of a batch, which have `record_columns`."""
        target, plan = self.query.target, self.query.plan
        names, types = zip(*target.columns, strict=True)
        width = len(target.keys)
        if is_dataframe(rows):
            # A batch of Spark.
            rows = zip(*(column.to_pylist() for column in rows.toArrow().columns), strict=True)
        records = []
        for row in rows:
            cells = [plain(cell, type_) for cell, type_ in zip(row, types, strict=False)]
            rest = row[len(cells) :]
            key = dict(zip(names, cells[:width], strict=False)) if width > 1 else cells[0] if width else None
            value = None if plan.is_table and rest[-1] else dict(zip(names[width:], cells[width:], strict=True))
            window = (rest[0], rest[1]) if plan.has_bounds else None
            records.append(OutputRecord(key, value, rest[0 if window is None else 2], window))
        if self.on_records is None:
            self.collected.extend(records)
        elif records:
            self.on_records(target.name, records, batch)


def _records(definitions: Definitions, topics: Any) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Return the records of topics by their names, and of a list, whose order is that of arrival, their places."""
    known = {each.topic: None for each in definitions.sources.sources if not each.is_query}
    written = {each.topic.lower() for each in definitions.sources.sources if each.is_query}
    folded = {each.lower(): each for each in known}
    of_query = "a query writes that topic; give the records that it reads, or declare a stream or table over it"

    def topic(name: Any) -> str:
        if str(name) in known:
            return str(name)
        if (lower := str(name).lower()) not in folded:
            reason = f"no statement names that topic{nearest(str(name), known)}"
            raise DefinitionError(f"topics={{{name!r}: ...}}: {of_query if lower in written else reason}")
        return folded[lower]

    if isinstance(topics, Mapping):
        for name, records in topics.items():
            if isinstance(records, str | bytes) or not isinstance(records, Iterable):
                raise DefinitionError(f"topics={{{name!r}: ...}}: give a list of records, not {shown(records)}")
        return {topic(name): list(map(_as_record, records)) for name, records in topics.items()}, {}
    records_of: dict[str, list[Any]] = {} if topics is None else {name: [] for name in known}
    places_of: dict[str, list[int]] = {name: [] for name in records_of}
    for place, each in enumerate(topics or ()):
        if not isinstance(each, tuple | list) or not each:
            raise DefinitionError(f"topics=: a record is (topic, key, value, timestamp), and this one is {shown(each)}")
        name = topic(each[0])
        records_of[name].append(tuple(each[1:]))
        places_of[name].append(place)
    # What a query writes is not read from its topic.
    return {name: of for name, of in records_of.items() if of or name.lower() not in written}, places_of


def _latest(max_ahead: Duration | None, clock: Any) -> Callable[[], int]:
    """Return the function that returns the highest usable timestamp: any, if the user gave the clock."""
    if max_ahead is None or clock is not None:
        return lambda: LATEST
    ahead_ms = min(milliseconds_of(max_ahead, "max_ahead"), LATEST)
    return lambda: time.time_ns() // 1_000_000 + ahead_ms


def _as_record(record: Any) -> Any:
    if isinstance(record, OutputRecord):
        return (record.key, record.value, record.timestamp, None, None, None, record.window)
    return record


class ScriptOptions(RunOptions, total=False):
    """The keywords of `script`, which documents them, with those of `keyed.run`."""

    kafka: Kafka | None
    on_records: OnRecords | None
    properties: Mapping[str, str] | None
    parameters: Given | None
    schemas: Mapping[str, Mapping[str, Any]] | None
    functions: Mapping[str, keyed.KeyedProcessFunction] | None
    folder: str | PathLike[str] | None
    max_ahead: Duration | None
    spark: Any


#: The options of `script` that `keyed.run` does not have.
_OWN = ScriptOptions.__annotations__.keys() - RunOptions.__annotations__.keys()


class ScriptStartOptions(ScriptOptions, StartOptions, total=False):
    """The keywords of `start`."""


@shows_options(ScriptOptions, **_DEFAULTS)
def script(
    text: str,
    streams: Mapping[str, Any] | None = None,
    topics: Mapping[str, Iterable[Any]] | Sequence[Any] | None = None,
    **options: Unpack[ScriptOptions],
) -> ScriptResult:
    """Run a script of SQL statements over rows, and return what its queries write.

    Over Kafka topics without ``Kafka(bounded=True)`` it runs until it is stopped.

    Args:
        text: The statements.
        streams: Rows of streams and tables by name: dictionaries with all columns, and optionally ``ROWTIME``; a
            pandas, polars or Arrow table; the path of a ``.jsonl``, ``.csv`` or ``.parquet`` file; or a
            `keyed.Stream` or `keyed.Output`. If all are over Spark DataFrames, the script runs on Spark.
        topics: Records of topics by name: ``(key, value, timestamp)``, and optionally partition, offset, headers,
            window; or the records of an output. Topics are merged by timestamp; a list of ``(topic, key, value,
            timestamp, …)`` has the order of arrival.
        kafka: The cluster of the topics that ``KAFKA_TOPIC`` names, unless ``streams`` or ``topics`` have rows for
            them. Outputs to topics need a ``checkpoint``.
        on_records: Called with the name of an output, its records of a batch and the batch's id, before the commit:
            an uncommitted batch comes again under its id. The records are then not in the result.
        rows_per_batch: Rows of a batch, which emits one change per key; 10,000 by default.
        properties: Settings, as of ``SET``.
        parameters: Values for ``?`` in order, or for ``$name`` by name.
        schemas: Schemas by topic, for statements without columns: a dictionary with ``key`` and ``value``, Avro or
            JSON Schema as text or data, or the text of a Protobuf file, whose imports are ``references``.
        functions: Keyed functions for ``FROM name(stream PARTITION BY column)``, by name; their annotations declare
            the columns.
        folder: A folder for outputs that are not written to topics: a folder each, with a Parquet file per batch,
            each record exactly once with a ``checkpoint``. Columns are those of the output, window bounds,
            ``ROWTIME``, and for a table ``DELETED``.
        max_ahead: Rows with a timestamp further ahead of the processing time, by default 365 days, are skipped and
            counted; ``None`` for no limit. Streams of Python have their own.
        spark: With ``kafka`` the session in which the script runs: Spark reads the topics.
        options: Those of `keyed.run`, such as ``checkpoint`` (the result then has this run's records) and ``tables``.
            Open windows are emitted at the end (``drain``) by default only for a dict of ``topics`` without a
            ``checkpoint``.

    Raises:
        SqlError: A statement is not valid.
        DefinitionError: A stream or record does not fit the script.
        KeyedError: The query failed.
    """
    checked, kafka = _Script("script", text, streams, topics, {**options}), options.get("kafka")
    if options.get("spark") is not None and kafka is not None and not kafka.bounded:
        raise DefinitionError(
            "keyed.sql.script: on Spark it ends with the records of its topics; give Kafka(bounded=True), or use "
            "keyed.sql.start"
        )
    if not checked.definitions.queries:
        return ScriptResult({}, None, answers=checked.definitions.answers)
    bound = checked.bound()
    return checked.result(keyed.run(*bound, **checked.options))


@shows_options(ScriptStartOptions, **_DEFAULTS)
def start(text: str, streams: Mapping[str, Any] | None = None, **options: Unpack[ScriptStartOptions]) -> keyed.Query:
    """Start a script over Kafka topics in a thread, and return the handle of its query.

    Args:
        text: See `script`, as for the other arguments.
        streams: See `script`.
        kafka: See `script`.
        on_records: Called as in `script`, for outputs that are not written to a topic.
        rows_per_batch: See `script`.
        properties: See `script`.
        parameters: See `script`.
        schemas: See `script`.
        functions: See `script`.
        folder: See `script`.
        max_ahead: See `script`.
        spark: See `script`.
        options: Other options of `keyed.start`, such as ``checkpoint`` and ``tables``.

    Raises:
        SqlError: A statement is not valid.
        DefinitionError: A stream does not fit the script, or no query writes.
        KeyedError: A topic or the schema registry cannot be used.
    """
    kafka = options.get("kafka")
    if kafka is None:
        raise DefinitionError("keyed.sql.start: kafka=None must be a keyed.sql.Kafka; keyed.sql.script runs over rows")
    checked = _Script("start", text, streams, None, {**options, "on_records": options.get("on_records") or _nowhere})
    if not checked.definitions.queries:
        raise DefinitionError("keyed.sql.start: no statement of the script writes; add CREATE ... AS SELECT")
    if checked.session is not None:
        if kafka.bounded:
            raise DefinitionError(
                "keyed.sql.start: on Spark it follows its topics until it is stopped; give Kafka(...) without "
                "bounded=, or use keyed.sql.script"
            )
        interval = milliseconds_of(kafka.batch_interval, "Kafka(batch_interval)")
        checked.options = {"trigger": f"{interval} milliseconds"} | checked.options
    return keyed.start(*checked.bound(), **checked.options)


def _nowhere(name: str, records: list[OutputRecord], batch: int) -> None:
    """Discard records."""


class _Script:
    """A script with its inputs, checked and ready to run. The arguments are those of `script` and `start`."""

    def __init__(self, call: str, text: Any, streams: Any, topics: Any, options: dict[str, Any]) -> None:
        options = {**_DEFAULTS, **options}
        own = {name: options.pop(name, None) for name in _OWN}
        self._where = where = f"keyed.sql.{call}"
        self._kafka, on_records = own["kafka"], own["on_records"]
        kinds: Any = (
            ("streams", streams or {}, Mapping, "a dict of rows by stream"),
            ("topics", topics or {}, Mapping | list | tuple, "a dict of records by topic, or a list"),
            ("text", text, str, "text with SQL statements"),
            ("kafka", self._kafka, Kafka | None, "a keyed.sql.Kafka(bootstrap)"),
            ("on_records", on_records, Callable | None, "a function of a name, records and the id of a batch"),
        )
        for name, value, kind, what in kinds:
            if not isinstance(value, kind):
                raise DefinitionError(f"{where}: {name}={shown(value)} must be {what}")
        parsed, statements, values = parse(text, own["parameters"])
        if not statements:
            raise DefinitionError(f"{where}: the text has no statements; write CREATE STREAM name (...) WITH (...)")
        settings, schemas = texts(own["properties"], f"{where}: properties"), RegistrySchemas(own["schemas"])
        functions = own["functions"] or {}
        self.definitions = Definitions(parsed, values, settings, schemas, functions).define(statements)
        self._folder = None if own["folder"] is None else Path(own["folder"])
        self._max_ahead = own["max_ahead"]
        self._registry = None if self._kafka is None else self._kafka.registry
        self._keeps = options.get("checkpoint") is not None
        self._skipped: Skipped = {}
        self._missing: dict[str, dict[str, int]] = {}
        self._inputs: dict[str, ScriptInput] = {}
        self._bound: dict[str, Any] = {}
        self.session: Any = None
        self._deployment: Deployment | None = None
        self._records: dict[str, list[OutputRecord]] = {}
        self._add(streams, topics, _latest(self._max_ahead, options.get("processing_time")), own["spark"])
        # Without an end there is no result that could have the records. Over DataFrames a script always ends.
        has_end = self._kafka is None or self._kafka.bounded or self.session is not None
        self._on_records = on_records if has_end else on_records or _nowhere
        # Topics that are given as a whole end. Streams go on, as those of Spark, records in their order of arrival do.
        ends = not self._keeps and self._kafka is None and bool(topics) and isinstance(topics, Mapping)
        self._size = options["rows_per_batch"]
        if self.session is not None:
            del options["rows_per_batch"]
        self.options: dict[str, Any] = {"drain": ends, **options}

    def _add(self, streams: Any, topics: Any, latest: Callable[[], int], spark: Any) -> None:
        """Add the given rows and the topics."""
        definitions, where = self.definitions, self._where
        records_of, places_of = _records(definitions, topics)
        rows_of = {definitions.named(name).name: each for name, each in (streams or {}).items()}
        self._bound = {name: each for name, each in rows_of.items() if is_bound(each)}
        sessions = [each for each in map(session_of, self._bound.values()) if each is not None]
        if spark is not None and (self._kafka is None or not hasattr(spark, "readStream")):
            raise DefinitionError(
                f"{where}: spark={shown(spark)} must be a SparkSession, for the topics of kafka=; without topics give "
                "DataFrames in streams="
            )
        if (sessions or spark) and (len(sessions) < len(rows_of) or topics or definitions.inserts):
            raise DefinitionError(
                "a script runs on Spark if its streams are DataFrames: give all of them so, without topics= and "
                "without INSERT INTO ... VALUES"
            )
        self.session = sessions[0] if sessions else spark
        of_topics = [each for each in definitions.sources.sources if each.topic in records_of and not each.is_query]
        pairs = [(definitions.named(name), rows, False) for name, rows in rows_of.items() if name not in self._bound]
        pairs += [
            (each, records_of[each.topic], True)
            for each in of_topics
            if records_of[each.topic] or each.name not in definitions.inserts
        ]
        pairs += [(definitions.named(name), rows, False) for name, rows in definitions.inserts.items()]
        if self._kafka is not None:
            names = {source.name for source, _, _ in pairs} | self._bound.keys()
            self._deployment = Deployment(definitions, self._kafka, names)
            if spark is not None:
                self._bound |= self._deployment.frames(spark)
            elif self.session is not None and self._deployment.sources:
                topic = self._deployment.sources[0].topic
                remedy = "give spark=, the session that reads it"
                raise DefinitionError(f"{where}: no DataFrame is given for the topic {topic!r}; {remedy}")
            else:
                pairs += [(source, (), False) for source in self._deployment.sources]
        common: dict[str, Any] = {"is_strict": definitions.is_strict, "latest": latest, "waits": self._keeps}
        common |= {"missing": self._missing, "registry": self._registry}
        for source, rows, is_topic in sorted(pairs, key=lambda each: not each[0].is_table):
            if source.name in self._inputs or source.name in self._bound:
                raise DefinitionError(
                    f"{where}: {source.name} has rows from two of streams=, topics= and INSERT INTO ... VALUES; give "
                    "all rows in one of them"
                )
            places = iter(places_of[source.topic]) if is_topic and places_of else None
            common |= {"is_topic": is_topic, "places": places}
            self._inputs[source.name] = ScriptInput(source, rows, self._skipped, **common)

    def _needs_places(self) -> bool:
        """Return true if the order of rows in a batch matters, and is not the one in which they come."""
        plans = [each.plan for each in self.definitions.queries]
        joins = {kind for plan in plans for kind in plan.relation.joins}
        written = Counter([*self._inputs, *(each.target.name for each in self.definitions.queries)])
        is_mixed = "stream-stream" in joins or any(count > 1 for count in written.values())
        return "stream-table" in joins or (is_mixed and any(plan.grouping or plan.ranking for plan in plans))

    def bound(self) -> list[Any]:
        """Return the outputs with their sinks."""
        definitions, deployment = self.definitions, self._deployment
        if deployment is not None and deployment.written and not self._keeps:
            raise DefinitionError(
                f"{self._where}: an output is written to a Kafka topic, each record once, and that needs a checkpoint; "
                "give checkpoint= (--checkpoint), a folder"
            )
        if self.session is not None:
            check_executors(self.session)
        sources = () if deployment is None or self.session is not None else deployment.sources
        live = {each.name: each.topic for each in sources}
        rows = ScriptRows(
            self._inputs,
            self._size,
            self._skipped,
            keeps=self._keeps,
            live=live,
            topics=deployment.records() if deployment is not None and live else None,
        )
        has_places = not self._bound and self._needs_places()
        streams: dict[str, Any] = streams_of(rows, self._inputs, has_places=has_places)
        common: dict[str, Any] = {"registry": self._registry, "max_ahead": self._max_ahead}
        for name, each in self._bound.items():
            streams[name] = bound_stream(definitions.named(name), each, is_strict=definitions.is_strict, **common)
        outputs = Builder(definitions, streams, self._skipped, has_places=has_places).outputs()
        if deployment is not None:
            deployment.prepare()
        bound = []
        for query, output in outputs:
            written = None if deployment is None else deployment.to_topic(query, output)
            if written is None:
                columns = record_columns(query)
                if self._folder is not None:
                    sink: Any = keyed.parquet_sink(str(self._folder / query.name.lower()))
                else:
                    records = self._records.setdefault(query.target.name, [])
                    sink = RecordCollector(query, records, self._on_records)
                written = output.to(sink, RecordRows(query.target, tuple(columns.names)), columns)
            bound.append(written)
        return bound

    def result(self, run: keyed.RunResult) -> ScriptResult:
        """Return the result of a run."""
        for query in self.definitions.queries:
            names = (query.name.lower(), *(f"{query.name}_{part}".lower() for part in ("join", "match", "rows")))
            counts = [run.metrics.get(name, {}) for name in names]
            if count := sum(each.get("rows_dropped", 0) for each in counts):
                skip(self._skipped, query.name, "late for its window", count, "its window has ended")
            # Those that this process has counted have their reasons.
            known = sum(self._skipped.get(query.name, {}).values()) - count
            if (bad := sum(each.get("rows_bad", 0) for each in counts) - known) > 0 and self._bound:
                reason = UNREADABLE if self.session is None else BAD
                skip(self._skipped, query.name, reason, bad, "the log has the reason of the first one")
        return ScriptResult(self._records, run, self._skipped, self._missing, self.definitions.answers)
