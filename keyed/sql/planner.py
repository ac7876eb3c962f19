"""Plans queries: stateless steps, and the keyed operator between them. Nothing runs here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from keyed.base.arguments import nearest
from keyed.errors import OutputDefinitionError
from keyed.expressions.engine import PYTHON, Columns, SqlStep, check, functions, keywords, typed
from keyed.expressions.tokens import SqlToken, Text, bare, calls, folded, name, quoted, sign, split, sql
from keyed.extending import table_of
from keyed.formats.sql_types import BIGINT, STRING, SqlType, of_arrow
from keyed.job.functions import inferred_output
from keyed.sql.catalog import CHANGE, STREAM, Catalog, SqlSource
from keyed.sql.match_recognize import MatchPlanner
from keyed.sql.name_scope import BOUNDS, OWN_NAMES, PSEUDO, RESERVED, Column, NameScope, free_name, replaced
from keyed.sql.sql_aggregates import AGGREGATES, AggregateReader, aggregate_calls
from keyed.sql.statements import REFUSED, From, Item, Join, Ranking, SelectQuery, WindowClause, Words
from keyed.vectorized import TIMESTAMP_COLUMN
from keyed.windows import Sum

DAY_MS = 86_400_000


@attrs.frozen(eq=False)
class Relation:
    """The rows of a query: those of one source, or joined ones.

    Attributes:
        columns: Its columns.
        is_table: It is a table.
        keys: For each part of the key the names in batches of the columns that hold it.
        window: Type and size of its windows.
        input: The source, or the join.
    """

    columns: tuple[Column, ...]
    is_table: bool
    keys: tuple[tuple[str, ...], ...]
    window: tuple[str, int | None] | None
    input: SqlSource | SourceJoin | FunctionCall

    @property
    def sources(self) -> list[SqlSource]:
        """The sources that it reads."""
        if isinstance(self.input, SqlSource):
            return [self.input]
        if isinstance(self.input, FunctionCall):
            return self.input.of.sources
        return [*self.input.left.sources, *self.input.right.sources]

    @property
    def joins(self) -> list[str]:
        """The kinds of its joins."""
        return [self.input.kind, *self.input.left.joins] if isinstance(self.input, SourceJoin) else []

    @property
    def carried(self) -> tuple[str, ...]:
        """Columns of its batches that each step passes on: the event time, the change, the bounds of windows."""
        bounds = BOUNDS if self.window is not None else ()
        return (TIMESTAMP_COLUMN, CHANGE if self.is_table else STREAM, *bounds)

    @property
    def label(self) -> str:
        """Names of the sources, as the checkpoint has them."""
        if isinstance(self.input, SqlSource):
            return self.input.name.lower()
        if isinstance(self.input, FunctionCall):
            return f"{self.input.source.name}({self.input.of.label} by {', '.join(self.input.keys)})"
        join, clause = self.input, self.input.clause
        within = f"{clause.within_text} ON {join.on}".strip()
        return f"{join.left.label} {clause.kind} JOIN {join.right.label} {within}"


@attrs.frozen(eq=False)
class SourceJoin:
    """A join of two relations by an equality.

    Attributes:
        kind: ``stream-stream``, ``stream-table``, ``table-table`` or ``foreign-key``.
        clause: Its clause: the kind ``INNER``, ``LEFT``, ``RIGHT`` or ``FULL``, and ``WITHIN``.
        left: The left relation.
        right: The right relation.
        steps: They give the rows of either side their columns in joined rows, and the key ``#join``.
        key: Type of the key.
        on: The equality.
        own_key: The column of joined rows for the key, if it is no column of either side.
    """

    kind: str
    clause: Join
    left: Relation
    right: Relation
    steps: Sequence[SqlStep]
    key: SqlType
    on: str
    own_key: str | None


@attrs.frozen(eq=False)
class FunctionCall:
    """A keyed function, or a pattern, over the rows of a stream.

    Attributes:
        function: The function, or the `MatchPlan`.
        source: Its output, as a stream.
        of: What it reads.
        keys: The columns that it is keyed by.
    """

    function: Any
    source: SqlSource
    of: Relation
    keys: tuple[str, ...]


#: The column of a join's key in batches.
JOIN = "#join"


@attrs.frozen(eq=False)
class Aggregation:
    """The aggregates of a query.

    Attributes:
        arguments: The columns that aggregates read.
        aggregates: The aggregates by name.
        after: The projection and ``HAVING`` over the groups (``#g0`` and so on) and results.
        window: The windows, with their grace period and retention; ``None`` without.
        is_final: Only the results of windows that have ended are emitted, and are its rows.
    """

    arguments: Columns
    aggregates: Mapping[str, Any]
    after: SqlStep
    window: WindowClause | None
    is_final: bool

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns of a window's bounds."""
        return () if self.window is None else tuple(BOUNDS)

    @property
    def keeps_rows(self) -> bool:
        """The rows of the table are a state."""
        return not self.is_final or (self.window is not None and bool(self.window.retention_ms))


@attrs.frozen(eq=False)
class RankPlan:
    """The first rows of each partition.

    Attributes:
        keys: The columns of the partition.
        values: The other columns.
        order: The columns of the order, with their directions.
        identity: The columns of the key of a table's rows; none of a stream.
        clause: The clause, with the directions of the order, the column of the rank and the number of rows.
    """

    keys: Columns
    values: Columns
    order: Columns
    identity: Columns
    clause: Ranking

    @property
    def columns(self) -> Columns:
        """All columns of its rows."""
        return (*self.keys, *self.values, *self.order, *self.identity)


@attrs.frozen(eq=False)
class QueryPlan:
    """A planned query.

    Attributes:
        relation: What it reads.
        before: The step over what it reads.
        grouping: The aggregates; ``None`` without.
        keys: Columns of the output's key.
        values: Its other columns.
        is_table: The output is a table.
        window: Type and size of the output's windows.
        identity: The parts of the query that its state depends on, by name.
        ranking: The first rows of each partition; ``None`` for all.
    """

    relation: Relation
    before: SqlStep
    grouping: Aggregation | None
    keys: Columns
    values: Columns
    is_table: bool
    window: tuple[str, int | None] | None
    identity: Mapping[str, str]
    ranking: RankPlan | None = None

    @property
    def has_bounds(self) -> bool:
        """True if its rows have the bounds of windows: its own, or those of the stream that it projects."""
        is_projection = self.grouping is None and self.ranking is None
        return self.window is not None or (is_projection and self.relation.window is not None)

    def steps(self) -> list[dict[str, Any]]:
        """Return the steps of the query, for ``EXPLAIN``."""
        origin, grouping = self.relation.input, self.grouping
        steps = [("read", f"{each.kind} {each.name}, topic {each.topic}") for each in self.relation.sources]
        if isinstance(origin, SourceJoin):
            steps.append(("join", f"{origin.kind}, by {origin.on}"))
        if isinstance(origin, FunctionCall):
            steps.append(("function", f"{origin.source.name}, by {', '.join(origin.keys)}"))
        for step in [self.before] if grouping is None else [self.before, grouping.after]:
            if grouping is not None and step is grouping.after:
                kind = "without windows" if grouping.window is None else "in windows"
                steps.append(("aggregate", f"{kind}, by {', '.join(each for each, _ in self.keys)}"))
            steps += [("filter", step.where)] if step.where else []
            steps.append(("compute", ", ".join(expression for _, expression, _ in step.columns) or "nothing"))
        if self.ranking is not None:
            steps.append(("rank", self.identity["QUALIFY"]))
        rows = ["the rows of the table"] if self.is_table else []
        steps.append(("state", ", and ".join(["aggregates"] * (grouping is not None) + rows) or "none"))
        return [{"step": step, "detail": detail} for step, detail in steps]


@attrs.frozen
class _Output:
    """A column of the output: its name, resolved expression and place in the text."""

    name: str
    words: tuple[SqlToken, ...]
    at: int


@attrs.define(eq=False)
class Planner:
    """Plans the queries of a script.

    Args:
        text: The script.
        catalog: The streams and tables.
        values: The values of parameters.
        properties: The settings of ``SET``.
        functions: The functions that ``FROM`` may call, by name.
        called: Takes the names of those that it calls.
    """

    _text: Text
    _catalog: Catalog
    _values: Mapping[str, Any]
    _properties: Mapping[str, str]
    _functions: Mapping[str, Any] = attrs.field(factory=dict)
    _called: set[str] = attrs.field(factory=set)
    #: The sources of a join whose times are named.
    _timed: set[str] = attrs.field(factory=set, init=False)

    def _scope(self, *columns: Column) -> NameScope:
        return NameScope(self._text, columns, self._values)

    def plan(self, query: SelectQuery, kind: str | None, output: str) -> QueryPlan:
        """Return the plan of a query.

        Args:
            query: The query.
            kind: ``STREAM`` or ``TABLE``: what is created of it; ``None`` for either.
            output: Name of the output, for errors.

        Raises:
            SqlError: It is not valid.
        """
        at, window, ranking = query.at, query.window, query.ranking
        if query.limit is not None:
            self._text.fail(REFUSED["LIMIT"], at)
        source = self.relation(query)
        scope = self._scope(*source.columns)
        is_grouped = bool(query.group_by) or any(aggregate_calls(item.words) for item in query.items)
        result = "TABLE" if is_grouped or source.is_table or ranking is not None else "STREAM"
        window_at = at if window is None else window.at
        having_at = at if query.having is None else query.having[0].at
        is_timed = window is not None or any(each.within is not None for each in query.joins)
        retimed = [each.name for each in source.sources if is_timed and each.is_retimed]
        late = f"a query sets the times of {', '.join(retimed)}; declare TIMESTAMP where the rows are declared"
        no_windowed = "a windowed table is not read by another query; write its query over the stream"
        no_ranks = "QUALIFY ranks the rows of a stream or table; write CREATE TABLE ... AS SELECT for GROUP BY first"
        no_kind = f"the result of this query is a {result}; write CREATE {result} {output} AS SELECT ..."
        no_aggregates = "WHERE sees single rows; write HAVING for aggregates"
        self._text.check(
            (source.is_table and source.window is not None, no_windowed, at),
            (retimed, late, at),
            (ranking is not None and (is_grouped or query.partition_by), no_ranks, at),
            (query.having is not None and not is_grouped, "HAVING needs GROUP BY; write WHERE", having_at),
            (window is not None and not is_grouped, "WINDOW needs GROUP BY", window_at),
            (window is not None and source.is_table, "WINDOW is for streams, and this is a table", window_at),
            (query.emit == "FINAL" and window is None, "EMIT FINAL needs a WINDOW and GROUP BY", at),
            (kind not in (None, result), no_kind, at),
            (query.where and aggregate_calls(query.where), no_aggregates, query.where[0].at if query.where else at),
        )
        where = None if query.where is None else scope.condition(scope.resolved(query.where), "WHERE")
        return (self._grouped if is_grouped else self._projected)(query, source, scope, where)

    # FROM.

    def relation(self, query: SelectQuery) -> Relation:
        """Return what a query reads.

        Raises:
            SqlError: Something is unknown, or does not join.
        """
        aliases: list[str] = []
        for each in (query.source, *(join.right for join in query.joins)):
            if each.alias.lower() in aliases:
                self._text.fail(f"{each.alias} occurs twice; give each source an alias of its own", each.at)
            aliases.append(each.alias.lower())
        threes = zip(query.words, query.words[1:], query.words[2:], strict=False)
        of_times = [a for a, b, c in threes if (b.upper, c.identifier.upper()) == (".", "ROWTIME")]
        self._timed = {source.identifier.lower() for source in of_times}
        relation = self._of_source(query.source, is_joined=bool(query.joins))
        for number, join in enumerate(query.joins):
            relation = self._joined(relation, join, number)
        return relation

    def _of_source(self, from_: From, *, is_joined: bool) -> Relation:
        source = self._catalog.find(self._text, from_.name, from_.at)
        if from_.function is not None:
            return self._of_function(from_, from_.function)
        declared = "ROWTIME" if source.timestamp is None else source.timestamp[0]
        if from_.time is not None and from_.time.lower() not in ("rowtime", declared.lower()):
            remedy = f"declare WITH (TIMESTAMP = '{from_.time}')"
            self._text.fail(f"the event time of {source.name} is {declared}, and not {from_.time}; {remedy}", from_.at)
        relation = _relation(source, source, from_.alias, is_joined=is_joined)
        if from_.match is None:
            return relation
        planner = MatchPlanner(self._scope(*relation.columns), from_.match)
        match = planner.plan(from_, relation.carried, is_table=relation.is_table)
        call = FunctionCall(match, match.source, relation, tuple(each for each, _ in match.source.keys))
        return _relation(match.source, call, from_.alias, is_joined=is_joined)

    def _of_function(self, from_: From, called: str) -> Relation:
        """Return the output of a function of the user's, keyed by those columns of its input that it has too."""
        text, at = self._text, from_.at
        of = self._of_source(attrs.evolve(from_, function=None, alias=from_.name), is_joined=False)
        if of.is_table:
            text.fail(f"{called} takes a stream, and {from_.name} is a table, whose rows change", at)
        function = next((each for each in self._functions if each.lower() == called.lower()), None)
        if function is None:
            near = nearest(called, [*self._functions, "TUMBLE", "HOP", "SESSION"])
            text.fail(f"unknown function {called}{near}; give it: functions={{{called.lower()!r}: ...}}", at)
        self._called.add(function)
        scope = self._scope(*of.columns)
        keys = [scope.column(scope.resolved(each)) for each in from_.partition_by]
        names = tuple(each.stored for each in keys if each is not None and not each.is_pseudo)
        if len(names) < len(keys):
            text.fail(f"{called} is partitioned by columns of {from_.name}", from_.partition_by[0][0].at)
        columns = self._declared(function, at)
        keyed = tuple(each for each in columns if each[0] in names)
        own = keyed if len(keyed) == len(names) else ()
        values = tuple(each for each in columns if each not in own)
        read = self._catalog.find(text, from_.name, at)
        source = SqlSource(function.lower(), "STREAM", own, values, function, has_places=read.has_places)
        return _relation(source, FunctionCall(self._functions[function], source, of, names), from_.alias)

    def _declared(self, name: str, at: int) -> Columns:
        """Return the columns that a function declares by its annotations."""
        function = self._functions[name]
        try:
            schema = None if not hasattr(function, "on_timer") else inferred_output(function)
        except OutputDefinitionError as error:
            self._text.fail(str(error), at)
        must = f"functions={{{name!r}: ...}} must be a keyed.KeyedProcessFunction that declares its columns: annotate"
        classes = "-> Iterator[Alert], with an attrs class, a dataclass or a named tuple"
        if schema is None:
            self._text.fail(f"{must} what its methods yield, {classes}", at)
        return tuple((field.name, of_arrow(field.type) or STRING) for field in table_of([], schema).schema)

    def _joined(self, left: Relation, join: Join, number: int) -> Relation:
        text, at = self._text, join.at
        right = self._of_source(join.right, is_joined=True)
        kind = f"{'table' if left.is_table else 'stream'}-{'table' if right.is_table else 'stream'}"
        is_windowed = left.window is not None or right.window is not None
        are_streams, has_time = kind == "stream-stream", join.within is not None
        is_outer = join.kind not in ("INNER", "LEFT")
        of_streams = "WITHIN is for joins of two streams; a table has one row for each key at any time"
        windowed = "a windowed source does not join; join the streams first, and cut windows then"
        self._text.check(
            (kind == "table-stream", "a table does not join a stream; write FROM stream JOIN table", at),
            (are_streams and not has_time, "streams join WITHIN a time: JOIN other WITHIN 1 HOUR ON ...", at),
            (not are_streams and has_time, of_streams, at),
            (kind == "stream-table" and is_outer, "a stream joins a table with INNER or LEFT JOIN", at),
            (is_windowed, windowed, at),
        )
        self._check_sources(left, right, join)
        words = self._sides(left, right, join)
        scopes = [self._scope(*of.columns) for of in (left, right)]
        key, right_type = (scope.type_of(side) for scope, side in zip(scopes, words, strict=True))
        if key != right_type:
            if {key.base, right_type.base} != {"INT", "BIGINT"} or kind == "table-table":
                text.fail(f"the sides of ON are of types {key} and {right_type}; use CAST", join.on[0].at)
            key = BIGINT
        self._key_columns([""], [key], join.on[0].at, is_keyed=True)
        mine, other = (scope.column(side) for scope, side in zip(scopes, words, strict=True))
        left_is_key, right_is_key = (
            each is not None and len(of.keys) == 1 and each.stored in of.keys[0]
            for each, of in ((mine, left), (other, right))
        )
        on_at = join.on[0].at
        primary = next((f"{join.right.alias}.{each.name}" for each in right.columns if each.is_key), "")
        no_key = f"a table joins by its primary key: the condition must be ... = {primary}"
        is_foreign = kind == "table-table" and not left_is_key
        later = "a join by another column than the primary key is the first join of its query; create a table before it"
        self._text.check(
            (right.is_table and not right_is_key, no_key, on_at),
            (is_foreign and is_outer, "a join by another column than the primary key is INNER or LEFT JOIN", at),
            (is_foreign and isinstance(left.input, SourceJoin), later, on_at),
        )
        kind = "foreign-key" if is_foreign else kind
        sides = zip("lr", (mine, other), strict=True)
        named = [f"{number}{side}.{each.stored}" for side, each in sides if each is not None]
        own_key = f"{number}k.key" if kind != "foreign-key" and (join.kind == "FULL" or not named) else None
        joined: list[Column] = []
        steps: list[SqlStep] = []
        for side, of in enumerate((left, right)):
            # The time of a side is only carried if the query names it.
            sided = [each for each in of.columns if each.source is not None]
            kept = [e for e in sided if e.name != "ROWTIME" or str(e.source).lower() in self._timed]
            columns = [attrs.evolve(each, stored=f"{number}{'lr'[side]}.{each.stored}") for each in kept]
            cells = [(each, sql(words[side]), key) for each in (JOIN, own_key) if each is not None]
            cells += [(to.stored, quoted(each.stored), each.type) for to, each in zip(columns, kept, strict=True)]
            joined += columns
            steps.append(scopes[side].step(cells, None, of.carried))
        if kind == "foreign-key":
            keys_of = tuple(tuple(f"{number}l.{each}" for each in part) for part in left.keys)
        elif own_key is not None:
            label = free_name("ROWKEY", {each.name.lower() for each in joined})
            joined.append(Column(label, key, None, own_key, is_key=True))
            keys_of = ((own_key,),)
        else:
            # The other names of the left key come after the one that is compared.
            first = named[:1] if mine is not None else []
            more = [f"{number}l.{each}" for each in left.keys[0]] if left_is_key else []
            keys_of = (tuple(dict.fromkeys([*first, *more, *named])),)
        joined.append(Column("ROWTIME", BIGINT, None, TIMESTAMP_COLUMN, is_pseudo=True))
        on = f"{folded(words[0])} = {folded(words[1])}"
        plan = SourceJoin(kind, join, left, right, steps, key, on, own_key)
        return Relation(tuple(joined), left.is_table, keys_of, None, plan)

    def _sides(self, left: Relation, right: Relation, join: Join) -> tuple[Words, Words]:
        """Return the expressions of the left and the right side of ``ON``."""
        text, on = self._text, bare(join.on)
        parts = [part for each in split(on, "=") for part in split(each, "==")]
        if len(parts) != 2 or any(len(split(part, word)) > 1 for part in parts for word in ("AND", "OR")):
            text.fail("a join takes one equality: ON left_column = right_column", on[0].at)
        of_sides = enumerate((left, right))
        both = [attrs.evolve(each, stored=f"#{side}{each.stored}") for side, of in of_sides for each in of.columns]
        scope = self._scope(*both)
        sides = [{each.identifier[:2] for each in scope.resolved(part)} & {"#0", "#1"} for part in parts]
        if sides == [{"#1"}, {"#0"}]:
            parts.reverse()
        elif sides != [{"#0"}, {"#1"}]:
            text.fail("one side of ON must be of the joined source, the other of the sources before it", on[0].at)
        return self._scope(*left.columns).resolved(parts[0]), self._scope(*right.columns).resolved(parts[1])

    def _check_sources(self, left: Relation, right: Relation, join: Join) -> None:
        *others, last = sources = [*left.sources, *right.sources]
        for each in sources:
            if each.parts[1].format == "KAFKA":
                self._text.fail(f"{each.name} has the value format KAFKA, which does not support JOIN", join.at)
        if last in others:
            self._text.fail(f"{last.name} does not join itself; create a second stream or table of its topic", join.at)

    # Projections.

    def _items(self, query: SelectQuery, scope: NameScope) -> list[Item]:
        """Return the items of a projection with stars replaced by columns."""
        items: list[Item] = []
        for item in query.items:
            *base, star = item.words
            if star.upper != "*" or (base and base[-1].upper not in (".", "->")):
                items.append(item)
                continue
            if base and base[-1].upper == "->":
                type_ = scope.type_of(scope.resolved(base[:-1]))
                if type_.base != "STRUCT":
                    self._text.fail(f"->* takes a STRUCT, and this is of type {type_}", item.at)
                items += [Item((*base, name(each)), each, at=item.at) for each, _ in type_.fields]
                continue
            source = base[0].identifier.lower() if base else None
            if source is not None and source not in scope.sources:
                self._text.fail(f"unknown source {source}{nearest(source, scope.sources.values())}", item.at)
            own = [each for each in scope.columns if source in (None, str(each.source).lower())]
            columns = [each for each in own if not each.is_pseudo]
            for part in query.partition_by:
                if scope.column(scope.resolved(part)) is None and part[0].upper != "NULL":
                    items.append(Item(tuple(part), None, at=item.at))
            if query.partition_by:
                # The new key comes first, and the old one after the values.
                columns.sort(key=lambda each: each.is_key)
            for each in columns:
                words: Words = (attrs.evolve(name(each.name), at=item.at, end=star.end),)
                is_joined = query.joins and each.source is not None
                if is_joined:
                    words = (name(str(each.source)), sign("."), *words)
                items.append(Item(words, f"{each.source}_{each.name}" if is_joined else each.name, at=item.at))
        return items

    def _outputs(self, query: SelectQuery, scope: NameScope) -> list[_Output]:
        """Return the columns of the projection with their names."""
        outputs: list[_Output] = []
        used: set[str] = set()
        items = self._items(query, scope)
        known = {item.alias.lower() for item in items if item.alias} | {each.name.lower() for each in scope.columns}
        generated = itertools.count()
        for item in items:
            words = scope.resolved(item.words)
            column = scope.column(words)
            label = item.alias
            if label is None and column is not None:
                same = [each for each in scope.columns if each.name.lower() == column.name.lower()]
                is_shared = query.joins and column.source is not None and len(same) > 1
                label = f"{column.source}_{column.name}" if is_shared else column.name
            elif label is None and len(item.words) > 2 and item.words[-2].upper in ("->", "."):
                label = free_name(item.words[-1].identifier, used | known)
            elif label is None:
                label = next(each for each in map("KSQL_COL_{}".format, generated) if each.lower() not in known)
            is_own = column is not None and not column.is_pseudo and column.name == label
            is_taken = label.upper() in OWN_NAMES and not is_own
            reserved = f"{label}: names that begin with __keyed_ or # are reserved; choose another"
            self._text.check(
                (label.lower() in used, f"the projection has the column {label} twice; give one an alias", item.at),
                (is_taken, f"{label} is a column that each source has; give it another alias", item.at),
                (label.startswith(RESERVED), reserved, item.at),
            )
            used.add(label.lower())
            outputs.append(_Output(label, words, item.at))
        return outputs

    def _split_keys(
        self, outputs: list[_Output], key_terms: Sequence[Words], query: SelectQuery, labels: Sequence[str]
    ) -> tuple[list[str], list[_Output]]:
        """Return the names of the key's columns, and the outputs that are not the key."""
        names: list[str] = []
        rest = list(outputs)
        for part, what in zip(key_terms, labels, strict=True):
            hits = [each for each in rest if folded(each.words) == folded(part)]
            lacks = f"the projection lacks the key {what}: select the columns that it is keyed by"
            both = " and ".join(each.name for each in hits[:2])
            twice = f"the projection has the key twice, as {both}; write AS_VALUE(...) for a copy among the values"
            self._text.check((not hits, lacks, query.at), (len(hits) > 1, twice, hits[1].at if len(hits) > 1 else 0))
            names.append(hits[0].name)
            rest.remove(hits[0])
        return names, rest

    def _key_columns(self, names: Sequence[str], types: Sequence[SqlType], at: int, *, is_keyed: bool) -> Columns:
        wrong = [each for each in types if each.has("MAP") or (is_keyed and each.has_parts)]
        self._text.check(*((True, f"a value of type {each} cannot be a key; use its parts", at) for each in wrong))
        is_time = is_keyed and any(each.base == "TIMESTAMP" for each in types)
        self._text.check((is_time, "a TIMESTAMP cannot be a key; use its milliseconds, as in epoch_ms(at)", at))
        return tuple(zip(names, types, strict=True))

    def _shown(self, words: Sequence[Words]) -> list[str]:
        return [self._text.text[each[0].at : each[-1].end] for each in words]

    def _projected(self, query: SelectQuery, source: Relation, scope: NameScope, where: str | None) -> QueryPlan:
        outputs = self._outputs(query, scope)
        ranking = query.ranking
        partition = query.partition_by if ranking is None else ranking.partition_by
        if any(all(word.text in "()" for word in each) for each in partition):
            self._text.fail("PARTITION BY takes an expression, or NULL", partition[0][0].at)
        # Of an outer join a part of the key is on either side.
        cells_of = [[quoted(each) for each in part] for part in source.keys]
        either = [each[0] if len(each) == 1 else f"coalesce({', '.join(each)})" for each in cells_of]
        if [folded(each) for each in partition] == ["null"]:
            key_terms: list[Words] = []
        elif partition:
            key_terms = [scope.resolved(each) for each in partition]
        else:
            key_terms = self._own_keys(source, outputs)
        owners = {each.stored: f"{each.source}." if query.joins and each.source else "" for each in source.columns}
        named = {each.stored: owners[each.stored] + each.name for each in source.columns}
        labels = self._shown(partition) if partition else [named[each[0].identifier] for each in key_terms]
        names, rest = self._split_keys(outputs, key_terms, query, labels if key_terms else [])
        is_table = source.is_table or ranking is not None
        keys = self._key_columns(names, [scope.type_of(each) for each in key_terms], query.at, is_keyed=is_table)
        values = tuple((each.name, scope.type_of(each.words)) for each in rest)
        texts = [sql(each) for each in key_terms] if partition else either
        cells = [(each, text, type_) for (each, type_), text in zip(keys, texts, strict=True)]
        cells += [(each.name, sql(each.words), type_) for each, (_, type_) in zip(rest, values, strict=True)]
        identity, ranks = {"FROM": source.label}, None
        if ranking is not None:
            if ranking.name.lower() in [each.name.lower() for each in outputs]:
                self._text.fail(f"the projection has the column {ranking.name} twice; give one an alias", ranking.at)
            ordered = [scope.resolved(each) for each, _ in ranking.order_by]
            order = [(f"#o{place}", sql(each), scope.type_of(each)) for place, each in enumerate(ordered)]
            own = zip(self._own_keys(source, outputs), either, strict=True) if source.is_table else ()
            of_key = [(f"#k{place}", text, scope.type_of(each)) for place, (each, text) in enumerate(own)]
            cells += [*order, *of_key]
            ranks = RankPlan(keys, values, typed(order), typed(of_key), ranking)
            labels = [f"{folded(each)} {how}" for each, (_, how) in zip(ordered, ranking.order_by, strict=True)]
            groups = ", ".join(map(folded, key_terms))
            identity["QUALIFY"] = f"the first {ranking.count} by {groups} in the order of {', '.join(labels)}"
            keys = (*keys, (ranking.name, BIGINT))
        if source.is_table and where is not None:
            # The rows before a change leave, also those that an earlier WHERE has kept.
            where = f'"{CHANGE}" < 0 OR ({where})'
        explodes = any(each.words[place].upper == "UNNEST" for each in outputs for place, _ in calls(each.words))
        step = scope.step(cells, where, source.carried, explodes=explodes)
        return QueryPlan(source, step, None, keys, values, is_table, None, identity, ranks)

    def _own_keys(self, source: Relation, outputs: list[_Output]) -> list[Words]:
        """Return the columns of the key: of several that hold a part, the one that is selected."""
        selected = {each.words[0].identifier for each in outputs if len(each.words) == 1}
        chosen = [next((each for each in part if each in selected), part[0]) for part in source.keys]
        return [(attrs.evolve(name(each), at=0, end=0),) for each in chosen]

    # Aggregates.

    def _grouped(self, query: SelectQuery, source: Relation, scope: NameScope, where: str | None) -> QueryPlan:
        text, window = self._text, query.window
        self._text.check(
            (not query.group_by, "aggregates need GROUP BY", query.at),
            (query.partition_by, "GROUP BY and PARTITION BY exclude each other", query.at),
            *((aggregate_calls(each), "GROUP BY takes no aggregates", each[0].at) for each in query.group_by),
        )
        groups = [scope.resolved(each) for each in query.group_by]
        if len({folded(each) for each in groups}) < len(groups):
            text.fail("GROUP BY has an expression twice", query.group_by[0][0].at)
        types = [scope.type_of(each) for each in groups]
        outputs = self._outputs(query, scope)
        names, rest = self._split_keys(outputs, groups, query, self._shown(query.group_by))
        keys = self._key_columns(names, types, query.group_by[0][0].at, is_keyed=True)
        cells = [(each, sql(words), type_) for (each, type_), words in zip(keys, groups, strict=True)]
        # After the aggregates: groups, results and bounds.
        parts: list[tuple[Words, SqlToken]] = [(words, name(f"#g{place}")) for place, words in enumerate(groups)]
        aggregates: dict[str, Any] = {}
        call_texts: list[str] = []
        reader = AggregateReader(scope, self._properties, source.is_table)
        after_columns = [Column(f"#g{place}", type_, None, f"#g{place}") for place, type_ in enumerate(types)]
        having = None if query.having is None else scope.resolved(query.having)
        for words in [each.words for each in outputs] + ([having] if having else []):
            for start, end in aggregate_calls(words):
                call = words[start : end + 1]
                if folded(call) in call_texts:
                    continue
                aggregate = reader.read(call, len(call_texts))
                call_texts.append(folded(call))
                aggregates |= {each: of for each, (of, _) in aggregate.parts.items()}
                cells += aggregate.arguments
                parts.append((call, SqlToken("word", aggregate.result)))
                after_columns += [Column(each, type_, None, each) for each, (_, type_) in aggregate.parts.items()]
        if window is not None:
            after_columns += [Column(each, type_, None, stored) for each, (stored, type_) in BOUNDS.items()]
        after = self._scope(*after_columns)
        results = [(each.name, self._regrouped(each.words, parts, scope)) for each in rest]
        if not aggregates:
            text.fail("GROUP BY needs an aggregate, such as COUNT(*)", query.at)
        after_cells = [(each, quoted(f"#g{place}"), types[place]) for place, each in enumerate(names)]
        after_cells += [(each, sql(words), after.type_of(words)) for each, words in results]
        condition = None if having is None else after.condition(self._regrouped(having, parts, scope), "HAVING")
        if source.is_table:
            # A group without rows is no group.
            cells.append(("#rows", f'CAST("{CHANGE}" AS BIGINT)', BIGINT))
            aggregates["#there"] = Sum("#rows")
            is_there = '"#there" > 0'
            condition = is_there if condition is None else f"{is_there} AND ({condition})"
        before = scope.step(cells, where, source.carried)
        bounds = () if window is None else BOUNDS
        grouping = Aggregation(
            typed(cells[len(keys) :]),
            aggregates,
            after.step(after_cells, condition, (*bounds, TIMESTAMP_COLUMN)),
            None if window is None else _with_times(window, is_final=query.emit == "FINAL"),
            query.emit == "FINAL",
        )
        identity = {
            "FROM": source.label,
            "WINDOW": window.text if window else "",
            "GROUP BY": ", ".join(map(folded, groups)),
            "HAVING": folded(having or ()),
            "aggregates": ", ".join(call_texts),
            "EMIT": query.emit or "",
            # The rows of a table leave the aggregates that they are in.
            "WHERE": where or "" if source.is_table else "",
        }
        identity = {part: text for part, text in identity.items() if text}
        size = None if window is None else (window.kind, None if window.kind == "SESSION" else window.size_ms)
        return QueryPlan(source, before, grouping, keys, typed(after_cells[len(names) :]), True, size, identity)

    def _regrouped(self, words: Words, parts: Sequence[tuple[Words, SqlToken]], scope: NameScope) -> Words:
        """Return an expression over the groups and results.

        Args:
            words: The expression over the rows.
            parts: The groups and aggregates, with the names of their columns.
            scope: The names of the rows.

        Raises:
            SqlError: It names a column that is neither a group nor in an aggregate.
        """
        words = replaced(words, parts)
        check(self._text, words)
        for place, _ in calls(words):
            token = words[place]
            is_known = token.identifier.startswith("#") or token.upper in keywords()
            if not is_known and token.identifier.upper() not in functions():
                known = {*functions(), *AGGREGATES, *PYTHON}
                self._text.fail(f"unknown function {token.identifier}{nearest(token.identifier, known)}", token.at)
        for token in words:
            column = None if token.identifier.startswith("#") or token.identifier in BOUNDS else scope.column([token])
            if column is not None:
                remedy = f"write LATEST_BY_OFFSET({column.name})"
                self._text.fail(f"{column.name} is neither in GROUP BY nor in an aggregate; {remedy}", token.at)
        return words


def _with_times(window: WindowClause, *, is_final: bool) -> WindowClause:
    """Return a clause with the grace period and the retention that windows have by default."""
    grace_ms = 0 if is_final else max(0, DAY_MS - window.size_ms)
    grace_ms = grace_ms if window.grace_ms is None else window.grace_ms
    retention_ms = window.retention_ms or (0 if is_final else DAY_MS)
    if window.kind == "SESSION":
        # It ends here with its last row, and takes rows for a gap, which may be as long as it is.
        grace_ms, retention_ms = grace_ms + window.size_ms + 1, retention_ms and retention_ms + 1
    return attrs.evolve(window, grace_ms=grace_ms, retention_ms=retention_ms)


def _relation(source: SqlSource, origin: Any, alias: str, *, is_joined: bool = False) -> Relation:
    """Return the rows of a source."""
    pseudo = {"ROWTIME": PSEUDO["ROWTIME"]} if is_joined else PSEUDO
    pseudo = pseudo | (BOUNDS if source.window is not None else {})
    keys = [each for each, _ in source.keys]
    columns = [Column(each, type_, alias, each, is_key=each in keys) for each, type_ in source.columns]
    columns += [Column(each, type_, alias, stored, is_pseudo=True) for each, (stored, type_) in pseudo.items()]
    window = None if source.window is None else (source.window, source.window_ms)
    return Relation(tuple(columns), source.is_table, tuple((each,) for each in keys), window, origin)
