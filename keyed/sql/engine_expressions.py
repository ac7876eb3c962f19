"""Expressions as SQL of the engine that holds the columns of a stream: Spark SQL, or DuckDB over Arrow tables.

The functions of `expressions` define what an expression means, and the SQL has exactly that meaning: integers wrap
around, a comparison with null is false, NaN equals nothing. So only expressions are translated that both engines can
say: columns and constants of plain types, arithmetic that raises nothing, comparisons, conditions, ``LIKE`` with ``%``,
``IN``, ``BETWEEN``, ``CASE``, widening casts, ``COALESCE``, ``IFNULL``, ``CONCAT`` and ``ABS``. What is left runs in
Python. The values of both are compared in tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import attrs

from keyed.sql import syntax as tree
from keyed.sql.sql_aggregates import AGGREGATES
from keyed.sql.sql_types import BIGINT, BOOLEAN, DOUBLE, INTEGER, NULL, STRING, SqlType, as_decimal, common_type

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
_TRY = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
_HALF, _WHOLE = 2**63, 2**64


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
    """

    text: str
    type: SqlType
    nullable: bool = True
    as_double: str | None = None


@attrs.define(eq=False)
class EngineColumns:
    """The expressions of queries over a stream that the engine of its columns computes.

    Attributes:
        dialect: The engine.
        given: Name and kind of each column that the engine has, by its name in upper case.
        expressions: The SQL of each expression.
        filters: For each query that reads the stream, the place of its ``WHERE``; ``None`` without, or if it runs in
            Python.
    """

    dialect: Dialect
    given: Mapping[str, tuple[str, str]]
    expressions: list[str] = attrs.field(factory=list)
    filters: list[int | None] = attrs.field(factory=list)

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
        type_of: Callable[[Any], SqlType],
        *,
        grouped: bool,
    ) -> tree.SelectQuery:
        """Return a query with the expressions that the engine computes in place of those that it translates.

        Args:
            query: The query, with the full names of its columns.
            columns: The types of the columns of the stream.
            type_of: Checks an expression, and returns its type.
            grouped: Whether it has aggregates: then only their arguments are of rows.
        """
        translate = _Translator(self.dialect, self.given, columns)
        # The key of the result: an item that equals a part of it is that part.
        kept = {*query.group_by, *query.partition_by} if all(map(_is_hashable, query.group_by)) else None

        def taken(node: Any) -> Any:
            if node is None or kept is None or node in kept:
                return node
            if isinstance(node, tree.Name | tree.Literal | tree.Lambda | tree.Star):
                return node
            sql = translate(node)
            if sql is None or sql.type != type_of(node):
                return tree.mapped(node, taken)
            if sql.text not in self.expressions:
                self.expressions.append(sql.text)
            return tree.Computed(self.expressions.index(sql.text), sql.type, at=node.at)

        def in_aggregates(node: Any) -> Any:
            if node is None:
                return None
            if isinstance(node, tree.Call) and node.name in AGGREGATES:
                return tree.mapped(node, taken)
            return tree.mapped(node, in_aggregates)

        of_item = in_aggregates if grouped else taken
        where = taken(query.where)
        self.filters.append(where.place if isinstance(where, tree.Computed) else None)
        return attrs.evolve(
            query,
            items=tuple(attrs.evolve(item, value=of_item(item.value)) for item in query.items),
            where=where,
            having=in_aggregates(query.having),
        )

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
        found = [place for place in self.filters if place is not None]
        return tuple(dict.fromkeys(found)) if len(found) == len(self.filters) else ()


