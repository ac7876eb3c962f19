"""SQL over state tables, by DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from keyed.errors import DefinitionError, QueryFailed

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from keyed.views.state_dataset import StateDataset
    from keyed.views.state_table import StateTable

#: What a query may do: read the tables that are registered, and nothing else of this machine or another.
SETTINGS = {
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
    # Rows come out of Python one after the other: more threads only cost.
    "threads": "1",
}


#: Connections that are kept for the next query, and texts that are known to be one SELECT.
_CONNECTIONS, _TEXTS = 4, 256


class _Connection:
    """A connection with the tables that it knows. Making one takes longer than most queries, and so does a table."""

    def __init__(self) -> None:
        self._cursor = _database().cursor()
        self._datasets: dict[str, StateDataset] = {}

    def run(
        self,
        tables: Mapping[str, StateTable],
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None,
    ) -> pa.Table:
        """Run a query, which sees no tables but these."""
        for name in self._datasets.keys() - tables.keys():
            self._cursor.unregister(name)
            del self._datasets[name]
        text = query.casefold()
        for name in tables:
            # A name that the text does not hold is not asked for.
            if name.casefold() in text:
                dataset = tables[name].dataset()
                known = self._datasets.get(name)
                if known is None or not known.go_on_with(dataset):
                    self._cursor.register(name, dataset)
                    self._datasets[name] = dataset
        try:
            found: pa.Table = self._cursor.sql(query, params=parameters).to_arrow_table()
            return found
        finally:
            for dataset in self._datasets.values():
                dataset.end_scans()


#: Connections that no query is using.
_free: list[_Connection] = []


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


def run_sql(
    tables: Mapping[str, StateTable], query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
) -> pa.Table:
    """Run a query over tables.

    Args:
        tables: The tables, by the names that the query has for them.
        query: One SELECT, in DuckDB's dialect.
        parameters: Values for ``?`` or ``$name`` in it.

    Raises:
        DefinitionError: DuckDB is not installed; the query is no SELECT, or names what is not there.
        QueryFailed: It failed while it ran.
    """
    try:
        import duckdb
    except ImportError as error:
        raise DefinitionError("sql needs DuckDB: pip install 'keyed[sql]'") from error
    try:
        _check_select(query)
        connection = _free.pop() if _free else _Connection()
        found = connection.run(tables, query, parameters)
        # One on which a query has failed is not used again.
        if len(_free) < _CONNECTIONS:
            _free.append(connection)
        return found
    except (duckdb.ProgrammingError, duckdb.NotSupportedError, duckdb.PermissionException) as error:
        raise DefinitionError(f"sql: {_said(error)}\nThe tables are: {', '.join(sorted(tables)) or 'none'}") from error
    except duckdb.Error as error:
        raise QueryFailed(f"sql: {_said(error)}") from error


def _said(error: Exception) -> str:
    """Return what an error says, without the traceback of what reads a table."""
    return str(error).partition(" Detail: Python exception")[0]
