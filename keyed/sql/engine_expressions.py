"""Expressions as SQL of the engine that holds the columns of a stream: Spark SQL, or DuckDB over Arrow tables.

The functions of `expressions` define what an expression means, and the SQL has exactly that meaning: integers wrap
around, a comparison with null is false, NaN equals nothing, lengths count UTF-16 units, and a division by zero makes
the whole expression null. So only expressions are translated that both engines can say so; what is left runs in Python.
Tests compare the values of all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import attrs

from keyed.sql import syntax as tree
from keyed.sql.conversions import parse_date, parse_timestamp
from keyed.sql.expressions import Compiled, decimal_result
from keyed.sql.sql_aggregates import AGGREGATES
from keyed.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    NULL,
    STRING,
    TIMESTAMP,
    SqlType,
    as_decimal,
    common_type,
)

Dialect = Literal["spark", "duckdb"]
#: The types of columns and results, and the names of their kinds in a schema.
_KINDS = {INTEGER: "int", BIGINT: "bigint", DOUBLE: "double", STRING: "string", BOOLEAN: "boolean"}
_INTEGERS = (INTEGER, BIGINT)
#: Kinds of columns whose values are those of an integer type.
_WIDENED = ("tinyint", "smallint", "int")
_NUMBERS = (INTEGER, BIGINT, DOUBLE)
_SQL_TYPES: dict[Dialect, dict[SqlType, str]] = {
    "spark": {INTEGER: "INT", BIGINT: "BIGINT", DOUBLE: "DOUBLE", STRING: "STRING", BOOLEAN: "BOOLEAN"},
    "duckdb": {INTEGER: "INTEGER", BIGINT: "BIGINT", DOUBLE: "DOUBLE", STRING: "VARCHAR", BOOLEAN: "BOOLEAN"},
}
#: The SQL of a time as milliseconds since 1970, or of a date as days, by the kind of its column. Both round down.
_MILLISECONDS = "((epoch_us({0}) - ((epoch_us({0}) % 1000) + 1000) % 1000) // 1000)"
_MOMENTS: dict[Dialect, dict[SqlType, dict[str | None, str]]] = {
    "spark": {TIMESTAMP: {"timestamp": "unix_millis({0})"}, DATE: {"date": "unix_date({0})"}},
    "duckdb": {
        TIMESTAMP: {"timestamp": _MILLISECONDS, "timestamp_ntz": _MILLISECONDS},
        DATE: {"date": "datediff('day', DATE '1970-01-01', {0})"},
    },
}
_TRY = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
_HALF, _WHOLE = 2**63, 2**64
#: Digits of the longest decimals.
_DIGITS = 38
#: Characters of the SQL of an expression, which names its parts several times.
_MOST_SQL = 4000


class _Untranslated(Exception):
    """An expression that the engine does not compute."""


@attrs.frozen
class _Sql:
    """A translated expression.

    Attributes:
        text: The SQL.
        type: Its type.
        nullable: Whether it may be null.
        as_double: The SQL of a constant that is a decimal, as a double.
        raises: Whether it is null where Python raises, which makes the whole expression null.
        unless: The SQL of a condition under which it may have another value than in Python, which computes it then.
    """

    text: str
    type: SqlType
    nullable: bool = True
    as_double: str | None = None
    raises: bool = False
    unless: str | None = None


@attrs.define(eq=False)
class EngineColumns:
    """The expressions of queries over a stream that the engine of its columns computes.

    Attributes:
        dialect: The engine.
        given: Name and kind of each column that the engine has, by its name in upper case.
        expressions: The SQL of each expression.
        filters: For each query that reads the stream, the places of conditions of which one is true for the rows that
            meet its ``WHERE``; ``None`` without, or if it runs in Python.
    """

    dialect: Dialect
    given: Mapping[str, tuple[str, str]]
    expressions: list[str] = attrs.field(factory=list)
    filters: list[tuple[int, ...] | None] = attrs.field(factory=list)

    def empty(self) -> EngineColumns:
        """Return the same columns without expressions."""
        return EngineColumns(self.dialect, self.given)

    @property
    def engine(self) -> str:
        """Name of the engine."""
        return "Spark SQL" if self.dialect == "spark" else "DuckDB"

    def rewritten(
        self,
        query: tree.SelectQuery,
        columns: Mapping[str, SqlType],
        compiled: Callable[[Any], Compiled],
        *,
        grouped: bool,
    ) -> tree.SelectQuery:
        """Return a query with the expressions that the engine computes in place of those that it translates.

        Args:
            query: The query, with the full names of its columns.
            columns: The types of the columns of the stream.
            compiled: Checks an expression, and returns its type and its function in Python.
            grouped: Whether it has aggregates: then only their arguments are of rows.
        """
        translate = _Translator(self.dialect, self.given, columns)
        # The key of the result: an item that equals a part of it is that part.
        kept = (*query.group_by, *query.partition_by)

        def taken(node: Any, *, is_whole: bool = False) -> Any:
            if node is None or node in kept:
                return node
            if isinstance(node, tree.Name | tree.Literal | tree.Lambda | tree.Star):
                return node
            sql = translate(node)
            if sql is None or sql.type != (found := compiled(node)).type or (sql.raises and not is_whole):
                return tree.mapped(node, taken)
            unless = None if sql.unless is None else self._place(sql.unless)
            return tree.Computed(self._place(sql.text), sql.type, unless, found.of, at=node.at)

        def in_aggregates(node: Any) -> Any:
            if node is None:
                return None
            if isinstance(node, tree.Call) and node.name in AGGREGATES:
                return tree.mapped(node, whole)
            return tree.mapped(node, in_aggregates)

        def whole(node: Any) -> Any:
            return taken(node, is_whole=True)

        of_item = in_aggregates if grouped else whole
        where = whole(query.where)
        is_computed = isinstance(where, tree.Computed)
        self.filters.append(tuple({where.place, where.unless} - {None}) if is_computed else None)
        return attrs.evolve(
            query,
            items=tuple(attrs.evolve(item, value=of_item(item.value)) for item in query.items),
            where=where,
            having=in_aggregates(query.having),
        )

    def _place(self, text: str) -> int:
        """Return the place of an expression, which is added."""
        if text not in self.expressions:
            self.expressions.append(text)
        return self.expressions.index(text)

    def described(self, query: tree.SelectQuery) -> str | None:
        """Return what the engine computes of a rewritten query, ``None`` for nothing."""
        places: set[int] = set()

        def collect(node: Any) -> None:
            if isinstance(node, tree.Computed):
                places.add(node.place)
            for each in tree.children(node):
                collect(each)

        collect(query)
        if not places:
            return None
        what = ["WHERE"] if isinstance(query.where, tree.Computed) else []
        others = len(places) - len(what)
        if others:
            what.append(
                f"{others} other {'expressions' if others > 1 else 'expression'}"
                if what
                else f"{others} of its expressions"
            )
        return f"in {self.engine}: {' and '.join(what)}"

    @property
    def conditions(self) -> tuple[int, ...]:
        """The places of the conditions of which a row meets one if a query needs it; none if that is not known."""
        found = [places for places in self.filters if places is not None]
        return tuple(sorted({place for places in found for place in places})) if len(found) == len(self.filters) else ()


def columns_of(schema: Iterable[tuple[str, str | None]]) -> dict[str, tuple[str, str]]:
    """Return name and kind of the columns of an engine, by their names in upper case: those of which there is one."""
    columns = [(name.upper(), name, kind) for name, kind in schema]
    names = [upper for upper, _, _ in columns]
    return {upper: (name, kind) for upper, name, kind in columns if kind is not None and names.count(upper) == 1}


class _Translator:
    """Translates expressions over the columns of a stream."""

    def __init__(self, dialect: Dialect, given: Mapping[str, tuple[str, str]], columns: Mapping[str, SqlType]) -> None:
        self._dialect: Dialect = dialect
        self._given = given
        self._columns = columns
        self._types = _SQL_TYPES[dialect]
        #: Conditions under which a part of the expression is left to Python.
        self._unless: list[str] = []

    def __call__(self, node: Any) -> _Sql | None:
        """Return an expression in SQL, ``None`` if the engine does not compute it, or it names no column."""
        self._unless = []
        try:
            found = self._any(node)
        except _Untranslated:
            return None
        if not _names_column(node) or (found.type not in _KINDS and found.type.base != "DECIMAL"):
            return None
        unless = " OR ".join(dict.fromkeys(self._unless))
        return attrs.evolve(found, unless=unless or None)

    def _of(self, node: Any) -> _Sql:
        """Return an expression that raises nothing in Python."""
        found = self._any(node)
        if found.raises:
            raise _Untranslated
        return found

    def _any(self, node: Any) -> _Sql:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise _Untranslated
        found: _Sql = method(node)
        if len(found.text) > _MOST_SQL:
            raise _Untranslated
        return found

    def _cast_to(self, sql: _Sql, type_: SqlType) -> _Sql:
        """Return an expression with an implicit conversion, which loses nothing but digits of long integers."""
        if sql.type == type_:
            return sql
        if type_ == DOUBLE and sql.as_double is not None:
            return _Sql(sql.as_double, DOUBLE, nullable=False)
        if sql.type == NULL or (sql.type in _INTEGERS and type_ in (BIGINT, DOUBLE)):
            target = _decimal(type_) if type_.base == "DECIMAL" else self._types[type_]
            return _Sql(f"CAST({sql.text} AS {target})", type_, sql.nullable, raises=sql.raises)
        if type_.base == "DECIMAL" and (sql.type in _INTEGERS or sql.type.base == "DECIMAL"):
            of = as_decimal(sql.type)
            if of.scale <= type_.scale and of.precision - of.scale <= type_.precision - type_.scale:
                return _Sql(f"CAST({sql.text} AS {_decimal(type_)})", type_, sql.nullable, raises=sql.raises)
        raise _Untranslated

    # Columns and constants.

    def _literal(self, node: tree.Literal) -> _Sql:
        value, type_ = node.value, node.type
        if value is None:
            return _Sql("NULL", NULL)
        if type_ == BOOLEAN:
            return _Sql("TRUE" if value else "FALSE", BOOLEAN, nullable=False)
        if type_ == STRING:
            return _Sql(self._text(value), STRING, nullable=False)
        if type_ in _INTEGERS and -(2**63) < value < 2**63:
            is_short = type_ == INTEGER and value > -(2**31)
            return _Sql(str(value) if is_short else f"CAST({value} AS {self._types[type_]})", type_, nullable=False)
        if (type_ == DOUBLE or type_.base == "DECIMAL") and math.isfinite(value):
            double = f"CAST('{float(value)!r}' AS DOUBLE)"
            if type_ == DOUBLE:
                return _Sql(double, DOUBLE, nullable=False)
            return _Sql(f"CAST('{value:f}' AS {_decimal(type_)})", type_, nullable=False, as_double=double)
        raise _Untranslated

    def _text(self, value: str) -> str:
        """Return a constant text, of which no character has a meaning in the SQL."""
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise _Untranslated from None
        if self._dialect == "spark":
            return f"decode(unhex('{data.hex()}'), 'UTF-8')"
        if "\0" in value:
            raise _Untranslated
        quoted = value.replace("'", "''")
        return f"'{quoted}'"

    def _name(self, node: tree.Name) -> _Sql:
        type_ = self._columns.get(node.name)
        name, kind = self._given.get(node.name.upper(), ("", None))
        quote = "`" if self._dialect == "spark" else '"'
        text = quote + name.replace(quote, 2 * quote) + quote
        if self._dialect == "duckdb" and node.name not in (name, name.upper()):
            raise _Untranslated  # rows have no such column
        if type_ is not None and kind == (_decimal(type_) if type_.base == "DECIMAL" else _KINDS.get(type_)):
            return _Sql(text, type_)
        if type_ in _INTEGERS and kind in _WIDENED:
            return _Sql(f"CAST({text} AS {self._types[type_]})", type_)
        if type_ == INTEGER and kind == "bigint":
            # As a record is read.
            return _Sql(self._lowest(f"({text} & {2**32 - 1})"), type_)
        if type_ in (TIMESTAMP, DATE) and kind in _MOMENTS[self._dialect][type_]:
            return _Sql(_MOMENTS[self._dialect][type_][kind].format(text), type_)
        raise _Untranslated

    def _moment(self, node: Any, type_: SqlType) -> _Sql:
        """Return a time, or a constant text as one."""
        if isinstance(node, tree.Literal) and node.type == STRING and node.value is not None:
            try:
                moment = parse_timestamp(node.value) if type_ == TIMESTAMP else parse_date(node.value)
            except (ValueError, OverflowError):
                raise _Untranslated from None
            return _Sql(f"CAST({moment} AS BIGINT)", type_, nullable=False)
        return self._of(node)

    def _lowest(self, text: str) -> str:
        """Return the lowest 32 bits of a number of 64 bits, at least 2^31 from their ends."""
        return f"CAST((({text} + {2**31}) & {2**32 - 1}) - {2**31} AS {self._types[INTEGER]})"

    # Conditions, of which none is null but a column.

    def _truth(self, node: Any) -> str:
        sql = self._of(node)
        if sql.type != BOOLEAN:
            raise _Untranslated
        return f"coalesce({sql.text}, FALSE)" if sql.nullable else sql.text

    def _unary(self, node: tree.Unary) -> _Sql:
        sql = self._of(node.operand)
        if node.operator == "IS NULL":
            return _Sql(f"({sql.text} IS NULL)", BOOLEAN, nullable=False)
        if node.operator == "NOT" and sql.type == BOOLEAN:
            return _Sql(f"(NOT {sql.text})", BOOLEAN, sql.nullable)
        if node.operator == "-" and isinstance(node.operand, tree.Literal):
            value = node.operand.value
            if value is not None:
                return self._literal(attrs.evolve(node.operand, value=-value))
        if node.operator == "-" and sql.type == DOUBLE:
            return _Sql(f"(- {sql.text})", DOUBLE, sql.nullable)
        raise _Untranslated

    def _binary(self, node: tree.Binary) -> _Sql:
        if node.operator in ("AND", "OR"):
            text = f"({self._truth(node.left)} {node.operator} {self._truth(node.right)})"
            return _Sql(text, BOOLEAN, nullable=False)
        if node.operator == "LIKE":
            return self._like(node)
        if node.operator in "+-*/%":
            return self._arithmetic(node.operator, self._any(node.left), self._any(node.right))
        left, right = self._of(node.left), self._of(node.right)
        for type_ in (TIMESTAMP, DATE):
            if type_ in (left.type, right.type):
                left, right = self._moment(node.left, type_), self._moment(node.right, type_)
        return self._comparison(node.operator, left, right)

    def _like(self, node: tree.Binary) -> _Sql:
        value, pattern = self._of(node.left), node.right
        if value.type != STRING or not isinstance(pattern, tree.Literal) or pattern.type != STRING:
            raise _Untranslated
        if node.escape is not None or any(sign in pattern.value for sign in ("_", "\\")):
            # The engines count characters in other units, and have an escape of their own.
            raise _Untranslated
        text = f"({value.text} LIKE {self._text(pattern.value)})"
        return _Sql(f"coalesce({text}, FALSE)" if value.nullable else text, BOOLEAN, nullable=False)

    def _comparison(self, sign: str, left: _Sql, right: _Sql) -> _Sql:
        if sign not in ("=", "<>", "<", "<=", ">", ">="):
            raise _Untranslated
        left, right = self._alike(left, right)
        if left.type == BOOLEAN and sign not in ("=", "<>"):
            raise _Untranslated
        a, b = left.text, right.text
        text = f"{a} {sign} {b}"
        if left.type == DOUBLE:
            # The engines hold NaN to be equal to itself and greater than all numbers.
            is_nan = f"isnan({a}) OR isnan({b})"
            text = f"({is_nan} OR {text})" if sign == "<>" else f"NOT ({is_nan}) AND {text}"
        known = [f"{each.text} IS NOT NULL" for each in (left, right) if each.nullable]
        return _Sql(f"({' AND '.join([*known, text])})", BOOLEAN, nullable=False)

    def _alike(self, left: _Sql, right: _Sql) -> tuple[_Sql, _Sql]:
        """Return two sides of a comparison with one type that compares exactly."""
        types = (left.type, right.type)
        if left.type == right.type and left.type in (*_KINDS, TIMESTAMP, DATE):
            return left, right
        if all(each in _INTEGERS for each in types):
            return self._cast_to(left, BIGINT), self._cast_to(right, BIGINT)
        if DOUBLE in types and BIGINT not in types:
            return self._cast_to(left, DOUBLE), self._cast_to(right, DOUBLE)
        if all(each in _INTEGERS or each.base == "DECIMAL" for each in types):
            exact = [as_decimal(each) for each in types]
            whole, scale = max(each.precision - each.scale for each in exact), max(each.scale for each in exact)
            if whole + scale <= _DIGITS:
                return self._cast_to(left, exact[0]), self._cast_to(right, exact[1])
        raise _Untranslated

    def _between(self, node: tree.Between) -> _Sql:
        return self._of(node.as_comparisons())

    def _in(self, node: tree.In) -> _Sql:
        value = self._of(node.value)
        found = []
        for each in node.options:
            option = self._of(each)
            if option.type == NULL:
                continue
            if option.type != value.type and not all(each.type in _INTEGERS for each in (option, value)):
                raise _Untranslated
            found.append(self._comparison("=", value, option).text)
        return _Sql(f"({' OR '.join(found)})" if found else "FALSE", BOOLEAN, nullable=False)

    # Values.

    def _arithmetic(self, sign: str, left: _Sql, right: _Sql) -> _Sql:
        nullable, raises = left.nullable or right.nullable, left.raises or right.raises
        if sign == "+" and left.type == right.type == STRING:
            return _Sql(f"({left.text} || {right.text})", STRING, nullable, raises=raises)
        types = (left.type, right.type)
        if not all(each in _NUMBERS or each.base == "DECIMAL" for each in types):
            raise _Untranslated
        if any(each.base == "DECIMAL" for each in types) and DOUBLE not in types:
            return self._exact(sign, left, right)
        if DOUBLE in (left.type, right.type):
            a, b = (self._cast_to(each, DOUBLE).text for each in (left, right))
            text = self._divided_doubles(sign, a, b) if sign in "/%" else f"({a} {sign} {b})"
            return _Sql(text, DOUBLE, nullable, raises=raises)
        a, b = (self._cast_to(each, BIGINT).text for each in (left, right))
        type_ = BIGINT if BIGINT in (left.type, right.type) else INTEGER
        if sign in "/%":
            text = self._divided(sign, a, b)
            text = f"CAST({text} AS {self._types[INTEGER]})" if type_ == INTEGER and sign == "%" else text
            text = self._lowest(text) if type_ == INTEGER and sign == "/" else text
            return _Sql(text, type_, nullable=True, raises=True)
        if type_ == BIGINT:
            return _Sql(self._long(sign, a, b), BIGINT, nullable, raises=raises)
        # The product of two integers fits into 64 bits; the lowest 32 are the result.
        return _Sql(self._lowest(f"({a} {sign} {b})"), INTEGER, nullable, raises=raises)

    def _exact(self, sign: str, left: _Sql, right: _Sql) -> _Sql:
        """Return arithmetic of decimals, if the result has all digits."""
        a, b = as_decimal(left.type), as_decimal(right.type)
        if sign == "*":
            digits = a.precision + b.precision + 1
        else:
            digits = max(a.precision - a.scale, b.precision - b.scale) + max(a.scale, b.scale) + 1
        if sign in "/%" or digits > _DIGITS:
            raise _Untranslated
        type_ = decimal_result(sign, a, b)
        x, y = self._cast_to(left, a).text, self._cast_to(right, b).text
        text = f"CAST({x} {sign} {y} AS {_decimal(type_)})"
        return _Sql(text, type_, left.nullable or right.nullable, raises=left.raises or right.raises)

    def _long(self, sign: str, a: str, b: str) -> str:
        """Return arithmetic of 64 bits that wraps around."""
        if self._dialect == "duckdb":
            whole = f"(CAST({a} AS HUGEINT) {sign} CAST({b} AS HUGEINT))"
            return f"CAST((({whole} + {_HALF}) & {_WHOLE - 1}) - {_HALF} AS BIGINT)"
        whole = f"(CAST({a} AS DECIMAL(19, 0)) {sign} CAST({b} AS DECIMAL(19, 0)))"
        exact = f"CAST(pmod({whole} + {_HALF}, {_WHOLE}) - {_HALF} AS BIGINT)"
        return f"coalesce({_TRY[sign]}({a}, {b}), {exact})"

    def _divided(self, sign: str, a: str, b: str) -> str:
        """Return a division without a fraction, null by zero; by −1 it may wrap around."""
        if sign == "%":
            return f"(CASE WHEN {b} = -1 THEN CASE WHEN {a} IS NULL THEN NULL ELSE 0 END ELSE {a} % nullif({b}, 0) END)"
        divide = "div" if self._dialect == "spark" else "//"
        return (
            f"(CASE WHEN {b} = -1 THEN {self._long('-', 'CAST(0 AS BIGINT)', a)} ELSE {a} {divide} nullif({b}, 0) END)"
        )

    @staticmethod
    def _divided_doubles(sign: str, a: str, b: str) -> str:
        """Return a division of doubles, which is infinite or NaN by zero."""
        nan, infinity = "CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS DOUBLE)"
        if sign == "%":
            return f"(CASE WHEN {b} = 0 THEN CASE WHEN {a} IS NULL THEN NULL ELSE {nan} END ELSE {a} % {b} END)"
        # Only as a text does a zero show its sign.
        is_negative = f"(({a} < 0) <> (CAST({b} AS STRING) = '-0.0'))"
        by_zero = (
            f"CASE WHEN {a} IS NULL THEN NULL WHEN {a} = 0 OR isnan({a}) THEN {nan} "
            f"WHEN {is_negative} THEN - {infinity} ELSE {infinity} END"
        )
        return f"(CASE WHEN {b} = 0 THEN {by_zero} ELSE {a} / {b} END)"

    def _case(self, node: tree.Case) -> _Sql:
        conditions = [self._truth(when) for when, _ in node.conditions()]
        results = [self._of(then) for _, then in node.whens]
        last = _Sql("NULL", NULL) if node.otherwise is None else self._of(node.otherwise)
        *results, last = self._common([*results, last])
        parts = [f"WHEN {when} THEN {then.text}" for when, then in zip(conditions, results, strict=True)]
        nullable = any(each.nullable for each in (*results, last))
        return _Sql(f"(CASE {' '.join(parts)} ELSE {last.text} END)", last.type, nullable)

    def _common(self, values: list[_Sql]) -> list[_Sql]:
        """Return values with one type."""
        found = NULL
        for each in values:
            common = common_type(found, each.type)
            if common is None:
                raise _Untranslated
            found = common
        if found not in _KINDS and found.base != "DECIMAL":
            raise _Untranslated
        return [self._cast_to(each, found) for each in values]

    def _cast(self, node: tree.Cast) -> _Sql:
        value = self._any(node.value)
        if value.type in _INTEGERS and node.type == STRING:
            return _Sql(f"CAST({value.text} AS {self._types[STRING]})", STRING, value.nullable, raises=value.raises)
        if value.type not in _KINDS or node.type not in _KINDS:
            raise _Untranslated
        return self._cast_to(value, node.type)

    def _call(self, node: tree.Call) -> _Sql:
        if node.is_distinct or node.condition is not None or not node.arguments:
            raise _Untranslated
        # An argument that raises is null.
        values = [attrs.evolve(self._any(each), raises=False) for each in node.arguments]
        if node.name == "COALESCE" or (node.name == "IFNULL" and len(values) == 2):
            values = self._common(values)
            text = ", ".join(each.text for each in values)
            return _Sql(f"coalesce({text})", values[0].type, all(each.nullable for each in values))
        if node.name == "CONCAT" and all(each.type == STRING for each in values):
            text = " || ".join(f"coalesce({each.text}, '')" if each.nullable else each.text for each in values)
            return _Sql(f"({text})", STRING, nullable=False)
        if node.name == "REPLACE" and len(values) == 3 and all(each.type == STRING for each in values):
            searched = node.arguments[1]
            if isinstance(searched, tree.Literal) and searched.value:
                text = ", ".join(each.text for each in values)
                return _Sql(f"replace({text})", STRING, any(each.nullable for each in values))
        if node.name in ("UCASE", "LCASE") and len(values) == 1 and values[0].type == STRING:
            name = "upper" if node.name == "UCASE" else "lower"
            return _Sql(f"{name}({self._ascii(values[0])})", STRING, values[0].nullable)
        if node.name == "SUBSTRING" and 2 <= len(values) <= 3 and values[0].type == STRING:
            return self._substring(values[0], *node.arguments[1:])
        if len(values) == 1 and (node.name, values[0].type) in _OF_ONE:
            type_, form = _OF_ONE[node.name, values[0].type]
            return _Sql(form(self, values[0].text), type_, values[0].nullable)
        raise _Untranslated

    def _ascii(self, sql: _Sql) -> str:
        """Return the SQL of a text that has a character for each byte; Python computes with others."""
        size = "strlen" if self._dialect == "duckdb" else "octet_length"
        other = f"{size}({sql.text}) <> length({sql.text})"
        self._unless.append(f"coalesce({other}, FALSE)" if sql.nullable else other)
        return sql.text

    def _substring(self, sql: _Sql, *numbers: Any) -> _Sql:
        """Return a part of a text, from a constant place on, perhaps with a constant length."""
        if not all(isinstance(each, tree.Literal) and each.type == INTEGER for each in numbers):
            raise _Untranslated
        text, (start, *lengths) = self._ascii(sql), [each.value for each in numbers]
        place = str(max(start, 1)) if start >= 0 else f"CAST(greatest(length({text}) - {-start}, 0) + 1 AS INT)"
        parts = [text, place, *(str(max(each, 0)) for each in lengths)]
        return _Sql(f"substring({', '.join(parts)})", STRING, sql.nullable)

    # Functions of one argument.

    def absolute(self, text: str) -> str:
        """Return the distance from zero; the least integer stays negative."""
        return self._lowest(f"abs(CAST({text} AS BIGINT))")

    def absolute_long(self, text: str) -> str:
        """Return the same of a long integer."""
        least = "CAST(-9223372036854775808 AS BIGINT)" if self._dialect == "duckdb" else "(-9223372036854775807L - 1L)"
        return f"(CASE WHEN {text} = {least} THEN {text} ELSE abs({text}) END)"

    def length(self, text: str) -> str:
        """Return the number of UTF-16 units: a character outside of the basic plane has two, and four bytes."""
        pattern = self._text("[^\\x{10000}-\\x{10FFFF}]")
        every = ", 'g'" if self._dialect == "duckdb" else ""
        size = "strlen" if self._dialect == "duckdb" else "octet_length"
        beyond = f"length(regexp_replace({text}, {pattern}, ''{every}))"
        beyond = f"CASE WHEN {size}({text}) = length({text}) THEN 0 ELSE {beyond} END"
        return f"CAST(length({text}) + {beyond} AS {self._types[INTEGER]})"

    def trim(self, text: str) -> str:
        """Return a text without spaces and control characters at its ends."""
        every = ", 'g'" if self._dialect == "duckdb" else ""
        pattern = self._text("^[\\x00-\\x20]+|[\\x00-\\x20]+\\z")
        return f"regexp_replace({text}, {pattern}, ''{every})"


#: Functions of one argument: type of the result, and the SQL.
_OF_ONE: dict[tuple[str, SqlType], tuple[SqlType, Callable[[_Translator, str], str]]] = {
    ("ABS", DOUBLE): (DOUBLE, lambda _, text: f"abs({text})"),
    ("ABS", INTEGER): (INTEGER, _Translator.absolute),
    ("ABS", BIGINT): (BIGINT, _Translator.absolute_long),
    ("LEN", STRING): (INTEGER, _Translator.length),
    ("TRIM", STRING): (STRING, _Translator.trim),
}


def _decimal(type_: SqlType) -> str:
    return f"decimal({type_.precision},{type_.scale})"


def _names_column(node: Any) -> bool:
    return isinstance(node, tree.Name) or any(map(_names_column, tree.children(node)))
