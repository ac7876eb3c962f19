"""Followers that fail: at any call of their changelog or store, on a full disk, in a folder that is deleted."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

import keyed
from keyed import DirectoryChangelog, errors
from keyed.base import background
from keyed.base.background import Status
from keyed.changelog.directory import compaction
from keyed.stores.database import Database
from keyed.stores.growth import resident_bytes
from keyed.stores.version_store import VersionReader
from keyed.tables import StateTables, follower, open_tables, read_tables
from keyed.tables.entries import StoredEntries
from keyed.tables.follower import PinnedStore
from keyed.tables.state_tables import keep_tables
from keyed.testing import KeyedTestHarness
from keyed.testing.memory_changelog import MemoryChangelog
from tests.support.tables import followed, poll_tables, write_tables
from tests.support.waiting import logged, until

ROOT = Path(__file__).resolve().parents[3]


class Count(keyed.KeyedProcessFunction):
    """Counts the rows of a key."""

    count = keyed.ValueState(int)

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(keyed.MAX_TIMESTAMP)

    def on_timer(self, timestamp, ctx):
        return ()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(background, "_LONGEST_WAIT", 0.01)


@pytest.fixture
def log(tmp_path: Path) -> DirectoryChangelog:
    changelog = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run(changelog)
    return changelog


def run(changelog: Any, function: Any = Count, rows: int = 6) -> None:
    """Run a job of a batch for each row that its checkpoint, beside the changelog, does not have."""
    stream = keyed.stream(range(rows)).key_by(lambda value: value % 3)
    checkpoint = f"{changelog.path}-checkpoint-{function.__name__}"
    stream.process(function(), changelog=changelog).run(rows_per_batch=1, drain=False, checkpoint=checkpoint)


@pytest.mark.parametrize("first", [0, 1])
def test_groups_that_were_compacted_up_to_different_commits_are_followed(first, tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    with KeyedTestHarness(Count(), key=lambda value: value, parallelism=2, changelog=log) as harness:
        for group in (first, 1 - first):
            for value in "abcdefgh" * 2:
                harness.process(value)
            compaction.compact_group(log._group(group), compaction.CompactionLimits(0))
        with poll_tables(log, tmp_path / "tables", history=0) as tables:
            assert {entry.key: entry.value for entry in tables["count"].scan()} == dict.fromkeys("abcdefgh", 4)


@pytest.mark.parametrize("field", ["hash", "entries", "records"])
def test_a_first_state_that_is_not_that_of_its_marker_is_not_shown(tmp_path, field):
    """The first commit is compared by its hash, each by its number of records."""
    changelog = MemoryChangelog()
    stream = keyed.stream(range(6)).key_by(lambda value: value % 3)
    stream.process(Count(), changelog=changelog, parallelism=2).run(drain=False)
    (marker, blocks), *_ = changelog._groups[1]
    wrong: dict[str, Any] = {"hash": "0" * 32, "entries": 7, "records": 9}
    changelog._groups[1][0] = attrs.evolve(marker, **{field: wrong[field]}), blocks
    with open_tables(changelog, tmp_path / "tables") as tables:
        for _ in range(2):
            with pytest.raises(errors.CorruptionError, match=r"marker says (0{32}|7|9) in commit 1 of key group 1 of "):
                tables.poll()
        assert tables.batch == -1


def contents(tables: Any) -> dict[Any, Any]:
    return {entry.key: entry.value for entry in tables["count"]}


EXPECTED = {0: 2, 1: 2, 2: 2}


def reads_of(tables: StateTables) -> dict[str, Callable[[], Any]]:
    """Every way to read tables, as it is after they were read once."""
    table, subscription = tables["count"], tables["count"].subscribe()
    later = tables["count"].subscribe(after="now")
    return {
        "poll": tables.poll,
        "table": lambda: tables["count"],
        "names": lambda: list(tables),
        "len": lambda: len(tables),
        "get": lambda: table.get(1),
        "query": lambda: table.query(1),
        "past": lambda: table.get(1, as_of=1),
        "scan": lambda: list(table.scan()),
        "iteration": lambda: list(table),
        "entries": lambda: len(table),
        "history": lambda: list(table.history(1)),
        "first": table.first,
        "schema": lambda: table.schema,
        "dataset": lambda: table.dataset().to_table(),
        "sql": lambda: tables.sql("select * from count"),
        "timers": lambda: list(tables.timers),
        "snapshot": tables.snapshot,
        "past snapshot": lambda: tables.snapshot(1),
        "batch": lambda: tables.batch,
        "positions": lambda: tables.positions,
        "lag": tables.lag,
        "wait_for": lambda: tables.wait_for(1, 300),
        "wait_for more": lambda: tables.wait_for(1_000, 300),
        "subscribe": table.subscribe,
        "take": lambda: subscription.take(0),
        "take for ever": later.take,
        "next": lambda: next(later),
        "async": lambda: asyncio.run(anext(later)),
        "check": tables.check,
        "start": tables.start,
        "stop": tables.stop,
        "take_over": tables.take_over,
    }


@pytest.mark.parametrize(
    "error",
    [
        errors.CorruptionError("the changelog is damaged", where="here", offset=3),
        RuntimeError("dictionary changed size during iteration"),
        errors.LocalStoreError("no store"),
        errors.ChangelogDiverged("another one"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_each_later_read_raises_the_error_that_following_ended_with(log, tmp_path, monkeypatch, caplog, error):
    with open_tables(log, tmp_path / "tables") as tables:
        tables.start(every=0.01)
        assert (contents(tables), tables.status) == (EXPECTED, Status.FOLLOWING)
        reads = reads_of(tables)

        def poll() -> int:
            raise error

        monkeypatch.setattr(tables._operators["Count"].source, "poll", poll)
        until(lambda: not tables._work.is_running)
        for name, read in [*reads.items(), *reads.items()]:
            with pytest.raises(type(error)) as raised:
                read()
            assert raised.value.__cause__ is error, name
            assert raised.value is not error, name
            assert (str(raised.value), raised.value.args) == (str(error), error.args), name
            notes = getattr(error, "__notes__", [])
            assert raised.value.__notes__[:-1] == notes, name
            assert "tables of Count ended with this error" in raised.value.__notes__[-1], name
        assert tables.status is Status.FAILED
        assert tables.trouble == f"{type(error).__name__}: {error}"
        assert f"failed: {error}" in repr(tables)
    assert logged(caplog, "tables of Count:") == ["tables of Count: ended"]
    # Closed is not forgotten, and closing again does nothing.
    tables.close()
    with pytest.raises(type(error)):
        tables.check()


class Failing:
    """Counts calls, and fails the one that has a number."""

    def __init__(self, number: int, error: Exception) -> None:
        self.number, self.error, self.calls = number, error, 0

    def __call__(self, *, only: Callable[[], bool] = lambda: True) -> None:
        if only():
            self.calls += 1
            if self.calls == self.number:
                raise self.error


class FailingChangelog(DirectoryChangelog):
    """A changelog of which each call counts, also each commit that is read."""

    failing: ClassVar[Failing]

    def header(self) -> Any:
        self.failing()
        return super().header()

    def reader(self, group: int) -> Any:
        self.failing()
        return FailingReader(super().reader(group), self.failing)

    def kept(self) -> Any:
        self.failing()
        return super().kept()


class FailingReader:
    def __init__(self, reader: Any, failing: Failing) -> None:
        self._reader, self._failing = reader, failing

    def last(self) -> Any:
        self._failing()
        return self._reader.last()

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[Any]:
        self._failing()
        for found in self._reader.commits(after, until):
            self._failing()
            yield found


def follow_to_the_end(changelog: Any, folder: Path) -> StateTables:
    """Follow until that has ended, or everything is there."""
    tables = open_tables(changelog, folder)
    tables._every = 0.001
    tables._work.start()
    until(lambda: tables.status is Status.FAILED or tables._work.age is not None)
    return tables


@pytest.mark.parametrize("is_transient", [True, False], ids=["passes", "ends"])
def test_a_follower_whose_changelog_fails_at_any_call_goes_on_or_ends_with_that(log, tmp_path, is_transient):
    error = errors.ChangelogError("cannot be reached") if is_transient else RuntimeError("unforeseen")
    for number in count(1):
        FailingChangelog.failing = Failing(0, error)
        changelog = FailingChangelog(tmp_path / "log", auto_compact=False)
        folder = tmp_path / f"tables-{number}"
        tables = open_tables(changelog, folder)
        FailingChangelog.failing = Failing(number, error)
        with tables:
            tables._every = 0.001
            tables._work.start()
            until(lambda: tables.status is Status.FAILED or tables.age is not None)  # noqa: B023
            if is_transient:
                tables.check()
                assert contents(tables) == EXPECTED
                assert tables.failures == (number <= changelog.failing.calls), number
            elif changelog.failing.calls >= number:
                until(lambda: tables.status is Status.FAILED)  # noqa: B023
                for _ in range(2):
                    with pytest.raises(RuntimeError, match="unforeseen"):
                        list(tables)
        with open_tables(log, folder) as again:
            assert contents(again.start()) == EXPECTED
        if changelog.failing.calls < number:
            break
    assert number > 8


@pytest.mark.parametrize("call", ["write", "look_up", "range"])
@pytest.mark.parametrize("kind", ["full", "damaged", "unforeseen"])
def test_a_follower_whose_store_fails_at_any_call_goes_on_or_ends_with_that(log, tmp_path, monkeypatch, call, kind):
    write_tables(log, tmp_path / "half")
    run(log, rows=12)
    error: Exception = RuntimeError("unforeseen")
    if kind != "unforeseen":
        error = errors.LocalStoreError("the store fails")
        error.__cause__ = OSError(errno.ENOSPC, "No space left on device") if kind == "full" else OSError("damaged")
    failing = Failing(0, error)
    original = getattr(Database, call)

    def called(self: Database, *arguments: Any, **keywords: Any) -> Any:
        failing(only=lambda: threading.current_thread().name == "tables of Count")
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(Database, call, called)
    for number in count(1):
        failing.number = failing.calls = 0
        folder = tmp_path / f"tables-{number}"
        shutil.copytree(tmp_path / "half", folder)
        failing.number = number
        with follow_to_the_end(log, folder) as tables:
            calls = failing.calls
            if kind == "unforeseen" and failing.calls >= number:
                assert tables.status is Status.FAILED
                for _ in range(2):
                    with pytest.raises(RuntimeError, match="unforeseen"):
                        contents(tables)
            else:
                assert contents(tables) == {0: 4, 1: 4, 2: 4}
                assert (tables.status, tables.trouble) == (Status.FOLLOWING, "")
                assert kind == "full" or tables.failures == 0
        failing.number = 0
        with open_tables(log, folder) as again:
            assert contents(again.start()) == {0: 4, 1: 4, 2: 4}
        if calls < number:
            break
    assert number > 1


def fill(folder: Path) -> None:
    """Write until there is no room."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - the loop ends so


