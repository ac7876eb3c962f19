"""The cost of calls, counted in calls of the local store instead of in time."""

from __future__ import annotations

from collections import Counter

import pytest

from keyed import KeyedProcessFunction, ListState, MapState, StateTtl, TimeDomain, ValueState
from keyed.engine import group_log
from keyed.engine.group_log import decode_meta
from keyed.stores import MemoryStore
from tests.keyed.engine.groups import Group


class Counting(MemoryStore):
    """Counts the reads, and the entries that iterators give."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def get(self, prefix, sub):
        self.calls["get"] += 1
        return super().get(prefix, sub)

    def scan(self, prefix, start=b""):
        self.calls["scan"] += 1
        for entry in super().scan(prefix, start):
            self.calls["scanned"] += 1
            yield entry

    def due(self, kind, up_to):
        for entry in super().due(kind, up_to):
            self.calls["due"] += 1
            yield entry

    def items(self):
        self.calls["items"] += 1
        return super().items()


class Calls(KeyedProcessFunction):
    map = MapState(int, int)
    list = ListState(int)
    value = ValueState(int)
    brief = MapState(int, int, ttl=StateTtl(milliseconds=10, time_domain=TimeDomain.EVENT_TIME))

    def process_element(self, value, ctx):
        value[1](self, ctx)
        return ()

    def on_timer(self, timestamp, ctx):
        yield timestamp


@pytest.fixture
def group():
    """A group with a thousand of everything."""
    group = Group(Calls(), Counting())

    def fill(f, ctx):
        f.map.put_all({i: i for i in range(1000)})
        f.list.add_all(range(1000))
        for i in range(1000):
            f.brief.put(i, i) if i < 10 else None
            ctx.timer_service().register_event_time_timer(1000 + i)
            ctx.timer_service().set_timer(i, 5000 + i)

    group.run(("a", fill))
    group.run(*[(f"k{i}", lambda f, ctx: f.value.update(1)) for i in range(1000)])
    group.entries()
    group.store.calls.clear()
    return group


def calls(group, *functions, **marks):
    counted = group.store.calls
    group.group.committed()
    counted.clear()
    group.run(*[("a", function) for function in functions], **marks)
    found = dict(counted)
    counted.clear()
    return found


def test_a_map_get_reads_one_entry_and_an_overwrite_one_more(group):
    assert calls(group, lambda f, ctx: f.map.get(7)) == {"get": 1}
    assert calls(group, *[lambda f, ctx: f.map.get(7)] * 5) == {"get": 1}
    assert calls(group, lambda f, ctx: f.map.put(7, 8)) == {"get": 1}
    assert calls(group, lambda f, ctx: f.map.contains(7) and f.map.remove(7)) == {"get": 2}
    assert calls(group, lambda f, ctx: f.map.is_empty())["scanned"] <= 2


def test_appending_to_a_list_does_not_read_it(group):
    assert calls(group, lambda f, ctx: f.list.add_all([1, 2])) == {"get": 2}


def test_an_advance_costs_in_proportion_to_the_timers_that_fire(group):
    # Of those that are due one is read, and its entry once more when it is removed.
    for watermark in (1000, 1001):
        assert calls(group, watermark=watermark) == {
            "due": 1 + 10 * (watermark == 1000),
            "get": 1 + 10 * (watermark == 1000),
        }
    assert calls(group, watermark=1011) == {"due": 10, "get": 10}
    assert calls(group, processing_time=10**6) == {}
    assert group.meta().counters["timers_fired"] == 12


def test_setting_a_timer_reads_its_entry_alone(group):
    assert calls(group, lambda f, ctx: ctx.timer_service().register_event_time_timer(9000)) == {"get": 1}
    assert calls(group, lambda f, ctx: ctx.timer_service().delete_event_time_timer(9000)) == {"get": 1}
    assert calls(group, lambda f, ctx: ctx.timer_service().set_timer(3, 9000)) == {"get": 1}


def test_listing_timers_reads_those_of_the_key(group):
    assert calls(group, lambda f, ctx: [ctx.timer_service().timers()])["scanned"] == 2000

    def other(f, ctx):
        for i in range(300):
            ctx.timer_service().register_event_time_timer(10_000 + i)

    looks = []

    class Times(dict):
        """The buckets of a queue, that count how often they are looked through."""

        def items(self):
            looks.append(1)
            return super().items()

    def many(f, ctx):
        queue = ctx.timer_service().event
        queue._unnamed = Times(queue._unnamed)
        for _ in range(50):
            assert ctx.timer_service().timers() == []

    counted = group.store.calls
    counted.clear()
    group.run(*[(f"k{i}", other) for i in range(5)], ("new", many))
    assert counted["scanned"] == 0
    # Once for the index, once at the end of the batch.
    assert len(looks) == 2


def test_a_batch_reads_in_proportion_to_what_it_touches(group):
    assert calls(group) == {}
    group.run(("k5", lambda f, ctx: f.value.value()))
    assert group.store.calls == {"get": 1}


def test_expiry_reads_what_expires(group):
    group.run(watermark=500)
    group.run(("b", lambda f, ctx: f.brief.put(1, 1)))
    found = calls(group, watermark=600)
    assert found == {"due": 1, "get": 1}
    assert group.meta().counters["entries_expired"] == 11


def test_a_batch_decodes_the_meta_record_once(group, monkeypatch):
    decoded = []

    def counted(record, where):
        decoded.append(where)
        return decode_meta(record, where)

    monkeypatch.setattr(group_log, "decode_meta", counted)
    group.run(("a", lambda f, ctx: f.value.update(1)))
    decoded.clear()
    assert group.group.counters()["batches"] == 3
    assert not group.group.is_due(0)
    group.run(("a", lambda f, ctx: f.value.update(2)))
    assert len(decoded) == 1


def test_clearing_a_map_or_list_reads_no_entry_by_itself_and_moves_none_in_the_log(group):
    def clear(f, ctx):
        f.map.clear()
        f.list.clear()
        f.map.put(1, 7)

    made = calls(group, clear)
    assert made["scanned"] == 2000
    # The one that is written again is looked up; what the log has of the others is not looked for in the store.
    assert made["get"] < 100
    assert len(group.entries()) == 3001 + 10
