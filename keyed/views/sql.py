"""SQL over state tables, by DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from keyed.errors import DefinitionError, QueryFailed

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from keyed.views.state_table import StateTable

#: What a query may do: read the tables that are registered, and nothing else of this machine or another.
SETTINGS = {
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory for this process: starting one takes longer than most queries."""
    import duckdb

    return duckdb.connect(config=dict(SETTINGS))


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
    text = query.casefold()
    try:
        with _connection().cursor() as connection:
            statements = connection.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise DefinitionError("sql: give one SELECT; state tables are only read")
            # Registering a table costs a look at its types. A name that the text does not hold is not asked for.
            for name in tables:
                if name.casefold() in text:
                    connection.register(name, tables[name].dataset())
            found: pa.Table = connection.sql(query, params=parameters).to_arrow_table()
            return found
    except (duckdb.ProgrammingError, duckdb.NotSupportedError, duckdb.PermissionException) as error:
        raise DefinitionError(f"sql: {error}\nThe tables are: {', '.join(sorted(tables)) or 'none'}") from error
    except duckdb.Error as error:
        raise QueryFailed(f"sql: {error}") from error
