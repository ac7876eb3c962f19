"""Beam's timers: ParDoTest's TimerTests (ValidatesRunner) and the Python SDK's userstate_test, with named timers."""

from __future__ import annotations

import pytest

import keyed
from keyed import KeyedProcessFunction, ListState
from keyed.errors import DefinitionError, EncodingError
from tests.acceptance.support import EVENT, PROCESSING, Harness, Told, advance, both_domains, both_stores, pending


def set_timers(service, domain, **timers):
    for name, at in timers.items():
        service.set_timer(name, at, domain)


@both_stores
@both_domains
def test_timers_can_be_reset(store, domain):
    """ParDoTest.testEventTimeTimerCanBeReset and testProcessingTimeTimerCanBeReset: only the last time counts."""
    harness = Harness(store=store)
    for at in (10, 30, 20):
        harness.timers(lambda t, at=at: t.set_timer("t", at, domain))
    assert pending(harness) == [("k", "t", 20)]
    advance(harness, domain, 19)
    assert harness.values() == []
    advance(harness, domain, 40)
    assert harness.values() == [(20, "k", "t")]
    advance(harness, domain, 100)
    assert harness.values() == []


@both_stores
@both_domains
def test_timers_set_and_cleared_in_one_call(store, domain):
    """ParDoTest.testSetAndClearEventTimeTimer..., testSetEventTimeTimerAfterClear..., testClearUnsetEventTimeTimer."""
    harness = Harness(store=store)
    harness.timers(lambda t: t.cancel_timer("never set", domain))
    harness.timers(lambda t: (set_timers(t, domain, a=10), t.cancel_timer("a", domain)))
    assert pending(harness) == []
    harness.timers(lambda t: (t.cancel_timer("a", domain), set_timers(t, domain, a=10)))
    harness.timers(lambda t: (t.cancel_timer("a", domain), set_timers(t, domain, a=12), set_timers(t, domain, a=11)))
    harness.timers(lambda t: set_timers(t, domain, b=10))
    harness.timers(lambda t: t.cancel_timer("b", domain))
    assert pending(harness) == [("k", "a", 11)]
    advance(harness, domain, 50)
    assert harness.values() == [(11, "k", "a")]


@both_stores
@both_domains
def test_a_name_is_one_timer_per_key_and_domain(store, domain):
    """ParDoTest.testTimerFamilyEventTime and testEventTimeTimerMultipleKeys."""
    other = PROCESSING if domain is EVENT else EVENT
    harness = Harness(store=store, parallelism=2)
    for key in ("a", "b"):
        harness.timers(lambda t: (set_timers(t, domain, x=10, y=20), t.set_timer("x", 99, other)), key=key)
    harness.timers(lambda t: t.cancel_timer("x", domain), key="a")
    advance(harness, domain, 50)
    assert sorted(harness.values()) == [(10, "b", "x"), (20, "a", "y"), (20, "b", "y")]
    assert [(t.key, t.name, t.domain) for t in harness.pending_timers()] == [("a", "x", other), ("b", "x", other)]


@both_stores
@both_domains
def test_a_timer_clears_or_moves_one_that_is_due_as_well(store, domain):
    """ParDoTest.testTimerSetWithinOnTimer: what a timer says of another one holds, though the advance reached both."""

    def timer(f, ctx, timestamp):
        if ctx.timer_name() == "first":
            service = ctx.timer_service()
            service.cancel_timer("gone", domain)
            service.set_timer("later", 30, domain)
            service.set_timer("beyond", 200, domain)
            service.set_timer("sooner", 5, domain)

    harness = Harness(Told(timer), store=store)
    harness.timers(lambda t: set_timers(t, domain, first=10, gone=20, later=11, beyond=12, sooner=40))
    advance(harness, domain, 100)
    assert harness.values() == [(10, "k", "first"), (5, "k", "sooner"), (30, "k", "later")]
    assert pending(harness) == [("k", "beyond", 200)]


@pytest.mark.parametrize("name", ["x", 5, 2.5, b"x", True, (1, "a"), (), ((), (None,)), ""])
def test_names_of_many_types(name):
    """Any plain encodable value is a name, and comes back as it was, over a snapshot as well."""
    harness = Harness()
    harness.timers(lambda t: t.set_timer(name, 5))
    again = harness.again(Told(), store="rocksdb", parallelism=2)
    assert [t.name for t in again.pending_timers()] == [name]
    again.advance_watermark(5)
    ((_, _, found),) = again.values()
    assert (found, type(found)) == (name, type(name))


def test_names_that_are_equal_only_to_python_are_apart():
    """1, 1.0 and True are three names; so are they inside tuples."""
    names = [1, 1.0, True, (1,), (1.0,), (True,)]
    harness = Harness()
    for at, name in enumerate(names):
        harness.timers(lambda t, at=at, name=name: t.set_timer(name, at))
    assert [(t.timestamp, t.name, type(t.name)) for t in harness.pending_timers()] == [
        (at, name, type(name)) for at, name in enumerate(names)
    ]


def test_names_and_domains_that_are_none():
    """ParDoTest's timer declarations: a name is given, and is data; a domain is a TimeDomain."""
    harness = Harness()
    with pytest.raises(DefinitionError, match="None"):
        harness.timers(lambda t: t.set_timer(None, 5))
    with pytest.raises(EncodingError):
        harness.timers(lambda t: t.set_timer(["x"], 5))
    with pytest.raises(DefinitionError, match="TimeDomain"):
        harness.timers(lambda t: t.set_timer("x", 5, "event_time"))
    assert pending(harness) == []


def test_stateful_sum_then_group_by_key():
    """userstate_test.test_stateful_sum_then_gbk: outputs of timers go on, with their timestamps, to a second stage."""

    class Sums(KeyedProcessFunction):
        seen = ListState(int)

        def process_element(self, value, ctx):
            self.seen.add(value["n"])
            ctx.timer_service().set_timer("emit", 10)
            yield {"key": "all", "n": value["n"]}

        def on_timer(self, timestamp, ctx):
            yield from ({"key": "all", "n": n} for n in self.seen)

    class Group(KeyedProcessFunction):
        seen = ListState(tuple[int, int])

        def process_element(self, value, ctx):
            self.seen.add((ctx.timestamp(), value.n))
            ctx.timer_service().set_timer("emit", 20)

        def on_timer(self, timestamp, ctx):
            yield timestamp, sorted(self.seen)

    rows = [{"key": "k", "n": n, "t": 1} for n in range(1, 6)]
    stream = keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(0))
    first = stream.key_by("key").process(Sums(), output="key string, n bigint")
    result = first.key_by("key").process(Group(), parallelism=2).run()
    assert result.values == [(20, [(1, n) for n in range(1, 6)] + [(10, n) for n in range(1, 6)])]
