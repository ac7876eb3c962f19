"""Local stores and the log: cleaning keeps it bounded, and no store that falls out of step brings anything back."""

from __future__ import annotations

import copy
import shutil
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyed.engine import group_log
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.errors import CorruptionError, LocalStoreError
from keyed.recovery.verification import verify_changelog
from keyed.stores import MemoryStore, open_lmdb_store, open_rocks_store
from keyed.testing.memory_changelog import MemoryChangelog
from tests.keyed.engine.groups import OPERATOR, Group, random_element

RANDOMS = st.randoms(use_true_random=False)


@pytest.fixture
def eager(monkeypatch):
    """Cleaning that starts with the first bytes."""
    monkeypatch.setattr(group_log, "_SLACK_BYTES", 64)


def test_overwriting_keeps_the_log_bounded_and_its_counters_true():
    group, random = Group(), Random(1)
    for batch in range(300):
        elements = []
        for _ in range(10):
            key, data = f"k{random.randrange(20)}", random.randbytes(2_000)
            elements.append(
                random.choice(
                    [
                        (key, "value", data),
                        (key, "put", random.randrange(3), data),
                        (key, "append", data),
                        (key, "clear"),
                        (key, "remove", 1),
                        (key, "set_timer", "n", random.randrange(10**6)),
                        (key, "value", data),
                    ]
                )
            )
        group.run(*elements)
        counters = group.meta().counters
        if batch % 25 == 24:
            entries = group.entries()
            live = sum(len(p) + len(s) + len(v) + 8 for p, s, v in entries)
            assert counters["live_bytes"] == live
            assert counters["log_bytes"] == group.log_bytes()
            assert counters["log_rows"] == len(list(group.log.read(1, 10**9)))
            assert counters["log_bytes"] <= 2 * live + (1 << 18) + 100_000
            assert group.rebuilt() == entries
    assert group.meta().first_row > 200


def test_a_log_of_which_nothing_is_live_shrinks_without_new_changes():
    group = Group()
    group.run(*[("k", "put", i, bytes(50_000)) for i in range(20)])
    group.run(*[("k", "remove", i) for i in range(20)])
    for _ in range(30):
        group.run()
    assert group.log_bytes() <= 1 << 18
    assert group.entries() == group.rebuilt() == []


