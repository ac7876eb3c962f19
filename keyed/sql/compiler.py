"""Builds the operators of checked definitions: streams, joins and functions of the public API."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import keyed
from keyed.errors import DefinitionError
from keyed.sql.bound_streams import (
    element_changes,
    is_stream,
    is_topic,
    packed_stream,
    packed_topic,
    runs_on_spark,
)
from keyed.sql.catalog import SqlSource
from keyed.sql.definitions import Definitions, WrittenQuery
from keyed.sql.java_formats import parse_moment
from keyed.sql.packed_changes import (
    PACKED,
    packed_elements,
    packed_function,
    packed_rows,
    packed_transform,
    prepared_function,
)
from keyed.sql.planner import DAY_MS, QueryPlan, Relation, SourceJoin
from keyed.sql.result_rows import ResultRows
from keyed.sql.row_changes import KEY, META, NO_KEY, ROUTE, TIME, VALUE, WINDOW, Change, rank_of, route, route_of
from keyed.sql.script_source import Extractor, decoder_of
from keyed.sql.sql_operators import (
    ForeignKeyJoin,
    Grouped,
    JoinedRows,
    Projection,
    Sessions,
    StreamStreamJoin,
    StreamTableJoin,
    TableProjection,
    TableRows,
    TableTableJoin,
    Windowed,
    spread,
)
from keyed.sql.wire_formats import WireFormats
from keyed.state import State

_log = logging.getLogger(__name__)


class Compiler:
    """Builds the outputs of a script.

    Args:
        definitions: The checked script.
        records: The stream of the records of all topics.
        topics: The topics that have records.
        bound: Spark DataFrames, streams and outputs by the names of streams and tables. If they run on Spark, the
            script does so too, and elements are rows of `packed_changes`.
        extractors: Functions that return the timestamp of a record, by topic.
        formats: The formats of records of Kafka topics.
        wired: The topics that are read from Kafka.
    """

    def __init__(
        self,
        definitions: Definitions,
        records: keyed.Stream | None,
        topics: Iterable[str],
        bound: Mapping[str, Any] | None = None,
        extractors: Mapping[str, Extractor] | None = None,
        formats: WireFormats | None = None,
        wired: Collection[str] = (),
    ) -> None:
        self._definitions = definitions
        self._bound = dict(bound or {})
        self._on_spark = any(map(runs_on_spark, self._bound.values()))
        self._extractors = dict(extractors or {})
        self._records = records
        self._topics = set(topics)
        self._formats = formats
        self._wired = set(wired)
        self._built: dict[str, Any] = {}
        self._tables: dict[str, Any] = {}
        self.outputs: list[tuple[WrittenQuery, keyed.Output]] = []
        self._names: set[str] = set()
        self._counted: set[str] = set()
        #: The streams of what is bound: a DataFrame is one source however many queries read it.
        self._streams: dict[str, keyed.Stream] = {}
        #: Outputs whose changes have the route by which their operator is keyed.
        self._forwarding: list[keyed.Output] = []
        #: Of a stream of changes in this process: the stream before it and the function between them. A function after
        #: it becomes one with that. By its id, so the streams are kept.
        self._flattened: dict[int, tuple[Any, Callable[[Change], Iterable[Change]]]] = {}
        self._kept: list[keyed.Stream] = []
        #: Records of this run that the format of a source could not read, by the name of the source.
        self.unreadable: Counter[str] = Counter()

    def build(self) -> list[tuple[WrittenQuery, keyed.Output]]:
        """Return the output of each query that writes."""
        for query in self._definitions.queries:
            self._output(query)
        return self.outputs

    def _name(self, what: str) -> str:
        """Return a name for an operator that no other has."""
        name, count = what, 1
        while name in self._names:
            count += 1
            name = f"{what}_{count}"
        self._names.add(name)
        return name

    def _output(self, query: WrittenQuery) -> keyed.Output:
        if query.name in self._built:
            found: keyed.Output = self._built[query.name]
            return found
        self._built[query.name] = made = self._query(query)
        self.outputs.append((query, made))
        return made

    def _query(self, query: WrittenQuery) -> keyed.Output:
        plan = query.plan
        changes = self._relation(plan.relation, query)
        function: Any
        if plan.grouping is None or plan.prepare is None:
            transform = _finished(plan.transform, query)
            name = self._name(query.name.lower())
            function = Projection(transform)
            if plan.is_table:
                function = TableProjection(transform, self._rows(name, plan))
            return self._process(self._by_route(changes), function, name, plan.shape, forwards=plan.forwards)
        grouping = plan.grouping
        if query.time is not None:
            import attrs

            emit = grouping.emit
            finish = _finished(lambda change: (change,), query)
            grouping = attrs.evolve(
                grouping, emit=lambda *given: [each for change in emit(*given) for each in finish(change)]
            )
        name = self._name(query.name.lower())
        function = self._grouping(plan, grouping, name)
        if self._on_spark and not plan.shuffles and self._is_forwarding(changes):
            # Without a function before its key the operator is chained to the one that it reads.
            function = prepared_function(function, plan.prepare)
        else:
            changes = self._flat(changes, plan.prepare)
        return self._process(self._by_route(changes), function, name, plan.shape)

    # Streams of changes, in the form that the runtime needs.

    def _flat(self, changes: Any, transform: Callable[[Change], Iterable[Change]]) -> Any:
        if self._on_spark:
            return changes.flat_map(packed_transform(transform), output=PACKED)
        before, given = self._flattened.get(id(changes), (changes, None))
        if given is not None:
            transform = _composed(given, transform)
        made = before.flat_map(spread(transform))
        self._flattened[id(made)] = before, transform
        self._kept.append(made)
        return made

    def _by_route(self, changes: Any) -> Any:
        if not self._on_spark:
            # One key group has all keys: nothing is shuffled.
            return changes.key_by(route)
        if isinstance(changes, keyed.Output):
            return changes.key_by("route", chain=self._is_forwarding(changes))
        return changes.key_by("route")

    def _is_forwarding(self, changes: Any) -> bool:
        return any(changes is each for each in self._forwarding)

    def _process(
        self, changes: Any, function: Any, name: str, shape: Mapping[str, str], *, forwards: bool = True
    ) -> keyed.Output:
        """Return the output of an operator, whose states do not fit a query of another shape."""
        for state in vars(function).values():
            if isinstance(state, State) and shape:
                state.meaning = shape
        if self._on_spark:
            function = packed_function(function)
        output = PACKED if self._on_spark else None
        # In this process timestamps are in the order of arrival. On Spark they are those of the rows, and the rows of
        # one side of a join arrive before those of the other.
        order: Any = "event_time" if not self._on_spark or len(changes.sides) > 1 else "arrival"
        made: keyed.Output = changes.process(function, output, name=name, order=order)
        if forwards:
            self._forwarding.append(made)
        return made

    def _grouping(self, plan: QueryPlan, grouping: Any, name: str) -> Any:
        window = plan.window
        rows = self._rows(name, plan)
        if window is None:
            return Grouped(name, grouping, rows)
        is_final = plan.emit == "FINAL"
        grace = window.grace_ms
        if grace is None:
            grace = 0 if is_final else max(0, DAY_MS - window.size_ms)
        if window.kind == "SESSION":
            return Sessions(name, grouping, rows, window.size_ms, grace, is_final=is_final)
        return Windowed(name, grouping, rows, window.size_ms, window.advance_ms, grace, is_final=is_final)

    def _check_runtime(self, name: str, plan: SourceJoin) -> None:
        """Check that a join is not one whose records on Spark would depend on its batches or key groups.

        Raises:
            DefinitionError: It is one, and the script runs on Spark.
        """
        if not self._on_spark:
            return
        what = remedy = ""
        if plan.kind == "foreign-key":
            what = "joins of a table by a column of another one"
            remedy = "give its tables as lists or files"
        elif plan.kind == "stream-stream" and plan.sides.is_outer and plan.within and plan.within[2] is None:
            what = "an outer join of streams without a grace period, which emits rows before their partners come"
            remedy = "give WITHIN a GRACE PERIOD"
        if what:
            raise DefinitionError(f"{name}: scripts over Spark DataFrames do not support {what}; {remedy}")

    def _rows(self, name: str, plan: QueryPlan) -> ResultRows:
        """Return the rows of a table. Those of a window are kept for a day, or its ``RETENTION``."""
        is_windowed = plan.output_window is not None
        given = None if plan.window is None else plan.window.retention_ms
        retention = max(given or DAY_MS, 1) if is_windowed else None
        return ResultRows(name, plan.keys, plan.values, retention, is_windowed=is_windowed)

    # Relations.

    def _relation(self, relation: Relation, query: WrittenQuery) -> Any:
        if isinstance(relation.input, SourceJoin):
            return self._join(relation.input, query)
        return self._source(relation.input)

    def _join(self, plan: SourceJoin, query: WrittenQuery) -> Any:
        name = query.target
        self._check_runtime(name, plan)
        left = self._flat(self._relation(plan.left, query), plan.left_key)
        right = self._flat(self._relation(plan.right, query), plan.right_key)
        stage = self._name(f"{name.lower()}_join")
        function: Any
        if plan.kind == "stream-stream":
            assert plan.within is not None
            before, after, grace = plan.within
            eager = grace is None
            function = StreamStreamJoin(
                plan.sides,
                before,
                after,
                max(0, DAY_MS - before - after) if grace is None else grace,
                is_eager=eager,
                matches_end=plan.matches_end,
            )
        elif plan.kind == "stream-table":
            function = StreamTableJoin(stage, plan.sides)
        elif plan.kind == "table-table":
            function = TableTableJoin(stage, plan.sides)
        else:
            left = self._flat(left, _subscriptions(plan.foreign))
            function = ForeignKeyJoin(stage, plan.sides)
        shape = {part: query.plan.shape[part] for part in ("FROM", "WITHIN")}
        is_foreign = plan.kind == "foreign-key"
        joined = self._process(self._by_route(left.connect(right)), function, stage, shape, forwards=not is_foreign)
        if is_foreign:
            rows = self._name(f"{stage}_rows")
            joined = self._process(self._by_route(joined), JoinedRows(rows), rows, shape)
        return joined

    def _source(self, source: SqlSource) -> Any:
        """Return the changes of a source."""
        if source.is_table and source.name in self._tables:
            return self._tables[source.name]
        queries = self._definitions.queries
        writers = [each for each in queries if each.target == source.name]
        topics = {each.name: each.topic for each in self._definitions.sources.values()}
        others = [each for each in queries if each.target != source.name and topics[each.target] == source.topic]
        # Several queries may read a stream: its records are counted for the first one.
        counts = None if source.name in self._counted else self.unreadable
        self._counted.add(source.name)
        parts: list[Any] = [self._output(each) for each in writers]
        for each in others:
            target = self._definitions.sources[each.target]
            parts.append(self._flat(self._output(each), _recoded(target, source, counts)))
        if source.name in self._bound:
            if source.name not in self._streams:
                self._streams[source.name] = self._bound_stream(source, counts)
            bound = self._streams[source.name]
            if parts and not is_stream(self._bound[source.name]):
                # The columns of the others, without the timestamp.
                bound = bound.flat_map(packed_rows, output=PACKED)
            parts.append(bound)
        elif self._on_spark:
            if not parts:
                raise DefinitionError(f"streams= has no DataFrame for {source.name}, which a query reads")
        elif (source.topic in self._topics or not parts) and self._records is not None:
            formats = self._formats if source.topic in self._wired else None
            parts.append(self._flat(self._records, decoder_of(source, counts, formats)))
        changes = parts[0] if len(parts) == 1 else parts[0].union(*parts[1:])
        if source.is_table and not (writers and len(parts) == 1):
            name = self._name(source.name.lower())
            rows = ResultRows(name, source.keys, source.values, is_windowed=source.window is not None)
            changes = self._process(self._by_route(changes), TableRows(rows), name, {})
        if source.is_table:
            self._tables[source.name] = changes
        return changes

    def _bound_stream(self, source: SqlSource, counts: Counter[str] | None) -> Any:
        """Return the changes of what is bound to the name of a source."""
        bound = self._bound[source.name]
        if is_topic(bound):
            formats = self._formats or WireFormats(None)
            return packed_topic(bound, source, formats, is_strict=self._definitions.is_strict)
        decode = decoder_of(source, None if self._on_spark else counts)
        if not is_stream(bound):
            return packed_stream(bound, source, decode, filters=not self._definitions.is_timed)
        changes = element_changes(source, decode, self._extractors.get(source.topic, _no_moment))
        if not self._on_spark:
            return self._flat(bound, changes)
        return bound.flat_map(packed_elements(changes), output=PACKED)


def _no_moment(_key: Any, _value: Any, time: int) -> int:
    return time


def _composed(
    first: Callable[[Any], Iterable[Change]], second: Callable[[Change], Iterable[Change]]
) -> Callable[[Any], Iterable[Change]]:
    return lambda change: [made for each in first(change) for made in second(each)]


def _finished(transform: Any, query: WrittenQuery) -> Callable[[Change], Iterable[Change]]:
    """Return a transform with the types and timestamps of the output."""
    fit, time = query.fit, query.time
    if fit is None and time is None:
        found: Callable[[Change], Iterable[Change]] = transform
        return found

    def finished(change: Change) -> Iterable[Change]:
        made = []
        for each in transform(change):
            value, moment = each[VALUE], each[TIME]
            if fit is not None and value is not None:
                value = fit(value)
            if time is not None and value is not None:
                cell = (*each[KEY], *value)[time[0]]
                if cell is None:
                    continue
                try:
                    moment = parse_moment(cell, time[1]) if time[1] is not None else cell
                except ValueError:
                    continue
                if moment < 0:
                    continue
            made.append((*each[:VALUE], value, each[3], moment, *each[WINDOW:]))
        return made

    return finished


def _recoded(
    target: SqlSource, source: SqlSource, unreadable: Counter[str] | None
) -> Callable[[Change], Iterable[Change]]:
    """Return the function from a change that is written to a topic to that of another source of the topic."""
    encode_key, encode_value = target.key_encoder(), target.value_encoder()
    decode = decoder_of(source, unreadable)

    def recode(change: Change) -> Iterable[Change]:
        record = (
            source.topic,
            None if change[ROUTE] == NO_KEY else encode_key(change[KEY]),
            encode_value(change[VALUE]),
            change[TIME],
            change[META][0],
            change[META][1],
            None,
            change[WINDOW],
            rank_of(change),
        )
        return decode(record)

    return recode


def _subscriptions(foreign: Any) -> Callable[[Change], Iterable[Change]]:
    """Return the function from a change of a left table to those of the keys of the right one that it names."""

    def subscriptions(change: Change) -> Iterable[Change]:
        new, old = change[VALUE], change[3]
        new_key = None if new is None else foreign(new)
        old_key = None if old is None else foreign(old)
        key, rest = change[KEY], change[TIME:]
        if old is not None and (new is None or new_key != old_key):
            yield (route_of((old_key,)), key, (None, new is not None), old, *rest)
        if new is not None:
            same = old is not None and new_key == old_key
            yield (route_of((new_key,)), key, (new, False), old if same else None, *rest)

    return subscriptions
