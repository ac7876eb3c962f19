"""Job, follower and readers killed with SIGKILL: tables show whole committed batches, and readers never go back.

Each batch of the job writes its own number under every key, so a state that is not one whole batch has two numbers.
``KEYED_KILLS`` says how many processes are killed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

import keyed
from keyed.tables import StateTables, open_tables, read_tables
from tests.support.tables import poll_tables
from tests.support.waiting import until

KILLS = int(os.environ.get("KEYED_KILLS", "20"))
KEYS, BATCHES = 300, 100_000
CONTEXT = multiprocessing.get_context("forkserver")


class Number(keyed.KeyedProcessFunction):
    """Keeps the number of the batch under each key."""

    number = keyed.ValueState(int)
    past = keyed.MapState(int, int)

    def process_element(self, value, ctx):
        number = value // KEYS + 1
        self.number.update(number)
        self.past.put(number % 3, number)
        return ()


def log_of(folder: Path) -> keyed.DirectoryChangelog:
    return keyed.DirectoryChangelog(folder / "log", compaction_lag=2_000)


def job(folder: Path) -> None:
    """Run batch after batch, from the checkpoint if there is one."""

    def paced(progress: Any) -> None:
        # Many batches, and time for the others.
        Event().wait(0.002)

    stream = keyed.stream(range(KEYS * BATCHES)).key_by(lambda value: value % KEYS)
    output = stream.process(Number(), changelog=log_of(folder), parallelism=2)
    output.run(
        lambda values, batch: None,
        checkpoint=folder / "checkpoint",
        rows_per_batch=KEYS,
        drain=False,
        on_progress=paced,
    )


def follower(folder: Path) -> None:
    """Keep tables level, in small parts or many batches at once, so that there is a middle to be killed in."""
    from keyed.tables import follower

    follower._CHANGES = Random().choice([40, 5_000])
    until(lambda: log_of(folder).header() is not None)
    with open_tables(log_of(folder), folder / "tables", history=500) as tables:
        while True:
            tables.poll()
            assert_whole(tables, 0)


def reader(folder: Path, seen: Any) -> None:
    """Read the tables of the follower, for as long as it lives and after."""
    last = 0

    def opened() -> StateTables | None:
        with suppress(keyed.KeyedError):
            return read_tables(folder / "tables")
        return None

    tables = None
    while True:
        tables = tables or opened()
        if tables is not None:
            with suppress(keyed.errors.LocalStoreError):
                tables.poll()
                last = assert_whole(tables, last)
                seen.value = max(seen.value, last)


def assert_whole(tables: StateTables, last: int) -> int:
    """Check that the newest state is one whole batch, not before the last one; gives which."""
    if tables.batch < 0:
        return last
    with tables.snapshot() as snapshot:
        assert snapshot.batch >= last
        assert set(snapshot["number"].get_many(range(KEYS))) == {snapshot.batch + 1}
        assert max(snapshot["past"].get(7).values()) == snapshot.batch + 1
        return snapshot.batch


@pytest.mark.slow
def test_whoever_is_killed_tables_are_whole_and_readers_go_forward(tmp_path):
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    print(f"KEYED_SEED={seed}")
    chance = Random(seed)
    CONTEXT.set_forkserver_preload(["tests.keyed.tables.test_kills", "rocksdict"])
    seen = [CONTEXT.Value("q", 0) for _ in range(2)]
    work: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "job": (job, (tmp_path,)),
        "follower": (follower, (tmp_path,)),
        "reader 0": (reader, (tmp_path, seen[0])),
        "reader 1": (reader, (tmp_path, seen[1])),
    }
    running = {name: CONTEXT.Process(target=target, args=args) for name, (target, args) in work.items()}
    try:
        for process in running.values():
            process.start()
        until(lambda: min(value.value for value in seen) > 0)
        for _ in range(KILLS):
            before = [value.value for value in seen]
            name = chance.choice([*work])
            running[name].join(chance.random() * 0.5)
            assert {each.exitcode for each in running.values()} == {None}, "one has failed: see what it wrote"
            running[name].kill()
            running[name].join()
            target, args = work[name]
            running[name] = CONTEXT.Process(target=target, args=args)
            running[name].start()
            # All go on.
            until(lambda before=before: all(now.value > then for now, then in zip(seen, before, strict=True)))  # type: ignore[misc]
    finally:
        for process in running.values():
            process.kill()
            process.join()
    with poll_tables(log_of(tmp_path), tmp_path / "tables") as tables:
        assert assert_whole(tables, max(value.value for value in seen)) > 0
