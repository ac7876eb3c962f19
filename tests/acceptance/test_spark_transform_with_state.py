"""Spark's TransformWithStateSuite and the cases of the suites of its states that Flink's do not have.

List, map and expiring states behave as in `test_flink_state_backends.py` and `test_flink_state_ttl.py`.

A Spark processor gets all rows of a key in a batch; here each element is a call of its own. Spark refuses an empty
list and a null map key or value; here an empty list clears, as in Flink, and a map may hold nulls of a type that does.
"""

from __future__ import annotations

import pytest

import keyed
from keyed import KeyedProcessFunction, ListState, MapState, StateTtl, ValueState
from keyed.errors import StateAccessError, StateSchemaChanged
from keyed.testing import KeyedTestHarness, Record
from tests.acceptance.support import PROCESSING, Harness, Told, both_stores, key_of


def identity(value):
    return value


class RunningCount(KeyedProcessFunction):
    count = ValueState(int, name="countState")

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        if count == 3:
            self.count.clear()
        else:
            self.count.update(count)
            yield ctx.get_current_key(), str(count)


class WithTimer(RunningCount):
    def process_element(self, value, ctx):
        service = ctx.timer_service()
        if self.count.value() is None and value in {"a", "c"}:
            service.register_processing_time_timer(service.current_processing_time() + 5_000)
        return super().process_element(value, ctx)

    def on_timer(self, timestamp, ctx):
        self.count.clear()
        yield ctx.get_current_key(), "-1"


class WithTimerUpdates(KeyedProcessFunction):
    count = ValueState(int, default=0)
    timer = ValueState(int, name="timerState")

    def process_element(self, value, ctx):
        before = self.count.value()
        self.count.update(before + 1)
        service = ctx.timer_service()
        if value == "a":
            if before == 1:
                service.delete_processing_time_timer(self.timer.value())
            if before < 2:
                at = service.current_processing_time() + (5_000 if before == 0 else 7_500)
                service.register_processing_time_timer(at)
                self.timer.update(at)
        yield value, before + 1

    def on_timer(self, timestamp, ctx):
        self.timer.clear()
        yield ctx.get_current_key(), -1


class WithMultipleTimers(KeyedProcessFunction):
    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        service = ctx.timer_service()
        if not service.timers():
            for delay in (5_000, 10_000, 15_000):
                service.register_processing_time_timer(service.current_processing_time() + delay)
            assert len(service.timers()) == 3

    def on_timer(self, timestamp, ctx):
        count = self.count.value()
        # Spark still lists the timer that fires; here it is gone before its handler runs.
        if not ctx.timer_service().timers():
            self.count.clear()
        yield ctx.get_current_key(), count


class Clocked:
    """testStream with a manual clock: rows come, then the clock moves and the batch runs; streams stop and start."""

    def __init__(self, function, store):
        self.function, self.store = function, store
        self.harness = KeyedTestHarness(function, key=identity, store=store)
        self.now = 0

    def step(self, seconds, *rows):
        """AddData, AdvanceManualClock, CheckNewAnswer."""
        self.now += int(seconds * 1000)
        self.harness.advance_processing_time(self.now)
        with self.harness.batch():
            for row in rows:
                self.harness.process(row)
        return sorted(r.value for r in self.harness.take_output())

    def restart(self):
        """StopStream, StartStream."""
        self.harness.crash_and_recover()


@both_stores
def test_streaming_with_restarts(store):
    """TransformWithStateSuite: "streaming with rocksdb should succeed"."""
    stream = Clocked(RunningCount(), store)
    assert stream.step(1, "a") == [("a", "1")]
    assert stream.step(1, "a", "b") == [("a", "2"), ("b", "1")]
    stream.restart()
    assert stream.step(1, "a", "b") == [("b", "2")]
    stream.restart()
    assert stream.step(1, "a", "c") == [("a", "1"), ("c", "1")]


@both_stores
def test_processing_time_timer(store):
    """TransformWithStateSuite: "... and processing time timer should succeed"."""
    stream = Clocked(WithTimer(), store)
    assert stream.step(1, "a") == [("a", "1")]
    assert stream.step(1, "b") == [("b", "1")]
    assert stream.step(10, "b") == [("a", "-1"), ("b", "2")]
    stream.restart()
    assert stream.step(1, "b", "c") == [("c", "1")]
    assert stream.step(10, "d") == [("c", "-1"), ("d", "1")]
    assert stream.harness.state_entries() == 1


@both_stores
def test_processing_time_timer_that_is_updated(store):
    """TransformWithStateSuite: "... and updating timers should succeed": deleting and registering replaces."""
    stream = Clocked(WithTimerUpdates(), store)
    assert stream.step(1, "a") == [("a", 1)]
    assert stream.step(2, "a") == [("a", 2)]
    assert [t.timestamp for t in stream.harness.pending_timers()] == [10_500]
    stream.restart()
    assert stream.step(10, "d") == [("a", -1), ("d", 1)]


@both_stores
def test_multiple_timers(store):
    """TransformWithStateSuite: "... and multiple timers should succeed": a due timer runs before the batch's rows."""
    stream = Clocked(WithMultipleTimers(), store)
    assert stream.step(1, "a") == []
    # In Spark the rows of a batch come before its expired timers, so it counts one more at each step.
    assert stream.step(6, "a") == [("a", 1)]
    assert stream.step(5, "a") == [("a", 2)]
    stream.restart()
    assert stream.step(5, "a") == [("a", 3)]


