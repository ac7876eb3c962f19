"""``MATCH_RECOGNIZE``: a pattern of `keyed.patterns`, and the expressions over the rows of its matches.

A step before the pattern computes each expression over one row as a column, and a step after it the measures over the
values of a match. So DuckDB computes all but the parts of ``DEFINE`` that read rows that have matched.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import decimal
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, TypeAlias

import attrs
import numpy as np

from keyed import Context, ValueState
from keyed.errors import DefinitionError
from keyed.expressions.engine import Columns, SqlStep, parsed, typed, unparsed
from keyed.expressions.tokens import SqlToken, Text, calls, folded, name, split, sql, tokens
from keyed.extending import inner_state
from keyed.formats.sql_types import BIGINT, SqlType
from keyed.patterns import AfterMatchSkipStrategy, Match, Pattern
from keyed.patterns.pattern import MOST_PARTIAL_MATCHES
from keyed.patterns.pattern_operator import PatternOperator, Selecting
from keyed.patterns.steps import check_pattern
from keyed.sql.catalog import SqlSource
from keyed.sql.name_scope import Column, NameScope
from keyed.sql.sql_aggregates import AGGREGATES, NUMBERS
from keyed.sql.statements import From, MatchClause, Variable, Words

#: A part of a condition: its value for a row and the match so far.
Value: TypeAlias = Callable[[Any, Any], Any]
_NAVIGATION = ("FIRST", "LAST", "PREV", "MATCH_ROWTIME")
_EXACT = decimal.Context(prec=100)


def _divided(first: Any, second: Any) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(first) / np.float64(second))


def _sum(values: list[Any]) -> Any:
    return reduce(_EXACT.add if isinstance(values[0], decimal.Decimal) else operator.add, values)


def _order(value: Any) -> tuple[bool, Any]:
    """Return the place of a value in DuckDB's order: NaN is equal to itself, and above all numbers."""
    return (False, value) if value == value else (True, 0)  # noqa: PLR0124 - NaN is not


#: The aggregates, of values that are not null; only COUNT has a value of none.
_AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {"COUNT": len, "SUM": _sum}
_AGGREGATES |= {"AVG": lambda values: float(_sum(values)) / len(values)}
_AGGREGATES |= {"MIN": lambda values: min(values, key=_order), "MAX": lambda values: max(values, key=_order)}
#: Comparisons by DuckDB's names of them.
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {"EQUAL": operator.eq, "NOTEQUAL": operator.ne}
_COMPARISONS |= {"LESSTHAN": operator.lt, "LESSTHANOREQUALTO": operator.le, "BETWEEN": operator.ge}
_COMPARISONS |= {"GREATERTHAN": operator.gt, "GREATERTHANOREQUALTO": operator.ge}
#: Operators of DOUBLE, and of exact numbers.
_ARITHMETIC: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {"+": (operator.add, _EXACT.add)}
_ARITHMETIC |= {"-": (operator.sub, _EXACT.subtract), "*": (operator.mul, _EXACT.multiply), "/": (_divided, _divided)}


@attrs.frozen
class Read:
    """A value of the rows of a match.

    Attributes:
        how: ``FIRST``, ``LAST`` or an aggregate.
        steps: The variables whose rows it is of.
        column: Their column; ``None`` counts rows.
        offset: The number of rows after the first, or before the last.
    """

    how: str
    steps: tuple[str, ...]
    column: int | None
    offset: int = 0

    def value(self, match: Mapping[str, list[Any]], own: str = "", row: Any = None) -> Any:
        """Return the value, of the rows that have matched, and of a row that is tested for the variable ``own``."""
        rows = [each for step in self.steps for each in match[step]] + [row] * (own in self.steps)
        if self.column is None:
            return len(rows)
        cells = [tuple.__getitem__(each, self.column) for each in rows]
        if self.how in ("FIRST", "LAST"):
            return cells[self.offset if self.how == "FIRST" else -1 - self.offset] if self.offset < len(cells) else None
        values = [each for each in cells if each is not None]
        return _AGGREGATES[self.how](values) if values or self.how == "COUNT" else None


