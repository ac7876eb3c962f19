"""Beam's timers: ParDoTest's TimerTests (ValidatesRunner) and the Python SDK's userstate_test, with named timers."""

from __future__ import annotations

import pytest

import keyed
from keyed import KeyedProcessFunction, ListState, MapState, ValueState
from keyed.errors import DefinitionError, EncodingError
from keyed.testing import KeyedTestHarness, Record
from tests.acceptance.steps import Case, with_domains
from tests.acceptance.support import PROCESSING, Harness, Told, advance, both_domains, both_stores, key_of, pending
from tests.support.data_files import read_data


class States(Told):
    bag = ListState(str)
    members = MapState(str, None)


@both_stores
@pytest.mark.parametrize(("case", "domain"), with_domains(read_data("acceptance/beam_timers.json")))
def test_a_case_holds(store, case, domain):
    Case(case, States, store=store, domain=domain).run()


@both_stores
@both_domains
def test_two_timers_that_set_each_other(store, domain):
    """ParDoTest.testTwoTimersSettingEachOther: they take turns while one advance covers them both."""

    def timer(f, ctx, timestamp):
        name = ctx.timer_name()
        if timestamp < 16:
            ctx.timer_service().set_timer("b" if name == "a" else "a", timestamp + 1, domain)

    harness = Harness(Told(timer), store=store)
    harness.timers(lambda t: t.set_timer("a", 10, domain))
    advance(harness, domain, 100)
    assert harness.values() == [(at, "k", "ab"[at % 2]) for at in range(10, 17)]
    assert pending(harness) == []


def test_output_timestamp():
    """ParDoTest.testOutputTimestamp: Timer.withOutputTimestamp, here given where the output is made."""

    def timer(f, ctx, timestamp):
        ctx.collect(ctx.timer_name(), timestamp - 5)
        ctx.output("side", ctx.timer_name())
        return []

    harness = Harness(Told(timer))
    harness.timers(lambda t: (t.set_timer("e", 10), t.set_timer("p", 10, PROCESSING)))
    harness.advance_watermark(10)
    harness.advance_processing_time(10)
    assert harness.take_output() == [Record("e", 5), Record("p", 5)]
    assert harness.take_side_output("side") == [Record("e", 10), Record("p", None)]


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


@both_stores
def test_a_sequence_by_processing_time(store):
    """userstate_test.test_generate_sequence_with_realtime_timer: times that have come fire right after the call."""

    class Generate(KeyedProcessFunction):
        count = ValueState(int, default=0)

        def process_element(self, value, ctx):
            ctx.timer_service().set_timer("emit", 1, PROCESSING)
            yield value[1]

        def on_timer(self, timestamp, ctx):
            count = self.count.value()
            if count == 3:
                return
            self.count.update(count + 1)
            ctx.timer_service().set_timer("emit", count + 2, PROCESSING)
            yield "value"

    harness = KeyedTestHarness(Generate(), key=key_of, store=store)
    harness.process(("key", 0))
    for step in (1, 2, 3):
        harness.advance_processing_time(step)
        harness.process(("key", step))
    assert [r.value for r in harness.take_output()] == [0, "value", 1, "value", 2, "value", 3]


class Join(KeyedProcessFunction):
    """userstate_test's HashJoinStatefulDoFn."""

    buffer = ListState(bytes)

    def process_element(self, value, ctx):
        key, element = value
        existing = self.buffer.get()
        if existing:
            yield b"Record<%s,%s,%s>" % (key, existing[0], element)
            self.buffer.clear()
            ctx.timer_service().cancel_timer("unmatched")
        else:
            self.buffer.add(element)
            ctx.timer_service().set_timer("unmatched", 100)

    def on_timer(self, timestamp, ctx):
        (element,) = self.buffer.get()
        self.buffer.clear()
        yield b"Unmatched<%s>" % element


@both_stores
@pytest.mark.parametrize("crash", [False, True])
def test_hash_join(store, crash):
    """userstate_test.test_hash_join."""
    harness = KeyedTestHarness(Join(), key=key_of, store=store, parallelism=2)
    elements = [
        (b"Aa", b"Bb", 10), (b"Aaa", b"Cc", 10), (b"Aaaa", b"Bbb", 25), (b"Dd", b"Ddd", 25), (b"Dddd", b"Ddddd", 25),
    ]  # fmt: skip
    for *batch, watermark in elements:
        harness.advance_watermark(watermark)
        with harness.batch():
            for element in batch:
                harness.process((element[:1], element[1:]))
        if crash:
            harness.crash_and_recover()
    harness.advance_watermark(125)
    harness.process((b"C", b"cc"))
    harness.end_of_input()
    assert sorted(r.value for r in harness.take_output()) == [
        b"Record<A,a,aa>",
        b"Record<B,b,bb>",
        b"Record<D,d,dd>",
        b"Record<D,ddd,dddd>",
        b"Unmatched<aaa>",
        b"Unmatched<c>",
        b"Unmatched<cc>",
    ]
    assert harness.state_entries() == 0


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
