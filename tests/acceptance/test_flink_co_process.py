"""Flink's KeyedCoProcessOperatorTest, through the harness of two inputs. Keys are texts; the first side has numbers."""

from __future__ import annotations

from keyed import KeyedCoProcessFunction, ValueState
from keyed.testing import KeyedTestHarness, Record
from tests.acceptance.support import EVENT, advance, both_domains, delete, register


def harness_of(function, **options):
    return KeyedTestHarness(function, key=str, **options)


class TimestampAndWatermark(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield value, ctx.timer_service().current_watermark(), ctx.timestamp()

    process_element2 = process_element1


class Triggering(KeyedCoProcessFunction):
    """Sets a timer at 5 from the first and at 6 from the second side."""

    def __init__(self, domain):
        self.domain = domain

    def process_element1(self, value, ctx):
        self.register(ctx, 5)
        yield f"INPUT1:{value}"

    def process_element2(self, value, ctx):
        self.register(ctx, 6)
        yield f"INPUT2:{value}"

    def register(self, ctx, time):
        register(ctx.timer_service(), self.domain, time)

    def on_timer(self, timestamp, ctx):
        assert ctx.time_domain() is self.domain
        yield f"{ctx.get_current_key()}:1777"


class StatefulTriggering(Triggering):
    """The first side keeps its value and sets a timer, the second clears it and deletes the timer."""

    state = ValueState(str)

    def process_element1(self, value, ctx):
        self.state.update(str(value))
        self.register(ctx, 5)
        yield f"INPUT1:{value}"

    def process_element2(self, value, ctx):
        self.state.clear()
        delete(ctx.timer_service(), self.domain, 5)
        yield f"INPUT2:{value}"

    def on_timer(self, timestamp, ctx):
        yield f"STATE:{self.state.value()}"
        self.state.clear()


def test_timestamp_and_watermark_querying():
    with harness_of(TimestampAndWatermark()) as harness:
        for time, value in ((17, 5), (42, 6)):
            harness.advance_watermark1(time)
            harness.advance_watermark2(time)
            harness.process_element1(value, value)
        harness.process_element2("six", 66)
        assert [record.value for record in harness.take_output()] == [(5, 17, 5), (6, 42, 6), ("six", 42, 66)]


@both_domains
def test_timers_of_both_sides(domain):
    """testEventTimeTimers, testProcessingTimeTimers and testGetCurrentKeyFromTimers."""
    with harness_of(Triggering(domain)) as harness:
        harness.process_element1(17, 42)
        harness.process_element2("18", 42)
        advance(harness, domain, 5)
        advance(harness, domain, 6)
        fired = [5, 6] if domain is EVENT else [None, None]
        assert harness.take_output() == [
            Record("INPUT1:17", 42),
            Record("INPUT2:18", 42),
            Record("17:1777", fired[0]),
            Record("18:1777", fired[1]),
        ]


@both_domains
def test_timers_with_state_shared_by_both_sides(domain):
    """TestEventTimeTimerWithState and testProcessingTimeTimerWithState."""
    with harness_of(StatefulTriggering(domain)) as harness:
        harness.process_element1(17, 0)
        harness.process_element1(13, 0)
        harness.process_element2("13", 1)
        harness.process_element2("42", 1)
        advance(harness, domain, 6)
        assert [record.value for record in harness.take_output()] == [
            *("INPUT1:17", "INPUT1:13", "INPUT2:13", "INPUT2:42"),
            "STATE:17",
        ]
        assert harness.state_entries() == 0


def test_snapshot_and_restore():
    """TestSnapshotAndRestore."""
    with harness_of(Triggering(EVENT)) as harness:
        harness.process_element1(5, 12)
        harness.process_element2("5", 12)
        snapshot = harness.snapshot()
    with KeyedTestHarness.restore(Triggering(EVENT), snapshot, key=str, parallelism=3) as harness:
        harness.advance_watermark1(5)
        harness.advance_watermark2(5)
        assert [record.value for record in harness.take_output()] == ["5:1777"]
        harness.advance_watermark1(6)
        assert harness.take_output() == []
        harness.advance_watermark2(6)
        assert [record.value for record in harness.take_output()] == ["5:1777"]
