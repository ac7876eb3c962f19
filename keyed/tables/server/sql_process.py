"""Served SQL: each query runs in a process that reads the tables' folder, and is killed at its time or memory limit.

DuckDB has no time-out, and its memory limit covers only the memory that it counts itself. A process that has answered
is reused. `keyed.tables.sql_worker` documents the protocol.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keyed import errors
from keyed.errors import KeyedError, QueryFailed
from keyed.tables.json_values import as_json
from keyed.tables.server.refused_requests import ConcurrencyLimit, Refused

#: Seconds in which a process has to start.
_START_SECONDS = 60.0
#: Bytes of an answer in addition to its rows.
_MARGIN = 64 << 10
TOO_LARGE = "TooLarge"


class SqlProcesses:
    """The processes that queries run in, one for each query at a time.

    Args:
        path: The tables' folder.
        seconds: Seconds that a query may run.
        megabytes: Memory that a process may have.
        answer: Bytes of an answer.
        wait_seconds: Seconds that a query waits for a process; then it is refused.
        most: Maximal number of processes.
    """

    def __init__(
        self,
        path: Path,
        seconds: float,
        megabytes: int,
        *,
        answer: int = 16 << 20,
        wait_seconds: float = 1.0,
        most: int = 2,
    ) -> None:
        self._path = path
        self._seconds = seconds
        self._megabytes = megabytes
        self._answer = answer
        self._free: list[asyncio.subprocess.Process] = []
        self._concurrency = ConcurrencyLimit(most, wait_seconds, 429, "queries")

    async def run(
        self,
        query: str,
        parameters: Any,
        names: list[str] | None,
        as_of: Any,
        rows: int,
        *,
        share: bool = False,
        files: Mapping[str, Sequence[str]] | None = None,
    ) -> bytes:
        """Run a query. It is killed when this is cancelled.

        Args:
            query: One SELECT.
            parameters: Its parameters.
            names: The tables that it may use; all if ``None``.
            as_of: The batch or time.
            rows: Maximal number of rows of the answer.
            share: Answer from the key groups of the tables, also if these are not all.
            files: Files with the rows that other servers have, by table.

        Returns:
            The answer as JSON.

        Raises:
            DefinitionError: It is invalid, or names an unknown table or column.
            QueryFailed: It failed, or exceeded its time or memory limit.
            Refused: All processes are busy, or the answer is too large.
        """
        asked = as_json(
            {
                "query": query,
                "parameters": parameters,
                "names": names,
                "as_of": as_of,
                "rows": rows,
                "bytes": self._answer,
                "share": share,
                "files": files or {},
            }
        )
        async with self._concurrency.acquired():
            process = self._take() or await self._start()
            is_good = False
            try:
                line = await self._ask(process, asked + b"\n")
                if not line:
                    raise QueryFailed(f"sql: the query needed more than {self._megabytes} MB, or its process crashed")
                if not line.startswith(b'{"error":'):
                    is_good = True
                    return line
                failed = json.loads(line)["error"]
                # A query that failed while it ran may have used up the memory of the process.
                is_good = failed["type"] not in (QueryFailed.__name__, TOO_LARGE)
            finally:
                if is_good:
                    self._free.append(process)
                else:
                    await _kill(process)
        if failed["type"] == TOO_LARGE:
            raise Refused(413, TOO_LARGE, failed["message"])
        kind: type[KeyedError] = getattr(errors, failed["type"], QueryFailed)
        raise kind(failed["message"])

    async def close(self) -> None:
        """End the processes."""
        while self._free:
            await _kill(self._free.pop())

    def _take(self) -> asyncio.subprocess.Process | None:
        """Return an idle process, if there is one; processes that were killed from outside are skipped."""
        while self._free:
            process = self._free.pop()
            assert process.stdout is not None
            if process.returncode is None and not process.stdout.at_eof():
                return process
        return None

    async def _ask(self, process: asyncio.subprocess.Process, asked: bytes) -> bytes:
        """Return the answer line of a process; nothing if it has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._seconds):
                process.stdin.write(asked)
                await process.stdin.drain()
                return await process.stdout.readline()
        except ConnectionError:
            return b""
        except TimeoutError as error:
            raise QueryFailed(f"sql: the query took longer than {self._seconds:g} s") from error

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "keyed.tables.sql_worker",
            str(self._path),
            str(self._megabytes),
            str(self._seconds),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=self._answer + _MARGIN,
            # Ctrl-C stops the server, which ends its processes.
            start_new_session=True,
        )
        assert process.stdout is not None
        is_ready = False
        try:
            # It writes a line once it is loaded; the loading time does not count for a query.
            async with asyncio.timeout(_START_SECONDS):
                is_ready = bool(await process.stdout.readline())
        except TimeoutError:
            pass
        finally:
            if not is_ready:
                await _kill(process)
        if not is_ready:
            raise QueryFailed("sql: the process for queries did not start; the server's log has the reason")
        return process


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.wait()
