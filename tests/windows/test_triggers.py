"""Triggers by themselves, on a double of their context (Flink's *TriggerTest and TriggerTestHarness).

When they fire, and what they leave, is compared with an oracle in `test_properties.py`.
"""

from typing import Any

import pytest

import keyed
from keyed import ReducingState
from keyed.errors import DefinitionError
from keyed.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    Count,
    CountTrigger,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)
from keyed.windows.triggers import NeverTrigger

CONTINUE, FIRE, PURGE, FIRE_AND_PURGE = TriggerResult
A, B, BOTH = TimeWindow(0, 2), TimeWindow(2, 4), TimeWindow(0, 4)


WRONG: Any = 3


class Cell:
    """A value or reducing state of one window."""

    def __init__(self, states, slot, reduce):
        self.states, self.slot, self.reduce = states, slot, reduce

    def get(self):
        return self.states.get(self.slot)

    value = get

    def add(self, value):
        old = self.states.get(self.slot)
        self.states[self.slot] = value if old is None else self.reduce(old, value)

    def update(self, value):
        self.states[self.slot] = value

    def clear(self):
        self.states.pop(self.slot, None)


class Harness:
    """Flink's TriggerTestHarness: clocks, timers and state of windows around one trigger."""

    def __init__(self, trigger):
        self.trigger = trigger
        self.watermark, self.time = -(2**63), 0
        self.states = {}
        self.event, self.processing = set(), set()
        self.window: Any = None
        self.merged: Any = ()

    def get_current_watermark(self):
        return self.watermark

    def get_current_processing_time(self):
        return self.time

    def register_event_time_timer(self, time):
        self.event.add((time, self.window))

    def register_processing_time_timer(self, time):
        self.processing.add((time, self.window))

    def delete_event_time_timer(self, time):
        self.event.discard((time, self.window))

    def delete_processing_time_timer(self, time):
        self.processing.discard((time, self.window))

    def get_partitioned_state(self, descriptor):
        return Cell(self.states, (descriptor, self.window), getattr(descriptor, "reduce", None))

    def merge_partitioned_state(self, descriptor):
        target = self.get_partitioned_state(descriptor)
        values = [self.states.pop((descriptor, w), None) for w in self.merged]
        for value in values:
            if value is not None:
                target.add(value)

    # Driving

    def element(self, window, timestamp=0):
        self.window = window
        return self.trigger.on_element(1, timestamp, window, self)

    def merge(self, into, merged):
        self.window, self.merged = into, merged
        self.trigger.on_merge(into, self)
        for window in merged:
            self.clear(window)

    def clear(self, window):
        self.window = window
        self.trigger.clear(window, self)

    def advance(self, watermark):
        self.watermark = watermark
        return self._fire(self.event, watermark, self.trigger.on_event_time)

    def advance_processing(self, time):
        self.time = time
        return self._fire(self.processing, time, self.trigger.on_processing_time)

    def _fire(self, timers, up_to, call):
        results: list = []
        for _ in range(100):
            due = sorted(timer for timer in timers if timer[0] <= up_to)
            if not due:
                return results
            timers.discard(due[0])
            self.window = due[0][1]
            results.append((self.window, call(due[0][0], self.window, self)))
        raise AssertionError("timers never end")

    def timers(self, window=None):
        return [sum(1 for _, w in timers if window in (None, w)) for timers in (self.event, self.processing)]


