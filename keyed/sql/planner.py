"""Plans queries: stateless steps, and the keyed operator between them. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from keyed.formats.sql_types import BIGINT, SqlType
from keyed.shown import nearest
from keyed.sql.catalog import CHANGE, STREAM, Catalog, SqlSource
from keyed.sql.engine import PYTHON, Columns, SqlStep, check, functions, keywords
from keyed.sql.name_scope import BOUNDS, PSEUDO, Column, NameScope, replaced
from keyed.sql.script_errors import Text
from keyed.sql.sql_aggregates import AGGREGATES, aggregate_of
from keyed.sql.statements import From, Item, Join, SelectQuery, WindowClause
from keyed.sql.tokens import SqlToken, calls, closing, folded, name, sign, sql
from keyed.vectorized import TIMESTAMP_COLUMN
from keyed.windows import Sum

_RESERVED_NAMES = {*PSEUDO, *BOUNDS}


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
    input: SqlSource | SourceJoin

    @property
    def sources(self) -> list[SqlSource]:
        """The sources that it reads."""
        if isinstance(self.input, SqlSource):
            return [self.input]
        return [*self.input.left.sources, *self.input.right.sources]

    @property
    def carried(self) -> tuple[str, ...]:
        """Columns of its batches that each step passes on: the event time, the change, the bounds of windows."""
        return (
            TIMESTAMP_COLUMN,
            CHANGE if self.is_table else STREAM,
            *(("WINDOWSTART", "WINDOWEND") if self.window is not None else ()),
        )

    @property
    def label(self) -> str:
        """Names of the sources, as the checkpoint has them."""
        if isinstance(self.input, SqlSource):
            return self.input.name.lower()
        join = self.input
        return f"{join.left.label} {join.how} {join.right.label} {join.on} {join.within}"


@attrs.frozen(eq=False)
class SourceJoin:
    """A join of two relations by an equality.

    Attributes:
        kind: ``stream-stream``, ``stream-table``, ``table-table`` or ``foreign-key``.
        how: ``INNER``, ``LEFT``, ``RIGHT`` or ``FULL``.
        left: The left relation.
        right: The right relation.
        left_step: Gives the left rows their columns in joined rows, and the key ``#join``.
        right_step: The same for the right rows.
        key: Type of the key.
        within: Times before and after, and the grace period, in milliseconds.
        on: The equality.
        own_key: The column of joined rows for the key, if it is no column of either side.
    """

    kind: str
    how: str
    left: Relation
    right: Relation
    left_step: SqlStep
    right_step: SqlStep
    key: SqlType
    within: tuple[int, int, int | None] | None
    on: str
    own_key: str | None


#: The column of a join's key in batches.
JOIN = "#join"


@attrs.frozen(eq=False)
class Grouping:
    """The aggregates of a query.

    Attributes:
        keys: The columns of the groups in batches, with their types.
        aggregates: The aggregates with the types of their results, by the names of their columns.
        window: The window clause.
        is_final: Only results of windows that have ended are emitted.
    """

    keys: Columns
    aggregates: Mapping[str, tuple[Any, SqlType]]
    window: WindowClause | None
    is_final: bool


@attrs.frozen(eq=False)
class QueryPlan:
    """A planned query.

    Attributes:
        relation: What it reads.
        before: The step over what it reads.
        grouping: The aggregates; ``None`` without.
        after: The step over their results.
        keys: Columns of the output's key.
        values: Its other columns.
        is_table: The output is a table.
        window: Type and size of the output's windows.
        keeps_key: Rows stay with the key of the source.
        identity: The parts of the query that its state depends on, by name.
    """

    relation: Relation
    before: SqlStep
    grouping: Grouping | None
    after: SqlStep | None
    keys: Columns
    values: Columns
    is_table: bool
    window: tuple[str, int | None] | None
    keeps_key: bool
    identity: Mapping[str, str]

    @property
    def row_window(self) -> tuple[str, int | None] | None:
        """Type and size of the windows of its records: those of what it reads, without aggregates."""
        return self.relation.window if self.grouping is None else self.window

    def steps(self) -> list[dict[str, Any]]:
        """Return the steps of the query, for ``EXPLAIN``."""
        found = [("read", f"{each.kind} {each.name}, topic {each.topic}") for each in self.relation.sources]
        if isinstance(self.relation.input, SourceJoin):
            found.append(("join", f"{self.relation.input.kind}, by {self.relation.input.on}"))
        found += [("filter", self.before.where)] if self.before.where else []
        found += [("compute", ", ".join(expression for _, expression, _ in self.before.columns) or "nothing")]
        if self.grouping is not None and self.after is not None:
            kind = "in windows" if self.grouping.window is not None else "without windows"
            found.append(("aggregate", f"{kind}, by {', '.join(each for each, _ in self.keys)}"))
            found += [("filter", self.after.where)] if self.after.where else []
            found.append(("compute", ", ".join(expression for _, expression, _ in self.after.columns)))
        found.append(("state", "aggregates, and the rows of the table" if self.grouping is not None else "none"))
        return [{"step": step, "detail": detail} for step, detail in found]


@attrs.frozen
class _Output:
    """A column of the output: its name, resolved expression and place in the text."""

    name: str
    words: tuple[SqlToken, ...]
    at: int


class Planner:
    """Plans the queries of a script.

    Args:
        text: The script.
        catalog: The streams and tables.
        values: The values of parameters.
        properties: The settings of ``SET``.
    """

    def __init__(self, text: Text, catalog: Catalog, values: Mapping[str, Any], properties: Mapping[str, str]) -> None:
        self._text = text
        self._catalog = catalog
        self._values = values
        self._properties = properties

    def plan(self, query: SelectQuery, kind: str, output: str) -> QueryPlan:
        """Return the plan of a query.

        Args:
            query: The query.
            kind: ``STREAM`` or ``TABLE``: what is created of it.
            output: Name of the output, for errors.

        Raises:
            SqlError: It is not valid.
        """
        text = self._text
        if query.limit is not None:
            text.fail("LIMIT is for queries that are read, not for a stream or table", query.at)
        source = self.relation(query)
        if query.window is not None or any(each.within is not None for each in query.joins):
            self._check_times(query, source)
        scope = NameScope(text, source.columns, self._values)
        if source.is_table and source.window is not None:
            text.fail("a windowed table is not read by another query; write its query over the stream", query.at)
        if query.group_by or any(_aggregate_calls(item.words) for item in query.items):
            return self._grouped(query, source, scope, kind, output)
        if query.having is not None:
            text.fail("HAVING needs GROUP BY; write WHERE", query.having[0].at)
        if query.window is not None:
            text.fail("WINDOW needs GROUP BY", query.window.at)
        if query.emit == "FINAL":
            text.fail("EMIT FINAL needs a WINDOW and GROUP BY", query.at)
        if source.is_table != (kind == "TABLE"):
            wanted = "TABLE" if source.is_table else "STREAM"
            text.fail(f"the result of this query is a {wanted}; write CREATE {wanted} {output} AS SELECT ...", query.at)
        if query.partition_by and source.is_table:
            text.fail("PARTITION BY is for streams; a table is partitioned by its primary key", query.at)
        return self._projected(query, source, scope)

    def _check_times(self, query: SelectQuery, source: Relation) -> None:
        """Check that no stream has other times than those by which the progress of time is measured.

        Raises:
            SqlError: One has.
        """
        for each in source.sources:
            if each.is_query and each.timestamp is not None:
                self._text.fail(
                    f"the query of {each.name} sets its times, with TIMESTAMP = '{each.timestamp[0]}', and this one "
                    "would drop its rows as late; declare TIMESTAMP where the rows are declared",
                    query.source.at,
                )

    # FROM.

    def relation(self, query: SelectQuery) -> Relation:
        """Return what a query reads.

        Raises:
            SqlError: Something is unknown, or does not join.
        """
        aliases: list[str] = []
        for each in (query.source, *(join.right for join in query.joins)):
            self._catalog.find(self._text, each.name, each.at)
            if each.alias.lower() in aliases:
                self._text.fail(f"{each.alias} occurs twice; give each source an alias of its own", each.at)
            aliases.append(each.alias.lower())
        found = self._of_source(query.source, is_joined=bool(query.joins))
        for number, join in enumerate(query.joins):
            found = self._joined(found, join, number)
        return found

    def _of_source(self, given: From, *, is_joined: bool) -> Relation:
        source = self._catalog.find(self._text, given.name, given.at)
        alias = given.alias
        declared = "ROWTIME" if source.timestamp is None else source.timestamp[0]
        if given.time is not None and given.time.lower() not in ("rowtime", declared.lower()):
            self._text.fail(
                f"the event time of {source.name} is {declared}, and not {given.time}; declare WITH (TIMESTAMP = "
                f"'{given.time}')",
                given.at,
            )
        columns = [Column(each, type_, alias, each, is_key=True) for each, type_ in source.keys]
        columns += [Column(each, type_, alias, each) for each, type_ in source.values]
        pseudo = {"ROWTIME": PSEUDO["ROWTIME"]} if is_joined else PSEUDO
        pseudo = pseudo | (BOUNDS if source.window is not None else {})
        columns += [Column(each, type_, alias, stored, is_pseudo=True) for each, (stored, type_) in pseudo.items()]
        keys = tuple((each,) for each, _ in source.keys)
        window = None if source.window is None else (source.window, source.window_ms)
        return Relation(tuple(columns), source.is_table, keys, window, source)

    def _joined(self, left: Relation, join: Join, number: int) -> Relation:
        text = self._text
        right = self._of_source(join.right, is_joined=True)
        if left.is_table and not right.is_table:
            text.fail("a table does not join a stream; put the stream first: FROM stream JOIN table", join.at)
        kind = f"{'table' if left.is_table else 'stream'}-{'table' if right.is_table else 'stream'}"
        if (kind == "stream-stream") != (join.within is not None):
            text.fail(
                "streams join WITHIN a time: JOIN other WITHIN 1 HOUR ON ..."
                if join.within is None
                else "WITHIN is for joins of two streams; a table has one row for each key at any time",
                join.at,
            )
        if kind == "stream-table" and join.kind not in ("INNER", "LEFT"):
            text.fail("a stream joins a table with INNER or LEFT JOIN", join.at)
        if left.window is not None or right.window is not None:
            text.fail("a windowed source does not join; join the streams first, and cut windows then", join.at)
        self._check_sources(left, right, join)
        mine, other = self._sides(left, right, join)
        left_type, right_type = (
            NameScope(text, left.columns, self._values).type_of(mine),
            NameScope(text, right.columns, self._values).type_of(other),
        )
        key = left_type
        if left_type != right_type:
            if {left_type.base, right_type.base} != {"INT", "BIGINT"} or kind == "table-table":
                text.fail(f"the sides of ON are of types {left_type} and {right_type}; use CAST", join.on[0].at)
            key = BIGINT
        if key.base in ("ARRAY", "MAP", "STRUCT"):
            text.fail(f"a value of type {key} cannot be a key; join by its parts", join.on[0].at)
        left_column = NameScope(text, left.columns, self._values).column(mine)
        right_column = NameScope(text, right.columns, self._values).column(other)
        right_is_key = right_column is not None and len(right.keys) == 1 and right_column.stored in right.keys[0]
        left_is_key = left_column is not None and len(left.keys) == 1 and left_column.stored in left.keys[0]
        if right.is_table and not right_is_key:
            keys = [each.name for each in right.columns if each.is_key]
            text.fail(
                f"a table joins by its primary key: the condition must be ... = {join.right.alias}.{keys[0]}",
                join.on[0].at,
            )
        if kind == "table-table" and not left_is_key:
            kind = "foreign-key"
            if join.kind not in ("INNER", "LEFT"):
                text.fail("a join by another column than the primary key is INNER or LEFT JOIN", join.at)
            if isinstance(left.input, SourceJoin):
                text.fail(
                    "a join by another column than the primary key is the first join of its query; create a table of "
                    "the joins before it",
                    join.on[0].at,
                )
        prefix = [f"{number}l.", f"{number}r."]
        renamed = [
            {each.stored: f"{prefix[side]}{each.stored}" for each in of.columns}
            for side, of in enumerate((left, right))
        ]
        columns = [
            attrs.evolve(each, stored=renamed[side][each.stored], is_pseudo=each.is_pseudo)
            for side, of in enumerate((left, right))
            for each in of.columns
            if each.source is not None and each.name != "ROWTIME"
        ]
        viable: list[str] = []
        own_key = None
        if kind == "foreign-key":
            keys_of = tuple(tuple(renamed[0][each] for each in part) for part in left.keys)
        else:
            if join.kind != "FULL":
                if left_column is not None:
                    viable.append(renamed[0][left_column.stored])
                    if left_is_key:
                        viable += [renamed[0][each] for each in left.keys[0] if each != left_column.stored]
                if right_column is not None:
                    viable.append(renamed[1][right_column.stored])
            if join.kind == "INNER" and right_column is not None and left_column is None:
                viable = [renamed[1][right_column.stored]]
            if not viable:
                taken = {each.name.lower() for each in columns}
                own = next(
                    each
                    for each in ("ROWKEY", *(f"ROWKEY_{count}" for count in range(1, 99)))
                    if each.lower() not in taken
                )
                own_key = f"{number}k.key"
                columns.append(Column(own, key, None, own_key, is_key=True))
                viable = [own_key]
            keys_of = (tuple(viable),)
        rowtime = Column("ROWTIME", BIGINT, None, TIMESTAMP_COLUMN, is_pseudo=True)
        steps = [
            SqlStep(
                (
                    (JOIN, sql(words), key),
                    *(((own_key, sql(words), key),) if own_key is not None else ()),
                    *(
                        (renamed[side][each.stored], sql((name(each.stored),)), each.type)
                        for each in of.columns
                        if each.source is not None and each.name != "ROWTIME"
                    ),
                ),
                None,
                of.carried,
                self._values,
                times=NameScope(text, of.columns, self._values).times,
            )
            for side, (of, words) in enumerate(((left, mine), (right, other)))
        ]
        plan = SourceJoin(
            kind,
            join.kind,
            left,
            right,
            steps[0],
            steps[1],
            key,
            join.within,
            f"{folded(mine)} = {folded(other)}",
            own_key,
        )
        return Relation((*columns, rowtime), left.is_table, keys_of, None, plan)

    def _sides(self, left: Relation, right: Relation, join: Join) -> tuple[tuple[SqlToken, ...], tuple[SqlToken, ...]]:
        """Return the expressions of the left and the right side of ``ON``."""
        text, on = self._text, list(join.on)
        while on[0].text == "(" and closing(on, 0) == len(on) - 1:
            on = on[1:-1]
        depth, at = 0, []
        for place, token in enumerate(on):
            if token.kind == "sign":
                depth += (token.text in "([{") - (token.text in ")]}")
                if depth == 0 and token.text in ("=", "=="):
                    at.append(place)
            if depth == 0 and token.upper in ("AND", "OR"):
                text.fail("a join takes one equality: ON left_column = right_column", token.at)
        if len(at) != 1:
            text.fail("a join takes one equality: ON left_column = right_column", on[0].at)
        parts = on[: at[0]], on[at[0] + 1 :]
        both = NameScope(text, (*left.columns, *right.columns), self._values)
        alias = join.right.alias.lower()
        owners = [both.owners(part) for part in parts]
        if owners[0] == {alias} and alias not in owners[1] and owners[1]:
            parts = parts[1], parts[0]
        elif owners[1] != {alias} or alias in owners[0] or not owners[0]:
            text.fail("one side of ON must be of the joined source, the other of the sources before it", on[0].at)
        mine = NameScope(text, left.columns, self._values).resolved(parts[0])
        return mine, NameScope(text, right.columns, self._values).resolved(parts[1])

    def _check_sources(self, left: Relation, right: Relation, join: Join) -> None:
        sources = [*left.sources, *right.sources]
        for each in sources:
            if each.value_format == "KAFKA":
                self._text.fail(f"{each.name} has the value format KAFKA, which does not support JOIN", join.at)
        if any(each.name == sources[-1].name for each in sources[:-1]):
            self._text.fail(
                f"{sources[-1].name} does not join itself; create a second stream or table of its topic", join.at
            )

    # Projections.

    def _items(self, query: SelectQuery, scope: NameScope) -> list[Item]:
        """Return the items of a projection with stars replaced by columns."""
        found: list[Item] = []
        for item in query.items:
            if item.words[-1].text != "*" or (len(item.words) > 1 and item.words[-2].text not in (".", "->")):
                found.append(item)
                continue
            if len(item.words) > 2 and item.words[-2].text == "->":
                base = scope.resolved(item.words[:-2])
                type_ = scope.type_of(base)
                if type_.base != "STRUCT":
                    self._text.fail(f"->* takes a STRUCT, and this is of type {type_}", item.at)
                arrow = item.words[-2]
                found += [Item((*item.words[:-2], arrow, name(each)), each, at=item.at) for each, _ in type_.fields]
                continue
            source = item.words[0].identifier.lower() if len(item.words) == 3 else None
            if source is not None and source not in scope.sources:
                self._text.fail(f"unknown source {source}{nearest(source, scope.sources.values())}", item.at)
            columns = scope.columns
            for part in query.partition_by:
                if scope.column(scope.resolved(part)) is None and part[0].upper != "NULL":
                    found.append(Item(tuple(part), None, at=item.at))
            if query.partition_by:
                # The new key comes first, and the old one after the values.
                columns = (*(each for each in columns if not each.is_key), *(each for each in columns if each.is_key))
            for each in columns:
                if each.is_pseudo or source not in (None, str(each.source).lower()):
                    continue
                words: tuple[SqlToken, ...] = (attrs.evolve(name(each.name), at=item.at, end=item.words[0].end),)
                shown = each.name
                if query.joins and each.source is not None:
                    words, shown = (name(each.source), sign("."), *words), f"{each.source}_{each.name}"
                found.append(Item(words, shown, at=item.at))
        return found

    def _outputs(self, query: SelectQuery, scope: NameScope) -> list[_Output]:
        """Return the columns of the projection with their names."""
        found: list[_Output] = []
        items = self._items(query, scope)
        taken = {item.alias.lower() for item in items if item.alias} | {each.name.lower() for each in scope.columns}
        generated = 0
        for item in items:
            words = scope.resolved(_bare(item.words))
            column = scope.column(words)
            shown = item.alias
            if item.alias is None and column is not None and query.joins and column.source is not None:
                same = [each for each in scope.columns if each.name.lower() == column.name.lower()]
                shown = f"{column.source}_{column.name}" if len(same) > 1 else column.name
            elif item.alias is None and column is not None:
                shown = column.name
            elif shown is None and len(item.words) > 2 and item.words[-2].text in ("->", "."):
                shown = item.words[-1].identifier
                count = 0
                while shown.lower() in {each.name.lower() for each in found} | taken:
                    count += 1
                    shown = f"{item.words[-1].identifier}_{count}"
            elif shown is None:
                while f"ksql_col_{generated}" in taken:
                    generated += 1
                shown = f"KSQL_COL_{generated}"
                generated += 1
            if shown.lower() in {each.name.lower() for each in found}:
                self._text.fail(f"the projection has the column {shown} twice; give one an alias", item.at)
            is_own = column is not None and not column.is_pseudo and column.name == shown
            if shown.upper() in _RESERVED_NAMES and not is_own:
                self._text.fail(f"{shown} is a column that each source has; give it another alias", item.at)
            if shown.startswith(("__keyed_", "#")):
                self._text.fail(f"{shown}: names that begin with __keyed_ or # are reserved; choose another", item.at)
            found.append(_Output(shown, words, item.at))
        return found

    def _condition(
        self, words: Sequence[SqlToken] | None, scope: NameScope, clause: str
    ) -> tuple[SqlToken, ...] | None:
        if words is None:
            return None
        resolved = scope.resolved(words)
        type_ = scope.type_of(resolved)
        if type_.base != "BOOLEAN":
            self._text.fail(f"{clause} takes a condition, and this is of type {type_}", words[0].at)
        return resolved

    def _split_keys(
        self, outputs: list[_Output], wanted: Sequence[Sequence[SqlToken]], query: SelectQuery, shown: Sequence[str]
    ) -> tuple[list[str], list[_Output]]:
        """Return the names of the key's columns, and the outputs that are not the key."""
        names: list[str] = []
        rest = list(outputs)
        for part, what in zip(wanted, shown, strict=True):
            hits = [each for each in rest if folded(each.words) == folded(part)]
            if not hits:
                self._text.fail(
                    f"the projection lacks the key {what}: select the columns that it is keyed by", query.at
                )
            if len(hits) > 1:
                self._text.fail(
                    f"the projection has the key twice, as {hits[0].name} and {hits[1].name}; write AS_VALUE(...) for "
                    "a copy among the values",
                    hits[1].at,
                )
            names.append(hits[0].name)
            rest.remove(hits[0])
        return names, rest

    def _projected(self, query: SelectQuery, source: Relation, scope: NameScope) -> QueryPlan:
        for item in query.items:
            if _aggregate_calls(item.words):
                self._text.fail("aggregates need GROUP BY", item.at)
        outputs = self._outputs(query, scope)
        where = self._condition(query.where, scope, "WHERE")
        if query.where and _aggregate_calls(query.where):
            self._text.fail("WHERE sees single rows; write HAVING for aggregates", query.where[0].at)
        partition = [tuple(each) for each in query.partition_by]
        if any(all(word.text in "()" for word in each) for each in partition):
            self._text.fail("PARTITION BY takes an expression, or NULL", partition[0][0].at)
        if len(partition) == 1 and len(partition[0]) == 1 and partition[0][0].upper == "NULL":
            wanted: list[tuple[SqlToken, ...]] = []
        elif partition:
            wanted = [scope.resolved(_bare(each)) for each in partition]
        else:
            wanted = self._own_keys(source, outputs)
        named = {
            each.stored: f"{each.source}.{each.name}" if query.joins and each.source else each.name
            for each in source.columns
        }
        shown = [
            self._text.text[each[0].at : each[-1].end] or named.get(each[0].identifier, each[0].identifier)
            for each in wanted
        ]
        names, rest = self._split_keys(outputs, wanted, query, shown)
        key_types = [scope.type_of(each) for each in wanted]
        for type_ in key_types:
            if type_.has_map:
                self._text.fail(f"a key of type {type_}, which has a map, is not supported", query.at)
        keys = tuple(zip(names, key_types, strict=True))
        values = tuple((each.name, self._type_of(scope, each)) for each in rest)
        cells = [(each, sql(words), type_) for (each, type_), words in zip(keys, wanted, strict=True)]
        if not partition:
            # Of an outer join, the key is on either side.
            either = [", ".join(sql((name(each),)) for each in part) for part in source.keys if len(part) > 1]
            cells[: len(either)] = [
                (each, f"coalesce({of})", t) for (each, _, t), of in zip(cells, either, strict=False)
            ]
        cells += [(each.name, sql(each.words), type_) for each, (_, type_) in zip(rest, values, strict=True)]
        step = SqlStep(
            tuple(cells),
            None if where is None else sql(where),
            source.carried,
            self._values,
            explodes=any(_explodes(each.words) for each in outputs),
            times=scope.times,
        )
        return QueryPlan(
            source, step, None, None, keys, values, source.is_table, None, not partition, {"FROM": source.label}
        )

    def _own_keys(self, source: Relation, outputs: list[_Output]) -> list[tuple[SqlToken, ...]]:
        """Return the columns of the key: of several that hold a part, the one that is selected."""
        selected = {each.words[0].identifier for each in outputs if len(each.words) == 1}
        chosen = [next((each for each in part if each in selected), part[0]) for part in source.keys]
        return [(attrs.evolve(name(each), at=0, end=0),) for each in chosen]

    def _type_of(self, scope: NameScope, output: _Output) -> SqlType:
        return scope.type_of(output.words)

    # Aggregates.

    def _grouped(self, query: SelectQuery, source: Relation, scope: NameScope, kind: str, output: str) -> QueryPlan:
        text = self._text
        if kind == "STREAM":
            text.fail(f"the result of GROUP BY is a TABLE; write CREATE TABLE {output} AS SELECT ...", query.at)
        if not query.group_by:
            text.fail("aggregates need GROUP BY", query.at)
        if query.partition_by:
            text.fail("GROUP BY and PARTITION BY exclude each other", query.at)
        if query.window is not None and source.is_table:
            text.fail("WINDOW is for streams, and this is a table", query.window.at)
        if query.emit == "FINAL" and query.window is None:
            text.fail("EMIT FINAL needs a WINDOW: without one no result is final", query.at)
        if query.where and _aggregate_calls(query.where):
            text.fail("WHERE sees single rows; write HAVING for aggregates", query.where[0].at)
        where = self._condition(query.where, scope, "WHERE")
        groups: list[tuple[SqlToken, ...]] = []
        for each in query.group_by:
            if _aggregate_calls(each):
                text.fail("GROUP BY takes no aggregates", each[0].at)
            resolved = scope.resolved(_bare(each))
            if folded(resolved) in map(folded, groups):
                text.fail("GROUP BY has an expression twice", each[0].at)
            groups.append(resolved)
        types = [scope.type_of(each) for each in groups]
        for type_, each in zip(types, query.group_by, strict=True):
            if type_.base in ("ARRAY", "MAP", "STRUCT"):
                text.fail(f"a value of type {type_} cannot be a key; group by its parts", each[0].at)
        outputs = self._outputs(query, scope)
        shown = [self._text.text[each[0].at : each[-1].end] for each in query.group_by]
        names, rest = self._split_keys(outputs, groups, query, shown)
        keys: Columns = tuple(zip(names, types, strict=True))
        cells = [(each, sql(words), type_) for (each, type_), words in zip(keys, groups, strict=True)]
        # After the aggregates: groups, results and bounds.
        parts: list[tuple[Sequence[SqlToken], SqlToken]] = [
            (words, name(f"#g{place}")) for place, words in enumerate(groups)
        ]
        aggregates: dict[str, tuple[Any, SqlType]] = {}
        calls_found: list[str] = []
        after_columns = [Column(f"#g{place}", type_, None, f"#g{place}") for place, type_ in enumerate(types)]
        having = None if query.having is None else scope.resolved(query.having)
        for words in [each.words for each in outputs] + ([having] if having else []):
            for start, end in _aggregate_calls(words):
                call = words[start : end + 1]
                if folded(call) in calls_found:
                    continue
                made = aggregate_of(text, call, scope, len(calls_found), self._properties, is_table=source.is_table)
                calls_found.append(folded(call))
                aggregates |= made.parts
                cells += made.arguments
                parts.append((call, SqlToken("word", made.result)))
                after_columns += [Column(each, type_, None, each) for each, (_, type_) in made.parts.items()]
        if not aggregates:
            for output_ in outputs:
                self._check_grouped(replaced(output_.words, parts), scope)
            text.fail("GROUP BY needs an aggregate, such as COUNT(*)", query.at)
        if query.window is not None:
            after_columns += [Column(each, type_, None, stored) for each, (stored, type_) in BOUNDS.items()]
        after = NameScope(text, after_columns, self._values)
        made_items = []
        for item in rest:
            words = replaced(item.words, parts)
            if query.window is not None:
                words = after.resolved(words)
            self._check_grouped(words, scope)
            made_items.append((item.name, sql(words), after.type_of(words)))
        condition = None
        if having is not None:
            words = replaced(having, parts)
            if query.window is not None:
                words = after.resolved(words)
            self._check_grouped(words, scope)
            if after.type_of(words).base != "BOOLEAN":
                text.fail("HAVING takes a condition", query.having[0].at if query.having else query.at)
            condition = sql(words)
        key_cells = [(each, sql((name(f"#g{place}"),)), types[place]) for place, each in enumerate(names)]
        if source.is_table:
            # A group without rows is no group.
            cells.append(("#rows", f'CAST("{CHANGE}" AS BIGINT)', BIGINT))
            aggregates["#there"] = (Sum("#rows"), BIGINT)
            is_there = '"#there" > 0'
            condition = is_there if condition is None else f"{is_there} AND ({condition})"
        before = SqlStep(
            tuple(cells), None if where is None else sql(where), source.carried, self._values, times=scope.times
        )
        is_windowed = query.window is not None
        kept = ("WINDOWSTART", "WINDOWEND") if is_windowed else ()
        step = SqlStep((*key_cells, *made_items), condition, kept, self._values, times=after.times)
        grouping = Grouping(keys, aggregates, query.window, query.emit == "FINAL")
        window = query.window
        identity = {
            "FROM": source.label,
            "WINDOW": "" if window is None else str(attrs.astuple(window)[:5]),
            "GROUP BY": ", ".join(map(folded, groups)),
            "HAVING": condition or "",
            "aggregates": ", ".join(calls_found),
            "EMIT": query.emit or "",
        }
        keeps = len(groups) == len(source.keys) and all(
            len(words) == 1 and words[0].identifier in part for words, part in zip(groups, source.keys, strict=True)
        )
        return QueryPlan(
            source,
            before,
            grouping,
            step,
            tuple(zip(names, types, strict=True)),
            tuple((each, type_) for each, _, type_ in made_items),
            True,
            None if window is None else (window.kind, None if window.kind == "SESSION" else window.size_ms),
            keeps,
            identity,
        )

    def _check_grouped(self, words: Sequence[SqlToken], scope: NameScope) -> None:
        """Check that an expression names no column that is neither a group nor in an aggregate.

        Raises:
            SqlError: It does.
        """
        check(self._text, words)
        for place, _ in calls(words):
            token = words[place]
            if token.identifier.startswith("#") or token.upper in keywords():
                continue
            if token.identifier.upper() not in functions():
                known = {*functions(), *AGGREGATES, *PYTHON}
                self._text.fail(f"unknown function {token.identifier}{nearest(token.identifier, known)}", token.at)
        for token in words:
            if token.kind != "name" or token.identifier.startswith("#"):
                continue
            column = next((each for each in scope.columns if each.stored == token.identifier), None)
            if column is not None and token.identifier not in ("WINDOWSTART", "WINDOWEND"):
                self._text.fail(
                    f"{column.name} is neither in GROUP BY nor in an aggregate; write LATEST_BY_OFFSET({column.name})",
                    token.at,
                )


def _aggregate_calls(words: Sequence[SqlToken]) -> list[tuple[int, int]]:
    """Return the places of the first and last word of each aggregate, with its ``FILTER``."""
    found: list[tuple[int, int]] = []
    for place, end in calls(words):
        if words[place].kind == "word" and words[place].upper in (AGGREGATES.keys() | PYTHON.keys()):
            if end + 2 < len(words) and words[end + 1].upper == "FILTER" and words[end + 2].text == "(":
                end = closing(words, end + 2)
            if not found or place > found[-1][1]:
                found.append((place, end))
    return found


def _bare(words: Sequence[SqlToken]) -> Sequence[SqlToken]:
    """Return an expression without brackets around the whole of it."""
    while len(words) > 2 and words[0].text == "(" and closing(words, 0) == len(words) - 1:
        words = words[1:-1]
    return words


def _explodes(words: Sequence[SqlToken]) -> bool:
    return any(words[place].text.lower() == "unnest" for place, _ in calls(words))
