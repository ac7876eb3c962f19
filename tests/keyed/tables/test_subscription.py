"""Push: whoever applies the changes has the table, whatever happened to reader and follower in between."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.base.background import Status
from keyed.tables import Change, StateTables, open_tables
from keyed.tables import subscription as subscription_module
from keyed.tables.entries import StoredEntries
from keyed.tables.subscription import Subscription
from keyed.testing import KeyedTestHarness
from tests.support.tables import apply_changes, followed
from tests.support.waiting import until


class Counts(keyed.KeyedProcessFunction):
    """An element is (key, name, number); a number of 0 removes the name."""

    counts = keyed.MapState(str, int)
    total = keyed.ValueState(int)

    def process_element(self, value, ctx):
        _, name, number = value
        if number:
            self.counts.put(name, number)
        else:
            self.counts.remove(name)
        self.total.update((self.total.value() or 0) + number)


def contents(tables: StateTables, name: str) -> dict[Any, Any]:
    return {(entry.key, entry.entry): entry.value for entry in tables[name]}


elements = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 3))


@settings(deadline=None)
@given(st.lists(st.lists(elements, max_size=4), min_size=2, max_size=10), st.sampled_from([1, 3]), st.data())
def test_a_reader_that_goes_on_from_its_token_misses_nothing_and_sees_nothing_twice(batches, parallelism, data):
    with TemporaryDirectory() as folder:
        changelog = keyed.DirectoryChangelog(f"{folder}/log")
        with KeyedTestHarness(
            Counts(), key=lambda value: value[0], parallelism=parallelism, changelog=changelog
        ) as harness:
            harness.process(("a", "x", 1))
            tables = open_tables(changelog, f"{folder}/tables")
            tables.poll()
            after = data.draw(st.sampled_from([None, "beginning", "now"]))
            copy = contents(tables, "counts") if after == "now" else {}
            subscription = tables["counts"].subscribe(after=after)
            try:
                for batch in batches:
                    with harness.batch():
                        for element in batch:
                            harness.process(element)
                    what = data.draw(
                        st.sampled_from(["read", "read a part", "nothing", "reader anew", "follower anew"])
                    )
                    if what == "nothing":
                        continue
                    if what == "follower anew":
                        tables.close()
                        tables = open_tables(changelog, f"{folder}/tables")
                    tables.poll()
                    if what.endswith("anew") and subscription.token is not None:
                        subscription = tables["counts"].subscribe(after=subscription.token)
                    elif what == "follower anew":
                        copy, subscription = {}, tables["counts"].subscribe()
                    if what == "read a part":
                        change = next(iter(subscription.take(0)), None)
                        if change is not None:
                            apply_changes(copy, [change])
                            subscription = tables["counts"].subscribe(after=change.token)
                        continue
                    while changes := subscription.take(0):
                        apply_changes(copy, changes)
                tables.poll()
                while changes := subscription.take(0):
                    apply_changes(copy, changes)
                assert copy == contents(tables, "counts")
                assert subscription.resets == 0
            finally:
                tables.close()


@pytest.fixture
def job(tmp_path):
    changelog = keyed.DirectoryChangelog(tmp_path / "log", compaction_lag=0, auto_compact=False)
    with followed(Counts(), tmp_path, opened={"history": 2_000}, changelog=changelog) as (harness, tables):
        harness.process(("a", "x", 1))
        tables.poll()
        yield harness, tables, changelog


def test_one_key_or_a_prefix_is_followed_alone(job):
    harness, tables, _ = job
    one, some = tables["total"].subscribe("b", after="now"), tables["total"].subscribe(prefix="b", after="now")
    for key in ("a", "b", "bc", "c"):
        harness.process((key, "x", 1))
    tables.poll()
    assert [change.key for _ in range(4) for change in one.take(0)] == ["b"]
    assert [change.key for _ in range(4) for change in some.take(0)] == ["b", "bc"]


def test_a_reader_behind_the_history_gets_the_state_anew(job):
    harness, tables, _ = job
    subscription = tables["total"].subscribe()
    subscription.take(0)
    for number in range(5):
        harness.advance_processing_time(2_000 * number)
        harness.process(("b", "x", 1))
        tables.poll()
    changes = subscription.take(0)
    assert [(change.kind, change.key, change.new) for change in changes] == [("snapshot", "a", 1), ("snapshot", "b", 5)]
    assert subscription.resets == 1


class Step:
    """One step of the event loop."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@pytest.mark.parametrize("resumes", [False, True], ids=["the same subscription", "its token"])