def _is_hashable(node: Any) -> bool:
    try:
        hash(node)
    except TypeError:
        return False
    return True


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

    def __call__(self, node: Any) -> _Sql | None:
        """Return an expression in SQL, ``None`` if the engine does not compute it, or it names no column."""
        try:
            found = self._of(node)
        except _Untranslated:
            return None
        return found if found.type in _KINDS and _names_column(node) else None

    def _of(self, node: Any) -> _Sql:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise _Untranslated
        found: _Sql = method(node)
        return found

    def _cast_to(self, sql: _Sql, type_: SqlType) -> _Sql:
        """Return an expression with an implicit conversion, which loses nothing but digits of long integers."""
        if sql.type == type_:
            return sql
        if type_ == DOUBLE and sql.as_double is not None:
            return _Sql(sql.as_double, DOUBLE, nullable=False)
        if sql.type == NULL or (sql.type in _INTEGERS and type_ in (BIGINT, DOUBLE)):
            return _Sql(f"CAST({sql.text} AS {self._types[type_]})", type_, sql.nullable)
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
        if type_ is not None and kind == (_decimal(type_) if type_.base == "DECIMAL" else _KINDS.get(type_)):
            return _Sql(text, type_)
        if type_ in _INTEGERS and kind in _WIDENED:
            return _Sql(f"CAST({text} AS {self._types[type_]})", type_)
        if type_ == INTEGER and kind == "bigint":
            # As a record is read.
            return _Sql(self._lowest(f"({text} & {2**32 - 1})"), type_)
        raise _Untranslated

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
        left, right = self._of(node.left), self._of(node.right)
        if node.operator in "+-*/%":
            return self._arithmetic(node, left, right)
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
        if left.type == right.type and left.type in _KINDS:
            return left, right
        if all(each in _INTEGERS for each in types):
            return self._cast_to(left, BIGINT), self._cast_to(right, BIGINT)
        if DOUBLE in types and BIGINT not in types:
            return self._cast_to(left, DOUBLE), self._cast_to(right, DOUBLE)
        if all(each in _INTEGERS or each.base == "DECIMAL" for each in types):
            exact = [as_decimal(each) for each in types]
            whole, scale = max(each.precision - each.scale for each in exact), max(each.scale for each in exact)
            if whole + scale <= 38:
                return self._exact(left), self._exact(right)
        raise _Untranslated

    def _exact(self, sql: _Sql) -> _Sql:
        """Return an integer as a decimal."""
        if sql.type.base == "DECIMAL":
            return sql
        return _Sql(f"CAST({sql.text} AS {_decimal(as_decimal(sql.type))})", as_decimal(sql.type), sql.nullable)

    def _between(self, node: tree.Between) -> _Sql:
        lower = tree.Binary(">=", node.value, node.lower, at=node.at)
        upper = tree.Binary("<=", node.value, node.upper, at=node.at)
        return self._of(tree.Binary("AND", lower, upper, at=node.at))

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

    def _arithmetic(self, node: tree.Binary, left: _Sql, right: _Sql) -> _Sql:
        sign, nullable = node.operator, left.nullable or right.nullable
        if sign == "+" and left.type == right.type == STRING:
            return _Sql(f"({left.text} || {right.text})", STRING, nullable)
        if any(each.type not in _NUMBERS and each.as_double is None for each in (left, right)):
            raise _Untranslated
        if sign in "/%" and (not isinstance(node.right, tree.Literal) or abs(node.right.value or 0) in (0, 1)):
            # A division by zero makes the whole expression null, which SQL cannot say.
            raise _Untranslated
        if DOUBLE in (left.type, right.type):
            a, b = (self._cast_to(each, DOUBLE).text for each in (left, right))
            return _Sql(f"({a} {sign} {b})", DOUBLE, nullable)
        if any(each.type not in _INTEGERS for each in (left, right)):
            raise _Untranslated
        if BIGINT in (left.type, right.type):
            return _Sql(self._long(sign, self._cast_to(left, BIGINT), self._cast_to(right, BIGINT)), BIGINT, nullable)
        a, b = (self._cast_to(each, BIGINT).text for each in (left, right))
        if sign in "/%":
            return _Sql(f"CAST({self._divided(sign, a, b)} AS {self._types[INTEGER]})", INTEGER, nullable)
        # The product of two integers fits into 64 bits; the lowest 32 are the result.
        return _Sql(self._lowest(f"({a} {sign} {b})"), INTEGER, nullable)

    def _long(self, sign: str, left: _Sql, right: _Sql) -> str:
        """Return arithmetic of 64 bits that wraps around."""
        a, b = left.text, right.text
        if sign in "/%":
            return self._divided(sign, a, b)
        if self._dialect == "duckdb":
            whole = f"(CAST({a} AS HUGEINT) {sign} CAST({b} AS HUGEINT))"
            return f"CAST((({whole} + {_HALF}) & {_WHOLE - 1}) - {_HALF} AS BIGINT)"
        whole = f"(CAST({a} AS DECIMAL(19, 0)) {sign} CAST({b} AS DECIMAL(19, 0)))"
        exact = f"CAST(pmod({whole} + {_HALF}, {_WHOLE}) - {_HALF} AS BIGINT)"
        return f"coalesce({_TRY[sign]}({a}, {b}), {exact})"

    def _divided(self, sign: str, a: str, b: str) -> str:
        if sign == "%":
            return f"({a} % {b})"
        return f"({a} {'div' if self._dialect == 'spark' else '//'} {b})"

    def _case(self, node: tree.Case) -> _Sql:
        whens = [
            (when if node.operand is None else tree.Binary("=", node.operand, when, at=when.at), then)
            for when, then in node.whens
        ]
        conditions = [self._truth(when) for when, _ in whens]
        results = [self._of(then) for _, then in whens]
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
        if found not in _KINDS:
            raise _Untranslated
        return [self._cast_to(each, found) for each in values]

    def _cast(self, node: tree.Cast) -> _Sql:
        value = self._of(node.value)
        if value.type in _INTEGERS and node.type == STRING:
            return _Sql(f"CAST({value.text} AS {self._types[STRING]})", STRING, value.nullable)
        if value.type not in _KINDS or node.type not in _KINDS:
            raise _Untranslated
        return self._cast_to(value, node.type)

    def _call(self, node: tree.Call) -> _Sql:
        if node.is_distinct or node.condition is not None or not node.arguments:
            raise _Untranslated
        values = [self._of(each) for each in node.arguments]
        if node.name == "COALESCE" or (node.name == "IFNULL" and len(values) == 2):
            values = self._common(values)
            text = ", ".join(each.text for each in values)
            return _Sql(f"coalesce({text})", values[0].type, all(each.nullable for each in values))
        if node.name == "CONCAT" and all(each.type == STRING for each in values):
            text = " || ".join(f"coalesce({each.text}, '')" if each.nullable else each.text for each in values)
            return _Sql(f"({text})", STRING, nullable=False)
        if node.name == "ABS" and len(values) == 1 and values[0].type == DOUBLE:
            return _Sql(f"abs({values[0].text})", DOUBLE, values[0].nullable)
        raise _Untranslated


def _decimal(type_: SqlType) -> str:
    return f"decimal({type_.precision},{type_.scale})"


def _names_column(node: Any) -> bool:
    return isinstance(node, tree.Name) or any(map(_names_column, tree.children(node)))
