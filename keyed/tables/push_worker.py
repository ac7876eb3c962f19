"""A program that computes the rows of push queries: ``python -m keyed.tables.push_worker MEGABYTES SECONDS``.

Expressions of a client can take any time and memory, so the server does not evaluate them itself. This program reads no
tables: it gets the columns of those that the client may read, and their changes.

It writes a line whenever it is ready. It answers each line of JSON, a `PushRequest`, with one line. Without ``changes``
the query is checked, and the answer is ``{"table", "columns", "limit"}``. With them it is ``{"rows", "bad"}``: for each
change the row after it and before it, and the reasons of rows that are left out because an expression fails. An error
is ``{"error": {"type", "message", "line", "column"}}``.
"""

from __future__ import annotations

import importlib
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from keyed.codec.arrow_streams import read_schema
from keyed.codec.tagged import decode_tagged, encode_tagged
from keyed.formats.json_writer import as_json
from keyed.rows import names_of_class
from keyed.tables.sql_worker import answer_lines, bound_memory, error_line

if TYPE_CHECKING:
    from keyed.tables.state_table import StateTable
    from keyed.tables.subscription import Change

#: Queries that are kept checked.
_QUERIES = 256


class PushRequest(msgspec.Struct):
    """A request.

    Attributes:
        query: A ``SELECT … EMIT CHANGES``.
        parameters: Its parameters.
        tables: The columns of each table that it may use, as `described` returns them; ``None`` for a table whose name
            the query does not have.
        bytes: Maximal number of bytes of the rows.
        changes: The changes, as `packed` returns them.
    """

    query: str
    parameters: Any
    tables: dict[str, dict[str, Any] | None]
    bytes: int
    changes: str | None = None


def described(table: StateTable) -> dict[str, Any]:
    """Return the columns of a table, for a request."""
    schema = table.dataset().schema.serialize().to_pybytes()
    return {"schema": b64encode(schema).decode(), "key_columns": table.key_columns}


def packed(changes: Iterable[Change]) -> str:
    """Return changes for a request: values of classes as dictionaries of their fields."""
    rows = [_plain([each.key, each.entry, None if each.removed else each.new, each.old]) for each in changes]
    return b64encode(encode_tagged(rows)).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    names = names_of_class(type(value))
    return {name: _plain(getattr(value, name)) for name in names} if names else value


@lru_cache(_QUERIES)
def _check_query(text: bytes) -> Any:
    """Return the checked query of a request."""
    query, parameters, tables = msgspec.json.decode(text)
    # The parser of SQL is an extra of its own.
    push_queries = importlib.import_module("keyed.sql.push_queries")

    def describe(name: str) -> Any:
        return read_schema(tables[name]["schema"]), tables[name]["key_columns"]

    return push_queries.checked_query(query, parameters, tables, describe)


def _answer(line: bytes) -> bytes:
    request = msgspec.json.decode(line, type=PushRequest)
    query = _check_query(msgspec.json.encode([request.query, request.parameters, request.tables]))
    if request.changes is None:
        return as_json({"table": query.table, "columns": query.columns, "limit": query.limit})
    rows: list[list[Any]] = []
    size = 0
    changes: list[list[Any]] = decode_tagged(b64decode(request.changes))
    after, bad = query.rows([(key, entry, new) for key, entry, new, _ in changes])
    before, _ = query.rows([(key, entry, old) for key, entry, _, old in changes])
    for both in zip(after, before, strict=True):
        row = [msgspec.Raw(as_json(each)) for each in both]
        size += sum(map(len, row))
        if size > request.bytes:
            return error_line("QueryFailed", f"sql: the rows have more than {request.bytes} bytes; select less")
        rows.append(row)
    return as_json({"rows": rows, "bad": bad})


def _main() -> None:
    """Answer requests line by line until the input ends."""
    os.chdir(os.sep)
    bound_memory(int(sys.argv[1]))
    importlib.import_module("keyed.sql.push_queries")
    answer_lines(_answer, float(sys.argv[2]))


if __name__ == "__main__":
    _main()