class Padded(keyed.KeyedProcessFunction):
    """Keeps values that take up room."""

    count = keyed.ValueState(bytes)

    def process_element(self, value, ctx):
        self.count.update(value[1] * 200_000)
        return ()


def test_after_a_full_disk_a_follower_goes_on_once_there_is_room(tmp_path, small_disk, caplog):
    caplog.set_level(logging.WARNING, "keyed.base.background")
    changelog = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    with followed(Padded(), small_disk, changelog=changelog) as (harness, tables):
        harness.process(("a", b"1"))
        tables.start(every=0.01)
        held, subscription = tables.snapshot(), tables["count"].subscribe()
        subscription.take(0)
        fill(small_disk)
        for number in b"23456":
            harness.process(("a", bytes([number])))
        until(lambda: tables.failures > 3)
        # What there is can be read meanwhile, and so can it be seen why there is no more.
        assert tables["count"].get("a")[:1] in [b"1", b"2", b"3", b"4", b"5"]
        assert tables.status is Status.FOLLOWING
        assert "the disk is full" in tables.trouble
        (small_disk / "filler").unlink()
        tables.wait_for(5, timeout=300)
        assert tables["count"].get("a") == b"6" * 200_000
        # The pass that reached the batch ends a moment later.
        until(lambda: not tables.trouble)
        assert tables.rebuilds == 0
        # Those who were there before are there still.
        assert held["count"].get("a") == b"1" * 200_000
        held.close()
        seen: list[bytes] = []
        while changes := subscription.take(0):
            seen += [change.new[:1] for change in changes]
        assert seen == [b"2", b"3", b"4", b"5", b"6"]
        harness.process(("b", b"7"))
        tables.wait_for(6, timeout=300)
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "the disk is full" in line]) == 1
    assert len([line for line in said if "recovered after" in line]) == 1


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "replaced"])
def test_a_folder_that_is_deleted_under_its_follower_is_noticed(log, tmp_path, again):
    write_tables(log, tmp_path / "others")
    with open_tables(log, tmp_path / "tables") as tables:
        tables.start(every=0.01)
        shutil.rmtree(tmp_path / "tables")
        if again:
            shutil.copytree(tmp_path / "others", tmp_path / "tables")
        until(lambda: tables.status is Status.FAILED)
        for _ in range(2):
            with pytest.raises(errors.LocalStoreError, match=r"tables/Count was deleted or replaced.*open them again"):
                tables["count"]
    with open_tables(log, tmp_path / "tables") as tables:
        assert contents(tables.start()) == EXPECTED


