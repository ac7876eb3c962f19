"""The aggregates of scripts: their names, and the aggregates of `keyed.windows` that compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from keyed import windows
from keyed.expressions.engine import PYTHON, PythonFunction
from keyed.expressions.tokens import SqlToken, calls, closing, split, sql, word
from keyed.formats.sql_types import BIGINT, DOUBLE, SqlType, array, decimal, struct
from keyed.sql.catalog import CHANGE
from keyed.sql.name_scope import NameScope
from keyed.windows.vectorized.accumulators import PythonAggregate

NUMBERS = {"INT", "BIGINT", "DOUBLE", "DECIMAL"}


@attrs.frozen(eq=False)
class SqlAggregate:
    """An aggregate of a query.

    Attributes:
        arguments: The columns that it reads: name, expression and type.
        parts: The aggregates of `keyed.windows` that it consists of, with the types of their results, by their names.
        result: The expression of its result over the parts.
    """

    arguments: tuple[tuple[str, str, SqlType], ...]
    parts: Mapping[str, tuple[Any, SqlType]]
    result: str


Make = Callable[[str, SqlType, Sequence[Any], Callable[[str], Any]], tuple[SqlType, Any]]


def _sum_type(type_: SqlType) -> SqlType:
    return {"DOUBLE": DOUBLE, "DECIMAL": decimal(38, type_.scale)}.get(type_.base, BIGINT)


def _by_offset(of: type) -> Make:
    def make(column: str, type_: SqlType, rest: Sequence[Any], fail: Callable[[str], Any]) -> tuple[SqlType, Any]:
        if len(rest) > 1 or not all(isinstance(each, bool) for each in rest):
            fail("the second argument is true or false: whether nulls are ignored")
        return type_, of(column, ignore_nulls=rest[0] if rest else True)

    return make


def _collected(of: Callable[..., Any], **options: Any) -> Make:
    return lambda column, type_, rest, _: (array(type_), of(column, limit=rest[0] if rest else None, **options))


def _ranked(column: str, type_: SqlType, rest: Sequence[Any], fail: Callable[[str], Any]) -> tuple[SqlType, Any]:
    if len(rest) != 1 or not isinstance(rest[0], int) or rest[0] < 1:
        fail("TOPK takes a column and the number of values, from 1")
    return array(type_), windows.TopK(rest[0], column)


#: The aggregates of one column by name.
AGGREGATES: Mapping[str, Make] = {
    "COUNT": lambda column, *_: (BIGINT, windows.Count(column)),
    "SUM": lambda column, type_, *_: (_sum_type(type_), windows.Sum(column)),
    "AVG": lambda column, *_: (DOUBLE, windows.Mean(column, type="double")),
    "STDDEV_SAMP": lambda column, *_: (DOUBLE, windows.Stddev(column)),
    "STDDEV_SAMPLE": lambda column, *_: (DOUBLE, windows.Stddev(column)),
    "MIN": lambda column, type_, *_: (type_, windows.Min(column)),
    "MAX": lambda column, type_, *_: (type_, windows.Max(column)),
    "LATEST_BY_OFFSET": _by_offset(windows.Latest),
    "EARLIEST_BY_OFFSET": _by_offset(windows.First),
    "COLLECT_LIST": _collected(windows.CollectList, ignore_nulls=False),
    "COLLECT_SET": _collected(windows.CollectSet),
    "COUNT_DISTINCT": lambda column, *_: (BIGINT, windows.CountDistinct(column)),
    "TOPK": _ranked,
}


#: Aggregates of numbers, which a table's rows can leave again, as they can a `COUNT`.
_NUMERIC = {"SUM", "AVG", "STDDEV_SAMP", "STDDEV_SAMPLE"}
#: Aggregates that compare values.
_COMPARED = {"MIN", "MAX", "TOPK", "COLLECT_SET", "COUNT_DISTINCT"}
_LIMITED = ("COLLECT_LIST", "COLLECT_SET")


@attrs.frozen(eq=False)
class AggregateReader:
    """Reads the aggregates of a query.

    Attributes:
        scope: The names that arguments may use.
        properties: The settings of ``SET``.
        is_table: The query reads a table.
    """

    scope: NameScope
    properties: Mapping[str, str]
    is_table: bool

    def read(self, call: Sequence[SqlToken], number: int) -> SqlAggregate:
        """Return the aggregate of a call.

        Args:
            call: The resolved words of the call, with its ``FILTER``.
            number: Its number in the query.

        Raises:
            SqlError: Its arguments do not fit.
        """
        label, at = call[0].upper, call[0].at

        def fail(message: str) -> Any:
            self.scope.text.fail(message, at)

        end = closing(call, 1)
        inner = list(call[2:end])
        condition = list(call[end + 4 : -1]) if end < len(call) - 1 else None
        if inner and inner[0].upper == "DISTINCT":
            inner = inner[1:]
            if label != "COUNT":
                fail(f"{label}(DISTINCT ...) is not supported; COUNT takes DISTINCT")
            label = "COUNT_DISTINCT"
        if aggregate_calls(inner):
            fail("an aggregate of an aggregate is not supported")
        arguments = split(inner)
        name = f"#a{number}"
        if label == "COUNT" and (not arguments or sql(arguments[0]) == "*"):
            if condition is None and not self.is_table:
                return SqlAggregate((), {name: (windows.Count(), BIGINT)}, f'"{name}"')
            arguments = [[word("true")]]
        if not arguments:
            fail(f"{label} takes an argument")
        if label in PYTHON:
            return self._of_python(PYTHON[label], arguments, condition, name, fail)
        value = arguments[0]
        type_ = self.scope.type_of(value)
        rest = [_constant(each) for each in arguments[1:]]
        limit = self.properties.get(f"ksql.functions.{label.lower()}.limit")
        if label in _LIMITED:
            if rest:
                fail(f"{label} takes one argument; SET 'ksql.functions.{label.lower()}.limit' limits its values")
            if limit is not None and (not limit.isdecimal() or int(limit) < 1):
                fail(f"the limit of values is {limit!r}; set it to a number from 1")
            rest = [] if limit is None else [int(limit)]
        elif limit is not None:
            fail(f"{label} has no limit of values; {', '.join(_LIMITED)} have one")
        expression = sql(value)
        if condition is not None:
            expression = f"CASE WHEN {self.scope.condition(condition, 'FILTER')} THEN {expression} END"
        if label in _NUMERIC and type_.base not in NUMBERS:
            fail(f"{label} takes a number, and this is of type {type_}")
        if self.is_table:
            return _undone(label, name, expression, type_, fail)
        if label in _COMPARED and type_.base in ("ARRAY", "MAP", "STRUCT"):
            fail(f"{label} takes values that compare, and this is of type {type_}")
        column = f"#v{number}"
        result, aggregate = AGGREGATES[label](column, type_, rest, fail)
        return SqlAggregate(((column, expression, type_),), {name: (aggregate, result)}, f'"{name}"')

    def _of_python(
        self, function: PythonFunction, arguments: Sequence[Any], condition: Any, name: str, fail: Callable[[str], Any]
    ) -> SqlAggregate:
        """Return a registered aggregate; rows in which an argument is null do not count."""
        types = tuple(map(self.scope.type_of, arguments))
        if types != function.takes:
            argument_types, takes = (", ".join(map(str, each)) for each in (types, function.takes))
            fail(f"{function.name} does not take ({argument_types}); it takes ({takes})")
        if self.is_table:
            fail(f"{function.name} is for streams: it cannot undo a row of a table that changes")
        cells = list(map(sql, arguments))
        tests = [f"({each}) IS NOT NULL" for each in cells] + ([] if condition is None else [f"({sql(condition)})"])
        type_ = types[0] if len(types) == 1 else struct(*((f"a{place}", each) for place, each in enumerate(types)))
        named = ", ".join(f"a{place} := {cell}" for place, cell in enumerate(cells))
        value = cells[0] if len(cells) == 1 else f"struct_pack({named})"
        column = f"{name}v"
        aggregate = PythonAggregate(function.function, column, function.returns.arrow)
        expression = f"CASE WHEN {' AND '.join(tests)} THEN {value} END"
        return SqlAggregate(((column, expression, type_),), {name: (aggregate, function.returns)}, f'"{name}"')


def _undone(label: str, name: str, value: str, type_: SqlType, fail: Callable[[str], Any]) -> SqlAggregate:
    """Return an aggregate over a table, whose rows leave again: sums of values with the sign of their change."""
    if label != "COUNT" and label not in _NUMERIC:
        fail(f"{label} is for streams: it cannot undo a row of a table that changes")
    change = f'"{CHANGE}"'

    def count(test: str) -> tuple[str, SqlType]:
        return f"CASE WHEN {test} THEN {change} END", BIGINT

    is_real = type_.base == "DOUBLE" or label.startswith("STDDEV")
    sums = {"n": count(f"({value}) IS NOT NULL")}
    if label != "COUNT" and is_real:
        # NaN and infinities are counted apart, so that they can leave.
        real = f"CAST({value} AS DOUBLE)"
        sums["s"] = f"CASE WHEN isfinite({real}) THEN {real} * {change} END", DOUBLE
        sums["q"] = f"CASE WHEN isfinite({real}) THEN {real} * {real} * {change} END", DOUBLE
        sums["x"] = count(f"isnan({real})")
        sums |= {part: count(f"{real} = '{of}'::DOUBLE") for part, of in (("i", "inf"), ("j", "-inf"))}
    elif label != "COUNT":
        of_sum = _sum_type(type_)
        sums["s"] = f"CAST({value} AS {of_sum.duckdb}) * {change}", of_sum
    n, total, squares, nan, above, below = (f'coalesce("{name}{part}", 0)' for part in "nsqxij")
    deviation = (
        f"CASE WHEN {nan} + {above} + {below} > 0 THEN 'nan'::DOUBLE "
        f"ELSE sqrt(greatest(({squares} - {total} * {total} / {n}) / ({n} - 1), 0)) END"
    )
    if is_real:
        infinite = f"WHEN {above} > 0 THEN 'inf'::DOUBLE WHEN {below} > 0 THEN '-inf'::DOUBLE"
        is_nan = f"{nan} > 0 OR ({above} > 0 AND {below} > 0)"
        total = f"CASE WHEN {is_nan} THEN 'nan'::DOUBLE {infinite} ELSE {total} END"
    result = {
        "COUNT": f"CAST({n} AS BIGINT)",
        "SUM": f"CASE WHEN {n} > 0 THEN {total} END",
        "AVG": f"CASE WHEN {n} > 0 THEN CAST({total} AS DOUBLE) / {n} END",
    }.get(label, f"CASE WHEN {n} > 1 THEN {deviation} END")
    arguments = tuple((f"{name}{part}v", expression, of) for part, (expression, of) in sums.items())
    parts = {f"{name}{part}": (windows.Sum(f"{name}{part}v"), of) for part, (_, of) in sums.items()}
    return SqlAggregate(arguments, parts, f"({result})")


def aggregate_calls(words: Sequence[SqlToken]) -> list[tuple[int, int]]:
    """Return the places of the first and last word of each aggregate, with its ``FILTER``."""
    places: list[tuple[int, int]] = []
    for place, end in calls(words):
        if words[place].upper in AGGREGATES or words[place].upper in PYTHON:
            if end + 2 < len(words) and words[end + 1].upper == "FILTER" and words[end + 2].upper == "(":
                end = closing(words, end + 2)
            if not places or place > places[-1][1]:
                places.append((place, end))
    return places


def _constant(words: Sequence[SqlToken]) -> Any:
    shown = sql(words)
    if shown.isdecimal():
        return int(shown)
    return {"TRUE": True, "FALSE": False}.get(shown.upper(), shown)
