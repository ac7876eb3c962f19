"""DuckDB in this process: it binds the expressions of scripts, and computes stateless steps over batches.

A step is one query over the table of a batch. A row in which an expression fails is bad, and no other: if the query
raises, the batch runs again with each row's expressions in a ``TRY``, and where that is not possible in halves.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from keyed.base.arguments import nearest
from keyed.base.extras import extra
from keyed.errors import DefinitionError
from keyed.expressions.duckdb_settings import SETTINGS
from keyed.expressions.macros import LIMITED, MACROS
from keyed.expressions.tokens import SqlToken, Text, calls, quoted, sql
from keyed.formats.sql_types import BIGINT, BOOLEAN, SqlType, of_duckdb
from keyed.formats.typed_columns import as_times, column, pc

if TYPE_CHECKING:
    import duckdb

Columns = tuple[tuple[str, SqlType], ...]
#: A column that is computed: its name, expression and type.
Cell = tuple[str, str, SqlType]
#: Major version of DuckDB: expressions of another one may have other values.
MAJOR = "2"
#: The environment variable with the memory that DuckDB may use in a process, and its default.
_LIMIT, _MEMORY = "KEYED_SQL_MEMORY_LIMIT", "1GB"
#: Types that columns do not have, with the type to cast to.
_CAST = {"hugeint": "BIGINT", "uhugeint": "BIGINT", "ubigint": "BIGINT", "uuid": "STRING", "interval": "STRING"}
#: Functions whose values depend on the session, beside those that DuckDB itself calls volatile.
_SESSION = {"version", "current_user", "session_user", "user", "getenv", "read_text", "read_blob", "glob", "query"}


class EngineConnections(threading.local):
    """The connections of a thread: made at their first use, and again after a fork."""

    def __init__(self) -> None:
        self._cursors: dict[bool, duckdb.DuckDBPyConnection] = {}

    def get(self, *, tries: bool = False) -> duckdb.DuckDBPyConnection:
        """Return the connection for steps, or the one for steps with ``TRY``."""
        if tries not in self._cursors:
            self._cursors[tries] = _database(tries=tries).cursor()
        return self._cursors[tries]


_connections = EngineConnections()
#: The databases of this process: that of steps, and that of steps with ``TRY``.
_databases: dict[bool, duckdb.DuckDBPyConnection] = {}
#: The databases of the parent of a forked process, which another thread may have been using: not even closed.
_inherited: list[object] = []
#: Held while the databases and their functions change, and while a step calls functions.
_lock = threading.RLock()


def _forget_parent() -> None:
    global _connections, _lock  # noqa: PLW0603 - there is one of each
    _lock = threading.RLock()
    _inherited.extend([_connections, dict(_databases)])
    _databases.clear()
    _connections = EngineConnections()
    registered.clear()
    functions.cache_clear()


os.register_at_fork(after_in_child=_forget_parent)


def _database(*, tries: bool = False) -> duckdb.DuckDBPyConnection:
    with _lock:
        if tries not in _databases:
            _databases[tries] = _opened(tries=tries)
        return _databases[tries]


def _opened(*, tries: bool) -> duckdb.DuckDBPyConnection:
    with extra("sql", "keyed.sql"):
        import duckdb
    if duckdb.__version__.partition(".")[0] != MAJOR:
        raise DefinitionError(
            f"keyed.sql needs DuckDB {MAJOR}, and {duckdb.__version__} is installed: pip install 'duckdb>={MAJOR}'"
        )
    limit = os.environ.get(_LIMIT, _MEMORY)
    no_size = f"the environment variable {_LIMIT}={limit!r} must be a size such as '2GB'"
    if not re.fullmatch(r"(?=.*[1-9])\d+(\.\d+)? ?([kmgt]i?b|%)", limit, re.IGNORECASE):
        raise DefinitionError(no_size)
    settings: dict[str, Any] = {**SETTINGS, "memory_limit": limit}
    locked = settings.pop("lock_configuration")
    try:
        database = duckdb.connect(config=settings)
    except duckdb.Error as error:
        raise DefinitionError(f"{no_size}: {error}") from error
    for head, body in MACROS.items():
        database.execute(f"CREATE MACRO {head} AS {body}")
    for name, forms in LIMITED.items():
        database.execute(f"CREATE MACRO {name} {forms}")
    database.execute("SET TimeZone = 'UTC'")
    database.execute("SET preserve_insertion_order = true")
    if tries:
        # With it TRY raises if a subexpression occurs twice.
        database.execute("SET disabled_optimizers = 'common_subexpressions'")
    database.execute(f"SET lock_configuration = {locked}")
    return database


@cache
def _refused() -> Mapping[str, str]:
    """Return the names of functions that a script may not call, with the reasons."""
    reasons = dict.fromkeys(_SESSION, "its value depends on the session")
    rows = _database().cursor().sql("SELECT function_name, function_type, stability FROM duckdb_functions()").fetchall()
    scalars = {name for name, kind, _ in rows if kind in ("scalar", "macro")}
    no_aggregate = "scripts have no such aggregate; write one that they have, or register a Python one"
    aggregates = {name for name, kind, _ in rows if kind == "aggregate"} - scalars
    reasons |= dict.fromkeys(aggregates, no_aggregate)
    for name, kind, stability in rows:
        if name in aggregates:
            continue
        if kind in ("table", "pragma", "table_macro") and name not in scalars and name != "unnest":
            reasons[name] = "it reads what is not a row"
        elif stability == "VOLATILE" and name != "error":
            reasons[name] = "its value differs from call to call, and a batch may run again"
        elif stability == "CONSISTENT_WITHIN_QUERY":
            reasons[name] = "its value differs from batch to batch, and a batch may run again"
    return reasons


@cache
def functions() -> frozenset[str]:
    """Return the names of the functions that expressions may call, in upper case."""
    rows = _database().cursor().sql("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()
    return frozenset(name.upper() for (name,) in rows if name not in _refused() and name[0].isalpha())


@cache
def keywords() -> frozenset[str]:
    """Return the words before a bracket that are no names of functions, such as ``CAST``, ``IN`` and ``COALESCE``."""
    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
    return frozenset(name.upper() for (name,) in _database().cursor().sql(query).fetchall())


@attrs.frozen(eq=False)
class PythonFunction:
    """A registered function or aggregate.

    Attributes:
        name: Its name, in upper case.
        function: The function, or the `keyed.AggregateFunction`.
        takes: Types of the arguments.
        returns: Type of the result.
        over_arrow: It takes and returns Arrow arrays.
        token: Differs from that of every other registration, also in other processes.
    """

    name: str
    function: Any
    takes: tuple[SqlType, ...]
    returns: SqlType
    over_arrow: bool = False
    token: str = attrs.field(factory=lambda: secrets.token_hex(8))


#: The registered aggregates by name.
PYTHON: dict[str, PythonFunction] = {}


#: The Python functions that expressions of this process may call, by name in upper case.
registered: dict[str, PythonFunction] = {}


def provide(functions_: Iterable[PythonFunction]) -> None:
    """Let expressions of this process call Python functions, in place of others of their names."""
    for each in functions_:
        with _lock:
            if each.name in registered and registered[each.name].token == each.token:
                continue
            _remove(each.name)
            for tries in (False, True):
                database: Any = _database(tries=tries)
                database.create_function(
                    each.name.lower(),
                    each.function,
                    [type_.duckdb for type_ in each.takes],
                    each.returns.duckdb,
                    type="arrow" if each.over_arrow else "native",
                    null_handling="special" if each.over_arrow else "default",
                )
            registered[each.name] = each
            functions.cache_clear()


def forget(name: str) -> None:
    """Remove a Python function, if there is one of the name, once no query is calling functions."""
    with _lock:
        _remove(name)


def _remove(name: str) -> None:
    if registered.pop(name, None) is not None:
        functions.cache_clear()
        for tries in (False, True):
            _database(tries=tries).remove_function(name.lower())


@atexit.register
def _forget_all() -> None:
    for name in list(registered):
        _remove(name)


def _called(step: SqlStep) -> tuple[PythonFunction, ...]:
    """Return the Python functions that a step calls."""
    if not registered:
        return ()
    text = " ".join([*(expression for _, expression, _ in step.columns), step.where or ""]).upper()
    words = set(re.findall(r"\w+", text))
    return tuple(each for name, each in registered.items() if name in words)


def _projected(step: SqlStep) -> tuple[str, ...] | None:
    """Return the columns of which a step's rows consist; ``None`` if it computes anything."""
    names = [re.fullmatch(r'"((?:[^"]|"")+)"', expression) for _, expression, _ in step.columns]
    if step.where is not None or None in names:
        return None
    return tuple(name[1].replace('""', '"') for name in names if name)


