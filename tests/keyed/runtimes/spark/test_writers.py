"""The changelog writers that a worker process keeps."""

import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from keyed.changelog.model import Commit
from keyed.engine.group_log import GroupMeta
from keyed.runtimes.spark.worker.worker_caches import WriterCache
from keyed.testing import MemoryChangelog
from tests.keyed.changelog.test_commit_fold import commit


class Counting(MemoryChangelog):
    """A changelog that counts the writers that were opened and closed.

    A writer sees the end of the log as it was when it was opened, and what it appended, as those of a real one do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[int] = []
        self.closed: list[int] = []

    def writer(self, group: int) -> Any:
        self.opened.append(group)
        return Writer(super().writer(group), lambda: self.closed.append(group), self.reader(group).last())


@attrs.define(eq=False)
class Writer:
    writer: Any
    close: Callable[[], None]
    newest: Commit | None

    def last(self) -> Commit | None:
        return self.newest

    def append(self, commit: Commit, blocks: Any) -> None:
        self.newest = self.writer.append(commit, blocks)


@pytest.fixture
def changelog():
    made = Counting()
    made.prepare("op", 2)
    return made


def meta_at(sequence):
    """The meta record of a group after a commit."""
    previous = f"a{sequence - 1}" if sequence > 1 else ""
    return GroupMeta("log", "op", 0, 2, sequence, attempt=f"a{sequence}", previous=previous)


def append(writer, sequence):
    writer.append(commit(sequence, source_log="log", records=0, entries=0, hash=""), [])


def test_a_writer_is_kept_from_batch_to_batch(changelog):
    cache = WriterCache()
    first = cache.writer(changelog, "id", 0, None)
    assert cache.writer(changelog, "id", 0, None) is first
    append(first, 1)
    # The next batch exports commit 1, and one that is run again finds it exported.
    assert cache.writer(changelog, "id", 0, meta_at(1)) is first
    assert cache.writer(changelog, "id", 0, meta_at(2)) is first
    assert cache.writer(changelog, "id", 1, None) is not first
    assert cache.writer(changelog, "other", 0, None) is not first
    assert changelog.opened == [0, 1, 0]


@pytest.mark.parametrize("newest", [3, 4, 5])
def test_a_writer_that_has_missed_what_others_wrote_is_opened_anew(changelog, newest):
    # Its group was served by another worker: what it remembers of the log is older than the group's own log.
    here, elsewhere = WriterCache(), WriterCache()
    first = here.writer(changelog, "id", 0, None)
    append(first, 1)
    for number in range(2, newest + 1):
        append(elsewhere.writer(changelog, "id", 0, meta_at(number)), number)
    assert changelog.opened == [0, 0]
    again = here.writer(changelog, "id", 0, meta_at(newest))
    assert again is not first
    last = again.last()
    assert last is not None
    assert last.sequence == newest
    assert changelog.closed == [0]


def test_a_writer_of_another_course_is_opened_anew(changelog):
    cache = WriterCache()
    first = cache.writer(changelog, "id", 0, None)
    append(first, 1)
    assert cache.writer(changelog, "id", 0, attrs.evolve(meta_at(2), previous="another")) is not first
    assert changelog.closed == [0]


def test_a_writer_can_be_given_up(changelog):
    cache = WriterCache()
    first = cache.writer(changelog, "id", 0, None)
    cache.discard("id", 0)
    cache.discard("id", 0)
    assert changelog.closed == [0]
    assert cache.writer(changelog, "id", 0, None) is not first


def test_a_writer_that_is_idle_for_long_is_closed(changelog, monkeypatch):
    cache = WriterCache()
    cache.writer(changelog, "id", 0, None)
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    cache.writer(changelog, "id", 1, None)
    assert changelog.closed == [0]
