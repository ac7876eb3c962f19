"""Checks expressions and compiles them: each becomes a type and a function of a row.

A row is a tuple of the columns of the scope. The meaning is ksqlDB's:

- A null operand of arithmetic, or of a function, makes the result null; a comparison with null is false.
- Integers divide without a fraction, and wrap around at the ends of their range.
- An error in one row (division by zero, a cast that fails) makes the result null: see `guarded`.

The functions are closures, so nothing is evaluated as code, and a text never becomes one.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import attrs

from keyed.sql import syntax as tree
from keyed.sql.conversions import (
    WIDE,
    casting,
    identity,
    is_implicit,
    parse_date,
    parse_time,
    parse_timestamp,
    text_of,
    to_decimal,
    widening,
    wrapped,
)
from keyed.sql.script_errors import Text, nearest
from keyed.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INTEGER,
    NULL,
    STRING,
    SqlType,
    array,
    as_decimal,
    common_type,
    decimal,
    map_of,
    shown_name,
    struct,
)

Evaluate = Callable[[Any], Any]


@attrs.frozen
class Column:
    """A column of a scope.

    Attributes:
        name: Its name.
        type: Its type.
        source: Alias of its source.
        is_key: It is a part of the key.
        is_pseudo: It is a column that every source has, such as ``ROWTIME``, which ``*`` leaves out.
    """

    name: str
    type: SqlType
    source: str | None = None
    is_key: bool = False
    is_pseudo: bool = False


@attrs.frozen
class Compiled:
    """A checked expression: its type, and the function that computes it from a row."""

    type: SqlType
    of: Evaluate

    def to(self, target: SqlType) -> Evaluate:
        """Return the function with the implicit conversion to another type."""
        convert = widening(self.type, target)
        if convert is identity:
            return self.of
        of = self.of
        return lambda row: convert(of(row))


def guarded(of: Evaluate) -> Evaluate:
    """Return a function that is null where an expression raises, as the rows of ksqlDB."""

    def value(row: Any) -> Any:
        try:
            return of(row)
        except Exception:  # noqa: BLE001 - whatever a row does to an expression
            return None

    return value


#: Functions that take a lambda.
_HIGHER = ("TRANSFORM", "FILTER", "REDUCE")


def function_names() -> frozenset[str]:
    """Return the names of all functions that an expression may call."""
    from keyed.sql.scalar_functions import FUNCTIONS
    from keyed.sql.sql_aggregates import AGGREGATES
    from keyed.sql.table_functions import TABLE_FUNCTIONS

    return frozenset({*AGGREGATES, *TABLE_FUNCTIONS, *FUNCTIONS, *_HIGHER, "TO_JSON_STRING"})


class RowScope:
    """The columns that expressions can name.

    Args:
        text: The script, for errors.
        columns: The columns of a row, in order.
        what: Names the scope in errors.
    """

    def __init__(self, text: Text, columns: Sequence[Column], what: str = "") -> None:
        self.text = text
        self.columns = tuple(columns)
        self.what = what
        self._variables: tuple[tuple[str, SqlType], ...] = ()

    def with_variables(self, variables: Sequence[tuple[str, SqlType]]) -> RowScope:
        """Return the scope with the parameters of a lambda, whose values follow those of the row."""
        scope = RowScope(self.text, self.columns, self.what)
        scope._variables = (*self._variables, *variables)
        return scope

    @property
    def has_variables(self) -> bool:
        """True in the body of a lambda."""
        return bool(self._variables)

    def find(self, name: tree.Name) -> int:
        """Return the place of a column or variable in the row.

        Raises:
            SqlError: There is none, or there are several.
        """
        if name.source is None:
            for place in reversed(range(len(self._variables))):
                if self._variables[place][0] == name.name:
                    return len(self.columns) + place
        found = [
            place
            for place, column in enumerate(self.columns)
            if column.name == name.name and name.source in (None, column.source)
        ]
        if len(found) > 1:
            options = " or ".join(f"{self.columns[place].source}.{name.name}" for place in found)
            self.text.fail(f"column {name.name} is ambiguous; write {options}", name.at)
        if found:
            return found[0]
        sources = {column.source for column in self.columns if column.source}
        if name.source is not None and name.source not in sources:
            self.text.fail(f"unknown source {name.source}{nearest(name.source, sources)}", name.at)
        names = [column.name for column in self.columns if name.source in (None, column.source)]
        return self.text.fail(f"unknown column {shown_name(name.name)}{self.what}{nearest(name.name, names)}", name.at)

    def type_at(self, place: int) -> SqlType:
        """Return the type of a column or variable."""
        if place < len(self.columns):
            return self.columns[place].type
        return self._variables[place - len(self.columns)][1]

    def compile(self, node: Any) -> Compiled:
        """Check and compile an expression.

        Raises:
            SqlError: It names something unknown, or types do not fit.
        """
        return _Compiler(self).compile(node)


class _Compiler:
    def __init__(self, scope: RowScope) -> None:
        self._scope = scope
        self._text = scope.text

    def compile(self, node: Any) -> Compiled:
        return getattr(self, f"_{type(node).__name__.lower()}")(node)  # type: ignore[no-any-return]

    def _literal(self, node: tree.Literal) -> Compiled:
        value = node.value
        return Compiled(node.type, lambda _: value)

    def _name(self, node: tree.Name) -> Compiled:
        place = self._scope.find(node)
        return Compiled(self._scope.type_at(place), operator.itemgetter(place))

    def _field(self, node: tree.Field) -> Compiled:
        base = self.compile(node.base)
        if base.type.base != "STRUCT":
            self._text.fail(f"-> takes a field of a STRUCT, and this is of type {base.type}", node.at)
        type_ = base.type.field(node.name)
        if type_ is None:
            self._text.fail(
                f"the struct has no field {shown_name(node.name)}{nearest(node.name, dict(base.type.fields))}", node.at
            )
        of, name = base.of, node.name

        def field(row: Any) -> Any:
            value = of(row)
            return None if value is None else value.get(name)

        return Compiled(type_, field)

    def _subscript(self, node: tree.Subscript) -> Compiled:
        base, index = self.compile(node.base), self.compile(node.index)
        of = base.of
        if base.type.base == "ARRAY":
            if index.type not in (INTEGER, BIGINT):
                self._text.fail(f"the index of an array is an INTEGER, and this is of type {index.type}", node.at)
            at = index.of

            def item(row: Any) -> Any:
                value, place = of(row), at(row)
                if value is None or place is None:
                    return None
                # The first element is 1, the last one -1.
                place = place - 1 if place > 0 else len(value) + place
                return value[place] if 0 <= place < len(value) else None

            return Compiled(base.type.element, item)
        if base.type.base == "MAP":
            key = index.to(base.type.parts[0])
            if not is_implicit(index.type, base.type.parts[0]):
                self._text.fail(f"the keys of the map are of type {base.type.parts[0]}, not {index.type}", node.at)

            def value_of(row: Any) -> Any:
                value = of(row)
                return None if value is None else value.get(key(row))

            return Compiled(base.type.element, value_of)
        return self._text.fail(f"[...] takes an ARRAY or MAP, and this is of type {base.type}", node.at)

    def _unary(self, node: tree.Unary) -> Compiled:
        operand = self.compile(node.operand)
        of = operand.of
        if node.operator == "IS NULL":
            return Compiled(BOOLEAN, lambda row: of(row) is None)
        if node.operator == "NOT":
            self._expect_boolean(operand, node)

            def negated(row: Any) -> Any:
                value = of(row)
                return None if value is None else not value

            return Compiled(BOOLEAN, negated)
        if not operand.type.is_number:
            self._text.fail(f"- takes a number, and this is of type {operand.type}", node.at)

        minus = WIDE.minus if operand.type.base == "DECIMAL" else operator.neg

        def negative(row: Any) -> Any:
            value = of(row)
            return None if value is None else minus(value)

        return Compiled(operand.type, negative)

    def _expect_boolean(self, value: Compiled, node: Any) -> None:
        if value.type not in (BOOLEAN, NULL):
            self._text.fail(f"expected a condition (BOOLEAN), and this is of type {value.type}", node.at)

    def _binary(self, node: tree.Binary) -> Compiled:
        left, right = self.compile(node.left), self.compile(node.right)
        if node.operator in ("AND", "OR"):
            for side, part in ((left, node.left), (right, node.right)):
                self._expect_boolean(side, part)
            return Compiled(BOOLEAN, _connected(node.operator, left.of, right.of))
        if node.operator == "LIKE":
            return self._like(node, left, right)
        if node.operator in "+-*/%":
            return self._arithmetic(node, left, right)
        return self._comparison(node, left, right)

    def _like(self, node: tree.Binary, left: Compiled, right: Compiled) -> Compiled:
        for side in (left, right):
            if side.type not in (STRING, NULL):
                self._text.fail(f"LIKE takes texts, and one side is of type {side.type}", node.at)
        of, pattern_of, escape = left.of, right.of, node.escape

        def like(row: Any) -> Any:
            value, pattern = of(row), pattern_of(row)
            if value is None or pattern is None:
                return False
            return like_pattern(pattern, escape).fullmatch(value) is not None

        return Compiled(BOOLEAN, like)

    def _arithmetic(self, node: tree.Binary, left: Compiled, right: Compiled) -> Compiled:
        sign = node.operator
        if sign == "+" and left.type == right.type and left.type == STRING:
            return Compiled(STRING, _nullable(operator.add, left.of, right.of))
        if sign == "+" and {left.type.base, right.type.base} == {"STRING", "NULL"}:
            return Compiled(STRING, lambda _: None)
        for side in (left, right):
            if not side.type.is_number and side.type != NULL:
                self._text.fail(
                    f"{sign} takes numbers, and the types are {left.type} and {right.type}; use CAST", node.at
                )
        if NULL in (left.type, right.type):
            return Compiled(left.type if right.type == NULL else right.type, lambda _: None)
        combine = _raising if self._scope.has_variables else _nullable
        if DOUBLE in (left.type, right.type):
            return Compiled(DOUBLE, combine(_DOUBLE[sign], left.to(DOUBLE), right.to(DOUBLE)))
        if "DECIMAL" in (left.type.base, right.type.base):
            a, b = as_decimal(left.type), as_decimal(right.type)
            type_ = decimal_result(sign, a, b)
            compute = _DECIMAL[sign]

            def exact(x: Any, y: Any) -> Any:
                return to_decimal(compute(Decimal(x), Decimal(y), type_.scale), type_.precision, type_.scale)

            return Compiled(type_, combine(exact, left.of, right.of))
        type_ = BIGINT if BIGINT in (left.type, right.type) else INTEGER
        base, whole = type_.base, _INTEGER[sign]
        return Compiled(type_, combine(lambda x, y: wrapped(whole(x, y), base), left.of, right.of))

    def _comparison(self, node: tree.Binary, left: Compiled, right: Compiled) -> Compiled:
        of_left, of_right = self._comparable(node, left, right)
        sign = node.operator
        if sign == "IS DISTINCT FROM":
            return Compiled(BOOLEAN, lambda row: of_left(row) != of_right(row))
        compare = _COMPARE[sign]

        def compared(row: Any) -> Any:
            a, b = of_left(row), of_right(row)
            return False if a is None or b is None else compare(a, b)

        return Compiled(BOOLEAN, compared)

    def _comparable(self, node: Any, left: Compiled, right: Compiled) -> tuple[Evaluate, Evaluate]:
        """Return both sides as values that compare."""
        sign = getattr(node, "operator", "=")
        mine, theirs = getattr(node, "left", None), getattr(node, "right", None)
        for a, b in ((left, right), (right, left)):
            if a.type.base in _PARSES and b.type == STRING:
                parse, of = _PARSES[a.type.base], b.of
                parsed = lambda row: None if (value := of(row)) is None else parse(value)  # noqa: E731, B023
                return (a.of, parsed) if a is left else (parsed, a.of)
        for a, b, part in ((left, right, mine), (right, left, theirs)):
            if a.type == BIGINT and b.type == STRING and isinstance(part, tree.Name) and part.name in _MOMENTS:
                # A time of a row compares with a text, as a timestamp does.
                moment = _strict_call(parse_timestamp, b.of)
                return (a.of, moment) if a is left else (moment, a.of)
        times = {"TIMESTAMP", "DATE"}
        if {left.type.base, right.type.base} == times:
            sides = [
                (lambda row, of=side.of: None if (v := of(row)) is None else v * 86_400_000)
                if side.type.base == "DATE"
                else side.of
                for side in (left, right)
            ]
            return sides[0], sides[1]
        if NULL in (left.type, right.type):
            if sign != "IS DISTINCT FROM":
                self._text.fail("a comparison with NULL is never true; write IS NULL or IS NOT NULL", node.at)
            return left.of, right.of
        if not (left.type.is_number and right.type.is_number) and left.type != right.type:
            same = left.type.base == right.type.base and left.type.base in ("ARRAY", "MAP", "STRUCT")
            if not same or common_type(left.type, right.type) is None:
                self._text.fail(f"types {left.type} and {right.type} do not compare; use CAST", node.at)
        ordered = sign not in ("=", "<>", "IS DISTINCT FROM")
        if ordered and left.type.base in ("BOOLEAN", "ARRAY", "MAP", "STRUCT"):
            self._text.fail(f"values of type {left.type} have no order, so {sign} does not compare them", node.at)
        if {"DECIMAL", "DOUBLE"} == {left.type.base, right.type.base}:
            return left.to(DOUBLE), right.to(DOUBLE)
        return left.of, right.of

    def _between(self, node: tree.Between) -> Compiled:
        return self.compile(node.as_comparisons())

    def _in(self, node: tree.In) -> Compiled:
        value = self.compile(node.value)
        options = [self.compile(each) for each in node.options]
        pairs = []
        for option, part in zip(options, node.options, strict=True):
            if option.type == NULL:
                continue
            fitted = self._in_option(value, option, part)
            pairs.append(self._comparable(tree.Binary("=", node.value, part, at=part.at), value, fitted))

        def contained(row: Any) -> bool:
            return any((a := of_left(row)) is not None and a == of_right(row) for of_left, of_right in pairs)

        return Compiled(BOOLEAN, contained)

    def _in_option(self, value: Compiled, option: Compiled, part: Any) -> Compiled:
        """Return an option with a literal's conversions: texts that are numbers, and numbers as texts."""
        if value.type == option.type:
            return option
        if isinstance(part, tree.MakeArray | tree.MakeMap | tree.MakeStruct):
            fitting = widening(option.type, value.type) if is_implicit(option.type, value.type) else None
            if fitting is None and common_type(value.type, option.type) is None:
                fitting = casting(option.type, value.type)
            if fitting is None or option.type.base != value.type.base:
                return option
            of = option.of
            if not _has_names(part):
                try:
                    fitting(of(()))
                except (ValueError, ArithmeticError):
                    self._text.fail(f"this is of type {option.type} and no {value.type}", part.at)
            return Compiled(value.type, lambda row: fitting(of(row)))
        if not isinstance(part, tree.Literal):
            return option
        if (value.type.is_number or value.type == BOOLEAN) and option.type == STRING:
            type_ = BIGINT if value.type == INTEGER else value.type
            convert = _of_number_text(type_) if type_ == BIGINT else casting(STRING, type_)
            try:
                found = None if convert is None else convert(part.value)
            except Exception:  # noqa: BLE001 - it is no number
                found = None
            lowered = part.value.lower()
            words = ("true", "false", "yes", "no")
            is_truth = bool(lowered) and any(word.startswith(lowered) for word in words)
            if found is None or (value.type == BOOLEAN and not is_truth):
                self._text.fail(f"{part.value!r} is no {value.type}", part.at)
            return Compiled(value.type, lambda _: found)
        if value.type == STRING and option.type != STRING:
            shown = text_of(option.type)(part.value)
            return Compiled(STRING, lambda _: shown)
        return option

    def _case(self, node: tree.Case) -> Compiled:
        conditions, results = [], []
        for when, then in node.conditions():
            condition = self.compile(when)
            self._expect_boolean(condition, when)
            conditions.append(condition.of)
            results.append(self.compile(then))
        otherwise = None if node.otherwise is None else self.compile(node.otherwise)
        every = [*results, *([otherwise] if otherwise is not None else [])]
        type_ = self._common([each.type for each in every], node, "the results of CASE")
        pairs = list(zip(conditions, (each.to(type_) for each in results), strict=True))
        last = None if otherwise is None else otherwise.to(type_)

        def chosen(row: Any) -> Any:
            for condition, result in pairs:
                if condition(row):
                    return result(row)
            return None if last is None else last(row)

        return Compiled(type_, chosen)

    def _common(self, types: Sequence[SqlType], node: Any, what: str) -> SqlType:
        found = NULL
        for type_ in types:
            common = common_type(found, type_)
            if common is None:
                self._text.fail(f"{what} are of types {found} and {type_}; use CAST", node.at)
            found = common
        return found

    def _cast(self, node: tree.Cast) -> Compiled:
        value = self.compile(node.value)
        convert = casting(value.type, node.type)
        if convert is None:
            self._text.fail(f"type {value.type} does not cast to {node.type}", node.at)
        of = value.of
        return Compiled(node.type, of if convert is identity else lambda row: convert(of(row)))

    def _makearray(self, node: tree.MakeArray) -> Compiled:
        items = [self.compile(each) for each in node.items]
        if not items:
            self._text.fail("ARRAY[] needs at least one element, or CAST(NULL AS ARRAY<...>)", node.at)
        type_ = self._literal_type(items, node.items, node, "the elements of ARRAY[...]")
        for each, part in zip(items, node.items, strict=True):
            self._check_text(each, part, type_)
        made = [guarded(self._fitted(each, type_)) for each in items]
        return Compiled(array(type_), lambda row: [of(row) for of in made])

    def _literal_type(self, items: Sequence[Compiled], parts: Sequence[Any], node: Any, what: str) -> SqlType:
        """Return the type of elements: texts that are constants become the numbers that they are beside."""
        types = [each.type for each in items if each.type != NULL]
        if not types:
            self._text.fail(f"{what} are all NULL, so they have no type; use CAST", node.at)
        others = [type_ for type_ in types if type_ != STRING]
        if others and len(others) < len(types) and all(type_.is_number or type_ == BOOLEAN for type_ in others):
            constants = all(
                isinstance(part, tree.Literal) for part, each in zip(parts, items, strict=True) if each.type == STRING
            )
            if constants and others[0] == types[0]:
                return self._common(others, node, what)
            if types[0] == STRING:
                return STRING
        return self._common(types, node, what)

    def _check_text(self, value: Compiled, part: Any, type_: SqlType) -> None:
        """Check that a text among numbers is one."""
        if value.type == STRING != type_ and isinstance(part, tree.Literal):
            try:
                self._fitted(value, type_)(())
            except (ValueError, ArithmeticError):
                self._text.fail(f"{part.value!r} is no {type_}", part.at)

    def _fitted(self, value: Compiled, type_: SqlType) -> Evaluate:
        if value.type == STRING != type_ or (type_ == STRING != value.type and value.type != NULL):
            convert = _of_number_text(type_) if type_ in (INTEGER, BIGINT) else casting(value.type, type_)
            if convert is not None:
                of = value.of
                return lambda row: convert(of(row))
        return value.to(type_)

    def _makemap(self, node: tree.MakeMap) -> Compiled:
        if not node.entries:
            self._text.fail("MAP() needs at least one entry", node.at)
        keys = [self.compile(key) for key, _ in node.entries]
        values = [self.compile(value) for _, value in node.entries]
        key_type = self._literal_type(keys, [key for key, _ in node.entries], node, "the keys of MAP(...)")
        value_type = self._literal_type(values, [value for _, value in node.entries], node, "the values of MAP(...)")
        for value, (_, part) in zip(values, node.entries, strict=True):
            self._check_text(value, part, value_type)
        made = [
            (self._fitted(key, key_type), guarded(self._fitted(value, value_type)))
            for key, value in zip(keys, values, strict=True)
        ]
        return Compiled(map_of(key_type, value_type), lambda row: {key(row): value(row) for key, value in made})

    def _makestruct(self, node: tree.MakeStruct) -> Compiled:
        names = [name for name, _ in node.fields]
        if len(set(names)) < len(names):
            self._text.fail("STRUCT(...) names a field twice", node.at)
        made = [(name, self.compile(value)) for name, value in node.fields]
        functions = [(name, guarded(value.of)) for name, value in made]
        return Compiled(
            struct(*((name, value.type) for name, value in made)),
            lambda row: {name: of(row) for name, of in functions},
        )

    def _computed(self, node: tree.Computed) -> Compiled:
        at, place, unless, of = self._scope.find(tree.Name(tree.ENGINE)), node.place, node.unless, node.of
        if unless is None or of is None:
            return Compiled(node.type, lambda row: row[at][place])
        return Compiled(node.type, lambda row: of(row) if row[at][unless] else row[at][place])

    def _lambda(self, node: tree.Lambda) -> Compiled:
        return self._text.fail("a lambda is an argument of TRANSFORM, FILTER or REDUCE", node.at)

    def _call(self, node: tree.Call) -> Compiled:
        from keyed.sql.json_functions import to_json_string
        from keyed.sql.scalar_functions import FUNCTIONS, resolve

        if node.is_distinct or node.condition is not None:
            what = "DISTINCT" if node.is_distinct else "FILTER (WHERE ...)"
            self._text.fail(f"{what} is for aggregates, and {node.name} is none here", node.at)
        if node.name in _HIGHER:
            return self._higher(node)
        arguments = [self.compile(each) for each in node.arguments]
        if node.name in ("GREATEST", "LEAST"):
            arguments = self._with_times(arguments)
        types = [each.type for each in arguments]
        if node.name == "TO_JSON_STRING" and len(types) == 1:
            return Compiled(STRING, _json_writer(arguments[0].of, to_json_string(types[0])))
        if node.name not in FUNCTIONS:
            self._text.fail(f"unknown function {node.name}{nearest(node.name, FUNCTIONS)}", node.at)
        found = resolve(node.name, types)
        if found is None:
            shown = ", ".join(map(str, types))
            self._text.fail(f"{node.name} does not take ({shown}); it takes {FUNCTIONS[node.name].shown}", node.at)
        type_, targets, call, is_strict = found
        values = [
            _argument(each.to(target), part)
            for each, target, part in zip(arguments, targets, node.arguments, strict=True)
        ]
        if len(values) == 1:
            of = values[0]
            if is_strict:
                return Compiled(type_, lambda row: None if (value := of(row)) is None else call(value))
            return Compiled(type_, lambda row: call(of(row)))

        def result(row: Any) -> Any:
            given = [of(row) for of in values]
            return None if is_strict and None in given else call(*given)

        return Compiled(type_, result)

    def _with_times(self, arguments: list[Compiled]) -> list[Compiled]:
        """Return arguments of which one is a time with the texts among them as times."""
        time = next((each.type for each in arguments if each.type.base in _PARSES), None)
        if time is None:
            return arguments
        parse = _PARSES[time.base]
        return [Compiled(time, _strict_call(parse, each.of)) if each.type == STRING else each for each in arguments]

    def _higher(self, node: tree.Call) -> Compiled:
        """Compile a function that takes lambdas."""
        plain = [self.compile(each) for each in node.arguments if not isinstance(each, tree.Lambda)]
        lambdas = [each for each in node.arguments if isinstance(each, tree.Lambda)]
        if not plain or plain[0].type.base not in ("ARRAY", "MAP"):
            self._text.fail(f"{node.name} takes an ARRAY or MAP first, and then lambdas", node.at)
        base = plain[0]
        types = list(base.type.parts)
        is_map = base.type.base == "MAP"
        wanted = 2 if node.name == "TRANSFORM" and is_map else 1
        if len(lambdas) != wanted or len(plain) != (2 if node.name == "REDUCE" else 1):
            self._text.fail(f"{node.name} of {base.type} takes {wanted} lambda(s)", node.at)
        if node.name == "REDUCE":
            types = [plain[1].type, *types]
        made = []
        for each in lambdas:
            if len(each.parameters) != len(types):
                self._text.fail(f"this lambda takes {len(types)} parameter(s) of {node.name}", each.at)
            inner = self._scope.with_variables(list(zip(each.parameters, types, strict=True)))
            made.append(_Compiler(inner).compile(each.body))
        of, first = base.of, made[0]
        if node.name == "FILTER":
            self._expect_boolean(first, lambdas[0])
        if node.name == "REDUCE":
            return Compiled(plain[1].type, _reducing(of, plain[1].of, first.to(plain[1].type), is_map=is_map))
        if node.name == "FILTER":
            return Compiled(base.type, _filtering(of, first.of, is_map=is_map))
        if not is_map:
            return Compiled(array(first.type), _mapping(of, first.of))
        second = made[1]

        def transformed(row: Any) -> Any:
            value = of(row)
            if value is None:
                return None
            found = {first.of((*row, k, v)): second.of((*row, k, v)) for k, v in value.items()}
            if len(found) < len(value):
                raise ValueError("two entries have the same key")
            return found

        return Compiled(map_of(first.type, second.type), transformed)


