"""Runs a job for long, kills it again and again, and prints what it leaves: ``python -m tests.benchmarks.soak``.

The job counts per key, with timers, a changelog, a Parquet sink and local stores on disk. It runs as a program of its
own, which is killed at a moment that chance chooses, and started again on its checkpoint. Before each kill its memory
and open files are read; after it the files of each folder are counted, those in the temporary folder, and those of the
checkpoint's own folders. At the end the rows that were written are checked: each is to be there once.

Spark keeps 100 batches, and clears the files of older ones away once a minute, which is longer than a life here. So
that it can be seen whether files stay few, it is told to keep ten and to clear away every two seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import keyed
from keyed import DirectoryChangelog, KeyedProcessFunction, ValueState
from keyed.recovery import verify_changelog
from tests.support.waiting import until

KEYS = 1000
ROWS_A_BATCH = 2000
SPARK = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "10s",
}


class Count(KeyedProcessFunction):
    """Counts per key, and moves a timer at each row."""

    n = ValueState(int, default=0)

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        """Emit each hundredth count of a key."""
        self.n.update(self.n.value() + 1)
        ctx.timer_service().set_timer("later", ctx.timestamp() + 1000)
        if self.n.value() % 100 == 0:
            yield value.k, self.n.value()

    def on_timer(self, timestamp: int, ctx: Any) -> tuple[()]:
        """Do nothing."""
        return ()


class Numbers:
    """Rows on and on."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, int]]:
        while True:
            number = self.at
            self.at += 1
            yield {"k": number % KEYS, "ts": number}

    def position(self) -> int:
        """See `keyed.SeekableSource`."""
        return self.at

    def seek(self, position: int) -> None:
        """See `keyed.SeekableSource`."""
        self.at = position


def job(folder: Path, runtime: str) -> None:
    """Run until it is killed."""
    changelog = DirectoryChangelog(folder / "changelog", compaction_lag=0, history_bytes=1 << 20)
    source: Any = Numbers()
    options: dict[str, Any] = {"rows_per_batch": ROWS_A_BATCH}
    if runtime == "spark":
        session = keyed.spark_session("soak", master="local[2]", parallelism=2, config=SPARK)
        rate = session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_A_BATCH)
        source = rate.load().selectExpr(f"value % {KEYS} AS k", "value AS ts")
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
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        job(arguments.job, arguments.runtime)
        return
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        chance, end = random.Random(1), time.monotonic() + arguments.minutes * 60
        say("   sink  memory MB  descriptors  files: changelog  checkpoint  stores  temporary")
        while time.monotonic() < end:
            live(folder, arguments.runtime, arguments.life * chance.uniform(0.5, 1.5))
        check(folder)


def live(folder: Path, runtime: str, seconds: float) -> None:
    """Let the job live for some seconds, kill it, and say what there is."""
    command = [sys.executable, "-m", "tests.benchmarks.soak", "--runtime", runtime, "--job", str(folder)]
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
    """How many files a folder has, with those in it."""
    return sum(len(found) for _, _, found in os.walk(folder))


def written(folder: Path) -> int:
    """How many files the sink has."""
    return len(list((folder / "out").glob("part-*")))


def check(folder: Path) -> None:
    """Check the rows that were written, and the changelog."""
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "out").to_pydict()
    pairs = sorted(zip(table["k"], table["n"], strict=True))
    assert len(set(pairs)) == len(pairs), "a row is there twice"
    for key in {key for key, _ in pairs}:
        counts = [n for k, n in pairs if k == key]
        assert counts == list(range(100, counts[-1] + 1, 100)), f"key {key} lacks a row"
    problems = [group.problem for group in verify_changelog(DirectoryChangelog(folder / "changelog")) if group.problem]
    assert not problems, problems
    say(f"{len(pairs)} rows, each once; the changelog is sound")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
