"""The cost of a directory changelog in the local runtime: ``python -m tests.benchmarks.recovery``, some minutes.

J1 and J2 over a million rows of 100,000 keys, in batches of 200,000, with and without a changelog; then J1's changelog
is restored at several parallelisms and verified. CPU time is that of this process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.recovery import verify
from tests.benchmarks.functions import J1, J2, OUTPUT

ROWS, KEYS, ROWS_PER_BATCH, ROUNDS = 1_000_000, 100_000, 200_000, 3


def main() -> None:
    """Measure and print."""
    numbers = np.arange(ROWS)
    users = pa.array([f"user-{number % KEYS}" for number in range(ROWS)])
    table = pa.table({"user_id": users, "amount": pa.array(numbers % 100), "ts": pa.array(numbers // 10)})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for function in (J1(), J2()):
            job = type(function).__name__
            plain, exported = [], []
            for number in range(ROUNDS):
                plain.append(_cpu(_run, function, table))
                log = DirectoryChangelog(folder / f"{job}-{number}")
                exported.append(_cpu(_run, function, table, changelog=log))
            before, after = min(plain), min(exported)
            _print(f"{job}, CPU-s per million rows", f"{before:.2f}")
            _print(f"{job} with a changelog", f"{after:.2f} (+{100 * (after / before - 1):.0f} %)")
        log = DirectoryChangelog(folder / "J1-0")
        records = sum(commit.records for group in (0, 1) for commit, _ in log.reader(group).commits())
        size = sum(file.stat().st_size for file in (folder / "J1-0").rglob("*.segment"))
        _print("bytes per changed entry", f"{size / records:.1f}")
        for store in ("memory", "rocksdb"):
            for parallelism in (2, 1, 4, 3):
                checkpoint = folder / f"restored-{store}-{parallelism}"
                # The run reads no row: the source ends where the changelog does.
                seconds = _cpu(
                    _run, J1(), table, checkpoint=checkpoint, parallelism=parallelism, restore_from=log, store=store
                )
                _print(f"restore 2 -> {parallelism}, {store}, records/s of CPU", f"{records / seconds:,.0f}")
        _print("verify, records/s of CPU", f"{records / _cpu(verify, log):,.0f}")


def _run(
    function: Any, table: pa.Table, *, checkpoint: Path | None = None, parallelism: int = 2, **options: Any
) -> None:
    stream = keyed.stream(table, timestamp="ts").key_by("user_id")
    output = stream.process(function, OUTPUT, parallelism=parallelism, **options)
    output.run(lambda values, batch: None, rows_per_batch=ROWS_PER_BATCH, drain=False, checkpoint=checkpoint)


def _cpu(work: Callable[..., object], *arguments: Any, **options: Any) -> float:
    started = time.process_time()
    work(*arguments, **options)
    return time.process_time() - started


def _print(name: str, value: str) -> None:
    print(f"{name:45} {value}")


if __name__ == "__main__":
    main()
