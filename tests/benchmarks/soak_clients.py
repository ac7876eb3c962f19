"""Clients of a server of state tables, good and bad: what `tests.benchmarks.soak` runs beside a job.

Of a hundred clients 5 follow all changes, 35 follow one key, 15 ask for entries and ranges, 5 run SQL, 20 are slow
(they open a stream of changes and hardly read) and 20 drop (they ask for something and close the connection in the
middle of the answer). The followers check what they get: the counts of a key never fall, a token resumes behind the
change that it names, and at the end what they folded equals the table.

A line on standard input is answered with one on standard output: how many rows each follower of all changes is behind
the table. The end of the input ends the clients, once the followers are level or have stopped to get nearer.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

#: Seconds that a client waits for the next bytes; streams send a comment after 15 seconds of silence.
PATIENCE = 60.0
#: How often, five seconds apart, a server that is busy is asked again, and followers may be seen without progress.
_LOOKS = 36
_T = TypeVar("_T")
_SHARES = (("follow", 5), ("follow_key", 35), ("ask", 15), ("sql", 5), ("slow", 20), ("drop", 20))


class Clients:
    """Clients of one server, and what they counted.

    Args:
        host: Address of the server.
        port: Its port.
        table: The table: counts by integer key.
        keys: How many keys the table has.
        number: How many clients.

    Attributes:
        counts: What happened, by name.
        problems: What must not happen, the first hundred.
    """

    def __init__(self, host: str, port: int, table: str, keys: int, number: int) -> None:
        self._at = host, port
        self._table = table
        self._keys = keys
        self._number = number
        self._ending = asyncio.Event()
        self._chance = random.Random(7)
        self._views: list[dict[int, int]] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    async def run(self) -> None:
        """Run all clients until `end` is called, then compare what the followers have with the table."""
        kinds = [kind for kind, share in _SHARES for _ in range(max(1, share * self._number // 100))]
        tasks = [asyncio.create_task(self._go_on(kind)) for kind in kinds]
        await self._ending.wait()
        # The job has ended: a follower that differs from the table and gets no changes misses something for good.
        looks, seen = 0, -1
        while looks < _LOOKS and any(await self.lags()):
            looks, seen = (looks + 1 if seen == self.counts["follow"] else 0), self.counts["follow"]
            await asyncio.sleep(5)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                self._problem(f"a client ended: {ended!r}")
        table = await self._entries()
        for view in self._views:
            if view and view != table:
                wrong = sorted(key for key in view.keys() | table.keys() if view.get(key) != table.get(key))
                self._problem(f"a follower differs from the table at {len(wrong)} keys, the first is {wrong[0]}")
        self.counts["followers compared"] = sum(map(bool, self._views))

    async def lags(self) -> list[int]:
        """Return how many rows each follower of all changes is behind the table, whose values are counts of rows."""
        newest = sum((await self._entries()).values())
        return [max(0, newest - sum(view.values())) for view in self._views]

    def end(self) -> None:
        """End all clients."""
        self._ending.set()

    async def _go_on(self, kind: str) -> None:
        client = getattr(self, f"_{kind}")()
        async for _ in client:
            self.counts[kind] += 1

    async def _follow(self) -> AsyncIterator[None]:
        view: dict[int, int] = {}
        self._views.append(view)
        async for _ in self._stream(view, ""):
            yield

    async def _follow_key(self) -> AsyncIterator[None]:
        async for _ in self._stream({}, f"?key={self._chance.randrange(self._keys)}"):
            yield

    async def _stream(self, view: dict[int, int], query: str) -> AsyncIterator[None]:
        token = ""
        while True:
            self.counts["streams"] += 1
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                reader, writer = await self._send(f"/tables/{self._table}/changes{query}", f"Last-Event-ID: {token}")
                try:
                    async for name, kind, data in _events(reader):
                        if kind == "error":
                            self.counts[f"error event: {data['type']}"] += 1
                            break
                        key, value = data["key"], data["new"]
                        if kind == "change" and value is not None and value < view.get(key, 0):
                            self._problem(f"key {key} fell from {view[key]} to {value}")
                        view[key] = value
                        token = name
                        yield
                    self.counts["streams that ended"] += 1
                finally:
                    writer.close()
            await asyncio.sleep(self._chance.random())

    async def _ask(self) -> AsyncIterator[None]:
        while True:
            key = self._chance.randrange(self._keys)
            path = self._chance.choice([f"/keys/{key}", f"?from={key}&limit=100", f"/history/{key}"])
            await self._answer(f"/tables/{self._table}{path}")
            yield
            await asyncio.sleep(self._chance.random())

    async def _sql(self) -> AsyncIterator[None]:
        query = f"select count(*) c, sum(value) s from {self._table}"
        while True:
            await self._answer("/sql", body=json.dumps({"query": query}))
            yield
            await asyncio.sleep(5 + 5 * self._chance.random())

    async def _slow(self) -> AsyncIterator[None]:
        while True:
            with suppress(OSError, TimeoutError):
                reader, writer = await self._send(f"/tables/{self._table}/changes", buffer=4096)
                try:
                    for _ in range(self._chance.randrange(1, 120)):
                        if not await _within(PATIENCE, reader.read(64)):
                            break
                        await asyncio.sleep(1)
                finally:
                    writer.transport.abort()
            yield
            await asyncio.sleep(1)

    async def _drop(self) -> AsyncIterator[None]:
        paths = ["/changes", "?limit=1000", "/keys/1", "/history/1"]
        while True:
            with suppress(OSError, TimeoutError):
                path = f"/tables/{self._table}{self._chance.choice(paths)}"
                reader, writer = await self._send(path)
                with suppress(TimeoutError):
                    await _within(1, reader.read(self._chance.choice([1, 100, 10_000])))
                # A reset, as a client that is killed leaves.
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            yield
            await asyncio.sleep(self._chance.random())

    async def _answer(self, path: str, body: str | None = None) -> object:
        """Return the answer to a request; statuses other than 200 are counted."""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            reader, writer = await self._send(path, body=body)
            try:
                text = await _within(PATIENCE, reader.read())
            finally:
                writer.close()
            head, _, content = text.partition(b"\r\n\r\n")
            status = head.split()[1].decode() if head else "none"
            what = f"status {status}"
            if status not in ("200", "none"):
                what += f" {path.partition('?')[0].rstrip('0123456789')} {json.loads(content)['error']['type']}"
            self.counts[what] += 1
            if status.startswith("5") and status != "503":
                self._problem(f"{path}: {content[:300]!r}")
            return json.loads(content) if status == "200" else None
        self.counts["no answer"] += 1
        return None

    async def _entries(self) -> dict[int, int]:
        found: dict[int, int] = {}
        after = ""
        while True:
            for _ in range(_LOOKS):
                answer = await self._answer(f"/tables/{self._table}?limit=1000{after}")
                if isinstance(answer, dict):
                    break
                # It is busy, and says so (429, 503): asked again like any client does.
                await asyncio.sleep(5)
            else:
                raise AssertionError("the server does not answer")
            found |= {entry["key"]: entry["value"] for entry in answer["entries"]}
            if not answer["next"]:
                return found
            after = f"&after={quote(answer['next'])}"

    async def _send(
        self, path: str, *headers: str, body: str | None = None, buffer: int = 1 << 16
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = socket.socket()
        made.setblocking(False)
        if buffer < 1 << 16:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        try:
            await _within(PATIENCE, asyncio.get_running_loop().sock_connect(made, self._at))
        except BaseException:
            made.close()
            raise
        reader, writer = await asyncio.open_connection(sock=made, limit=max(buffer, 1 << 12) * 16)
        content = (body or "").encode()
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            f"Host: {self._at[0]}",
            "Connection: close",
            *(line for line in headers if not line.endswith(": ")),
            *([f"Content-Length: {len(content)}"] if content else ()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        return reader, writer

    def _problem(self, text: str) -> None:
        self.counts["problems"] += 1
        if len(self.problems) < 100:
            self.problems.append(text)


async def _within(seconds: float, waiting: Awaitable[_T]) -> _T:
    """Wait for something; `asyncio.wait_for` of Python 3.11 may lose a cancellation."""
    async with asyncio.timeout(seconds):
        return await waiting


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """Read server-sent events: id, event and data of each."""
    status = (await _within(PATIENCE, reader.readline())).split()
    if status[1:2] != [b"200"]:
        # It is busy, and says so: the client comes again.
        raise ConnectionRefusedError
    while (await _within(PATIENCE, reader.readline())).strip():
        pass  # the headers
    text = b""
    async for chunk in _chunks(reader):
        *events, text = (text + chunk).split(b"\n\n")
        for event in events:
            fields = dict(line.decode().partition(": ")[::2] for line in event.split(b"\n"))
            if "data" in fields:
                yield fields.get("id", ""), fields["event"], json.loads(fields["data"])


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Read a body in the chunks of HTTP/1.1, which may end in the middle of an event."""
    while size := int(await _within(PATIENCE, reader.readline()) or b"0", 16):
        yield (await _within(PATIENCE, reader.readexactly(size + 2)))[:-2]


async def _main(host: str, port: int, table: str, keys: int, number: int) -> int:
    clients = Clients(host, port, table, keys, number)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    async def answer() -> None:
        while await lines.readline():
            print(json.dumps(await clients.lags()), flush=True)
        clients.end()

    answering = asyncio.create_task(answer())
    await clients.run()
    await answering
    print(json.dumps({"counts": clients.counts, "problems": clients.problems}))
    return 1 if clients.problems else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))))
