"""Simulations of the library itself: ``python -m tests.keyed.testing.simulations``, or ``make simulate``.

With ``--planted`` each of some bugs, planted in the engine, the stores and the changelogs, has to be found within as
many seeds: so it is known that the simulator sees.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import attrs

from keyed.changelog.directory import directory_changelog, disk
from keyed.content.addresses import TIMER_PROCESSING
from keyed.content.delta import Delta
from keyed.engine import changes, key_group, replica
from keyed.kafka import client as kafka_client
from keyed.stores import commit_store, memory_store, rocks_store
from keyed.testing import memory_changelog
from tests.keyed.testing import exercise
from tests.support.simulator.simulation import Simulation, SimulationFailed


@contextlib.contextmanager
def instead(place: Any, name: str, wrap: Callable[..., Any]) -> Iterator[None]:
    """Put a function in place of another one, which it gets first."""
    real = getattr(place, name)
    with patch.object(place, name, lambda *arguments, **options: wrap(real, *arguments, **options)):
        yield


def trusting(real: Any, self: Any, log: Any, meta: Any, where: str) -> Any:
    if self._pending is not None and meta is not None:
        self._pending = attrs.evolve(self._pending, attempt=meta.attempt)
    return real(self, log, meta, where)


def forgetful_cleaning(real: Any, *arguments: Any) -> Any:
    real(*arguments)
    return Delta()


def any_attempt(real: Any, self: Any, meta: Any) -> Any:
    if self._committed is not None:
        self._committed = attrs.evolve(self._committed, attempt=meta.attempt)
    return real(self, meta)


def timers_stay(real: Any, self: Any, prefix: bytes, sub: bytes, value: Any) -> None:
    if prefix[0] >= TIMER_PROCESSING and value is None:
        return
    real(self, prefix, sub, value)


def without_timers(real: Any, *arguments: Any) -> Any:
    for delta in real(*arguments):
        yield attrs.evolve(delta, entries=[entry for entry in delta.entries if entry[0][0] < TIMER_PROCESSING])


def entry_by_entry(real: Any, self: Any, log_id: str, row: int, all_changes: Any, tables: Any = ()) -> None:
    for change in all_changes:
        real(self, log_id, row, [change])
    real(self, log_id, row, [], tables)


def half_rolled_back(real: Any, self: Any) -> None:
    records = getattr(self, "records", {})
    real(self)
    self.records = {key: value for key, value in records.items() if key.startswith(b"M")}


def position_first(real: Any, self: Any, batch: Any, log_id: str, row: int, floors: Any) -> None:
    if row % 5 == 0:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
    real(self, batch, log_id, row, floors)


def unsynced(real: Any, *arguments: Any) -> None:
    with patch.object(os, "fsync"):
        real(*arguments)


def half_written(real: Any, file: int, data: bytes) -> None:
    os.write(file, data)


def names_unsynced(real: Any, path: Any) -> None:
    """Leave it to the disk when names become durable."""


def lost_silently(real: Any, self: Any, error: Any, message: Any) -> None:
    if error is None:
        real(self, error, message)


def uncommitted(real: Any, self: Any, isolation: str = "") -> Any:
    del isolation
    return real(self, "read_uncommitted")


def without_tables(real: Any, *arguments: Any) -> Any:
    for delta in real(*arguments):
        yield attrs.evolve(delta, tables=[])


def sides_forgotten(real: Any, strategies: Any, channels: Any, *arguments: Any) -> Any:
    return real(strategies, (), *arguments)


def dropped_first(real: Any, log: Any, meta: Any, *arguments: Any) -> Any:
    first, still_live = meta.first_row, real(log, meta, *arguments)
    if meta.first_row > first and still_live.tables:
        arguments[0].table(still_live.tables[0].state_id)
    return still_live


def torn_stays(real: Any, self: Any, commit: Any, blocks: Any) -> Any:
    taken = []
    try:
        for block in blocks:
            taken.append(block)  # noqa: PERF402 - what came before it raised is kept
    except Exception:
        real(self, commit, taken)
        raise
    return real(self, commit, taken)


def empty_is_left_out(real: Any, self: Any, commit: Any, blocks: Any) -> Any:
    blocks = list(blocks)
    return real(self, commit, blocks) if blocks or self._last is None else commit


#: Where a bug is, and what the code does then.
PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "engine: a worker trusts that its own attempt was committed": (replica.Replica, "catch_up", trusting),
    "engine: cleaning drops what is still live": (key_group, "clean", forgetful_cleaning),
    "engine: timers that have fired stay": (changes.Changes, "write", timers_stay),
    "engine: an attempt that was not committed is exported": (replica.Replica, "take_committed", any_attempt),
    "recovery: timers are not restored": (replica, "contents", without_timers),
    "stores: memory applies entry by entry": (memory_store.MemoryStore, "apply", entry_by_entry),
    "stores: RocksDB moves the position without the entries": (rocks_store.RocksStore, "_write", position_first),
    "stores: a commit store rolls back half": (commit_store.BufferedCommits, "rollback", half_rolled_back),
    "changelogs: in memory a torn commit stays": (memory_changelog._Writer, "append", torn_stays),
    "changelogs: in a directory an empty commit is left out": (
        directory_changelog.DirectoryWriter,
        "append",
        empty_is_left_out,
    ),
    "disk: a file is published before its data is synced": (disk, "_write_new", unsynced),
    "disk: a folder is not synced": (disk, "sync_folder", names_unsynced),
    "disk: what a write did not take is not written": (disk, "_write", half_written),
    "Kafka: records that were given up are not missed": (kafka_client.Transactions, "_reported", lost_silently),
    "Kafka: what is not committed is read": (kafka_client.Cluster, "consumer", uncommitted),
    "recovery: rows of tables are not restored": (replica, "contents", without_tables),
    "engine: tables are read when rows of the log are gone": (key_group, "clean", dropped_first),
    "engine: how far each input is is forgotten": (key_group, "advance", sides_forgotten),
}


def simulation(seed: int) -> Simulation:
    function, rows, key = exercise.of_seed(seed)
    return Simulation(function, rows, key, None, seed)


def tried(seeds: range) -> str:
    """Return what went wrong; nothing if nothing did."""
    for seed in seeds:
        one = simulation(seed)
        try:
            one.run(one.expected())
        except SimulationFailed as failed:
            return str(failed)
    return ""


def finding(bug: str, most: int) -> int | None:
    """Return how many seeds it took to find a planted bug; ``None`` if it was not found."""
    place, name, wrap = PLANTED[bug]
    for seed in range(most):
        one = simulation(seed)
        expected = one.expected()
        with instead(place, name, wrap):
            try:
                one.run(expected)
            except SimulationFailed:
                return seed + 1
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Simulate the library under faults.")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many simulations")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2, help="how many at a time")
    parser.add_argument("--planted", action="store_true", help="also find each planted bug within as many seeds")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    ends = options.first + options.seeds
    parts = [range(start, min(start + 100, ends)) for start in range(options.first, ends, 100)]
    with get_context("forkserver").Pool(options.processes) as pool:
        failed = next(filter(None, pool.imap_unordered(tried, parts)), None)
        if failed is not None:
            print(failed)
            return 1
        print(f"{options.seeds} simulations went as undisturbed, {time.monotonic() - started:.0f} s")
        if not options.planted:
            return 0
        found = pool.starmap(finding, [(bug, options.seeds) for bug in PLANTED], chunksize=1)
    for bug, seeds in zip(PLANTED, found, strict=True):
        print(f"{bug}: {'NOT FOUND' if seeds is None else f'found by seed {seeds - 1}'}")
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if None in found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
