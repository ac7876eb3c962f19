"""State tables: what following, look-ups, SQL, past states, HTTP and subscriptions cost.

``python -m tests.benchmarks.tables`` writes a changelog of so many keys, and a thousand batches that change some of
them, and measures what asks of it. Times are of the processor, but for those over HTTP, where waiting counts.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import keyed
from keyed.changelog.model import Commit
from keyed.codec.keys import encode_key
from keyed.content.addresses import PLAIN, state_prefix
from keyed.tables import StateTables, open_tables
from keyed.testing import KeyedTestHarness
from tests.support.flink import cpu_seconds

_BLOCK = 10_000
#: Connections over which requests come.
_CONNECTIONS = 50
_NONE = encode_key(None)
_START_MS = 1_700_000_000_000
_Write = Callable[[Sequence[int]], None]


class Count(keyed.KeyedProcessFunction):
    """Declares the state that is written."""

    count = keyed.ValueState(int)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        """Count."""
        self.count.update((self.count.value() or 0) + 1)
        return iter(())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure."""
    options = _parser().parse_args(arguments)
    print("| what | value | unit | goal |")
    print("|---|--:|---|--:|")
    with tempfile.TemporaryDirectory(prefix="keyed-tables-") as folder:
        log = keyed.DirectoryChangelog(f"{folder}/log", auto_compact=False)
        write = _writer(log, options, folder)
        with open_tables(log, f"{folder}/tables") as tables:
            write(range(options.keys))
            _follow(f"follow, a batch of {options.keys:,}", tables)
            random = Random(1)
            for _ in range(options.batches):
                write(random.sample(range(options.keys), options.changes))
            _follow(f"follow, {options.batches:,} batches of {options.changes:,}", tables)
            for name in options.only:
                _MEASUREMENTS[name](tables, options, write)
        _tell("memory of this process at most", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "MB")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tables", description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000, help="keys (100,000)")
    parser.add_argument("--batches", type=int, default=1_000, help="batches after the first (1,000)")
    parser.add_argument("--changes", type=int, default=200, help="keys that each of them changes (200)")
    parser.add_argument("--clients", type=int, default=1_000, help="subscribers over HTTP (1,000)")
    parser.add_argument("--rate", type=int, default=500, help="requests a second over HTTP (500)")
    parser.add_argument("--only", nargs="+", choices=[*_MEASUREMENTS], default=[*_MEASUREMENTS], help="some of it")
    return parser


def _tell(what: str, value: float, unit: str, goal: str = "") -> None:
    print(f"| {what} | {value:,.4g} | {unit} | {goal} |", flush=True)


def _writer(log: keyed.DirectoryChangelog, options: argparse.Namespace, folder: str) -> _Write:
    """Prepare the changelog; gives what writes a batch more, which changes keys."""
    small = keyed.DirectoryChangelog(f"{folder}/small")
    with KeyedTestHarness(Count(), key=lambda value: value, changelog=small) as harness:
        harness.process("a")
    last = small.reader(0).last()
    assert last is not None
    states = last.states
    state_id = int(states["count"]["id"])
    log.prepare("count", 1)
    writer, written = log.writer(0), 0

    def write(numbers: Sequence[int]) -> None:
        nonlocal written
        written += 1
        value = msgspec.msgpack.encode(written)

        def blocks() -> Iterator[Any]:
            for start in range(0, len(numbers), _BLOCK):
                part = numbers[start : start + _BLOCK]
                yield [(state_prefix(PLAIN, state_id, encode_key(f"key{n:09}"), _NONE), b"", value) for n in part]

        commit = Commit(
            log_id="",
            group=0,
            sequence=written,
            attempt=str(written),
            previous=str(written - 1),
            source_log="source",
            snapshot=written == 1,
            entries=options.keys,
            hash="",
            watermark=0,
            processing_time=_START_MS + 1_000 * written,
            states=states,
        )
        writer.append(commit, blocks())

    return write


def _follow(what: str, tables: StateTables) -> None:
    before = time.process_time()
    records = tables.poll()
    _tell(what, records / (time.process_time() - before), "records/s a core", "300,000")


def _keys(options: argparse.Namespace, count: int) -> list[str]:
    random = Random(2)
    return [f"key{random.randrange(options.keys):09}" for _ in range(count)]


