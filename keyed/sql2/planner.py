"""Plans queries: stateless steps, and the keyed operator between them. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from keyed.sql.script_errors import Text, nearest
from keyed.sql2.aggregates import AGGREGATES, Aggregate, aggregate_of
from keyed.sql2.catalog import Catalog, SqlSource
from keyed.sql2.column_types import BIGINT, SqlType
from keyed.sql2.engine import Columns, Step, functions
from keyed.sql2.scope import BOUNDS, PSEUDO, Column, Scope, replaced
from keyed.sql2.statements import From, Item, Query, Window
from keyed.sql2.tokens import Token, calls, closing, folded, name, sql

_RESERVED_NAMES = {*PSEUDO, *BOUNDS}


@attrs.frozen(eq=False)
class Grouping:
    """The aggregates of a query.

    Attributes:
        keys: The columns of the groups in batches, with their types.
        aggregates: The aggregates by the names of their columns.
        window: The window clause.
        is_final: Only results of windows that have ended are emitted.
    """

    keys: Columns
    aggregates: Mapping[str, Aggregate]
    window: Window | None
    is_final: bool


@attrs.frozen(eq=False)
class QueryPlan:
    """A planned query.

    Attributes:
        source: What it reads.
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

    source: SqlSource
    before: Step
    grouping: Grouping | None
    after: Step | None
    keys: Columns
    values: Columns
    is_table: bool
    window: tuple[str, int | None] | None
    keeps_key: bool
    identity: Mapping[str, str]

    def steps(self) -> list[dict[str, Any]]:
        """Return the steps of the query, for ``EXPLAIN``."""
        source = self.source
        found = [("read", f"{source.kind} {source.name}, topic {source.topic}")]
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
    words: tuple[Token, ...]
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

    def plan(self, query: Query, kind: str, output: str) -> QueryPlan:
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
        source = self._catalog.find(text, query.source.name, query.source.at)
        scope = self.scope(source, query.source)
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
        if source.is_table and source.window is not None:
            text.fail("a windowed table is not read by another query; write its query over the stream", query.at)
        if query.partition_by and source.is_table:
            text.fail("PARTITION BY is for streams; a table is partitioned by its primary key", query.at)
        return self._projected(query, source, scope)

    def scope(self, source: SqlSource, given: From) -> Scope:
        """Return the names that a query over one source may use."""
        alias = given.alias
        columns = [Column(each, type_, alias, each, is_key=True) for each, type_ in source.keys]
        columns += [Column(each, type_, alias, each) for each, type_ in source.values]
        pseudo = PSEUDO | (BOUNDS if source.window is not None else {})
        columns += [Column(each, type_, alias, stored, is_pseudo=True) for each, (stored, type_) in pseudo.items()]
        return Scope(self._text, columns, self._values)

    # Projections.

    def _items(self, query: Query, scope: Scope) -> list[Item]:
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
            if query.partition_by:
                # The new key comes first, and the old one after the values.
                columns = (*(each for each in columns if not each.is_key), *(each for each in columns if each.is_key))
            found += [
                Item((attrs.evolve(name(each.name), at=item.at, end=item.words[0].end),), each.name, at=item.at)
                for each in columns
                if not each.is_pseudo and source in (None, str(each.source).lower())
            ]
        return found

    def _outputs(self, query: Query, scope: Scope) -> list[_Output]:
        """Return the columns of the projection with their names."""
        found: list[_Output] = []
        items = self._items(query, scope)
        taken = {item.alias.lower() for item in items if item.alias} | {each.name.lower() for each in scope.columns}
        generated = 0
        for item in items:
            words = scope.resolved(item.words)
            column = scope.column(words)
            shown = item.alias
            if shown is None and column is not None:
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
            if shown.upper() in _RESERVED_NAMES:
                self._text.fail(f"{shown} is a column that each source has; give it another alias", item.at)
            if shown.startswith(("__keyed_", "#")):
                self._text.fail(f"{shown}: names that begin with __keyed_ or # are reserved; choose another", item.at)
            found.append(_Output(shown, words, item.at))
        return found

    def _condition(self, words: Sequence[Token] | None, scope: Scope, clause: str) -> tuple[Token, ...] | None:
        if words is None:
            return None
        resolved = scope.resolved(words)
        type_ = scope.type_of(resolved)
        if type_.base != "BOOLEAN":
            self._text.fail(f"{clause} takes a condition, and this is of type {type_}", words[0].at)
        return resolved

    def _split_keys(
        self, outputs: list[_Output], wanted: Sequence[Sequence[Token]], query: Query, shown: Sequence[str]
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
                    f"the projection has the key twice, as {hits[0].name} and {hits[1].name}; write AS_VALUE(...) for a "
                    "copy among the values",
                    hits[1].at,
                )
            names.append(hits[0].name)
            rest.remove(hits[0])
        return names, rest

    def _projected(self, query: Query, source: SqlSource, scope: Scope) -> QueryPlan:
        for item in query.items:
            if _aggregate_calls(item.words):
                self._text.fail("aggregates need GROUP BY", item.at)
        outputs = self._outputs(query, scope)
        where = self._condition(query.where, scope, "WHERE")
        if query.where and _aggregate_calls(query.where):
            self._text.fail("WHERE sees single rows; write HAVING for aggregates", query.where[0].at)
        partition = [tuple(each) for each in query.partition_by]
        if len(partition) == 1 and len(partition[0]) == 1 and partition[0][0].upper == "NULL":
            wanted: list[tuple[Token, ...]] = []
        elif partition:
            wanted = [scope.resolved(each) for each in partition]
        else:
            wanted = [(name(each),) for each, _ in source.keys]
        shown = [self._text.text[each[0].at : each[-1].end] or each[0].identifier for each in wanted]
        names, rest = self._split_keys(outputs, wanted, query, shown)
        key_types = [scope.type_of(each) for each in wanted]
        for type_ in key_types:
            if type_.has_map:
                self._text.fail(f"a key of type {type_}, which has a map, is not supported", query.at)
        keys = tuple(zip(names, key_types, strict=True))
        values = tuple((each.name, self._type_of(scope, each)) for each in rest)
        cells = [(each, sql(words), type_) for (each, type_), words in zip(keys, wanted, strict=True)]
        cells += [(each.name, sql(each.words), type_) for each, (_, type_) in zip(rest, values, strict=True)]
        step = Step(
            tuple(cells),
            where and sql(where),
            source.carried,
            self._values,
            explodes=any(_explodes(each.words) for each in outputs),
        )
        return QueryPlan(
            source, step, None, None, keys, values, source.is_table, None, not partition, {"FROM": source.name.lower()}
        )

    def _type_of(self, scope: Scope, output: _Output) -> SqlType:
        return scope.type_of(output.words)

    # Aggregates.

    def _grouped(self, query: Query, source: SqlSource, scope: Scope, kind: str, output: str) -> QueryPlan:
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
        groups: list[tuple[Token, ...]] = []
        for each in query.group_by:
            if _aggregate_calls(each):
                text.fail("GROUP BY takes no aggregates", each[0].at)
            resolved = scope.resolved(each)
            if folded(resolved) in map(folded, groups):
                text.fail("GROUP BY has an expression twice", each[0].at)
            groups.append(resolved)
        types = [scope.type_of(each) for each in groups]
        for type_, each in zip(types, query.group_by, strict=True):
            if type_.has_map:
                text.fail(f"GROUP BY takes no values of type {type_}", each[0].at)
        cells = [
            (f"#g{place}", sql(words), type_) for place, (words, type_) in enumerate(zip(groups, types, strict=True))
        ]
        keys: Columns = tuple((each, type_) for each, _, type_ in cells)
        # After the aggregates: groups, results and bounds.
        parts: list[tuple[Sequence[Token], Token]] = [(words, name(f"#g{place}")) for place, words in enumerate(groups)]
        aggregates: dict[str, Aggregate] = {}
        calls_found: dict[str, str] = {}
        after_columns = [Column(f"#g{place}", type_, None, f"#g{place}") for place, type_ in enumerate(types)]
        outputs = self._outputs(query, scope)
        having = None if query.having is None else scope.resolved(query.having)
        for words in [each.words for each in outputs] + ([having] if having else []):
            for start, end in _aggregate_calls(words):
                call = words[start : end + 1]
                if folded(call) in calls_found:
                    continue
                made = aggregate_of(text, call, scope, len(aggregates), source, self._properties)
                label = f"#a{len(aggregates)}"
                calls_found[folded(call)] = label
                aggregates[label] = made
                cells += made.arguments
                parts.append((call, name(label)))
                after_columns.append(Column(label, made.type, None, label))
        if not aggregates:
            text.fail("GROUP BY needs an aggregate, such as COUNT(*)", query.at)
        if query.window is not None:
            after_columns += [Column(each, type_, None, stored) for each, (stored, type_) in BOUNDS.items()]
        after = Scope(text, after_columns, self._values)
        shown = [self._text.text[each[0].at : each[-1].end] for each in query.group_by]
        names, rest = self._split_keys(outputs, groups, query, shown)
        made_items = []
        for each in rest:
            words = replaced(each.words, parts)
            if query.window is not None:
                words = after.resolved(words)
            self._check_grouped(words, scope)
            made_items.append((each.name, sql(words), after.type_of(words)))
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
        before = Step(tuple(cells), where and sql(where), source.carried, self._values)
        is_windowed = query.window is not None
        kept = ("window_start", "window_end") if is_windowed else ()
        step = Step((*key_cells, *made_items), condition, kept, self._values)
        grouping = Grouping(keys, aggregates, query.window, query.emit == "FINAL")
        window = query.window
        identity = {
            "FROM": source.name.lower(),
            "WINDOW": "" if window is None else str(attrs.astuple(window)[:5]),
            "GROUP BY": ", ".join(map(folded, groups)),
            "HAVING": condition or "",
            "aggregates": ", ".join(calls_found),
            "EMIT": query.emit or "",
        }
        own = [(name(each),) for each, _ in source.keys]
        keeps = [folded(each) for each in groups] == [folded(each) for each in own]
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

    def _check_grouped(self, words: Sequence[Token], scope: Scope) -> None:
        """Check that an expression names no column that is neither a group nor in an aggregate.

        Raises:
            SqlError: It does.
        """
        for place, token in enumerate(words):
            if token.kind != "name" or token.identifier.startswith("#"):
                continue
            column = next((each for each in scope.columns if each.stored == token.identifier), None)
            if column is not None and token.identifier not in ("window_start", "window_end"):
                self._text.fail(
                    f"{column.name} is neither in GROUP BY nor in an aggregate; write LATEST_BY_OFFSET({column.name})",
                    token.at,
                )
        for place, _ in calls(words):
            token = words[place]
            if token.identifier.upper() not in functions() and not token.identifier.startswith("#"):
                known = {*functions(), *AGGREGATES}
                self._text.fail(f"unknown function {token.identifier}{nearest(token.identifier, known)}", token.at)


def _aggregate_calls(words: Sequence[Token]) -> list[tuple[int, int]]:
    """Return the places of the first and last word of each aggregate, with its ``FILTER``."""
    found = []
    for place, end in calls(words):
        if words[place].kind == "word" and words[place].upper in AGGREGATES:
            if end + 2 < len(words) and words[end + 1].upper == "FILTER" and words[end + 2].text == "(":
                end = closing(words, end + 2)
            if not found or place > found[-1][1]:
                found.append((place, end))
    return found


def _explodes(words: Sequence[Token]) -> bool:
    return any(words[place].text.lower() == "unnest" for place, _ in calls(words))


__all__ = ["BIGINT", "Grouping", "Planner", "QueryPlan"]
