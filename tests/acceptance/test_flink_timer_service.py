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
from tests.acceptance.steps import Case, with_domains
from tests.acceptance.support import (
    EVENT,
    PROCESSING,
    Harness,
    advance,
    both_domains,
    both_stores,
    key_of,
    pending,
    register,
)
from tests.support.data_files import read_data


def numbered(harness, domain):
    """numEventTimeTimers(namespace) and numProcessingTimeTimers(namespace)."""
    return sum(timer.domain is domain for timer in harness.pending_timers())


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
@pytest.mark.parametrize(("case", "domain"), with_domains(read_data("acceptance/flink_timer_service.json")))
def test_a_case_holds(store, case, domain):
    Case(case, store=store, domain=domain).run()


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
