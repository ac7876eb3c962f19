"""A program that runs SQL over the tables in a folder: ``python -m keyed.tables.sql_worker FOLDER MEGABYTES SECONDS``.

It writes a line whenever it is ready. It answers each line of JSON, a `SqlQuery`, with one line: ``{"columns", "rows",
"more", "positions"}`` or ``{"error": {"type", "message"}}``. Its parent kills it when a query takes too long. It limits
its own memory, and ends if its parent has ended, or if it cannot return the memory of an answer to the system.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import cache
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pyarrow as pa

from keyed.errors import KeyedError, SqlError
from keyed.formats.json_writer import as_json
from keyed.stores.database import CACHE_BYTES
from keyed.stores.growth import GrowthBound, resident_bytes
from keyed.tables.json_values import shown_position
from keyed.tables.sql import run_sql
from keyed.tables.state_tables import StateTables, read_tables

#: Seconds between two checks of the memory.
_LOOK_AGAIN = 0.02
#: Bytes by which a process may have grown when it is idle: the block cache of its stores, and a little.
_GROWTH = CACHE_BYTES + (32 << 20)
#: Seconds after its time limit at which a query ends by itself.
_GRACE = 5.0


class SqlQuery(msgspec.Struct):
    """A request.

    Attributes:
        query: One SELECT.
        parameters: Its parameters.
        names: The tables that it may use; all if ``None``.
        as_of: The batch or time.
        rows: Maximal number of rows of the answer.
        bytes: Maximal number of bytes of the answer.
        share: Answer from the key groups of the tables, also if these are not all.
        files: Files with the rows that other servers have, by table.
    """

    query: str
    parameters: list[Any] | dict[str, Any] | None
    names: list[str] | None
    as_of: int | datetime | None
    rows: int
    bytes: int
    share: bool = False
    files: dict[str, list[str]] = {}


def bound_memory(megabytes: int) -> None:
    """Limit the memory of this process from now on: it exits with status 1 if it uses more.

    ``RLIMIT_DATA`` makes a larger request for memory fail if the system enforces it, as Linux does and macOS does not.
    A thread that checks the peak memory of the process enforces the limit everywhere.
    """
    most = megabytes << 20
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def look() -> None:
        while _peak_memory() <= most:
            time.sleep(_LOOK_AGAIN)
        os._exit(1)

    threading.Thread(target=look, name="keyed-memory", daemon=True).start()


def _peak_memory() -> int:
    """Return the peak memory of this program, in bytes.

    On Linux the figure of `getrusage` includes the peak of the program that started this one.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def answer_lines(answer: Callable[[bytes], bytes], seconds: float) -> None:
    """Answer each line of JSON with a line, until the input ends.

    Args:
        answer: Returns the answer to a line.
        seconds: Seconds that a request may take. Its parent kills this process then; it ends a little later by itself.
    """
    growth, most = GrowthBound(), resident_bytes() + _GROWTH
    print("ready", flush=True)  # noqa: T201 - its side of the conversation
    for line in sys.stdin.buffer:
        # Ends the process in any state if its parent cannot do it.
        signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE)
        try:
            written = answer(line)
        except KeyedError as error:
            place = {"line": error.line, "column": error.column} if isinstance(error, SqlError) else {}
            written = error_line(type(error).__name__, str(error), **place)
        except Exception as error:  # noqa: BLE001 - whatever a query can make fail
            written = error_line("QueryFailed", f"sql: {error}")
        sys.stdout.buffer.write(written + b"\n")
        sys.stdout.buffer.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)
        if growth.is_exceeded:
            pa.default_memory_pool().release_unused()
            growth.trim()
        if resident_bytes() > most:
            # DuckDB keeps the memory of large intermediate results. Its modules would report leaks at a normal exit.
            os._exit(0)
        print("ready", flush=True)  # noqa: T201 - its side of the conversation


class _WithoutPandas(MetaPathFinder):
    """Refuses pandas, which pyarrow loads with the first table if it is there: 40 MB that no query uses."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Raise an error for pandas; leave other modules to other finders."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _main() -> None:
    """Answer queries line by line until the input ends."""
    path, megabytes, seconds = Path(sys.argv[1]).resolve(), int(sys.argv[2]), float(sys.argv[3])
    # DuckDB can list the folder in which it was started.
    os.chdir(os.sep)
    bound_memory(megabytes)
    sys.meta_path.insert(0, _WithoutPandas())
    importlib.import_module("pyarrow.dataset")
    with ExitStack() as stack:

        @cache
        def opened() -> StateTables:
            return stack.enter_context(read_tables(path))

        with suppress(KeyedError):
            opened()
            run_sql({}, "select 1")
        answer_lines(lambda line: _answer(opened(), msgspec.json.decode(line, type=SqlQuery)), seconds)


def _answer(tables: StateTables, request: SqlQuery) -> bytes:
    tables.poll()
    files, share, names = request.files, request.share, request.names
    with tables.snapshot(request.as_of) as snapshot:
        shown = snapshot.share if share or files else snapshot
        named = {
            name: (shown if share or name in files else snapshot)[name]
            for name in snapshot
            if names is None or name in names
        }
        result = run_sql(named, request.query, request.parameters, files)
        # By position: two columns may have the same name.
        columns = result.slice(0, request.rows).columns
        operators = {table.operator for table in named.values()}
        answer = {
            "columns": [{"name": field.name, "type": str(field.type)} for field in result.schema],
            "rows": list(zip(*(column.to_pylist() for column in columns), strict=True)),
            "more": result.num_rows > request.rows,
            "positions": {
                operator: shown_position(
                    attrs.evolve(position, groups=None) if files else position, whole=names is None and not files
                )
                for operator, position in snapshot.positions.items()
                if names is None or operator in operators
            },
        }
    written = as_json(answer)
    if len(written) > request.bytes:
        return error_line(
            "TooLarge", f"sql: the answer has more than {request.bytes} bytes; ask for fewer rows or columns"
        )
    return written


def error_line(kind: str, message: str, **place: int) -> bytes:
    """Return an error as an answer, with its line and column, if it has them."""
    return as_json({"error": {"type": kind, "message": message, **place}})


if __name__ == "__main__":
    _main()
