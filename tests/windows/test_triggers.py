"""Triggers by themselves, on a double of their context (Flink's *TriggerTest and TriggerTestHarness).

`triggers.json` has the calls, with the windows A, B, BOTH and LONG. When triggers fire, and their state, are
compared with an oracle in `test_properties.py`.
"""

from typing import Any

import pytest

import keyed
from keyed import ReducingState
from keyed.errors import DefinitionError
from keyed.windows import (
    ContinuousEventTimeTrigger,
    Count,
    CountTrigger,
    GlobalWindows,
    PurgingTrigger,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)
from tests.support.data_files import read_data
from tests.support.window_operators import trigger_of

CASES = read_data("windows/triggers.json")
WINDOWS = {"A": TimeWindow(0, 2), "B": TimeWindow(2, 4), "BOTH": TimeWindow(0, 4), "LONG": TimeWindow(0, 8)}
NAMES = {window: name for name, window in WINDOWS.items()}

WRONG: Any = 3


class Cell:
    """A value or reducing state of one window."""

    def __init__(self, values, slot, reduce):
        self.values, self.slot, self.reduce = values, slot, reduce

    def get(self):
        return self.values.get(self.slot)

    value = get

    def add(self, value):
        old = self.values.get(self.slot)
        self.values[self.slot] = value if old is None else self.reduce(old, value)

    def update(self, value):
        self.values[self.slot] = value

    def clear(self):
        self.values.pop(self.slot, None)


class Harness:
    """Flink's TriggerTestHarness: clocks, timers and state of windows around one trigger."""

    def __init__(self, trigger):
        self.trigger = trigger
        self.watermark, self.time = -(2**63), 0
        self.values = {}
        self.event_timers, self.processing_timers = set(), set()
        self.window: Any = None
        self.merged: Any = ()

    def get_current_watermark(self):
        return self.watermark

    def get_current_processing_time(self):
        return self.time

    def register_event_time_timer(self, time):
        self.event_timers.add((time, self.window))

    def register_processing_time_timer(self, time):
        self.processing_timers.add((time, self.window))

    def delete_event_time_timer(self, time):
        self.event_timers.discard((time, self.window))

    def delete_processing_time_timer(self, time):
        self.processing_timers.discard((time, self.window))

    def get_partitioned_state(self, descriptor):
        return Cell(self.values, (descriptor, self.window), getattr(descriptor, "reduce", None))

    def merge_partitioned_state(self, descriptor):
        target = self.get_partitioned_state(descriptor)
        values = [self.values.pop((descriptor, w), None) for w in self.merged]
        for value in values:
            if value is not None:
                target.add(value)

    # Driving, with windows and results by their names

    def element(self, window):
        self.window = WINDOWS[window]
        return self.trigger.on_element(1, 0, self.window, self).name

    def on_event_time(self, time, window):
        return self.trigger.on_event_time(time, WINDOWS[window], self).name

    def on_processing_time(self, time, window):
        return self.trigger.on_processing_time(time, WINDOWS[window], self).name

    def can_merge(self):
        return self.trigger.can_merge()

    def merge(self, into, merged):
        self.window, self.merged = WINDOWS[into], [WINDOWS[window] for window in merged]
        self.trigger.on_merge(self.window, self)
        for window in merged:
            self.clear(window)

    def clear(self, window):
        self.window = WINDOWS[window]
        self.trigger.clear(self.window, self)

    def advance(self, watermark):
        self.watermark = watermark
        return self._fire(self.event_timers, watermark, self.trigger.on_event_time)

    def advance_processing(self, time):
        self.time = time
        return self._fire(self.processing_timers, time, self.trigger.on_processing_time)

    def _fire(self, timers, up_to, call):
        results: list = []
        for _ in range(100):
            due = sorted(timer for timer in timers if timer[0] <= up_to)
            if not due:
                return results
            timers.discard(due[0])
            time, self.window = due[0]
            results.append([NAMES[self.window], call(time, self.window, self).name])
        raise AssertionError("timers never end")

    def event(self):
        return [[time, NAMES[window]] for time, window in self.event_timers]

    def processing(self):
        return [[time, NAMES[window]] for time, window in self.processing_timers]

    def timers(self, window=None):
        timers = self.event_timers, self.processing_timers
        return [sum(window in (None, NAMES[w]) for _, w in each) for each in timers]

    def states(self):
        return len(self.values)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_bad_counts_are_refused(count):
    with pytest.raises(DefinitionError, match="max_count"):
        CountTrigger.of(count)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['trigger']}: {case['name']}")
def test_a_case_holds(case):
    harness = Harness(trigger_of(case["trigger"]))
    for step in case["steps"]:
        *call, _, expected = step if "->" in step else [*step, "->", None]
        name, *arguments = call
        result = getattr(harness, name)(*arguments)
        assert result == expected, f"{step} gives {result}"


def test_a_purge_is_passed_on():
    class Purges(Trigger):
        def on_element(self, element, timestamp, window, ctx):
            return TriggerResult.PURGE

    h = Harness(PurgingTrigger.of(Purges()))
    assert h.element("A") == "PURGE"
    assert not h.can_merge()
    with pytest.raises(DefinitionError, match="not a Trigger"):
        PurgingTrigger.of(WRONG)


def test_a_trigger_that_does_not_merge_says_so():
    class Plain(Trigger):
        count = ReducingState(max, int)

        def on_element(self, element, timestamp, window, ctx):
            return TriggerResult.CONTINUE

    h = Harness(Plain())
    assert not h.can_merge()
    with pytest.raises(DefinitionError, match="does not support merging"):
        h.merge("BOTH", ["A"])
    with pytest.raises(NotImplementedError, match="on_element"):
        Trigger().on_element(1, 1, WINDOWS["A"], h)


@pytest.mark.parametrize("assigner", [GlobalWindows.create(), TumblingEventTimeWindows.of(1_000)], ids=repr)
def test_a_continuous_trigger_ends_at_the_end_of_time(assigner):
    last = 2**63 - 1
    for times in ([5, 7], [last - 3, last - 2]):
        stream = keyed.stream([{"k": 1, "t": t} for t in times], timestamp="t", max_ahead=None)
        windowed = stream.key_by("k").window(assigner).trigger(ContinuousEventTimeTrigger.of(400))
        values = windowed.aggregate(n=Count()).run().values
        assert values[-1].n == 2
        assert len(values) <= 4