def _has_names(node: Any) -> bool:
    return isinstance(node, tree.Name) or any(map(_has_names, tree.children(node)))


def _argument(of: Evaluate, part: Any) -> Evaluate:
    """Return the value of an argument of a function: null if it raises, as in ksqlDB."""
    return of if isinstance(part, tree.Name | tree.Literal) else guarded(of)


def _of_number_text(type_: SqlType) -> Callable[[Any], Any]:
    def convert(text: str) -> int:
        number = Decimal(text.strip())
        if number != int(number) or wrapped(int(number), type_.base) != number:
            raise ValueError(f"{text!r} is no {type_}")
        return int(number)

    return convert


def _strict_call(function: Callable[[Any], Any], of: Evaluate) -> Evaluate:
    return lambda row: None if (value := of(row)) is None else function(value)


def _json_writer(of: Evaluate, write: Callable[[Any], str]) -> Evaluate:
    return lambda row: write(of(row))


def _mapping(of: Evaluate, body: Evaluate) -> Evaluate:
    def transformed(row: Any) -> Any:
        value = of(row)
        return None if value is None else [body((*row, each)) for each in value]

    return transformed


def _filtering(of: Evaluate, condition: Evaluate, *, is_map: bool) -> Evaluate:
    def filtered(row: Any) -> Any:
        value = of(row)
        if value is None:
            return None
        if is_map:
            return {k: v for k, v in value.items() if condition((*row, k, v))}
        return [each for each in value if condition((*row, each))]

    return filtered