class MaxEventTime(KeyedProcessFunction):
    """MaxEventTimeStatefulProcessor."""

    latest = ValueState(int, name="maxEventTimeState")
    timer = ValueState(int, name="timerState", default=0)

    def process_element(self, value, ctx):
        if ctx.is_late():
            ctx.output("late", value)
            return
        latest = max(ctx.timestamp(), self.latest.value() or 0)
        self.latest.update(latest)
        at = latest + 5
        if self.timer.value() < at:
            ctx.timer_service().delete_event_time_timer(self.timer.value())
            ctx.timer_service().register_event_time_timer(at)
            self.timer.update(at)
        yield ctx.get_current_key(), latest

    def on_timer(self, timestamp, ctx):
        self.latest.clear()
        yield ctx.get_current_key(), -1


@both_stores
def test_event_time_timer(store):
    """TransformWithStateSuite: "streaming with rocksdb and event time based timer", by the harness."""
    harness = KeyedTestHarness(MaxEventTime(), key=key_of, store=store)

    def batch(*rows, watermark):
        with harness.batch():
            for row in rows:
                harness.process(row, row[1])
        harness.advance_watermark(watermark)
        return [r.value for r in harness.take_output()]

    assert batch(("a", 11), ("a", 13), ("a", 15), watermark=5) == [("a", 11), ("a", 13), ("a", 15)]
    assert batch(("a", 4), watermark=5) == []
    assert harness.take_side_output("late") == [Record(("a", 4), 4)]
    assert batch(("a", 10), watermark=5) == [("a", 15)]
    assert batch(("b", 31), watermark=21) == [("b", 31), ("a", -1)]
    assert [(t.key, t.timestamp) for t in harness.pending_timers()] == [("b", 36)]


def test_batch_should_succeed():
    """TransformWithStateSuite: "batch should succeed"."""
    rows = [{"key": "a"}, {"key": "b"}]
    assert sorted(keyed.stream(rows).key_by("key").process(RunningCount()).run().values) == [("a", "1"), ("b", "1")]


def test_a_handle_outside_of_a_processor():
    """TransformWithStateSuite: "Use statefulProcessor without transformWithState - handle should be absent"."""
    function = RunningCount()
    for use in (function.count.value, function.count.clear, lambda: function.count.update(1)):
        with pytest.raises(StateAccessError, match="'countState'"):
            use()


def test_dropping_a_state_is_refused():
    """TransformWithStateSuite: "test deleteIfExists operator"; there is no such call, and nothing is lost silently."""

    class MostRecent(KeyedProcessFunction):
        recent = ValueState(str)

        def process_element(self, value, ctx):
            self.recent.update(value)

    harness = KeyedTestHarness(RunningCount(), key=identity)
    harness.process("a")
    with pytest.raises(StateSchemaChanged, match="countState"):
        KeyedTestHarness.restore(MostRecent(), harness.snapshot(), key=identity)


def test_map_state_with_a_null_key():
    """TransformWithMapStateSuite: "Test getValue with null user key": a null is a key where the type has one."""

    class Nullable(Told):
        session = MapState(str | None, str)

    nullable = Harness(Nullable())
    nullable.call(lambda f, _: (f.session.put("a", "x"), f.session.put(None, "y")))
    assert nullable.call(lambda f, _: list(f.session.items())) == [(None, "y"), ("a", "x")]


def expiring_list(seconds):
    return type("F", (Told,), {"elements": ListState(int, ttl=StateTtl(seconds=seconds))})()


@pytest.mark.parametrize("where", ["middle", "end"])
def test_expired_elements_in_a_list_whose_ttl_changed(where):
    """TransformWithListStateTTLSuite: "... in middle of list" and "... in end of list": the ttl changes at restarts."""
    harness = Harness(expiring_list(180))
    harness.call(lambda f, _: f.elements.add_all([1, 2, 3]))
    harness = harness.again(expiring_list(15))
    harness.call(lambda f, _: f.elements.add_all([4, 5, 6]))
    if where == "middle":
        harness = harness.again(expiring_list(180), parallelism=2)
        harness.call(lambda f, _: f.elements.add_all([7, 8]))
    expected = [1, 2, 3] + ([7, 8] if where == "middle" else [])
    harness.advance_processing_time(15_000)
    assert harness.call(lambda f, _: list(f.elements)) == expected
    harness.advance_processing_time(180_000)
    assert harness.state_entries() == 0


def test_timers_of_many_keys_in_one_batch():
    """TransformWithStateInPandas, test_transform_with_state_proc_timer: each key's timer with its own state."""

    class Each(KeyedProcessFunction):
        first = ValueState(int)

        def process_element(self, value, ctx):
            self.first.update(value[1])
            ctx.timer_service().set_timer("expire", value[1], PROCESSING)

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), self.first.value(), timestamp
            self.first.clear()

    harness = KeyedTestHarness(Each(), key=key_of, parallelism=4, store="rocksdb")
    with harness.batch():
        for number in range(1, 101):
            harness.process((f"k{number}", number))
    harness.advance_processing_time(50)
    assert sorted(r.value[1] for r in harness.take_output()) == list(range(1, 51))
    harness.advance_processing_time(100)
    values = [r.value for r in harness.take_output()]
    assert sorted(values) == sorted((f"k{number}", number, number) for number in range(51, 101))
    assert (harness.state_entries(), harness.pending_timers()) == (0, [])
