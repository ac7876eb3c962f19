"""Push: whoever applies the changes has the table, whatever happened to reader and follower in between."""

from __future__ import annotations

import asyncio
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.testing import KeyedTestHarness
from keyed.views import Change, StateTables, open_tables


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


def apply(copy: dict[Any, Any], changes: list[Change]) -> None:
    """Apply changes, and check that none is missing and none comes twice."""
    for change in changes:
        place = (change.key, change.entry)
        if change.kind == "snapshot":
            assert place not in copy
        else:
            assert copy.get(place) == change.old
            assert change.old != change.new
        copy.pop(place, None)
        if not change.removed:
            copy[place] = change.new


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
                            apply(copy, [change])
                            subscription = tables["counts"].subscribe(after=change.token)
                        continue
                    while changes := subscription.take(0):
                        apply(copy, changes)
                tables.poll()
                while changes := subscription.take(0):
                    apply(copy, changes)
                assert copy == contents(tables, "counts")
                assert subscription.resets == 0
            finally:
                tables.close()


@pytest.fixture
def job(tmp_path):
    changelog = keyed.DirectoryChangelog(tmp_path / "log", compaction_lag=0, auto_compact=False)
    with (
        KeyedTestHarness(Counts(), key=lambda value: value[0], changelog=changelog) as harness,
        open_tables(changelog, tmp_path / "tables", history=2_000) as tables,
    ):
        harness.process(("a", "x", 1))
        tables.poll()
        yield harness, tables, changelog


def test_a_subscription_begins_with_the_state_and_goes_on_with_changes(job):
    harness, tables, _ = job
    subscription = tables["total"].subscribe()
    [first] = subscription.take(0)
    assert (first.kind, first.batch, first.key, first.old, first.new) == ("snapshot", 1, "a", None, 1)
    assert subscription.take(0) == []
    harness.process(("a", "x", 2))
    [second] = subscription.take(300)
    assert (second.kind, second.batch, second.old, second.new, second.removed) == ("change", 2, 1, 3, False)


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


def test_changes_come_to_those_who_wait(job):
    harness, tables, _ = job
    tables.start(every=0.01)

    async def first_two() -> list[Change]:
        found = []
        async for change in tables["total"].subscribe(after="beginning"):
            found.append(change)
            if len(found) == 2:
                break
            await asyncio.to_thread(harness.process, ("a", "x", 2))
        return found

    assert [change.new for change in asyncio.run(first_two())] == [1, 3]
    iterator = iter(tables["total"].subscribe())
    assert next(iterator).new == 3


def test_what_cannot_be_followed_is_refused(job):
    _, tables, _ = job
    with pytest.raises(keyed.DefinitionError, match="is no token"):
        tables["total"].subscribe(after="nonsense")
    with tables.snapshot() as snapshot, pytest.raises(keyed.DefinitionError, match="does not change"):
        snapshot["total"].subscribe()
    with pytest.raises(keyed.EncodingError, match="prefix=3"):
        tables["total"].subscribe(prefix=3)
