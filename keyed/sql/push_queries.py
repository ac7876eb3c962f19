"""Push queries: ``SELECT … EMIT CHANGES`` over state tables, on top of their subscriptions."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from keyed.sql import syntax as tree
from keyed.sql.bound_parameters import Parameters
from keyed.sql.catalog import Catalog, SqlSource
from keyed.sql.grammar import parse
from keyed.sql.planner import Planner, QueryPlan, calls_of
from keyed.sql.row_changes import NO_META, VALUE
from keyed.sql.script_errors import Text, nearest
from keyed.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    STRING,
    TIME,
    TIMESTAMP,
    SqlType,
    array,
    decimal,
    map_of,
    struct,
)
from keyed.sql.table_functions import TABLE_FUNCTIONS

_BOUNDS = ("WINDOWSTART", "WINDOWEND")


@attrs.frozen
class PushedRow:
    """A row of a push query that has changed.

    Attributes:
        row: The row after the change; ``None`` if it was removed, or no longer fits ``WHERE``.
        old: The row before it; ``None`` if it is new, and in the state at the beginning.
        batch: Id of the batch.
        token: The text for ``subscribe(after=)`` to resume after this row.
    """

    row: dict[str, Any] | None
    old: dict[str, Any] | None
    batch: int
    token: str


class PushQuery(Iterator[PushedRow]):
    """A push query that `subscribe` has started: an iterator that waits for changes."""

    def __init__(self, subscription: Any, plan: QueryPlan, reader: _Reader, limit: int | None) -> None:
        self._subscription = subscription
        self._names = [name for name, _ in plan.values]
        self._transform: Callable[[Any], Any] | None = plan.transform
        self._reader = reader
        self._left = limit
        self._waiting: deque[PushedRow] = deque()

    @property
    def is_done(self) -> bool:
        """True if ``LIMIT`` is reached."""
        return self._left == 0

    def take(self, timeout: float | None = None) -> list[PushedRow]:
        """Return the next rows.

        Args:
            timeout: Seconds to wait for a change of the table; for ever if ``None``.

        Returns:
            The rows; none if the table has not changed for that time, or when ``LIMIT`` is reached.
        """
        while not self._waiting and not self.is_done:
            changes = self._subscription.take(timeout)
            if not changes:
                break
            self._waiting.extend(filter(None, map(self._pushed, changes)))
        found = list(itertools.islice(self._waiting, self._left))
        self._waiting.clear()
        if self._left is not None:
            self._left -= len(found)
        return found

    def __next__(self) -> PushedRow:
        """Return the next row, and wait for it.

        Raises:
            StopIteration: ``LIMIT`` is reached.
        """
        while not self._waiting:
            if self.is_done:
                raise StopIteration
            self._waiting.extend(filter(None, map(self._pushed, self._subscription.take(None))))
        if self.is_done:
            raise StopIteration
        if self._left is not None:
            self._left -= 1
        return self._waiting.popleft()

    def _pushed(self, change: Any) -> PushedRow | None:
        row = None if change.removed else self._row(change.key, change.new)
        old = self._row(change.key, change.old)
        return None if row is None and old is None else PushedRow(row, old, change.batch, change.token)

    def _row(self, key: Any, value: Any) -> dict[str, Any] | None:
        if value is None or self._transform is None:
            return None
        changes = self._transform(self._reader.change(key, value))
        return next((dict(zip(self._names, each[VALUE], strict=True)) for each in changes), None)


def subscribe(
    tables: Mapping[str, Any], query: str, parameters: Parameters | None = None, *, after: str | None = None
) -> PushQuery:
    """Run a push query, ``SELECT … FROM table [WHERE …] EMIT CHANGES [LIMIT n]``, over a state table.

    It iterates the rows of the table, and then each row that changes. Expressions have the meaning that they have in
    scripts. The query is checked before it returns.

    Args:
        tables: State tables: those of `keyed.run` with ``tables=``, of `keyed.tables.read_tables` or ``open_tables``.
        query: The query. The columns of a table are the fields of its values, else ``VALUE``, and those of the key.
        parameters: Values for ``?`` or ``$name`` in it.
        after: The start, as of `keyed.tables.StateTable.subscribe`: the state first, ``"now"``, ``"beginning"``, or the
            token of a row, after which it resumes.

    Raises:
        SqlError: The query is not valid.
        DefinitionError: ``after`` or a parameter is not valid.
    """
    text, statements = parse(query, parameters)
    select = statements[0] if statements else None
    if len(statements) != 1 or not isinstance(select, tree.SelectQuery):
        text.fail("give one SELECT ... FROM table EMIT CHANGES", 0 if len(statements) < 2 else statements[1].at)
    if select.emit != "CHANGES":
        text.fail("a push query ends with EMIT CHANGES; a pull query, without it, is for tables.sql(...)", select.at)
    if any(calls_of(item.value, TABLE_FUNCTIONS) for item in select.items):
        text.fail("a push query gives one row for each; use EXPLODE in a CREATE STREAM ... AS SELECT", select.at)
    if select.joins or select.group_by or select.partition_by or select.window or select.having:
        text.fail(
            "a push query filters and projects one table; define a table by CREATE TABLE ... AS SELECT for joins and "
            "aggregates, and query that",
            select.at,
        )
    name = next((each for each in tables if each.lower() == select.source.name.lower()), None)
    if name is None:
        text.fail(
            f"unknown table {select.source.name}{nearest(select.source.name, map(str.upper, tables))}", select.source.at
        )
    reader = _Reader(tables[name], select.source.name)
    plan = _planned(text, attrs.evolve(select, emit=None, limit=None), reader.source)
    return PushQuery(tables[name].subscribe(after=after), plan, reader, select.limit)


def _planned(text: Text, select: tree.SelectQuery, source: SqlSource) -> QueryPlan:
    catalog = Catalog()
    catalog.add(source)
    return Planner(text, catalog).plan(select, "STREAM", "query")


class _Reader:
    """Reads the entries of a state table as changes of a source."""

    def __init__(self, table: Any, name: str) -> None:
        types = {field.name: _sql_type(field.type) for field in table.dataset().schema}
        fields = [each for each in types if each not in ("namespace", "entry", "expires", *table.key_columns, "key")]
        self._is_row = fields != ["value"]
        self._windowed = {*_BOUNDS} <= types.keys()
        self._fields = [each for each in fields if each not in ("ROWTIME", *_BOUNDS)]
        # Rows of a script have the columns of the key, and their key is the text by which they are routed.
        self._keys = [] if "ROWTIME" in types else [*table.key_columns] or ["key"]
        columns = [(each, types[each]) for each in (*self._keys, *self._fields) if each in types]
        self._keys = [each for each in self._keys if each in types]
        taken: set[str] = set()
        named = []
        for column, type_ in columns:
            upper = column.upper() if column.upper() not in taken else column
            taken.add(upper)
            named.append((upper, type_))
        self.source = SqlSource(
            name, "STREAM", (), tuple(named), name, window="TUMBLING" if self._windowed else None, is_query=True
        )

    def change(self, key: Any, value: Any) -> tuple[Any, ...]:
        """Return an entry as a change."""
        keys = key if isinstance(key, tuple) and len(self._keys) > 1 else (key,)
        cells = tuple(getattr(value, each, None) for each in self._fields) if self._is_row else (value,)
        time = getattr(value, "ROWTIME", 0)
        window = (value.WINDOWSTART, value.WINDOWEND) if self._windowed else None
        return "", (), (*keys[: len(self._keys)], *cells), None, time, window, NO_META


def _sql_type(type_: Any) -> SqlType:
    """Return the SQL type of an Arrow type."""
    import pyarrow as pa

    known = pa.types
    for test, found in (
        (known.is_boolean, BOOLEAN),
        (known.is_integer, BIGINT),
        (known.is_floating, DOUBLE),
        (known.is_binary, BYTES),
        (known.is_date, DATE),
        (known.is_time, TIME),
        (known.is_timestamp, TIMESTAMP),
    ):
        if test(type_):
            return found
    if known.is_decimal(type_):
        return decimal(type_.precision, type_.scale)
    if known.is_list(type_):
        return array(_sql_type(type_.value_type))
    if known.is_map(type_):
        return map_of(_sql_type(type_.key_type), _sql_type(type_.item_type))
    if known.is_struct(type_):
        return struct(*((field.name.upper(), _sql_type(field.type)) for field in type_))
    return STRING
