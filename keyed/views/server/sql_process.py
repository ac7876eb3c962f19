"""Served SQL: each query runs in a process that reads the tables' folder, and is killed at its time or memory limit.

DuckDB has no time-out, and its memory limit holds for what it counts itself. A process that has answered is used again.
What it is told and answers is said in `keyed.views.sql_worker`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from keyed.errors import DefinitionError, QueryFailed
from keyed.views.json_values import as_json

_LINE = 64 << 20


class SqlProcesses:
    """The processes that queries run in, one for each query at a time.

    Args:
        path: The tables' folder.
        seconds: How long a query may run.
        megabytes: How much memory a process may have.
        most: How many processes there may be; further queries wait.
    """

    def __init__(self, path: Path, seconds: float, megabytes: int, most: int = 2) -> None:
        self._path = path
        self._seconds = seconds
        self._megabytes = megabytes
        self._free: list[asyncio.subprocess.Process] = []
        self._places = asyncio.Semaphore(most)

    async def run(self, query: str, parameters: Any, names: list[str] | None, as_of: Any, rows: int) -> bytes:
        """Run a query.

        Args:
            query: One SELECT.
            parameters: Its parameters.
            names: The tables that it may name; all if ``None``.
            as_of: The batch or time.
            rows: The greatest number of rows to give.

        Returns:
            The answer as JSON.

        Raises:
            DefinitionError: It is no query, or names what is not there.
            QueryFailed: It failed, or needed more time or memory than it may have.
        """
        asked = as_json({"query": query, "parameters": parameters, "names": names, "as_of": as_of, "rows": rows})
        async with self._places:
            process = self._free.pop() if self._free else await self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(asked + b"\n")
                line = await asyncio.wait_for(process.stdout.readline(), self._seconds)
            except TimeoutError as error:
                await _kill(process)
                raise QueryFailed(f"sql: the query took longer than {self._seconds:g} s") from error
            except BaseException:
                await _kill(process)
                raise
            if not line:
                await _kill(process)
                raise QueryFailed(f"sql: the query needed more than {self._megabytes} MB, or failed hard")
            if not line.startswith(b'{"error":'):
                self._free.append(process)
                return line
            told = json.loads(line)["error"]
            if told["type"] == DefinitionError.__name__:
                self._free.append(process)
                raise DefinitionError(told["message"])
            # What failed may have used up the memory of the process.
            await _kill(process)
            raise QueryFailed(told["message"])

    async def close(self) -> None:
        """End the processes."""
        while self._free:
            await _kill(self._free.pop())

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "keyed.views.sql_worker",
            str(self._path),
            str(self._megabytes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE,
            # Ctrl-C is for the server, which ends its processes.
            start_new_session=True,
        )
        assert process.stdout is not None
        # It says so when it has loaded what it needs, which is no query's time.
        await process.stdout.readline()
        return process


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