@pytest.mark.parametrize("lost", ["", "header", "groups/00000"], ids=["folder", "header", "group"])
def test_a_changelog_that_is_deleted_under_its_follower_is_gone(log, tmp_path, lost):
    with open_tables(log, tmp_path / "tables") as tables:
        tables.start(every=0.01)
        batch = tables.batch
        assert not tables.is_gone
        (tmp_path / "log" / lost).rename(tmp_path / "away")
        until(lambda: tables.is_gone)
        gone = rf"ChangelogError: .*log.* of operator 'Count' is gone: it was deleted or moved after batch {batch}, "
        assert re.match(gone, tables.trouble)
        with pytest.raises(errors.ChangelogError, match=f"is gone.* after batch {batch},"):
            tables.lag()
        # It answers from its copy, and a wait for more names the reason.
        assert contents(tables) == EXPECTED
        with pytest.raises(TimeoutError, match=f"at batch {batch} after 0.01 s; their last poll failed: .* is gone"):
            tables.wait_for(batch + 1, timeout=0.01)
        (tmp_path / "away").rename(tmp_path / "log" / lost)
        until(lambda: not tables.is_gone)
        assert tables.trouble == ""
        with pytest.raises(TimeoutError, match=r"after 0.01 s$"):
            tables.wait_for(batch + 1, timeout=0.01)


