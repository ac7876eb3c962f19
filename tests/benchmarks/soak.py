"""Runs a job for long, kills it again and again, and prints what it leaves: ``python -m tests.benchmarks.soak``.

The job counts per key, with timers, a changelog, a Parquet sink and local stores on disk. It runs as a program of its
own, which is killed at a moment that chance chooses, and started again on its checkpoint. Before each kill its memory
and open files are read; after it the files of each folder are counted, those in the temporary folder, and those of the
checkpoint's own folders. At the end the rows that were written are checked: each is to be there once.

With ``--clients`` a server, a standby and the clients of `tests.benchmarks.soak_clients` run beside it, and the memory
of each process is printed for each quarter of the time. A cache that fills for an hour looks like a leak, so the block
cache and the write buffers of RocksDB are so small in these processes that they are full after some minutes
(``--buffers``). ``--rate`` is to be one that the followers of all changes keep up with: a batch is five events a key.

Spark keeps 100 batches, and clears the files of older ones away once a minute, which is longer than a life here. So
that it can be seen whether files stay few, it is told to keep ten and to clear away every two seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import psutil

import keyed
from keyed import DirectoryChangelog, KeyedProcessFunction, ValueState
from keyed.recovery import verify
from tests.support.waiting import until

KEYS = 1000
ROWS_A_BATCH = 2000
#: Bytes of a key group's history: so few that it has its full length after some minutes.
HISTORY_BYTES = 1 << 20
SPARK = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "10s",
}


class Count(KeyedProcessFunction):
    """Counts per key, and moves a timer at each row. Each key has its own counts to emit, so that each batch writes."""

    n = ValueState(int, default=0)

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        """Emit each hundredth count of a key."""
        self.n.update(self.n.value() + 1)
        ctx.timer_service().set_timer("later", ctx.timestamp() + 1000)
        if (self.n.value() + value.k) % 100 == 0:
            yield value.k, self.n.value()

    def on_timer(self, timestamp: int, ctx: Any) -> tuple[()]:
        """Do nothing."""
        return ()


class Numbers:
    """Rows on and on.

    Args:
        rate: Rows a second at most; 0 is as many as the job takes.
    """

    def __init__(self, rate: int) -> None:
        self.at = 0
        self._rate = rate

    def __iter__(self) -> Iterator[dict[str, int]]:
        first, begin = self.at, time.monotonic()
        while True:
            if self._rate and self.at % ROWS_A_BATCH == 0:
                time.sleep(max(0.0, begin + (self.at - first) / self._rate - time.monotonic()))
            number = self.at
            self.at += 1
            yield {"k": number % KEYS, "ts": number}

    def position(self) -> int:
        """See `keyed.SeekableSource`."""
        return self.at

    def seek(self, position: int) -> None:
        """See `keyed.SeekableSource`."""
        self.at = position


def job(folder: Path, runtime: str, rate: int) -> None:
    """Run until it is killed."""
    # Readers that wait for nothing need no more; those beside the job need a minute, in which it may be down.
    changelog = DirectoryChangelog(
        folder / "changelog", compaction_lag=60_000 if rate else 0, history_bytes=HISTORY_BYTES
    )
    source: Any = Numbers(rate)
    options: dict[str, Any] = {"rows_per_batch": ROWS_A_BATCH}
    if runtime == "spark":
        session = keyed.spark_session("soak", master="local[2]", parallelism=2, config=SPARK)
        batches = session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_A_BATCH)
        source = batches.load().selectExpr(f"value % {KEYS} AS k", "value AS ts")
        options = {"trigger": "200 milliseconds"}
    counts = keyed.stream(source, timestamp="ts").key_by("k")
    output = counts.process(Count(), "k bigint, n bigint", store="rocksdb", changelog=changelog)
    query = output.start(folder / "out", checkpoint=folder / "checkpoint", local_dir=folder / "stores", **options)
    query.await_termination()


def main() -> None:
    """Run the job, kill it, and print a line for each of its lives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=["local", "spark"], default="local")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--life", type=float, default=20, help="seconds that a life lasts on average")
    parser.add_argument("--clients", type=int, default=0, help="clients of a server beside the job")
    parser.add_argument(
        "--rate", type=int, default=0, help="rows a second at most, on the local runtime (as many as it can)"
    )
    parser.add_argument("--buffers", type=int, default=8, help="MB of the cache and of a write buffer beside the job")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        job(arguments.job, arguments.runtime, arguments.rate)
        return
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        chance, end = random.Random(1), time.monotonic() + arguments.minutes * 60
        say("   sink  memory MB  descriptors  files: changelog  checkpoint  stores  temporary")
        with ExitStack() as stack:
            beside: Beside | None = None
            while time.monotonic() < end:
                live(folder, arguments, arguments.life * chance.uniform(0.5, 1.5))
                if beside is None and arguments.clients:
                    beside = stack.enter_context(Beside(folder, arguments.clients, arguments.buffers))
                elif beside is not None:
                    beside.look()
            if beside is not None:
                beside.end()
        check(folder)


