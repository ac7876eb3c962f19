"""SQL over state tables, by DuckDB."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from queue import Empty, Full, LifoQueue
from typing import TYPE_CHECKING, Any

from keyed.base.extras import extra
from keyed.errors import DefinitionError, QueryFailed
from keyed.expressions.duckdb_settings import SETTINGS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from keyed.tables.state_dataset import StateDataset
    from keyed.tables.state_table import StateTable

#: Number of idle connections that are kept, and of cached texts that are known to be one SELECT.
_CONNECTIONS, _TEXTS = 4, 256
#: Default names of the key's columns.
_KEY = re.compile(r"\bkey(_\d+)?\b", re.IGNORECASE)
#: Columns that states have, and table states only if a query names them.
_BESIDE = {name: re.compile(rf"\b{name}\b", re.IGNORECASE | re.ASCII) for name in ("expires", "namespace")}
#: Part of a query that lists the tables.
_LISTING = re.compile(r"\b(show|information_schema|(duckdb|pragma|pg)_\w+|sqlite_\w+)\b")


class _Connection:
    """A connection with its registered tables. Creating one, or registering a table, takes longer than most queries."""

    def __init__(self) -> None:
        self._cursor = _database().cursor()
        self._datasets: dict[str, StateDataset] = {}

    def run(
        self,
        tables: Mapping[str, StateTable],
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None,
        files: Mapping[str, Sequence[str]],
    ) -> pa.Table:
        """Run a query, which can read only these tables.

        Args:
            tables: The tables by their names in lower case: DuckDB ignores the case of names.
            query: The query.
            parameters: Its parameters.
            files: Files with further rows of tables, by their names in lower case.
        """
        for name in self._datasets.keys() - tables.keys():
            self._cursor.unregister(name)
            del self._datasets[name]
        for name in tables:
            # Tables whose name is not in the text are not registered.
            if may_name(query, name):
                beside = [column for column, named in _BESIDE.items() if named.search(query)]
                dataset = tables[name].dataset(has_key=has_key(query), beside=beside, files=files.get(name, ()))
                known = self._datasets.get(name)
                if known is None or not known.rebind(dataset):
                    self._cursor.register(name, dataset)
                    self._datasets[name] = dataset
        try:
            result: pa.Table = self._cursor.sql(query, params=parameters).to_arrow_table()
            return result
        finally:
            for dataset in self._datasets.values():
                dataset.end_scans()
                dataset.release()

    def close(self) -> None:
        """Close the connection."""
        self._cursor.close()


#: Connections that no query is using: a few of them.
_free: LifoQueue[_Connection] = LifoQueue(_CONNECTIONS)


@contextmanager
def _borrow_connection() -> Iterator[_Connection]:
    """Use a free connection, or a new one. A connection on which a query has failed is closed."""
    free = _free
    try:
        connection = free.get_nowait()
    except Empty:
        connection = _Connection()
    try:
        yield connection
        free.put_nowait(connection)
    except Full:
        connection.close()
    except BaseException:
        connection.close()
        raise


#: Connections of the parent of a forked process. Another thread may have been using them, so they are not even closed.
_inherited: list[object] = []


def _forget_parent() -> None:
    """Replace the connections and the database in a forked process."""
    global _free  # noqa: PLW0603 - there is one
    _inherited.append(_free)
    if _database.cache_info().currsize:
        _inherited.append(_database())
    _database.cache_clear()
    _free = LifoQueue(_CONNECTIONS)


os.register_at_fork(after_in_child=_forget_parent)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect(config=dict(SETTINGS))


@lru_cache(_TEXTS)
def _check_select(query: str) -> None:
    """Check that a query is one SELECT.

    Raises:
        DefinitionError: It is not.
    """
    import duckdb

    if not isinstance(query, str):
        raise DefinitionError(f"sql({query!r:.100}): give a SELECT as text")
    statements = _database().cursor().extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise DefinitionError("sql: give one SELECT; state tables are only read")


def may_name(query: str, table: str) -> bool:
    """Return true if a query may read a table."""
    text = query.lower()
    return table.lower() in text or _LISTING.search(text) is not None


def has_key(query: str) -> bool:
    """Return true if a query may name the key's columns by their default names."""
    return _KEY.search(query) is not None


def run_sql(
    tables: Mapping[str, StateTable],
    query: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    files: Mapping[str, Sequence[str]] | None = None,
) -> pa.Table:
    """Run a query over tables.

    Args:
        tables: The tables by their names in the query, in any case. Tables whose names differ only by case are not
            available.
        query: One SELECT, in DuckDB's dialect.
        parameters: Values for ``?`` or ``$name`` in it.
        files: Files with further rows of tables, by name, as `StateTable.dataset` takes them.

    Raises:
        DefinitionError: The query is not a SELECT, or names an unknown table or column.
        QueryFailed: It failed while it ran.
    """
    with extra("sql", "SQL over state tables"):
        import duckdb
    named: dict[str, list[str]] = {}
    for name in tables:
        named.setdefault(name.lower(), []).append(name)
    try:
        _check_select(query)
        with _borrow_connection() as connection:
            known = {lower: tables[names[0]] for lower, names in named.items() if len(names) == 1}
            others = {name.lower(): paths for name, paths in (files or {}).items()}
            return connection.run(known, query, parameters, others)
    except (duckdb.ProgrammingError, duckdb.NotSupportedError, duckdb.PermissionException) as error:
        available = ", ".join(sorted(name for names in named.values() if len(names) == 1 for name in names)) or "none"
        same = [" and ".join(map(repr, sorted(names))) for names in named.values() if len(names) > 1]
        hint = f"\nSQL ignores the case of names, so it has no {', '.join(same)}; scan them instead" if same else ""
        raise DefinitionError(f"sql: {_text_of_error(error)}\nThe tables are: {available}{hint}") from error
    except duckdb.Error as error:
        raise QueryFailed(f"sql: {_text_of_error(error)}") from error


def _text_of_error(error: Exception) -> str:
    """Return the text of an error, without the traceback of the table's reader."""
    return str(error).partition(" Detail: Python exception")[0]
