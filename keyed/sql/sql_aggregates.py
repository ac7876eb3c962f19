"""The aggregates, with ksqlDB's names and meaning.

An accumulator is plain data. `SqlAggregate.undo` takes a row away again, which aggregates of tables need.
"""

# ruff: noqa: ARG001 - the functions that make aggregates have one signature

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import attrs

from keyed.sql.conversions import to_decimal, wrapped
from keyed.sql.java_values import java_order
from keyed.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INTEGER,
    NULL,
    STRING,
    SqlType,
    array,
    map_of,
    struct,
)

#: The most values that COLLECT_LIST, COLLECT_SET and HISTOGRAM keep.
MOST_COLLECTED = 1000


@attrs.frozen
class SqlAggregate:
    """An aggregate over rows.

    Attributes:
        type: Type of the result.
        start: Returns a new accumulator.
        add: Returns the accumulator with a row's arguments added.
        merge: Merges two accumulators, of sessions.
        result: Returns the result of an accumulator.
        undo: Returns the accumulator without a row's arguments, ``None`` if the aggregate cannot.
    """

    type: SqlType
    start: Callable[[], Any]
    add: Callable[[Any, Sequence[Any]], Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] = lambda accumulator: accumulator
    undo: Callable[[Any, Sequence[Any]], Any] | None = None


Fail = Callable[[str], NoReturn]
_ORDERED = ("INTEGER", "BIGINT", "DOUBLE", "DECIMAL", "STRING", "BYTES", "DATE", "TIME", "TIMESTAMP")


