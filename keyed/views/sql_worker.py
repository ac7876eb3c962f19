"""A program that runs SQL over the tables in a folder: ``python -m keyed.views.sql_worker FOLDER MEGABYTES``.

It writes a line when it is ready. Then for each line of JSON, ``{"query", "parameters", "names", "as_of", "rows"}``, it
writes one: ``{"columns", "rows", "more", "positions"}`` or ``{"error": {"type", "message"}}``. Whoever runs it kills it
when a query takes too long; the memory that it may have it sets itself.
"""

from __future__ import annotations

import resource
import sys
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Any

import msgspec

from keyed.errors import KeyedError
from keyed.views.json_values import as_json
from keyed.views.sql import run_sql
from keyed.views.state_tables import read_tables


def _main() -> None:
    """Answer queries line by line until the input ends."""
    path, megabytes = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))
    with ExitStack() as stack:
        tables = None
        with suppress(KeyedError):
            tables = stack.enter_context(read_tables(path))
            run_sql({}, "select 1")
        print("ready", flush=True)  # noqa: T201 - its side of the conversation
        for line in sys.stdin.buffer:
            asked = msgspec.json.decode(line)
            try:
                if tables is None:
                    tables = stack.enter_context(read_tables(path))
                tables.poll()
                with tables.snapshot(_as_of(asked["as_of"])) as snapshot:
                    names = [name for name in snapshot if asked["names"] is None or name in asked["names"]]
                    found = run_sql({name: snapshot[name] for name in names}, asked["query"], asked["parameters"])
                    # By column: two of them may have one name.
                    columns = found.slice(0, asked["rows"]).columns
                    answer = {
                        "columns": [{"name": field.name, "type": str(field.type)} for field in found.schema],
                        "rows": list(zip(*(column.to_pylist() for column in columns), strict=True)),
                        "more": found.num_rows > asked["rows"],
                        "positions": snapshot.positions,
                    }
                written = as_json(answer)
            except KeyedError as error:
                written = as_json({"error": {"type": type(error).__name__, "message": str(error)}})
            except Exception as error:  # noqa: BLE001 - whatever a query can make fail
                written = as_json({"error": {"type": "QueryFailed", "message": f"sql: {error}"}})
            sys.stdout.buffer.write(written + b"\n")
            sys.stdout.buffer.flush()


def _as_of(given: Any) -> Any:
    return datetime.fromisoformat(given) if isinstance(given, str) else given


if __name__ == "__main__":
    _main()