def test_a_reader_that_is_cancelled_at_any_await_loses_nothing_and_gets_nothing_twice(job, resumes):
    """It is cancelled after each number of steps of the event loop: before, while and after a thread reads for it."""
    harness, tables, _ = job
    subscription = tables["counts"].subscribe(after="beginning")
    copy: dict[Any, Any] = {}
    delivered: list[str] = []
    places = set()

    async def read(subscription: Subscription) -> None:
        async for change in subscription:
            apply_changes(copy, [change])
            delivered.append(change.token)
            # A token names what was delivered, and nothing behind it.
            assert subscription.token == change.token
            await Step()

    async def cancel_again_and_again(subscription: Subscription) -> Subscription:
        for number in range(150):
            if number % 3 == 0:
                with harness.batch():
                    for name in "xyz":
                        harness.process(("abc"[number % 5 % 3], name, 2 + number))
            held = subscription._lock if number % 4 == 2 else threading.Lock()
            # Its thread is reading for as long as this is held.
            held.acquire()
            task = asyncio.create_task(read(subscription))
            for _ in range(number % 9):
                await Step()
            if number % 2:
                # What the thread reads is there, and the reader does not have it yet.
                until(lambda: subscription._undelivered or not subscription._lock.locked())  # noqa: B023
            places.add((number % 9 == 0, bool(subscription._undelivered), subscription._lock.locked()))
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            held.release()
            if resumes and delivered:
                subscription = tables["counts"].subscribe(after=delivered[-1])
        return subscription

    subscription = asyncio.run(cancel_again_and_again(subscription))
    tables.poll()
    while changes := subscription.take(0):
        apply_changes(copy, changes)
        delivered += [change.token for change in changes]
    assert copy == contents(tables, "counts")
    assert len(delivered) == len(set(delivered)) == 1 + 3 * 50
    assert subscription.resets == 0
    # Readers were cancelled before they began, while a thread read, and when it had.
    assert {(True, False, False), (False, False, True), (False, True, False)} <= places


def test_an_iterator_goes_on_after_a_wait_that_timed_out(job):
    harness, tables, _ = job

    async def read() -> list[int]:
        changes = aiter(tables["total"].subscribe(after="beginning"))
        found = [(await anext(changes)).new]
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.001)
        harness.process(("a", "x", 2))
        found.append((await anext(changes)).new)
        return found

    assert asyncio.run(read()) == [1, 3]


def test_what_fails_while_a_batch_is_read_is_read_again_and_comes_once(job, monkeypatch):
    harness, tables, _ = job
    subscription = tables["counts"].subscribe()
    subscription.take(0)
    with harness.batch():
        for name in "uvwxyz":
            harness.process(("b", name, 1))
    tables.poll()
    change, fails = subscription_module._change, iter([None, None, keyed.errors.LocalStoreError("the disk fails")])

    def failing(*arguments: Any, **keywords: Any) -> Change:
        error = next(fails, None)
        if error is not None:
            raise error
        return change(*arguments, **keywords)

    monkeypatch.setattr(subscription_module, "_change", failing)
    token = subscription.token
    with pytest.raises(keyed.errors.LocalStoreError):
        subscription.take(0)
    assert subscription.token == token
    assert [found.entry for found in subscription.take(0)] == list("uvwxyz")


def test_a_subscription_has_the_status_of_its_tables(job):
    _, tables, _ = job
    subscription = tables["counts"].subscribe()
    assert subscription.status is tables.status is Status.FOLLOWING
    tables.close()
    assert repr(subscription) == "<Subscription to counts, closed, after None>"


