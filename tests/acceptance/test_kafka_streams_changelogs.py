"""Kafka Streams' logging stores and restoration: ChangeLogging*StoreTest and StoreChangelogReaderTest."""

from __future__ import annotations

from typing import Any

import pytest

import keyed
from keyed import ListState, MapState, ReducingState, RestorePoint, ValueState
from keyed.recovery import verify
from keyed.testing import KeyedTestHarness, MemoryChangelog
from keyed.windows import Count, EventTimeSessionWindows
from tests.acceptance.support import Told, both_stores, key_of
from tests.support.window_operators import window_rows


class Stores(Told):
    value = ValueState(int)
    entries = MapState(str, int)
    items = ListState(int)
    total = ReducingState(lambda a, b: a + b, int)


CALLS: list[tuple[Any, list[Any]]] = [
    # What is called, and what is logged: (state, entry, value), None where it was removed.
    (lambda f: f.value.update(1), [("value", None, 1)]),
    (lambda f: f.value.value(), []),
    (lambda f: f.entries.put("a", 1), [("entries", "a", 1)]),
    (lambda f: f.entries.put_all({"b": 2, "c": 3}), [("entries", "b", 2), ("entries", "c", 3)]),
    (lambda f: f.entries.contains("b"), []),
    (lambda f: list(f.entries.items()), []),
    (lambda f: f.entries.remove("a"), [("entries", "a", None)]),
    (lambda f: f.entries.remove("never there"), []),
    (lambda f: [f.entries.put("d", 4), f.entries.remove("d")], []),
    (lambda f: [f.value.update(2), f.value.update(3)], [("value", None, 3)]),
    (lambda f: f.value.update(None), [("value", None, None)]),
    (lambda f: f.items.add_all([5, 6]), [("items", 0, 5), ("items", 1, 6)]),
    (lambda f: f.items.update([7]), [("items", 0, None), ("items", 1, None), ("items", 0, 7)]),
    (lambda f: f.total.add(8), [("total", None, 8)]),
    (lambda f: f.total.add(8), [("total", None, 16)]),
    (lambda f: f.entries.clear(), [("entries", "b", None), ("entries", "c", None)]),
]


def exported(store="memory"):
    """A changelog of a harness that made each of the calls in a commit of its own, and the harness."""
    log = MemoryChangelog()
    harness = KeyedTestHarness(Stores(), key=key_of, store=store, parallelism=2, changelog=log)
    for call, _ in CALLS:
        harness.process(("k", lambda f, _, call=call: call(f) and None))
    return log, harness


@both_stores
def test_what_is_logged(store):
    """ChangeLoggingKeyValueBytesStoreTest: shouldLogChangeOnPut, shouldLogChangesOnPutAll, shouldLogKeyNullOnDelete."""
    log, _ = exported(store)
    found: dict[int, list] = {number: [] for number in range(1, len(CALLS) + 1)}
    for change in keyed.recovery.read_changelog(log):
        entry = change.entry[1] if change.state == "items" else change.entry
        assert (change.key, change.removed) == ("k", change.value is None)
        found[change.commit.sequence].append((change.state, entry, change.value))
    for number, (_, logged) in enumerate(CALLS, start=1):
        assert sorted(found[number], key=repr) == sorted(logged, key=repr), number


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_store_is_restored_as_it_was_after_each_commit(parallelism):
    """StoreChangelogReaderTest.shouldRestoreToLimit and RestoreIntegrationTest: removed entries do not come back."""
    log, harness = exported()
    folded: dict = {}
    changes = list(keyed.recovery.read_changelog(log))
    for number in range(1, len(CALLS) + 1):
        for change in changes:
            if change.commit.sequence == number:
                folded[change.state, change.entry] = change.value
        live = {name: value for name, value in folded.items() if value is not None}
        point = RestorePoint(log, as_of=number - 1)
        with KeyedTestHarness(Stores(), key=key_of, parallelism=parallelism, restore_from=point) as restored:
            assert restored.state_entries() == len(live)
            seen: list = []
            restored.process(
                ("k", lambda f, _, seen=seen: seen.extend([f.value.value(), dict(f.entries.items()), list(f.items)]))
            )
            assert seen == [
                live.get(("value", None)),
                {entry: value for (state, entry), value in live.items() if state == "entries"},
                [value for (state, _), value in sorted(live.items(), key=repr) if state == "items"],
            ]
    assert {checked.problem for checked in verify(log)} == {""}
    assert harness.state_entries() == 2


def test_sessions_that_merge_are_removed_from_the_log():
    """ChangeLoggingSessionBytesStoreTest.shouldLogPuts and shouldLogRemove, with restored timers that still fire."""
    log = MemoryChangelog()
    operator = window_rows(assigner=EventTimeSessionWindows.with_gap(10), aggregate={"n": Count()})
    harness = KeyedTestHarness(operator, key=key_of, changelog=log)
    for time in (0, 18, 9):
        harness.process(("k", time), time)
    with KeyedTestHarness(operator, key=key_of, restore_from=log, parallelism=2) as restored:
        restored.advance_watermark(26)
        assert restored.take_output() == []
        restored.advance_watermark(27)
        assert [tuple(record.value) for record in restored.take_output()] == [("k", 0, 28, 3)]
        assert (restored.state_entries(), restored.pending_timers()) == (0, [])
    harness.end_of_input()
    last = {(change.state, change.entry): change.removed for change in keyed.recovery.read_changelog(log)}
    assert set(last.values()) == {True}