class Beside:
    """A server, its clients and a standby, which live as long as the soak.

    Args:
        folder: The soak's folder.
        clients: How many clients.
        buffers: Megabytes of RocksDB's block cache, and of each write buffer, in each process.
    """

    def __init__(self, folder: Path, clients: int, buffers: int) -> None:
        self._folder = folder
        #: Memory, threads, descriptors and files, by process, at each look.
        self._seen: dict[str, list[tuple[int, int, int, int]]] = {}
        self._lags: list[list[int]] = []
        command = [sys.executable, "-m", "keyed.cli"]
        log = str(folder / "changelog")
        served, copied = str(folder / "served"), str(folder / "standby")
        environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": self._with_buffers(buffers)}
        self._errors = (folder / "beside.log").open("ab")
        self._processes = {
            "server": subprocess.Popen(
                [*command, "serve", log, "--tables", served, "--port", "0"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            ),
            "standby": subprocess.Popen(
                [*command, "standby", log, copied], env=environment, stdout=self._errors, stderr=self._errors
            ),
        }
        answers = self._processes["server"].stdout
        assert answers is not None
        port = answers.readline().decode().strip().removesuffix("/tables").rpartition(":")[2]
        parts = [sys.executable, "-m", "tests.benchmarks.soak_clients", "127.0.0.1", port, "n", str(KEYS), str(clients)]
        self._clients = subprocess.Popen(parts, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)

    def _with_buffers(self, megabytes: int) -> str:
        """Return a ``PYTHONPATH`` with which each process, also those that the server starts, has small buffers."""
        small = f"database.CACHE_BYTES = database.WRITE_BUFFER_BYTES = {megabytes << 20}"
        (self._folder / "python").mkdir()
        (self._folder / "python" / "sitecustomize.py").write_text(f"from keyed.stores import database\n\n{small}\n")
        here = Path(__file__).resolve().parents[2]
        return os.pathsep.join([str(self._folder / "python"), str(here), os.environ.get("PYTHONPATH", "")])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._processes.values(), self._clients):
            process.terminate()
            process.wait()
        self._errors.close()

    def look(self) -> None:
        """Print memory, threads, descriptors and files of the server, its processes for SQL and the standby."""
        line = []
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise SystemExit(f"the {name} has ended: {self._log()}")
            files = count(self._folder / ("served" if name == "server" else "standby"))
            line.append(self._measured(name, [psutil.Process(process.pid)], files))
            children = psutil.Process(process.pid).children(recursive=True)
            if name == "server":
                line.append(self._measured(f"its {len(children)} for SQL", children, 0, "SQL"))
        self._lags.append(self._asked_for_lags())
        say("        " + "; ".join(line) + f"; followers of all changes are {self._lags[-1]} rows behind")

    def _measured(self, shown: str, processes: list[psutil.Process], files: int, name: str = "") -> str:
        memory = threads = descriptors = 0
        for each in processes:
            with suppress(psutil.Error):
                # What the process has for itself: libraries that several have are not counted for each.
                memory += each.memory_full_info().uss >> 20
                threads += each.num_threads()
                descriptors += each.num_fds()
        self._seen.setdefault(name or shown, []).append((memory, threads, descriptors, files))
        return f"{shown}: {memory} MB, {threads} threads, {descriptors} descriptors, {files} files"

    def _asked_for_lags(self) -> list[int]:
        """Ask the clients how many rows each follower of all changes is behind the table."""
        assert self._clients.stdin is not None
        assert self._clients.stdout is not None
        try:
            self._clients.stdin.write(b"\n")
            self._clients.stdin.flush()
            lags: list[int] = json.loads(self._clients.stdout.readline())
        except (OSError, ValueError) as error:
            raise SystemExit(f"the clients have ended: {self._log()}") from error
        return lags

    def end(self) -> None:
        """End the clients, and print what they saw and the medians of each quarter."""
        # Without a limit: they end when the followers are level with the table, or do not get nearer to it.
        out, _ = self._clients.communicate(b"")
        if not out:
            raise SystemExit(f"the clients have ended: {self._log()}")
        found = json.loads(out)
        say(f"clients: {found['counts']}")
        for problem in found["problems"]:
            say(f"problem: {problem}")
        for name, seen in self._seen.items():
            for what, values in zip(("MB", "threads", "descriptors", "files"), zip(*seen, strict=True), strict=True):
                say(f"{name}: {what} by quarter: {', '.join(quarters(values))}")
        say(f"rows that the last follower was behind, by quarter: {', '.join(quarters([max(x) for x in self._lags]))}")
        said = (self._folder / "beside.log").stat().st_size
        say(f"the server, the standby and the clients logged {said} bytes: {self._log()}")
        assert not found["problems"], "see above"

    def _log(self) -> str:
        self._errors.flush()
        return (self._folder / "beside.log").read_text()[-2000:]