def test_what_a_killed_follower_left_is_removed_by_the_next_one(log, tmp_path):
    write_tables(log, tmp_path / "tables")
    left = tmp_path / "tables" / "Count" / f"{follower._JOINED}abc"
    shutil.copytree(tmp_path / "tables" / "Count", left)
    with open_tables(log, tmp_path / "tables") as tables:
        assert not left.exists()
        assert contents(tables.start()) == EXPECTED


def test_a_reader_of_a_folder_that_is_deleted_notices(log, tmp_path):
    write_tables(log, tmp_path / "tables")
    with read_tables(tmp_path / "tables") as reading:
        reading.start(every=0.01)
        assert contents(reading) == EXPECTED
        shutil.rmtree(tmp_path / "tables")
        until(lambda: reading.status is Status.FAILED)
        with pytest.raises(errors.LocalStoreError, match="has no state tables"):
            reading["count"]


class Other(Count):
    """Another operator."""


@pytest.mark.parametrize("function", [Count, Other])
def test_a_changelog_that_is_replaced_by_another_jobs_is_refused(log, tmp_path, function):
    followed_log = log.header().log_id
    with open_tables(log, tmp_path / "tables") as tables:
        tables.start(every=0.01)
        shutil.move(tmp_path / "log", tmp_path / "away")
        until(lambda: tables.trouble)
        assert contents(tables) == EXPECTED
        run(log, function, rows=30)
        until(lambda: tables.status is Status.FAILED)
        error = errors.ChangelogDiverged if function is Count else errors.OperatorChanged
        for _ in range(2):
            with pytest.raises(error) as raised:
                tables["count"].get(1)
            named = (followed_log, log.header().log_id) if function is Count else ("'Count'", "'Other'")
            for text in (*named, "another folder"):
                assert text in str(raised.value)
    # Nothing of the other one is in the folder.
    with read_tables(tmp_path / "tables") as reading:
        assert contents(reading) == EXPECTED


