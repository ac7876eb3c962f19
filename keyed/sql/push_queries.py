"""Push queries: ``SELECT … EMIT CHANGES`` over state tables, on top of their subscriptions."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from keyed.base.arguments import nearest
from keyed.expressions.engine import Columns, SqlStep
from keyed.expressions.tokens import Given, Text, bound, calls, tokens
from keyed.formats.sql_types import BIGINT, STRING, of_arrow
from keyed.formats.typed_columns import column, shown_values
from keyed.rows import members_of
from keyed.sql.catalog import PLACE, Catalog, SqlSource
from keyed.sql.planner import Planner
from keyed.sql.statements import Parser
from keyed.vectorized import TIMESTAMP_COLUMN

_log = logging.getLogger(__name__)
#: The schema of a table's dataset, and the columns of its key.
Description = tuple[pa.Schema, Sequence[str]]
#: An entry of a table: its key, the entry of the key, and its value; a value of ``None`` is no row.
Entry = tuple[Any, Any, Any]
#: Columns of a dataset that are not of the entry.
_OTHERS = ("namespace", "expires")
#: The column with the time of a row, of tables of scripts.
_ROWTIME = "ROWTIME"
#: Columns with the bounds of windows, of scripts and of Python.
_BOUNDS = ("WINDOWSTART", "WINDOWEND", "window_start", "window_end")


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
    _read: TableColumns
    _step: SqlStep

    def rows(self, entries: Sequence[Entry]) -> tuple[list[dict[str, Any] | None], list[str]]:
        """Return the row of each entry, and the reasons of bad ones.

        A row is ``None`` if there is no entry, it does not fit ``WHERE``, or it is bad: an expression fails.
        """
        rows: list[dict[str, Any] | None] = [None] * len(entries)
        table = self._read.table(entries)
        result, bad = self._step.run(table)
        for number, field in enumerate(result.schema):
            if self._read.is_zoned and pa.types.is_timestamp(field.type):
                result = result.set_column(number, field.name, result.column(number).cast(pa.timestamp("us", "UTC")))
        places: list[Any] = result.column(PLACE).to_pylist()
        cells = [shown_values(result.column(name), type_) for name, _, type_ in self._step.columns]
        for place, *row in zip(places, *cells, strict=True):
            rows[place] = dict(zip(self.columns, row, strict=True))
        return rows, [reason for _, reason in bad]


class TableColumns:
    """A state table as the source of a push query.

    Args:
        schema: The schema of its dataset.
        key_columns: Names of the columns of its key.
    """

    def __init__(self, schema: pa.Schema, key_columns: Sequence[str]) -> None:
        names = [each for each in schema.names if each not in _OTHERS and (each != "key" or not key_columns)]
        self._keys = [each for each in (*key_columns, "key") if each in names]
        #: The further columns of the key, and the fields of the value.
        self._fields = [each for each in names if each not in (*self._keys, "entry")]
        self._has_entry = "entry" in names
        self._is_row = [each for each in self._fields if each not in _BOUNDS] != ["value"]
        types = {name: of_arrow(schema.field(name).type) or STRING for name in names}
        #: Times have a zone, as in pull queries; those of scripts' tables have none, and are in UTC.
        self.is_zoned = _ROWTIME not in names
        #: Its columns, without that of the time.
        self.columns: Columns = tuple(each for each in types.items() if each[0] != _ROWTIME)
        self._all: Columns = (*self.columns, (_ROWTIME, BIGINT))

    def table(self, entries: Sequence[Entry]) -> pa.Table:
        """Return entries as a table, with their places."""
        present = [(place, each) for place, each in enumerate(entries) if each[2] is not None]
        rows = []
        for _, (key, entry, value) in present:
            row = (members_of(value) or {}) if self._is_row else dict.fromkeys(self._fields, value)
            if isinstance(entry, tuple | list) and not self._has_entry:
                row = row | dict(zip(self._fields, entry, strict=False))
            keys = key if isinstance(key, tuple) and len(self._keys) > 1 else (key,)
            rows.append(row | dict(zip(self._keys, keys, strict=False)) | {"entry": entry})
        columns = [column([row.get(name) for row in rows], type_)[0] for name, type_ in self._all]
        places = pa.array([place for place, _ in present], pa.int64())
        names = [TIMESTAMP_COLUMN if name == _ROWTIME else name for name, _ in self._all]
        return pa.table([*columns, places], names=[*names, PLACE])


class PushQuery(Iterator[PushedRow]):
    """A push query that `subscribe` has started: an iterator that waits for changes.

    Attributes:
        rows_bad: Number of rows that are left out because an expression fails; the first one is logged.
    """

    def __init__(self, subscription: Any, query: RowQuery) -> None:
        self._subscription = subscription
        self._query = query
        self._remaining = query.limit
        self._waiting: deque[PushedRow] = deque()
        self.rows_bad = 0

    @property
    def is_done(self) -> bool:
        """True if ``LIMIT`` is reached."""
        return self._remaining == 0

    def take(self, timeout: float | None = None) -> list[PushedRow]:
        """Return the next rows: those of one batch, or if there are many, a part of them.

        Args:
            timeout: Seconds to wait for a change of the table; for ever if ``None``.

        Returns:
            The rows; none if the table has not changed for that time, or when ``LIMIT`` is reached.
        """
        return self._take(timeout, None)

    def __next__(self) -> PushedRow:
        """Return the next row, and wait for it.

        Raises:
            StopIteration: ``LIMIT`` is reached.
        """
        for row in self._take(None, 1):
            return row
        raise StopIteration

    def _take(self, timeout: float | None, most: int | None) -> list[PushedRow]:
        """Take rows, of ``LIMIT`` and at most so many; wait for some, unless ``LIMIT`` is reached."""
        while not self._waiting and not self.is_done and (changes := self._subscription.take(timeout)):
            self._waiting.extend(self._pushed(changes))
        counts = [each for each in (self._remaining, most) if each is not None]
        rows = [self._waiting.popleft() for _ in range(min([len(self._waiting), *counts]))]
        if self._remaining is not None:
            self._remaining -= len(rows)
        return rows

    def _pushed(self, changes: Sequence[Any]) -> Iterator[PushedRow]:
        rows, bad = self._query.rows([(each.key, each.entry, None if each.removed else each.new) for each in changes])
        before, _ = self._query.rows([(each.key, each.entry, each.old) for each in changes])
        if bad and not self.rows_bad:
            _log.warning("a query of %s leaves out a row, as it will others: %s", self._query.table, bad[0])
        self.rows_bad += len(bad)
        for change, row, old in zip(changes, rows, before, strict=True):
            if row is not None or old is not None:
                yield PushedRow(row, old, change.batch, change.token)


def subscribe(
    tables: Mapping[str, Any], query: str, parameters: Given | None = None, *, after: str | None = None
) -> PushQuery:
    """Run a push query, ``SELECT … FROM table [WHERE …] EMIT CHANGES [LIMIT n]``, over a state table.

    It iterates the rows of the table, and then each row that changes. The query is checked before it returns.

    Args:
        tables: State tables: those of `keyed.run` with ``tables=``, of `keyed.tables.read_tables` or ``open_tables``.
        query: The query. The columns of a table are the fields of its values, else ``value``, and those of the key.
        parameters: Values for ``?`` or ``$name`` in it.
        after: The start, as of `keyed.tables.StateTable.subscribe`: the state first, ``"now"``, ``"beginning"``, or the
            token of a row, after which it resumes.

    Raises:
        SqlError: The query is not valid.
        DefinitionError: ``after`` or a parameter is not valid.
    """
    checked = checked_query(query, parameters, tables, lambda n: (tables[n].dataset().schema, tables[n].key_columns))
    return PushQuery(tables[checked.table].subscribe(after=after), checked)


def checked_query(
    query: str, parameters: Given | None, names: Iterable[str], describe: Callable[[str], Description]
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
    text = Text(query)
    words = tokens(text)
    if words[0].upper not in ("SELECT", "WITH"):
        text.fail("give one SELECT ... FROM table EMIT CHANGES", words[0].at)
    words, values = bound(text, words, parameters)
    select = Parser(text, words).single_query()
    if select.emit != "CHANGES":
        text.fail("a push query ends with EMIT CHANGES; a pull query, without it, is for tables.sql(...)", select.at)
    if any(item.words[place].upper == "EXPLODE" for item in select.items for place, _ in calls(item.words)):
        text.fail("a push query gives one row for each; use EXPLODE in a CREATE STREAM ... AS SELECT", select.at)
    if select.joins or select.group_by or select.partition_by or select.window or select.having or select.source.match:
        text.fail(
            "a push query filters and projects one table; define a table by CREATE TABLE ... AS SELECT for joins and "
            "aggregates, and query that",
            select.at,
        )
    names = list(names)
    name = next((each for each in names if each.lower() == select.source.name.lower()), None)
    if name is None:
        text.fail(f"unknown table {select.source.name}{nearest(select.source.name, names)}", select.source.at)
    read = TableColumns(*describe(name))
    catalog = Catalog()
    catalog.add(SqlSource(select.source.name, "STREAM", (), read.columns, name, is_query=True))
    planner = Planner(text, catalog, values, {})
    plan = planner.plan(attrs.evolve(select, emit=None, limit=None), "STREAM", "query")
    step = attrs.evolve(plan.before, kept=(PLACE,))
    return RowQuery(name, [each for each, _ in plan.values], select.limit, read, step)