@attrs.frozen(eq=False)
class MatchPlan:
    """A planned ``MATCH_RECOGNIZE``.

    Attributes:
        source: Its rows as a stream: the columns of the partition, then the measures. Its name has the clauses on which
            state depends.
        before: The step that gives rows the columns of the partition and those that the pattern reads.
        keys: The columns of the partition in them, by which rows are keyed.
        operator: The operator that finds the matches.
        matched: Its columns.
        after: The step that computes the measures.
    """

    source: SqlSource
    before: SqlStep
    keys: tuple[str, ...]
    operator: PatternOperator
    matched: Columns
    after: SqlStep


class MatchOperator(PatternOperator):
    """Finds the matches of rows to which the columns of ``PREV`` are added, the first one last.

    Args:
        pattern: The pattern.
        select: Returns the values of a match.
        previous: The columns of earlier rows, and how many rows before.
    """

    known_side_outputs = ()
    before = inner_state(ValueState(tuple), is_shown=False)

    def __init__(self, pattern: Pattern, select: Callable[[Match], Any], previous: Sequence[tuple[int, int]]) -> None:
        tags: dict[str, Any] = {"late_tag": None, "bad_tag": None, "timed_out": None}
        super().__init__(pattern, Selecting(select), most_partial=MOST_PARTIAL_MATCHES, **tags)
        self._previous = previous[::-1]
        self._most = max((rows for _, rows in previous), default=0)

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        if self._most and not ctx.is_late():
            before, row = self.before.value() or (), tuple(value)
            self.before.update((row, *before[: self._most - 1]))
            value = (*row, *(before[n - 1][place] if n <= len(before) else None for place, n in self._previous))
        return super().process_element(value, ctx)


