"""Taking over a key group: ``python -m tests.benchmarks.takeover [ENTRIES [STORE ...]] [--runtime spark]``.

A run of the local runtime writes one key group of so many entries (a million by default) to its log, and its local
store is left behind, as if the machine was lost. Then a process with each store replays the log with the code that
Spark's workers use, in rows of a megabyte. CPU time and peak memory of the process are printed, first for a thousand
entries.

With ``--runtime spark`` a query runs on a standalone cluster, with a worker of one core and 1 GB, and one key group.
When the entries are written, the worker is killed and its folders are deleted, and another one starts, with one row
more to process. Printed are the seconds until that row is committed, including the start of the executor; the CPU time
of the new worker's processes in this time; and their highest memory together, resident without shared pages of files,
once for the executor's JVM and once for the Python processes.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from tests.benchmarks.meter import Meter
from tests.support.spark_cluster import SETTINGS, SparkCluster, Worker
from tests.support.waiting import until

STORES = ("lmdb", "rocksdb", "memory")
BATCH = 100_000
#: Entries that a row writes on Spark, and rows of a batch there.
PER_ROW, SPARK_BATCH = 1_000, 500


class Last(keyed.KeyedProcessFunction):
    """Keeps 100 bytes of each key."""

    last = keyed.ValueState(str)

    def process_element(self, value, ctx):
        self.last.update(f"{value:0100}")
        return ()


class Many(keyed.KeyedProcessFunction):
    """Keeps a thousand entries of 100 bytes for each row, which do not compress to nothing in Spark's state."""

    many = keyed.MapState(int, str)

    def process_element(self, value, ctx):
        first = value.value * PER_ROW
        for number in range(first, first + PER_ROW):
            self.many.put(number, blake2b(b"%d" % number, digest_size=50).hexdigest())
        return ()


def run(folder: Path, rows: int, store: Any) -> int:
    """Write entries up to this number; return it if those of the checkpoint were replayed before, and otherwise 0."""
    stream = keyed.stream(range(rows)).key_by(lambda value: value)
    output = stream.process(Last(), parallelism=1, store=store)
    stores, checkpoint = folder / f"{store}-{rows}", folder / "checkpoint"
    metrics = output.run(rows_per_batch=BATCH, drain=False, checkpoint=checkpoint, local_dir=stores).metrics["Last"]
    return metrics["live_entries"] if metrics["stores_rebuilt"] else 0


def main(entries: int, stores: list[str]) -> None:
    """Measure and print."""
    for count in (1_000, entries):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            subprocess.run([sys.executable, "-m", __spec__.name, "write", name, str(count)], check=True)
            size = sum(file.stat().st_size for file in (folder / "checkpoint").rglob("*") if file.is_file())
            for number, store in enumerate(stores, 1):
                # One more row starts the batch in which the group catches up.
                child = [sys.executable, "-m", __spec__.name, "replay", name, str(count + number), store]
                said = subprocess.run(child, check=True, capture_output=True, text=True).stdout
                print(f"{size >> 20:>6,} MB of log, {store:8} {said.strip()}", flush=True)


def _replay(folder: str, rows: int, store: str) -> None:
    began = time.process_time()
    entries = run(Path(folder), rows, store)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{entries:>12,} entries, {seconds:8.1f} CPU-s, peak {peak:,} MB")


def on_spark(entries: int, stores: list[str]) -> None:
    """Measure on Spark and print."""
    for store in stores:
        with tempfile.TemporaryDirectory() as name, SparkCluster(Path(name) / "machines") as cluster:
            print(f"{store:8} {_taken_over(Path(name), cluster, entries, store)}", flush=True)


def _taken_over(folder: Path, cluster: SparkCluster, entries: int, store: str) -> str:
    """Write the entries, replace the worker, and return what was measured."""
    first, rows = cluster.add_worker(), entries // PER_ROW
    for start in range(0, rows, SPARK_BATCH):
        _write(folder, range(start, min(start + SPARK_BATCH, rows)))
    driver = cluster.program(__spec__.name, "query", str(folder), cluster.url, store)
    driver.wait_for(f"ROWS {rows} ", seconds=3_600)
    before = _state(driver.said())
    first.lose()
    began = time.monotonic()
    second = cluster.add_worker()
    meter = Meter(second.process.pid)
    _write(folder, range(rows, rows + 1))
    java = python = 0

    def is_over() -> bool:
        nonlocal java, python
        java, python = map(max, (java, python), _memory(second))
        return f"ROWS {rows + 1} " in driver.said() or driver.process.poll() is not None

    with meter:
        until(is_over, seconds=3_600)
        seconds, cpu = time.monotonic() - began, meter.read()
    assert driver.process.poll() is None, driver.said()
    after = _state(driver.said())
    checkpoint = sum(file.stat().st_size for file in (folder / "checkpoint").rglob("*") if file.is_file())
    return (
        f"{after[1] - before[1]:>12,} entries, {checkpoint >> 20:,} MB of checkpoint: {seconds:.1f} s, "
        f"{(after[2] - before[2]) / 1e6:.1f} s of them in the key group; {cpu.total:.1f} CPU-s (JVM "
        f"{cpu.jvm + cpu.driver:.1f}, Python {cpu.workers:.1f}); peak {java >> 20:,} MB JVM, {python >> 20:,} MB Python"
    )


def _write(folder: Path, values: range) -> None:
    (folder / "in").mkdir(exist_ok=True)
    hidden = folder / "in" / "_hidden"
    pq.write_table(pa.table({"value": pa.array(values, pa.int64())}), hidden)
    hidden.rename(folder / "in" / f"part-{values.start:012}.parquet")


def _state(said: str) -> list[int]:
    """Return rows, replayed entries and microseconds of the last batch that a query has printed."""
    return [int(number) for number in re.findall(r"ROWS (\d+) (\d+) (\d+)", said)[-1]]


def _memory(worker: Worker) -> tuple[int, int]:
    """Return the memory of an executor's JVM, and of its Python processes, without the pages of mapped files."""
    java = python = 0
    for executor in worker.executors():
        with suppress(psutil.NoSuchProcess):
            info = executor.memory_info()
            java += info.rss - info.shared
            for child in executor.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    info = child.memory_info()
                    python += info.rss - info.shared
    return java, python


def _query(folder: Path, master: str, store: Any) -> None:
    """Run the query on Spark until it is killed."""
    config = SETTINGS | {"spark.executor.memory": "1g", "spark.task.maxFailures": "8"}
    session = keyed.spark_session("takeover", master=master, parallelism=1, config=config, quiet=False)
    source = session.readStream.schema("value bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    output = keyed.stream(source).key_by("value").process(Many(), output="n bigint", store=store)

    def show(progress: keyed.Progress) -> None:
        found = progress.metrics["Many"]
        print("ROWS", found["rows_in"], found["entries_replayed"], found["busy_microseconds"], flush=True)

    sink = folder / "out"
    output.start(
        sink, checkpoint=folder / "checkpoint", trigger="200 milliseconds", on_progress=show
    ).await_termination()


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        run(Path(sys.argv[2]), int(sys.argv[3]), "memory")
    elif sys.argv[1:2] == ["replay"]:
        _replay(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    elif sys.argv[1:2] == ["query"]:
        _query(Path(sys.argv[2]), *sys.argv[3:])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("entries", type=int, nargs="?", default=1_000_000)
        parser.add_argument("stores", nargs="*", default=list(STORES))
        parser.add_argument("--runtime", choices=("local", "spark"), default="local")
        options = parser.parse_args()
        (on_spark if options.runtime == "spark" else main)(options.entries, options.stores)