def quarters(values: Sequence[int]) -> list[str]:
    """Return the median of each quarter of the values, as text."""
    ends = [len(values) * quarter // 4 for quarter in range(5)]
    parts = [values[first:end] for first, end in itertools.pairwise(ends)]
    return [f"{statistics.median(part):g}" for part in parts if part]


def live(folder: Path, arguments: argparse.Namespace, seconds: float) -> None:
    """Let the job live for some seconds, kill it, and say what there is."""
    command = [sys.executable, "-m", "tests.benchmarks.soak", "--runtime", arguments.runtime]
    command += ["--rate", str(arguments.rate), "--job", str(folder)]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    before, memory, descriptors = written(folder), 0, 0
    try:
        # Spark takes long to start, and a life that does nothing shows nothing.
        until(lambda: written(folder) > before or process.poll() is not None, seconds=300)
        time.sleep(seconds)
        for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            # Workers come and go.
            with suppress(psutil.Error):
                memory += each.memory_info().rss >> 20
                descriptors += each.num_fds()
        if process.poll() is not None:
            raise SystemExit(f"the job has ended: {(folder / 'log').read_text()[-3000:]}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    files = [count(folder / name) for name in ("changelog", "checkpoint", "stores", "tmp")]
    parts = ", ".join(
        f"{part.name} {count(part)}" for part in sorted((folder / "checkpoint").iterdir()) if part.is_dir()
    )
    counted = f"{written(folder):7} {memory:10} {descriptors:12} {files[0]:17} {files[1]:11} {files[2]:7} {files[3]:10}"
    say(f"{counted}  {parts}")


def count(folder: Path) -> int:
    """Return the number of files in a folder, with its subfolders."""
    return sum(len(found) for _, _, found in os.walk(folder))


def written(folder: Path) -> int:
    """Return the number of files of the sink."""
    return len(list((folder / "out").glob("part-*")))


def check(folder: Path) -> None:
    """Check the rows that were written, and the changelog."""
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "out").to_pydict()
    pairs = sorted(zip(table["k"], table["n"], strict=True))
    assert len(set(pairs)) == len(pairs), "a row is there twice"
    for key in {key for key, _ in pairs}:
        counts = [n for k, n in pairs if k == key]
        assert counts == list(range(100 - key % 100, counts[-1] + 1, 100)), f"key {key} lacks a row"
    problems = [group.problem for group in verify(DirectoryChangelog(folder / "changelog")) if group.problem]
    assert not problems, problems
    say(f"{len(pairs)} rows, each once; the changelog is sound")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
