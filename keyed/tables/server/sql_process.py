"""Served SQL: each query runs in a process of its own, which is killed at its time or memory limit.

DuckDB has no time-out, and its memory limit covers only the memory that it counts itself; the expressions of push
queries have no limit at all. A process that has answered is reused. `keyed.tables.sql_worker` and
`keyed.tables.push_worker` document the protocols.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress

import msgspec

from keyed import errors
from keyed.errors import KeyedError, QueryFailed
from keyed.tables.server.access import ConcurrencyLimit, Limits, Refused

#: Number of processes that a token may use at a time.
_PROCESSES = 2
#: Seconds in which a process has to start, or to release the memory of its last answer.
_READY_SECONDS = 60.0
#: Seconds that a part of the changes of an open stream waits for a process.
_PART_SECONDS = 30.0
#: Bytes of an answer in addition to its rows.
_MARGIN = 64 << 10
TOO_LARGE = "TooLarge"


class _Worker:
    """A process that answers a line with a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout
        self._reading = asyncio.Lock()

    async def send(self, line: bytes) -> None:
        """Write a line."""
        self._input.write(line + b"\n")
        await self._input.drain()

    async def line(self) -> bytes:
        """Return the next line; nothing if the process has ended."""
        async with self._reading:
            return await self._output.readline()

    def has_ended(self) -> bool:
        """Tell whether the process has ended, as far as it is known."""
        return self._process.returncode is not None or self._output.at_eof()

    def kill(self) -> None:
        """Kill the process."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def end(self) -> None:
        """Kill the process, and wait until its pipes are closed: once the loop is closed, they cannot be."""
        self.kill()
        self._input.close()
        async with self._reading:
            await self._output.read()
        await self._process.wait()


class WorkerProcesses:
    """Processes that answer a line with a line, one for each request at a time. Tokens share them.

    Args:
        *program: The module of the program, and its arguments.
        limits: Time and memory of a request, bytes of an answer, and the time that a request waits for a process.
        tokens: Number of tokens; see `keyed.tables.server.access.Slots`.
    """

    def __init__(self, *program: str, limits: Limits, tokens: int) -> None:
        self._program = program
        self._limits = limits
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._is_closed = False
        most = _PROCESSES if tokens <= 1 else _PROCESSES + 1
        self._concurrency = ConcurrencyLimit(most, limits.wait_seconds, 429, "queries", tokens)

    async def answer(self, request: msgspec.Struct, *, is_part: bool = False) -> bytes:
        """Return the answer to a request. Its process is killed when this is cancelled.

        Args:
            request: What the program reads from a line of JSON.
            is_part: True for changes of an open stream, which wait longer, for those of others.

        Raises:
            SqlError: A push query is invalid.
            DefinitionError: It is invalid, or names an unknown table or column.
            QueryFailed: It failed, or exceeded its time or memory limit.
            Refused: All processes are busy, the answer is too large, or the server is stopping.
        """
        async with self._concurrency.acquired(_PART_SECONDS if is_part else None):
            worker = await self._ready()
            is_good = False
            try:
                line = await self._ask(worker, msgspec.json.encode(request))
                if not line:
                    self._check_open()
                    most = self._limits.sql_megabytes
                    raise QueryFailed(f"sql: the query needed more than {most} MB, or its process crashed")
                if not line.startswith(b'{"error":'):
                    is_good = True
                    return line
                failed = json.loads(line)["error"]
                # A query that failed while it ran may have used up the memory of the process.
                is_good = failed["type"] not in (QueryFailed.__name__, TOO_LARGE)
            finally:
                if is_good:
                    self._idle.append(worker)
                else:
                    await self._end(worker)
        kind, message = failed.pop("type"), failed.pop("message")
        if kind == TOO_LARGE:
            raise Refused(413, TOO_LARGE, message)
        error: type[KeyedError] = getattr(errors, kind, QueryFailed)
        raise error(message, **failed)

    async def close(self) -> None:
        """End the processes. Queries that run are refused, and later ones."""
        self._is_closed = True
        for worker in self._workers:
            worker.kill()
        for worker in list(self._workers):
            await self._end(worker)

    async def _end(self, worker: _Worker) -> None:
        await worker.end()
        self._workers.discard(worker)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Refused(503, "Stopping", "the server is stopping")

    async def _ready(self) -> _Worker:
        """Return a process that waits for a request: an idle one, unless it has ended, or a new one."""
        self._check_open()
        while self._idle:
            worker = self._idle.pop()
            if await self._is_ready(worker):
                return worker
        worker = _Worker(await self._start())
        self._workers.add(worker)
        if not await self._is_ready(worker):
            self._check_open()
            raise QueryFailed("sql: the process for queries did not start; the server's log has the reason")
        return worker

    async def _is_ready(self, worker: _Worker) -> bool:
        """Wait until a process is ready, and kill it if it is not; the time does not count for a request."""
        is_ready = False
        try:
            async with asyncio.timeout(_READY_SECONDS):
                # One that has started while the server stops is not among those that `close` has ended.
                is_ready = bool(await worker.line()) and not worker.has_ended() and not self._is_closed
        except TimeoutError:
            pass
        finally:
            if not is_ready:
                await self._end(worker)
        return is_ready

    async def _ask(self, worker: _Worker, request: bytes) -> bytes:
        """Return the answer line of a process; nothing if it has ended."""
        try:
            async with asyncio.timeout(self._limits.sql_seconds):
                await worker.send(request)
                return await worker.line()
        except ConnectionError:
            return b""
        except TimeoutError as error:
            raise QueryFailed(f"sql: the query took longer than {self._limits.sql_seconds:g} s") from error

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *self._program,
            str(self._limits.sql_megabytes),
            str(self._limits.sql_seconds),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=self._limits.answer + _MARGIN,
            # Arrow's own allocator reserves a gigabyte, which would count as memory of the process.
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            # Ctrl-C stops the server, which ends its processes.
            start_new_session=True,
        )