def test_a_snapshot_cannot_be_followed(job):
    with job[1].snapshot() as snapshot, pytest.raises(keyed.errors.DefinitionError, match="does not change"):
        snapshot["total"].subscribe()


class Texts(keyed.KeyedProcessFunction):
    text = keyed.ValueState(str)

    def process_element(self, value, ctx):
        self.text.update("x" * 100_000)


def test_a_snapshot_of_large_values_comes_in_small_parts(tmp_path):
    """A reader that takes nothing holds one part: 300 of them held 268 MB."""
    with followed(Texts(), tmp_path, key=lambda value: value) as (harness, tables):
        with harness.batch():
            for number in range(20):
                harness.process(number)
        tables.poll()
        subscription = tables["text"].subscribe()
        parts = []
        while part := subscription.take(0):
            parts.append([change.key for change in part])
        assert [key for part in parts for key in part] == list(range(20))
        assert max(map(len, parts)) == 3


def test_the_changes_of_a_large_batch_come_in_small_parts_and_are_read_once(tmp_path, monkeypatch):
    """A reader that takes nothing holds one part, and those who are in the midst of a batch share what it changed."""
    with followed(Texts(), tmp_path, key=lambda value: value) as (harness, tables):
        harness.process(100)
        tables.poll()
        (operator,) = tables._operators.values()
        # The batch is too large to be kept for those who come later.
        monkeypatch.setattr(operator.changes, "_limit", 100_000)
        stored_changes, reads = StoredEntries.changes, []

        def changes(self: StoredEntries) -> Iterator[Any]:
            reads.append(self)
            return stored_changes(self)

        monkeypatch.setattr(StoredEntries, "changes", changes)
        subscriptions = [tables["text"].subscribe(after="now") for _ in range(2)]
        of_one = tables["text"].subscribe(7, after="now")
        with harness.batch():
            for number in range(20):
                harness.process(number)
        tables.poll()
        parts = []
        while any(found := [[change.key for change in each.take(0)] for each in subscriptions]):
            assert found[0] == found[1]
            parts.append(found[0])
        assert [key for part in parts for key in part] == list(range(20))
        assert max(map(len, parts)) == 3
        assert len(reads) == 1
        gc.collect()
        assert not operator.changes._large
        assert [change.key for change in of_one.take(0)] == [7]
        early, late = tables["text"].subscribe(after="beginning"), []
        assert [change.key for change in early.take(0)] == [100]
        early.take(0)
        again = tables["text"].subscribe(after=early.token)
        while part := again.take(0):
            late += [change.key for change in part]
        assert late == list(range(3, 20))


def test_an_asynchronous_reader_takes_the_change_that_another_one_is_about_to_take(job, monkeypatch):
    subscription = job[1]["counts"].subscribe()
    deliver, taken = subscription._deliver_all, list[str]()

    def deliver_late():
        if not taken:
            taken.append(asyncio.run(subscription.__anext__()).key)
        return deliver()

    monkeypatch.setattr(subscription, "_deliver_all", deliver_late)
    assert (subscription.take(0.0), taken) == ([], ["a"])


def test_two_threads_read_one_subscription(job, monkeypatch):
    """Each change goes to one of them, also where both wait for one."""
    harness, tables, _ = job
    subscription = tables["counts"].subscribe()
    both, locked = threading.Barrier(2), subscription._locked

    @contextmanager
    def slow(timeout):
        with locked(timeout) as is_locked:
            yield is_locked
        with suppress(threading.BrokenBarrierError):
            both.wait(0.1)

    monkeypatch.setattr(subscription, "_locked", slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(next, subscription), pool.submit(next, subscription)
        wait([first, second], 60, FIRST_COMPLETED)
        harness.process(("b", "x", 1))
        tables.poll()
        assert sorted(each.result(300).key for each in (first, second)) == ["a", "b"]
    assert subscription.take(0) == []