def aggregate_of(name: str, types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate:
    """Return an aggregate for the types of its arguments.

    Args:
        name: Its name.
        types: The types of the arguments.
        constants: The arguments that are literals, as their values; ``...`` for the others.
        fail: Raises an error at the call.

    Raises:
        SqlError: It does not take such arguments.
    """
    made: SqlAggregate | None = MAKERS[name](types, constants, fail)
    if made is None:
        shown = ", ".join(map(str, types))
        fail(f"{name} does not take ({shown})")
    return made


def limited(name: str, types: Sequence[SqlType], most: int, fail: Fail) -> SqlAggregate:
    """Return an aggregate that keeps at most so many values.

    Raises:
        SqlError: It has no limit, or does not take such arguments.
    """
    if name not in _LIMITED:
        fail(f"{name} has no limit of values; {', '.join(sorted(_LIMITED))} have one")
    made = _LIMITED[name](types, most)
    if made is None:
        fail(f"{name} does not take ({', '.join(map(str, types))})")
    return made


def distinct(aggregate: SqlAggregate) -> SqlAggregate:
    """Return an aggregate of the distinct arguments: the accumulator has each with the number of its rows."""

    def added(acc: Any, row: Sequence[Any]) -> Any:
        given = list(row)
        if any(each[0] == given for each in acc[0]):
            return [[[had, n + (had == given)] for had, n in acc[0]], acc[1]]
        return [[*acc[0], [given, 1]], aggregate.add(acc[1], row)]

    def merged(a: Any, b: Any) -> Any:
        counts, inner = [list(each) for each in a[0]], a[1]
        for given, n in b[0]:
            same = next((each for each in counts if each[0] == given), None)
            if same is None:
                counts.append([given, n])
                inner = aggregate.add(inner, given)
            else:
                same[1] += n
        return [counts, inner]

    def undone(acc: Any, row: Sequence[Any]) -> Any:
        given, undo = list(row), aggregate.undo
        assert undo is not None
        counts = [[had, n - (had == given)] for had, n in acc[0]]
        if all(n for _, n in counts):
            return [counts, acc[1]]
        return [[each for each in counts if each[1]], undo(acc[1], row)]

    return SqlAggregate(
        aggregate.type,
        lambda: [[], aggregate.start()],
        added,
        merged,
        lambda acc: aggregate.result(acc[1]),
        None if aggregate.undo is None else undone,
    )


def filtered(aggregate: SqlAggregate) -> SqlAggregate:
    """Return an aggregate that leaves out rows whose arguments are ``None``: those that do not meet its condition."""
    add, undo = aggregate.add, aggregate.undo
    return attrs.evolve(
        aggregate,
        add=lambda acc, row: acc if row is None else add(acc, row),
        undo=None if undo is None else lambda acc, row: acc if row is None else undo(acc, row),
    )


def _count(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    if len(types) > 1:
        return None
    if not types:
        return SqlAggregate(BIGINT, lambda: 0, lambda n, _: n + 1, lambda a, b: a + b, undo=lambda n, _: n - 1)
    return SqlAggregate(
        BIGINT,
        lambda: 0,
        lambda n, row: n + (row[0] is not None),
        lambda a, b: a + b,
        undo=lambda n, row: n - (row[0] is not None),
    )


def _sum(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    if len(types) != 1 or not (types[0].is_number or types[0] == NULL):
        return None
    type_ = types[0]
    fit: Callable[[Any], Any] = lambda value: value  # noqa: E731
    zero: Any = 0
    if type_.base in ("INTEGER", "BIGINT"):
        fit = lambda value: wrapped(value, type_.base)  # noqa: E731
    elif type_.base == "DOUBLE":
        zero = 0.0
    elif type_.base == "DECIMAL":
        zero = to_decimal(0, type_.precision, type_.scale)
        fit = lambda value: to_decimal(value, type_.precision, type_.scale)  # noqa: E731
    return SqlAggregate(
        type_,
        lambda: zero,
        lambda total, row: total if row[0] is None else fit(total + row[0]),
        lambda a, b: fit(a + b),
        undo=lambda total, row: total if row[0] is None else fit(total - row[0]),
    )


def _sum_list(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    if len(types) != 1 or types[0].base != "ARRAY" or not types[0].element.is_number:
        return None
    zero: Any = 0.0 if types[0].element == DOUBLE else 0
    base = types[0].element.base

    def total(row: Sequence[Any]) -> Any:
        return sum((each for each in row[0] or () if each is not None), zero)

    def fit(value: Any) -> Any:
        return wrapped(value, base) if base in ("INTEGER", "BIGINT") else value

    return SqlAggregate(
        types[0].element,
        lambda: zero,
        lambda acc, row: fit(acc + total(row)),
        lambda a, b: fit(a + b),
        undo=lambda acc, row: fit(acc - total(row)),
    )


def _average(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    if len(types) != 1 or not types[0].is_number:
        return None

    def moved(sign: int) -> Callable[[Any, Sequence[Any]], Any]:
        return lambda acc, row: acc if row[0] is None else [acc[0] + sign * float(row[0]), acc[1] + sign]

    return SqlAggregate(
        DOUBLE,
        lambda: [0.0, 0],
        moved(1),
        lambda a, b: [a[0] + b[0], a[1] + b[1]],
        lambda acc: acc[0] / acc[1] if acc[1] else 0.0,
        moved(-1),
    )


def _extreme(choose: Callable[..., Any]) -> Callable[..., SqlAggregate | None]:
    def made(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
        if len(types) != 1 or types[0].base not in _ORDERED:
            return None

        def merged(a: Any, b: Any) -> Any:
            return b if a is None else a if b is None else choose(a, b, key=java_order)

        return SqlAggregate(types[0], lambda: None, lambda acc, row: merged(acc, row[0]), merged)

    return made


def _by_offset(*, latest: bool) -> Callable[..., SqlAggregate | None]:
    def made(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
        rest = list(zip(types, constants, strict=True))[1:]
        if not types or any(constant is ... for _, constant in rest):
            fail("the number of values, and whether nulls are ignored, must be literals")
        ignores, count = True, None
        if rest and rest[-1][0] == BOOLEAN:
            ignores = rest.pop()[1]
        if rest:
            if rest[0][0] != INTEGER or len(rest) > 1:
                return None
            count = rest[0][1]
            if count < 1:
                fail("the number of values must be 1 or more")

        def added(acc: Any, row: Sequence[Any]) -> Any:
            value = row[0]
            if value is None and ignores:
                return acc
            if latest:
                return [*acc, value][-(count or 1) :]
            return acc if len(acc) >= (count or 1) else [*acc, value]

        def merged(a: Any, b: Any) -> Any:
            both = [*a, *b]
            return both[-(count or 1) :] if latest else both[: count or 1]

        if count is None:
            return SqlAggregate(types[0], list, added, merged, lambda acc: acc[0] if acc else None)
        return SqlAggregate(array(types[0]), list, added, merged)

    return made


def _collect_list(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    return _collected(types, MOST_COLLECTED)


def _collected(types: Sequence[SqlType], most: int) -> SqlAggregate | None:
    if len(types) != 1:
        return None

    def undone(acc: Any, row: Sequence[Any]) -> Any:
        for place in reversed(range(len(acc))):
            if acc[place] == row[0]:
                return acc[:place] + acc[place + 1 :]
        return acc

    return SqlAggregate(
        array(types[0]),
        list,
        lambda acc, row: acc if len(acc) >= most else [*acc, row[0]],
        lambda a, b: [*a, *b][:most],
        undo=undone,
    )


def _collect_set(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    return _collected_once(types, MOST_COLLECTED)


def _collected_once(types: Sequence[SqlType], most: int) -> SqlAggregate | None:
    if len(types) != 1:
        return None

    def added(acc: Any, row: Sequence[Any]) -> Any:
        return acc if row[0] in acc or len(acc) >= most else [*acc, row[0]]

    return SqlAggregate(array(types[0]), list, added, lambda a, b: [*a, *(each for each in b if each not in a)][:most])


_LIMITED: dict[str, Callable[[Sequence[SqlType], int], SqlAggregate | None]] = {
    "COLLECT_LIST": _collected,
    "COLLECT_SET": _collected_once,
}


def _count_distinct(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    if len(types) != 1:
        return None

    def added(acc: Any, row: Sequence[Any]) -> Any:
        return acc if row[0] is None or row[0] in acc else [*acc, row[0]]

    return SqlAggregate(BIGINT, list, added, lambda a, b: [*a, *(each for each in b if each not in a)], len)


def _top(*, distinct: bool) -> Callable[..., SqlAggregate | None]:
    def made(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
        if len(types) < 2 or types[0].base not in _ORDERED or (distinct and len(types) != 2):
            return None
        count = constants[-1]
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            fail("the last argument, the number of values, must be a literal of 1 or more")
        others = types[1:-1]

        def ranked(values: Any) -> Any:
            if others:
                return sorted(values, key=lambda each: java_order(each["sort_col"]), reverse=True)[:count]
            return sorted(values, key=java_order, reverse=True)[:count]

        def added(acc: Any, row: Sequence[Any]) -> Any:
            if row[0] is None or (distinct and row[0] in acc):
                return acc
            value = row[0]
            if others:
                value = {"sort_col": row[0]} | {f"col{i}": row[i + 1] for i in range(len(others))}
            return ranked([*acc, value])

        def merged(a: Any, b: Any) -> Any:
            return ranked([*a, *(each for each in b if not distinct or each not in a)])

        element = types[0]
        if others:
            element = struct(("sort_col", types[0]), *((f"col{i}", type_) for i, type_ in enumerate(others)))
        return SqlAggregate(array(element), list, added, merged)

    return made


def _histogram(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    if len(types) != 1 or types[0] != STRING:
        return None

    def moved(sign: int) -> Callable[[Any, Sequence[Any]], Any]:
        def move(acc: Any, row: Sequence[Any]) -> Any:
            value = row[0]
            if value is None or (value not in acc and (len(acc) >= MOST_COLLECTED or sign < 0)):
                return acc
            found = {**acc, value: acc.get(value, 0) + sign}
            return {key: count for key, count in found.items() if count}

        return move

    def merged(a: Any, b: Any) -> Any:
        return dict(list({key: a.get(key, 0) + b.get(key, 0) for key in [*a, *b]}.items())[:MOST_COLLECTED])

    return SqlAggregate(map_of(STRING, BIGINT), dict, moved(1), merged, undo=moved(-1))


def _deviation(*, root: bool) -> Callable[..., SqlAggregate | None]:
    def made(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
        if len(types) != 1 or not types[0].is_number:
            return None

        # The algorithm of Youngs and Cramer, which loses no digits to large values that differ by little: the count,
        # the sum, and the sum of the squares of the distances from the mean.
        def moved(sign: int) -> Callable[[Any, Sequence[Any]], Any]:
            def move(acc: Any, row: Sequence[Any]) -> Any:
                if row[0] is None:
                    return acc
                count, total, squares = acc
                x = row[0] if isinstance(row[0], int) else float(row[0])
                # The distance is from the rows with this one, whether it comes or goes.
                most = max(count, count + sign)
                sum_with = total + x if sign > 0 else total
                distance = float(x * most - sum_with)
                change = distance * distance / (most * (most - 1)) if most > 1 else 0.0
                left = count + sign
                return [left, total + sign * x, squares + sign * change if left > 1 else 0.0]

            return move

        def merged(a: Any, b: Any) -> Any:
            count = a[0] + b[0]
            between = 0.0
            if a[0] and b[0]:
                between = a[0] * b[0] * (a[1] / a[0] - b[1] / b[0]) ** 2 / count
            return [count, a[1] + b[1], a[2] + b[2] + between]

        def result(acc: Any) -> float:
            count, _, squares = acc
            variance = max(0.0, squares) / (count - 1) if count > 1 else 0.0
            return math.sqrt(variance) if root else variance

        return SqlAggregate(DOUBLE, lambda: [0, 0, 0.0], moved(1), merged, result, moved(-1))

    return made


def _correlation(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    if len(types) != 2 or not all(type_.is_number for type_ in types):
        return None

    def moved(sign: int) -> Callable[[Any, Sequence[Any]], Any]:
        def move(acc: Any, row: Sequence[Any]) -> Any:
            if None in row:
                return acc
            x, y = map(float, row)
            return [a + sign * b for a, b in zip(acc, (1, x, y, x * x, y * y, x * y), strict=True)]

        return move

    def result(acc: Any) -> float:
        n, x, y, xx, yy, xy = acc
        above, squared = n * xy - x * y, (n * xx - x * x) * (n * yy - y * y)
        if squared > 0:
            return float(above / math.sqrt(squared))
        return math.copysign(math.inf, above) if above and squared == 0 else math.nan

    return SqlAggregate(
        DOUBLE,
        lambda: [0, 0.0, 0.0, 0.0, 0.0, 0.0],
        moved(1),
        lambda a, b: [x + y for x, y in zip(a, b, strict=True)],
        result,
        moved(-1),
    )


def _attr(types: Sequence[SqlType], constants: Sequence[Any], fail: Fail) -> SqlAggregate | None:
    """Return the value that all rows have, null if they differ; it counts them, so that it can undo."""
    if len(types) != 1:
        return None

    def moved(sign: int) -> Callable[[Any, Sequence[Any]], Any]:
        def move(acc: Any, row: Sequence[Any]) -> Any:
            found = [list(each) for each in acc]
            for each in found:
                if each[0] == row[0]:
                    each[1] += sign
                    return [each for each in found if each[1] > 0]
            return [*found, [row[0], 1]] if sign > 0 else found

        return move

    def merged(a: Any, b: Any) -> Any:
        both = [list(each) for each in a]
        for value, count in b:
            same = next((each for each in both if each[0] == value), None)
            if same is None:
                both.append([value, count])
            else:
                same[1] += count
        return both

    return SqlAggregate(types[0], list, moved(1), merged, lambda acc: acc[0][0] if len(acc) == 1 else None, moved(-1))


MAKERS: dict[str, Callable[..., SqlAggregate | None]] = {
    "ATTR": _attr,
    "AVG": _average,
    "COLLECT_LIST": _collect_list,
    "COLLECT_SET": _collect_set,
    "CORRELATION": _correlation,
    "COUNT": _count,
    "COUNT_DISTINCT": _count_distinct,
    "EARLIEST_BY_OFFSET": _by_offset(latest=False),
    "HISTOGRAM": _histogram,
    "LATEST_BY_OFFSET": _by_offset(latest=True),
    "MAX": _extreme(max),
    "MIN": _extreme(min),
    "STDDEV_SAMP": _deviation(root=False),
    "STDDEV_SAMPLE": _deviation(root=True),
    "SUM": _sum,
    "SUM_LIST": _sum_list,
    "TOPK": _top(distinct=False),
    "TOPKDISTINCT": _top(distinct=True),
}
#: Names of the aggregates, those too that are registered later.
AGGREGATES = MAKERS.keys()