def _times(work: Callable[[Any], object], arguments: Sequence[Any], clock: Callable[[], float]) -> list[float]:
    """Milliseconds that each call takes, in order; the first tenth is not counted."""
    found = []
    for argument in arguments:
        before = clock()
        work(argument)
        found.append((clock() - before) * 1000)
    return sorted(found[len(found) // 10 :])


def _percentiles(what: str, times: list[float], goal: str) -> None:
    _tell(f"{what}, p50", times[len(times) // 2], "ms")
    _tell(f"{what}, p99", times[len(times) * 99 // 100], "ms", goal)


def _get(tables: StateTables, options: argparse.Namespace, write: _Write) -> None:
    table = tables["count"]
    _percentiles("get", _times(table.get, _keys(options, 20_000), time.thread_time), "0.05")
    hot = _keys(options, 1_000) * 20
    _percentiles("get of 1,000 hot keys", _times(table.get, hot, time.thread_time), "0.05")


def _get_many(tables: StateTables, options: argparse.Namespace, write: _Write) -> None:
    table, keys = tables["count"], _keys(options, 100_000)
    table.get_many(keys)
    before = time.process_time()
    table.get_many(keys)
    _tell("get_many", len(keys) / (time.process_time() - before), "keys/s", "300,000")
    hot = _keys(options, 1_000) * 100
    before = time.process_time()
    table.get_many(hot)
    _tell("get_many of 1,000 hot keys", len(hot) / (time.process_time() - before), "keys/s", "300,000")


def _as_of(tables: StateTables, options: argparse.Namespace, write: _Write) -> None:
    table = tables["count"]
    keys = _keys(options, 5_000)
    times = _times(lambda key: table.get(key, as_of=0), keys, time.thread_time)
    _percentiles(f"get as of {options.batches:,} batches ago", times, "50")


def _sql(tables: StateTables, options: argparse.Namespace, write: _Write) -> None:
    query = "select value from count where key = ?"
    times = _times(lambda key: tables.sql(query, [key]), _keys(options, 300), time.process_time)
    _percentiles("SQL by key", times, "2")


def _scan(tables: StateTables, options: argparse.Namespace, write: _Write) -> None:
    before = time.process_time()
    size = len(tables["count"])
    _tell("scan", size / (time.process_time() - before), "entries/s")


def _serving(path: str, log: str, ready: Any) -> None:
    """Serve the tables in a process of their own."""
    from keyed.tables.server import serve

    with open_tables(keyed.DirectoryChangelog(log, auto_compact=False), path) as tables:
        tables.poll()
        tables.start(every=0.05)
        serve(tables, port=0, ready=ready.send)


def _served(tables: StateTables) -> tuple[Any, str]:
    """A server over the same changelog, which follows it itself."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    folder = Path(tables.path)
    process = context.Process(
        target=_serving, args=(str(folder) + "-served", str(folder.parent / "log"), send), daemon=True
    )
    process.start()
    return process, receive.recv()


def _http(tables: StateTables, options: argparse.Namespace, write: _Write) -> None:
    process, address = _served(tables)
    host, port = address.removeprefix("http://").split(":")
    keys = _keys(options, options.rate * 6)

    async def ask(number: int, start: float, found: list[float]) -> None:
        # Connections of its own: a client library would take longer than the server.
        reader, writer = await asyncio.open_connection(host, int(port))
        for n in range(number, len(keys), _CONNECTIONS):
            await asyncio.sleep(max(0.0, start + n / options.rate - time.perf_counter()))
            before = time.perf_counter()
            writer.write(f"GET /tables/count/keys/{keys[n]} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
            found.append((time.perf_counter() - before) * 1000)
        writer.close()

    async def work() -> list[float]:
        found: list[float] = []
        start = time.perf_counter() + 1
        await asyncio.gather(*(ask(number, start, found) for number in range(_CONNECTIONS)))
        return sorted(found[options.rate :])

    try:
        before = cpu_seconds(process.pid)
        _percentiles(f"HTTP get at {options.rate} a second", asyncio.run(work()), "5")
        _tell("HTTP get, of the server's processor", (cpu_seconds(process.pid) - before) * 1000 / len(keys), "ms")
    finally:
        process.kill()
        process.join()


def _push(tables: StateTables, options: argparse.Namespace, write: _Write) -> None:
    process, address = _served(tables)
    host, port = address.removeprefix("http://").split(":")

    async def follow(begun: asyncio.Semaphore, times: list[float], started: list[float]) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /tables/count/changes?after=now HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        async for line in reader:
            if line.startswith(b"retry"):
                begun.release()
            if line.startswith(b"data"):
                times.append((time.perf_counter() - started[0]) * 1000)
                break
        writer.close()

    async def push() -> list[float]:
        times: list[float] = []
        started = [0.0]
        begun = asyncio.Semaphore(0)
        tasks = [asyncio.create_task(follow(begun, times, started)) for _ in range(options.clients)]
        for _ in range(options.clients):
            await begun.acquire()
        started[0] = time.perf_counter()
        await asyncio.to_thread(write, range(10))
        await asyncio.gather(*tasks)
        return sorted(times)

    try:
        _percentiles(f"commit to push, {options.clients:,} clients", asyncio.run(push()), "")
    finally:
        process.kill()
        process.join()


_MEASUREMENTS: dict[str, Callable[[StateTables, argparse.Namespace, _Write], None]] = {
    "get": _get,
    "get_many": _get_many,
    "as_of": _as_of,
    "sql": _sql,
    "scan": _scan,
    "http": _http,
    "push": _push,
}

if __name__ == "__main__":
    sys.exit(main())
