"""Jobs that are restored, at another parallelism and from past states, as their tables and their readers see it.

The oracle is a dictionary per batch, out of the changelog itself. ``KEYED_DISCONNECTS=1000`` tries more.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import keyed
from keyed.stores.version_store import VersionStore
from keyed.tables import StateTables, follower, open_tables
from tests.keyed.changelog.kafka import topics
from tests.support.s3 import s3_server
from tests.support.tables import apply_changes, poll_tables, write_tables

DISCONNECTS = int(os.environ.get("KEYED_DISCONNECTS", "50"))


class Count(keyed.KeyedProcessFunction):
    """Counts numbers; forgets a key at every fifth."""

    count = keyed.ValueState(int)
    seen = keyed.MapState(int, int)

    def process_element(self, value, ctx):
        number = (self.count.value() or 0) + 1
        if number % 5:
            self.count.update(number)
        else:
            self.count.clear()
        self.seen.put(value % 3, value)
        yield number


class Job:
    """A job of so many rows, which is lost and restored with its changelog alone."""

    def __init__(self, folder: Path, logs: Callable[[str], Any] | None = None) -> None:
        self.folder = folder
        self.logs = logs or (lambda name: keyed.DirectoryChangelog(folder / name, auto_compact=False))
        self.lives = 0
        self.rows = 0
        self.begin(None, 1)

    @property
    def log(self) -> Any:
        return self.logs(f"log-{self.lives}")

    def begin(self, until: int | None, parallelism: int) -> None:
        """Begin a life, from the changelog of the one before if there is one."""
        self.point = keyed.RestorePoint(self.log, as_of=until) if self.lives else None
        self.parallelism = parallelism
        self.lives += 1

    def run(self, rows: int) -> None:
        """Run so many rows more."""
        self.rows += rows
        stream = keyed.stream(range(self.rows)).key_by(lambda value: value % 7)
        output = stream.process(Count(), changelog=self.log, parallelism=self.parallelism, restore_from=self.point)
        output.run(checkpoint=self.folder / f"checkpoint-{self.lives}", rows_per_batch=5, drain=False)


class Reader:
    """Follows a table from wherever it left off, and checks that each change fits what it has."""

    def __init__(self) -> None:
        self.copy: dict[Any, Any] = {}
        self.token: str | None = None
        self.resets = 0

    def read(self, tables: StateTables, most: int | None = None) -> None:
        """Take what there is, or a part of it, and disconnect."""
        subscription = tables["count"].subscribe(after=self.token)
        while most is None or most > 0:
            changes = subscription.take(0)[:most]
            if not changes:
                break
            if subscription.resets:
                assert changes[0].kind == "snapshot"
                self.copy, self.resets, subscription.resets = {}, self.resets + 1, 0
            apply_changes(self.copy, changes)
            most = None if most is None else most - len(changes)
            self.token = changes[-1].token
            if most == 0:
                break


def contents(tables: Any) -> dict[Any, Any]:
    return {(entry.key, None): entry.value for entry in tables["count"]}


def folded(log: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for change in keyed.recovery.read_changelog(log):
        if change.state == "count":
            found.pop((change.key, None), None)
            if not change.removed:
                found[change.key, None] = change.value
    return found


LONG = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(params=["directory", pytest.param("objects", marks=LONG), pytest.param("kafka", marks=LONG)])
def logs_of(request):
    """A function from a folder to a function from a name to its changelog."""
    if request.param == "directory":
        yield lambda folder: None
    elif request.param == "objects":
        with s3_server() as server:
            yield (
                lambda folder: (
                    lambda name: keyed.ObjectStoreChangelog(
                        f"s3://bucket/{Path(folder).name}/{name}", server.options, auto_compact=False
                    )
                )
            )
    else:
        kafka = request.getfixturevalue("kafka")
        made: dict[Any, str] = defaultdict(topics.new_topic)
        yield (
            lambda folder: lambda name: keyed.KafkaChangelog(made[folder, name], bootstrap=kafka, replication_factor=1)
        )


def test_readers_miss_nothing_over_disconnects_rescales_and_rolled_back_batches(logs_of):
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    print(f"KEYED_SEED={seed}")  # noqa: T201 - repeats a failure
    chance = Random(seed)
    done = 0
    while done < DISCONNECTS:
        with TemporaryDirectory() as folder:
            job, readers = Job(Path(folder), logs_of(folder)), [Reader() for _ in range(3)]
            job.parallelism = chance.choice([1, 2, 3])
            job.run(12)
            tables = open_tables(job.log, f"{folder}/tables")
            try:
                for _ in range(8):
                    what = chance.choice(["rows", "rows", "restore", "roll back", "follower", "poll"])
                    if what == "rows":
                        job.run(chance.randint(1, 12))
                    elif what in ("restore", "roll back"):
                        # A follower that has all batches before the cut goes on; one that has not is told.
                        tables.poll()
                        newest, first = tables.batch, next(job.log.reader(0).commits())[0].batch
                        until = chance.randint(max(first, newest - 3), newest) if what == "roll back" else None
                        job.begin(until, chance.choice([1, 2, 3, 4]))
                        job.run(chance.randint(6, 12))
                        tables.close()
                        tables = open_tables(job.log, f"{folder}/tables")
                    elif what == "follower":
                        tables.close()
                        tables = open_tables(job.log, f"{folder}/tables")
                    tables.poll()
                    assert contents(tables) == folded(job.log)
                    for reader in readers:
                        if chance.random() < 0.8:
                            reader.read(tables, chance.choice([None, None, 1, 3]))
                            done += 1
                for reader in readers:
                    reader.read(tables)
                    assert reader.copy == contents(tables)
                    assert (reader.resets, tables.rebuilds) == (0, 0)
            finally:
                tables.close()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    job.run(30)
    return job


def test_a_batch_names_what_the_job_made_of_it_last(tmp_path, job):
    with poll_tables(job.log, tmp_path / "tables") as tables:
        before = [tables["count"].get(1, as_of=batch) for batch in range(6)]
    job.begin(3, 3)
    job.run(5)
    with open_tables(job.log, tmp_path / "tables") as tables:
        held = tables.snapshot(4)
        tables.poll()
        assert tables.batch == 6
        assert [tables["count"].get(1, as_of=batch) for batch in range(6)] == before
        assert held["count"].get(1) == before[4]
        versions = tables["count"].history(1)
        assert all(newer.processing_time >= older.processing_time for newer, older in pairwise(versions))
        held.close()


def test_a_follower_that_missed_batches_says_so(tmp_path, job, caplog):
    with poll_tables(job.log, tmp_path / "tables") as tables:
        reader = Reader()
        reader.read(tables)
    job.run(10)
    job.begin(None, 2)
    job.run(10)
    with poll_tables(job.log, tmp_path / "tables") as tables:
        assert tables.rebuilds == 1
        assert "are rebuilt: it followed the changelog" in caplog.text
        # What was there can still be asked for.
        assert tables["count"].get(1, as_of=2) is not None
        reader.read(tables)
        assert (reader.resets, reader.copy) == (1, contents(tables))


def test_jobs_that_were_restored_one_from_another_are_followed_though_one_was_missed(tmp_path, job):
    write_tables(job.log, tmp_path / "tables")
    for _ in range(3):
        job.begin(None, 2)
        job.run(10)
    with poll_tables(job.log, tmp_path / "tables") as tables:
        assert (contents(tables), tables.rebuilds) == (folded(job.log), 1)


def test_an_abandoned_job_gives_way_to_another_restore_of_the_same_one(tmp_path, job):
    first = job.log
    write_tables(first, tmp_path / "tables")
    for life in (2, 3):
        job.point, job.lives = keyed.RestorePoint(first), life
        job.run(10)
        with poll_tables(job.log, tmp_path / "tables") as tables:
            assert contents(tables) == folded(job.log)


def damaged_files(folder: Path, pattern: str) -> int:
    """Change a byte in the middle of each file; gives how many there were."""
    files = list((folder / "tables").glob(f"Count/*/{pattern}"))
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 0xFF
        file.write_bytes(data)
    return len(files)


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "CURRENT"])
def test_tables_that_are_damaged_when_they_are_opened_are_built_anew(tmp_path, job, caplog, pattern):
    write_tables(job.log, tmp_path / "tables")
    assert damaged_files(tmp_path, pattern)
    with poll_tables(job.log, tmp_path / "tables") as tables:
        assert contents(tables) == folded(job.log)
        assert (tables.rebuilds, "are rebuilt" in caplog.text) == (1, True)


class Padded(keyed.KeyedProcessFunction):
    """Keeps a value that takes up room, so that a file has many blocks."""

    value = keyed.ValueState(bytes)

    def process_element(self, value, ctx):
        self.value.update(b"%d" % value * 100)
        return ()


def test_damage_that_a_reader_finds_is_mended_by_the_follower(tmp_path, caplog):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    keyed.stream(range(1_000)).key_by(lambda value: value).process(Padded(), name="Count", changelog=log).run()
    with poll_tables(log, tmp_path / "tables") as tables:
        whole = {entry.key: entry.value for entry in tables["value"]}
    assert damaged_files(tmp_path, "*.sst")
    with open_tables(log, tmp_path / "tables") as tables, keyed.tables.read_tables(tmp_path / "tables") as reading:
        for reader in (tables, reading):
            with pytest.raises(keyed.errors.LocalStoreError, match="cannot be read"):
                list(reader["value"])
        assert tables.rebuilds == 0
        assert (tables.batch, reading.batch) == (1, 1)
        tables.poll()
        reading.poll()
        for reader in (tables, reading):
            assert {entry.key: entry.value for entry in reader["value"]} == whole
        assert (tables.rebuilds, "are rebuilt" in caplog.text) == (1, True)
        tables.poll()
        assert tables.rebuilds == 1


def test_readers_do_not_go_back_while_a_store_is_built_anew(tmp_path, job, monkeypatch):
    with poll_tables(job.log, tmp_path / "tables") as tables:
        reading = keyed.tables.read_tables(tmp_path / "tables")
        seen = []
        apply = VersionStore.apply

        def applied(store: VersionStore, *arguments: Any) -> None:
            apply(store, *arguments)
            reading.poll()
            seen.append((tables.batch, reading.batch, reading["count"].get(1)))

        monkeypatch.setattr(VersionStore, "apply", applied)
        # Each batch by itself.
        monkeypatch.setattr(follower, "_CHANGES", 1)
        next(iter(tables._operators.values())).source.pinned.damage = "something"
        tables.poll()
        assert seen == [(5, 5, tables["count"].get(1))] * 6
        assert tables.rebuilds == 1
        reading.close()
