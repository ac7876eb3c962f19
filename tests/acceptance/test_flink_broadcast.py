"""Flink's CoBroadcastWithKeyedOperatorTest, through the harness, and BroadcastStateITCase. Keys are mostly texts.

Of the second there is testKeyedWithBroadcastTranslation: without a key, as in testBroadcastTranslation, nothing is
processed here. Its timers are numbered by their key, and not by a counter of the task that sets them. Access to keyed
state from the broadcast side is in `tests/keyed/testing/test_broadcast.py`.
"""

from __future__ import annotations

import pytest

import keyed
from keyed import KeyedBroadcastProcessFunction, MapState, OutputTag
from keyed.testing import KeyedTestHarness, Record

STATE = MapState(str, int, name="broadcast-state")
BROADCAST_TAG, OTHER_TAG = OutputTag("br-out"), OutputTag("non-br-out")


def harness_of(function, **options):
    return KeyedTestHarness(function, broadcast=[STATE], **options)


def about(kind, value, watermark, ctx):
    return f"{kind}:{value} WM:{watermark} TS:{ctx.timestamp()}"


class WithTimer(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(41)
        yield about("NON-BR", value, ctx.timer_service().current_watermark(), ctx)

    def process_broadcast_element(self, value, ctx):
        yield about("BR", value, ctx.current_watermark(), ctx)

    def on_timer(self, timestamp, ctx):
        assert ctx.get_current_key() == "6"
        yield f"TIMER:{timestamp}"


def test_a_function_with_a_timer():
    """Flink's testFunctionWithTimer."""
    harness = harness_of(WithTimer())
    harness.advance_watermark1(10)
    assert harness.current_watermark == keyed.MIN_TIMESTAMP
    harness.advance_watermark2(10)
    harness.process_broadcast_element(5, 12)
    assert harness.take_output() == [Record("BR:5 WM:10 TS:12", 12)]
    harness.advance_watermark1(40)
    harness.advance_watermark2(40)
    harness.process("6", 13)
    harness.process("6", 15)
    assert harness.take_output() == [Record("NON-BR:6 WM:40 TS:13", 13), Record("NON-BR:6 WM:40 TS:15", 15)]
    harness.advance_watermark1(50)
    assert harness.take_output() == []
    harness.advance_watermark2(50)
    assert harness.take_output() == [Record("TIMER:41", 41)]
    assert harness.current_watermark == 50


class WithSideOutput(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        ctx.output(OTHER_TAG, about("NON-BR", value, ctx.timer_service().current_watermark(), ctx))

    def process_broadcast_element(self, value, ctx):
        ctx.output(BROADCAST_TAG, about("BR", value, ctx.current_watermark(), ctx))


def test_side_outputs():
    """Flink's testSideOutput."""
    harness = harness_of(WithSideOutput())
    harness.advance_watermark(10)
    harness.process_broadcast_element(5, 12)
    harness.advance_watermark(40)
    harness.process("6", 13)
    harness.process("6", 15)
    harness.advance_watermark(50)
    assert harness.take_output() == []
    assert harness.take_side_output(BROADCAST_TAG) == [Record("BR:5 WM:10 TS:12", 12)]
    assert harness.take_side_output(OTHER_TAG) == [
        Record("NON-BR:6 WM:40 TS:13", 13),
        Record("NON-BR:6 WM:40 TS:15", 15),
    ]


class WithBroadcastState(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        assert dict(ctx.get_broadcast_state(STATE).items()) == {f"{n}.key": n for n in (5, 34, 53, 12, 98)}
        ctx.timer_service().register_event_time_timer(41)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(STATE).put(f"{value}.key", value)

    def on_timer(self, timestamp, ctx):
        assert ctx.get_current_key() == "trigger"
        yield dict(ctx.get_broadcast_state(STATE).items())


def test_a_function_with_broadcast_state():
    """Flink's testFunctionWithBroadcastState."""
    harness = harness_of(WithBroadcastState())
    harness.advance_watermark(10)
    for value, timestamp in ((5, 10), (34, 12), (53, 15), (12, 16), (98, 19)):
        harness.process_broadcast_element(value, timestamp)
    harness.process("trigger", 13)
    harness.process_broadcast_element(51, 21)
    harness.advance_watermark(50)
    expected = {f"{n}.key": n for n in (5, 34, 53, 12, 98, 51)}
    assert harness.take_output() == [Record(expected, 41)]
    assert harness.broadcast_state("broadcast-state") == expected


class WithOutput(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        for name, number in ctx.get_broadcast_state(STATE).items():
            yield f"{name}={number}"

    def process_broadcast_element(self, value, ctx):
        for name in ("test1", "test2", "test3"):
            ctx.get_broadcast_state(STATE).put(name, value)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4), (4, 2), (4, 6)])
def test_scale_up_and_down(before, after):
    """Flink's testScaleUp and testScaleDown: each task has the state once, whatever the number of tasks."""
    harness = harness_of(WithOutput(), parallelism=before)
    harness.process_broadcast_element(3)
    snapshot = harness.snapshot()
    again = KeyedTestHarness.restore(WithOutput(), snapshot, parallelism=after, broadcast=[STATE])
    for key in map(str, range(20)):
        again.process(key)
        assert [record.value for record in again.take_output()] == ["test1=3", "test2=3", "test3=3"]
    assert again.state_entries() == 3 * after
    assert again.broadcast_state("broadcast-state") == {"test1": 3, "test2": 3, "test3": 3}


LONGS = MapState(int, str, name="broadcast-state")
EXPECTED = {number: f"test:{number}" for number in range(6)}


class TimersSeeAll(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(100_000 + value)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(LONGS).put(int(value.split(":")[1]), value)

    def on_timer(self, timestamp, ctx):
        assert dict(ctx.get_broadcast_state(LONGS).items()) == EXPECTED
        assert timestamp == 100_000 + ctx.get_current_key()
        yield timestamp


@pytest.mark.parametrize("rows_per_batch", [1, 4, 100])
def test_a_job_with_timers(rows_per_batch):
    """BroadcastStateITCase's testKeyedWithBroadcastTranslation: timers at the end see all broadcast elements."""
    numbers = keyed.stream(list(range(6)), timestamp=lambda value: value)
    texts = keyed.stream(list(EXPECTED.values()), timestamp=lambda value: int(value.split(":")[1]))
    job = numbers.key_by(lambda value: value).connect(texts.broadcast(LONGS)).process(TimersSeeAll(), parallelism=4)
    assert sorted(job.run(rows_per_batch=rows_per_batch).values) == [100_000 + number for number in range(6)]