@pytest.mark.usefixtures("eager")
@settings(max_examples=settings().max_examples // 2)
@given(RANDOMS)
def test_a_store_of_any_age_catches_up_to_what_is_committed(random):
    group = Group()
    old: list[Any] = [MemoryStore()]
    for watermark in range(25):
        group.run(
            *[random_element(random) for _ in range(random.choice([0, 1, 1, 6]))],
            watermark=watermark * 2 if random.random() < 0.3 else None,
            processing_time=watermark,
        )
        entries = group.entries()
        assert group.rebuilt() == entries
        old.append(copy.deepcopy(group.replica.store))
        if random.random() < 0.4:
            # Another process, with what it had at some time before.
            group.use(copy.deepcopy(random.choice(old)))
            assert group.entries() == entries


@pytest.mark.usefixtures("eager")
def test_a_store_on_disk_of_any_age_catches_up(tmp_path):
    random, group = Random(5), Group(store=open_rocks_store(tmp_path / "now"))
    for batch in range(20):
        group.run(*[random_element(random) for _ in range(4)], processing_time=batch)
        entries = group.entries()
        group.replica.close()
        shutil.copytree(tmp_path / "now", tmp_path / str(batch))
        if batch % 3 == 2:
            shutil.rmtree(tmp_path / "now")
            if batch % 2:
                shutil.copytree(tmp_path / str(random.randrange(batch)), tmp_path / "now")
        group.use(open_rocks_store(tmp_path / "now"))
        assert group.entries() == entries == group.rebuilt()
    assert group.meta().first_row > 1, "no cleaning: the elements test less than they are for"
    group.replica.close()


@settings(max_examples=settings().max_examples // 2)
@given(RANDOMS, st.booleans())
def test_a_store_that_followed_a_checkpoint_which_was_set_back_is_rebuilt(random, clean):
    group = Group()
    with pytest.MonkeyPatch.context() as patch:
        if clean:
            patch.setattr(group_log, "_SLACK_BYTES", 64)
        for _ in range(random.randrange(1, 6)):
            group.run(*[random_element(random) for _ in range(3)])
        course = group.fork()
        for _ in range(random.randrange(1, 5)):
            course.run(*[random_element(random) for _ in range(3)])
        course.entries()
        # The checkpoint is set back, and goes another way, to a row before, at or after the one the store stands at.
        for _ in range(random.randrange(7)):
            group.run(*[random_element(random) for _ in range(3)])
        expected = group.rebuilt()
        group.use(course.replica.store)
        assert group.entries() == expected
        group.run(*[random_element(random) for _ in range(3)])
        assert group.entries() == group.rebuilt()


@settings(max_examples=settings().max_examples // 2)
@given(RANDOMS)
def test_an_attempt_that_was_not_committed_leaves_no_trace(random):
    group = Group()
    for _ in range(8):
        elements = [random_element(random) for _ in range(3)]
        if random.random() < 0.5:
            group.run(*[random_element(random) for _ in range(3)], commit=False)
        if random.random() < 0.5:
            # The attempt that is committed runs elsewhere.
            other, here = group.fork(), group.replica
            other.run(*elements)
            group.commits = other.commits
            group.use(here.store)
            group.replica._pending = here._pending
        else:
            group.run(*elements)
        assert group.entries() == group.rebuilt()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", range(3))
def test_processes_that_share_a_store_need_no_log(tmp_path, seed):
    random, store = Random(seed), open_lmdb_store(tmp_path)
    group = Group(store=store)
    # Each process has a replica of its own, and Spark chooses one of them for each batch.
    replicas = [Replica(store) for _ in range(3)]
    lost = False
    for batch in range(30):
        group.replica = random.choice(replicas)
        group.group = KeyGroup(group.spec, 0, group.log, group.replica)
        store.refresh()
        group.run(*[random_element(random) for _ in range(4)], commit=random.random() > 0.2, processing_time=batch)
        meta = group.log.meta("")
        assert meta is None or group.entries() == group.rebuilt()
        store.release()
        if random.random() < 0.1:
            # The store is gone with its disk.
            store.reset()
            lost = True
    counters = group.meta().counters
    assert (counters["segments_replayed"] > 0) == (counters["entries_replayed"] > 0) == lost
    assert lost or not counters["stores_rebuilt"]
    store.close()


def test_a_kept_row_that_is_damaged_is_read_from_the_log(tmp_path):
    store = open_lmdb_store(tmp_path)
    group = Group(store=store)
    group.run(("a", "value", b"1"))
    head = group.log.meta("").head
    store.keep_rows(head, {1: b"damaged"})
    group.use(store)
    assert group.entries() == group.rebuilt()
    store.close()


class Failing(MemoryStore):
    """A store whose n-th read fails, once."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        super().__init__()
        self.left = -1

    def _read(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise LocalStoreError("the store is broken")

    def get(self, prefix, sub):
        self._read()
        return super().get(prefix, sub)

    def scan(self, prefix, start=b""):
        self._read()
        return super().scan(prefix, start)

    def due(self, kind, up_to):
        self._read()
        return super().due(kind, up_to)


@pytest.mark.usefixtures("eager")
def test_a_store_that_breaks_at_any_read_changes_nothing():
    random = Random(3)
    batches = [[random_element(random) for _ in range(6 + 20 * (n == 11))] for n in range(12)]
    # What the last batch removes lets it clean several rows.
    batches[-1] += [(f"k{k}", call) for k in range(3) for call in ("clear",)]
    batches[-1] += [(f"k{k}", "remove", number) for k in range(3) for number in range(5)]
    expected = Group()
    outputs = [expected.run(*batch).main.values for batch in batches]
    reads = 0
    while True:
        reads += 1
        store = Failing()
        group = Group(store=store)
        for batch in batches[:-1]:
            group.run(*batch)
        group.entries()
        store.left = reads
        assert group.run(*batches[-1]).main.values == outputs[-1]
        # Cleaning may stand elsewhere; what is live is the same.
        assert group.entries() == group.rebuilt() == expected.entries()
        assert group.log_bytes() == group.meta().log_bytes
        if store.left > 0:
            break
    assert reads > 30


def test_a_missing_or_foreign_row_is_corruption():
    random, group = Random(4), Group()
    for _ in range(6):
        group.run(*[random_element(random) for _ in range(3)])
    other = Group()
    other.run(("k", "value", b"x"))
    foreign = dict(other.log.read(1, 1))[1]
    for row in range(1, group.meta().last_row + 1):
        for replacement in (None, foreign):
            broken = group.fork()
            if replacement is None:
                broken.log.drop(row)
            else:
                broken.log.append(row, replacement)
            broken.commits.commit()
            with pytest.raises(CorruptionError, match=r"operator 'op', key group 0, log"):
                broken.rebuilt()


def test_a_group_without_state_costs_its_store_nothing():
    class Closed(MemoryStore):
        def reset(self):
            raise AssertionError("there is nothing to reset")

    group = Group(store=Closed.__new__(Closed))
    MemoryStore.reset(group.store)
    for _ in range(3):
        group.run(("k", "cancel_timer", "none"))
    assert group.meta().last_row == 0


@pytest.mark.usefixtures("eager")
def test_a_store_that_fails_while_a_commit_is_hashed_leaves_the_log_whole(monkeypatch):
    random, group = Random(3), Group()
    fails = [False]
    real = KeyGroup._hash

    def hashed(*arguments):
        if fails.pop():
            raise LocalStoreError("the disk is gone")
        return real(*arguments)

    monkeypatch.setattr(KeyGroup, "_hash", hashed)
    for _ in range(40):
        # Once, and then the batch runs again.
        fails[:] = [False, True]
        group.run(*[random_element(random) for _ in range(4)])
        assert group.rebuilt() == group.entries()
    assert group.meta().first_row > 1, "nothing was cleaned"


def end_in_the_middle(store):
    """Leave a store as a process does that ends while it works."""
    store._mark._write(1)
    store._mark._works = False
    store._database.close()
    store._mark.leave()


@pytest.mark.parametrize("hashed", [True, False])
def test_after_an_abnormal_end_entries_that_are_missing_or_old_are_found(tmp_path, hashed):
    group = Group(store=open_lmdb_store(tmp_path))
    if hashed:
        changelog = MemoryChangelog()
        changelog.prepare(OPERATOR, 1)
        group.group = KeyGroup(group.spec, 0, group.log, group.replica, changelog.writer(0))
    group.run(*[(f"k{number}", "value", b"old") for number in range(50)])
    group.run(*[(f"k{number}", "value", b"new") for number in range(50)])
    entries = group.entries()
    assert len(entries) == 50
    for value in (None, b"other") if hashed else (None,):
        store: Any = group.replica.store
        (key, stored), *_ = store._database.range(b"E", b"F")
        with store._database.transaction():
            store._database.write({key: value and stored[:4] + value})
        end_in_the_middle(store)
        group.use(open_lmdb_store(tmp_path))
        meta = group.log.meta("")
        assert group.replica.catch_up(group.log, meta, "") == (2, True)
        assert sorted(group.replica.store.items()) == sorted(entries)
    # A store that is whole is kept.
    end_in_the_middle(group.replica.store)
    group.use(open_lmdb_store(tmp_path))
    assert group.replica.catch_up(group.log, meta, "") == (0, False)
    group.replica.close()


class Unsteady(MemoryStore):
    """Answers as a damaged store would: an entry is not there, then it is."""

    asked = 0

    def get(self, prefix, sub):
        found = super().get(prefix, sub)
        if found is not None:
            self.asked += 1
        return None if self.asked == 1 else found


def test_counts_that_do_not_fit_are_found_before_a_marker_is_written():
    group, changelog = Group(), MemoryChangelog()
    changelog.prepare(OPERATOR, 1)
    group.group = KeyGroup(group.spec, 0, group.log, group.replica, changelog.writer(0))
    group.run(("k", "value", b"1"))
    entries = group.entries()
    unsteady = Unsteady()
    group.use(unsteady)
    group.group = KeyGroup(group.spec, 0, group.log, group.replica, changelog.writer(0))
    group.run(("k", "value", b"2"))
    assert unsteady.asked > 1
    assert group.meta().live == len(group.entries()) == len(entries)
    assert group.entries() == group.rebuilt()


@pytest.mark.parametrize("hashed", [True, False])
def test_a_snapshot_is_not_written_from_a_store_that_lacks_entries(hashed):
    group, changelog = Group(), MemoryChangelog()
    if hashed:
        earlier = MemoryChangelog()
        earlier.prepare(OPERATOR, 1)
        group.group = KeyGroup(group.spec, 0, group.log, group.replica, earlier.writer(0))
    group.run(*[(f"k{number}", "value", b"1") for number in range(9)])
    # Bring the store up to date, then lose an entry.
    group.entries()
    store: Any = group.replica.store
    position = store.position()
    (prefix, sub, _), *_ = store.items()
    store.apply(*position, [(prefix, sub, None)])
    changelog.prepare(OPERATOR, 1)
    group.group = KeyGroup(group.spec, 0, group.log, group.replica, changelog.writer(0))
    group.run(("k1", "value", b"2"))
    group.group.flush()
    assert len(group.entries()) == 9
    assert not any(each.problem for each in verify_changelog(changelog))
