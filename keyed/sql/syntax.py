"""The syntax tree of a script: statements, queries and expressions, each with its place in the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from keyed.sql.sql_types import SqlType

_at = attrs.field(default=0, eq=False, repr=False, kw_only=True)


@attrs.frozen
class Literal:
    """A value with its type."""

    value: Any
    type: SqlType
    at: int = _at


@attrs.frozen
class Name:
    """A column, perhaps with the name of its source, or a variable of a lambda."""

    name: str
    source: str | None = None
    at: int = _at

    def __str__(self) -> str:
        return f"{self.source}.{self.name}" if self.source else self.name


@attrs.frozen
class Field:
    """A field of a struct: ``base->name``."""

    base: Expression
    name: str
    at: int = _at


@attrs.frozen
class Subscript:
    """An element of an array or map: ``base[index]``."""

    base: Expression
    index: Expression
    at: int = _at


@attrs.frozen
class Call:
    """A call of a function or an aggregate; an aggregate may be ``DISTINCT``, and have a condition of its rows."""

    name: str
    arguments: tuple[Expression, ...]
    is_distinct: bool = False
    condition: Expression | None = None
    at: int = _at


@attrs.frozen
class Binary:
    """An operator between two expressions: arithmetic, comparisons, ``AND``, ``OR``, ``LIKE``."""

    operator: str
    left: Expression
    right: Expression
    escape: str | None = None
    at: int = _at


@attrs.frozen
class Unary:
    """``-x``, ``NOT x``, ``x IS NULL``."""

    operator: str
    operand: Expression
    at: int = _at


@attrs.frozen
class Between:
    """``value BETWEEN lower AND upper``."""

    value: Expression
    lower: Expression
    upper: Expression
    at: int = _at

    def as_comparisons(self) -> Binary:
        """Return it as two comparisons."""
        lower = Binary(">=", self.value, self.lower, at=self.at)
        return Binary("AND", lower, Binary("<=", self.value, self.upper, at=self.at), at=self.at)


@attrs.frozen
class In:
    """``value IN (…)``."""

    value: Expression
    options: tuple[Expression, ...]
    at: int = _at


@attrs.frozen
class Case:
    """``CASE [operand] WHEN … THEN … ELSE … END``."""

    operand: Expression | None
    whens: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None
    at: int = _at

    def conditions(self) -> list[tuple[Any, Any]]:
        """Return the conditions with their results; with an operand a condition is an equality."""
        if self.operand is None:
            return list(self.whens)
        return [(Binary("=", self.operand, when, at=when.at), then) for when, then in self.whens]


@attrs.frozen
class Cast:
    """``CAST(value AS type)``."""

    value: Expression
    type: SqlType
    at: int = _at


@attrs.frozen
class MakeArray:
    """``ARRAY[…]``."""

    items: tuple[Expression, ...]
    at: int = _at


@attrs.frozen
class MakeMap:
    """``MAP(key := value, …)``."""

    entries: tuple[tuple[Expression, Expression], ...]
    at: int = _at


@attrs.frozen
class MakeStruct:
    """``STRUCT(name := value, …)``."""

    fields: tuple[tuple[str, Expression], ...]
    at: int = _at


#: The column of a row with the values that the engine of the columns has computed. No text has this name.
ENGINE = "columns of the engine"


@attrs.frozen
class Computed:
    """An expression that the engine of the columns computes: its place among those.

    Where the one at ``unless`` is true, the engine may have another value, and ``of`` computes it from the row.
    """

    place: int
    type: SqlType
    unless: int | None = None
    of: Callable[[Any], Any] | None = attrs.field(default=None, eq=False, repr=False)
    at: int = _at


@attrs.frozen
class Lambda:
    """``(x, y) => expression``."""

    parameters: tuple[str, ...]
    body: Expression
    at: int = _at


Expression: TypeAlias = (
    Literal
    | Name
    | Field
    | Subscript
    | Call
    | Binary
    | Unary
    | Between
    | In
    | Case
    | Cast
    | MakeArray
    | MakeMap
    | MakeStruct
    | Computed
    | Lambda
)


def children(node: Any) -> list[Any]:
    """Return the expressions that an expression directly consists of."""
    found: list[Any] = []

    def collect(value: Any) -> None:
        if isinstance(value, tuple):
            for each in value:
                collect(each)
        elif attrs.has(type(value)) and not isinstance(value, SqlType):
            found.append(value)

    for field in attrs.fields(type(node)):
        collect(getattr(node, field.name))
    return found


def mapped(node: Any, function: Callable[[Any], Any]) -> Any:
    """Return an expression with a function of each of its direct parts in their place."""
    known = set(map(id, children(node)))

    def replaced(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(replaced(each) for each in value)
        return function(value) if id(value) in known else value

    names = [field.name for field in attrs.fields(type(node))]
    return type(node)(**{name: replaced(getattr(node, name)) for name in names})


@attrs.frozen
class Star:
    """``*`` or ``source.*`` or ``struct->*`` of a projection."""

    source: str | None = None
    struct: Expression | None = None
    at: int = _at


@attrs.frozen
class Item:
    """An item of a projection."""

    value: Any
    alias: str | None
    at: int = _at


@attrs.frozen
class From:
    """A source by name, with its alias."""

    name: str
    alias: str
    at: int = _at


@attrs.frozen
class Join:
    """A join with one more source; ``within`` is before, after and grace in milliseconds."""

    kind: str
    right: From
    on: Expression
    within: tuple[int, int, int | None] | None = None
    at: int = _at


@attrs.frozen
class WindowClause:
    """A window clause, durations in milliseconds."""

    kind: str
    size_ms: int
    advance_ms: int
    retention_ms: int | None = None
    grace_ms: int | None = None
    at: int = _at


@attrs.frozen
class SelectQuery:
    """A query."""

    items: tuple[Item, ...]
    source: From
    joins: tuple[Join, ...] = ()
    window: WindowClause | None = None
    where: Expression | None = None
    group_by: tuple[Expression, ...] = ()
    partition_by: tuple[Expression, ...] = ()
    having: Expression | None = None
    emit: str | None = None
    limit: int | None = None
    at: int = _at


@attrs.frozen
class Element:
    """A declared column: its ``role`` is ``key``, ``primary``, ``value``, ``headers`` or ``header``."""

    name: str
    type: SqlType
    role: str = "value"
    header: str | None = None
    at: int = _at


@attrs.frozen
class CreateSource:
    """``CREATE STREAM`` or ``TABLE`` with columns."""

    kind: str
    name: str
    elements: tuple[Element, ...]
    options: dict[str, Any]
    replace: bool = False
    only_if_missing: bool = False
    read_only: bool = False
    at: int = _at


@attrs.frozen
class CreateAs:
    """``CREATE STREAM`` or ``TABLE`` ``AS SELECT``."""

    kind: str
    name: str
    options: dict[str, Any]
    query: SelectQuery
    replace: bool = False
    only_if_missing: bool = False
    at: int = _at


@attrs.frozen
class InsertSelect:
    """``INSERT INTO stream SELECT``."""

    name: str
    query: SelectQuery
    at: int = _at


@attrs.frozen
class InsertValues:
    """``INSERT INTO source [(columns)] VALUES (…)``."""

    name: str
    columns: tuple[str, ...]
    values: tuple[Expression, ...]
    at: int = _at


@attrs.frozen
class Drop:
    """``DROP STREAM``, ``TABLE`` or ``TYPE``."""

    kind: str
    name: str
    if_exists: bool = False
    deletes_topic: bool = False
    at: int = _at


@attrs.frozen
class SetOption:
    """``SET 'name' = 'value'``; ``UNSET`` has no value."""

    name: str
    value: str | None
    at: int = _at


@attrs.frozen
class CreateType:
    """``CREATE TYPE name AS type``."""

    name: str
    type: SqlType
    at: int = _at


@attrs.frozen
class Show:
    """``SHOW STREAMS | TABLES | TYPES | FUNCTIONS | QUERIES``, ``DESCRIBE name``, ``EXPLAIN name or query``."""

    what: str
    name: str | None = None
    query: SelectQuery | None = None
    types: dict[str, SqlType] = attrs.field(factory=dict)
    at: int = _at


Statement: TypeAlias = (
    CreateSource | CreateAs | InsertSelect | InsertValues | Drop | SetOption | CreateType | Show | SelectQuery
)