class MatchPlanner:
    """Plans a ``MATCH_RECOGNIZE``.

    Args:
        scope: The names of the source.
        clause: The clause.

    Attributes:
        cells: The expressions of the columns that the pattern reads, with their types.
        reads: The values of matched rows that expressions read, with their types.
        previous: The columns that ``PREV`` reads, and how many rows before.
    """

    def __init__(self, scope: NameScope, clause: MatchClause) -> None:
        self._scope = scope
        self._text = scope.text
        self._clause = clause
        self._variables = tuple(each.name for each in clause.pattern)
        self.cells: dict[str, SqlType] = {}
        self.reads: dict[Read, SqlType] = {}
        self.previous: list[tuple[int, int]] = []
        #: The variable, or none, and the column that each name in resolved expressions has.
        of_each = [(of, each) for of in ("", *self._variables) for each in scope.columns]
        self._named = {f"{of}.{each.stored}" if of else each.stored: (of, each) for of, each in of_each}
        columns = (attrs.evolve(each, source=of or None, stored=s) for s, (of, each) in self._named.items())
        self._names = NameScope(scope.text, tuple(columns), scope.values)

    def plan(self, from_: From, carried: tuple[str, ...], *, is_table: bool) -> MatchPlan:
        """Return the plan.

        Args:
            from_: The source, with its partition.
            carried: The columns that each step passes on.
            is_table: It is a table.

        Raises:
            SqlError: The clause is not valid.
        """
        fail, own = self._text.fail, dict[str, SqlType]()
        if is_table:
            fail(f"MATCH_RECOGNIZE reads a stream, and {from_.name} is a table, whose rows change", from_.at)
        for words in from_.partition_by:
            column = self._scope.column(self._scope.resolved(words))
            if column is None or column.is_pseudo or column.type.has_parts:
                fail(f"MATCH_RECOGNIZE is partitioned by columns of {from_.name} that may be keys", words[0].at)
            self._cell((name(column.stored),))
            own[column.name] = column.type
        if not own:
            self._cell(tokens(Text("1"))[:-1])
        keys = tuple(f"c{place}" for place in range(len(self.cells)))
        pattern = self._pattern()
        cells = [(each, f'"{key}"', type_) for (each, type_), key in zip(own.items(), keys, strict=False)]
        for item in self._clause.measures:
            if item.alias is None or item.alias.lower() in [each.lower() for each, _, _ in cells]:
                fail("each measure has a name of its own: write expression AS name", item.at)
            measure = self._navigated(item.words, "")
            cells.append((item.alias, sql(measure), self._read_scope.type_of(measure)))
        before = [(f"c{place}", text, type_) for place, (text, type_) in enumerate(self.cells.items())]
        columns = [*(Column(each, type_, None, each) for each, _, type_ in before[: len(keys)]), *self._columns()]
        reads = tuple(self.reads)

        def select(match: Match) -> tuple[Any, ...]:
            row = next(iter(match.values()))[0]
            return (*tuple.__getitem__(row, slice(len(keys))), *(each.value(match) for each in reads))

        conditions = [f"{each.alias} AS {folded(each.words)}" for each in self._clause.define]
        label = "; ".join([str(pattern), repr(pattern.after_match), *conditions, *self.cells])
        values = typed(cells[len(own) :])
        source = SqlSource(f"MATCH_RECOGNIZE {label}", "STREAM", tuple(own.items()), values, from_.name)
        matched = tuple((each.name, each.type) for each in columns)
        after = NameScope(self._text, columns, self._scope.values).step(cells, None, carried)
        matcher = MatchOperator(pattern, select, self.previous)
        return MatchPlan(source, self._scope.step(before, None, carried), keys, matcher, matched, after)

    def _pattern(self) -> Pattern:
        clause = self._clause
        first, last = clause.pattern[0], clause.pattern[-1]
        is_same = clause.skip_to == first.name and (clause.skip == "FIRST" or first.most == 1)
        no_rows = "PATTERN may match no row at all; let a variable be without ?, * and {0,n}"
        greedy = f"a pattern does not end with a greedy quantifier; write ? after that of {last.name}"
        same = f"SKIP TO {clause.skip} {first.name} finds the same match again; write SKIP TO NEXT ROW"
        unbounded = "may take rows forever, so its state has no bound; write WITHIN INTERVAL '10' MINUTE after PATTERN"
        rules = [(not any(each.least for each in clause.pattern), no_rows, clause.at)]
        rules += [(last.is_greedy, greedy, last.at), (is_same, same, clause.at)]
        for each in clause.pattern:
            rules.append((each.most is None and clause.within_ms is None, f"{each.name} {unbounded} (...)", each.at))
        for place, item in enumerate(clause.define):
            is_wrong = item.alias not in self._variables or item.alias in [e.alias for e in clause.define[:place]]
            message = f"DEFINE has one condition of each of {', '.join(self._variables)}, and not {item.alias}"
            rules.append((is_wrong, message, item.at))
        self._text.check(*rules)
        conditions = {each.alias: self._condition(each.words, str(each.alias)) for each in clause.define}
        pattern = Pattern((), self._strategy())
        try:
            for variable in clause.pattern:
                at = variable.at
                pattern = _quantified(pattern.next(variable.name, conditions.get(variable.name)), variable)
            pattern = pattern if clause.within_ms is None else pattern.within(clause.within_ms)
            check_pattern(pattern)
        except DefinitionError as error:
            self._text.fail(str(error), at)
        return pattern

    def _strategy(self) -> AfterMatchSkipStrategy:
        of, clause = AfterMatchSkipStrategy, self._clause
        if clause.skip_to:
            to = of.skip_to_first if clause.skip == "FIRST" else of.skip_to_last
            return to(clause.skip_to).throw_exception_on_miss()
        return of.skip_to_next() if clause.skip == "NEXT" else of.skip_past_last_event()

    # Expressions.

    def _columns(self) -> list[Column]:
        """Return the columns of the values of matched rows."""
        return [Column(f"#r{place}", type_, None, f"#r{place}") for place, type_ in enumerate(self.reads.values())]

    @property
    def _read_scope(self) -> NameScope:
        """The names of resolved expressions."""
        return NameScope(self._text, [*self._names.columns, *self._columns()], self._scope.values)

    def _cell(self, words: Sequence[SqlToken]) -> int:
        """Return the place of the column that has an expression over a row, in the names of the source."""
        self.cells.setdefault(sql(words), self._scope.type_of(words))
        return list(self.cells).index(sql(words))

    def _navigated(self, words: Words, own: str) -> list[SqlToken]:
        """Return a resolved expression, with a name for each value of the rows of a match.

        Args:
            words: The expression.
            own: The variable for which a row is tested: columns of the row keep their names.
        """
        resolved = self._names.resolved(words)
        ends, navigated, place = dict(calls(resolved)), list[SqlToken](), 0
        while place < len(resolved):
            token, end = resolved[place], ends.get(place, place)
            if end > place and token.upper in (*_NAVIGATION, *AGGREGATES):
                token = self._read(resolved[place : end + 1])
                place = end
            elif token.kind == "name" and token.identifier in self._named:
                of, column = self._named[token.identifier]
                stored = attrs.evolve(name(column.stored), at=token.at, end=token.end)
                is_read = not own or of not in ("", own)
                token = self._value(token, column.type, "LAST", of, self._cell([stored])) if is_read else stored
            navigated.append(token)
            place += 1
        return navigated

    def _value(self, at: SqlToken, type_: SqlType, how: str, of: str, column: int | None, offset: int = 0) -> SqlToken:
        """Return the name of a value of the rows of a match."""
        read = Read(how, (of,) if of else self._variables, column, offset)
        self.reads.setdefault(read, type_)
        return attrs.evolve(name(f"#r{list(self.reads).index(read)}"), at=at.at, end=at.end)

    def _read(self, call: Sequence[SqlToken]) -> SqlToken:
        """Return the name of the value of a call of FIRST, LAST, PREV or an aggregate."""
        how, token, fail = call[0].upper, call[0], self._text.fail
        arguments = split(call[2:-1])
        if how == "COUNT" and sql(call[2:-1]) in ("", "*"):
            return self._value(token, BIGINT, how, "", None)
        if how == "MATCH_ROWTIME" and not arguments:
            arguments = [list(self._names.resolved(tokens(Text("epoch_ms(ROWTIME)"))[:-1]))]
        offsets = [int(sql(each)) if sql(each).isdecimal() else -1 for each in arguments[1:]]
        if not arguments or len(offsets) > (how in ("FIRST", "LAST", "PREV")) or -1 in offsets:
            fail(f"write {how}(expression), or FIRST, LAST and PREV(expression, whole number)", token.at)
        of, words = self._of_row(arguments[0], token)
        cell = self._cell(words)
        type_, offset = self._scope.type_of(words), sum(offsets)
        if how in AGGREGATES:
            is_number = type_.base in NUMBERS or how not in ("SUM", "AVG")
            if how not in _AGGREGATES or not is_number or (type_.has_parts and how != "COUNT"):
                fail(f"MATCH_RECOGNIZE has no {how} of the type {type_}; it has {', '.join(_AGGREGATES)}", token.at)
            return self._value(token, AGGREGATES[how]("x", type_, (), str)[0], how, of, cell)
        if how == "PREV" and (before := (cell, offset if offsets else 1))[1]:
            self.previous += [before] * (before not in self.previous)
            cell, offset = -1 - self.previous.index(before), 0
        return self._value(token, type_, "FIRST" if how == "FIRST" else "LAST", of, cell, offset)

    def _of_row(self, words: Sequence[SqlToken], at: SqlToken) -> tuple[str, Words]:
        """Return the variable of an expression over one row, and its words in the names of the source."""
        columns = [self._named.get(each.identifier) if each.kind == "name" else None for each in words]
        variables = {each[0] for each in columns if each is not None}
        if len(variables) > 1 or any(words[place].upper in (*_NAVIGATION, *AGGREGATES) for place, _ in calls(words)):
            self._text.fail(f"{at.text} takes an expression over one row of one variable, without DISTINCT", at.at)
        resolved = (w if each is None else name(each[1].stored) for w, each in zip(words, columns, strict=True))
        return next(iter(variables), ""), tuple(resolved)

    def _condition(self, words: Words, own: str) -> Callable[..., Any]:
        """Return the condition of a variable."""
        navigated = self._navigated(words, own)
        text = self._read_scope.condition(navigated, "DEFINE")
        offsets = accumulate((len(each.text) + 1 for each in navigated), initial=len("SELECT "))
        places = {offset: each.at for offset, each in zip(offsets, navigated, strict=False)}
        return self._compiled(parsed(text), own, places)

    def _compiled(self, node: Any, own: str, places: Mapping[int, int]) -> Value:
        """Return what computes a part of a condition. What reads the row alone is a column of it."""
        kind = node.get("function_name") or node["type"].removeprefix("COMPARE_")
        column = node.get("column_names", [""])[0]
        if '["#r' not in json.dumps(node):
            place = self._cell([name(column)] if column else tokens(Text(unparsed(node)))[:-1])
            return lambda row, _: tuple.__getitem__(row, place)
        if column:
            read = list(self.reads)[int(column[2:])]
            return lambda row, match: read.value(match, own, row)
        operands = [node[key] for key in ("left", "right", "input", "lower", "upper") if key in node]
        operands += node.get("children", []) + [each["expression"] for each in node.get("arguments", [])]
        parts = [self._compiled(each, own, places) for each in operands]
        match kind:
            case "CONJUNCTION_OR" | "CONJUNCTION_AND":
                return _combined(parts, decides=kind == "CONJUNCTION_OR")
            case "OPERATOR_NOT":
                return _strict(operator.not_, *parts)
            case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
                return lambda row, match: (parts[0](row, match) is None) == (kind == "OPERATOR_IS_NULL")
        types = [self._read_scope.type_of(tokens(Text(unparsed(each)))[:-1]) for each in operands]
        bases = {each.base for each in types}
        is_computed = kind in _ARITHMETIC and bases <= NUMBERS and len(parts) == 2
        is_alike = bases <= NUMBERS or (len(bases) == 1 and not types[0].has_parts)
        if not is_computed and not (kind in _COMPARISONS and is_alike):
            self._text.fail(
                f"{kind.lower()} of {', '.join(map(str, types))} is not supported with rows that have matched: use "
                "comparisons, + - * /, AND, OR, NOT, IS NULL and BETWEEN, with LAST(function(column)) and CAST(...)",
                places.get(node["query_location"], min(places.values())),
            )
        if "DOUBLE" in bases:
            convert = float if is_computed else lambda value: _order(float(value))
            parts = [_strict(convert, each) for each in parts]
        if is_computed:
            return _strict(_ARITHMETIC[kind]["DOUBLE" not in bases], *parts)
        first = _strict(_COMPARISONS[kind], *parts[:2])
        return _combined([first, *(_strict(operator.le, parts[0], each) for each in parts[2:])], decides=False)


def _quantified(pattern: Pattern, variable: Variable) -> Pattern:
    """Return a pattern whose last step has the quantifier of a variable, as in Flink."""
    least, most = variable.least, variable.most
    if most is None:
        pattern = pattern.times_or_more(max(least, 1)).consecutive()
    elif most > 1 or least > 1:
        pattern = pattern.times(least, most).consecutive()
    if not least and (most is None or most == 1):
        pattern = pattern.optional()
    return pattern.greedy() if variable.is_greedy else pattern


def _combined(parts: Sequence[Value], *, decides: bool) -> Value:
    """Return OR, which True decides, or AND of values that may be unknown."""

    def value(row: Any, match: Any) -> bool | None:
        values = [part(row, match) for part in parts]
        return decides if decides in values else None if None in values else not decides

    return value


def _strict(function: Callable[..., Any], *parts: Value) -> Value:
    """Return a function of values, which is null if one is."""

    def value(row: Any, match: Any) -> Any:
        values = [part(row, match) for part in parts]
        return None if any(each is None for each in values) else function(*values)

    return value