def typed(cells: Iterable[Cell]) -> Columns:
    """Return the columns of cells."""
    return tuple((name, type_) for name, _, type_ in cells)


def empty(columns: Columns) -> pa.Table:
    """Return a table of no rows with columns."""
    fields = [(name, type_.arrow_with(TIME=pa.time64("us"))) for name, type_ in columns or (("#nothing", BOOLEAN),)]
    return pa.schema(fields).empty_table()


def check(text: Text, words: Sequence[SqlToken]) -> None:
    """Check that an expression reads nothing but its row.

    Raises:
        SqlError: It has a query, or calls a function that is refused.
    """
    if words[0].upper == "DISTINCT":
        text.fail("DISTINCT is not supported here", words[0].at)
    for token in words:
        if token.upper in ("SELECT", "VALUES", "PIVOT", "OVER", "SUMMARIZE"):
            what = {"OVER": "OVER (...) is not supported; write WINDOW, or a GROUP BY"}.get(
                token.upper, "a query inside of an expression is not supported; join the stream or table instead"
            )
            text.fail(what, token.at)
    for place, _ in calls(words):
        reason = _refused().get(words[place].identifier.lower())
        if reason is not None:
            text.fail(f"{words[place].text} is refused: {reason}", words[place].at)
    for place, token in enumerate(words):
        if token.text == "(" and place + 1 < len(words) and words[place + 1].upper == "FROM":
            text.fail("a query inside of an expression is not supported", token.at)
        if token.upper in ("CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "LOCALTIMESTAMP", "LOCALTIME"):
            text.fail(
                f"{token.text} is refused: its value differs from batch to batch, and a batch may run again", token.at
            )


def bind(text: Text, columns: Columns, words: Sequence[SqlToken], values: Mapping[str, Any]) -> SqlType:
    """Return the type of an expression over columns.

    Raises:
        SqlError: DuckDB does not accept it, or its type is none of a column.
    """
    import duckdb

    check(text, words)
    at = words[0].at
    connection = _connections.get()
    connection.register("batch", empty(columns or (("#nothing", BIGINT),)))
    try:
        relation = connection.sql(f"SELECT {sql(words)} FROM batch", params=_used(values, words))  # noqa: S608 - checked
        kind = relation.types[0]
    except (duckdb.Error, RuntimeError) as error:
        _fail(text, words, columns, str(error))
    finally:
        connection.unregister("batch")
    type_ = of_duckdb(kind)
    if type_ is None:
        name = str(kind.id)
        if "null" in name.lower():
            text.fail("the column is NULL without a type; write CAST(NULL AS type)", at)
        text.fail(f"a column has no type {kind}; write CAST(... AS {_CAST.get(name, 'STRING')})", at)
    return type_


def parsed(expression: str) -> Any:
    """Return the tree of an expression, as DuckDB's ``json_serialize_sql`` has it."""
    query = "SELECT json_serialize_sql(?, skip_null := true, skip_empty := true, skip_default := true)"
    ((text,),) = _connections.get().execute(query, [f"SELECT {expression}"]).fetchall()
    return json.loads(text)["statements"][0]["node"]["select_list"][0]


def unparsed(tree: Any) -> str:
    """Return the expression of a tree."""
    rest = {"cte_map": {}, "from_table": {"type": "EMPTY"}, "aggregate_handling": "STANDARD_HANDLING"}
    node = {"type": "SELECT_NODE", "select_list": [tree], **rest}
    text = json.dumps({"error": False, "statements": [{"node": node}]})
    ((query,),) = _connections.get().execute("SELECT json_deserialize_sql(?::JSON)", [text]).fetchall()
    return str(query).removeprefix("SELECT ")


def _used(values: Mapping[str, Any], words: Iterable[SqlToken]) -> dict[str, Any] | None:
    names = {each.text[1:] for each in words if each.kind == "parameter"}
    return {name: values[name] for name in names} or None


_NAMED = re.compile(
    r"(?:column|name|function matches the given name and argument types|Function with name|Macro|Function) "
    r"[\"']?([A-Za-z_]\w*)",
    re.IGNORECASE,
)


_OPERATOR = re.compile(r"(?:argument types|function call) [\"']?([^\w\s(]+)\((.*?)\)[\"']?\.")


def _fail(text: Text, words: Sequence[SqlToken], columns: Columns, error: str) -> Any:
    """Raise the error of DuckDB's binder at its place in the script."""
    message = error.partition("\n\nLINE ")[0].strip()
    message = re.sub(r"^\w+(?: \w+)? Error: ", "", message)

    def place_of(word: str) -> int:
        """Return the place of a word, or the beginning of the expression."""
        places = (each.at for each in words if word and word.lower() in (each.text.lower(), each.identifier.lower()))
        return next(places, words[0].at)

    named = _NAMED.search(message)
    name = named.group(1) if named else ""
    at = place_of(name)
    if "Max expression depth" in message:
        text.fail("the expression is nested deeper than 1000; write a CREATE STREAM ... AS SELECT for a part of it", at)
    if "not found in FROM clause" in message and name:
        known = [each for each, _ in columns if "#" not in each and not each.startswith("__")]
        text.fail(f"unknown column {name}{nearest(name, known)}", at)
    if "does not exist" in message and name:
        text.fail(f"unknown function {name}{nearest(name, functions())}", at)
    if "syntax error" in message:
        near = re.search(r'at or near \\?"(.*?)\\?"', message)
        shown = near.group(1) if near else ""
        text.fail(f"the expression is not valid{f' at {shown!r}' if shown else ''}", place_of(shown))
    operator = _OPERATOR.search(message)
    if operator:
        sign, types = operator.groups()
        text.fail(f"{sign} does not take the types {types}; use CAST(... AS type)", place_of(sign))
    text.fail(message.split("\n")[0].partition(" You might need")[0], at)


@attrs.frozen
class SqlStep:
    """A stateless step: columns of rows that fit a condition. It is plain data, and travels to workers.

    Attributes:
        columns: Its columns: name, expression and type.
        where: The condition; ``None`` for all rows.
        kept: Columns of the input that the output has unchanged.
        values: The values of parameters.
        explodes: Its expressions make several rows of one.
        times: The columns of the input that hold times of a day: they are milliseconds, and in expressions ``TIME``.
        functions: The Python functions that it calls.
        projected: The columns of the input that its columns are; ``None`` if it computes anything.
    """

    columns: tuple[Cell, ...]
    where: str | None = None
    kept: tuple[str, ...] = ()
    values: Mapping[str, Any] = attrs.field(factory=dict)
    explodes: bool = False
    times: Columns = ()
    functions: tuple[PythonFunction, ...] = attrs.field(default=attrs.Factory(_called, takes_self=True))
    projected: tuple[str, ...] | None = attrs.field(default=attrs.Factory(_projected, takes_self=True), init=False)

    def run(self, table: pa.Table) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Return the rows of a table after the step, and the places of bad rows with the reasons."""
        import duckdb

        lacking = [name for name in self.kept if name not in table.column_names]
        if lacking:
            # Event times come with batches that go to a key.
            return attrs.evolve(self, kept=tuple(name for name in self.kept if name not in lacking)).run(table)
        if not table.num_rows:
            return self._empty(table), []
        # A query in another thread may have other functions of the same names.
        with _lock if self.functions else nullcontext():
            provide(self.functions)
            try:
                if self.projected is None:
                    return self._typed(self._query(table, self._plain()), table), []
                return self._typed(table.select([*self.projected, *self.kept]), table), []
            except (duckdb.Error, RuntimeError) as error:
                if table.num_rows == 1:
                    return self._empty(table), [(0, _reason(error))]
                if not self.explodes:
                    tried = self._tried(table)
                    if tried is not None:
                        return tried
        middle = table.num_rows // 2

        first, bad = self.run(table.slice(0, middle))
        second, more = self.run(table.slice(middle))
        return pa.concat_tables([first, second]), bad + [(place + middle, reason) for place, reason in more]

    def _query(self, table: pa.Table, query: str, *, tries: bool = False) -> pa.Table:
        connection = _connections.get(tries=tries)
        for name, type_ in self.times:
            table = table.set_column(table.column_names.index(name), name, as_times(table.column(name), type_))
        connection.register("batch", _unsliced(table))
        try:
            words = set(re.findall(r"\$(\w+)", query))
            used = {name: value for name, value in self.values.items() if name in words}
            result: pa.Table = connection.sql(query, params=used or None).to_arrow_table()
            return result
        finally:
            connection.unregister("batch")

    def _plain(self) -> str:
        shown = [f"{expression} AS {quoted(name)}" for name, expression, _ in self.columns]
        shown += map(quoted, self.kept)
        return f"SELECT {', '.join(shown)} FROM batch" + (f" WHERE {self.where}" if self.where else "")  # noqa: S608

    def _tried(self, table: pa.Table) -> tuple[pa.Table, list[tuple[int, str]]] | None:
        """Return the rows that do not fail; ``None`` if that query fails as a whole."""
        import duckdb

        cells = ", ".join([expression for _, expression, _ in self.columns] or ["true"])
        nothing = ", ".join(["NULL"] * max(1, len(self.columns)))
        row = f"ROW(true, {cells})"
        if self.where:
            row = f"CASE WHEN {self.where} THEN {row} ELSE ROW(false, {nothing}) END"
        try:
            query = f"SELECT TRY({row}) AS cells FROM batch"  # noqa: S608 - checked
            structs: Any = self._query(table, query, tries=True).column(0).combine_chunks()
        except (duckdb.Error, RuntimeError):
            return None
        failed = structs.is_null()
        passed = pc.and_(structs.is_valid(), pc.fill_null(pc.struct_field(structs, 0), False))
        columns = [pc.struct_field(structs, place + 1) for place in range(len(self.columns))]
        columns += [table.column(name) for name in self.kept]
        rows = pa.table(columns, names=[*(name for name, _, _ in self.columns), *self.kept])
        places: list[Any] = pc.indices_nonzero(failed).to_pylist()
        bad = [(place, self._why(table.slice(place, 1))) for place in places]
        return self._typed(rows.filter(passed), table), bad

    def _why(self, row: pa.Table) -> str:
        """Return the reason of a bad row."""
        import duckdb

        try:
            self._query(row, self._plain())
        except (duckdb.Error, RuntimeError) as error:
            return _reason(error)
        return "an expression fails"

    def _typed(self, result: pa.Table, table: pa.Table) -> pa.Table:
        """Return a result with the columns' types."""
        columns = []
        for place, (name, _, type_) in enumerate(self.columns):
            cells, bad = column(result.column(place).combine_chunks(), type_)
            if bad:
                raise RuntimeError(f"{name}: {next(iter(bad.values()))}")
            columns.append(cells)
        names = [name for name, _, _ in self.columns]
        kept = [result.column(len(names) + place) for place in range(len(self.kept))]
        types = [table.schema.field(name).type for name in self.kept]
        kept = [each if each.type == type_ else each.cast(type_) for each, type_ in zip(kept, types, strict=True)]
        return pa.table([*columns, *kept], names=[*names, *self.kept])

    def _empty(self, table: pa.Table) -> pa.Table:

        fields: list[Any] = [(name, type_.arrow) for name, _, type_ in self.columns]
        return pa.schema([*fields, *(table.schema.field(name) for name in self.kept)]).empty_table()


def _unsliced(table: pa.Table) -> pa.Table:
    """Return a table whose structs begin at the first place of their buffers: DuckDB refuses others."""
    for place, field in enumerate(table.schema):
        cells = table.column(place)
        if any(map(_is_sliced, cells.chunks)):
            table = table.set_column(place, field, cells.take(pa.array(range(len(cells)), pa.int64())))
    return table


def _is_sliced(cells: Any) -> bool:
    kinds: Any = pa.types
    if not kinds.is_nested(cells.type):
        return False
    if cells.offset:
        return True
    if kinds.is_struct(cells.type):
        return any(_is_sliced(cells.field(place)) for place in range(cells.type.num_fields))
    return any(map(_is_sliced, (cells.keys, cells.items) if kinds.is_map(cells.type) else (cells.values,)))


def _reason(error: Exception) -> str:
    reason = re.sub(r"^\w+(?: \w+)* Error: ", "", str(error).partition("\n")[0])
    return re.sub(r" Use TRY\(.*", " TRY(...) would make it null.", reason)[:200]