def test_start_raises_what_the_first_look_fails_with_and_leaves_nothing_open(log, tmp_path):
    segment = min((tmp_path / "log").rglob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    for _ in range(2):
        with pytest.raises(errors.CorruptionError):
            open_tables(log, tmp_path / "tables").start()


def test_tables_that_cannot_be_opened_leave_their_folder_although_the_error_is_kept(log, tmp_path):
    header = tmp_path / "log/header"
    content = header.read_bytes()
    header.write_bytes(b"")
    with pytest.raises(errors.CorruptionError) as failed:
        keep_tables(tmp_path / "tables", {"Count": log}, {"Count": Count()})
    header.write_bytes(content)
    keep_tables(tmp_path / "tables", {"Count": log}, {"Count": Count()}).close()
    assert failed.value.__traceback__ is not None


def test_a_store_may_be_held_and_given_back_while_it_is_refreshed(log, tmp_path):
    with poll_tables(log, tmp_path / "tables"), read_tables(tmp_path / "tables") as reading:
        pinned = reading._operators["Count"].source.pinned
        store, over = pinned.store, threading.Event()

        def take() -> None:
            number = 0
            while not over.is_set():
                number += 1
                pinned.pin(store, 1 + number % 6)
                pinned.pin(store, 1 + (number + 3) % 6)
                pinned.unpin(store, 1 + number % 6)
                pinned.unpin(store, 1 + (number + 3) % 6)

        pinned.pin(store, 1)
        threads = [threading.Thread(target=take) for _ in range(2)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for _ in range(2_000):
                pinned.refresh()
                pinned.retain_from(1)
        finally:
            over.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(interval)
        pinned.unpin(store, 1)
        assert pinned.refresh()


def test_a_commit_that_is_about_to_be_removed_cannot_be_taken(log, tmp_path):
    with poll_tables(log, tmp_path / "tables") as tables:
        pinned = tables._operators["Count"].source.pinned
        pinned.pin(pinned.store, 2)
        assert pinned.retain_from(4) == 2
        pinned.unpin(pinned.store, 2)
        assert pinned.retain_from(4) == 4
        with pytest.raises(errors.HistoryCompacted):
            tables["count"].get(1, as_of=2)
        assert tables["count"].get(1, as_of=3) == 1


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "removed all the same"])
def test_a_history_that_is_read_while_commits_are_removed_is_no_damage(log, tmp_path, monkeypatch, kept):
    """A commit that the follower removed between two reads was taken for damage, and the tables were rebuilt."""
    with poll_tables(log, tmp_path / "tables", history=1) as tables:
        operator = tables._operators["Count"]
        history, oldest = StoredEntries.history, operator.extent.oldest

        def followed(self: StoredEntries, *address: Any) -> Any:
            run(log, rows=12)
            tables.poll()
            return history(self, *address)

        with monkeypatch.context() as patch:
            patch.setattr(StoredEntries, "history", followed)
            if kept:
                assert [version.value for version in tables["count"].history(1)] == [2]
                assert operator.extent.oldest == oldest
            else:
                patch.setattr(PinnedStore, "pin_history", lambda *_: None)
                with pytest.raises(errors.HistoryCompacted):
                    tables["count"].history(1)
                assert operator.extent.oldest > oldest
        run(log, rows=15)
        tables.poll()
        assert operator.extent.oldest > oldest
        assert (tables.rebuilds, contents(tables)) == (0, {0: 5, 1: 5, 2: 5})


def test_changes_of_batches_are_kept_up_to_a_size(log, tmp_path):
    from keyed.tables.operator_view import ChangedEntries, RecentChanges

    with poll_tables(log, tmp_path / "tables") as tables:
        store = tables._operators["Count"].source.pinned.store
    kept = RecentChanges(1_000)
    lists = [ChangedEntries() for _ in range(9)]
    for number, changes in enumerate(lists):
        kept.put(store, number, "count", changes, 400)
    assert [kept.get(store, number, "count") is changes for number, changes in enumerate(lists)] == [False] * 7 + [
        True
    ] * 2
    # Those used last stay.
    kept.get(store, 7, "count")
    kept.put(store, 9, "count", ChangedEntries(), 400)
    assert [kept.get(store, number, "count") is not None for number in (7, 8, 9)] == [True, False, True]
    kept.put(store, 10, "count", ChangedEntries(), 2_000)
    assert [kept.get(store, number, "count") is not None for number in (7, 9, 10)] == [True, True, False]
    kept.put(store, 9, "count", ChangedEntries(), 700)
    assert [kept.get(store, number, "count") is not None for number in (7, 9)] == [False, True]


FOLLOW = """
import sys
from pathlib import Path
from keyed import DirectoryChangelog
from keyed.errors import LocalStoreError
from keyed.tables import open_tables
try:
    tables = open_tables(DirectoryChangelog(Path(sys.argv[1]) / "log"), Path(sys.argv[1]) / "tables").start()
except LocalStoreError as error:
    print("refused", "another program" in str(error), flush=True)
else:
    print("follows", tables.batch, flush=True)
    sys.stdin.read()
"""