class TestEventTime:
    def test_window_separation_and_firing(self):
        h = Harness(EventTimeTrigger())
        assert {h.element(A), h.element(A), h.element(B), h.element(B)} == {CONTINUE}
        assert (h.states, h.timers(), h.timers(A)) == ({}, [2, 0], [1, 0])
        assert h.advance(2) == [(A, FIRE)]
        assert h.advance(4) == [(B, FIRE)]
        assert h.timers() == [0, 0]

    def test_a_late_element_fires_at_once_and_sets_no_timer(self):
        h = Harness(EventTimeTrigger())
        h.watermark = 2
        assert h.element(A) is FIRE
        assert h.timers() == [0, 0]

    def test_other_timers_do_not_fire_it(self):
        h = Harness(EventTimeTrigger())
        h.element(A)
        assert h.trigger.on_event_time(0, A, h) is CONTINUE
        assert h.trigger.on_event_time(20, A, h) is CONTINUE
        assert h.trigger.on_processing_time(1, A, h) is CONTINUE

    def test_clear_does_not_leak_across_windows(self):
        h = Harness(EventTimeTrigger())
        h.element(A), h.element(B)
        h.clear(B)
        assert (h.timers(A), h.timers(B)) == ([1, 0], [0, 0])

    def test_merging(self):
        h = Harness(EventTimeTrigger())
        assert h.trigger.can_merge()
        h.element(A), h.element(B)
        h.merge(BOTH, [A, B])
        assert h.event == {(3, BOTH)}
        assert h.advance(4) == [(BOTH, FIRE)]

    def test_merging_into_the_past_sets_no_timer(self):
        h = Harness(EventTimeTrigger())
        h.watermark = 10
        h.merge(BOTH, [A, B])
        assert h.timers() == [0, 0]


class TestProcessingTime:
    def test_window_separation_and_firing(self):
        h = Harness(ProcessingTimeTrigger())
        assert {h.element(A), h.element(A), h.element(B)} == {CONTINUE}
        assert h.timers() == [0, 2]
        assert h.advance_processing(2) == [(A, FIRE)]
        assert h.advance_processing(4) == [(B, FIRE)]

    def test_clear_and_merge(self):
        h = Harness(ProcessingTimeTrigger())
        h.element(A), h.element(B)
        h.clear(A)
        assert h.timers(A) == [0, 0]
        h.merge(BOTH, [B])
        assert h.processing == {(3, BOTH)}
        h = Harness(ProcessingTimeTrigger())
        h.time = 3
        h.merge(BOTH, [])
        assert h.timers() == [0, 0]


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_bad_counts_are_refused(count):
    with pytest.raises(DefinitionError, match="max_count"):
        CountTrigger.of(count)


class TestContinuousEventTime:
    def test_a_late_element_fires_at_once(self):
        h = Harness(ContinuousEventTimeTrigger.of(3_600_000))
        h.watermark = 2
        assert h.element(A) is FIRE
        assert (h.states, h.timers()) == ({}, [0, 0])
        # A cleanup timer finds no state.
        assert h.trigger.on_event_time(20, A, h) is CONTINUE

    def test_clear(self):
        h = Harness(ContinuousEventTimeTrigger.of(3_600_000))
        h.element(A), h.element(B)
        h.clear(B)
        # Unlike Flink's, the timer at the window's end goes too.
        assert (len(h.states), h.timers(A), h.timers(B)) == (1, [2, 0], [0, 0])


class TestContinuousProcessingTime:
    def test_it_fires_at_every_multiple_and_at_the_end(self):
        h = Harness(ContinuousProcessingTimeTrigger.of(5))
        window = TimeWindow(0, 8)
        assert h.element(window) is CONTINUE
        assert h.processing == {(5, window)}
        assert h.advance_processing(5) == [(window, FIRE)]
        assert h.processing == {(7, window)}
        h.clear(window)
        assert (h.states, h.timers()) == ({}, [0, 0])

    def test_a_window_in_the_past_of_the_clock_fires_once_for_its_elements(self):
        h = Harness(ContinuousProcessingTimeTrigger.of(5))
        h.time = 1_000_000
        for now in (1_000_005, 1_000_020):
            assert {h.element(A), h.element(A)} == {CONTINUE}
            assert h.advance_processing(now) == [(A, FIRE)]
            assert (h.states, h.timers()) == ({}, [0, 0])


