"""`on_batch_end`: once for each key that had elements in a batch, with that key and its state."""

from __future__ import annotations

import pytest

import keyed
from keyed import KeyedProcessFunction, OutputTag, TimeDomain, ValueState
from keyed.testing import KeyedTestHarness, Record


class Count(KeyedProcessFunction):
    seen = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.seen.update(self.seen.value() + 1)
        ctx.timer_service().register_event_time_timer(100)

    def on_timer(self, timestamp, ctx):
        self.seen.update(self.seen.value() + 10)

    def on_batch_end(self, ctx):
        yield ctx.get_current_key(), self.seen.value()


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_called_once_a_key_and_batch_that_had_elements(store):
    with KeyedTestHarness(Count(), key=lambda value: value, store=store) as harness:
        with harness.batch():
            for key in "abba":
                harness.process(key, 5)
        assert harness.take_output() == [Record(("a", 2), None), Record(("b", 2), None)]
        harness.process("b", 6)
        assert harness.take_output() == [Record(("b", 3), None)]
        # Timers alone are no elements; what they did is there at the next end.
        harness.advance_watermark(100)
        assert harness.take_output() == []
        harness.process("a", 101)
        assert harness.take_output() == [Record(("a", 13), None)]


class Everything(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value

    def on_timer(self, timestamp, ctx):
        yield "timer"

    def on_batch_end(self, ctx):
        assert ctx.timestamp() is None
        assert not ctx.is_late()
        ctx.timer_service().set_timer("now", 0, TimeDomain.PROCESSING_TIME)
        ctx.collect("timed", 7)
        yield OutputTag("side"), "aside"
        yield "end"


def test_outputs_and_timers():
    with KeyedTestHarness(Everything(), key=lambda value: "k") as harness:
        harness.process("element", 3)
        assert harness.take_output() == [
            Record("element", 3),
            Record("timed", 7),
            Record("end", None),
            Record("timer", None),
        ]
        assert harness.take_side_output("side") == [Record("aside", None)]


class Failing(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return ()

    def on_batch_end(self, ctx):
        raise ValueError("at the end")


def test_an_error_names_the_call_and_the_key():
    with (
        KeyedTestHarness(Failing(), key=lambda value: value) as harness,
        pytest.raises(keyed.errors.UserFunctionError, match=r"on_batch_end, key 'k': ValueError: at the end"),
    ):
        harness.process("k")
