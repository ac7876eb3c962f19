"""Checks queries and plans them: which operators they become, and the functions of rows that these run.

Nothing runs here, and nothing of keyed is created: a `QueryPlan` is data and functions, which `compiler` builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import attrs

from keyed.sql import syntax as tree
from keyed.sql.catalog import Catalog, Columns, SqlSource
from keyed.sql.expressions import Column, Compiled, RowScope, function_names, guarded
from keyed.sql.row_changes import KEY, META, OLD, TIME, VALUE, WINDOW, Change, meta_of, route_of
from keyed.sql.script_errors import Text, nearest
from keyed.sql.sql_aggregates import AGGREGATES, SqlAggregate, aggregate_of, distinct, filtered, limited
from keyed.sql.sql_operators import Grouping, Sides
from keyed.sql.sql_types import BIGINT, INTEGER, NULL, STRING, SqlType, shown_name
from keyed.sql.table_functions import TABLE_FUNCTIONS, table_function

DAY_MS = 86_400_000
_PSEUDO = (("ROWTIME", BIGINT), ("ROWPARTITION", INTEGER), ("ROWOFFSET", BIGINT))
_BOUNDS = (("WINDOWSTART", BIGINT), ("WINDOWEND", BIGINT))
_RESERVED_NAMES = {name for name, _ in (*_PSEUDO, *_BOUNDS)}


@attrs.frozen(eq=False)
class Relation:
    """The rows of ``FROM``: of one source, or joined ones.

    Attributes:
        columns: The columns of a row.
        row: Returns the row of a change with its key and a value.
        is_table: It is a table.
        keys: Places of the columns that are the key: for each part of it the places that hold its value.
        window: Type of its windows, and their size.
        input: The source, or the join.
    """

    columns: tuple[Column, ...]
    row: Callable[[Change, Any], tuple[Any, ...]]
    is_table: bool
    keys: tuple[tuple[int, ...], ...]
    window: tuple[str, int | None] | None
    input: SqlSource | SourceJoin


@attrs.frozen(eq=False)
class SourceJoin:
    """A join of two relations.

    Attributes:
        kind: ``stream-stream``, ``stream-table``, ``table-table`` or ``foreign-key``.
        left: The left relation.
        right: The right relation.
        left_key: Returns the change of a left row, routed by its join key, with the row as its value.
        right_key: The same for a right row.
        sides: The rows that it keeps.
        within: Bounds of time, and grace period.
        foreign: The key of the other table, as a function of a left row.
        matches_end: Windows of both sides have the same end too, not only the same start: they are sessions.
    """

    kind: str
    left: Relation
    right: Relation
    left_key: Callable[[Change], Iterable[Change]]
    right_key: Callable[[Change], Iterable[Change]]
    sides: Sides
    within: tuple[int, int, int | None] | None = None
    foreign: Callable[[Any], Any] | None = None
    matches_end: bool = False


@attrs.frozen(eq=False)
class QueryPlan:
    """A planned query.

    Attributes:
        relation: What it reads.
        prepare: Returns the changes that are grouped, routed by group; ``None`` without aggregates.
        grouping: The aggregates, without aggregates ``None``.
        window: The window clause.
        emit: ``CHANGES`` or ``FINAL``.
        transform: Returns the output's changes of a change of the relation, without aggregates.
        keys: Columns of the output's key.
        values: Its other columns.
        is_table: The output is a table.
        output_window: Type and size of the output's windows.
        shuffles: The rows are routed by another key than the source's.
        shape: The parts of the query that its state depends on, by the name of each.
        computed: What the engine of its columns computes, for ``EXPLAIN``; ``None`` for nothing.
    """

    relation: Relation
    prepare: Callable[[Change], Iterable[Change]] | None
    grouping: Grouping | None
    window: tree.WindowClause | None
    emit: str
    transform: Callable[[Change], Iterable[Change]] | None
    keys: Columns
    values: Columns
    is_table: bool
    output_window: tuple[str, int | None] | None
    shuffles: bool
    shape: Mapping[str, str] = attrs.field(factory=dict)
    computed: str | None = None

    @property
    def forwards(self) -> bool:
        """True if its changes have the key by which its operator is keyed: groups, and what is not repartitioned."""
        return self.grouping is not None or not self.shuffles

    def steps(self, chained_to: str | None = None) -> list[dict[str, Any]]:
        """Return the steps of the query, for ``EXPLAIN``.

        Args:
            chained_to: The stream or table whose key it has and to whose operator it is chained, if there is one.
        """
        found = _read_steps(self.relation)
        if self.computed is not None:
            found.append(("compute", self.computed))
        if self.grouping is None:
            found.append(("project", "keyed by " + _names(self.keys)))
        else:
            kind = "in windows" if self.window is not None else "without windows"
            found.append(("aggregate", f"{kind}, by {_names(self.keys)}"))
        found.append(("route", "by another key than the source's" if self.shuffles else "by the key of the source"))
        if chained_to is not None:
            found.append(("shuffle", f"none: it has the key of {shown_name(chained_to)}, and is chained to it"))
        else:
            found.append(("shuffle", "on Spark; none in this process, which has one key group"))
        state = "the rows of the table" if self.is_table else "none"
        found.append(("state", f"aggregates, and {state}" if self.grouping is not None else state))
        return [{"step": step, "detail": detail} for step, detail in found]


@attrs.frozen
class _Output:
    """A column of the output: its name, expression and place in the text."""

    name: str
    value: Any
    at: int


class Planner:
    """Plans the queries of a script.

    Args:
        text: The script.
        catalog: The sources.
        properties: The settings of ``SET``.
    """

    def __init__(self, text: Text, catalog: Catalog, properties: Mapping[str, str] | None = None) -> None:
        self._text = text
        self._catalog = catalog
        self._properties = dict(properties or {})

    # FROM.

    def relation(self, query: tree.SelectQuery) -> Relation:
        """Return what a query reads.

        Raises:
            SqlError: Something is unknown, or does not join.
        """
        froms = [query.source, *(join.right for join in query.joins)]
        aliases = [each.alias for each in froms]
        for place, each in enumerate(froms):
            self._catalog.find(self._text, each.name, each.at)
            if each.alias in aliases[:place]:
                self._text.fail(f"{each.alias} occurs twice; give each source an alias of its own", each.at)
        found = self._of_source(query.source)
        for join in query.joins:
            found = self._joined(found, join)
        return found

    def _of_source(self, each: tree.From) -> Relation:
        source = self._catalog.find(self._text, each.name, each.at)
        columns = [Column(name, type_, each.alias, is_key=True) for name, type_ in source.keys]
        columns += [Column(name, type_, each.alias) for name, type_ in source.values]
        columns += [Column(name, type_, each.alias, is_pseudo=True) for name, type_ in _PSEUDO]
        if source.window is not None:
            columns += [Column(name, type_, each.alias, is_pseudo=True) for name, type_ in _BOUNDS]
        nothing = (None,) * len(source.values)
        width = len(source.values)
        if source.computed is not None:
            # The values that the engine computes follow those of the record.
            columns.append(Column(tree.ENGINE, NULL, each.alias, is_pseudo=True))

            def computed_row(change: Change, value: Any) -> tuple[Any, ...]:
                value = (*nothing, None) if value is None else value
                return (*change[KEY], *value[:width], change[TIME], *change[META][:2], value[-1])

        def row(change: Change, value: Any) -> tuple[Any, ...]:
            found = (*change[KEY], *(nothing if value is None else value), change[TIME], *change[META][:2])
            return found if change[WINDOW] is None else found + change[WINDOW]

        keys = tuple((place,) for place in range(len(source.keys)))
        window = None if source.window is None else (source.window, source.window_ms)
        if source.computed is not None:
            row = computed_row
        return Relation(tuple(columns), row, source.is_table, keys, window, source)

    def _joined(self, left: Relation, join: tree.Join) -> Relation:
        right = self._of_source(join.right)
        text = self._text
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
        if (left.window is None) != (right.window is None):
            text.fail("a windowed source joins only another windowed source", join.at)
        if left.window and right.window and (left.window[0] == "SESSION") != (right.window[0] == "SESSION"):
            text.fail("sources with windows of different types do not join", join.at)
        on = join.on
        if not isinstance(on, tree.Binary) or on.operator != "=":
            text.fail("a join takes one equality: ON left_column = right_column", join.on.at)
        both = RowScope(text, (*left.columns, *right.columns))
        mine, other = on.left, on.right
        sources = self._sources(mine, both)
        right_alias = join.right.alias
        if right_alias in sources:
            mine, other = other, mine
        mine_sources, other_sources = self._sources(mine, both), self._sources(other, both)
        if right_alias in mine_sources or other_sources != {right_alias} or not mine_sources:
            text.fail("one side of ON must be of the joined source, the other of the sources before it", on.at)
        left_scope, right_scope = RowScope(text, left.columns), RowScope(text, right.columns)
        left_value, right_value = left_scope.compile(mine), right_scope.compile(other)
        left_of, right_of, key_type = self._key_types(left_value, right_value, on)
        if kind == "table-table" and left_value.type != right_value.type:
            text.fail(
                f"the sides of ON are of types {left_value.type} and {right_value.type}; they must be the same", on.at
            )
        left_place = left_scope.find(mine) if isinstance(mine, tree.Name) else None
        right_place = right_scope.find(other) if isinstance(other, tree.Name) else None
        self._check_joined(left, right, join)
        right_is_key = right_place is not None and len(right.keys) == 1 and right_place in right.keys[0]
        left_is_key = left_place is not None and len(left.keys) == 1 and left_place in left.keys[0]
        if left.window is not None and not (left_is_key and right_is_key):
            text.fail("windowed sources join by their keys", on.at)
        if right.is_table and not right_is_key:
            text.fail(
                f"a table joins by its primary key: the condition must be ... = {right_alias}."
                f"{right.columns[right.keys[0][0]].name if right.keys else 'KEY'}",
                on.at,
            )
        if kind == "table-table" and not left_is_key:
            if isinstance(left.input, SourceJoin):
                text.fail(
                    "a join by another column than the primary key is the first join of its query; create a "
                    "table of the joins before it",
                    on.at,
                )
            return self._foreign(left, right, join, left_of)
        keeps_left, keeps_right = join.kind in ("LEFT", "FULL"), join.kind in ("RIGHT", "FULL")
        sides = Sides(len(left.columns), len(right.columns), keeps_left, keeps_right)
        offset = len(left.columns)
        viable: list[int] = []
        if join.kind != "FULL":
            if left_place is not None:
                viable.append(left_place)
                if left_is_key:
                    viable += [place for place in left.keys[0] if place != left_place]
            if right_place is not None:
                viable.append(offset + right_place)
        synthetic = not viable
        columns = (*(_hidden(each, lasts=not synthetic) for each in left.columns), *right.columns)
        if synthetic:
            columns = (*columns, Column(_free("ROWKEY", columns), key_type, None, is_key=True))
            viable = [len(columns) - 1]
        elif join.kind == "INNER" and right_place is not None and left_place is None:
            viable = [offset + right_place]

        def row(change: Change, value: Any) -> tuple[Any, ...]:
            found = (None,) * (len(columns) - synthetic) if value is None else tuple(value)
            return (*found, *change[KEY]) if synthetic else found

        plan = SourceJoin(
            kind,
            left,
            right,
            _keyed_rows(left, left_of, keeps_null=kind == "stream-table" and keeps_left),
            _keyed_rows(right, right_of, keeps_null=False),
            sides,
            join.within,
            matches_end=left.window is not None and left.window[0] == "SESSION",
        )
        return Relation(columns, row, left.is_table, (tuple(viable),), left.window, plan)

    def _check_joined(self, left: Relation, right: Relation, join: tree.Join) -> None:
        """Check the formats and windows of sources that join."""
        sources = [each for relation in (left, right) for each in _sources_of(relation)]
        for each in sources:
            if each.value_format == "KAFKA":
                self._text.fail(
                    f"{shown_name(each.name)} has the value format KAFKA, which does not support JOIN", join.at
                )
        if any(each.name == sources[-1].name for each in sources[:-1]):
            self._text.fail(
                f"{shown_name(sources[-1].name)} does not join itself; create a second stream or table of its topic",
                join.at,
            )
        by_start = all(each.key_format not in ("KAFKA", "JSON", "DELIMITED") for each in sources)
        if left.window is not None and left.window != right.window and not by_start:
            self._text.fail("windowed sources join if their windows have the same type and size", join.at)

    def _foreign(self, left: Relation, right: Relation, join: tree.Join, foreign: Any) -> Relation:
        if join.kind not in ("INNER", "LEFT"):
            self._text.fail("a join by another column than the primary key is INNER or LEFT JOIN", join.at)
        sides = Sides(len(left.columns), len(right.columns), join.kind == "LEFT", keeps_right=False)
        columns = (*left.columns, *right.columns)

        def row(_: Change, value: Any) -> tuple[Any, ...]:
            return (None,) * len(columns) if value is None else tuple(value)

        left_rows = _keyed_rows(left, None, keeps_null=False)
        place = right.keys[0][0]
        right_rows = _keyed_rows(right, lambda found: found[place], keeps_null=False)
        plan = SourceJoin("foreign-key", left, right, left_rows, right_rows, sides, None, guarded(foreign))
        return Relation(columns, row, True, left.keys, None, plan)

    def _key_types(self, left: Compiled, right: Compiled, on: Any) -> tuple[Any, Any, SqlType]:
        a, b = left.type, right.type
        if a == b:
            return left.of, right.of, a
        if {a.base, b.base} == {"INTEGER", "BIGINT"}:
            return left.of, right.of, BIGINT
        return self._text.fail(f"the sides of ON are of types {a} and {b}; use CAST", on.at)

    def _sources(self, node: Any, scope: RowScope) -> set[str]:
        if isinstance(node, tree.Name):
            return {scope.columns[scope.find(node)].source or ""}
        return {source for child in tree.children(node) for source in self._sources(child, scope)}

    # Queries.

    def plan(self, query: tree.SelectQuery, kind: str, name: str) -> QueryPlan:
        """Return the plan of a query.

        Args:
            query: The query.
            kind: ``STREAM`` or ``TABLE``: what is created of it.
            name: Name of the output, for errors.

        Raises:
            SqlError: It is not valid.
        """
        relation = self.relation(query)
        scope = RowScope(self._text, relation.columns, f" of {query.source.name}" if not query.joins else "")
        if query.limit is not None:
            self._text.fail("LIMIT is for queries that are read, not for a stream or table", query.at)
        query = self._normalized(query, scope)
        grouped = bool(query.group_by) or self._has_aggregates(query)
        shape = _shape(query)
        query, computed = self._computed(query, relation, scope, grouped=grouped)
        if grouped:
            return attrs.evolve(self._grouped(query, relation, scope, kind, name), shape=shape, computed=computed)
        if query.having is not None:
            self._text.fail("HAVING needs GROUP BY; write WHERE", query.having.at)
        if query.window is not None:
            self._text.fail("WINDOW needs GROUP BY", query.window.at)
        if query.emit == "FINAL":
            self._text.fail("EMIT FINAL needs a WINDOW and GROUP BY", query.at)
        if relation.is_table != (kind == "TABLE"):
            self._text.fail(
                f"the result of this query is a {'TABLE' if relation.is_table else 'STREAM'}; write CREATE "
                f"{'TABLE' if relation.is_table else 'STREAM'} {shown_name(name)} AS SELECT ...",
                query.at,
            )
        if relation.is_table and relation.window is not None:
            self._text.fail("a windowed table is not read by another query; write its query over the stream", query.at)
        if query.partition_by and relation.is_table:
            self._text.fail("PARTITION BY is for streams; a table is partitioned by its primary key", query.at)
        return attrs.evolve(self._projected(query, relation, scope), shape=shape, computed=computed)

    def _computed(
        self, query: tree.SelectQuery, relation: Relation, scope: RowScope, *, grouped: bool
    ) -> tuple[tree.SelectQuery, str | None]:
        """Return a query with the expressions that the engine of its columns computes replaced, and what those are."""
        source = relation.input
        if isinstance(source, SourceJoin) or source.computed is None:
            return query, None
        if any(calls_of(item.value, TABLE_FUNCTIONS) for item in query.items):
            source.computed.filters.append(None)
            return query, None
        columns = dict((*source.keys, *source.values))
        found = source.computed.rewritten(query, columns, scope.compile, grouped=grouped)
        return found, source.computed.described(found)

    def _normalized(self, query: tree.SelectQuery, scope: RowScope) -> tree.SelectQuery:
        """Return the query with stars replaced by columns, and names by full ones."""
        items: list[tree.Item] = []
        joined = isinstance(scope.columns, tuple) and len({c.source for c in scope.columns if c.source}) > 1
        for item in query.items:
            if isinstance(item.value, tree.Star):
                items += self._expanded(item.value, scope, query, joined=joined)
            else:
                items.append(attrs.evolve(item, value=self._named(item.value, scope)))

        def named(each: Any) -> Any:
            return None if each is None else self._named(each, scope)

        return attrs.evolve(
            query,
            items=tuple(items),
            where=named(query.where),
            having=named(query.having),
            group_by=tuple(named(each) for each in query.group_by),
            partition_by=tuple(named(each) for each in query.partition_by),
        )

    def _expanded(self, star: tree.Star, scope: RowScope, query: tree.SelectQuery, *, joined: bool) -> list[tree.Item]:
        if star.struct is not None:
            base = self._named(star.struct, scope)
            type_ = scope.compile(base).type
            if type_.base != "STRUCT":
                self._text.fail(f"->* takes a STRUCT, and this is of type {type_}", star.at)
            return [tree.Item(tree.Field(base, name, at=star.at), name, at=star.at) for name, _ in type_.fields]
        if star.source is not None and star.source not in {column.source for column in scope.columns}:
            sources = {column.source for column in scope.columns if column.source}
            self._text.fail(f"unknown source {star.source}{nearest(star.source, sources)}", star.at)
        found = []
        columns = scope.columns
        if query.partition_by:
            # The new key comes first, and the old one after the values.
            columns = (*(each for each in columns if not each.is_key), *(each for each in columns if each.is_key))
        for column in columns:
            # Joined rows have the bounds of their sources' windows; a new key has what is no column otherwise.
            is_bound = column.name in dict(_BOUNDS)
            shows = joined and column.source and is_bound != bool(query.partition_by)
            hidden = column.is_pseudo and not shows
            if hidden or star.source not in (None, column.source):
                continue
            alias = f"{column.source}_{column.name}" if joined and column.source else column.name
            name = tree.Name(column.name, column.source, at=star.at)
            found.append(tree.Item(name, alias, at=star.at))
        return found

    def _named(self, node: Any, scope: RowScope, bound: frozenset[str] = frozenset()) -> Any:
        """Return an expression with the full names of its columns, so that equal expressions are equal trees."""
        if isinstance(node, tree.Name):
            if node.source is None and node.name in bound:
                return node
            if node.name in dict(_BOUNDS) and not any(column.name == node.name for column in scope.columns):
                return node
            column = scope.columns[scope.find(node)]
            return tree.Name(column.name, column.source, at=node.at)
        if isinstance(node, tree.Lambda):
            return attrs.evolve(node, body=self._named(node.body, scope, bound | set(node.parameters)))
        if isinstance(node, tree.Call) and node.name in _UNITS_FIRST and node.arguments:
            unit = node.arguments[0]
            if isinstance(unit, tree.Name) and unit.source is None:
                if f"{unit.name.removesuffix('S')}S" not in _UNITS:
                    self._text.fail(f"{unit.name} is no unit of time; units are {', '.join(_UNITS)}", unit.at)
                rest = tuple(self._named(each, scope, bound) for each in node.arguments[1:])
                return attrs.evolve(node, arguments=(tree.Literal(unit.name, STRING, at=unit.at), *rest))
        return tree.mapped(node, lambda each: self._named(each, scope, bound))

    def _has_aggregates(self, query: tree.SelectQuery) -> bool:
        return any(calls_of(item.value, AGGREGATES) for item in query.items)

    def _outputs(self, query: tree.SelectQuery, scope: RowScope) -> list[_Output]:
        """Return the columns of the projection with their names."""
        names: list[str] = []
        found: list[_Output] = []
        taken = {item.alias for item in query.items if item.alias} | {
            item.value.name for item in query.items if isinstance(item.value, tree.Name)
        }
        taken_columns = {column.name for column in scope.columns}
        clashing = {
            column.name for column in scope.columns if sum(other.name == column.name for other in scope.columns) > 1
        }
        generated = 0
        for item in query.items:
            value: Any = item.value
            name: Any = item.alias
            if name is None:
                if isinstance(value, tree.Name):
                    name = f"{value.source}_{value.name}" if value.name in clashing and value.source else value.name
                elif isinstance(value, tree.Field):
                    name, count = value.name, 0
                    while name in names or name in taken_columns:
                        count += 1
                        name = f"{value.name}_{count}"
                else:
                    while (name := f"KSQL_COL_{generated}") in taken | taken_columns:
                        generated += 1
                    generated += 1
            if name in names:
                self._text.fail(f"the projection has the column {shown_name(name)} twice; give one an alias", item.at)
            if item.alias and name in _RESERVED_NAMES:
                self._text.fail(f"{name} is a column that each source has; choose another alias", item.at)
            if not item.alias and not query.joins and isinstance(value, tree.Name) and name in _RESERVED_NAMES:
                self._text.fail(f"{name} is a column that each source has; give it an alias", item.at)
            names.append(name)
            found.append(_Output(name, value, item.at))
        return found

    def _where(self, query: tree.SelectQuery, scope: RowScope) -> Callable[[Any], Any] | None:
        if query.where is None:
            return None
        if calls_of(query.where, AGGREGATES):
            self._text.fail("WHERE sees single rows; write HAVING for aggregates", query.where.at)
        condition = scope.compile(query.where)
        if condition.type.base != "BOOLEAN":
            self._text.fail(f"WHERE takes a condition, and this is of type {condition.type}", query.where.at)
        return guarded(condition.of)

    def _split_keys(
        self, outputs: list[_Output], wanted: Sequence[Sequence[Any]], query: tree.SelectQuery, *, added: bool = False
    ) -> tuple[list[str], list[_Output]]:
        """Return the names of the key's columns, and the outputs that are not the key.

        Args:
            outputs: The projection.
            wanted: For each part of the key the expressions that have its value.
            query: The query.
            added: A part that is missing gets a name of its own.
        """
        names: list[str] = []
        rest = list(outputs)
        for part in wanted:
            hits = [each for each in rest if any(each.value == option for option in part)]
            if not hits:
                if added and isinstance(part[0], tree.Name) and part[0].name in dict(_PSEUDO):
                    names.append(part[0].name)
                    continue
                if added and not isinstance(part[0], tree.Name):
                    count = 0
                    while f"KSQL_COL_{count}" in {*names, *(each.name for each in outputs)}:
                        count += 1
                    names.append(f"KSQL_COL_{count}")
                    continue
                shown = self._text.text[part[0].at :].split("\n")[0][:40] if part else ""
                self._text.fail(
                    "the projection lacks the key: select the column(s) that the output is keyed by"
                    + (f", {part[0]}" if isinstance(part[0], tree.Name) else f" ({shown}...)" if shown else ""),
                    query.at,
                )
            first = next((each for option in part for each in hits if each.value == option), hits[0])
            again = [each for each in hits if each is not first and each.value == first.value]
            if again:
                self._text.fail(
                    f"the projection has the key twice, as {first.name} and {again[0].name}; write AS_VALUE(...) for a "
                    "copy among the values",
                    again[0].at,
                )
            names.append(first.name)
            rest.remove(first)
        return names, rest

    def _projected(self, query: tree.SelectQuery, relation: Relation, scope: RowScope) -> QueryPlan:
        query, scope, explode = self._exploded(query, relation, scope)
        outputs = self._outputs(query, scope)
        where = self._where(query, scope)
        partition = query.partition_by
        has_star = any(True for item in query.items if item.alias is not None)
        for each in query.items:
            if calls_of(each.value, AGGREGATES):
                self._text.fail("aggregates need GROUP BY", each.at)
        if partition:
            if len(partition) == 1 and isinstance(partition[0], tree.Literal) and partition[0].value is None:
                wanted: list[list[Any]] = []
                key_of: list[Compiled] = []
            else:
                wanted = [[each] for each in partition]
                key_of = [scope.compile(each) for each in partition]
                names, rest = self._split_keys(outputs, wanted, query, added=has_star)
        else:
            wanted = [
                [tree.Name(relation.columns[place].name, relation.columns[place].source) for place in part]
                for part in relation.keys
            ]
            key_of = []
        if not partition or not wanted:
            names, rest = self._split_keys(outputs, wanted, query)
        values = [scope.compile(each.value) for each in rest]
        self._check_values(values, rest)
        functions = [guarded(each.of) for each in values]
        if partition:
            key_types = [each.type for each in key_of]
        else:
            key_types = [relation.columns[part[0]].type for part in relation.keys]
        for type_ in key_types:
            if has_map(type_):
                self._text.fail(f"a key of type {type_} is not supported", query.at)
        row_of = relation.row
        key_functions = [guarded(each.of) for each in key_of]
        # Without a value, only the columns of the key have one.
        keyed = [_of_key(each, scope) for each in partition] if key_of else []
        is_table = relation.is_table
        repartitions = bool(partition)

        def transform(change: Change) -> Iterable[Change]:
            value = change[VALUE]
            key = change[KEY]
            if is_table:
                return of_table(change)
            if value is None:
                if where is not None or explode is not None:
                    return ()
                if repartitions:
                    row = row_of(change, None)
                    key = tuple(
                        each(row) if of_key else None for each, of_key in zip(key_functions, keyed, strict=True)
                    )
                return ((route_of(key) if repartitions else change[0], key, None, None, *change[TIME:]),)
            found = []
            for row in (row_of(change, value),) if explode is None else explode(row_of(change, value)):
                if where is not None and not where(row):
                    continue
                if repartitions:
                    key = tuple(each(row) for each in key_functions)
                result = tuple(each(row) for each in functions)
                found.append((route_of(key) if repartitions else change[0], key, result, None, *change[TIME:]))
            return found

        def of_table(change: Change) -> Iterable[Change]:
            def projected(value: Any) -> Any:
                if value is None:
                    return None
                row = row_of(change, value)
                if where is not None and not where(row):
                    return None
                return tuple(each(row) for each in functions)

            new, old = projected(change[VALUE]), projected(change[OLD])
            if new is None and old is None and where is not None:
                return ()
            return ((change[0], change[KEY], new, old, *change[TIME:]),)

        return QueryPlan(
            relation,
            None,
            None,
            None,
            "CHANGES",
            transform,
            tuple(zip(names, key_types, strict=True)),
            tuple((each.name, value.type) for each, value in zip(rest, values, strict=True)),
            is_table,
            relation.window,
            repartitions,
        )

    def _exploded(
        self, query: tree.SelectQuery, relation: Relation, scope: RowScope
    ) -> tuple[tree.SelectQuery, RowScope, Callable[[Any], Iterable[Any]] | None]:
        """Return the query with its table functions replaced by columns, and the function that makes the rows."""
        calls: list[Any] = []
        for item in query.items:
            calls += [each for each in calls_of(item.value, TABLE_FUNCTIONS) if each not in calls]
        if not calls:
            return query, scope, None
        if relation.is_table:
            self._text.fail("table functions, such as EXPLODE, are for streams", calls[0].at)
        made = []
        columns = list(scope.columns)
        replaced = {}
        for place, call in enumerate(calls):
            arguments = [scope.compile(each) for each in call.arguments]
            type_, function = table_function(
                call.name, [each.type for each in arguments], _failing(self._text, call.at)
            )
            made.append((function, [guarded(each.of) for each in arguments]))
            columns.append(Column(f"KSQL_SYNTH_{place}", type_, None))
            replaced[call] = tree.Name(f"KSQL_SYNTH_{place}", None, at=call.at)

        def rows(row: Any) -> Iterable[Any]:
            lists = [function(*(each(row) for each in arguments)) or [] for function, arguments in made]
            for place in range(max(map(len, lists))):
                yield (*row, *(each[place] if place < len(each) else None for each in lists))

        def swap(node: Any) -> Any:
            for call, name in replaced.items():
                if node == call:
                    return name
            return tree.mapped(node, swap)

        names = self._outputs(query, scope)
        items = tuple(
            tree.Item(swap(item.value), output.name, at=item.at)
            for item, output in zip(query.items, names, strict=True)
        )
        return attrs.evolve(query, items=items), RowScope(self._text, columns, scope.what), rows

    def _check_values(self, values: Sequence[Compiled], outputs: Sequence[_Output]) -> None:
        for value, output in zip(values, outputs, strict=True):
            if value.type.base == "NULL":
                self._text.fail(f"column {output.name} is NULL without a type; write CAST(NULL AS type)", output.at)

    def _grouped(self, query: tree.SelectQuery, relation: Relation, scope: RowScope, kind: str, name: str) -> QueryPlan:
        text = self._text
        if kind == "STREAM":
            text.fail(
                f"the result of GROUP BY is a TABLE; write CREATE TABLE {shown_name(name)} AS SELECT ...", query.at
            )
        if not query.group_by:
            text.fail("aggregates need GROUP BY", query.at)
        if query.partition_by:
            text.fail("GROUP BY and PARTITION BY exclude each other", query.at)
        if query.window is not None and relation.is_table:
            text.fail("WINDOW is for streams, and this is a table", query.window.at)
        for source in _sources_of(relation):
            if source.value_format == "KAFKA":
                text.fail(
                    f"{shown_name(source.name)} has the value format KAFKA, which does not support GROUP BY", query.at
                )
        query, scope, explode = self._exploded(query, relation, scope)
        where = self._where(query, scope)
        for each in query.group_by:
            if calls_of(each, AGGREGATES):
                text.fail("GROUP BY takes no aggregates", each.at)
        groups = [scope.compile(each) for each in query.group_by]
        for group, each in zip(groups, query.group_by, strict=True):
            if has_map(group.type):
                text.fail(f"GROUP BY takes no values of type {group.type}", each.at)
            if query.group_by.count(each) > 1:
                text.fail("GROUP BY has an expression twice", each.at)
        aggregates: list[SqlAggregate] = []
        arguments: list[Callable[[Any], Any]] = []
        calls: list[Any] = []

        def column_of(call: Any) -> Any:
            for place, other in enumerate(calls):
                if other == call:
                    return tree.Name(f"KSQL_AGG_{place}", None, at=call.at)
            for each in tree.children(call):
                if calls_of(each, AGGREGATES):
                    text.fail("an aggregate of an aggregate is not supported", call.at)
            given = [scope.compile(each) for each in call.arguments]
            constants = [each.value if isinstance(each, tree.Literal) else ... for each in call.arguments]
            fail = _failing(text, call.at)
            limit = self._properties.get(f"ksql.functions.{call.name.lower()}.limit")
            if limit is not None:
                if not limit.isdecimal():
                    fail(f"'ksql.functions.{call.name.lower()}.limit' is {limit!r}; set it to a number")
                aggregate = limited(call.name, [each.type for each in given], int(limit), fail)
            else:
                aggregate = aggregate_of(call.name, [each.type for each in given], constants, fail)
            if call.name in _NEED_STRUCTS and any(s.value_format == "DELIMITED" for s in _sources_of(relation)):
                text.fail(
                    f"{call.name} has a state that the format DELIMITED cannot hold; create a stream WITH "
                    "(VALUE_FORMAT='JSON') of the source first",
                    call.at,
                )
            if relation.is_table and aggregate.undo is None:
                text.fail(f"{call.name} is for streams: it cannot undo a row of a table that changes", call.at)
            if call.is_distinct:
                aggregate = distinct(aggregate)
            condition = None
            if call.condition is not None:
                found = scope.compile(call.condition)
                if found.type.base != "BOOLEAN":
                    text.fail(f"FILTER takes a condition, and this is of type {found.type}", call.condition.at)
                condition = guarded(found.of)
                aggregate = filtered(aggregate)
            calls.append(call)
            aggregates.append(aggregate)
            arguments.append(_arguments([guarded(each.of) for each in given], condition))
            return tree.Name(f"KSQL_AGG_{len(calls) - 1}", None, at=call.at)

        # Checked before the columns: those of a misspelt aggregate are not the mistake.
        known = function_names()

        def rewritten(node: Any) -> Any:
            for place, each in enumerate(query.group_by):
                if node == each:
                    return tree.Name(f"KSQL_GROUP_{place}", None, at=node.at)
            if isinstance(node, tree.Call) and node.name in AGGREGATES:
                return column_of(node)
            if isinstance(node, tree.Call) and node.name not in known:
                text.fail(f"unknown function {node.name}{nearest(node.name, known)}", node.at)
            if isinstance(node, tree.Name):
                if node.name in dict(_BOUNDS) and query.window is not None:
                    return tree.Name(node.name, None, at=node.at)
                if node.source is not None or any(column.name == node.name for column in scope.columns):
                    text.fail(
                        f"{node} is neither in GROUP BY nor in an aggregate; write LATEST_BY_OFFSET({node})", node.at
                    )
            return tree.mapped(node, rewritten)

        outputs = self._outputs(query, scope)
        names, rest = self._split_keys(outputs, [[each] for each in query.group_by], query)
        plain = [rewritten(each.value) for each in rest]
        having_node = None if query.having is None else rewritten(query.having)
        if not calls:
            text.fail("GROUP BY needs an aggregate, such as COUNT(*)", query.at)
        columns = [Column(f"KSQL_GROUP_{place}", group.type) for place, group in enumerate(groups)]
        columns += [Column(f"KSQL_AGG_{place}", each.type) for place, each in enumerate(aggregates)]
        columns += [Column(each, BIGINT) for each, _ in _BOUNDS] if query.window is not None else []
        after = RowScope(text, columns, " in GROUP BY")
        values = [after.compile(each) for each in plain]
        self._check_values(values, rest)
        functions = [guarded(each.of) for each in values]
        having = None
        if having_node is not None:
            condition = after.compile(having_node)
            if condition.type.base != "BOOLEAN":
                text.fail(f"HAVING takes a condition, and this is of type {condition.type}", query.at)
            having = guarded(condition.of)

        def emit(key: Any, before: Any, results: Any, time: int, window: Any, number: int) -> Iterable[Change]:
            def projected(found: Any) -> Any:
                if found is None:
                    return None
                row = (*key, *found, *(window or ()))
                if having is not None and not having(row):
                    return None
                return tuple(each(row) for each in functions)

            new, old = projected(results), projected(before)
            if new is None and old is None:
                return ()
            return ((route_of(key), key, new, old, time, window, meta_of(number)),)

        prepare = _grouped_rows(relation, where, [guarded(each.of) for each in groups], arguments, explode)
        grouping = Grouping(tuple(aggregates), emit, relation.is_table)
        window = query.window
        shuffles = tuple(query.group_by) != tuple(
            tree.Name(relation.columns[part[0]].name, relation.columns[part[0]].source) for part in relation.keys
        )
        if query.emit == "FINAL" and window is None:
            text.fail("EMIT FINAL needs a WINDOW: without one no result is final", query.at)
        return QueryPlan(
            relation,
            prepare,
            grouping,
            window,
            query.emit or "CHANGES",
            None,
            tuple((each, group.type) for each, group in zip(names, groups, strict=True)),
            tuple((each.name, value.type) for each, value in zip(rest, values, strict=True)),
            True,
            None if window is None else (window.kind, None if window.kind == "SESSION" else window.size_ms),
            shuffles,
        )


#: Aggregates that ksqlDB does not compute over delimited values.
_NEED_STRUCTS = ("AVG", "CORRELATION", "STDDEV_SAMP", "STDDEV_SAMPLE")


def _sources_of(relation: Relation) -> list[SqlSource]:
    given = relation.input
    return [given] if isinstance(given, SqlSource) else [*_sources_of(given.left), *_sources_of(given.right)]


def _names(columns: Columns) -> str:
    return ", ".join(shown_name(name) for name, _ in columns) or "nothing"


def _read_steps(relation: Relation) -> list[tuple[str, str]]:
    given = relation.input
    if isinstance(given, SqlSource):
        return [("read", f"{given.kind} {shown_name(given.name)}, topic {given.topic}")]
    return [*_read_steps(given.left), *_read_steps(given.right), ("join", f"{given.kind}, by an equality")]


def _shape(query: tree.SelectQuery) -> dict[str, str]:
    """Return the parts of a query that its state depends on; trees are shown without their places in the text."""
    aggregates: list[Any] = []
    found = [*(item.value for item in query.items), *([] if query.having is None else [query.having])]
    for each in found:
        aggregates += [call for call in calls_of(each, AGGREGATES) if call not in aggregates]
    return {
        "FROM": ", ".join((query.source.name, *(f"{join.kind} {join.right.name} {join.on}" for join in query.joins))),
        "WITHIN": ", ".join(str(join.within) for join in query.joins if join.within),
        "WINDOW": str(query.window or ""),
        "GROUP BY": str(query.group_by or ""),
        # Accumulators of standard deviations of before hold sums of squares.
        "aggregates": ", ".join(
            f"{call}{' by deviations' if call.name[:6] == 'STDDEV' else ''}" for call in aggregates
        ),
        "EMIT": query.emit or "",
    }


def _arguments(functions: Sequence[Callable[[Any], Any]], condition: Any) -> Callable[[Any], Any]:
    """Return the function from a row to the arguments of an aggregate; ``None`` without its condition."""

    def arguments(row: Any) -> Any:
        if condition is not None and not condition(row):
            return None
        return tuple([of(row) for of in functions])

    return arguments


def _failing(text: Text, at: int) -> Callable[[str], NoReturn]:
    def fail(message: str) -> NoReturn:
        text.fail(message, at)

    return fail


_UNITS = ("MILLISECONDS", "SECONDS", "MINUTES", "HOURS", "DAYS")
_UNITS_FIRST = {f"{what}{how}" for what in ("TIMESTAMP", "DATE", "TIME") for how in ("ADD", "SUB")}


def has_map(type_: SqlType) -> bool:
    """Return whether values of a type hold maps."""
    return type_.base == "MAP" or any(map(has_map, type_.parts)) or any(has_map(each) for _, each in type_.fields)


def calls_of(node: Any, names: Iterable[str]) -> list[Any]:
    """Return the calls of functions with these names in an expression."""
    found = [each for child in tree.children(node) for each in calls_of(child, names)]
    return [node, *found] if isinstance(node, tree.Call) and node.name in names else found


def _hidden(column: Column, *, lasts: bool) -> Column:
    """Return a column of a relation that is joined again: ``*`` leaves out the key that a join before has added.

    Args:
        column: The column.
        lasts: The key can still be named.
    """
    if column.source is not None or column.is_pseudo:
        return column
    return attrs.evolve(column, name=column.name if lasts else f"{column.name} of a join", is_pseudo=True)


def _free(name: str, columns: Sequence[Column]) -> str:
    taken = {column.name for column in columns}
    return next(each for each in (name, *(f"{name}_{i}" for i in range(1, len(taken) + 1))) if each not in taken)


def _of_key(node: Any, scope: RowScope) -> bool:
    """Return whether an expression reads columns of the key only."""
    if isinstance(node, tree.Name):
        return scope.columns[scope.find(node)].is_key
    return all(_of_key(each, scope) for each in tree.children(node))


def _keyed_rows(relation: Relation, key_of: Any, *, keeps_null: bool) -> Callable[[Change], Iterable[Change]]:
    """Return the function from a change to that of its whole row, routed by a key."""
    row_of = relation.row
    key = None if key_of is None else guarded(key_of)

    def rows(change: Change) -> Iterable[Change]:
        value, old = change[VALUE], change[OLD]
        new_row = None if value is None else row_of(change, value)
        old_row = None if old is None else row_of(change, old)
        if key is None:
            return ((change[0], change[KEY], new_row, old_row, *change[TIME:]),)
        found = key(row_of(change, value))
        if relation.is_table and value is None and found is None:
            found = key(row_of(change, old))
        if found is None and not keeps_null:
            return ()
        if value is None and not relation.is_table:
            return ()
        return ((route_of((found,)), (found,), new_row, old_row, *change[TIME:]),)

    return rows


def _grouped_rows(
    relation: Relation,
    where: Callable[[Any], Any] | None,
    groups: Sequence[Callable[[Any], Any]],
    arguments: Sequence[Callable[[Any], Any]],
    explode: Callable[[Any], Iterable[Any]] | None,
) -> Callable[[Change], Iterable[Change]]:
    """Return the function from a change to the changes of groups: arguments of the aggregates, added and taken away."""
    row_of, is_table = relation.row, relation.is_table

    def of_row(row: Any) -> Any:
        if where is not None and not where(row):
            return None
        key = tuple(each(row) for each in groups)
        if None in key:
            return None
        return key, tuple([of(row) for of in arguments])

    def prepared(change: Change) -> Iterable[Change]:
        value, old = change[VALUE], change[OLD]
        if not is_table:
            if value is None:
                return ()
            row = row_of(change, value)
            rows = (row,) if explode is None else explode(row)
            found = [each for row in rows if (each := of_row(row)) is not None]
            return [(route_of(key), key, given, None, change[TIME], None, change[META]) for key, given in found]
        new = None if value is None else of_row(row_of(change, value))
        before = None if old is None else of_row(row_of(change, old))
        if new and before and new[0] == before[0]:
            return ((route_of(new[0]), new[0], new[1], before[1], change[TIME], None, change[META]),)
        changes = []
        if before:
            changes.append((route_of(before[0]), before[0], None, before[1], change[TIME], None, change[META]))
        if new:
            changes.append((route_of(new[0]), new[0], new[1], None, change[TIME], None, change[META]))
        return changes

    return prepared