def test_two_processes_that_open_one_folder_at_once_are_a_follower_and_a_refused_one(log, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FOLLOW, str(tmp_path)]

    def begin() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    for _ in range(2):
        both = [begin(), begin()]
        try:
            said = {process.stdout.readline().strip(): process for process in both if process.stdout is not None}
            assert set(said) == {"refused True", "follows 5"}
            message = r"is written by another program.*read it with keyed.tables.read_tables"
            with pytest.raises(errors.LocalStoreError, match=message):
                open_tables(log, tmp_path / "tables")
            with read_tables(tmp_path / "tables") as reading:
                assert contents(reading) == EXPECTED
            # The lock ends with its process, however that ends.
            said["follows 5"].kill()
            said["follows 5"].wait()
            with open_tables(log, tmp_path / "tables").start() as tables:
                assert contents(tables) == EXPECTED
        finally:
            for process in both:
                process.kill()
                process.communicate()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_refused_and_closes_nothing(log, tmp_path):
    with open_tables(log, tmp_path / "tables").start(every=0.001) as tables:
        child = os.fork()
        if not child:
            code = 1
            try:
                tables.close()
                tables["count"].get(1)
            except errors.StateAccessError as error:
                code = 0 if "forked" in str(error) and tables.status is Status.CLOSED else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        run(log, rows=12)
        tables.wait_for(11, 300)
        assert contents(tables) == {0: 4, 1: 4, 2: 4}


def test_tables_that_are_closed_within_a_long_look_end_it_and_the_next_ones_go_on(log, tmp_path, monkeypatch):
    """The end of a follower does not wait until it has read a whole changelog."""
    reached, goes_on, batches = threading.Event(), threading.Event(), []
    batch = follower._batch

    def made(*arguments: Any) -> Any:
        batches.append(batch(*arguments))
        reached.set()
        assert goes_on.wait(300)
        return batches[-1]

    monkeypatch.setattr(follower, "_batch", made)
    tables = open_tables(log, tmp_path / "tables").start(wait=False)
    assert reached.wait(300)
    closing = threading.Thread(target=tables.close)
    closing.start()
    until(tables._work._stopping.is_set)
    goes_on.set()
    closing.join(300)
    assert (tables.status, len(batches)) == (Status.CLOSED, 1)
    with open_tables(log, tmp_path / "tables") as again:
        assert again.batch == 0
        assert contents(again.start()) == EXPECTED
        assert again.rebuilds == 0


def test_tables_that_are_dropped_leave_no_folder(log, tmp_path):
    write_tables(log, tmp_path / "tables")
    reading = read_tables(tmp_path / "tables")
    store = reading._operators["Count"].source.pinned.store
    assert isinstance(store, VersionReader)
    folder = store._own.path
    assert folder.is_dir()
    del reading, store
    gc.collect()
    assert not folder.exists()


READING = """
import sys
import keyed
tables = keyed.tables.read_tables(sys.argv[1])
print(tables["count"].get(0))
"""


@pytest.mark.slow
def test_a_program_that_does_not_close_tables_leaves_no_folder(log, tmp_path):
    write_tables(log, tmp_path / "tables")
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", READING, str(tmp_path / "tables")],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2\n"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns memory between blocks in use")
def test_tables_that_are_followed_return_memory_which_only_fragments_hold(tmp_path, log):
    """As RocksDB does it in a server: what its write buffers and blocks freed lies between others that are in use."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks: list[int] = []

    def fragment() -> None:
        """In an arena of its own: the thread is not the main one."""
        for _ in range(15_000):
            blocks.append(libc.malloc(20_000))
            ctypes.memset(blocks[-1], 1, 20_000)
        while len(blocks) > 1500:
            for at in reversed(range(0, len(blocks), 2)):
                libc.free(blocks.pop(at))

    with open_tables(log, tmp_path / "tables") as tables:
        before = resident_bytes()
        worker = threading.Thread(target=fragment)
        worker.start()
        worker.join()
        try:
            assert resident_bytes() - before > 200 << 20
            tables.start(every=0.01)
            until(lambda: resident_bytes() - before < 100 << 20)
        finally:
            for block in blocks:
                libc.free(block)
