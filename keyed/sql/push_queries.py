"""Push queries: ``SELECT … EMIT CHANGES`` over state tables, on top of their subscriptions."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from keyed.sql import syntax as tree
from keyed.sql.bound_parameters import Parameters
from keyed.sql.catalog import Catalog
from keyed.sql.grammar import parse
from keyed.sql.planner import Planner, QueryPlan, calls_of
from keyed.sql.pushed_tables import PushedTable, shown_cell
from keyed.sql.row_changes import VALUE
from keyed.sql.script_errors import Text, nearest
from keyed.sql.table_functions import TABLE_FUNCTIONS

if TYPE_CHECKING:
    import pyarrow as pa

#: The schema of a table's dataset, and the columns of its key.
Description = tuple["pa.Schema", Sequence[str]]


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


@attrs.frozen(eq=False)
class RowQuery:
    """A checked push query, as a function of the entries of a table.

    Attributes:
        table: Name of the table.
        columns: Names of the columns of a row.
        limit: Number of rows after which the query ends, ``None`` without ``LIMIT``.
    """

    table: str
    columns: list[str]
    limit: int | None
    _source: PushedTable
    _plan: QueryPlan

    def row(self, key: Any, entry: Any, value: Any) -> dict[str, Any] | None:
        """Return the row of an entry; ``None`` if there is no entry, or it does not fit ``WHERE``."""
        if value is None or self._plan.transform is None:
            return None
        changes: Iterable[Any] = self._plan.transform(self._source.change(key, entry, value))
        made = next(iter(changes), None)
        if made is None:
            return None
        cells = zip(self._plan.values, made[VALUE], strict=True)
        return {name: shown_cell(type_)(cell) for (name, type_), cell in cells}


class PushQuery(Iterator[PushedRow]):
    """A push query that `subscribe` has started: an iterator that waits for changes."""

    def __init__(self, subscription: Any, query: RowQuery) -> None:
        self._subscription = subscription
        self._query = query
        self._left = query.limit
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
        row = None if change.removed else self._query.row(change.key, change.entry, change.new)
        old = self._query.row(change.key, change.entry, change.old)
        return None if row is None and old is None else PushedRow(row, old, change.batch, change.token)


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

    def describe(name: str) -> Description:
        return tables[name].dataset().schema, tables[name].key_columns

    found = checked_query(query, parameters, tables, describe)
    return PushQuery(tables[found.table].subscribe(after=after), found)


def checked_query(
    query: str, parameters: Parameters | None, names: Iterable[str], describe: Callable[[str], Description]
) -> RowQuery:
    """Check a push query.

    Args:
        query: The query.
        parameters: Its parameters.
        names: Names of the tables that it may read.
        describe: Returns the description of a table.

    Raises:
        SqlError: The query is not valid.
        DefinitionError: A parameter is not valid.
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
    names = list(names)
    name = next((each for each in names if each.lower() == select.source.name.lower()), None)
    if name is None:
        text.fail(
            f"unknown table {select.source.name}{nearest(select.source.name, map(str.upper, names))}", select.source.at
        )
    source = PushedTable(select.source.name, *describe(name))
    plan = _planned(text, attrs.evolve(select, emit=None, limit=None), source)
    return RowQuery(name, [column for column, _ in plan.values], select.limit, source, plan)


def _planned(text: Text, select: tree.SelectQuery, source: PushedTable) -> QueryPlan:
    catalog = Catalog()
    catalog.add(source.source)
    return Planner(text, catalog).plan(select, "STREAM", "query")
