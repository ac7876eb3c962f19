"""The memory of a local run on RocksDB whose state does not grow: where it levels off, and what holds it.

``python -m tests.benchmarks.rocks_memory`` runs for 20 minutes, and prints a line every 15 seconds:
the resident memory of the process, and of RocksDB the write buffers and the block cache, in MB.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import keyed
from keyed.stores.database import Database
from keyed.stores.growth import resident_bytes

_MINUTES, _KEYS, _SECONDS = 20, 100_000, 15
_MB = 1 << 20


class Count(keyed.KeyedProcessFunction):
    """Counts the rows of a key, and emits every thousandth."""

    n = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[tuple[int, int]]:
        count = self.n.value() + 1
        self.n.update(count)
        if count % 1000 == 0:
            yield value.k, count


class Meter:
    """Prints what the process holds. It is called with the progress of each batch."""

    def __init__(self, databases: list[Database]) -> None:
        self._databases = databases
        self._began = self._last = time.monotonic()

    def __call__(self, progress: keyed.Progress) -> None:
        now = time.monotonic()
        if now < self._last + _SECONDS:
            return
        self._last = now
        buffers = sum(self._property(each, "rocksdb.cur-size-all-mem-tables") for each in self._databases)
        cache = self._property(self._databases[0], "rocksdb.block-cache-usage")
        print(
            f"{now - self._began:5.0f} s, batch {progress.batch_id}: {resident_bytes() // _MB} MB, of which write "
            f"buffers {buffers // _MB} MB, block cache {cache // _MB} MB",
            flush=True,
        )

    @staticmethod
    def _property(database: Database, name: str) -> int:
        return int(database._rocks.property_int_value(name) or 0)


def main() -> None:
    """Run the job."""
    databases: list[Database] = []
    opened = Database.__init__

    def noted(database: Database, *arguments: Any, **options: Any) -> None:
        opened(database, *arguments, **options)
        databases.append(database)

    Database.__init__ = noted  # type: ignore[assignment, method-assign]
    end = time.monotonic() + _MINUTES * 60

    def rows() -> Iterator[dict[str, int]]:
        number = 0
        while time.monotonic() < end:
            yield {"k": number * 7919 % _KEYS, "t": number}
            number += 1

    counts = keyed.stream(rows(), timestamp="t").key_by("k")
    output = counts.process(Count(), "k bigint, n bigint", store="rocksdb", parallelism=8)
    with tempfile.TemporaryDirectory() as checkpoint:
        output.run(
            lambda batch, number: None,
            checkpoint=checkpoint,
            rows_per_batch=20_000,
            on_progress=Meter(databases),
        )


if __name__ == "__main__":
    main()