def _reducing(of: Evaluate, start: Evaluate, body: Evaluate, *, is_map: bool) -> Evaluate:
    def reduced(row: Any) -> Any:
        value, state = of(row), start(row)
        if value is None or state is None:
            return state
        for each in value.items() if is_map else value:
            state = body((*row, state, *each)) if is_map else body((*row, state, each))
        return state

    return reduced


def _connected(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    if sign == "AND":
        return lambda row: bool(left(row) and right(row))
    return lambda row: bool(left(row) or right(row))


def _nullable(compute: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    def value(row: Any) -> Any:
        a, b = left(row), right(row)
        return None if a is None or b is None else compute(a, b)

    return value


def _raising(compute: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    """Return arithmetic in a lambda, where a null operand makes the whole expression null, as in ksqlDB."""
    return lambda row: compute(left(row), right(row))


def decimal_result(sign: str, a: SqlType, b: SqlType) -> SqlType:
    """Return the type of arithmetic on decimals."""
    if sign in "+-":
        scale = max(a.scale, b.scale)
        precision = max(a.precision - a.scale, b.precision - b.scale) + scale + 1
    elif sign == "*":
        scale, precision = a.scale + b.scale, a.precision + b.precision + 1
    elif sign == "/":
        scale = max(6, a.scale + b.precision + 1)
        precision = a.precision - a.scale + b.scale + scale
    else:
        scale = max(a.scale, b.scale)
        precision = min(a.precision - a.scale, b.precision - b.scale) + scale
    return decimal(min(38, precision), min(38, scale))


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a - b * _truncated(a, b)


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1, b)


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _truncated,
    "%": _remainder,
}
_DOUBLE: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "%": lambda a, b: math.fmod(a, b) if b and not math.isinf(a) else math.nan,
}
_DECIMAL: dict[str, Callable[[Decimal, Decimal, int], Decimal]] = {
    "+": lambda a, b, _: WIDE.add(a, b),
    "-": lambda a, b, _: WIDE.subtract(a, b),
    "*": lambda a, b, _: WIDE.multiply(a, b),
    "/": lambda a, b, _: WIDE.divide(a, b),
    "%": lambda a, b, _: WIDE.remainder(a, b),
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MOMENTS = ("ROWTIME", "WINDOWSTART", "WINDOWEND")
_PARSES: dict[str, Callable[[str], int]] = {"TIMESTAMP": parse_timestamp, "DATE": parse_date, "TIME": parse_time}


@lru_cache(maxsize=256)
def like_pattern(pattern: str, escape: str | None) -> re.Pattern[str]:
    """Return the regular expression of a pattern of ``LIKE``."""
    found, escaped = [], False
    for sign in pattern:
        if escaped:
            found.append(re.escape(sign))
            escaped = False
        elif sign == escape:
            escaped = True
        else:
            found.append({"%": ".*", "_": "."}.get(sign, re.escape(sign)))
    return re.compile("".join(found), re.DOTALL)
