"""Large table states in this process: what batches on them cost, what a rebuild from the log costs, and memory.

``python -m tests.benchmarks.table_states`` loads a table (open windows of so many keys), merges batches of random keys
into it, and builds the local store anew from the log. Memory is that of this process, with its log, which is in memory
too.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import keyed
from keyed.engine.batch import Batch
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.job.functions import OperatorSpec
from keyed.stores import MemoryStore, open_rocks_store
from keyed.stores.commit_store import MemoryCommitStore

_LOAD = 1_000_000
_START = 1_700_000_000_000


class Open(keyed.vectorized.VectorizedFunction):
    """Counts and sums of windows; looks for those that end, of which there are none."""

    windows = keyed.vectorized.TableState("user bigint, start bigint, n bigint, total bigint", key=("user", "start"))

    def process_batch(self, table: Any, ctx: keyed.vectorized.BatchContext) -> None:
        """Merge the rows."""
        self.windows.merge(table, {"n": "sum", "total": "sum"})

    def on_watermark(self, watermark: int, ctx: keyed.vectorized.BatchContext) -> None:
        """Take what has ended."""
        ctx.emit(self.windows.take(("start", "<", _START)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one size and store."""
    options = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="keyed-tables-"))
    try:
        _measure(options, folder)
    finally:
        shutil.rmtree(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.table_states", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--batch", type=int, default=100_000, help="rows a batch, of random keys of the table")
    parser.add_argument("--batches", type=int, default=4, help="batches")
    parser.add_argument("--store", choices=("memory", "rocksdb"), default="memory")
    return parser


def _measure(options: argparse.Namespace, folder: Path) -> None:
    spec = OperatorSpec("open", Open(), True, 0, "arrival", 1, keys=("user",))
    commits = MemoryCommitStore()
    random = np.random.default_rng(1)

    def open_group() -> tuple[KeyGroup, Any]:
        store: Any = MemoryStore() if options.store == "memory" else open_rocks_store(folder)
        return KeyGroup(spec, 0, commits.group_log("open", 0), Replica(store)), store

    def run(users: Any) -> dict[str, int]:
        size = len(users)
        columns = [users, np.full(size, _START), np.ones(size, "int64"), random.integers(1, 100, size)]
        rows = pa.table(columns, names=["user", "start", "n", "total"])
        metrics = group.run(Batch(table=lambda: rows)).metrics
        commits.commit()
        return metrics

    print("| step | rows | CPU-seconds | rows of the table | MB of log | MB of memory |")
    print("|---|--:|--:|--:|--:|--:|")
    group, store = open_group()
    for start in range(0, options.rows, _LOAD):
        end = min(start + _LOAD, options.rows)
        _step("load", end - start, lambda start=start, end=end: run(np.arange(start, end)))  # type: ignore[misc]
    for _ in range(options.batches):
        _step("update", options.batch, lambda: run(random.integers(0, options.rows, options.batch)))
    group.close()
    store.reset()
    _step("rebuild", options.rows, lambda: _rebuilt(group))
    store.close()


def _rebuilt(group: KeyGroup) -> dict[str, int]:
    meta, _ = group.committed()
    assert meta is not None
    return meta.counters


def _step(name: str, rows: int, work: Callable[[], dict[str, int]]) -> None:
    """Do something and print what it cost."""
    before = time.process_time()
    metrics = work()
    cpu = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    log = metrics["log_bytes"] / 1e6
    print(f"| {name} | {rows:,} | {cpu:.2f} | {metrics['live_entries']:,} | {log:.1f} | {peak} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