class TestPurging:
    def test_every_fire_becomes_fire_and_purge(self):
        h = Harness(PurgingTrigger.of(CountTrigger.of(2)))
        assert [h.element(A), h.element(A)] == [CONTINUE, FIRE_AND_PURGE]
        h = Harness(PurgingTrigger.of(EventTimeTrigger()))
        h.element(A)
        assert h.advance(1) == [(A, FIRE_AND_PURGE)]
        h = Harness(PurgingTrigger.of(ProcessingTimeTrigger()))
        h.element(A)
        assert h.advance_processing(1) == [(A, FIRE_AND_PURGE)]

    def test_other_results_and_calls_are_passed_on(self):
        class Purges(Trigger):
            def on_element(self, element, timestamp, window, ctx):
                return PURGE

        h = Harness(PurgingTrigger.of(Purges()))
        assert h.element(A) is PURGE
        assert not h.trigger.can_merge()
        h = Harness(PurgingTrigger.of(CountTrigger.of(3)))
        h.element(A), h.element(B)
        h.merge(BOTH, [A, B])
        assert h.element(BOTH) is FIRE_AND_PURGE

    def test_only_triggers_can_be_nested(self):
        with pytest.raises(DefinitionError, match="not a Trigger"):
            PurgingTrigger.of(WRONG)


class TestProcessingTimeout:
    def test_a_fire_of_the_nested_trigger_clears_the_timeout(self):
        h = Harness(ProcessingTimeoutTrigger.of(CountTrigger.of(3), 50))
        assert [h.element(A), h.element(A)] == [CONTINUE, CONTINUE]
        assert h.processing == {(50, A)}
        assert h.element(A) is FIRE
        assert (h.states, h.timers()) == ({}, [0, 0])

    def test_the_timeout_fires_and_clears(self):
        h = Harness(ProcessingTimeoutTrigger.of(CountTrigger.of(3), 50))
        h.element(A)
        h.time = 20
        h.element(A)
        assert h.processing == {(50, A)}
        assert h.advance_processing(50) == [(A, FIRE)]
        assert (h.states, h.timers()) == ({}, [0, 0])

    def test_each_record_may_start_it_anew(self):
        h = Harness(ProcessingTimeoutTrigger.of(CountTrigger.of(3), 50, reset_timer_on_new_record=True))
        h.element(A)
        h.time = 20
        h.element(A)
        assert h.processing == {(70, A)}

    def test_the_nested_trigger_may_be_kept(self):
        trigger = ProcessingTimeoutTrigger.of(CountTrigger.of(3), 50, should_clear_on_timeout=False)
        h = Harness(trigger)
        h.element(A), h.element(A)
        assert h.advance_processing(50) == [(A, FIRE)]
        assert h.element(A) is FIRE

    def test_it_purges_if_the_nested_trigger_does(self):
        h = Harness(ProcessingTimeoutTrigger.of(PurgingTrigger.of(ProcessingTimeTrigger()), 50))
        h.element(A)
        assert h.advance_processing(1) == [(A, FIRE_AND_PURGE)]
        assert not h.trigger.can_merge()


def test_never():
    h = Harness(NeverTrigger())
    assert h.element(A) is CONTINUE
    assert h.trigger.on_event_time(5, A, h) is CONTINUE
    assert h.trigger.can_merge()
    h.merge(BOTH, [A])
    h.clear(A)


def test_a_trigger_that_does_not_merge_says_so():
    class Plain(Trigger):
        count = ReducingState(max, int)

        def on_element(self, element, timestamp, window, ctx):
            return CONTINUE

    h = Harness(Plain())
    assert not h.trigger.can_merge()
    with pytest.raises(DefinitionError, match="does not support merging"):
        h.merge(BOTH, [A])
    with pytest.raises(NotImplementedError, match="on_element"):
        Trigger().on_element(1, 1, A, h)


@pytest.mark.parametrize("assigner", [GlobalWindows.create(), TumblingEventTimeWindows.of(1_000)], ids=repr)
def test_a_continuous_trigger_ends_at_the_end_of_time(assigner):
    last = 2**63 - 1
    for times in ([5, 7], [last - 3, last - 2]):
        stream = keyed.stream([{"k": 1, "t": t} for t in times], timestamp="t", max_ahead=None)
        windowed = stream.key_by("k").window(assigner).trigger(ContinuousEventTimeTrigger.of(400))
        values = windowed.aggregate(n=Count()).run().values
        assert values[-1].n == 2
        assert len(values) <= 4
