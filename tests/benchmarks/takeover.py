"""Taking over a key group: ``python -m tests.benchmarks.takeover [ENTRIES [STORE ...]]``.

A run of the local runtime writes one key group of so many entries (a million by default) to its log, and its local
store is left behind, as if the machine was lost. Then a process with each store replays the log with the code that
Spark's workers use, in rows of a megabyte. CPU time and peak memory of the process are printed, first for a thousand
entries. Spark's workers also need about 20 ms of CPU time per megabyte to read the rows from Spark's state store.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keyed

STORES = ("lmdb", "rocksdb", "memory")
BATCH = 100_000


class Last(keyed.KeyedProcessFunction):
    """Keeps 100 bytes of each key."""

    last = keyed.ValueState(str)

    def process_element(self, value, ctx):
        if value >= 0:
            self.last.update(f"{value:0100}")
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        run(Path(sys.argv[2]), int(sys.argv[3]), "memory")
    elif sys.argv[1:2] == ["replay"]:
        _replay(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000, sys.argv[2:] or list(STORES))
