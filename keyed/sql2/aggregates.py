"""The aggregates of scripts: their names, and the aggregates of `keyed.windows` that compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from keyed.sql.script_errors import Text
from keyed.sql2.column_types import BIGINT, DOUBLE, SqlType, array, decimal
from keyed.sql2.tokens import Token, closing, split, sql, word
from keyed.windows import (
    CollectList,
    CollectSet,
    Count,
    CountDistinct,
    First,
    Latest,
    Max,
    Mean,
    Min,
    Stddev,
    Sum,
    TopK,
)

if TYPE_CHECKING:
    from keyed.sql2.planner import Relation
    from keyed.sql2.scope import Scope

_NUMBERS = {"INT", "BIGINT", "DOUBLE", "DECIMAL"}


@attrs.frozen(eq=False)
class Aggregate:
    """An aggregate of a query.

    Attributes:
        type: Type of its result.
        arguments: The columns that it reads: name, expression and type.
        made: The aggregate of `keyed.windows`.
        is_undone: A row can be taken away again.
    """

    type: SqlType
    arguments: tuple[tuple[str, str, SqlType], ...]
    made: Any
    is_undone: bool


Make = Callable[[str, SqlType, Sequence[Any], Callable[[str], Any]], tuple[SqlType, Any, bool]]


def _sum(column: str, type_: SqlType, _: Sequence[Any], fail: Callable[[str], Any]) -> tuple[SqlType, Any, bool]:
    if type_.base not in _NUMBERS:
        fail(f"SUM takes a number, and this is of type {type_}")
    result = {"DOUBLE": DOUBLE, "DECIMAL": decimal(38, type_.scale)}.get(type_.base, BIGINT)
    return result, Sum(column), True


def _avg(column: str, type_: SqlType, _: Sequence[Any], fail: Callable[[str], Any]) -> tuple[SqlType, Any, bool]:
    if type_.base not in _NUMBERS:
        fail(f"AVG takes a number, and this is of type {type_}")
    return DOUBLE, Mean(column, type="double"), True


def _stddev(column: str, type_: SqlType, _: Sequence[Any], fail: Callable[[str], Any]) -> tuple[SqlType, Any, bool]:
    if type_.base not in _NUMBERS:
        fail(f"STDDEV takes a number, and this is of type {type_}")
    return DOUBLE, Stddev(column), True


def _extreme(of: type) -> Make:
    return lambda column, type_, _, __: (type_, of(column), False)


def _collected(of: type) -> Make:
    return lambda column, type_, _, __: (array(type_), of(column), False)


def _ranked(column: str, type_: SqlType, rest: Sequence[Any], fail: Callable[[str], Any]) -> tuple[SqlType, Any, bool]:
    if len(rest) != 1 or not isinstance(rest[0], int) or rest[0] < 1:
        fail("TOPK takes a column and the number of values, from 1")
    return array(type_), TopK(rest[0], column), False


def _count(column: str, _: SqlType, __: Sequence[Any], ___: Any) -> tuple[SqlType, Any, bool]:
    return BIGINT, Count(column), True


def _distinct(column: str, _: SqlType, __: Sequence[Any], ___: Any) -> tuple[SqlType, Any, bool]:
    return BIGINT, CountDistinct(column), False


#: The aggregates of one column by name.
AGGREGATES: Mapping[str, Make] = {
    "COUNT": _count,
    "SUM": _sum,
    "AVG": _avg,
    "STDDEV_SAMP": _stddev,
    "STDDEV_SAMPLE": _stddev,
    "MIN": _extreme(Min),
    "MAX": _extreme(Max),
    "LATEST_BY_OFFSET": _extreme(Latest),
    "EARLIEST_BY_OFFSET": _extreme(First),
    "COLLECT_LIST": _collected(CollectList),
    "COLLECT_SET": _collected(CollectSet),
    "COUNT_DISTINCT": _distinct,
    "TOPK": _ranked,
}


def aggregate_of(
    text: Text, call: Sequence[Token], scope: Scope, number: int, source: Relation, properties: Mapping[str, str]
) -> Aggregate:
    """Return the aggregate of a call.

    Args:
        text: The script.
        call: The resolved words of the call, with its ``FILTER``.
        scope: The names that its arguments may use.
        number: Its number in the query.
        source: What the query reads.
        properties: The settings of ``SET``.

    Raises:
        SqlError: Its arguments do not fit.
    """
    label, at = call[0].upper, call[0].at

    def fail(message: str) -> Any:
        text.fail(message, at)

    end = closing(call, 1)
    inner = list(call[2:end])
    condition = list(call[end + 4 : -1]) if end < len(call) - 1 else None
    if inner and inner[0].upper == "DISTINCT":
        inner = inner[1:]
        if label != "COUNT":
            fail(f"{label}(DISTINCT ...) is not supported; COUNT takes DISTINCT")
        label = "COUNT_DISTINCT"
    for each in inner:
        if each.upper in AGGREGATES and each.kind == "word":
            following = inner[inner.index(each) + 1 : inner.index(each) + 2]
            if following and following[0].text == "(":
                fail("an aggregate of an aggregate is not supported")
    arguments = split(inner)
    if label == "COUNT" and (not arguments or sql(arguments[0]) == "*"):
        arguments = [[word("true")]]
        if condition is None:
            return Aggregate(BIGINT, (), Count(), True)
    if not arguments:
        fail(f"{label} takes an argument")
    value = arguments[0]
    type_ = scope.type_of(value)
    rest = [_constant(each) for each in arguments[1:]]
    expression = sql(value)
    if condition is not None:
        if scope.type_of(condition).base != "BOOLEAN":
            fail("FILTER takes a condition")
        expression = f"CASE WHEN {sql(condition)} THEN {expression} END"
    if source.is_table and label in ("MIN", "MAX", "TOPK", "COLLECT_LIST", "COLLECT_SET", "COUNT_DISTINCT"):
        fail(f"{label} is for streams: it cannot undo a row of a table that changes")
    name = f"#v{number}"
    result, made, is_undone = AGGREGATES[label](name, type_, rest, fail)
    return Aggregate(result, ((name, expression, type_),), made, is_undone)


def _constant(words: Sequence[Token]) -> Any:
    shown = sql(words)
    if shown.isdecimal():
        return int(shown)
    return {"TRUE": True, "FALSE": False}.get(shown.upper(), shown)
