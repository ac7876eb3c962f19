"""Kafka Streams' processors as far as they map: punctuation, suppress, windowed stores and retention, versioned reads.

Stream time is the watermark here, and wall-clock time is processing time.
"""

from __future__ import annotations

import pytest

from keyed import KeyedProcessFunction, MapState, OutputTag, StateTtl, TimeDomain, ValueState
from keyed.testing import KeyedTestHarness, Record
from tests.acceptance.steps import Case
from tests.acceptance.support import EVENT, PROCESSING, Told, both_stores, key_of
from tests.support.data_files import read_data


class Punctuated(KeyedProcessFunction):
    """A schedule of a key that is kept by setting the next timer; it can be cancelled by itself or by an element."""

    left = ValueState(int, default=0)

    def __init__(self, interval, domain):
        self.interval, self.domain = interval, domain

    def process_element(self, value, ctx):
        _, call, argument = value
        if call == "schedule":
            self.left.update(argument)
            service = ctx.timer_service()
            now = ctx.timestamp() if self.domain is EVENT else service.current_processing_time()
            service.set_timer("punctuate", now, self.domain)
        elif call == "cancel":
            ctx.timer_service().cancel_timer("punctuate", self.domain)

    def on_timer(self, timestamp, ctx):
        yield timestamp
        left = self.left.value() - 1
        self.left.update(left)
        if left:
            ctx.timer_service().set_timer("punctuate", timestamp + self.interval, self.domain)


@both_stores
@pytest.mark.parametrize("domain", [EVENT, PROCESSING], ids=["stream time", "wall clock"])
def test_punctuation_interval(store, domain):
    """PunctuationQueueTest.testPunctuationInterval: at 0, 100, 200, ... however the clock jumps."""
    harness = KeyedTestHarness(Punctuated(100, domain), key=key_of, store=store)
    harness.process(("node", "schedule", 99), 0)
    move = harness.advance_watermark if domain is EVENT else harness.advance_processing_time
    seen = [[r.value for r in harness.take_output()]]
    for now in (0, 99, 100, 101, 102, 202, 302, 1001, 1002):
        move(now)
        seen.append([r.value for r in harness.take_output()])
    first = [[], [0]] if domain is EVENT else [[0], []]
    # A schedule by timers catches up: each time is punctuated, where Kafka's skips to the next multiple after a jump.
    assert seen == [*first, [], [100], [], [], [200], [300], list(range(400, 1001, 100)), []]


@both_stores
def test_punctuation_cancelled(store):
    """PunctuationQueueTest.testPunctuationIntervalCancelFromPunctuator, and Cancellable.cancel by a record."""
    harness = KeyedTestHarness(Punctuated(100, EVENT), key=key_of, store=store)
    harness.process(("self", "schedule", 2), 0)
    harness.process(("other", "schedule", 99), 0)
    harness.advance_watermark(150)
    harness.process(("other", "cancel", None), 160)
    harness.advance_watermark(1_000)
    assert [r.value for r in harness.take_output()] == [0, 0, 100, 100]
    assert harness.pending_timers() == []


LATE = OutputTag("late")


class Suppressed(KeyedProcessFunction):
    """Counts per tumbling window, with grace, shown once: ``suppress(untilWindowCloses(...))``."""

    counts = ValueState(int, default=0)

    def __init__(self, size, grace=0):
        self.size, self.grace = size, grace

    def process_element(self, value, ctx):
        start = ctx.timestamp() // self.size * self.size
        close = start + self.size - 1 + self.grace
        if close <= ctx.timer_service().current_watermark():
            ctx.output(LATE, value)
            return
        count = self.counts.namespace(start)
        count.update(count.value() + 1)
        ctx.timer_service().set_timer(start, close)

    def on_timer(self, timestamp, ctx):
        start = ctx.timer_name()
        count = self.counts.namespace(start)
        ctx.collect((ctx.get_current_key(), start, count.value()), start + self.size - 1)
        count.clear()


@both_stores
@pytest.mark.parametrize("grace", [0, 1])
def test_suppress_until_window_closes(store, grace):
    """SuppressScenarioTest.shouldSupportFinalResultsForTimeWindows."""
    harness = KeyedTestHarness(Suppressed(2, grace), key=key_of, store=store)
    for key, timestamp in (("k1", 0), ("k1", 1), ("k1", 2), ("k1", 1), ("k1", 0), ("k1", 5), ("k1", 0)):
        harness.process((key, timestamp), timestamp)
        harness.advance_watermark(timestamp - 1)
    late = harness.take_side_output(LATE)
    if grace:
        # The window [0, 2) closes at 2: the last 0 is too late; the window [2, 4) closes at 4.
        assert harness.take_output() == [Record(("k1", 0, 4), 1), Record(("k1", 2, 1), 3)]
        assert late == [Record(("k1", 0), 0)]
    else:
        assert harness.take_output() == [Record(("k1", 0, 2), 1), Record(("k1", 2, 1), 3)]
        assert late == [Record(("k1", 1), 1), Record(("k1", 0), 0), Record(("k1", 0), 0)]
    harness.end_of_input()
    assert harness.take_output()[-1] == Record(("k1", 4, 1), 5)
    assert harness.state_entries() == 0


class WindowStore(Told):
    """A window store: a map from start to value, with retention in stream time."""

    store = MapState(int, str, ttl=StateTtl(30, time_domain=TimeDomain.EVENT_TIME))


@both_stores
@pytest.mark.parametrize("case", read_data("acceptance/kafka_streams_window_store.json"), ids=lambda case: case["name"])
def test_a_case_of_a_window_store_holds(store, case):
    Case(case, WindowStore, store=store).run()


class Deduplicate(KeyedProcessFunction):
    """Kafka Streams' EventDeduplicationLambdaIntegrationTest: ids seen within a retention are dropped."""

    seen = MapState(str, int, ttl=StateTtl(100, time_domain=TimeDomain.EVENT_TIME))

    def process_element(self, value, ctx):
        if value[1] not in self.seen:
            yield value[1]
        self.seen.put(value[1], ctx.timestamp())


def test_deduplication_within_a_retention():
    """Each occurrence puts the end of the retention off, as the window store's update does there."""
    harness = KeyedTestHarness(Deduplicate(), key=key_of)
    for name, timestamp in (("a", 0), ("b", 50), ("a", 90), ("a", 189), ("b", 190), ("a", 289), ("a", 350), ("a", 450)):
        harness.advance_watermark(timestamp)
        harness.process(("k", name), timestamp)
    assert [(r.value, r.timestamp) for r in harness.take_output()] == [
        ("a", 0),
        ("b", 50),
        ("b", 190),
        ("a", 289),
        ("a", 450),
    ]
