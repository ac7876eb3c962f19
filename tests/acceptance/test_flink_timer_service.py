"""Flink's InternalTimerServiceImplTest: timers of the timer service, through the harness.

Flink's timers of a namespace are named timers here: ``set_timer(namespace, t)``. The difference is stated: a name has
one timer at a time, as in Beam, so cases that register a namespace at several times use unnamed timers.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP, KeyedProcessFunction, ValueState
from keyed.errors import DefinitionError
from keyed.testing import KeyedTestHarness, Record
from tests.acceptance.support import (
    EVENT,
    PROCESSING,
    Harness,
    Told,
    advance,
    both_domains,
    both_stores,
    delete,
    key_of,
    pending,
    register,
)

KEYS = (1, 2)
NAMES = ("ciao", "hello")


def numbered(harness, domain, name=None):
    """numEventTimeTimers(namespace) and numProcessingTimeTimers(namespace)."""
    timers = [timer for timer in harness.pending_timers() if timer.domain is domain]
    return sum(1 for timer in timers if name is None or timer.name == name)


@both_stores
def test_timer_assignment_to_key_groups(store):
    """InternalTimerServiceImplTest.testTimerAssignmentToKeyGroups: a hundred keys over ten groups, in both domains."""
    harness = Harness(store=store, parallelism=10)
    with harness.batch():
        for at in range(10, 110):
            harness.set_timers(lambda t, at=at: [register(t, each, at) for each in (EVENT, PROCESSING)], key=at - 10)
    for domain in (EVENT, PROCESSING):
        found = {(t.key, t.timestamp) for t in harness.pending_timers() if t.domain is domain}
        assert found == {(key, 10 + key) for key in range(100)}
    for domain in (EVENT, PROCESSING):
        advance(harness, domain, 59)
        assert sorted(value[0] for value in harness.values()) == list(range(10, 60))
        assert numbered(harness, domain) == 50


@both_stores
@both_domains
def test_timers_fire_one_timestamp_after_the_other(store, domain):
    """InternalTimerServiceImplTest.testOnlySetsOnePhysicalProcessingTimeTimer: what is left after each step."""
    harness = Harness(store=store)
    for timestamp in (10, 20, 30):
        harness.timers(lambda t, at=timestamp: register(t, domain, at), key="ciao")
    for timestamp in (10, 20):
        harness.timers(lambda t, at=timestamp: register(t, domain, at), key="hello")
    assert numbered(harness, domain) == 5
    assert len(harness.pending_timers("hello")) == 2
    for now, left in ((10, 3), (20, 1), (30, 0)):
        advance(harness, domain, now)
        assert numbered(harness, domain) == left
    harness.timers(lambda t: register(t, domain, 40), key="ciao")
    assert pending(harness) == [("ciao", None, 40)]


@both_domains
def test_a_timer_that_is_earlier_than_those_that_wait(domain):
    """InternalTimerServiceImplTest.testRegisterEarlierProcessingTimerMovesPhysicalProcessingTimer."""
    harness = Harness()
    harness.timers(lambda t: register(t, domain, 20))
    harness.timers(lambda t: register(t, domain, 10))
    assert numbered(harness, domain) == 2
    advance(harness, domain, 10)
    assert harness.values() == [(10, "k", None)]
    advance(harness, domain, 20)
    assert harness.values() == [(20, "k", None)]


@both_stores
@both_domains
def test_registering_a_timer_in_on_timer_does_not_leak(store, domain):
    """InternalTimerServiceImplTest.testRegisteringProcessingTimeTimerInOnProcessingTimeDoesNotLeakPhysicalTimers."""

    def timer(_, ctx, timestamp):
        register(ctx.timer_service(), domain, timestamp + 10)

    harness = Harness(Told(timer), store=store)
    harness.timers(lambda t: register(t, domain, 10))
    for now in (10, 20, 30):
        advance(harness, domain, now)
        assert harness.values() == [(now, "k", None)]
        assert pending(harness) == [("k", None, now + 10)]


def test_the_clocks_start_and_move():
    """InternalTimerServiceImplTest.testCurrentProcessingTime and testCurrentEventTime; neither moves back."""
    harness = Harness()
    read = [(MIN_TIMESTAMP, 0)]
    for now in (17, 42, 5):
        harness.advance_watermark(now)
        harness.advance_processing_time(now + 1)
        read.append(harness.timers(lambda t: (t.current_watermark(), t.current_processing_time())))
    assert read == [(MIN_TIMESTAMP, 0), (17, 18), (42, 43), (42, 43)]
    assert (harness.current_watermark, harness.current_processing_time) == (42, 43)


@both_stores
@both_domains
def test_set_and_fire_timers(store, domain):
    """InternalTimerServiceImplTest.testSetAndFireEventTimeTimers and testSetAndFireProcessingTimeTimers."""
    harness = Harness(store=store)
    for key in KEYS:
        harness.timers(lambda t: [t.set_timer(name, 10, domain) for name in NAMES], key=key)
    assert numbered(harness, domain) == 4
    assert numbered(harness, domain, "hello") == numbered(harness, domain, "ciao") == 2
    advance(harness, domain, 10)
    assert harness.values() == [(10, key, name) for key in KEYS for name in NAMES]
    assert harness.metrics()["timers_fired"] == 4
    assert numbered(harness, domain) == 0


@both_stores
@both_domains
def test_delete_timers(store, domain):
    """InternalTimerServiceImplTest.testDeleteEventTimeTimers and testDeleteProcessingTimeTimers."""
    harness = Harness(store=store)
    for key in KEYS:
        harness.timers(lambda t: [t.set_timer(name, 10, domain) for name in NAMES], key=key)
    harness.timers(lambda t: t.cancel_timer("hello", domain), key=1)
    harness.timers(lambda t: t.cancel_timer("ciao", domain), key=2)
    assert numbered(harness, domain) == 2
    advance(harness, domain, 10)
    assert harness.values() == [(10, 1, "ciao"), (10, 2, "hello")]
    assert numbered(harness, domain) == 0


@both_stores
@both_domains
def test_deleting_is_for_the_own_key_domain_and_timestamp(store, domain):
    """The unnamed form of testDeleteEventTimeTimers: every near miss leaves the timer where it is."""
    other = PROCESSING if domain is EVENT else EVENT
    harness = Harness(store=store)
    harness.timers(lambda t: register(t, domain, 10), key="a")
    harness.timers(lambda t: delete(t, domain, 10), key="b")
    harness.timers(lambda t: (delete(t, other, 10), delete(t, domain, 9), t.cancel_timer("x", domain)), key="a")
    assert pending(harness) == [("a", None, 10)]
    harness.timers(lambda t: delete(t, domain, 10), key="a")
    assert pending(harness) == []
    advance(harness, domain, 100)
    assert harness.values() == []
    metrics = harness.metrics()
    assert [metrics[f"timers_{name}"] for name in ("registered", "fired", "pending")] == [1, 0, 0]


@both_stores
@both_domains
@pytest.mark.parametrize("one_commit", [True, False])
def test_a_timer_is_one_per_key_domain_and_timestamp(store, domain, one_commit):
    """KeyGroupedInternalPriorityQueue is a set: registering again changes nothing, deleting once is enough."""
    harness = Harness(store=store)
    if one_commit:
        harness.timers(lambda t: [register(t, domain, 10) for _ in range(3)])
    else:
        for _ in range(3):
            harness.timers(lambda t: register(t, domain, 10))
    assert numbered(harness, domain) == 1
    assert harness.metrics()["timers_registered"] == 1
    advance(harness, domain, 10)
    assert harness.values() == [(10, "k", None)]
    harness.timers(lambda t: (register(t, domain, 20), register(t, domain, 20), delete(t, domain, 20)))
    assert pending(harness) == []


@both_stores
def test_for_each_timer(store):
    """InternalTimerServiceImplTest.testForEachEventTimeTimers and testForEachProcessingTimeTimers."""
    harness = Harness(store=store)
    for key in KEYS:
        for name in NAMES:
            harness.timers(lambda t, name=name: (t.set_timer(name, 10), t.set_timer(name, 11, PROCESSING)), key=key)
        harness.timers(lambda t: t.register_event_time_timer(5), key=key)
    listed = [harness.timers(lambda t: t.timers(), key=key) for key in KEYS]
    for key, timers in zip(KEYS, listed, strict=True):
        assert [(t.timestamp, t.domain, t.name, t.key) for t in timers] == [
            (5, EVENT, None, key),
            (10, EVENT, "ciao", key),
            (10, EVENT, "hello", key),
            (11, PROCESSING, "ciao", key),
            (11, PROCESSING, "hello", key),
        ]
    assert sorted(timer for timers in listed for timer in map(repr, timers)) == sorted(
        map(repr, harness.pending_timers())
    )


@both_stores
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_snapshot_and_rebalancing_restore(store, parallelism):
    """InternalTimerServiceImplTest.testSnapshotAndRestore and testSnapshotAndRebalancingRestore."""
    first = Harness(parallelism=3)
    first.timers(lambda t: (t.set_timer("ciao", 10, PROCESSING), t.set_timer("hello", 10)), key=1)
    first.timers(lambda t: (t.set_timer("ciao", 10), t.set_timer("hello", 10, PROCESSING)), key=2)
    first.timers(lambda t: (t.register_event_time_timer(9), t.register_processing_time_timer(9)), key=3)
    first.advance_watermark(4)
    first.advance_processing_time(5)
    harness = first.again(Told(), store=store, parallelism=parallelism)
    assert (harness.current_watermark, harness.current_processing_time) == (4, 5)
    assert pending(harness) == pending(first)
    harness.advance_processing_time(10)
    assert sorted(harness.values()) == [(9, 3, None), (10, 1, "ciao"), (10, 2, "hello")]
    harness.advance_watermark(10)
    assert sorted(harness.values()) == [(9, 3, None), (10, 1, "hello"), (10, 2, "ciao")]
    assert pending(harness) == []


def test_a_snapshot_is_of_its_moment():
    """A snapshot does not have later changes; the harness that made it goes on."""
    first = Harness()
    first.timers(lambda t: t.register_event_time_timer(10))
    snapshot = first.snapshot()
    first.timers(lambda t: (t.delete_event_time_timer(10), t.register_event_time_timer(20)))
    again = Harness.restore(Told(), snapshot, key=key_of)
    assert pending(again) == [("k", None, 10)]
    assert pending(first) == [("k", None, 20)]


@both_stores
@both_domains
def test_timers_fire_in_the_order_of_timestamp_then_key_then_name(store, domain):
    """TimerHeapInternalTimer.compareTo orders by timestamp; key and name make the rest of the order a fixed one.

    Beam's ParDoTest.testEventTimeTimerOrdering, too.
    """
    timers = [(20, 1, "a"), (10, 2, None), (10, 2, "a"), (10, 2, "b"), (10, 3, None), (10, -5, "z"), (5, 9, "q")]
    expected = sorted(timers, key=lambda timer: (timer[0], timer[1], timer[2] or ""))
    for number, order in enumerate(permutations(timers)):
        if number % 1009:
            continue
        harness = Harness(store=store)
        with harness.batch():
            for at, key, name in order:
                if name is None:
                    harness.set_timers(lambda t, at=at: register(t, domain, at), key=key)
                else:
                    harness.set_timers(lambda t, at=at, name=name: t.set_timer(name, at, domain), key=key)
        advance(harness, domain, 20)
        assert harness.values() == expected


@both_stores
@pytest.mark.parametrize("time", [MIN_TIMESTAMP, MIN_TIMESTAMP + 1, -1, 0, 1, MAX_TIMESTAMP - 1, MAX_TIMESTAMP])
def test_timers_at_the_limits_of_time(store, time):
    """Long.MIN_VALUE and Long.MAX_VALUE are timestamps like others; the first watermark is Long.MIN_VALUE.

    Outputs have the timer's timestamp, as in Beam's ParDoTest.testOutputTimestampDefault.
    """
    harness = Harness(store=store)
    harness.timers(lambda t: (t.register_event_time_timer(time), t.set_timer("n", time)))
    harness.crash_and_recover()
    assert pending(harness) == [("k", None, time), ("k", "n", time)]
    if time > MIN_TIMESTAMP:
        harness.advance_watermark(time - 1)
        assert harness.values() == []
    harness.advance_watermark(max(time, MIN_TIMESTAMP + 1))
    assert harness.take_output() == [Record((time, "k", None), time), Record((time, "k", "n"), time)]
    assert pending(harness) == []


@both_stores
def test_processing_timers_at_the_limits_of_time(store):
    """A processing-time timer in the past fires right after the call that set it, however far in the past."""
    harness = Harness(store=store)
    harness.timers(lambda t: t.register_processing_time_timer(MIN_TIMESTAMP))
    assert harness.values() == [(MIN_TIMESTAMP, "k", None)]
    harness.timers(lambda t: (t.register_processing_time_timer(0), t.register_processing_time_timer(MAX_TIMESTAMP)))
    assert harness.values() == [(0, "k", None)]
    harness.advance_processing_time(MAX_TIMESTAMP)
    assert harness.values() == [(MAX_TIMESTAMP, "k", None)]


@pytest.mark.parametrize("timestamp", [None, 1.0, "1", True, 2**63, -(2**63) - 1, type("Big", (int,), {})(2**63)])
def test_timestamps_that_are_none(timestamp):
    """A long in Flink; here what is not an int of 64 bits is refused, and nothing is registered."""
    harness = Harness()
    domains = ("event", "processing")
    for call in (f"{verb}_{domain}_time_timer" for verb in ("register", "delete") for domain in domains):
        with pytest.raises(DefinitionError, match="timer timestamp"):
            harness.timers(lambda t, call=call: getattr(t, call)(timestamp))
    with pytest.raises(DefinitionError, match="timer timestamp"):
        harness.timers(lambda t: t.set_timer("n", timestamp))
    assert pending(harness) == []


@both_stores
def test_event_timers_in_the_past_wait_for_the_next_advance(store):
    """InternalTimerServiceImpl.registerEventTimeTimer only enqueues; advanceWatermark fires."""
    harness = Harness(store=store)
    harness.advance_watermark(100)
    harness.timers(lambda t: (t.register_event_time_timer(50), t.register_event_time_timer(100)), timestamp=200)
    harness.process(("k", lambda _, ctx: None), 300)
    harness.advance_processing_time(1_000)
    assert harness.values() == []
    harness.crash_and_recover()
    harness.advance_watermark(101)
    assert harness.take_output() == [Record((50, "k", None), 50), Record((100, "k", None), 100)]


class Script(KeyedProcessFunction):
    """An element is {timer: calls}; a timer that fires runs its calls and reports itself."""

    plan = ValueState(dict, default={})

    def process_element(self, value, ctx):
        self.plan.update(value[1])
        self.run(value[1]["start"], ctx)

    def on_timer(self, timestamp, ctx):
        yield ctx.time_domain().name[0], timestamp, ctx.timer_name()
        name = f"{ctx.time_domain().name[0]}{timestamp}{ctx.timer_name() or ''}"
        self.run(self.plan.value().get(name, []), ctx)

    def run(self, calls, ctx):
        service = ctx.timer_service()
        for call, *arguments in calls:
            if call in ("E", "P"):
                register(service, EVENT if call == "E" else PROCESSING, *arguments)
            elif call in ("-E", "-P"):
                delete(service, EVENT if call == "-E" else PROCESSING, *arguments)
            elif call == "set_p":
                service.set_timer(*arguments, PROCESSING)
            elif call == "cancel_p":
                service.cancel_timer(*arguments, PROCESSING)
            else:
                getattr(service, call)(*arguments)


def run_script(store, watermark=None, processing_time=None, **plan):
    harness = KeyedTestHarness(Script(), key=key_of, store=store)
    harness.process(("k", plan))
    if watermark is not None:
        harness.advance_watermark(watermark)
    if processing_time is not None:
        harness.advance_processing_time(processing_time)
    return [r.value for r in harness.take_output()], [(t.domain.name[0], t.timestamp) for t in harness.pending_timers()]


@both_stores
def test_on_timer_registers_in_its_own_domain(store):
    """Due timers fire in the same advance: at the same time again, earlier, later; what is not waits."""
    fired, left = run_script(
        store,
        watermark=20,
        start=[("E", 10), ("E", 15)],
        E10=[("E", 5), ("E", 12), ("E", 15), ("E", 20), ("E", 21)],
        E5=[("E", 11)],
    )
    assert fired == [("E", t, None) for t in (10, 5, 11, 12, 15, 20)]
    assert left == [("E", 21)]


@both_stores
def test_on_timer_registers_in_the_other_domain(store):
    """A processing-time timer that is due fires right after the call; an event-time one waits for an advance."""
    fired, left = run_script(
        store,
        processing_time=10,
        watermark=20,
        start=[("E", 10), ("E", 11)],
        E10=[("P", 0), ("P", 7)],
        P0=[("E", 3), ("E", 99)],
        P7=[("E", 20), ("P", 8)],
    )
    # E3 was set at or below the watermark while it was advancing, so it is part of that advance.
    assert fired == [("E", 10, None), ("P", 0, None), ("E", 3, None), ("E", 11, None), ("P", 7, None), ("P", 8, None)]
    assert left == [("E", 20), ("E", 99)]


@both_stores
@pytest.mark.parametrize("domain", ["E", "P"])
def test_a_timer_deletes_another_one_that_is_due_too(store, domain):
    """A timer deleted by one that fires before it in the same advance does not fire."""
    fired, left = run_script(
        store,
        watermark=50,
        processing_time=50,
        start=[(domain, 10), (domain, 20), (domain, 30), ("set_timer", "n", 25), ("set_p", "p", 5)],
        **{f"{domain}10": [(f"-{domain}", 20), ("cancel_timer", "n"), ("cancel_p", "p")]},
    )
    if domain == "E":
        assert fired == [("E", 10, None), ("E", 30, None)]
    else:
        assert fired == [("E", 25, "n"), ("P", 5, "p"), ("P", 10, None), ("P", 30, None)]
    assert left == []


@both_stores
def test_a_timer_deletes_itself_and_registers_itself(store):
    """The timer is removed before its handler: deleting it there is nothing, registering it there is a new one."""
    fired, left = run_script(
        store,
        watermark=50,
        start=[("E", 10)],
        E10=[("-E", 10), ("set_timer", "once", 10)],
        E10once=[("cancel_timer", "once"), ("set_timer", "once", 60)],
    )
    assert fired == [("E", 10, None), ("E", 10, "once")]
    assert left == [("E", 60)]


@both_stores
def test_delete_and_register_in_one_call(store):
    """The last call counts, for timers that are stored and for those that are not."""
    harness = Harness(store=store)
    harness.timers(lambda t: (t.register_event_time_timer(10), t.delete_event_time_timer(10)))
    assert pending(harness) == []
    harness.timers(lambda t: (t.delete_event_time_timer(10), t.register_event_time_timer(10)))
    assert pending(harness) == [("k", None, 10)]
    harness.timers(lambda t: (t.delete_event_time_timer(10), t.register_event_time_timer(10)))
    assert pending(harness) == [("k", None, 10)]
    harness.timers(lambda t: (t.register_event_time_timer(10), t.delete_event_time_timer(10)))
    assert pending(harness) == []


class Looping(KeyedProcessFunction):
    """A timer every ten milliseconds while the key has elements left (Beam's looping timer)."""

    left = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.left.update(value[1])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() // 10 * 10 + 10)

    def on_timer(self, timestamp, ctx):
        left = self.left.value() - 1
        yield ctx.get_current_key(), left
        self.left.update(left or None)
        if left:
            ctx.timer_service().register_event_time_timer(timestamp + 10)


@both_stores
@pytest.mark.parametrize("steps", [[1000], [10, 20, 25, 33, 1000], [MAX_TIMESTAMP]])
def test_looping_timers(store, steps):
    """A timer that sets the next one: the loops of two keys interleave by time, however the watermark moves."""
    harness = KeyedTestHarness(Looping(), key=key_of, store=store)
    harness.process(("a", 3), 4)
    harness.process(("b", 2), 13)
    for step in steps:
        harness.advance_watermark(step)
    assert harness.take_output() == [
        Record(("a", 2), 10),
        Record(("a", 1), 20),
        Record(("b", 1), 20),
        Record(("a", 0), 30),
        Record(("b", 0), 30),
    ]
    assert harness.state_entries() == 0


def test_many_timers_of_one_key():
    """A key with ten thousand timers: each fires once, in order, over several commits and a crash."""
    harness = Harness(store="rocksdb")
    times = [(7919 * i) % 10_007 for i in range(1_000)]
    harness.timers(lambda t: [t.register_event_time_timer(time) for time in times])
    harness.crash_and_recover()
    harness.advance_watermark(5_000)
    harness.advance_watermark(20_000)
    assert [value[0] for value in harness.values()] == sorted(times)


@both_stores
def test_timers_are_listed_as_they_stand_within_the_call(store):
    """timers() sees what the same call set and deleted, and not the timer that fires."""

    def timer(_, ctx, timestamp):
        service = ctx.timer_service()
        service.register_event_time_timer(40)
        return [[(t.timestamp, t.name) for t in service.timers()]]

    harness = Harness(Told(timer), store=store)
    harness.timers(lambda t: (t.register_event_time_timer(10), t.set_timer("n", 30)))

    def change(service):
        service.register_event_time_timer(20)
        service.delete_event_time_timer(10)
        service.set_timer("n", 25)
        return [(t.timestamp, t.name) for t in service.timers()]

    assert harness.timers(change) == [(20, None), (25, "n")]
    assert harness.timers(lambda t: t.timers(), key="other") == []
    harness.advance_watermark(20)
    assert harness.values() == [[(25, "n"), (40, None)]]
